"""Sampled posteriors of networks: Wiese et al. 2023 as scikit-learn estimators."""

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

import torch
from sklearn.utils import Bunch
from torch import Tensor, nn

from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    NOISE_CONSTRAINTS,
    PriorParameter,
    learned_scales,
)
from skbayes_sym.base.network_estimator import OBJECT_CONSTRAINTS
from skbayes_sym.base.progress import N_JOBS, RUN_CONSTRAINTS
from skbayes_sym.base.requirements import FitResult
from skbayes_sym.base.rows import STANDARDIZE, Array
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.base.weighted_draws import DrawsClassifier, DrawsRegressor, WeightedDraws
from skbayes_sym.mcmc.config import SamplingDefaults
from skbayes_sym.mcmc.fit import Sampling
from skbayes_sym.mcmc.initialization import default_prior_scale
from skbayes_sym.mcmc.samplers import Chains, Kernel, ModeWeights
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian, Heteroscedastic
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import GaussianPrior, HalfNormal, LayerScales, Prior, UnboundPrior
from skbayes_sym.symmetry.group import NotInvariantError, SymmetryGroup, Trivial, check_invariant

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    **OBJECT_CONSTRAINTS,
    "sampler": [StrOptions({"auto", "hmc"}), Chains, HasMethods("step")],
    "prior": [StrOptions({"auto"}), *NETWORK_CONSTRAINTS["prior"]],
    "n_chains": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), None],
    "n_draws": [Interval(Integral, 1, None, closed="left"), None],
    "remove_symmetries": ["boolean", ModeWeights],
    "standardize": ["boolean"],
    "n_jobs": N_JOBS,
    "random_state": ["random_state"],
}


@dataclass(eq=False, repr=False)
class SampledEstimator(WeightedDraws):
    """An estimator that samples its posterior."""

    hidden_layer_sizes: Any = (20,)
    activation: str = "tanh"
    _: KW_ONLY
    sampler: str | Chains | Kernel = "auto"
    n_chains: int | str | None = None
    n_draws: int | None = None
    remove_symmetries: bool | ModeWeights = True
    network: str | nn.Module | Network = "mlp"
    likelihood: str | Likelihood = "auto"
    prior: PriorParameter = "auto"
    standardize: bool | str = True
    n_jobs: int | None = None
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    _effort: ClassVar[SamplingDefaults] = SamplingDefaults()

    def _n_parallel_networks(self, n_weights: int) -> float:
        return float(self.n_chains if isinstance(self.n_chains, int) else 64)

    def _make_method(self) -> Sampling:
        sampler = self.sampler
        remove = self.remove_symmetries
        weights = remove if isinstance(remove, ModeWeights) else ModeWeights() if remove else None
        if isinstance(sampler, type):
            raise ValueError(f"sampler must be an object, not a class: {sampler.__name__}().")
        if not isinstance(sampler, Chains):
            sampler = Chains(sampler)
        sampler._validate_params()
        if weights:
            weights._validate_params()
        start = self.__dict__.get("_blocks_") if sampler.warm_start else None
        return Sampling(
            sampler, self.n_chains, self.n_draws, weights, self._noise_prior_scale, self.n_jobs,
            start, self._effort,
        )  # fmt: skip

    def _make_model(self, data: Training) -> Model:
        return self._as_sampled(super()._make_model(data), data.n_rows)

    def _as_sampled(self, model: Model, n_rows: int) -> Model:
        """Give scales where ``prior="auto"`` says so.

        To chains that come from afar, and to outputs whose exponentials count: scales integrated
        out leave them the tails of power laws, and their exponentials no mean.
        """
        is_open = isinstance(self.prior, str) and self.prior == "auto"
        exponential = model.likelihood.kind in {"counts", "heteroscedastic"}
        if not is_open or not (
            exponential or self._make_method().init_for(model, n_rows) == "ensemble"
        ):
            return model
        return model._replace(prior=GaussianPrior(default_prior_scale(model.network)))

    def _make_prior(self, network: Network) -> Prior:
        """Scales that are learned are integrated out."""
        prior = super()._make_prior(network)
        scales = learned_scales(prior)
        return prior if scales is None else scales.collapse()

    def _symmetry_group(self, network: Network, prior: Prior) -> SymmetryGroup:
        group = network.symmetry()
        try:
            check_invariant(
                group, prior.log_prob, network.layout, name="prior",
                remedy="Give all units of a layer the same scale, or use remove_symmetries=False.",
            )  # fmt: skip
        except NotInvariantError:
            if self.remove_symmetries:
                raise
            return Trivial()
        return group

    def _fitted_attributes(
        self, data: Training, model: Model, sampled: FitResult
    ) -> dict[str, Any]:
        attributes = super()._fitted_attributes(data, model, sampled)
        return {**attributes, "diagnostics_": Bunch(**attributes["diagnostics_"])}

    def _reference_posterior(self) -> NetworkPosterior:
        """The posterior that was sampled, in float64 on the CPU."""
        x, y, weight = (torch.as_tensor(a) for a in self._training_data_)
        targets = y.double() if y.is_floating_point() else y
        network = self.network_
        likelihood = self.fitted_likelihood
        if isinstance(likelihood, Gaussian) and not likelihood.learn:
            likelihood = Gaussian(likelihood.log_noise.flatten(0, -2)[0], learn=False)
        else:  # at any value of its free parameters
            likelihood = likelihood.at(torch.zeros(likelihood.n_params, dtype=torch.float64))
        model = Model(network, likelihood, self._make_prior(network), Trivial())
        return NetworkPosterior(
            network, likelihood, self._as_sampled(model, len(x)).prior,
            Data(x.double(), targets, weight.double()), self._noise_prior_scale,
        )  # fmt: skip

    def _positions(self) -> Tensor:
        """All draws as the sampler had them, (C, S, D)."""
        theta = torch.as_tensor(self.samples_).double()
        n_params = self.fitted_likelihood.n_params
        if not n_params:
            return theta
        noise = torch.as_tensor(self._likelihood_params_).view(*theta.shape[:-1], n_params)
        return torch.cat([theta, noise], dim=-1)


