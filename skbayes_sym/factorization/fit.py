"""Running a solver under callbacks, and its result as fitted attributes in the user's units."""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skbayes_sym.base.messages import log_info, logger, warn_user
from skbayes_sym.base.posteriors import GaussianRows, MatrixPosterior
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.training import evenly_spaced_rows
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
    """Constants behind "auto" of a factorisation, and thresholds of its warnings."""

    # On MovieLens-100k 2 to 10 components predict better one after the other, 20 as well as 10.
    components: int = 10

    # Number of singular vectors of the pattern of observed entries that ``implicit`` uses as
    # features: one for so many entries, and at most so many. On MovieLens-100k 20 predict better
    # than 10 and 40. On simulated tables of 5,000 entries 20 lose most of what 10 gain.
    directions: int = 20
    entries_per_direction: int = 600

    # A stream is fitted anew once its entries have grown by half. On ten simulated tables in four
    # parts its bound is then within 3 nats of the bound of a single fit. Without it, the bound was
    # up to 590 nats lower.
    growth: float = 1.5

    # Fewer draws than these don't allow a diagnosis. The split R-hat of one chain's fit to some
    # entries stays below the limit if the chain has converged and its autocorrelation time is at
    # most a tenth of its draws.
    min_draws: int = 20
    max_rhat: float = 1.2
    max_rhat_entries: int = 1000

    def n_directions(self, n_entries: int) -> int:
        """Number of singular vectors of the pattern of observed entries, for ``implicit``."""
        return min(max(n_entries // self.entries_per_direction, 1), self.directions)


@dataclass(frozen=True, eq=False)
class FactorFit:
    """Result of a solver, for conversion to fitted attributes.

    Parameters
    ----------
    result : SolverResult
        Result in scaled units, with an arbitrary rotation of the factors.
    """

    result: SolverResult

    def attributes(self, data: MatrixTrainingData, model: FactorModel) -> dict[str, Any]:
        """Return the fitted attributes, as NumPy arrays in the canonical rotation.

        Parameters
        ----------
        data : MatrixTrainingData
            Entries that the solver was given.
        model : FactorModel
            Model that the solver was given.

        Returns
        -------
        dict
            Attributes by name.
        """
        state = self.result.posterior
        likelihood = state.likelihood
        n = data.shape[0]
        k = model.n_components
        rotation = canonical_rotation(state.factors(k), n)
        row_priors = [_rotate_row_prior(prior, rotation) for prior in state.row_priors or ()]
        context = None
        if state.context is not None:
            context = ContextPosterior.from_moments(state.context.mean, state.context.cov)
        predictor = self._make_predictor(data, model, rotation, row_priors, context)

        attributes = {
            **data.attributes(),
            **factor_attributes(predictor, data.scale),
            "prior_scale_": torch.stack([_prior_scales(prior, k) for prior in row_priors]).numpy(),
            "n_iter_": self.result.n_iter,
            "stop_reason_": self.result.stop_reason,
            "_rotation_": rotation.cpu().numpy(),
            "_observed_index_": (data.observed.rows, data.observed.columns),
        }
        if isinstance(likelihood, Ordinal):
            attributes["cut_points_"] = likelihood.cuts.numpy()
            attributes["noise_std_"] = likelihood.noise_std
        elif likelihood.scales_targets and len(likelihood.noise_scale):
            attributes["noise_std_"] = float(likelihood.noise_scale[0]) * data.scale
        if context is not None:
            attributes["context_coef_"] = context.mean.numpy() * data.scale
            attributes["context_coef_cov_"] = context.cov.numpy() * data.scale**2
        if self.result.bounds is not None:
            mean_field, gap = self.result.bounds
            attributes["elbo_mean_field_"] = mean_field + data.log_jacobian
            attributes["elbo_"] = attributes["elbo_mean_field_"] + gap.value
            attributes["symmetry_gap_"] = gap.value
            attributes["elbo_std_error_"] = gap.standard_error
            attributes["elbo_curve_"] = np.array(self.result.elbo_curve) + data.log_jacobian
        return attributes

    def _make_predictor(
        self, data: MatrixTrainingData, model: FactorModel, rotation: Tensor,
        row_priors: list[RowPrior], context: ContextPosterior | None,
    ) -> FactorPredictor:  # fmt: skip
        """Make the predictor of the rotated factors, on the CPU.

        Parameters
        ----------
        data : MatrixTrainingData
            Entries that the solver was given.
        model : FactorModel
            Model that the solver was given.
        rotation : Tensor of shape (k, k)
            Rotation of the components.
        row_priors : list of RowPrior
            Rotated priors of the rows of U and of V.
        context : ContextPosterior or None
            Posterior of the effects of context.

        Returns
        -------
        FactorPredictor
            Predictor in scaled units.
        """
        state = self.result.posterior
        n = data.shape[0]
        padded = _pad_rotation(rotation, model.coordinates.n_coordinates).to(state.mean)
        cov = torch.empty_like(state.cov)
        for begin, end in matrix_blocks(len(cov), len(padded)):
            cov[begin:end] = padded.mT @ state.cov[begin:end] @ padded
        mean = (state.mean @ padded).cpu()
        cov = cov.cpu()
        draws = self.result.draws
        if draws is not None:
            draws = (draws @ padded.to(draws)).to(data.dtype).cpu()

        # Rows and columns without entries, for labels that are unknown in predictions.
        like = torch.zeros(1, dtype=torch.float64)
        hyperpriors = model.prior.hyperpriors(data.shape, model.coordinates, like)
        splits = model.coordinates.splits
        unseen_row = _unseen_row(hyperpriors[0], row_priors[0], splits[0])
        unseen_column = _unseen_row(hyperpriors[1], row_priors[1], splits[1])
        return FactorPredictor(
            rows=FactorMoments(mean[:n], cov[:n]),
            columns=FactorMoments(mean[n:], cov[n:]),
            coordinates=model.coordinates,
            row_priors=(row_priors[0], row_priors[1]),
            likelihood=state.likelihood,
            intercept=model.intercept,
            draws=draws,
            unseen=(unseen_row, unseen_column),
            context=context,
        )


@dataclass(frozen=True, eq=False)
class Factorization:
    """Solver, with limits on its sweeps.

    Parameters
    ----------
    solver : Solver
        Computes the posterior of the factors.
    max_iter : int
        Largest number of sweeps.
    tol : float or None
        Rise of the bound in nats per observed entry below which sweeps stop; None never stops.
    warm_start : FactorState, optional
        Posterior from which sweeps continue.
    defaults : FactorizationDefaults
        Thresholds of the warnings.
    """

    solver: Solver
    max_iter: int
    tol: float | None
    warm_start: FactorState | None = None
    defaults: FactorizationDefaults = FactorizationDefaults()

    def fit(self, data: MatrixTrainingData, model: FactorModel, progress: FitProgress) -> FactorFit:
        """Run the solver.

        Parameters
        ----------
        data : MatrixTrainingData
            Entries to factorise.
        model : FactorModel
            Model of the entries.
        progress : FitProgress
            Reports every sweep to callbacks.

        Returns
        -------
        FactorFit
            Result of the solver.

        Warns
        -----
        ConvergenceWarning
            If the bound was still rising, or a chain hasn't mixed.
        UserWarning
            If rows or columns have no observed entries.
        """
        # Refuse what can't be solved before anything is allocated. The gap, or the bound in
        # float64, needs twice the memory of the covariances of n + m rows besides these.
        n_rows = sum(data.shape)
        d = model.coordinates.n_coordinates
        description = f"the covariances of {n_rows:,} rows and columns in {d} components"
        remedy = "Lower n_components, or give X as float32."
        n_bytes = 3 * n_rows * d**2 * data.dtype.itemsize
        require_memory([MemoryAllocation(description, n_bytes, remedy)], data.device)
        self.solver.group(model, n_rows)
        warn_empty_rows(data.observed, has_features=[side is not None for side in data.features])

        # Every sweep is a block for callbacks, which may ask for the present model.
        if self.tol is None:
            tol = -inf
        else:
            tol = self.tol * max(1.0, data.total_weight)
        problem = FactorProblem(
            data.entries,
            data.double_entries,
            model,
            self.max_iter,
            tol,
            data.seed,
            self.warm_start,
        )
        latest_posterior: list[FactorState] = []

        def on_sweep(posterior: FactorState, elbo: float | None) -> bool:
            latest_posterior[:] = [posterior]
            if elbo is not None:
                logger.debug("ELBO %.6g", elbo + data.log_jacobian)
            return progress.end_block()

        progress.begin(self.max_iter, lambda: FactorFit(SolverResult(latest_posterior[0])))
        with torch.no_grad():
            result = self.solver.solve(problem, on_sweep)
        progress.end(FactorFit(result))

        if result.bounds is not None:
            mean_field, gap = result.bounds
            mean_field += data.log_jacobian
            log_info(
                "ELBO %.6g (mean-field %.6g, symmetry gap %.4g), stopped: %s after %d sweeps",
                mean_field + gap.value, mean_field, gap.value, result.stop_reason, result.n_iter,
            )  # fmt: skip
        if result.stop_reason == "max_iter" and self.tol is not None:
            self._warn_unless_converged(result, data, model.n_components)
        return FactorFit(result)

    def _warn_unless_converged(
        self, result: SolverResult, data: MatrixTrainingData, n_components: int
    ) -> None:
        """Warn if the bound was still rising after the last sweep, or a chain hasn't mixed."""
        if result.elbo_curve:
            warn_user(
                "not converged: the ELBO was still rising after "
                f"max_iter={self.max_iter} sweeps (tol={self.tol:g} nats per observed entry). "
                "Raise max_iter or tol.",
                ConvergenceWarning,
            )
        if result.draws is not None:
            self._warn_unless_mixed(result.draws, data, n_components)

    def _warn_unless_mixed(
        self, draws: Tensor, data: MatrixTrainingData, n_components: int
    ) -> None:
        """Warn if draws are few, or if their fit to the entries still changes along the chain."""
        n_draws = len(draws)
        entries = data.double_entries.by_row
        defaults = self.defaults
        if n_draws < defaults.min_draws:
            warn_user(
                f"not converged: {n_draws} draws of {self.max_iter} sweeps say little about "
                "whether the chain has reached the posterior. Raise max_iter and n_draws."
            )
            return
        n_entries = len(entries.value)
        index = evenly_spaced_rows(n_entries, defaults.max_rhat_entries)
        draws = draws.to(entries.value.device)
        u = draws[:, entries.row_index[index]]
        v = draws[:, data.shape[0] + entries.indices[index]]
        residual = entries.value[index] - (u * v).sum(-1) / n_components**0.5
        mean_squares = residual.square().mean(-1).reshape(1, -1, 1)
        rhat = float(rank_rhat(mean_squares.cpu())[0])
        if rhat > defaults.max_rhat:
            warn_user(
                "not converged: the draws' fit to the entries still moves (split R-hat "
                f"{rhat:.2f}, above {defaults.max_rhat}). Raise max_iter."
            )


def _pad_rotation(rotation: Tensor, n_coordinates: int) -> Tensor:
    """Extend a rotation of the components to all coordinates (D, D), with offsets unchanged."""
    padded = torch.eye(n_coordinates, dtype=rotation.dtype, device=rotation.device)
    padded[: len(rotation), : len(rotation)] = rotation
    return padded


def _rotate_row_prior(row_prior: RowPrior, rotation: Tensor) -> RowPrior:
    """Rotate the components of a prior of rows, and move it to the CPU."""
    padded = _pad_rotation(rotation, len(row_prior.precision)).to(row_prior.precision)
    precision = (padded.mT @ row_prior.precision @ padded).cpu()
    return RowPrior(precision, (row_prior.coefficients @ padded).cpu())


def _prior_scales(row_prior: RowPrior, n_components: int) -> Tensor:
    """Prior standard deviations of the components, (k,)."""
    return torch.linalg.inv(row_prior.precision).diagonal()[:n_components].sqrt()


def _unseen_row(
    hyperprior: Hyperprior, row_prior: RowPrior, split: CoordinateSplit
) -> FactorMoments:
    """Moments of a row without entries, with the features of a random row of the fit."""
    means = hyperprior.features.forward.cpu() @ row_prior.coefficients
    centred = means - means.mean(0)
    feature_cov = centred.mT @ centred / len(means)
    mean = means.mean(0, keepdim=True)
    cov = (row_prior_cov(row_prior) + feature_cov).unsqueeze(0)
    return FactorMoments(*append_fixed(mean, cov, split))


def factor_attributes(predictor: FactorPredictor, scale: float) -> dict[str, Any]:
    """Return the fitted attributes of the factors and their offsets.

    Parameters
    ----------
    predictor : FactorPredictor
        Predictor in scaled units.
    scale : float
        Unit of the scaled entries.

    Returns
    -------
    dict
        Attributes by name.
    """
    k = predictor.coordinates.n_components
    factors = (predictor.rows, predictor.columns)
    rows, columns = (GaussianRows(f.mean.numpy(), f.cov.numpy()) for f in factors)
    posterior = MatrixPosterior(rows, columns).factors(k)
    attributes = {
        "posterior_": posterior,
        "components_": np.ascontiguousarray(posterior.columns.mean.T) / k**0.5,
        "components_cov_": posterior.columns.cov / k,
        "_predictor_": predictor.to_arrays(),
    }
    names = ("row_offsets_", "column_offsets_")
    for name, factor, split in zip(names, factors, predictor.coordinates.splits, strict=True):
        if len(split.free) > k:
            offsets = factor.mean[:, split.free[-1]].numpy()
            attributes[name] = offsets / predictor.coordinates.fixed_value * scale
    if predictor.draws is not None:
        attributes["samples_"] = predictor.draws.numpy()[..., :k]
    return attributes


def canonical_rotation(posterior: FactorState, n_rows: int) -> Tensor:
    """Return the rotation (k, k) to canonical axes of the components.

    The rotated columns of V's mean are orthogonal, in order of decreasing norm, and the largest
    loading of each is positive.
    """
    columns = posterior.mean[n_rows:].double()
    _, vectors = torch.linalg.eigh(columns.mT @ columns)
    rotation = vectors.flip(-1)
    loadings = columns @ rotation
    largest = loadings.gather(0, loadings.abs().argmax(0, keepdim=True))
    return rotation * torch.where(largest < 0.0, -1.0, 1.0).to(rotation)
