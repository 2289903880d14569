"""The interface of networks: parameter layout, initialisation, forward pass and weight symmetry.

`RecordingNetwork` adds what a Laplace approximation needs: the weight layers of a forward pass.
"""

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

    A position is ``[theta | params]``, (C, P + likelihood.n_params). If the position of a chain
    isn't finite, the other chains are unaffected.
    """

    def value(self, position: Tensor) -> Tensor:
        """Return log likelihoods (C,) at ``position`` (C, D); nan or inf for diverged chains."""

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """Return the value (C,) and write the gradient to ``out`` (C, D)."""


class Network(Protocol):
    """A function of inputs and flat weights ``theta``, which aren't stored in it.

    A new network is a frozen dataclass that inherits from `BaseNetwork` and defines `layout`,
    `n_outputs`, `init` and `forward`. `RecordingNetwork` extends the interface for the Laplace
    approximation.
    """

    @property
    def layout(self) -> ParamLayout:
        """Names and shapes of the parameters in ``theta``."""

    @property
    def n_outputs(self) -> int:
        """Number of outputs O."""

    def init(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` starting points, (n, P), float64."""

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return outputs (*B, N, n_outputs) at ``theta`` (*B, P) and ``x`` (N, *I)."""

    def symmetry(self) -> SymmetryGroup:
        """Return the group of weight transformations that don't change the function."""

    def chain_likelihood(
        self, likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> ChainLikelihood:
        """Return the log likelihood of many weight vectors for fixed data.

        Parameters
        ----------
        likelihood : Likelihood
            Distribution of the targets given the outputs.
        x, y : Tensor
            Inputs (N, *I) and targets of the N rows.
        weight : Tensor of shape (N,)
            Weights of the rows.
        """


class BaseNetwork:
    """Base class of new networks: trivial symmetry, and derivatives by autograd."""

    def symmetry(self) -> SymmetryGroup:
        """Return the trivial group."""
        return Trivial()

    def chain_likelihood(
        self: Network, likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> ChainLikelihood:
        """Return the log likelihood of many weight vectors, differentiated by autograd.

        Parameters
        ----------
        likelihood : Likelihood
            Likelihood of the targets.
        x : Tensor of shape (N, *I)
            Inputs.
        y : Tensor
            Targets (N, T), or class indices (N,).
        weight : Tensor of shape (N,)
            Sample weights.
        """
        return AutogradChainLikelihood(self, likelihood.to(x), x, y, weight)


@dataclass(frozen=True, eq=False)
class AutogradChainLikelihood:
    """A `ChainLikelihood` of any network, with one forward pass for all chains."""

    network: Network
    likelihood: Likelihood  # its constants have the dtype of the data
    x: Tensor  # (N, *I)
    y: Tensor  # (N, ...)
    weight: Tensor  # (N,); multiplies each row's log likelihood

    def value(self, position: Tensor) -> Tensor:
        """Return log likelihoods (C,) in nats at ``position`` (C, D)."""
        with torch.no_grad():
            return self._value(position)

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """Return the value (C,) and write the gradient to ``out`` (C, D)."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = position.detach().clone().requires_grad_()
            value = self._value(leaf)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        out.copy_(slope)
        return value.detach()

    def _value(self, position: Tensor) -> Tensor:
        """Return log likelihoods (C,), differentiable."""
        n_theta = self.network.layout.n_params
        theta = position[:, :n_theta]
        params = position[:, n_theta:]
        outputs = self.network.forward(theta, self.x)
        likelihood = self.likelihood.at(params.unsqueeze(1))
        return likelihood.log_prob(outputs, self.y) @ self.weight


@dataclass(frozen=True)
class Dense:
    """Linear layer ``z = W a + b`` on vectors, which has one position.

    Parameters
    ----------
    weight : str
        Name of W in the layout.
    bias : str or None
        Name of b.
    """

    weight: str
    bias: str | None
    # Cost of recording a training step, in units of a training step, as measured by
    # `asv_bench/studies/compare_updates.py`, "online, every step".
    recording_cost: ClassVar[float] = 0.6

    def patches(self, inputs: Tensor) -> Tensor:
        """Return inputs (M, *I) as the vectors that W multiplies, (M, T, D)."""
        return inputs.unsqueeze(1)

    def positions(self, gradient: Tensor) -> Tensor:
        """Return a gradient with respect to the pre-activations as (M, T, G)."""
        return gradient.unsqueeze(1)


@dataclass(frozen=True)
class Convolution:
    """Two-dimensional convolution, which has one position per output pixel and shared weights.

    Parameters
    ----------
    weight : str
        Name of the kernel in the layout.
    bias : str or None
        Name of the bias.
    kernel_size, stride, padding, dilation : (int, int)
        As in `torch.nn.Conv2d`.
    """

    weight: str
    bias: str | None
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    recording_cost: ClassVar[float] = 1.75

    def patches(self, inputs: Tensor) -> Tensor:
        """Return inputs (M, *I) as the patches that the kernel multiplies, (M, T, D)."""
        geometry = self.kernel_size, self.dilation, self.padding, self.stride
        return F.unfold(inputs, *geometry).mT

    def positions(self, gradient: Tensor) -> Tensor:
        """Return a gradient with respect to the pre-activations as (M, T, G)."""
        return gradient.flatten(2).mT


WeightLayer = Dense | Convolution


class Recording(NamedTuple):
    """Forward pass of M inputs, differentiable with respect to its pre-activations.

    Attributes
    ----------
    outputs : Tensor of shape (M, O)
        Outputs.
    inputs : list of Tensor of shape (M, *I)
        Inputs of each weight layer.
    preactivations : list of Tensor of shape (M, *Z)
        Pre-activations of each weight layer.
    head : Tensor of shape (O, H), optional
        Weights W of the last layer if ``outputs = W phi(z) + b``, where phi is elementwise and z
        (M, H) are the pre-activations of the layer before. Otherwise None.
    """

    outputs: Tensor
    inputs: list[Tensor]
    preactivations: list[Tensor]
    head: Tensor | None = None


@runtime_checkable
class RecordingNetwork(Network, Protocol):
    """Network whose weight layers can be recorded at one flat ``theta`` (P,)."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def weight_layers(self) -> Sequence[WeightLayer]:
        """Weight layers in the order of the forward pass."""

    def record(self, theta: Tensor, x: Tensor) -> Recording:
        """Return the forward pass of ``x`` (M, *I) at ``theta`` (P,), with intermediates."""


def as_differentiable(preactivation: Tensor) -> Tensor:
    """Return a tensor that requires gradients, a leaf if it has no graph yet."""
    if preactivation.requires_grad:
        return preactivation
    return preactivation.requires_grad_()
