"""Scikit-learn estimators of symmetrised variational inference (Gelberg et al. 2024)."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    NOISE_CONSTRAINTS,
    OBJECT_CONSTRAINTS,
    PriorParameter,
    gaussian_noise,
    relative_relevance,
    resolve_symmetry,
)
from skbayes_sym.base.optimizers import Optimizer, VariationalAdam, resolve_adam
from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.base.predictor import Predictor
from skbayes_sym.base.progress import RUN_CONSTRAINTS, STEP_CONSTRAINTS, StepConfig
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import STANDARDIZE, Array
from skbayes_sym.base.scikit_learn import StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import Prior
from skbayes_sym.symmetry.gaps.gap import Gap
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.variational.fit import MeanFieldVI
from skbayes_sym.variational.gaps import GROUP_CONSTRAINTS, Symmetrized, as_symmetrized
from skbayes_sym.variational.mean_field import MeanFieldPredictor, WeightDrawsPredictor
from skbayes_sym.variational.noise import assign_noise_levels

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    **STEP_CONSTRAINTS,
    **OBJECT_CONSTRAINTS,
    "max_iter": [StrOptions({"auto"}), *STEP_CONSTRAINTS["max_iter"]],
    "symmetry": [*GROUP_CONSTRAINTS, Symmetrized],
}


@dataclass(eq=False, repr=False)
class _SymmetrizedVI(BayesianEstimator):
    """Base of both estimators: training method, symmetry group and predictor."""

    hidden_layer_sizes: Any = (50,)
    activation: str = "relu"
    _: KW_ONLY
    network: str | nn.Module | Network = "mlp"
    symmetry: str | SymmetryGroup | Symmetrized | None = "auto"
    likelihood: str | Likelihood = "auto"
    prior: PriorParameter = 1.0
    max_iter: int | str = "auto"
    standardize: bool | str = True
    optimizer: str | Optimizer = "adam"
    n_predict_samples: int = 200
    tol: float | None = 1e-3
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = CONSTRAINTS
    _final_attributes = (
        "elbo_", "elbo_mean_field_", "elbo_std_error_", "elbo_upper_", "saturation_",
        "symmetry_gap_",
    )  # fmt: skip

    posterior_: ClassVar[MeanFieldGaussian]
    _predict_seed_: ClassVar[int]

    feature_importances_ = property(relative_relevance)

    def _symmetry_group(self, network: Network, prior: Prior) -> SymmetryGroup:
        """Group given by ``symmetry``, or that of a gap with its own group."""
        scheme = as_symmetrized(self.symmetry)
        if isinstance(scheme.gap, Gap):
            return resolve_symmetry(scheme.gap.group, network, prior)
        return resolve_symmetry(scheme.group, network, prior)

    def _n_parallel_networks(self, _n_weights: int) -> float:
        """Number of draws per step of a large problem."""
        n_weight_samples = resolve_adam(self.optimizer, VariationalAdam).n_weight_samples
        if not isinstance(n_weight_samples, str):
            return float(n_weight_samples)
        if isinstance(self.network, str | MLP):
            return 1.0
        return 2.0

    @property
    def _continues_fit(self) -> bool:
        """Whether a fit continues from the result of the previous one."""
        adam = resolve_adam(self.optimizer, VariationalAdam)
        return adam.warm_start and self.__sklearn_is_fitted__()

    def _make_method(self) -> MeanFieldVI:
        """Constructor parameters as a training method."""
        adam = resolve_adam(self.optimizer, VariationalAdam)
        if isinstance(self.max_iter, str):
            max_iter = 1000
        else:
            max_iter = self.max_iter
        steps = StepConfig.from_optimizer(adam, max_iter, self.tol)
        start = self.posterior_ if self._continues_fit else None
        return MeanFieldVI(
            as_symmetrized(self.symmetry).gap,
            steps,
            adam.init,
            adam.n_starts,
            start,
            shares_steps=isinstance(self.max_iter, str),
        )

    def predictor(self, like: Tensor) -> Predictor:
        """Predictor that averages over draws, of the hidden units of an MLP or of the weights."""
        n = self.n_predict_samples

        def make_predictor() -> Predictor:
            network = self.network_
            options: dict[str, Any] = {"n_draws": n, "seed": self._predict_seed_, "like": like}
            if isinstance(network, MLP):
                return MeanFieldPredictor.from_posterior(
                    network, self.posterior_, self.fitted_likelihood, **options
                )
            return WeightDrawsPredictor.from_posterior(
                network, self.posterior_, self.fitted_likelihood, **options
            )

        return self._cached(f"{n} draws on {like.device}", make_predictor)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """Subgroup of the network's symmetry group that leaves the prior invariant."""
        prior = self._make_prior(self.network_)
        if as_symmetrized(self.symmetry).group is None:
            return resolve_symmetry("auto", self.network_, prior)
        return self._symmetry_group(self.network_, prior)


