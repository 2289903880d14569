"""The predictive distribution of a fitted model, whoever made it and however it is wrapped.

Other packages' models are known by their classes, which are looked up among the modules that are
loaded: none is imported here.
"""

import sys
from collections.abc import Callable, Sequence
from inspect import signature
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from scipy.stats import rv_continuous
from scipy.stats.distributions import rv_frozen
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.estimators.base import BayesianEstimator
from skbayes_sym.estimators.distributions import (
    ClassPredictive,
    Components,
    NormalPredictive,
    PosteriorPredictive,
    PredictiveDistribution,
    TransformedPredictive,
)
from skbayes_sym.estimators.regressor import BayesianRegressorMixin, checked_levels
from skbayes_sym.inference.pooling import mixture
from skbayes_sym.models.predictive_mixtures import NormalMixture, crps
from skbayes_sym.numerics.arguments import check_random_state, seed_of

_MIDDLES = (np.arange(50) + 0.5) / 50.0  # levels of the quantiles that stand for a distribution
_LEAST_GAP = 1e-3  # between them, of the distance of the outer ones


class MixturePredictive(PredictiveDistribution):
    """Mixture of normals of one target, whoever they are from."""

    has_normal_components = True

    def __init__(self, law: NormalMixture) -> None:
        self._law = law

    def __repr__(self) -> str:
        n_components, n_rows, _ = self._law.loc.shape
        return f"<mixture of {n_components:,} normal components at {n_rows:,} rows>"

    def components(self) -> Components:
        law = self._law
        return Components(*(a.numpy() for a in (law.weights, law.loc[..., 0], law.scales[..., 0])))

    def mean(self) -> Array:
        return self._law.mean()[:, 0].numpy()

    def std(self) -> Array:
        return self._law.std()[:, 0].numpy()

    def quantile(self, q: Any) -> Array:
        values = [self._law.quantile(level)[:, 0].numpy() for level in checked_levels(q).tolist()]
        return np.stack(values, axis=-1) if np.ndim(q) else values[0]

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        rng = np.random.default_rng(seed_of(random_state))
        return self._law.sample(n, rng)[..., 0].T.numpy()

    def log_prob(self, y: Any) -> Array:
        return self._law.log_prob(_column(y)).numpy()

    def cdf(self, y: Any) -> Array:
        return self._law.cdf(_column(y))[:, 0].numpy()

    def crps(self, y: Any) -> Array:
        return crps(self._law, _column(y))[:, 0].numpy()


def _column(y: Any) -> torch.Tensor:
    return torch.tensor(np.reshape(y, (-1, 1)), dtype=torch.float64)


class JointPredictive(PredictiveDistribution):
    """Several targets, each predicted by a model of its own: they are independent."""

    def __init__(self, laws: Sequence[Any]) -> None:
        self._laws = laws

    def __repr__(self) -> str:
        return f"<{len(self._laws)} independent targets: {self._laws[0]!r}, ...>"

    def _stacked(self, name: str, *arguments: Any) -> Array:
        return np.stack([methodcaller(name, *arguments)(law) for law in self._laws], axis=1)

    def _observed(self, name: str, y: Any) -> Array:
        pairs = zip(self._laws, np.asarray(y, dtype=float).T, strict=True)
        return np.stack([methodcaller(name, column)(law) for law, column in pairs], axis=1)

    def mean(self) -> Array:
        return self._stacked("mean")

    def std(self) -> Array:
        return self._stacked("std")

    def quantile(self, q: Any) -> Array:
        return self._stacked("quantile", q)

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        rng = check_random_state(random_state)  # targets have different noise
        seeds = rng.randint(2**31 - 1, size=len(self._laws))
        draws = [law.sample(n, int(seed)) for law, seed in zip(self._laws, seeds, strict=True)]
        return np.stack(draws, axis=1)

    def log_prob(self, y: Any) -> Array:
        return np.asarray(self._observed("log_prob", y).sum(axis=1))

    def cdf(self, y: Any) -> Array:
        return self._observed("cdf", y)

    def crps(self, y: Any) -> Array:
        return self._observed("crps", y)


