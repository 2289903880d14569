"""Inverses of distribution functions."""

import numpy as np
import pytest
import torch
from scipy import stats

from skbayes_sym.numerics.bisection import bisect_counts, invert_cdf, solve_bracket

LEVELS = torch.tensor([1e-12, 1e-6, 0.05, 0.3, 0.5, 0.9, 0.999999], dtype=torch.float64)


def tensor_function(function):
    return lambda y: torch.as_tensor(function(y.numpy()))


@pytest.mark.parametrize(
    "law", [stats.norm(3, 2), stats.t(1.5), stats.gamma(2.0), stats.beta(9, 2)]
)
@pytest.mark.parametrize("width", [1e-3, 1e3])
def test_continuous_quantiles_are_accurate_to_rounding(law, width):
    got = invert_cdf(
        tensor_function(law.cdf), LEVELS, torch.zeros(7).double(), torch.full((7,), width).double()
    )
    np.testing.assert_allclose(law.cdf(got.numpy()), LEVELS, rtol=1e-9, atol=0)


@pytest.mark.parametrize("law", [stats.poisson(0.01), stats.nbinom(2, 0.001), stats.binom(9, 0.4)])
@pytest.mark.parametrize("middle", [0.0, 700.0])
def test_discrete_quantiles_are_the_smallest_counts_that_reach_a_level(law, middle):
    middle = torch.full((7,), middle).double()
    got = invert_cdf(tensor_function(law.cdf), LEVELS, middle, is_discrete=True)
    np.testing.assert_array_equal(got, law.ppf(LEVELS.numpy()))


def test_a_smooth_function_needs_a_quarter_of_the_steps_of_bisection():
    calls = []

    def cdf(y):
        calls.append(len(y))
        return torch.special.ndtr(y)

    got = solve_bracket(cdf, LEVELS[2:6], torch.full((4,), -4.0).double(), torch.full((4,), 5.0))
    np.testing.assert_allclose(got, stats.norm.ppf(LEVELS[2:6]), rtol=1e-14, atol=1e-15)
    assert len(calls) <= 15


def test_a_jump_is_found():
    got = solve_bracket(lambda y: 1.0 * (y >= 0.7), 0.5, *torch.eye(2).double())
    np.testing.assert_allclose(got, 0.7, rtol=1e-15)


def test_counts_beyond_the_integers_of_float64_end():
    lower = torch.tensor([1e17], dtype=torch.float64)
    got = bisect_counts(lambda y: 1.0 * (y > 1e17), 0.5, lower, lower + 64.0)
    assert 1e17 < float(got) <= 1e17 + 32.0
