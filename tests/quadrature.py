"""Evidences of small regressions, exact up to quadrature."""

from math import log, pi

import numpy as np
import torch
from scipy import stats
from scipy.stats import qmc


def linear_log_mass(features, y, log_sigma, noise_prior_scale=1.0):
    """log p(y | sigma) + log p(log sigma) of ``y = features w + sigma e``, ``w ~ N(0, I)``.

    ``features`` (*B, n, p), ``log_sigma`` (S,) -> (S, *B). The standard deviation's prior is
    half-normal; the density is that of its logarithm. By the matrix determinant lemma.
    """
    n, p = features.shape[-2:]
    s2 = (2 * log_sigma).exp().view(-1, *[1] * (features.ndim - 2))
    precision = torch.eye(p).double() + features.mT @ features / s2[..., None, None]
    factor = torch.linalg.cholesky(precision)
    cross = features.mT @ y
    mean = torch.cholesky_solve(cross.unsqueeze(-1) / s2[..., None, None], factor).squeeze(-1)
    log_s = 0.5 * s2.log()
    value = -0.5 * (y @ y - (cross * mean).sum(-1)) / s2 - n * (log_s + 0.5 * log(2 * pi))
    value = value - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    ratio = s2 / noise_prior_scale**2
    return value + 0.5 * log(2 / pi) + 0.5 * ratio.log() - 0.5 * ratio


def linear_log_evidence(x, y, noise_prior_scale=1.0):
    """Of ``y = x w + b + noise``: one-dimensional quadrature over the log noise."""
    features = torch.cat([x, torch.ones(len(x), 1).double()], dim=1)
    log_sigma = torch.linspace(-6, 3, 4001, dtype=torch.float64)
    log_mass = linear_log_mass(features, y, log_sigma, noise_prior_scale)
    return float(log_mass.logsumexp(0)) + log(9 / 4000)


def one_unit_evidence(x, y, noise):
    """log p(y) of a one-unit tanh network with N(0, 1) priors, the outer layer integrated out."""
    grid = np.linspace(-5, 5, 81)
    w, b = (g.ravel() for g in np.meshgrid(grid, grid))
    h = np.tanh(w[:, None] * x + b[:, None])
    covariance = h[:, :, None] * h[:, None] + 1.0 + noise**2 * np.eye(len(x))
    squares = y @ np.linalg.solve(covariance, np.broadcast_to(y, h.shape)[..., None])[..., 0].T
    log_lik = -0.5 * (squares + np.linalg.slogdet(2 * pi * covariance)[1])
    total = log_lik + stats.norm.logpdf(w) + stats.norm.logpdf(b)
    return np.logaddexp.reduce(total) + 2 * log(grid[1] - grid[0])


def one_unit_log_evidence(x, y):
    """Of ``y = v tanh(w x + b) + c + noise``: w, b and the log noise on a grid."""
    axis = torch.linspace(-5, 5, 121, dtype=torch.float64)
    log_sigma = torch.linspace(-2.5, 0.5, 61, dtype=torch.float64)
    w, b = (a.flatten() for a in torch.meshgrid(axis, axis, indexing="ij"))
    hidden = torch.tanh(w[:, None] * x + b[:, None])
    features = torch.stack([hidden, torch.ones_like(hidden)], dim=-1)
    log_mass = linear_log_mass(features, y, log_sigma) - 0.5 * (w * w + b * b) - log(2 * pi)
    return float(log_mass.flatten().logsumexp(0)) + 2 * log(10 / 120) + log(3 / 60)


def one_unit_log_evidence_of_learned_scales(x, y, shape):
    """The same where each of w, b, v, c has a precision that is Gamma(shape, rate shape s^2).

    ``s^2`` is 2.25 for w and 1 for the others, as `LayerScales` has it for one input and one unit.
    Sobol draws of the prior of w, b and the precisions of v and c, given which v and c integrate
    out; the log noise on a grid.
    """
    u = np.clip(qmc.Sobol(4, seed=0).random_base2(17), 1e-12, 1.0 - 1e-12)
    distribution = stats.t(2.0 * shape)
    w, b = (
        torch.as_tensor(1.5 * distribution.ppf(u[:, 0])),
        torch.as_tensor(distribution.ppf(u[:, 1])),
    )
    alpha, beta = torch.as_tensor(stats.gamma.ppf(u[:, 2:], shape, scale=1.0 / shape)).T
    log_sigma = torch.linspace(-3.2, 1.2, 61, dtype=torch.float64)[:, None]
    h = torch.tanh(w[:, None] * x + b[:, None])
    hh, h1, hy, n = h.square().sum(1), h.sum(1), h @ y, len(y)
    s2, y1 = (2 * log_sigma).exp(), y.sum()
    a, d, o = alpha + hh / s2, beta + n / s2, h1 / s2
    det, v1, v2 = a * d - o * o, hy / s2, y1 / s2
    value = -n * (log_sigma + 0.5 * log(2 * pi)) - 0.5 * (y @ y) / s2
    value = value + 0.5 * log(2 / pi) + log_sigma - 0.5 * s2
    square = (d * v1 * v1 - 2 * o * v1 * v2 + a * v2 * v2) / det
    value = value + 0.5 * (square + (alpha * beta / det).log())
    return float(value.flatten().logsumexp(0)) - log(len(u)) + log(4.4 / 60)
