"""Coordinate ascent: the optimal rows of one factor given the other factor, and the bound.

One update computes the optimal Gaussian of every row of a factor, the optimal prior of these rows,
and the optimal scale of every component. The module also evaluates the evidence lower bound.
"""

from dataclasses import dataclass
from math import log, pi, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.factorization.entry_sites import EntryMoments, expected_log_prob, is_normal
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
    """Family of covariances of the rows, with the optimal member for given precisions ``P_i``.

    Parameters
    ----------
    kind : {"full", "diag", "row", "isotropic", "none"}
        * "full": any covariance, optimal is ``S_i = P_i^-1``.
        * "diag": independent coordinates, ``S_i = diag(P_i)^-1``.
        * "row": one variance per row, ``k / tr P_i``.
        * "isotropic": one variance for all rows of a factor, the harmonic mean of theirs.
        * "none": point estimates. Sweeps are alternating least squares, which ends at the MAP, and
          their objective is the log joint density, which is no bound. If every entry is observed,
          the product of the factors is the SVD of R with its singular values reduced by
          ``noise^2 sqrt(k) / prior_scale^2`` (Srebro, Rennie & Jaakkola 2005).
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
        """Maximise ``-1/2 tr(P_i S_i) + 1/2 log det S_i`` over the family.

        Parameters
        ----------
        precision : Tensor of shape (n, k, k)
            Precisions ``P_i``.
        factor : Tensor of shape (n, k, k)
            Their Cholesky factors.

        Returns
        -------
        Tensor of shape (n, k, k)
            Optimal covariances.
        """
        if self.kind == "full":
            return torch.cholesky_inverse(factor)
        if self.kind == "none":
            return torch.zeros_like(precision)
        diagonal = precision.diagonal(dim1=-2, dim2=-1)
        if self.is_isotropic:
            diagonal = diagonal.mean(-1, keepdim=True).expand_as(diagonal)
        return torch.diag_embed(diagonal.reciprocal())

    def project_with_offsets(self, precision: Tensor, factor: Tensor, n_components: int) -> Tensor:
        """Call `project` for rows that may have an offset after their components.

        Unless covariances are full, offset and components are independent.

        Parameters
        ----------
        precision : Tensor of shape (n, d, d)
            Precisions of the rows.
        factor : Tensor of shape (n, d, d)
            Their Cholesky factors.
        n_components : int
            Number of components, which come before an offset.
        """
        if precision.shape[-1] == n_components or not self.is_elementwise:
            return self.project(precision, factor)
        cov = torch.zeros_like(precision)
        for block in (slice(n_components), slice(n_components, None)):
            cov[:, block, block] = self.project(precision[:, block, block], factor[:, block, block])
        return cov

    def pooling_ratio(self, cov: Tensor) -> Tensor:
        """Return the factors (n,) by which pooling multiplies the covariances of the rows.

        Only the family "isotropic" pools the variances of all rows.
        """
        if self.kind != "isotropic":
            return cov.new_ones(len(cov))
        variance = cov[:, 0, 0]
        return 1.0 / (variance * variance.reciprocal().mean())

    def entropy(self, variances: Tensor, log_det_precision: float) -> float:
        """Entropy of rows, nats; 0 for point estimates.

        Parameters
        ----------
        variances : Tensor of shape (n, d)
            Diagonals of the covariances.
        log_det_precision : float
            Log determinant of the precisions that were projected, summed over the rows.

        Returns
        -------
        float
            Nats.
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
    """Moments of the outputs of all entries, in the order of ``data.by_row``; O(N k^2).

    The output of row u and column v is ``u . v / sqrt(k)``, whose second moment is the sum over all
    entries of the matrix ``E[u u'] * E[v v'] / k``. Rows are taken in blocks to limit the memory.

    Parameters
    ----------
    data : Entries
        Observed entries.
    posterior : FactorState
        Means and covariances of all rows and columns.
    model : FactorModel
        Model, for its number k of components.
    """
    n = data.n_rows
    mean = posterior.mean
    cov = posterior.cov
    root_k = sqrt(model.n_components)
    column_squares = pack_second_moments(mean[n:], cov[n:])
    value = data.by_row.value
    output_mean = torch.empty_like(value)
    output_variance = torch.empty_like(value)
    for begin, end in matrix_blocks(n, mean.shape[1]):
        rows = slice(begin, end)
        row_squares = pack_second_moments(mean[rows], cov[rows]) * triangle_multiplicity(mean)
        block = data.by_row.slice_rows(begin, end)
        block_entries = slice(int(data.by_row.indptr[begin]), int(data.by_row.indptr[end]))
        output_mean[block_entries] = compute_products(mean[rows], mean[n:], block) / root_k
        square = compute_products(row_squares, column_squares, block) / root_k**2
        variance = (square - output_mean[block_entries].square()).clamp(min=0.0)
        output_variance[block_entries] = variance
    if posterior.context is not None and data.by_row.context is not None:
        context_mean, context_variance = posterior.context.moments(data.by_row.context)
        output_mean = output_mean + context_mean
        output_variance = output_variance + context_variance
    weight = data.by_row.weight
    return EntryMoments(value, weight, output_mean + model.intercept, output_variance)


