"""The gap of sign flips: a function of one number, and the components that have it."""

from math import log

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.symmetry.gaps.langevin import isotropic_inner, langevin_gap
from skbayes_sym.symmetry.gaps.permanent_estimates import Exact
from skbayes_sym.symmetry.gaps.sign_flips import sign_flip_gap, sign_flip_slope
from skbayes_sym.symmetry.gaps.units import unit_gap
from skbayes_sym.symmetry.units import Units

# I = log 2 - E softplus(-2 t), t ~ N(a, a): the two-component mixture, by tests/oracles/gaps.py.
FLIPS = {0.03125: 0.01538576, 0.125: 0.05887828, 0.5: 0.20134547, 2.0: 0.50007214, 8.0: 0.68653582}


@pytest.mark.parametrize(("distance", "expected"), FLIPS.items())
def test_sign_flip_gap(distance, expected):
    found = sign_flip_gap(torch.tensor(distance, dtype=torch.float64))
    assert_close(float(found), expected, rtol=0, atol=1e-8)


def test_sign_flip_gap_at_its_ends():
    ends = torch.tensor([0.0, 1e3], dtype=torch.float64)
    gap, slope = sign_flip_gap(ends), sign_flip_slope(ends)
    assert_close(gap, torch.tensor([0.0, log(2.0)], dtype=torch.float64), rtol=0, atol=1e-14)
    assert_close(slope, torch.tensor([0.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-14)


def test_sign_flip_slope_is_the_derivative():
    a, h = torch.tensor([0.01, 0.3, 1.0, 4.0, 15.0], dtype=torch.float64), 1e-5
    expected = (sign_flip_gap(a + h) - sign_flip_gap(a - h)) / (2.0 * h)
    assert_close(sign_flip_slope(a), expected, rtol=0, atol=1e-9)


def test_one_component_is_a_sign_flip_by_three_ways(generator):
    """O(1), the flip's integral, and the permanent of a signed permutation of one unit."""
    mean = torch.tensor([[0.5], [-0.8], [0.3]], dtype=torch.float64)
    variance = torch.tensor([0.4, 0.9, 0.2], dtype=torch.float64)
    expected = float(sign_flip_gap((mean.squeeze() ** 2 / variance).sum()))
    noise = torch.randn(60_000, 1, 1, generator=generator, dtype=torch.float64)
    rotation = langevin_gap(isotropic_inner(mean, variance, noise))
    theta_noise = torch.randn(60_000, 3, generator=generator, dtype=torch.float64)
    flips = unit_gap(
        Units(torch.arange(3).view(1, 3), flip=True), mean.squeeze(), variance.sqrt(),
        theta_noise, Exact(), generator=generator,
    )  # fmt: skip
    for values in (rotation, flips):
        error = 4.0 * float(values.std()) / len(values) ** 0.5
        assert abs(float(values.mean()) - expected) < error
