"""The continuous ranked probability score against closed forms, draws and sums."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from skbayes_sym.models.crps import _normal_mixture_crps, crps
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.predictive_mixtures import NormalMixture, TargetMixture


def mixture(loc, sd, log_weights=None):
    loc = torch.as_tensor(loc, dtype=torch.float64)[:, None, None]
    variance = torch.as_tensor(sd, dtype=torch.float64)[:, None, None] ** 2
    return NormalMixture(loc, torch.zeros(()), variance, log_weights)


@pytest.mark.parametrize("y", [-4.0, 0.3, 1.0, 9.0])
def test_of_one_normal_it_is_the_closed_form(y):
    z = (y - 1.0) / 2.0
    expected = 2.0 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5)
    found = crps(mixture([1.0], [2.0]), torch.tensor([[y]], dtype=torch.float64))
    np.testing.assert_allclose(found.item(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("loc", "sd", "weight"),
    [
        ([-2.0, 0.5, 3.0], [0.3, 1.0, 0.1], [0.5, 0.3, 0.2]),
        ([0.0, 0.0], [1.0, 1e-3], [0.5, 0.5]),  # widths of very different size
        ([0.2, 50.0, -30.0], [1e-4, 40.0, 3.0], [0.6, 0.1, 0.3]),
        ([0.0, 0.0], [1e-4, 1e3], [1.0 - 1e-6, 1e-6]),  # most of it beyond the quantiles
    ],
)
@pytest.mark.parametrize("copies", [1, 101])  # of many normals it is an integral
def test_of_a_mixture_it_is_mean_distance_less_half_the_mean_difference(loc, sd, weight, copies):
    """E|Y - y| - E|Y - Y'| / 2, every term in closed form for pairs of normals."""
    loc, sd, weight = (np.tile(a, copies) for a in (loc, sd, np.array(weight) / copies))

    def mean_abs(mean, scale):
        z = mean / scale
        return scale * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z))

    y = np.array([-7.0, 0.0, 0.2, 0.7, 40.0])
    first = mean_abs(loc - y[:, None], sd) @ weight
    pairs = weight @ mean_abs(loc[:, None] - loc, np.hypot(sd[:, None], sd)) @ weight
    distribution = mixture(loc, sd, torch.as_tensor(np.log(weight)))
    distribution = replace(distribution, loc=distribution.loc.expand(-1, len(y), -1))
    values = crps(distribution, torch.as_tensor(y)[:, None])[:, 0]
    rtol = 1e-12 if copies == 1 else 1e-6
    np.testing.assert_allclose(values, first - 0.5 * pairs, rtol=rtol)


def test_of_counts_it_is_a_sum():
    rate, y = 3.7, 5
    outputs = torch.full((1, 1, 1), np.log(rate), dtype=torch.float64)
    distribution = TargetMixture(Poisson(), outputs, torch.zeros(1, dtype=torch.float64))
    found = crps(distribution, torch.tensor([[float(y)]], dtype=torch.float64))
    k = np.arange(200)
    expected = np.sum((stats.poisson.cdf(k, rate) - (k >= y)) ** 2)
    np.testing.assert_allclose(found.item(), expected, rtol=1e-6)


@pytest.mark.long
def test_widths_that_differ_by_seven_powers_of_ten():
    """The integral over 201 normals against their closed form."""
    rng = np.random.default_rng(1)
    loc, sd = rng.standard_normal((201, 6, 1)), 10.0 ** rng.uniform(-3.5, 3.5, (201, 6, 1))
    distribution = NormalMixture(*map(torch.as_tensor, (loc, np.zeros((6, 1)), sd**2)))
    y = torch.as_tensor(rng.standard_normal((6, 1)))
    torch.testing.assert_close(
        crps(distribution, y), _normal_mixture_crps(distribution, y), rtol=1e-6, atol=0.0
    )
