r"""Variational inference for ``R = U V' / sqrt(k) + noise`` with a posterior that knows O(k).

q makes the rows of U and V independent Gaussians. A sweep updates every row of U, then of V, by

.. math::
    P_i = 1 / \tau^2 + \sum_j E[v_j v_j'] / (k s^2) + Q_i, \qquad
    P_i m_i = \sum_j r_{ij} E[v_j] / (\sqrt{k} s^2) + f_i + Q_i m_i^{\text{old}},

sums over the observed entries of the row, with the gradient f of the symmetrisation gap and the
precision Q that it adds (`GapGradient`). Without the gap this is coordinate ascent, and P_i^-1 the
optimum; with it, a natural-gradient step of length one, exact in the likelihood, second-order in
the gap.
"""

from collections.abc import Callable, Mapping
from math import log, pi, sqrt
from typing import Any, NamedTuple

import torch

from skbayes_sym.inference.factorization.covariance import CovarianceFamily, kl_from_prior
from skbayes_sym.inference.factorization.data import (
    ROW_BLOCK,
    Entries,
    Side,
    packed_second_moments,
    sums_over_entries,
)
from skbayes_sym.inference.factorization.problem import FactorProblem, FactorState
from skbayes_sym.inference.factorization.rows import gap_terms, row_conditionals
from skbayes_sym.numerics.convergence import stalled
from skbayes_sym.numerics.optimise import Loop, Stopped
from skbayes_sym.symmetry.gaps.base import Gap, GapGradient, RowPosterior

# Share of a new gradient in the running mean: its draws are fresh, so the mean holds those of some
# 2 / _LEAST_SHARE gradients at the end.
_LEAST_SHARE, _SHARE_POWER = 0.05, 0.7
# Sweeps before the noise is learned: from a random start everything looks like noise.
_FIXED_NOISE_SWEEPS = 5
# A random gap is looked at again after 1, 2, 3, ... and at most so many sweeps: a look costs as
# much as a sweep over few entries, and what it finds changes ever more slowly.
_LONGEST_WAIT = 8
# Sweeps before which a diagonal family is turned to the axes of the factors: from any other
# orientation coordinate ascent gets there by thousands of small steps.
_TURNS = frozenset({6, 12})
WINDOW = 10  # sweeps averaged to judge convergence

OnStep = Callable[[int, Mapping[str, Any]], bool]


class GapStream(NamedTuple):
    """A gap to train on and the stream that it draws from."""

    gap: Gap[RowPosterior]
    generator: torch.Generator


class FactorFit(NamedTuple):
    """What the sweeps leave behind."""

    posterior: FactorState
    elbo_curve: list[float]  # mean-field ELBO, plus the gap where there is one
    n_iter: int
    stopped: Stopped


def fit_factors(
    problem: FactorProblem,
    start: FactorState,
    covariance: CovarianceFamily,
    *,
    gap: GapStream | None,
    on_step: OnStep,
) -> FactorFit:
    """Sweep until the ELBO stalls.

    Parameters
    ----------
    problem : FactorProblem
        Its noise, if it is learned, maximises the ELBO; else it is that of ``start``.
    start : FactorState
    covariance : CovarianceFamily
    gap : GapStream, optional
        None is plain mean-field inference, whose ELBO never falls (a diagonal family is turned
        to its axes twice, early on).
    on_step : callable (sweep, info) -> bool
        Told ``{"elbo": ..., "posterior": ...}`` after every sweep; True stops.

    Returns
    -------
    FactorFit

    Notes
    -----
    A sweep costs O(N k^2 + (n + m) k^3). A `KeyboardInterrupt` ends the loop between two sweeps.
    """
    data, model = problem.data, problem.model
    posterior, curve, running = start, list[float](), None
    with Loop() as loop:
        for sweep in loop.steps(range(problem.max_iter)):
            if sweep in _TURNS and covariance.is_elementwise and not covariance.is_isotropic:
                posterior, running = _turn_to_axes(posterior, data.n_rows), None
            if gap is not None and sweep > 0:
                running = _look(running, gap, posterior, sweep)
            added = None if running is None else running.mean
            learned = model.noise_range if sweep >= _FIXED_NOISE_SWEEPS else None
            posterior, elbo = _sweep(data, posterior, model.prior_scale, covariance, added, learned)
            curve.append(elbo + (0.0 if added is None else float(added.value)))
            loop.stop_if(
                "callback", on_step(sweep + 1, {"elbo": curve[-1], "posterior": posterior})
            )
            loop.stop_if("tol", stalled(curve[_FIXED_NOISE_SWEEPS:], WINDOW, problem.tol))
    return FactorFit(posterior, curve, len(curve), loop.stopped)