@dataclass(eq=False, repr=False)
class SymmetrizedVIRegressor(BayesianRegressorMixin, _SymmetrizedVI):
    r"""Bayesian neural network regression by symmetrised variational inference.

    Fits ``q(w) = N(mu, diag(sigma^2))`` to the posterior of an MLP's weights by maximising the
    symmetrised ELBO

    .. math:: E_q[\log p(y \mid w)] - KL[q \,\|\, p] + I(g; w),

    which is the bound of q averaged over all exchanges (and sign flips) of hidden units (eq. 5 of
    the paper). The mean-field bound falls with each unit that q distinguishes from the others. The
    mutual information I compensates for that, so that fewer units are switched off.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Activation of the hidden layers.
        With an odd activation (tanh, identity) sign flips of hidden units are symmetries, too.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again. Its expected log likelihood is
        estimated by draws of all weights, and `symmetry_of` determines its symmetry group.
    symmetry : str, SymmetryGroup, Symmetrized or None, default="auto"
        Group over which the posterior is averaged: "permutation" of hidden units, "sign_flip" of
        hidden units with an odd activation, or "signed_permutation" for both. "auto" takes all
        symmetries that the activation allows. None is plain mean-field inference. A user-defined
        group of `Units` must leave the prior and the function invariant, which `fit` checks.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs. "auto" is normal noise with standard
        deviation ``noise_std``. "heteroscedastic" is normal noise that depends on the input,
        "student_t" has heavy tails, and "poisson" and "negative_binomial" are for counts. These
        names stand for the objects in `skbayes_sym.models` with their default parameters.
    prior : "learn", float, sequence of float or Prior, default=1.0
        Prior of the weights and biases, in standardised units. A number is the standard deviation
        of independent normals. A sequence has one number per layer or per parameter. An object must
        consist of independent normals. The prior must be the same for all units of a layer. "learn"
        is ``LayerScales()``, which learns one scale for each layer's weights and one for each
        layer's biases. ``ARD()`` also learns one per column of ``X``, see `relevance_`.
    max_iter : int or "auto", default="auto"
        Maximum number of optimiser steps for each start. "auto" is 1000 steps. With minibatches or
        a layer of more than 20 units, "auto" has a single start, which takes the steps of all.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    optimizer : "adam" or Adam, default="adam"
        Adam with the default settings, or an object, such as
        `~skbayes_sym.base.optimizers.VariationalAdam`, which sets the step size, the number of rows
        and draws per step, and the kind and number of starts.
    n_predict_samples : int, default=200
        Number of draws of the hidden units that predictions average. All rows share the draws.
    tol : float or None, default=0.001
        Training stops, in the second half of the steps, when the training ELBO gains less than this
        many nats per row from one tenth of ``max_iter`` to the next. None never stops.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    noise_std : "learn", float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``, one number or one per
        target. "learn" estimates it. Predictions from up to 30 rows then average over its optimal
        variational factor under the half-t prior of `~skbayes_sym.base.noise_levels`.

    Attributes
    ----------
    elbo_ : float
        Symmetrised evidence lower bound in nats, `elbo_mean_field_` + `symmetry_gap_`. It bounds
        log p(y | X) at the learned noise and prior scales.
    elbo_mean_field_ : float
        Evidence lower bound of the mean-field posterior, without the gap.
    elbo_upper_ : float
        `elbo_mean_field_` plus an upper bound on the gap. The exact symmetrised ELBO lies between
        `elbo_` and this value, which is not a bound on the evidence.
    elbo_std_error_ : float
        Monte Carlo standard error of `elbo_`.
    symmetry_gap_ : float
        Mutual information I(g; w) in nats, or a lower bound on it, between 0 and log |G|.
    saturation_ : float
        `symmetry_gap_` / log |G|. Above 0.999 the symmetric modes hardly overlap, and
        symmetrisation only adds the constant log |G|. NaN with ``symmetry=None``.
    elbo_curve_ : ndarray
        Training ELBO, averaged over blocks of steps.
    relevance_ : ndarray of shape (n_features,)
        Prior scale of the weights of each column of ``X``. Exists only with ``ARD()``.
    posterior_ : MeanFieldGaussian
        Base distribution q over the network's P weights, acting on standardised data:
        ``posterior_.loc``, ``.scale``, ``.sample(n, generator=...)``, ``.log_prob(theta)``. The
        flat order is layer by layer, W (out x in, row-major), then b. The symmetrised posterior
        predicts the same.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant. The posterior is
        averaged over it, or over the part selected by ``symmetry``.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise in the units of ``y``, or the scale parameter of another
        likelihood, if it has one.
    likelihood_ : Likelihood
        The likelihood with its fitted parameters, in standardised units. If the parameters were
        sampled, their first axis is that of the draws. Doesn't exist for ``likelihood="auto"``.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_scale_ : ndarray of shape (n_groups,)
        Learned prior standard deviation of each group of weights.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
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
    SymmetrizedVIClassifier : Symmetrised variational inference for classification.
    LayerwiseVIRegressor : Posteriors of wide networks, whose layers depend on each other.
    invariance_gap : Gap of a fitted posterior under the full symmetry group of its network.

    Notes
    -----
    A step costs about twice a step of a deterministic network, plus O(d^2 p + d 2^d) for the exact
    gap of a layer of d units with p weights each, unless the gap is saturated.

    The bounds are evaluated in float64 with fresh draws. The gap is exact for layers of up to 10
    units (up to 20 if ``gap`` is exact there) and estimated by 64 permutations for wider layers.

    The implementation differs from the paper in these points: the signs in Theorem 4.3 and in the
    minibatch ELBO are corrected, permutations are drawn without replacement, and sign flips of odd
    units are included.

    References
    ----------
    Gelberg, van der Ouderaa, van der Wilk & Gal (2024). Variational inference failures under
    model symmetries: permutation invariant posteriors for Bayesian neural networks.
    https://arxiv.org/abs/2408.05496

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import SymmetrizedVIRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = SymmetrizedVIRegressor((5,), "tanh", max_iter=500, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, bool(reg.elbo_ >= reg.elbo_mean_field_)
    ((3,), True)
    """

    _: KW_ONLY
    noise_std: Any = "learn"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        **NOISE_CONSTRAINTS,
        "standardize": STANDARDIZE,
    }

    _noise_levels_: ClassVar[Array | None] = None

    def _fitted_noise_std(self) -> Array:
        """Noise level in the units of ``y``, (T,), or of every draw (S, 1, T) for few rows."""
        levels = self._noise_levels_
        if levels is None:
            return super()._fitted_noise_std()
        return assign_noise_levels(levels, self.n_predict_samples)

    def _default_likelihood(self, data: Training) -> Likelihood:
        """Normal noise, which starts at that of the previous fit if the fit continues."""
        if self._continues_fit:
            previous = np.atleast_1d(self.noise_std_)
        else:
            previous = None
        return gaussian_noise(self.noise_std, data, previous)


