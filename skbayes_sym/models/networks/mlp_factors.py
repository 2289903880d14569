r"""The Jacobian of a fully connected network, and products that never form it.

The derivative of output k at row n by the weight of unit j of a layer for its input l is

.. math:: J_{nk,jl} = D_{nkj}\, a_{nl},

``a`` the layer's inputs (a one for the bias) and ``D`` the derivatives of the outputs by the
unit's preactivation. So a block of :math:`J' \Lambda J` for two layers is a sum over rows of
:math:`(D' \Lambda D) \otimes (a a')`: O(N P^2) however many outputs there are, in place of
O(N K P^2). The covariance :math:`J C J'` of a row's outputs costs the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.networks.mlp import MLP


def outputs_and_jacobian(network: MLP, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and their derivatives, for several weight vectors at once.

    ``theta`` (R, P); ``x`` (N, n_inputs). Returns ``outputs`` (R, N, O), ``jacobian`` (R, N, O, P).

    One forward pass and one backward pass an output, O(R N O P) time and memory.
    """
    layers = network.layers(theta)
    inputs, slopes, h = [], [], x.expand(len(theta), *x.shape)
    for i, (weight, bias) in enumerate(layers, start=1):
        inputs.append(h)
        h = torch.baddbmm(bias.unsqueeze(1), h, weight.mT)
        if i < network.n_layers:
            h = network.activation.function(h)
            slopes.append(network.activation.backward_(torch.ones_like(h), h))
    n_outputs = network.n_outputs
    shape = (len(theta), len(x), n_outputs)
    jacobian = theta.new_empty(*shape, network.layout.n_params)
    where = network.layout.slices
    delta = torch.eye(n_outputs, dtype=theta.dtype, device=theta.device).expand(*shape, n_outputs)
    for i in range(network.n_layers, 0, -1):
        by_weight = delta.unsqueeze(-1) * inputs[i - 1][:, :, None, None, :]
        jacobian[..., where[f"W{i}"]] = by_weight.flatten(-2)
        jacobian[..., where[f"b{i}"]] = delta
        if i > 1:
            delta = torch.einsum("rnok,rkj->rnoj", delta, layers[i - 1][0])
            delta = delta * slopes[i - 2].unsqueeze(2)
    return h, jacobian


_CACHE_NUMBERS = 1 << 18  # of a block of products: 2 MB


class LayerFactors(NamedTuple):
    """Factors of one layer's part of the Jacobian at N rows."""

    inputs: Tensor  # (N, L + 1), the last column one
    slopes: Tensor  # (N, K, H)

    @property
    def n_params(self) -> int:
        return self.inputs.shape[-1] * self.slopes.shape[-1]


class _Block(NamedTuple):
    """Some units of a layer against units of a layer that isn't before it."""

    left: LayerFactors
    right: LayerFactors
    units: slice  # of the left layer
    others: slice  # of the right layer
    rows: slice  # parameters of ``units``, layer by layer and unit by unit
    columns: slice