def expected_squared_error(data: CSREntries, posterior: FactorState, model: FactorModel) -> float:
    """Weighted sum of ``E_q (r - c . w - u . v / sqrt(k))^2``; ``data`` are entries by row.

    It is computed from sums over the entries of each row, without an array of all entries.

    Parameters
    ----------
    data : CSREntries
        Observed entries by row.
    posterior : FactorState
        Means and covariances of all rows and columns.
    model : FactorModel
        Model, for its number k of components.
    """
    n = data.n_rows
    mean = posterior.mean
    cov = posterior.cov
    k = model.n_components
    packed = pack_second_moments(mean[n:], cov[n:])
    others = mean[n:].contiguous()
    multiplicity = triangle_multiplicity(mean)
    context_variance = 0.0
    if posterior.context is not None and data.context is not None:
        context_mean, variance = posterior.context.moments(data.context)
        if data.weight is not None:
            variance = variance * data.weight
        context_variance = float(variance.sum())
        data = data._replace(value=data.value - context_mean)
    total = data.sum_of_squares + context_variance
    for begin, end in matrix_blocks(n, mean.shape[1]):
        rows = slice(begin, end)
        equations = compute_packed_equations(data.slice_rows(begin, end), packed, others)
        second = pack_second_moments(mean[rows], cov[rows])
        total += float((second * equations.gram @ multiplicity).sum()) / k
        total -= 2.0 * float((mean[rows] * equations.rhs).sum()) / sqrt(k)
    return max(total, 0.0)


def gaussian_log_likelihood(squared_error: float, n: float, variance: float) -> float:
    """Log density in nats of n entries with a given sum of squared errors.

    Parameters
    ----------
    squared_error : float
        Sum of squared errors.
    n : float
        Number of entries.
    variance : float
        Variance of the noise.
    """
    return -0.5 * (n * log(2.0 * pi * variance) + squared_error / variance)


def compute_row_statistics(
    problem: FactorProblem, posterior: FactorState, index: int
) -> RowStatistics:
    """Sufficient statistics of the rows of one factor in free coordinates, float64.

    Parameters
    ----------
    problem : FactorProblem
        Data, model and hyperpriors.
    posterior : FactorState
        Means and covariances of all rows and columns.
    index : int
        Index of the factor: 0 for rows, 1 for columns.
    """
    rows = problem.data.by_factor[index].own_rows
    split = problem.model.coordinates.splits[index]
    mean = posterior.mean[rows]
    cov = posterior.cov[rows]
    total = torch.zeros(cov.shape[1:], dtype=torch.float64, device=cov.device)
    for begin, end in matrix_blocks(len(cov), cov.shape[1]):
        total += cov[begin:end].double().sum(0)
    free = index_tensor(split.free, cov)
    return problem.hyperpriors[index].row_statistics(mean[:, free], total[free][:, free])