class OtherPredictive(PredictiveDistribution):
    """Distribution of another package, asked by scipy's names or skpro's.

    ``shape``: in which it takes and gives a value of every row.
    """

    def __init__(self, law: Any, log_density: str, shape: tuple[int, ...]) -> None:
        self._law, self._log_density, self._shape = law, log_density, shape

    def __repr__(self) -> str:
        return f"<{type(self._law).__name__} of another package at {self._shape[0]:,} rows>"

    def _asked(self, name: str, *values: Any) -> Array:
        shaped = [np.broadcast_to(v, self._shape).astype(float) for v in values]
        answer = np.asarray(methodcaller(name, *shaped)(self._law), dtype=float)
        return answer.reshape(self._shape[:1] if self._shape[1:] == (1,) else self._shape)

    def mean(self) -> Array:
        return self._asked("mean")

    def std(self) -> Array:
        return np.sqrt(self._asked("var"))

    def quantile(self, q: Any) -> Array:
        values = [self._asked("ppf", level) for level in checked_levels(q)]
        return np.stack(values, axis=-1) if np.ndim(q) else values[0]

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        levels = check_random_state(random_state).uniform(size=(n, *self._shape))
        return np.stack([self._asked("ppf", level) for level in levels], axis=-1)

    def log_prob(self, y: Any) -> Array:
        values = self._asked(self._log_density, np.reshape(y, self._shape))
        return np.asarray(values.reshape(len(values), -1).sum(axis=1))

    def cdf(self, y: Any) -> Array:
        return self._asked("cdf", np.reshape(y, self._shape))


def predictive(model: Any, X: Any) -> Any:
    """The predictive distribution of a fitted model at new rows.

    Parameters
    ----------
    model : fitted estimator
        A regressor or classifier of this package; a `Pipeline`, a search or a
        `TransformedTargetRegressor` around one, or a voting, bagging or multi-output regressor; any
        other scikit-learn regressor that takes ``return_std`` (its targets are taken for normal) or
        classifier with ``predict_proba``; skpro's regressors, NGBoost's and quantile-forest's.
    X : array-like of shape (n_samples, n_features)
        Rows as the model takes them: a pipeline's own steps are applied. Of a matrix factorisation
        a list of entries, with or without values.

    Returns
    -------
    PredictiveDistribution or ClassPredictive
        Of regressors: ``.mean() .std() .var() .quantile(q) .interval(coverage)
        .sample(n, random_state) .functions(n, random_state) .log_prob(y) .cdf(y) .crps(y)
        .uncertainty() .components()``, in the units of ``y``. Of classifiers:
        ``.classes .proba() .functions(n) .log_prob(y) .uncertainty()``.

    Raises
    ------
    NotFittedError
        If the model isn't fitted.
    TypeError
        If it predicts no distribution.

    Notes
    -----
    Every question runs the model once; nothing is computed before, but for other packages' models,
    and for ensembles, whose mixture is of all their parts' components. A part without normal
    components, or a quantile forest, is a mixture of 50 narrow normals at its quantiles.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skbayes_sym import predictive
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), BayesianRidge()).fit(X[:400], y[:400])
    >>> law = predictive(model, X[400:])
    >>> law
    <independent normals at 42 rows>
    >>> law.interval(0.9).shape, round(float(law.crps(y[400:]).mean()), 1)
    ((42, 2), 24.1)
    """
    _require_fitted(model)
    inner, prepare = innermost(model)
    _require_fitted(inner)
    X = prepare(X)
    if (kind := _kind(inner)) is not None:
        return LAWS[kind](inner, X)
    law = inner._predictive(X) if isinstance(inner, BayesianEstimator) else None
    if law is not None:
        return law
    if _is_transformed(inner):
        n_targets = 1 if inner._training_dim == 1 else inner.transformer_.n_features_in_
        law = predictive(inner.regressor_, X)
        return TransformedPredictive(law, inner.transformer_, n_targets, inner._training_dim == 1)
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
    inner = innermost(model).model
    if (kind := _kind(inner)) is not None:
        parts = inner.estimators_ if kind[0].startswith("sklearn.") else ()
        return all(predicts_distribution(part) for part in parts)
    if _is_transformed(inner):
        return predicts_distribution(inner.regressor_)
    return _takes_std(inner) or (is_classifier(inner) and hasattr(inner, "predict_proba"))


def predicts_numbers(model: Any) -> bool:
    """Whether an estimator, fitted or not, is a regressor: those that don't say so are known."""
    return _kind(model) is not None or bool(is_regressor(model))


def _require_fitted(model: Any) -> None:
    if _kind(model) != ("skpro.regression.base", "BaseProbaRegressor"):
        check_is_fitted(model)
    elif not model.is_fitted:
        raise NotFittedError(f"This {type(model).__name__} isn't fitted yet: call fit first.")


def _takes_std(model: Any) -> bool:
    return "return_std" in signature(getattr(model, "predict", lambda: None)).parameters


