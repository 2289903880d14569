"""Sharing out: modes weighed by their evidence, and new chains in them, as many as it asks for."""

import numpy as np
import torch

from skbayes_sym.estimators.mcmc.diagnostics import why_not, why_not_weigh
from skbayes_sym.estimators.mcmc.explore import Draws, Explored, drawn_on, made, weighs_by_evidence
from skbayes_sym.estimators.mcmc.setting import REFRESHING, Setting
from skbayes_sym.inference.mode_sampling import ModeRun, ModeSampler, refine
from skbayes_sym.inference.multimodal.weights import Weighing, pool_draws, share_out, weigh
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds

# Chains restarted in their mode: moves are cheap there (a few gradients), so draws are spaced.
_REFRESH_WARMUP, _REFRESH_THIN = 100, 4

# Chains that make more draws in a mode whose evidence is poorly known.
_REFINING_CHAINS, _REFINING_DRAWS = 32, 50


def share_out_chains(
    setting: Setting, explored: Explored
) -> tuple[Draws, Weighing | None, list[str]]:
    """Draws weighed by evidence; the explored ones, and why, where that can't be had."""
    estimator, draws = setting.estimator, explored.draws
    if draws.stopped != "max_iter" or not weighs_by_evidence(estimator):
        return draws, None, []
    problems = why_not_weigh(setting.model.network.symmetry(), explored.chains)
    if problems:
        return drawn_on(setting, explored), None, problems
    generator = generator_from(setting.seeds.modes)
    try:
        weighing = _weigh(setting, explored, generator)
        problems = why_not(weighing, setting.posterior.n_dims)
        if problems:
            return drawn_on(setting, explored), weighing, problems
        return _refreshed(setting, weighing, generator), weighing, []
    except KeyboardInterrupt:
        return draws._replace(stopped="interrupted"), None, []


def _weigh(setting: Setting, explored: Explored, generator: torch.Generator) -> Weighing:
    """Modes and their evidence, with more draws from modes that have too few."""
    reference, group = setting.reference(), setting.model.network.symmetry()
    n_dims, chains = setting.posterior.n_dims, explored.chains
    position = explored.draws.position if chains else np.empty((0, 1, n_dims))
    values = explored.draws.value if chains else np.empty((0, 1))
    pool = pool_draws(
        torch.as_tensor(position), torch.as_tensor(values),
        [i.particles for i in explored.islands if i.complete],
        reference, group, generator=generator,
    )  # fmt: skip
    found = weigh(reference, pool, group, generator=generator)
    plan = _mode_run(setting)._replace(n_draws=_REFINING_DRAWS)
    return refine(
        reference, found, _mode_sampler(setting, plan, generator),
        n_chains=_REFINING_CHAINS, seed=setting.seeds.refine,
    )  # fmt: skip


def _mode_run(setting: Setting) -> ModeRun:
    estimator = setting.estimator
    return ModeRun(
        _REFRESH_WARMUP, estimator.n_draws, _REFRESH_THIN * estimator.thinning,
        setting.block_size, estimator.n_jobs,
    )  # fmt: skip


def _mode_sampler(setting: Setting, plan: ModeRun, generator: torch.Generator) -> ModeSampler:
    posterior, group = setting.posterior, setting.model.network.symmetry()
    return ModeSampler(posterior, group, plan, posterior.data.x, generator)


def _refreshed(setting: Setting, weighing: Weighing, generator: torch.Generator) -> Draws:
    """New chains in the modes, as many as their mass asks for."""
    counts = share_out(weighing.weights.weights, setting.n_chains)
    used = counts.nonzero().flatten().tolist()
    plan = _mode_run(setting)
    sample, n_moves = _mode_sampler(setting, plan, generator), plan.n_draws * plan.thin
    parts, homes = [], []
    stopped: Stopped = "max_iter"
    for k, seed in zip(used, spawn_seeds(setting.seeds.refresh, len(used)), strict=True):
        n, n_blocks = int(counts[k]), -(-int(counts[k]) // plan.block_size)
        on_step = setting.progress.phase(REFRESHING * n / setting.n_chains, n_blocks * n_moves)
        found = sample(weighing, k, n, seed=seed, on_step=on_step)
        parts.append(made(found))
        homes.append(np.full(len(parts[-1][0]), k))
        stopped = found.stopped
        if not found.complete:
            break
    n_draws, home = min(p[0].shape[1] for p in parts), np.concatenate(homes)
    weight = weighing.weights.weights.numpy()[home] / np.bincount(home)[home]
    return Draws(
        np.concatenate([p[0][:, :n_draws] for p in parts]),
        np.concatenate([p[1][:, :n_draws] for p in parts]),
        weight / weight.sum(),
        stopped,
        home,
    )
