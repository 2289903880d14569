"""Microcanonical dynamics: the velocity keeps its length and only turns.

In the coordinates z of a preconditioner ``position = L z`` a chain moves with unit velocity u,

    dz/dt = u,   du/dt = (1 - u u') L' gradient / (D - 1),

and its density stays ``exp(log density)`` times the uniform law of directions (Robnik et al. 2023,
"Microcanonical Hamiltonian Monte Carlo", eq. 7). What a discrete step gets wrong is its energy
error, in nats. Without a Metropolis step (`MicrocanonicalLangevin`) it is a bias, which step sizes
are chosen to bound; with one (`MicrocanonicalHMC`) there is none.

Step sizes are in units of sqrt(D), the typical length of a standard normal momentum, so that a
number means as much as it does in `HMC`.
"""

from dataclasses import dataclass
from math import ceil, log, pi, sqrt
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity, gradient_of
from skbayes_sym.inference.sampling.kernels.base import (
    Info,
    Preconditioner,
    State,
    initial_state,
    where,
)
from skbayes_sym.inference.sampling.kernels.hmc import metropolis
from skbayes_sym.numerics.random import standard_normal

# The minimal-norm integrator of two gradients a step (McLachlan 1995, "On the numerical integration
# of ordinary differential equations by symmetric composition methods"; Omelyan et al. 2002).
_MCLACHLAN = 0.1931833275037836

# Energy errors are remembered over about this many steps (Robnik et al. 2023 take 50 to 100).
_MEMORY = 100
_SPREAD = 1.5  # of log step sizes: errors that came with others than the present count less
_LEAST_ERROR = 1e-8  # relative to the target, so that no error is 0
_TELLING = 1e-3  # of the target: an error below says little, and until one is above ...
_GROWTH = 1.5  # ... steps grow by this
_RETREAT = 0.8  # a step that left the numbers sets a limit at this share of it
_ORDER = 6  # the variance of a step's energy error falls as its length to this power


class Motion(NamedTuple):
    """Where C chains are and where they go."""

    state: State
    velocity: Tensor  # (C, D), of length 1, in preconditioned coordinates


class MicrocanonicalMove(NamedTuple):
    """What an unadjusted step did."""

    motion: Motion
    info: Info
    energy_error: Tensor  # (C,), float64, nats; 0 where the step was taken back


