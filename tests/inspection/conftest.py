"""Small fits that several pictures are drawn of."""

import warnings

import matplotlib
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import skbayes_sym as sk

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture
def axes():
    from matplotlib import pyplot

    return pyplot.subplots()[1]


@pytest.fixture(scope="session")
def curve_data():
    """One feature, 60 rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(60, 1))
    return x, np.sin(x[:, 0]) + 0.2 * rng.standard_normal(60)


@pytest.fixture(scope="session")
def table():
    """Three features, 80 rows."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 3))
    return X, X @ [1.0, -1.0, 0.0] + rng.standard_normal(80)


@pytest.fixture(scope="session")
def linear(table):
    return sk.BayesianLinearRegressor().fit(*table)


@pytest.fixture(scope="session")
def network(curve_data):
    return quiet(sk.SymmetrizedVIRegressor((3,), "tanh", max_iter=90, random_state=0), *curve_data)


@pytest.fixture(scope="session")
def sampled(curve_data):
    estimator = sk.MCMCRegressor(
        (1,), sampler=sk.Chains(init="prior", n_warmup=40), prior=1.0, n_chains=16, n_draws=10,
        remove_symmetries=sk.ModeWeights("evidence"), random_state=0,
    )  # fmt: skip
    return quiet(estimator, *curve_data)


def quiet(estimator, *data):
    """Fit without asking for convergence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(*data)
