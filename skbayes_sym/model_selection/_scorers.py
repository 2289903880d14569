"""Scores for ``scoring=`` that know what a posterior is worth, and a split for those of the fit."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin

from skbayes_sym.base.distributions import PredictiveDistribution, observed_targets
from skbayes_sym.base.pipelines import fitted_attribute, unwrap
from skbayes_sym.base.predictive import predictive, predicts_distribution
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import BaseScorer, check_sample_weight, num_samples
from skbayes_sym.numerics.arguments import is_number, short_repr


class ReportedEvidence(NamedTuple):
    """Log evidence of a fit as the model reports it, nats."""

    value: float
    std_error: float  # Monte Carlo; nan if the model reports none
    source: str  # the attribute it comes from
    side: str  # "exact", "estimate" or "lower" (a lower bound)


def reported_evidence(estimator: BaseEstimator) -> ReportedEvidence | None:
    """``log_evidence_`` if it is a number, else ``elbo_``, else None."""
    model = unwrap(estimator).model
    bound = fitted_attribute(model, "elbo_", np.nan)
    for source, side in (("log_evidence_", "estimate"), ("elbo_", "lower")):
        value = fitted_attribute(model, source, np.nan)
        if np.isfinite(value):
            # A lower bound that reaches an estimate of the evidence is the evidence.
            side = "exact" if source == "log_evidence_" and value == bound else side
            error = source.removesuffix("_") + "_std_error_"
            std_error = fitted_attribute(model, error, np.nan)
            return ReportedEvidence(float(value), float(std_error), source, side)
    return None


class NoSplit:
    """A single split, in which all rows train and all rows test.

    For ``get_scorer("evidence")``, which needs no held-out rows: a model's evidence already prefers
    what predicts well over what fits well.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.model_selection import NoSplit, get_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg, grid = BayesianLinearRegressor(), {"prior": [0.1, 0.2, 0.4]}
    >>> search = GridSearchCV(reg, grid, scoring=get_scorer("evidence"), cv=NoSplit()).fit(X, y)
    >>> search.best_params_, round(search.best_score_)
    ({'prior': 0.2}, -2406)
    """

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Array, Array]]:
        """Positions ``0, 1, ..., n_samples - 1``, twice: to train and to test."""
        rows = np.arange(num_samples(X))
        yield rows, rows.copy()

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Number of splits."""
        return 1

    def __repr__(self) -> str:
        return "NoSplit()"


def evidence_scorer(estimator: BaseEstimator, X: Any = None, y: Any = None) -> float:
    """Log evidence of a fitted model, or its lower bound: ``get_scorer("evidence")``.

    Parameters
    ----------
    estimator : estimator
        Fitted, with a finite ``log_evidence_`` or ``elbo_``; or a pipeline or search around one.
    X, y : object
        Ignored: the score is of the rows of the fit.

    Returns
    -------
    float
        Nats, summed over the rows; larger is better. `get_scorer` says what compares.

    Raises
    ------
    ValueError
        If the model has neither, or its ``log_evidence_`` is nan since it can't be trusted.
    """
    evidence = reported_evidence(estimator)
    if evidence is not None:
        return evidence.value
    model = unwrap(estimator).model
    name = type(model).__name__
    why = f"{name} has neither log_evidence_ nor elbo_"
    if "log_evidence_" in vars(model):
        why = (
            f"log_evidence_ of {name} is not finite: the estimate can't be trusted; the warning "
            "given by fit says why"
        )
    raise ValueError(f'{why}. Score it by cross-validation, scoring=get_scorer("log_density").')


def _log_densities(estimator: BaseEstimator, X: Any, y: Any) -> Array:
    if not predicts_distribution(estimator):
        raise ValueError(
            f"{type(unwrap(estimator).model).__name__} predicts no distribution: it has no "
            "log_predictive_density, predict_proba or predict(X, return_std=True)."
        )
    return np.asarray(predictive(estimator, X).log_prob(y))


