r"""Variational inference for linear models by one Gaussian site per row.

A row sees the weights only through its outputs ``f_n = b + W x_n``. Marginalised over the
translations it can't see (`skbayes_sym.symmetry.translation`), a Gaussian factor of the weights
becomes a site of rank C, the number of outputs,

.. math:: t_n(f_n) = \exp(\eta_n^T f_n - \tfrac12 f_n^T \Lambda_n f_n),

with location ``Lambda^-1 eta`` and variance ``Lambda^-1`` (a_n and nu_n of Kurle et al. 2022 for
C = 1). The *product* over the data (not the average printed in their eq. 23) with the prior,

.. math:: q(W) \propto N(W; 0, v I) \prod_n t_n(f_n)^{w_n},

is the optimal full-covariance Gaussian if the sites are at the fixed point of the
conjugate-computation updates (Khan & Lin 2017), natural gradient steps of length rho:

.. math:: \Lambda_n \leftarrow (1 - \rho) \Lambda_n - \rho E_q[l_n''(f)], \quad
          \eta_n \leftarrow (1 - \rho) \eta_n + \rho (E_q[l_n'(f)] - E_q[l_n''(f)] E_q[f]).

With a Gaussian likelihood one step of length 1 is the exact posterior. A step that lowers the ELBO
is halved, which also deals with the negative curvature a Student-t likelihood has at outliers.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import SiteLikelihood, SiteTerms
from skbayes_sym.numerics.gaussian import kl_elementwise, kl_from_standard
from skbayes_sym.numerics.linalg import log_det, try_cholesky
from skbayes_sym.numerics.optimise import AndersonMixing


class LinearData(NamedTuple):
    """Training data of a linear model, reduced to the row space of its inputs."""

    features: Tensor  # (N, r): X itself if K <= N, else R' of X' = Q R, so that r = min(N, K)
    y: Tensor  # (N, ...)
    weight: Tensor  # (N,), positive
    n_outputs: int
    n_weights: int  # K, of one output
    fit_intercept: bool


class Sites(NamedTuple):
    """Natural parameters of the sites, per unit of weight."""

    shift: Tensor  # eta, (N, C)
    precision: Tensor  # Lambda, (N, C, C)

    def toward(self, other: "Sites", rho: float) -> "Sites":
        """A natural gradient step of length rho."""
        return Sites(*(torch.lerp(a, b, rho) for a, b in zip(self, other, strict=True)))


class Spread(NamedTuple):
    """Spread that the family of posteriors adds to a mean."""

    covariance: Tensor  # of the outputs, (N, C, C)
    kl: Tensor  # KL[q || p] without the term of the mean, nats


class System(NamedTuple):
    """The normal equations of one set of sites, inverted."""

    inverse: Tensor  # of the precision, (C r, C r)
    log_det: Tensor  # of the precision
    prior_variance: Tensor


# Covariance structure of the posterior, given the sites.
Family = Callable[[LinearData, Sites, System], Spread]


class SiteState(NamedTuple):
    """Sites and hyperparameters, and all that follows from them."""

    sites: Sites
    prior_variance: Tensor
    likelihood: SiteLikelihood
    loc: Tensor  # posterior mean in the row space, (C, r)
    intercept: Tensor  # (C,)
    covariance: Tensor  # of loc under the full family, (C r, C r)
    mean: Tensor  # of the outputs, (N, C)
    output_covariance: Tensor  # (N, C, C)
    terms: SiteTerms
    elbo: Tensor  # nats


def weighted_precision(data: LinearData, sites: Sites) -> Tensor:
    """``sum_n w_n Lambda_n (x) x_n x_n'``, (C r, C r), O(N r^2 C^2)."""
    blocks = data.weight[:, None, None] * sites.precision
    n_outputs = data.n_outputs
    r = data.features.shape[1]
    total = data.features.new_empty(n_outputs, r, n_outputs, r)
    for c in range(n_outputs):
        for d in range(c + 1):
            total[c, :, d] = data.features.T @ (blocks[:, c, d, None] * data.features)
            total[d, :, c] = total[c, :, d]
    return total.reshape(n_outputs * r, n_outputs * r)


