"""Exploration: chains and particles look for modes, each from its own start."""

from dataclasses import replace

import numpy as np
import torch

from skbayes_sym.estimators.mcmc.budget import affordable
from skbayes_sym.estimators.mcmc.draws import Draws, Explored, made
from skbayes_sym.estimators.mcmc.setting import (
    EXPLORING,
    MOST_EXPLORED,
    REFRESHING,
    REPLICATE_MOVES,
    REPLICATES,
    Setting,
)
from skbayes_sym.estimators.mcmc.starts import INITS
from skbayes_sym.estimators.mcmc.warm_start import continued
from skbayes_sym.estimators.mcmc.wide import LEAST_ACCEPTED, density_for, from_afar
from skbayes_sym.inference.samplers import SMC
from skbayes_sym.inference.sampling.blocks import Sampler
from skbayes_sym.inference.sampling.chains import ChainDraws, retuned, sample_chains
from skbayes_sym.inference.sampling.kernels.base import Kernel
from skbayes_sym.inference.sampling.smc import SMCResult, SMCSettings, run_replicates
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import spawn_seeds


def explore(setting: Setting) -> Explored:
    """Run chains, particles or both."""
    chains, replicates = None, list[SMCResult]()
    stopped: Stopped = "max_iter"
    kernel, particles = setting.search.kernel, setting.search.particles
    if kernel is not None:
        chains = _run_chains(setting, kernel)
        stopped = chains.stopped
    if chains is not None and particles is not None:
        particles = affordable(setting, chains, particles)
    if stopped == "max_iter" and particles is not None:
        replicates, stopped = _run_particles(setting, particles)
    if chains is not None:
        return Explored(chains, replicates, Draws.one_vote_each(*made(chains), stopped))
    finished = [r.particles for r in replicates if r.complete]
    if not finished:
        raise KeyboardInterrupt
    position = torch.stack(finished).cpu().numpy()
    value = torch.stack([setting.posterior(p) for p in finished]).cpu().numpy()
    return Explored(None, replicates, Draws.one_vote_each(position, value, stopped))


def drawn_on(setting: Setting, explored: Explored) -> Draws:
    """The explored draws, and as many more as were asked for."""
    draws, kernel, plan = explored.draws, setting.search.kernel, setting.chains
    n_more = plan.n_draws - draws.position.shape[1]
    if explored.chains is None or kernel is None or n_more <= 0:
        return draws
    blocks = explored.chains.blocks
    more = sample_chains(
        _explorer(setting, kernel), blocks, n_warmup=0, n_draws=n_more, thin=plan.thinning,
        n_jobs=plan.n_jobs, on_step=setting.run.phase(REFRESHING, len(blocks) * n_more),
    )  # fmt: skip
    if not more.complete:
        return draws._replace(stopped=more.stopped)
    position = np.concatenate([draws.position, more.draws], axis=1)
    value = np.concatenate([draws.value, more.log_density], axis=1)
    return draws._replace(position=position, value=value)


def _run_chains(setting: Setting, kernel: Kernel) -> ChainDraws:
    plan = setting.chains
    explorer = _explorer(setting, kernel)
    blocks = continued(setting, explorer.log_density) or INITS[plan.init].blocks(setting)
    n_draws = plan.n_draws
    if setting.weighs:
        n_draws = min(n_draws, MOST_EXPLORED)
    if plan.approach and not plan.start:
        explorer = replace(explorer, approach=from_afar(setting, plan.approach))
    n_coming = explorer.approach.n_steps if explorer.approach else 0
    n_moves = len(blocks) * (n_coming + plan.n_warmup + n_draws * plan.thinning)
    found = sample_chains(
        explorer, blocks,
        n_warmup=plan.n_warmup, n_draws=n_draws, thin=plan.thinning, n_jobs=plan.n_jobs,
        on_step=setting.run.phase(EXPLORING, n_moves),
    )  # fmt: skip
    if not plan.approach or not plan.n_warmup:
        return found
    n_again = len(blocks) * (plan.n_warmup // 2 + n_draws * plan.thinning)
    return retuned(
        replace(explorer, approach=None), found, least_acceptance=LEAST_ACCEPTED,
        n_warmup=max(1, plan.n_warmup // 2), thin=plan.thinning, n_jobs=plan.n_jobs,
        on_step=setting.run.phase(REPLICATES, n_again),
    )  # fmt: skip


def _explorer(setting: Setting, kernel: Kernel) -> Sampler:
    init = INITS[setting.chains.init]
    density = density_for(setting, kernel)
    return Sampler(kernel, density, init.adaptation(setting), init.target_acceptance)


def _run_particles(setting: Setting, particles: SMC) -> tuple[list[SMCResult], Stopped]:
    n = particles.n_replicates
    found = run_replicates(
        setting.posterior, setting.units,
        SMCSettings(n_particles=particles.n_particles, n_moves=REPLICATE_MOVES),
        seeds=spawn_seeds(setting.seeds.replicates, n), device=setting.data.device,
        n_jobs=setting.chains.n_jobs,
        on_step=setting.run.phase(REPLICATES, n),
    )  # fmt: skip
    return found.runs, found.stopped
