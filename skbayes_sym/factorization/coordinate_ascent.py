"""The rows of one side given the other's: their best Gaussians, prior and size, and the bound."""

from dataclasses import dataclass
from math import log, pi, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.factorization.entry_sites import EntryMoments, expected, is_normal
from skbayes_sym.factorization.factor_model import FactorModel, FactorProblem, FactorState
from skbayes_sym.factorization.hyperpriors import Hyperprior, RowPrior, RowStatistics
from skbayes_sym.factorization.sparse_entries import (
    CSREntries,
    Entries,
    FactorEntries,
    NormalEquations,
    assign_free,
    compute_packed_equations,
    compute_products,
    eliminate_fixed,
    pack_second_moments,
    select_free,
    triangle_multiplicity,
)
from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.linalg import cholesky, log_det, matrix_blocks
from skbayes_sym.numerics.runtime import index_tensor
from skbayes_sym.symmetry.gaps.gap import GapGradient
from skbayes_sym.symmetry.gaps.rotations import row_root


@dataclass(frozen=True)
class CovarianceFamily:
    """The best covariances of a family for given precisions ``P_i``.

    ``kind``: "full", any ``S_i = P_i^-1``; "diag", independent entries, ``diag(P_i)^-1``; "row", a
    variance a row, ``k / tr P_i``; "isotropic", one for all rows of a side, the harmonic mean of
    theirs; "none", points: sweeps are alternating least squares and end at the MAP, and their
    objective is the log joint density, which bounds nothing. Fully observed, the product is then
    the SVD of R with its values lowered by ``noise^2 sqrt(k) / prior_scale^2`` (Srebro, Rennie &
    Jaakkola 2005).
    """

    kind: str

    @property
    def is_isotropic(self) -> bool:
        """Whether every S_i is a multiple of the identity."""
        return self.kind in ("row", "isotropic", "none")

    @property
    def is_elementwise(self) -> bool:
        """Whether every S_i is diagonal."""
        return self.kind != "full"

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        """Maximise ``-1/2 tr(P_i S_i) + 1/2 log det S_i`` in the family, all (n, k, k).

        ``factor``: Cholesky factors of the precisions.
        """
        if self.kind == "full":
            return torch.cholesky_inverse(factor)
        if self.kind == "none":
            return torch.zeros_like(precision)
        diagonal = precision.diagonal(dim1=-2, dim2=-1)
        if self.is_isotropic:
            diagonal = diagonal.mean(-1, keepdim=True).expand_as(diagonal)
        return torch.diag_embed(diagonal.reciprocal())

    def project_free(self, precision: Tensor, factor: Tensor, n_components: int) -> Tensor:
        """`project` rows that have an offset too; independent of the factors unless full."""
        k = n_components
        if precision.shape[-1] == k or not self.is_elementwise:
            return self.project(precision, factor)
        cov = torch.zeros_like(precision)
        for part in (slice(k), slice(k, None)):
            cov[:, part, part] = self.project(precision[:, part, part], factor[:, part, part])
        return cov

    def pool(self, cov: Tensor) -> Tensor:
        """Multiples (n,) of each row's covariance that agree with the others'."""
        if self.kind != "isotropic":
            return cov.new_ones(len(cov))
        variance = cov[:, 0, 0]
        return 1.0 / (variance * variance.reciprocal().mean())

    def entropy(self, variances: Tensor, log_det_precision: float) -> float:
        """Entropy of rows with these variances (n, d), nats; 0 of points, which have none.

        ``log_det_precision`` is that of all precisions they were projected from together.
        """
        if self.kind == "none":
            return 0.0
        log_dets = -log_det_precision
        if self.is_elementwise:
            log_dets = float(variances.log().sum(-1).double().sum())
        return 0.5 * (log_dets + variances.numel() * (1.0 + LOG_2PI))


def row_entropy(cov: Tensor) -> float:
    """Entropy of independent normal rows, (n, d, d) -> nats."""
    log_dets = float(log_det(row_root(cov)).double().sum())
    return 0.5 * (log_dets + cov.shape[0] * cov.shape[1] * (1.0 + LOG_2PI))


