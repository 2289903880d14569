r"""Noise of a fitted network, corrected for the freedoms its weights have taken.

The mean squared residual of a flexible network understates the noise: of N rows, :math:`\gamma`
are spent on the weights. With the linearised network :math:`J`, the prior scales :math:`S` and the
noise precisions :math:`\beta_t`,

.. math:: \gamma_t = \beta_t \operatorname{tr}\, J_t' J_t (\textstyle\sum_u \beta_u J_u' J_u +
          S^{-2})^{-1}, \qquad \beta_t = \frac{N - \gamma_t}{\sum_n w_n r_{nt}^2},

iterated to its fixed point (MacKay 1992, eqs. 16 and 20).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.data import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_jacobian import outputs_and_jacobian
from skbayes_sym.numerics.linalg import cholesky

_ITERATIONS = 20
_LEAST_FREEDOMS = 1.0  # rows that are left to the noise, at least
_MOST_ROWS = 4096  # from which the Jacobian's products are taken, evenly spaced
_REMEDY = "Standardise X and y, or use fewer hidden units."


class EffectiveNoise(NamedTuple):
    """What is left to the noise."""

    std: Tensor  # (T,)
    freedoms: Tensor  # (T,), what the weights have taken of the rows


def effective_noise(network: MLP, theta: Tensor, data: Data, prior_scale: Tensor) -> EffectiveNoise:
    """Noise of every target at one weight vector.

    Parameters
    ----------
    network : MLP
    theta : Tensor of shape (P,)
    data : Data
        Float64, targets (N, T).
    prior_scale : Tensor of shape (P,)
        Standard deviations of the weights' prior.

    Notes
    -----
    O(n T P m + 20 m^3) with m the smaller of n T and P, where n is the number of rows, 4,096 at
    most: of more rows an even selection stands for all.
    """
    x, y, weight = data
    total = float(weight.sum())
    outputs = network.forward(theta, x)
    squares = (weight.unsqueeze(1) * (y - outputs).square()).sum(0)
    chosen = torch.linspace(0, len(x) - 1, min(len(x), _MOST_ROWS)).round().long()
    share = total / float(weight[chosen].sum())
    _, jacobian = outputs_and_jacobian(network, theta.unsqueeze(0), x[chosen])
    root = (share * weight[chosen]).sqrt()
    rows = jacobian[0].transpose(0, 1) * root[:, None] * prior_scale  # (T, n, P)
    freedoms = _by_rows if rows.shape[0] * rows.shape[1] < rows.shape[2] else _by_weights
    products = rows.mT @ rows if freedoms is _by_weights else _kernel(rows)
    floor = torch.finfo(y.dtype).tiny
    precision = total / squares.clamp_min(floor)
    for _ in range(_ITERATIONS):
        used = freedoms(products, precision, len(chosen))
        precision = (total - used).clamp_min(_LEAST_FREEDOMS) / squares.clamp_min(floor)
    return EffectiveNoise(precision.rsqrt(), used)


def _kernel(rows: Tensor) -> Tensor:
    flat = rows.flatten(0, 1)
    return flat @ flat.mT


def _by_weights(products: Tensor, precision: Tensor, n: int) -> Tensor:
    """From ``S J_t'J_t S`` (T, P, P)."""
    system = torch.einsum("t,tpq->pq", precision, products)
    system.diagonal().add_(1.0)
    factor = cholesky(system, what="The posterior's precision", remedy=_REMEDY)
    covariance = torch.cholesky_inverse(factor)
    return precision * (products * covariance).sum((1, 2))


def _by_rows(products: Tensor, precision: Tensor, n: int) -> Tensor:
    """From ``J S^2 J'`` (T n, T n), target by target."""
    system = products.clone()
    noise = (1.0 / precision).repeat_interleave(n)
    system.diagonal().add_(noise)
    factor = cholesky(system, what="The covariance of the targets", remedy=_REMEDY)
    left = noise * torch.cholesky_inverse(factor).diagonal()  # 1 - leverage
    return (1.0 - left).view(-1, n).sum(1)
