"""Fits of default stacks: time by table, with two threads, progress, memory and import.

Times count in units of `stacking.Unit`, as in ``asv_bench/studies/stack_costs.py``.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from skbayes_sym import PredictiveStackingClassifier, PredictiveStackingRegressor

from .common import SingleThread
from .stacking import make_data

Table = tuple[Any, np.ndarray]


def make_labels() -> Table:
    """240 rows of three classes that are easy to tell apart."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    return rng.normal(size=(240, 5)) + 3.0 * np.eye(3, 5)[y], y


def make_digits() -> Table:
    """1,400 images of handwritten digits."""
    X, y = load_digits(return_X_y=True)
    return X[:1400], y[:1400]


def make_text() -> Table:
    """1,000 rows of 38 numeric columns and 30 columns of text."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(1000, 38)), columns=[f"x{j}" for j in range(38)])
    y = frame["x0"].to_numpy() + 0.5 * rng.normal(size=1000)
    for j in range(30):
        level = rng.integers(int(rng.integers(4, 21)), size=1000)
        frame[f"text{j}"] = [f"level {k}" for k in level]
        y = y + (j < 3) * np.cos(level)
    return frame, y


TABLES: dict[str, Callable[[], Table]] = {
    "100 x 8": lambda: make_data(100, 0),
    "1,000 x 8": lambda: make_data(1_000, 0),
    "10,000 x 8": lambda: make_data(10_000, 0),
    "240 labels": make_labels,
    "digits": make_digits,
    "1,000 x 68, 30 of text": make_text,
}


def fit_stack(name: str, table: Table, **params: Any) -> Any:
    """Fit the default stack of a table."""
    kind = PredictiveStackingRegressor
    if name in {"240 labels", "digits"}:
        kind = PredictiveStackingClassifier
    return kind(random_state=0, **params).fit(*table)


class Fits(SingleThread):
    """Time and peak memory of fits."""

    params = list(TABLES)
    param_names = ("table",)
    timeout = 1800.0

    def setup(self, name: str) -> None:
        super().setup()
        self.table = TABLES[name]()

    def time_fit(self, name: str) -> None:
        fit_stack(name, self.table)

    def peakmem_fit(self, name: str) -> None:
        fit_stack(name, self.table)


class Jobs(SingleThread):
    """Wall-clock time of a fit to 3,000 rows by number of threads."""

    params = (None, 2)
    param_names = ("n_jobs",)
    timeout = 1800.0

    def setup(self, n_jobs: int | None) -> None:
        super().setup()
        self.table = make_data(3_000, 0)

    def time_fit(self, n_jobs: int | None) -> None:
        fit_stack("3,000 x 8", self.table, n_jobs=n_jobs)


class ReportTimes:
    """Callback that keeps the time of every report of progress."""

    def setup(self, estimator: Any, context: Any) -> None:
        self.seconds = [time.perf_counter()]

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.seconds.append(time.perf_counter())

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, fitted_estimator: Any = None
    ) -> None:
        self.seconds.append(time.perf_counter())

    def teardown(self, estimator: Any, context: Any) -> None:
        self.seconds.append(time.perf_counter())


class Progress(SingleThread):
    """Longest time without a report of progress."""

    timeout = 1800.0

    def track_silence(self) -> float:
        times = ReportTimes()
        stack = PredictiveStackingRegressor(random_state=0).set_callbacks(times)
        stack.fit(*make_data(1_000, 0))
        return float(np.diff(times.seconds).max())

    track_silence.unit = "s"  # type: ignore[attr-defined]


ONE_ROW: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "mean": ("1,000 x 8", lambda stack, row: stack.predict(row)),
    "standard deviation": ("1,000 x 8", lambda stack, row: stack.predict(row, return_std=True)),
    "interval": ("1,000 x 8", lambda stack, row: stack.predict_interval(row)),
    "class probabilities": ("240 labels", lambda stack, row: stack.predict_proba(row)),
}


class OneRow(SingleThread):
    """Predictions for one row."""

    params = list(ONE_ROW)
    param_names = ("prediction",)

    def setup(self, prediction: str) -> None:
        super().setup()
        name, self.predict = ONE_ROW[prediction]
        table = TABLES[name]()
        self.stack = fit_stack(name, table)
        self.row = table[0][:1]
        self.predict(self.stack, self.row)

    def time_predict(self, prediction: str) -> None:
        self.predict(self.stack, self.row)


class Import:
    """Import of the stack beyond torch and scikit-learn."""

    def timeraw_import(self) -> tuple[str, str]:
        setup = "import torch, sklearn.ensemble, sklearn.model_selection, pandas"
        return "from skbayes_sym import PredictiveStackingRegressor", setup
