"""The gap of sign flips: a function of one number, and the components that have it."""

from math import lgamma, log

import pytest
import torch
from gap_oracle import Rows, elements
from torch.testing import assert_close

from skbayes_sym.symmetry.gaps.rotations import (
    AnchoredRotationGap,
    IsotropicRotationGap,
)
from skbayes_sym.symmetry.gaps.row_gaps import (
    AnchoredComponentGap,
    ComponentGap,
    SignFlipGap,
    row_gap,
    sign_flip_gap,
    sign_flip_slope,
)
from skbayes_sym.symmetry.orthogonal import Orthogonal
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


def group_of(n, k, *, permute=True):
    return Units(torch.arange(n * k).view(n, k).mT, permute=permute, flip=True)


def separated(k, n=30):
    """Components far apart and far from 0, elementwise."""
    mean = torch.zeros(n, k, dtype=torch.float64)
    mean[torch.arange(n), torch.arange(n) % k] = 30.0
    return Rows(mean, torch.eye(k, dtype=torch.float64).repeat(n, 1, 1))


def test_up_to_fourteen(generator):
    gap = ComponentGap(group_of(28, 14))
    found = gap.value_and_gradients(separated(14, 28), generator=generator)
    assert float(found.value) == pytest.approx(lgamma(15) + 14 * log(2.0), abs=1e-9)
    assert bool(found.d_mean.isfinite().all())
    assert bool(found.added_precision.isfinite().all())


@pytest.mark.parametrize("permute", [True, False])
def test_values_are_averages_over_the_group(permute, generator):
    inner = torch.randn(5, 3, 3, generator=generator, dtype=torch.float64)
    group = elements(group_of(1, 3, permute=permute), 3)
    each = torch.einsum("bij,gij->gb", inner, group)
    expected = inner.diagonal(dim1=-2, dim2=-1).sum(-1) - each.logsumexp(0) + log(len(group))
    assert_close(AnchoredComponentGap(group_of(4, 3, permute=permute)).values(inner), expected)


def test_the_gap_of_rows_by_group():
    index = torch.arange(12).view(4, 3)
    assert isinstance(row_gap(Orthogonal(index), is_isotropic=True), IsotropicRotationGap)
    assert isinstance(row_gap(Orthogonal(index), is_isotropic=False), AnchoredRotationGap)
    one = row_gap(Orthogonal(index.view(12, 1)), is_isotropic=False)
    assert isinstance(one, SignFlipGap)
    assert (one.group.n_units, one.group.permutes, one.group.flips) == (1, False, True)
    flips = row_gap(Units(index.mT, permute=False, flip=True), is_isotropic=False)
    assert isinstance(flips, SignFlipGap)
    with pytest.raises(TypeError, match="isn't implemented for object"):
        row_gap(object(), is_isotropic=False)
