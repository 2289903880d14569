"""What a fitted factorisation says of new rows and of single entries."""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.coordinates import (
    Coordinates,
    Free,
    free_part,
    given_pinned,
    with_pinned,
)
from skbayes_sym.inference.factorization.data import (
    Incidence,
    packed_second_moments,
    packed_sums,
    sums_over_entries,
)
from skbayes_sym.inference.factorization.hyperpriors import RowLaw
from skbayes_sym.inference.factorization.likelihoods import EntryLikelihood, NoiseState, Seen
from skbayes_sym.inference.factorization.rows import Noise, row_conditionals
from skbayes_sym.numerics.gaussian import LOG_2PI, kl_from_standard
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky, log_det, matrix_blocks

_ENTRY_BLOCK = 1 << 14  # entries whose (k, k) matrices are worked on at once
_LOCAL_UPDATES = 10  # of a new row and its entries in turn, where these aren't normal


class Columns(NamedTuple):
    """What rows that weren't there meet: q of the columns, the rows' law and the noise."""

    mean: Tensor  # (m, D)
    cov: Tensor  # (m, D, D)
    coordinates: Coordinates
    law: RowLaw
    noise: NoiseState
    likelihood: EntryLikelihood

    @property
    def side(self) -> Free:
        """Coordinates of a row."""
        return self.coordinates.sides[0]

    def prior_means(self, features: Tensor) -> Tensor:
        """Of rows with these features (n, h), behind the constant if there is one: (n, d)."""
        coefficients = self.law.coefficients
        n_constants = len(coefficients) - features.shape[1]
        constant = coefficients[:n_constants].sum(0)
        return constant + features.to(coefficients) @ coefficients[n_constants:]


class Rows(NamedTuple):
    """Gaussian rows in all coordinates."""

    mean: Tensor  # (n, D)
    cov: Tensor  # (n, D, D)


def row_posterior(data: Incidence, columns: Columns, prior_means: Tensor) -> Rows:
    """Posterior of every row given q(V); a row without entries is at its prior.

    One mean-field update over the row's observed entries, its offset and factors jointly,
    ``P = Lambda + sum_j E[v v'] / (k s^2)``, ``P m = Lambda m_0 + sum_j r_j E[v] / (sqrt k s^2)``.
    Entries that aren't normal are updated in turn with it, ten times.

    Parameters
    ----------
    data : Incidence
    columns : Columns
    prior_means : Tensor of shape (n_rows, d)
    """
    packed = packed_second_moments(columns.mean, columns.cov)
    parts = [
        _row_block(data.block(begin, end), columns, prior_means[begin:end], packed)
        for begin, end in matrix_blocks(data.n_rows, columns.mean.shape[1])
    ]
    mean, cov = (torch.cat(part) for part in zip(*parts, strict=True))
    return Rows(mean, cov)


def _row_block(data: Incidence, columns: Columns, prior_means: Tensor, packed: Tensor) -> Rows:
    likelihood, side, law = columns.likelihood, columns.side, columns.law
    k = columns.coordinates.n_components
    prior_cov = law_cov(law).to(packed)
    rows = Rows(*with_pinned(prior_means.to(packed), prior_cov.repeat(data.n_rows, 1, 1), side))
    sites = data
    for _ in range(1 if likelihood.is_normal else _LOCAL_UPDATES):
        if not likelihood.is_normal:
            found = likelihood.sites(_seen(data, rows, columns), columns.noise)
            sites = data._replace(value=found.value, weight=found.weight)
        sums, _ = given_pinned(packed_sums(sites, packed, columns.mean), side)
        noise = Noise(k, columns.noise.variance)
        factor, _, target = row_conditionals(sums, law, prior_means, noise)
        mean = torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1)
        rows = Rows(*with_pinned(mean, torch.cholesky_inverse(factor), side))
    return rows


def _seen(data: Incidence, rows: Rows, columns: Columns) -> Seen:
    """What q says of the entries of these rows."""
    i = data.row
    where = (rows.mean, rows.cov), (columns.mean, columns.cov)
    root_k = columns.coordinates.n_components**0.5
    mean = (rows.mean[i] * columns.mean[data.other]).sum(-1) / root_k
    variance = entry_variances(*where, i, data.other, columns.coordinates.n_components)
    return Seen(data.value, data.weight, mean, variance)


