"""Hamiltonian Monte Carlo for many chains as one batch, and the nouns every kernel shares.

In the coordinates z of a preconditioner ``position = L z`` the momentum p is standard normal, and
the dynamics of ``H = -log density + |p|^2 / 2`` are followed by the leapfrog integrator

    p += (eps / 2) L' gradient;   position += eps L p;   p += (eps / 2) L' gradient

(Neal 2011, "MCMC using Hamiltonian dynamics", section 2.3). All chains of a batch make the same
number of steps, so that one gradient of the batch is one call; each has its own step size.

A prior that learns its scales has the tails of a Student-t distribution: where the data don't mind,
the weights of a group are a hundred times larger in one draw than in the next. Trajectories are too
short to go there and back. A change of scale (`rescale`) goes there at once.
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
    """Places of C chains, as the next move needs them."""

    position: Tensor  # (C, D)
    value: Tensor  # (C,), log density there, nats
    gradient: Tensor  # (C, D)


class Info(NamedTuple):
    """Figures of a move."""

    acceptance: Tensor  # (C,), mean Metropolis probability of the proposals
    accepted: Tensor  # (C,), bool: the chain moved
    divergent: Tensor  # (C,), bool: the integrator's energy error exceeded `MAX_ENERGY_ERROR`
    n_gradients: Tensor  # (C,), int64: gradients this chain's move was charged for
    energy_error: Tensor | None = None  # (C,), nats, of the proposal; where a move has one
    outside: Tensor | None = None  # (C,), bool: the proposal left a region, and was rejected


# Energy error in nats beyond which a trajectory has left the integrator's stability (Stan's value).
MAX_ENERGY_ERROR = 1000.0


def where(mask: Tensor, new: _Nested, old: _Nested) -> _Nested:
    """Chain by chain ``new`` where ``mask`` (C,) holds, else ``old``: of nested NamedTuples."""

    def choose(a: Any, b: Any) -> Any:
        if isinstance(b, Tensor):
            return torch.where(mask.reshape(-1, *[1] * (b.ndim - 1)), a, b)
        return type(b)(*map(choose, a, b))

    chosen: _Nested = choose(new, old)
    return chosen


class Kernel(Protocol):
    """A Markov move of C independent chains that leaves ``exp(log_density)`` invariant.

    Kernels keep no state: everything adaptive is an argument, and must not depend on the state
    within the move.
    """

    def step(
        self, state: State, log_density: LogDensity, *, step_size: Tensor,
        preconditioner: Preconditioner, generator: torch.Generator,
    ) -> tuple[State, Info]:  # fmt: skip
        """Move every chain once; ``step_size`` is (C,)."""


def initial_state(position: Tensor, log_density: LogDensity) -> State:
    """The state of chains at ``position`` (C, D)."""
    value, gradient = log_density.evaluate(position)
    return State(position, value, gradient)


def rescale(
    state: State,
    log_density: LogDensity,
    directions: Tensor,  # (K, D): one is chosen for each chain and change, all alike
    *,
    generator: torch.Generator,
    domain: FundamentalDomain | None = None,  # changes that leave it are rejected
) -> State:
    """Change every chain's scales four times; four values and a gradient.

        theta_k -> exp(r e_k) theta_k,    r ~ N(0, 1.5^2),    e_k in {-1, 0, 1},

    accepted with probability ``min(1, exp(r sum_k e_k) p(theta') / p(theta))``, whose first factor
    is the Jacobian (Liu and Sabatti 2000, Biometrika 87). The directions ``e`` are the density's.
    """
    position, value, _ = state
    n_chains = len(value)
    device = generator.device
    for _ in range(4):
        chosen = torch.randint(len(directions), (n_chains,), generator=generator, device=device)
        size = 1.5 * standard_normal((n_chains, 1), generator=generator, like=position)
        log_scale = size * directions[chosen.to(directions.device)]
        proposal = position * log_scale.exp()
        proposed = log_density(proposal)
        gain = proposed.double() - value.double() + log_scale.double().sum(1)
        uniform = torch.rand(n_chains, generator=generator, device=device, dtype=torch.float64)
        accepted = uniform.to(gain.device).log() < gain  # False for nan
        if domain is not None:
            accepted &= domain.contains(proposal)
        position = torch.where(accepted.unsqueeze(1), proposal, position)
        value = torch.where(accepted, proposed, value)
    return initial_state(position, log_density)


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
    the number is uniform in its upper half instead, since a constant number could still resonate.

    Under a prior that learns its scales a move ends with changes of scale, which reach its tails.
    """

    path_length: float = pi / 2
    jitter: tuple[float, float] = (0.05, 2.0)
    max_leapfrog: int = 256
    least_step: float = 1.0
    domain: FundamentalDomain | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_positive("path_length", self.path_length)
        low, high = check_range("jitter", self.jitter)
        if low > high:
            raise ValueError(f"jitter must be two increasing numbers, got {self.jitter!r}.")
        check_count("max_leapfrog", self.max_leapfrog)
        check_positive("least_step", self.least_step, 1.0)

    @property
    def mean_path(self) -> float:
        """Length of a trajectory that isn't cut, on average."""
        return self.path_length * sum(self.jitter) / 2.0

    def step(
        self, state: State, log_density: LogDensity, *, step_size: Tensor,
        preconditioner: Preconditioner, generator: torch.Generator, n_steps: int | None = None,
    ) -> tuple[State, Info]:  # fmt: skip
        """Move every chain once; see `Kernel.step`. Of ``n_steps``, if `n_steps` has said it."""
        if n_steps is None:
            n_steps = self.n_steps(float(step_size.median()), generator)
        momentum = draw_momentum(state, generator)
        size = step_size
        if self.least_step < 1.0:
            u = torch.rand(
                len(size), generator=generator, device=generator.device, dtype=torch.float32
            )
            size = size * (self.least_step + (1.0 - self.least_step) * u).to(size)
        proposal, end = leapfrog(state, log_density, momentum, size, preconditioner, n_steps)
        error = energy_error(state, momentum, proposal, end)
        allowed = None if self.domain is None else self.domain.contains(proposal.position)
        state, info = metropolis(
            state, proposal, error, n_gradients=n_steps, generator=generator, allowed=allowed
        )
        if not isinstance(log_density, HasScaleDirections):
            return state, info
        directions = log_density.scale_directions
        domain = self.domain
        if directions is not None:
            state = rescale(state, log_density, directions, generator=generator, domain=domain)
            info = info._replace(n_gradients=info.n_gradients + 2)  # four values are about one
        return state, info

    def n_steps(self, median: float, generator: torch.Generator) -> int:
        """Leapfrog steps of the next move, whose step sizes have this median; no GPU is asked."""
        length, fallback = sample_host_uniforms(2, generator)
        low, high = self.jitter
        wanted = self.path_length * (low + (high - low) * length) / median
        if wanted <= self.max_leapfrog:
            return max(1, ceil(wanted))
        half = (self.max_leapfrog + 1) // 2
        return half + int(fallback * (self.max_leapfrog + 1 - half))


def draw_momentum(state: State, generator: torch.Generator) -> Tensor:
    """Standard normal momenta in preconditioned coordinates, (C, D)."""
    return standard_normal(state.position.shape, generator=generator, like=state.position)


def leapfrog(
    state: State,  # where the C chains are; left as it is
    log_density: LogDensity,
    momentum: Tensor,  # (C, D): in preconditioned coordinates
    step_size: Tensor,  # (C,), in the dtype of the positions; a negative one goes back
    preconditioner: Preconditioner,
    n_steps: int,  # at least 1
) -> tuple[State, Tensor]:
    """Ends of the trajectories of ``n_steps`` steps, a gradient each; and the momenta there.

    A chain that left what numbers can hold is not finite there; the others are not touched by it.
    Reversible and volume preserving. Two half kicks between two gradients are made as one.
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
    """``H(end) - H(start)`` in nats, (C,), float64; nan or infinite where the end is not finite."""
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
    outside = None if allowed is None else ~allowed
    if allowed is not None:
        accepted &= allowed
    divergent = ~finite | (energy_error > MAX_ENERGY_ERROR)
    charged = torch.full_like(accepted, n_gradients, dtype=torch.int64)
    info = Info(probability, accepted, divergent, charged, energy_error, outside)
    return where(accepted, proposal, state), info
