r"""Variational inference for ``R = U V' / sqrt(k) + noise`` with a posterior that knows O(k).

q makes the rows of U and V independent Gaussians. A sweep updates every row of U, then of V, by

.. math::
    P_i = 1 / \tau^2 + \sum_j E[v_j v_j'] / (k s^2) + Q_i, \qquad
    P_i m_i = \sum_j r_{ij} E[v_j] / (\sqrt{k} s^2) + f_i + Q_i m_i^{\text{old}},

sums over the observed entries of the row, with the gradient f of the symmetrisation gap and the
precision Q that it adds (`GapGradient`). Without the gap this is coordinate ascent, and P_i^-1 the
optimum; with it, a natural-gradient step of length one, exact in the likelihood, second-order in
the gap. Entries of other likelihoods come as Gaussian ones, `sites`.

A gap that is drawn is told by a running mean of a few looks at it.
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
    expected,
    is_normal,
    learned,
    sites,
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
    """A gap to train on and the stream that it draws from."""

    gap: Gap[RowPosterior]
    generator: torch.Generator


class GapSchedule:
    """Gradients of a gap, as sweeps are told them.

    A gap that answers exactly is looked at in every sweep; of a random one a running mean is kept,
    and looked at again after 1, 2, 3, ... and at most ``longest_wait`` sweeps: a look costs as much
    as a sweep over few entries, and what it finds changes ever more slowly.

    ``share``: of a new gradient in the mean, whose draws are fresh, so that the mean holds those of
    some 2 / share gradients. A smaller one averages more, but of a posterior that has moved on.
    """

    def __init__(self, stream: SeededGap, share: float = 0.3, longest_wait: int = 8) -> None:
        self._stream = stream
        self._share = share
        self._longest_wait = longest_wait
        self._mean: GapGradient | None = None
        # sweep of the last look, and their number
        self._looked_at = 0
        self._n_looks = 0

    def gradient(self, posterior: RowPosterior, sweep: int) -> GapGradient:
        """Value and slopes at a posterior, or the mean of those at the last few."""
        gap, generator = self._stream
        if self._mean is None or not gap.is_random:
            self._mean = gap.value_and_gradients(posterior, generator=generator)
            self._looked_at = sweep
            self._n_looks = 1
        elif sweep >= self._looked_at + min(self._n_looks, self._longest_wait):
            new = gap.value_and_gradients(posterior, generator=generator)
            self._looked_at = sweep
            self._n_looks = self._n_looks + 1
            share = max(self._share, 1.0 / self._n_looks)
            pairs = zip(self._mean, new, strict=True)
            self._mean = GapGradient(*(torch.lerp(a, b, share) for a, b in pairs))
        return self._mean

    def forget(self) -> None:
        """Drop the running mean: the posterior has been turned."""
        self._mean = None


# Sweeps before which a diagonal family is turned to the axes of the factors: from any other
# orientation coordinate ascent gets there by thousands of small steps.
_TURNS = frozenset({6, 12})
# Tolerances above, in nats, leave the noise of a gap alone; below, once the bound stalls, so many
# sweeps more let the running mean of looks at it settle.
NEGLIGIBLE_GAIN = 1.0
_MORE_SWEEPS = 60


def fit_factors(
    problem: FactorProblem, start: FactorState, covariance: CovarianceFamily, *,
    gap: SeededGap | None, on_sweep: OnSweep,
) -> SolverResult:  # fmt: skip
    """Sweep until the ELBO stalls.

    ``start``: left as it is; what ``on_sweep`` is told is overwritten by the next sweep. ``gap``:
    None is plain mean-field inference, whose ELBO never falls with normal entries (a diagonal
    family is turned to its axes twice, early on). ``on_sweep``: True stops.

    A sweep costs O(N k^2 + (n + m) k^3). A `KeyboardInterrupt` ends the loop between two sweeps.
    """
    state = start._replace(mean=start.mean.clone(), cov=start.cov.clone())
    data = _with_sites(problem, state, 0, learns=False)[1]
    curve = list[float]()
    looks = None if gap is None else GapSchedule(gap)
    first = 0 if problem.warm is not None else max(FIXED_NOISE_SWEEPS, problem.n_held)
    is_turned = covariance.is_elementwise and not covariance.is_isotropic
    part = 1 if problem.tol < NEGLIGIBLE_GAIN else 2
    last = problem.max_iter
    is_random = gap is not None and gap.gap.is_random
    trust = 0
    before = -inf
    with Loop() as loop:
        for sweep in loop.steps(range(problem.max_iter)):
            added = None
            if sweep in _TURNS and problem.warm is None and is_turned:
                state = _turned_to_axes(state, problem)
                if looks is not None:
                    looks.forget()
            if looks is not None and sweep > 0:
                added = looks.gradient(state.factors(problem.model.n_components), sweep)
            state, data, elbo = _sweep(problem, covariance, sweep, state, data, added, trust)
            was = trust
            trust = update_trust_radius(trust, elbo, before, problem.data.by_row)
            if trust < was:
                data = _with_sites(problem, state, trust, learns=False)[1]
            before = elbo
            curve.append(elbo + (0.0 if added is None else float(added.value)))
            loop.stop_if("callback", on_sweep(state, curve[-1]))
            # The mean of ten sweeps, of half as many where a nat doesn't matter.
            is_stalled = has_stalled(curve[first:], 10 // part, problem.tol / part)
            if last == problem.max_iter and is_stalled:
                last = sweep + (_MORE_SWEEPS if is_random and problem.tol <= NEGLIGIBLE_GAIN else 0)
            loop.stop_if("tol", sweep >= last)
    return SolverResult(state, len(curve), loop.stopped, tuple(curve))


def _sweep(
    problem: FactorProblem,
    covariance: CovarianceFamily,
    number: int,
    posterior: FactorState,
    data: Entries,
    added: GapGradient | None,
    trust: int,
) -> tuple[FactorState, Entries, float]:
    """Update U, then V, in place, then the noise; ``data`` are the sites at ``posterior``.

    Returned are the state, its sites and the mean-field bound.
    """
    rest = 0.0
    fit = 0.0
    for index in (0, 1):
        update = update_factor(problem, data.sides[index], index, posterior, covariance, added)
        posterior, fit, part = update_row_prior(problem, index, posterior, update, number)
        rest += part
    squares = data.by_row.squares + fit
    n = data.by_row.total_weight
    if posterior.context is not None:
        rows, columns = posterior.mean.split(problem.shape)
        fitted = compute_products(rows, columns, data.by_row) / problem.model.n_components**0.5
        row_prior, more = posterior.context.regressed(
            data.by_row, data.by_row.value - fitted, posterior.noise_variance
        )
        posterior = posterior._replace(context=row_prior)
        squares = squares + more
        rest = rest - row_prior.kl()
    learns = number >= problem.n_fixed
    if not is_normal(posterior.likelihood):
        # A step in its parameters costs as much as all else: in every fourth sweep, but at first.
        learns &= number < 8 or number % 4 == 0
        posterior, data, log_likelihood = _with_sites(problem, posterior, trust, learns=learns)
        return posterior, data, log_likelihood + rest
    if learns:
        low, high = problem.model.noise_range
        log_noise = 0.5 * log(min(max(squares / max(n, 1), low), high))
        best = posterior.likelihood.at(torch.tensor([log_noise], dtype=torch.float64))
        posterior = posterior._replace(likelihood=best)
    log_likelihood = gaussian_log_likelihood(squares, n, posterior.noise_variance)
    return posterior, subtract_context(problem.data, posterior.context), log_likelihood + rest


def _with_sites(
    problem: FactorProblem, posterior: FactorState, number: int, *, learns: bool
) -> tuple[FactorState, Entries, float]:
    """A step in the noise, Gaussian entries that stand for the likelihood then, and its part."""
    if is_normal(posterior.likelihood):
        return posterior, subtract_context(problem.data, posterior.context), 0.0
    seen = compute_entry_moments(problem.data, posterior, problem.model)
    likelihood = posterior.likelihood
    terms = expected(posterior.likelihood, seen)
    if learns:
        likelihood, terms = learned(likelihood, seen, terms, problem.model.noise_range)
    value, weight = sites(seen, terms, number)
    like = problem.data.by_row.value
    data = problem.data.with_values((value - problem.model.shift).to(like), weight.to(like))
    data = subtract_context(data, posterior.context)
    return posterior._replace(likelihood=likelihood), data, seen.total(terms.value)


def _turned_to_axes(posterior: FactorState, problem: FactorProblem) -> FactorState:
    """Rotate q so that the precisions of its rows are as good as diagonal; keep the variances.

    The rows of one side owe their precision to the second moments of the other, so those of V count
    n times and those of U m times.
    """
    n = problem.data.n_rows
    k = problem.model.n_components
    whole = posterior.mean.clone()
    whole_cov = posterior.cov.clone()
    mean = whole[:, :k]
    cov = whole_cov[:, :k, :k]
    u = mean[:n].mT @ mean[:n]
    v = mean[n:].mT @ mean[n:]
    tiny = torch.finfo(mean.dtype).tiny
    weights = n / v.trace().clamp(min=tiny), (len(mean) - n) / u.trace().clamp(min=tiny)
    _, axes = torch.linalg.eigh(weights[0] * v + weights[1] * u)
    variances = (axes.mT @ cov @ axes).diagonal(dim1=-2, dim2=-1)
    whole[:, :k], whole_cov[:, :k, :k] = mean @ axes, torch.diag_embed(variances)
    return posterior._replace(mean=whole, cov=whole_cov)


def initialise_from_svd(problem: FactorProblem) -> FactorState:
    """The problem's start, with means along the singular vectors of a complete matrix.

    With every entry seen, one noise and one prior scale, the optimum of isotropic rows keeps them
    (Nakajima et al. 2013, without the symmetry). From a random start sweeps find them as a power
    iteration does, and often stop on the way, a vector of the next singular value in one's place.
    Means of both sides are equally large and their product is the best one of its rank, but none is
    smaller than the prior's scale: a component of zeros would stay one. Components beyond the
    matrix's rank begin at random. O(n m min(n, m)), no more than some sweeps up to 500 rows of the
    shorter side.
    """
    start = problem.start
    (n, m) = problem.shape
    model = problem.model
    k = model.n_components
    is_plain = is_normal(model.likelihood) and model.network.n_coordinates == k
    has_features = any(feature is not None for feature in model.prior.features)
    if (
        problem.warm is not None or not problem.is_complete or not is_plain or has_features
        or isinstance(model.prior.scale, str) or min(n, m) > 500
    ):  # fmt: skip
        return start
    matrix = problem.data.by_row.value.view(n, m).double()
    vectors, values, right = torch.linalg.svd(matrix, full_matrices=False)
    kept = min(k, len(values))
    size = (values[:kept] * k**0.5).sqrt().clamp(min=float(model.prior.scale))
    mean = start.mean.clone()
    mean[:n, :kept], mean[n:, :kept] = vectors[:, :kept] * size, right.mT[:, :kept] * size
    return start._replace(mean=mean)
