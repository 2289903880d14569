"""Laplace approximations with evidence-tuned hyperparameters, as scikit-learn estimators."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from skbayes_sym.base.model_factory import (
    PriorParameter,
    require_mlp,
    require_normal_prior,
    resolve_prior,
)
from skbayes_sym.base.network_estimator import NetworkEstimator
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
from skbayes_sym.base.requirements import FitResult, Method
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.laplace.adam_laplace import AdamDefaults, Laplace
from skbayes_sym.laplace.base import (
    CLASSIFIER_CONSTRAINTS,
    CONSTRAINTS,
    REGRESSOR_CONSTRAINTS,
    LaplaceClassification,
    LaplaceEstimator,
    LaplaceRegression,
    layer_prior,
    recording,
)
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, gauss_newton_cost
from skbayes_sym.laplace.gauss_newton_laplace import (
    STRONG_HYPERPRIOR,
    WEAK_HYPERPRIOR,
    GaussNewtonLaplaceClassification,
    GaussNewtonLaplaceRegression,
)
from skbayes_sym.laplace.posterior import LinearisedModes
from skbayes_sym.laplace.predict import ClassModesPredictor, ModesPredictor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import LayerScales, Prior, UnboundPrior

OWN_CONSTRAINTS: dict[str, list[Any]] = {
    **CONSTRAINTS,
    "hidden_layer_sizes": [StrOptions({"auto"}), *CONSTRAINTS["hidden_layer_sizes"]],
    "network": [StrOptions({"mlp"}), torch.nn.Module, HasMethods("forward")],
    "optimizer": [StrOptions({"auto", "gauss-newton", "adam"}), GaussNewton, Adam],
    "max_iter": [StrOptions({"auto"}), *CONSTRAINTS["max_iter"]],
    "tol": [StrOptions({"auto"}), *CONSTRAINTS["tol"]],
    "n_jobs": N_JOBS,
}


@dataclass(eq=False, repr=False)
class ChoosesOptimizer(LaplaceEstimator):
    """Gauss-Newton where the network is small and ordinary enough, Adam elsewhere."""

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

    _effort: ClassVar[GaussNewtonDefaults] = GaussNewtonDefaults()
    _adam_effort: ClassVar[AdamDefaults] = AdamDefaults()
    _most_modes: ClassVar[int] = _effort.max_modes  # of "auto"

    def _modes(self, like: Tensor) -> LinearisedModes:
        """The networks linearised at the modes, on the device of ``like``, made once."""

        def make() -> LinearisedModes:
            posterior: Any = self.posterior_
            tensors = (t.to(like.device) for t in posterior.tensors)
            return LinearisedModes(require_mlp(self.network_), *tensors)

        return cast(LinearisedModes, self._cached(f"modes on {like.device}", make))

    def _sizes(self, data: Training, n_outputs: int) -> tuple[int, ...]:
        if not isinstance(self.hidden_layer_sizes, str):
            return super()._sizes(data, n_outputs)
        is_adam = self._asked == "adam"
        return (self._effort.default_width if is_adam else self._units(data, n_outputs),)

    def _units(self, data: Training, n_outputs: int) -> int:
        """Hidden units of "auto" for Gauss-Newton steps."""
        raise NotImplementedError

    @property
    def _n_restarts(self) -> int | str:
        optimizer = self.optimizer
        return optimizer.n_restarts if isinstance(optimizer, GaussNewton) else "auto"

    @property
    def _max_restarts(self) -> int:
        n_restarts = self._n_restarts
        return self._most_modes if isinstance(n_restarts, str) else n_restarts

    def _takes_long(self, n_rows: int, network: MLP) -> bool:
        """Whether "auto" trains such a network by Adam."""
        raise NotImplementedError

    def _gauss_newton(self) -> Method:
        raise NotImplementedError

    @property
    def _asked(self) -> str:
        """Optimiser that is asked for; only Adam takes other likelihoods than the default."""
        optimizer = self.optimizer
        if not isinstance(optimizer, str):
            return "gauss-newton" if isinstance(optimizer, GaussNewton) else "adam"
        named = self._likelihoods_by_name
        is_default = isinstance(self.likelihood, str) and (
            named.get(self.likelihood) is named["auto"]
        )
        return optimizer if is_default or optimizer != "auto" else "adam"

    def _make_model(self, data: Training) -> Model:
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.check()
        self.optimizer_ = asked = self._asked
        if asked == "auto":
            self.optimizer_ = "gauss-newton"
            network = self._make_network(data, self._count_outputs(data))
            if not isinstance(network, MLP) or self._takes_long(data.n_rows, network):
                self.optimizer_ = "adam"
        return super()._make_model(data)

    def _fitted_attributes(self, data: Training, model: Model, fitted: FitResult) -> dict[str, Any]:
        return {**super()._fitted_attributes(data, model, fitted), "optimizer_": self.optimizer_}

    def _steps_up_to(self, automatic: int) -> int:
        return automatic if isinstance(self.max_iter, str) else self.max_iter

    def _make_prior(self, network: Network) -> Prior:
        is_learned = isinstance(self.prior, str) and self.optimizer_ == "gauss-newton"
        if not (is_learned or isinstance(self.prior, UnboundPrior)):
            return layer_prior(self.prior, recording(network))
        bound = NetworkEstimator._make_prior(self, network)
        if self.optimizer_ == "gauss-newton":
            return bound
        if bound.learned_scales is not None:
            raise ValueError(
                "this prior learns its scales by Gauss-Newton steps, but the network is trained by "
                "Adam. Use prior='learn', a number, or optimizer='gauss-newton'."
            )
        shown = recording(network)
        scale = require_normal_prior(bound).scale
        slices = network.layout.slices
        first = [float(scale[slices[layer.weight]][0]) for layer in shown.weight_layers]
        if not torch.allclose(layer_prior(first, shown).scale.to(scale), scale):
            raise ValueError(
                "Adam's curvature takes one prior scale a layer, of weights and biases alike. Use "
                "Normal(scale) with one number or one a layer, or optimizer='gauss-newton'."
            )
        return bound

    def _n_parallel_networks(self, n_weights: int) -> float:
        """Number of restarts times weights in Gauss-Newton steps, for the curvature."""
        if self.optimizer_ == "adam":
            return 1.0
        return float(self._max_restarts * n_weights)

    def _make_method(self) -> Method:
        return self._gauss_newton() if self.optimizer_ == "gauss-newton" else self._adam()

    def _adam(self) -> Laplace:
        adam = resolve_adam(self.optimizer, EvidenceAdam)
        effort = self._adam_effort
        if (adam.updates or Updates()).objective != "evidence":
            raise ValueError("other objectives than 'evidence' are for the LILA estimators.")
        tol = effort.tol if isinstance(self.tol, str) else self.tol
        learns_scales = isinstance(self.prior, str)
        return Laplace(adam, learns_scales, self._steps_up_to(effort.max_iter), tol, effort)


@dataclass(eq=False, repr=False)
class LaplaceRegressor(ChoosesOptimizer, LaplaceRegression):
    r"""Bayesian neural network regression by Laplace approximations.

    Finds modes of the posterior from several starts, approximates the posterior at each by a normal
    distribution whose precision is the generalised Gauss-Newton matrix plus the prior's, and
    maximises the evidence

    .. math:: \log p(y \mid \theta^*) + \log p(\theta^*)
              - \tfrac12 \log \left| \tfrac{1}{2\pi} (H + \Delta) \right|

    over the prior's scales and the noise while training. Predictions are those of the networks
    linearised at their modes, every restart counted alike. Small fully connected networks are
    trained by Gauss-Newton steps; others by Adam, from one start.

    Parameters
    ----------
    hidden_layer_sizes : "auto", int or sequence of int, default="auto"
        Widths of the hidden layers; ``()`` is a linear model. "auto" chooses 3, 8 or 20 units by
        five-fold cross-validation (`width_scores_`). Many rows get 20; beyond 1,000 distinct rows
        with little noise, or 10,000 with any, 40 given four rows per weight, or twenty; very many
        columns get 10 or 5.
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
        as cross-validation prefers; more than 1,000 rows with little noise, or 10,000, get
        ``ARD()``.
        Adam learns one scale a layer, from 1.0 (of noise that changes with the input 0.3), or takes
        given normals.
    max_iter : int or "auto", default="auto"
        Maximum number of optimiser steps. "auto" is 100, 50 of up to 500 rows and at least 50 where
        a step takes long, up to three times as many while the evidence rises steeply; beyond 10,000
        rows these make such a search, and at most 8 steps go on with all. 3000 by Adam.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    tol : "auto", float or None, default="auto"
        A restart ends when its log evidence moves by less than this many nats per row over three
        steps, three times in a row; "auto" is 5e-6. Adam stops when the log evidence gains less
        than this many from one tenth of ``max_iter`` to the next; "auto" is 1e-3. None never stops.
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
        Laplace approximation of log p(y | X), nats: an estimate, no bound. Gauss-Newton's sums over
        the modes and their copies by symmetry, as far as these don't overlap; Adam's is of its one
        mode. It is expanded where the search ended, which few rows end early: where the weights
        went on to converge it was 0 to 46 nats lower (442 rows of diabetes: 27 to 46).
    prior_scale_ : ndarray of shape (n_groups,) or (n_layers,)
        Prior standard deviation of every group of weights, geometric mean over the modes (every
        weight's own where it was given); by Adam that of every covered layer.
    posterior_ : ModeMixture or LaplacePosterior
        Mixture of normal distributions over the network's P weights, by Adam one of them, acting on
        standardised data: ``posterior_.loc``, ``.sample(n, generator=...)``, ``.log_prob(theta)``.
    network_ : MLP or ModuleNetwork
        Architecture, with ``forward(theta, x)``.
    optimizer_ : {"gauss-newton", "adam"}
        What trained it.
    n_iter_ : int
        Number of steps, for the restart with the most.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise (or its scale), in the units of ``y``: root of the modes'
        mean variance.
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
    each sets the hyperparameters anew (MacKay 1992). A step of Adam costs as much as a
    deterministic network's, and at most half as much again where it gathers an online update; an
    exact update costs one look at the data, and two more where there is noise to learn.

    Restarts count alike: evidences differ mostly by the error of the approximation.

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
        **OWN_CONSTRAINTS,
        **REGRESSOR_CONSTRAINTS,
    }

    def _units(self, data: Training, n_outputs: int) -> int:
        return self._effort.choose_regression_width(data.n_rows, data.n_features, n_outputs)

    def _takes_long(self, n_rows: int, network: MLP) -> bool:
        effort = self._effort
        n_params = network.layout.n_params
        if isinstance(self._n_restarts, str) and isinstance(self.max_iter, str):
            return effort.affordable_modes(effort.min_modes, n_rows, network) == 0
        n_restarts = effort.choose_n_restarts(self._n_restarts, n_rows, network)
        n_steps = self._steps_up_to(effort.steps)
        n_numbers = n_rows * network.n_outputs
        return gauss_newton_cost(n_restarts, n_steps, n_numbers, n_params) > effort.max_work

    def _gauss_newton(self) -> GaussNewtonLaplaceRegression:
        learns_scales = isinstance(self.prior, str | UnboundPrior)
        return GaussNewtonLaplaceRegression(
            self._n_restarts, self.max_iter, self.tol, warns_unconverged=True,
            selects_width=learns_scales and isinstance(self.hidden_layer_sizes, str),
            unbound_prior=resolve_prior(self.prior), defaults=self._effort,
        )  # fmt: skip

    def predictor(self, like: Tensor) -> Predictor:
        if self.optimizer_ == "adam":
            return super().predictor(like)
        noise = torch.as_tensor(self.noise_std_modes_ / self.y_scale_).unsqueeze(1).log()
        levels = self._noise_levels_modes_
        scaled = None if levels is None else torch.as_tensor(levels / self.y_scale_).to(like)
        return ModesPredictor(self._modes(like), Gaussian(noise.to(like)), scaled)