def row_log_densities(data: Incidence, columns: Columns, prior_means: Tensor) -> Tensor:
    r"""Log density of the observed entries of each row, the row integrated out, (n_rows,) nats.

    A normal with the mean and the covariance that the entries have under the row's prior
    :math:`z \sim N(\mu, \Sigma)` and q(V),

    .. math:: \mu^\top \bar v_j / \sqrt k, \qquad \tfrac1k \bar v_i^\top \Sigma \bar v_j
        + \delta_{ij} \left(s^2 + \tfrac1k \operatorname{tr} S_j (\Sigma + \mu \mu^\top)\right) ,

    exact if V is known. O(k^2) an entry.
    """
    k, row = columns.coordinates.n_components, data.row
    prior_cov = law_cov(columns.law).to(columns.mean)
    means, covs = with_pinned(
        prior_means.to(columns.mean), prior_cov.expand(data.n_rows, -1, -1), columns.side
    )
    spread = (columns.cov * covs[:1]).sum((-2, -1))[data.other]
    spread = spread + _quadratic(means, columns.cov, row, data.other)
    at = columns.noise.variance + spread / k
    off = data.value - entry_means(means, columns.mean, row, data.other, k)
    own = off.square() / at + at.log() + LOG_2PI
    total = own.new_zeros(data.n_rows).index_add_(0, row, own)
    # In coordinates where the row is standard normal; the entries' own variances are weights.
    turned = columns.mean[:, list(columns.side.free)] @ cholesky_of(prior_cov) / sqrt(k)
    none = turned.new_zeros(1, 1, 1).expand(len(turned), *prior_cov.shape)
    packed = packed_second_moments(turned, none)
    white = data._replace(value=off, weight=at.reciprocal())
    parts = []
    for begin, end in matrix_blocks(data.n_rows, turned.shape[1]):
        second, first = sums_over_entries(white.block(begin, end), packed, turned)
        root = cholesky_of(add_to_diagonal(second, 1.0))
        explained = torch.linalg.solve_triangular(root, first.unsqueeze(-1), upper=False)
        parts.append(log_det(root) - explained.square().sum((-2, -1)))
    return -0.5 * (total + torch.cat(parts))


def cholesky_of(matrix: Tensor) -> Tensor:
    """Cholesky factors of covariances or precisions of rows."""
    return cholesky(
        matrix, what="A matrix of the rows' prior", remedy="Give prior_scale a number near 1."
    )


def law_cov(law: RowLaw) -> Tensor:
    """Covariance of a row under its prior, (d, d)."""
    return torch.cholesky_inverse(cholesky_of(law.precision))


def row_bound(data: Incidence, columns: Columns, prior_means: Tensor) -> float:
    """Lower bound on what `row_log_densities` sums to, of any likelihood, nats.

    The ELBO of the rows: what q says of their entries, less the KL of q from their prior.
    """
    rows, law = row_posterior(data, columns, prior_means), columns.law
    mean, cov = free_part(rows.mean, rows.cov, columns.side)
    off, precision = mean - prior_means.to(mean), law.precision.to(mean)
    trace, squares = (cov * precision).sum(), ((off @ precision) * off).sum()
    log_ratio = log_det(cholesky_of(cov)).sum() + len(mean) * log_det(cholesky_of(precision))
    kl = kl_from_standard(trace, squares, log_ratio, mean.numel())
    seen = _seen(data, rows, columns)
    return columns.likelihood.log_density(seen, columns.noise) - float(kl)


def _quadratic(mean: Tensor, cov: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """``m_i' S_j m_i`` at every entry, (E,)."""
    parts = [
        ((cov[b] @ mean[a].unsqueeze(-1)).squeeze(-1) * mean[a]).sum(-1)
        for a, b in zip(i.split(_ENTRY_BLOCK), j.split(_ENTRY_BLOCK), strict=True)
    ]
    return torch.cat(parts)


def entry_means(u: Tensor, v: Tensor, i: Tensor, j: Tensor, n_components: int) -> Tensor:
    """Mean of ``u_i . v_j / sqrt(k)`` under independent rows with these means, (E,)."""
    parts = [
        (u[a] * v[b]).sum(-1)
        for a, b in zip(i.split(_ENTRY_BLOCK), j.split(_ENTRY_BLOCK), strict=True)
    ]
    return torch.cat(parts) / sqrt(n_components)


def entry_variances(
    rows: tuple[Tensor, Tensor],
    columns: tuple[Tensor, Tensor],
    i: Tensor,
    j: Tensor,
    n_components: int,
) -> Tensor:
    """Variance of ``u_i . v_j / sqrt(k)`` under q, without the noise, (E,).

    Parameters
    ----------
    rows, columns : (mean (n, D), cov (n, D, D))
    i, j : int64 Tensor of shape (E,)
    """
    parts = []
    for a, b in zip(i.split(_ENTRY_BLOCK), j.split(_ENTRY_BLOCK), strict=True):
        u, v, u_cov, v_cov = rows[0][a], columns[0][b], rows[1][a], columns[1][b]
        by_u = (u_cov @ v.unsqueeze(-1)).squeeze(-1) * v
        by_v = (v_cov @ u.unsqueeze(-1)).squeeze(-1) * u
        parts.append((by_u + by_v).sum(-1) + (u_cov * v_cov).sum((-2, -1)))
    return torch.cat(parts) / n_components


def draw_moments(
    draws: Tensor, n: int, i: Tensor, j: Tensor, n_components: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``u_i . v_j / sqrt(k)`` over draws (S, n + m, D), (E,) each."""
    total, squares = draws.new_zeros(len(i)), draws.new_zeros(len(i))
    for draw in draws:
        value = (draw[i] * draw[n + j]).sum(-1) / sqrt(n_components)
        total += value
        squares += value.square()
    mean = total / len(draws)
    return mean, (squares / len(draws) - mean.square()).clamp(min=0.0)