def _regression_distribution(estimator: BaseEstimator, X: Any) -> PredictiveDistribution:
    distribution: Any = predictive(estimator, X)
    if not isinstance(distribution, PredictiveDistribution):
        raise ValueError(
            f"{type(unwrap(estimator).model).__name__} predicts classes, which have no order: "
            'score it by get_scorer("log_density").'
        )
    return distribution


def _neg_crps(estimator: BaseEstimator, X: Any, y: Any) -> Array:
    return -_regression_distribution(estimator, X).crps(y)


def _neg_pinball(estimator: BaseEstimator, X: Any, y: Any, quantile: float) -> Array:
    residual = observed_targets(y) - _regression_distribution(estimator, X).quantile(quantile)
    return -np.maximum(quantile * residual, (quantile - 1.0) * residual)


def _weighed(values: Array, y: Any, sample_weight: Any = None) -> float:
    """Mean of what rows score, and their targets in equal shares."""
    by_row = values.reshape(len(values), -1).mean(axis=1)
    if sample_weight is None:
        return float(by_row.mean())
    weight = check_sample_weight(sample_weight, by_row[:, None], ensure_non_negative=True)
    return float(np.average(by_row[weight > 0], weights=weight[weight > 0]))


class DistributionScorer(BaseScorer):
    """A mean over rows of what their predictive distributions score.

    It is one of scikit-learn's: ``set_score_request(sample_weight=True)`` has searches weigh
    held-out rows.
    """

    def __init__(self, name: str, of_rows: Callable[[BaseEstimator, Any, Any], Array]) -> None:
        super().__init__(score_func=_weighed, sign=1, kwargs={})
        self._name = name
        self._of_rows = of_rows

    def _score(
        self, method_caller: Any, estimator: BaseEstimator, X: Any, y_true: Any, **routed: Any
    ) -> float:
        return _weighed(self._of_rows(estimator, X, y_true), y_true, **routed)

    def __repr__(self) -> str:
        return f'get_scorer("{self._name}")'


