"""Factorisation as a method: a solver's sweeps under the callbacks, in the units of the matrix."""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skbayes_sym.estimators._fit.convergence import warn_unconverged
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.factorization.groups import model_group
from skbayes_sym.estimators.factorization.training import MatrixTraining
from skbayes_sym.inference.diagnostics import rank_rhat
from skbayes_sym.inference.factorization.problem import (
    Factorisation,
    FactorProblem,
    Factors,
    FactorState,
)
from skbayes_sym.inference.posteriors import GaussianRows, MatrixPosterior
from skbayes_sym.inference.solvers import Solver
from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.symmetry.base import SymmetryGroup

_FEWEST_DRAWS = 20
# Of the two halves of one chain: a chain that has arrived and forgets within a tenth of its draws
# stays below.
_MOST_RHAT = 1.2
_MOST_ENTRIES = 1000  # that the draws' fit is looked at for


@dataclass(frozen=True, eq=False)
class FactorFit:
    """What a solver found, in the units of the matrix as given."""

    factors: Factors
    model: Factorisation

    @property
    def n_iter(self) -> int:
        """Sweeps made."""
        return self.factors.n_iter

    @property
    def stop_reason(self) -> Stopped:
        """Why they ended."""
        return self.factors.stopped

    def attributes(self, data: MatrixTraining) -> dict[str, Any]:
        """Fitted attributes, as NumPy arrays in the canonical orientation."""
        posterior, n, k = self.factors.posterior, data.shape[0], self.model.n_components
        double_turn = canonical_rotation(posterior.factors(k), n)
        turn = whole_turn(double_turn, self.model.coordinates.n_coordinates).to(posterior.mean)
        mean = (posterior.mean @ turn).cpu().numpy()
        cov = _turned(posterior.cov, turn).cpu().numpy()
        rows, columns = (GaussianRows(mean[s], cov[s]) for s in (slice(n), slice(n, None)))
        whole = MatrixPosterior(rows, columns)
        factors = whole.factors(k)
        attributes = {
            **data.attributes(),
            "posterior_": factors,
            "components_": np.ascontiguousarray(factors.columns.mean.T) / k**0.5,
            "components_cov_": factors.columns.cov / k,
            "noise_std_": float(np.sqrt(posterior.noise_variance) * data.scale),
            "n_iter_": self.n_iter,
            "stop_reason_": self.stop_reason,
            "_orientation_": double_turn.cpu().numpy(),
            **self._priors(double_turn),
            **self._offsets(whole, data),
        }
        if self.factors.draws is not None:
            draws = self.factors.draws
            turned = (draws @ turn.to(draws)).to(data.dtype).cpu().numpy()
            attributes["samples_"] = turned[..., :k]
            if any(self.model.offsets):
                attributes["_whole_samples_"] = turned
        return {**attributes, **self._bounds(data)}

    def _priors(self, turn: Tensor) -> dict[str, Any]:
        """Laws of the rows of both sides, and the scales of the factors."""
        k, turned = self.model.n_components, []
        for law in self.factors.posterior.laws or ():
            whole = whole_turn(turn, len(law.precision)).to(law.precision)
            precision = whole.mT @ law.precision @ whole
            turned.append((precision, law.coefficients @ whole))
        scales = [torch.linalg.inv(p).diagonal()[:k].sqrt() for p, _ in turned]
        return {
            "prior_scale_": torch.stack(scales).cpu().numpy(),
            "_laws_": tuple(tuple(part.cpu().numpy() for part in law) for law in turned),
        }

    def _offsets(self, whole: MatrixPosterior, data: MatrixTraining) -> dict[str, Any]:
        """Offsets in the units of the matrix, and the rows with them."""
        found: dict[str, Any] = {"_offsets_": self.model.offsets}
        names = ("row_offsets_", "column_offsets_")
        sides, pin = self.model.coordinates.sides, self.model.coordinates.pin
        for name, has, free, side in zip(names, self.model.offsets, sides, whole, strict=True):
            if has:
                found[name] = side.mean[:, free.free[-1]] / pin * data.scale
        if any(self.model.offsets):
            found["_whole_"] = whole
        if self.factors.posterior.cuts is not None:
            found["cut_points_"] = self.factors.posterior.cuts.cpu().numpy()
        return found

    def _bounds(self, data: MatrixTraining) -> dict[str, Any]:
        if self.factors.bounds is None:
            return {}
        mean_field, gap = self.factors.bounds
        bound = mean_field + data.log_jacobian
        return {
            "elbo_": bound + gap.value,
            "elbo_mean_field_": bound,
            "symmetry_gap_": gap.value,
            "elbo_std_error_": gap.standard_error,
            "elbo_curve_": np.array(self.factors.curve) + data.log_jacobian,
        }


