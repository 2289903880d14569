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
from functools import partial
from math import inf, log, pi, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.coordinates import (
    ToExplain,
    free_part,
    given_pinned,
    put_free,
)
from skbayes_sym.inference.factorization.covariance import (
    CovarianceFamily,
    project_free,
    row_entropy,
)
from skbayes_sym.inference.factorization.data import (
    Entries,
    Incidence,
    Side,
    packed_multiplicity,
    packed_second_moments,
    packed_sums,
    products,
)
from skbayes_sym.inference.factorization.gap_looks import WORTH, GapLooks, GapStream, drawn_seed
from skbayes_sym.inference.factorization.hyperpriors import RowLaw, SideMoments
from skbayes_sym.inference.factorization.likelihoods import NoiseState, Seen
from skbayes_sym.inference.factorization.mixed_sweeps import MixedSweeps, ModelledGap, Reached
from skbayes_sym.inference.factorization.problem import (
    FIXED_NOISE_SWEEPS,
    Factorisation,
    FactorProblem,
    FactorState,
)
from skbayes_sym.inference.factorization.rows import Noise, gap_terms, row_conditionals
from skbayes_sym.inference.factorization.scale_step import ScaleSums, rescaled
from skbayes_sym.numerics.convergence import stalled
from skbayes_sym.numerics.linalg import log_det, matrix_blocks
from skbayes_sym.numerics.machine import positions
from skbayes_sym.numerics.optimise import Loop, Stopped
from skbayes_sym.symmetry.gaps.base import GapGradient

# Sweeps before which a diagonal family is turned to the axes of the factors: from any other
# orientation coordinate ascent gets there by thousands of small steps.
_TURNS = frozenset({6, 12})
# Sweeps that size factors, once their prior is learned: the first so many, then every so many.
_EAGER_SCALES, _LAZY_SCALES = 16, 4
# Sweeps averaged to judge convergence; half as many where a nat doesn't matter, nor so the noise
# of a gap.
WINDOW = 10

OnStep = Callable[[int, Mapping[str, Any]], bool]


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
        Left as it is; what ``on_step`` is told is overwritten by the next sweep.
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
    model, curve, looks = problem.model, list[float](), None if gap is None else GapLooks(gap)
    posterior = start._replace(mean=start.mean.clone(), cov=start.cov.clone())
    at = Reached(posterior, _sites(problem, start), -inf)
    first = 0 if problem.warm is not None else max(FIXED_NOISE_SWEEPS, problem.n_held)
    last, mixed = inf, None
    with Loop() as loop:
        for sweep in loop.steps(range(problem.max_iter)):
            if mixed is not None:
                at = mixed.step(at, partial(_sweep_from, problem, covariance, sweep))
                curve.append(mixed.bound)
            else:
                added = None
                is_turned = covariance.is_elementwise and not covariance.is_isotropic
                if sweep in _TURNS and problem.warm is None and is_turned:
                    at = at._replace(posterior=_turn_to_axes(at.posterior, problem))
                    if looks is not None:
                        looks.forget()
                if looks is not None and sweep > 0:
                    added = looks.gradient(at.posterior.factors(model.n_components), sweep)
                at = _sweep(problem, at.data, at.posterior, Sweep(sweep, covariance, added))
                curve.append(at.elbo + (0.0 if added is None else float(added.value)))
            is_over = on_step(sweep + 1, {"elbo": curve[-1], "posterior": at.posterior})
            loop.stop_if("callback", is_over)
            if mixed is None and last == inf and _has_stalled(curve[first:], problem.tol):
                mixed = _mixed_sweeps(problem, covariance, gap)
                if mixed is None:
                    last = sweep + (0 if looks is None else looks.begin_last(problem.tol))
            loop.stop_if("tol", sweep >= last or (mixed is not None and mixed.is_over))
    # Sweeps are mixed once ``tol`` is met.
    is_met = loop.stopped == "max_iter" and mixed is not None
    return FactorFit(at.posterior, curve, len(curve), "tol" if is_met else loop.stopped)


def _mixed_sweeps(
    problem: FactorProblem, covariance: CovarianceFamily, gap: GapStream | None
) -> MixedSweeps | None:
    """The last sweeps, where they are mixed."""
    if gap is None or problem.tol > WORTH or problem.is_complete or not covariance.is_isotropic:
        return None
    if not isinstance(gap.gap, ModelledGap):
        return None
    seed = drawn_seed(gap.generator)
    return MixedSweeps(gap.gap, seed, problem.model.n_components, problem.tol)


def _sweep_from(
    problem: FactorProblem,
    covariance: CovarianceFamily,
    number: int,
    posterior: FactorState,
    data: Entries,
    added: GapGradient,
) -> Reached:
    return _sweep(problem, data, posterior, Sweep(number, covariance, added))