def _is_transformed(model: BaseEstimator) -> bool:
    """Whether it is a fitted `TransformedTargetRegressor`, whose module is slow to import."""
    return isinstance(model, BaseEstimator) and {"transformer_", "regressor_"} <= vars(model).keys()


def as_mixture(law: PredictiveDistribution) -> NormalMixture:
    """A distribution of one target as a mixture: of its components, or narrow ones at quantiles."""
    if not law.has_normal_components:
        return _at_quantiles(law.quantile(_MIDDLES))
    weights, *both = law.components()
    with np.errstate(divide="ignore"):
        log_weights = torch.as_tensor(np.log(weights))
    loc, scale = (torch.as_tensor(a.copy()).reshape(len(a), -1, 1) for a in both)
    return NormalMixture(loc, torch.zeros_like(loc), scale.square(), log_weights)


def _at_quantiles(quantiles: Array) -> NormalMixture:
    """Normals at the quantiles of the middle levels (N, K), each as wide as the step to the next.

    Where quantiles coincide, a thousandth of the outer ones' mean distance.
    """
    loc = torch.as_tensor(np.ascontiguousarray(quantiles.T, dtype=np.float64)).unsqueeze(2)
    least = _LEAST_GAP * float((loc[-1] - loc[0]).mean()) or np.finfo(np.float64).tiny ** 0.5
    width = torch.as_tensor(np.gradient(loc.numpy(), axis=0)).clamp_min(least)
    return NormalMixture(loc, torch.zeros_like(loc), width.square())


def _pooled(laws: Sequence[Any], weights: Sequence[float]) -> MixturePredictive:
    return MixturePredictive(mixture([as_mixture(law) for law in laws], weights))


def _of_voting(model: Any, X: Any) -> MixturePredictive:
    laws = [predictive(m, X) for m in model.estimators_]
    weights = [1.0] * len(model.estimators) if model.weights is None else model.weights
    pairs = zip(model.estimators, weights, strict=True)
    return _pooled(laws, [float(w) for (_, m), w in pairs if m != "drop"])


def _of_bagging(model: Any, X: Any) -> MixturePredictive:
    rows, pairs = np.asarray(X), zip(model.estimators_, model.estimators_features_, strict=True)
    laws = [predictive(m, rows[:, columns]) for m, columns in pairs]
    return _pooled(laws, [1.0] * len(laws))


def _of_skpro(model: Any, X: Any) -> Any:
    law = model.predict_proba(X)
    if _is_of(law, "skbayes_sym.estimators.skpro", "NormalMixtures"):
        return MixturePredictive(law.mixture)
    if _is_of(law, "skpro.distributions.normal", "Normal") and law.shape[1] == 1:
        return NormalPredictive(*(np.asarray(a)[:, 0] for a in (law.mean(), law.var() ** 0.5)))
    return OtherPredictive(law, "log_pdf", law.shape)


def _of_ngboost(model: Any, X: Any) -> Any:
    law = vars(model.pred_dist(X)).get("dist")
    if not isinstance(law, rv_frozen) or not isinstance(law.dist, rv_continuous):
        raise TypeError(f"{type(model).__name__} predicts no density of numbers by {law!r}.")
    if law.dist.name == "norm":
        return NormalPredictive(law.mean(), law.std())
    return OtherPredictive(law, "logpdf", law.mean().shape)


def _of_quantiles(model: Any, X: Any) -> MixturePredictive:
    return MixturePredictive(_at_quantiles(model.predict(X, quantiles=_MIDDLES.tolist())))


# By module and class; those derived from it count.
LAWS: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    ("sklearn.ensemble", "VotingRegressor"): _of_voting,
    ("sklearn.ensemble", "BaggingRegressor"): _of_bagging,
    ("sklearn.multioutput", "MultiOutputRegressor"): lambda model, X: JointPredictive(
        [predictive(m, X) for m in model.estimators_]
    ),
    ("skpro.regression.base", "BaseProbaRegressor"): _of_skpro,
    ("ngboost", "NGBRegressor"): _of_ngboost,
    ("quantile_forest", "RandomForestQuantileRegressor"): _of_quantiles,
    ("quantile_forest", "ExtraTreesQuantileRegressor"): _of_quantiles,
}


def _kind(model: Any) -> tuple[str, str] | None:
    """Key of the law of a model that has one of its own, where its module is loaded."""
    return next((key for key in LAWS if _is_of(model, *key)), None)


def _is_of(value: Any, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(value, vars(sys.modules[module]).get(name, ()))
