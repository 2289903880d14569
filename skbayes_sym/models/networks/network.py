"""The network: layout, start, forward pass, symmetry of its weights, and what a pass records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.group import SymmetryGroup, Trivial


class ChainLikelihood(Protocol):
    """``log p(y | x, theta_c, params_c)`` of C chains, with its gradient.

    A position is ``[theta | params]``, (C, P + likelihood.n_params). One that isn't finite spoils
    its own chain only.
    """

    def value(self, position: Tensor) -> Tensor:
        """Log likelihoods (C,) at ``position`` (C, D), nats; nan or inf where a chain is lost."""

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """Value, (C,); the gradient overwrites ``out`` (C, D)."""


class Network(Protocol):
    """A function of inputs and flat weights ``theta``; it holds no weights itself.

    Of one's own one writes `layout`, `n_outputs`, `init` and `forward` in a frozen dataclass and
    inherits the rest from `BaseNetwork`. `RecordingNetwork` extends it for the Laplace
    approximation.
    """

    @property
    def layout(self) -> ParamLayout: ...

    @property
    def n_outputs(self) -> int: ...

    def init(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` random starting points (n, P), float64."""

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs (*B, N, n_outputs) at ``theta`` (*B, P) and ``x`` (N, *I)."""

    def symmetry(self) -> SymmetryGroup:
        """The transformations of the weights that leave the function unchanged."""

    def chain_likelihood(
        self, likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> ChainLikelihood:
        """The log likelihood of many weight vectors at once, for data that stay."""


class BaseNetwork:
    """Base of one's own network: no symmetry, and derivatives by autograd."""

    def symmetry(self) -> SymmetryGroup:
        return Trivial()

    def chain_likelihood(
        self: Network, likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> ChainLikelihood:
        return AutogradChainLikelihood(self, likelihood.to(x), x, y, weight)


@dataclass(frozen=True, eq=False)
class AutogradChainLikelihood:
    """A `ChainLikelihood` of any network: all chains in one forward pass."""

    network: Network
    likelihood: Likelihood  # with constants of the dtype of the data
    x: Tensor  # (N, *I)
    y: Tensor  # (N, ...)
    weight: Tensor  # (N,); multiplies each row's log likelihood

    def value(self, position: Tensor) -> Tensor:
        with torch.no_grad():
            return self._value(position)

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            leaf = position.detach().clone().requires_grad_()
            value = self._value(leaf)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        out.copy_(slope)
        return value.detach()

    def _value(self, position: Tensor) -> Tensor:
        n_theta = self.network.layout.n_params
        theta = position[:, :n_theta]
        params = position[:, n_theta:]
        outputs = self.network.forward(theta, self.x)
        likelihood = self.likelihood.at(params.unsqueeze(1))
        return likelihood.log_prob(outputs, self.y) @ self.weight


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


def as_differentiable(preactivation: Tensor) -> Tensor:
    """Tensor, made a leaf of the graph if nothing before it asks for gradients."""
    return preactivation if preactivation.requires_grad else preactivation.requires_grad_()
