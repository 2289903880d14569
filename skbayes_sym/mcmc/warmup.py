"""Warm-up: chains learn a step size each, and the scale of every coordinate.

The schedule is Stan's: a fast window where only the step size adapts, slow windows of doubling
length that each estimate the scales afresh, and a last fast window. Step sizes are never pooled
over chains (fitted ones differ several fold between the modes of one network); scales are shrunk
towards what exchangeable coordinates have in common, which moving a chain to another copy of its
mode doesn't change.
"""

from dataclasses import dataclass
from math import log
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity
from skbayes_sym.mcmc.kernels import State, draw_momentum, energy_error, leapfrog
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner, Preconditioner
from skbayes_sym.symmetry.group import SymmetryGroup

# Step sizes stay within this range, so that a chain that rejects everything remains a number.
MIN_STEP_SIZE = 1e-7
MAX_STEP_SIZE = 1e4


class DualAveraging(NamedTuple):
    """Step sizes on their way to a target acceptance (Hoffman & Gelman 2014, eq. 6)."""

    log_step_size: Tensor  # (C,), float64
    log_average: Tensor  # (C,), weighted to the last ones
    shortfall: Tensor  # (C,), running mean of target - acceptance
    log_anchor: Tensor  # (C,), where step sizes are drawn to while nothing is known
    n_moves: int = 0

    @classmethod
    def start(cls, step_size: Tensor) -> "DualAveraging":
        """Begin at ``step_size`` (C,), looking upwards first (their mu = log 10 eps)."""
        log_size = step_size.double().log()
        return cls(log_size, log_size, torch.zeros_like(log_size), log_size + log(10.0))

    def update(self, acceptance: Tensor, target: float) -> "DualAveraging":
        """Take in the acceptance probability (C,) of a move made with `step_size`.

        Constants are theirs (section 3.2.1: t0 = 10, kappa = .75), but for gamma. With their 0.05
        step sizes still jump at the end of a window of 50 moves, and their average accepts 0.91 to
        0.95 for 0.8, at a third more gradients; with 0.2 now and then a chain ends stuck. 0.1 gives
        0.84 to 0.88 on normals of 10 to 50 dimensions and on small networks.
        """
        m = self.n_moves + 1
        shortfall = self.shortfall.lerp(target - acceptance.double(), 1.0 / (m + 10.0))
        log_size = self.log_anchor - m**0.5 / 0.1 * shortfall
        log_size = log_size.clamp(log(MIN_STEP_SIZE), log(MAX_STEP_SIZE))
        average = self.log_average.lerp(log_size, m**-0.75)
        return DualAveraging(log_size, average, shortfall, self.log_anchor, m)


def reasonable_step_size(
    state: State,  # where the chains are, and their dynamics
    log_density: LogDensity,
    *,
    step_size: Tensor,  # (C,): where to start
    preconditioner: Preconditioner,
    generator: torch.Generator,  # of the one momentum every chain is tried with
    target: float = 0.8,  # acceptance probability of a single step
) -> tuple[Tensor, int]:
    """Double or halve each chain's step size until one leapfrog step crosses ``target``.

    Hoffman & Gelman 2014, Algorithm 4, each chain going its own way; a step that ends outside the
    numbers counts as rejected. The sizes, and the gradients it took.
    """
    momentum = draw_momentum(state, generator)

    def too_short(size: Tensor) -> Tensor:
        end, p = leapfrog(state, log_density, momentum, size, preconditioner, 1)
        return energy_error(state, momentum, end, p) < -log(target)  # nan: no

    size = step_size.clamp(MIN_STEP_SIZE, MAX_STEP_SIZE)
    grows = too_short(size)
    factor = torch.where(grows, 2.0, 0.5).to(size)
    active = torch.ones_like(grows)
    n_gradients = 1
    while bool(active.any()):
        size = torch.where(active, size * factor, size)
        inside = (size > MIN_STEP_SIZE) & (size < MAX_STEP_SIZE)
        active &= (too_short(size) == grows) & inside
        n_gradients += 1
    return size.clamp(MIN_STEP_SIZE, MAX_STEP_SIZE), n_gradients


