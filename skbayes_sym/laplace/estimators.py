"""Laplace approximations with evidence-tuned hyperparameters, as scikit-learn estimators."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, cast

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base import row_parameters
from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.model_factory import (
    REGRESSOR_CONSTRAINTS,
    PriorParameter,
    layer_sizes,
    model_symmetry,
    relative_relevance,
    require_mlp,
    resolve_prior,
)
from skbayes_sym.base.optimizers import (
    Adam,
    EvidenceAdam,
    GaussNewton,
    Optimizer,
    Updates,
    resolve_adam,
)
from skbayes_sym.base.predictor import Predictor
from skbayes_sym.base.progress import N_JOBS
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.requirements import FitResult, Method
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.laplace.adam_laplace import AdamDefaults, AdamLaplace
from skbayes_sym.laplace.base import (
    CLASSIFIER_CONSTRAINTS,
    CONSTRAINTS,
    custom_network,
    layer_prior,
    linearise,
    recording,
)
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, gauss_newton_cost, resolve_auto
from skbayes_sym.laplace.gauss_newton_classification import (
    STRONG_HYPERPRIOR,
    WEAK_HYPERPRIOR,
    GaussNewtonLaplaceClassification,
)
from skbayes_sym.laplace.gauss_newton_regression import GaussNewtonLaplaceRegression
from skbayes_sym.laplace.invariance_parameters import Transformations
from skbayes_sym.laplace.posterior import (
    LaplacePosterior,
    LinearisedModes,
    LinearisedNetwork,
    ModeMixture,
)
from skbayes_sym.laplace.predict import (
    ClassModesPredictor,
    LinearisedClassPredictor,
    LinearisedPredictor,
    ModesPredictor,
)
from skbayes_sym.models.augmentations.augmentation import Identity
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.likelihoods.row_parameters import extend_likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.models.networks.network import Network, RecordingNetwork
from skbayes_sym.models.priors import LayerScales, Prior, UnboundPrior
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.group import SymmetryGroup

LAPLACE_CONSTRAINTS: dict[str, list[Any]] = {
    **CONSTRAINTS,
    "hidden_layer_sizes": [StrOptions({"auto"}), *CONSTRAINTS["hidden_layer_sizes"]],
    "network": [StrOptions({"mlp"}), torch.nn.Module, HasMethods("forward")],
    "optimizer": [StrOptions({"auto", "gauss-newton", "adam"}), GaussNewton, Adam],
    "max_iter": [StrOptions({"auto"}), *CONSTRAINTS["max_iter"]],
    "tol": [StrOptions({"auto"}), *CONSTRAINTS["tol"]],
    "n_jobs": N_JOBS,
}


@dataclass(eq=False, repr=False)
class _BaseLaplace(BayesianEstimator):
    """Laplace estimator that chooses between Gauss-Newton steps and Adam.

    Gauss-Newton steps need a small fully connected network and the default likelihood.
    """

    hidden_layer_sizes: str | int | Sequence[int] = "auto"
    activation: str = "tanh"
    _: KW_ONLY
    network: str | torch.nn.Module | Network = "mlp"
    likelihood: str | Likelihood = "auto"
    optimizer: str | Optimizer = "auto"
    prior: PriorParameter = "learn"
    max_iter: int | str = "auto"
    standardize: bool | str = True
    tol: float | str | None = "auto"
    n_jobs: int | None = None
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    _defaults: ClassVar[GaussNewtonDefaults] = GaussNewtonDefaults()
    _adam_defaults: ClassVar[AdamDefaults] = AdamDefaults()
    _final_attributes = ("log_evidence_", "log_evidence_std_error_")

    posterior_: ClassVar[LaplacePosterior | ModeMixture]
    prior_scale_: ClassVar[Array]
    _predict_seed_: ClassVar[int]

    feature_importances_ = property(relative_relevance)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """Subgroup of the network's symmetry group that leaves the prior invariant."""
        check_is_fitted(self)
        return model_symmetry(self.network_, self._make_prior(self.network_))

    def _modes(self, like: Tensor) -> LinearisedModes:
        """Return the linearised networks on the device of ``like``, which are cached."""

        def make() -> LinearisedModes:
            posterior: Any = self.posterior_
            tensors = (t.to(like.device) for t in posterior.tensors)
            return LinearisedModes(require_mlp(self.network_), *tensors)

        return cast(LinearisedModes, self._cached(f"modes on {like.device}", make))

    def _linearised(self, like: Tensor) -> LinearisedNetwork:
        """Return the network that Adam trained, linearised on the device of ``like``; cached."""

        def make() -> LinearisedNetwork:
            posterior = cast(LaplacePosterior, self.posterior_)
            plain = Transformations(Identity(), like.new_zeros(0))
            n_layers = len(self.prior_scale_)
            return linearise(
                recording(self.network_), posterior, plain, n_layers, self._predict_seed_
            )

        return cast(LinearisedNetwork, self._cached(f"laplace on {like.device}", make))

    @property
    def _draws_seed(self) -> int:
        """Seed of draws of the outputs in predictions."""
        return spawn_seeds(self._predict_seed_, 2)[1]

    def _make_network(self, data: Training, n_outputs: int) -> RecordingNetwork:
        if not (isinstance(self.network, str) and self.network == "mlp"):
            return custom_network(self, data.n_features, None, n_outputs)
        widths: tuple[int, ...]
        if not isinstance(self.hidden_layer_sizes, str):
            widths = layer_sizes(self.hidden_layer_sizes)
        elif self._requested_optimizer == "adam":
            widths = (self._defaults.default_width,)
        else:
            widths = (self._choose_width(data, n_outputs),)
        return MLP(data.n_features, widths, n_outputs, ACTIVATIONS[self.activation])

    def _choose_width(self, data: Training, n_outputs: int) -> int:
        """Return the number of hidden units for "auto" and Gauss-Newton steps."""
        raise NotImplementedError

    @property
    def _n_restarts(self) -> int | str:
        optimizer = self.optimizer
        if isinstance(optimizer, GaussNewton):
            return optimizer.n_restarts
        return "auto"

    @property
    def _max_modes(self) -> int:
        """Largest number of restarts for "auto"."""
        return self._defaults.max_modes

    @property
    def _max_restarts(self) -> int:
        return resolve_auto(self._n_restarts, self._max_modes)

    def _is_too_expensive(self, n_rows: int, network: MLP) -> bool:
        """Whether Gauss-Newton steps take too long, so that "auto" is Adam."""
        raise NotImplementedError

    def _gauss_newton(self) -> Method:
        """Return the method with Gauss-Newton steps."""
        raise NotImplementedError

    @property
    def _requested_optimizer(self) -> str:
        """Optimiser of the parameter. "auto" is Adam for other likelihoods than the default."""
        optimizer = self.optimizer
        if not isinstance(optimizer, str):
            if isinstance(optimizer, GaussNewton):
                return "gauss-newton"
            return "adam"
        likelihoods = self._likelihoods_by_name
        is_default = isinstance(self.likelihood, str) and (
            likelihoods.get(self.likelihood) is likelihoods["auto"]
        )
        if is_default or optimizer != "auto":
            return optimizer
        return "adam"

    def _make_model(self, data: Training) -> Model:
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.check()
        requested = self._requested_optimizer
        if data.rows.row_parameter is not None:
            if requested == "gauss-newton":
                raise ValueError(
                    "Gauss-Newton steps take no noise_std or exposure per row: use "
                    "optimizer='auto' or 'adam'."
                )
            requested = "adam"
        self.optimizer_ = requested
        if requested == "auto":
            self.optimizer_ = "gauss-newton"
            network = self._make_network(data, self._count_outputs(data))
            if not isinstance(network, MLP) or self._is_too_expensive(data.n_rows, network):
                self.optimizer_ = "adam"
        return super()._make_model(data)

    def _fitted_attributes(self, data: Training, model: Model, fitted: FitResult) -> dict[str, Any]:
        return {**super()._fitted_attributes(data, model, fitted), "optimizer_": self.optimizer_}

    def _make_prior(self, network: Network) -> Prior:
        is_scale = not isinstance(self.prior, str | UnboundPrior)
        if is_scale or self.optimizer_ == "adam":
            return layer_prior(self.prior, recording(network))
        return super()._make_prior(network)

    def _n_parallel_networks(self, n_weights: int) -> float:
        """Number of restarts times weights in Gauss-Newton steps, for the curvature."""
        if self.optimizer_ == "adam":
            return 1.0
        return float(self._max_restarts * n_weights)

    def _make_method(self) -> Method:
        if self.optimizer_ == "gauss-newton":
            return self._gauss_newton()
        return self._adam()

    def _adam(self) -> AdamLaplace:
        adam = resolve_adam(self.optimizer, EvidenceAdam)
        defaults = self._adam_defaults
        if (adam.updates or Updates()).objective != "evidence":
            raise ValueError("other objectives than 'evidence' are for the LILA estimators.")
        tol = resolve_auto(self.tol, defaults.tol)
        learns_scales = isinstance(self.prior, str)
        return AdamLaplace(
            adam, learns_scales, resolve_auto(self.max_iter, defaults.max_iter), tol, defaults
        )


