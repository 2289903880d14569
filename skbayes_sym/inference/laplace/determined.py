r"""Weights that data determine at one mode, for scales and noise that the evidence sets.

With the Gauss-Newton curvature of the likelihood and independent normal weights of standard
deviations S before the data,

.. math:: C^{-1} = S^{-2} + \sum_n w_n J_n' \Lambda_n J_n .

The rows :math:`R = \sqrt{w_n} \Lambda_n^{1/2} J_n S`, one per output of every row, give C in the
smaller of two dimensions, the number of weights or that of rows:

.. math:: C = S (I + R'R)^{-1} S = S \left[ I - R' (I + R R')^{-1} R \right] S,

and what the weights take of a row, its leverages: the diagonal of
:math:`R (I + R'R)^{-1} R' = I - (I + R R')^{-1}`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.jacobian import AveragedJacobian, dense_jacobian
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.network import Network, RecordingNetwork
from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.numerics.memory import rows_within

_MOST_WORK = 4e9  # multiplications of a product: a third of a second of one core
_NOTHING = 1e-10  # of a row's largest curvature
_AT_ONCE = 16  # rows whose derivatives are taken together, of a network that can't be recorded
_REMEDY = "Standardise X and y, or give prior a number."


class Determined(NamedTuple):
    """Variances and leverages at one weight vector."""

    variance: Tensor  # (P,), the diagonal of C
    taken: Tensor  # (K,), sums of leverages: how many rows each column of the root has lost


def determined(
    network: Network, likelihood: Likelihood, theta: Tensor, data: Data, scale: Tensor
) -> Determined:
    """Variances of the weights, and what they take of the rows.

    ``network``: one that can be recorded takes one backward pass an output; any other one by
    autograd, sixteen rows at a time. ``likelihood``: with a ``hessian_root``, at its parameters.
    Normal noise has a column a target. ``theta`` (P,). ``data``: float64. A row of weight 2 counts
    as two. ``scale`` (P,): standard deviations of the weights' prior.

    O(n K P m + m^3) for n rows of K outputs, m the smaller of n K and P. Where that takes more
    than 4e9 multiplications an even selection of rows stands for all, its curvature scaled to
    theirs; it determines as many directions as it has rows and outputs, at most.
    """
    x, y, weight = data
    chosen = chosen_rows(len(x), network.n_outputs, len(theta)).to(x.device)
    share = weight.sum() / weight[chosen].sum()
    root = (share * weight[chosen]).sqrt()
    columns = _root_rows(network, likelihood, theta, x[chosen], y[chosen])  # (K, n, P)
    rows = (root[:, None] * columns).flatten(0, 1) * scale
    n, p = rows.shape
    if p <= n:
        system = rows.mT @ rows
        system.diagonal().add_(1.0)
        factor = cholesky(system, what="The posterior's precision", remedy=_REMEDY)
        share = torch.cholesky_inverse(factor).diagonal()
        solved = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
        leverage = solved.square().sum(0)
    else:
        system = rows @ rows.mT
        system.diagonal().add_(1.0)
        factor = cholesky(system, what="The covariance of the outputs", remedy=_REMEDY)
        solved = torch.linalg.solve_triangular(factor, rows, upper=False)
        share = (1.0 - solved.square().sum(0)).clamp_min(0.0)
        leverage = 1.0 - torch.cholesky_inverse(factor).diagonal()
    return Determined(scale.square() * share, leverage.view(len(columns), -1).sum(1))


def chosen_rows(n: int, n_outputs: int, p: int) -> Tensor:
    """Places of the rows that stand for all ``n``, int64: all of them where work allows."""
    # (n K) P min(n K, P) multiplications
    most = max((_MOST_WORK / p) ** 0.5 if p**3 > _MOST_WORK else _MOST_WORK / p**2, 1.0)
    size = min(n, rows_within(int(most), n_outputs))
    return torch.linspace(0, n - 1, size).round().long()


def curvature_numbers(n: int, n_outputs: int, p: int) -> int:
    """Numbers that are held together: rows, and the matrix of the smaller dimension."""
    size = len(chosen_rows(n, n_outputs, p)) * n_outputs
    return size * p + min(size, p) ** 2


def _root_rows(
    network: Network, likelihood: Likelihood, theta: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """The columns of a root of every row's curvature, through the network: (K, n, P)."""
    with torch.inference_mode(False), torch.enable_grad():
        theta, x = theta.detach().clone(), x.clone()
        if not isinstance(network, RecordingNetwork):
            return _by_autograd(network, likelihood, theta.requires_grad_(), x, y)
        recording = network.record(theta, x)
        directions = _directions(likelihood, recording.outputs.detach(), y)
        jacobian = AveragedJacobian(
            recording, network.weight_layers, 1, recording.outputs, directions
        )
        return dense_jacobian(jacobian, network.layout).detach()


def _directions(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """Columns (K, n, O) of a root of every row's curvature, none that all rows can do without.

    Class probabilities don't change along equal logits: columns are turned so that one is 0.
    """
    root = likelihood.hessian_root(outputs, y).movedim(0, -1)  # (n, O, K)
    values, turn = torch.linalg.eigh(root.mT @ root)  # rising
    if turn.shape[-1] == 1 or bool((values[:, 0] > _NOTHING * values[:, -1]).any()):
        return root.movedim(-1, 0)
    return (root @ turn)[..., 1:].movedim(-1, 0)


def _by_autograd(
    network: Network, likelihood: Likelihood, theta: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    directions, blocks = _directions(likelihood, network.forward(theta, x).detach(), y), []
    for rows in torch.arange(len(x), device=x.device).split(_AT_ONCE):
        outputs, columns = network.forward(theta, x[rows]), directions[:, rows]
        n_columns, n, _ = columns.shape
        # One direction a row: the others are 0.
        alone = torch.eye(n).to(columns)[:, :, None] * columns[:, None]
        (slopes,) = torch.autograd.grad(outputs, theta, alone.flatten(0, 1), is_grads_batched=True)
        blocks.append(slopes.view(n_columns, n, -1))
    return torch.cat(blocks, 1).detach()
