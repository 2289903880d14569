"""Units, and their gap by Monte Carlo."""

import torch

from skbayes_sym.symmetry.gaps.permanent_estimates import (
    Exact,
)
from skbayes_sym.symmetry.gaps.unit_gap import UnitGap

N_DRAWS = 100_000


def units(d, p=1):
    return torch.arange(d * p).reshape(d, p)


def gap_of(group, loc, scale, generator, *, estimate=None, n=N_DRAWS, bound="lower"):
    loc, scale = (torch.as_tensor(t, dtype=torch.float64) for t in (loc, scale))
    noise = torch.randn(n, len(loc), generator=generator, dtype=torch.float64)
    return UnitGap(group, estimate or Exact(), bound).values(loc, scale, noise, generator=generator)


def assert_mean(values, expected, tolerance=0.0):
    """Within 4 standard errors of the Monte Carlo mean."""
    error = 4 * float(values.std()) / len(values) ** 0.5 + tolerance + 1e-12
    assert abs(float(values.mean()) - expected) < error, (float(values.mean()), expected, error)


def spread_units(d, p, spread):
    """The posterior of the note's tightness table."""
    i, k = torch.meshgrid(torch.arange(d), torch.arange(p), indexing="ij")
    loc = spread * torch.sin(1.0 + 3 * i + 5 * k).double()
    scale = (0.5 + 0.3 * torch.cos(2.0 * i + k)).double()
    return loc.flatten(), scale.flatten()
