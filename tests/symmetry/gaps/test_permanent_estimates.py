"""Estimates of a permanent: sides, limits, and which one is taken."""

from math import factorial, log

import pytest
import torch
from symmetry.gaps.unit_problems import assert_mean, gap_of, spread_units, units
from torch.testing import assert_close

from skbayes_sym.symmetry.gaps.permanent_estimates import (
    Exact,
    ExactUpTo,
    Importance,
    InfoNCE,
    Soules,
)
from skbayes_sym.symmetry.gaps.unit_gap import unit_gap
from skbayes_sym.symmetry.units import Units


# log K - E log(1 + Binomial(K - 1, 1/d!)): what iid InfoNCE says of separated units
@pytest.mark.parametrize(
    ("d", "k", "expected"), [(2, 2, 0.346574), (3, 5, 1.192231), (5, 20, 2.889307)]
)
def test_saturated_infonce_iid(d, k, expected, generator):
    loc = 100.0 * torch.arange(d, dtype=torch.float64)
    group = Units(units(d))
    values = torch.cat(
        [
            gap_of(group, loc, torch.ones(d), generator, estimate=InfoNCE(k, replacement=True), n=1)
            for _ in range(500)
        ]
    )
    assert_mean(values, expected)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_infonce_without_replacement_is_exact_at_the_whole_group(d, generator):
    loc, scale = torch.randn(2, 2 * d, generator=generator, dtype=torch.float64)
    noise = torch.randn(30, 2 * d, generator=generator, dtype=torch.float64)
    group = Units(units(d, 2))
    exact, infonce = (
        unit_gap(group, loc, scale.exp(), noise, e, generator=generator)
        for e in (Exact(), InfoNCE(factorial(d)))
    )
    assert_close(infonce, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_permutations", [1, 2, 16])
def test_equal_weights_leave_nothing_to_estimate(n_permutations, generator):
    """Every assignment counts alike, so any number of them says the same: ``log d!``."""
    d = 4
    weights = torch.full((3, d, d), 0.7, dtype=torch.float64)
    expected = torch.full((3,), log(factorial(d)) + 0.7 * d, dtype=torch.float64)
    for estimate in (Importance, InfoNCE):
        found = estimate(n_permutations)(weights, generator=generator)
        assert_close(found, expected, atol=1e-6, rtol=0.0)


def test_exact_up_to_switches_by_width(generator):
    estimate = ExactUpTo(3, Soules())
    narrow, wide = (torch.randn(7, d, d, generator=generator) for d in (3, 4))
    assert torch.equal(estimate(narrow, generator=generator), Exact()(narrow, generator=generator))
    assert torch.equal(estimate(wide, generator=generator), Soules()(wide, generator=generator))


def test_sides_are_kept_apart(generator):
    loc, scale = spread_units(3, 2, 1.0)
    with pytest.raises(ValueError, match="exact or upper"):
        gap_of(Units(units(3, 2)), loc, scale, generator, estimate=Soules(), n=2,
               bound="upper")  # fmt: skip
