"""Sampled posteriors of networks: Wiese et al. 2023 as scikit-learn estimators."""

from dataclasses import replace
from numbers import Real
from typing import Any

from torch import nn

from skbayes_sym.estimators._fit.model import NOISE_CONSTRAINTS, GivenPrior
from skbayes_sym.estimators._fit.rows import STANDARDIZE, Array
from skbayes_sym.estimators._fit.scikit_learn import Interval
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.draws import DrawsClassifier, DrawsRegressor
from skbayes_sym.estimators.mcmc.base import CONSTRAINTS, SampledEstimator
from skbayes_sym.inference.samplers import SMC, Annealing, Evidence, Kernel
from skbayes_sym.models.learned_scales import LayerScales
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.priors import UnboundPrior

# Of targets' spread, where identical rows have identical targets. On concrete data four chains
# without it have steps of .004, an R-hat of functions of 2.6 and -1.20 nats per row; with it .08,
# 1.4 and .23.
_LEAST_NOISE = 0.02


class MCMCRegressor(DrawsRegressor, SampledEstimator):
    r"""Bayesian neural network regression by sampling modulo symmetry.

    Draws from the posterior of an MLP's weights and noise. It has |G| copies of every mode, one for
    each way to exchange (and flip) hidden units; each draw is moved to one representative of its
    orbit, so that modes that remain are different functions. What such a mode counts for is its
    mass,

    .. math:: Z_k = \int_{R_k} p(y \mid \theta)\, p(\theta)\, d\theta,

    found by bridge sampling: not how many chains happened to start in its basin.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(20,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    sampler : {"auto", "hmc", "nuts", "smc"}, Kernel or SMC, default="auto"
        Who looks for modes. "hmc" is `HMC` with its defaults: jittered Hamiltonian Monte
        Carlo, all chains as one batch; "auto" the same, with the length that goes with ``init``.
        "nuts": `NUTS`, the No-U-Turn sampler, for reference; slower here. "smc": `SMC`, only the
        particles of sequential Monte Carlo; the chains start from those. Or one of these with
        other settings, or a kernel of your own.
    init : {"auto", "prior", "laplace", "ensemble"} or Annealing, default="auto"
        Where chains start. "prior": at draws of the prior, learned scales at their reference.
        "laplace": at modes found by Gauss-Newton steps and the evidence, at most 16, with
        the damped curvature there as the metric; trajectories of ``sampler="auto"`` then have 20 to
        40 steps. For fully connected networks, normal noise and priors of normals, their scales
        given or learned. "ensemble", for networks of hundreds of weights: each at a member of
        an ensemble, from where `Annealing` takes it to a wide basin, which it samples in the
        coordinates of its layers' curvature; or `Annealing` with other settings. For fully
        connected networks. "auto", with ``sampler="auto"``, is "laplace" up to 500 weights where
        finding modes takes seconds, "ensemble" for other fully connected networks beyond 200
        weights, and else "prior".
    n_chains : int, "auto" or None, default=None
        None is 64, 16 with ``init="laplace"`` and 12 with ``init="ensemble"``. "auto" is the number
        that finds every mode with probability 0.99 if there are three, the rarest found by 8 % of
        the chains: ``n_chains_required([.57, .35, .08])``.
    n_warmup : int or None, default=None
        Iterations of each chain that adapt step size and scale. None is 1000, 150 with
        ``init="laplace"`` and 100 with ``init="ensemble"``, whose trajectories have about 60 steps.
    n_draws : int or None, default=None
        Draws of each chain kept after them. None is 50.
    thinning : int, default=1
        Iterations per draw.
    remove_symmetries : bool, default=True
        Whether to move the draws to one representative of their symmetry orbit: exchanges of
        hidden units and, with an odd activation (tanh, identity), changes of their signs. The prior
        must not tell the units of a layer apart. Predictions are the same with and without; weights
        mean something only with.
    mode_weights : {"auto", "evidence", "uniform"} or Evidence, default="auto"
        What a mode counts for. "evidence": its posterior mass, by bridge sampling of chains and
        particles; the chains are then allocated to the modes. `Evidence` says how many particles
        look for modes beside the chains. "uniform": one vote per chain, which weighs modes by
        how many starts fall into their basins (Wiese et al. 2023). "evidence" falls back to it,
        with a `ConvergenceWarning`, where doubts about the evidence leave the weights open: but
        for modes 30 nats below the highest, which count for nothing. It needs
        ``remove_symmetries``. "auto" is "evidence" with ``remove_symmetries`` and 30 draws a
        parameter, of all chains together and up to 50 of each; "uniform" otherwise, and of
        annealed chains.
    evidence_effort : float, default=1.0
        What weighing modes may cost beyond the chains that were asked for, in units of what those
        cost: particles, further draws of modes, and the new chains in them where exploring ones
        made all draws. 0 weighs the draws that there are.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is made of ``hidden_layer_sizes`` and ``activation``. A module of Linear and Conv2d
        layers and elementwise activations is taken as an architecture: it is copied, and its
        weights are drawn anew at their own scale.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs; "auto" is normal noise, as
        ``noise_std`` says. "heteroscedastic" (noise that changes with the input), "student_t"
        (heavy tails), "poisson" and "negative_binomial" (counts) are the objects of these names;
        "heteroscedastic" with ``least=0.02`` where rows repeat, or have weights above 1.
    prior : "auto", "learn", float, sequence of float or Prior, default="auto"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number, one per layer or one per parameter; or an object. Scales that are learned are
        integrated out in closed form: those of ``LayerScales()``, which "learn" is, or of
        ``ARD()``. "auto" is "learn", but of annealed chains (``init="ensemble"``) 1, and
        ``4 / sqrt(n)`` for the weights of layers of ``n`` > 16 inputs.
    noise_std : "learn", float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``; one number or one per
        target. "learn" estimates it.
    noise_prior_scale : float, default=1.0
        Scale of the half-normal prior of the noise's standard deviation, in scaled target units; of
        a noise that is learned.
    standardize : bool or {"X", "y"}, default=True
        Whether to centre and scale the columns of ``X`` and ``y`` first; "X" and "y" do one of
        them. Everything reported is in the units of ``y``.
    warm_start : bool, default=False
        Whether `fit` goes on from the previous one.
    n_jobs : int or None, default=None
        Processes that share the work (joblib); the result does not depend on it.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there and a step large enough.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the progress.

    Attributes
    ----------
    samples_ : ndarray of shape (n_chains, n_draws, P)
        Draws of the network's weights, acting on standardised inputs and targets; on the reference
        set if ``remove_symmetries``. The flat order is layer by layer, W (out x in, row-major),
        then b.
    noise_std_samples_ : ndarray of shape (n_chains, n_draws, n_targets)
        Scale of the noise at the same draws, in the units of ``y``: its standard deviation if it
        is normal. Only where the likelihood has noise.
    likelihood_ : Likelihood
        The one that was given, with what was learned of it, in standardised units; its parameters
        lead with an axis of draws where they were drawn. Not of "auto".
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
        ``mean_log_posterior``. Empty where modes weren't weighed.
    log_evidence_ : float
        log p(y | X), nats, summed over the modes that were found: a lower bound up to
        `log_evidence_std_error_`, since nobody knows of a mode that nobody visited. NaN where it
        can't be trusted.
    log_evidence_std_error_ : float
        Its Monte Carlo standard error, nats.
    prior_scale_ : ndarray of shape (n_groups,)
        Posterior geometric mean of every group's prior standard deviation, where scales are
        learned.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share one.
    relevance_ : ndarray of shape (n_chains, n_features)
        Scale of the weights from every column of ``X``; only with ``prior=ARD()``: of every chain,
        geometric mean over its draws.
    diagnostics_ : Bunch
        function_rhat, function_ess : ndarrays, of the outputs at up to 50 training rows and the
        log noise;
        parameter_rhat, parameter_ess : ndarrays (P,), of `samples_`;
        parameter_rhat_before, parameter_ess_before : the same before symmetries were removed;
        function_rhat_before : of the chains as warmed up, each with one vote;
        function_rhat_within, function_ess_within : one number per chain, of its own draws, the
        median of those outputs; chains that stay in modes of their own agree in nothing else;
        n_divergent, acceptance, energy_error (root mean square, nats), stuck, n_gradients : one
        number per chain;
        unseen_basin : a basin that draws fewer starts than this share can have been missed with
        probability over 1 %;
        no_evidence : str, why `log_evidence_` is nan, where it is;
        warnings : list of str.
    n_iter_ : int
        Steps made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why training ended.
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
    A step of ``n_iter_`` is an iteration of every chain, warm-up included. After an interrupt the
    draws made so far are kept. A warm start goes on where the chains stopped, with their step sizes
    and scales; ``n_warmup=0`` leaves these as they are. Evidences are computed in float64, whatever
    ``dtype``. A sampler's draws are the same however many processes make them (joblib; any backend,
    Dask's too).

    A chain makes ``n_warmup + n_draws`` iterations of up to 256 gradients; chains run in blocks of
    64 (256 on small problems), whose gradients are one batch. Draws take
    ``8 n_chains n_draws (P + 1)`` bytes on the host, a block's gradient two arrays of rows by
    widest layer for as many chains as fit the cache. `asv_bench/studies/compare_samplers.py` prints
    effective draws per CPU-second beside NumPyro's.

    The settings of Wiese et al. (2023) are ``prior=1.0, init="prior"`` and small layers. At
    20 units modes aren't weighed by evidence (see ``mode_weights``), and chains don't mix between
    modes: R-hat of functions is 1.3 to 2.

    What the draws are worth depends on the modes found. A mode that no chain and no particle
    visited is invisible to every figure here, R-hat included; ``diagnostics_.unseen_basin`` says
    how large its basin can be. Where hidden units overlap, single weights have no meaning even
    after symmetry removal (`remove_symmetries` has the details); functions always do.

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
    >>> X, y = make_sinusoidal(60, random_state=0)
    >>> reg = MCMCRegressor((2,), n_chains=8, n_warmup=50, prior=1.0, random_state=0)
    >>> reg = reg.fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, reg.samples_.shape, len(reg.modes_) >= 1
    ((3,), (8, 50, 7), True)
    """

    _parameter_constraints: dict[str, list[Any]] = {
        **CONSTRAINTS,
        **NOISE_CONSTRAINTS,
        "noise_prior_scale": [Interval(Real, 1e-100, 1e100, closed="both")],
        "standardize": STANDARDIZE,
    }

    def __init__(
        self,
        hidden_layer_sizes: Any = (20,),
        activation: str = "tanh",
        *,
        sampler: str | Kernel | SMC = "auto",
        init: str | Annealing = "auto",
        n_chains: int | str | None = None,
        n_warmup: int | None = None,
        n_draws: int | None = None,
        thinning: int = 1,
        remove_symmetries: bool = True,
        mode_weights: str | Evidence = "auto",
        evidence_effort: float = 1.0,
        network: str | nn.Module | Network = "mlp",
        likelihood: str | Likelihood = "auto",
        prior: GivenPrior = "auto",
        noise_std: Any = "learn",
        noise_prior_scale: float = 1.0,
        standardize: bool | str = True,
        warm_start: bool = False,
        n_jobs: int | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.sampler = sampler
        self.init = init
        self.n_chains = n_chains
        self.n_warmup = n_warmup
        self.n_draws = n_draws
        self.thinning = thinning
        self.remove_symmetries = remove_symmetries
        self.mode_weights = mode_weights
        self.evidence_effort = evidence_effort
        self.network = network
        self.likelihood = likelihood
        self.prior = prior
        self.noise_std = noise_std
        self.noise_prior_scale = noise_prior_scale
        self.standardize = standardize
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _likelihood(self, data: Training) -> Likelihood:
        return self._bounded(super()._likelihood(data), data.rows.weight)

    @property
    def _observation(self) -> Likelihood:
        return self._bounded(super()._observation, self._training_data_[2])

    def _bounded(self, likelihood: Likelihood, weight: Array) -> Likelihood:
        """With a least noise where rows of ``weight`` repeat, if it was asked for by name."""
        by_name = isinstance(self.likelihood, str) and hasattr(likelihood, "least")
        if by_name and weight.max() > 1.0:
            return replace(likelihood, least=_LEAST_NOISE)  # type: ignore[type-var]
        return likelihood


class MCMCClassifier(DrawsClassifier, SampledEstimator):
    r"""Bayesian neural network classification by sampling modulo symmetry.

    Draws from the posterior of an MLP's weights. It has |G| copies of every mode, one for
    each way to exchange (and flip) hidden units; each draw is moved to one representative of its
    orbit, so that modes that remain are different functions. What such a mode counts for is its
    mass,

    .. math:: Z_k = \int_{R_k} p(y \mid \theta)\, p(\theta)\, d\theta,

    found by bridge sampling: not how many chains happened to start in its basin.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(20,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    sampler : {"auto", "hmc", "nuts", "smc"}, Kernel or SMC, default="auto"
        Who looks for modes. "hmc" is `HMC` with its defaults: jittered Hamiltonian Monte
        Carlo, all chains as one batch; "auto" the same, with the length that goes with ``init``.
        "nuts": `NUTS`, the No-U-Turn sampler, for reference; slower here. "smc": `SMC`, only the
        particles of sequential Monte Carlo; the chains start from those. Or one of these with
        other settings, or a kernel of your own.
    init : {"auto", "prior", "laplace", "ensemble"} or Annealing, default="auto"
        Where chains start. "prior": at draws of the prior, learned scales at their reference.
        "laplace": at modes found by Gauss-Newton steps and the evidence, at most 4, with
        the damped curvature there as the metric; trajectories of ``sampler="auto"`` then have 20 to
        40 steps. For fully connected networks, softmax and priors of normals, their scales
        given or learned. "ensemble", for networks of hundreds of weights: each at a member of
        an ensemble, from where `Annealing` takes it to a wide basin, which it samples in the
        coordinates of its layers' curvature; or `Annealing` with other settings. For fully
        connected networks. "auto", with ``sampler="auto"``, is "laplace" up to 500 weights where
        finding modes takes seconds, "ensemble" for other fully connected networks beyond 200
        weights, and else "prior".
    n_chains : int, "auto" or None, default=None
        None is 64, 16 with ``init="laplace"`` and 12 with ``init="ensemble"``. "auto" is the number
        that finds every mode with probability 0.99 if there are three, the rarest found by 8 % of
        the chains: ``n_chains_required([.57, .35, .08])``.
    n_warmup : int or None, default=None
        Iterations of each chain that adapt step size and scale. None is 1000, 150 with
        ``init="laplace"`` and 100 with ``init="ensemble"``, whose trajectories have about 60 steps.
    n_draws : int or None, default=None
        Draws of each chain kept after them. None is 50.
    thinning : int, default=1
        Iterations per draw.
    remove_symmetries : bool, default=True
        Whether to move the draws to one representative of their symmetry orbit: exchanges of
        hidden units and, with an odd activation (tanh, identity), changes of their signs. The prior
        must not tell the units of a layer apart. Predictions are the same with and without; weights
        mean something only with.
    mode_weights : {"auto", "evidence", "uniform"} or Evidence, default="auto"
        What a mode counts for. "evidence": its posterior mass, by bridge sampling of chains and
        particles; the chains are then allocated to the modes. `Evidence` says how many particles
        look for modes beside the chains. "uniform": one vote per chain, which weighs modes by
        how many starts fall into their basins (Wiese et al. 2023). "evidence" falls back to it,
        with a `ConvergenceWarning`, where doubts about the evidence leave the weights open: but
        for modes 30 nats below the highest, which count for nothing. It needs
        ``remove_symmetries``. "auto" is "evidence" with ``remove_symmetries`` and 30 draws a
        parameter, of all chains together and up to 50 of each; "uniform" otherwise, and of
        annealed chains.
    evidence_effort : float, default=1.0
        What weighing modes may cost beyond the chains that were asked for, in units of what those
        cost: particles, further draws of modes, and the new chains in them where exploring ones
        made all draws. 0 weighs the draws that there are.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is made of ``hidden_layer_sizes`` and ``activation``. A module of Linear and Conv2d
        layers and elementwise activations is taken as an architecture: it is copied, and its
        weights are drawn anew at their own scale.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs; "auto" is the softmax of one output
        per class, ``Categorical()``. "bernoulli" is the logistic curve of one output for two.
    prior : "auto", "learn", float, sequence of float or Prior, default="auto"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number, one per layer or one per parameter; or an object. Scales that are learned are
        integrated out in closed form: those of ``LayerScales(8.0, 64.0)``, which "learn" is, or of
        ``ARD(8.0, 64.0)``. "auto" is "learn", but of annealed chains (``init="ensemble"``) 1, and
        ``4 / sqrt(n)`` for the weights of layers of ``n`` > 16 inputs.
    standardize : bool, default=True
        Whether to centre and scale the columns of ``X`` first.
    warm_start : bool, default=False
        Whether `fit` goes on from the previous one.
    n_jobs : int or None, default=None
        Processes that share the work (joblib); the result does not depend on it.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there and a step large enough.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the progress.

    Attributes
    ----------
    samples_ : ndarray of shape (n_chains, n_draws, P)
        Draws of the network's weights, acting on standardised inputs; on the reference
        set if ``remove_symmetries``. The flat order is layer by layer, W (out x in, row-major),
        then b.
    chain_weights_ : ndarray of shape (n_chains,)
        What each chain's draws count for; they sum to 1.
    log_posterior_samples_ : ndarray of shape (n_chains, n_draws)
        Log joint density of labels and weights at the draws, nats.
    modes_ : list of Mode
        What chains and particles found, heaviest first: ``weight``, ``log_evidence`` and
        ``std_error`` (nats; the part of the evidence that the mode and
        its symmetric copies hold), ``members`` (its chains in `samples_`), ``n_explorers`` and
        ``n_particles`` (chains and particles that ended there on their own),
        ``mean_log_posterior``. Empty where modes weren't weighed.
    log_evidence_ : float
        log p(y | X), nats, summed over the modes that were found: a lower bound up to
        `log_evidence_std_error_`, since nobody knows of a mode that nobody visited. NaN where it
        can't be trusted.
    log_evidence_std_error_ : float
        Its Monte Carlo standard error, nats.
    prior_scale_ : ndarray of shape (n_groups,)
        Posterior geometric mean of every group's prior standard deviation, where scales are
        learned.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share one.
    relevance_ : ndarray of shape (n_chains, n_features)
        Scale of the weights from every column of ``X``; only with ``prior=ARD()``: of every chain,
        geometric mean over its draws.
    diagnostics_ : Bunch
        function_rhat, function_ess : ndarrays, of the outputs at up to 50 training rows;
        parameter_rhat, parameter_ess : ndarrays (P,), of `samples_`;
        parameter_rhat_before, parameter_ess_before : the same before symmetries were removed;
        function_rhat_before : of the chains as warmed up, each with one vote;
        function_rhat_within, function_ess_within : one number per chain, of its own draws, the
        median of those outputs; chains that stay in modes of their own agree in nothing else;
        n_divergent, acceptance, energy_error (root mean square, nats), stuck, n_gradients : one
        number per chain;
        unseen_basin : a basin that draws fewer starts than this share can have been missed with
        probability over 1 %;
        no_evidence : str, why `log_evidence_` is nan, where it is;
        warnings : list of str.
    n_iter_ : int
        Steps made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why training ended.
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
    A step of ``n_iter_`` is an iteration of every chain, warm-up included. After an interrupt the
    draws made so far are kept. A warm start goes on where the chains stopped, with their step sizes
    and scales; ``n_warmup=0`` leaves these as they are. Evidences are computed in float64, whatever
    ``dtype``. A sampler's draws are the same however many processes make them (joblib; any backend,
    Dask's too).

    A chain makes ``n_warmup + n_draws`` iterations of up to 256 gradients; chains run in blocks of
    64 (256 on small problems), whose gradients are one batch. Draws take
    ``8 n_chains n_draws (P + 1)`` bytes on the host, a block's gradient two arrays of rows by
    widest layer for as many chains as fit the cache. `asv_bench/studies/compare_samplers.py` prints
    effective draws per CPU-second beside NumPyro's.

    The settings of Wiese et al. (2023) are ``prior=1.0, init="prior"`` and small layers. At
    20 units modes aren't weighed by evidence (see ``mode_weights``), and chains don't mix between
    modes: R-hat of functions is 1.3 to 2.

    What the draws are worth depends on the modes found. A mode that no chain and no particle
    visited is invisible to every figure here, R-hat included; ``diagnostics_.unseen_basin`` says
    how large its basin can be. Where hidden units overlap, single weights have no meaning even
    after symmetry removal (`remove_symmetries` has the details); functions always do.

    Corrected against the paper: modes are weighed by mass, not by the starts they attract; no test
    density is dropped.

    References
    ----------
    Wiese, Wimmer, Papamarkou, Bischl, Günnemann & Rügamer (2023). Towards efficient MCMC sampling
    in Bayesian neural networks by exploiting symmetry. https://arxiv.org/abs/2304.02902

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skbayes_sym import MCMCClassifier
    >>> X, y = make_moons(60, noise=0.2, random_state=0)
    >>> clf = MCMCClassifier((2,), n_chains=4, n_warmup=50, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:3]).shape
    (3, 2)
    """

    _parameter_constraints: dict[str, list[Any]] = {**CONSTRAINTS}

    def __init__(
        self,
        hidden_layer_sizes: Any = (20,),
        activation: str = "tanh",
        *,
        sampler: str | Kernel | SMC = "auto",
        init: str | Annealing = "auto",
        n_chains: int | str | None = None,
        n_warmup: int | None = None,
        n_draws: int | None = None,
        thinning: int = 1,
        remove_symmetries: bool = True,
        mode_weights: str | Evidence = "auto",
        evidence_effort: float = 1.0,
        network: str | nn.Module | Network = "mlp",
        likelihood: str | Likelihood = "auto",
        prior: GivenPrior = "auto",
        standardize: bool = True,
        warm_start: bool = False,
        n_jobs: int | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.sampler = sampler
        self.init = init
        self.n_chains = n_chains
        self.n_warmup = n_warmup
        self.n_draws = n_draws
        self.thinning = thinning
        self.remove_symmetries = remove_symmetries
        self.mode_weights = mode_weights
        self.evidence_effort = evidence_effort
        self.network = network
        self.likelihood = likelihood
        self.prior = prior
        self.standardize = standardize
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _learned_scales(self, network: Network) -> UnboundPrior:
        return LayerScales(8.0, 64.0) if network.symmetry().factors else LayerScales()
