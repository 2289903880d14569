"""Known errors and exposures per row in Laplace approximations."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skbayes_sym import (
    BayesianLinearRegressor,
    EvidenceAdam,
    GaussNewton,
    LaplaceRegressor,
    load,
    predictive,
    save,
)
from skbayes_sym.models import NegativeBinomial

AS_GIVEN = {"standardize": False}
FULL = EvidenceAdam(curvature="full")


def noisy_rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    noise_std = np.exp(rng.uniform(np.log(0.05), np.log(2.0), n))
    y = 2.0 * X[:, 0] + 0.3 * rng.normal(size=n) + noise_std * rng.normal(size=n)
    return X, y, noise_std


def linear_module():
    return torch.nn.Linear(3, 1, bias=False)


def test_a_linear_module_is_the_linear_model():
    """The Laplace approximation of a normal posterior is exact."""
    X, y, noise_std = noisy_rows(30)
    options = {"prior": 0.7, "noise_std": 0.4, **AS_GIVEN}
    linear = BayesianLinearRegressor(fit_intercept=False, **options).fit(X, y, noise_std=noise_std)
    reg = LaplaceRegressor(network=linear_module(), optimizer=FULL, random_state=0, **options).fit(
        X, y, noise_std=noise_std
    )
    assert reg.log_evidence_ == pytest.approx(linear.log_evidence_, abs=1e-6)
    for errors in (None, noise_std):
        mine = predictive(reg, X, noise_std=errors)
        theirs = predictive(linear, X, noise_std=errors)
        np.testing.assert_allclose(mine.mean(), theirs.mean(), atol=1e-6)
        np.testing.assert_allclose(mine.std(), theirs.std(), rtol=1e-6)
        np.testing.assert_allclose(mine.log_prob(y), theirs.log_prob(y), atol=1e-5)


@pytest.mark.long
def test_learned_noise_is_that_of_the_linear_model():
    X, y, noise_std = noisy_rows(200)
    linear = BayesianLinearRegressor(fit_intercept=False, **AS_GIVEN)
    linear.fit(X, y, noise_std=noise_std)
    reg = LaplaceRegressor(network=linear_module(), optimizer=FULL, random_state=0, **AS_GIVEN)
    reg.fit(X, y, noise_std=noise_std)
    assert reg.noise_std_ == pytest.approx(linear.noise_std_, rel=0.05)
    assert reg.log_evidence_ == pytest.approx(linear.log_evidence_, abs=0.05)
    assert clone(reg).fit(X, y).noise_std_ > 0.6


@pytest.mark.long
def test_few_rows_widen_predictions_as_those_of_the_linear_model():
    X, y, noise_std = noisy_rows(8)
    options = {"prior": 0.7, **AS_GIVEN}
    linear = BayesianLinearRegressor(fit_intercept=False, **options).fit(X, y, noise_std=noise_std)
    reg = LaplaceRegressor(
        network=linear_module(), optimizer=FULL, tol=None, random_state=0, **options
    ).fit(X, y, noise_std=noise_std)
    assert reg.noise_std_ == pytest.approx(linear.noise_std_, rel=0.1)
    expected = linear.predict(X, return_std=True)[1]
    np.testing.assert_allclose(reg.predict(X, return_std=True)[1], expected, rtol=0.02)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:the noise")
@pytest.mark.parametrize("optimizer", ["adam", FULL], ids=["adam", "gauss_newton"])
@pytest.mark.parametrize("n_rows", [2, 5])
def test_flat_networks_predict_few_rows_as_a_mean_that_is_fitted(optimizer, n_rows):
    """The mean of the targets takes a degree of freedom, and has a variance."""
    X, y, _ = noisy_rows(n_rows)
    constant = BayesianLinearRegressor(prior=1e-5).fit(X, y)
    reg = LaplaceRegressor((2,), prior=1e-5, max_iter=100, optimizer=optimizer, random_state=0)
    expected = constant.predict_quantiles(X, (0.05, 0.25, 0.5, 0.95))
    quantiles = reg.fit(X, y).predict_quantiles(X, (0.05, 0.25, 0.5, 0.95))
    np.testing.assert_allclose(quantiles, expected, rtol=0.02, atol=0.02 * y.std())


@pytest.mark.parametrize("n_targets", [1, 2])
def test_equal_known_errors_are_fixed_noise(n_targets):
    """Also if targets are standardised, and with a hidden layer."""
    X, y, _ = noisy_rows(40)
    targets = np.column_stack([y, -5.0 * y])[:, :n_targets]
    known = np.array([0.5, 2.0])[:n_targets]
    options = {"max_iter": 100, "tol": None, "random_state": 0, "optimizer": "adam"}
    plain = LaplaceRegressor((4,), noise_std=known, **options).fit(X, targets)
    errors = np.broadcast_to(known, targets.shape)
    reg = LaplaceRegressor((4,), noise_std=1e-6, **options).fit(X, targets, noise_std=errors)
    assert reg.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-6)
    std = plain.predict(X, return_std=True)[1]
    np.testing.assert_allclose(predictive(reg, X, noise_std=errors).std(), std, rtol=1e-5)


def test_exposures_of_linear_counts():
    """Under a wide prior, the mode is that of the linear model."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    exposure = np.exp(rng.uniform(-1.0, 3.0, 200))
    y = rng.poisson(exposure * np.exp(0.3 + 0.5 * X[:, 0]))
    options = {"likelihood": "poisson", "random_state": 0, "prior": 100.0, "optimizer": FULL}
    reg = LaplaceRegressor((), **options).fit(X, y, exposure=exposure)
    linear = BayesianLinearRegressor("poisson", prior=100.0).fit(X, y, exposure=exposure)
    np.testing.assert_allclose(reg.predict(X), linear.predict(X), rtol=0.01)
    mine = predictive(reg, X, exposure=exposure)
    np.testing.assert_allclose(mine.mean(), exposure * reg.predict(X), rtol=1e-6)
    theirs = predictive(linear, X, exposure=exposure)
    # The intercept of the linear model has no variance.
    np.testing.assert_allclose(mine.log_prob(y), theirs.log_prob(y), atol=0.05)
    assert reg.score(X, y, exposure=exposure) == pytest.approx(
        linear.score(X, y, exposure=exposure), abs=0.01
    )


