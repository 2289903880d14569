"""Linear models: time against rows and features, beside scikit-learn's.

The scikit-learn rows are what a user would fit otherwise: `BayesianRidge` has the same posterior,
`LogisticRegression` is a point estimate with a given penalty.
"""

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge, LogisticRegression

from skbayes_sym import BayesianLinearClassifier, BayesianLinearRegressor

from .common import SingleThread

ROWS_AND_FEATURES = [(1_000, 10), (100_000, 10), (1_000, 100), (10_000, 100), (500, 2_000)]
WIDE = (500, 100_000)  # no K x K array fits here


def make_data(sizes: tuple[int, int], *, classes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal features of which ten matter, and noise of the size of the signal."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=sizes)
    f = X[:, :10].sum(axis=1) / 10**0.5
    return X, (f + rng.logistic(size=len(X)) > 0 if classes else f + rng.normal(size=len(X)))


class _Fit(SingleThread):
    """One fit of a table of estimators."""

    param_names = ("sizes", "estimator")
    timeout = 600.0
    classes = False
    estimators: dict[str, Any] = {}

    def setup(self, sizes: tuple[int, int], estimator: str) -> None:
        super().setup()
        self.X, self.y = make_data(sizes, classes=self.classes)
        self.model = self.estimators[estimator]

    def time_fit(self, sizes: tuple[int, int], estimator: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.fit(self.X, self.y)

    def peakmem_fit(self, sizes: tuple[int, int], estimator: str) -> None:
        self.time_fit(sizes, estimator)


class Regression(_Fit):
    """Scales learned."""

    estimators = {
        "gaussian": BayesianLinearRegressor(),
        "student_t": BayesianLinearRegressor("student_t"),
        "BayesianRidge": BayesianRidge(),
    }
    params = (ROWS_AND_FEATURES, list(estimators))


class Classification(_Fit):
    """Two classes; scales learned, and given."""

    classes = True
    estimators = {
        "bernoulli": BayesianLinearClassifier(),
        "bernoulli, prior=0.3": BayesianLinearClassifier(prior=0.3),
        "LogisticRegression": LogisticRegression(C=0.09),
    }
    params = (ROWS_AND_FEATURES, list(estimators))


class Wide(_Fit):
    """100,000 features of 500 rows."""

    estimators = {"gaussian": BayesianLinearRegressor()}
    params = ([WIDE], list(estimators))


class WideClassification(_Fit):
    """The same with two classes; `LogisticRegression` gives a point, not a posterior."""

    classes = True
    estimators = {
        "bernoulli": BayesianLinearClassifier(prior=0.01),
        "LogisticRegression": LogisticRegression(C=1e-4),
    }
    params = ([WIDE], list(estimators))
