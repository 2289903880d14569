"""An entry for ScoringBench: the stack, or any regressor with a predictive distribution.

ScoringBench (https://scoringbench.com) compares predictive distributions of tabular regressors by
proper scoring rules. An entry is one class with `fit`, `predict` and `predict_distribution`. To run
it, copy this file to ``scoringbench/univariate/wrappers/skbayes_sym_wrapper.py`` in a checkout of
ScoringBench, and add a line to ``MODELS`` in ``scoringbench/univariate/models.py``:

    "skbayes_sym_stack": lambda: PredictiveWrapper(),
"""

from typing import Any, Self

import numpy as np
from scoringbench.univariate.wrappers.base import DistributionPrediction, ProbabilisticWrapper
from sklearn.base import clone

from skbayes_sym import PredictiveStackingRegressor, predictive


class PredictiveWrapper(ProbabilisticWrapper):
    """Regressor that `skbayes_sym.predictive` supports, with the methods of ScoringBench.

    Parameters
    ----------
    estimator : regressor, optional
        Regressor, pipeline or search; `skbayes_sym.PredictiveStackingRegressor` by default.
    n_quantiles : int, default=999
        Number of quantiles that represent a distribution, at the levels 1 / (n_quantiles + 1),
        2 / (n_quantiles + 1) and so on.
    """

    def __init__(self, estimator: Any = None, n_quantiles: int = 999) -> None:
        self.estimator = estimator
        self.n_quantiles = n_quantiles

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the regressor. Rows without a finite target are left out."""
        self._set_train_range(y)
        targets = np.asarray(y, dtype=float).ravel()
        rows = np.flatnonzero(np.isfinite(targets))
        estimator = self.estimator
        if estimator is None:
            estimator = PredictiveStackingRegressor(random_state=0)
        X = X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
        self.model_ = clone(estimator).fit(X, targets[rows])
        return self

    def predict(self, X: Any) -> Any:
        """Predict means."""
        return predictive(self.model_, X).mean()

    def predict_distribution(self, X: Any) -> Any:
        """Predict quantiles and means."""
        distribution = predictive(self.model_, X)
        levels = np.arange(1, self.n_quantiles + 1) / (self.n_quantiles + 1)
        return DistributionPrediction.from_multi_quantile(
            distribution.quantile(levels),
            levels,
            mean=distribution.mean(),
            train_range=self._y_train_range,
        )
