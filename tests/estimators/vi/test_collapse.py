"""Mean-field fits say when the weights' scatter is taken for noise."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import SymmetrizedVIRegressor
from skbayes_sym.estimators.vi import method
from skbayes_sym.estimators.vi.method import noise_excess

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (60, 1))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(60)
REG = SymmetrizedVIRegressor((3,), activation="tanh", max_iter=600, random_state=0)


@pytest.mark.long
def test_the_excess_is_noise_over_residuals_of_the_mean(monkeypatch):
    seen = {}

    def keep(*args):
        seen["excess"] = noise_excess(*args)
        return seen["excess"]

    monkeypatch.setattr("skbayes_sym.estimators.vi.method.noise_excess", keep)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        reg = REG.fit(X, Y)
    residual = Y - reg.predict(X)
    expected = reg.noise_std_ / np.sqrt(np.mean(residual**2))
    assert float(seen["excess"]) == pytest.approx(expected, rel=0.02)
    assert 1.0 < float(seen["excess"]) < method.MOST_EXCESS


def test_a_converged_fit_with_more_noise_than_residuals_says_so(monkeypatch):
    monkeypatch.setattr(
        "skbayes_sym.estimators.vi.method.noise_excess", lambda *args: torch.tensor([1.0, 1.5])
    )
    with pytest.warns(UserWarning, match=r"1\.50 times the spread.*take LayerwiseVIRegressor"):
        SymmetrizedVIRegressor((2,), tol=1e9, max_iter=40, random_state=0).fit(X, Y)
    # Not converged: the noise may still fall.
    SymmetrizedVIRegressor((2,), tol=None, max_iter=40, random_state=0).fit(X, Y)
    # A noise that was given isn't learned.
    SymmetrizedVIRegressor((2,), noise_std=1.0, tol=1e9, max_iter=40, random_state=0).fit(X, Y)


@pytest.mark.parametrize("max_iter", [250, 700])
def test_no_collapse_is_told_of_a_fit_on_its_way(max_iter):
    """Noise 1.5 times the residuals, neither converged nor surely not; 1.05 times at the end."""
    local = np.random.default_rng(0)
    x = local.uniform(-2.0, 2.0, (60, 1))
    y = np.sin(x[:, 0]) + 0.2 * local.standard_normal(60)
    reg = SymmetrizedVIRegressor((2,), activation="tanh", max_iter=max_iter, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert reg.fit(x, y).noise_std_ > 1.5 * 0.2
