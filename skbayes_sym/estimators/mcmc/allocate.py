"""Modes weighed by their evidence, new chains in them as many as it asks for, and what it costs."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.mcmc.explore import Draws, Explored, drawn_on, made
from skbayes_sym.estimators.mcmc.setting import SamplingSetting
from skbayes_sym.estimators.mcmc.trust import decided_weights, why_not, why_not_weigh
from skbayes_sym.inference.sampling.modes.confined import Allowance, ModeRun, ModeSampler, refine
from skbayes_sym.inference.sampling.modes.weigh import (
    Weighing,
    contending,
    largest_remainders,
    pool_draws,
    weigh,
)
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds


class Allocation(NamedTuple):
    """The draws that count, and the modes they were allocated by."""

    draws: Draws
    weighing: Weighing | None = None  # None where modes weren't weighed
    problems: tuple[str, ...] = ()  # why the evidence can't be trusted
    decided: bool = False  # whether the modes' weights are, even so

    @property
    def trusted(self) -> bool:
        """Whether there is an evidence to trust."""
        return self.weighing is not None and not self.problems


class Mode(NamedTuple):
    """A mode of the posterior modulo its symmetry."""

    weight: float  # posterior mass, of all modes found; nan where it couldn't be decided
    log_evidence: float  # log of its part of p(y | X), all symmetric copies counted, nats
    std_error: float  # of log_evidence, nats
    members: Array  # its chains in samples_
    n_explorers: int  # chains that ended there on their own
    mean_log_posterior: float  # over its draws, nats


def allocate_chains(setting: SamplingSetting, explored: Explored) -> Allocation:
    """Draws weighed by evidence; the explored ones, and why, where that can't be had."""
    draws, effort = explored.draws, setting.effort
    if draws.stopped != "max_iter" or not setting.weighs:
        return Allocation(draws)
    problems = tuple(why_not_weigh(setting.model.group, explored.chains, effort))
    if problems:
        return Allocation(drawn_on(setting, explored), problems=problems)
    generator, (allowance, rest) = generator_from(setting.seeds.modes), budget_of(setting, explored)
    try:
        weighing = _weigh(setting, explored, generator, allowance)
        problems = tuple(why_not(weighing, setting.posterior.n_dims, effort))
        weights = decided_weights(weighing, effort)
        shares = _votes(weighing, explored) if weights is None else weights
        decided = weights is not None
        if weights is None:
            weights = torch.where(contending(weighing.pool, weighing.modes), torch.nan, 0.0)
        weighing = weighing._replace(weights=weighing.weights._replace(weights=weights))
        allowance.left += rest
        new = _refreshed(setting, weighing, shares, generator, allowance)
        return Allocation(new, weighing, problems, decided)
    except KeyboardInterrupt:
        return Allocation(draws._replace(stopped="interrupted"))


