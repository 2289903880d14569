"""Chains within a mode: they stay in it and sample its distribution."""

from math import ceil, isnan
from types import SimpleNamespace

import pytest
import torch
from mcmc.modes.known_modes import TWO, UNITS, D, Mixture, pooled, scrambled
from mcmc.modes.mode_samplers import SETTINGS, posterior_of, sampler_of, two_modes

from skbayes_sym.mcmc import within_mode
from skbayes_sym.mcmc.kernels import HMC
from skbayes_sym.mcmc.mode_evidence import estimate_mode_evidence, pool_draws
from skbayes_sym.mcmc.within_mode import MOVE_OVERHEAD, ComputeBudget, ModeSampler, refine_evidence


@pytest.fixture
def kernels(monkeypatch):
    """Record the kernel of every run of chains."""
    seen, original = [], within_mode.sample_chains

    def sample_chains(sampler, *args, **kwargs):
        seen.append(sampler.kernel)
        return original(sampler, *args, **kwargs)

    monkeypatch.setattr(within_mode, "sample_chains", sample_chains)
    return seen


@pytest.mark.long
@pytest.mark.kept("1")
@pytest.mark.parametrize("mode", [0, 1])
def test_chains_stay_in_their_mode_and_in_one_copy_of_it(mode, kernels, generator):
    found = two_modes()
    k = int(found.modes.labels[0 if mode == 0 else -241])
    run = sampler_of(TWO, generator).sample_mode(found, k, 24, seed=1)
    assert all(kernel.domain is not None for kernel in kernels)
    assert run.draws.shape == (24, 50, D)
    assert run.complete
    draws = torch.as_tensor(run.draws).flatten(0, 1)
    assert bool((found.modes.regions.assign(draws) == k).all())
    assert bool(found.modes.regions.domains[k].contains(draws).all())
    # The mode's mean and spread, of independent chains' means.
    mean, scale = TWO.means[mode], TWO.scales[mode]
    orbit = draws[:, :2].abs().sort(descending=True)[0]
    ordered = torch.cat([orbit, draws[:, 2:]], dim=1).reshape(24, 50, D)
    expected = torch.cat([mean[:2].sort(descending=True)[0], mean[2:]])
    for power, truth in ((1, expected), (2, expected.square() + scale.square())):
        means = (ordered**power).mean(dim=1)
        se = means.std(dim=0) / 24**0.5
        assert bool(((means.mean(dim=0) - truth).abs() < 5 * se).all())
        assert float((se / truth.abs().clamp_min(0.1)).max()) < 0.2


