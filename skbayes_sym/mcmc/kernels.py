"""Hamiltonian Monte Carlo for many chains as one batch, and the types that all kernels share.

In the coordinates z of a preconditioner ``position = L z`` the momentum p is standard normal. The
leapfrog integrator follows the dynamics of ``H = -log density + |p|^2 / 2``:

    p += (eps / 2) L' gradient;   position += eps L p;   p += (eps / 2) L' gradient

(Neal 2011, "MCMC using Hamiltonian dynamics", section 2.3). All chains of a batch make the same
number of steps, so that the gradients of the batch are one call. Each chain has its own step size.

A prior with learned scales has the tails of a Student-t distribution. If the data don't inform a
group of weights, they may be a hundred times larger in one draw than in the next. Trajectories are
too short to travel that far, but a change of scale (`rescale`) does so in one step.
"""

from dataclasses import dataclass, field
from math import ceil, pi
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from skbayes_sym.base.log_density import HasScaleDirections, LogDensity, make_gradient
from skbayes_sym.numerics.arguments import check_count, check_positive, check_range
from skbayes_sym.numerics.preconditioners import Preconditioner
from skbayes_sym.numerics.random import sample_host_uniforms, standard_normal
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain

_Nested = TypeVar("_Nested", bound=tuple[Any, ...])


class State(NamedTuple):
    """State of C chains.

    Parameters
    ----------
    position : Tensor of shape (C, D)
        Parameters.
    value : Tensor of shape (C,)
        Log density at the position in nats.
    gradient : Tensor of shape (C, D)
        Gradient of the log density.
    """

    position: Tensor
    value: Tensor
    gradient: Tensor


class Info(NamedTuple):
    """Statistics of one move of C chains.

    Parameters
    ----------
    acceptance : Tensor of shape (C,)
        Mean Metropolis acceptance probability of the proposals.
    accepted : Tensor of shape (C,), bool
        Whether the chain moved.
    divergent : Tensor of shape (C,), bool
        Whether the integrator's energy error exceeded `MAX_ENERGY_ERROR`.
    n_gradients : Tensor of shape (C,), int64
        Gradient evaluations of the move.
    energy_error : Tensor of shape (C,) or None, default=None
        Energy error of the proposal in nats, if the kernel has one.
    outside : Tensor of shape (C,), bool, or None, default=None
        Whether the proposal was rejected because it left the domain.
    """

    acceptance: Tensor
    accepted: Tensor
    divergent: Tensor
    n_gradients: Tensor
    energy_error: Tensor | None = None
    outside: Tensor | None = None


# Energy error in nats beyond which the integrator is considered unstable (Stan's value).
MAX_ENERGY_ERROR = 1000.0


def select_chains(mask: Tensor, new: _Nested, old: _Nested) -> _Nested:
    """Select each chain's values from ``new`` if ``mask`` (C,) holds, otherwise from ``old``.

    Parameters
    ----------
    mask : Tensor of shape (C,), bool
        Chains that take the new values.
    new : NamedTuple
        Tensors with C leading entries, or NamedTuples of them.
    old : NamedTuple
        The same structure.

    Returns
    -------
    NamedTuple
    """

    def select(a: Any, b: Any) -> Any:
        if isinstance(b, Tensor):
            return torch.where(mask.reshape(-1, *[1] * (b.ndim - 1)), a, b)
        return type(b)(*map(select, a, b))

    selected: _Nested = select(new, old)
    return selected


class Kernel(Protocol):
    """Markov move of C independent chains that leaves ``exp(log_density)`` invariant.

    Kernels are stateless. Everything adaptive is an argument and must not depend on the state
    within the move.
    """

    def step(
        self,
        state: State,
        log_density: LogDensity,
        *,
        step_size: Tensor,
        preconditioner: Preconditioner,
        generator: torch.Generator,
    ) -> tuple[State, Info]:
        """Move every chain once.

        Parameters
        ----------
        state : State
            Current state of the chains.
        log_density : LogDensity
            Target of the chains.
        step_size : Tensor of shape (C,)
            Step size of each chain.
        preconditioner : Preconditioner
            Coordinates in which the chains move.
        generator : torch.Generator
            Random stream of the move.

        Returns
        -------
        state : State
            State after the move.
        info : Info
            Statistics of the move.
        """


