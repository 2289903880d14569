"""`predictive(model, X)`: predictive distributions of any fitted model.

Models of other packages are recognised by their classes. These are looked up among the modules that
are loaded already, so that no other package is imported here.
"""

import sys
from collections.abc import Callable, Sequence
from inspect import signature
from math import log
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from scipy.stats import rv_continuous
from scipy.stats.distributions import rv_frozen
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.distributions import (
    ClassPredictive,
    NormalPredictive,
    PosteriorPredictive,
    PredictiveDistribution,
    TensorPredictive,
)
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.input_validation import warn_reordered_rows
from skbayes_sym.base.pipelines import unwrap
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import Array
from skbayes_sym.base.stacking_weights import mixture
from skbayes_sym.base.transformed_distribution import transformed_predictive
from skbayes_sym.models.predictive_mixtures import (
    NormalMixture,
    TargetPredictive,
    Uncertainty,
    snap_to_counts,
)
from skbayes_sym.numerics.arguments import check_random_state
from skbayes_sym.numerics.tables import row_labels

_LEVELS = (np.arange(50) + 0.5) / 50.0  # of the quantiles that represent a distribution
_MIN_RELATIVE_GAP = 1e-3  # between quantiles, relative to the distance of the outermost ones


class ForeignTargets(TargetPredictive):
    """Distribution of ``location + scale * target`` for any predictive distribution of one target.

    Parameters
    ----------
    distribution : PredictiveDistribution
        Distribution of one target.
    location, scale : float, default=0.0, 1.0
        Units of the new target.
    """

    log_weights = None

    def __init__(
        self, distribution: PredictiveDistribution, location: float = 0.0, scale: float = 1.0
    ) -> None:
        self.distribution = distribution
        self.location = location
        self.scale = scale

    def __repr__(self) -> str:
        return repr(self.distribution)

    @property
    def is_discrete(self) -> bool:
        """Whether targets have probabilities instead of densities."""
        return self.distribution.is_discrete

    @property
    def _like(self) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.distribution)

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return 1

    def take(self, rows: Array) -> "ForeignTargets":
        """Return the distribution at positions of rows."""
        return ForeignTargets(self.distribution[rows], self.location, self.scale)

    def rescale(self, mean: Tensor, scale: Tensor) -> "ForeignTargets":
        """Return the distribution of ``mean + scale * target``."""
        units = float(mean) + float(scale) * self.location, float(scale) * self.scale
        return ForeignTargets(self.distribution, *(snap_to_counts(*units, self.is_discrete)))

    def multiply_rate(self, exposure: Tensor) -> "ForeignTargets":
        """Return the distribution of counts whose mean is ``exposure`` (N, 1) times as large."""
        counts = self.distribution.multiply_rate(exposure.cpu().numpy()[:, 0])
        return ForeignTargets(counts, self.location, self.scale)

    @property
    def units(self) -> tuple[float, float]:
        """Location and scale of the target."""
        return self.location, self.scale

    def _column(self, values: Array) -> Tensor:
        return torch.as_tensor(np.array(values, dtype=float)).reshape(-1, 1)

    def _outward(self, values: Array) -> Tensor:
        return self.location + self.scale * self._column(values)

    def _inward(self, y: Tensor) -> Array:
        values = (y.double().cpu().numpy() - self.location) / self.scale
        if self.is_discrete:  # rescaled counts differ from integers by rounding errors
            count = np.rint(values)
            values = np.where(np.abs(values - count) < 1e-7 * (1.0 + np.abs(count)), count, values)
        return values

    @property
    def means(self) -> Tensor:
        """Means of the components, (S, N, T)."""
        return self.mean().unsqueeze(0)

    @property
    def scales(self) -> Tensor:
        """Standard deviations of the components, (S, N, T)."""
        return self.std().unsqueeze(0)

    def mean(self) -> Tensor:
        """Return the expected target."""
        return self._outward(self.distribution.mean())

    def std(self) -> Tensor:
        """Return the standard deviation, observation noise included."""
        return self.scale * self._column(self.distribution.std())

    def uncertainty(self) -> Uncertainty:
        """Return variances (N, 1). All is noise if the distribution doesn't separate sources."""
        try:
            parts = self.distribution.uncertainty()
        except TypeError:
            total = self.std().square()
            return Uncertainty(total, torch.zeros_like(total), total)
        square = self.scale**2
        variances = (parts["total"], parts["epistemic"], parts["aleatoric"])
        return Uncertainty(*(square * self._column(a) for a in variances))

    def log_prob(self, y: Tensor) -> Tensor:
        """Return the log density of targets (N, T), (N,)."""
        values = torch.as_tensor(self.distribution.log_prob(self._inward(y)[:, 0]))
        if self.is_discrete:
            return values
        return values - log(self.scale)

    def cdf(self, y: Tensor) -> Tensor:
        """Return the probability of a target at or below ``y``, (N, T)."""
        return self._column(self.distribution.cdf(self._inward(y)[:, 0]))

    def quantile(self, probability: float) -> Tensor:
        """Return the quantiles at one level, (N, T)."""
        return self._outward(self.distribution.quantile(probability))

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Draw targets, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        seed = int(rng.integers(2**31))
        drawn = np.moveaxis(self.distribution.sample(n, seed), -1, 0)
        return self._outward(drawn).reshape(n, -1, 1)

    def functions(self, n: int, seed: int) -> Tensor:
        """Draw functions (n, N, 1). All are the mean if rows have no joint distribution."""
        try:
            drawn = np.moveaxis(self.distribution.functions(n, seed), -1, 0)
        except TypeError:
            return self.mean().expand(n, -1, -1)
        return self._outward(drawn).reshape(n, -1, 1)


