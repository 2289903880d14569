"""Solvers for ``solver=`` of a matrix factorisation, which compute the posterior of the factors.

`VI` is symmetrised variational inference (Moore 2016). `MAP` and `Gibbs` are baselines for
comparison.
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
    SYMMETRY_NAMES,
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
from skbayes_sym.numerics.arguments import check_count, short_repr
from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.gaps.gap import Gap, RowPosterior
from skbayes_sym.symmetry.gaps.row_gaps import row_gap
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import UnitGroup

__all__ = ["MAP", "VI", "Gibbs", "Solver"]

COVARIANCES = ("isotropic", "row", "diag", "full")


class Solver(Protocol):
    """Computes the posterior of the factors; users may write solvers of their own."""

    @property
    def learns_prior(self) -> bool:
        """Whether it can learn the scales of the factors; otherwise "learn" means a scale of 1."""

    def group(self, model: FactorModel, n_rows: int) -> SymmetryGroup | None:
        """Return the group that the posterior is averaged over.

        Parameters
        ----------
        model : FactorModel
            Model of the entries.
        n_rows : int
            Number n + m of rows of both factors.

        Returns
        -------
        SymmetryGroup or None
            None if the posterior isn't averaged.

        Raises
        ------
        ValueError
            If the solver can't solve the model.
        """

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> SolverResult:
        """Compute the posterior of the factors.

        Parameters
        ----------
        problem : FactorProblem
            Factorisation to solve.
        on_sweep : callable
            Called after every sweep with the present posterior, and with the ELBO if there is one.
            True stops.

        Returns
        -------
        SolverResult
            Posterior, and what the solver knows about it.
        """


class _SolverParameters:
    """Parameters of a solver, by scikit-learn's ``get_params``, ``set_params`` and ``clone``."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 (scikit-learn's protocol)
        """Get the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Ignored, because no parameter has parameters of its own.

        Returns
        -------
        dict
            Values by name.
        """
        return dict(vars(self))

    def set_params(self, **params: Any) -> Self:
        """Set parameters.

        Parameters
        ----------
        **params : dict
            New values by name.

        Returns
        -------
        self : object
            The solver.

        Raises
        ------
        ValueError
            If there is no such parameter, or a value isn't valid. Nothing is changed then.
        """
        for name in params:
            if name not in vars(self):
                raise ValueError(
                    f"{self!r} has no parameter {name!r}. It has {sorted(vars(self))}."
                )
        changed = replace(self, **params)  # type: ignore[type-var]
        vars(self).update(vars(changed))
        return self


@dataclass
class VI(_SolverParameters):
    """Symmetrised variational inference: independent Gaussian rows, averaged over a group.

    Parameters
    ----------
    covariance : {"isotropic", "row", "diag", "full"}, default="full"
        Covariance of q: one variance for all rows of U and one for those of V, one per row, one per
        entry, or a full matrix per row. With "isotropic" and "row" the gap under rotations is exact
        up to three components, and a lower bound otherwise.
    symmetry : str, SymmetryGroup or None, default="auto"
        "orthogonal", "signed_permutation", "sign_flip", or a group of the rows of U and V, those of
        U first. "auto" is the whole symmetry of the prior: "orthogonal", or with ``prior="ard"``
        "signed_permutation" (k up to 14; beyond, "sign_flip"). None is plain mean-field inference.
    gap : Gap, optional
        Estimator of the symmetrisation gap. By default it is the best one known for the group and
        the covariance.
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
        if isinstance(self.symmetry, str) and self.symmetry not in SYMMETRY_NAMES:
            raise ValueError(
                f"symmetry must be one of {sorted(SYMMETRY_NAMES)}, got {self.symmetry!r}."
            )
        if self.gap is not None and not isinstance(self.gap, Gap):
            raise ValueError(
                "gap must be an estimator from skbayes_sym.symmetry.gaps or None, got "
                f"{short_repr(self.gap)}."
            )
        if self.symmetry is None and self.gap is not None:
            raise ValueError(
                "symmetry=None uses no symmetry, so VI(gap=...) has no effect: leave symmetry at "
                "'auto'."
            )

    def group(self, model: FactorModel, n_rows: int) -> SymmetryGroup | None:
        """Return the group that the posterior is averaged over, as `Solver.group` does."""
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
        """Maximise the symmetrised ELBO, as `Solver.solve` describes.

        Sweeps run in the precision of the data. Both parts of the final bound are computed in
        float64, the gap from new draws.
        """
        family = CovarianceFamily(self.covariance)
        gap = self.gap
        group = self.group(problem.model, sum(problem.shape))
        if group is not None and gap is None:
            gap = row_gap(
                group, is_isotropic=family.is_isotropic, is_elementwise=family.is_elementwise
            )
        seeded_gap = None
        if gap is not None:
            seeded_gap = SeededGap(gap, problem.generator("gap"))
        start = initialise_from_svd(problem)
        result = fit_factors(problem, start, family, gap=seeded_gap, on_sweep=on_sweep)

        posterior = result.posterior.to(torch.float64)
        gap_estimate = Estimate(0.0, 0.0)
        if gap is not None:
            factors = posterior.factors(problem.model.n_components)
            gap_estimate = gap.estimate(factors, generator=problem.generator("report"))
        elbo = mean_field_elbo(problem.double_data, posterior, problem.model)
        return replace(result, bounds=FactorBounds(elbo, gap_estimate))


@dataclass
class MAP(_SolverParameters):
    """Maximum a posteriori factors, by sweeps over point estimates."""

    learns_prior: ClassVar[bool] = False

    def group(self, model: FactorModel, n_rows: int) -> None:
        """Return None, because point estimates aren't averaged."""

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> SolverResult:
        """Maximise the log joint density, as `Solver.solve` describes."""
        start = initialise_from_svd(problem)
        family = CovarianceFamily("none")
        return fit_factors(problem, start, family, gap=None, on_sweep=on_sweep)


