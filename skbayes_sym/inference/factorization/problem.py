"""A factorisation to be solved, and what a solver finds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.data import Entries
from skbayes_sym.numerics.monte_carlo import Estimate
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import float64_normal, generator_from, spawn_seeds
from skbayes_sym.symmetry.base import SymmetryGroup


class FactorState(NamedTuple):
    """What sweeps move, on their device: Gaussian rows, those of U before V's, and the noise.

    A fit's result is a `skbayes_sym.inference.posteriors.MatrixPosterior`: in NumPy, without the
    noise, which has no law.
    """

    mean: Tensor  # (n + m, k)
    cov: Tensor  # (n + m, k, k)
    noise_variance: float

    def to(self, dtype: torch.dtype) -> "FactorState":
        """The same in another precision."""
        return self._replace(mean=self.mean.to(dtype), cov=self.cov.to(dtype))


# Told the posterior of the moment, and the ELBO (nats, scaled) if there is one; True asks to stop.
OnSweep = Callable[[FactorState, float | None], bool]


class Factorisation(NamedTuple):
    """``R = U V' / sqrt(k) + noise``, entries of U and V ``N(0, prior_scale^2)``; scaled units."""

    n_components: int
    prior_scale: float
    noise_variance: float  # as given, or where learning starts
    noise_range: tuple[float, float] | None = None  # if it is learned


class _Seeds(NamedTuple):
    """One a purpose."""

    start: int
    gap: int
    report: int
    gibbs: int


@dataclass(frozen=True, eq=False)
class FactorProblem:
    """What every solver gets.

    Parameters
    ----------
    data : Entries
        Centred and scaled, in the precision of the sweeps.
    precise : Entries
        The same in float64, in which bounds are evaluated.
    model : Factorisation
    group : SymmetryGroup or None
        That the posterior is averaged over.
    max_iter : int
        Sweeps.
    tol : float
        Nats: what ten sweeps must gain on average to go on.
    seed : int
    """

    data: Entries
    precise: Entries
    model: Factorisation
    group: SymmetryGroup | None
    max_iter: int
    tol: float
    seed: int

    def generator(self, purpose: str) -> torch.Generator:
        """The private stream of one purpose, on the device of the data."""
        seeds = _Seeds(*spawn_seeds(self.seed, len(_Seeds._fields)))
        return generator_from(getattr(seeds, purpose), self.data.by_row.value.device)

    @property
    def start(self) -> FactorState:
        """Means drawn from the prior, and narrower than it: away from the saddle at 0."""
        k, scale, noise_variance, _ = self.model
        like, n = self.data.by_row.value, self.data.n_rows + self.data.n_columns
        mean = (scale * float64_normal((n, k), generator=self.generator("start"))).to(like)
        identity = torch.eye(k, dtype=like.dtype, device=like.device)
        return FactorState(mean, (0.1 * scale**2 * identity).repeat(n, 1, 1), noise_variance)


class FactorBounds(NamedTuple):
    """On the log evidence of scaled entries, nats."""

    mean_field: float
    gap: Estimate


@dataclass(frozen=True, eq=False)
class Factors:
    """What a solver has found (so far).

    Parameters
    ----------
    posterior : FactorState
        Or the moments of what stands for it.
    n_iter : int
    stopped : Stopped
    curve : list of float
        What the sweeps raise, after each of them; empty where they raise nothing.
    bounds : FactorBounds, optional
        Of variational posteriors.
    draws : Tensor of shape (S, n + m, k), optional
        Aligned draws, float64.
    """

    posterior: FactorState
    n_iter: int = 0
    stopped: Stopped = "max_iter"
    curve: tuple[float, ...] = ()
    bounds: FactorBounds | None = None
    draws: Tensor | None = None
