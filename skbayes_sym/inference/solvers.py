"""The objects of ``solver=`` in a matrix factorisation: how the posterior of the factors is found.

`VI` is symmetrised variational inference (Moore 2016); `MAP`, `MeanField` and `Gibbs` are what it
is compared with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.covariance import (
    CovarianceFamily,
    DiagonalCovariance,
    FullCovariance,
    IsotropicCovariance,
    PointMass,
    RowCovariance,
)
from skbayes_sym.inference.factorization.gap_looks import GapStream
from skbayes_sym.inference.factorization.gibbs import sample_factors
from skbayes_sym.inference.factorization.hyperpriors import RowLaw
from skbayes_sym.inference.factorization.problem import (
    FactorBounds,
    FactorProblem,
    Factors,
    FactorState,
    OnSweep,
)
from skbayes_sym.inference.factorization.shared_size import balancing
from skbayes_sym.inference.factorization.spectral_start import sweeps_start
from skbayes_sym.inference.factorization.vi import (
    FactorFit,
    best_laws,
    fit_factors,
    mean_field_elbo,
)
from skbayes_sym.inference.reference.analytic_mean_field import analytic_mean_field
from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.gaps.base import Gap, RowPosterior
from skbayes_sym.symmetry.gaps.rows import row_gap
from skbayes_sym.symmetry.orthogonal import Orthogonal

__all__ = ["MAP", "VI", "Gibbs", "MeanField", "Solver", "Takes"]

COVARIANCES: dict[str, CovarianceFamily] = {
    "isotropic": IsotropicCovariance(),
    "row": RowCovariance(),
    "diag": DiagonalCovariance(),
    "full": FullCovariance(),
}
_MAX_PERMUTED = 14  # components whose signed permutations are summed exactly
_NO_GAP = Estimate(0.0, 0.0)
# What a learned prior knows of a variance: with less, chains sit for hundreds of sweeps with
# components that are all but switched off.
_GIBBS_SCATTER = 1.0


class Takes(NamedTuple):
    """What a solver can do beyond normal entries and factors with a given prior."""

    offsets: bool = True
    learned_scales: bool = True
    likelihoods: bool = True  # but the normal one


class Solver(Protocol):
    """How the posterior of the factors is found; third parties may bring their own."""

    @property
    def symmetrises(self) -> bool:
        """Whether it averages over the model's group."""
        ...

    @property
    def takes(self) -> Takes:
        """What else it can do."""
        ...

    def check(self, group: SymmetryGroup | None, n_components: int) -> None:
        """Raise ValueError where the group's average isn't available."""
        ...

    def n_kept(self, max_iter: int) -> int:
        """Draws of all factors that will be held."""
        ...

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> Factors:
        """Find it; ``on_sweep`` is told the posterior of the moment after every sweep."""
        ...


class _Unsymmetrised:
    """What the three to compare with have in common."""

    symmetrises: ClassVar[bool] = False

    def check(self, group: SymmetryGroup | None, n_components: int) -> None:
        """No group matters."""

    def n_kept(self, max_iter: int) -> int:
        return 0


@dataclass(frozen=True)
class VI:
    """Symmetrised variational inference: independent Gaussian rows, averaged over the group.

    Parameters
    ----------
    covariance : {"isotropic", "row", "diag", "full"}, default="full"
        Of q: one variance for all rows of U and one for those of V, one per row, one per entry, or
        a full matrix per row. With "isotropic" and "row" the gap under rotations is exact up to
        three components, a lower bound otherwise.
    gap : Gap, optional
        Estimate of the symmetrisation gap; by default the best one known for the group and the
        covariance.
    """

    covariance: str = "full"
    gap: Gap[RowPosterior] | None = None
    symmetrises: ClassVar[bool] = True
    takes: ClassVar[Takes] = Takes()

    def __post_init__(self) -> None:
        if self.covariance not in COVARIANCES:
            raise ValueError(
                f"covariance must be one of {sorted(COVARIANCES)}, got {self.covariance!r}."
            )

    def check(self, group: SymmetryGroup | None, n_components: int) -> None:
        if group is None and self.gap is not None:
            raise ValueError(
                "symmetry=None averages over no group, so VI(gap=...) has no meaning: leave "
                "symmetry at 'auto'."
            )
        permutes = getattr(group, "permutes", False)
        if self.gap is None and permutes and n_components > _MAX_PERMUTED:
            raise ValueError(
                "symmetry='signed_permutation' sums over 2^n_components subsets, too many for "
                f"n_components={n_components}: use at most {_MAX_PERMUTED}, or "
                "symmetry='orthogonal'."
            )

    def n_kept(self, max_iter: int) -> int:
        return 0

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> Factors:
        """Sweeps in the precision of the data; both parts of the bound in float64, by new draws."""
        gap, family = self._gap(problem.group), COVARIANCES[self.covariance]
        stream = None if gap is None else GapStream(gap, problem.generator("gap"))
        fitted = _sweep(problem, family, stream, on_sweep)
        posterior = fitted.posterior.to(torch.float64)
        bound = mean_field_elbo(problem.precise, posterior, problem.model)
        report = _NO_GAP
        if gap is not None:
            factors = posterior.factors(problem.model.n_components)
            report = gap.estimate(factors, generator=problem.generator("report"))
        return _factors(fitted, FactorBounds(bound, report))

    def _gap(self, group: SymmetryGroup | None) -> Gap[RowPosterior] | None:
        if self.gap is not None or group is None:
            return self.gap
        family = COVARIANCES[self.covariance]
        return row_gap(
            group, is_isotropic=family.is_isotropic, is_elementwise=family.is_elementwise
        )


