"""Predictions of default stacks, and the size of their pickles.

The unit of speed is the fit of scikit-learn's boosting to 1,000 x 8 rows, which is timed
as well.
"""

import pickle
from typing import Any

import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor

from skbayes_sym import PredictiveStackingRegressor

from .common import SingleThread

N_ROWS = [1_000, 10_000]
N_PREDICTED = 10_000
TASKS = {
    "mean": lambda stack, X: stack.predict(X),
    "standard deviation": lambda stack, X: stack.predict(X, return_std=True),
    "interval": lambda stack, X: stack.predict_interval(X),
    "mean of one row": lambda stack, X: stack.predict(X[:1]),
    "interval of one row": lambda stack, X: stack.predict_interval(X[:1]),
}


def make_data(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Friedman's first function of 8 columns, with unit noise."""
    return make_friedman1(n_rows, n_features=8, noise=1.0, random_state=seed)  # type: ignore[no-any-return]


class Predictions(SingleThread):
    """Predictions for 10,000 rows, and for one."""

    params = (N_ROWS, list(TASKS))
    param_names = ("rows of the fit", "task")
    timeout = 1800.0

    def setup_cache(self) -> dict[int, bytes]:
        """Fit the stacks once."""
        stacks = {}
        for n_rows in N_ROWS:
            stack = PredictiveStackingRegressor(random_state=0).fit(*make_data(n_rows, 0))
            stacks[n_rows] = pickle.dumps(stack)
        return stacks

    def setup(self, stacks: dict[int, bytes], n_rows: int, task: str) -> None:
        super().setup()
        self.stack = pickle.loads(stacks[n_rows])
        self.X, _ = make_data(N_PREDICTED, 1)
        TASKS[task](self.stack, self.X[:2])  # builds the trees from their arrays

    def time_predict(self, stacks: dict[int, bytes], n_rows: int, task: str) -> None:
        TASKS[task](self.stack, self.X)

    def track_pickle(self, stacks: dict[int, bytes], n_rows: int, task: str) -> float:
        """Megabytes of the pickled stack."""
        return len(stacks[n_rows]) / 1e6

    track_pickle.unit = "MB"  # type: ignore[attr-defined]


class Unit(SingleThread):
    """The fit in whose time predictions are counted."""

    def setup(self, *args: Any) -> None:
        super().setup()
        self.data = make_data(1_000, 0)

    def time_fit(self) -> None:
        HistGradientBoostingRegressor().fit(*self.data)
