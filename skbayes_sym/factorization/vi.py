r"""Variational inference for ``R = U V' / sqrt(k) + noise``, symmetrised under rotations.

q makes the rows of U and V independent Gaussians. A sweep updates every row of U, then of V, by

.. math::
    P_i = 1 / \tau^2 + \sum_j E[v_j v_j'] / (k s^2) + Q_i, \qquad
    P_i m_i = \sum_j r_{ij} E[v_j] / (\sqrt{k} s^2) + f_i + Q_i m_i^{\text{old}},

with sums over the observed entries of the row, the gradient f of the symmetrisation gap and the
precision Q that it adds (`GapGradient`). Without the gap this is coordinate ascent, and P_i^-1 is
optimal. With the gap it is a natural-gradient step of length one, exact in the likelihood and
second-order in the gap. Entries of other likelihoods are replaced by Gaussian sites.

The gradient of a Monte Carlo gap is a running mean of several estimates.
"""

from math import inf, log
from typing import NamedTuple

import torch

from skbayes_sym.factorization.context import subtract_context
from skbayes_sym.factorization.coordinate_ascent import (
    CovarianceFamily,
    compute_entry_moments,
    gaussian_log_likelihood,
    update_factor,
    update_row_prior,
)
from skbayes_sym.factorization.entry_sites import (
    compute_sites,
    expected_log_prob,
    is_normal,
    update_likelihood,
    update_trust_radius,
)
from skbayes_sym.factorization.factor_model import (
    FIXED_NOISE_SWEEPS,
    FactorProblem,
    FactorState,
    OnSweep,
    SolverResult,
)
from skbayes_sym.factorization.sparse_entries import Entries, compute_products
from skbayes_sym.numerics.optimise import Loop, has_stalled
from skbayes_sym.symmetry.gaps.gap import Gap, GapGradient, RowPosterior


class SeededGap(NamedTuple):
    """Symmetry gap together with the generator of its Monte Carlo draws.

    Attributes
    ----------
    gap : Gap
        Gap to maximise.
    generator : torch.Generator
        Source of its draws.
    """

    gap: Gap[RowPosterior]
    generator: torch.Generator


class GapSchedule:
    """Gradients of a symmetry gap, evaluated less and less often as the sweeps converge.

    An exact gap is evaluated in every sweep. For a Monte Carlo gap a running mean is kept, which is
    updated after 1, 2, 3, ... and at most ``longest_wait`` sweeps, because an evaluation costs as
    much as a sweep over few entries, and the gradient changes ever more slowly.

    Parameters
    ----------
    seeded_gap : SeededGap
        Gap and generator.
    weight : float, default=0.3
        Weight of a new gradient in the running mean, whose draws are independent of earlier ones.
        The mean averages about 2 / weight gradients. A smaller weight averages more of them, but
        older gradients belong to a posterior that has changed since.
    longest_wait : int, default=8
        Largest number of sweeps between two evaluations.
    """

    def __init__(self, seeded_gap: SeededGap, weight: float = 0.3, longest_wait: int = 8) -> None:
        self._seeded_gap = seeded_gap
        self._weight = weight
        self._longest_wait = longest_wait
        self._mean: GapGradient | None = None
        self._last_evaluation = 0  # sweep
        self._n_evaluations = 0

    def gradient(self, posterior: RowPosterior, sweep: int) -> GapGradient:
        """Return value and gradient at a posterior, or the running mean of recent ones."""
        gap, generator = self._seeded_gap
        if self._mean is None or not gap.is_random:
            self._mean = gap.value_and_gradients(posterior, generator=generator)
            self._last_evaluation = sweep
            self._n_evaluations = 1
        elif sweep >= self._last_evaluation + min(self._n_evaluations, self._longest_wait):
            new = gap.value_and_gradients(posterior, generator=generator)
            self._last_evaluation = sweep
            self._n_evaluations = self._n_evaluations + 1
            weight = max(self._weight, 1.0 / self._n_evaluations)
            pairs = zip(self._mean, new, strict=True)
            self._mean = GapGradient(*(torch.lerp(a, b, weight) for a, b in pairs))
        return self._mean

    def reset(self) -> None:
        """Drop the running mean, because the posterior was rotated."""
        self._mean = None


# Sweeps before which the factors are rotated to the axes in which a diagonal covariance fits best.
# From any other orientation, coordinate ascent gets there by thousands of small steps.
_ROTATION_SWEEPS = frozenset({6, 12})
# A tolerance above this many nats ignores the Monte Carlo noise of a gap. With a smaller one,
# further sweeps follow once the bound stalls, so that the running mean of gradients converges.
NEGLIGIBLE_GAIN = 1.0
_FINAL_SWEEPS = 60