@dataclass(eq=False, repr=False)
class SymmetrizedVIClassifier(BayesianClassifierMixin, _SymmetrizedVI):
    r"""Bayesian neural network classification by symmetrised variational inference.

    Fits ``q(w) = N(mu, diag(sigma^2))`` to the posterior of an MLP's weights with a softmax
    likelihood by maximising the symmetrised ELBO, as `SymmetrizedVIRegressor` does.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Activation of the hidden layers.
        With an odd activation (tanh, identity) sign flips of hidden units are symmetries, too.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again. Its expected log likelihood is
        estimated by draws of all weights, and `symmetry_of` determines its symmetry group.
    symmetry : str, SymmetryGroup, Symmetrized or None, default="auto"
        Group over which the posterior is averaged: "permutation" of hidden units, "sign_flip" of
        hidden units with an odd activation, or "signed_permutation" for both. "auto" takes all
        symmetries that the activation allows. None is plain mean-field inference. A user-defined
        group of `Units` must leave the prior and the function invariant, which `fit` checks.
    likelihood : str or Likelihood, default="auto"
        Distribution of a class given the network's outputs. "auto" is ``Categorical()``, the
        softmax of one output per class. "bernoulli" is the logistic function of a single output,
        for two classes.
    prior : "learn", float, sequence of float or Prior, default=1.0
        Prior of the weights and biases, in standardised units. A number is the standard deviation
        of independent normals. A sequence has one number per layer or per parameter. An object must
        consist of independent normals. The prior must be the same for all units of a layer. "learn"
        is ``LayerScales()``, which learns one scale for each layer's weights and one for each
        layer's biases. ``ARD()`` also learns one per column of ``X``, see `relevance_`.
    max_iter : int or "auto", default="auto"
        Maximum number of optimiser steps for each start. "auto" is 1000 steps. With minibatches or
        a layer of more than 20 units, "auto" has a single start, which takes the steps of all.
    standardize : bool, default=True
        Whether to standardise the columns of ``X`` before the fit.
    optimizer : "adam" or Adam, default="adam"
        Adam with the default settings, or an object, such as
        `~skbayes_sym.base.optimizers.VariationalAdam`, which sets the step size, the number of rows
        and draws per step, and the kind and number of starts.
    n_predict_samples : int, default=200
        Number of draws of the hidden units that predictions average. All rows share the draws.
    tol : float or None, default=0.001
        Training stops, in the second half of the steps, when the training ELBO gains less than this
        many nats per row from one tenth of ``max_iter`` to the next. None never stops.
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
    elbo_ : float
        Symmetrised evidence lower bound in nats, `elbo_mean_field_` + `symmetry_gap_`. It bounds
        log p(y | X) at the learned noise and prior scales.
    elbo_mean_field_ : float
        Evidence lower bound of the mean-field posterior, without the gap.
    elbo_upper_ : float
        `elbo_mean_field_` plus an upper bound on the gap. The exact symmetrised ELBO lies between
        `elbo_` and this value, which is not a bound on the evidence.
    elbo_std_error_ : float
        Monte Carlo standard error of `elbo_`.
    symmetry_gap_ : float
        Mutual information I(g; w) in nats, or a lower bound on it, between 0 and log |G|.
    saturation_ : float
        `symmetry_gap_` / log |G|. Above 0.999 the symmetric modes hardly overlap, and
        symmetrisation only adds the constant log |G|. NaN with ``symmetry=None``.
    elbo_curve_ : ndarray
        Training ELBO, averaged over blocks of steps.
    relevance_ : ndarray of shape (n_features,)
        Prior scale of the weights of each column of ``X``. Exists only with ``ARD()``.
    posterior_ : MeanFieldGaussian
        Base distribution q over the network's P weights, acting on standardised data:
        ``posterior_.loc``, ``.scale``, ``.sample(n, generator=...)``, ``.log_prob(theta)``. The
        flat order is layer by layer, W (out x in, row-major), then b. The symmetrised posterior
        predicts the same.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant. The posterior is
        averaged over it, or over the part selected by ``symmetry``.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_scale_ : ndarray of shape (n_groups,)
        Learned prior standard deviation of each group of weights.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
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
    SymmetrizedVIRegressor : Symmetrised variational inference for regression.
    invariance_gap : Gap of a fitted posterior under the full symmetry group of its network.

    Notes
    -----
    `SymmetrizedVIRegressor` describes the costs, the bounds and the differences from the paper, and
    cites the paper.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_sym import SymmetrizedVIClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = SymmetrizedVIClassifier((5,), max_iter=500, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.predict_uncertainty(X[:2]).epistemic.shape
    ((2, 3), (2,))
    """

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Likelihood, which must not have free parameters."""
        likelihood = super()._make_likelihood(data)
        if likelihood.n_params:
            raise ValueError(
                f"likelihood={likelihood!r} has free parameters, which classifiers don't learn: "
                "fix them."
            )
        return likelihood
