"""Exploration: chains look for modes, each from its own start or where it stopped."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.mcmc.chain_starts import INITS, density_for, from_afar
from skbayes_sym.estimators.mcmc.setting import SamplingSetting
from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.sampling.chains import Block, ChainDraws, Sampler, retuned, sample_chains
from skbayes_sym.inference.sampling.kernels import initial_state
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, resumed
from skbayes_sym.symmetry.relabelling import relabel
from skbayes_sym.symmetry.units import split_units


class Draws(NamedTuple):
    """Draws to predict with."""

    position: Array  # (C, S, D)
    value: Array  # (C, S), log density, nats
    chain_weights: Array  # (C,)
    stopped: Stopped
    home: Array | None = None  # (C,), the mode that each chain was started in


class Explored(NamedTuple):
    """Findings of chains."""

    chains: ChainDraws
    draws: Draws  # one vote per chain

    @property
    def n_starts(self) -> int:
        """Number of independent ones."""
        return len(self.draws.position)


def explore(setting: SamplingSetting) -> Explored:
    """Run the chains; one vote each."""
    effort, annealing, n_warmup = setting.effort, setting.annealing, setting.n_warmup
    explorer = _explorer(setting)
    blocks = continued(setting, explorer.log_density) or INITS[setting.init].blocks(setting)
    n_draws = min(setting.n_draws, effort.explored) if setting.weighs else setting.n_draws
    if annealing and not setting.start:
        explorer = replace(explorer, approach=from_afar(setting, annealing))
    n_coming = explorer.approach.n_steps if explorer.approach else 0
    n_moves = len(blocks) * (n_coming + n_warmup + n_draws * setting.thinning)
    chains = sample_chains(
        explorer, blocks,
        n_warmup=n_warmup, n_draws=n_draws, thin=setting.thinning, n_jobs=setting.n_jobs,
        on_step=setting.run.phase(effort.exploring, n_moves),
    )  # fmt: skip
    if annealing and n_warmup:
        n_again = len(blocks) * (n_warmup // 2 + n_draws * setting.thinning)
        chains = retuned(
            replace(explorer, approach=None), chains, least_acceptance=effort.least_accepted,
            n_warmup=max(1, n_warmup // 2), thin=setting.thinning, n_jobs=setting.n_jobs,
            on_step=setting.run.phase(effort.retuning, n_again),
        )  # fmt: skip
    position, value = made(chains)
    votes = np.full(len(position), 1.0 / len(position))
    return Explored(chains, Draws(position, value, votes, chains.stopped))


def _explorer(setting: SamplingSetting) -> Sampler:
    init = INITS[setting.init]
    acceptance = setting.effort.wide_acceptance if init.annealing else 0.8
    density = density_for(setting)
    return Sampler(setting.kernel, density, init.adaptation(setting), acceptance)


def drawn_on(setting: SamplingSetting, explored: Explored) -> Draws:
    """The explored draws, and as many more as were asked for."""
    draws, blocks = explored.draws, explored.chains.blocks
    n_more = setting.n_draws - draws.position.shape[1]
    if n_more <= 0:
        return draws
    more = sample_chains(
        _explorer(setting), blocks, n_warmup=0, n_draws=n_more, thin=setting.thinning,
        n_jobs=setting.n_jobs,
        on_step=setting.run.phase(setting.effort.refreshing, len(blocks) * n_more),
    )  # fmt: skip
    if not more.complete:
        return draws._replace(stopped=more.stopped)
    position = np.concatenate([draws.position, more.draws], axis=1)
    value = np.concatenate([draws.value, more.log_density], axis=1)
    return draws._replace(position=position, value=value)


def made(chains: ChainDraws) -> tuple[Array, Array]:
    """Positions and log densities that were made, rectangular; if none, where the chains are."""
    if not chains.n_draws.any():
        states = [block.state for block in chains.blocks]
        position = torch.cat([s.position for s in states]).cpu().numpy()
        value = torch.cat([s.value for s in states]).cpu().numpy()
        return position[:, None], value[:, None]
    kept = chains.n_draws > 0
    n = int(chains.n_draws[kept].min())
    return chains.draws[kept, :n], chains.log_density[kept, :n]


def on_reference_set(setting: SamplingSetting, theta: Tensor, value: Array) -> Array:
    """Representatives of the draws' orbits, (C, S, P) -> (C, S, P).

    Units are labelled alike; what else the group moves is moved towards the draw of the highest
    density, ``value`` (C, S).
    """
    units, others = split_units(setting.model.group)
    flat = theta.flatten(0, 1)
    if not setting.remove_symmetries or len(flat) < 2 or not setting.model.group.factors:
        return np.asarray(theta.numpy())
    aligned = flat.double()
    if units.factors:
        generator = generator_from(setting.seeds.labels)
        aligned = relabel(aligned, units, n_starts=4, max_sweeps=100, generator=generator).theta
    reference = aligned[int(value.argmax())]
    for factor in others:
        aligned, _ = factor.align(aligned, reference)
    return np.asarray(aligned.to(theta.dtype).reshape(theta.shape).numpy())


def continued(setting: SamplingSetting, density: LogDensity) -> list[Block] | None:
    """Blocks of the previous fit, on this fit's data; None if this one starts anew."""
    previous, posterior = setting.start, setting.posterior
    if not previous:
        return None
    n_dims = previous[0].state.position.shape[1]
    n_chains = sum(len(block.step_size) for block in previous)
    if n_dims != posterior.n_dims or n_chains != setting.n_chains:
        raise ValueError(
            f"warm_start=True, but the previous fit has {n_chains} chains of {n_dims} parameters "
            f"and this one {setting.n_chains} of {posterior.n_dims}: data, "
            "hidden_layer_sizes or n_chains changed."
        )
    blocks = [_as_tensors(kept, posterior.data.x) for kept in previous]
    return [b._replace(state=initial_state(b.state.position, density)) for b in blocks]


def as_arrays(block: Block) -> Block:
    """The block with NumPy arrays, which any machine can read."""
    return _converted(block, lambda tensor: tensor.cpu().numpy())


def _as_tensors(block: Block, like: Tensor) -> Block:
    """The block with tensors on the device of ``like``, positions in its precision too."""
    moved = _converted(block, lambda array: torch.as_tensor(array).to(like.device))
    state = moved.state._replace(position=moved.state.position.to(like))
    stream = resumed(torch.as_tensor(block.random_state), like.device).get_state()
    return moved._replace(state=state, random_state=stream)


def _converted(block: Block, convert: Callable[[Any], Any]) -> Block:
    def each(value: Any) -> Any:
        """An array, or nested tuples of them, plain or named, converted."""
        if not isinstance(value, tuple):
            return convert(value)
        items = [each(item) for item in value]
        return tuple(items) if type(value) is tuple else type(value)(*items)

    scaling: Any = block.preconditioner
    arrays = {f.name: each(vars(scaling)[f.name]) for f in fields(scaling)}
    state, step_size, _, random_state = block
    return Block(each(state), convert(step_size), replace(scaling, **arrays), convert(random_state))