class JointPredictive(PredictiveDistribution):
    """Independent targets, each with its own predictive distribution.

    Parameters
    ----------
    distributions : sequence of PredictiveDistribution
        One distribution of shape (n_samples,) per target.
    """

    def __init__(self, distributions: Sequence[Any]) -> None:
        self._distributions = distributions

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_samples,)`` or ``(n_samples, n_targets)``."""
        return len(self._distributions[0]), len(self._distributions)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether targets have probabilities instead of densities."""
        return any(distribution.is_discrete for distribution in self._distributions)

    def take_rows(self, rows: Array) -> "JointPredictive":
        """Return the distribution at positions of rows."""
        return JointPredictive([distribution[rows] for distribution in self._distributions])

    def __repr__(self) -> str:
        return f"<{len(self._distributions)} independent targets: {self._distributions[0]!r}, ...>"

    def _stacked(self, name: str, *arguments: Any) -> Array:
        call = methodcaller(name, *arguments)
        return np.stack([call(distribution) for distribution in self._distributions], axis=1)

    def _evaluate_columns(self, name: str, y: Array) -> list[Array]:
        columns = np.moveaxis(y, -1, 0)[..., None]
        pairs = zip(self._distributions, columns, strict=True)
        return [methodcaller(name, column)(distribution) for distribution, column in pairs]

    def mean(self) -> Array:
        """Return the expected target."""
        return self._stacked("mean")

    def std(self) -> Array:
        """Return the standard deviation, observation noise included."""
        return self._stacked("std")

    def quantile_grid(self, levels: Array) -> Array:
        """Return the quantiles at levels (Q,), (*shape, Q)."""
        return self._stacked("quantile", levels)

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw targets, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        rng = check_random_state(random_state)  # one seed per target: their noise is independent
        seeds = rng.randint(2**31 - 1, size=len(self._distributions))
        draws = [
            distribution.sample(n, int(seed))
            for distribution, seed in zip(self._distributions, seeds, strict=True)
        ]
        return np.stack(draws, axis=1)

    def log_prob_grid(self, y: Array) -> Array:
        """Return the log density of a grid, (G, N)."""
        return np.asarray(np.sum(self._evaluate_columns("log_prob_grid", y), axis=0))

    def cdf_grid(self, y: Array) -> Array:
        """Return the distribution function on a grid, (G, N, T)."""
        return np.concatenate(self._evaluate_columns("cdf_grid", y), axis=-1)

    def crps_grid(self, y: Array) -> Array:
        """Return the CRPS on a grid, (G, N, T)."""
        return np.concatenate(self._evaluate_columns("crps_grid", y), axis=-1)