@dataclass(eq=False, repr=False)
class LaplaceClassifier(ChoosesOptimizer, LaplaceClassification):
    r"""Bayesian neural network classification by Laplace approximations.

    Finds modes of the posterior from several starts, with the prior's scales set by the evidence

    .. math:: \log p(y \mid \theta^*) + \log p(\theta^*)
              - \tfrac12 \log \left| \tfrac{1}{2\pi} (H + \Delta) \right|,

    :math:`H` the generalised Gauss-Newton matrix, and approximates the posterior at each by a
    normal distribution: that of a few variational steps of the network linearised at the mode,
    since where classes are separated the curvature at the mode itself says next to nothing.
    Predictions are those of the linearised networks, every restart counted alike. Small fully
    connected networks are trained by Gauss-Newton steps; others by Adam, from one start and
    without the variational steps.

    Parameters
    ----------
    hidden_layer_sizes : "auto", int or sequence of int, default="auto"
        Widths of the hidden layers; ``()`` is a linear model. "auto" is 20 units, or 10 or 5
        where columns are so many that 20 would take long.
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
        ``LayerScales(8.0, 64.0)``, one per layer's weights and per layer's biases, held more
        closely than in regression since on separated classes scales run away; or, where labels are
        noisy and its evidence is higher, ``LayerScales(8.0, 4.0)``. ``ARD(8.0, 64.0)`` learns one
        per column of ``X``: `relevance_`. By Adam one scale a layer, from 1.0, or given normals.
    max_iter : int or "auto", default="auto"
        Maximum number of optimiser steps; "auto" is 60,
        30 beyond 1,000 weights, and 3000 by Adam.
    standardize : bool, default=True
        Whether to standardise the columns of ``X`` before the fit.
    tol : "auto", float or None, default="auto"
        A restart ends when its log evidence moves by less than this many nats per unit of sample
        weight over two updates of the scales, twice in a row; "auto" is a tenth of a nat in all.
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
        How probabilities are averaged over the linearised posterior: by draws of the logits (200 of
        Adam's network; an int is another number), or not at all.
    variance_scale : "loo" or float, default="loo"
        Factor on the variance of the logits in predictions; "loo" takes that of 0.1,
        0.3, 1 and 3 whose predictions of left-out rows are best, approximately. Adam's fits take a
        number as it is, and 1 with "loo". Draws of functions have the same variance.

    Attributes
    ----------
    log_evidence_ : float
        Laplace approximation of log p(y | X), nats: an estimate, no bound. Gauss-Newton's sums over
        the modes and their copies by symmetry, as far as these don't overlap; Adam's is of its one
        mode. It is expanded where the search ended, which few rows end early: where the weights
        went on to converge it was 0 to 46 nats lower (442 rows of diabetes: 27 to 46).
    prior_scale_ : ndarray of shape (n_groups,) or (n_layers,)
        Prior standard deviation of every group of weights, geometric mean over the modes (every
        weight's own where it was given); by Adam that of every covered layer.
    posterior_ : ModeMixture or LaplacePosterior
        Mixture of normal distributions over the network's P weights, by Adam one of them, acting on
        standardised data: ``posterior_.loc``, ``.sample(n, generator=...)``, ``.log_prob(theta)``.
    network_ : MLP or ModuleNetwork
        Architecture, with ``forward(theta, x)``.
    optimizer_ : {"gauss-newton", "adam"}
        What trained it.
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
    Gauss-Newton steps of R restarts take O(R (n_samples P^2 + P^3)) for P weights, however many
    classes there are. One of Adam's costs as much as a deterministic network's, and more where it
    gathers an online update; an exact one costs about as much as C looks at the data for C classes,
    and the predictive covariance O(C D^2 + C G^2) a row and layer of D inputs and G units.

    Two classes have one output after Gauss-Newton steps, and two after Adam's.

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
        **OWN_CONSTRAINTS,
        **CLASSIFIER_CONSTRAINTS,
        "variance_scale": [StrOptions({"loo"}), Interval(Real, 0, None, closed="left")],
    }

    _most_modes = ChoosesOptimizer._effort.max_classification_modes

    def _units(self, data: Training, n_outputs: int) -> int:
        effort = self._effort

        def in_time(network: MLP) -> bool:
            if network.hidden_layer_sizes == (effort.default_width,):
                return not self._takes_long(data.n_rows, network)
            most = effort.max_network_work(network)
            return effort.label_noise_cost * self._work(data.n_rows, network) <= most

        return effort.choose_width(data.n_rows, data.n_features, n_outputs, in_time)

    def _count_outputs(self, data: Training) -> int:
        n_classes = len(data.classes)
        one = self.optimizer_ == "gauss-newton" and isinstance(self.network, str)
        return 1 if one and n_classes == 2 else n_classes

    def _learned_prior(self, network: Network) -> UnboundPrior:
        # A linear model has one mode, whose scales don't run away.
        return STRONG_HYPERPRIOR if require_mlp(network).hidden_layer_sizes else LayerScales()

    def _work(self, n_rows: int, network: MLP) -> float:
        """Multiplications of all restarts."""
        n_params = network.layout.n_params
        n_steps = self._steps_up_to(self._effort.classification_steps(n_params))
        return gauss_newton_cost(self._max_restarts, n_steps, n_rows, n_params, network.n_outputs)

    def _takes_long(self, n_rows: int, network: MLP) -> bool:
        return self._work(n_rows, network) > self._effort.max_work

    def _gauss_newton(self) -> GaussNewtonLaplaceClassification:
        return GaussNewtonLaplaceClassification(
            self._n_restarts, self.max_iter, self.tol, self.variance_scale, warns_unconverged=True,
            alternative_prior=WEAK_HYPERPRIOR if isinstance(self.prior, str) else None,
            defaults=self._effort,
        )  # fmt: skip

    def predictor(self, like: Tensor) -> Predictor:
        if self.optimizer_ == "adam":
            return super().predictor(like)
        return self._cached(
            f"{self._integral} labels on {like.device}",
            lambda: ClassModesPredictor(self._modes(like), self.variance_scale_, self._integral),
        )