def fit_factors(
    problem: FactorProblem, start: FactorState, covariance: CovarianceFamily, *,
    gap: SeededGap | None, on_sweep: OnSweep,
) -> SolverResult:  # fmt: skip
    """Sweep over both factors until the ELBO stalls.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation to solve.
    start : FactorState
        Initial posterior, which isn't changed.
    covariance : CovarianceFamily
        Covariances of the rows.
    gap : SeededGap or None
        Symmetry gap. None is plain mean-field inference, whose ELBO never falls if entries are
        Gaussian, except where a diagonal family is rotated to its axes in two early sweeps.
    on_sweep : callable
        Called after every sweep with the posterior, which the next sweep overwrites, and the ELBO.
        True stops.

    Returns
    -------
    SolverResult
        Posterior and ELBO curve.

    Notes
    -----
    A sweep costs O(N k^2 + (n + m) k^3). A `KeyboardInterrupt` ends the loop between two sweeps.
    """
    state = start._replace(mean=start.mean.clone(), cov=start.cov.clone())
    log2_radius = 0
    state, data, _ = _update_sites(problem, state, log2_radius, learns=False)
    schedule = None
    if gap is not None:
        schedule = GapSchedule(gap)
    has_axes = covariance.is_elementwise and not covariance.is_isotropic
    rotates = has_axes and problem.warm_start is None

    # The bound has stalled if the mean of ten sweeps no longer rises; five are enough for a large
    # tolerance.
    divisor = 1 if problem.tol < NEGLIGIBLE_GAIN else 2
    n_compared = 10 // divisor
    # Sweeps with a fixed prior or noise aren't compared.
    first_compared = 0
    if problem.warm_start is None:
        first_compared = max(FIXED_NOISE_SWEEPS, problem.n_fixed_prior_sweeps)
    n_final_sweeps = 0
    if gap is not None and gap.gap.is_random and problem.tol <= NEGLIGIBLE_GAIN:
        n_final_sweeps = _FINAL_SWEEPS

    curve = list[float]()
    previous_elbo = -inf
    last_sweep = problem.max_iter
    with Loop() as loop:
        for sweep in loop.steps(range(problem.max_iter)):
            if sweep in _ROTATION_SWEEPS and rotates:
                state = _rotate_to_axes(state, problem)
                if schedule is not None:
                    schedule.reset()
            gap_gradient = None
            if schedule is not None and sweep > 0:
                factors = state.factors(problem.model.n_components)
                gap_gradient = schedule.gradient(factors, sweep)
            state, data, elbo = _sweep(
                problem, covariance, sweep, state, data, gap_gradient, log2_radius
            )

            # If the bound has fallen, sites are computed again within the smaller radius.
            previous_radius = log2_radius
            log2_radius = update_trust_radius(log2_radius, elbo, previous_elbo, problem.data.by_row)
            if log2_radius < previous_radius:
                _, data, _ = _update_sites(problem, state, log2_radius, learns=False)
            previous_elbo = elbo

            curve.append(elbo)
            if gap_gradient is not None:
                curve[-1] += float(gap_gradient.value)
            loop.stop_if("callback", on_sweep(state, curve[-1]))
            recent = curve[first_compared:]
            is_stalled = has_stalled(recent, n_compared, problem.tol / divisor)
            if last_sweep == problem.max_iter and is_stalled:
                last_sweep = sweep + n_final_sweeps
            loop.stop_if("tol", sweep >= last_sweep)
    return SolverResult(state, len(curve), loop.stopped, tuple(curve))


def _sweep(
    problem: FactorProblem,
    covariance: CovarianceFamily,
    sweep: int,
    posterior: FactorState,
    data: Entries,
    gap_gradient: GapGradient | None,
    log2_radius: int,
) -> tuple[FactorState, Entries, float]:
    """Update U, then V, in place, then the context, and the noise or the sites.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation to solve.
    covariance : CovarianceFamily
        Covariances of the rows.
    sweep : int
        Number of the sweep, from 0.
    posterior : FactorState
        Posterior, whose means and covariances are overwritten.
    data : Entries
        Entries, or sites, at ``posterior``, without the effects of the context.
    gap_gradient : GapGradient or None
        Gradient of the symmetry gap.
    log2_radius : int
        Trust radius of the sites.

    Returns
    -------
    posterior : FactorState
        Posterior after the sweep.
    data : Entries
        Entries or sites at it.
    elbo : float
        Mean-field ELBO, nats.
    """
    # The factors and their priors.
    prior_value = 0.0
    squared_error = 0.0
    for index in (0, 1):
        factor_entries = data.by_factor[index]
        update = update_factor(problem, factor_entries, index, posterior, covariance, gap_gradient)
        posterior, squared_error, value = update_row_prior(problem, index, posterior, update, sweep)
        prior_value += value
    squares = data.by_row.sum_of_squares + squared_error

    # The effects of the context, a regression of the residuals.
    if posterior.context is not None:
        rows, columns = posterior.mean.split(problem.shape)
        fitted = compute_products(rows, columns, data.by_row) / problem.model.n_components**0.5
        residual = data.by_row.value - fitted
        context, context_error = posterior.context.update(
            data.by_row, residual, posterior.noise_variance
        )
        posterior = posterior._replace(context=context)
        squares = squares + context_error
        prior_value = prior_value - context.kl()

    # The likelihood and its sites.
    learns = sweep >= problem.n_fixed_noise_sweeps
    if not is_normal(posterior.likelihood):
        # A step in the likelihood's parameters costs as much as the rest of the sweep. After the
        # first eight sweeps there is one in every fourth.
        learns &= sweep < 8 or sweep % 4 == 0
        posterior, data, log_likelihood = _update_sites(
            problem, posterior, log2_radius, learns=learns
        )
        return posterior, data, log_likelihood + prior_value

    # The variance of Gaussian noise has a closed form.
    n = data.by_row.total_weight
    if learns:
        low, high = problem.model.noise_range
        log_noise = 0.5 * log(min(max(squares / max(n, 1), low), high))
        likelihood = posterior.likelihood.at(torch.tensor([log_noise], dtype=torch.float64))
        posterior = posterior._replace(likelihood=likelihood)
    log_likelihood = gaussian_log_likelihood(squares, n, posterior.noise_variance)
    data = subtract_context(problem.data, posterior.context)
    return posterior, data, log_likelihood + prior_value


