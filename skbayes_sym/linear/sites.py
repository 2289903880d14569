r"""Variational inference for linear models by one Gaussian site per row.

A row depends on the weights only through its outputs ``f_n = b + W x_n``. A Gaussian factor of the
weights, marginalised over the translations that don't change these outputs
(`skbayes_sym.symmetry.translation`), becomes a site of rank C, the number of outputs,

.. math:: t_n(f_n) = \exp(\eta_n^T f_n - \tfrac12 f_n^T \Lambda_n f_n),

with location ``Lambda^-1 eta`` and variance ``Lambda^-1`` (a_n and nu_n of Kurle et al. 2022 for
C = 1). The *product* over the data (not the average printed in their eq. 23) with the prior,

.. math:: q(W) \propto N(W; 0, v I) \prod_n t_n(f_n)^{w_n},

is the optimal Gaussian with full covariance if the sites are at the fixed point of the
conjugate-computation updates (Khan & Lin 2017). These are natural gradient steps of length rho:

.. math:: \Lambda_n \leftarrow (1 - \rho) \Lambda_n - \rho E_q[l_n''(f)], \quad
          \eta_n \leftarrow (1 - \rho) \eta_n + \rho (E_q[l_n'(f)] - E_q[l_n''(f)] E_q[f]).

For a Gaussian likelihood one step of length 1 yields the exact posterior. A step that lowers the
ELBO is halved. This also handles the negative curvature that a Student-t likelihood has at
outliers.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import SiteLikelihood, SiteTerms
from skbayes_sym.numerics.gaussian import kl_elementwise, kl_from_standard
from skbayes_sym.numerics.linalg import add_to_diagonal, log_det, try_cholesky
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.optimise import AndersonMixing

_BLOCK_ELEMENTS = 1 << 20  # 8 MB of features and outputs in a block of rows


class LinearData(NamedTuple):
    """Training data of a linear model, reduced to the row space of its inputs.

    Parameters
    ----------
    features : Tensor of shape (N, r)
        X itself if K <= N, else R' of the QR factorisation X' = Q R. So r = min(N, K).
    y : Tensor of shape (N, ...)
        Targets.
    weight : Tensor of shape (N,)
        Positive weights of the rows.
    n_outputs : int
        Number C of outputs.
    n_weights : int
        Number K of weights of one output.
    fit_intercept : bool
        Whether there are intercepts.
    """

    features: Tensor
    y: Tensor
    weight: Tensor
    n_outputs: int
    n_weights: int
    fit_intercept: bool


class Sites(NamedTuple):
    """Natural parameters of the sites, per unit of weight.

    Parameters
    ----------
    shift : Tensor of shape (N, C)
        Precision times location, eta.
    precision : Tensor of shape (N, C, C)
        Precision Lambda.
    """

    shift: Tensor
    precision: Tensor


class SiteSums(NamedTuple):
    """Sums of the sites over the rows, on which the posterior depends.

    They are linear in the sites, so that a natural gradient step can be made with either. Their
    size doesn't depend on the number of rows.

    Parameters
    ----------
    projection : Tensor of shape (C r,)
        ``sum_n w_n eta_n (x) x_n``.
    precision : Tensor of shape (C r, C r)
        ``sum_n w_n Lambda_n (x) x_n x_n'``.
    intercept_projection : Tensor of shape (C,)
        ``sum_n w_n eta_n``.
    intercept_precision : Tensor of shape (C, C)
        ``sum_n w_n Lambda_n``.
    coupling : Tensor of shape (C r, C)
        ``sum_n w_n Lambda_n (x) x_n``.
    """

    projection: Tensor
    precision: Tensor
    intercept_projection: Tensor
    intercept_precision: Tensor
    coupling: Tensor


# Either determines the posterior of a prior, and both are linear.
LinearSites = Sites | SiteSums


def interpolate_sites(sites: LinearSites, other: LinearSites, rho: float) -> LinearSites:
    """Return the sites after a natural gradient step of length rho towards ``other``."""
    return type(sites)(*(torch.lerp(a, b, rho) for a, b in zip(sites, other, strict=True)))


def scale_sites(sites: LinearSites, factor: float) -> LinearSites:
    """Return the sites of a likelihood to the power of a factor."""
    return type(sites)(*(tensor * factor for tensor in sites))


class PosteriorSpread(NamedTuple):
    """Covariance of the outputs and its part of the KL divergence.

    Parameters
    ----------
    covariance : Tensor of shape (N, C, C)
        Covariance of the outputs of every row.
    kl : Tensor of shape ()
        KL divergence from the prior without the term of the mean, nats.
    """

    covariance: Tensor
    kl: Tensor


class SolvedNormalEquations(NamedTuple):
    """Solved normal equations of given sites.

    Parameters
    ----------
    inverse : Tensor of shape (C r, C r)
        Inverse of the precision.
    log_det : Tensor of shape ()
        Log determinant of the precision.
    prior_variance : Tensor of shape ()
        Variance of the prior.
    """

    inverse: Tensor
    log_det: Tensor
    prior_variance: Tensor


# Covariance structure of the posterior: computes the spread from the sites.
CovarianceFamily = Callable[[LinearData, LinearSites, SolvedNormalEquations], PosteriorSpread]


class SiteState(NamedTuple):
    """Sites and hyperparameters with the posterior that they determine.

    Parameters
    ----------
    sites : Sites or SiteSums
        Natural parameters of the sites, or their sums where these are fewer numbers.
    prior_variance : Tensor of shape ()
        Variance of the prior.
    likelihood : SiteLikelihood
        Likelihood with its parameters.
    loc : Tensor of shape (C, r)
        Posterior mean in the row space.
    intercept : Tensor of shape (C,)
        Intercepts.
    covariance : Tensor of shape (C r, C r)
        Covariance of ``loc`` in the full family.
    mean : Tensor of shape (N, C)
        Posterior mean of the outputs.
    output_covariance : Tensor of shape (N, C, C)
        Posterior covariance of the outputs.
    terms : SiteTerms
        Expected log likelihoods with their gradients and curvatures.
    elbo : Tensor of shape ()
        Evidence lower bound, nats.
    """

    sites: LinearSites
    prior_variance: Tensor
    likelihood: SiteLikelihood
    loc: Tensor
    intercept: Tensor
    covariance: Tensor
    mean: Tensor
    output_covariance: Tensor
    terms: SiteTerms
    elbo: Tensor

    def target_sites(self) -> Sites:
        """Return the sites after a natural gradient step of length 1, the same at the optimum."""
        curvature = self.terms.curvature
        shift = self.terms.gradient + torch.einsum("ncd,nd->nc", curvature, self.mean)
        return Sites(shift, curvature)


def weighted_precision(data: LinearData, sites: Sites) -> Tensor:
    """Return the precision that all sites add, in the row space; O(N r^2 C^2).

    Parameters
    ----------
    data : LinearData
        Rows with features x_n and weights w_n.
    sites : Sites
        Sites with precisions Lambda_n.

    Returns
    -------
    Tensor of shape (C r, C r)
        The Kronecker sum ``sum_n w_n Lambda_n (x) x_n x_n'``.
    """
    n_outputs = data.n_outputs
    r = data.features.shape[1]
    total = data.features.new_zeros(n_outputs, r, n_outputs, r)
    for rows in _row_blocks(data):
        features = data.features[rows]
        blocks = data.weight[rows, None, None] * sites.precision[rows]
        for c in range(n_outputs):
            for d in range(c + 1):
                total[c, :, d].addmm_(features.T, blocks[:, c, d, None] * features)
    for c in range(n_outputs):
        for d in range(c):
            total[d, :, c] = total[c, :, d]
    return total.reshape(n_outputs * r, n_outputs * r)


def _row_blocks(data: LinearData) -> list[slice]:
    """Return blocks of rows with features and outputs of limited memory."""
    n_rows, r = data.features.shape
    size = n_rows_per_block(_BLOCK_ELEMENTS, r + data.n_outputs**2)
    return [slice(start, start + size) for start in range(0, n_rows, size)]


def sum_sites(data: LinearData, sites: LinearSites) -> SiteSums:
    """Return the sums of the sites over the rows; O(N r^2 C^2)."""
    if isinstance(sites, SiteSums):
        return sites
    weighted_shift = data.weight[:, None] * sites.shift
    # A matrix (C^2, N) times (N, r), so that no product with the features has N C^2 r elements.
    blocks = data.weight * sites.precision.flatten(1).T
    coupling = (blocks @ data.features).view(data.n_outputs, data.n_outputs, -1)
    return SiteSums(
        projection=(weighted_shift.T @ data.features).flatten(),
        precision=weighted_precision(data, sites),
        intercept_projection=weighted_shift.sum(0),
        intercept_precision=blocks.sum(1).view(data.n_outputs, data.n_outputs),
        coupling=coupling.mT.flatten(0, 1),
    )


def reduce_sites(data: LinearData, sites: LinearSites) -> LinearSites:
    """Return the sums of the sites where these are fewer numbers than the sites of all rows.

    In the row space of more weights than rows they are never summed, since the mean-field family
    needs other sums there.
    """
    n_rows, r = data.features.shape
    n_outputs = data.n_outputs
    n_weights = n_outputs * r
    n_sums = n_weights * (1 + n_weights + n_outputs) + n_outputs * (1 + n_outputs)
    if r < data.n_weights or n_sums > n_rows * n_outputs * (1 + n_outputs):
        return sites
    return sum_sites(data, sites)


def full_covariance(
    data: LinearData, _sites: LinearSites, equations: SolvedNormalEquations
) -> PosteriorSpread:
    """Return the spread of the optimal Gaussian with full covariance; O(N r^2 C^2)."""
    n_outputs = data.n_outputs
    r = data.features.shape[1]
    blocks = equations.inverse.reshape(n_outputs, r, n_outputs, r)
    covariance = data.features.new_empty(len(data.features), n_outputs, n_outputs)
    for rows in _row_blocks(data):
        features = data.features[rows]
        for c in range(n_outputs):
            for d in range(c + 1):
                covariance[rows, c, d] = ((features @ blocks[c, :, d]) * features).sum(-1)
                covariance[rows, d, c] = covariance[rows, c, d]
    size = n_outputs * r
    v = equations.prior_variance
    trace = equations.inverse.diagonal().sum() / v
    log_det_ratio = -equations.log_det - size * v.log()
    kl = kl_from_standard(trace, v.new_zeros(()), log_det_ratio, size)
    return PosteriorSpread(covariance, kl)


def mean_field(inputs: Tensor) -> CovarianceFamily:
    """Return the family of independent normals for all K weights; O(N K C) per evaluation.

    The optimal variances are the inverse diagonal of the precision. The optimal mean, given the
    curvatures, still solves the full normal equations, so it doesn't collapse to the prior.

    Parameters
    ----------
    inputs : Tensor of shape (N, K)
        Inputs X themselves.

    Returns
    -------
    CovarianceFamily
    """

    def mean_field_spread(
        data: LinearData, sites: LinearSites, equations: SolvedNormalEquations
    ) -> PosteriorSpread:
        if isinstance(sites, SiteSums):
            site_precision = sites.precision.diagonal().reshape(data.n_outputs, -1)
        else:
            diagonal = sites.precision.diagonal(dim1=-2, dim2=-1)
            site_precision = (data.weight[:, None] * diagonal).T @ inputs.square()
        # (C, K)
        precision = 1.0 / equations.prior_variance + site_precision
        blocks = [inputs[rows].square() @ (1.0 / precision).T for rows in _row_blocks(data)]
        variance = torch.cat(blocks)
        log_variance = -precision.log()
        log_prior_variance = equations.prior_variance.log()
        zero_mean = torch.zeros_like(log_variance)
        kl = kl_elementwise(zero_mean, log_variance, log_prior_variance).sum()
        return PosteriorSpread(torch.diag_embed(variance), kl)

    return mean_field_spread


def solve_sites(
    data: LinearData,
    sites: LinearSites,
    prior_variance: Tensor,
    likelihood: SiteLikelihood,
    family: CovarianceFamily = full_covariance,
) -> SiteState | None:
    """Compute the posterior and the ELBO of given sites.

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    sites : Sites or SiteSums
        Natural parameters of the sites.
    prior_variance : Tensor of shape ()
        Variance of the prior.
    likelihood : SiteLikelihood
        Likelihood with its parameters.
    family : CovarianceFamily
        Covariance structure of the posterior.

    Returns
    -------
    SiteState or None
        None if the product of sites and prior isn't normalisable.
    """
    r = data.features.shape[1]
    n_outputs = data.n_outputs
    sites = reduce_sites(data, sites)
    sums = sum_sites(data, sites)
    precision = sums.precision
    if sums is sites:
        precision = precision.clone()  # the sites keep theirs
    factor = try_cholesky(add_to_diagonal(precision, 1.0 / prior_variance))
    if factor is None:
        return None
    inverse = torch.cholesky_inverse(factor)
    equations = SolvedNormalEquations(inverse, log_det(factor), prior_variance)
    loc, intercept = _solve_mean(sums, factor, data.fit_intercept)
    mean = intercept + data.features @ loc.reshape(n_outputs, r).T
    spread = family(data, sites, equations)
    terms = _expect_in_blocks(data, likelihood, mean, spread.covariance)
    kl = spread.kl + 0.5 * (loc * loc).sum() / prior_variance
    return SiteState(
        sites=sites,
        prior_variance=prior_variance,
        likelihood=likelihood,
        loc=loc.reshape(n_outputs, r),
        intercept=intercept,
        covariance=inverse,
        mean=mean,
        output_covariance=spread.covariance,
        terms=terms,
        elbo=terms.value @ data.weight - kl,
    )


def _expect_in_blocks(
    data: LinearData, likelihood: SiteLikelihood, mean: Tensor, covariance: Tensor
) -> SiteTerms:
    """Return expectations of the likelihood, with temporary arrays of a block of rows.

    Parameters
    ----------
    data : LinearData
        Rows with their targets.
    likelihood : SiteLikelihood
        Likelihood with its parameters.
    mean : Tensor of shape (N, C)
        Means of the outputs.
    covariance : Tensor of shape (N, C, C)
        Covariances of the outputs.

    Returns
    -------
    SiteTerms
    """
    n_outputs = data.n_outputs
    total = SiteTerms(
        mean.new_empty(len(mean)),
        torch.empty_like(mean),
        mean.new_empty(len(mean), n_outputs, n_outputs),
    )
    for rows in _row_blocks(data):
        block = likelihood(mean[rows], covariance[rows], data.y[rows])
        for whole, part in zip(total, block, strict=True):
            whole[rows] = part
    return total


def _solve_mean(sums: SiteSums, factor: Tensor, fit_intercept: bool) -> tuple[Tensor, Tensor]:
    """Return the posterior mean (C r,), and the intercepts (C,) that maximise the sites' evidence.

    The intercept has no prior: it is a parameter like the noise. Both come from one linear system
    by the Schur complement of the weights, as in generalised least squares.
    """
    projection = sums.projection.unsqueeze(-1)
    if not fit_intercept:
        loc = torch.cholesky_solve(projection, factor).squeeze(-1)
        return loc, torch.zeros_like(sums.intercept_projection)
    coupling = sums.coupling
    solution = torch.cholesky_solve(torch.cat([projection, coupling], dim=1), factor)
    schur = sums.intercept_precision - coupling.T @ solution[:, 1:]
    remainder = sums.intercept_projection - coupling.T @ solution[:, 0]
    # For a softmax the complement is singular along (1, ..., 1): take the least-norm solution.
    intercept = torch.linalg.pinv(schur, rtol=1e-10, hermitian=True) @ remainder
    return solution[:, 0] - solution[:, 1:] @ intercept, intercept


def initial_sites(data: LinearData, likelihood: SiteLikelihood, intercept: Tensor) -> Sites:
    """Return sites of the likelihood around a constant function: one step of a Newton fit.

    A density with straight flanks, such as Laplace's, has its curvature at single points. If rows
    saw none of it, the mean would be determined by slopes and the prior alone, 1e14 nats below the
    optimum. The curvature is then averaged over outputs with the variance of scaled targets.

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    likelihood : SiteLikelihood
        Likelihood with its initial parameters.
    intercept : Tensor of shape (C,)
        Constant function.

    Returns
    -------
    Sites
    """
    mean = intercept.expand(len(data.features), data.n_outputs)
    eye = torch.eye(data.n_outputs, dtype=mean.dtype, device=mean.device)

    def expand(variance: float) -> SiteTerms:
        covariance = (variance * eye).expand(len(mean), -1, -1)
        return _expect_in_blocks(data, likelihood, mean, covariance)

    def trace(terms: SiteTerms) -> Tensor:
        return terms.curvature.diagonal(dim1=-2, dim2=-1).sum(-1)

    # At practically one point, and averaged over outputs with the variance of scaled targets.
    terms = expand(1e-6)
    averaged = expand(1.0)
    if bool((trace(terms).abs() < 1e-6 * trace(averaged)).any()):
        terms = averaged
    # The curvature is negative in a heavy tail. Such rows contribute nothing at first.
    is_negative = torch.linalg.eigvalsh(terms.curvature)[:, 0] < 0.0
    keep = (~is_negative).to(mean)
    curvature = terms.curvature * keep[:, None, None]
    shift = terms.gradient * keep[:, None] + torch.einsum("ncd,nd->nc", curvature, mean)
    return Sites(shift, curvature)


class SiteUpdate(NamedTuple):
    """State after an update of the sites.

    Parameters
    ----------
    state : SiteState
        Sites and posterior.
    change : float
        Largest change of an output: of its mean in standard deviations, or of its variance
        relative to the variance.
    """

    state: SiteState
    change: float


def _flatten(sites: LinearSites) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in sites])


def _unflatten(flat: Tensor, like: LinearSites) -> LinearSites:
    parts = flat.split([tensor.numel() for tensor in like])
    return type(like)(*(part.view_as(t) for part, t in zip(parts, like, strict=True)))


def update_sites(
    data: LinearData,
    state: SiteState,
    family: CovarianceFamily = full_covariance,
    acceleration: AndersonMixing | None = None,
) -> SiteUpdate:
    """Make a natural gradient step that doesn't lower the ELBO.

    The accelerated step is tried first. If it lowers the ELBO, steps of length 1, 1/2, 1/4, ... are
    tried. (If a linear function separates the classes, plain steps cover only a few per cent of the
    distance to the optimum.) Every trial costs O(N r^2 C^2 + (C r)^3).

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    state : SiteState
        State before the step.
    family : CovarianceFamily
        Covariance structure of the posterior.
    acceleration : AndersonMixing, optional
        History of earlier steps.

    Returns
    -------
    SiteUpdate
    """
    target = reduce_sites(data, state.target_sites())
    scale = float(data.weight.sum())
    # A smaller decrease is rounding.
    min_elbo = state.elbo - 1e-12 * (scale + abs(float(state.elbo)))

    def try_sites(sites: LinearSites) -> SiteState | None:
        trial = solve_sites(data, sites, state.prior_variance, state.likelihood, family)
        if trial is not None and bool(trial.elbo >= min_elbo):
            return trial
        return None

    trial = None
    if acceleration is not None:
        mixed = acceleration.propose(_flatten(state.sites), _flatten(target))
        if mixed is not None:
            trial = try_sites(_unflatten(mixed, target))
    # If even shorter steps don't raise the ELBO, the state is optimal up to rounding.
    rho = 1.0
    while trial is None and rho > 2.0**-20:
        trial = try_sites(interpolate_sites(state.sites, target, rho))
        rho *= 0.5
    if trial is None:
        return SiteUpdate(state, 0.0)
    old_variance = state.output_covariance.diagonal(dim1=-2, dim2=-1)
    new_variance = trial.output_covariance.diagonal(dim1=-2, dim2=-1)
    mean_change = (trial.mean - state.mean).abs() / new_variance.sqrt()
    variance_change = (new_variance - old_variance).abs() / new_variance
    changes = (mean_change, variance_change)
    return SiteUpdate(trial, max(float(change.nan_to_num(0.0).amax()) for change in changes))


def converge_sites(
    data: LinearData,
    state: SiteState,
    family: CovarianceFamily = full_covariance,
    *,
    tol: float,
    max_iter: int,
) -> SiteUpdate:
    """Update the sites until an update changes no output by ``tol`` standard deviations.

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    state : SiteState
        Initial state.
    family : CovarianceFamily
        Covariance structure of the posterior.
    tol : float
        Tolerance, in posterior standard deviations.
    max_iter : int
        Largest number of updates.

    Returns
    -------
    SiteUpdate
        The last update.
    """
    latest = SiteUpdate(state, float("inf"))
    acceleration = AndersonMixing()
    for _ in range(max_iter):
        latest = update_sites(data, latest.state, family, acceleration)
        if latest.change < tol:
            break
    return latest
