"""Hand-written passes for many parameter vectors of one MLP at once: the fast path of sampling.

Arrays are (C, width, N): chains, units, rows, with the rows contiguous. All chains share the
inputs, so the first layer of all of them is one matrix product

    (C h, p + 1) [W | b]  x  (p + 1, N) [x; 1];

deeper layers are one product a chain. Chains are taken in blocks whose hidden units stay in a
core's L2 cache.
"""

import threading
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.activations import SIGMOID, TANH, Activation

if TYPE_CHECKING:  # an MLP makes these
    from skbayes_sym.models.networks.mlp import MLP

# Bytes of the widest layer's units in a block of chains; a pass reads or writes two or three such
# arrays, which is what a core's cache holds. An accelerator wants all chains at once, within its
# memory.
_BLOCK_BYTES = {"cpu": 1 << 19}
_ACCELERATOR_BYTES = 1 << 28

# torch.bmm leaves BLAS below so many multiplications a matrix, for loops four times as slow as
# elementwise passes.
_SMALLEST_BLAS = 400


class _Unit(NamedTuple):
    """An activation as ``f(z) = outer * base(inner * z) + offset``.

    The three numbers go into weights and inputs, which are tiny beside the hidden units.
    """

    base: Activation
    inner: float = 1.0
    outer: float = 1.0
    offset: float = 0.0


# tanh(z) = 2 sigmoid(2 z) - 1: torch's float32 tanh takes, from processor to processor, between
# 0.8 and 3.5 times as long as its sigmoid; in float64 1.3 times.
_CHEAPER = {TANH.name: _Unit(SIGMOID, 2.0, 2.0, -1.0)}