@dataclass(eq=False, repr=False)
class LaplaceRegressor(BayesianRegressorMixin, _BaseLaplace):
    r"""Bayesian neural network regression by Laplace approximations.

    Finds modes of the posterior from several starts, approximates the posterior at each by a normal
    distribution whose precision is the generalised Gauss-Newton matrix plus the prior's, and
    maximises the evidence

    .. math:: \log p(y \mid \theta^*) + \log p(\theta^*)
              - \tfrac12 \log \left| \tfrac{1}{2\pi} (H + \Delta) \right|

    over the prior's scales and the noise while training. Predictions are those of the networks
    linearised at their modes, with equal weights for all restarts. Small fully connected networks
    are trained by Gauss-Newton steps, and others by Adam from one start.

    Parameters
    ----------
    hidden_layer_sizes : "auto", int or sequence of int, default="auto"
        Widths of the hidden layers; ``()`` is a linear model. "auto" chooses 3, 8 or 20 units by
        five-fold cross-validation (`width_scores_`). Large data get 20 without it. With more than
        1,000 distinct rows and little noise, or more than 10,000 and any noise, it is 40 if there
        are four rows per weight. With very many columns it is 10 or 5.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs. "auto" is normal noise with standard
        deviation ``noise_std``. "heteroscedastic" is normal noise that depends on the input,
        "student_t" has heavy tails, and "poisson" and "negative_binomial" are for counts. These
        names stand for the objects in `skbayes_sym.models` with their default parameters.
    optimizer : {"auto", "gauss-newton", "adam"}, GaussNewton or Adam, default="auto"
        "auto" takes Gauss-Newton steps for a fully connected network with the default likelihood,
        unless they'd take more than some twenty seconds, and Adam, which trains one network,
        otherwise. `~skbayes_sym.base.optimizers.GaussNewton` sets the restarts,
        `~skbayes_sym.base.optimizers.EvidenceAdam` the curvature and when hyperparameters
        move.
    prior : "learn", float, sequence of float or Prior, default="learn"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number or one per layer; or an object. "learn" maximises the evidence over the scales of
        ``LayerScales()``, one per layer, or of ``ARD()``, one per column of ``X`` (`relevance_`),
        whichever cross-validation prefers. It is ``ARD()`` for more than 1,000 rows with little
        noise, and for more than 10,000. Adam learns one scale per layer, starting from 1.0 (0.3
        for noise that depends on the input), or uses given normal distributions.
    max_iter : int or "auto", default="auto"
        Maximum number of optimiser steps. "auto" is 100 Gauss-Newton steps, 50 for up to 500 rows,
        and between 50 and 100 if a step takes long. There are up to three times as many while the
        evidence rises steeply. With more than 4,000 rows, the search uses 4,000 of them, and at
        most 8 further steps use all. For Adam "auto" is 3000.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    tol : "auto", float or None, default="auto"
        A restart ends when its log evidence changes by less than this many nats per row over three
        steps, three times in a row; "auto" is 5e-6. Adam stops when the log evidence gains less
        than this from one tenth of ``max_iter`` to the next; "auto" is 1e-3. None never stops.
    n_jobs : int or None, default=None
        Number of joblib processes. The result doesn't depend on it. Restarts of large networks and
        of classifiers run in parallel, and so do refitted members. Starting the processes takes
        about three seconds. Callbacks are called only when a parallel task ends.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    noise_std : "learn", float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``: one number, or one per
        target. "learn" estimates it.

    Attributes
    ----------
    log_evidence_ : float
        Laplace approximation of log p(y | X), nats. It is an estimate and not a bound. After
        Gauss-Newton steps it is a sum over the modes and their symmetric copies, as far as these
        don't overlap. After Adam it is that of the single mode. The expansion is around the end of
        the search, which is early for few rows. With weights that were trained until convergence
        it was 0 to 46 nats lower (442 rows of diabetes: 27 to 46).
    prior_scale_ : ndarray of shape (n_groups,) or (n_layers,)
        Prior standard deviation of every group of weights, as a geometric mean over the modes. If
        the prior was given, it is that of every weight. After Adam it is that of every covered
        layer.
    posterior_ : ModeMixture or LaplacePosterior
        Mixture of normal distributions over the network's P weights, for standardised data. After
        Adam it is a single normal distribution. It has ``loc``, ``sample(n, generator=...)`` and
        ``log_prob(theta)``.
    network_ : MLP or ModuleNetwork
        Architecture, with ``forward(theta, x)``.
    optimizer_ : {"gauss-newton", "adam"}
        Optimiser that trained the network.
    n_iter_ : int
        Number of steps, for the restart with the most.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise, or another likelihood's scale parameter, in the units of
        ``y``. With several modes it is the root of their mean variance.
    log_evidence_std_error_ : float
        Monte Carlo standard error of `log_evidence_`, in nats. It stems from the sum over symmetric
        copies, which is averaged over draws from the posterior. It is 0 if no copies are summed,
        and nan if the model averages over input transformations.
    log_evidence_side_ : {"exact", "lower"}
        Whether `log_evidence_` equals, in expectation, the Laplace approximation summed over all
        modes that were found and all their symmetric copies, or is a lower bound of it. "exact" for
        up to 50,000 copies (six units in a layer). "lower" for more copies, and if a single mode is
        used without copies. The Laplace approximation itself isn't a bound of the evidence.
    n_modes_ : int
        Number of distinct modes, where symmetric copies count as one. This attribute and the arrays
        over modes exist after optimisation by Gauss-Newton steps.
    multiplicity_modes_ : ndarray of shape (n_modes,)
        Number of restarts that ended in each mode or a symmetric copy of it. Modes are weighted in
        proportion to it.
    log_evidence_modes_ : ndarray of shape (n_modes,)
        Laplace approximation of log p(y | X) for each mode, in nats. Its error is often larger than
        the differences between modes, so that modes aren't weighted by it.
    prior_scale_modes_ : ndarray of shape (n_modes, n_groups)
        Learned prior standard deviations of each mode. Exists only if the prior learns scales.
    relevance_ : ndarray of shape (n_modes, n_features)
        Prior scale of the weights of each column of ``X``. Exists only with ``prior=ARD()``.
    noise_std_modes_ : ndarray of shape (n_modes, n_targets)
        Standard deviation of each mode's noise, in the units of ``y``.
    log_evidence_curve_ : ndarray of shape (n_updates,)
        Log evidence of the mode with the largest evidence, after each update of the
        hyperparameters.
    widths_ : ndarray of shape (n_widths,)
        Numbers of hidden units that were cross-validated. Exists only if "auto" chose the width by
        cross-validation.
    width_scores_ : ndarray of shape (n_widths,)
        Mean held-out log density for each of `widths_`, in nats per row and in the units of ``y``.
    likelihood_ : Likelihood
        The likelihood with its fitted parameters, in standardised units. If the parameters were
        sampled, their first axis is that of the draws. Doesn't exist for ``likelihood="auto"``.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
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
    LILARegressor : The same with learned invariances.

    Notes
    -----
    Gauss-Newton steps of R restarts take O(R (n_samples n_targets P^2 + P^3)) for P weights, and
    each is followed by an update of the hyperparameters (MacKay 1992). A step of Adam costs as much
    as that of a deterministic network, and up to 1.5 times as much if it contributes to an online
    update. An exact update costs one pass over the data, and two more if the noise is learned.

    Restarts are weighted equally, because their evidences differ mostly by the error of the
    approximation.

    References
    ----------
    MacKay (1992). A practical Bayesian framework for backpropagation networks.

    Immer, Bauer, Fortuin, Raetsch & Khan (2021). Scalable marginal likelihood estimation for model
    selection in deep learning.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import LaplaceRegressor
    >>> from skbayes_sym.base.optimizers import GaussNewton
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = LaplaceRegressor((5,), optimizer=GaussNewton(2), random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, bool((std > reg.noise_std_).all())
    ((3,), True)
    """

    _: KW_ONLY
    noise_std: Any = "learn"

    _noise_levels_modes_: ClassVar[Array | None] = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LAPLACE_CONSTRAINTS,
        **REGRESSOR_CONSTRAINTS,
    }

    fit = row_parameters.fit

    def _make_likelihood(self, data: Training) -> Likelihood:
        likelihood = super()._make_likelihood(data)
        if data.rows.row_parameter is None:
            return likelihood
        return extend_likelihood(likelihood)

    def _choose_width(self, data: Training, n_outputs: int) -> int:
        return self._defaults.choose_regression_width(data.n_rows, data.n_features, n_outputs)

    def _is_too_expensive(self, n_rows: int, network: MLP) -> bool:
        defaults = self._defaults
        n_params = network.layout.n_params
        if isinstance(self._n_restarts, str) and isinstance(self.max_iter, str):
            return defaults.affordable_modes(defaults.min_modes, n_rows, network) == 0
        n_restarts = defaults.choose_n_restarts(self._n_restarts, n_rows, network)
        n_steps = resolve_auto(self.max_iter, defaults.steps)
        n_derivatives = n_rows * network.n_outputs
        cost = gauss_newton_cost(n_restarts, n_steps, n_derivatives, n_params)
        return cost > defaults.max_work

    def _gauss_newton(self) -> GaussNewtonLaplaceRegression:
        learns_scales = isinstance(self.prior, str | UnboundPrior)
        return GaussNewtonLaplaceRegression(
            self._n_restarts,
            self.max_iter,
            self.tol,
            warns_unconverged=True,
            selects_width=learns_scales and isinstance(self.hidden_layer_sizes, str),
            unbound_prior=resolve_prior(self.prior),
            defaults=self._defaults,
        )

    def predictor(self, like: Tensor) -> Predictor:
        """Return the predictor on the device of ``like``."""
        levels = self._noise_levels_modes_
        scaled_levels = None
        if levels is not None:
            scaled_levels = torch.as_tensor(levels / self.y_scale_).to(like)
        if self.optimizer_ == "adam":
            return LinearisedPredictor(
                self._linearised(like),
                self.fitted_likelihood.to(like),
                self._draws_seed,
                levels=scaled_levels,
            )
        noise = torch.as_tensor(self.noise_std_modes_ / self.y_scale_).unsqueeze(1).log()
        return ModesPredictor(self._modes(like), Gaussian(noise.to(like)), scaled_levels)