class OtherPredictive(PredictiveDistribution):
    """Distribution object of SciPy or skpro.

    Parameters
    ----------
    distribution : object
        With methods ``mean``, ``var``, ``cdf`` and ``ppf``.
    log_density : str
        Name of the method for the log density, or for the log probability of a discrete target.
    shape : tuple of int
        Shape of its arguments and results for one value per row.
    take : callable
        ``take(distribution, rows)`` returns the distribution at a subset of the rows.
    is_discrete : bool, default=False
        Whether targets have probabilities instead of densities.
    """

    def __init__(
        self, distribution: Any, log_density: str, shape: tuple[int, ...],
        take: Callable[[Any, Array], Any], *, is_discrete: bool = False,
    ) -> None:  # fmt: skip
        self._distribution = distribution
        self._log_density = log_density
        self._shape = shape
        self._take_rows = take
        self.is_discrete = is_discrete

    def __repr__(self) -> str:
        return (
            f"<{type(self._distribution).__name__} of another package at {self._shape[0]:,} rows>"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_samples,)`` or ``(n_samples, n_targets)``."""
        if self._shape[1:] == (1,):
            return self._shape[:1]
        return self._shape

    def take_rows(self, rows: Array) -> "OtherPredictive":
        """Return the distribution at positions of rows."""
        return OtherPredictive(
            self._take_rows(self._distribution, rows), self._log_density, (len(rows),
            *self._shape[1:]), self._take_rows, is_discrete=self.is_discrete,
        )  # fmt: skip

    def _evaluate(self, name: str, *values: Any) -> Array:
        arguments = [np.broadcast_to(value, self._shape).astype(float) for value in values]
        result = np.asarray(methodcaller(name, *arguments)(self._distribution), dtype=float)
        return result.reshape(self.shape)

    def _evaluate_grid(self, name: str, y: Array) -> Array:
        """Call a method for each element of a grid (G, N, T)."""
        if len(self._shape) == 1:  # SciPy's methods broadcast
            result = np.asarray(methodcaller(name, y[..., 0])(self._distribution), dtype=float)
            return result[..., None]
        return np.reshape([self._evaluate(name, targets) for targets in y], y.shape)

    def mean(self) -> Array:
        """Return the expected target."""
        return self._evaluate("mean")

    def std(self) -> Array:
        """Return the standard deviation, observation noise included."""
        return np.sqrt(self._evaluate("var"))

    def quantile_grid(self, levels: Array) -> Array:
        """Return the quantiles at levels (Q,), (*shape, Q)."""
        return np.stack([self._evaluate("ppf", level) for level in levels], axis=-1)

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw targets, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        levels = check_random_state(random_state).uniform(size=(n, *self._shape))
        return np.stack([self._evaluate("ppf", level) for level in levels], axis=-1)

    def log_prob_grid(self, y: Array) -> Array:
        """Return the log density of a grid, (G, N)."""
        return np.asarray(self._evaluate_grid(self._log_density, y).sum(axis=-1))

    def cdf_grid(self, y: Array) -> Array:
        """Return the distribution function on a grid, (G, N, T)."""
        return self._evaluate_grid("cdf", y)


def predictive(model: Any, X: Any, *, noise_std: Any = None, exposure: Any = None) -> Any:
    """Return the predictive distribution of a fitted model at new rows.

    Parameters
    ----------
    model : fitted estimator
        One of the following.

        * A regressor or classifier of this package.
        * A `Pipeline`, a search or a `TransformedTargetRegressor` around one, or a voting, bagging
          or multi-output regressor of several.
        * Any other scikit-learn regressor whose ``predict`` takes ``return_std`` (its targets are
          assumed to be normal), or classifier with ``predict_proba``.
        * A regressor of skpro, NGBoost, quantile-forest, TabICL or TabPFN.
    X : array-like of shape (n_samples, n_features)
        Rows in the form in which the model's ``predict`` takes them. The steps of a pipeline are
        applied. For a matrix factorisation, a list of entries with or without values.
    noise_std : array-like of shape (n_samples,) or (n_samples, n_targets), optional
        Known standard deviations of further errors of new targets, in the units of ``y``. They are
        added to the learned noise, as in fits with ``noise_std``. By default there are none. The
        model must predict a mixture of normals. Draws of different rows are then independent.
    exposure : array-like of shape (n_samples,) or (n_samples, n_targets), optional
        Exposures of new counts, such as lengths of time. Their means are ``exposure`` times as
        large as those of the model, as in fits with ``exposure``. By default they are 1. The model
        must predict Poisson or negative binomial counts.

    Returns
    -------
    PredictiveDistribution or ClassPredictive
        For regressors a distribution in the units of ``y`` with the methods ``mean``, ``std``,
        ``var``, ``quantile``, ``interval``, ``sample``, ``functions``, ``log_prob``, ``cdf``,
        ``crps``, ``uncertainty`` and ``components``. For classifiers one with ``classes``,
        ``proba``, ``functions``, ``log_prob`` and ``uncertainty``.

    Raises
    ------
    NotFittedError
        If the model isn't fitted.
    TypeError
        If the model predicts no distribution, or one to which ``noise_std`` or ``exposure`` don't
        apply.

    Notes
    -----
    Each method call evaluates the model once. Models of other packages and ensembles are evaluated
    immediately. The distribution of an ensemble is the mixture of all components of its members. A
    member without normal components, a quantile forest, TabICL and TabPFN are represented by 50
    narrow normal distributions at their quantiles.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skbayes_sym import predictive
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), BayesianRidge()).fit(X[:400], y[:400])
    >>> distribution = predictive(model, X[400:])
    >>> distribution
    <independent normals at 42 rows>
    >>> distribution.interval(0.9).shape, round(float(distribution.crps(y[400:]).mean()), 1)
    ((42, 2), 24.1)
    """
    warn_reordered_rows(X, noise_std=noise_std, exposure=exposure)
    distribution = _predict_distribution(model, X)
    if noise_std is None and exposure is None:
        distribution.row_labels = row_labels(X)
        return distribution
    if not isinstance(distribution, PredictiveDistribution):
        raise TypeError(
            "noise_std and exposure are for regressors: classes have no errors of known size."
        )
    if exposure is not None:
        distribution = distribution.multiply_rate(exposure)
    if noise_std is not None:
        distribution = distribution.add_known_errors(noise_std)
    distribution.row_labels = row_labels(X)
    return distribution


def _predict_distribution(model: Any, X: Any) -> Any:
    """Return the predictive distribution of a fitted model at new rows, see `predictive`."""
    _require_model(model)
    _require_fitted(model)
    inner, prepare = unwrap(model)
    _require_fitted(inner)
    X = prepare(X)
    if (kind := _kind(inner)) is not None:
        return _PREDICT[kind](inner, X)
    if isinstance(inner, BayesianEstimator):
        distribution = inner._predictive(X)  # noqa: SLF001 (a hook of this package's estimators)
        if distribution is not None:
            return distribution
    if _is_transformed(inner):
        is_flat = inner._training_dim == 1  # noqa: SLF001 (scikit-learn has no public name)
        if is_flat:
            n_targets = 1
        else:
            n_targets = inner.transformer_.n_features_in_
        distribution = predictive(inner.regressor_, X)
        return transformed_predictive(distribution, inner.transformer_, n_targets, is_flat=is_flat)
    if is_classifier(inner) and hasattr(inner, "predict_proba"):
        return ClassPredictive(inner, X)
    if isinstance(inner, BayesianRegressorMixin):
        return PosteriorPredictive(inner, X)
    if _takes_std(inner):
        return NormalPredictive(*inner.predict(X, return_std=True))
    raise TypeError(
        f"{type(inner).__name__} predicts no distribution: it is no model of this package and has "
        "no predict(X, return_std=True) and no predict_proba."
    )


def predicts_distribution(model: Any) -> bool:
    """Whether `predictive` takes a fitted model."""
    inner = unwrap(model).model
    if (kind := _kind(inner)) is not None:
        if kind[0].startswith("sklearn."):
            parts = inner.estimators_
        else:
            parts = ()
        return all(predicts_distribution(part) for part in parts)
    if _is_transformed(inner):
        return predicts_distribution(inner.regressor_)
    return _takes_std(inner) or (is_classifier(inner) and hasattr(inner, "predict_proba"))


def is_regression_model(model: Any) -> bool:
    """Whether an estimator, fitted or not, is a regressor, also of the packages known here."""
    return _kind(model) is not None or bool(is_regressor(model))


def predicts_counts(model: Any) -> bool:
    """Whether an estimator predicts counts: one of this package, or a pipeline or stack around it.

    It need not be fitted.
    """
    if isinstance(model, BayesianRegressorMixin):
        likelihood: Any = model.resolved_likelihood
        return bool(getattr(likelihood, "is_discrete", False))
    if isinstance(model, Pipeline):
        return predicts_counts(model.steps[-1][1])
    parts = [getattr(model, name, None) for name in ("estimator", "regressor")]
    estimators = getattr(model, "estimators", None)
    if isinstance(estimators, list):
        parts += [pair[1] for pair in estimators if isinstance(pair, tuple) and len(pair) == 2]
    return any(predicts_counts(part) for part in parts if isinstance(part, BaseEstimator))


def _require_model(model: Any) -> None:
    """Raise a TypeError unless a value is an estimator."""
    if isinstance(model, type):
        raise TypeError(
            f"predictive(model, X) takes a fitted model, got the class {model.__name__}: create "
            f"an instance and fit it, {model.__name__}().fit(X, y)."
        )
    if not hasattr(model, "fit"):
        raise TypeError(
            f"predictive(model, X) takes a fitted model first and rows second, got a "
            f"{type(model).__name__} as model."
        )


def _require_fitted(model: Any) -> None:
    if _kind(model) != ("skpro.regression.base", "BaseProbaRegressor"):
        check_is_fitted(model)
    elif not model.is_fitted:
        raise NotFittedError(f"This {type(model).__name__} isn't fitted yet: call fit first.")


def _takes_std(model: Any) -> bool:
    """Whether ``predict`` returns standard deviations. `DummyRegressor`'s are always zero."""
    if _is_instance_of(model, "sklearn.dummy", "DummyRegressor"):
        return False
    return "return_std" in signature(getattr(model, "predict", lambda: None)).parameters


