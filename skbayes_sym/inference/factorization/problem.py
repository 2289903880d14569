"""A factorisation to be solved, and what a solver finds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.data import Entries
from skbayes_sym.inference.factorization.vi import FactorPosterior, start_at_random
from skbayes_sym.numerics.monte_carlo import Estimate
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.symmetry.base import SymmetryGroup

# Told the posterior of the moment, and the ELBO (nats, scaled) if there is one; True asks to stop.
OnSweep = Callable[[FactorPosterior, float | None], bool]


class FactorModel(NamedTuple):
    """``R = U V' / sqrt(k) + noise``, entries of U and V ``N(0, prior_scale^2)``; scaled units."""

    n_components: int
    prior_scale: float
    noise_variance: float  # as given, or where learning starts
    noise_range: tuple[float, float] | None  # if it is learned


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
    model : FactorModel
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
    model: FactorModel
    group: SymmetryGroup | None
    max_iter: int
    tol: float
    seed: int

    def generator(self, purpose: str) -> torch.Generator:
        """The private stream of one purpose, on the device of the data."""
        seeds = _Seeds(*spawn_seeds(self.seed, len(_Seeds._fields)))
        return generator_from(getattr(seeds, purpose), self.data.by_row.value.device)

    @property
    def start(self) -> FactorPosterior:
        """A random one."""
        return start_at_random(
            (self.data.n_rows, self.data.n_columns),
            self.model.n_components,
            prior_scale=self.model.prior_scale,
            noise_variance=self.model.noise_variance,
            generator=self.generator("start"),
            like=self.data.by_row.value,
        )


class FactorBounds(NamedTuple):
    """On the log evidence of scaled entries, nats."""

    mean_field: float
    gap: Estimate


@dataclass(frozen=True, eq=False)
class Factors:
    """What a solver has found (so far).

    Parameters
    ----------
    posterior : FactorPosterior
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

    posterior: FactorPosterior
    n_iter: int = 0
    stopped: Stopped = "max_iter"
    curve: tuple[float, ...] = ()
    bounds: FactorBounds | None = None
    draws: Tensor | None = None
