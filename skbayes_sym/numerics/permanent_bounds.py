"""Bounds on permanents, in polynomial time."""

from functools import lru_cache

import torch
from torch import Tensor

from skbayes_sym.numerics.sinkhorn import (
    SINKHORN_ITERATIONS,
    balancing_scales,
    bethe_log_marginals,
    require_square,
    round_to_doubly_stochastic,
    sinkhorn,
)

BALANCING_ITERATIONS = 100


@lru_cache(maxsize=64)
def _soules_log_increments(d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Log of delta_k = (k!)^(1/k) - ((k-1)!)^(1/(k-1)), k = 1..d, with delta_1 = 1."""
    k = torch.arange(1, d + 1, dtype=torch.float64)
    geometric_means = torch.exp(torch.lgamma(k + 1.0) / k)
    increments = geometric_means.diff(prepend=torch.zeros(1, dtype=torch.float64))
    return increments.log().to(device=device, dtype=dtype)


def _soules_rows(log_weights: Tensor) -> Tensor:
    """Sum over rows of the log of sum_k delta_k (k-th largest weight): (*B, d, d) -> (*B,)."""
    decreasing = log_weights.sort(dim=-1, descending=True).values
    d, dtype, device = log_weights.shape[-1], log_weights.dtype, log_weights.device
    return (decreasing + _soules_log_increments(d, dtype, device)).logsumexp(-1).sum(-1)


def soules_bound(log_weights: Tensor, *, tighten: bool = False) -> Tensor:
    r"""Upper bound on the log permanent, for every matrix (pointwise).

    With :math:`a_{i(1)} \ge a_{i(2)} \ge \dots` the sorted weights of row i,

    .. math:: \operatorname{perm}(A) \le \prod_i \sum_k a_{i(k)} \delta_k, \qquad
        \delta_k = (k!)^{1/k} - ((k-1)!)^{1/(k-1)}, \ \delta_1 = 1,

    Bregman-Minc for real weights. Exact for the identity, for equal weights, and for blocks of
    these. An upper bound on the permanent is a *lower* bound on a symmetrisation gap.

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats. -inf is a zero weight.
    tighten : bool, default=False
        True takes the least of four such bounds: rows and columns of the matrix as given and of
        its Sinkhorn scaling, whose scales are divided out again.

    Returns
    -------
    Tensor of shape (*B,)
        Nats, differentiable almost everywhere (at a tie for the least bound, a subgradient).

    Raises
    ------
    ValueError
        If `log_weights` is not a floating tensor of shape (*B, d, d).

    Notes
    -----
    Cost O(d^2 log d). Source: Soules (2003), Linear and Multilinear Algebra 51(4).
    """
    require_square(log_weights)
    if not tighten:
        return _soules_rows(log_weights)
    row, column = balancing_scales(log_weights)
    balanced = log_weights + row + column
    bounds = _soules_rows(torch.stack([log_weights, log_weights.mT, balanced, balanced.mT]))
    scale = row.sum((-2, -1)) + column.sum((-2, -1))
    return torch.minimum(bounds[:2].amin(0), bounds[2:].amin(0) - scale)


def _schrijver_functional(log_weights: Tensor, log_plan: Tensor, n_iter: int) -> Tensor:
    """Negative Bethe free energy at the doubly stochastic matrix nearest to exp(log_plan).

    It bounds the log permanent from below at every doubly stochastic matrix, and only there:
    unrounded, an unconverged scaling overshoots by nats.
    """
    plan = round_to_doubly_stochastic(sinkhorn(log_plan, n_iter).exp())
    rest = (1.0 - plan).clamp(min=0.0)
    entropy = torch.xlogy(rest, rest) - torch.xlogy(plan, plan)
    energy = (plan * log_weights).where(plan > 0.0, 0.0)  # a zero weight left out costs nothing
    return (energy + entropy).sum((-2, -1))


def gurvits_schrijver_bound(log_weights: Tensor, n_iter: int = BALANCING_ITERATIONS) -> Tensor:
    r"""Lower bound on the log permanent, from the Sinkhorn scaling.

    .. math:: \log\operatorname{perm}(\exp L) \ge \sum_{ij} P_{ij} (L_{ij} - \log P_{ij})
        + \sum_{ij} (1 - P_{ij}) \log(1 - P_{ij})

    holds for every doubly stochastic P; here P is the Sinkhorn scaling, rounded to be exactly that,
    so the bound holds converged or not. A lower bound on the permanent is an *upper* bound on a
    symmetrisation gap: report it, don't maximise it.

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats. -inf is a zero weight.
    n_iter : int, default=100
        Sinkhorn rounds; more make the bound better.

    Returns
    -------
    Tensor of shape (*B,)
        Nats; -inf if rounding had to put mass on a zero weight. The gradient is P, held fixed.

    Raises
    ------
    ValueError
        If `log_weights` is not a floating tensor of shape (*B, d, d).

    Notes
    -----
    Cost O(n_iter d^2). Source: Schrijver (1998), Gurvits (2011, arXiv:1106.2844).
    """
    require_square(log_weights)
    return _schrijver_functional(log_weights, log_weights.detach(), n_iter)


def bethe_bound(log_weights: Tensor, n_iter: int = BALANCING_ITERATIONS) -> Tensor:
    r"""Lower bound on the log permanent: the log of the Bethe permanent.

    The largest value over doubly stochastic P of the functional in `gurvits_schrijver_bound`. P is
    `bethe_log_marginals`, rounded, so the bound holds converged or not; it is an *upper* bound on a
    symmetrisation gap. For d = 2 it is the better of the two assignments.

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats, d >= 1. -inf is a zero weight.
    n_iter : int, default=100
        Rounds of messages from rows to columns and back.

    Returns
    -------
    Tensor of shape (*B,)
        Nats, as `gurvits_schrijver_bound`; at the maximum the gradient is exact.

    Raises
    ------
    ValueError
        If `log_weights` is not a floating tensor of shape (*B, d, d).

    Notes
    -----
    Cost O(n_iter d^2). Converged, at most (d/2) log 2 nats below the log permanent (Anari & Rezaei
    2019); slow where two assignments nearly tie. Source: Vontobel (2013).
    """
    require_square(log_weights)
    log_marginals = bethe_log_marginals(log_weights.detach(), n_iter)
    return _schrijver_functional(log_weights, log_marginals, SINKHORN_ITERATIONS)
