"""The recipes of matrix factorisation: checked entries in, fitted attributes out."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skbayes_sym.estimators._fit.callbacks import FitTask
from skbayes_sym.estimators._fit.context import Fitted, logger
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.factorization.entries import Observed
from skbayes_sym.estimators.factorization.gap import COVARIANCES, component_group
from skbayes_sym.inference.factorization.covariance import CovarianceFamily
from skbayes_sym.inference.factorization.data import Entries
from skbayes_sym.inference.factorization.vi import (
    FactorPosterior,
    GapStream,
    fit_factors,
    mean_field_elbo,
    start_at_random,
)
from skbayes_sym.inference.posteriors import GaussianRows, MatrixPosterior
from skbayes_sym.numerics.monte_carlo import Estimate
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.base import Gap, RowPosterior
from skbayes_sym.symmetry.gaps.rows import row_gap

_INITIAL_NOISE = 0.5  # in units of the spread of the observed entries
_NOISE_RANGE = (1e-3, 1e2)  # likewise


class MatrixContext(NamedTuple):
    """What a recipe gets besides the estimator's own parameters."""

    observed: Observed  # centred and scaled
    mean: float
    scale: float
    spread: float  # standard deviation of the observed entries, in scaled units
    seed: int
    device: torch.device
    dtype: torch.dtype
    begin: Callable[[int], FitTask]  # opens the callbacks' task, given the number of sweeps


class Seeds(NamedTuple):
    """One seed a purpose."""

    start: int
    gap: int
    report: int
    gibbs: int


def start_of(estimator: Any, context: MatrixContext, data: Entries, seed: int) -> FactorPosterior:
    """Random start of the sweeps."""
    return start_at_random(
        context.observed.shape,
        estimator.n_components,
        prior_scale=estimator.prior_scale,
        noise_variance=start_noise(estimator, context),
        generator=generator_from(seed, context.device),
        like=data.by_row.value,
    )


def start_noise(estimator: Any, context: MatrixContext) -> float:
    """Noise variance in scaled units, as given or to start learning from."""
    if estimator.noise_std == "learn":
        return float((_INITIAL_NOISE * context.spread) ** 2)
    return float((estimator.noise_std / context.scale) ** 2)


def noise_range(estimator: Any, context: MatrixContext) -> tuple[float, float] | None:
    """Range of a learned noise variance, None if it is given or there is nothing to learn from."""
    if estimator.noise_std != "learn" or len(context.observed.values) == 0:
        return None
    low, high = (float((r * context.spread) ** 2) for r in _NOISE_RANGE)
    return low, high


def fit_vi(estimator: Any, context: MatrixContext, seeds: Seeds) -> Fitted:
    """Sweeps in the precision asked for; then both parts of the bound in float64, by fresh draws.

    Returns
    -------
    Fitted
        What predicts (`posterior_attributes`), the bounds, the curve and the number of sweeps.
    """
    data = context.observed.tensors(context.device, context.dtype)
    covariance = COVARIANCES[estimator.covariance]
    gap = _gap(estimator, context)
    stream = None if gap is None else GapStream(gap, generator_from(seeds.gap, context.device))
    fitted, attributes = run_sweeps(estimator, context, data, covariance, stream, seeds)
    precise = data if context.dtype == torch.float64 else in_double(context)
    posterior = fitted.posterior.to(torch.float64)
    bound = mean_field_elbo(precise, posterior, estimator.prior_scale) + log_jacobian(context)
    report = Estimate(0.0, 0.0)
    if gap is not None:
        report = gap.estimate(posterior, generator=generator_from(seeds.report, context.device))
    bounds = bounds_of(bound, report)
    logger.info(
        "ELBO %.6g (mean-field %.6g, symmetry gap %.4g), stopped by %s after %d sweeps",
        bounds["elbo_"], bound, report.value, fitted.stopped, fitted.n_iter,
    )  # fmt: skip
    curve = np.array(fitted.elbo_curve) + log_jacobian(context)
    return Fitted({**attributes, **bounds, "elbo_curve_": curve}, fitted.stopped)


def _gap(estimator: Any, context: MatrixContext) -> Gap[RowPosterior] | None:
    """The gap of the estimator's group, None without a group."""
    if estimator.symmetry is None:
        return None
    group = component_group(estimator.symmetry, sum(context.observed.shape), estimator.n_components)
    return row_gap(group, is_isotropic=COVARIANCES[estimator.covariance].is_isotropic)


