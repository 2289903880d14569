"""A factorisation to be solved, and what a solver finds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.factorization.context import ContextPosterior
from skbayes_sym.factorization.entry_sites import noise_variance
from skbayes_sym.factorization.hyperpriors import FactorPrior, Hyperprior, RowPrior
from skbayes_sym.factorization.sparse_entries import Coordinates, Entries
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.random import Estimate, float64_normal, generator_from, spawn_seeds
from skbayes_sym.numerics.runtime import index_tensor
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import UnitGroup, Units

FIXED_NOISE_SWEEPS = 5  # before the noise is learned, where the prior isn't
NAMES = "auto", "orthogonal", "signed_permutation", "sign_flip"
MAX_PERMUTED_COMPONENTS = 14  # components whose signed permutations are summed exactly


class FactorModel(NamedTuple):
    """The four nouns of `skbayes_sym.models.model.Model`, of a matrix; scaled units.

    An entry is ``likelihood(shift + a_i + b_j + u_i . v_j / sqrt(k) + c . w)`` with a context c.
    The transformations of the rows of U and V in ``group`` change neither that nor the prior.
    """

    network: Coordinates
    likelihood: Likelihood  # at the parameters where learning starts
    prior: FactorPrior
    shape: tuple[int, int] = (0, 0)
    noise_range: tuple[float, float] = (1e-12, 1e12)  # variances, if it is learned
    shift: float = 0.0

    @property
    def n_components(self) -> int:
        """Factors k of a row."""
        return self.network.n_components

    @property
    def group(self) -> SymmetryGroup:
        """All rotations of the rows of U and V, or what the prior has of them."""
        return resolve_symmetry("auto", self.prior.scale, sum(self.shape), self.n_components)


class FactorState(NamedTuple):
    """State of the sweeps, on their device: Gaussian rows, those of U before V's, and the noise.

    A fit's result is a `skbayes_sym.base.posteriors.MatrixPosterior`: in NumPy, a law of the
    factors alone. Beyond the factors, rows have offsets for further coordinates (`Coordinates`).
    """

    mean: Tensor  # (n + m, D)
    cov: Tensor  # (n + m, D, D)
    likelihood: Likelihood  # at the parameters learned so far
    row_priors: tuple[RowPrior, RowPrior] | None = None  # of the rows and of the columns
    context: ContextPosterior | None = None

    def to(self, dtype: torch.dtype) -> "FactorState":
        """Moments in another precision."""
        return self._replace(mean=self.mean.to(dtype), cov=self.cov.to(dtype))

    def factors(self, n_components: int) -> "FactorState":
        """The factors alone, a view."""
        k = n_components
        if self.mean.shape[1] == k:
            return self
        return self._replace(mean=self.mean[:, :k], cov=self.cov[:, :k, :k])

    @property
    def noise_variance(self) -> float:
        """Variance of Gaussian entries, or of the sites of others."""
        return noise_variance(self.likelihood)


# Told the posterior of the moment, and the ELBO (nats, scaled) if there is one; True asks to stop.
OnSweep = Callable[[FactorState, float | None], bool]

_PURPOSES = "start", "gap", "report", "gibbs"


@dataclass(frozen=True, eq=False)
class FactorProblem:
    """A matrix to factorise, and for how long.

    ``warm``: where to go on from, with laws; by default sweeps begin at random.
    """

    data: Entries  # centred and scaled, in the precision of the sweeps
    precise: Entries  # the same, by row in float64: bounds are evaluated in it
    model: FactorModel
    max_iter: int = 0  # sweeps
    tol: float = 0.0  # nats: what ten sweeps must gain on average to go on
    seed: int = 0
    warm: FactorState | None = None

    def generator(self, purpose: str) -> torch.Generator:
        """The private stream of one purpose, on the device of the data."""
        seeds = dict(zip(_PURPOSES, spawn_seeds(self.seed, len(_PURPOSES)), strict=True))
        return generator_from(seeds[purpose], self.data.by_row.value.device)

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
        """Sweeps before anything is learned of the prior, with variances of one.

        Learned at once, small matrices lose components that never come back; where both sides are
        large a few are enough.
        """
        if not self.model.prior.learns_scales or self.warm is not None:
            return 0
        return 5 if min(self.shape) >= 500 else 15

    @property
    def n_fixed(self) -> int:
        """Sweeps before the noise is learned: from a random start everything looks like noise."""
        is_known = self.model.prior.learns_scales or self.warm is not None
        return 0 if is_known else FIXED_NOISE_SWEEPS

    @cached_property
    def priors(self) -> tuple[Hyperprior, Hyperprior]:
        """Priors of the rows and of the columns."""
        return self.model.prior.sides(self.shape, self.model.network, self.data.by_row.value)

    @property
    def start(self) -> FactorState:
        """Means drawn from the prior, and narrower than it: away from the saddle at 0."""
        if self.warm is not None:
            return self.warm
        model = self.model
        like = self.data.by_row.value
        prior_scale = self.model.prior.scale
        network = model.network
        n = sum(self.shape)
        k = model.n_components
        pin = model.network.pin
        scale = 0.3 * pin
        variance = 0.3**2 / 9.0 * pin**2
        if not isinstance(prior_scale, str):
            scale = prior_scale
            variance = 0.1 * prior_scale**2
        mean = like.new_zeros(n, network.n_coordinates)
        drawn = float64_normal((n, k), generator=self.generator("start"))
        mean[:, :k] = (scale * drawn).to(like)
        network.pinned(mean, self.data.n_rows)
        identity = torch.eye(mean.shape[1], dtype=like.dtype, device=like.device)
        cov = (variance * identity).repeat(n, 1, 1)
        for rows, side in zip(self.data.sides, network.sides, strict=True):
            pinned = index_tensor(side.pinned, cov)
            cov[rows.own, pinned, pinned] = 0.0
        context = self.data.by_row.context
        effects = None if context is None else ContextPosterior.narrow(context)
        return FactorState(mean, cov, model.likelihood, self._initial_priors(), effects)

    def distributions(self, state: FactorState) -> tuple[RowPrior, RowPrior]:
        """Laws of the rows and the columns; as held at first of a state that knows none."""
        return self._initial_priors() if state.row_priors is None else state.row_priors

    def _initial_priors(self) -> tuple[RowPrior, RowPrior]:
        rows, columns = (prior.held(self.model.network.pin**2) for prior in self.priors)
        return rows, columns


class FactorBounds(NamedTuple):
    """Bounds on the log evidence of scaled entries, nats."""

    mean_field: float
    gap: Estimate


@dataclass(frozen=True, eq=False)
class SolverResult:
    """Result of a solver, or of its sweeps until now.

    ``curve``: what the sweeps raise, after each of them; empty where they raise nothing.
    """

    posterior: FactorState  # or the moments of what stands for it
    n_iter: int = 0
    stopped: StopReason = "max_iter"
    curve: tuple[float, ...] = ()
    bounds: FactorBounds | None = None  # of variational posteriors
    draws: Tensor | None = None  # (S, n + m, D); aligned draws


def resolve_symmetry(
    symmetry: str | SymmetryGroup, prior: str | float, n_rows: int, n_components: int
) -> SymmetryGroup:
    """The group of that name, acting on rows of U and V one after the other; a group is itself.

    "auto" is all that the prior has: rotations, but only flips and exchanges of components (flips
    alone beyond 14 of them) where these have scales of their own, "ard".
    """
    index = torch.arange(n_rows * n_components).view(n_rows, n_components)
    if symmetry == "auto":
        finite = "signed_permutation" if n_components <= MAX_PERMUTED_COMPONENTS else "sign_flip"
        symmetry = finite if prior == "ard" else "orthogonal"
    if symmetry == "orthogonal":
        if prior == "ard":
            raise ValueError(
                "symmetry='orthogonal' is no symmetry of prior='ard', whose components have "
                "scales of their own: use symmetry='auto' (exchanges and flips of components), or "
                "prior='learn'."
            )
        return Orthogonal(index)
    if isinstance(symmetry, str):
        return Units(index.mT, permute=symmetry == "signed_permutation", flip=True)
    acted_on = symmetry.index if isinstance(symmetry, UnitGroup | Orthogonal) else index
    if acted_on.numel() != index.numel():
        raise ValueError(
            f"symmetry={type(symmetry).__name__}(...) acts on {acted_on.numel()} numbers, but U "
            f"and V have {n_rows} rows of {n_components} components: number them row by row, "
            "those of U first."
        )
    return symmetry
