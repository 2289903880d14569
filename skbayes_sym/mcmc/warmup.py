"""Warm-up: adaptation of each chain's step size and of the scale of every coordinate.

The schedule is Stan's: a fast window in which only the step size adapts, slow windows of doubling
length that each estimate the scales anew, and a final fast window. Step sizes are never pooled over
chains, because tuned step sizes differ several fold between the modes of one network. Scales are
shrunk towards the pooled scale of exchangeable coordinates, which doesn't change when a chain moves
to another copy of its mode.
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

# Bounds of step sizes, so that the step size of a chain that rejects everything stays finite.
MIN_STEP_SIZE = 1e-7
MAX_STEP_SIZE = 1e4


class DualAveraging(NamedTuple):
    """Dual averaging of step sizes towards a target acceptance (Hoffman & Gelman 2014, eq. 6).

    Parameters
    ----------
    log_step_size : Tensor of shape (C,), float64
        Log of the step size of the next move.
    log_average : Tensor of shape (C,)
        Average of the log step sizes, weighted towards the last ones.
    shortfall : Tensor of shape (C,)
        Running mean of target acceptance minus acceptance.
    log_anchor : Tensor of shape (C,)
        Log step size to which the first step sizes are attracted.
    n_moves : int, default=0
        Number of moves.
    """

    log_step_size: Tensor
    log_average: Tensor
    shortfall: Tensor
    log_anchor: Tensor
    n_moves: int = 0

    @classmethod
    def start(cls, step_size: Tensor) -> "DualAveraging":
        """Start at ``step_size`` (C,) with the anchor at ten times its value, as in the paper."""
        log_size = step_size.double().log()
        return cls(log_size, log_size, torch.zeros_like(log_size), log_size + log(10.0))

    def update(self, acceptance: Tensor, target: float) -> "DualAveraging":
        """Update the step sizes after a move.

        Parameters
        ----------
        acceptance : Tensor of shape (C,)
            Acceptance probability of the move.
        target : float
            Target acceptance probability.

        Returns
        -------
        DualAveraging

        Notes
        -----
        The constants are those of the paper (section 3.2.1: t0 = 10, kappa = 0.75), except for
        gamma. With gamma = 0.05 step sizes still jump at the end of a window of 50 moves. Their
        average then accepts 0.91 to 0.95 instead of 0.8, at a third more gradients. With 0.2 a
        chain occasionally ends stuck. With 0.1 the acceptance is 0.84 to 0.88 on normals of 10 to
        50 dimensions and on small networks.
        """
        m = self.n_moves + 1
        shortfall = self.shortfall.lerp(target - acceptance.double(), 1.0 / (m + 10.0))
        log_size = self.log_anchor - m**0.5 / 0.1 * shortfall
        log_size = log_size.clamp(log(MIN_STEP_SIZE), log(MAX_STEP_SIZE))
        average = self.log_average.lerp(log_size, m**-0.75)
        return DualAveraging(log_size, average, shortfall, self.log_anchor, m)


def find_reasonable_step_size(
    state: State,
    log_density: LogDensity,
    *,
    step_size: Tensor,
    preconditioner: Preconditioner,
    generator: torch.Generator,
    target: float = 0.8,
) -> tuple[Tensor, int]:
    """Double or halve each chain's step size until one leapfrog step crosses ``target``.

    This is Algorithm 4 of Hoffman & Gelman (2014) for each chain separately. A step that ends at a
    position that isn't finite counts as rejected.

    Parameters
    ----------
    state : State
        State of the chains.
    log_density : LogDensity
        Log density that the chains sample.
    step_size : Tensor of shape (C,)
        Initial step sizes.
    preconditioner : Preconditioner
        Coordinates in which the chains move.
    generator : torch.Generator
        Random stream of the momentum, of which every chain gets one.
    target : float, default=0.8
        Acceptance probability of a single step.

    Returns
    -------
    step_size : Tensor of shape (C,)
        Step sizes between `MIN_STEP_SIZE` and `MAX_STEP_SIZE`.
    n_gradients : int
        Number of gradient evaluations per chain.
    """
    momentum = draw_momentum(state, generator)

    def is_too_short(size: Tensor) -> Tensor:
        end, end_momentum = leapfrog(state, log_density, momentum, size, preconditioner, 1)
        return energy_error(state, momentum, end, end_momentum) < -log(target)  # False for nan

    size = step_size.clamp(MIN_STEP_SIZE, MAX_STEP_SIZE)
    grows = is_too_short(size)
    factor = torch.where(grows, 2.0, 0.5).to(size)
    is_active = torch.ones_like(grows)
    n_gradients = 1
    while bool(is_active.any()):
        size = torch.where(is_active, size * factor, size)
        is_within_bounds = (size > MIN_STEP_SIZE) & (size < MAX_STEP_SIZE)
        is_active &= (is_too_short(size) == grows) & is_within_bounds
        n_gradients += 1
    return size.clamp(MIN_STEP_SIZE, MAX_STEP_SIZE), n_gradients


class RunningMoments(NamedTuple):
    """Running mean and variance of each chain (Welford 1962) in float64.

    Parameters
    ----------
    n_draws : int
        Number of draws.
    mean : Tensor of shape (C, D)
        Mean of each chain.
    squares : Tensor of shape (C, D)
        Sum of squared deviations from the mean.
    """

    n_draws: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> "RunningMoments":
        """Moments of no draws, of the shape of ``like`` (C, D)."""
        zeros = torch.zeros_like(like, dtype=torch.float64)
        return cls(0, zeros, zeros)

    def add(self, position: Tensor) -> "RunningMoments":
        """Add a draw of every chain, (C, D)."""
        n_draws = self.n_draws + 1
        x = position.double()
        deviation = x - self.mean
        mean = self.mean.add(deviation, alpha=1.0 / n_draws)
        return RunningMoments(n_draws, mean, self.squares.addcmul(deviation, x - mean))

    def variance(self) -> Tensor:
        """Variance within each chain, (C, D); zero for a chain that never moved."""
        return self.squares / max(1, self.n_draws - 1)


class Window(NamedTuple):
    """Part of the warm-up with a fixed preconditioner.

    Parameters
    ----------
    n_moves : int
        Number of moves.
    learns_scale : bool
        Whether the preconditioner is adapted at the end.
    """

    n_moves: int
    learns_scale: bool


class PreconditionerAdaptation(Protocol):
    """Adaptation of the preconditioner during warm-up."""

    def windows(self, n_warmup: int) -> list[Window]:
        """Windows whose lengths sum to ``n_warmup``; each begins with a search of step sizes."""

    def fit(
        self, preconditioner: Preconditioner, moments: RunningMoments, position: Tensor, /
    ) -> Preconditioner:
        """Preconditioner after a window.

        Parameters
        ----------
        preconditioner : Preconditioner
            Preconditioner of the window.
        moments : RunningMoments
            Moments of the window's draws.
        position : Tensor of shape (C, D)
            Final position of the chains.

        Returns
        -------
        Preconditioner
        """


@dataclass(frozen=True)
class FixedPreconditioner:
    """`PreconditionerAdaptation` that adapts the step sizes only."""

    def windows(self, n_warmup: int) -> list[Window]:
        """One window, or none for ``n_warmup=0``."""
        if not n_warmup:
            return []
        return [Window(n_warmup, False)]

    def fit(
        self, preconditioner: Preconditioner, _moments: RunningMoments, _position: Tensor, /
    ) -> Preconditioner:
        """Return ``preconditioner`` unchanged."""
        return preconditioner


@dataclass(frozen=True, eq=False)
class PooledDiagonal:
    """`PreconditionerAdaptation` with one scale per chain and coordinate, shrunk to its orbit's.

    Parameters
    ----------
    group : SymmetryGroup
        Symmetry of the model. Coordinates that it exchanges are pooled: for example the weights
        from one input to the units of a layer, or the biases of a layer.
    """

    group: SymmetryGroup

    def windows(self, n_warmup: int) -> list[Window]:
        """Stan's schedule."""
        return stan_windows(n_warmup)

    def fit(
        self, preconditioner: Preconditioner, moments: RunningMoments, position: Tensor, /
    ) -> Preconditioner:
        """Square roots of `pooled_variance`.

        Parameters
        ----------
        preconditioner : Preconditioner
            Returned unchanged if some orbit moved in no chain.
        moments : RunningMoments
            Moments of the window's draws.
        position : Tensor of shape (C, D)
            Positions that give the dtype and device.

        Returns
        -------
        Preconditioner
        """
        orbits = self.group.coordinate_orbits(moments.mean.shape[1])
        variance = pooled_variance(moments.variance(), moments.n_draws, orbits)
        if bool((variance > 0).all()):  # False for nan
            return DiagonalPreconditioner(variance.sqrt().to(position))
        return preconditioner