@dataclass(eq=False, repr=False)
class MCMCRegressor(DrawsRegressor, SampledEstimator):
    r"""Bayesian neural network regression by Markov chain Monte Carlo, modulo symmetry.

    Draws from the posterior of an MLP's weights and noise. It has |G| copies of every mode, one for
    each way to exchange (and flip) hidden units. Each draw is moved to one representative of its
    orbit, so that the modes that remain are different functions. A mode counts for its mass,

    .. math:: Z_k = \int_{R_k} p(y \mid \theta)\, p(\theta)\, d\theta,

    by bridge sampling, not for the number of chains that started in its basin.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(20,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    sampler : {"auto", "hmc"}, Chains or Kernel, default="auto"
        Sampler that looks for modes. "auto" and "hmc" are `Chains` moved by Hamiltonian Monte
        Carlo; `Chains` sets where chains start and how they warm up. A kernel of your own works
        too.
    n_chains : int, "auto" or None, default=None
        None is 64, 16 where chains start at modes and 12 where they start as an ensemble does.
        "auto" is ``n_chains_required([.57, .35, .08])``.
    n_draws : int or None, default=None
        Draws of each chain kept after its warm-up. None is 50.
    remove_symmetries : bool or ModeWeights, default=True
        Whether draws are moved to one representative of their symmetry orbit, and what a mode then
        counts for. True is ``ModeWeights("auto")``: its posterior mass where the draws are enough
        to know it, else the number of chains that found it. False leaves the draws where the chains
        are, one vote each: predictions are those of `ModeWeights` "uniform", and weights mean
        nothing. The prior must not tell the units of a layer apart.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs; "auto" is normal noise, as
        ``noise_std`` says. "heteroscedastic" (noise that changes with the input), "student_t"
        (heavy tails), "poisson" and "negative_binomial" (counts) are the objects of these names;
        "heteroscedastic" with ``least=0.02`` where rows repeat, or have weights above 1.
    prior : "auto", "learn", float, sequence of float or Prior, default="auto"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number, one per layer or one per parameter; or an object. Scales that are learned are
        integrated out in closed form: those of ``LayerScales()``, which "learn" is, or of
        ``ARD()``. "auto" is "learn", but of annealed chains (``init="ensemble"``), of
        heteroscedastic noise and of counts 1, and ``4 / sqrt(n)`` for the weights of layers of
        ``n`` > 16 inputs. Learned scales leave outputs the tails of a Student-t distribution, whose
        exponentials have no mean: with them, or an unbounded activation, ask for quantiles there.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    n_jobs : int or None, default=None
        Number of joblib processes; the result does not depend on it.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    noise_std : "learn", HalfNormal, float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``; one number or one per
        target. "learn" estimates it under a half-normal prior of scale 1, in scaled target units;
        `HalfNormal` has another, of whatever parameters the likelihood has.

    Attributes
    ----------
    samples_ : ndarray of shape (n_chains, n_draws, P)
        Draws of the network's weights, acting on standardised data; on one representative unless
        ``remove_symmetries=False``. The flat order is layer by layer, W (out x in, row-major), then
        b.
    noise_std_samples_ : ndarray of shape (n_chains, n_draws, n_targets)
        Standard deviation of the noise (or its scale) at the same draws, in the units of ``y``;
        only where the likelihood has noise.
    chain_weights_ : ndarray of shape (n_chains,)
        What each chain's draws count for; they sum to 1.
    log_posterior_samples_ : ndarray of shape (n_chains, n_draws)
        Log joint density of targets, as given, and parameters at the draws, nats.
    modes_ : list of Mode
        What chains found, heaviest first: ``weight``, ``log_evidence`` and ``std_error`` (nats; the
        part of the evidence that the mode and its copies hold), ``members`` (its chains in
        `samples_`), ``n_explorers`` (chains that ended there on their own), ``mean_log_posterior``.
        Empty where modes weren't weighed.
    log_evidence_ : float
        log p(y | X), nats, summed over the modes that were found: a lower bound up to
        `log_evidence_std_error_`. NaN where it can't be trusted.
    log_evidence_std_error_ : float
        Its Monte Carlo standard error, nats.
    log_evidence_side_ : {"lower"}
        Side of log p(y | X) on which it lies, in expectation: modes may have been missed.
    prior_scale_ : ndarray of shape (n_groups,)
        Posterior geometric mean of every group's prior standard deviation, where scales are
        learned.
    relevance_ : ndarray of shape (n_chains, n_features)
        Prior scale of the weights of each column of ``X``, geometric mean over a chain's draws;
        only under ``ARD()``.
    diagnostics_ : Bunch
        function_rhat, function_ess : ndarrays, of the outputs at up to 50 training rows and any
        log noise; function_rhat_before : as warmed up; function_rhat_within, function_ess_within :
        the median of those outputs, chain by chain;
        parameter_rhat, parameter_ess : ndarrays (P,), of `samples_`; parameter_rhat_before,
        parameter_ess_before : the same before symmetries were removed;
        n_divergent, acceptance, energy_error (root mean square, nats), stuck, n_gradients : one
        number per chain;
        unseen_basin : a basin that draws fewer starts than this share can have been missed with
        probability over 1 %;
        no_evidence : str, why `log_evidence_` is nan, where it is;
        warnings : list of str.
    likelihood_ : Likelihood
        The likelihood with its fitted parameters, in standardised units. If the parameters were
        sampled, their first axis is that of the draws. Doesn't exist for ``likelihood="auto"``.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
    n_iter_ : int
        Number of steps.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Reason why training stopped.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Mean and standard deviation by which the inputs were standardised.
    y_mean_, y_scale_ : ndarray of shape (n_targets,)
        Mean and standard deviation by which the targets were standardised.
    device_, dtype_ : str
        Device and floating-point precision of the fit.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all column names of ``X`` are strings.

    See Also
    --------
    MCMCClassifier : The same for class labels.
    DeepEnsembleRegressor : Only the best point of each start's basin.
    remove_symmetries : For draws of any other sampler.

    Notes
    -----
    A step of ``n_iter_`` is an iteration of every chain, warm-up included. After an interrupt the
    draws made so far are kept. The draws don't depend on how many processes make them.

    A chain makes ``n_warmup + n_draws`` iterations of up to 256 gradients, 64 chains (256 on small
    problems) as one batch. Draws take ``8 n_chains n_draws (P + 1)`` bytes.

    The settings of Wiese et al. (2023) are ``prior=1.0``, ``Chains(init="prior")`` and small
    layers. At 20 units modes aren't weighed by evidence, and chains don't mix between modes: R-hat
    of functions is 1.3 to 2.

    A mode that no chain visited is invisible to every figure here, R-hat included;
    ``diagnostics_.unseen_basin`` says how large its basin can be. Where hidden units overlap,
    single weights have no meaning even after symmetry removal (`remove_symmetries`); functions
    always do.

    Corrected against the paper: modes are weighed by mass, not by the starts they attract; the
    half-normal prior is on the noise's standard deviation; no test density is dropped.

    References
    ----------
    Wiese, Wimmer, Papamarkou, Bischl, Günnemann & Rügamer (2023). Towards efficient MCMC sampling
    in Bayesian neural networks by exploiting symmetry. https://arxiv.org/abs/2304.02902

    Examples
    --------
    >>> from skbayes_sym import MCMCRegressor
    >>> from skbayes_sym.datasets import make_sinusoidal
    >>> from skbayes_sym import Chains
    >>> X, y = make_sinusoidal(60, random_state=0)
    >>> reg = MCMCRegressor((2,), sampler=Chains(n_warmup=50), n_chains=8, prior=1.0,
    ...                     random_state=0)
    >>> reg = reg.fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, reg.samples_.shape, len(reg.modes_) >= 1
    ((3,), (8, 50, 7), True)
    """

    _: KW_ONLY
    noise_std: Any = "learn"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        **NOISE_CONSTRAINTS,
        "noise_std": [HalfNormal, *NOISE_CONSTRAINTS["noise_std"]],
        "standardize": STANDARDIZE,
    }

    def _make_likelihood(self, data: Training) -> Likelihood:
        return self._bounded(super()._make_likelihood(data), data.rows.weight)

    @property
    def fitted_likelihood(self) -> Likelihood:
        return self._bounded(super().fitted_likelihood, self._training_data_[2])

    def _bounded(self, likelihood: Likelihood, weight: Array) -> Likelihood:
        """Bound the noise where rows of ``weight`` repeat, if it was asked for by name."""
        repeats = isinstance(self._likelihood_parameter, str) and weight.max() > 1.0
        if isinstance(likelihood, Heteroscedastic) and repeats:
            # On concrete four chains without it have an R-hat of functions of 2.6 and -1.20 nats
            # per row; with it 1.4 and .23.
            return replace(likelihood, least=0.02)
        return likelihood


