"""Divergences and densities of normals, against torch.distributions."""

from math import exp, factorial

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from skbayes_sym.numerics.gaussian import (
    gauss_hermite,
    kl_elementwise,
    kl_from_standard,
    multivariate_normal_log_prob,
    normal_log_prob,
    sobol_normal,
)


def normal(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_elementwise_kl(generator):
    loc, log_variance, prior = (normal(generator, 4) for _ in range(3))
    q, p = Normal(loc, (0.5 * log_variance).exp()), Normal(0.0, (0.5 * prior).exp())
    assert_close(kl_elementwise(loc, log_variance, prior), kl_divergence(q, p))


def test_kl_from_standard(generator):
    root, m = normal(generator, 3, 4, 4), normal(generator, 3, 4)
    s = root @ root.mT
    p = MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double())
    trace = s.diagonal(dim1=-2, dim2=-1).sum(-1)
    value = kl_from_standard(trace, m.square().sum(-1), torch.logdet(s), 4)
    assert_close(value, kl_divergence(MultivariateNormal(m, s), p))


def test_log_densities(generator):
    x, loc, log_scale = (normal(generator, 5) for _ in range(3))
    expected = Normal(loc, log_scale.exp()).log_prob(x)
    assert_close(normal_log_prob((x - loc).square(), log_scale), expected)
    away = ((x - loc) / log_scale.exp()).square().sum()
    assert_close(multivariate_normal_log_prob(away, 2.0 * log_scale.sum(), 5), expected.sum())


def test_gauss_hermite_is_exact_for_polynomials():
    nodes, weights = gauss_hermite(8)
    for k in range(8):  # E[z^2k] = (2k)! / (2^k k!), degree up to 14 <= 2 * 8 - 1
        exact = factorial(2 * k) / (2**k * factorial(k))
        assert float(weights @ nodes ** (2 * k)) == pytest.approx(exact, rel=1e-12)
        assert float(weights @ nodes ** (2 * k + 1)) == pytest.approx(0.0, abs=1e-9 * exact)


def test_sobol_normal_is_symmetric_seeded_and_normal():
    points = sobol_normal(500, 3, seed=1)
    assert points.shape == (512, 3)
    assert_close(points[:256], -points[256:], rtol=0, atol=0)
    assert_close(points, sobol_normal(500, 3, seed=1), rtol=0, atol=0)
    assert not torch.equal(points, sobol_normal(500, 3, seed=2))
    second = points.T @ points / 512
    assert_close(second, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-12)
    few = sobol_normal(20, 9, seed=1)  # too few points for exact second moments
    assert_close(few[:16], -few[16:], rtol=0, atol=0)
    assert not torch.allclose(few.T @ few / 32, torch.eye(9, dtype=torch.float64), atol=0.01)


def test_sobol_normal_is_unbiased():
    """Over many scramblings the mean of E[exp(z1 - z2 / 2)] has its closed form.

    These are too few points for exact second moments.
    """
    values = torch.stack(
        [(p[:, 0] - 0.5 * p[:, 1]).exp().mean() for p in (sobol_normal(16, 2, seed=s)
                                                         for s in range(400))]
    )  # fmt: skip
    error = float(values.std() / 400**0.5)
    assert abs(float(values.mean()) - exp(0.625)) < 4 * error


def test_nodes_asked_for_first_in_inference_mode_can_be_differentiated_through():
    gauss_hermite.cache_clear()
    with torch.inference_mode():
        gauss_hermite(7)
    nodes, weights = gauss_hermite(7)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    ((scale * nodes).square() @ weights).backward()
    torch.testing.assert_close(scale.grad, torch.tensor(2.0, dtype=torch.float64))