def _is_transformed(model: BaseEstimator) -> bool:
    """Whether a model is a fitted `TransformedTargetRegressor`. Its module is slow to import."""
    return isinstance(model, BaseEstimator) and {"transformer_", "regressor_"} <= vars(model).keys()


def as_targets(distribution: PredictiveDistribution) -> TargetPredictive:
    """Return a distribution of one target in torch: its normal components, or a wrapper.

    Raises
    ------
    ValueError
        If the distribution has several targets.
    """
    if distribution.shape[1:] not in {(), (1,)}:
        raise ValueError(
            f"{distribution!r} has several targets, (n_samples, n_targets) = "
            f"{distribution.shape}: mixtures take models of one target, fitted to y of shape "
            "(n_samples,)."
        )
    if not distribution.has_normal_components:
        return ForeignTargets(distribution.evaluated())
    components = distribution.components()
    with np.errstate(divide="ignore"):
        log_weights = torch.as_tensor(np.log(components.weights))
    shape = (len(components.weights), -1, 1)
    loc = torch.as_tensor(components.loc.copy()).reshape(shape)
    scale = torch.as_tensor(components.scale.copy()).reshape(shape)
    return NormalMixture(loc, torch.zeros_like(loc), scale.square(), log_weights)


def _at_quantiles(quantiles: Array) -> NormalMixture:
    """Return a mixture of normals at quantiles (N, K), as wide as the distance of their neighbours.

    If quantiles coincide, the width is a thousandth of the mean distance of the outermost ones.
    """
    loc = torch.as_tensor(np.ascontiguousarray(quantiles.T, dtype=np.float64)).unsqueeze(2)
    min_width = (
        _MIN_RELATIVE_GAP * float((loc[-1] - loc[0]).mean()) or np.finfo(np.float64).tiny ** 0.5
    )
    width = torch.as_tensor(np.gradient(loc.numpy(), axis=0)).clamp_min(min_width)
    return NormalMixture(loc, torch.zeros_like(loc), width.square())


