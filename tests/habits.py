"""Every estimator that keeps the common habits, data it can learn, and who watches it learn."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris

from skbayes_sym import (
    BayesianLinearClassifier,
    BayesianLinearRegressor,
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
    LILAClassifier,
    LILARegressor,
    MCMCClassifier,
    MCMCRegressor,
    SymmetrizedVIClassifier,
    SymmetrizedVIRegressor,
)
from skbayes_sym.models import Categorical, ColumnShift, Invariances

_VI = {
    "hidden_layer_sizes": (5,),
    "max_iter": 150,
    "n_predict_samples": 50,
    "tol": None,
    "random_state": 0,
}
_LAPLACE = {"hidden_layer_sizes": (5,), "max_iter": 100, "n_hyper_updates": 20, "tol": None,
            "random_state": 0}  # fmt: skip
_INVARIANT = {**_LAPLACE, "invariances": Invariances([ColumnShift()], 3)}
_ENSEMBLE = {"hidden_layer_sizes": (5,), "n_members": 3, "max_iter": 150, "random_state": 0}
_CHAINS = {
    "hidden_layer_sizes": (2,), "n_chains": 4, "n_warmup": 20, "n_draws": 5, "random_state": 0,
    "mode_weights": "uniform",
}  # fmt: skip

VARIATIONAL = {
    "vi-regressor": SymmetrizedVIRegressor(**_VI),
    "vi-classifier": SymmetrizedVIClassifier(**_VI),
}
LAPLACE = {
    "laplace-regressor": LaplaceRegressor(**_LAPLACE, optimizer="adam"),
    "laplace-classifier": LaplaceClassifier(**_LAPLACE, optimizer="adam"),
    "lila-plain": LILAClassifier(**_LAPLACE),
    "lila-regressor": LILARegressor(**_INVARIANT),
    "lila-classifier": LILAClassifier(hyper="exact", **_INVARIANT),
}
LINEAR = {
    "linear-gaussian": BayesianLinearRegressor(random_state=0),
    "linear-student-t": BayesianLinearRegressor("student-t", random_state=0),
    "linear-poisson": BayesianLinearRegressor("poisson", random_state=0),
    "linear-auto": BayesianLinearClassifier(random_state=0),
    "linear-multinomial": BayesianLinearClassifier(Categorical(n_points=128), random_state=0),
}
# What only scikit-learn's checks cover here.
_MODES = {"hidden_layer_sizes": (3,), "n_restarts": 2, "max_iter": 20, "random_state": 0}
MODES = [LaplaceRegressor(**_MODES), LaplaceClassifier(**_MODES)]
SAMPLED = [
    DeepEnsembleRegressor(**_ENSEMBLE), DeepEnsembleClassifier(**_ENSEMBLE),
    MCMCRegressor(**_CHAINS), MCMCClassifier(**_CHAINS),
]  # fmt: skip

TRAINED = VARIATIONAL | LAPLACE
HABITUAL = TRAINED | LINEAR


def every(estimators: dict[str, Any]) -> pytest.MarkDecorator:
    """One test for each; those trained by steps make too few of them to converge on purpose."""
    early = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    rows = [
        pytest.param(estimator, id=name, marks=[early] if name in TRAINED else [])
        for name, estimator in estimators.items()
    ]
    return pytest.mark.parametrize("estimator", rows)


def data(estimator: Any, n: int = 60) -> tuple[Any, Any]:
    """Rows that no linear model fits exactly, and as many classes as the estimator likes."""
    is_classifier = hasattr(estimator, "predict_proba")
    X, y = (load_iris if is_classifier else load_diabetes)(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))[:n]
    X, y = X[rows], y[rows]
    if is_classifier and hasattr(estimator, "fit_intercept"):
        X = X[:, :2]  # the sepals alone don't separate the species
        y = y if hasattr(estimator.likelihood, "n_points") else (y == 1).astype(int)
    return X, y


# One entry per row given: repeated rows have more of them than weighted ones.
PER_ROW_GIVEN = {"site_location_", "site_variance_"}


def assert_same_fit(a: Any, b: Any, X: Any) -> None:
    """Bit for bit: the posterior, what it predicts, and all fitted numbers and arrays."""
    assert np.array_equal(a.posterior_.loc, b.posterior_.loc)
    assert np.array_equal(a.predict(X), b.predict(X))
    first, second = fitted_numbers(a), fitted_numbers(b)
    assert first.keys() == second.keys()
    assert {"elbo_", "log_evidence_"} & first.keys()
    for name, value in first.items():
        assert np.array_equal(value, second[name], equal_nan=True), name


def fitted_numbers(estimator: Any) -> dict[str, Any]:
    """Attributes that a fit has set and that are numbers or arrays of them."""
    found = {
        name: getattr(estimator, name)
        for name in vars(estimator)
        if name.endswith("_") and not name.startswith("_")
    }
    return {
        k: v
        for k, v in found.items()
        if isinstance(v, int | float | np.ndarray) and k not in PER_ROW_GIVEN
    }


class Watch:
    """Sees every task; asks to stop after so many blocks of every fit."""

    def __init__(self, n_blocks: int = 10**9) -> None:
        self.n_blocks, self.begun, self.ended, self.set_up = n_blocks, 0, 0, 0

    def setup(self, estimator: Any, context: Any) -> None:
        self.set_up += 1

    def teardown(self, estimator: Any, context: Any) -> None:
        self.set_up -= 1

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.begun += 1

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        self.ended += 1
        return context.task_name == "block" and context.task_id + 1 >= self.n_blocks