def mean_field_elbo(data: Entries, posterior: FactorState, model: FactorModel) -> float:
    """ELBO of the mean-field posterior q, a lower bound on log p(R).

    Parameters
    ----------
    data : Entries
        Observed entries, of which only ``by_row`` is used.
    posterior : FactorState
        Posterior q. Its noise, the shrinkage of coefficients of features and the prior precision
        of context effects are taken as fixed.
    model : FactorModel
        Model of the entries.

    Returns
    -------
    float
        Nats. The cost is O(N k^2).
    """
    problem = FactorProblem(data, data, model)
    if is_normal(posterior.likelihood):
        squared_error = expected_squared_error(data.by_row, posterior, model)
        n = data.by_row.total_weight
        total = gaussian_log_likelihood(squared_error, n, posterior.noise_variance)
    else:
        moments = compute_entry_moments(data, posterior, model)
        terms = expected_log_prob(posterior.likelihood, moments)
        total = moments.weighted_sum(terms.value)
    if posterior.context is not None:
        total -= posterior.context.kl()

    # The divergence from the prior, and the entropy, factor by factor.
    row_priors = problem.row_priors(posterior)
    factors = zip(data.by_factor, model.coordinates.splits, strict=True)
    for index, (factor, split) in enumerate(factors):
        statistics = compute_row_statistics(problem, posterior, index)
        total += problem.hyperpriors[index].optimise(statistics, row_priors[index])[1]
        mean = posterior.mean[factor.own_rows]
        cov = posterior.cov[factor.own_rows]
        for begin, end in matrix_blocks(len(cov), cov.shape[1]):
            total += row_entropy(select_free(mean[begin:end], cov[begin:end], split)[1])
    return total


class Noise(NamedTuple):
    """Scaling and noise of an entry ``u . v / sqrt(k)``.

    Attributes
    ----------
    n_components : int
        Number k of components.
    variance : float
        Variance of the noise.
    """

    n_components: int
    variance: float


