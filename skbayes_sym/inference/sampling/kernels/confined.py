"""Hamiltonian Monte Carlo within one copy of a symmetric posterior.

A covariance of aligned draws belongs to one labelling of the hidden units. As a mass matrix it
breaks the symmetry, and a chain that moved with it and were relabelled after every move would
converge to something else. Confined to the fundamental domain it converges to the right thing.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.sampling.kernels.base import Info, Preconditioner, State
from skbayes_sym.inference.sampling.kernels.hmc import (
    HMC,
    draw_momentum,
    energy_error,
    leapfrog,
    metropolis,
)
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain


class ConfinedMove(NamedTuple):
    """What a move within a domain did."""

    state: State
    info: Info  # acceptance is the integrator's, before the boundary
    outside: Tensor  # (C,), bool: the proposal left the domain, and was rejected


@dataclass(frozen=True, eq=False)
class ConfinedHMC:
    """HMC on ``exp(log_density)`` restricted to a fundamental domain F; a `Kernel`.

    Proposals outside F are rejected, whatever happened on the way. With F's |G| copies the domain
    tiles the space, so if the density is invariant its restriction loses nothing, and any
    preconditioner will do.

    Parameters
    ----------
    domain : FundamentalDomain
        Frozen during the moves. Chains must start inside (`FundamentalDomain.enter`).
    inner : HMC
        How far trajectories go.

    Notes
    -----
    Relabelling the proposal instead of rejecting it is biased unless the preconditioner commutes
    with the group: for N(0, I_2) under exchange and random-walk scales (1.5, 0.15) it gives
    ``E|x_1 - x_2| = 1.90``, not ``2 / sqrt(pi) = 1.13``.
    """

    domain: FundamentalDomain
    inner: HMC = field(default_factory=HMC)

    def step(
        self,
        state: State,
        log_density: LogDensity,
        *,
        step_size: Tensor,
        preconditioner: Preconditioner,
        generator: torch.Generator,
    ) -> tuple[State, Info]:
        """Move every chain once; see `Kernel.step`."""
        move = self.move(
            state,
            log_density,
            step_size=step_size,
            preconditioner=preconditioner,
            generator=generator,
        )
        return move.state, move.info

    def move(
        self,
        state: State,
        log_density: LogDensity,
        *,
        step_size: Tensor,
        preconditioner: Preconditioner,
        generator: torch.Generator,
    ) -> ConfinedMove:
        """`step`, and which proposals left the domain."""
        n_steps = self.inner.n_leapfrog(step_size, generator)
        momentum = draw_momentum(state, generator)
        size = self.inner.jittered(step_size, generator)
        proposal, end = leapfrog(state, log_density, momentum, size, preconditioner, n_steps)
        error = energy_error(state, momentum, proposal, end)
        inside = self.domain.contains(proposal.position)
        moved, info = metropolis(
            state, proposal, error, n_gradients=n_steps, generator=generator, allowed=inside
        )
        return ConfinedMove(moved, info, ~inside)
