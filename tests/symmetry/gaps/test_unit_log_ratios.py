"""The matrix of log ratios: known diagonal, written-out gradient."""

from math import log, pi

import pytest
import torch
from torch.distributions import Normal
from torch.nn.functional import softplus
from torch.testing import assert_close

from skbayes_sym.symmetry.gaps.unit_log_ratios import unit_log_ratios
from skbayes_sym.symmetry.units import Units


def units(d, p=1):
    return torch.arange(d * p).reshape(d, p)


def spread_units(d, p, spread):
    """Units as far apart as ``spread`` says, of unequal scales."""
    i, k = torch.meshgrid(torch.arange(d), torch.arange(p), indexing="ij")
    loc = spread * torch.sin(1.0 + 3 * i + 5 * k).double()
    scale = (0.5 + 0.3 * torch.cos(2.0 * i + k)).double()
    return loc.flatten(), scale.flatten()


@pytest.mark.parametrize("narrow", [1.0, 1e-4, 1e-8])
def test_unit_log_ratios_are_zero_on_the_diagonal_however_narrow(narrow, generator):
    """Terms as large as (5 / narrow)^2 would have to cancel there."""
    loc, scale = spread_units(4, 3, 5.0)
    noise = torch.randn(10, 12, generator=generator, dtype=torch.float64)
    plain, flipped = (
        unit_log_ratios(group, loc, narrow * scale, noise).diagonal(dim1=-2, dim2=-1)
        for group in (Units(units(4, 3)), Units(units(4, 3), flip=True))
    )
    assert_close(plain, torch.zeros_like(plain), rtol=0, atol=0)
    sd = narrow * scale
    odd = (loc * (loc + sd * noise) / sd**2).view(10, 4, 3).sum(-1)
    # exp(-2 odd) has the rounding of its exponent, a few hundred times that of a number.
    assert_close(flipped, softplus(-2.0 * odd), rtol=1e-11, atol=0)


@pytest.mark.parametrize("flip", [False, True])
def test_unit_log_ratios_are_the_orbit_density_over_the_own_one(flip, generator):
    """The written-out gradient against autograd through densities written out."""
    d, p = 4, 3
    group = Units(units(d, p), flip=flip)
    noise = torch.randn(5, d * p, generator=generator).double()
    start = torch.randn(2, d * p, generator=generator).double()
    weights = torch.randn(5, d, d, generator=generator).double()
    results = []
    for written_out in (True, False):
        both = start.clone().requires_grad_()
        loc, scale = both[0], both[1].exp()
        if written_out:
            ratios = unit_log_ratios(group, loc, scale, noise)
        else:
            log_q = -0.5 * noise**2 - scale.log() - 0.5 * log(2 * pi)
            w = (loc + scale * noise)[:, group.index].unsqueeze(-2)
            factors = Normal(loc[group.index], scale[group.index])
            density = factors.log_prob(w).sum(-1)
            if flip:
                density = density.logaddexp(factors.log_prob(-w).sum(-1))
            ratios = density - log_q[:, group.index].sum(-1, keepdim=True)
        (gradient,) = torch.autograd.grad((ratios * weights).sum(), both)
        results.append((ratios.detach(), gradient))
    assert_close(*results, rtol=1e-10, atol=1e-10)