class RunningMoments(NamedTuple):
    """Running mean and squared deviations of each chain (Welford 1962), in float64."""

    n_draws: int
    mean: Tensor  # (C, D)
    squares: Tensor  # (C, D), sum of squared deviations from the mean

    @classmethod
    def empty(cls, like: Tensor) -> "RunningMoments":
        """Begin with no draws, of the shape of ``like`` (C, D)."""
        zeros = torch.zeros_like(like, dtype=torch.float64)
        return cls(0, zeros, zeros)

    def add(self, position: Tensor) -> "RunningMoments":
        """Take in a draw of every chain."""
        n = self.n_draws + 1
        x = position.double()
        before = x - self.mean
        mean = self.mean.add(before, alpha=1.0 / n)
        return RunningMoments(n, mean, self.squares.addcmul(before, x - mean))

    def variance(self) -> Tensor:
        """Within each chain, (C, D); zero for a chain that never moved."""
        return self.squares / max(1, self.n_draws - 1)


class Window(NamedTuple):
    """Moves between two looks at what was learnt."""

    n_moves: int
    learns_scale: bool


class PreconditionerAdaptation(Protocol):
    """Changes of the preconditioner during warm-up."""

    def windows(self, n_warmup: int) -> list[Window]:
        """Lengths that sum to ``n_warmup``; each begins with a fresh search of the step size."""

    def fit(
        self, preconditioner: Preconditioner, moments: RunningMoments, *, position: Tensor
    ) -> Preconditioner:
        """The preconditioner after a window that learns and ends at ``position`` (C, D)."""


@dataclass(frozen=True)
class FixedPreconditioner:
    """Only the step sizes adapt; a `PreconditionerAdaptation`."""

    def windows(self, n_warmup: int) -> list[Window]:
        return [Window(n_warmup, False)] if n_warmup else []

    def fit(
        self, preconditioner: Preconditioner, moments: RunningMoments, *, position: Tensor
    ) -> Preconditioner:
        return preconditioner


@dataclass(frozen=True, eq=False)
class PooledDiagonal:
    """A scale a chain and coordinate, shrunk to its orbit's; a `PreconditionerAdaptation`."""

    # Of the model: the coordinates it exchanges are pooled (weights from one input to the units of
    # a layer, biases of a layer, ...).
    group: SymmetryGroup

    def windows(self, n_warmup: int) -> list[Window]:
        return stan_windows(n_warmup)

    def fit(
        self, preconditioner: Preconditioner, moments: RunningMoments, *, position: Tensor
    ) -> Preconditioner:
        """Square roots of `pooled_variance`; unchanged where no chain moved."""
        orbits = self.group.coordinate_orbits(moments.mean.shape[1])
        variance = pooled_variance(moments.variance(), moments.n_draws, orbits)
        if bool((variance > 0).all()):  # nan where nothing moved
            return DiagonalPreconditioner(variance.sqrt().to(position))
        return preconditioner


def stan_windows(n_warmup: int) -> list[Window]:
    """Stan's schedule: a fast window, slow ones of doubling length, a fast one.

    75, (25, 50, 100, 200, 500), 50 for 1000 moves. Warm-ups too short for 75 + 25 + 50 give 15 %
    and 10 % to the fast windows and have one slow one; below 40 moves only step sizes are learnt.
    """
    if n_warmup < 40:
        return [Window(n_warmup, False)] if n_warmup else []
    first = 75
    size = 25
    last = 50
    if n_warmup < first + size + last:
        first = int(0.15 * n_warmup)
        last = max(int(0.1 * n_warmup), 10)
        size = n_warmup - first - last
    slow = []
    n_rest = n_warmup - first - last
    while n_rest:  # a window is drawn out where the next, twice as long, wouldn't fit
        n_moves = size if 3 * size <= n_rest else n_rest
        slow.append(Window(n_moves, True))
        n_rest = n_rest - n_moves
        size = 2 * size
    return [Window(first, False), *slow, Window(last, False)]


def pooled_variance(
    variance: Tensor,  # (C, D): within each chain
    count: int,  # draws n that each was estimated from
    orbits: Tensor,  # (D,), int64: `SymmetryGroup.coordinate_orbits`
) -> Tensor:
    """Shrink each chain's variances towards those of exchangeable coordinates.

        v = (n v_chain + 5 v_orbit) / (n + 5),
        v_orbit = median over chains of the mean of v_chain over the orbit's coordinates

    Equivariant: permuting exchangeable coordinates within any chain, each chain its own way,
    permutes the result alike. The median keeps stuck or lost chains from setting the scale; those
    that never moved are left out of it, and an orbit that moved in none is nan.
    """
    _, orbit = orbits.to(variance.device).unique(return_inverse=True)
    members = torch.nn.functional.one_hot(orbit).to(variance)
    mean = variance @ members / members.sum(0)
    pooled = torch.where(mean > 0, mean, torch.nan).nanmedian(dim=0).values[orbit]
    # The orbit counts for five draws, the weight Stan gives its own constant.
    return (count * variance + 5.0 * pooled) / (count + 5.0)