def _weigh(
    setting: SamplingSetting,
    explored: Explored,
    generator: torch.Generator,
    allowance: Allowance,
) -> Weighing:
    """Modes and their evidence, with more draws from modes that have too few."""
    reference, group, effort = setting.reference, setting.model.group, setting.effort
    n_dims, n_chains = setting.posterior.n_dims, effort.refining_chains
    position, value = map(torch.as_tensor, (explored.draws.position, explored.draws.value))
    pool = pool_draws(position, value, group, generator=generator)
    weighing = weigh(reference, pool, group, generator=generator)
    allowance.left -= effort.evaluations * len(pool.draws) * allowance.per_gradient / 3.0
    # Fewer draws where two modes couldn't have all, as long as they are enough to be bridged.
    most = effort.refining_draws
    sampler = _mode_sampler(setting, most, generator)
    fewest = -(-effort.enough_draws * n_dims // n_chains)
    n = int(most * min(1.0, allowance.part(0.5) / allowance.work(sampler.plan.n_calls, n_chains)))
    sampler = _mode_sampler(setting, min(max(n, fewest), most), generator)
    return refine(
        reference, weighing, sampler, n_chains=n_chains, seed=setting.seeds.refine,
        allowance=allowance,
    )  # fmt: skip


def _mode_sampler(
    setting: SamplingSetting, n_draws: int, generator: torch.Generator
) -> ModeSampler:
    effort, posterior = setting.effort, setting.posterior
    n_warmup = min(effort.refresh_warmup, max(setting.n_warmup, effort.least_warmup))
    thin = effort.refresh_thin * setting.thinning
    run = ModeRun(n_warmup, n_draws, thin, setting.block_size, setting.n_jobs)
    return ModeSampler(posterior, setting.model.group, run, posterior.data.x, generator)


def _votes(weighing: Weighing, explored: Explored) -> Tensor:
    """Shares of the modes that may matter, by how many chains found each.

    Where no exploring chain stayed in any, by the draws of those that were to refine a mode.
    """
    pool, modes = weighing.pool, weighing.modes
    may_matter, n_modes = contending(pool, modes), modes.regions.n_modes
    ended = where_they_ended(weighing, explored.n_starts)
    for homes in (ended, modes.labels):
        votes = torch.bincount(homes, minlength=n_modes).double() * may_matter
        if bool(votes.any()):
            break
    return votes / votes.sum()


def _refreshed(
    setting: SamplingSetting,
    weighing: Weighing,
    shares: Tensor,
    generator: torch.Generator,
    allowance: Allowance,
) -> Draws:
    """New chains in the modes, as many as their shares (K,) say, as far as ``allowance`` goes."""
    n_chains = setting.n_chains
    counts = largest_remainders(shares, n_chains)
    used = counts.nonzero().flatten().tolist()
    sample = _mode_sampler(setting, setting.n_draws, generator)
    n_moves = sample.plan.n_draws * sample.plan.thin
    parts, homes = [], []
    stopped: Stopped = "max_iter"
    for k, seed in zip(used, spawn_seeds(setting.seeds.refresh, len(used)), strict=True):
        n, n_blocks = int(counts[k]), -(-int(counts[k]) // setting.block_size)
        on_step = setting.run.phase(setting.effort.refreshing * n / n_chains, n_blocks * n_moves)
        share = setting.allowance(allowance.part(n / n_chains))
        chains = sample(weighing, k, n, seed=seed, allowance=share, on_step=on_step)
        parts.append(made(chains))
        homes.append(np.full(len(parts[-1][0]), k))
        stopped = chains.stopped
        if not chains.complete:
            break
    n_draws, home = min(p[0].shape[1] for p in parts), np.concatenate(homes)
    position, value = (np.concatenate([p[i][:, :n_draws] for p in parts]) for i in (0, 1))
    weight = shares.numpy()[home] / np.bincount(home)[home]
    return Draws(position, value, weight / weight.sum(), stopped, home)


def where_they_ended(weighing: Weighing, n_explorers: int) -> Tensor:
    """The mode in which each explorer spent most of its draws, int64 (n_explorers,)."""
    explored = weighing.pool.chains < n_explorers
    table = torch.zeros(n_explorers, weighing.modes.regions.n_modes)
    visits = weighing.pool.chains[explored], weighing.modes.labels[explored]
    return table.index_put_(visits, torch.ones(()), accumulate=True).argmax(dim=1)


def list_modes(
    weighing: Weighing,
    n_explorers: int,  # chains that explored; they come first in the pool
    home: Array | None,  # (C,): the mode of each chain that is kept; by default the explorers are
    offset: float,  # turns log densities of scaled targets into those of targets as given, nats
) -> list[Mode]:
    """The modes, the largest evidence first, and then the highest."""
    pool, modes = weighing.pool, weighing.modes
    ended = where_they_ended(weighing, n_explorers).numpy()
    kept, listed = ended if home is None else home, []
    for k, estimate in enumerate(weighing.estimates):
        here = modes.labels == k
        listed.append(
            Mode(
                float(weighing.weights.weights[k]), estimate.log_evidence + offset,
                estimate.standard_error, np.flatnonzero(kept == k), int((ended == k).sum()),
                float(pool.values[here].mean()) + offset,
            )
        )  # fmt: skip

    def height(mode: Mode) -> tuple[float, float]:
        return float(np.nan_to_num(mode.log_evidence, nan=-np.inf)), mode.mean_log_posterior

    return sorted(listed, key=height, reverse=True)


def budget_of(setting: SamplingSetting, explored: Explored) -> tuple[Allowance, float]:
    """Work left to the evidence, and multiplications left to new chains beside what it leaves.

    For the evidence at most ``effort`` times what was asked for: half of what is left of all
    that a fit may cost, or all but new chains' draws if that is more.
    """
    ledger, cost, chains = setting.allowance(), setting.evidence.effort, explored.chains
    n_gradients = chains.warmup.n_gradients + chains.sampling.n_gradients
    n_moves = chains.warmup.n_moves + chains.sampling.n_moves
    work = ledger.of_moves(n_gradients, n_moves, setting.block_size)
    wanted = setting.n_warmup + setting.n_draws * setting.thinning
    asked = work * wanted / (setting.n_warmup + chains.draws.shape[1] * setting.thinning)
    rest = (1.0 + cost) * asked - work
    ledger.left = min(cost * asked, max(0.5 * rest, rest - asked))
    return ledger, rest - ledger.left
