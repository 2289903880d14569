"""Autograd's view of a log density whose derivatives are known."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.log_density import AutogradPosterior


def conjugate(**changes):
    """Prior N(0, 4), one datum y = 1 of N(position, 1), coordinate by coordinate."""
    prior = torch.distributions.Normal(0.0, 2.0)
    datum = torch.distributions.Normal(1.0, 1.0)
    return AutogradPosterior(
        2,
        lambda q: prior.log_prob(q).sum(1),
        lambda q: datum.log_prob(q).sum(1),
        lambda n, generator: 2.0 * torch.randn(n, 2, generator=generator),
        **changes,
    )


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("inference_mode", [False, True])
def test_value_and_gradient_of_a_normal(beta, inference_mode, generator):
    density = conjugate().tempered(beta)
    with torch.inference_mode(inference_mode):
        position = torch.randn(5, 2, generator=generator, dtype=torch.float64)
        value, gradient = density.evaluate(position)
    assert_close(gradient, -position / 4.0 - beta * (position - 1.0), rtol=1e-14, atol=1e-14)
    assert_close(value, density(position), rtol=0, atol=0)
    whole = density.log_prior(position) + beta * density.log_likelihood(position)
    assert_close(value, whole, rtol=1e-14, atol=1e-14)
    assert not value.requires_grad
    assert not gradient.requires_grad


def test_prior_draws(generator):
    assert conjugate().sample_prior(7, generator=generator).shape == (7, 2)
    bare = AutogradPosterior(2, lambda q: q.sum(1), lambda q: q.sum(1))
    with pytest.raises(ValueError, match="has no prior_sampler"):
        bare.sample_prior(1, generator=generator)