def _has_stalled(curve: list[float], tol: float) -> bool:
    """Whether ten sweeps gain less than ``tol``, at the rate of the last."""
    part = 1 if tol < WORTH else 2
    return stalled(curve, WINDOW // part, tol / part)


def _turn_to_axes(posterior: FactorState, problem: FactorProblem) -> FactorState:
    """Rotate q so that the precisions of its rows are as good as diagonal; keep the variances.

    The rows of one side owe their precision to the second moments of the other, so those of V count
    n times and those of U m times.
    """
    n, k = problem.data.n_rows, problem.model.n_components
    whole, whole_cov = posterior.mean.clone(), posterior.cov.clone()
    mean, cov = whole[:, :k], whole_cov[:, :k, :k]
    u, v = mean[:n].mT @ mean[:n], mean[n:].mT @ mean[n:]
    tiny = torch.finfo(mean.dtype).tiny
    weights = n / v.trace().clamp(min=tiny), (len(mean) - n) / u.trace().clamp(min=tiny)
    _, axes = torch.linalg.eigh(weights[0] * v + weights[1] * u)
    variances = (axes.mT @ cov @ axes).diagonal(dim1=-2, dim2=-1)
    whole[:, :k], whole_cov[:, :k, :k] = mean @ axes, torch.diag_embed(variances)
    return posterior._replace(mean=whole, cov=whole_cov)


class Sweep(NamedTuple):
    """One of them."""

    number: int
    covariance: CovarianceFamily
    added: GapGradient | None  # by the gap


def _sweep(problem: FactorProblem, data: Entries, posterior: FactorState, sweep: Sweep) -> Reached:
    """Update U, then V, in place, then the noise.

    ``data`` are the likelihood's sites at ``posterior``.
    """
    model, updated = problem.model, posterior
    fit, parts = 0.0, list[float]()
    for index in (0, 1):
        update = _update_side(problem, data.sides[index], index, updated, sweep)
        updated, fit, part = _learn_prior(problem, index, updated, update, sweep.number)
        parts.append(part)
    learned = model.noise_range if sweep.number >= problem.n_fixed else None
    if model.likelihood.is_normal:
        squares = data.by_row.squares + fit
        n = data.by_row.total_weight
        noise = posterior.noise_variance
        if learned is not None:
            noise = min(max(squares / max(n, 1), learned[0]), learned[1])
        log_lik = _normal_log_density(squares, n, noise)
        return Reached(updated._replace(noise_variance=noise), data, log_lik + sum(parts))
    seen, state = seen_entries(problem.data, updated, model), updated.noise
    if sweep.number >= problem.n_fixed:
        state = model.likelihood.learn(seen, state, learned)
        updated = updated._replace(noise_variance=state.variance, cuts=state.cuts)
    log_lik = model.likelihood.log_density(seen, state)
    return Reached(updated, _with_sites(problem, seen, state), log_lik + sum(parts))


def _sites(problem: FactorProblem, posterior: FactorState) -> Entries:
    """Gaussian entries that stand for the likelihood at this posterior."""
    if problem.model.likelihood.is_normal:
        return problem.data
    seen = seen_entries(problem.data, posterior, problem.model)
    return _with_sites(problem, seen, posterior.noise)


def _with_sites(problem: FactorProblem, seen: Seen, state: NoiseState) -> Entries:
    value, weight = problem.model.likelihood.sites(seen, state)
    like = problem.data.by_row.value
    return problem.data.with_values(value.to(like), None if weight is None else weight.to(like))


def seen_entries(data: Entries, posterior: FactorState, model: Factorisation) -> Seen:
    """What q says of every entry, in the order of ``data.by_row``; O(N k^2)."""
    n, (mean, cov), root_k = data.n_rows, posterior[:2], sqrt(model.n_components)
    packed, value = packed_second_moments(mean[n:], cov[n:]), data.by_row.value
    at, variance = torch.empty_like(value), torch.empty_like(value)
    for begin, end in matrix_blocks(n, mean.shape[1]):
        rows = slice(begin, end)
        own = packed_second_moments(mean[rows], cov[rows]) * packed_multiplicity(mean)
        block = data.by_row.block(begin, end)
        where = slice(int(data.by_row.start[begin]), int(data.by_row.start[end]))
        at[where] = products(mean[rows], mean[n:], block) / root_k
        square = products(own, packed, block) / root_k**2
        variance[where] = (square - at[where].square()).clamp(min=0.0)
    return Seen(value, data.by_row.weight, at, variance)


def expected_squares(data: Incidence, posterior: FactorState, model: Factorisation) -> float:
    """Weighted sum over entries of ``E_q (r - u . v / sqrt(k))^2``; ``data`` are those by row.

    By sums over the entries of each row: no number is kept for an entry.
    """
    n, (mean, cov), k = data.n_rows, posterior[:2], model.n_components
    packed, others = packed_second_moments(mean[n:], cov[n:]), mean[n:].contiguous()
    multiplicity, total = packed_multiplicity(mean), data.squares
    for begin, end in matrix_blocks(n, mean.shape[1]):
        sums, rows = (
            packed_sums(data.block(begin, end), packed, others),
            slice(begin, end),
        )
        own = packed_second_moments(mean[rows], cov[rows])
        total += float((own * sums.second @ multiplicity).sum()) / k
        total -= 2.0 * float((mean[rows] * sums.first).sum()) / sqrt(k)
    return max(total, 0.0)


def _moments(problem: FactorProblem, posterior: FactorState, index: int) -> SideMoments:
    """Sums over the rows of one side, free coordinates, float64."""
    own, side = problem.data.sides[index].own, problem.model.coordinates.sides[index]
    mean, cov = posterior.mean[own], posterior.cov[own]
    total = torch.zeros(cov.shape[1:], dtype=torch.float64, device=cov.device)
    for begin, end in matrix_blocks(len(cov), cov.shape[1]):
        total += cov[begin:end].double().sum(0)
    free = positions(side.free, cov)
    return problem.priors[index].moments(mean[:, free], total[free][:, free])


def _entropy(problem: FactorProblem, posterior: FactorState, index: int) -> float:
    """Of the rows of one side, nats."""
    own, side = problem.data.sides[index].own, problem.model.coordinates.sides[index]
    mean, cov = posterior.mean[own], posterior.cov[own]
    blocks = matrix_blocks(len(cov), cov.shape[1])
    return sum(row_entropy(free_part(mean[b:e], cov[b:e], side)[1]) for b, e in blocks)


def _learn_prior(
    problem: FactorProblem, index: int, posterior: FactorState, update: "_SideUpdate", sweep: int
) -> tuple[FactorState, float, float]:
    """The best prior of one side, the fit, and the side's part of the bound; held, it stays.

    Where scales are learned, factors get the size they should have, in place.
    """
    prior, law, k = (
        problem.priors[index],
        problem.laws(posterior)[index],
        problem.model.n_components,
    )
    moments, age = _moments(problem, posterior, index), sweep - problem.n_held
    is_due = age >= 0 and (age < _EAGER_SCALES or age % _LAZY_SCALES == 0)
    if update.sums is None or not is_due or not problem.model.learns_scales:
        found, value = prior.learned(moments, law)
        return _with_law(problem, posterior, index, found, age), update.fit, value + update.entropy
    noise = Noise(k, posterior.noise_variance)
    step = rescaled(update.sums, moments, prior, law, noise)
    fit, entropy = update.fit, update.entropy
    if step.scales is not None:
        fit += update.sums.fit(step.scales, k) - update.sums.fit(torch.ones_like(step.scales), k)
        entropy += moments.n * float(step.scales.log().sum())
        by = torch.ones_like(posterior.mean[0])
        by[:k] = step.scales[:k]
        posterior.mean[problem.data.sides[index].own] *= by
        posterior.cov[problem.data.sides[index].own] *= by.unsqueeze(-1) * by
    return _with_law(problem, posterior, index, step.law, age), fit, step.value + entropy


def _with_law(
    problem: FactorProblem, posterior: FactorState, index: int, law: RowLaw, age: int
) -> FactorState:
    """With this prior of one side, if it isn't held any more."""
    if age < 0:
        return posterior
    laws = problem.laws(posterior)
    return posterior._replace(laws=(law, laws[1]) if index == 0 else (laws[0], law))


def best_laws(problem: FactorProblem, posterior: FactorState) -> FactorState:
    """With the priors that fit its rows best."""
    for index, prior in enumerate(problem.priors):
        law = problem.laws(posterior)[index]
        found, _ = prior.learned(_moments(problem, posterior, index), law)
        posterior = _with_law(problem, posterior, index, found, 0)
    return posterior


class _SideUpdate(NamedTuple):
    """Of the rows of one side."""

    fit: float  # what it adds to the expected squared error beyond ``sum r^2``
    entropy: float
    sums: ScaleSums | None  # None where components can't have scales of their own


def _update_side(
    problem: FactorProblem, side: Side, index: int, posterior: FactorState, sweep: Sweep
) -> _SideUpdate:
    """Update one side in place."""
    mean, cov = posterior[:2]
    k, free = problem.model.n_components, problem.model.coordinates.sides[index]
    noise, family = Noise(k, posterior.noise_variance), sweep.covariance
    law = problem.laws(posterior)[index]
    packed = packed_second_moments(mean[side.other], cov[side.other])
    others, prior_means = (
        mean[side.other].contiguous(),
        problem.priors[index].means(law),
    )
    totals = _Totals(k, len(free.free), mean.device)
    for begin, end in matrix_blocks(side.entries.n_rows, mean.shape[1]):
        rows = slice(side.own.start + begin, side.own.start + end)
        explained = given_pinned(packed_sums(side.entries.block(begin, end), packed, others), free)
        terms = None if sweep.added is None else gap_terms(sweep.added, mean[:, :k], rows)
        factor, precision, target = row_conditionals(
            explained.sums, law, prior_means[begin:end], noise, terms
        )
        found = torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1)
        projected = project_free(family, precision, factor, k)
        put_free(mean[rows], cov[rows], (found, projected), free)
        totals.log_det_precision += log_det(factor).sum()
        if sweep.added is not None and terms is not None and problem.model.learns_scales:
            totals.add_slope(sweep.added.d_mean[rows], terms.precision, found, projected)
        totals.add(explained, found, projected)
    ratio = family.pool(cov[side.own])
    # The answer saves a pass over the covariances, and costs a GPU a wait.
    if ratio.device.type != "cpu" or bool((ratio != 1.0).any()):
        cov[side.own, :k, :k] *= ratio[:, None, None]
    variances = cov[side.own].diagonal(dim1=-2, dim2=-1)[:, positions(free.free, cov)]
    fit, log_det_precision = totals.read(ratio)
    entropy = family.entropy(variances, log_det_precision)
    return _SideUpdate(fit, entropy, None if family.is_isotropic else totals.sums)


