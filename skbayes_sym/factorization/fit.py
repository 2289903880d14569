"""Factorisation as a method: a solver's sweeps under the callbacks, in the units of the matrix."""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skbayes_sym.base.log import log_info, logger
from skbayes_sym.base.posteriors import GaussianRows, MatrixPosterior
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.factorization.context import ContextPosterior
from skbayes_sym.factorization.entry_predictor import FactorMoments, FactorPredictor, row_prior_cov
from skbayes_sym.factorization.factor_model import (
    FactorModel,
    FactorProblem,
    FactorState,
    SolverResult,
)
from skbayes_sym.factorization.hyperpriors import Hyperprior, RowPrior
from skbayes_sym.factorization.ratings import warn_empty_rows
from skbayes_sym.factorization.solvers import Solver
from skbayes_sym.factorization.sparse_entries import CoordinateSplit, append_fixed
from skbayes_sym.factorization.training import MatrixTrainingData
from skbayes_sym.models.likelihoods.ordinal import Ordinal
from skbayes_sym.numerics.diagnostics import rank_rhat
from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory


@dataclass(frozen=True)
class FactorizationDefaults:
    """Numbers behind "auto" of a factorisation, and those by which it warns."""

    # On MovieLens-100k 2 to 10 components predict better one after the other, 20 as well as 10.
    components: int = 10

    # Singular vectors of what was rated at all, which "implicit" takes for features: one for so
    # many entries, and at most so many. On MovieLens-100k 20 predict better than 10 and 40; on
    # simulated tables of 5,000 entries 20 lose most of what 10 gain.
    directions: int = 20
    entries_per_direction: int = 600

    # A stream begins anew once its entries have grown by half: on ten simulated tables in four
    # parts its bound is then within 3 nats of the batch's, where it was up to 590 below.
    growth: float = 1.5

    # Draws fewer than these say nothing; the split R-hat of one chain's fit to some entries stays
    # below this where the chain has arrived and forgets within a tenth of its draws.
    fewest_draws: int = 20
    most_rhat: float = 1.2
    most_entries: int = 1000

    def n_directions(self, n_entries: int) -> int:
        """Singular vectors of what was rated, for a list of that length."""
        return min(max(n_entries // self.entries_per_direction, 1), self.directions)


@dataclass(frozen=True, eq=False)
class FactorFit:
    """A solver's result, in the units of the matrix as given."""

    factors: SolverResult

    def attributes(self, data: MatrixTrainingData, model: FactorModel) -> dict[str, Any]:
        """Fitted attributes, as NumPy arrays in the canonical orientation."""
        state = self.factors.posterior
        n = data.shape[0]
        k = model.n_components
        axes = canonical_rotation(state.factors(k), n)
        turn = _full_rotation(axes, model.network.n_coordinates).to(state.mean)
        turned = torch.empty_like(state.cov)
        for begin, end in matrix_blocks(len(turned), len(turn)):
            turned[begin:end] = turn.mT @ state.cov[begin:end] @ turn
        mean = (state.mean @ turn).cpu()
        cov = turned.cpu()
        rows, columns = (FactorMoments(mean[s], cov[s]) for s in (slice(n), slice(n, None)))
        row_priors = list[RowPrior]()
        for row_prior in state.row_priors or ():
            whole = _full_rotation(axes, len(row_prior.precision)).to(row_prior.precision)
            precision = (whole.mT @ row_prior.precision @ whole).cpu()
            row_priors.append(RowPrior(precision, (row_prior.coefficients @ whole).cpu()))
        draws = self.factors.draws
        if draws is not None:
            draws = (draws @ turn.to(draws)).to(data.dtype).cpu()
        priors = model.prior.sides(data.shape, model.network, torch.zeros(1, dtype=torch.float64))
        first, second = (
            _prior_row(prior, row_prior, side)
            for prior, row_prior, side in zip(priors, row_priors, model.network.sides, strict=True)
        )
        context = None if state.context is None else ContextPosterior.of(*state.context[:2])
        predictor = FactorPredictor(
            rows,
            columns,
            model.network,
            (row_priors[0], row_priors[1]),
            state.likelihood,
            model.shift,
            draws,
            (first, second),
            context,
        )
        scales = [
            torch.linalg.inv(row_prior.precision).diagonal()[:k].sqrt() for row_prior in row_priors
        ]
        attributes = {
            **data.attributes(),
            **factor_attributes(predictor, data.scale),
            "prior_scale_": torch.stack(scales).numpy(),
            "n_iter_": self.factors.n_iter,
            "stop_reason_": self.factors.stopped,
            "_rotation_": axes.cpu().numpy(),
            "_observed_index_": (data.observed.rows, data.observed.columns),
        }
        likelihood = state.likelihood
        if isinstance(likelihood, Ordinal):
            attributes["cut_points_"] = likelihood.cuts.numpy()
            attributes["noise_std_"] = likelihood.noise_std
        elif likelihood.scales_targets and len(likelihood.noise_scale):
            attributes["noise_std_"] = float(likelihood.noise_scale[0]) * data.scale
        if context is not None:
            attributes["context_coef_"] = context.mean.numpy() * data.scale
            attributes["context_coef_cov_"] = context.cov.numpy() * data.scale**2
        if self.factors.bounds is not None:
            mean_field, gap = self.factors.bounds
            attributes["elbo_mean_field_"] = mean_field + data.log_jacobian
            attributes["elbo_"] = attributes["elbo_mean_field_"] + gap.value
            attributes["symmetry_gap_"], attributes["elbo_std_error_"] = gap
            attributes["elbo_curve_"] = np.array(self.factors.curve) + data.log_jacobian
        return attributes


@dataclass(frozen=True, eq=False)
class Factorization:
    """A solver and how long it may take."""

    solver: Solver
    max_iter: int  # sweeps
    tol: float | None  # nats per observed entry; None never stops early
    warm: FactorState | None = None  # where sweeps go on from
    effort: FactorizationDefaults = FactorizationDefaults()

    def fit(self, data: MatrixTrainingData, model: FactorModel, progress: FitProgress) -> FactorFit:
        # Covariances of n + m rows, and as much twice of the gap or for the bound in float64.
        n_rows = sum(data.shape)
        d = model.network.n_coordinates
        what = f"the covariances of {n_rows:,} rows and columns in {d} components"
        remedy = "Lower n_components, or give X as float32."
        require_memory(
            [MemoryAllocation(what, 3 * n_rows * d**2 * data.dtype.itemsize, remedy)], data.device
        )
        self.solver.group(model, n_rows)  # may refuse it
        warn_empty_rows(data.observed, is_told=[side is not None for side in data.features])
        tol = -inf if self.tol is None else self.tol * max(1.0, data.total_weight)
        problem = FactorProblem(
            data.entries, data.double_entries, model, self.max_iter, tol, data.seed, self.warm
        )
        latest: list[FactorState] = []

        def on_sweep(posterior: FactorState, elbo: float | None) -> bool:
            latest[:] = [posterior]
            if elbo is not None:
                logger.debug("ELBO %.6g", elbo + data.log_jacobian)
            return progress.end_block()

        progress.begin(self.max_iter, lambda: FactorFit(SolverResult(latest[0])))
        with torch.no_grad():
            factors = self.solver.solve(problem, on_sweep)
        progress.end(FactorFit(factors))
        if factors.bounds is not None:
            mean_field, gap = factors.bounds
            bound = mean_field + data.log_jacobian
            log_info(
                "ELBO %.6g (mean-field %.6g, symmetry gap %.4g), stopped: %s after %d sweeps",
                bound + gap.value, bound, gap.value, factors.stopped, factors.n_iter,
            )  # fmt: skip
        if factors.stopped == "max_iter" and self.tol is not None:
            if factors.curve:
                warn_user(
                    "not converged: the ELBO was still rising after "
                    f"max_iter={self.max_iter} sweeps (tol={self.tol:g} nats per observed entry). "
                    "Raise max_iter or tol.",
                    ConvergenceWarning,
                )
            if factors.draws is not None:
                self._warn_unless_mixed(factors.draws, data, model.n_components)
        return FactorFit(factors)

    def _warn_unless_mixed(self, draws: Tensor, data: MatrixTrainingData, k: int) -> None:
        """Draws that are too few, or whose fit to the entries still moves, say so."""
        n_draws = len(draws)
        entries = data.double_entries.by_row
        effort = self.effort
        if n_draws < effort.fewest_draws:
            warn_user(
                f"not converged: {n_draws} draws of {self.max_iter} sweeps say little about "
                "whether the chain has reached the posterior. Raise max_iter and n_draws."
            )
            return
        n_entries = len(entries.value)
        place = torch.linspace(0, n_entries - 1, min(n_entries, effort.most_entries)).round().long()
        draws = draws.to(entries.value.device)
        n = data.shape[0]
        products = (draws[:, entries.row[place]] * draws[:, n + entries.other[place]]).sum(-1)
        off = entries.value[place] - products / k**0.5
        rhat = float(rank_rhat(off.square().mean(-1).reshape(1, -1, 1).cpu())[0])
        if rhat > effort.most_rhat:
            warn_user(
                "not converged: the draws' fit to the entries still moves (split R-hat "
                f"{rhat:.2f}, above {effort.most_rhat}). Raise max_iter."
            )


def _full_rotation(turn: Tensor, n_coordinates: int) -> Tensor:
    """The rotation of the factors, offsets left alone, (D, D)."""
    whole = torch.eye(n_coordinates, dtype=turn.dtype, device=turn.device)
    whole[: len(turn), : len(turn)] = turn
    return whole


def _prior_row(prior: Hyperprior, row_prior: RowPrior, side: CoordinateSplit) -> FactorMoments:
    """A row of which nothing is known: the prior's, its features those of any row of the fit."""
    means = prior.features.forward.cpu() @ row_prior.coefficients
    spread = (means - means.mean(0)).mT @ (means - means.mean(0)) / len(means)
    mean = means.mean(0, keepdim=True)
    cov = (row_prior_cov(row_prior) + spread).unsqueeze(0)
    return FactorMoments(*append_fixed(mean, cov, side))


def factor_attributes(predictor: FactorPredictor, scale: float) -> dict[str, Any]:
    """Fitted attributes that tell of rows and columns; ``scale``: of the matrix."""
    k = predictor.network.n_components
    sides = (predictor.rows, predictor.columns)
    factors = MatrixPosterior(*(GaussianRows(s.mean.numpy(), s.cov.numpy()) for s in sides))
    factors = factors.factors(k)
    attributes = {
        "posterior_": factors,
        "components_": np.ascontiguousarray(factors.columns.mean.T) / k**0.5,
        "components_cov_": factors.columns.cov / k,
        "_predictor_": predictor.arrays(),
    }
    names = ("row_offsets_", "column_offsets_")
    for name, side, free in zip(names, sides, predictor.network.sides, strict=True):
        if len(free.free) > k:
            offsets = side.mean[:, free.free[-1]].numpy()
            attributes[name] = offsets / predictor.network.pin * scale
    if predictor.draws is not None:
        attributes["samples_"] = predictor.draws.numpy()[..., :k]
    return attributes


def canonical_rotation(posterior: FactorState, n_rows: int) -> Tensor:
    """Makes the columns of V's mean orthogonal, by decreasing norm, largest loading positive."""
    columns = posterior.mean[n_rows:].double()
    _, vectors = torch.linalg.eigh(columns.mT @ columns)
    turn = vectors.flip(-1)
    loadings = columns @ turn
    largest = loadings.gather(0, loadings.abs().argmax(0, keepdim=True))
    return turn * torch.where(largest < 0.0, -1.0, 1.0).to(turn)
