"""Recordings of one forward pass: inputs and pre-activations of its weight layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.models.networks.base import Network


class WeightLayer(Protocol):
    """A layer z = W a + b, at one position or at many with shared weights."""

    @property
    def weight(self) -> str:
        """Name of W in the layout."""

    @property
    def bias(self) -> str | None:
        """Name of b in the layout."""

    @property
    def recording_cost(self) -> float:
        """Cost of recording a training step, in training steps."""

    def patches(self, inputs: Tensor) -> Tensor:
        """Inputs (M, *I) as the vectors that W multiplies, (M, T, D)."""

    def positions(self, gradient: Tensor) -> Tensor:
        """A gradient of the pre-activations as (M, T, G)."""


@dataclass(frozen=True)
class Dense:
    """A linear layer on vectors: one position."""

    weight: str
    bias: str | None

    @property
    def recording_cost(self) -> float:
        return 0.6  # `asv_bench/studies/compare_updates.py`, "online, every step"

    def patches(self, inputs: Tensor) -> Tensor:
        return inputs.unsqueeze(1)

    def positions(self, gradient: Tensor) -> Tensor:
        return gradient.unsqueeze(1)


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional convolution: one position a pixel of its output."""

    weight: str
    bias: str | None
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def recording_cost(self) -> float:
        return 1.75  # the same

    def patches(self, inputs: Tensor) -> Tensor:
        return F.unfold(
            inputs, self.kernel_size, self.dilation, self.padding, self.stride
        ).mT  # fmt: skip

    def positions(self, gradient: Tensor) -> Tensor:
        return gradient.flatten(2).mT


class Recording(NamedTuple):
    """Forward pass of M inputs; everything is differentiable in its pre-activations."""

    outputs: Tensor  # (M, O)
    inputs: list[Tensor]  # of each weight layer, (M, *I)
    preactivations: list[Tensor]  # (M, *Z)
    # W (O, H) of the last layer, if outputs = W phi(z) + b with an elementwise phi of the
    # pre-activations z (M, H) of the layer before it; else None.
    head: Tensor | None = None


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