def _update_sites(
    problem: FactorProblem, posterior: FactorState, log2_radius: int, *, learns: bool
) -> tuple[FactorState, Entries, float]:
    """Update the likelihood's parameters and compute the sites of all entries.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation to solve.
    posterior : FactorState
        Posterior of the factors.
    log2_radius : int
        Trust radius of the sites.
    learns : bool
        Whether to update the likelihood's parameters.

    Returns
    -------
    posterior : FactorState
        Posterior with the new likelihood.
    data : Entries
        Sites without the effects of the context. Gaussian entries are their own sites.
    log_likelihood : float
        Bound on the expected log likelihood, nats; 0 for Gaussian entries.
    """
    if is_normal(posterior.likelihood):
        return posterior, subtract_context(problem.data, posterior.context), 0.0
    moments = compute_entry_moments(problem.data, posterior, problem.model)
    likelihood = posterior.likelihood
    terms = expected_log_prob(likelihood, moments)
    if learns:
        likelihood, terms = update_likelihood(likelihood, moments, terms, problem.model.noise_range)
    value, weight = compute_sites(moments, terms, log2_radius)
    like = problem.data.by_row.value
    sites = problem.data.with_values((value - problem.model.intercept).to(like), weight.to(like))
    sites = subtract_context(sites, posterior.context)
    log_likelihood = moments.weighted_sum(terms.value)
    return posterior._replace(likelihood=likelihood), sites, log_likelihood


def _rotate_to_axes(posterior: FactorState, problem: FactorProblem) -> FactorState:
    """Rotate q so that the precisions of its rows are nearly diagonal, and keep the variances.

    The precision of the rows of one factor is made of second moments of the other. Those of V
    occur in n precisions, and those of U in m.
    """
    n = problem.data.n_rows
    k = problem.model.n_components
    rotated_mean = posterior.mean.clone()
    rotated_cov = posterior.cov.clone()
    mean = rotated_mean[:, :k]
    cov = rotated_cov[:, :k, :k]
    m = len(mean) - n
    u = mean[:n].mT @ mean[:n]
    v = mean[n:].mT @ mean[n:]
    tiny = torch.finfo(mean.dtype).tiny
    v_weight = n / v.trace().clamp(min=tiny)
    u_weight = m / u.trace().clamp(min=tiny)
    _, axes = torch.linalg.eigh(v_weight * v + u_weight * u)
    variances = (axes.mT @ cov @ axes).diagonal(dim1=-2, dim2=-1)
    rotated_mean[:, :k] = mean @ axes
    rotated_cov[:, :k, :k] = torch.diag_embed(variances)
    return posterior._replace(mean=rotated_mean, cov=rotated_cov)


def initialise_from_svd(problem: FactorProblem) -> FactorState:
    """Return the initial posterior, with the singular vectors of a complete matrix as means.

    If every entry is observed, with one noise and one prior scale, isotropic rows have an optimum
    along the singular vectors (Nakajima et al. 2013, without the symmetry). From a random start
    the sweeps find them as a power iteration does, and often stop early, with the vector of the
    next singular value in place of one. The means of both factors are equally large and their
    product is the best approximation of its rank. But no component is smaller than the prior's
    scale, because a component of zeros would remain zero. Components beyond the rank of the matrix
    start at random.

    The cost is O(n m min(n, m)), which is no more than some sweeps up to 500 rows of the shorter
    side. Larger and incomplete matrices start at random.
    """
    start = problem.initial_state
    n, m = problem.shape
    model = problem.model
    k = model.n_components
    has_features = any(feature is not None for feature in model.prior.features)
    applies = (
        problem.warm_start is None
        and problem.is_complete
        and is_normal(model.likelihood)
        and model.coordinates.n_coordinates == k
        and not has_features
        and not isinstance(model.prior.scale, str)
        and min(n, m) <= 500
    )
    if not applies:
        return start
    matrix = problem.data.by_row.value.view(n, m).double()
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    n_kept = min(k, len(values))
    scale = (values[:n_kept] * k**0.5).sqrt().clamp(min=float(model.prior.scale))
    mean = start.mean.clone()
    mean[:n, :n_kept] = left[:, :n_kept] * scale
    mean[n:, :n_kept] = right.mT[:, :n_kept] * scale
    return start._replace(mean=mean)
