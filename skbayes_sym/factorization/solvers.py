"""The objects of ``solver=`` in a matrix factorisation: how the posterior of the factors is found.

`VI` is symmetrised variational inference (Moore 2016); `MAP` and `Gibbs` are what it is compared
with.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from skbayes_sym.factorization.coordinate_ascent import (
    CovarianceFamily,
    compute_row_statistics,
    mean_field_elbo,
    replace_row_prior,
)
from skbayes_sym.factorization.entry_sites import is_normal
from skbayes_sym.factorization.factor_model import (
    MAX_PERMUTED_COMPONENTS,
    NAMES,
    FactorBounds,
    FactorModel,
    FactorProblem,
    FactorState,
    OnSweep,
    SolverResult,
    resolve_symmetry,
)
from skbayes_sym.factorization.gibbs import align_draws, sample_factors
from skbayes_sym.factorization.vi import SeededGap, fit_factors, initialise_from_svd
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.numerics.arguments import check_count
from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.gaps.gap import Gap, RowPosterior
from skbayes_sym.symmetry.gaps.row_gaps import row_gap
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import UnitGroup

__all__ = ["MAP", "VI", "Gibbs", "Solver"]

COVARIANCES = ("isotropic", "row", "diag", "full")


class Solver(Protocol):
    """A way to the posterior of the factors; third parties may bring their own."""

    @property
    def learns_prior(self) -> bool:
        """Whether scales of the factors can be learned; else "learn" stands for one."""

    def group(self, model: FactorModel, n_rows: int) -> SymmetryGroup | None:
        """Group that the posterior of n + m rows is averaged over; ValueError where it can't be."""

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> SolverResult:
        """Find it; ``on_sweep`` is told the posterior of the moment after every sweep."""


class _Settings:
    """Settings of a solver, with scikit-learn's ``get_params``, ``set_params`` and clones."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Settings by name; none has settings of its own, whatever ``deep`` says."""
        return dict(vars(self))

    def set_params(self, **settings: Any) -> Self:
        """Change settings; ValueError, and no change, where one has no such name or value."""
        for name in settings:
            if name not in vars(self):
                raise ValueError(f"{self!r} has no setting {name!r}, but {sorted(vars(self))}.")
        changed = replace(self, **settings)  # type: ignore[type-var]
        vars(self).update(vars(changed))
        return self


@dataclass
class VI(_Settings):
    """Symmetrised variational inference: independent Gaussian rows, averaged over a group.

    Parameters
    ----------
    covariance : {"isotropic", "row", "diag", "full"}, default="full"
        Of q: one variance for all rows of U and one for those of V, one per row, one per entry, or
        a full matrix per row. With "isotropic" and "row" the gap under rotations is exact up to
        three components, a lower bound otherwise.
    symmetry : str, SymmetryGroup or None, default="auto"
        "orthogonal", "signed_permutation", "sign_flip", or a group of the rows of U and V, those of
        U first. "auto" is all that the prior has: "orthogonal", or with ``prior="ard"``
        "signed_permutation" (k up to 14; beyond, "sign_flip"), finite parts of it. None is plain
        mean-field inference.
    gap : Gap, optional
        Estimate of the symmetrisation gap; by default the best one known for the group and the
        covariance.
    """

    covariance: str = "full"
    symmetry: str | SymmetryGroup | None = "auto"
    gap: Gap[RowPosterior] | None = None
    learns_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.covariance, str) or self.covariance not in COVARIANCES:
            raise ValueError(
                f"covariance must be one of {sorted(COVARIANCES)}, got {self.covariance!r}."
            )
        if isinstance(self.symmetry, str) and self.symmetry not in NAMES:
            raise ValueError(f"symmetry must be one of {sorted(NAMES)}, got {self.symmetry!r}.")
        if self.symmetry is None and self.gap is not None:
            raise ValueError(
                "symmetry=None averages over no group, so VI(gap=...) has no meaning: leave "
                "symmetry at 'auto'."
            )

    def group(self, model: FactorModel, n_rows: int) -> SymmetryGroup | None:
        if self.symmetry is None:
            return None
        k = model.n_components
        group = resolve_symmetry(self.symmetry, model.prior.scale, n_rows, k)
        permutes = isinstance(group, UnitGroup) and group.permutes
        if self.gap is None and permutes and k > MAX_PERMUTED_COMPONENTS:
            raise ValueError(
                "symmetry='signed_permutation' sums over 2^n_components subsets, too many for "
                f"n_components={k}: use at most {MAX_PERMUTED_COMPONENTS}, or "
                "symmetry='orthogonal'."
            )
        return group

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> SolverResult:
        """Sweeps in the precision of the data; both parts of the bound in float64, by new draws."""
        family = CovarianceFamily(self.covariance)
        gap = self.gap
        group = self.group(problem.model, sum(problem.shape))
        if group is not None and gap is None:
            gap = row_gap(
                group, is_isotropic=family.is_isotropic, is_elementwise=family.is_elementwise
            )
        stream = None if gap is None else SeededGap(gap, problem.generator("gap"))
        result = _by_sweeps(problem, family, stream, on_sweep)
        posterior = result.posterior.to(torch.float64)
        report = Estimate(0.0, 0.0)
        if gap is not None:
            factors = posterior.factors(problem.model.n_components)
            report = gap.estimate(factors, generator=problem.generator("report"))
        bound = mean_field_elbo(problem.precise, posterior, problem.model)
        return replace(result, bounds=FactorBounds(bound, report))


