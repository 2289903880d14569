"""Fully connected networks, their activations, and passes for many weight vectors at once.

Sampling's passes are written by hand. Arrays are (C, width, N): chains, units, rows, the rows
contiguous. All chains share the inputs, so the first layer of all of them is one matrix product

    (C h, p + 1) [W | b]  x  (p + 1, N) [x; 1];

deeper layers are one product a chain. Chains are taken in blocks whose hidden units stay in a
core's L2 cache.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import DataTerm, Likelihood
from skbayes_sym.models.networks.network import Dense, Recording, as_differentiable
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import float64_normal
from skbayes_sym.symmetry.group import Product, SymmetryGroup, Trivial
from skbayes_sym.symmetry.units import Units

Backward = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """An elementwise nonlinearity.

    Parameters
    ----------
    name : str
    function : callable
        Forward map.
    apply_ : callable (z) -> Tensor
        The same in place.
    backward_ : callable (gradient, h) -> Tensor
        Multiplies ``gradient`` by ``f'(z)`` in place, given ``h = f(z)``, all that a layer keeps.
    is_odd : bool
        Whether ``f(-z) = -f(z)``: then the sign of a hidden unit is a symmetry.
    gain : float
        Factor of the initial weights' scale that keeps the variance of the signal (He et al. 2015).
    """

    name: str
    function: Callable[[Tensor], Tensor]
    apply_: Callable[[Tensor], Tensor]
    backward_: Backward
    is_odd: bool
    gain: float = 1.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: functions of torch itself don't pickle."""
        return _by_name, (self.name,)


def _by_name(name: str) -> Activation:
    return ACTIVATIONS[name]


def _identity(z: Tensor) -> Tensor:
    return z


