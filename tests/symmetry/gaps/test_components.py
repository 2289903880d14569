"""The gap of a factorisation's components under exchanges and flips."""

from math import lgamma, log

import pytest
import torch
from gap_oracle import Rows

from skbayes_sym.symmetry.gaps.components import ComponentGap
from skbayes_sym.symmetry.gaps.rotations import IsotropicRotationGap
from skbayes_sym.symmetry.gaps.sign_flips import SignFlipGap
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units


def group_of(n, k, *, permute=True):
    return Units(torch.arange(n * k).view(n, k).mT, permute=permute, flip=True)


def separated(k, n=30):
    """Components far apart and far from 0, elementwise."""
    mean = torch.zeros(n, k, dtype=torch.float64)
    mean[torch.arange(n), torch.arange(n) % k] = 30.0
    return Rows(mean, torch.eye(k, dtype=torch.float64).repeat(n, 1, 1))


@pytest.mark.parametrize("k", [1, 3, 8])
def test_far_modes_give_the_order_of_the_group(k, generator):
    found = ComponentGap(group_of(30, k)).estimate(separated(k), generator=generator)
    assert found.value == pytest.approx(lgamma(k + 1) + k * log(2.0), abs=1e-9)


def test_gaps_of_subgroups_are_ordered(generator):
    """Flips within signed permutations within rotations; the last exact for isotropic rows."""
    mean = 0.5 * torch.randn(20, 3, generator=generator, dtype=torch.float64)
    posterior = Rows(mean, 0.4 * torch.eye(3, dtype=torch.float64).repeat(20, 1, 1))
    flips, both, all_of_it = (
        gap.estimate(posterior, generator=generator)
        for gap in (
            SignFlipGap(group_of(20, 3, permute=False)),
            ComponentGap(group_of(20, 3)),
            IsotropicRotationGap(Orthogonal(torch.arange(60).view(20, 3))),
        )
    )
    assert 0.0 < flips.value < both.value + 3.0 * both.standard_error
    slack = 3.0 * (both.standard_error + all_of_it.standard_error)
    assert both.value < all_of_it.value + slack


def test_up_to_fourteen(generator):
    gap = ComponentGap(group_of(28, 14))
    found = gap.value_and_gradients(separated(14, 28), generator=generator)
    assert float(found.value) == pytest.approx(lgamma(15) + 14 * log(2.0), abs=1e-9)
    assert bool(found.d_mean.isfinite().all())
    assert bool(found.added_precision.isfinite().all())
