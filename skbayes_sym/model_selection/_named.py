"""Scorers by name, for ``scoring=``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import mean_pinball_loss

from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.estimators.predictive import PredictiveDistribution, predictive
from skbayes_sym.model_selection._scorers import evidence_scorer, log_predictive_density_scorer

Scorer = Callable[[BaseEstimator, Any, Any], float]


def _of_numbers(estimator: BaseEstimator, X: Any) -> PredictiveDistribution:
    law = predictive(estimator, X)
    if not hasattr(law, "quantile"):
        raise ValueError(
            f"{type(innermost(estimator).model).__name__} predicts classes, which have no order: "
            'score it by get_scorer("log_density").'
        )
    found: PredictiveDistribution = law
    return found


def _neg_crps(estimator: BaseEstimator, X: Any, y: Any) -> float:
    return -float(np.mean(_of_numbers(estimator, X).crps(y)))


@dataclass(frozen=True)
class _NegPinball:
    """Minus the mean pinball loss of one predicted quantile."""

    quantile: float

    def __post_init__(self) -> None:
        if not 0.0 < self.quantile < 1.0:
            raise ValueError(f"quantile must lie strictly between 0 and 1, got {self.quantile!r}.")

    def __call__(self, estimator: BaseEstimator, X: Any, y: Any) -> float:
        predicted = _of_numbers(estimator, X).quantile(self.quantile)
        return -float(mean_pinball_loss(y, predicted, alpha=self.quantile))


_SCORERS: dict[str, Scorer] = {
    "evidence": evidence_scorer,
    "log_density": log_predictive_density_scorer,
    "neg_crps": _neg_crps,
}


def get_scorer(scoring: str, *, quantile: float | None = None) -> Scorer:
    r"""A scorer of predictive distributions by its name, for ``scoring=``.

    Parameters
    ----------
    scoring : {"log_density", "neg_crps", "neg_pinball", "evidence"}
        Larger is always better.

        - "log_density": `log_predictive_density_scorer`, mean over rows, nats. For regressors and
          classifiers.
        - "neg_crps": minus the mean continuous ranked probability score, in units of ``y``. For
          regressors. Of a point prediction it is the absolute error.
        - "neg_pinball": minus the mean pinball loss
          :math:`\max(q (y - f), (q - 1)(y - f))` of the predicted quantile f at ``quantile``. For
          regressors.
        - "evidence": `evidence_scorer`, of the rows of the fit.
    quantile : float, optional
        q of "neg_pinball", strictly between 0 and 1; needed there and nowhere else.

    Returns
    -------
    callable (estimator, X, y) -> float
        For estimators of this package, pipelines, searches and `TransformedTargetRegressor` around
        them, and scikit-learn's own models with ``return_std`` or ``predict_proba``. Can be
        pickled.

    Raises
    ------
    ValueError
        If the name isn't known, or ``quantile`` is missing, out of range, or of no use. The scorer
        itself raises it for classifiers where classes have no score.

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
    if scoring == "neg_pinball":
        if quantile is None:
            raise ValueError('get_scorer("neg_pinball") needs quantile, such as quantile=0.9.')
        return _NegPinball(quantile)
    if scoring not in _SCORERS:
        names = ", ".join(sorted([*_SCORERS, "neg_pinball"]))
        raise ValueError(
            f"{scoring!r} is no scorer of this package: {names}. scikit-learn's own come by "
            "sklearn.metrics.get_scorer."
        )
    if quantile is not None:
        raise ValueError(f"quantile is of neg_pinball: {scoring!r} has none.")
    return _SCORERS[scoring]
