"""The bridge equation: its fixed point, the unit of the densities, blocks, no overlap."""

from math import log

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from skbayes_sym.inference.modes.bridge import bridge_ratio


def test_ratio_solves_the_fixed_point(generator):
    """Meng and Wong's iteration, run long, and its invariance to the unit of l."""
    proposed = 2.0 * torch.randn(400, generator=generator, dtype=torch.float64) - 1.0
    proposed[:50] = -torch.inf
    at_draws = torch.randn(300, generator=generator, dtype=torch.float64)
    found = bridge_ratio(proposed, at_draws)
    n_effective = found.n_effective
    s1, s2 = 400 / (400 + n_effective), n_effective / (400 + n_effective)
    r = 1.0
    for _ in range(5000):
        above = (proposed.exp() / (s1 * r + s2 * proposed.exp())).mean()
        r = float(above / (1.0 / (s1 * r + s2 * at_draws.exp())).mean())
    assert found.log_ratio == pytest.approx(log(r), abs=1e-8)
    shifted = bridge_ratio(proposed - 900.0, at_draws - 900.0)
    assert shifted.log_ratio == pytest.approx(found.log_ratio - 900.0, abs=1e-8)
    assert shifted.standard_error == pytest.approx(found.standard_error, rel=1e-6)


def test_blocks_of_repeated_draws_count_once(generator):
    """Every draw ten times over is no more than every draw once."""
    proposed = torch.randn(4000, generator=generator, dtype=torch.float64)
    at_draws = 1.0 + torch.randn(200, generator=generator, dtype=torch.float64)
    once = bridge_ratio(proposed, at_draws)
    blocks = torch.arange(200).repeat_interleave(10)
    tenfold = bridge_ratio(proposed, at_draws.repeat_interleave(10), blocks)
    assert tenfold.n_effective == pytest.approx(once.n_effective, rel=0.02)
    assert tenfold.standard_error == pytest.approx(once.standard_error, rel=0.02)
    naive = bridge_ratio(proposed, at_draws.repeat_interleave(10))
    assert naive.standard_error < 0.8 * once.standard_error


def test_no_overlap_is_nan():
    missed = bridge_ratio(torch.full((10,), -torch.inf).double(), torch.zeros(10).double())
    assert np.isnan([missed.log_ratio, missed.standard_error]).all()


def test_a_perfect_proposal_has_no_error():
    found = bridge_ratio(torch.full((10,), 2.5).double(), torch.full((20,), 2.5).double())
    assert found.log_ratio == pytest.approx(2.5, abs=1e-9)
    assert found.standard_error == 0.0
    assert found.n_effective == 20.0


def test_the_error_is_that_of_repetitions():
    """Of two normals, one a narrow shifted copy: 300 repetitions scatter as one says it does."""
    generator = torch.Generator().manual_seed(1)
    low, high = Normal(0.0, 1.0), Normal(0.5, 0.7)
    found = []
    for _ in range(300):
        z = torch.randn(2, 200, generator=generator, dtype=torch.float64)
        proposed, drawn = z[0], 0.5 + 0.7 * z[1]
        values = [high.log_prob(x) - low.log_prob(x) for x in (proposed, drawn)]
        found.append(bridge_ratio(*values))
    ratios = np.array([one.log_ratio for one in found])
    stated = np.mean([one.standard_error for one in found])
    assert abs(ratios.mean()) < 4.0 * ratios.std() / len(ratios) ** 0.5
    assert ratios.std() == pytest.approx(stated, rel=0.25)
