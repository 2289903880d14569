"""Modes weighed by their evidence, and new chains in them, as many as it asks for."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators.mcmc.budget import allowance_for_evidence, allowance_for_new_chains
from skbayes_sym.estimators.mcmc.draws import Draws, Explored, made
from skbayes_sym.estimators.mcmc.explore import drawn_on
from skbayes_sym.estimators.mcmc.modes import where_they_ended
from skbayes_sym.estimators.mcmc.setting import REFRESHING, Setting
from skbayes_sym.estimators.mcmc.trust import decided_weights, why_not, why_not_weigh
from skbayes_sym.inference.modes.bridge import MIN_DRAWS_PER_DIM
from skbayes_sym.inference.modes.refine import ModeRun, ModeSampler, refine
from skbayes_sym.inference.modes.weigh import (
    Weighing,
    contending,
    largest_remainders,
    pool_draws,
    weigh,
)
from skbayes_sym.inference.sampling.allowance import Allowance
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds

# Chains restarted in their mode: moves are cheap there (a few gradients), so draws are spaced.
_REFRESH_WARMUP, _REFRESH_THIN = 100, 4
_LEAST_WARMUP = 30  # moves that a step size needs

# Chains that make more draws in a mode whose evidence is poorly known.
_REFINING_CHAINS, _REFINING_DRAWS = 32, 50
_ENOUGH = 2 * MIN_DRAWS_PER_DIM  # draws a parameter
_EVALUATIONS = 10  # of the density, a draw that is bridged: a third of a gradient each


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


def allocate_chains(setting: Setting, explored: Explored) -> Allocation:
    """Draws weighed by evidence; the explored ones, and why, where that can't be had."""
    draws = explored.draws
    if draws.stopped != "max_iter" or not setting.weighs:
        return Allocation(draws)
    problems = tuple(why_not_weigh(setting.model.group, explored.chains))
    if problems:
        return Allocation(drawn_on(setting, explored), problems=problems)
    generator = generator_from(setting.seeds.modes)
    try:
        evidence = allowance_for_evidence(setting, explored)
        weighing = _weigh(setting, explored, generator, evidence)
        problems = tuple(why_not(weighing, setting.posterior.n_dims))
        weights = decided_weights(weighing)
        decided = weights is not None
        shares = _votes(weighing, explored) if weights is None else weights
        if weights is None:
            weights = torch.where(contending(weighing.pool, weighing.modes), torch.nan, 0.0)
        weighing = weighing._replace(weights=weighing.weights._replace(weights=weights))
        if shares is None:
            return Allocation(drawn_on(setting, explored), weighing, problems)
        allowance = allowance_for_new_chains(setting, explored, evidence)
        found = _refreshed(setting, weighing, shares, generator, allowance)
        return Allocation(found, weighing, problems, decided)
    except KeyboardInterrupt:
        return Allocation(draws._replace(stopped="interrupted"))


def _weigh(
    setting: Setting, explored: Explored, generator: torch.Generator, allowance: Allowance
) -> Weighing:
    """Modes and their evidence, with more draws from modes that have too few."""
    reference, group = setting.reference, setting.model.group
    n_dims, chains = setting.posterior.n_dims, explored.chains
    position = explored.draws.position if chains else np.empty((0, 1, n_dims))
    values = explored.draws.value if chains else np.empty((0, 1))
    pool = pool_draws(
        torch.as_tensor(position), torch.as_tensor(values),
        [r.particles for r in explored.replicates if r.complete],
        reference, group, generator=generator,
    )  # fmt: skip
    found = weigh(reference, pool, group, generator=generator)
    allowance.spend(_EVALUATIONS * len(pool.draws) * allowance.per_gradient / 3.0)
    plan = _refining_run(setting, allowance)
    return refine(
        reference, found, _mode_sampler(setting, plan, generator),
        n_chains=_REFINING_CHAINS, seed=setting.seeds.refine, allowance=allowance,
    )  # fmt: skip


def _refining_run(setting: Setting, allowance: Allowance) -> ModeRun:
    """Fewer draws where two modes couldn't have all, as long as they are enough to be bridged."""
    run = _mode_run(setting)._replace(n_draws=_REFINING_DRAWS)
    fewest = -(-_ENOUGH * setting.posterior.n_dims // _REFINING_CHAINS)
    whole = allowance.work(run.n_calls, _REFINING_CHAINS)
    n = int(_REFINING_DRAWS * min(1.0, allowance.part(0.5) / whole))
    return run._replace(n_draws=min(max(n, fewest), _REFINING_DRAWS))


def _mode_run(setting: Setting) -> ModeRun:
    plan = setting.chains
    thin = _REFRESH_THIN * plan.thinning
    n_warmup = min(_REFRESH_WARMUP, max(plan.n_warmup, _LEAST_WARMUP))
    return ModeRun(n_warmup, plan.n_draws, thin, setting.block_size, plan.n_jobs)


def _mode_sampler(setting: Setting, plan: ModeRun, generator: torch.Generator) -> ModeSampler:
    posterior = setting.posterior
    return ModeSampler(posterior, setting.model.group, plan, posterior.data.x, generator)


def _votes(weighing: Weighing, explored: Explored) -> Tensor | None:
    """Shares of the modes that may matter, by how many chains found each; None without chains.

    Where no exploring chain stayed in any, by the draws of those that were to refine a mode.
    """
    if explored.chains is None:
        return None
    pool, modes = weighing.pool, weighing.modes
    may_matter, n_modes = contending(pool, modes), modes.regions.n_modes
    ended = where_they_ended(weighing, explored.n_starts)
    for found in (ended, modes.labels[pool.sources == 0], modes.labels):
        votes = torch.bincount(found, minlength=n_modes).double() * may_matter
        if bool(votes.any()):
            break
    return votes / votes.sum()


def _refreshed(
    setting: Setting,
    weighing: Weighing,
    shares: Tensor,
    generator: torch.Generator,
    allowance: Allowance | None,
) -> Draws:
    """New chains in the modes, as many as their shares (K,) say, as far as ``allowance`` goes."""
    n_chains = setting.chains.n_chains
    counts = largest_remainders(shares, n_chains)
    used = counts.nonzero().flatten().tolist()
    plan = _mode_run(setting)
    sample, n_moves = _mode_sampler(setting, plan, generator), plan.n_draws * plan.thin
    parts, homes = [], []
    stopped: Stopped = "max_iter"
    for k, seed in zip(used, spawn_seeds(setting.seeds.refresh, len(used)), strict=True):
        n, n_blocks = int(counts[k]), -(-int(counts[k]) // plan.block_size)
        on_step = setting.run.phase(REFRESHING * n / n_chains, n_blocks * n_moves)
        share = None if allowance is None else setting.allowance(allowance.part(n / n_chains))
        found = sample(weighing, k, n, seed=seed, allowance=share, on_step=on_step)
        parts.append(made(found))
        homes.append(np.full(len(parts[-1][0]), k))
        stopped = found.stopped
        if not found.complete:
            break
    n_draws, home = min(p[0].shape[1] for p in parts), np.concatenate(homes)
    weight = shares.numpy()[home] / np.bincount(home)[home]
    return Draws(
        np.concatenate([p[0][:, :n_draws] for p in parts]),
        np.concatenate([p[1][:, :n_draws] for p in parts]),
        weight / weight.sum(),
        stopped,
        home,
    )
