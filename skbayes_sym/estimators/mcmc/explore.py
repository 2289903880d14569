"""Exploration: chains and particles look for modes, each from its own start."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.mcmc.setting import EXPLORING, ISLANDS, REFRESHING, Setting
from skbayes_sym.estimators.mcmc.warm_start import as_tensors
from skbayes_sym.inference.kernels.base import Kernel, initial_state
from skbayes_sym.inference.kernels.hmc import HMC
from skbayes_sym.inference.kernels.nuts import NUTS
from skbayes_sym.inference.mcmc.adaptation import PooledDiagonal
from skbayes_sym.inference.mcmc.blocks import Block, Sampler
from skbayes_sym.inference.mcmc.chains import ChainDraws, sample_chains, start_blocks
from skbayes_sym.inference.multimodal.bridge import can_bridge
from skbayes_sym.inference.smc.replicates import run_islands
from skbayes_sym.inference.smc.stages import SMCSettings
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from

_LEAST_NOISE = 0.3  # at the start, in units of the target's spread: tighter noise is a steep wall
_KERNELS: dict[str, Kernel] = {"hmc": HMC(), "nuts": NUTS()}

# Draws of exploring chains that are weighed by evidence: only the bridge uses them.
_MOST_EXPLORED = 50

_ISLAND_MOVES = 4  # a stage: islands look for modes, their weights come from elsewhere


class Draws(NamedTuple):
    """Draws to predict with."""

    position: Array  # (C, S, D)
    value: Array  # (C, S), log density, nats
    chain_weights: Array  # (C,)
    stopped: Stopped
    home: Array | None = None  # (C,), the mode that each chain was started in


class Explored(NamedTuple):
    """What chains and particles found."""

    chains: ChainDraws | None  # None if only particles explored
    islands: list[Any]  # SMCResult
    draws: Draws  # one vote a chain, or an island
    starts: int  # how many independent ones


def explore(setting: Setting) -> tuple[Explored, list[Block]]:
    """Run chains, particles or both; also the chains' blocks, to go on with."""
    estimator, group = setting.estimator, setting.model.network.symmetry()
    chains, blocks = None, []
    stopped: Stopped = "max_iter"
    if estimator.sampler != "smc":
        chains = _run_chains(setting)
        blocks, stopped = chains.blocks, chains.stopped
    elif not estimator.n_islands:
        raise ValueError("sampler='smc' explores by islands: n_islands must be at least 1, got 0.")
    islands: list[Any] = []
    wanted = chains is None or (weighs_by_evidence(estimator) and can_bridge(group))
    if stopped == "max_iter" and wanted:
        found = run_islands(
            setting.posterior, group,
            SMCSettings(n_particles=estimator.n_particles, n_moves=_ISLAND_MOVES),
            n_islands=estimator.n_islands, seed=setting.seeds.islands, n_jobs=estimator.n_jobs,
            on_step=setting.progress.phase(ISLANDS, estimator.n_islands),
        )  # fmt: skip
        islands, stopped = found.islands, found.stopped
    if chains is not None:
        draws = _one_vote_each(*made(chains), stopped)
    else:
        finished = [i for i in islands if i.complete]
        if not finished:
            raise KeyboardInterrupt
        position = torch.stack([i.particles for i in finished]).cpu()
        value = torch.stack([setting.posterior(i.particles) for i in finished]).cpu()
        draws = _one_vote_each(position.numpy(), value.numpy(), stopped)
    return Explored(chains, islands, draws, len(draws.position)), blocks


