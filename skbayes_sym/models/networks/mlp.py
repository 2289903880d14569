"""Networks: a layout, a forward pass, an initialisation and the symmetry they declare."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.activations import Activation
from skbayes_sym.models.networks.mlp_batched import MLPChainLikelihood
from skbayes_sym.models.networks.recording import Dense, Recording, differentiable
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import float64_normal
from skbayes_sym.symmetry.group import Product, SymmetryGroup, Trivial
from skbayes_sym.symmetry.units import Units


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
        h = x
        for i, (weight, bias) in enumerate(self.layers(theta), start=1):
            h = h @ weight.mT + bias.unsqueeze(-2)
            if i < self.n_layers:
                h = self.activation.function(h)
        return h

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
        h, inputs, preactivations = x, [], []
        layers = self.layers(theta)
        for i, (weight, bias) in enumerate(layers, start=1):
            inputs.append(h)
            preactivations.append(differentiable(F.linear(h, weight, bias)))
            h = preactivations[-1]
            if i < self.n_layers:
                h = self.activation.function(h)
        head = layers[-1][0] if self.n_layers > 1 else None
        return Recording(h, inputs, preactivations, head)

    def symmetry(self, *, signed: bool | None = None) -> SymmetryGroup:
        """The group of weight transformations that leave the function unchanged.

        Parameters
        ----------
        signed : bool, optional
            Whether to include sign flips of hidden units; by default where the activation is odd.

        Returns
        -------
        SymmetryGroup
            One factor a hidden layer; `Trivial` without hidden layers.

        Raises
        ------
        ValueError
            If flips are asked for and the activation isn't odd.
        """
        if signed is None:
            signed = self.activation.is_odd
        if signed and not self.activation.is_odd:
            raise ValueError(
                f"sign flips are no symmetry of {self.activation.name!r} units: they need an odd "
                "activation (tanh, identity). Use symmetry='permutation' or 'auto'."
            )
        groups = tuple(Units(self._units(i), flip=signed) for i in range(1, self.n_layers))
        return Product(groups) if groups else Trivial()

    def chain_likelihood(
        self, likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> MLPChainLikelihood:
        """The log likelihood of many weight vectors at once, by hand-written passes."""
        return MLPChainLikelihood(self, likelihood, x, y, weight)

    def _units(self, layer: int) -> Tensor:
        """Positions of the incoming weights, bias and outgoing weights of each hidden unit."""
        where = self.layout.positions
        incoming, bias = where(f"W{layer}"), where(f"b{layer}").unsqueeze(1)
        return torch.cat([incoming, bias, where(f"W{layer + 1}").T], dim=1)
