"""Leave-one-out densities from one fit, by Pareto-smoothed importance sampling."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.inference.diagnostics import mean_ess

_LARGEST_K = 0.7  # Vehtari et al. (2024): beyond it no feasible number of draws is enough


class LeaveOneOut(NamedTuple):
    """What each row's density would be had it been left out."""

    log_density: Array  # (n_samples,), nats
    n_unreliable: int  # rows whose Pareto shape is too large for their estimate


def leave_one_out(estimator: BaseEstimator, X: Any, y: Any) -> LeaveOneOut | None:
    """PSIS-LOO of a sampled posterior on the rows it was fitted to.

    With draws theta_s of weight w_s of the posterior given all rows,

        p(y_i | y_-i) = sum_s r_is p(y_i | theta_s) / sum_s r_is,   r_is = w_s / p(y_i | theta_s),

    the largest ratios replaced by quantiles of a generalised Pareto distribution.

    Returns
    -------
    LeaveOneOut or None
        None if the model has no draws of its posterior, or arviz-stats isn't installed.

    References
    ----------
    Vehtari, Gelman & Gabry (2017). Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC.

    Vehtari, Simpson, Gelman, Yao & Gabry (2024). Pareto smoothed importance sampling.
    """
    model, prepare = innermost(estimator)
    X = prepare(X)
    if not has_posterior_draws(model):
        return None
    try:
        from arviz_stats.base import array_stats
    except ImportError:
        return None
    values, weights = model.log_likelihood_samples(X, y), model.chain_weights_
    used = weights > 0
    values, weights = values[used], weights[used]
    efficiency = _relative_efficiency(values, weights)
    # arviz takes log likelihoods for equally weighted draws and smooths their negatives.
    weighted = (values - np.log(weights)[:, None, None]).reshape(-1, values.shape[-1]).T
    log_ratios, shapes = array_stats.psislw(weighted, r_eff=efficiency)
    flat = values.reshape(-1, values.shape[-1]).T
    log_density = np.logaddexp.reduce(log_ratios + flat, axis=1)
    log_density -= np.logaddexp.reduce(log_ratios, axis=1)
    largest = min(1.0 - 1.0 / np.log10(flat.shape[1]), _LARGEST_K)
    return LeaveOneOut(log_density, int(np.sum(~(shapes <= largest))))


def has_posterior_draws(model: Any) -> bool:
    """Whether there is what `leave_one_out` starts from; the modes of an ensemble aren't."""
    found = hasattr(model, "log_likelihood_samples")
    return found and bool(getattr(model, "draws_the_posterior", True))


def _relative_efficiency(values: Array, weights: Array) -> float:
    """Effective draws a draw for the mean likelihood, averaged over rows; sets the tail's size."""
    likelihood = np.exp(values - values.max(axis=(0, 1)))
    found = mean_ess(likelihood, weights) / values[..., 0].size
    return float(np.mean(found[np.isfinite(found)])) if np.isfinite(found).any() else 1.0
