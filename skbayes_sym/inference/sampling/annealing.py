"""How chains of a large network come to a place worth sampling: from afar, and hot at first.

A chain started at a good optimum stays in its narrow basin. One that starts at a poor one and moves
with steps so long that their energy error is large (`MicrocanonicalLangevin`, which rejects
nothing) finds a wide basin as the steps get shorter: annealing, whose temperature is the energy
error. Preconditioned from the start it would find worse ones: so the coordinates are the weights
themselves, until the place is found (`asv_bench/studies/compare_bde.py` prints what comes of it).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, cos, log, pi, sqrt
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity, gradient_of
from skbayes_sym.inference.sampling.kernels.base import (
    DiagonalPreconditioner,
    Info,
    Preconditioner,
    State,
    initial_state,
    where,
)
from skbayes_sym.inference.sampling.kernels.hmc import metropolis
from skbayes_sym.inference.sampling.warmup import Moments, PreconditionerAdaptation
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


# Adam (Kingma & Ba 2015) with its own constants; from a hundredth of a unit to a hundredth of that.
_LEARNING_RATE, _LAST_LEARNING_RATE = 1e-2, 1e-4
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_RISING = 50  # steps over which the learning rate rises from 0

# Step sizes that searches begin at, in units of sqrt(D).
_HOT_STEP, _PRECONDITIONED_STEP = 3e-4, 0.03

# Of the steps in the coordinates of the curvature, shares after which it is taken afresh.
_REBUILD_AFTER = (0.0, 0.17, 0.43)
_CAREFUL = 0.8  # of the step size, after that

Tell = Callable[[State, Info], None]  # of every move


@dataclass(frozen=True, eq=False)
class Place:
    """Where an approach ends."""

    state: State
    preconditioner: Preconditioner
    step_size: Tensor  # (C,)


class Approach(Protocol):
    """What chains do before they warm up."""

    @property
    def n_steps(self) -> int:
        """Moves it will make."""
        ...

    def run(
        self,
        state: State,
        log_density: LogDensity,
        adaptation: PreconditionerAdaptation,
        *,
        generator: torch.Generator,
        tell: Tell,
    ) -> Place:
        """Move chains from ``state``, telling every move."""
        ...


@dataclass(frozen=True)
class Annealing:
    """Adam for a little, microcanonical steps of falling energy error, then in the curvature's
    coordinates; an `Approach`.

    Parameters
    ----------
    n_adam : int, default=600
        Steps up the log density, from wherever the chains are put.
    n_hot : int, default=6000
        Steps of two gradients, in the coordinates as they are.
    energy_error : (float, float), default=(1.5, 0.1)
        Variance of a step's energy error per dimension, nats squared: of the first and the last hot
        step, falling geometrically; the last one's from then on.
    n_settle : int, default=1000
        Steps of two gradients in the coordinates of the adaptation's preconditioner.

    Notes
    -----
    ``n_adam + 2 (n_hot + n_settle)`` gradients a chain.
    """

    n_adam: int = 600
    n_hot: int = 6000
    energy_error: tuple[float, float] = (1.5, 0.1)
    n_settle: int = 1000

    @property
    def n_steps(self) -> int:
        return self.n_adam + self.n_hot + self.n_settle

    def run(
        self,
        state: State,
        log_density: LogDensity,
        adaptation: PreconditionerAdaptation,
        *,
        generator: torch.Generator,
        tell: Tell,
    ) -> Place:
        identity = DiagonalPreconditioner(torch.ones_like(state.position))
        place = Place(
            climb(state, log_density, self.n_adam, tell),
            identity,
            torch.full_like(state.value, _HOT_STEP),
        )
        walk = _Walk(log_density, generator, tell)
        place = walk(place, [self._target(t / max(1, self.n_hot)) for t in range(self.n_hot)])
        size, begin = torch.full_like(state.value, _PRECONDITIONED_STEP), 0
        ends = [round(share * self.n_settle) for share in (*_REBUILD_AFTER[1:], 1.0)]
        for end in ends if self.n_settle else ():
            at = place.state.position
            scaling = adaptation.fit(place.preconditioner, Moments.empty(at), position=at)
            place = walk(Place(place.state, scaling, size), [self.energy_error[1]] * (end - begin))
            size, begin = _CAREFUL * place.step_size, end
        return place

    def _target(self, progress: float) -> float:
        first, last = self.energy_error
        return float(first * (last / first) ** progress)


@dataclass(frozen=True, eq=False)
class Detour:
    """An approach under another density, to a place to begin at under one's own; an `Approach`.

    Priors whose scales are learned need it: the climb shrinks deep layers to nothing, where their
    density is highest, and scales of hundreds of weights take long to grow again. In float32 it is
    also cheaper, and nothing in an approach is exact.

    Parameters
    ----------
    approach : Approach
    log_density : LogDensity
        In any precision.
    adaptation : PreconditionerAdaptation
        For ``log_density``.
    dtype : torch.dtype
        Of ``log_density``.
    """

    approach: Approach
    log_density: LogDensity
    adaptation: PreconditionerAdaptation
    dtype: torch.dtype

    @property
    def n_steps(self) -> int:
        return self.approach.n_steps

    def run(
        self,
        state: State,
        log_density: LogDensity,
        adaptation: PreconditionerAdaptation,
        *,
        generator: torch.Generator,
        tell: Tell,
    ) -> Place:
        place = self.approach.run(
            initial_state(state.position.to(self.dtype), self.log_density), self.log_density,
            self.adaptation, generator=generator, tell=tell,
        )  # fmt: skip
        position = place.state.position.to(state.position)
        identity = DiagonalPreconditioner(torch.ones_like(position))
        return Place(
            initial_state(position, log_density),
            adaptation.fit(identity, Moments.empty(position), position=position),
            place.step_size.to(position),
        )


def climb(state: State, log_density: LogDensity, n_steps: int, tell: Tell) -> State:
    """``n_steps`` of Adam up the log density, every chain for itself; a chain never ends lost.

    The learning rate rises over 50 steps and falls as a half cosine.
    """
    position, (mean, square) = state.position, (torch.zeros_like(state.position) for _ in range(2))
    no_choice = torch.ones_like(state.value, dtype=torch.float64)
    for step in range(1, n_steps + 1):
        gradient = state.gradient
        mean = mean.lerp(gradient, 1 - _BETAS[0])
        square = (_BETAS[1] * square).addcmul(gradient, gradient, value=1 - _BETAS[1])
        unbiased = [m / (1 - b**step) for m, b in zip((mean, square), _BETAS, strict=True)]
        ratio = unbiased[0] / (unbiased[1].sqrt() + _EPSILON)
        position = position + _learning_rate(step, n_steps) * ratio
        state = initial_state(position, log_density)
        finite = state.value.isfinite()
        tell(state, Info(no_choice, finite, ~finite, torch.ones_like(finite, dtype=torch.int64)))
    return state


def _learning_rate(step: int, n_steps: int) -> float:
    fall = 0.5 * (1 + cos(pi * step / n_steps))
    rate = _LAST_LEARNING_RATE + (_LEARNING_RATE - _LAST_LEARNING_RATE) * fall
    return rate * min(1.0, step / _RISING)


@dataclass(frozen=True, eq=False)
class _Walk:
    """Microcanonical steps, one for each target of the energy error."""

    log_density: LogDensity
    generator: torch.Generator
    tell: Tell

    def __call__(self, place: Place, targets: list[float]) -> Place:
        sampler = MicrocanonicalLangevin()
        motion = sampler.init(place.state.position, self.log_density, self.generator)
        sizes = EnergyErrorAdaptation.start(place.step_size)
        for target in targets:
            move = sampler.move(
                motion, self.log_density, step_size=sizes.step_size,
                preconditioner=place.preconditioner, generator=self.generator,
            )  # fmt: skip
            motion, sizes = move.motion, sizes.update(move, target)
            self.tell(motion.state, move.info)
        return Place(motion.state, place.preconditioner, sizes.step_size)
