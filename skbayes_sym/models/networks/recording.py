"""Recordings of one forward pass: inputs and pre-activations of its weight layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.models.networks.network import Network


@dataclass(frozen=True)
class Dense:
    """A linear layer z = W a + b on vectors: one position."""

    weight: str  # name of W in the layout
    bias: str | None
    # Cost of recording a training step, in training steps, by
    # `asv_bench/studies/compare_updates.py`, "online, every step".
    recording_cost: ClassVar[float] = 0.6

    def patches(self, inputs: Tensor) -> Tensor:
        """Inputs (M, *I) as the vectors that W multiplies, (M, T, D)."""
        return inputs.unsqueeze(1)

    def positions(self, gradient: Tensor) -> Tensor:
        """A gradient of the pre-activations as (M, T, G)."""
        return gradient.unsqueeze(1)


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional convolution: one position a pixel of its output, with shared weights."""

    weight: str
    bias: str | None
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    recording_cost: ClassVar[float] = 1.75

    def patches(self, inputs: Tensor) -> Tensor:
        geometry = self.kernel_size, self.dilation, self.padding, self.stride
        return F.unfold(inputs, *geometry).mT

    def positions(self, gradient: Tensor) -> Tensor:
        return gradient.flatten(2).mT


WeightLayer = Dense | Convolution


class Recording(NamedTuple):
    """Forward pass of M inputs; everything is differentiable in its pre-activations."""

    outputs: Tensor  # (M, O)
    inputs: list[Tensor]  # of each weight layer, (M, *I)
    preactivations: list[Tensor]  # (M, *Z)
    # W (O, H) of the last layer, if outputs = W phi(z) + b with an elementwise phi of the
    # pre-activations z (M, H) of the layer before it; else None.
    head: Tensor | None = None


@runtime_checkable
class RecordingNetwork(Network, Protocol):
    """A network that can be recorded, at one flat ``theta`` (P,)."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def weight_layers(self) -> Sequence[WeightLayer]:
        """In the order of the forward pass."""

    def record(self, theta: Tensor, x: Tensor) -> Recording: ...


def differentiable(preactivation: Tensor) -> Tensor:
    """Tensor, made a leaf of the graph if nothing before it asks for gradients."""
    return preactivation if preactivation.requires_grad else preactivation.requires_grad_()
