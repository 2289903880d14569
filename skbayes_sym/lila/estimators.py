"""Invariances learned by the Laplace evidence: Immer et al. 2022 as scikit-learn estimators."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, cast

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.model_factory import (
    REGRESSOR_CONSTRAINTS,
    PriorParameter,
    layer_sizes,
    model_symmetry,
)
from skbayes_sym.base.optimizers import Adam, EvidenceAdam, Optimizer, Updates, resolve_adam
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.requirements import require_attributes
from skbayes_sym.base.rows import Array, Rows, Scaling, is_standardized
from skbayes_sym.base.scikit_learn import HasMethods, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.laplace.adam_laplace import AdamDefaults, AdamLaplace
from skbayes_sym.laplace.base import (
    CLASSIFIER_CONSTRAINTS,
    CONSTRAINTS,
    NETWORK_NAMES,
    custom_network,
    layer_prior,
    linearise,
    recording,
)
from skbayes_sym.laplace.defaults import resolve_auto
from skbayes_sym.laplace.invariance_parameters import (
    EVALUATION_SAMPLES,
    TransformationFamilies,
    Transformations,
    image_scaling,
    image_shape,
    resolve_invariances,
    warn_no_invariance,
)
from skbayes_sym.laplace.posterior import LaplacePosterior, LinearisedNetwork
from skbayes_sym.laplace.predict import LinearisedClassPredictor, LinearisedPredictor
from skbayes_sym.models.augmentations.augmentation import OBJECTIVES, ImageShape, TransformObjective
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.models.networks.network import Network, RecordingNetwork
from skbayes_sym.models.priors import Prior
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.group import SymmetryGroup

_OWN_CONSTRAINTS: dict[str, list[Any]] = {
    **CONSTRAINTS,
    "image_shape": ["array-like", None],
    "network": [
        StrOptions({"mlp", *NETWORK_NAMES}),
        torch.nn.Module,
        HasMethods("forward"),
    ],
    "invariances": [StrOptions({"auto"}), None, list, tuple, object],
    "optimizer": [StrOptions({"adam"}), Adam],
    "max_iter": [StrOptions({"auto"}), *CONSTRAINTS["max_iter"]],
}


def resolve_objective(adam: EvidenceAdam) -> TransformObjective:
    """Return the objective that the parameter names or is."""
    value = (adam.updates or Updates()).objective
    if isinstance(value, str) and value in OBJECTIVES:
        return OBJECTIVES[value]
    require_attributes(
        value,
        ["transforms", "learns_prior", "reward"],
        parameter="objective",
        remedy="Give 'evidence', 'map', 'augerino' or Augerino(reward=...).",
    )
    return value  # type: ignore[no-any-return]


# Constants of fits with transformations. Without, there are as many steps as for Laplace.
LILA_DEFAULTS = AdamDefaults(max_iter=1000, hyper_rate=0.1)


@dataclass(eq=False, repr=False)
class LILAEstimator(BayesianEstimator):
    """Base class of networks averaged over transformations whose half-widths are learned."""

    hidden_layer_sizes: Any = (50,)
    activation: str = "tanh"
    _: KW_ONLY
    image_shape: Any = None
    network: str | torch.nn.Module | Network = "mlp"
    likelihood: str | Likelihood = "auto"
    invariances: Any = "auto"
    prior: PriorParameter = "learn"
    max_iter: int | str = "auto"
    standardize: bool | str = True
    optimizer: str | Optimizer = "adam"
    tol: float | None = 1e-3
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    _final_attributes = ("log_evidence_", "log_evidence_std_error_")

    posterior_: ClassVar[LaplacePosterior]
    prior_scale_: ClassVar[Array]
    _predict_seed_: ClassVar[int]

    @property
    def symmetry_(self) -> SymmetryGroup:
        """Subgroup of the network's symmetry group that leaves the prior invariant."""
        check_is_fitted(self)
        return model_symmetry(self.network_, self._make_prior(self.network_))

    def _make_network(self, data: Training, n_outputs: int) -> RecordingNetwork:
        shape = self._resolve_image_shape(data.n_features)
        if isinstance(self.network, str) and self.network == "mlp":
            sizes = layer_sizes(self.hidden_layer_sizes)
            return MLP(data.n_features, sizes, n_outputs, ACTIVATIONS[self.activation])
        return custom_network(self, data.n_features, shape, n_outputs)

    def _scale_inputs(self, rows: Rows) -> Scaling:
        is_image = self.image_shape is not None and is_standardized(self.standardize, "X")
        if is_image:
            return image_scaling(rows)
        return super()._scale_inputs(rows)

    def _resolve_image_shape(self, n_features: int) -> ImageShape | None:
        """Return the shape (C, H, W) of images, None for tables."""
        return image_shape(self.image_shape, n_features)

    def _n_parallel_networks(self, _n_weights: int) -> float:
        """Return the number of transformations per row."""
        invariances = resolve_invariances(self.invariances)
        if invariances is None:
            return 1.0
        return float(invariances.n_augmentations)

    @property
    def _learns_scales(self) -> bool:
        if not isinstance(self.prior, str):
            return False
        return self.prior == "learn" or self.image_shape is None

    def _make_prior(self, network: Network) -> Prior:
        scale = 3.0 if isinstance(self.prior, str) else self.prior
        return layer_prior(scale, recording(network))

    def _make_method(self) -> AdamLaplace:
        adam = resolve_adam(self.optimizer, EvidenceAdam)
        if adam.layers != "all":
            raise ValueError("LILA's posterior covers all layers: leave layers='all'.")
        invariances = resolve_invariances(self.invariances)
        objective = resolve_objective(adam)
        requested = None if invariances is None else invariances.families
        is_auto = isinstance(requested, str) and requested == "auto"
        if is_auto and objective.transforms and self.image_shape is None:
            warn_no_invariance()
        shape = self._resolve_image_shape(self.n_features_in_)
        families = TransformationFamilies.from_parameter(invariances, shape)
        max_iter = self.max_iter
        if isinstance(max_iter, str):
            transforms = objective.transforms and families.families
            max_iter = (LILA_DEFAULTS if transforms else AdamDefaults()).max_iter
        return AdamLaplace(
            adam,
            self._learns_scales,
            max_iter,
            self.tol,
            LILA_DEFAULTS,
            objective,
            families,
            "auto" if invariances is None else invariances.learning_rate,
        )

    def _linearised(self, like: Tensor) -> LinearisedNetwork:
        """Return the linearised network on the device of ``like``, which is cached."""
        eta = torch.as_tensor(self.eta_).to(like)
        n = self.n_predict_augmentations_

        def make() -> LinearisedNetwork:
            return linearise(
                recording(self.network_),
                self.posterior_,
                Transformations(self.augmentation_, eta, n),
                len(self.prior_scale_),
                self._predict_seed_,
            )

        name = f"laplace on {like.device}, averaged over {n}"
        return cast(LinearisedNetwork, self._cached(name, make))

    @property
    def _draws_seed(self) -> int:
        """Seed of draws of the outputs in predictions."""
        return spawn_seeds(self._predict_seed_, 2)[1]

    @property
    def n_predict_augmentations_(self) -> int:
        """Number of transformations that predictions average over."""
        check_is_fitted(self)
        invariances = resolve_invariances(self.invariances)
        if invariances is not None and not isinstance(invariances.n_predict_augmentations, str):
            return invariances.n_predict_augmentations
        if self._predicts_plainly_:
            return 1
        return EVALUATION_SAMPLES


