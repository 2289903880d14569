"""Evidence of modes found in pooled draws, against masses that are known exactly."""

from math import isnan, nan

import pytest
import torch
from mcmc.modes.known_modes import TWO, UNITS, D, Mixture, pooled
from torch.testing import assert_close

from skbayes_sym.mcmc.mode_evidence import (
    NEGLIGIBLE_DEFICIT_NATS,
    apportion_chains,
    estimate_mode_evidence,
    mean_log_density_by_mode,
    pool_draws,
)
from skbayes_sym.symmetry.fundamental_domain import enumerate_group
from skbayes_sym.symmetry.group import Trivial

F64 = torch.float64


def test_a_pool_has_one_member_of_every_orbit(generator):
    draws, values, pool = pooled(TWO, UNITS, generator)
    assert pool.draws.shape == (16 * 40, D)
    assert_close(pool.values, values.flatten(), rtol=0, atol=0)
    assert_close(TWO(pool.draws), pool.values)  # a copy is as likely
    assert pool.chains.reshape(16, 40).eq(torch.arange(16)[:, None]).all()
    # The same unit, in the same place, with the same sign: the mode's own spread is left.
    first = pool.draws[:160]
    assert float(first.std(dim=0).max()) < 0.2 * (1 + 5 / (2 * len(first)) ** 0.5)
    unaligned = draws[:4].flatten(0, 1)
    assert float(unaligned.std(dim=0).max()) > 1.0
    orbit = enumerate_group(UNITS, D).orbit(draws.flatten(0, 1))
    gap = (orbit - pool.draws.unsqueeze(1)).abs().amax(dim=-1).amin(dim=-1)
    assert float(gap.max()) == 0.0


@pytest.mark.parametrize("n_points", [1, 2])
def test_a_chain_that_hardly_moved_is_no_mode_of_its_own(n_points, generator):
    """Its points lie in the tail of a mode. Each is included once, not once per draw."""
    common = TWO.sample(0, (16, 40), generator)
    far = TWO.means[0] + 3.4 * TWO.scales[0] * torch.tensor([1.0, 0.0, 0.0])
    stuck = torch.stack([far, far + 1e-3])[torch.arange(40) * n_points // 40]
    chains = torch.cat([common, stuck[None]])
    values = TWO(chains.flatten(0, 1)).reshape(17, 40)
    pool = pool_draws(chains, values, UNITS, generator=generator)
    assert pool.chains.bincount().tolist() == [40] * 16 + [n_points]
    assert_close(TWO(pool.draws), pool.values)
    found = estimate_mode_evidence(TWO, pool, UNITS, generator=generator)
    assert found.modes.regions.n_modes == 1


def test_repeats_of_a_chain_that_moved_are_draws(generator):
    """A rejected move repeats the position, which is a draw."""
    draws = TWO.sample(0, (4, 12), generator).repeat_interleave(3, dim=1)
    values = TWO(draws.flatten(0, 1)).reshape(4, 36)
    pool = pool_draws(draws, values, UNITS, generator=generator)
    assert pool.chains.bincount().tolist() == [36] * 4


@pytest.mark.parametrize("seed", range(3))
def test_two_modes_have_their_masses_whatever_the_chains_say(seed):
    """A quarter of the chains is in the mode with 0.3 of the mass."""
    generator = torch.Generator().manual_seed(seed)
    _, _, pool = pooled(TWO, UNITS, generator)
    found = estimate_mode_evidence(TWO, pool, UNITS, generator=generator)
    assert found.modes.regions.n_modes == 2
    narrow = int(found.modes.labels[-1])  # the last chain's
    assert found.modes.counts[narrow] == 480
    weights = found.summary.weights
    error = 0.7 * 0.3 * sum(e.standard_error**2 for e in found.estimates) ** 0.5
    assert abs(float(weights[narrow]) - 0.7) < 4 * error < 0.08
    assert abs(found.summary.log_evidence - 4.0) < 4 * found.summary.log_evidence_standard_error
    assert found.summary.log_evidence_standard_error < 0.05
    assert float(weights.sum()) == pytest.approx(1.0)


def test_a_mode_within_another_is_counted_once(generator):
    """A narrow mode on the slope of a wide one has half of the mass."""
    both = Mixture([[0.0] * 3, [1.5, 0.0, 0.0]], [[1.0] * 3, [0.1] * 3], [0.5, 0.5], 0.0)
    _, _, pool = pooled(both, Trivial(), generator, n_chains=(20, 20), copies=False)
    found = estimate_mode_evidence(both, pool, Trivial(), generator=generator)
    assert found.modes.regions.n_modes == 2
    assert abs(found.summary.log_evidence) < 4 * found.summary.log_evidence_standard_error < 0.2


def test_a_mode_too_low_to_matter_is_not_bridged(generator):
    """Its draws are more than 30 nats lower. It has no evidence, weight or error."""
    steep = Mixture(
        [[2.0, 0.5, 0.0], [3.0, 1.5, 6.0]], [[0.2] * 3, [0.2] * 3], [1.0, 1e-20], 0.0, UNITS
    )
    _, _, pool = pooled(steep, UNITS, generator)
    found = estimate_mode_evidence(steep, pool, UNITS, generator=generator)
    low = int(found.modes.labels[-1])
    heights = mean_log_density_by_mode(pool, found.modes)
    assert float(heights[low]) < float(heights.max()) - NEGLIGIBLE_DEFICIT_NATS
    assert isnan(found.estimates[low].log_evidence)
    assert found.estimates[low].n_draws == 480
    assert float(found.summary.weights[low]) == 0.0
    assert abs(found.summary.log_evidence) < 4 * found.summary.log_evidence_standard_error


@pytest.mark.parametrize(
    ("weights", "n_chains", "counts"),
    [
        ([0.7, 0.3], 10, [7, 3]),
        ([0.3, 0.7], 10, [3, 7]),
        ([0.65, 0.35], 10, [7, 3]),  # 6.5 and 3.5: a tie, the first gets it
        ([0.5, 0.3, 0.2], 7, [4, 2, 1]),  # 3.5, 2.1, 1.4
        ([0.99, 0.01], 10, [9, 1]),  # at least one
        ([0.9985, 0.0015], 64, [63, 1]),
        ([0.9991, 0.0009], 64, [64, 0]),  # below 0.001: none
        ([0.5, 0.3, 0.2], 2, [1, 1, 0]),  # the heaviest
        ([0.2, 0.3, 0.5], 1, [0, 0, 1]),
        ([nan, 1.0], 5, [0, 5]),
        ([0.97, 0.01, 0.01, 0.01], 5, [2, 1, 1, 1]),
    ],
)
def test_chains_are_shared_out_by_largest_remainders(weights, n_chains, counts):
    found = apportion_chains(torch.tensor(weights, dtype=F64), n_chains)
    assert found.tolist() == counts
    assert found.dtype == torch.int64