def drawn_on(setting: Setting, explored: Explored) -> Draws:
    """The explored draws, and as many more as were asked for."""
    estimator, draws = setting.estimator, explored.draws
    n_more = estimator.n_draws - draws.position.shape[1]
    if explored.chains is None or n_more <= 0:
        return draws
    more = sample_chains(
        _explorer(setting), explored.chains.blocks, n_warmup=0, n_draws=n_more,
        thin=estimator.thinning, n_jobs=estimator.n_jobs,
        on_step=setting.progress.phase(REFRESHING, len(explored.chains.blocks) * n_more),
    )  # fmt: skip
    if not more.complete:
        return draws._replace(stopped=more.stopped)
    position = np.concatenate([draws.position, more.draws], axis=1)
    value = np.concatenate([draws.value, more.log_density], axis=1)
    return draws._replace(position=position, value=value)


def weighs_by_evidence(estimator: Any) -> bool:
    """Whether evidences are wanted, and draws aligned for it."""
    return estimator.mode_weights == "evidence" and estimator.remove_symmetries


def made(chains: ChainDraws) -> tuple[Array, Array]:
    """The draws that were made, rectangular; without any, where the chains are."""
    if not chains.n_draws.any():
        states = [block.state for block in chains.blocks]
        position = torch.cat([s.position for s in states]).cpu().numpy()
        value = torch.cat([s.value for s in states]).cpu().numpy()
        return position[:, None], value[:, None]
    kept = chains.n_draws > 0
    n = int(chains.n_draws[kept].min())
    return chains.draws[kept, :n], chains.log_density[kept, :n]


def _one_vote_each(position: Array, value: Array, stopped: Stopped) -> Draws:
    return Draws(position, value, np.full(len(position), 1.0 / len(position)), stopped)


def _run_chains(setting: Setting) -> ChainDraws:
    estimator = setting.estimator
    blocks = _continued(setting) or start_blocks(
        _starts(setting), setting.posterior, block_size=setting.block_size,
        seed=setting.seeds.chains,
    )  # fmt: skip
    n_draws = estimator.n_draws
    if weighs_by_evidence(estimator):
        n_draws = min(n_draws, _MOST_EXPLORED)
    n_moves = len(blocks) * (estimator.n_warmup + n_draws * estimator.thinning)
    return sample_chains(
        _explorer(setting), blocks,
        n_warmup=estimator.n_warmup, n_draws=n_draws, thin=estimator.thinning,
        n_jobs=estimator.n_jobs, on_step=setting.progress.phase(EXPLORING, n_moves),
    )  # fmt: skip


def _explorer(setting: Setting) -> Sampler:
    posterior = setting.posterior
    kernel = _KERNELS[setting.estimator.sampler]
    return Sampler(kernel, posterior, PooledDiagonal(setting.model.network.symmetry()))


def _starts(setting: Setting) -> Tensor:
    """Draws of the prior, with noise that isn't far too small."""
    generator = generator_from(setting.seeds.start)
    posterior = setting.posterior
    position = posterior.sample_prior(setting.n_chains, generator=generator)
    own = position[:, setting.model.network.layout.n_params :]
    if own.shape[1]:
        spread = posterior.data.y.std(dim=0, correction=0).clamp_min(1e-3)
        own.copy_(torch.maximum(own, (_LEAST_NOISE * spread).log().to(own)))
    return position.to(posterior.data.x)


def _continued(setting: Setting) -> list[Block] | None:
    """Blocks of the previous fit, on this fit's data."""
    previous = getattr(setting.estimator, "_blocks_", None)
    if not setting.estimator.warm_start or not previous:
        return None
    n_dims = previous[0].state.position.shape[1]
    n_chains = sum(len(b.step_size) for b in previous)
    if n_dims != setting.posterior.n_dims or n_chains != setting.n_chains:
        raise ValueError(
            f"warm_start=True, but the previous fit has {n_chains} chains of {n_dims} parameters "
            f"and this one {setting.n_chains} of {setting.posterior.n_dims}: data, "
            "hidden_layer_sizes or n_chains changed."
        )
    like = setting.posterior.data.x
    return [
        b._replace(state=initial_state(b.state.position, setting.posterior))
        for b in (as_tensors(kept, like) for kept in previous)
    ]