def initial_state(position: Tensor, log_density: LogDensity) -> State:
    """State of chains at ``position`` (C, D)."""
    value, gradient = log_density.evaluate(position)
    return State(position, value, gradient)


def rescale(
    state: State,
    log_density: LogDensity,
    directions: Tensor,
    *,
    generator: torch.Generator,
    domain: FundamentalDomain | None = None,
) -> State:
    """Propose four changes of scale for every chain.

    Parameters
    ----------
    state : State
        Current state of the chains.
    log_density : LogDensity
        Target of the chains.
    directions : Tensor of shape (K, D)
        Directions e with entries -1, 0 and 1, from the log density. One is selected uniformly for
        each chain and change.
    generator : torch.Generator
        Random stream of the proposals.
    domain : FundamentalDomain, optional
        Proposals outside are rejected.

    Returns
    -------
    State

    Notes
    -----
    The proposal is

        theta_k -> exp(r e_k) theta_k,    r ~ N(0, 1.5^2),

    accepted with probability ``min(1, exp(r sum_k e_k) p(theta') / p(theta))``, whose first factor
    is the Jacobian (Liu and Sabatti 2000, Biometrika 87). The cost is four values of the density
    and a gradient.
    """
    position, value, _ = state
    n_chains = len(value)
    device = generator.device
    for _ in range(4):
        index = torch.randint(len(directions), (n_chains,), generator=generator, device=device)
        size = 1.5 * standard_normal((n_chains, 1), generator=generator, like=position)
        log_scale = size * directions[index.to(directions.device)]
        proposal = position * log_scale.exp()
        proposed_value = log_density(proposal)
        log_ratio = proposed_value.double() - value.double() + log_scale.double().sum(1)
        uniform = torch.rand(n_chains, generator=generator, device=device, dtype=torch.float64)
        accepted = uniform.to(log_ratio.device).log() < log_ratio  # False for nan
        if domain is not None:
            accepted &= domain.contains(proposal)
        position = torch.where(accepted.unsqueeze(1), proposal, position)
        value = torch.where(accepted, proposed_value, value)
    return initial_state(position, log_density)