@dataclass(frozen=True, eq=False)
class FactoredJacobian:
    """Derivatives of the outputs (N, K) by one weight vector (P,).

    ``order`` int64 (P,): places in the network's flat order of the parameters taken layer by layer
    and unit by unit, a unit's bias after its weights.
    """

    layers: tuple[LayerFactors, ...]
    order: Tensor

    def dense(self) -> Tensor:
        """J itself, (N, K, P)."""
        parts = [(d.unsqueeze(-1) * a[:, None, None, :]).flatten(2) for a, d in self.layers]
        return torch.cat(parts, 2).index_select(2, self.order.argsort())

    def transposed(self, values: Tensor) -> Tensor:
        """``J' v`` summed over rows, (N, K) -> (P,)."""
        parts = [(torch.einsum("nk,nkh->hn", values, d) @ a).flatten() for a, d in self.layers]
        return torch.cat(parts)[self.order.argsort()]

    def gauss_newton(self, weight: Tensor) -> Tensor:
        """``J' Lambda J`` summed over rows, symmetric Lambda (N, K, K) -> (P, P)."""
        p = len(self.order)
        product = weight.new_empty(p, p)
        for block in self._blocks():
            (a, d), (b, e) = block.left, block.right
            middle = d[..., block.units].mT @ weight @ e[..., block.others]  # (N, h, h')
            n, h, _ = middle.shape
            columns = (middle.unsqueeze(-1) * b[:, None, None, :]).view(n, -1)
            part = (a.T @ columns).unflatten(1, (h, -1)).transpose(0, 1).flatten(0, 1)
            product[block.rows, block.columns] = part
            product[block.columns, block.rows] = part.T
        back = self.order.argsort()
        return product.index_select(0, back).index_select(1, back)

    def covariance(self, matrix: Tensor) -> Tensor:
        """``J C J'`` of every row, symmetric C (P, P) -> (N, K, K)."""
        ordered = matrix.index_select(0, self.order).index_select(1, self.order)
        n, n_outputs, _ = self.layers[-1].slopes.shape
        total = matrix.new_zeros(n, n_outputs, n_outputs)
        for block in self._blocks():
            (a, d), (b, e) = block.left, block.right
            part = ordered[block.rows, block.columns].unflatten(0, (-1, a.shape[1]))
            h = len(part)
            half = a @ part.transpose(0, 1).flatten(1)  # (N, h h' L')
            middle = (half.view(n, -1, b.shape[1]) @ b.unsqueeze(-1)).view(n, h, -1)
            if block.left is block.right:
                middle[..., :h] *= 0.5  # these pairs of units come twice, the others once
            half = d[..., block.units] @ middle @ e[..., block.others].mT
            total += half + half.mT
        return total

    def _blocks(self) -> Iterator[_Block]:
        """Every pair of units once, but those of one layer within a block twice."""
        starts = [0, *accumulate(layer.n_params for layer in self.layers)]
        for i, left in enumerate(self.layers):
            for k, right in enumerate(self.layers[i:], start=i):
                n_left, n_right = left.slopes.shape[-1], right.slopes.shape[-1]
                size = left.inputs.shape[1]
                per_unit = len(right.inputs) * right.n_params
                step = max(1, _CACHE_NUMBERS // max(1, per_unit))
                for first in range(0, n_left, step):
                    last, skipped = min(n_left, first + step), first if k == i else 0
                    yield _Block(
                        left, right, slice(first, last), slice(skipped, n_right),
                        slice(starts[i] + first * size, starts[i] + last * size),
                        slice(starts[k] + skipped * right.inputs.shape[1], starts[k + 1]),
                    )  # fmt: skip


def outputs_and_factors(network: MLP, theta: Tensor, x: Tensor) -> tuple[Tensor, FactoredJacobian]:
    """Outputs (N, K) at weights (P,) and rows (N, n_inputs), and their derivatives' factors.

    One forward pass and one backward pass an output.
    """
    weights = network.layers(theta)
    inputs, bends, h = [], [], x
    one = x.new_ones(len(x), 1)
    for i, (weight, bias) in enumerate(weights, start=1):
        inputs.append(torch.cat([h, one], -1))
        h = torch.addmm(bias, h, weight.T)
        if i < network.n_layers:
            h = network.activation.function(h)
            bends.append(network.activation.backward_(torch.ones_like(h), h))
    eye = torch.eye(network.n_outputs, dtype=theta.dtype, device=theta.device)
    slopes = [eye.expand(len(x), -1, -1)]
    for (weight, _), bend in zip(weights[:0:-1], bends[::-1], strict=True):
        slopes.append((slopes[-1] @ weight) * bend.unsqueeze(1))
    layers = tuple(LayerFactors(a, d) for a, d in zip(inputs, slopes[::-1], strict=True))
    where = network.layout.positions
    units = [
        torch.cat([where(f"W{i}"), where(f"b{i}").unsqueeze(1)], 1).flatten()
        for i in range(1, network.n_layers + 1)
    ]
    return h, FactoredJacobian(layers, torch.cat(units).to(theta.device))
