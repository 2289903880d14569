"""What a fitted factorisation says of new rows and of single entries."""

from math import log, pi, sqrt

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.data import (
    ROW_BLOCK,
    Incidence,
    packed_second_moments,
    sums_over_entries,
)
from skbayes_sym.inference.factorization.rows import row_conditionals
from skbayes_sym.numerics.linalg import log_det

_ENTRY_BLOCK = 1 << 14  # entries whose (k, k) matrices are worked on at once


def row_means(
    data: Incidence, mean: Tensor, cov: Tensor, prior_scale: float, noise: float
) -> Tensor:
    """Posterior mean of the factor of every row given q(V), (n_rows, k).

    One mean-field update over the row's observed entries,
    ``(1 / tau^2 + sum_j E[v v'] / (k s^2))^-1 sum_j r_j E[v] / (sqrt k s^2)``; a row without any is
    at the prior mean 0.

    Parameters
    ----------
    data : Incidence
    mean, cov : Tensor of shape (m, k) and (m, k, k)
        Moments of the columns' factors.
    prior_scale : float
    noise : float
        Noise variance.
    """
    packed, parts = packed_second_moments(mean, cov), []
    for begin in range(0, data.n_rows, ROW_BLOCK):
        block = data.block(begin, min(begin + ROW_BLOCK, data.n_rows))
        sums = sums_over_entries(block, packed, mean)
        factor, _, target = row_conditionals(sums, prior_scale, noise)
        parts.append(torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1))
    return torch.cat(parts)


def row_log_densities(
    data: Incidence, mean: Tensor, cov: Tensor, prior_scale: float, noise: float
) -> Tensor:
    r"""Log density of the observed entries of each row, its factor integrated out, (n_rows,) nats.

    A normal with the mean (zero) and the covariance that the row has under the prior of u and q(V),

    .. math:: \tfrac{\tau^2}{k} \bar v_i \cdot \bar v_j
        + \delta_{ij} \left(s^2 + \tfrac{\tau^2}{k} \operatorname{tr} S_j\right) ,

    exact if V is known. O(k^2) an entry.
    """
    k = mean.shape[1]
    spread = noise + prior_scale**2 / k * cov.diagonal(dim1=-2, dim2=-1).sum(-1)
    # Columns over their own standard deviation: unit noise, and sums over entries as ever.
    scaled = mean / spread.sqrt().unsqueeze(-1)
    at = spread[data.other]
    white = data._replace(value=data.value / at.sqrt())
    packed = packed_second_moments(scaled, scaled.new_zeros(1, 1, 1).expand(len(mean), k, k))
    row = torch.repeat_interleave(torch.arange(data.n_rows), data.start.diff())
    own = white.value.square() + at.log() + log(2.0 * pi)
    total = own.new_zeros(data.n_rows).index_add_(0, row, own)
    parts = []
    for begin in range(0, data.n_rows, ROW_BLOCK):
        block = white.block(begin, min(begin + ROW_BLOCK, data.n_rows))
        sums = sums_over_entries(block, packed, scaled)
        factor, _, target = row_conditionals(sums, prior_scale, 1.0)
        explained = torch.linalg.solve_triangular(factor, target.unsqueeze(-1), upper=False)
        parts.append(
            log_det(factor) + 2.0 * k * log(prior_scale) - explained.square().sum((-2, -1))
        )
    return -0.5 * (total + torch.cat(parts))


def entry_means(u: Tensor, v: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Mean of ``u_i . v_j / sqrt(k)`` under independent rows with these means, (E,)."""
    parts = [
        (u[a] * v[b]).sum(-1)
        for a, b in zip(i.split(_ENTRY_BLOCK), j.split(_ENTRY_BLOCK), strict=True)
    ]
    return torch.cat(parts) / sqrt(u.shape[1])


def entry_variances(
    rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor], i: Tensor, j: Tensor
) -> Tensor:
    """Variance of ``u_i . v_j / sqrt(k)`` under q, without the noise, (E,).

    Parameters
    ----------
    rows, columns : (mean (n, k), cov (n, k, k))
    i, j : int64 Tensor of shape (E,)
    """
    parts = []
    for a, b in zip(i.split(_ENTRY_BLOCK), j.split(_ENTRY_BLOCK), strict=True):
        u, v, u_cov, v_cov = rows[0][a], columns[0][b], rows[1][a], columns[1][b]
        by_u = (u_cov @ v.unsqueeze(-1)).squeeze(-1) * v
        by_v = (v_cov @ u.unsqueeze(-1)).squeeze(-1) * u
        parts.append((by_u + by_v).sum(-1) + (u_cov * v_cov).sum((-2, -1)))
    return torch.cat(parts) / rows[0].shape[1]


def draw_moments(draws: Tensor, n: int, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``u_i . v_j / sqrt(k)`` over draws (S, n + m, k), (E,) each."""
    total, squares = draws.new_zeros(len(i)), draws.new_zeros(len(i))
    for draw in draws:
        value = (draw[i] * draw[n + j]).sum(-1) / sqrt(draws.shape[-1])
        total += value
        squares += value.square()
    mean = total / len(draws)
    return mean, (squares / len(draws) - mean.square()).clamp(min=0.0)
