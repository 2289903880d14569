"""Where the ascent starts: exact in a linear model, at a mode of a network."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_iris

from skbayes_sym import SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.estimators.optimizers import VariationalAdam

AS_GIVEN = {"standardize": False, "tol": None}
STILL = VariationalAdam(1e-12, init="laplace")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 3))
    y = X @ np.array([[1.0, 0.3], [-1.0, 0.0], [0.5, 2.0]]) + 0.4 * rng.normal(size=(30, 2))
    return X, y, rng.integers(1, 3, size=30)


def test_in_a_linear_model_the_start_is_the_mean_field_optimum(rows):
    """Mean of the exact posterior, and one over the diagonal of its precision."""
    X, y, weight = rows
    reg = SymmetrizedVIRegressor(
        (),
        noise_std=0.4,
        prior=0.7,
        max_iter=1,
        optimizer=STILL,
        random_state=0,
        **AS_GIVEN,
    ).fit(X, y, sample_weight=weight)
    Z = np.column_stack([X, np.ones(30)])
    precision = (Z.T * weight) @ Z / 0.4**2 + np.eye(4) / 0.7**2
    layers = reg.network_.layers
    mean, bias = layers(torch.as_tensor(reg.posterior_.loc))[0]
    std, bias_std = layers(torch.as_tensor(reg.posterior_.scale))[0]
    for target in range(2):
        exact = np.linalg.solve(precision, (Z.T * weight) @ y[:, target] / 0.4**2)
        np.testing.assert_allclose([*mean[target], bias[target]], exact, rtol=1e-6)
        width = np.diag(precision) ** -0.5
        np.testing.assert_allclose([*std[target], bias_std[target]], width, rtol=1e-6)
    rows_of = np.repeat(np.arange(30), weight)
    exact = sum(
        stats.multivariate_normal(
            np.zeros(len(rows_of)),
            0.7**2 * Z[rows_of] @ Z[rows_of].T + 0.4**2 * np.eye(len(rows_of)),
        ).logpdf(y[rows_of, target])
        for target in range(2)
    )
    # KL[q || p] of the best independent normals: half of log(prod diag(A) / det A) a target.
    lost = np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1]
    assert reg.elbo_ == pytest.approx(exact - lost, abs=5 * reg.elbo_std_error_ + 1e-6)


def test_of_classes_the_start_is_stationary():
    X, y = load_iris(return_X_y=True)
    clf = SymmetrizedVIClassifier(
        (3,),
        "tanh",
        max_iter=1,
        optimizer=VariationalAdam(learning_rate=1e-12, init="laplace"),
        tol=None,
        random_state=0,
    ).fit(X[::2], y[::2])
    x = torch.as_tensor((X[::2] - clf.x_mean_) / clf.x_scale_)

    def slope(theta):
        theta = theta.clone().requires_grad_()
        log_p = clf.network_.forward(theta, x).log_softmax(-1)
        value = log_p[torch.arange(75), torch.as_tensor(y[::2])].sum() - 0.5 * theta.square().sum()
        return torch.autograd.grad(value, theta)[0].abs().max()

    mode = torch.as_tensor(clf.posterior_.loc)
    elsewhere = mode[torch.randperm(len(mode), generator=torch.Generator().manual_seed(0))]
    assert float(slope(mode)) < 0.02 * float(slope(elsewhere))


@pytest.mark.long
def test_a_fit_from_a_mode_is_closer_at_a_lower_bound():
    X, y = make_sinusoidal(120, random_state=0)
    reg = SymmetrizedVIRegressor((20,), "tanh", max_iter=200, tol=None, random_state=0)
    from_mode = clone(reg).set_params(optimizer=VariationalAdam(init="laplace")).fit(X, y)
    reg.fit(X, y)
    assert from_mode.score(X, y) > reg.score(X, y)
    assert from_mode.elbo_ < reg.elbo_
    assert from_mode.noise_std_ != reg.noise_std_
    few = clone(from_mode).set_params(max_iter=20)
    assert np.array_equal(*(clone(few).fit(X[:30], y[:30]).posterior_.loc for _ in range(2)))


def test_a_warm_start_goes_on_from_the_fit(rows):
    X, y, _ = rows
    reg = SymmetrizedVIRegressor(
        (2,),
        "tanh",
        max_iter=1,
        optimizer=STILL,
        warm_start=True,
        random_state=0,
        **AS_GIVEN,
    ).fit(X, y)
    mode = reg.posterior_.loc
    reg.set_params(optimizer="adam", max_iter=50).fit(X, y)
    moved = reg.posterior_.loc
    reg.set_params(optimizer=STILL, max_iter=1).fit(X, y)
    np.testing.assert_allclose(reg.posterior_.loc, moved, rtol=1e-6)
    assert not np.allclose(mode, moved)


def test_a_column_of_zeros_keeps_the_prior(rows):
    X, y, _ = rows
    reg = SymmetrizedVIRegressor(
        (2,),
        "tanh",
        max_iter=1,
        optimizer=STILL,
        prior=0.5,
        random_state=0,
        **AS_GIVEN,
    ).fit(np.column_stack([X, np.zeros(30)]), y)
    mean, _ = reg.network_.layers(torch.as_tensor(reg.posterior_.loc))[0]
    std, _ = reg.network_.layers(torch.as_tensor(reg.posterior_.scale))[0]
    np.testing.assert_allclose(mean[:, 3], 0.0, atol=1e-8)
    np.testing.assert_allclose(std[:, 3], 0.5, rtol=1e-8)
