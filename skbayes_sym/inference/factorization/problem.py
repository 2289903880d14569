"""A factorisation to be solved, and what a solver finds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.coordinates import Coordinates, Free
from skbayes_sym.inference.factorization.data import Entries
from skbayes_sym.inference.factorization.hyperpriors import Block, Features, RowLaw, SidePrior
from skbayes_sym.inference.factorization.likelihoods import EntryLikelihood, NoiseState, Normal
from skbayes_sym.numerics.machine import positions
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import Estimate, float64_normal, generator_from, spawn_seeds
from skbayes_sym.symmetry.base import SymmetryGroup

# Where the prior is learned: what its Wishart knows of a variance (in units of the entries'), the
# sweeps before it is, with variances of one, and the start. Learned at once, small matrices lose
# components that never come back; larger scatters leave too much of them. Where both sides are
# large a few sweeps are enough.
SCATTER = 0.3
HELD_SWEEPS = 15
HELD_SWEEPS_LARGE, LARGE = 5, 500  # rows and columns
FIXED_NOISE_SWEEPS = 5  # where it isn't
_START_SCALE = 0.3


class FactorState(NamedTuple):
    """What sweeps move, on their device: Gaussian rows, those of U before V's, and the noise.

    A fit's result is a `skbayes_sym.inference.posteriors.MatrixPosterior`: in NumPy, without the
    noise, which has no law.

    Beyond the factors, rows have offsets for further coordinates (`Coordinates`).
    """

    mean: Tensor  # (n + m, D)
    cov: Tensor  # (n + m, D, D)
    noise_variance: float
    laws: tuple[RowLaw, RowLaw] | None = None  # of the rows and of the columns
    cuts: Tensor | None = None  # of ordinal entries

    def to(self, dtype: torch.dtype) -> "FactorState":
        """The same in another precision."""
        return self._replace(mean=self.mean.to(dtype), cov=self.cov.to(dtype))

    def factors(self, n_components: int) -> "FactorState":
        """The factors alone, a view."""
        k = n_components
        if self.mean.shape[1] == k:
            return self
        return self._replace(mean=self.mean[:, :k], cov=self.cov[:, :k, :k])

    @property
    def noise(self) -> NoiseState:
        """What was learned of the noise."""
        return NoiseState(self.noise_variance, self.cuts)


# Told the posterior of the moment, and the ELBO (nats, scaled) if there is one; True asks to stop.
OnSweep = Callable[[FactorState, float | None], bool]


class Factorisation(NamedTuple):
    """``R = U V' / sqrt(k) + offsets + noise``; scaled units.

    ``prior_scale`` is the standard deviation of the entries of U and V, or "learn" (a mean and a
    full covariance a side) or "ard" (a mean and a scale a component and side).
    """

    n_components: int
    prior_scale: float | str
    noise_variance: float  # as given, or where learning starts
    noise_range: tuple[float, float] | None = None  # if it is learned
    offsets: tuple[bool, bool] = (False, False)  # of rows, of columns
    likelihood: EntryLikelihood = Normal()
    features: tuple[Tensor | None, Tensor | None] = (None, None)  # (n, g) and (m, h)
    scatter: float = SCATTER

    @property
    def coordinates(self) -> Coordinates:
        """Factors and offsets."""
        return Coordinates(self.n_components, *self.offsets)

    @property
    def learns_scales(self) -> bool:
        """Whether the scales of the factors are learned."""
        return isinstance(self.prior_scale, str)

    def priors(self, shape: tuple[int, int], like: Tensor) -> tuple[SidePrior, SidePrior]:
        """Of the rows and of the columns of a matrix of that shape."""
        rows, columns = (
            self._prior(n, side, given, like)
            for n, side, given in zip(shape, self.coordinates.sides, self.features, strict=True)
        )
        return rows, columns

    def _prior(self, n: int, side: Free, given: Tensor | None, like: Tensor) -> SidePrior:
        blocks = self._blocks(len(side.free))
        features = Features.none(n, like)
        if any(block.scale is None for block in blocks):
            features = Features.constant(n, like)
        if given is not None:
            features = features.joined(given)
        return SidePrior(blocks, features, self.scatter * side.pin**2)

    def _blocks(self, n_free: int) -> tuple[Block, ...]:
        every = tuple(range(n_free))
        if self.prior_scale == "learn":
            return (Block(every),)
        if isinstance(self.prior_scale, str):
            return tuple(Block((i,)) for i in every)
        k = self.n_components
        given = Block(every[:k], float(self.prior_scale))
        return (given, Block(every[k:])) if n_free > k else (given,)


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
        The same, by row in float64: bounds are evaluated in it.
    model : Factorisation
    group : SymmetryGroup or None
        That the posterior is averaged over.
    max_iter : int
        Sweeps.
    tol : float
        Nats: what ten sweeps must gain on average to go on.
    seed : int
    warm : FactorState, optional
        Where to go on from, with laws; by default sweeps begin at random.
    """

    data: Entries
    precise: Entries
    model: Factorisation
    group: SymmetryGroup | None
    max_iter: int
    tol: float
    seed: int
    warm: FactorState | None = None

    def generator(self, purpose: str) -> torch.Generator:
        """The private stream of one purpose, on the device of the data."""
        seeds = _Seeds(*spawn_seeds(self.seed, len(_Seeds._fields)))
        return generator_from(getattr(seeds, purpose), self.data.by_row.value.device)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self.data.n_rows, self.data.n_columns

    @property
    def is_complete(self) -> bool:
        """Whether every entry was seen, once."""
        n, m = self.shape
        return self.data.n_observed == n * m and self.data.by_row.weight is None

    @property
    def n_held(self) -> int:
        """Sweeps before anything is learned of the prior."""
        if not self.model.learns_scales or self.warm is not None:
            return 0
        return HELD_SWEEPS_LARGE if min(self.shape) >= LARGE else HELD_SWEEPS

    @property
    def n_fixed(self) -> int:
        """Sweeps before the noise is learned: from a random start everything looks like noise."""
        is_known = self.model.learns_scales or self.warm is not None
        return 0 if is_known else FIXED_NOISE_SWEEPS

    @cached_property
    def priors(self) -> tuple[SidePrior, SidePrior]:
        """Of the rows and of the columns."""
        return self.model.priors(self.shape, self.data.by_row.value)

    @property
    def start(self) -> FactorState:
        """Means drawn from the prior, and narrower than it: away from the saddle at 0."""
        if self.warm is not None:
            return self.warm
        model, like = self.model, self.data.by_row.value
        coordinates, n = model.coordinates, sum(self.shape)
        scale, variance = self._start_scales()
        mean = like.new_zeros(n, coordinates.n_coordinates)
        shape, generator = (n, model.n_components), self.generator("start")
        mean[:, : model.n_components] = (scale * float64_normal(shape, generator=generator)).to(
            like
        )
        coordinates.pinned(mean, self.data.n_rows)
        identity = torch.eye(mean.shape[1], dtype=like.dtype, device=like.device)
        cov = (variance * identity).repeat(n, 1, 1)
        for rows, side in zip(self.data.sides, coordinates.sides, strict=True):
            pinned = positions(side.pinned, cov)
            cov[rows.own, pinned, pinned] = 0.0
        return FactorState(mean, cov, model.noise_variance, self._held_laws(), self._start_cuts())

    def laws(self, state: FactorState) -> tuple[RowLaw, RowLaw]:
        """Of the rows and the columns; as held at first of a state that knows none."""
        return self._held_laws() if state.laws is None else state.laws

    def _held_laws(self) -> tuple[RowLaw, RowLaw]:
        rows, columns = (prior.held(self.model.coordinates.pin**2) for prior in self.priors)
        return rows, columns

    def _start_scales(self) -> tuple[float, float]:
        """Scale of the means, and variance around them."""
        given, pin = self.model.prior_scale, self.model.coordinates.pin
        if isinstance(given, str):
            return _START_SCALE * pin, _START_SCALE**2 / 9.0 * pin**2
        return given, 0.1 * given**2

    def _start_cuts(self) -> Tensor | None:
        data = self.data.by_row
        return self.model.likelihood.start_cuts(data.value, data.weight)


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
        Aligned draws.
    """

    posterior: FactorState
    n_iter: int = 0
    stopped: Stopped = "max_iter"
    curve: tuple[float, ...] = ()
    bounds: FactorBounds | None = None
    draws: Tensor | None = None