def compute_entry_moments(
    data: Entries, posterior: FactorState, model: FactorModel
) -> EntryMoments:
    """Moments of the outputs of all entries, in the order of ``data.by_row``; O(N k^2)."""
    n, (mean, cov), root_k = data.n_rows, posterior[:2], sqrt(model.n_components)
    packed = pack_second_moments(mean[n:], cov[n:])
    value = data.by_row.value
    centre = torch.empty_like(value)
    variance = torch.empty_like(value)
    for begin, end in matrix_blocks(n, mean.shape[1]):
        rows = slice(begin, end)
        second = pack_second_moments(mean[rows], cov[rows]) * triangle_multiplicity(mean)
        block = data.by_row.block(begin, end)
        where = slice(int(data.by_row.start[begin]), int(data.by_row.start[end]))
        centre[where] = compute_products(mean[rows], mean[n:], block) / root_k
        square = compute_products(second, packed, block) / root_k**2
        variance[where] = (square - centre[where].square()).clamp(min=0.0)
    if posterior.context is not None and data.by_row.context is not None:
        known, more = posterior.context.moments(data.by_row.context)
        centre = centre + known
        variance = variance + more
    return EntryMoments(value, data.by_row.weight, centre + model.shift, variance)


def expected_squared_error(data: CSREntries, posterior: FactorState, model: FactorModel) -> float:
    """Weighted sum of ``E_q (r - c . w - u . v / sqrt(k))^2``; ``data`` are entries by row.

    By sums over the entries of each row: no number is kept for an entry.
    """
    n = data.n_rows
    (mean, cov) = posterior[:2]
    k = model.n_components
    packed = pack_second_moments(mean[n:], cov[n:])
    others = mean[n:].contiguous()
    multiplicity = triangle_multiplicity(mean)
    spread = 0.0
    if posterior.context is not None and data.context is not None:
        known, variance = posterior.context.moments(data.context)
        spread = float((variance if data.weight is None else variance * data.weight).sum())
        data = data._replace(value=data.value - known)
    total = data.squares + spread
    for begin, end in matrix_blocks(n, mean.shape[1]):
        rows = slice(begin, end)
        sums = compute_packed_equations(data.block(begin, end), packed, others)
        second = pack_second_moments(mean[rows], cov[rows])
        total += float((second * sums.second @ multiplicity).sum()) / k
        total -= 2.0 * float((mean[rows] * sums.first).sum()) / sqrt(k)
    return max(total, 0.0)


def gaussian_log_likelihood(squares: float, n: float, variance: float) -> float:
    """Log density of n entries whose squared errors have this sum, nats."""
    return -0.5 * (n * log(2.0 * pi * variance) + squares / variance)


def compute_row_statistics(
    problem: FactorProblem, posterior: FactorState, index: int
) -> RowStatistics:
    """Sums over the rows of one side, free coordinates, float64."""
    rows = problem.data.sides[index].own
    side = problem.model.network.sides[index]
    mean = posterior.mean[rows]
    cov = posterior.cov[rows]
    total = torch.zeros(cov.shape[1:], dtype=torch.float64, device=cov.device)
    for begin, end in matrix_blocks(len(cov), cov.shape[1]):
        total += cov[begin:end].double().sum(0)
    free = index_tensor(side.free, cov)
    return problem.priors[index].moments(mean[:, free], total[free][:, free])