def _relu_backward_(g: Tensor, h: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(g, h, 0, grad_input=g)


def _tanh_backward_(g: Tensor, h: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward.grad_input(g, h, grad_input=g)


def _sigmoid_backward_(g: Tensor, h: Tensor) -> Tensor:
    return torch.ops.aten.sigmoid_backward.grad_input(g, h, grad_input=g)


def _softplus_(z: Tensor) -> Tensor:
    return z.copy_(F.softplus(z))


def _softplus_backward_(g: Tensor, h: Tensor) -> Tensor:
    # f'(z) = sigmoid(z) = 1 - exp(-softplus(z))
    return g.mul_(torch.expm1(-h).neg_())


def _identity_backward_(g: Tensor, h: Tensor) -> Tensor:
    return g


RELU = Activation("relu", torch.relu, torch.relu_, _relu_backward_, False, 2.0**0.5)
TANH = Activation("tanh", torch.tanh, torch.tanh_, _tanh_backward_, True)
SIGMOID = Activation("sigmoid", torch.sigmoid, torch.sigmoid_, _sigmoid_backward_, False)
SOFTPLUS = Activation("softplus", F.softplus, _softplus_, _softplus_backward_, False)
IDENTITY = Activation("identity", _identity, _identity, _identity_backward_, True)

ACTIVATIONS = {a.name: a for a in (RELU, TANH, SIGMOID, SOFTPLUS, IDENTITY)}


# Bytes of the widest layer's units in a block of chains; a pass reads or writes two or three such
# arrays, which is what a core's cache holds. An accelerator wants all chains at once, within its
# memory.
_BLOCK_BYTES = {"cpu": 1 << 20}


class _Unit(NamedTuple):
    """An activation as ``f(z) = outer * base(inner * z) + offset``.

    The three numbers go into weights and inputs, which are tiny beside the hidden units.
    """

    base: Activation
    inner: float = 1.0
    outer: float = 1.0
    offset: float = 0.0

    @property
    def slope(self) -> float:
        """Factor of the derivative beside the base's."""
        return self.inner * self.outer


# tanh(z) = 2 sigmoid(2 z) - 1: torch's float32 tanh takes, from processor to processor, between
# 0.8 and 3.5 times as long as its sigmoid; in float64 1.3 times.
_CHEAPER = {TANH.name: _Unit(SIGMOID, 2.0, 2.0, -1.0)}


class MLPChainLikelihood:
    """The `ChainLikelihood` of an MLP, by hand-written passes.

    ``x`` (N, n_inputs): gives dtype and device; ``y`` (N, n_outputs) or (N,); ``weight`` (N,):
    multiplies each row's log likelihood.

    A position is ``[theta | params]``, (C, P + likelihood.n_params). Scratch arrays and their views
    are kept from call to call (for small networks making them costs more than the arithmetic), one
    set a thread: twice the units of all layers of a block of chains.

    A position that isn't finite spoils its own chain only.
    """

    def __init__(
        self, network: "MLP", likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> None:
        self._arguments = network, likelihood, x, y, weight
        self._problem = _Problem.of(network, likelihood, x, y, weight)
        self._scratch = _Scratch()
        # Chains whose hidden units fit the cache of the processor that holds the inputs.
        n_bytes = _BLOCK_BYTES.get(x.device.type, 1 << 28)
        per_chain = len(x) * max(network.sizes[1:]) * x.element_size()
        self.block_size = max(1, n_bytes // per_chain)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made of: scratch stays behind."""
        return type(self), self._arguments

    def value(self, position: Tensor) -> Tensor:
        """Log likelihoods (C,) at ``position`` (C, D), nats; nan or inf where a chain is lost."""
        with torch.no_grad():
            blocks = self._blocks(position)
            values = [self._passes(len(block)).value(block) for block in blocks]
            return values[0] if len(values) == 1 else torch.cat(values)

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """Value, (C,); the gradient overwrites ``out`` (C, D).

        Cost ``6 N P`` multiplications and about 5 passes over its hidden units a chain.
        """
        value = position.new_empty(len(position))
        with torch.inference_mode():  # spares a twentieth of the time of tensors this small
            blocks = zip(self._blocks(position), self._blocks(out), strict=True)
            values = [self._passes(len(block)).gradient(block, d) for block, d in blocks]
            torch.cat(values, out=value)
        return value

    def _blocks(self, position: Tensor) -> Sequence[Tensor]:
        """Blocks of equal size, but for the last."""
        n_blocks = -(-len(position) // self.block_size)
        return position.split(-(-len(position) // n_blocks)) if n_blocks > 1 else (position,)

    def _passes(self, n_chains: int) -> "_Passes":
        """Passes of this many chains; all share one set of units, for the most chains so far."""
        scratch = self._scratch
        if n_chains not in scratch.passes:
            with torch.inference_mode(False):  # tensors made in that mode can't be reused outside
                if n_chains > scratch.n_chains:
                    x = self._problem.x
                    widths = self._problem.sizes[1:]
                    units, gradients = (  # of all layers, outputs last
                        [x.new_empty(n_chains, width, x.shape[1]) for width in widths]
                        for _ in range(2)
                    )
                    scratch.passes.clear()
                    scratch.units = units
                    scratch.gradients = gradients
                    scratch.n_chains = n_chains  # last: an interrupt may come before
                units, gradients = (
                    [t[:n_chains] for t in arrays] for arrays in (scratch.units, scratch.gradients)
                )
                scratch.passes[n_chains] = _Passes(self._problem, units, gradients)
        return scratch.passes[n_chains]


class _Problem(NamedTuple):
    """The data as the passes take them."""

    sizes: Sequence[int]
    n_params: int  # of the likelihood
    unit: _Unit
    term: DataTerm
    x: Tensor  # (p + 1, N), a row of ones last, times the unit's inner factor
    x_slope: Tensor  # the same times the outer factor too: for the gradient

    @classmethod
    def of(
        cls, network: "MLP", likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> "_Problem":
        unit = _CHEAPER.get(network.activation.name, _Unit(network.activation))
        if not network.hidden_layer_sizes:
            unit = _Unit(network.activation)  # no factors
        term = likelihood.to(x).data_term(y, weight, network.n_outputs)
        x_ones = torch.cat([x.T, x.new_ones(1, len(x))]).contiguous()
        x_scaled = x_ones * unit.inner
        x_slope = x_ones * unit.slope
        return cls(network.sizes, likelihood.n_params, unit, term, x_scaled, x_slope)


class _Layer(NamedTuple):
    """A layer after the first: parameters and derivatives by them, the units around it."""

    weight: Tensor  # (C, out, in)
    weight_turned: Tensor
    bias: Tensor  # (C, out, 1)
    d_weight: Tensor
    d_bias: Tensor
    below: Tensor  # (C, in, N)
    below_turned: Tensor
    above: Tensor  # (C, out, N)
    d_below: Tensor
    d_above: Tensor
    inner: float  # of the units above; 1 for outputs
    slope: float  # of the units below; 1 for the first layer, which has it in its inputs


class _Passes:
    """Passes of a fixed number of chains, all arrays and views made once."""

    def __init__(self, problem: _Problem, units: list[Tensor], gradients: list[Tensor]) -> None:
        self._problem = problem
        self._outputs = units[-1]
        self._d_outputs = gradients[-1]
        n_chains = len(units[0])
        shapes = list(pairwise(problem.sizes))
        lengths = [n for n_in, n_out in shapes for n in (n_in * n_out, n_out)]
        self._position = units[0].new_empty(n_chains, sum(lengths) + problem.n_params)
        *pieces, self._params = self._position.split([*lengths, problem.n_params], 1)
        weights = [w.view(-1, b, a) for w, (a, b) in zip(pieces[0::2], shapes, strict=True)]
        biases = [b.unsqueeze(2) for b in pieces[1::2]]

        self._first_parts = weights[0], biases[0]
        self._first = torch.cat(self._first_parts, 2)
        self._first_flat = self._first.flatten(0, 1)
        self._first_units = units[0].flatten(0, 1)
        self._d_first_units_turned = gradients[0].flatten(0, 1).T
        # (p + 1, C h): in float32 two to three times as fast as its transpose.
        self._d_first = torch.empty_like(self._first_flat.T.contiguous())
        d_first = self._d_first.unflatten(1, (n_chains, -1))
        self._d_first_weight_turned = d_first[:-1].permute(1, 2, 0)
        self._d_first_weight = self._d_first_weight_turned.contiguous()

        self._layers = [
            _Layer(
                weight=weights[i], weight_turned=weights[i].mT, bias=biases[i],
                d_weight=weights[i].new_empty(weights[i].shape),
                d_bias=biases[i].new_empty(biases[i].shape),
                below=units[i - 1], below_turned=units[i - 1].mT, above=units[i],
                d_below=gradients[i - 1], d_above=gradients[i],
                inner=problem.unit.inner if i < len(shapes) - 1 else 1.0,
                slope=problem.unit.slope if i > 1 else 1.0,
            )
            for i in range(1, len(shapes))
        ]  # fmt: skip
        self._d_pieces = [self._d_first_weight.flatten(1), d_first[-1]]
        self._d_pieces += [d.flatten(1) for ly in self._layers for d in (ly.d_weight, ly.d_bias)]

    def value(self, position: Tensor) -> Tensor:
        """Log likelihoods (C,) at ``position`` (C, D)."""
        self._forward(position)
        return self._problem.term.value(self._outputs, self._params)

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """Value, (C,); the gradient overwrites ``out`` (C, D)."""
        self._forward(position)
        term = self._problem.term
        value, d_params = term.gradient(self._outputs, self._params, self._d_outputs)
        self._backward()
        torch.cat([*self._d_pieces, d_params], 1, out=out)
        return value

    def _forward(self, position: Tensor) -> None:
        """Fill the units: hidden ones without outer and offset, then the outputs."""
        unit = self._problem.unit
        self._position.copy_(position)
        torch.cat(self._first_parts, 2, out=self._first)
        torch.mm(self._first_flat, self._problem.x, out=self._first_units)
        for layer in self._layers:
            h = unit.base.apply_(layer.below)
            if unit.offset:
                layer.bias.add_(layer.weight.sum(2, keepdim=True), alpha=unit.offset)
            alpha = layer.inner * unit.outer
            torch.baddbmm(
                layer.bias, layer.weight, h, beta=layer.inner, alpha=alpha, out=layer.above
            )

    def _backward(self) -> None:
        """Carry the gradient by the outputs back to all weights and biases."""
        unit = self._problem.unit
        for layer in reversed(self._layers):
            g = layer.d_above
            weight = layer.weight_turned
            below = layer.d_below
            torch.sum(g, 2, keepdim=True, out=layer.d_bias)
            torch.baddbmm(
                layer.d_bias, g, layer.below_turned, beta=unit.offset, alpha=unit.outer,
                out=layer.d_weight,
            )  # fmt: skip
            if layer.slope != 1.0:
                weight = weight * layer.slope
            if g.shape[1] == 1:
                torch.mul(weight, g, out=below)
            else:
                torch.bmm(weight, g, out=below)
            unit.base.backward_(below, layer.below)
        torch.mm(self._problem.x_slope, self._d_first_units_turned, out=self._d_first)
        self._d_first_weight.copy_(self._d_first_weight_turned)


class _Scratch(threading.local):
    """Units of this thread, and the passes that work on them, by number of chains."""

    def __init__(self) -> None:
        self.n_chains = 0
        self.units: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.passes: dict[int, _Passes] = {}


@dataclass(frozen=True)
class MLP:
    """Fully connected network.

    Computes ``x -> W_L f(... f(W_1 x + b_1) ...) + b_L``.

    Parameters
    ----------
    n_inputs : int
    hidden_layer_sizes : tuple of int
        Widths of the hidden layers; empty for a linear model.
    n_outputs : int
    activation : Activation
        Applied after every layer but the last.

    Notes
    -----
    The flat ``theta`` holds, layer by layer, ``W`` (out x in, row-major), then ``b``.
    """

    n_inputs: int
    hidden_layer_sizes: tuple[int, ...]
    n_outputs: int
    activation: Activation

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of all layers, inputs and outputs included."""
        return (self.n_inputs, *self.hidden_layer_sizes, self.n_outputs)

    @property
    def n_layers(self) -> int:
        """Number of weight matrices."""
        return len(self.hidden_layer_sizes) + 1

    @cached_property
    def layout(self) -> ParamLayout:
        """Names ``W1, b1, ..., WL, bL`` and their shapes."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (n_in, n_out) in enumerate(pairwise(self.sizes), start=1):
            shapes[f"W{layer}"] = (n_out, n_in)
            shapes[f"b{layer}"] = (n_out,)
        return ParamLayout(shapes)

    def layers(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Views ``(W, b)`` of every layer, shapes (*B, out, in) and (*B, out)."""
        params = self.layout.unflatten(theta)
        return [(params[f"W{i}"], params[f"b{i}"]) for i in range(1, self.n_layers + 1)]

    def init(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` random starting points (n, P), float64: normal, variance gain^2 / fan-in.

        Biases start normal too: equal units would be a stationary point of the gap.
        """
        shape = (n, self.layout.n_params)
        theta = float64_normal(shape, generator=generator)
        for i, (weight, bias) in enumerate(self.layers(theta), start=1):
            gain = self.activation.gain if i < self.n_layers else 1.0
            weight *= gain / max(weight.shape[-1], 1) ** 0.5
            bias *= 0.1
        return theta

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs (*B, N, n_outputs) at ``theta`` (*B, P) and ``x`` (N, n_inputs)."""
        flat = theta.reshape(-1, theta.shape[-1])
        is_followed = torch.is_grad_enabled() and (theta.requires_grad or x.requires_grad)
        activation = self.activation.function if is_followed else self.activation.apply_
        h = x.T.expand(len(flat), -1, -1)
        for i, (weight, bias) in enumerate(self.layers(flat), start=1):
            h = torch.baddbmm(bias.unsqueeze(2), weight, h)
            if i < self.n_layers:
                h = activation(h)
        return h.mT.unflatten(0, theta.shape[:-1]) if theta.ndim > 1 else h[0].mT

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.n_inputs,)

    @cached_property
    def weight_layers(self) -> tuple[Dense, ...]:
        """The linear layers, first to last."""
        return tuple(Dense(f"W{i}", f"b{i}") for i in range(1, self.n_layers + 1))

    def record(self, theta: Tensor, x: Tensor) -> Recording:
        """Forward pass of ``x`` (M, n_inputs) at one ``theta`` (P,), with its intermediates."""
        h = x
        inputs = []
        preactivations = []
        layers = self.layers(theta)
        for i, (weight, bias) in enumerate(layers, start=1):
            inputs.append(h)
            preactivations.append(as_differentiable(F.linear(h, weight, bias)))
            h = preactivations[-1]
            if i < self.n_layers:
                h = self.activation.function(h)
        head = layers[-1][0] if self.n_layers > 1 else None
        return Recording(h, inputs, preactivations, head)

    def symmetry(self, *, signed: bool | None = None) -> SymmetryGroup:
        """The group of weight transformations that leave the function unchanged, a factor a layer.

        ``signed``: whether to include sign flips of hidden units, by default where the activation
        is odd. Raises ValueError if flips are asked for and it isn't.
        """
        if signed is None:
            signed = self.activation.is_odd
        if signed and not self.activation.is_odd:
            raise ValueError(
                f"sign flips are no symmetry of {self.activation.name!r} units: they need an odd "
                "activation (tanh, identity). Use symmetry='permutation' or 'auto'."
            )
        where = self.layout.positions
        groups = []
        for i in range(1, self.n_layers):
            bias = where(f"b{i}").unsqueeze(1)
            entries = torch.cat([where(f"W{i}"), bias, where(f"W{i + 1}").T], dim=1)
            groups.append(Units(entries, flip=signed))
        return Product(tuple(groups)) if groups else Trivial()

    def chain_likelihood(
        self, likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> MLPChainLikelihood:
        """The log likelihood of many weight vectors at once, by hand-written passes."""
        return MLPChainLikelihood(self, likelihood, x, y, weight)
