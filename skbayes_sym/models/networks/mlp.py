"""Fully connected networks, their activations, and passes for many weight vectors at once.

The passes for sampling are hand-written. Arrays are (C, width, N): chains, units and rows, with
contiguous rows. All chains share the inputs, so the first layer of all chains is one matrix product

    (C h, p + 1) [W | b]  x  (p + 1, N) [x; 1].

Deeper layers are one product per chain. Chains are processed in blocks whose hidden units stay in
the L2 cache of a core.
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
        Name, by which it is pickled.
    function : callable (z) -> Tensor
        Forward map.
    apply_ : callable (z) -> Tensor
        Forward map in place.
    backward_ : callable (gradient, h) -> Tensor
        Multiplies ``gradient`` by ``f'(z)`` in place, given ``h = f(z)``.
    is_odd : bool
        Whether ``f(-z) = -f(z)``. The sign of a hidden unit is then a symmetry.
    gain : float
        Factor of the scale of initial weights that preserves the variance of the signal (He et al.
        2015).
    is_homogeneous : bool
        Whether ``f(s z) = s f(z)`` for ``s > 0``. Rescaling of a hidden unit is then a symmetry.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    apply_: Callable[[Tensor], Tensor]
    backward_: Backward
    is_odd: bool
    gain: float = 1.0
    is_homogeneous: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: functions of torch itself don't pickle."""
        return _by_name, (self.name,)


def _by_name(name: str) -> Activation:
    """Return the activation with this name."""
    return ACTIVATIONS[name]


def _identity(z: Tensor) -> Tensor:
    """Return the argument."""
    return z


def _relu_backward_(g: Tensor, h: Tensor) -> Tensor:
    """Multiply a gradient by the derivative of the rectifier, in place."""
    return torch.ops.aten.threshold_backward.grad_input(g, h, 0, grad_input=g)


def _tanh_backward_(g: Tensor, h: Tensor) -> Tensor:
    """Multiply a gradient by the derivative of tanh, in place."""
    return torch.ops.aten.tanh_backward.grad_input(g, h, grad_input=g)


def _sigmoid_backward_(g: Tensor, h: Tensor) -> Tensor:
    """Multiply a gradient by the derivative of the sigmoid, in place."""
    return torch.ops.aten.sigmoid_backward.grad_input(g, h, grad_input=g)


def _softplus_(z: Tensor) -> Tensor:
    """Apply softplus in place."""
    return z.copy_(F.softplus(z))


def _softplus_backward_(g: Tensor, h: Tensor) -> Tensor:
    """Multiply a gradient by the derivative of softplus, in place."""
    # f'(z) = sigmoid(z) = 1 - exp(-softplus(z))
    return g.mul_(torch.expm1(-h).neg_())


def _identity_backward_(g: Tensor, h: Tensor) -> Tensor:  # noqa: ARG001
    """Return the gradient."""
    return g


RELU = Activation("relu", torch.relu, torch.relu_, _relu_backward_, False, 2.0**0.5, True)
TANH = Activation("tanh", torch.tanh, torch.tanh_, _tanh_backward_, True)
SIGMOID = Activation("sigmoid", torch.sigmoid, torch.sigmoid_, _sigmoid_backward_, False)
SOFTPLUS = Activation("softplus", F.softplus, _softplus_, _softplus_backward_, False)
IDENTITY = Activation("identity", _identity, _identity, _identity_backward_, True, 1.0, True)

ACTIVATIONS = {a.name: a for a in (RELU, TANH, SIGMOID, SOFTPLUS, IDENTITY)}


# Bytes of the widest layer's units in a block of chains. A pass reads or writes two or three such
# arrays, which fit into the cache of a core. An accelerator is fastest with all chains at once, as
# far as memory allows.
_BLOCK_BYTES = {"cpu": 1 << 20}


class _Unit(NamedTuple):
    """An activation written as ``f(z) = outer * base(inner * z) + offset``.

    The three numbers are absorbed by weights and inputs, which are small arrays compared with the
    hidden units.
    """

    base: Activation
    inner: float = 1.0
    outer: float = 1.0
    offset: float = 0.0

    @property
    def slope(self) -> float:
        """Factor of the derivative relative to that of the base."""
        return self.inner * self.outer