def mean_field_elbo(data: Entries, posterior: FactorState, model: FactorModel) -> float:
    """ELBO of q itself, a lower bound on log p(R), nats; O(N k^2).

    What was learned of the noise, of the shrinkage of features and of effects is taken as given. Of
    ``data`` only the entries by row are looked at.
    """
    problem = FactorProblem(data, data, model)
    if is_normal(posterior.likelihood):
        squares = expected_squared_error(data.by_row, posterior, model)
        total = gaussian_log_likelihood(squares, data.by_row.total_weight, posterior.noise_variance)
    else:
        seen = compute_entry_moments(data, posterior, model)
        total = seen.total(expected(posterior.likelihood, seen).value)
    total -= 0.0 if posterior.context is None else posterior.context.kl()
    row_priors = problem.distributions(posterior)
    sides = zip(data.sides, model.network.sides, strict=True)
    for index, (rows, side) in enumerate(sides):
        moments = compute_row_statistics(problem, posterior, index)
        total += problem.priors[index].learned(moments, row_priors[index])[1]
        mean = posterior.mean[rows.own]
        cov = posterior.cov[rows.own]
        for begin, end in matrix_blocks(len(cov), cov.shape[1]):
            total += row_entropy(select_free(mean[begin:end], cov[begin:end], side)[1])
    return total


class Noise(NamedTuple):
    """Noise of an entry ``u . v / sqrt(k)``."""

    n_components: int
    variance: float


