"""Draws and density of every posterior are of one law."""

import numpy as np
import pytest
import torch
from cases import POSTERIORS
from gap_oracle import mean_field, rows
from torch.testing import assert_close

from skbayes_sym.base.posteriors import GaussianRows, MatrixPosterior
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError

every_posterior = pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS)
N_DRAWS = 20_000


@every_posterior
def test_the_density_is_normalised(posterior, generator):
    """Importance sampling from a wider Gaussian."""
    draws = posterior.sample(2000, generator=generator)
    root = torch.linalg.cholesky(2.0 * torch.cov(draws.mT))
    wide = torch.distributions.MultivariateNormal(draws.mean(0), scale_tril=root)
    noise = torch.randn(N_DRAWS, draws.shape[1], generator=generator, dtype=torch.float64)
    theta = wide.loc + noise @ root.mT
    ratio = (posterior.log_prob(theta) - wide.log_prob(theta)).exp()
    assert abs(float(ratio.mean()) - 1.0) < 4.0 * float(ratio.std()) / N_DRAWS**0.5
    assert float(ratio.std()) < 10.0


@every_posterior
def test_draws_have_the_density(posterior, generator):
    """Stein's identities ``E grad log q = 0`` and ``E (theta - m) (grad log q)' = -1``."""
    theta = posterior.sample(N_DRAWS, generator=generator)
    assert theta.dtype == torch.float64
    leaf = theta.clone().requires_grad_()
    (score,) = torch.autograd.grad(posterior.log_prob(leaf).sum(), leaf)
    away = theta - theta.mean(0)
    products = away.unsqueeze(-1) * score.unsqueeze(-2) + torch.eye(theta.shape[1]).double()
    for values in (score, products.flatten(1)):
        error = values.std(0) / N_DRAWS**0.5
        assert bool((values.mean(0).abs() < 4.5 * error).all())


@every_posterior
def test_shapes_and_streams(posterior):
    first, again, other = (
        posterior.sample(6, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    batched = posterior.log_prob(first.view(2, 3, -1))
    assert batched.shape == (2, 3)
    assert_close(batched.flatten(), posterior.log_prob(first), rtol=1e-12, atol=1e-12)


def matrix_posterior(kind):
    mean, cov = (t.numpy() for t in rows(kind))
    return MatrixPosterior(GaussianRows(mean[:2], cov[:2]), GaussianRows(mean[2:], cov[2:]))


def test_a_matrix_posterior_of_diagonal_covariances_is_mean_field(generator):
    posterior, flat = matrix_posterior("diag"), mean_field(10)
    theta = torch.randn(4, 10, generator=generator, dtype=torch.float64)
    assert_close(posterior.log_prob(theta), flat.log_prob(theta), rtol=1e-12, atol=1e-12)


def test_turned_axes_keep_the_law(generator):
    """The density of a turned draw, and isotropy, don't depend on the axes."""
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    for kind in ("isotropic", "diag", "full"):
        posterior = matrix_posterior(kind)
        theta = posterior.sample(5, generator=generator)
        there = (theta.view(5, 5, 2) @ torch.as_tensor(turn).mT).flatten(1)
        turned = posterior.rotated(turn)
        assert_close(turned.log_prob(there), posterior.log_prob(theta), rtol=1e-12, atol=1e-12)
        assert turned.is_isotropic == posterior.is_isotropic == (kind == "isotropic")


def test_point_estimates_have_no_density(generator):
    point = MatrixPosterior(*(GaussianRows(np.ones((2, 2)), np.zeros((2, 2, 2))) for _ in range(2)))
    with pytest.raises(NotPositiveDefiniteError, match="solver='map'"):
        point.sample(1, generator=generator)
