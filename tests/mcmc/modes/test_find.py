"""Modes of aligned draws: who is together, regions that respect the symmetry, honest weights."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.mcmc.bridge import NOT_ESTIMATED
from skbayes_sym.mcmc.mode_evidence import combine_evidence, find_modes
from skbayes_sym.symmetry.group import Trivial
from skbayes_sym.symmetry.units import Units

UNITS = Units(torch.arange(9).reshape(3, 3), flip=True)  # column 9 stays put
D = 10


def chains_at(centre, height, n_chains, n_draws, generator, scale=0.3, slow=0.6):
    """Autocorrelated chains around a point, with log densities to match."""
    shape = (n_chains, n_draws, D)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = noise.clone()
    for t in range(1, n_draws):
        x[:, t] = slow * x[:, t - 1] + (1 - slow**2) ** 0.5 * noise[:, t]
    values = height - 0.5 * x.square().sum(-1) + 0.5 * D
    return centre + scale * x, values


def stack(*groups):
    """Draws, values and chain labels of several groups of chains."""
    draws, values, chains, n = [], [], [], 0
    for x, value in groups:
        draws.append(x.flatten(0, 1))
        values.append(value.flatten())
        chains.append(n + torch.arange(len(x)).repeat_interleave(x.shape[1]))
        n += len(x)
    return torch.cat(draws), torch.cat(values), torch.cat(chains)


def centres(n, generator, spread=2.0):
    return spread * torch.randn(n, D, generator=generator, dtype=torch.float64)


def partition(labels, truth):
    """Whether two labellings define the same partition."""
    pairs = torch.stack([labels, truth], dim=1).unique(dim=0)
    return len(pairs) == len(labels.unique()) == len(truth.unique())


def test_chains_of_unlike_heights(generator):
    """As on the airfoil data: 6 chains at -840 nats, 2 at -946 and 14 at -1014."""
    at = centres(3, generator)
    layout = zip(at, [-840.0, -946.0, -1014.0], [6, 2, 14], strict=True)
    groups = [chains_at(c, h, n, 50, generator) for c, h, n in layout]
    draws, values, chains = stack(*groups)
    modes = find_modes(draws, values, chains, UNITS)
    truth = torch.tensor([0] * 6 + [1] * 2 + [2] * 14)[chains]
    assert partition(modes.labels, truth)
    assert modes.counts.tolist() == [700, 300, 100]
    assert torch.equal(modes.labels, modes.regions.assign(draws))
    assert torch.equal(modes.labels, find_modes(draws, values, chains, UNITS).labels)


def test_height_alone_separates(generator):
    """A narrow mode inside a wide one: the means agree, the log densities don't."""
    centre = centres(1, generator)
    wide = chains_at(centre, -100.0, 8, 60, generator, scale=1.0)
    narrow = chains_at(centre, -60.0, 4, 60, generator, scale=0.05)
    draws, values, chains = stack(wide, narrow)
    modes = find_modes(draws, values, chains, UNITS)
    assert partition(modes.labels, (chains >= 8).long())


def test_chains_that_travel_keep_a_mode_together(generator):
    """As on the sinusoidal data: two bumps 8 standard deviations apart that chains commute between;
    one chain that stays in the first bump doesn't split it off."""
    at = centres(2, generator)
    at[1] = at[0]
    at[1, 0] += 8 * 0.3
    draws, values = chains_at(at[0], -72.0, 12, 60, generator)
    home = torch.rand(11, 60, generator=generator) < 0.5
    draws[:11][home] += at[1] - at[0]
    modes = find_modes(*stack((draws, values)), UNITS)
    assert modes.regions.n_modes == 1
    apart = chains_at(at[0], -72.0, 6, 60, generator), chains_at(at[1], -72.0, 6, 60, generator)
    draws, values, chains = stack(*apart)
    modes = find_modes(draws, values, chains, UNITS)
    assert partition(modes.labels, (chains >= 6).long())


def test_a_rare_traveller_joins_two_modes(generator):
    """Its mean is that of the first bump; an eighth of its draws lie in the second."""
    at = centres(2, generator)
    at[1] = at[0]
    at[1, 0] += 8 * 0.3
    settled = [chains_at(c, -72.0, 6, 60, generator) for c in at]
    draws, values = chains_at(at[0], -72.0, 1, 60, generator)
    draws[0, -8:] += at[1] - at[0]
    modes = find_modes(*stack(*settled, (draws, values)), UNITS)
    assert modes.regions.n_modes == 1


def test_slow_chains_of_one_gaussian_are_one_mode(generator):
    draws, values, chains = stack(
        chains_at(centres(1, generator), -50.0, 64, 30, generator, slow=0.9)
    )
    assert find_modes(draws, values, chains, UNITS).regions.n_modes == 1


def test_chains_of_one_draw_and_long_ones_together(generator):
    at = centres(2, generator)
    singles = [chains_at(c, -80.0, n, 1, generator) for c, n in zip(at, (200, 50), strict=True)]
    draws, values, chains = stack(*singles, chains_at(at[1], -80.0, 5, 40, generator))
    modes = find_modes(draws, values, chains, UNITS)
    assert partition(modes.labels, (chains >= 200).long())
    lone = chains_at(at[0] + 4.0, 60.0, 1, 1, generator)  # far higher than all
    draws, values, chains = stack(*singles, lone)
    modes = find_modes(draws, values, chains, UNITS)
    assert modes.counts.tolist() == [200, 50, 1]


def test_regions_do_not_depend_on_the_copy(generator):
    groups = [chains_at(c, -80.0, 4, 40, generator) for c in centres(3, generator, 1.0)]
    modes = find_modes(*stack(*groups), UNITS)
    assert modes.regions.n_modes == 3
    x = centres(500, generator, 1.0)
    label = modes.regions.assign(x)
    assert len(label.unique()) == 3
    moved = UNITS.act(UNITS.sample((500,), generator=generator), x)
    assert torch.equal(modes.regions.assign(moved), label)


def test_the_error_of_the_whole_by_simulation(generator):
    log_z = torch.tensor([-10.0, -9.0, -11.0, -10.5], dtype=torch.float64)
    error = torch.tensor([0.02, 0.01, 0.05, 0.03], dtype=torch.float64)
    estimates = [
        NOT_ESTIMATED._replace(log_evidence=float(z), standard_error=float(e))
        for z, e in zip(log_z, error, strict=True)
    ]
    found = combine_evidence([*estimates, NOT_ESTIMATED])
    noise = torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
    many = log_z + error * noise
    tolerance = 5 / (2 * 20_000) ** 0.5  # relative error of a standard deviation
    total = float(many.logsumexp(dim=1).std())
    assert abs(found.log_evidence_standard_error / total - 1) < tolerance + 0.01
    assert_close(found.weights[:4], log_z.softmax(0))
    assert float(found.weights[4]) == 0.0
    assert found.log_evidence == pytest.approx(float(log_z.logsumexp(0)))
    nothing = combine_evidence([NOT_ESTIMATED] * 2)
    assert np.isnan(nothing.log_evidence)
    assert bool(nothing.weights.isnan().all())


def test_without_symmetry_and_with_one_draw(generator):
    draws = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    draws[:100, 0] += 30.0
    modes = find_modes(draws, torch.zeros(300).double(), torch.arange(300), Trivial())
    assert modes.counts.tolist() == [200, 100]
    one = find_modes(
        draws[:1], torch.zeros(1).double(), torch.zeros(1, dtype=torch.long), Trivial()
    )
    assert one.counts.tolist() == [1]