def compute_row_conditionals(
    sums: NormalEquations, row_prior: RowPrior, means: Tensor, noise: Noise,
    added: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The best Gaussians ``N(P^-1 t, P^-1)`` of the free coordinates of rows given the others.

    ``sums``: of shapes (n, d, d) and (n, d); ``law``: the rows' prior; ``means`` (n, d): prior
    means; ``added``: terms of a gap in P and t of the first k coordinates, (n, k, k), estimated and
    so not always positive, and (n, k). Returns Cholesky's factors of P, P and t.
    """
    second, first = sums
    precision = second / (noise.n_components * noise.variance)
    precision += row_prior.precision.to(precision)
    target = first / (sqrt(noise.n_components) * noise.variance)
    target += (means @ row_prior.precision).to(target)
    if added is not None:
        stiffness, pull = added
        k = pull.shape[1]
        target[:, :k] += pull
        diagonal = precision.diagonal(dim1=-2, dim2=-1)[:, :k]
        least = diagonal.clone()
        precision[:, :k, :k] += stiffness
        # Only an added precision estimated from draws, never a true one, is negative.
        torch.maximum(diagonal, least, out=diagonal)
    factor = cholesky(
        precision,
        name="The precision of a row",
        remedy="The noise is too small next to the prior: give a larger noise_std, or "
        "give X as float64.",
    )
    return factor, precision, target


class ScaleStatistics(NamedTuple):
    """Sums over entries that tell of the size of a side's rows, float64."""

    second: Tensor  # (d, d), H
    first: Tensor  # (d,), b
    gap: Tensor  # (k,), slope of the gap in log s

    def fit(self, scales: Tensor, n_components: int) -> float:
        """Expected squares beyond ``sum r^2`` of rows multiplied by these (d,)."""
        sums = torch.stack((scales @ self.second @ scales, self.first @ scales))
        by_second, by_first = sums.tolist()  # a GPU is waited for once
        return float(by_second / n_components - 2.0 * by_first / n_components**0.5)


def optimise_scales(
    sums: ScaleStatistics,
    moments: RowStatistics,
    prior: Hyperprior,
    row_prior: RowPrior,
    noise: Noise,
) -> tuple[Tensor | None, RowPrior, float]:
    r"""Sizes (d,) for a side's coordinates (1 for offsets; None: all stay), the best law of rows
    multiplied by them, and its part of the bound.

    Where the prior's scales are learned, a component that explains nothing shrinks like
    :math:`1 / t` under coordinate ascent: its rows follow the prior, and the prior its rows.
    Multiplied by numbers :math:`s_c`, rows and prior move at once (parameter expansion, Liu, Rubin
    & Wu 1998). With the other side held, the bound is

    .. math:: -\frac{1}{2 \sigma^2} \left(\tfrac1k s^\top H s - \tfrac{2}{\sqrt k} b^\top s\right)
        + \log p(\text{rows} \cdot s) + n \sum_c \log s_c, \qquad
        H = \sum_i E[\theta_i \theta_i^\top] \circ \sum_j E[v_j v_j^\top], \quad
        b = \sum_i E[\theta_i] \circ \sum_j r_{ij} E[v_j].

    A Newton step, shortened until it rises. O(k^3), whatever the number of rows.
    """
    k = noise.n_components
    d = len(sums.first)
    best, value = prior.learned(moments, row_prior)
    stay = None, best, value
    # H s / (k s2) = b / (sqrt(k) s2) + c, the rest's slope c at s = 1; offsets stay.
    slope = (sums.first / k**0.5 - sums.second[:, k:].sum(1) / k)[:k]
    slope = slope + noise.variance * (prior.growth(best)[:k] + sums.gap)
    wanted, _ = torch.linalg.solve_ex(sums.second[:k, :k] / k, slope)
    # At most twofold: sums are of q before it, and components must not be lost at once.
    step = wanted.clamp(0.5, 2.0).log()
    if not float(step.abs().max()) >= 1e-3:
        return stay  # smaller changes aren't worth it; nan: no entries tell of the size
    before = value - 0.5 * sums.fit(torch.ones_like(sums.first), k) / noise.variance
    for _ in range(3):
        scales = sums.first.new_ones(d)
        scales[:k] = step.exp()
        resized = moments.scaled(scales)
        law_there, value = prior.learned(resized, row_prior)
        after = value - 0.5 * sums.fit(scales, k) / noise.variance
        if after + float((moments.n + sums.gap) @ step) > before:
            return scales, law_there, value
        step = 0.5 * step
    return stay


def update_factor(
    problem: FactorProblem, side: FactorEntries, index: int, posterior: FactorState,
    family: CovarianceFamily, added: GapGradient | None,
) -> tuple[float, float, ScaleStatistics | None]:  # fmt: skip
    """Update one side in place.

    Returns what its rows add to the expected squared error beyond ``sum r^2``, their entropy, and
    sums that tell of their size; None where components can't have scales of their own.
    """
    mean, cov = posterior[:2]
    k = problem.model.n_components
    free = problem.model.network.sides[index]
    noise = Noise(k, posterior.noise_variance)
    row_prior = problem.distributions(posterior)[index]
    packed = pack_second_moments(mean[side.other], cov[side.other])
    others = mean[side.other].contiguous()
    prior_means = problem.priors[index].means(row_prior)
    totals = _Totals(k, len(free.free), mean.device)
    for begin, end in matrix_blocks(side.entries.n_rows, mean.shape[1]):
        rows = slice(side.own.start + begin, side.own.start + end)
        block = side.entries.block(begin, end)
        sums, constant = eliminate_fixed(compute_packed_equations(block, packed, others), free)
        terms = None
        if added is not None:
            stiffness = added.added_precision[rows]
            # As m' Q: Q is symmetric, and m' on the left takes a third of the time.
            pull = (mean[rows, :k].unsqueeze(-2) @ stiffness).squeeze(-2).add_(added.d_mean[rows])
            terms = (stiffness, pull)
        factor, precision, target = compute_row_conditionals(
            sums, row_prior, prior_means[begin:end], noise, terms
        )
        best = torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1)
        projected = family.project_free(precision, factor, k)
        assign_free(mean[rows], cov[rows], (best, projected), free)
        totals.log_det_precision += log_det(factor).sum()
        if added is not None and terms is not None and problem.model.prior.learns_scales:
            totals.add_slope(added.d_mean[rows], terms[0], best, projected)
        totals.add(sums, constant, best, projected)
    ratio = family.pool(cov[side.own])
    # The answer saves a pass over the covariances, and costs a GPU a wait.
    if ratio.device.type != "cpu" or bool((ratio != 1.0).any()):
        cov[side.own, :k, :k] *= ratio[:, None, None]
    variances = cov[side.own].diagonal(dim1=-2, dim2=-1)[:, index_tensor(free.free, cov)]
    fit, log_det_precision = totals.read(ratio)
    entropy = family.entropy(variances, log_det_precision)
    return fit, entropy, None if family.is_isotropic else totals.sums


