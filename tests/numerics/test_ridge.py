"""Bayesian linear regression in either dimension, against dense algebra."""

from math import log, pi

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.ridge import RidgePosterior

shapes = pytest.mark.parametrize("shape", [(2, 4, 3), (2, 4, 4), (4, 7), (3, 2, 5, 1), (1, 3)])


def problem(shape, generator):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(*shape), normal(shape[-2]).exp(), normal(shape[-2])


def log_evidence(features, scale, y):
    return RidgePosterior(features, scale, y).log_evidence()


def dense(features, scale, y):
    """The posterior of the weights, by inverting the precision."""
    design = scale.unsqueeze(-1) * features
    eye = torch.eye(features.shape[-1], dtype=torch.float64)
    covariance = torch.linalg.inv(eye + design.mT @ design)
    mean = (covariance @ design.mT @ y.unsqueeze(-1)).squeeze(-1)
    return MultivariateNormal(mean, 0.5 * (covariance + covariance.mT))


@shapes
def test_evidence_is_the_dense_density(shape, generator):
    features, scale, y = problem(shape, generator)
    design = scale.diag() @ features
    covariance = torch.eye(len(y), dtype=torch.float64) + design @ design.mT
    expected = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    value = log_evidence(features, scale, y) - 0.5 * len(y) * log(2 * pi)
    assert_close(value, expected, rtol=1e-12, atol=1e-12)


@shapes
def test_gradient_of_the_evidence(shape, generator):
    leaves = [t.requires_grad_() for t in problem(shape, generator)]
    assert torch.autograd.gradcheck(log_evidence, leaves)


@pytest.mark.parametrize("d", [2, 7])
def test_gradient_where_targets_share_the_features(d, generator):
    """Scales and targets (T, n) of features (S, 1, n, d)."""
    leaves = [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 1, 4, d), (3, 4), (3, 4))
    ]
    assert log_evidence(*leaves).shape == (2, 3)
    assert torch.autograd.gradcheck(log_evidence, leaves)


@shapes
def test_mean_variance_and_kl_are_the_dense_ones(shape, generator):
    ridge = RidgePosterior(*problem(shape, generator))
    q = dense(ridge.features, ridge.scale, ridge.y)
    assert_close(ridge.mean, q.mean, rtol=1e-11, atol=1e-12)
    new = torch.randn((*shape[:-2], 6, shape[-1]), generator=generator, dtype=torch.float64)
    variance = torch.einsum("...nd,...de,...ne->...n", new, q.covariance_matrix, new)
    assert_close(ridge.variance(new), variance, rtol=1e-10, atol=1e-12)
    prior = MultivariateNormal(torch.zeros_like(q.mean), torch.eye(shape[-1]).double())
    assert_close(ridge.kl(), kl_divergence(q, prior), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("d", [2, 6], ids=["narrow", "wide"])
def test_draws_have_the_posterior_moments(d, generator):
    features, scale, y = problem((4, d), generator)
    n = 20_000
    draws = RidgePosterior(features.expand(n, -1, -1), scale, y).draw(generator=generator)
    q = dense(features, scale, y)
    sd = q.variance.sqrt()
    assert bool(((draws.mean(0) - q.mean).abs() < 5 * sd / n**0.5).all())
    error = (draws.T.cov() - q.covariance_matrix).abs()
    assert bool((error < 5 * (2 / n) ** 0.5 * torch.outer(sd, sd)).all())


@pytest.mark.parametrize("shape", [(2, 4, 7), (2, 4, 3)])
def test_float32(shape, generator):
    arguments = problem(shape, generator)
    value = log_evidence(*(t.float() for t in arguments))
    # Condition numbers here are below 1e3, the rounding of float32 6e-8.
    assert_close(value, log_evidence(*arguments).float(), rtol=1e-4, atol=1e-4)


def test_an_overwhelming_design_names_remedies():
    features = torch.full((3, 2), float("nan"))
    with pytest.raises(NotPositiveDefiniteError, match=r"ridge regression.*noise_std.*float64"):
        log_evidence(features, torch.ones(3), torch.ones(3))
