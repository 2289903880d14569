"""What isn't finished or has collapsed says so, and what is finished doesn't."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import (
    DeepEnsembleClassifier,
    LaplaceClassifier,
    LILAClassifier,
    SymmetrizedVIClassifier,
    SymmetrizedVIRegressor,
)

IRIS = load_iris(return_X_y=True)
SHORT = {"hidden_layer_sizes": (5,), "max_iter": 20, "random_state": 0}
UNFINISHED = {
    "adam": LaplaceClassifier(optimizer="adam", **SHORT),
    "adam-fixed": LaplaceClassifier(optimizer="adam", prior_scale=1.0, **SHORT),
    "lila": LILAClassifier(invariances=None, **SHORT),
    "ensemble": DeepEnsembleClassifier(n_members=2, **SHORT),
    "vi": SymmetrizedVIClassifier(**SHORT),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_twenty_steps_are_not_enough(name):
    """Accuracies from 0.5 to 0.9, which reach 0.97."""
    with pytest.warns(ConvergenceWarning, match="not converged"):
        UNFINISHED[name].fit(*IRIS)


def wave(n):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (n, 1))
    return x, np.sin(2.0 * x[:, 0]) + 0.1 * rng.standard_normal(n)


def test_noise_above_the_spread_of_the_targets_says_so():
    """50 units and their prior outweigh 6 rows."""
    X, y = wave(6)
    collapsed = SymmetrizedVIRegressor(
        (50,), max_iter=600, tol=None, learning_rate=0.02, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="no less than the standard deviation of y"):
        collapsed.fit(X, y)
    assert collapsed.noise_std_ >= y.std()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        fine = SymmetrizedVIRegressor((3,), "tanh", max_iter=400, tol=None, random_state=0)
        X, y = wave(40)
        assert fine.fit(X, y).noise_std_ < y.std()
