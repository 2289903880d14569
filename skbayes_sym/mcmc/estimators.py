"""Bayesian neural networks by Markov chain Monte Carlo modulo symmetry (Wiese et al. 2023)."""

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    NOISE_CONSTRAINTS,
    OBJECT_CONSTRAINTS,
    PriorParameter,
    learned_scales,
    model_symmetry,
    relative_relevance,
)
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.predictor import DrawsPredictor, Predictor
from skbayes_sym.base.progress import N_JOBS, RUN_CONSTRAINTS
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.requirements import FitResult
from skbayes_sym.base.rows import STANDARDIZE, Array
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.base.weighted_draws import (
    draws_predictor,
    learned_class_prior,
    noise_prior_scale,
    refuse_free_parameters,
    require_noise,
    to_arviz,
)
from skbayes_sym.mcmc.config import SamplingDefaults, make_posterior
from skbayes_sym.mcmc.fit import Sampling
from skbayes_sym.mcmc.initialization import default_prior_scale
from skbayes_sym.mcmc.samplers import Chains, Kernel, ModeWeights
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian, Heteroscedastic
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import GaussianPrior, HalfNormal, Prior, UnboundPrior
from skbayes_sym.numerics.linalg import as_double
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
class BaseMCMC(BayesianEstimator):
    """Base class of estimators that sample the posterior by Markov chain Monte Carlo."""

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

    _defaults: ClassVar[SamplingDefaults] = SamplingDefaults()

    samples_: ClassVar[Array]
    chain_weights_: ClassVar[Array]
    log_posterior_samples_: ClassVar[Array]
    _likelihood_params_: ClassVar[Array]
    # Ensembles have draws that aren't samples of the posterior.
    draws_the_posterior: ClassVar[bool] = True

    feature_importances_ = property(relative_relevance)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """Subgroup of the network's symmetry group that leaves the prior invariant."""
        check_is_fitted(self)
        return model_symmetry(self.network_, self._make_prior(self.network_))

    def _n_parallel_networks(self, _n_weights: int) -> float:
        """Number of networks that one gradient evaluates."""
        return float(self.n_chains if isinstance(self.n_chains, int) else 64)

    def _make_method(self) -> Sampling:
        """Inference method with the estimator's parameters."""
        weights: ModeWeights | None = None
        if isinstance(self.remove_symmetries, ModeWeights):
            weights = self.remove_symmetries
        elif self.remove_symmetries:
            weights = ModeWeights()
        sampler = self.sampler
        if isinstance(sampler, type):
            raise ValueError(f"sampler must be an object, not a class: {sampler.__name__}().")
        if not isinstance(sampler, Chains):
            sampler = Chains(sampler)
        sampler.validate()
        if weights:
            weights.validate()
        previous_blocks = None
        if sampler.warm_start:
            previous_blocks = getattr(self, "_blocks_", None)
        return Sampling(
            sampler,
            self.n_chains,
            self.n_draws,
            weights,
            self._noise_prior_scale,
            self.n_jobs,
            previous_blocks,
            self._defaults,
        )

    def _make_model(self, data: Training) -> Model:
        """Model of the training data, with the default prior of the sampler."""
        return self._with_default_prior(super()._make_model(data), data.n_rows)

    def _with_default_prior(self, model: Model, n_rows: int) -> Model:
        """Replace ``prior="auto"`` by fixed scales for annealed chains and exponential outputs.

        Learned scales give the outputs the tails of a power law. Annealed chains start far away in
        these tails, and exponentials of such outputs have no mean.
        """
        if not (isinstance(self.prior, str) and self.prior == "auto"):
            return model
        is_exponential = model.likelihood.kind in {"counts", "heteroscedastic"}
        if is_exponential or self._make_method().choose_init(model, n_rows) == "ensemble":
            return model._replace(prior=GaussianPrior(default_prior_scale(model.network)))
        return model

    def _make_prior(self, network: Network) -> Prior:
        """Prior of the weights, with learned scales integrated out."""
        prior = super()._make_prior(network)
        scales = learned_scales(prior)
        return prior if scales is None else scales.collapse()

    def _symmetry_group(self, network: Network, prior: Prior) -> SymmetryGroup:
        """Symmetry group of network and prior.

        Without symmetry removal the prior may break the network's symmetry. It may also break a
        part of a torch module's symmetry, because layers that are exchanged as a whole can have
        prior scales of their own.
        """
        group = network.symmetry()
        try:
            check_invariant(
                group,
                prior.log_prob,
                network.layout,
                name="prior",
                remedy="Give all units of a layer the same scale, or use remove_symmetries=False.",
            )
        except NotInvariantError:
            if not self.remove_symmetries:
                return Trivial()
            restricted = model_symmetry(network, prior)
            if isinstance(network, ModuleNetwork) and restricted.factors:
                return restricted
            raise
        return group

    def _fitted_attributes(
        self, data: Training, model: Model, sampled: FitResult
    ) -> dict[str, Any]:
        """Fitted attributes by name."""
        attributes = super()._fitted_attributes(data, model, sampled)
        return {**attributes, "diagnostics_": Bunch(**attributes["diagnostics_"])}

    def _draw_weights(self) -> Array:
        """Return the weight of every draw, (n_chains * n_draws,)."""
        n_draws = self.samples_.shape[1]
        return np.repeat(self.chain_weights_ / n_draws, n_draws)

    def _draws_predictor(self, like: Tensor) -> DrawsPredictor:
        """Return the predictor of all draws, on the device and in the precision of ``like``."""
        return draws_predictor(
            self.network_, self.samples_, self.fitted_likelihood, self._draw_weights(), like
        )

    def predictor(self, like: Tensor) -> Predictor:
        """Return the predictor of all draws, see `BayesianEstimator.predictor`."""
        return self._cached(f"draws on {like.device}", lambda: self._draws_predictor(like))

    def to_arviz(self) -> Any:
        """Export the draws for ArviZ.

        Returns
        -------
        xarray.DataTree
            Group ``posterior`` with the weights ``W1, b1, ...`` (chain, draw, out, in) and, where
            there is noise, ``noise_std``. The dimensions of an MLP are ``input`` (with the names of
            the columns), ``unit_1, ...`` and ``output``. Group ``sample_stats`` with ``lp``, the
            log posterior density. ArviZ gives all chains the same weight, so apply
            `chain_weights_` yourself if they differ.

        Raises
        ------
        ImportError
            Without the package arviz-base (extra ``arviz``).
        """
        noise_std = fitted_attribute(self, "noise_std_samples_")
        return to_arviz(
            self.network_,
            self.samples_,
            self.log_posterior_samples_,
            noise_std,
            getattr(self, "feature_names_in_", None),
        )

    def posterior_density(self) -> NetworkPosterior:
        """Posterior density that was sampled, in float64 on the CPU.

        Returns
        -------
        NetworkPosterior
            Log joint density of the scaled targets and the parameters, as a function of positions
            such as those of `draw_positions`.
        """
        x, y, weight = (torch.as_tensor(a) for a in self._training_data_)
        targets = as_double(y)
        network = self.network_
        likelihood = self.fitted_likelihood
        if isinstance(likelihood, Gaussian) and not likelihood.learn:
            likelihood = Gaussian(likelihood.log_noise.flatten(0, -2)[0], learn=False)
        else:
            # The positions contain the free parameters, so any value will do here.
            likelihood = likelihood.at(torch.zeros(likelihood.n_params, dtype=torch.float64))
        model = Model(network, likelihood, self._make_prior(network), Trivial())
        model = self._with_default_prior(model, len(x))
        data = Data(x.double(), targets, weight.double())
        return make_posterior(model, data, self._noise_prior_scale)

    @property
    def _noise_prior_scale(self) -> float | None:
        """Scale of a given half-normal prior of the noise; None for the default prior."""
        if isinstance(self.noise_std, HalfNormal):
            return noise_prior_scale(self.noise_std)
        return None

    def draw_positions(self) -> Tensor:
        """Network weights and likelihood parameters of all draws.

        Returns
        -------
        Tensor of shape (n_chains, n_draws, D)
            In float64, with the parameters of the likelihood last.
        """
        theta = torch.as_tensor(self.samples_).double()
        n_params = self.fitted_likelihood.n_params
        if not n_params:
            return theta
        params = torch.as_tensor(self._likelihood_params_).view(*theta.shape[:-1], n_params)
        return torch.cat([theta, params], dim=-1)


