"""Hamiltonian Monte Carlo for many chains as one batch.

In the coordinates z of a preconditioner ``position = L z`` the momentum p is standard normal, and
the dynamics of ``H = -log density + |p|^2 / 2`` are followed by the leapfrog integrator

    p += (eps / 2) L' gradient;   position += eps L p;   p += (eps / 2) L' gradient

(Neal 2011, "MCMC using Hamiltonian dynamics", section 2.3). All chains of a batch make the same
number of steps, so that one gradient of the batch is one call; each has its own step size.
"""

from dataclasses import dataclass, field
from math import ceil, pi

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity, VariesInScale, gradient_of
from skbayes_sym.inference.sampling.kernels.kernel import (
    MAX_ENERGY_ERROR,
    Info,
    Preconditioner,
    State,
    where,
)
from skbayes_sym.inference.sampling.kernels.rescaling import rescale
from skbayes_sym.numerics.random import host_uniforms, standard_normal
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain


@dataclass(frozen=True)
class HMC:
    """Jittered Hamiltonian Monte Carlo; a `Kernel`.

    Parameters
    ----------
    path_length : float, default=pi / 2
        Mean length of a trajectory in preconditioned coordinates, for ``u`` of mean one; a quarter
        of the period of a standard normal, where one move forgets where it began.
    jitter : (float, float), default=(0.05, 2.0)
        Range of the uniform ``u`` that multiplies ``path_length``, so that no period of the target
        is a trap (Neal 2011, section 3.2).
    max_leapfrog : int, default=256
        Most leapfrog steps of a move.
    least_step : float, default=1.0
        Each chain's step size is multiplied by a uniform number between this and 1, anew in every
        move. Below 1, a chain in a place too narrow for its step size gets out (Neal 2011, section
        3.2).
    domain : FundamentalDomain or None, default=None
        Region that the density is restricted to, frozen during the moves: proposals outside are
        rejected, whatever happened on the way. Chains must start inside
        (`FundamentalDomain.enter`). With the domain's |G| copies it tiles the space, so if the
        density is invariant its restriction loses nothing, and any preconditioner will do.

    Notes
    -----
    Relabelling the proposal instead of rejecting it is biased unless the preconditioner commutes
    with the group: for N(0, I_2) under exchange and random-walk scales (1.5, 0.15) it gives
    ``E|x_1 - x_2| = 1.90``, not ``2 / sqrt(pi) = 1.13``.

    ``ceil(path_length * u / median(step_size))`` steps a move. If that exceeds ``max_leapfrog``
    the number is uniform in its upper half instead: trajectories are then shorter than asked
    for, and a constant number could still resonate. The number depends on the frozen step sizes
    and on the generator, never on where the chains are.

    Under a prior that learns its scales a move ends with changes of scale, which reach its tails.
    """

    path_length: float = pi / 2
    jitter: tuple[float, float] = (0.05, 2.0)
    max_leapfrog: int = 256
    least_step: float = 1.0
    domain: FundamentalDomain | None = field(default=None, repr=False)

    @property
    def mean_path(self) -> float:
        """Length of a trajectory that isn't cut, on average."""
        return self.path_length * sum(self.jitter) / 2.0

    def step(
        self,
        state: State,
        log_density: LogDensity,
        *,
        step_size: Tensor,
        preconditioner: Preconditioner,
        generator: torch.Generator,
        n_steps: int | None = None,
    ) -> tuple[State, Info]:
        """Move every chain once; see `Kernel.step`. Of ``n_steps``, if `n_steps` has said it."""
        if n_steps is None:
            n_steps = self.n_steps(float(step_size.median()), generator)
        momentum = draw_momentum(state, generator)
        size = self.jittered(step_size, generator)
        proposal, end = leapfrog(state, log_density, momentum, size, preconditioner, n_steps)
        error = energy_error(state, momentum, proposal, end)
        allowed = None if self.domain is None else self.domain.contains(proposal.position)
        state, info = metropolis(
            state, proposal, error, n_gradients=n_steps, generator=generator, allowed=allowed
        )
        if not isinstance(log_density, VariesInScale):
            return state, info
        directions, domain = log_density.scale_directions, self.domain
        if directions is not None:
            state = rescale(state, log_density, directions, generator=generator, domain=domain)
            info = info._replace(n_gradients=info.n_gradients + 2)  # four values are about one
        return state, info

    def n_steps(self, median: float, generator: torch.Generator) -> int:
        """Leapfrog steps of the next move, whose step sizes have this median; no GPU is asked."""
        length, fallback = host_uniforms(2, generator)
        low, high = self.jitter
        wanted = self.path_length * (low + (high - low) * length) / median
        if wanted <= self.max_leapfrog:
            return max(1, ceil(wanted))
        half = (self.max_leapfrog + 1) // 2
        return half + int(fallback * (self.max_leapfrog + 1 - half))

    def jittered(self, step_size: Tensor, generator: torch.Generator) -> Tensor:
        """Step sizes of this move, (C,)."""
        if self.least_step == 1.0:
            return step_size
        u = torch.rand(len(step_size), generator=generator, device=generator.device)
        return step_size * (self.least_step + (1.0 - self.least_step) * u).to(step_size)