def full_covariance(data: LinearData, sites: Sites, system: System) -> Spread:
    """The optimal Gaussian: ``q`` above itself; O(N r^2 C^2)."""
    n_outputs = data.n_outputs
    r = data.features.shape[1]
    blocks = system.inverse.reshape(n_outputs, r, n_outputs, r)
    rows = [
        [((data.features @ blocks[c, :, d]) * data.features).sum(-1) for d in range(n_outputs)]
        for c in range(n_outputs)
    ]
    covariance = torch.stack([torch.stack(row, -1) for row in rows], -2)
    size = n_outputs * r
    v = system.prior_variance
    trace = system.inverse.diagonal().sum() / v
    kl = kl_from_standard(trace, v.new_zeros(()), -system.log_det - size * v.log(), size)
    return Spread(covariance, kl)


def mean_field(inputs: Tensor) -> Family:
    """Independent normals for all K weights; ``inputs`` is X itself, (N, K). O(N K C).

    The variances are the inverse diagonal of the precision, and the mean, given the curvatures,
    still solves the full normal equations: it doesn't collapse.
    """
    squares = inputs * inputs

    def spread(data: LinearData, sites: Sites, system: System) -> Spread:
        site_precision = data.weight[:, None] * sites.precision.diagonal(dim1=-2, dim2=-1)
        precision = 1.0 / system.prior_variance + site_precision.T @ squares  # (C, K)
        variance = squares @ (1.0 / precision).T
        log_variance = -precision.log()
        prior = system.prior_variance.log()
        kl = kl_elementwise(torch.zeros_like(log_variance), log_variance, prior).sum()
        return Spread(torch.diag_embed(variance), kl)

    return spread


def solve(
    data: LinearData, sites: Sites, prior_variance: Tensor, likelihood: SiteLikelihood,
    family: Family = full_covariance,
) -> SiteState | None:  # fmt: skip
    """Posterior and ELBO of given sites; None where their product isn't normalisable."""
    r = data.features.shape[1]
    n_outputs = data.n_outputs
    precision = weighted_precision(data, sites)
    precision.diagonal().add_(1.0 / prior_variance)
    factor = try_cholesky(precision)
    if factor is None:
        return None
    inverse = torch.cholesky_inverse(factor)
    system = System(inverse, log_det(factor), prior_variance)
    loc, intercept = _mean(data, sites, factor)
    mean = intercept + data.features @ loc.reshape(n_outputs, r).T
    spread = family(data, sites, system)
    terms = likelihood(mean, spread.covariance, data.y)
    kl = spread.kl + 0.5 * (loc * loc).sum() / prior_variance
    elbo = terms.value @ data.weight - kl
    return SiteState(
        sites, prior_variance, likelihood, loc.reshape(n_outputs, r), intercept, inverse, mean,
        spread.covariance, terms, elbo,
    )  # fmt: skip