class _Totals:
    """Sums over blocks of rows, on their device: what is read is waited for."""

    def __init__(self, n_components: int, n_free: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.sums = ScaleStatistics(zeros(n_free, n_free), zeros(n_free), zeros(n_components))
        self.constant, self.log_det_precision = zeros(), zeros()
        self.by_row = list[Tensor]()  # the factors' covariances' part of the squares

    def add_slope(self, d_mean: Tensor, added: Tensor, mean: Tensor, cov: Tensor) -> None:
        """Add the slope of the gap as the factors of these rows grow."""
        k = len(self.sums.gap)
        self.sums.gap.add_((d_mean * mean[:, :k]).sum(0))
        self.sums.gap.sub_((added * cov[:, :k, :k]).sum((0, 2)))

    def add(self, sums: NormalEquations, constant: Tensor, mean: Tensor, cov: Tensor) -> None:
        """Add what rows say of the squared errors; overwrites ``cov``."""
        (second, first), k = sums, len(self.sums.gap)
        self.constant += constant.sum()
        self.sums.first.add_((mean * first).sum(0))
        self.sums.second.add_((second * mean.unsqueeze(-1)).mul_(mean.unsqueeze(-2)).sum(0))
        cov.mul_(second)
        self.sums.second.add_(cov.sum(0))
        self.by_row.append(cov[:, :k, :k].sum((-2, -1)))

    def read(self, ratio: Tensor) -> tuple[float, float]:
        """Fit of the side with its covariances pooled, and log determinants of its precisions.

        A GPU is waited for twice.
        """
        k = len(self.sums.gap)
        ones = torch.ones_like(self.sums.first)
        pooled = ((ratio - 1.0) * torch.cat(self.by_row)).sum().to(self.constant)
        numbers = torch.stack((pooled, self.constant, self.log_det_precision))
        by_pooling, constant, log_det_precision = numbers.tolist()
        return self.sums.fit(ones, k) + constant + by_pooling / k, log_det_precision


def update_row_prior(
    problem: FactorProblem, index: int, posterior: FactorState,
    update: tuple[float, float, ScaleStatistics | None], sweep: int,
) -> tuple[FactorState, float, float]:  # fmt: skip
    """The best prior of one side, the fit, and the side's part of the bound; held, it stays.

    ``update``: of `update_factor`. Where scales are learned, factors get the size they should have,
    in place: in the first sixteen sweeps with a learned prior, then in every fourth.
    """
    prior = problem.priors[index]
    row_prior = problem.distributions(posterior)[index]
    k = problem.model.n_components
    (fit, entropy, sums) = update
    moments = compute_row_statistics(problem, posterior, index)
    age = sweep - problem.n_held
    is_due = age >= 0 and (age < 16 or age % 4 == 0)
    if sums is None or not is_due or not problem.model.prior.learns_scales:
        best, value = prior.learned(moments, row_prior)
        return replace_row_prior(problem, posterior, index, best, age), fit, value + entropy
    noise = Noise(k, posterior.noise_variance)
    scales, best, value = optimise_scales(sums, moments, prior, row_prior, noise)
    if scales is not None:
        fit += sums.fit(scales, k) - sums.fit(torch.ones_like(scales), k)
        entropy += moments.n * float(scales.log().sum())
        by = torch.ones_like(posterior.mean[0])
        rows = problem.data.sides[index].own
        by[:k] = scales[:k]
        posterior.mean[rows] *= by
        posterior.cov[rows] *= by.unsqueeze(-1) * by
    return replace_row_prior(problem, posterior, index, best, age), fit, value + entropy


def replace_row_prior(
    problem: FactorProblem, posterior: FactorState, index: int, row_prior: RowPrior, age: int = 0
) -> FactorState:
    """Set the prior of one side, if it isn't held any more."""
    if age < 0:
        return posterior
    row_priors = problem.distributions(posterior)
    return posterior._replace(
        row_priors=(row_prior, row_priors[1]) if index == 0 else (row_priors[0], row_prior)
    )