@dataclass(frozen=True)
class MAP(_Unsymmetrised):
    """The most probable factors, by sweeps over point masses."""

    takes: ClassVar[Takes] = Takes(learned_scales=False, likelihoods=False)

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> Factors:
        return _factors(_sweep(problem, PointMass(), None, on_sweep), None)


@dataclass(frozen=True)
class MeanField(_Unsymmetrised):
    """The mean-field optimum of a complete matrix, in closed form (Nakajima et al. 2013)."""

    takes: ClassVar[Takes] = Takes(offsets=False, learned_scales=False, likelihoods=False)

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> Factors:
        data, model = problem.data, problem.model
        n, m = data.n_rows, data.n_columns
        if data.n_observed < n * m:
            raise ValueError(
                f"solver='mean_field' needs every entry, but X has {n * m - data.n_observed} "
                "missing ones: use solver='vi' with symmetry=None, whose optimum it is."
            )
        posterior = analytic_mean_field(data.by_row.value.view(n, m).double(), model)
        posterior = posterior._replace(laws=problem.start.laws)
        bound = mean_field_elbo(problem.precise, posterior, model)
        return Factors(posterior, 1, "tol", (bound,), FactorBounds(bound, _NO_GAP))


@dataclass(frozen=True)
class Gibbs(_Unsymmetrised):
    """Gibbs sampling: the posterior itself, up to Monte Carlo error (Salakhutdinov & Mnih 2008).

    The first half of the sweeps is thrown away.

    Parameters
    ----------
    n_draws : int, default=200
        Draws kept.
    """

    n_draws: int = 200
    takes: ClassVar[Takes] = Takes(likelihoods=False)
    makes_all_sweeps: ClassVar[bool] = True  # there is no bound to stall

    def __post_init__(self) -> None:
        if self.n_draws < 1:
            raise ValueError(f"n_draws must be at least 1, got {self.n_draws!r}.")

    def n_kept(self, max_iter: int) -> int:
        return min(self.n_draws, max_iter - max_iter // 2)

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> Factors:
        """Draws, aligned; their moments stand for them where one Gaussian is needed."""

        def on_step(sweep: int, info: Mapping[str, Any]) -> bool:
            return on_sweep(_one_draw(**info), None)

        problem = replace(problem, model=problem.model._replace(scatter=_GIBBS_SCATTER))
        draws = sample_factors(
            problem,
            problem.start,
            n_warmup=problem.max_iter // 2,
            n_kept=self.n_kept(problem.max_iter),
            on_step=on_step,
        )
        aligned = _align(problem, draws.rows)
        noise = float(draws.noise_variance.double().mean())
        posterior = FactorState(*_moments(aligned), noise, problem.start.laws)
        return Factors(best_laws(problem, posterior), draws.n_sweeps, draws.stopped, draws=aligned)


def _sweep(
    problem: FactorProblem, family: CovarianceFamily, gap: GapStream | None, on_sweep: OnSweep
) -> FactorFit:
    return fit_factors(
        problem,
        sweeps_start(problem),
        family,
        gap=gap,
        on_step=lambda sweep, info: on_sweep(info["posterior"], info["elbo"]),
    )


def _factors(fitted: FactorFit, bounds: FactorBounds | None) -> Factors:
    curve = tuple(fitted.elbo_curve)
    return Factors(fitted.posterior, fitted.n_iter, fitted.stopped, curve, bounds)


def _one_draw(rows: Tensor, noise_variance: float, laws: tuple[RowLaw, RowLaw]) -> FactorState:
    """A draw as a posterior without spread, for callbacks that look at the model mid-way."""
    k = rows.shape[1]
    return FactorState(rows, rows.new_zeros(len(rows), k, k), noise_variance, laws)


def _align(problem: FactorProblem, draws: Tensor) -> Tensor:
    """Factors of draws (S, n + m, D), in place: equally large on both sides, turned to the last."""
    n, k = problem.data.n_rows, problem.model.n_components
    factors = draws[:, :, :k]
    for draw in factors:
        shared = balancing(problem.priors, draw[:n], draw[n:])
        if shared is not None:
            draw[:n] = (draw[:n].double() @ shared.a).to(draw)
            draw[n:] = (draw[n:].double() @ shared.inverse).to(draw)
    n_rows = draws.shape[1]
    group = Orthogonal(torch.arange(n_rows * k, device=draws.device).view(n_rows, k))
    last = factors[-1].double().flatten()
    for draw in factors:
        moved, _ = group.align(draw.double().flatten().unsqueeze(0), last)
        draw.copy_(moved.view(n_rows, k))
    return draws


def _moments(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Means and covariances of the rows of draws (S, n + m, D)."""
    n_draws, n, size = draws.shape
    mean, cov = draws.new_empty(n, size), draws.new_empty(n, size, size)
    for begin, end in matrix_blocks(n, size):
        rows = draws[:, begin:end].double()
        mean[begin:end] = rows.mean(0)
        centred = rows - rows.mean(0)
        cov[begin:end] = torch.einsum("sip,siq->ipq", centred, centred) / n_draws
    return mean, cov