def _mean(data: LinearData, sites: Sites, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior mean (C r,), and the intercept (C,) that maximises the sites' evidence.

    The intercept has no prior: it is a parameter like the noise. Both come from one linear system
    (the Schur complement of the weights), as in a generalised least-squares fit.
    """
    weighted = data.weight[:, None] * sites.shift
    right = (weighted.T @ data.features).reshape(-1, 1)
    if not data.fit_intercept:
        return torch.cholesky_solve(right, factor).squeeze(-1), weighted.new_zeros(data.n_outputs)
    blocks = data.weight[:, None, None] * sites.precision
    coupling = torch.einsum("ncd,nr->crd", blocks, data.features).flatten(0, 1)
    solved = torch.cholesky_solve(torch.cat([right, coupling], dim=1), factor)
    schur = blocks.sum(0) - coupling.T @ solved[:, 1:]
    rest = weighted.sum(0) - coupling.T @ solved[:, 0]
    # Singular along (1, ..., 1) for a softmax: the solution of least norm.
    intercept = torch.linalg.pinv(schur, rtol=1e-10, hermitian=True) @ rest
    return solved[:, 0] - solved[:, 1:] @ intercept, intercept


def first_sites(data: LinearData, likelihood: SiteLikelihood, intercept: Tensor) -> Sites:
    """Sites of the likelihood around a constant function: one step of a Newton fit.

    A density with straight flanks (Laplace's) has its curvature at single points. Rows that see
    none of it would leave the mean to slopes and the prior, 1e14 nats away: it is then averaged
    over outputs as wide as scaled targets.
    """
    mean = intercept.expand(len(data.features), data.n_outputs)
    eye = torch.eye(data.n_outputs, dtype=mean.dtype, device=mean.device)
    terms, smooth = (
        likelihood(mean, (variance * eye).expand(len(mean), -1, -1), data.y)
        for variance in (1e-6, 1.0)  # as good as none; that of scaled targets
    )
    trace, afar = (t.curvature.diagonal(dim1=-2, dim2=-1).sum(-1) for t in (terms, smooth))
    if bool((trace.abs() < 1e-6 * afar).any()):
        terms = smooth
    # Curvature is negative at a heavy tail: there the row says nothing yet.
    negative = torch.linalg.eigvalsh(terms.curvature)[:, 0] < 0.0
    keep = (~negative).to(mean)
    curvature = terms.curvature * keep[:, None, None]
    shift = terms.gradient * keep[:, None] + torch.einsum("ncd,nd->nc", curvature, mean)
    return Sites(shift, curvature)


class Update(NamedTuple):
    """A step, and how far it moved the posterior."""

    state: SiteState
    change: float  # of the outputs: means in standard deviations, variances relative


def _flat(sites: Sites) -> Tensor:
    return torch.cat([sites.shift.flatten(), sites.precision.flatten()])


def _like(flat: Tensor, sites: Sites) -> Sites:
    n = sites.shift.numel()
    return Sites(flat[:n].view_as(sites.shift), flat[n:].view_as(sites.precision))


def update(
    data: LinearData,
    state: SiteState,
    family: Family = full_covariance,
    acceleration: AndersonMixing | None = None,
) -> Update:
    """Make a natural gradient step that doesn't lower the ELBO.

    The accelerated one if there is one and it passes; else of the first length 1, 1/2, 1/4, ...
    that does. (Where data separate, plain ones close a few per cent of the distance a step.) Costs
    O(N r^2 C^2 + (C r)^3) a trial.
    """
    curvature = state.terms.curvature
    shift = state.terms.gradient + torch.einsum("ncd,nd->nc", curvature, state.mean)
    target = Sites(shift, curvature)  # where a natural gradient step of length 1 leads
    scale = float(data.weight.sum())
    floor = state.elbo - 1e-12 * (scale + abs(float(state.elbo)))  # less is rounding

    def passes(sites: Sites) -> SiteState | None:
        tried = solve(data, sites, state.prior_variance, state.likelihood, family)
        return tried if tried is not None and bool(tried.elbo >= floor) else None

    mixed = (
        None if acceleration is None else acceleration.propose(_flat(state.sites), _flat(target))
    )
    tried = passes(_like(mixed, target)) if mixed is not None else None
    rho = 1.0
    # A step that is shorter and still doesn't help: we are there, up to rounding.
    while tried is None and rho > 2.0**-20:
        tried = passes(state.sites.toward(target, rho))
        rho *= 0.5
    if tried is None:
        return Update(state, 0.0)
    old, new = (s.output_covariance.diagonal(dim1=-2, dim2=-1) for s in (state, tried))
    changes = (tried.mean - state.mean).abs() / new.sqrt(), (new - old).abs() / new
    return Update(tried, max(float(t.nan_to_num(0.0).amax()) for t in changes))


def converge(
    data: LinearData, state: SiteState, family: Family = full_covariance, *, tol: float,
    max_iter: int,
) -> Update:  # fmt: skip
    """Updates until one moves no output by ``tol`` standard deviations."""
    moved = Update(state, float("inf"))
    acceleration = AndersonMixing()
    for _ in range(max_iter):
        moved = update(data, moved.state, family, acceleration)
        if moved.change < tol:
            break
    return moved