@dataclass(eq=False, repr=False)
class LILARegressor(BayesianRegressorMixin, LILAEstimator):
    r"""Regression with invariances learned from the data.

    Averages a network over random transformations of its input,
    :math:`\hat f(x) = E_\epsilon[f(g(x, \eta\epsilon))]` with :math:`\epsilon` uniform on
    [-1, 1], and maximises the Laplace evidence

    .. math:: \log p(y \mid \theta^*, \eta) + \log p(\theta^*)
              - \tfrac12 \log \left| \tfrac{1}{2\pi} (H(\eta) + \Delta) \right|

    over the half-widths :math:`\eta`, the prior precisions and the noise while the weights are
    trained. Thereby the training data determine to which transformations they are invariant, and by
    how much.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    image_shape : (H, W) or (C, H, W), optional
        Shape of the images that the rows of ``X`` contain, pixel by pixel. If None, ``X`` is a
        table.
    network : str, torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. "cnn" has
        three convolutions and a hidden layer. "resnet-8-8" (or "resnet") and "resnet-8-16" have
        three residual blocks, the first of 8 or 16 channels, with Fixup initialisation. "wrn-16-4"
        is the Wide ResNet. A torch module of Linear and Conv2d layers and elementwise activations
        defines the architecture. The module is copied, and its weights are initialised again at
        their own scale. Scalars of other modules keep their values. It receives images as
        (C, H, W).
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs. "auto" is normal noise with standard
        deviation ``noise_std``. "heteroscedastic" is normal noise that depends on the input,
        "student_t" has heavy tails, and "poisson" and "negative_binomial" are for counts. These
        names stand for the objects in `skbayes_sym.models` with their default parameters.
    invariances : "auto", None, augmentation, list or Invariances, default="auto"
        Families of transformations. "auto" is `~skbayes_sym.models.Affine` (translation, rotation,
        scale, aspect and shear of images) with an ``image_shape``, and none without. Others
        (`Rotation2D`, `ColumnShift`, `LogScale`) act on ``X`` before it is standardised. Torch
        modules are called as ``module(x, eps)`` with a parameter ``eta`` and uniform noise on
        [-1, 1]. Several families act one after the other. `~skbayes_sym.models.Invariances` also
        sets the number of transformations per row in training (8) and in predictions (32), and the
        step size of the half-widths. None is the non-invariant model of the paper.
    prior : "learn", float, sequence of float or Normal, default="learn"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number or one per layer. "learn" maximises the evidence over one scale per layer,
        starting from 3.0. Under a wide fixed prior the learned noise exceeds the targets' spread.
    max_iter : int or "auto", default="auto"
        Maximum number of optimiser steps. "auto" is 1000, or 3000 without transformations.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case. Images are divided by their largest pixel instead.
    optimizer : "adam" or Adam, default="adam"
        `~skbayes_sym.base.optimizers.EvidenceAdam` sets the curvature, the objective, and when
        half-widths, prior and noise are updated. "adam" uses its defaults.
    tol : float or None, default=0.001
        Training stops when the log evidence (the log posterior, where nothing is learned by the
        evidence) gains less than this many nats per unit of sample weight from one tenth of
        ``max_iter`` to the next. None never stops.
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
        Laplace approximation of log p(y | X) at the learned hyperparameters, in nats. It is an
        estimate and not a bound.
    log_evidence_std_error_ : float
        Monte Carlo standard error of `log_evidence_`, in nats. It stems from the sum over symmetric
        copies, which is averaged over draws from the posterior. It is 0 if no copies are summed,
        and nan if the model averages over input transformations.
    log_evidence_side_ : {"exact", "lower"}
        Whether `log_evidence_` equals, in expectation, the Laplace approximation summed over all
        modes that were found and all their symmetric copies, or is a lower bound of it. "exact" for
        up to 50,000 copies (six units in a layer). "lower" for more copies, and if a single mode is
        used without copies. The Laplace approximation itself isn't a bound of the evidence.
    log_evidence_curve_ : ndarray of shape (n_updates,)
        Log evidence at every update of the hyperparameters.
    invariance_ : dict
        Half-width of the uniform distribution of every generator. ``translation_x`` and
        ``translation_y`` are in half-images, ``rotation`` is in radians, and ``scale``,
        ``aspect``, ``scale_x``, ``scale_y`` and ``shear`` are logarithms. For tables they are in
        the columns' units.
    invariance_curve_ : dict
        Half-widths after every block of steps, arrays of shape (n_blocks,).
    augmentation_ : Augmentation
        Transformations of standardised inputs with these half-widths.
    eta_ : ndarray
        Free parameters of the half-widths, which ``augmentation_.transform`` takes.
    n_predict_augmentations_ : int
        Number of transformations that predictions average over. If it is 1, inputs aren't
        transformed.
    invariance_covariance_ : ndarray of shape (k, k)
        Covariance of the generators' coefficients.
    invariance_correlation_ : ndarray of shape (k, k)
        Their correlations, NaN where a half-width is below 0.1 and the generator is negligible.
    invariance_directions_ : ndarray of shape (k, k)
        Uncorrelated combinations of generators (rows), in falling order of the displacement of
        pixels.
    invariance_direction_amplitudes_ : ndarray of shape (k,)
        Root mean squared displacement of each combination, in half-images.
    prior_scale_ : ndarray of shape (n_layers,)
        Prior standard deviation of every covered layer's weights and biases.
    posterior_ : LaplacePosterior
        Normal distribution over the network's P weights, acting on standardised data:
        ``posterior_.loc``, ``.sample(n, generator=...)``, ``.log_prob(theta)``.
    network_ : MLP or ModuleNetwork
        Architecture, with ``forward(theta, x)``.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise in the units of ``y``, or the scale parameter of another
        likelihood, if it has one.
    likelihood_ : Likelihood
        The likelihood with its fitted parameters, in standardised units. If the parameters were
        sampled, their first axis is that of the draws. Doesn't exist for ``likelihood="auto"``.
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
    LaplaceRegressor : Regression without invariances.

    Notes
    -----
    One update costs about two Augerino epochs with ``Updates(gradient="exact")``. With "online",
    the training as a whole costs about 1.5 times Augerino's.

    Stratified noise, the similarity basis, correlated generators, a sketch of the likelihood's
    curvature, and one-pass updates are additions to the paper.

    References
    ----------
    Immer, van der Ouderaa, Raetsch, Fortuin & van der Wilk (2022). Invariance learning in deep
    neural networks with differentiable Laplace approximations. https://arxiv.org/abs/2202.10638

    Benton, Finzi, Izmailov & Wilson (2020). Learning invariances in neural networks from training
    data.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym import LILARegressor
    >>> from skbayes_sym.models import Rotation2D
    >>> X = np.random.default_rng(0).standard_normal((60, 2))
    >>> y = np.hypot(X[:, 0], X[:, 1])
    >>> reg = LILARegressor((10,), invariances=[Rotation2D()], max_iter=300, random_state=0)
    >>> bool(reg.fit(X, y).invariance_["rotation"] > 1.0)
    True
    """

    _: KW_ONLY
    noise_std: Any = "learn"

    _noise_levels_modes_: ClassVar[Any] = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_OWN_CONSTRAINTS,
        **REGRESSOR_CONSTRAINTS,
    }

    def predictor(self, like: Tensor) -> LinearisedPredictor:
        """Return the predictor on the device of ``like``."""
        levels = self._noise_levels_modes_
        if levels is not None:
            levels = torch.as_tensor(levels / self.y_scale_).to(like)
        return LinearisedPredictor(
            self._linearised(like),
            self.fitted_likelihood.to(like),
            self._draws_seed,
            levels=levels,
        )


