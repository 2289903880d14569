"""Temperatures leave the sample they promise; resampling keeps every weight on average."""

from math import log

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.sampling.smc import (
    effective_fraction,
    log_mean_weight,
    next_temperature,
    systematic_resample,
)

F64 = torch.float64


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("power", [1.0, 8.0, 40.0])
def test_step_leaves_the_effective_fraction(alpha, power, generator):
    """Also for log likelihoods over 40 orders of magnitude, as of prior draws of a network."""
    beta = 0.2
    log_likelihood = -(10.0 ** (power * torch.rand(500, generator=generator, dtype=F64)))
    found = next_temperature(log_likelihood, beta, alpha)
    w = ((found - beta) * log_likelihood).exp()
    expected = alpha if found < 1.0 else None
    fraction = float(w.mean().square() / w.square().mean())
    assert_close(effective_fraction((found - beta) * log_likelihood), fraction)
    if expected is not None and found - beta > 1e-12:  # below, beta + step itself is rounded
        assert abs(fraction - alpha) < 1e-3
    assert beta < found <= 1.0


def test_first_step_from_the_prior_may_be_tiny(generator):
    """At beta = 0 nothing is rounded."""
    log_likelihood = -(10.0 ** (13.0 * torch.rand(500, generator=generator, dtype=F64)))
    found = next_temperature(log_likelihood, 0.0, 0.5)
    assert 0.0 < found < 1e-6
    assert_close(effective_fraction(found * log_likelihood), 0.5, rtol=1e-9, atol=0)


def test_flat_likelihood_needs_one_step():
    assert next_temperature(torch.full((10,), -3.0), 0.0, 0.5) == 1.0


def test_particles_without_likelihood_count_as_lost():
    log_likelihood = torch.tensor([-1.0, -1.0, -torch.inf, -torch.inf], dtype=F64)
    assert_close(effective_fraction(log_likelihood), 0.5)
    assert_close(log_mean_weight(log_likelihood), -1.0 - log(2.0))


def test_effective_fraction_limits():
    one = torch.full((100,), -1e6)
    one[7] = 0.0
    assert_close(effective_fraction(one), 0.01)
    assert_close(effective_fraction(torch.zeros(100) + 700.0), 1.0)


def test_resampling_is_unbiased(generator):
    """N w_i children on average, rounded up or down each time."""
    n, n_runs = 8, 4000
    w = torch.tensor([0.3, 0.0, 0.01, 0.19, 0.2, 0.05, 0.25, 0.0], dtype=F64)
    counts = torch.stack(
        [
            torch.bincount(systematic_resample(w.log() + 3.0, generator=generator), minlength=n)
            for _ in range(n_runs)
        ]
    ).double()
    wanted = n * w
    assert bool(((counts - wanted).abs() < 1.0 + 1e-9).all())
    se = (wanted.frac() * (1 - wanted.frac()) / n_runs).sqrt()
    assert bool(((counts.mean(dim=0) - wanted).abs() <= 4 * se + 1e-12).all())


def test_equal_weights_keep_everybody(generator):
    for _ in range(20):
        ancestors = systematic_resample(torch.full((37,), -2.0), generator=generator)
        assert_close(ancestors, torch.arange(37))