def stan_windows(n_warmup: int) -> list[Window]:
    """Stan's schedule: a fast window, slow windows of doubling length, and a fast window.

    For 1000 moves the windows are 75, (25, 50, 100, 200, 500) and 50. Warm-ups shorter than 75 + 25
    + 50 moves have 15 % and 10 % in the fast windows and a single slow one. Below 40 moves only
    step sizes are adapted.

    Parameters
    ----------
    n_warmup : int
        Number of warm-up moves.

    Returns
    -------
    list of Window
    """
    if not n_warmup:
        return []
    if n_warmup < 40:
        return [Window(n_warmup, False)]
    first = 75
    size = 25
    last = 50
    if n_warmup < first + size + last:
        first = int(0.15 * n_warmup)
        last = max(int(0.1 * n_warmup), 10)
        size = n_warmup - first - last
    slow = []
    n_left = n_warmup - first - last
    while n_left:
        # Extend the window to the end if the next one, twice as long, wouldn't fit.
        n_moves = size if 3 * size <= n_left else n_left
        slow.append(Window(n_moves, True))
        n_left = n_left - n_moves
        size = 2 * size
    return [Window(first, False), *slow, Window(last, False)]


def pooled_variance(variance: Tensor, count: int, orbits: Tensor) -> Tensor:
    """Shrink each chain's variances towards those of exchangeable coordinates.

    Parameters
    ----------
    variance : Tensor of shape (C, D)
        Variance within each chain.
    count : int
        Number of draws n from which each variance was estimated.
    orbits : Tensor of shape (D,), int64
        Orbit of each coordinate (`SymmetryGroup.coordinate_orbits`).

    Returns
    -------
    Tensor of shape (C, D)
        nan for an orbit whose coordinates moved in no chain.

    Notes
    -----
    The result is

        v = (n v_chain + 5 v_orbit) / (n + 5),
        v_orbit = median over chains of the mean of v_chain over the orbit's coordinates.

    It is equivariant: permuting exchangeable coordinates differently in each chain permutes the
    result in the same way, because an orbit's mean is the same in every copy of a mode. With the
    median, stuck or divergent chains don't determine the scale. Chains that never moved are
    excluded. The orbit has the weight of five draws, as Stan's regularisation has.
    """
    _, orbit = orbits.to(variance.device).unique(return_inverse=True)
    is_member = torch.nn.functional.one_hot(orbit).to(variance)
    mean = variance @ is_member / is_member.sum(0)
    pooled = torch.where(mean > 0, mean, torch.nan).nanmedian(dim=0).values[orbit]
    return (count * variance + 5.0 * pooled) / (count + 5.0)
