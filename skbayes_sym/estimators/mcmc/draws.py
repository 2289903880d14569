"""Draws of chains or particles, what they count for, and one representative of their orbits."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.mcmc.setting import Setting
from skbayes_sym.inference.sampling.chains import ChainDraws
from skbayes_sym.inference.sampling.smc import SMCResult
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.relabelling import relabel
from skbayes_sym.symmetry.units import split_units


class Draws(NamedTuple):
    """Draws to predict with."""

    position: Array  # (C, S, D)
    value: Array  # (C, S), log density, nats
    chain_weights: Array  # (C,)
    stopped: Stopped
    home: Array | None = None  # (C,), the mode that each chain was started in

    @classmethod
    def one_vote_each(cls, position: Array, value: Array, stopped: Stopped) -> "Draws":
        """All chains count alike."""
        return cls(position, value, np.full(len(position), 1.0 / len(position)), stopped)


class Explored(NamedTuple):
    """What chains and particles found."""

    chains: ChainDraws | None  # None if only particles explored
    replicates: list[SMCResult]
    draws: Draws  # one vote per chain, or replicate

    @property
    def n_starts(self) -> int:
        """How many independent ones."""
        return len(self.draws.position)

    @property
    def n_iter(self) -> int:
        """Moves of the chain that made most; without chains, most stages of a replicate."""
        if self.chains is None:
            return max((len(r.stages) for r in self.replicates), default=0)
        tally = self.chains.warmup.n_moves + self.chains.sampling.n_moves
        return int(tally.max())


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


def on_reference_set(setting: Setting, theta: Tensor, value: Array) -> Array:
    """One representative of every draw's orbit, (C, S, P) -> (C, S, P).

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
