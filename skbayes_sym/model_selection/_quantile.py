"""Quantile of a model's predictions as a regressor, for tools that take point predictions."""

from typing import Any, Self

from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.predictive import predictive


class QuantileRegressor(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """Predict one quantile of another model; see `as_quantile`."""

    def __init__(self, estimator: BaseEstimator, quantile: float = 0.5) -> None:
        self.estimator = estimator
        self.quantile = quantile

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit the model, in place."""
        self.estimator.fit(X, y, **fit_params)
        return self

    def predict(self, X: Any) -> Array:
        """Predict the quantile, (n_samples,)."""
        return predictive(self.estimator, X).quantile(self.quantile)

    @property
    def n_features_in_(self) -> int:
        """Number of columns that the model was fitted to."""
        return int(self.estimator.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self.estimator, "n_features_in_")


def as_quantile(estimator: BaseEstimator, quantile: float) -> QuantileRegressor:
    """Regressor whose ``predict`` is one quantile of a model, fitted or not.

    For MAPIE's conformalised quantile regression, scikit-learn's ``mean_pinball_loss`` and other
    tools that take point predictions.

    Parameters
    ----------
    estimator : estimator
        Regressor, pipeline or search that `predictive` takes. It isn't copied.
    quantile : float
        Level, strictly between 0 and 1.

    Returns
    -------
    QuantileRegressor
        With ``fit`` and ``predict``.

    Raises
    ------
    ValueError
        Unless the level lies strictly between 0 and 1.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.model_selection import as_quantile
    >>> X, y = load_diabetes(return_X_y=True)
    >>> upper = as_quantile(BayesianLinearRegressor().fit(X, y), 0.95).predict(X)
    >>> round(float((y <= upper).mean()), 2)
    0.95
    """
    if not 0.0 < quantile < 1.0:
        raise ValueError(f"quantile must lie strictly between 0 and 1, got {quantile!r}.")
    return QuantileRegressor(estimator, quantile)