class _Totals:
    """Sums over blocks of rows, on their device: what is read is waited for."""

    def __init__(self, n_components: int, n_free: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.sums = ScaleSums(zeros(n_free, n_free), zeros(n_free), zeros(n_components))
        self.constant, self.log_det_precision = zeros(), zeros()
        self.by_row = list[Tensor]()  # the factors' covariances' part of the squares

    def add_slope(self, d_mean: Tensor, added: Tensor, mean: Tensor, cov: Tensor) -> None:
        """Of the gap as the factors of these rows grow."""
        k = len(self.sums.gap)
        self.sums.gap.add_((d_mean * mean[:, :k]).sum(0))
        self.sums.gap.sub_((added * cov[:, :k, :k]).sum((0, 2)))

    def add(self, explained: ToExplain, mean: Tensor, cov: Tensor) -> None:
        """What rows say of the squared errors; overwrites ``cov``."""
        (second, first), constant = explained
        k = len(self.sums.gap)
        self.constant += constant.sum()
        self.sums.first.add_((mean * first).sum(0))
        self.sums.second.add_((second * mean.unsqueeze(-1)).mul_(mean.unsqueeze(-2)).sum(0))
        cov.mul_(second)
        self.sums.second.add_(cov.sum(0))
        self.by_row.append(cov[:, :k, :k].sum((-2, -1)))

    def read(self, ratio: Tensor) -> tuple[float, float]:
        """What the side adds to the expected squared error, its covariances pooled, and the log
        determinants of its precisions: a GPU is waited for twice."""
        k, ones = len(self.sums.gap), torch.ones_like(self.sums.first)
        pooled = ((ratio - 1.0) * torch.cat(self.by_row)).sum().to(self.constant)
        numbers = torch.stack((pooled, self.constant, self.log_det_precision))
        by_pooling, constant, log_det_precision = numbers.tolist()
        return self.sums.fit(ones, k) + constant + by_pooling / k, log_det_precision


def mean_field_elbo(data: Entries, posterior: FactorState, model: Factorisation) -> float:
    """ELBO of q itself, a lower bound on log p(R), nats; O(N k^2).

    What was learned of the noise and of the shrinkage of features is taken as given. Of ``data``
    only the entries by row are looked at.
    """
    problem = FactorProblem(data, data, model, None, 0, 0.0, 0)
    if model.likelihood.is_normal:
        squares = expected_squares(data.by_row, posterior, model)
        total = _normal_log_density(squares, data.by_row.total_weight, posterior.noise_variance)
    else:
        total = model.likelihood.log_density(seen_entries(data, posterior, model), posterior.noise)
    for index, prior in enumerate(problem.priors):
        law = problem.laws(posterior)[index]
        total += prior.log_density(_moments(problem, posterior, index), law)
        total += _entropy(problem, posterior, index)
    return total


def _normal_log_density(squares: float, n: float, variance: float) -> float:
    """Of entries whose squared errors have this sum."""
    return -0.5 * (n * log(2.0 * pi * variance) + squares / variance)