def get_scorer(scoring: str, *, quantile: float | None = None) -> Callable[..., float]:
    r"""A scorer of predictive distributions or of evidence by its name, for ``scoring=``.

    Parameters
    ----------
    scoring : {"log_density", "neg_crps", "neg_pinball", "evidence"}
        Larger is always better.

        - "log_density": mean log predictive density of the rows' targets, nats, of ``y`` as given
          and joint over the targets of a row. For regressors and classifiers. A strictly proper
          score: in expectation only the true distribution has the largest.
        - "neg_crps": minus the mean continuous ranked probability score, in units of ``y``. For
          regressors. Of a point prediction it is the absolute error.
        - "neg_pinball": minus the mean pinball loss
          :math:`\max(q (y - f), (q - 1)(y - f))` of the predicted quantile f at ``quantile``. For
          regressors.
        - "evidence": ``log_evidence_`` of the model if it is finite, else the bound ``elbo_``;
          nats, summed over the rows of the fit. `NoSplit` fits to all rows at once.
    quantile : float, optional
        q of "neg_pinball", strictly between 0 and 1; needed there and nowhere else.

    Returns
    -------
    callable
        ``(estimator, X, y, *, sample_weight=None) -> float``; one of scikit-learn's, with
        ``set_score_request``, but for "evidence", which asks no rows.
        For what `skbayes_sym.predictive` takes: estimators of this package, pipelines, searches and
        `TransformedTargetRegressor` around them, and scikit-learn's own models with ``return_std``
        (of a normal distribution) or ``predict_proba``. Can be pickled.

    Raises
    ------
    ValueError
        If the name isn't known, or ``quantile`` is missing, out of range, or of no use. The scorer
        itself raises it of a model that predicts no distribution, of classes where they have no
        score, and of one without evidence, or whose ``log_evidence_`` is nan since it can't be
        trusted.

    Notes
    -----
    The standard deviation of a `GaussianProcessRegressor` holds the noise only if its kernel has a
    `WhiteKernel`.

    Evidences of different fits compare if they are of the same rows and of the same kind: exact, or
    converged bounds of one family. An estimate beside a lower bound favours the former by what the
    bound lacks, and a model that sets its prior or noise by the evidence, instead of averaging over
    them, is flattered a little for each. Laplace's estimates of networks are wrong by tens of nats:
    of widths, activations, a linear model against a network, and of other methods they are a hint
    at best (``python asv_bench/studies/evidence_trust.py`` prints how good a one).

    References
    ----------
    Gneiting & Raftery (2007). Strictly proper scoring rules, prediction, and estimation. CRPS:
    eq. 21; pinball: eq. 40.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_validate
    >>> from skbayes_sym.model_selection import get_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> scoring = {
    ...     "log_density": get_scorer("log_density"),
    ...     "upper": get_scorer("neg_pinball", quantile=0.95),
    ... }
    >>> scores = cross_validate(BayesianRidge(), X, y, scoring=scoring, cv=3)
    >>> scores["test_log_density"].round(2), scores["test_upper"].round(2)
    (array([-5.43, -5.46, -5.39]), array([-5.8 , -5.23, -5.5 ]))
    """
    of_rows = {"log_density": _log_densities, "neg_crps": _neg_crps}
    if not isinstance(scoring, str) or scoring not in {"evidence", "neg_pinball", *of_rows}:
        raise ValueError(
            f"{scoring!r} is no scorer of this package: evidence, log_density, neg_crps, "
            "neg_pinball. scikit-learn's own come by sklearn.metrics.get_scorer."
        )
    if quantile is not None and scoring != "neg_pinball":
        raise ValueError(f"quantile is of neg_pinball: {scoring!r} has none.")
    if scoring == "evidence":
        return evidence_scorer
    if scoring == "neg_pinball":
        if quantile is None:
            raise ValueError('get_scorer("neg_pinball") needs quantile, such as quantile=0.9.')
        _check_level(quantile)
        return DistributionScorer(scoring, partial(_neg_pinball, quantile=quantile))
    return DistributionScorer(scoring, of_rows[scoring])


def _check_level(quantile: Any) -> None:
    if not is_number(quantile) or not 0.0 < quantile < 1.0:
        raise ValueError(
            f"quantile must be a number strictly between 0 and 1, got {short_repr(quantile)}."
        )


class QuantileOf(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """Regressor whose ``predict`` is one quantile of a model, fitted or not.

    For MAPIE's conformalised quantile regression, scikit-learn's ``mean_pinball_loss`` and other
    tools that take point predictions.

    Parameters
    ----------
    estimator : estimator
        Regressor, pipeline or search that `predictive` takes. It isn't copied.
    quantile : float, default=0.5
        Level, strictly between 0 and 1.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.model_selection import QuantileOf
    >>> X, y = load_diabetes(return_X_y=True)
    >>> upper = QuantileOf(BayesianLinearRegressor().fit(X, y), 0.95).predict(X)
    >>> round(float((y <= upper).mean()), 2)
    0.95
    """

    def __init__(self, estimator: BaseEstimator, quantile: float = 0.5) -> None:
        self.estimator = estimator
        self.quantile = quantile

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit the model, in place."""
        _check_level(self.quantile)
        self._require_model()
        self.estimator.fit(X, y, **fit_params)
        return self

    def predict(self, X: Any) -> Array:
        """Predict the quantile, (n_samples,)."""
        _check_level(self.quantile)
        self._require_model()
        return predictive(self.estimator, X).quantile(self.quantile)

    def _require_model(self) -> None:
        is_model = hasattr(self.estimator, "fit") and hasattr(self.estimator, "get_params")
        if isinstance(self.estimator, type) or not is_model:
            raise ValueError(f"estimator must be a regressor, got {short_repr(self.estimator)}.")

    @property
    def n_features_in_(self) -> int:
        """Number of columns that the model was fitted to."""
        return int(self.estimator.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self.estimator, "n_features_in_")
