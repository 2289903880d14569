"""The model of a factorisation, the problem that a solver gets, and its result."""

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

# Sweeps with the initial noise, before it is learned, for priors of a given scale.
FIXED_NOISE_SWEEPS = 5
SYMMETRY_NAMES = "auto", "orthogonal", "signed_permutation", "sign_flip"
# Largest number of components for which the sum over signed permutations is computed exactly.
MAX_PERMUTED_COMPONENTS = 14


class FactorModel(NamedTuple):
    """Model of a matrix in scaled units.

    An entry is ``likelihood(intercept + a_i + b_j + u_i . v_j / sqrt(k) + c . w)`` with a context
    c. The transformations in ``group`` of the rows of U and V leave likelihood and prior unchanged.

    Attributes
    ----------
    coordinates : Coordinates
        Components and offsets of the rows.
    likelihood : Likelihood
        Likelihood at the initial parameters.
    prior : FactorPrior
        Prior of the rows of U and V.
    shape : tuple of int
        Numbers of rows and columns.
    noise_range : tuple of float
        Smallest and largest variance of the noise, if it is learned.
    intercept : float
        Output where factors, offsets and context are zero.
    """

    coordinates: Coordinates
    likelihood: Likelihood
    prior: FactorPrior
    shape: tuple[int, int] = (0, 0)
    noise_range: tuple[float, float] = (1e-12, 1e12)
    intercept: float = 0.0

    @property
    def n_components(self) -> int:
        """Number k of components."""
        return self.coordinates.n_components

    @property
    def group(self) -> SymmetryGroup:
        """All rotations of the rows of U and V that leave the prior unchanged."""
        return resolve_symmetry("auto", self.prior.scale, sum(self.shape), self.n_components)


class FactorState(NamedTuple):
    """Posterior of the factors during the sweeps, on their device.

    Its rows are independent Gaussians. The result of a fit, a
    `skbayes_sym.base.posteriors.MatrixPosterior`, has the components only, as NumPy arrays.

    Attributes
    ----------
    mean : Tensor of shape (n + m, D)
        Means of the rows of U, then of those of V.
    cov : Tensor of shape (n + m, D, D)
        Covariances of the rows.
    likelihood : Likelihood
        Likelihood at the parameters learned so far.
    row_priors : tuple of RowPrior, optional
        Priors of the rows of U and of V; None for the initial ones.
    context : ContextPosterior, optional
        Posterior of the effects of context.
    """

    mean: Tensor
    cov: Tensor
    likelihood: Likelihood
    row_priors: tuple[RowPrior, RowPrior] | None = None
    context: ContextPosterior | None = None

    def to(self, dtype: torch.dtype) -> "FactorState":
        """Convert the moments to another precision."""
        return self._replace(mean=self.mean.to(dtype), cov=self.cov.to(dtype))

    def factors(self, n_components: int) -> "FactorState":
        """Return views of the components, without offsets."""
        k = n_components
        if self.mean.shape[1] == k:
            return self
        return self._replace(mean=self.mean[:, :k], cov=self.cov[:, :k, :k])

    @property
    def noise_variance(self) -> float:
        """Variance of Gaussian entries, or of the sites of others."""
        return noise_variance(self.likelihood)


# Called after every sweep with the posterior, and with the ELBO if there is one. True stops.
OnSweep = Callable[[FactorState, float | None], bool]

# Purposes that have random streams of their own.
_PURPOSES = ("start", "gap", "report", "gibbs")