@dataclass(eq=False, repr=False)
class MCMCRegressor(BayesianRegressorMixin, BaseMCMC):
    r"""Bayesian neural network regression by Markov chain Monte Carlo, modulo symmetry.

    The sampler draws from the posterior of an MLP's weights and noise. The posterior has |G| copies
    of every mode, one for each way to exchange (and flip) hidden units. Each draw is moved to one
    representative of its orbit, so that the remaining modes are different functions. A mode is
    weighted by its posterior mass,

    .. math:: Z_k = \int_{R_k} p(y \mid \theta)\, p(\theta)\, d\theta,

    which is estimated by bridge sampling, and not by the number of chains that started in its
    basin.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(20,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    sampler : {"auto", "hmc"}, Chains or Kernel, default="auto"
        Sampler of the posterior. "auto" and "hmc" are `Chains` moved by Hamiltonian Monte Carlo.
        `Chains` sets how chains start and warm up. A custom kernel can be given, too.
    n_chains : int, "auto" or None, default=None
        Number of chains. None is 64, 16 for chains that start at Laplace modes, and 12 for chains
        that start like a deep ensemble. "auto" is ``n_chains_required([0.57, 0.35, 0.08])``.
    n_draws : int or None, default=None
        Draws per chain after the warm-up. None is 50.
    remove_symmetries : bool or ModeWeights, default=True
        Whether draws are moved to one representative of their symmetry orbit, and how modes are
        weighted then. True is ``ModeWeights("auto")``: by posterior mass if there are enough draws
        to estimate it, otherwise by the number of chains that found each mode. False leaves the
        draws unchanged and weights all chains equally: predictions are those of
        ``ModeWeights("uniform")``, and single network weights have no meaning. The prior must be
        the same for all units of a layer.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs. "auto" is normal noise with the
        standard deviation ``noise_std``. "heteroscedastic" (noise that depends on the input),
        "student_t" (heavy tails), "poisson" and "negative_binomial" (counts) are the likelihood
        objects of these names. "heteroscedastic" has ``least=0.02`` if rows repeat or have weights
        above 1.
    prior : "auto", "learn", float, sequence of float or Prior, default="auto"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        as one number, one per layer or one per parameter; or a prior object. "learn"
        is ``LayerScales()``. Its scales, and those of ``ARD()``, are integrated out in closed form.
        "auto" is "learn", except for annealed chains (``init="ensemble"``), heteroscedastic noise
        and counts. For these it is 1, and ``4 / sqrt(n)`` for the weights of layers with ``n`` > 16
        inputs. Under learned scales outputs have the tails of a Student-t distribution, so that
        their exponentials have no mean. With these, or with an unbounded activation, predict
        quantiles.
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
        target. "learn" infers it under a half-normal prior of scale 1 in scaled target units. With
        a total weight below 30 its prior is wider, Student's t of
        `~skbayes_sym.base.noise_levels`, and predictions use noise levels that are redrawn given
        the weights. `HalfNormal` sets another scale, for all parameters of the likelihood.

    Attributes
    ----------
    samples_ : ndarray of shape (n_chains, n_draws, P)
        Draws of the network's weights for standardised data, on one representative of their orbits
        unless ``remove_symmetries=False``. The order is layer by layer: W (out x in, row-major),
        then b.
    noise_std_samples_ : ndarray of shape (n_chains, n_draws, n_targets)
        Standard deviation (or scale) of the noise in the same draws, in the units of ``y``. Only
        available if the likelihood has noise.
    chain_weights_ : ndarray of shape (n_chains,)
        Weight of each chain; they sum to 1.
    log_posterior_samples_ : ndarray of shape (n_chains, n_draws)
        Log joint density of the original targets and the parameters at the draws, in nats.
    modes_ : list of Mode
        Modes of the posterior, the highest evidence first. Each has the fields ``weight``,
        ``log_evidence`` and ``std_error`` (the part of the evidence in the mode and its copies, in
        nats), ``chains`` (indices of its chains in `samples_`), ``n_initial_chains`` (number of
        initial chains that ended in it) and ``mean_log_posterior``. The list is empty if modes
        weren't weighted by evidence.
    log_evidence_ : float
        log p(y | X) in nats, summed over the modes that were found: a lower bound up to
        `log_evidence_std_error_`. NaN if it can't be trusted.
    log_evidence_std_error_ : float
        Monte Carlo standard error of `log_evidence_` in nats.
    log_evidence_side_ : {"lower"}
        Side of log p(y | X) on which `log_evidence_` lies in expectation, because modes may have
        been missed.
    prior_scale_ : ndarray of shape (n_groups,)
        Posterior geometric mean of every group's prior standard deviation, if scales are learned.
    relevance_ : ndarray of shape (n_chains, n_features)
        Prior scale of the weights of each column of ``X``: geometric mean over a chain's draws.
        Only available under ``ARD()``.
    diagnostics_ : Bunch
        Convergence diagnostics.

        * function_rhat, function_ess : ndarrays, R-hat and effective sample size of the outputs at
          up to 50 training rows and of the log noise.
        * function_rhat_before : the same R-hat for the initial chains.
        * function_rhat_within, function_ess_within : ndarrays of shape (n_chains,), median over
          these functions within each chain.
        * parameter_rhat, parameter_ess : ndarrays of shape (P,), the same for `samples_`.
        * parameter_rhat_before, parameter_ess_before : the same for the initial chains, before
          symmetries were removed.
        * n_divergent, acceptance, energy_error (root mean square, in nats), stuck, n_gradients :
          ndarrays, one value per initial chain.
        * detectable_basin : float. A basin that attracts a smaller fraction of the starting points
          has been missed with a probability over 1 %.
        * evidence_problems : str, reason why `log_evidence_` is nan.
        * warnings : list of str.
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
    MCMCClassifier : The same for classification.
    DeepEnsembleRegressor : One optimum per starting point instead of samples.
    remove_symmetries : Symmetry removal for the draws of any sampler.

    Notes
    -----
    A step of ``n_iter_`` is a move of every chain, including the warm-up. After an interrupt the
    draws made so far are kept. The draws don't depend on the number of processes.

    A chain makes ``n_warmup + n_draws`` moves of up to 256 gradients, 64 chains (256 on small
    problems) as one batch. The draws take ``8 n_chains n_draws (P + 1)`` bytes.

    The settings of Wiese et al. (2023) are ``prior=1.0``, ``Chains(init="prior")`` and small
    layers. At 20 units modes aren't weighted by evidence, and chains don't mix between modes: R-hat
    of functions is 1.3 to 2.

    No diagnostic, R-hat included, detects a mode that no chain visited.
    ``diagnostics_.detectable_basin`` bounds the size of its basin. If hidden units overlap, single
    weights have no meaning even after symmetry removal (`remove_symmetries`). Functions always do.

    The implementation deviates from the paper in three ways: modes are weighted by their mass and
    not by the number of starting points in their basins; the half-normal prior is on the standard
    deviation of the noise; and no test density is dropped.

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

    _redrawn_noise_: ClassVar[Array | None] = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        **NOISE_CONSTRAINTS,
        "noise_std": [HalfNormal, *NOISE_CONSTRAINTS["noise_std"]],
        "standardize": STANDARDIZE,
    }

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Likelihood before the fit."""
        likelihood = require_noise(super()._make_likelihood(data), self.noise_std)
        return self._bound_noise(likelihood, data.rows.weight)

    def _fitted_likelihood_params(self) -> Array:
        """Parameters of the likelihood for every draw, (S, 1, n_params)."""
        params = self._likelihood_params_
        return params.reshape(int(np.prod(params.shape[:-1])), 1, params.shape[-1])

    def _fitted_noise_std(self) -> Array:
        """Noise level of every draw in the units of ``y``, (S, 1, n_targets)."""
        noise = self.noise_std_samples_ if self._redrawn_noise_ is None else self._redrawn_noise_
        return noise.reshape(-1, 1, noise.shape[-1])

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Compute the log likelihood of observed targets given every draw, as for PSIS-LOO.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Observed targets.

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples)
            Log density in nats of ``y`` as given, joint over the targets of a row. Chains have the
            weights `chain_weights_`.
        """
        return self._log_density_by_draw(X, y).reshape(*self.samples_.shape[:-1], -1)

    @property
    def fitted_likelihood(self) -> Likelihood:
        """Likelihood after the fit."""
        return self._bound_noise(super().fitted_likelihood, self._training_data_[2])

    def _bound_noise(self, likelihood: Likelihood, weight: Array) -> Likelihood:
        """Bound the noise of ``likelihood="heteroscedastic"`` from below if rows repeat.

        On the concrete data, four chains without the bound have an R-hat of functions of 2.6 and a
        test log density of -1.20 nats per row. With it they have 1.4 and 0.23.
        """
        is_named = isinstance(self._param_at_fit("likelihood"), str)
        if isinstance(likelihood, Heteroscedastic) and is_named and weight.max() > 1.0:
            return replace(likelihood, least=0.02)
        return likelihood


@dataclass(eq=False, repr=False)
class MCMCClassifier(BayesianClassifierMixin, BaseMCMC):
    r"""Bayesian neural network classification by Markov chain Monte Carlo, modulo symmetry.

    The sampler draws from the posterior of an MLP's weights. Each draw is moved to one
    representative of its orbit under exchanges (and flips) of hidden units, and modes are weighted
    by their posterior mass, as in `MCMCRegressor`.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(20,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    sampler : {"auto", "hmc"}, Chains or Kernel, default="auto"
        Sampler of the posterior. "auto" and "hmc" are `Chains` moved by Hamiltonian Monte Carlo.
        `Chains` sets how chains start and warm up. A custom kernel can be given, too.
    n_chains : int, "auto" or None, default=None
        Number of chains. None is 64, 16 for chains that start at Laplace modes, and 12 for chains
        that start like a deep ensemble. "auto" is ``n_chains_required([0.57, 0.35, 0.08])``.
    n_draws : int or None, default=None
        Draws per chain after the warm-up. None is 50.
    remove_symmetries : bool or ModeWeights, default=True
        Whether draws are moved to one representative of their symmetry orbit, and how modes are
        weighted then. True is ``ModeWeights("auto")``: by posterior mass if there are enough draws
        to estimate it, otherwise by the number of chains that found each mode. False leaves the
        draws unchanged and weights all chains equally: predictions are those of
        ``ModeWeights("uniform")``, and single network weights have no meaning. The prior must be
        the same for all units of a layer.
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
        as one number, one per layer or one per parameter; or a prior object. "learn" is
        ``LayerScales(8.0, 64.0)``. Its scales, and those of ``ARD(8.0, 64.0)``, are integrated out
        in closed form. "auto" is "learn", except for annealed chains (``init="ensemble"``). For
        these it is 1, and ``4 / sqrt(n)`` for the weights of layers with ``n`` > 16 inputs.
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
        Draws of the network's weights for standardised data, on one representative of their orbits
        unless ``remove_symmetries=False``. The order is layer by layer: W (out x in, row-major),
        then b.
    chain_weights_ : ndarray of shape (n_chains,)
        Weight of each chain; they sum to 1.
    log_posterior_samples_ : ndarray of shape (n_chains, n_draws)
        Log joint density of the original targets and the parameters at the draws, in nats.
    modes_ : list of Mode
        Modes of the posterior, the highest evidence first. Each has the fields ``weight``,
        ``log_evidence`` and ``std_error`` (the part of the evidence in the mode and its copies, in
        nats), ``chains`` (indices of its chains in `samples_`), ``n_initial_chains`` (number of
        initial chains that ended in it) and ``mean_log_posterior``. The list is empty if modes
        weren't weighted by evidence.
    log_evidence_ : float
        log p(y | X) in nats, summed over the modes that were found: a lower bound up to
        `log_evidence_std_error_`. NaN if it can't be trusted.
    log_evidence_std_error_ : float
        Monte Carlo standard error of `log_evidence_` in nats.
    log_evidence_side_ : {"lower"}
        Side of log p(y | X) on which `log_evidence_` lies in expectation, because modes may have
        been missed.
    prior_scale_ : ndarray of shape (n_groups,)
        Posterior geometric mean of every group's prior standard deviation, if scales are learned.
    relevance_ : ndarray of shape (n_chains, n_features)
        Prior scale of the weights of each column of ``X``: geometric mean over a chain's draws.
        Only available under ``ARD()``.
    diagnostics_ : Bunch
        Convergence diagnostics.

        * function_rhat, function_ess : ndarrays, R-hat and effective sample size of the outputs at
          up to 50 training rows and of the log noise.
        * function_rhat_before : the same R-hat for the initial chains.
        * function_rhat_within, function_ess_within : ndarrays of shape (n_chains,), median over
          these functions within each chain.
        * parameter_rhat, parameter_ess : ndarrays of shape (P,), the same for `samples_`.
        * parameter_rhat_before, parameter_ess_before : the same for the initial chains, before
          symmetries were removed.
        * n_divergent, acceptance, energy_error (root mean square, in nats), stuck, n_gradients :
          ndarrays, one value per initial chain.
        * detectable_basin : float. A basin that attracts a smaller fraction of the starting points
          has been missed with a probability over 1 %.
        * evidence_problems : str, reason why `log_evidence_` is nan.
        * warnings : list of str.
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
    MCMCRegressor : The same for regression.
    DeepEnsembleClassifier : One optimum per starting point instead of samples.
    remove_symmetries : Symmetry removal for the draws of any sampler.

    Notes
    -----
    The notes of `MCMCRegressor` on steps, interrupts, blocks, memory and diagnostics apply. The
    settings of Wiese et al. (2023) are ``prior=1.0``, ``Chains(init="prior")`` and small layers.
    The implementation deviates from the paper in two ways: modes are weighted by their mass and not
    by the number of starting points in their basins, and no test density is dropped.

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

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Likelihood, which must not have free parameters."""
        return refuse_free_parameters(super()._make_likelihood(data))

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Compute the log probability of observed classes given every draw, as for PSIS-LOO.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Observed classes.

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples)
            Log probability in nats; -inf for a class that wasn't in the training data. Chains have
            the weights `chain_weights_`.
        """
        values = self._log_probability_by_draw(
            X, y, lambda x: self._draws_predictor(x).distribution(x)
        )
        return values.reshape(*self.samples_.shape[:-1], -1)

    def _learned_prior(self, network: Network) -> UnboundPrior:
        """Return the prior of "learn"."""
        return learned_class_prior(network)