@dataclass(eq=False, repr=False)
class MCMCClassifier(DrawsClassifier, SampledEstimator):
    r"""Bayesian neural network classification by Markov chain Monte Carlo, modulo symmetry.

    Draws from the posterior of an MLP's weights, moves each draw to one representative of its orbit
    under exchanges (and flips) of hidden units, and counts every mode for its mass, as
    `MCMCRegressor` does.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(20,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    sampler : {"auto", "hmc"}, Chains or Kernel, default="auto"
        Sampler that looks for modes. "auto" and "hmc" are `Chains` moved by Hamiltonian Monte
        Carlo; `Chains` sets where chains start and how they warm up. A kernel of your own works
        too.
    n_chains : int, "auto" or None, default=None
        None is 64, 16 where chains start at modes and 12 where they start as an ensemble does.
        "auto" is ``n_chains_required([.57, .35, .08])``.
    n_draws : int or None, default=None
        Draws of each chain kept after its warm-up. None is 50.
    remove_symmetries : bool or ModeWeights, default=True
        Whether draws are moved to one representative of their symmetry orbit, and what a mode then
        counts for. True is ``ModeWeights("auto")``: its posterior mass where the draws are enough
        to know it, else the number of chains that found it. False leaves the draws where the chains
        are, one vote each: predictions are those of `ModeWeights` "uniform", and weights mean
        nothing. The prior must not tell the units of a layer apart.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again.
    likelihood : str or Likelihood, default="auto"
        Distribution of a class given the network's outputs. "auto" is ``Categorical()``, the
        softmax of one output per class. "bernoulli" is the logistic function of a single output,
        for two classes.
    prior : "auto", "learn", float, sequence of float or Prior, default="auto"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number, one per layer or one per parameter; or an object. Scales that are learned are
        integrated out in closed form: those of ``LayerScales(8.0, 64.0)``, which "learn" is, or of
        ``ARD(8.0, 64.0)``. "auto" is "learn", but of annealed chains (``init="ensemble"``) 1, and
        ``4 / sqrt(n)`` for the weights of layers of ``n`` > 16 inputs.
    standardize : bool, default=True
        Whether to standardise the columns of ``X`` before the fit.
    n_jobs : int or None, default=None
        Number of joblib processes; the result does not depend on it.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.

    Attributes
    ----------
    samples_ : ndarray of shape (n_chains, n_draws, P)
        Draws of the network's weights, acting on standardised data; on one representative unless
        ``remove_symmetries=False``. The flat order is layer by layer, W (out x in, row-major), then
        b.
    chain_weights_ : ndarray of shape (n_chains,)
        What each chain's draws count for; they sum to 1.
    log_posterior_samples_ : ndarray of shape (n_chains, n_draws)
        Log joint density of targets, as given, and parameters at the draws, nats.
    modes_ : list of Mode
        What chains found, heaviest first: ``weight``, ``log_evidence`` and ``std_error`` (nats; the
        part of the evidence that the mode and its copies hold), ``members`` (its chains in
        `samples_`), ``n_explorers`` (chains that ended there on their own), ``mean_log_posterior``.
        Empty where modes weren't weighed.
    log_evidence_ : float
        log p(y | X), nats, summed over the modes that were found: a lower bound up to
        `log_evidence_std_error_`. NaN where it can't be trusted.
    log_evidence_std_error_ : float
        Its Monte Carlo standard error, nats.
    log_evidence_side_ : {"lower"}
        Side of log p(y | X) on which it lies, in expectation: modes may have been missed.
    prior_scale_ : ndarray of shape (n_groups,)
        Posterior geometric mean of every group's prior standard deviation, where scales are
        learned.
    relevance_ : ndarray of shape (n_chains, n_features)
        Prior scale of the weights of each column of ``X``, geometric mean over a chain's draws;
        only under ``ARD()``.
    diagnostics_ : Bunch
        function_rhat, function_ess : ndarrays, of the outputs at up to 50 training rows and any
        log noise; function_rhat_before : as warmed up; function_rhat_within, function_ess_within :
        the median of those outputs, chain by chain;
        parameter_rhat, parameter_ess : ndarrays (P,), of `samples_`; parameter_rhat_before,
        parameter_ess_before : the same before symmetries were removed;
        n_divergent, acceptance, energy_error (root mean square, nats), stuck, n_gradients : one
        number per chain;
        unseen_basin : a basin that draws fewer starts than this share can have been missed with
        probability over 1 %;
        no_evidence : str, why `log_evidence_` is nan, where it is;
        warnings : list of str.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
    n_iter_ : int
        Number of steps.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Reason why training stopped.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Mean and standard deviation by which the inputs were standardised.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    device_, dtype_ : str
        Device and floating-point precision of the fit.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all column names of ``X`` are strings.

    See Also
    --------
    MCMCRegressor : The same for numbers.
    DeepEnsembleClassifier : Only the best point of each start's basin.
    remove_symmetries : For draws of any other sampler.

    Notes
    -----
    Steps, interrupts, blocks, memory, what the draws are worth and the paper are as in
    `MCMCRegressor`. Modes are weighed by mass, not by the starts they attract, and no test density
    is dropped: both corrected against the paper, whose settings are ``prior=1.0``,
    ``Chains(init="prior")`` and small layers.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skbayes_sym import MCMCClassifier
    >>> from skbayes_sym import Chains
    >>> X, y = make_moons(60, noise=0.2, random_state=0)
    >>> clf = MCMCClassifier((2,), sampler=Chains(n_warmup=50), n_chains=4, random_state=0)
    >>> clf = clf.fit(X, y)
    >>> clf.predict_proba(X[:3]).shape
    (3, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {**CONSTRAINTS}

    def _learned_prior(self, network: Network) -> UnboundPrior:
        return LayerScales(8.0, 64.0) if network.symmetry().factors else LayerScales()
