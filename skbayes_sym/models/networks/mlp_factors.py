r"""The Jacobian of a fully connected network, and products that never form it.

The derivative of output k at row n by the weight of unit j of a layer for its input l is

.. math:: J_{nk,jl} = D_{nkj}\, a_{nl},

``a`` the layer's inputs (a one for the bias) and ``D`` the derivatives of the outputs by the
unit's preactivation. So an entry of :math:`J' \Lambda J` for two layers is a sum over rows

.. math:: \sum_n (D' \Lambda D)_{n,jj'} \, a_{nl} a_{nl'} .

Within a layer it is the same for (j', j) and for (l', l): only a quarter of the entries differ, and
they are one product of the pairs of units with the pairs of inputs. O(N P^2 / 4) however many
outputs there are, in place of O(N K P^2). The covariance :math:`J C J'` of a row's outputs costs
the same.
"""

from collections.abc import Iterator
from functools import lru_cache, reduce
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.memory import rows_within

_NUMBERS = 1 << 21  # of a block's largest array: 16 MB, which caches hold


def outputs_and_jacobian(network: MLP, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (R, N, O) and their derivatives (R, N, O, P), of several weight vectors (R, P).

    One forward pass and one backward pass an output, O(R N O P) time and memory.
    """
    outputs, factors = outputs_and_factors(network, theta, x)
    return outputs, factors.dense()


def outputs_and_factors(
    network: MLP, theta: Tensor, x: Tensor
) -> tuple[Tensor, "FactoredJacobian"]:
    """Outputs (R, N, O) at weights (R, P) and rows (N, n_inputs), and their derivatives' factors.

    One forward pass and one backward pass an output.
    """
    weights = network.layers(theta)
    inputs, bends, h = [], [], x.T.unsqueeze(0)
    for i, (weight, bias) in enumerate(weights, start=1):
        inputs.append(torch.cat([h, h.new_ones(len(h), 1, len(x))], 1))
        h = torch.baddbmm(bias.unsqueeze(2), weight, h.expand(len(theta), -1, -1))
        if i < network.n_layers:
            h = network.activation.function(h)
            bends.append(network.activation.backward_(torch.ones_like(h), h))
    eye = torch.eye(network.n_outputs, dtype=theta.dtype, device=theta.device)
    slopes = [eye[None, :, :, None].expand(len(theta), -1, -1, len(x))]
    for (weight, _), bend in zip(weights[:0:-1], bends[::-1], strict=True):
        back = weight.mT.unsqueeze(1)  # (R, 1, H, H')
        # The outputs' own slopes are alike for all rows.
        one = back @ (eye.unsqueeze(2) if len(slopes) == 1 else slopes[-1])
        slopes.append(one * bend.unsqueeze(1))
    layers = tuple(LayerFactors(a, d) for a, d in zip(inputs, slopes[::-1], strict=True))
    return h.mT, FactoredJacobian(layers, packing(network.sizes, theta.device))


def rows_per_block(network: MLP, n_restarts: int = 1) -> int:
    """Rows whose products of pairs of units, or of inputs, stay within 16 MB; 8,192 at most."""
    most = max(16, *network.sizes[1:], 1 + max(network.sizes[:-1]))
    return rows_within(_NUMBERS, n_restarts * most**2)


def pack(matrix: Tensor, places: Tensor) -> Tensor:
    """Sums (R, Q) of the entries of symmetric matrices (R, P, P) that have one place."""
    packed = matrix.new_zeros(len(matrix), int(places.max()) + 1)
    return packed.index_add_(1, places.flatten(), matrix.flatten(1))


@lru_cache(4)  # P^2 numbers each
def packing(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Places of the entries of ``J' Lambda J`` among those that differ, int32 (P, P).

    ``sizes``: widths of all layers of a network, inputs and outputs included.
    """
    units, inputs = [], []  # of every parameter, by layers, in the flat order
    for n_in, n_out in pairwise(sizes):
        unit = torch.arange(n_out)
        units.append(torch.cat([unit.repeat_interleave(n_in), unit]))
        inputs.append(torch.cat([torch.arange(n_in).repeat(n_out), torch.full((n_out,), n_in)]))
    n_params = [len(unit) for unit in units]
    places = torch.zeros(sum(n_params), sum(n_params), dtype=torch.int32)
    blocks = [list(row.split(n_params, 1)) for row in places.split(n_params)]
    begin = 0
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        for k, (m_in, m_out) in enumerate(list(pairwise(sizes))[i:], start=i):
            alike = i == k
            unit = _numbers(n_out, m_out, alike)[units[i]][:, units[k]]
            entry = _numbers(n_in + 1, m_in + 1, alike)
            n_entries = int(entry.max()) + 1
            blocks[i][k].copy_(begin + unit * n_entries + entry[inputs[i]][:, inputs[k]])
            if not alike:
                blocks[k][i].copy_(blocks[i][k].T)
            begin = int(blocks[i][k].max()) + 1
    return places.to(device)


def _numbers(n: int, m: int, alike: bool) -> Tensor:
    """Numbers (n, m) of pairs as `_products` has them; of alike ones (i, j) is (j, i)."""
    if not alike:
        return torch.arange(n * m).view(n, m)
    numbers, (i, j) = torch.zeros(n, n, dtype=torch.int64), torch.triu_indices(n, n)
    numbers[i, j] = numbers[j, i] = torch.arange(len(i))
    return numbers


def _products(a: Tensor, b: Tensor, alike: bool) -> Tensor:
    """Products of all pairs of rows (*B, n, N) and (*B, m, N); of alike ones each pair once."""
    *_, n, n_rows = a.shape
    if not alike:
        return (a.unsqueeze(-2) * b.unsqueeze(-3)).flatten(-3, -2)
    products = b.new_empty(*b.shape[:-2], n * (n + 1) // 2, n_rows)
    begin = 0
    for i in range(n):
        end = begin + n - i
        torch.mul(a[..., i : i + 1, :], b[..., i:, :], out=products[..., begin:end, :])
        begin = end
    return products


class LayerFactors(NamedTuple):
    """Factors of one layer's part of the Jacobians at N rows and R weight vectors."""

    inputs: Tensor  # (R, L, N), the last one of them one; R is 1 of the first layer
    slopes: Tensor  # (R, K, H, N)


class FactoredJacobian(NamedTuple):
    """Derivatives of K outputs at N rows by R weight vectors (R, P)."""

    layers: tuple[LayerFactors, ...]
    places: Tensor  # int32 (P, P), see `packing`

    def of_output(self, k: int) -> "FactoredJacobian":
        """The derivatives of one output."""
        layers = (LayerFactors(a, d[:, k : k + 1]) for a, d in self.layers)
        return self._replace(layers=tuple(layers))

    def dense(self) -> Tensor:
        """J itself, (R, N, K, P)."""
        parts = []
        for a, d in self.layers:
            parts += [(d.unsqueeze(3) * a[:, None, None, :-1]).flatten(2, 3), d]
        return torch.cat(parts, 2).permute(0, 3, 1, 2).contiguous()

    def transposed(self, values: Tensor) -> Tensor:
        """``J' v`` summed over rows, (R, N, K) -> (R, P)."""
        parts = []
        for a, d in self.layers:
            by_unit = (values.mT.unsqueeze(2) * d).sum(1)  # (R, H, N)
            by_weight = by_unit @ a.mT
            parts += [by_weight[..., :-1].flatten(1), by_weight[..., -1]]
        return torch.cat(parts, 1)

    def packed(self, weight: Tensor) -> Tensor:
        """Entries of ``J' Lambda J`` that differ, summed over rows, (R, Q).

        ``weight`` (R or 1, K, K, N): symmetric Lambda. Sums of blocks of rows add up.
        """
        parts = []
        for left, right in self._pairs():
            alike = left is right
            columns = (weight[:, :, k, None] * d.unsqueeze(1) for k, d in _by_output(right))
            weighted = reduce(torch.add, columns)  # (R, K, H', N)
            terms = (_products(d, weighted[:, k], alike) for k, d in _by_output(left))
            inputs = _products(left.inputs, right.inputs, alike)
            parts.append((reduce(torch.add, terms) @ inputs.mT).flatten(1))
        return torch.cat(parts, 1)

    def gauss_newton(self, packed: Tensor) -> Tensor:
        """The matrices that sums (R, Q) are the entries of, (R, P, P)."""
        p = len(self.places)
        return packed.index_select(1, self.places.flatten()).view(-1, p, p)

    def covariance(self, packed: Tensor) -> Tensor:
        """``J C J'`` of every row, (R, N, K, K), of `pack`ed matrices C (R, Q)."""
        half: Tensor | float = 0.0
        for left, right in self._pairs():
            alike, n, m = left is right, left.slopes.shape[2], right.slopes.shape[2]
            inputs = _products(left.inputs, right.inputs, alike)
            numbers = _numbers(n, m, alike)
            n_units = int(numbers.max()) + 1
            here, packed = packed.tensor_split([n_units * inputs.shape[1]], 1)
            middle = here.unflatten(1, (n_units, -1)) @ inputs  # (R, pairs of units, N)
            if left.slopes.shape[1] == 1:
                d, e = left.slopes[:, 0], right.slopes[:, 0]
                half = half + (middle * _products(d, e, alike)).sum(1)[:, None, None]
                continue
            if alike:
                middle = middle.index_select(1, numbers.flatten().to(middle.device))
                middle = middle * (0.5 + 0.5 * torch.eye(n).to(middle)).flatten().unsqueeze(1)
            middle = middle.unflatten(1, (n, m))
            by_unit = [(middle * d.unsqueeze(1)).sum(2) for _, d in _by_output(right)]
            columns = torch.stack(by_unit, 1)  # (R, K, H, N)
            rows = [(columns * d.unsqueeze(1)).sum(2) for _, d in _by_output(left)]
            half = half + torch.stack(rows, 1)  # (R, K, K, N)
        assert isinstance(half, Tensor)
        return (0.5 * (half + half.transpose(1, 2))).movedim(-1, 1)

    def _pairs(self) -> Iterator[tuple[LayerFactors, LayerFactors]]:
        """Every pair of layers once."""
        for i, left in enumerate(self.layers):
            for right in self.layers[i:]:
                yield left, right


def _by_output(layer: LayerFactors) -> Iterator[tuple[int, Tensor]]:
    """Numbers of the outputs, and the units' slopes (R, H, N)."""
    return enumerate(layer.slopes.unbind(1))
