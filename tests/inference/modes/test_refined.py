"""More draws of modes: they find masses that were poorly known, and end with their allowance."""

from math import isnan

import pytest
import torch
from inference.modes.known_modes import TWO, UNITS, Mixture, scrambled
from inference.modes.mode_samplers import PLAN, sampler_of, two_modes

from skbayes_sym.inference.modes.confined import refine
from skbayes_sym.inference.modes.weigh import pool_draws, weigh
from skbayes_sym.inference.sampling.allowance import Allowance


def few_in_the_heavy_mode(generator):
    """One chain of 12 draws where 0.7 of the mass is: fewer than 5 a parameter."""
    chains = torch.cat([TWO.sample(0, (27, 12), generator), TWO.sample(1, (1, 12), generator)])
    values = TWO(chains.flatten(0, 1)).reshape(28, 12)
    return pool_draws(scrambled(chains, generator), values, [], TWO, UNITS, generator=generator)


@pytest.mark.long
def test_refining_finds_the_mass_of_a_mode_with_too_few_draws(generator):
    pool = few_in_the_heavy_mode(generator)
    before = weigh(TWO, pool, UNITS, generator=generator)
    rare = int(before.modes.labels[-1])
    assert before.modes.counts[rare] == 12
    assert isnan(before.estimates[rare].log_evidence)
    assert float(before.weights.weights[rare]) == 0.0
    after = refine(TWO, before, sampler_of(TWO, generator), n_chains=8, seed=3)
    rare = int(after.modes.regions.assign(TWO.means[1:])[0])
    error = float(after.weights.standard_error[rare])
    assert abs(float(after.weights.weights[rare]) - 0.7) < 4 * error < 0.2
    assert abs(after.weights.log_evidence - 4.0) < 4 * after.weights.log_evidence_standard_error
    # One round was enough: 8 chains of 50 draws, counted as chains.
    assert len(after.pool.draws) == len(pool.draws) + 400
    assert after.pool.chains[-400:].unique().tolist() == list(range(28, 36))
    assert not bool(after.pool.sources.any())
    assert bool((after.pool.values[-400:] - TWO(after.pool.draws[-400:])).abs().max() < 1e-9)


@pytest.mark.long
def test_refining_ends_with_its_allowance(generator):
    """Nothing to spend: no chain. Enough for one run: one round, and its cost is taken off."""
    found = weigh(TWO, few_in_the_heavy_mode(generator), UNITS, generator=generator)
    sampler = sampler_of(TWO, generator)
    assert refine(TWO, found, None_but_plan(), n_chains=8, seed=3, allowance=none()) is found
    cost = Allowance(1e4).work(PLAN.n_calls, 8) + 9e5 * 400 * 2
    allowance = Allowance(1e4, cost)
    after = refine(TWO, found, sampler, n_chains=8, seed=3, allowance=allowance)
    assert len(after.pool.draws) == len(found.pool.draws) + 400
    assert 0.1 * cost < cost - allowance.left < 10 * cost


def none():
    return Allowance(1e4, 0.0)


class None_but_plan:
    plan, group, generator = PLAN, UNITS, None


def test_nothing_to_refine():
    found = two_modes()
    assert refine(TWO, found, None_but_plan(), n_chains=8, seed=3) is found


def test_hopeless_modes_are_not_refined(generator):
    """12 draws of a mode e^40 times lighter stay as they are."""
    steep = Mixture(TWO.means.tolist(), TWO.scales.tolist(), [1.0, 4e-18], 0.0, UNITS)
    common = steep.sample(0, (8, 40), generator)
    values = steep(common.flatten(0, 1)).reshape(8, 40)
    cloud = steep.sample(1, (12,), generator)
    pool = pool_draws(common, values, [cloud], steep, UNITS, generator=generator)
    found = weigh(steep, pool, UNITS, generator=generator)
    assert found.modes.regions.n_modes == 2
    assert refine(steep, found, None, n_chains=8, seed=3) is found


def test_an_interrupt_while_refining_is_raised(generator):
    found = weigh(TWO, few_in_the_heavy_mode(generator), UNITS, generator=generator)
    sampler = sampler_of(TWO, generator)

    def interrupted(*args, **kwargs):
        return sampler(*args, **kwargs, on_step=lambda step, info: True)

    interrupted.generator, interrupted.plan = generator, PLAN
    with pytest.raises(KeyboardInterrupt):
        refine(TWO, found, interrupted, n_chains=4, seed=0)
