r"""Noise of a fitted network, corrected for the freedoms its weights have taken.

The mean squared residual of a flexible network understates the noise: of N rows, :math:`\gamma`
are spent on the weights. With the linearised network :math:`J`, the prior scales :math:`S` and the
noise precisions :math:`\beta_t`,

.. math:: \gamma_t = \beta_t \operatorname{tr}\, J_t' J_t (\textstyle\sum_u \beta_u J_u' J_u +
          S^{-2})^{-1}, \qquad \beta_t = \frac{N - \gamma_t}{\sum_n w_n r_{nt}^2},

iterated to its fixed point (MacKay 1992, eqs. 16 and 20).

Where the weights have taken nearly all rows, residuals say nothing of the noise any more. There it
is the root mean square of the linearised network's leave-one-out residuals
:math:`r_{nt} / (1 - h_{nt})`, at most the spread of the targets.

An estimate from :math:`\nu = N - \gamma` rows is itself uncertain: a new target then follows
Student's t of so many degrees of freedom, a mixture of normals over the noise's precision
:math:`\beta u`, :math:`u \sim \chi^2_\nu / \nu`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian
from skbayes_sym.numerics.linalg import cholesky, decompositions_in_words

_ITERATIONS = 20
_LEAST_FREEDOMS = 1.0  # rows that are left to the noise, at least
# Share of the rows beyond which residuals say nothing (diabetes, concrete and linnerud at 15 to 600
# rows: up to .9 the fixed point predicts best, from .97 on it loses by 2 to 1,000 nats per row).
_MOST_TAKEN = 0.95
_LEAST_LEFT = 1e-9  # of a row, to its leave-one-out residual
MOST_ROWS = 4096  # from which the Jacobian's products are taken, evenly spaced
_REMEDY = "Standardise X and y, or use fewer hidden units."

# Of Student's t: enough for a variance that isn't much larger than the noise's own.
_LEAST_DEGREES = 4.0
# Cells of probability of the precision, each stood for by its median; narrow ones for the tails.
_CELLS = np.array([0.0, 0.0005, 0.003, 0.012, 0.04, 0.1, 0.22, 0.42, 0.7, 1.0])


class EffectiveNoise(NamedTuple):
    """Noise of one network, and the freedoms that its weights have taken."""

    std: Tensor  # (T,)
    freedoms: Tensor  # (T,), what the weights have taken of the rows
    leverage: Tensor  # (T, n), what the `chosen_rows` weigh at this noise


def effective_noise(
    network: MLP, theta: Tensor, data: Data, prior_scale: Tensor, noise_std: Tensor
) -> EffectiveNoise:
    """Noise of every target at one weight vector.

    ``theta`` (P,); ``data``: float64, targets (N, T); ``prior_scale`` (P,): standard deviations of
    the weights' prior; ``noise_std`` (T,): what training took the noise for, at which rows are left
    out.

    O(n T P m + 20 m^3) with m the smaller of n T and P, of one target without the 20. Of more than
    n = 4,096 rows an even selection stands for all.
    """
    x, y, weight = data
    total = float(weight.sum())
    residual = y - network.forward(theta, x)
    squares = (weight.unsqueeze(1) * residual.square()).sum(0)
    chosen, leverages = leverages_of(network, theta, data, prior_scale)
    floor = torch.finfo(y.dtype).tiny
    precision = total / squares.clamp_min(floor)
    for _ in range(_ITERATIONS):
        taken = leverages(precision).sum(1)
        precision = (total - taken).clamp_min(_LEAST_FREEDOMS) / squares.clamp_min(floor)
    std, is_all = precision.rsqrt(), taken > _MOST_TAKEN * total
    if bool(is_all.any()):
        rest = (1.0 - leverages(noise_std.to(y).clamp_min(1e-3) ** -2)).clamp_min(_LEAST_LEFT)
        left_out = (residual[chosen].T / rest).square() * weight[chosen]
        spread = (weight @ (y - weight @ y / total).square() / total).sqrt()
        rms = (left_out.sum(1) / weight[chosen].sum()).sqrt()
        std = torch.where(is_all, torch.minimum(rms, spread), std)
    return EffectiveNoise(std, taken, leverages(std**-2))


class NoiseNodes(NamedTuple):
    """Normals that make up each member's Student's t."""

    factor: Tensor  # (M, Q, T), on the standard deviation
    weight: Tensor  # (Q,), of sum one


def noise_nodes(freedoms: np.ndarray) -> NoiseNodes:
    """Normals for noise estimated from ``freedoms`` (M, T) rows; four at least."""
    degrees = np.maximum(freedoms, _LEAST_DEGREES)[:, None, :]
    middle = (0.5 * (_CELLS[1:] + _CELLS[:-1]))[:, None]
    factor = np.sqrt(degrees / chi2.ppf(middle, degrees))
    return NoiseNodes(torch.as_tensor(factor), torch.as_tensor(np.diff(_CELLS)))


def chosen_rows(n_rows: int) -> Tensor:
    """Places of the rows that stand for all, spread evenly, int64 (n,)."""
    return torch.linspace(0, n_rows - 1, min(n_rows, MOST_ROWS)).round().long()


def leverages_of(
    network: MLP, theta: Tensor, data: Data, prior_scale: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Places (n,) of the `chosen_rows`, and their leverages (T, n) at noise precisions (T,).

    A row of weight w counts once, with the leverage of all its repetitions; the curvature of the
    chosen rows is scaled to that of all.
    """
    x, _, weight = data
    chosen = chosen_rows(len(x))
    share = float(weight.sum()) / float(weight[chosen].sum())
    _, jacobian = outputs_and_jacobian(network, theta.unsqueeze(0), x[chosen])
    root = (share * weight[chosen]).sqrt()
    rows = jacobian[0].transpose(0, 1) * root[:, None] * prior_scale  # (T, n, P)
    n_targets, n, p = rows.shape
    if n_targets == 1:
        return chosen, _one_target(rows[0])
    return chosen, _by_weights(rows) if p < n_targets * n else _by_rows(rows)


def _one_target(rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Leverages of one target, whose noise scales all of the curvature: O(n m) in its axes."""
    n, p = rows.shape
    with decompositions_in_words():
        values, axes = torch.linalg.eigh(rows.mT @ rows if p < n else rows @ rows.mT)
    values = values.clamp_min(0.0)
    squares = (rows @ axes).square() if p < n else axes.square() * values
    return lambda precision: (squares @ (precision / (1.0 + precision * values))).unsqueeze(0)


def _by_weights(rows: Tensor) -> Callable[[Tensor], Tensor]:
    products = rows.mT @ rows

    def leverages(precision: Tensor) -> Tensor:
        system = torch.einsum("t,tpq->pq", precision, products)
        system.diagonal().add_(1.0)
        factor = cholesky(system, what="The posterior's precision", remedy=_REMEDY)
        solved = torch.linalg.solve_triangular(factor, rows.flatten(0, 1).mT, upper=False)
        return precision.unsqueeze(1) * solved.square().sum(0).view(rows.shape[:2])

    return leverages


def _by_rows(rows: Tensor) -> Callable[[Tensor], Tensor]:
    flat = rows.flatten(0, 1)
    kernel = flat @ flat.mT

    def leverages(precision: Tensor) -> Tensor:
        noise = (1.0 / precision).repeat_interleave(rows.shape[1])
        system = kernel.clone()
        system.diagonal().add_(noise)
        factor = cholesky(system, what="The covariance of the targets", remedy=_REMEDY)
        kept = noise * torch.cholesky_inverse(factor).diagonal()
        return (1.0 - kept).view(rows.shape[:2])

    return leverages
