"""How chains of a large network come to a place worth sampling: from afar, and hot at first.

A chain started at a good optimum stays in its narrow basin. One that starts at a poor one and moves
with steps so long that their energy error is large (`MicrocanonicalLangevin`, which rejects
nothing) finds a wide basin as the steps get shorter: annealing, whose temperature is the energy
error. Preconditioned from the start it would find worse ones: so the coordinates are the weights
themselves, until the place is found (`asv_bench/studies/compare_bde.py` prints what comes of it).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Protocol

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.sampling.kernels.base import (
    DiagonalPreconditioner,
    Info,
    Preconditioner,
    State,
    initial_state,
)
from skbayes_sym.inference.sampling.microcanonical import (
    EnergyErrorAdaptation,
    MicrocanonicalLangevin,
)
from skbayes_sym.inference.sampling.warmup import Moments, PreconditionerAdaptation

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