@pytest.mark.long
def test_dispersion_is_learned_with_exposures():
    """Counts of long exposures have the relative variance of their rate."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1))
    exposure = np.exp(rng.uniform(2.0, 5.0, 300))
    y = rng.poisson(exposure * np.exp(0.5 * X[:, 0]) * rng.gamma(4.0, 0.25, 300))
    reg = LaplaceRegressor((), likelihood="negative_binomial", random_state=0)
    reg.fit(X, y, exposure=exposure)
    assert isinstance(reg.likelihood_, NegativeBinomial)
    assert float(reg.likelihood_.dispersion) == pytest.approx(0.25, rel=0.25)


def test_saved_files_keep_the_fit(tmp_path):
    X, y, noise_std = noisy_rows(20)
    reg = LaplaceRegressor((2,), max_iter=50, tol=None, random_state=0)
    reg.fit(X, y, noise_std=noise_std)
    assert reg.optimizer_ == "adam"
    save(reg, tmp_path / "model")
    std = predictive(reg, X, noise_std=noise_std).std()
    again = predictive(load(tmp_path / "model"), X, noise_std=noise_std).std()
    np.testing.assert_array_equal(again, std)


def test_refused():
    X, y, noise_std = noisy_rows(20)
    with pytest.raises(ValueError, match=r"Gauss-Newton steps take no noise_std.*'adam'"):
        LaplaceRegressor((2,), optimizer=GaussNewton(1)).fit(X, y, noise_std=noise_std)
    with pytest.raises(ValueError, match=r"likelihood='heteroscedastic'.*default likelihood"):
        LaplaceRegressor(likelihood="heteroscedastic").fit(X, y, noise_std=noise_std)
    two = np.column_stack([y, y])
    with pytest.raises(ValueError, match=r"of shape \(20,\) or \(20, 2\), got shape \(20, 3\)"):
        LaplaceRegressor().fit(X, two, noise_std=np.ones((20, 3)))