@dataclass(frozen=True, eq=False)
class Factorization:
    """A solver and how long it may take.

    Parameters
    ----------
    solver : Solver
    symmetry : str, SymmetryGroup or None
        Group that the posterior is averaged over, by name.
    max_iter : int
        Sweeps.
    tol : float or None
        Nats per observed entry; None never stops early.
    warm : FactorState, optional
        Where sweeps go on from.
    """

    solver: Solver
    symmetry: str | SymmetryGroup | None
    max_iter: int
    tol: float | None
    warm: FactorState | None = None

    def fit(self, data: MatrixTraining, model: Factorisation, run: Run) -> FactorFit:
        self._require_memory(data, model)
        data.warn_of_empty()
        latest: list[FactorState] = []

        def on_sweep(posterior: FactorState, elbo: float | None) -> bool:
            latest[:] = [posterior]
            if elbo is not None:
                logger.debug("ELBO %.6g", elbo + data.log_jacobian)
            return run.end_block()

        problem = self._problem(data, model)
        run.begin(self.max_iter, lambda: FactorFit(Factors(latest[0]), model))
        with torch.no_grad():
            found = FactorFit(self.solver.solve(problem, on_sweep), model)
        run.end(found)
        self._report(found.factors, data)
        self._warn_unless_mixed(found.factors, data, model.n_components)
        return found

    def _problem(self, data: MatrixTraining, model: Factorisation) -> FactorProblem:
        group, n_observed = None, max(1.0, data.total_weight)
        if self.symmetry is not None:
            group = model_group(self.symmetry, model, sum(data.shape))
        self.solver.check(group, model.n_components)
        tol = -inf if self.tol is None else self.tol * n_observed
        return FactorProblem(
            data.entries, data.double_entries, model, group, self.max_iter, tol, data.seed,
            self.warm,
        )  # fmt: skip

    def _warn_unless_mixed(self, found: Factors, data: MatrixTraining, k: int) -> None:
        """Draws that are too few, or whose fit to the entries still moves, say so."""
        if found.draws is None or self.tol is None or found.stopped != "max_iter":
            return
        n_draws, entries = len(found.draws), data.double_entries.by_row
        if n_draws < _FEWEST_DRAWS:
            warn_unconverged(
                f"not converged: {n_draws} draws of {self.max_iter} sweeps say little about "
                "whether the chain has reached the posterior. Raise max_iter and n_draws."
            )
            return
        chosen = torch.linspace(0, len(entries.value) - 1, min(len(entries.value), _MOST_ENTRIES))
        at = chosen.round().long()
        draws, n = found.draws.to(entries.value.device), data.shape[0]
        products = (draws[:, entries.row[at]] * draws[:, n + entries.other[at]]).sum(-1)
        off = entries.value[at] - products / k**0.5
        rhat = float(rank_rhat(off.square().mean(-1).reshape(1, -1, 1).cpu())[0])
        if rhat > _MOST_RHAT:
            warn_unconverged(
                "not converged: the draws' fit to the entries still moves (split R-hat "
                f"{rhat:.2f}, above {_MOST_RHAT}). Raise max_iter."
            )

    def _report(self, found: Factors, data: MatrixTraining) -> None:
        if found.bounds is not None:
            mean_field, gap = found.bounds
            bound = mean_field + data.log_jacobian
            logger.info(
                "ELBO %.6g (mean-field %.6g, symmetry gap %.4g), stopped by %s after %d sweeps",
                bound + gap.value, bound, gap.value, found.stopped, found.n_iter,
            )  # fmt: skip
        if found.stopped == "max_iter" and found.curve and self.tol is not None:
            warn_user(
                f"not converged: the ELBO was still rising after max_iter={self.max_iter} sweeps "
                f"(tol={self.tol:g} nats per observed entry). Raise max_iter or tol.",
                ConvergenceWarning,
            )

    def _require_memory(self, data: MatrixTraining, model: Factorisation) -> None:
        """Covariances of n + m rows, and as much twice of the gap or for the bound in float64."""
        n_rows, size = sum(data.shape), data.dtype.itemsize
        k = model.coordinates.n_coordinates
        n_kept = self.solver.n_kept(self.max_iter)
        require_memory(
            [
                Part(
                    f"the covariances of {n_rows:,} rows and columns in {k} components",
                    3 * n_rows * k**2 * size,
                    "Lower n_components, or give X as float32.",
                ),
                Part(
                    f"{n_kept} draws of {n_rows:,} rows and columns",
                    n_kept * n_rows * k * size,
                    "Lower n_draws or n_components.",
                ),
            ],
            data.device,
        )


def _turned(cov: Tensor, turn: Tensor) -> Tensor:
    """Covariances (n, D, D) of turned rows."""
    turned = torch.empty_like(cov)
    for begin, end in matrix_blocks(len(cov), len(turn)):
        turned[begin:end] = turn.mT @ cov[begin:end] @ turn
    return turned


def whole_turn(turn: Tensor, n_coordinates: int) -> Tensor:
    """The rotation of the factors, offsets left alone, (D, D)."""
    whole = torch.eye(n_coordinates, dtype=turn.dtype, device=turn.device)
    whole[: len(turn), : len(turn)] = turn
    return whole


def canonical_rotation(posterior: FactorState, n_rows: int) -> Tensor:
    """Makes the columns of V's mean orthogonal, by decreasing norm, largest loading positive."""
    columns = posterior.mean[n_rows:].double()
    _, vectors = torch.linalg.eigh(columns.mT @ columns)
    turn = vectors.flip(-1)
    loadings = columns @ turn
    largest = loadings.gather(0, loadings.abs().argmax(0, keepdim=True))
    return turn * torch.where(largest < 0.0, -1.0, 1.0).to(turn)
