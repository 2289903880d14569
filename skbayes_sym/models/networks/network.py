"""The network: a layout, a start, a forward pass and the symmetry of its weights."""

from dataclasses import dataclass
from typing import Protocol

import torch
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
        theta, params = position[:, :n_theta], position[:, n_theta:]
        outputs = self.network.forward(theta, self.x)
        likelihood = self.likelihood.at(params.unsqueeze(1))
        return likelihood.log_prob(outputs, self.y) @ self.weight