@dataclass(eq=False, repr=False)
class LaplaceClassifier(BayesianClassifierMixin, _BaseLaplace):
    r"""Bayesian neural network classification by Laplace approximations.

    Finds modes of the posterior from several starts, with the prior's scales set by the evidence

    .. math:: \log p(y \mid \theta^*) + \log p(\theta^*)
              - \tfrac12 \log \left| \tfrac{1}{2\pi} (H + \Delta) \right|,

    :math:`H` the generalised Gauss-Newton matrix, and approximates the posterior at each by a
    normal distribution. A few variational steps of the network linearised at the mode determine
    it, because the curvature at the mode itself is nearly zero where classes are separated.
    Predictions are those of the linearised networks, with equal weights for all restarts. Small
    fully connected networks are trained by Gauss-Newton steps, and others by Adam from one start
    and without the variational steps.

    Parameters
    ----------
    hidden_layer_sizes : "auto", int or sequence of int, default="auto"
        Widths of the hidden layers; ``()`` is a linear model. "auto" is 20 units, or 10 or 5
        if there are so many columns that 20 would take long.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again.
    likelihood : str or Likelihood, default="auto"
        Distribution of a class given the network's outputs. "auto" is ``Categorical()``, the
        softmax of one output per class. "bernoulli" is the logistic function of a single output,
        for two classes.
    optimizer : {"auto", "gauss-newton", "adam"}, GaussNewton or Adam, default="auto"
        "auto" takes Gauss-Newton steps for a fully connected network with the default likelihood,
        unless they'd take more than some twenty seconds, and Adam, which trains one network,
        otherwise. `~skbayes_sym.base.optimizers.GaussNewton` sets the restarts,
        `~skbayes_sym.base.optimizers.EvidenceAdam` the curvature and when hyperparameters
        move.
    prior : "learn", float, sequence of float or Prior, default="learn"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number or one per layer; or an object. "learn" maximises the evidence over the scales:
        ``LayerScales(8.0, 64.0)``, one for each layer's weights and one for its biases. Its
        hyperprior is stronger than in regression, because scales run away on separated classes. If
        labels are noisy and its evidence is higher, ``LayerScales(8.0, 4.0)`` is used.
        ``ARD(8.0, 64.0)`` learns one scale per column of ``X`` (`relevance_`). Adam learns one
        scale per layer, starting from 1.0, or uses given normal distributions.
    max_iter : int or "auto", default="auto"
        Maximum number of optimiser steps. "auto" is 60 Gauss-Newton steps, or 30 for more than
        1,000 weights, and 3000 steps of Adam.
    standardize : bool, default=True
        Whether to standardise the columns of ``X`` before the fit.
    tol : "auto", float or None, default="auto"
        A restart ends when its log evidence changes by less than this many nats per unit of sample
        weight over two updates of the scales, twice in a row; "auto" is 0.1 nats in total.
        Adam stops when the log evidence gains less than this many from one tenth of ``max_iter``
        to the next; "auto" is 1e-3. None never stops.
    n_jobs : int or None, default=None
        Number of joblib processes. The result doesn't depend on it. Restarts of large networks and
        of classifiers run in parallel, and so do refitted members. Starting the processes takes
        about three seconds. Callbacks are called only when a parallel task ends.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    predictive : {"sampling", "plugin"} or int, default="sampling"
        How probabilities are averaged over the linearised posterior. "sampling" averages over
        draws of the logits (200 after Adam; an int is another number). "plugin" doesn't average.
    variance_scale : "loo" or float, default="loo"
        Factor on the variance of the logits in predictions. "loo" chooses 0.1, 0.3, 1 or 3 by
        approximate leave-one-out. After Adam "loo" is 1. Draws of functions have the same
        variance.

    Attributes
    ----------
    log_evidence_ : float
        Laplace approximation of log p(y | X), nats. It is an estimate and not a bound. After
        Gauss-Newton steps it is a sum over the modes and their symmetric copies, as far as these
        don't overlap. After Adam it is that of the single mode. The expansion is around the end of
        the search, which is early for few rows. With weights that were trained until convergence
        it was 0 to 46 nats lower (442 rows of diabetes: 27 to 46).
    prior_scale_ : ndarray of shape (n_groups,) or (n_layers,)
        Prior standard deviation of every group of weights, as a geometric mean over the modes. If
        the prior was given, it is that of every weight. After Adam it is that of every covered
        layer.
    posterior_ : ModeMixture or LaplacePosterior
        Mixture of normal distributions over the network's P weights, for standardised data. After
        Adam it is a single normal distribution. It has ``loc``, ``sample(n, generator=...)`` and
        ``log_prob(theta)``.
    network_ : MLP or ModuleNetwork
        Architecture, with ``forward(theta, x)``.
    optimizer_ : {"gauss-newton", "adam"}
        Optimiser that trained the network.
    n_iter_ : int
        Number of steps, for the restart with the most.
    log_evidence_std_error_ : float
        Monte Carlo standard error of `log_evidence_`, in nats. It stems from the sum over symmetric
        copies, which is averaged over draws from the posterior. It is 0 if no copies are summed,
        and nan if the model averages over input transformations.
    log_evidence_side_ : {"exact", "lower"}
        Whether `log_evidence_` equals, in expectation, the Laplace approximation summed over all
        modes that were found and all their symmetric copies, or is a lower bound of it. "exact" for
        up to 50,000 copies (six units in a layer). "lower" for more copies, and if a single mode is
        used without copies. The Laplace approximation itself isn't a bound of the evidence.
    n_modes_ : int
        Number of distinct modes, where symmetric copies count as one. This attribute and the arrays
        over modes exist after optimisation by Gauss-Newton steps.
    multiplicity_modes_ : ndarray of shape (n_modes,)
        Number of restarts that ended in each mode or a symmetric copy of it. Modes are weighted in
        proportion to it.
    log_evidence_modes_ : ndarray of shape (n_modes,)
        Laplace approximation of log p(y | X) for each mode, in nats. Its error is often larger than
        the differences between modes, so that modes aren't weighted by it.
    prior_scale_modes_ : ndarray of shape (n_modes, n_groups)
        Learned prior standard deviations of each mode. Exists only if the prior learns scales.
    relevance_ : ndarray of shape (n_modes, n_features)
        Prior scale of the weights of each column of ``X``. Exists only with ``prior=ARD()``.
    variance_scale_ : float
        Factor on the variance of the logits in predictions. Exists only after optimisation by
        Gauss-Newton steps.
    log_evidence_curve_ : ndarray of shape (n_updates,)
        Log evidence of the mode with the largest evidence, after each update of the
        hyperparameters.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Reason why training stopped.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Mean and standard deviation by which the inputs were standardised.
    device_, dtype_ : str
        Device and floating-point precision of the fit.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all column names of ``X`` are strings.

    See Also
    --------
    LILAClassifier : The same with learned invariances.

    Notes
    -----
    Gauss-Newton steps of R restarts take O(R (n_samples P^2 + P^3)) for P weights and any number of
    classes. A step of Adam costs as much as that of a deterministic network, and more if it
    contributes to an online update. An exact update costs about C passes over the data for C
    classes. The predictive covariance costs O(C D^2 + C G^2) per row and layer of D inputs and G
    units.

    For two classes the network has one output after Gauss-Newton steps, and two after Adam.

    References
    ----------
    MacKay (1992). The evidence framework applied to classification networks; others are those of
    `LaplaceRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_sym import LaplaceClassifier
    >>> from skbayes_sym.base.optimizers import GaussNewton
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LaplaceClassifier((5,), optimizer=GaussNewton(2), random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.optimizer_
    ((2, 3), 'gauss-newton')
    """

    _: KW_ONLY
    predictive: str | int = "sampling"
    variance_scale: str | float = "loo"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LAPLACE_CONSTRAINTS,
        **CLASSIFIER_CONSTRAINTS,
        "variance_scale": [StrOptions({"loo"}), Interval(Real, 0, None, closed="left")],
    }

    @property
    def _integral(self) -> str:
        if isinstance(self.predictive, str):
            return self.predictive
        return "sampling"

    @property
    def _max_modes(self) -> int:
        """Largest number of restarts for "auto"."""
        return self._defaults.max_classification_modes

    def _choose_width(self, data: Training, n_outputs: int) -> int:
        defaults = self._defaults

        def is_affordable(network: MLP) -> bool:
            if network.hidden_layer_sizes == (defaults.default_width,):
                return not self._is_too_expensive(data.n_rows, network)
            cost = defaults.label_noise_cost * self._search_cost(data.n_rows, network)
            return cost <= defaults.max_network_work(network)

        return defaults.choose_width(data.n_rows, data.n_features, n_outputs, is_affordable)

    def _count_outputs(self, data: Training) -> int:
        n_classes = len(data.classes)
        has_logistic = self.optimizer_ == "gauss-newton" and isinstance(self.network, str)
        if has_logistic and n_classes == 2:
            return 1
        return n_classes

    def _learned_prior(self, network: Network) -> UnboundPrior:
        # A linear model has one mode, whose scales don't run away.
        if not require_mlp(network).hidden_layer_sizes:
            return LayerScales()
        return STRONG_HYPERPRIOR

    def _search_cost(self, n_rows: int, network: MLP) -> float:
        """Return the number of multiplications of all restarts."""
        n_params = network.layout.n_params
        n_steps = resolve_auto(self.max_iter, self._defaults.classification_steps(n_params))
        return gauss_newton_cost(self._max_restarts, n_steps, n_rows, n_params, network.n_outputs)

    def _is_too_expensive(self, n_rows: int, network: MLP) -> bool:
        return self._search_cost(n_rows, network) > self._defaults.max_work

    def _gauss_newton(self) -> GaussNewtonLaplaceClassification:
        return GaussNewtonLaplaceClassification(
            self._n_restarts,
            self.max_iter,
            self.tol,
            self.variance_scale,
            warns_unconverged=True,
            alternative_prior=WEAK_HYPERPRIOR if isinstance(self.prior, str) else None,
            defaults=self._defaults,
        )

    def predictor(self, like: Tensor) -> Predictor:
        """Return the predictor on the device of ``like``."""
        if self.optimizer_ == "adam":
            return LinearisedClassPredictor(
                self._linearised(like),
                self.fitted_likelihood.to(like),
                self._draws_seed,
                n_draws=int(resolve_auto(self.predictive, 200)),
                integral=self._integral,
                variance_scale=resolve_auto(self.variance_scale, 1.0),
            )
        return self._cached(
            f"{self._integral} of classes on {like.device}",
            lambda: ClassModesPredictor(self._modes(like), self.variance_scale_, self._integral),
        )