@dataclass
class Gibbs(_SolverParameters):
    """Gibbs sampling, exact up to Monte Carlo error (Salakhutdinov & Mnih 2008).

    The first quarter of the sweeps is discarded. All sweeps are made, because ``tol`` is ignored.

    Parameters
    ----------
    n_draws : int, default=200
        Number of draws to keep.
    """

    n_draws: int = 200
    learns_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("n_draws", self.n_draws)

    def group(self, model: FactorModel, n_rows: int) -> None:  # noqa: ARG002 (protocol `Solver`)
        """Return None, because draws aren't averaged; refuse likelihoods other than Gaussian."""
        if not is_normal(model.likelihood):
            raise ValueError(
                f"solver='gibbs' requires normal noise: likelihood={model.likelihood!r} needs "
                "solver='vi' or 'map'."
            )

    def solve(self, problem: FactorProblem, on_sweep: OnSweep) -> SolverResult:
        """Draw the factors and align the draws, as `Solver.solve` describes.

        The posterior of the result has the moments of the draws, for uses that need one Gaussian.
        """
        if problem.data.by_row.context is not None:
            raise ValueError(
                "solver='gibbs' doesn't support the context of entries: use solver='vi'."
            )
        start = problem.initial_state
        n_warmup = problem.max_iter // 4
        draws, noise_variances, n_sweeps, stop_reason = sample_factors(
            problem,
            start,
            n_warmup=n_warmup,
            n_draws=min(self.n_draws, problem.max_iter - n_warmup),
            on_sweep=on_sweep,
        )
        draws = align_draws(problem, draws)

        log_noise = 0.5 * noise_variances.double().mean().log().reshape(1)
        likelihood = Gaussian(log_noise, learn=bool(start.likelihood.n_params))
        mean, cov = _draw_moments(draws)
        posterior = FactorState(mean, cov, likelihood, start.row_priors)
        for index, hyperprior in enumerate(problem.hyperpriors):
            statistics = compute_row_statistics(problem, posterior, index)
            row_prior, _ = hyperprior.optimise(statistics, problem.row_priors(posterior)[index])
            posterior = replace_row_prior(problem, posterior, index, row_prior)
        return SolverResult(posterior, n_sweeps, stop_reason, draws=draws)


def _draw_moments(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Means and covariances of the rows of draws (S, n + m, D)."""
    n_draws, n_rows, n_coordinates = draws.shape
    mean = draws.new_empty(n_rows, n_coordinates)
    cov = draws.new_empty(n_rows, n_coordinates, n_coordinates)
    for begin, end in matrix_blocks(n_rows, n_coordinates):
        rows = draws[:, begin:end].double()
        mean[begin:end] = rows.mean(0)
        centred = rows - rows.mean(0)
        cov[begin:end] = torch.einsum("sip,siq->ipq", centred, centred) / n_draws
    return mean, cov