@dataclass(frozen=True)
class HMC:
    """Jittered Hamiltonian Monte Carlo; a `Kernel`.

    Parameters
    ----------
    path_length : float, default=pi / 2
        Mean length of a trajectory in preconditioned coordinates, if ``u`` has mean one. The
        default is a quarter of the period of a standard normal, after which a move is independent
        of its starting point.
    jitter : (float, float), default=(0.05, 2.0)
        Range of the uniform ``u`` that multiplies ``path_length``, so that trajectories don't
        resonate with a period of the target (Neal 2011, section 3.2).
    max_leapfrog : int, default=256
        Maximum number of leapfrog steps per move.
    min_step_factor : float, default=1.0
        In every move, each chain's step size is multiplied by a uniform number between this and 1.
        Below 1, a chain can leave a region that is too narrow for its step size (Neal 2011, section
        3.2).
    domain : FundamentalDomain or None, default=None
        Region to which the density is restricted. Proposals outside are rejected, but trajectories
        may leave the region on the way. Chains must start inside (`FundamentalDomain.enter`). The
        |G| copies of the domain tile the space, so the restriction of an invariant density loses
        nothing, and any preconditioner is valid.

    Notes
    -----
    Relabelling a proposal instead of rejecting it is biased unless the preconditioner commutes with
    the group. For N(0, I_2) under exchange and random-walk scales (1.5, 0.15) it gives
    ``E|x_1 - x_2| = 1.90`` instead of ``2 / sqrt(pi) = 1.13``.

    A move has ``ceil(path_length * u / median(step_size))`` steps. If that exceeds
    ``max_leapfrog``, the number is uniform in its upper half, since a constant number could still
    resonate.

    Under a prior with learned scales, a move ends with changes of scale, which reach the prior's
    tails.
    """

    path_length: float = pi / 2
    jitter: tuple[float, float] = (0.05, 2.0)
    max_leapfrog: int = 256
    min_step_factor: float = 1.0
    domain: FundamentalDomain | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_positive("path_length", self.path_length)
        low, high = check_range("jitter", self.jitter)
        if low > high:
            raise ValueError(f"jitter must be two increasing numbers, got {self.jitter!r}.")
        check_count("max_leapfrog", self.max_leapfrog)
        check_positive("min_step_factor", self.min_step_factor, 1.0)

    @property
    def mean_path(self) -> float:
        """Mean length of a trajectory that isn't truncated."""
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
        """Move every chain once.

        Parameters
        ----------
        state : State
            Current state of the chains.
        log_density : LogDensity
            Target of the chains.
        step_size : Tensor of shape (C,)
            Step size of each chain.
        preconditioner : Preconditioner
            Coordinates in which the chains move.
        generator : torch.Generator
            Random stream of the move.
        n_steps : int, optional
            Number of leapfrog steps. By default it is drawn by `choose_n_steps`.

        Returns
        -------
        state : State
            State after the move.
        info : Info
            Statistics of the move.
        """
        if n_steps is None:
            n_steps = self.choose_n_steps(float(step_size.median()), generator)

        # Follow a trajectory with a fresh momentum and, if asked, jittered step sizes.
        momentum = draw_momentum(state, generator)
        size = step_size
        if self.min_step_factor < 1.0:
            u = torch.rand(
                len(size), generator=generator, device=generator.device, dtype=torch.float32
            )
            size = size * (self.min_step_factor + (1.0 - self.min_step_factor) * u).to(size)
        proposal, end_momentum = leapfrog(
            state, log_density, momentum, size, preconditioner, n_steps
        )

        # Accept or reject its end.
        error = energy_error(state, momentum, proposal, end_momentum)
        allowed = None
        if self.domain is not None:
            allowed = self.domain.contains(proposal.position)
        state, info = metropolis(
            state, proposal, error, n_gradients=n_steps, generator=generator, allowed=allowed
        )

        # Change the scales of groups of weights. Four values take about as long as one gradient.
        if not isinstance(log_density, HasScaleDirections):
            return state, info
        directions = log_density.scale_directions
        domain = self.domain
        if directions is not None:
            state = rescale(state, log_density, directions, generator=generator, domain=domain)
            info = info._replace(n_gradients=info.n_gradients + 2)
        return state, info

    def choose_n_steps(self, median_step_size: float, generator: torch.Generator) -> int:
        """Draw the number of leapfrog steps of the next move, without synchronising a GPU.

        Parameters
        ----------
        median_step_size : float
            Median of the chains' step sizes.
        generator : torch.Generator
            Random stream of the chains.

        Returns
        -------
        int
        """
        u, fallback = sample_host_uniforms(2, generator)
        low, high = self.jitter
        n_steps = self.path_length * (low + (high - low) * u) / median_step_size
        if n_steps <= self.max_leapfrog:
            return max(1, ceil(n_steps))
        half = (self.max_leapfrog + 1) // 2
        return half + int(fallback * (self.max_leapfrog + 1 - half))


def draw_momentum(state: State, generator: torch.Generator) -> Tensor:
    """Draw standard normal momenta in preconditioned coordinates, (C, D)."""
    return standard_normal(state.position.shape, generator=generator, like=state.position)


