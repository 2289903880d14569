"""Sampled posteriors of networks: Wiese et al. 2023 as scikit-learn estimators."""

from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor

from skbayes_sym.estimators._fit.context import FitContext, Fitted
from skbayes_sym.estimators._fit.memory import require_chains
from skbayes_sym.estimators._fit.model import gaussian_prior, hidden_layer_sizes
from skbayes_sym.estimators._fit.rows import Array, column_scaling
from skbayes_sym.estimators.mcmc.posterior import SampledPosterior
from skbayes_sym.estimators.mcmc.recipe import CONSTRAINTS, fit_mcmc
from skbayes_sym.estimators.mcmc.setting import Model
from skbayes_sym.estimators.predictors import (
    BayesianClassifierMixin,
    BayesianRegressorMixin,
    SampledOutputs,
)
from skbayes_sym.models.likelihoods.categorical import Categorical, log_class_probabilities
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.predictive import CategoricalMixture, NormalMixture


class MCMCRegressor(BayesianRegressorMixin, SampledPosterior):
    r"""Bayesian neural network regression by sampling modulo symmetry.

    Draws from the posterior of an MLP's weights and noise. It has |G| copies of every mode, one for
    each way to exchange (and flip) hidden units; each draw is moved to one representative of its
    orbit, so that modes that remain are different functions. What such a mode counts for is its
    mass,

    .. math:: Z_k = \int_{R_k} p(y \mid \theta)\, p(\theta)\, d\theta,

    found by bridge sampling: not how many chains happened to start in its basin.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(5,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Of the hidden layers. With an odd one (tanh, identity) the signs of hidden units are
        symmetries too.
    sampler : {"hmc", "smc", "nuts"}, default="hmc"
        "hmc": jittered Hamiltonian Monte Carlo, all chains as one batch. "smc": only the particles
        of sequential Monte Carlo look for modes, the chains start from those. "nuts": the No-U-Turn
        sampler, for reference; slower here.
    n_chains : int or "auto", default=64
        "auto" is the number that finds every mode with probability 0.99 if there are three, the
        rarest found by 8 % of the chains: ``n_chains_required([.57, .35, .08])``.
    n_warmup, n_draws : int, default=1000, 50
        Iterations of each chain that adapt step size and scale, and draws kept after them.
    thinning : int, default=1
        Iterations a draw.
    remove_symmetries : bool, default=True
        Whether to move the draws to one representative of their symmetry orbit. Predictions are
        the same with and without; weights mean something only with.
    mode_weights : {"evidence", "chains"}, default="evidence"
        What a mode counts for. "evidence": its posterior mass, by bridge sampling of chains and
        particles; the chains are then shared out over the modes. "chains": one vote a chain, which
        weighs modes by how many starts fall into their basins (Wiese et al. 2023). "evidence"
        falls back to it with a `ConvergenceWarning` where the estimate can't be trusted, and
        needs ``remove_symmetries``.
    n_islands, n_particles : int, default=4, 256
        Independent runs of sequential Monte Carlo that look for modes beside the chains
        (``mode_weights="evidence"`` or ``sampler="smc"``), and the particles of each. 0 islands
        leave it to the chains.
    prior_scale : float, sequence of float or ndarray of shape (P,), default=1.0
        Prior standard deviation of the weights and biases, in standardised units: one number, one
        a layer, or one a parameter. It must not tell the units of a layer apart.
    noise_prior_scale : float, default=1.0
        Scale of the half-normal prior on the noise's standard deviation, in units of the
        standardised target.
    standardize : bool, default=True
        Whether to centre and scale the columns of ``X`` first.
    normalize_y : bool, default=True
        Whether to centre and scale ``y`` first. Everything reported is in the units of ``y``.
    warm_start : bool, default=False
        Whether `fit` starts the chains where the previous fit left them, with its step sizes and
        scales; ``n_warmup=0`` then goes on with them as they are.
    n_jobs : int, default=None
        Processes that share the blocks of chains (joblib; any backend, Dask's too). The draws
        don't depend on it.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Arithmetic of sampling and prediction; "auto" follows ``X``. Evidences are always computed
        in float64.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the progress of the chains.

    Attributes
    ----------
    samples_ : ndarray of shape (n_chains, n_draws, P)
        Draws of the network's weights, acting on standardised inputs and targets; on the reference
        set if ``remove_symmetries``. The flat order is layer by layer, W (out x in, row-major),
        then b.
    noise_std_samples_ : ndarray of shape (n_chains, n_draws, n_targets)
        The noise's standard deviation at the same draws, in the units of ``y``.
    chain_weights_ : ndarray of shape (n_chains,)
        What each chain's draws count for; they sum to 1.
    log_posterior_samples_ : ndarray of shape (n_chains, n_draws)
        Log joint density of targets and parameters at the draws, nats; the targets as given, the
        noise by its logarithm.
    modes_ : list of Mode
        What chains and particles found, heaviest first: ``weight``, ``log_evidence`` and
        ``std_error`` (nats, of the targets as given; the part of the evidence that the mode and
        its symmetric copies hold), ``members`` (its chains in `samples_`), ``n_explorers`` and
        ``n_particles`` (chains and particles that ended there on their own),
        ``mean_log_posterior``. Empty without ``mode_weights="evidence"``.
    log_evidence_ : float
        log p(y | X), nats, summed over the modes that were found: a lower bound up to
        `log_evidence_std_error_`, since nobody knows of a mode that nobody visited. NaN where it
        can't be trusted.
    log_evidence_std_error_ : float
        Its Monte Carlo standard error, nats.
    diagnostics_ : Bunch
        function_rhat, function_ess : ndarrays, of the outputs at up to 50 training rows and the
        log noise;
        parameter_rhat, parameter_ess : ndarrays (P,), of `samples_`;
        parameter_rhat_before, parameter_ess_before : the same before symmetries were removed;
        function_rhat_before : of the chains as warmed up, each with one vote;
        n_divergent, acceptance, stuck, n_gradients : a number each chain;
        unseen_basin : a basin that draws fewer starts than this share can have been missed with
        probability over 1 %;
        warnings : list of str.
    n_iter_ : int
        Iterations of each chain, warm-up included.
    stop_reason_ : {"max_iter", "callback", "interrupted"}
        "max_iter" is complete. After an interrupt the draws made so far are kept.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Standardisation of the inputs.
    y_mean_, y_scale_ : ndarray of shape (n_targets,)
        Scaling of the targets.
    device_, dtype_ : str
        Where and in which precision the model was fitted.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if ``X`` had string column names.

    See Also
    --------
    MCMCClassifier : The same for class labels.
    DeepEnsembleRegressor : Only the best point of each start's basin.
    remove_symmetries : For draws of any other sampler.

    Notes
    -----
    A chain makes ``n_warmup + n_draws`` iterations of up to 256 gradients; chains run in blocks of
    64 (256 on small problems), whose gradients are one batch. Draws take
    ``8 n_chains n_draws (P + 1)`` bytes on the host, a block's gradient two arrays of rows by
    widest layer for as many chains as fit the cache. `asv_bench/compare_samplers.py` prints
    effective draws a CPU-second beside NumPyro's.

    What the draws are worth depends on the modes found. A mode that no chain and no particle
    visited is invisible to every figure here, R-hat included; ``diagnostics_.unseen_basin`` says
    how large its basin can be. Where hidden units overlap, single weights have no meaning even
    after symmetry removal (`remove_symmetries` has the details); functions always do.

    Corrected against the paper: modes are weighed by mass, not by the starts they attract; the
    half-normal prior is on the noise's standard deviation; no test density is dropped.

    References
    ----------
    Wiese, Wimmer, Papamarkou, Bischl, Günnemann & Rügamer (2023). Towards efficient MCMC sampling
    in Bayesian neural networks by exploiting symmetry.

    Examples
    --------
    >>> from skbayes_sym import MCMCRegressor
    >>> from skbayes_sym.datasets import make_sinusoidal
    >>> X, y = make_sinusoidal(60, random_state=0)
    >>> reg = MCMCRegressor((2,), n_chains=32, n_warmup=200, n_islands=2, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, reg.samples_.shape, len(reg.modes_) >= 1
    ((3,), (32, 50, 7), True)
    """

    _parameter_constraints: dict[str, list[Any]] = {
        **CONSTRAINTS,
        "noise_prior_scale": [Interval(Real, 0, None, closed="neither")],
        "normalize_y": ["boolean"],
    }

    def __init__(
        self,
        hidden_layer_sizes: Any = (5,),
        activation: str = "tanh",
        *,
        sampler: str = "hmc",
        n_chains: Any = 64,
        n_warmup: int = 1000,
        n_draws: int = 50,
        thinning: int = 1,
        remove_symmetries: bool = True,
        mode_weights: str = "evidence",
        n_islands: int = 4,
        n_particles: int = 256,
        prior_scale: Any = 1.0,
        noise_prior_scale: float = 1.0,
        standardize: bool = True,
        normalize_y: bool = True,
        warm_start: bool = False,
        n_jobs: int | None = None,
        device: str = "auto",
        dtype: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.sampler = sampler
        self.n_chains = n_chains
        self.n_warmup = n_warmup
        self.n_draws = n_draws
        self.thinning = thinning
        self.remove_symmetries = remove_symmetries
        self.mode_weights = mode_weights
        self.n_islands = n_islands
        self.n_particles = n_particles
        self.prior_scale = prior_scale
        self.noise_prior_scale = noise_prior_scale
        self.standardize = standardize
        self.normalize_y = normalize_y
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def _fit_recipe(self, context: FitContext) -> Fitted:
        y, weight = context.rows.y, context.rows.weight
        n_inputs, n_targets = context.rows.X.shape[1], y.shape[1]
        network = MLP(n_inputs, hidden_layer_sizes(self), n_targets, ACTIVATIONS[self.activation])
        require_chains(self, context, network)
        scaling = column_scaling(y, weight, enabled=self.normalize_y)
        likelihood = Gaussian(torch.zeros(n_targets, dtype=torch.float64))
        prior = gaussian_prior(self, network)
        model = Model(network, prior, likelihood, float(self.noise_prior_scale), scaling)
        return fit_mcmc(self, context, model)

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Log density of observed targets given every draw: what PSIS-LOO starts from.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples)
            Nats, of ``y`` as given; joint over the targets of a row. The chains count as
            `chain_weights_` says.
        """
        found = self._reduce(X, lambda p, y: [p.log_prob_of_draws(y).T], self._observed_targets(y))
        return found[0].T.reshape(*self.samples_.shape[:2], -1)

    def _likelihood(self) -> Gaussian:
        return Gaussian(torch.zeros(self.network_.n_outputs, dtype=torch.float64))

    def _predictive(self, x: Tensor) -> NormalMixture:
        theta, log_weights = self._draws_on(x)
        noise_std = self.noise_std_samples_.reshape(-1, 1, self.noise_std_samples_.shape[-1])
        variance = torch.as_tensor(noise_std / self.y_scale_).to(x) ** 2
        outputs = self.network_.forward(theta, x)
        return NormalMixture(outputs, torch.zeros_like(variance), variance, log_weights)

    def _sample_outputs(self, x: Tensor, n: int, generator: torch.Generator) -> SampledOutputs:
        chosen = self._choose_draws(n, generator)
        theta, _ = self._draws_on(x)
        noise_std = self.noise_std_samples_.reshape(-1, 1, self.noise_std_samples_.shape[-1])
        return SampledOutputs(
            self.network_.forward(theta[chosen.to(x.device)], x), noise_std[chosen.numpy()]
        )


class MCMCClassifier(BayesianClassifierMixin, SampledPosterior):
    r"""Bayesian neural network classification by sampling modulo symmetry.

    Draws from the posterior of an MLP's weights. It has |G| copies of every mode, one for
    each way to exchange (and flip) hidden units; each draw is moved to one representative of its
    orbit, so that modes that remain are different functions. What such a mode counts for is its
    mass,

    .. math:: Z_k = \int_{R_k} p(y \mid \theta)\, p(\theta)\, d\theta,

    found by bridge sampling: not how many chains happened to start in its basin.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(5,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Of the hidden layers. With an odd one (tanh, identity) the signs of hidden units are
        symmetries too.
    sampler : {"hmc", "smc", "nuts"}, default="hmc"
        "hmc": jittered Hamiltonian Monte Carlo, all chains as one batch. "smc": only the particles
        of sequential Monte Carlo look for modes, the chains start from those. "nuts": the No-U-Turn
        sampler, for reference; slower here.
    n_chains : int or "auto", default=64
        "auto" is the number that finds every mode with probability 0.99 if there are three, the
        rarest found by 8 % of the chains: ``n_chains_required([.57, .35, .08])``.
    n_warmup, n_draws : int, default=1000, 50
        Iterations of each chain that adapt step size and scale, and draws kept after them.
    thinning : int, default=1
        Iterations a draw.
    remove_symmetries : bool, default=True
        Whether to move the draws to one representative of their symmetry orbit. Predictions are
        the same with and without; weights mean something only with.
    mode_weights : {"evidence", "chains"}, default="evidence"
        What a mode counts for. "evidence": its posterior mass, by bridge sampling of chains and
        particles; the chains are then shared out over the modes. "chains": one vote a chain, which
        weighs modes by how many starts fall into their basins (Wiese et al. 2023). "evidence"
        falls back to it with a `ConvergenceWarning` where the estimate can't be trusted, and
        needs ``remove_symmetries``.
    n_islands, n_particles : int, default=4, 256
        Independent runs of sequential Monte Carlo that look for modes beside the chains
        (``mode_weights="evidence"`` or ``sampler="smc"``), and the particles of each. 0 islands
        leave it to the chains.
    prior_scale : float, sequence of float or ndarray of shape (P,), default=1.0
        Prior standard deviation of the weights and biases, in standardised units: one number, one
        a layer, or one a parameter. It must not tell the units of a layer apart.
    standardize : bool, default=True
        Whether to centre and scale the columns of ``X`` first.
    warm_start : bool, default=False
        Whether `fit` starts the chains where the previous fit left them, with its step sizes and
        scales; ``n_warmup=0`` then goes on with them as they are.
    n_jobs : int, default=None
        Processes that share the blocks of chains (joblib; any backend, Dask's too). The draws
        don't depend on it.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Arithmetic of sampling and prediction; "auto" follows ``X``. Evidences are always computed
        in float64.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the progress of the chains.

    Attributes
    ----------
    samples_ : ndarray of shape (n_chains, n_draws, P)
        Draws of the network's weights, acting on standardised inputs and targets; on the reference
        set if ``remove_symmetries``. The flat order is layer by layer, W (out x in, row-major),
        then b.
    chain_weights_ : ndarray of shape (n_chains,)
        What each chain's draws count for; they sum to 1.
    log_posterior_samples_ : ndarray of shape (n_chains, n_draws)
        Log joint density of targets and parameters at the draws, nats; the targets as given, the
        noise by its logarithm.
    modes_ : list of Mode
        What chains and particles found, heaviest first: ``weight``, ``log_evidence`` and
        ``std_error`` (nats, of the targets as given; the part of the evidence that the mode and
        its symmetric copies hold), ``members`` (its chains in `samples_`), ``n_explorers`` and
        ``n_particles`` (chains and particles that ended there on their own),
        ``mean_log_posterior``. Empty without ``mode_weights="evidence"``.
    log_evidence_ : float
        log p(y | X), nats, summed over the modes that were found: a lower bound up to
        `log_evidence_std_error_`, since nobody knows of a mode that nobody visited. NaN where it
        can't be trusted.
    log_evidence_std_error_ : float
        Its Monte Carlo standard error, nats.
    diagnostics_ : Bunch
        function_rhat, function_ess : ndarrays, of the outputs at up to 50 training rows;
        parameter_rhat, parameter_ess : ndarrays (P,), of `samples_`;
        parameter_rhat_before, parameter_ess_before : the same before symmetries were removed;
        function_rhat_before : of the chains as warmed up, each with one vote;
        n_divergent, acceptance, stuck, n_gradients : a number each chain;
        unseen_basin : a basin that draws fewer starts than this share can have been missed with
        probability over 1 %;
        warnings : list of str.
    n_iter_ : int
        Iterations of each chain, warm-up included.
    stop_reason_ : {"max_iter", "callback", "interrupted"}
        "max_iter" is complete. After an interrupt the draws made so far are kept.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Standardisation of the inputs.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    device_, dtype_ : str
        Where and in which precision the model was fitted.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if ``X`` had string column names.

    See Also
    --------
    MCMCRegressor : The same for numbers.
    DeepEnsembleClassifier : Only the best point of each start's basin.
    remove_symmetries : For draws of any other sampler.

    Notes
    -----
    A chain makes ``n_warmup + n_draws`` iterations of up to 256 gradients; chains run in blocks of
    64 (256 on small problems), whose gradients are one batch. Draws take
    ``8 n_chains n_draws (P + 1)`` bytes on the host, a block's gradient two arrays of rows by
    widest layer for as many chains as fit the cache. `asv_bench/compare_samplers.py` prints
    effective draws a CPU-second beside NumPyro's.

    What the draws are worth depends on the modes found. A mode that no chain and no particle
    visited is invisible to every figure here, R-hat included; ``diagnostics_.unseen_basin`` says
    how large its basin can be. Where hidden units overlap, single weights have no meaning even
    after symmetry removal (`remove_symmetries` has the details); functions always do.

    Corrected against the paper: modes are weighed by mass, not by the starts they attract; the
    half-normal prior is on the noise's standard deviation; no test density is dropped.

    References
    ----------
    Wiese, Wimmer, Papamarkou, Bischl, Günnemann & Rügamer (2023). Towards efficient MCMC sampling
    in Bayesian neural networks by exploiting symmetry.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skbayes_sym import MCMCClassifier
    >>> X, y = make_moons(60, noise=0.2, random_state=0)
    >>> clf = MCMCClassifier((2,), n_chains=32, n_warmup=200, n_islands=2, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:3]).shape
    (3, 2)
    """

    _parameter_constraints: dict[str, list[Any]] = {**CONSTRAINTS}

    def __init__(
        self,
        hidden_layer_sizes: Any = (5,),
        activation: str = "tanh",
        *,
        sampler: str = "hmc",
        n_chains: Any = 64,
        n_warmup: int = 1000,
        n_draws: int = 50,
        thinning: int = 1,
        remove_symmetries: bool = True,
        mode_weights: str = "evidence",
        n_islands: int = 4,
        n_particles: int = 256,
        prior_scale: Any = 1.0,
        standardize: bool = True,
        warm_start: bool = False,
        n_jobs: int | None = None,
        device: str = "auto",
        dtype: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.sampler = sampler
        self.n_chains = n_chains
        self.n_warmup = n_warmup
        self.n_draws = n_draws
        self.thinning = thinning
        self.remove_symmetries = remove_symmetries
        self.mode_weights = mode_weights
        self.n_islands = n_islands
        self.n_particles = n_particles
        self.prior_scale = prior_scale
        self.standardize = standardize
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def _fit_recipe(self, context: FitContext) -> Fitted:
        n_inputs, n_classes = context.rows.X.shape[1], len(self.classes_)
        network = MLP(n_inputs, hidden_layer_sizes(self), n_classes, ACTIVATIONS[self.activation])
        require_chains(self, context, network)
        return fit_mcmc(self, context, Model(network, gaussian_prior(self, network), Categorical()))

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Log probability of observed classes given every draw: what PSIS-LOO starts from.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples)
            Nats; -inf for a class never seen. The chains count as `chain_weights_` says.
        """
        codes, known = self._observed_codes(y, len(self._check_inputs(X)))
        found = self._reduce(X, lambda p, codes: [p.log_prob_of_draws(codes).T], codes)
        values = np.where(known, found[0].T, -np.inf)
        return values.reshape(*self.samples_.shape[:2], -1)

    def _likelihood(self) -> Categorical:
        return Categorical()

    def _predictive(self, x: Tensor) -> CategoricalMixture:
        theta, log_weights = self._draws_on(x)
        return CategoricalMixture(
            log_class_probabilities(self.network_.forward(theta, x)), log_weights
        )