def draw_momentum(state: State, generator: torch.Generator) -> Tensor:
    """Standard normal momenta in preconditioned coordinates, (C, D)."""
    return standard_normal(state.position.shape, generator=generator, like=state.position)


def leapfrog(
    state: State,  # where the C chains are; left as it is
    log_density: LogDensity,
    momentum: Tensor,  # (C, D): in preconditioned coordinates
    # (C,): in preconditioned coordinates and in the dtype of the positions; a negative one goes
    # back.
    step_size: Tensor,
    preconditioner: Preconditioner,
    n_steps: int,  # at least 1
) -> tuple[State, Tensor]:
    """Follow the dynamics for ``n_steps`` steps.

    Where the trajectories end. A chain that left what numbers can hold is not finite there;
    the others are not touched by it.

    Reversible and volume preserving; ``n_steps`` gradients, one a step. Two half kicks of the
    momentum between two gradients are made as one.
    """
    eps = step_size.unsqueeze(1)
    position = state.position.clone()
    kick, move = preconditioner.to_gradient, preconditioner.to_position
    slope = gradient_of(log_density)
    p = momentum.addcmul(eps, kick(state.gradient), value=0.5)
    for _ in range(n_steps - 1):
        position.addcmul_(eps, move(p))
        p.addcmul_(eps, kick(slope(position)))
    position.addcmul_(eps, move(p))
    value, gradient = log_density.evaluate(position)
    p.addcmul_(eps, kick(gradient), value=0.5)
    return State(position, value, gradient), p


def energy_error(start: State, momentum: Tensor, end: State, end_momentum: Tensor) -> Tensor:
    """``H(end) - H(start)`` in nats, (C,), float64; nan or infinite where the end is not finite.

    The sums are in float64: in float32 they would cost more accuracy than the integrator does.
    """
    kinetic = (end_momentum.double() - momentum.double()) * (end_momentum + momentum)
    return 0.5 * kinetic.sum(1) - (end.value.double() - start.value.double())


def metropolis(
    state: State,  # c chains, and where each would go
    proposal: State,
    energy_error: Tensor,  # (C,): nats; see `energy_error`
    *,
    n_gradients: int,  # what the proposal cost each chain
    generator: torch.Generator,
    # (C,), bool: proposals that may be accepted: with it the target is restricted to a region.
    allowed: Tensor | None = None,
) -> tuple[State, Info]:
    """Accept each chain's proposal with probability ``min(1, exp(-energy_error))``.

    ``info.acceptance`` is the integrator's own probability, before ``allowed``: a smaller step
    size can't do anything about a boundary. What is not finite is divergent and rejected.
    """
    finite = energy_error.isfinite()
    probability = torch.where(finite, (-energy_error).exp().clamp_max(1.0), 0.0)
    uniform = torch.rand(
        len(probability), generator=generator, device=probability.device, dtype=torch.float64
    )
    accepted = uniform < probability
    if allowed is not None:
        accepted &= allowed
    divergent = ~finite | (energy_error > MAX_ENERGY_ERROR)
    charged = torch.full_like(accepted, n_gradients, dtype=torch.int64)
    outside = None if allowed is None else ~allowed
    info = Info(probability, accepted, divergent, charged, energy_error, outside)
    return where(accepted, proposal, state), info
