"""The recipes of the rivals: MAP, the analytic mean-field optimum, Gibbs sampling."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.context import Fitted
from skbayes_sym.estimators.factorization.recipe import (
    MatrixContext,
    Seeds,
    bounds_of,
    canonical_rotation,
    in_double,
    log_jacobian,
    noise_range,
    posterior_attributes,
    run_sweeps,
    start_noise,
    start_of,
)
from skbayes_sym.inference.factorization.covariance import PointMass
from skbayes_sym.inference.factorization.gibbs import sample_factors
from skbayes_sym.inference.factorization.vi import FactorPosterior, mean_field_elbo
from skbayes_sym.inference.reference.analytic_mean_field import analytic_mean_field
from skbayes_sym.numerics.monte_carlo import Estimate
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.orthogonal import Orthogonal


def fit_map(estimator: Any, context: MatrixContext, seeds: Seeds) -> Fitted:
    """The most probable factors, by sweeps over point masses."""
    data = context.observed.tensors(context.device, context.dtype)
    fitted, attributes = run_sweeps(estimator, context, data, PointMass(), None, seeds)
    return Fitted(attributes, fitted.stopped)


def fit_analytic(estimator: Any, context: MatrixContext, seeds: Seeds) -> Fitted:
    """The mean-field optimum of a complete matrix."""
    observed = context.observed
    n, m = observed.shape
    if len(observed.values) < n * m:
        raise ValueError(
            f"solver='mfvi_analytic' needs every entry, but X has {n * m - len(observed.values)} "
            "missing ones: use solver='vi' with symmetry=None, whose optimum it is."
        )
    task = context.begin(1)
    data = context.observed.tensors(context.device, context.dtype)
    posterior = analytic_mean_field(
        data.by_row.value.view(n, m).double(),
        estimator.n_components,
        prior_scale=estimator.prior_scale,
        noise_variance=start_noise(estimator, context),
        noise_range=noise_range(estimator, context),
    )
    task.end(lambda: posterior_attributes(context, posterior))
    bound = mean_field_elbo(in_double(context), posterior, estimator.prior_scale) + log_jacobian(
        context
    )
    attributes = {
        **posterior_attributes(context, posterior),
        **bounds_of(bound, Estimate(0.0, 0.0)),
        "elbo_curve_": np.array([bound]),
        "n_iter_": 1,
    }
    return Fitted(attributes, "tol")


def fit_gibbs(estimator: Any, context: MatrixContext, seeds: Seeds) -> Fitted:
    """Draws of the posterior, aligned; their moments stand for it where one Gaussian is needed."""
    data = context.observed.tensors(context.device, context.dtype)
    n_warmup = estimator.max_iter // 2
    task = context.begin(estimator.max_iter)

    def on_step(sweep: int, info: Mapping[str, Any]) -> bool:
        return task.end_block(lambda: posterior_attributes(context, _one_draw(**info)))

    draws = sample_factors(
        data,
        start_of(estimator, context, data, seeds.start),
        prior_scale=estimator.prior_scale,
        noise_range=noise_range(estimator, context),
        n_warmup=n_warmup,
        n_sweeps=estimator.max_iter,
        n_kept=min(estimator.n_draws, estimator.max_iter - n_warmup),
        generator=generator_from(seeds.gibbs, context.device),
        on_step=on_step,
    )
    aligned = _aligned(draws.rows.double())
    centred = aligned - aligned.mean(0)
    cov = torch.einsum("sip,siq->ipq", centred, centred) / len(aligned)
    noise = float(draws.noise_variance.double().mean())
    posterior = FactorPosterior(aligned.mean(0), cov, noise).to(context.dtype)
    turn = canonical_rotation(posterior, context.observed.shape[0])
    attributes = {
        **posterior_attributes(context, posterior),
        "samples_": (aligned @ turn).to(context.dtype).cpu().numpy(),
        "n_iter_": draws.n_sweeps,
    }
    task.end(lambda: attributes)
    return Fitted(attributes, draws.stopped)


def _one_draw(rows: Tensor, noise_variance: float) -> FactorPosterior:
    """A draw as a posterior without spread, for callbacks that look at the model mid-way."""
    k = rows.shape[1]
    return FactorPosterior(rows, rows.new_zeros(len(rows), k, k), noise_variance)


def _aligned(draws: Tensor) -> Tensor:
    """Draws (S, n + m, k) rotated to the last one, whose orientation is as good as any."""
    _, n_rows, k = draws.shape
    index = torch.arange(n_rows * k, device=draws.device).view(n_rows, k)
    flat = draws.flatten(1)
    moved, _ = Orthogonal(index).align(flat, flat[-1])
    return moved.view(draws.shape)