@dataclass(eq=False, repr=False)
class LILAClassifier(BayesianClassifierMixin, LILAEstimator):
    """Classification with invariances learned from the data.

    Averages a network over random transformations of its input and maximises the Laplace evidence,
    as `LILARegressor` does, over the half-widths of the transformations while the weights are
    trained.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    image_shape : (H, W) or (C, H, W), optional
        Shape of the images that the rows of ``X`` contain, pixel by pixel. If None, ``X`` is a
        table.
    network : str, torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. "cnn" has
        three convolutions and a hidden layer. "resnet-8-8" (or "resnet") and "resnet-8-16" have
        three residual blocks, the first of 8 or 16 channels, with Fixup initialisation. "wrn-16-4"
        is the Wide ResNet. A torch module of Linear and Conv2d layers and elementwise activations
        defines the architecture. The module is copied, and its weights are initialised again at
        their own scale. Scalars of other modules keep their values. It receives images as
        (C, H, W).
    likelihood : str or Likelihood, default="auto"
        Distribution of a class given the network's outputs. "auto" is ``Categorical()``, the
        softmax of one output per class. "bernoulli" is the logistic function of a single output,
        for two classes.
    invariances : "auto", None, augmentation, list or Invariances, default="auto"
        Families of transformations. "auto" is `~skbayes_sym.models.Affine` (translation, rotation,
        scale, aspect and shear of images) with an ``image_shape``, and none without. Others
        (`Rotation2D`, `ColumnShift`, `LogScale`) act on ``X`` before it is standardised. Torch
        modules are called as ``module(x, eps)`` with a parameter ``eta`` and uniform noise on
        [-1, 1]. Several families act one after the other. `~skbayes_sym.models.Invariances` also
        sets the number of transformations per row in training (8) and in predictions (32), and the
        step size of the half-widths. None is the non-invariant model of the paper.
    prior : "auto", "learn", float, sequence of float or Normal, default="auto"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number or one per layer. "learn" maximises the evidence over one scale per layer,
        starting from 3.0. For images the scales become too small and the network underfits, which
        cost up to 0.26 nats per test row on 17 of 18 data sets. "auto" is 3.0 with an
        ``image_shape``, and otherwise "learn", which gained up to 0.8 nats per test row.
    max_iter : int or "auto", default="auto"
        Maximum number of optimiser steps. "auto" is 1000, or 3000 without transformations.
    standardize : bool, default=True
        Whether to standardise the columns of ``X`` before the fit.
        Images are divided by their largest pixel instead.
    optimizer : "adam" or Adam, default="adam"
        `~skbayes_sym.base.optimizers.EvidenceAdam` sets the curvature, the objective, and when
        half-widths, prior and noise are updated. "adam" uses its defaults.
    tol : float or None, default=0.001
        Training stops when the log evidence (the log posterior, where nothing is learned by the
        evidence) gains less than this many nats per unit of sample weight from one tenth of
        ``max_iter`` to the next. None never stops.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    predictive : {"sampling", "plugin"} or int, default="plugin"
        How probabilities are averaged over the linearised posterior. "sampling" averages over 200
        draws of the logits (an int is another number). "plugin" doesn't average: for images the
        average is too uncertain, which costs 0.2 to 0.8 nats per row on digits.

    Attributes
    ----------
    log_evidence_std_error_ : float
        Monte Carlo standard error of `log_evidence_`, in nats. It stems from the sum over symmetric
        copies, which is averaged over draws from the posterior. It is 0 if no copies are summed,
        and nan if the model averages over input transformations.
    log_evidence_side_ : {"exact", "lower"}
        Whether `log_evidence_` equals, in expectation, the Laplace approximation summed over all
        modes that were found and all their symmetric copies, or is a lower bound of it. "exact" for
        up to 50,000 copies (six units in a layer). "lower" for more copies, and if a single mode is
        used without copies. The Laplace approximation itself isn't a bound of the evidence.
    log_evidence_ : float
        Laplace approximation of log p(y | X) at the learned hyperparameters, in nats. It is an
        estimate and not a bound.
    log_evidence_curve_ : ndarray of shape (n_updates,)
        Log evidence at every update of the hyperparameters.
    invariance_ : dict
        Half-width of the uniform distribution of every generator. ``translation_x`` and
        ``translation_y`` are in half-images, ``rotation`` is in radians, and ``scale``,
        ``aspect``, ``scale_x``, ``scale_y`` and ``shear`` are logarithms. For tables they are in
        the columns' units.
    invariance_curve_ : dict
        Half-widths after every block of steps, arrays of shape (n_blocks,).
    augmentation_ : Augmentation
        Transformations of standardised inputs with these half-widths.
    eta_ : ndarray
        Free parameters of the half-widths, which ``augmentation_.transform`` takes.
    n_predict_augmentations_ : int
        Number of transformations that predictions average over. If it is 1, inputs aren't
        transformed.
    invariance_covariance_ : ndarray of shape (k, k)
        Covariance of the generators' coefficients.
    invariance_correlation_ : ndarray of shape (k, k)
        Their correlations, NaN where a half-width is below 0.1 and the generator is negligible.
    invariance_directions_ : ndarray of shape (k, k)
        Uncorrelated combinations of generators (rows), in falling order of the displacement of
        pixels.
    invariance_direction_amplitudes_ : ndarray of shape (k,)
        Root mean squared displacement of each combination, in half-images.
    prior_scale_ : ndarray of shape (n_layers,)
        Prior standard deviation of every covered layer's weights and biases.
    posterior_ : LaplacePosterior
        Normal distribution over the network's P weights, acting on standardised data:
        ``posterior_.loc``, ``.sample(n, generator=...)``, ``.log_prob(theta)``.
    network_ : MLP or ModuleNetwork
        Architecture, with ``forward(theta, x)``.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
    n_iter_ : int
        Number of steps.
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
    LaplaceClassifier : Classification without invariances.

    Notes
    -----
    See `LILARegressor` for costs, additions to the paper and references.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym import LILAClassifier
    >>> from skbayes_sym.models import Rotation2D
    >>> X = np.random.default_rng(0).standard_normal((60, 2))
    >>> y = np.hypot(X[:, 0], X[:, 1]) > 1.2
    >>> clf = LILAClassifier((10,), invariances=[Rotation2D()], max_iter=300, random_state=0)
    >>> bool(clf.fit(X, y).invariance_["rotation"] > 1.0)
    True
    """

    _: KW_ONLY
    prior: PriorParameter = "auto"
    predictive: str | int = "plugin"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_OWN_CONSTRAINTS,
        **CLASSIFIER_CONSTRAINTS,
        "prior": [StrOptions({"auto"}), *CONSTRAINTS["prior"]],
    }

    def predictor(self, like: Tensor) -> LinearisedClassPredictor:
        """Return the predictor on the device of ``like``."""
        return LinearisedClassPredictor(
            self._linearised(like),
            self.fitted_likelihood.to(like),
            self._draws_seed,
            n_draws=int(resolve_auto(self.predictive, 200)),
            integral=self.predictive if isinstance(self.predictive, str) else "sampling",
        )