def leapfrog(
    state: State,
    log_density: LogDensity,
    momentum: Tensor,
    step_size: Tensor,
    preconditioner: Preconditioner,
    n_steps: int,
) -> tuple[State, Tensor]:
    """Follow a trajectory of every chain by the leapfrog integrator.

    Parameters
    ----------
    state : State
        Start of the trajectories, left unchanged.
    log_density : LogDensity
        Target of the chains.
    momentum : Tensor of shape (C, D)
        Initial momenta in preconditioned coordinates.
    step_size : Tensor of shape (C,)
        Step sizes in the dtype of the positions. Negative ones go back in time.
    preconditioner : Preconditioner
        Coordinates in which the chains move.
    n_steps : int
        Number of steps, at least 1, of one gradient each.

    Returns
    -------
    state : State
        End of the trajectories. It isn't finite for chains that overflowed, which doesn't affect
        the other chains.
    momentum : Tensor of shape (C, D)
        Momenta at the end.

    Notes
    -----
    The integrator is reversible and preserves volume. Two half updates of the momentum between two
    positions are made as one.
    """
    eps = step_size.unsqueeze(1)
    position = state.position.clone()
    kick = preconditioner.to_gradient
    move = preconditioner.to_position
    slope = make_gradient(log_density)
    p = momentum.addcmul(eps, kick(state.gradient), value=0.5)
    for _ in range(n_steps - 1):
        position.addcmul_(eps, move(p))
        p.addcmul_(eps, kick(slope(position)))
    position.addcmul_(eps, move(p))
    value, gradient = log_density.evaluate(position)
    p.addcmul_(eps, kick(gradient), value=0.5)
    return State(position, value, gradient), p


def energy_error(start: State, momentum: Tensor, end: State, end_momentum: Tensor) -> Tensor:
    """Energy error ``H(end) - H(start)`` of trajectories.

    Parameters
    ----------
    start : State
        Start of the trajectories.
    momentum : Tensor of shape (C, D)
        Momenta at the start.
    end : State
        End of the trajectories.
    end_momentum : Tensor of shape (C, D)
        Momenta at the end.

    Returns
    -------
    Tensor of shape (C,), float64
        In nats; nan or infinite if the end isn't finite.
    """
    kinetic = (end_momentum.double() - momentum.double()) * (end_momentum + momentum)
    return 0.5 * kinetic.sum(1) - (end.value.double() - start.value.double())


def metropolis(
    state: State,
    proposal: State,
    energy_error: Tensor,
    *,
    n_gradients: int,
    generator: torch.Generator,
    allowed: Tensor | None = None,
) -> tuple[State, Info]:
    """Accept each chain's proposal with probability ``min(1, exp(-energy_error))``.

    Parameters
    ----------
    state : State
        Current state of C chains.
    proposal : State
        Proposed states.
    energy_error : Tensor of shape (C,)
        Energy error of each proposal in nats. If it isn't finite, the proposal is divergent and
        rejected.
    n_gradients : int
        Gradient evaluations per chain that the proposal took.
    generator : torch.Generator
        Random stream of the acceptance.
    allowed : Tensor of shape (C,), bool, optional
        Proposals that may be accepted, to restrict the target to a region.

    Returns
    -------
    state : State
        State after the move.
    info : Info
        Its ``acceptance`` is the integrator's probability and doesn't account for ``allowed``,
        because a smaller step size doesn't change what a boundary rejects.
    """
    is_finite = energy_error.isfinite()
    probability = torch.where(is_finite, (-energy_error).exp().clamp_max(1.0), 0.0)
    uniform = torch.rand(
        len(probability), generator=generator, device=probability.device, dtype=torch.float64
    )
    accepted = uniform < probability
    outside = None
    if allowed is not None:
        accepted &= allowed
        outside = ~allowed
    divergent = ~is_finite | (energy_error > MAX_ENERGY_ERROR)
    n_gradients_per_chain = torch.full_like(accepted, n_gradients, dtype=torch.int64)
    info = Info(probability, accepted, divergent, n_gradients_per_chain, energy_error, outside)
    return select_chains(accepted, proposal, state), info