def run_sweeps(
    estimator: Any,
    context: MatrixContext,
    data: Entries,
    covariance: CovarianceFamily,
    gap: GapStream | None,
    seeds: Seeds,
) -> tuple[Any, dict[str, Any]]:
    """Run `fit_factors` under the callbacks; its result and the attributes that predict."""
    task = context.begin(estimator.max_iter)
    latest: list[FactorPosterior] = []

    def reconstruct() -> Mapping[str, Any]:
        return posterior_attributes(context, latest[-1]) if latest else {}

    def on_step(sweep: int, info: Mapping[str, Any]) -> bool:
        logger.debug("sweep %d: ELBO %.6g", sweep, info["elbo"] + log_jacobian(context))
        latest[:] = [info["posterior"]]
        return task.end_block(reconstruct)

    n_observed = max(1, data.n_observed)
    fitted = fit_factors(
        data,
        start_of(estimator, context, data, seeds.start),
        prior_scale=estimator.prior_scale,
        covariance=covariance,
        gap=gap,
        noise_range=noise_range(estimator, context),
        max_iter=estimator.max_iter,
        tol=estimator.tol * n_observed,
        on_step=on_step,
    )
    latest[:] = [fitted.posterior]
    task.end(reconstruct)
    _warn_unless_converged(estimator, fitted)
    attributes = posterior_attributes(context, fitted.posterior)
    return fitted, {**attributes, "n_iter_": fitted.n_iter}


def _warn_unless_converged(estimator: Any, fitted: Any) -> None:
    if fitted.stopped == "max_iter":
        warn_user(
            f"not converged: the ELBO was still rising after max_iter={estimator.max_iter} sweeps "
            f"(tol={estimator.tol:g} nats an observed entry). Raise max_iter or tol.",
            ConvergenceWarning,
        )


def in_double(context: MatrixContext) -> Entries:
    """The observed entries in float64, in which bounds are evaluated."""
    return context.observed.tensors(context.device, torch.float64)


def log_jacobian(context: MatrixContext) -> float:
    """Turns a log density of scaled entries into that of the entries as given, nats."""
    return -len(context.observed.values) * float(np.log(context.scale))


def bounds_of(mean_field: float, gap: Estimate) -> dict[str, float]:
    """The fitted attributes of a bound, nats, from its exact part and the gap's estimate."""
    return {
        "elbo_": mean_field + gap.value,
        "elbo_mean_field_": mean_field,
        "symmetry_gap_": gap.value,
        "elbo_std_error_": gap.standard_error,
    }


def canonical_rotation(posterior: FactorPosterior, n_rows: int) -> Tensor:
    """Makes the columns of V's mean orthogonal, by decreasing norm, largest loading positive."""
    columns = posterior.mean[n_rows:].double()
    _, vectors = torch.linalg.eigh(columns.mT @ columns)
    turn = vectors.flip(-1)
    loadings = columns @ turn
    largest = loadings.gather(0, loadings.abs().argmax(0, keepdim=True))
    return turn * torch.where(largest < 0.0, -1.0, 1.0).to(turn)


def posterior_attributes(context: MatrixContext, posterior: FactorPosterior) -> dict[str, Any]:
    """Everything that predicting needs, as NumPy arrays, in the canonical orientation."""
    n, k = context.observed.shape[0], posterior.mean.shape[1]
    turn = canonical_rotation(posterior, n).to(posterior.mean)
    mean = (posterior.mean @ turn).cpu().numpy()
    cov = (turn.mT @ posterior.cov @ turn).cpu().numpy()
    return {
        "posterior_": MatrixPosterior(
            GaussianRows(mean[:n], cov[:n]), GaussianRows(mean[n:], cov[n:])
        ),
        "components_": np.ascontiguousarray(mean[n:].T) / k**0.5,
        "components_cov_": cov[n:] / k,
        "noise_std_": float(np.sqrt(posterior.noise_variance) * context.scale),
        "mean_": context.mean,
        "scale_": context.scale,
        "device_": str(context.device),
        "dtype_": str(context.dtype).removeprefix("torch."),
        "_orientation_": turn.double().cpu().numpy(),
        "_cache": {},
    }