def test_starts_are_draws_of_the_mode_none_twice(generator):
    found = two_modes()
    still = SETTINGS._replace(n_warmup=0, n_draws=1, thin=1)
    k, n = int(found.modes.labels[0]), int(found.modes.counts[int(found.modes.labels[0])])
    starts = []

    sampler = sampler_of(TWO, generator, still)
    original = within_mode.start_blocks

    def start_blocks(position, *args, **kwargs):
        starts.append(position)
        return original(position, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(within_mode, "start_blocks", start_blocks)
        sampler.sample_mode(found, k, n + 3, seed=0)
    own = found.modes.regions.domains[k].enter(found.pool.draws[found.modes.labels == k])[0]
    matches = (starts[0].unsqueeze(1) == own).all(dim=-1)
    assert matches.sum(dim=1).tolist() == [1] * (n + 3)
    assert sorted(matches.sum(dim=0).tolist()) == [1] * (n - 3) + [2] * 3


@pytest.mark.long
def test_where_units_overlap_chains_run_free(kernels, generator):
    """The copies of N(0, I) overlap, so the boundary would reject most proposals. Unconfined chains
    have the right moments."""
    blob = Mixture([[0.0] * 3], [[1.0] * 3], [1.0], 0.0, UNITS)
    _, _, pool = pooled(blob, UNITS, generator, n_chains=(8,))
    found = estimate_mode_evidence(blob, pool, UNITS, generator=generator)
    run = sampler_of(blob, generator).sample_mode(found, 0, 24, seed=1)
    assert [kernel.domain is None for kernel in kernels] == [False, True, True]
    draws = torch.as_tensor(run.draws)
    assert draws.shape == (24, 50, D)
    assert int(run.sampling.n_moves[0]) == 50 * 2 * 3
    inside = found.modes.regions.domains[0].contains(draws.flatten(0, 1))
    assert abs(float(inside.double().mean()) - 1 / 8) < 0.1  # all over the eight copies
    for power, truth in ((2, 1.0), (4, 3.0)):
        means = (draws**power).mean(dim=1)
        se = means.std(dim=0) / 24**0.5
        assert bool(((means.mean(dim=0) - truth).abs() < 5 * se).all())


def test_a_stop_while_they_warm_up_is_the_end(monkeypatch, generator):
    """Also if the boundary would have led to a second, unconfined warm-up."""
    monkeypatch.setattr(within_mode, "_boundary_loss", lambda warm: 1.0)
    calls = []

    def stop(step, info):
        calls.append(step)
        return len(calls) == 1

    sampler = sampler_of(TWO, generator, SETTINGS._replace(n_warmup=20, n_draws=10))
    assert sampler.sample_mode(two_modes(), 0, 4, seed=1, on_step=stop).stopped == "callback"
    assert len(calls) == 1


@pytest.mark.parametrize("crossed", [False, True])
def test_what_chains_cost_is_taken_off_their_allowance(crossed, monkeypatch, generator):
    """Also the cost of a first warm-up in which the boundary rejected too many proposals."""
    monkeypatch.setattr(within_mode, "_boundary_loss", lambda run: float(crossed))
    runs, original = [], within_mode.sample_chains

    def sample_chains(*args, **kwargs):
        runs.append(original(*args, **kwargs))
        return runs[-1]

    monkeypatch.setattr(within_mode, "sample_chains", sample_chains)
    budget = ComputeBudget(1e4, 1e9)
    plan = SETTINGS._replace(n_warmup=20, n_draws=10)
    sampler_of(TWO, generator, plan).sample_mode(two_modes(), 0, 4, seed=1, budget=budget)
    assert len(runs) == 2 + crossed
    spent = 0.0
    for run in runs:
        n_gradients, n_moves = (run.warmup[i] + run.sampling[i] for i in (4, 0))
        assert int(n_moves.max()) == int(n_moves.min()) > 0
        spent += budget.move_cost(1.3 * n_gradients, n_moves, plan.block_size)
    assert budget.remaining == pytest.approx(1e9 - spent)


def test_chains_have_the_precision_asked_for(generator):
    found = two_modes()
    single = Mixture([[2.0, 0.5, 0.0]], [[0.2] * 3], [1.0], 0.0, UNITS)
    single.means, single.scales = single.means.float(), single.scales.float()
    single.log_mass = single.log_mass.float()
    sampler = ModeSampler(
        posterior_of(single), UNITS, SETTINGS._replace(n_draws=3),
        torch.zeros((), dtype=torch.float32),
        generator,
    )  # fmt: skip
    assert sampler.sample_mode(found, 0, 4, seed=0).draws.dtype == "float32"


def warmed(step_size, a_move, n_chains=8):
    """The attributes of warmed-up chains that the choice of the thinning uses."""
    gradients = torch.full((n_chains,), a_move * SETTINGS.n_warmup)
    block = SimpleNamespace(step_size=torch.full((n_chains,), step_size))
    tally = SimpleNamespace(n_gradients=gradients)
    return SimpleNamespace(blocks=[block], warmup=tally, n_draws=torch.zeros(n_chains))


@pytest.mark.parametrize("a_draw", [5.0, 30.0, 200.0, 600.0, 3000.0, 1e6])
@pytest.mark.parametrize("step_size", [0.2, 0.02, 0.003])
def test_a_draw_costs_what_it_may_in_as_few_trajectories_as_that_takes(step_size, a_draw):
    sampler, a_move = sampler_of(TWO, None), min(18, ceil(1.7 / step_size))
    warm = warmed(step_size, a_move)
    budget = ComputeBudget(1e4)
    budget.remaining = budget.batch_cost(1.3 * a_draw * SETTINGS.n_draws, 8)
    thin, kernel = sampler._choose_thinning(warm, 4, budget)
    generator = torch.Generator().manual_seed(0)
    moves = [kernel.choose_n_steps(step_size, generator) for _ in range(400)]
    least = sum(HMC(max_leapfrog=24).choose_n_steps(step_size, generator)
                for _ in range(400)) / 400  # fmt: skip
    cost = thin * sum(moves) / 400
    assert 1 <= thin <= 4
    assert cost < 1.1 * max(a_draw, least)
    whole = 1.025 * 1.5708 / step_size
    if whole > 64 and a_draw > 64:  # one trajectory before several, until it is whole
        assert thin == 1 or kernel.max_leapfrog > whole
        assert cost > 0.5 * min(a_draw, whole, 768)


def few_in_the_heavy_mode(generator):
    """One chain of 12 draws in the mode with 0.7 of the mass: fewer than 5 per parameter."""
    chains = torch.cat([TWO.sample(0, (27, 12), generator), TWO.sample(1, (1, 12), generator)])
    values = TWO(chains.flatten(0, 1)).reshape(28, 12)
    return pool_draws(scrambled(chains, generator), values, UNITS, generator=generator)


@pytest.mark.long
def test_refining_finds_the_mass_of_a_mode_with_too_few_draws(generator):
    pool = few_in_the_heavy_mode(generator)
    before = estimate_mode_evidence(TWO, pool, UNITS, generator=generator)
    rare = int(before.modes.labels[-1])
    assert before.modes.counts[rare] == 12
    assert isnan(before.estimates[rare].log_evidence)
    assert float(before.summary.weights[rare]) == 0.0
    after = refine_evidence(TWO, before, sampler_of(TWO, generator), n_chains=8, seed=3)
    rare = int(after.modes.regions.assign(TWO.means[1:])[0])
    error = 0.7 * 0.3 * sum(e.standard_error**2 for e in after.estimates) ** 0.5
    assert abs(float(after.summary.weights[rare]) - 0.7) < 4 * error < 0.2
    assert abs(after.summary.log_evidence - 4.0) < 4 * after.summary.log_evidence_standard_error
    # One round was enough: 8 chains of 50 draws, counted as chains.
    assert len(after.pool.draws) == len(pool.draws) + 400
    assert after.pool.chains[-400:].unique().tolist() == list(range(28, 36))
    assert bool((after.pool.values[-400:] - TWO(after.pool.draws[-400:])).abs().max() < 1e-9)


@pytest.mark.long
def test_refining_ends_with_its_allowance(generator):
    """Without a budget no chain runs. A budget for one run allows one round, and is reduced."""
    found = estimate_mode_evidence(
        TWO, few_in_the_heavy_mode(generator), UNITS, generator=generator
    )
    sampler = sampler_of(TWO, generator)
    assert (
        refine_evidence(TWO, found, sampler, n_chains=8, seed=3, budget=ComputeBudget(1e4, 0.0))
        is found
    )
    cost = ComputeBudget(1e4).batch_cost(SETTINGS.n_calls, 8) + 9e5 * 400 * 2
    budget = ComputeBudget(1e4, cost)
    after = refine_evidence(TWO, found, sampler, n_chains=8, seed=3, budget=budget)
    assert len(after.pool.draws) == len(found.pool.draws) + 400
    assert 0.1 * cost < cost - budget.remaining < 10 * cost


def test_hopeless_modes_are_not_refined(generator):
    """A mode with e^-40 of the mass gets no further draws."""
    steep = Mixture(TWO.means.tolist(), TWO.scales.tolist(), [1.0, 4e-18], 0.0, UNITS)
    _, _, pool = pooled(steep, UNITS, generator, n_chains=(8, 1))
    found = estimate_mode_evidence(steep, pool, UNITS, generator=generator)
    assert found.modes.regions.n_modes == 2
    assert refine_evidence(steep, found, None, n_chains=8, seed=3) is found


def test_an_interrupt_while_refining_is_raised(generator):
    found = estimate_mode_evidence(
        TWO, few_in_the_heavy_mode(generator), UNITS, generator=generator
    )
    sampler = sampler_of(TWO, generator)

    def interrupted(*args, **kwargs):
        return sampler.sample_mode(*args, **kwargs, on_step=lambda step, info: True)

    stopping = SimpleNamespace(sample_mode=interrupted, generator=generator, settings=SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        refine_evidence(TWO, found, stopping, n_chains=4, seed=0)


def test_chains_of_a_block_share_their_calls():
    """Blocks of 2 and 3 chains take 10 and 30 calls; one chain made only 20 gradients."""
    budget = ComputeBudget(1e6)
    made, moves = torch.tensor([10, 10, 30, 30, 20]), torch.tensor([2, 2, 3, 3, 3])
    calls, gradients = 10 + 30 + 20, 10 + 10 + 30 + 30 + 20
    alone = budget.batch_cost(calls, 0.0) + gradients * 1e6
    assert budget.move_cost(made, 0 * moves, 2) == alone
    assert budget.move_cost(made, moves, 2) == alone + budget.batch_cost(
        MOVE_OVERHEAD * (2 + 3 + 3), 0.0
    )
    together = budget.batch_cost(10 + 30, 0.0) + gradients * 1e6  # blocks of three
    assert budget.move_cost(torch.tensor([10, 10, 0, 30, 30, 20]), torch.zeros(6), 3) == together


def test_a_sum_that_shrinks():
    budget = ComputeBudget(1.0, 100.0)
    assert budget.fraction(0.3) == 30.0
    budget.remaining -= 170.0
    assert budget.fraction(0.5) == 0.0