def _pooled(distributions: Sequence[Any], weights: Sequence[float]) -> TensorPredictive:
    targets: list[Any] = [as_targets(distribution) for distribution in distributions]
    return TensorPredictive([mixture(targets, weights)])


def _predict_voting(model: Any, X: Any) -> TensorPredictive:
    distributions = [predictive(m, X) for m in model.estimators_]
    if model.weights is None:
        weights = [1.0] * len(model.estimators)
    else:
        weights = model.weights
    pairs = zip(model.estimators, weights, strict=True)
    return _pooled(distributions, [float(w) for (_, m), w in pairs if m != "drop"])


def _predict_bagging(model: Any, X: Any) -> TensorPredictive:
    """Average the distributions of the bagged models, each of its own columns."""
    rows = np.asarray(X)
    pairs = zip(model.estimators_, model.estimators_features_, strict=True)
    distributions = [predictive(m, rows[:, columns]) for m, columns in pairs]
    return _pooled(distributions, [1.0] * len(distributions))


def _predict_skpro(model: Any, X: Any) -> Any:
    """Predict by skpro: its normals and our mixtures as such, others by their densities."""
    distribution = model.predict_proba(X)
    if _is_instance_of(distribution, "skbayes_sym.skpro", "NormalMixtures"):
        return TensorPredictive([distribution.mixture])
    is_normal = _is_instance_of(distribution, "skpro.distributions.normal", "Normal")
    if is_normal and distribution.shape[1] == 1:
        mean = np.asarray(distribution.mean())[:, 0]
        std = np.asarray(distribution.var())[:, 0] ** 0.5
        return NormalPredictive(mean, std)
    is_discrete = distribution.get_tag("distr:measuretype", "continuous") == "discrete"
    name = "log_pmf" if is_discrete else "log_pdf"
    return OtherPredictive(
        distribution,
        name,
        distribution.shape,
        lambda distribution, rows: distribution.iloc[rows],
        is_discrete=is_discrete,
    )


