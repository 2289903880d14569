"""KL between consecutive predictives: a closed form, and the rate at which it falls."""

import torch
from predictive_convergence import consecutive_kl
from torch.testing import assert_close


def normal(y, loc, scale=1.0):
    return torch.distributions.Normal(loc, scale).log_prob(y)


def test_against_the_sum_written_out(generator):
    y = torch.linspace(-3, 3, 61, dtype=torch.float64)
    loc = torch.randn(6, 4, 1, generator=generator, dtype=torch.float64)
    log_density = normal(y, loc, 0.3)
    density = log_density.exp().cumsum(0)
    weight = torch.full_like(y, 0.1)
    weight[[0, -1]] = 0.05
    mass = density * weight / (density * weight).sum(-1, keepdim=True)
    expected = (mass[1:] * (mass[1:] / mass[:-1]).log()).sum(-1).mean(-1)
    assert_close(consecutive_kl(log_density, y), expected)


def test_two_gaussians_far_apart():
    """p_2 = (N(-5) + N(5)) / 2 against p_1 = N(-5): 1/2 (0 + KL(N(5) || N(-5))) - log 2."""
    y = torch.linspace(-15, 15, 3001, dtype=torch.float64)
    loc = torch.tensor([-5.0, 5.0, -5.0], dtype=torch.float64).reshape(3, 1, 1)
    found = consecutive_kl(normal(y, loc), y)
    assert_close(found[0], torch.tensor(0.5 * 50.0 - 0.6931471805599453).double())
    third = 2 / 3 * torch.tensor(4 / 3).double().log() + 1 / 3 * torch.tensor(2 / 3).double().log()
    assert_close(found[1], third, rtol=0, atol=1e-5)


def test_it_falls_and_is_zero_for_equal_draws(generator):
    y = torch.linspace(-3, 3, 50, dtype=torch.float64)
    loc = torch.randn(200, 5, 1, generator=generator, dtype=torch.float64)
    found = consecutive_kl(normal(y, loc, 0.5), y)
    assert bool((found >= -1e-12).all())
    assert float(found[-20:].mean()) < 0.01 * float(found[:5].mean())
    same = consecutive_kl(normal(y, loc[:1].expand(5, 5, 1), 0.5), y)
    assert_close(same, torch.zeros(4).double(), rtol=0, atol=1e-14)
    assert consecutive_kl(normal(y, loc[:1]), y).shape == (0,)