@dataclass
class MAP(_Settings):
    """The most probable factors, by sweeps over point masses."""

    learns_prior: ClassVar[bool] = False

    def group(self, model: FactorModel, n_rows: int) -> None:
        """None: points are their own average."""

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> SolverResult:
        return _by_sweeps(problem, CovarianceFamily("none"), None, on_sweep)


@dataclass
class Gibbs(_Settings):
    """Gibbs sampling: the posterior itself, up to Monte Carlo error (Salakhutdinov & Mnih 2008).

    The first quarter of the sweeps is thrown away; all are made, whatever ``tol`` is.

    Parameters
    ----------
    n_draws : int, default=200
        Draws kept.
    """

    n_draws: int = 200
    learns_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("n_draws", self.n_draws)

    def group(self, model: FactorModel, n_rows: int) -> None:
        if not is_normal(model.likelihood):
            raise ValueError(
                f"solver='gibbs' draws rows given normal entries: likelihood={model.likelihood!r} "
                "needs solver='vi' or 'map'."
            )

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> SolverResult:
        """Draws, aligned; their moments stand for them where one Gaussian is needed."""
        if problem.data.by_row.context is not None:
            raise ValueError("solver='gibbs' knows no context of entries: use solver='vi'.")
        draws, noises, n_sweeps, stopped = sample_factors(
            problem,
            problem.start,
            n_warmup=problem.max_iter // 4,
            n_kept=min(self.n_draws, problem.max_iter - problem.max_iter // 4),
            on_sweep=on_sweep,
        )
        aligned = align_draws(problem, draws)
        start = problem.start
        log_noise = 0.5 * noises.double().mean().log().reshape(1)
        likelihood = Gaussian(log_noise, learn=bool(start.likelihood.n_params))
        posterior = FactorState(*_moments(aligned), likelihood, start.row_priors)
        for index, side in enumerate(problem.priors):
            moments = compute_row_statistics(problem, posterior, index)
            row_prior, _ = side.learned(moments, problem.distributions(posterior)[index])
            posterior = replace_row_prior(problem, posterior, index, row_prior)
        return SolverResult(posterior, n_sweeps, stopped, draws=aligned)


def _by_sweeps(
    problem: FactorProblem, family: CovarianceFamily, gap: SeededGap | None, on_sweep: OnSweep
) -> SolverResult:
    return fit_factors(problem, initialise_from_svd(problem), family, gap=gap, on_sweep=on_sweep)


def _moments(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Means and covariances of the rows of draws (S, n + m, D)."""
    n_draws, n, size = draws.shape
    mean = draws.new_empty(n, size)
    cov = draws.new_empty(n, size, size)
    for begin, end in matrix_blocks(n, size):
        rows = draws[:, begin:end].double()
        mean[begin:end] = rows.mean(0)
        centred = rows - rows.mean(0)
        cov[begin:end] = torch.einsum("sip,siq->ipq", centred, centred) / n_draws
    return mean, cov