def directions(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform directions of the shape of ``like`` (C, D)."""
    return _unit(standard_normal(like.shape, generator=generator, like=like))


def refresh(velocity: Tensor, amount: Tensor, generator: torch.Generator) -> Tensor:
    """Turn velocities a little: add normal noise of scale ``amount`` (C,), back to length 1.

    Leaves the uniform law of directions as it is.
    """
    noise = standard_normal(velocity.shape, generator=generator, like=velocity)
    return _unit(torch.addcmul(velocity, noise, amount.unsqueeze(1)))


def kick(velocity: Tensor, slope: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    r"""Let a constant slope turn the velocity for a time, solved exactly.

    With ``e`` the direction of the slope and ``d = time |slope| / (D - 1)``,

    .. math:: u \to \frac{u + e (\sinh d + e'u (\cosh d - 1))}{\cosh d + e'u \sinh d}

    (Robnik et al. 2023, eq. 16), which gains ``(D - 1) log(cosh d + e'u sinh d)`` nats.

    Parameters
    ----------
    velocity, slope : Tensor of shape (C, D)
    time : Tensor of shape (C,)

    Returns
    -------
    velocity, gain : Tensor of shape (C, D), Tensor of shape (C,), float64
    """
    n_free = velocity.shape[1] - 1
    size = slope.norm(dim=1).clamp_min(torch.finfo(slope.dtype).tiny)
    cosine = (velocity * slope).sum(1) / size
    reach = time * size / max(n_free, 1)
    fall = torch.exp(-reach)  # everything is divided by e^reach, which may be huge
    forward = (1 - fall) * (1 + fall + cosine * (1 - fall)) / size
    turned = ((2 * fall).unsqueeze(1) * velocity).addcmul_(slope, forward.unsqueeze(1))
    c, r = cosine.double(), reach.double()
    gain = r - log(2.0) + torch.log1p(c + (1 - c) * (-2 * r).exp())
    return _unit(turned), n_free * gain


def mclachlan(
    motion: Motion, log_density: LogDensity, step_size: Tensor, preconditioner: Preconditioner
) -> tuple[Motion, Tensor]:
    """One step of the dynamics: three kicks, two half moves, two gradients.

    Parameters
    ----------
    motion : Motion
        Left as it is.
    log_density : LogDensity
    step_size : Tensor of shape (C,)
        In units of sqrt(D), in the dtype of the positions.
    preconditioner : Preconditioner

    Returns
    -------
    motion : Motion
    energy_error : Tensor of shape (C,), float64
        Nats; of order ``step_size ** 3``.

    Notes
    -----
    Reversible: from the end, with the velocity turned round, it leads back.
    """
    (position, before, gradient), velocity = motion
    time = step_size * sqrt(position.shape[1])
    half = (0.5 * time).unsqueeze(1)
    velocity, first = kick(velocity, preconditioner.to_gradient(gradient), _MCLACHLAN * time)
    position = torch.addcmul(position, half, preconditioner.to_position(velocity))
    middle = gradient_of(log_density)(position)
    velocity, second = kick(
        velocity, preconditioner.to_gradient(middle), (1 - 2 * _MCLACHLAN) * time
    )
    position = torch.addcmul(position, half, preconditioner.to_position(velocity))
    state = initial_state(position, log_density)
    velocity, third = kick(velocity, preconditioner.to_gradient(state.gradient), _MCLACHLAN * time)
    gained = state.value.double() - before.double()
    return Motion(state, velocity), first + second + third - gained


@dataclass(frozen=True)
class MicrocanonicalLangevin:
    """Steps whose velocity is refreshed a little after each; nothing is rejected.

    Its law is that of the target but for the energy error of a step, which step sizes bound: at an
    error of variance v per dimension, the variances of its law are off by a share of order sqrt(v)
    (Robnik et al. 2023, section 4; 1 % at 1e-4 on normals of 10 dimensions).

    Parameters
    ----------
    forget : float, default=1.0
        Distance after which the velocity is forgotten, in units of sqrt(D).
    """

    forget: float = 1.0

    def init(self, position: Tensor, log_density: LogDensity, generator: torch.Generator) -> Motion:
        """Chains at ``position`` (C, D), each going its own way."""
        return Motion(initial_state(position, log_density), directions(position, generator))

    def step(
        self,
        motion: Motion,
        log_density: LogDensity,
        *,
        step_size: Tensor,
        preconditioner: Preconditioner,
        generator: torch.Generator,
    ) -> tuple[Motion, Info]:
        """Move every chain once; see `Kernel.step`."""
        move = self.move(
            motion, log_density, step_size=step_size, preconditioner=preconditioner,
            generator=generator,
        )  # fmt: skip
        return move.motion, move.info

    def move(
        self,
        motion: Motion,
        log_density: LogDensity,
        *,
        step_size: Tensor,
        preconditioner: Preconditioner,
        generator: torch.Generator,
    ) -> MicrocanonicalMove:
        """`step`, and its energy error.

        A step that leaves the numbers is taken back, and the chain turns round.
        """
        end, error = mclachlan(motion, log_density, step_size, preconditioner)
        sums = end.state.position.sum(1) + end.state.gradient.sum(1) + end.velocity.sum(1)
        finite = error.isfinite() & sums.isfinite()  # a sum is not, where a coordinate isn't
        kept = end
        if not bool(finite.all()):
            kept = where(finite, end, motion._replace(velocity=-motion.velocity))
        charged = torch.full_like(finite, 2, dtype=torch.int64)
        info = Info(finite.double(), finite, ~finite, charged, error)
        n_dims = motion.velocity.shape[1]
        amount = (torch.expm1(2.0 * step_size / self.forget) / n_dims).sqrt()
        turned = kept._replace(velocity=refresh(kept.velocity, amount, generator))
        return MicrocanonicalMove(turned, info, torch.where(finite, error, 0.0))


@dataclass(frozen=True)
class MicrocanonicalHMC:
    """Trajectories from a fresh direction, accepted or not: a `Kernel` without bias.

    Parameters
    ----------
    path_length : float, default=pi / 2
        Mean length of a trajectory in preconditioned coordinates, in units of sqrt(D).
    jitter : (float, float), default=(0.05, 2.0)
        Range of the uniform number that multiplies it.
    max_steps : int, default=128
        Most steps of a move, of two gradients each.

    References
    ----------
    Robnik, Cohn-Gordon & Seljak (2025), "Metropolis adjusted microcanonical Hamiltonian Monte
    Carlo".
    """

    any_gradient: ClassVar[bool] = True  # exact under `RoughGradients`

    path_length: float = pi / 2
    jitter: tuple[float, float] = (0.05, 2.0)
    max_steps: int = 128

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
        motion = Motion(state, directions(state.position, generator))
        error = torch.zeros_like(state.value, dtype=torch.float64)
        n_steps = self._n_steps(step_size, generator)
        for _ in range(n_steps):
            motion, gained = mclachlan(motion, log_density, step_size, preconditioner)
            error += gained
        return metropolis(state, motion.state, error, n_gradients=2 * n_steps, generator=generator)

    def _n_steps(self, step_size: Tensor, generator: torch.Generator) -> int:
        """Steps that all chains make: of the frozen step sizes and chance alone."""
        low, high = self.jitter
        u = torch.rand((), generator=generator, device=generator.device, dtype=torch.float64)
        wanted = self.path_length * (low + (high - low) * float(u)) / float(step_size.median())
        return min(self.max_steps, max(1, ceil(wanted)))


class EnergyErrorAdaptation(NamedTuple):
    """Step sizes, each chain its own, on their way to a variance of the energy error.

    The error of a step of size e has the variance ``c e^6 D``: c is averaged over the last hundred
    steps, those of about the right error counting most (Robnik et al. 2023, section 5; the code of
    blackjax). Unlike there, steps far too short are left out of it: their c would be remembered for
    a thousand.
    """

    step_size: Tensor  # (C,)
    longest: Tensor  # (C,), what steps are kept below: one that size left the numbers
    errors: Tensor  # (C,), float64, weighted sum of c / target
    weights: Tensor  # (C,), float64

    @classmethod
    def start(cls, step_size: Tensor) -> "EnergyErrorAdaptation":
        """Begin at ``step_size`` (C,), knowing nothing."""
        nothing = torch.zeros_like(step_size, dtype=torch.float64)
        return cls(step_size, torch.full_like(step_size, torch.inf), nothing, nothing)

    def update(self, move: MicrocanonicalMove, target: float) -> "EnergyErrorAdaptation":
        """Take in a move made with `step_size`; ``target`` is nats squared per dimension."""
        finite, n_dims = move.info.accepted, move.motion.velocity.shape[1]
        size = self.step_size.double()
        ratio = move.energy_error.square() / (n_dims * target) + _LEAST_ERROR
        weight = torch.exp(-0.5 * (ratio.log() / (_ORDER * _SPREAD)).square())
        decay = (_MEMORY - 1) / (_MEMORY + 1)
        errors = decay * self.errors + weight * ratio / size**_ORDER
        weights = decay * self.weights + weight
        longest = torch.where(finite, self.longest, _RETREAT * self.step_size)
        learns = finite & ((self.weights > 0) | (ratio > _TELLING))
        errors, weights = (
            torch.where(learns, new, old)
            for new, old in ((errors, self.errors), (weights, self.weights))
        )
        found = torch.where(weights > 0, (errors / weights).pow(-1 / _ORDER), _GROWTH * size)
        found = torch.minimum(found.to(self.step_size), longest)
        return EnergyErrorAdaptation(found, longest, errors, weights)


def _unit(vectors: Tensor) -> Tensor:
    """To length 1, in place."""
    return vectors.div_(vectors.norm(dim=1, keepdim=True))