class MLPChainLikelihood:
    """The `ChainLikelihood` of an MLP, by hand-written passes.

    Parameters
    ----------
    network : MLP
    likelihood : Likelihood
    x : Tensor of shape (N, n_inputs)
        Gives dtype and device.
    y : Tensor of shape (N, n_outputs) or (N,)
    weight : Tensor of shape (N,)
        Multiplies each row's log likelihood.

    Notes
    -----
    A position is ``[theta | params]``, (C, P + likelihood.n_params). Scratch arrays are kept from
    call to call (a fresh array an operation costs more in page faults than the arithmetic it
    holds), one set a thread: twice the units of all layers of a block of chains.

    A position that isn't finite spoils its own chain only.
    """

    def __init__(
        self, network: "MLP", likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> None:
        self._arguments = network, likelihood, x, y, weight
        self._network = network
        self._unit = _CHEAPER.get(network.activation.name, _Unit(network.activation))
        self._term = likelihood.to(x).given(y, weight, network.n_outputs)
        self._x = torch.cat([x.T, x.new_ones(1, len(x))]).contiguous()
        self._slope = x.new_tensor(self._unit.inner * self._unit.outer)
        deep = bool(network.hidden_layer_sizes)
        self._x_scaled = self._x * self._unit.inner if deep else self._x
        self._x_slope = self._x * self._slope if deep else self._x
        self._shapes = [(-1, n_out, n_in) for n_in, n_out in pairwise(network.sizes)]
        self._sizes = [prod(shape) for shape in network.layout.shapes.values()]
        self._sizes.append(likelihood.n_params)
        self._is_tiny = network.n_outputs == 1 and network.sizes[-2] * len(x) < _SMALLEST_BLAS
        self._scratch = _Scratch()
        self.block_size = chains_per_block(network, x)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made of: scratch stays behind."""
        return type(self), self._arguments

    def value(self, position: Tensor) -> Tensor:
        """Log likelihoods (C,) at ``position`` (C, D), nats; nan or inf where a chain is lost."""
        with torch.no_grad():
            first, deeper, params = self._parameters(position)
            values = []
            for rows in self._blocks(len(position)):
                at = self._arrays(rows)
                self._forward(first[rows], [layer.of(rows) for layer in deeper], at)
                values.append(self._term.value(at.layers[-1], params[rows]))
            return torch.cat(values)

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """The same; the gradient overwrites ``out`` (C, D).

        Cost ``6 N P`` multiplications and about 5 passes over its hidden units a chain.
        """
        with torch.no_grad():
            first, deeper, params = self._parameters(position)
            d_deeper = [_Affine(*map(torch.empty_like, layer)) for layer in deeper]
            d_first, values, d_params = [], [], []
            for rows in self._blocks(len(position)):
                at, layers = self._arrays(rows), [layer.of(rows) for layer in deeper]
                self._forward(first[rows], layers, at)
                value, d_own = self._term.gradient(at.layers[-1], params[rows], at.gradients[-1])
                values.append(value)
                d_params.append(d_own)
                d_first.append(self._backward(layers, [d.of(rows) for d in d_deeper], at))
            self._join(d_first, d_deeper, d_params, out)
            return torch.cat(values)

    def _parameters(self, position: Tensor) -> tuple[Tensor, list["_Affine"], Tensor]:
        """First layer as [W | b], the others with the offset of their inputs added to b; params."""
        pieces, unit = position.split(self._sizes, 1), self._unit
        weights = [w.view(shape) for w, shape in zip(pieces[0::2], self._shapes, strict=False)]
        biases = [b.unsqueeze(2) for b in pieces[1::2]]
        first = torch.cat([weights[0], biases[0]], 2)
        if unit.offset:
            for i, weight in enumerate(weights[1:], start=1):
                biases[i] = torch.add(biases[i], weight.sum(2, keepdim=True), alpha=unit.offset)
        return first, list(map(_Affine, weights[1:], biases[1:])), pieces[-1]

    def _forward(self, first: Tensor, deeper: list["_Affine"], at: "_Arrays") -> None:
        """Fill ``at.layers``: hidden units (without outer and offset), then the outputs."""
        unit, last = self._unit, len(deeper)
        torch.mm(first.view(-1, len(self._x)), self._x_scaled, out=at.layers[0].flatten(0, 1))
        for i, (weight, bias) in enumerate(deeper, start=1):
            h, out = unit.base.apply_(at.layers[i - 1]), at.layers[i]
            inner = unit.inner if i < last else 1.0
            if i == last and self._is_tiny:
                products = torch.mul(weight.mT, h, out=at.gradients[i - 1])
                torch.sum(products, 1, keepdim=True, out=out)
                torch.add(bias, out, alpha=unit.outer, out=out)
            else:
                torch.baddbmm(bias, weight, h, beta=inner, alpha=inner * unit.outer, out=out)

    def _backward(
        self, deeper: list["_Affine"], d_deeper: list["_Affine"], at: "_Arrays"
    ) -> Tensor:
        """Carry ``at.gradients[-1]`` back to the inputs; returns d[W | b] of the first layer.

        That is (p + 1, C h): in float32 two to three times as fast as its transpose.
        """
        unit = self._unit
        for i in range(len(deeper), 0, -1):
            g, h, below = at.gradients[i], at.layers[i - 1], at.gradients[i - 1]
            weight, (d_weight, d_bias) = deeper[i - 1].weight.mT, d_deeper[i - 1]
            torch.sum(g, 2, keepdim=True, out=d_bias)
            torch.baddbmm(d_bias, g, h.mT, beta=unit.offset, alpha=unit.outer, out=d_weight)
            if i > 1:  # the first layer's slope is in its inputs
                weight = weight * self._slope
            if g.shape[1] == 1:
                torch.mul(weight, g, out=below)
            else:
                torch.bmm(weight, g, out=below)
            unit.base.backward_(below, h)
        return torch.mm(self._x_slope, at.gradients[0].flatten(0, 1).T)

    def _join(
        self,
        d_first: list[Tensor],
        d_deeper: list["_Affine"],
        d_params: list[Tensor],
        out: Tensor,
    ) -> None:
        """The gradient (C, D) in the order of a position."""
        first = torch.cat(d_first, 1).unflatten(1, (-1, self._shapes[0][1]))
        pieces = [first[:-1].permute(1, 2, 0).flatten(1), first[-1]]
        pieces += [t.flatten(1) for layer in d_deeper for t in layer]
        torch.cat([*pieces, torch.cat(d_params)], 1, out=out)

    def _blocks(self, n_chains: int) -> Iterator[slice]:
        """Blocks of equal size, but for the last."""
        n_blocks = max(1, -(-n_chains // self.block_size))
        size = max(1, -(-n_chains // n_blocks))
        return (slice(i, min(i + size, n_chains)) for i in range(0, n_chains, size))

    def _arrays(self, rows: slice) -> "_Arrays":
        """Scratch for these chains: views of one set of arrays, for as many as ever were asked."""
        views, n_chains = self._scratch.views, rows.stop - rows.start
        if n_chains not in views:
            largest = max(views, default=0)
            if n_chains > largest:
                views.clear()
                views[n_chains] = _allocate(self._network, n_chains, self._x)
            else:
                layers, gradients = views[largest]
                views[n_chains] = _Arrays(
                    [t[:n_chains] for t in layers], [t[:n_chains] for t in gradients]
                )
        return views[n_chains]


class _Affine(NamedTuple):
    """A layer's parameters, or the derivatives by them."""

    weight: Tensor  # (C, out, in)
    bias: Tensor  # (C, out, 1)

    def of(self, rows: slice) -> "_Affine":
        return _Affine(self.weight[rows], self.bias[rows])


class _Arrays(NamedTuple):
    """Scratch of a block: every layer's units, outputs last, and the gradients by them."""

    layers: list[Tensor]  # (C, width, N) each
    gradients: list[Tensor]


class _Scratch(threading.local):
    """Arrays of this thread, by number of chains."""

    def __init__(self) -> None:
        self.views: dict[int, _Arrays] = {}


def _allocate(network: "MLP", n_chains: int, x: Tensor) -> _Arrays:
    with torch.inference_mode(False):  # tensors made in that mode could not be reused outside
        shapes = [(n_chains, width, x.shape[1]) for width in network.sizes[1:]]
        layers = [x.new_empty(shape) for shape in shapes]
        return _Arrays(layers, [torch.empty_like(t) for t in layers])


def chains_per_block(network: "MLP", x: Tensor) -> int:
    """Chains whose hidden units fit the cache of the processor that holds the inputs."""
    n_bytes = _BLOCK_BYTES.get(x.device.type, _ACCELERATOR_BYTES)
    return max(1, n_bytes // (len(x) * max(network.sizes[1:]) * x.element_size()))