def compute_row_conditionals(
    equations: NormalEquations, row_prior: RowPrior, prior_means: Tensor, noise: Noise,
    gap_terms: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the optimal Gaussians ``N(P^-1 t, P^-1)`` of rows given the other factor.

    Parameters
    ----------
    equations : NormalEquations
        Normal equations of the free coordinates, (n, d, d) and (n, d).
    row_prior : RowPrior
        Prior of the rows.
    prior_means : Tensor of shape (n, d)
        Prior means of the rows.
    noise : Noise
        Noise of the entries.
    gap_terms : tuple of Tensor, optional
        Contributions of a symmetry gap to P (n, k, k) and t (n, k) in the first k coordinates. The
        former is estimated and therefore not always positive.

    Returns
    -------
    factor : Tensor of shape (n, d, d)
        Cholesky factors of P.
    precision : Tensor of shape (n, d, d)
        Precisions P.
    target : Tensor of shape (n, d)
        Vectors t.

    Raises
    ------
    NotPositiveDefiniteError
        If a precision can't be factorised.
    """
    gram, rhs = equations
    precision = gram / (noise.n_components * noise.variance)
    precision += row_prior.precision.to(precision)
    target = rhs / (sqrt(noise.n_components) * noise.variance)
    target += (prior_means @ row_prior.precision).to(target)
    if gap_terms is not None:
        gap_precision, gap_target = gap_terms
        k = gap_target.shape[1]
        target[:, :k] += gap_target
        diagonal = precision.diagonal(dim1=-2, dim2=-1)[:, :k]
        diagonal_without_gap = diagonal.clone()
        precision[:, :k, :k] += gap_precision
        # A negative precision of the gap is due to the noise of its draws: its exact value is
        # positive.
        torch.maximum(diagonal, diagonal_without_gap, out=diagonal)
    factor = cholesky(
        precision,
        name="The precision of a row",
        remedy="The noise is too small next to the prior: give a larger noise_std, or "
        "give X as float64.",
    )
    return factor, precision, target


class ScaleStatistics(NamedTuple):
    """Sums over entries that determine the optimal scales of a factor's components, float64.

    Attributes
    ----------
    gram : Tensor of shape (d, d)
        Matrix H in `optimise_scales`.
    rhs : Tensor of shape (d,)
        Vector b in `optimise_scales`.
    gap_slope : Tensor of shape (k,)
        Slope of the symmetry gap in the log scales.
    """

    gram: Tensor
    rhs: Tensor
    gap_slope: Tensor

    def squared_error(self, scales: Tensor, n_components: int) -> float:
        """Expected squared error of rows multiplied by scales (d,), minus ``sum r^2``."""
        sums = torch.stack((scales @ self.gram @ scales, self.rhs @ scales))
        quadratic, linear = sums.tolist()  # one transfer from a GPU instead of two
        return float(quadratic / n_components - 2.0 * linear / n_components**0.5)


def optimise_scales(
    sums: ScaleStatistics, statistics: RowStatistics, hyperprior: Hyperprior,
    row_prior: RowPrior, noise: Noise,
) -> tuple[Tensor | None, RowPrior, float]:  # fmt: skip
    r"""Optimise the scales of a factor's components together with the prior of its rows.

    Parameters
    ----------
    sums : ScaleStatistics
        Sums over the entries.
    statistics : RowStatistics
        Sufficient statistics of the rows.
    hyperprior : Hyperprior
        Prior with learned parameters.
    row_prior : RowPrior
        Present prior of the rows.
    noise : Noise
        Noise of the entries.

    Returns
    -------
    scales : Tensor of shape (d,) or None
        Factors by which to multiply the coordinates, 1 for offsets; None if they don't change.
    row_prior : RowPrior
        Optimal prior of the multiplied rows.
    value : float
        Contribution of that prior to the bound, nats.

    Notes
    -----
    If the prior's scales are learned, a component that explains nothing shrinks only like
    :math:`1 / t` under coordinate ascent, because its rows follow the prior, and the prior follows
    its rows. Multiplying both by scales :math:`s_c` moves them at once (parameter expansion, Liu,
    Rubin & Wu 1998). With the other factor fixed, the bound is

    .. math:: -\frac{1}{2 \sigma^2} \left(\tfrac1k s^\top H s - \tfrac{2}{\sqrt k} b^\top s\right)
        + \log p(\text{rows} \cdot s) + n \sum_c \log s_c, \qquad
        H = \sum_i E[\theta_i \theta_i^\top] \circ \sum_j E[v_j v_j^\top], \quad
        b = \sum_i E[\theta_i] \circ \sum_j r_{ij} E[v_j].

    The step is a Newton step, halved until the bound rises. It costs O(k^3), whatever the number
    of rows.
    """
    k = noise.n_components
    optimum, value = hyperprior.optimise(statistics, row_prior)
    no_change = None, optimum, value

    # Solve H s / (k sigma^2) = b / (sqrt(k) sigma^2) + c, where c is the slope of the other terms
    # at s = 1. Offsets keep their scale.
    slope = (sums.rhs / k**0.5 - sums.gram[:, k:].sum(1) / k)[:k]
    slope = slope + noise.variance * (hyperprior.scale_slope(optimum)[:k] + sums.gap_slope)
    newton_scales, _ = torch.linalg.solve_ex(sums.gram[:k, :k] / k, slope)
    # Scales change at most twofold, because the sums belong to the present q, and a component must
    # not be lost in a single step.
    log_step = newton_scales.clamp(0.5, 2.0).log()
    # Smaller changes aren't worth their cost. The comparison is false for NaN, which occurs if no
    # entries determine the scales.
    if not float(log_step.abs().max()) >= 1e-3:
        return no_change

    ones = torch.ones_like(sums.rhs)
    previous = value - 0.5 * sums.squared_error(ones, k) / noise.variance
    for _ in range(3):
        scales = ones.clone()
        scales[:k] = log_step.exp()
        optimum, value = hyperprior.optimise(statistics.multiply(scales), row_prior)
        proposal = value - 0.5 * sums.squared_error(scales, k) / noise.variance
        if proposal + float((statistics.n + sums.gap_slope) @ log_step) > previous:
            return scales, optimum, value
        log_step = 0.5 * log_step
    return no_change


class FactorUpdate(NamedTuple):
    """Contributions of the updated rows of a factor to the bound.

    Attributes
    ----------
    squared_error : float
        Contribution to the expected squared error, beyond the sum of squared entries.
    entropy : float
        Entropy of the rows, nats.
    scale_statistics : ScaleStatistics or None
        Sums that determine the scales of the components; None if the covariance family doesn't
        allow components of different scales.
    """

    squared_error: float
    entropy: float
    scale_statistics: ScaleStatistics | None


def update_factor(
    problem: FactorProblem, factor_entries: FactorEntries, index: int, posterior: FactorState,
    family: CovarianceFamily, gap_gradient: GapGradient | None,
) -> FactorUpdate:  # fmt: skip
    """Update the rows of one factor in place.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation to solve.
    factor_entries : FactorEntries
        Gaussian entries, or sites, grouped by the rows of the factor.
    index : {0, 1}
        0 for U, 1 for V.
    posterior : FactorState
        Posterior, whose means and covariances are overwritten.
    family : CovarianceFamily
        Covariances of the rows.
    gap_gradient : GapGradient or None
        Gradient of the symmetry gap; None for mean-field inference.

    Returns
    -------
    FactorUpdate
        Contributions of the rows to the bound.
    """
    mean, cov = posterior[:2]
    k = problem.model.n_components
    split = problem.model.coordinates.splits[index]
    noise = Noise(k, posterior.noise_variance)
    row_prior = problem.row_priors(posterior)[index]
    packed = pack_second_moments(mean[factor_entries.other_rows], cov[factor_entries.other_rows])
    others = mean[factor_entries.other_rows].contiguous()
    prior_means = problem.hyperpriors[index].means(row_prior)
    own_rows = factor_entries.own_rows
    totals = _UpdateTotals(k, len(split.free), mean.device)
    for begin, end in matrix_blocks(factor_entries.entries.n_rows, mean.shape[1]):
        rows = slice(own_rows.start + begin, own_rows.start + end)
        block = factor_entries.entries.slice_rows(begin, end)
        packed_equations = compute_packed_equations(block, packed, others)
        equations, constant = eliminate_fixed(packed_equations, split)
        gap_terms = None
        if gap_gradient is not None:
            gap_precision = gap_gradient.added_precision[rows]
            # Q m is computed as m' Q, which is equal because Q is symmetric, in a third of the
            # time.
            gap_target = (mean[rows, :k].unsqueeze(-2) @ gap_precision).squeeze(-2)
            gap_terms = (gap_precision, gap_target.add_(gap_gradient.d_mean[rows]))
        factor, precision, target = compute_row_conditionals(
            equations, row_prior, prior_means[begin:end], noise, gap_terms
        )
        row_mean = torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1)
        row_cov = family.project_with_offsets(precision, factor, k)
        assign_free(mean[rows], cov[rows], (row_mean, row_cov), split)

        # Sums for the bound, and for the scales if these are learned.
        totals.log_det_precision += log_det(factor).sum()
        learns_scales = problem.model.prior.learns_scales
        if gap_gradient is not None and gap_terms is not None and learns_scales:
            totals.add_gap_slope(gap_gradient.d_mean[rows], gap_terms[0], row_mean, row_cov)
        totals.add(equations, constant, row_mean, row_cov)

    ratio = family.pooling_ratio(cov[own_rows])
    # On a CPU the comparison saves a pass over the covariances. On a GPU it would wait for the
    # device.
    if ratio.device.type != "cpu" or bool((ratio != 1.0).any()):
        cov[own_rows, :k, :k] *= ratio[:, None, None]
    variances = cov[own_rows].diagonal(dim1=-2, dim2=-1)[:, index_tensor(split.free, cov)]
    squared_error, log_det_precision = totals.read(ratio)
    entropy = family.entropy(variances, log_det_precision)
    if family.is_isotropic:
        scale_statistics = None
    else:
        scale_statistics = totals.sums
    return FactorUpdate(squared_error, entropy, scale_statistics)


class _UpdateTotals:
    """Sums over blocks of rows, kept on their device until `read`, which waits for it."""

    def __init__(self, n_components: int, n_free: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.sums = ScaleStatistics(zeros(n_free, n_free), zeros(n_free), zeros(n_components))
        self.constant = zeros()
        self.log_det_precision = zeros()
        # Contribution of the covariance of each row's components to the squared error.
        self.covariance_errors = list[Tensor]()

    def add_gap_slope(
        self, d_mean: Tensor, gap_precision: Tensor, mean: Tensor, cov: Tensor
    ) -> None:
        """Add the slope of the gap in the log scales of the components of some rows.

        Parameters
        ----------
        d_mean : Tensor of shape (n, k)
            Gradient of the gap in the means.
        gap_precision : Tensor of shape (n, k, k)
            Precision that the gap adds.
        mean : Tensor of shape (n, d)
            Means of the rows.
        cov : Tensor of shape (n, d, d)
            Covariances of the rows.
        """
        k = len(self.sums.gap_slope)
        self.sums.gap_slope.add_((d_mean * mean[:, :k]).sum(0))
        self.sums.gap_slope.sub_((gap_precision * cov[:, :k, :k]).sum((0, 2)))

    def add(self, equations: NormalEquations, constant: Tensor, mean: Tensor, cov: Tensor) -> None:
        """Add the contributions of some rows to the squared error; overwrites ``cov``.

        Parameters
        ----------
        equations : NormalEquations
            Normal equations of the rows.
        constant : Tensor of shape (n,)
            Contribution of the fixed coordinates.
        mean : Tensor of shape (n, d)
            Means of the rows.
        cov : Tensor of shape (n, d, d)
            Covariances of the rows.
        """
        gram, rhs = equations
        k = len(self.sums.gap_slope)
        self.constant += constant.sum()
        self.sums.rhs.add_((mean * rhs).sum(0))
        self.sums.gram.add_((gram * mean.unsqueeze(-1)).mul_(mean.unsqueeze(-2)).sum(0))
        cov.mul_(gram)
        self.sums.gram.add_(cov.sum(0))
        self.covariance_errors.append(cov[:, :k, :k].sum((-2, -1)))

    def read(self, ratio: Tensor) -> tuple[float, float]:
        """Read the squared error after pooling and the log determinant of the precisions.

        ``ratio`` (n,) are the factors of `CovarianceFamily.pooling_ratio`. A GPU is waited for
        twice.
        """
        k = len(self.sums.gap_slope)
        ones = torch.ones_like(self.sums.rhs)
        pooling = ((ratio - 1.0) * torch.cat(self.covariance_errors)).sum().to(self.constant)
        scalars = torch.stack((pooling, self.constant, self.log_det_precision))
        pooling_error, constant, log_det_precision = scalars.tolist()
        squared_error = self.sums.squared_error(ones, k) + constant + pooling_error / k
        return squared_error, log_det_precision


def update_row_prior(
    problem: FactorProblem, index: int, posterior: FactorState, update: FactorUpdate, sweep: int
) -> tuple[FactorState, float, float]:
    """Optimise the prior of one factor's rows and, if scales are learned, their scales.

    Scales change in place, in the first sixteen sweeps with a learned prior and then in every
    fourth. While the prior is held fixed, it isn't changed.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation to solve.
    index : {0, 1}
        0 for U, 1 for V.
    posterior : FactorState
        Posterior, whose means and covariances are multiplied by the optimal scales.
    update : FactorUpdate
        Result of `update_factor`.
    sweep : int
        Number of the sweep, from 0.

    Returns
    -------
    posterior : FactorState
        Posterior with the new prior.
    squared_error : float
        Contribution of the factor to the expected squared error.
    value : float
        Contribution of the factor's prior and entropy to the bound, nats.
    """
    hyperprior = problem.hyperpriors[index]
    row_prior = problem.row_priors(posterior)[index]
    squared_error, entropy, sums = update
    statistics = compute_row_statistics(problem, posterior, index)
    n_learning_sweeps = sweep - problem.n_fixed_prior_sweeps
    rescales = (
        sums is not None
        and problem.model.prior.learns_scales
        and n_learning_sweeps >= 0
        and (n_learning_sweeps < 16 or n_learning_sweeps % 4 == 0)
    )
    if sums is None or not rescales:
        optimum, value = hyperprior.optimise(statistics, row_prior)
        posterior = replace_row_prior(problem, posterior, index, optimum, n_learning_sweeps)
        return posterior, squared_error, value + entropy

    k = problem.model.n_components
    noise = Noise(k, posterior.noise_variance)
    scales, optimum, value = optimise_scales(sums, statistics, hyperprior, row_prior, noise)
    if scales is not None:
        ones = torch.ones_like(scales)
        squared_error += sums.squared_error(scales, k) - sums.squared_error(ones, k)
        entropy += statistics.n * float(scales.log().sum())
        multiplier = torch.ones_like(posterior.mean[0])
        multiplier[:k] = scales[:k]
        rows = problem.data.by_factor[index].own_rows
        posterior.mean[rows] *= multiplier
        posterior.cov[rows] *= multiplier.unsqueeze(-1) * multiplier
    posterior = replace_row_prior(problem, posterior, index, optimum, n_learning_sweeps)
    return posterior, squared_error, value + entropy


def replace_row_prior(
    problem: FactorProblem, posterior: FactorState, index: int, row_prior: RowPrior,
    n_learning_sweeps: int = 0,
) -> FactorState:  # fmt: skip
    """Replace the prior of one factor's rows, unless it is still held fixed.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation to solve.
    posterior : FactorState
        Posterior with the priors of both factors.
    index : {0, 1}
        0 for U, 1 for V.
    row_prior : RowPrior
        New prior.
    n_learning_sweeps : int, default=0
        Number of sweeps since the prior is learned; negative while it is held fixed.

    Returns
    -------
    FactorState
        Posterior with the new prior.
    """
    if n_learning_sweeps < 0:
        return posterior
    rows_prior, columns_prior = problem.row_priors(posterior)
    if index == 0:
        return posterior._replace(row_priors=(row_prior, columns_prior))
    return posterior._replace(row_priors=(rows_prior, row_prior))
