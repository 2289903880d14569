"""The low-rank posterior against dense algebra."""

import numpy as np
import pytest
import torch
from scipy import stats

from skbayes_sym.inference.linear import low_rank
from skbayes_sym.inference.linear.low_rank import LowRankGaussian


def make(with_basis, n_rows=2, k=5, r=3):
    """A posterior and its dense covariance."""
    rng = np.random.default_rng(0)
    if not with_basis:
        r = k
    root = rng.normal(size=(n_rows * r, n_rows * r))
    covariance = root @ root.T / (n_rows * r) + 0.1 * np.eye(n_rows * r)
    basis = np.linalg.qr(rng.normal(size=(k, r)))[0] if with_basis else None
    q = np.eye(k) if basis is None else basis
    scale = rng.gamma(2.0, size=k)
    posterior = LowRankGaussian(rng.normal(size=(n_rows, k)), scale, basis, covariance, 1.7)
    wide = np.kron(np.eye(n_rows), scale[:, None] * q)
    free = 1.7 * np.diag(scale) @ (np.eye(k) - q @ q.T) @ np.diag(scale)
    return posterior, wide @ covariance @ wide.T + np.kron(np.eye(n_rows), free)


both = pytest.mark.parametrize("with_basis", [False, True], ids=["K<=N", "K>N"])


@both
def test_covariance_and_variance(with_basis):
    posterior, dense = make(with_basis)
    np.testing.assert_allclose(posterior.dense_covariance(), dense, atol=1e-13)
    np.testing.assert_allclose(posterior.variance().ravel(), np.diag(dense), rtol=1e-12)


def test_no_variance_is_below_zero():
    """However well known a weight is: what the prior leaves of it is no difference."""
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 8)))[0]
    basis = np.vstack([basis[:8], np.zeros(8)])
    basis[:8] = np.linalg.qr(basis[:8])[0]
    posterior = LowRankGaussian(np.zeros((1, 9)), np.ones(9), basis, 1e-30 * np.eye(8), 1.0)
    assert (posterior.variance() >= 0.0).all()


@both
def test_precision(with_basis):
    posterior, dense = make(with_basis)
    expected = np.linalg.inv(dense)
    np.testing.assert_allclose(posterior.precision(), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(posterior.precision_diagonal(), np.diag(expected), rtol=1e-10)
    log_det = np.linalg.slogdet(expected)[1]
    assert float(posterior.log_det_precision()) == pytest.approx(log_det, abs=1e-11)


@both
def test_log_prob_is_the_normal_density(with_basis):
    posterior, dense = make(with_basis)
    theta = np.random.default_rng(1).normal(size=(4, 10))
    expected = stats.multivariate_normal(posterior.loc.ravel(), dense).logpdf(theta)
    np.testing.assert_allclose(posterior.log_prob(theta).numpy(), expected, rtol=1e-10)


@both
def test_samples_have_the_moments(with_basis, generator):
    posterior, dense = make(with_basis)
    n = 20_000
    draws = posterior.sample(n, generator=generator).numpy()
    sd = np.sqrt(np.diag(dense))
    assert (np.abs(draws.mean(0) - posterior.loc.ravel()) < 5 * sd / n**0.5).all()
    # Entries of a sample covariance: standard error at most sqrt(2 / n) sd_i sd_j.
    assert (np.abs(np.cov(draws.T) - dense) < 5 * (2 / n) ** 0.5 * np.outer(sd, sd)).all()


@both
def test_output_moments(with_basis):
    posterior, dense = make(with_basis)
    x = np.random.default_rng(2).normal(size=(3, 5))
    mean, covariance = posterior.output_moments(torch.as_tensor(x))
    np.testing.assert_allclose(mean.numpy(), x @ posterior.loc.T, rtol=1e-12)
    for row, got in zip(x, covariance.numpy(), strict=True):
        wide = np.kron(np.eye(2), row)
        np.testing.assert_allclose(got, wide @ dense @ wide.T, rtol=1e-10, atol=1e-12)


def test_too_large_a_covariance_names_its_bytes(monkeypatch):
    monkeypatch.setattr(low_rank, "MAX_COVARIANCE_BYTES", 799)
    with pytest.raises(MemoryError, match=r"10 coefficients would take 800 bytes.*coef_std_"):
        make(True)[0].dense_covariance()
