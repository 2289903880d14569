"""Symmetrised variational inference: the estimators, and one optimiser step."""

from typing import Any

import numpy as np

from skbayes_sym import SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.symmetry.gaps.unit_gap import Exact, Importance

from .common import CASES, DEVICES, SingleThread, gap_term, random_data, require, synchronise
from .common import training as make_training

ESTIMATORS = ["regressor", "classifier"]


def make_problem(name: str, device: str, **parameters: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """An unfitted estimator with the data it is for."""
    case = CASES["T1k" if name == "regressor" else "M30"]
    X, y = (t.numpy() for t in random_data(case))
    make = SymmetrizedVIRegressor if name == "regressor" else SymmetrizedVIClassifier
    return make(case.hidden, device=device, random_state=0, **parameters), X, y.squeeze()


class Fit(SingleThread):
    """200 steps and the reported bounds: 1,000 x 10 regression and 8,000 MNIST-shaped rows."""

    params = (ESTIMATORS, DEVICES)
    param_names = ("estimator", "device")
    timeout = 300

    def setup(self, estimator: str, device: str) -> None:
        require(device)
        super().setup()
        self.model, self.X, self.y = make_problem(estimator, device, max_iter=200, tol=None)
        if device == "cuda":  # the first call of a process loads the kernels
            self.time_fit(estimator, device)

    def time_fit(self, estimator: str, device: str) -> None:
        self.model.fit(self.X, self.y)
        synchronise(device)

    def peakmem_fit(self, estimator: str, device: str) -> None:
        self.time_fit(estimator, device)


class Predict(SingleThread):
    """Predictions for the training rows, at the default number of draws."""

    params = (ESTIMATORS, DEVICES)
    param_names = ("estimator", "device")
    timeout = 300

    def setup(self, estimator: str, device: str) -> None:
        require(device)
        super().setup()
        self.model, self.X, y = make_problem(estimator, device, max_iter=1, tol=None)
        self.model.fit(self.X, y)
        self.method = self.model.predict if estimator == "regressor" else self.model.predict_proba
        self.method(self.X[:1])  # the draws are made once

    def time_predict(self, estimator: str, device: str) -> None:
        self.method(self.X)
        synchronise(device)

    def peakmem_predict(self, estimator: str, device: str) -> None:
        self.time_predict(estimator, device)


class PredictManyDraws(SingleThread):
    """Class probabilities of 10,000 MNIST-shaped rows, averaged over 1,000 draws."""

    params = DEVICES
    param_names = ("device",)
    timeout = 300

    def setup(self, device: str) -> None:
        require(device)
        super().setup()
        self.model, X, y = make_problem(
            "classifier", device, max_iter=1, tol=None, n_predict_samples=1_000
        )
        self.model.fit(X, y)
        self.X = np.resize(X, (10_000, X.shape[1]))
        self.model.predict_proba(self.X[:1])

    def time_predict_proba(self, device: str) -> None:
        self.model.predict_proba(self.X)
        synchronise(device)

    def peakmem_predict_proba(self, device: str) -> None:
        self.time_predict_proba(device)


class MeanFieldStep(SingleThread):
    """100 optimiser steps without a symmetry."""

    params = (list(CASES), DEVICES)
    param_names = ("case", "device")

    def setup(self, case: str, device: str) -> None:
        require(device)
        super().setup()
        self.run = make_training(CASES[case], device=device)
        self.run(20)

    def time_100_steps(self, case: str, device: str) -> None:
        self.run(100)
        synchronise(device)


class SymmetrizedStep(SingleThread):
    """100 steps on MNIST shapes: the gap skipped as saturated, or evaluated at every step."""

    params = (["gated", "exact d=10", "importance d=30"], DEVICES)
    param_names = ("gap", "device")

    def setup(self, gap: str, device: str) -> None:
        require(device)
        super().setup()
        case = CASES["M30"]._replace(hidden=(10,)) if gap == "exact d=10" else CASES["M30"]
        estimate = Exact() if gap == "exact d=10" else Importance()
        term = gap_term(case, estimate, device=device, gated=gap == "gated")
        # Steps so short that the narrow posterior of the start, a saturated one, stays.
        self.run = make_training(case, device=device, gap=term, learning_rate=1e-7)
        self.run(200)

    def time_100_steps(self, gap: str, device: str) -> None:
        self.run(100)
        synchronise(device)