@dataclass(frozen=True, eq=False)
class FactorProblem:
    """Factorisation to be solved.

    Parameters
    ----------
    data : Entries
        Entries in the precision of the sweeps.
    double_data : Entries
        Entries by row in float64, in which bounds are evaluated.
    model : FactorModel
        Model of the entries.
    max_iter : int, default=0
        Largest number of sweeps.
    tol : float, default=0.0
        Sweeps stop if ten of them raise the bound by less than this many nats on average.
    seed : int, default=0
        Seed of all random numbers.
    warm_start : FactorState, optional
        Posterior from which the sweeps continue.
    """

    data: Entries
    double_data: Entries
    model: FactorModel
    max_iter: int = 0
    tol: float = 0.0
    seed: int = 0
    warm_start: FactorState | None = None

    def generator(self, purpose: str) -> torch.Generator:
        """Return the random stream of one purpose, on the device of the data."""
        seeds = dict(zip(_PURPOSES, spawn_seeds(self.seed, len(_PURPOSES)), strict=True))
        return generator_from(seeds[purpose], self.data.by_row.value.device)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.data.n_rows, self.data.n_columns

    @property
    def is_complete(self) -> bool:
        """Whether every entry was observed exactly once."""
        n, m = self.shape
        return self.data.n_observed == n * m and self.data.by_row.weight is None

    @property
    def n_fixed_prior_sweeps(self) -> int:
        """Number of sweeps with prior variances of 1, before the prior is learned.

        If the prior of a small matrix is learned from the first sweep, components are lost and
        never come back. If both sides are large, a few sweeps are enough.
        """
        if not self.model.prior.learns_scales or self.warm_start is not None:
            return 0
        return 5 if min(self.shape) >= 500 else 15

    @property
    def n_fixed_noise_sweeps(self) -> int:
        """Number of sweeps before the noise is learned.

        Random initial factors explain nothing, so the noise would be overestimated.
        """
        if self.model.prior.learns_scales or self.warm_start is not None:
            return 0
        return FIXED_NOISE_SWEEPS

    @cached_property
    def hyperpriors(self) -> tuple[Hyperprior, Hyperprior]:
        """Priors with learned parameters, of the rows of U and of V."""
        model = self.model
        return model.prior.hyperpriors(self.shape, model.coordinates, self.data.by_row.value)

    @property
    def initial_state(self) -> FactorState:
        """Initial posterior, with random means away from the saddle point at 0.

        Means are drawn from the prior and variances are smaller than the prior's.
        """
        if self.warm_start is not None:
            return self.warm_start
        model = self.model
        coordinates = model.coordinates
        like = self.data.by_row.value
        n = sum(self.shape)
        k = model.n_components
        prior_scale = model.prior.scale
        if isinstance(prior_scale, str):
            scale = 0.3 * coordinates.fixed_value
            variance = 0.3**2 / 9.0 * coordinates.fixed_value**2
        else:
            scale = prior_scale
            variance = 0.1 * prior_scale**2

        mean = like.new_zeros(n, coordinates.n_coordinates)
        noise = float64_normal((n, k), generator=self.generator("start"))
        mean[:, :k] = (scale * noise).to(like)
        coordinates.set_fixed(mean, self.data.n_rows)

        identity = torch.eye(mean.shape[1], dtype=like.dtype, device=like.device)
        cov = (variance * identity).repeat(n, 1, 1)
        for factor, split in zip(self.data.by_factor, coordinates.splits, strict=True):
            fixed = index_tensor(split.fixed, cov)
            cov[factor.own_rows, fixed, fixed] = 0.0
        context = self.data.by_row.context
        effects = None
        if context is not None:
            effects = ContextPosterior.initial(context)
        return FactorState(mean, cov, model.likelihood, self._initial_row_priors(), effects)

    def row_priors(self, state: FactorState) -> tuple[RowPrior, RowPrior]:
        """Priors of the rows of U and of V in a state, or the initial ones if it has none."""
        if state.row_priors is None:
            return self._initial_row_priors()
        return state.row_priors

    def _initial_row_priors(self) -> tuple[RowPrior, RowPrior]:
        variance = self.model.coordinates.fixed_value**2
        rows, columns = self.hyperpriors
        return rows.initial_row_prior(variance), columns.initial_row_prior(variance)


class FactorBounds(NamedTuple):
    """Bounds on the log evidence of scaled entries.

    Attributes
    ----------
    mean_field : float
        ELBO of the mean-field posterior, nats.
    gap : Estimate
        Symmetry gap, nats, with its Monte Carlo standard error.
    """

    mean_field: float
    gap: Estimate


@dataclass(frozen=True, eq=False)
class SolverResult:
    """Result of a solver, or its state between two sweeps.

    Parameters
    ----------
    posterior : FactorState
        Posterior of the factors, or the moments of draws.
    n_iter : int, default=0
        Number of sweeps.
    stop_reason : str, default="max_iter"
        Reason why the sweeps ended.
    elbo_curve : tuple of float, default=()
        ELBO after every sweep, nats; empty for solvers that don't maximise one.
    bounds : FactorBounds, optional
        Bounds on the log evidence, of variational posteriors.
    draws : Tensor of shape (S, n + m, D), optional
        Aligned draws of the factors, of samplers.
    """

    posterior: FactorState
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"
    elbo_curve: tuple[float, ...] = ()
    bounds: FactorBounds | None = None
    draws: Tensor | None = None


def resolve_symmetry(
    symmetry: str | SymmetryGroup, prior: str | float, n_rows: int, n_components: int
) -> SymmetryGroup:
    """Return the symmetry group of a name, acting on the rows of U, then those of V.

    Parameters
    ----------
    symmetry : {"auto", "orthogonal", "signed_permutation", "sign_flip"} or SymmetryGroup
        "auto" is the whole symmetry of the prior: rotations in general, but sign flips and
        permutations of components for the prior "ard", whose components have scales of their own.
        Beyond 14 components it is sign flips only. A group is returned as it is.
    prior : str or float
        Scale of the prior: "learn", "ard" or a number.
    n_rows : int
        Number n + m of rows of U and V together.
    n_components : int
        Number k of components.

    Returns
    -------
    SymmetryGroup
        Group that acts on (n + m) k parameters.

    Raises
    ------
    ValueError
        If the group isn't a symmetry of the prior, or acts on another number of parameters.
    """
    index = torch.arange(n_rows * n_components).view(n_rows, n_components)
    if symmetry == "auto" and prior == "ard":
        is_summed = n_components <= MAX_PERMUTED_COMPONENTS
        if is_summed:
            symmetry = "signed_permutation"
        else:
            symmetry = "sign_flip"
    elif symmetry == "auto":
        symmetry = "orthogonal"
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
    acted_on = index
    if isinstance(symmetry, UnitGroup | Orthogonal):
        acted_on = symmetry.index
    if acted_on.numel() != index.numel():
        raise ValueError(
            f"symmetry={type(symmetry).__name__}(...) acts on {acted_on.numel()} numbers, but U "
            f"and V have {n_rows} rows of {n_components} components: it must act on all entries of "
            "U, row by row, followed by the entries of V."
        )
    return symmetry
