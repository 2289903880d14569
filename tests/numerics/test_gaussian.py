"""Divergences and densities of normals, against torch.distributions."""

import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from skbayes_sym.numerics.gaussian import (
    kl_elementwise,
    kl_from_standard,
    log_normal,
    log_normal_multivariate,
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
    assert_close(log_normal((x - loc).square(), log_scale), expected)
    away = ((x - loc) / log_scale.exp()).square().sum()
    assert_close(log_normal_multivariate(away, 2.0 * log_scale.sum(), 5), expected.sum())