def _turn_to_axes(posterior: FactorState, n: int) -> FactorState:
    """Rotate q so that the precisions of its rows are as good as diagonal; keep the variances.

    The rows of one side owe their precision to the second moments of the other, so those of V count
    n times and those of U m times.
    """
    mean, cov, _ = posterior
    u, v = mean[:n].mT @ mean[:n], mean[n:].mT @ mean[n:]
    tiny = torch.finfo(mean.dtype).tiny
    weights = n / v.trace().clamp(min=tiny), (len(mean) - n) / u.trace().clamp(min=tiny)
    _, axes = torch.linalg.eigh(weights[0] * v + weights[1] * u)
    variances = (axes.mT @ cov @ axes).diagonal(dim1=-2, dim2=-1)
    return posterior._replace(mean=mean @ axes, cov=torch.diag_embed(variances))


class _RunningGap(NamedTuple):
    """What the looks at a gap have found so far."""

    mean: GapGradient  # of all looks if they are random, else the last
    last: int  # sweep of the last look
    n_looks: int


def _look(
    running: _RunningGap | None, stream: GapStream, posterior: FactorState, sweep: int
) -> _RunningGap:
    """Look at a gap that answers exactly in every sweep, at a random one when its time has come."""
    gap, generator = stream
    if running is None or not gap.is_random:
        return _RunningGap(gap.value_and_gradients(posterior, generator=generator), sweep, 1)
    mean, last, n_looks = running
    if sweep < last + min(n_looks, _LONGEST_WAIT):
        return running
    new = gap.value_and_gradients(posterior, generator=generator)
    n_looks += 1
    share = max(_LEAST_SHARE, float(n_looks) ** -_SHARE_POWER)
    mean = GapGradient(
        torch.lerp(mean.value, new.value, share),
        mean.d_mean.lerp_(new.d_mean, share),
        mean.added_precision.lerp_(new.added_precision, share),
    )
    return _RunningGap(mean, sweep, n_looks)


def _sweep(
    data: Entries,
    posterior: FactorState,
    prior_scale: float,
    covariance: CovarianceFamily,
    added: GapGradient | None,
    noise_range: tuple[float, float] | None,
) -> tuple[FactorState, float]:
    """Update U, then V, then the noise; the mean-field ELBO at the end."""
    updated = posterior._replace(mean=posterior.mean.clone(), cov=posterior.cov.clone())
    fit = 0.0
    for side in data.sides:
        fit = _update_side(side, updated, prior_scale, covariance, added)
    squares = float(data.by_row.value.double().square().sum()) + fit
    noise = posterior.noise_variance
    if noise_range is not None:
        low, high = noise_range
        noise = min(max(squares / max(data.n_observed, 1), low), high)
    log_lik = -0.5 * (data.n_observed * log(2.0 * pi * noise) + squares / noise)
    cost = covariance.cost(updated.mean, updated.cov, prior_scale)
    return updated._replace(noise_variance=noise), log_lik - cost


def _update_side(
    side: Side,
    posterior: FactorState,
    prior_scale: float,
    covariance: CovarianceFamily,
    added: GapGradient | None,
) -> float:
    """Update one side in place; what it adds to the expected squared error beyond ``sum r^2``."""
    mean, cov, noise = posterior
    k, first_row = mean.shape[1], side.own.start
    packed = packed_second_moments(mean[side.other], cov[side.other])
    others = mean[side.other].contiguous()
    linear, quadratic = 0.0, []
    for begin in range(0, side.entries.n_rows, ROW_BLOCK):
        end = min(begin + ROW_BLOCK, side.entries.n_rows)
        rows = slice(first_row + begin, first_row + end)
        sums = sums_over_entries(side.entries.block(begin, end), packed, others)
        terms = None if added is None else gap_terms(added, mean, rows)
        factor, precision, target = row_conditionals(sums, prior_scale, noise, terms)
        mean[rows] = torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1)
        cov[rows] = covariance.project(precision, factor)
        second, first = sums
        by_mean = (second @ mean[rows].unsqueeze(-1)).squeeze(-1) / k - 2.0 / sqrt(k) * first
        linear += float((by_mean * mean[rows]).sum())
        quadratic.append((cov[rows] * second).sum((-2, -1)))
    ratio = covariance.pool(cov[side.own])
    cov[side.own] *= ratio[:, None, None]
    return linear + float((ratio * torch.cat(quadratic)).sum()) / k


def mean_field_elbo(data: Entries, posterior: FactorState, prior_scale: float) -> float:
    """ELBO of q itself, a lower bound on log p(R), nats; exact, O(N k^2)."""
    n, (mean, cov, noise) = data.n_rows, posterior
    k, total = mean.shape[1], float(data.by_row.value.double().square().sum())
    packed, others = packed_second_moments(mean[n:], cov[n:]), mean[n:].contiguous()
    for begin in range(0, n, ROW_BLOCK):
        end = min(begin + ROW_BLOCK, n)
        second, first = sums_over_entries(data.by_row.block(begin, end), packed, others)
        m = mean[begin:end]
        moments = torch.addcmul(cov[begin:end], m.unsqueeze(-1), m.unsqueeze(-2))
        total += float((moments * second).sum()) / k - 2.0 / sqrt(k) * float((m * first).sum())
    log_lik = -0.5 * (data.n_observed * log(2.0 * pi * noise) + total / noise)
    return log_lik - kl_from_prior(mean, cov, prior_scale)