# tanh(z) = 2 sigmoid(2 z) - 1. Depending on the processor, torch's tanh takes 0.8 to 3.5 times as
# long as its sigmoid in float32, and 1.3 times in float64.
_CHEAPER_UNITS = {TANH.name: _Unit(SIGMOID, 2.0, 2.0, -1.0)}


class MLPChainLikelihood:
    """The `ChainLikelihood` of an MLP, by hand-written passes.

    A position is ``[theta | params]``, (C, P + likelihood.n_params). If the position of a chain
    isn't finite, the other chains are unaffected.

    Parameters
    ----------
    network : MLP
        The network.
    likelihood : Likelihood
        Distribution of the targets given the outputs.
    x : Tensor of shape (N, n_inputs)
        Inputs, which determine dtype and device.
    y : Tensor of shape (N, n_outputs) or (N,)
        Targets.
    weight : Tensor of shape (N,)
        Weights of the rows.

    Notes
    -----
    Scratch arrays and their views are reused between calls, since for small networks allocating
    them costs more than the arithmetic. Each thread has its own, of twice the size of all units of
    a block of chains.
    """

    def __init__(
        self, network: "MLP", likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> None:
        self._arguments = network, likelihood, x, y, weight
        self._problem = _Problem.prepare(network, likelihood, x, y, weight)
        self._scratch = _Scratch()
        # The hidden units of this many chains fit into the cache of the device.
        n_bytes = _BLOCK_BYTES.get(x.device.type, 1 << 28)
        per_chain = len(x) * max(network.sizes[1:]) * x.element_size()
        self.block_size = max(1, n_bytes // per_chain)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, without scratch arrays."""
        return type(self), self._arguments

    def value(self, position: Tensor) -> Tensor:
        """Return log likelihoods (C,) at ``position`` (C, D); nan or inf for diverged chains."""
        with torch.no_grad():
            blocks = self._blocks(position)
            values = [self._passes(len(block)).value(block) for block in blocks]
            if len(values) == 1:
                return values[0]
            return torch.cat(values)

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """Return the value (C,) and write the gradient to ``out`` (C, D).

        The cost per chain is ``6 N P`` multiplications and about 5 passes over the hidden units.
        """
        value = position.new_empty(len(position))
        with torch.inference_mode():  # saves 5 % of the time for tensors this small
            blocks = zip(self._blocks(position), self._blocks(out), strict=True)
            values = [self._passes(len(block)).gradient(block, d) for block, d in blocks]
            torch.cat(values, out=value)
        return value

    def _blocks(self, position: Tensor) -> Sequence[Tensor]:
        """Split positions into blocks of equal size, except for the last."""
        n_blocks = -(-len(position) // self.block_size)
        if n_blocks > 1:
            return position.split(-(-len(position) // n_blocks))
        return (position,)

    def _passes(self, n_chains: int) -> "_Passes":
        """Return the passes for a number of chains.

        All passes share one set of units, which is allocated for the largest number of chains so
        far.
        """
        scratch = self._scratch
        if n_chains not in scratch.passes:
            with torch.inference_mode(False):  # other tensors couldn't be reused outside that mode
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
                    scratch.n_chains = n_chains  # last, in case of an interrupt
                units, gradients = (
                    [t[:n_chains] for t in arrays] for arrays in (scratch.units, scratch.gradients)
                )
                scratch.passes[n_chains] = _Passes(self._problem, units, gradients)
        return scratch.passes[n_chains]


class _Problem(NamedTuple):
    """Data and constants of the passes."""

    sizes: Sequence[int]
    n_params: int  # parameters of the likelihood
    unit: _Unit
    term: DataTerm
    x: Tensor  # (p + 1, N), inputs and a row of ones, times the unit's inner factor
    x_slope: Tensor  # the same times the outer factor as well, for the gradient

    @classmethod
    def prepare(
        cls, network: "MLP", likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> "_Problem":
        """Prepare the data for the passes.

        Parameters
        ----------
        network : MLP
            Network.
        likelihood : Likelihood
            Likelihood of the targets.
        x : Tensor of shape (N, D)
            Inputs.
        y : Tensor
            Targets (N, T), or class indices (N,).
        weight : Tensor of shape (N,)
            Sample weights.
        """
        unit = _CHEAPER_UNITS.get(network.activation.name, _Unit(network.activation))
        if not network.hidden_layer_sizes:
            unit = _Unit(network.activation)  # no factors
        term = likelihood.to(x).data_term(y, weight, network.n_outputs)
        x_ones = torch.cat([x.T, x.new_ones(1, len(x))]).contiguous()
        x_scaled = x_ones * unit.inner
        x_slope = x_ones * unit.slope
        return cls(network.sizes, likelihood.n_params, unit, term, x_scaled, x_slope)


class _Layer(NamedTuple):
    """A layer after the first: its parameters, their derivatives, and the units around it."""

    weight: Tensor  # (C, out, in)
    weight_transposed: Tensor
    bias: Tensor  # (C, out, 1)
    d_weight: Tensor
    d_bias: Tensor
    below: Tensor  # (C, in, N)
    below_transposed: Tensor
    above: Tensor  # (C, out, N)
    d_below: Tensor
    d_above: Tensor
    inner: float  # inner factor of the units above; 1 for outputs
    slope: float  # slope of the units below; 1 if the inputs contain it


class _Passes:
    """Passes for a fixed number of chains, with preallocated arrays and views."""

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
        self._d_first_units_transposed = gradients[0].flatten(0, 1).T
        # The layout (p + 1, C h) is two to three times as fast as its transpose in float32.
        self._d_first = torch.empty_like(self._first_flat.T.contiguous())
        d_first = self._d_first.unflatten(1, (n_chains, -1))
        self._d_first_weight_transposed = d_first[:-1].permute(1, 2, 0)
        self._d_first_weight = self._d_first_weight_transposed.contiguous()

        self._layers = [
            _Layer(
                weight=weights[i], weight_transposed=weights[i].mT, bias=biases[i],
                d_weight=weights[i].new_empty(weights[i].shape),
                d_bias=biases[i].new_empty(biases[i].shape),
                below=units[i - 1], below_transposed=units[i - 1].mT, above=units[i],
                d_below=gradients[i - 1], d_above=gradients[i],
                inner=problem.unit.inner if i < len(shapes) - 1 else 1.0,
                slope=problem.unit.slope if i > 1 else 1.0,
            )
            for i in range(1, len(shapes))
        ]  # fmt: skip
        self._d_pieces = [self._d_first_weight.flatten(1), d_first[-1]]
        self._d_pieces += [d.flatten(1) for ly in self._layers for d in (ly.d_weight, ly.d_bias)]

    def value(self, position: Tensor) -> Tensor:
        """Return log likelihoods (C,) at ``position`` (C, D)."""
        self._forward(position)
        return self._problem.term.value(self._outputs, self._params)

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """Return the value (C,) and write the gradient to ``out`` (C, D)."""
        self._forward(position)
        term = self._problem.term
        value, d_params = term.gradient(self._outputs, self._params, self._d_outputs)
        self._backward()
        torch.cat([*self._d_pieces, d_params], 1, out=out)
        return value

    def _forward(self, position: Tensor) -> None:
        """Compute hidden units, without outer factor and offset, and outputs."""
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
        """Propagate the gradient from the outputs to all weights and biases."""
        unit = self._problem.unit
        for layer in reversed(self._layers):
            g = layer.d_above
            weight = layer.weight_transposed
            below = layer.d_below
            torch.sum(g, 2, keepdim=True, out=layer.d_bias)
            torch.baddbmm(
                layer.d_bias, g, layer.below_transposed, beta=unit.offset, alpha=unit.outer,
                out=layer.d_weight,
            )  # fmt: skip
            if layer.slope != 1.0:
                weight = weight * layer.slope
            if g.shape[1] == 1:
                torch.mul(weight, g, out=below)
            else:
                torch.bmm(weight, g, out=below)
            unit.base.backward_(below, layer.below)
        torch.mm(self._problem.x_slope, self._d_first_units_transposed, out=self._d_first)
        self._d_first_weight.copy_(self._d_first_weight_transposed)


class _Scratch(threading.local):
    """Units of one thread, and the passes that use them, by number of chains."""

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
        Number of inputs.
    hidden_layer_sizes : tuple of int
        Widths of the hidden layers; empty for a linear model.
    n_outputs : int
        Number of outputs.
    activation : Activation
        Nonlinearity after every layer but the last.

    Notes
    -----
    The flat ``theta`` contains, layer by layer, ``W`` (out x in, row-major), then ``b``.
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
        """Return views ``(W, b)`` of each layer, with shapes (*B, out, in) and (*B, out)."""
        params = self.layout.unflatten(theta)
        return [(params[f"W{i}"], params[f"b{i}"]) for i in range(1, self.n_layers + 1)]

    def init(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` starting points (n, P), float64: normal, with variance gain^2 / fan-in.

        Biases are also random, since equal units would be a stationary point of the symmetrisation
        gap.
        """
        shape = (n, self.layout.n_params)
        theta = float64_normal(shape, generator=generator)
        for i, (weight, bias) in enumerate(self.layers(theta), start=1):
            if i < self.n_layers:
                gain = self.activation.gain
            else:
                gain = 1.0
            weight *= gain / max(weight.shape[-1], 1) ** 0.5
            bias *= 0.1
        return theta

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return outputs (*B, N, n_outputs) at ``theta`` (*B, P) and ``x`` (N, n_inputs)."""
        flat = theta.reshape(-1, theta.shape[-1])
        # Activations can be applied in place if no gradient is needed.
        has_gradient = torch.is_grad_enabled() and (theta.requires_grad or x.requires_grad)
        if has_gradient:
            activation = self.activation.function
        else:
            activation = self.activation.apply_
        h = x.T.expand(len(flat), -1, -1)
        for i, (weight, bias) in enumerate(self.layers(flat), start=1):
            h = torch.baddbmm(bias.unsqueeze(2), weight, h)
            if i < self.n_layers:
                h = activation(h)
        if theta.ndim == 1:
            return h[0].mT
        return h.mT.unflatten(0, theta.shape[:-1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.n_inputs,)

    @cached_property
    def weight_layers(self) -> tuple[Dense, ...]:
        """The linear layers, first to last."""
        return tuple(Dense(f"W{i}", f"b{i}") for i in range(1, self.n_layers + 1))

    def record(self, theta: Tensor, x: Tensor) -> Recording:
        """Return the forward pass of ``x`` (M, n_inputs) at ``theta`` (P,), with intermediates."""
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
        """Return the group of weight transformations that don't change the function.

        It has one factor per hidden layer.

        Parameters
        ----------
        signed : bool, optional
            Whether to include sign flips of hidden units. By default they are included if the
            activation is odd.

        Raises
        ------
        ValueError
            If ``signed`` is true and the activation isn't odd.
        """
        if signed is None:
            signed = self.activation.is_odd
        if signed and not self.activation.is_odd:
            raise ValueError(
                f"sign flips are no symmetry of {self.activation.name!r} units: they need an odd "
                "activation (tanh, identity). Use symmetry='permutation' or 'auto'."
            )
        index = self.layout.positions
        groups = []
        for i in range(1, self.n_layers):
            bias = index(f"b{i}").unsqueeze(1)
            entries = torch.cat([index(f"W{i}"), bias, index(f"W{i + 1}").T], dim=1)
            groups.append(Units(entries, flip=signed))
        if groups:
            return Product(tuple(groups))
        return Trivial()

    def chain_likelihood(
        self, likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> MLPChainLikelihood:
        """Return the log likelihood of many weight vectors, by hand-written passes.

        Parameters
        ----------
        likelihood : Likelihood
            Likelihood of the targets.
        x : Tensor of shape (N, D)
            Inputs.
        y : Tensor
            Targets (N, T), or class indices (N,).
        weight : Tensor of shape (N,)
            Sample weights.
        """
        return MLPChainLikelihood(self, likelihood, x, y, weight)