def _predict_ngboost(model: Any, X: Any) -> Any:
    """Predict by NGBoost, whose distributions have a frozen one of SciPy as ``dist``."""
    # NGBoost looks for missing attributes in ``dist``, so that `getattr` could recurse.
    distribution = vars(model.pred_dist(X)).get("dist")
    if not isinstance(distribution, rv_frozen):
        raise TypeError(
            f"{type(model).__name__} predicts no density of numbers by {distribution!r}."
        )
    if distribution.dist.name == "norm":
        return NormalPredictive(distribution.mean(), distribution.std())
    is_discrete = not isinstance(distribution.dist, rv_continuous)
    name = "logpmf" if is_discrete else "logpdf"
    shape = np.shape(distribution.mean())
    return OtherPredictive(distribution, name, shape, scipy_rows, is_discrete=is_discrete)


def scipy_rows(distribution: rv_frozen, rows: Array) -> rv_frozen:
    """Return a frozen SciPy distribution at a subset of the rows."""
    n_rows = np.shape(distribution.mean())
    args = [np.broadcast_to(a, n_rows)[rows] for a in distribution.args]
    keywords = {key: np.broadcast_to(a, n_rows)[rows] for key, a in distribution.kwds.items()}
    return distribution.dist(*args, **keywords)


def _predict_quantile_models(model: Any, X: Any) -> TensorPredictive:
    """Predict by the quantiles of a forest of quantile-forest."""
    return TensorPredictive([_at_quantiles(model.predict(X, quantiles=_LEVELS.tolist()))])


def _predict_tabicl(model: Any, X: Any) -> TensorPredictive:
    """Predict by the quantiles of TabICL, sorted, since they can cross."""
    quantiles = model.predict(X, output_type="quantiles", alphas=_LEVELS.tolist())
    return TensorPredictive([_at_quantiles(np.sort(quantiles, axis=1))])


def _predict_tabpfn(model: Any, X: Any) -> TensorPredictive:
    """Predict by the quantiles of TabPFN, which come as one array per level."""
    quantiles = model.predict(X, output_type="quantiles", quantiles=_LEVELS.tolist())
    return TensorPredictive([_at_quantiles(np.stack(quantiles, axis=1))])


# Models of other packages by module and class. Derived classes count as well.
_PREDICT: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    ("sklearn.ensemble", "VotingRegressor"): _predict_voting,
    ("sklearn.ensemble", "BaggingRegressor"): _predict_bagging,
    ("sklearn.multioutput", "MultiOutputRegressor"): lambda model, X: JointPredictive(
        [predictive(m, X) for m in model.estimators_]
    ),
    ("skpro.regression.base", "BaseProbaRegressor"): _predict_skpro,
    ("ngboost", "NGBRegressor"): _predict_ngboost,
    ("quantile_forest", "RandomForestQuantileRegressor"): _predict_quantile_models,
    ("quantile_forest", "ExtraTreesQuantileRegressor"): _predict_quantile_models,
    ("tabicl", "TabICLRegressor"): _predict_tabicl,
    ("tabpfn", "TabPFNRegressor"): _predict_tabpfn,
}


def _kind(model: Any) -> tuple[str, str] | None:
    """Return the key of `_PREDICT` for a model of another package, or None."""
    return next((key for key in _PREDICT if _is_instance_of(model, *key)), None)


def _is_instance_of(value: Any, module: str, name: str) -> bool:
    """Whether a value is an instance of a class whose module may not be loaded."""
    return module in sys.modules and isinstance(value, vars(sys.modules[module]).get(name, ()))
