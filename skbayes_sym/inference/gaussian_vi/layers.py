r"""Posteriors of a network layer by layer, each conditional on the layers sampled before it.

    q(W_1, ..., W_L) = q(W_1) q(W_2 | W_1) ... q(W_L | W_1, ..., W_{L-1})

By the chain rule the sum of the layers' expected KLs is the KL of the whole, so the ELBO stays a
lower bound whatever the layers know of the ones before. That is what the translation symmetry of
a layer asks for: which directions of its weights the data can't see depends on the *sampled*
activations it gets (Kurle et al. 2022, section 5; their average over activations, eqs. 23 and 25,
is not a posterior).

A layer's weights are a matrix (D + 1, H), the biases in the last row; a layer's inputs get a
column of ones. Its prior scale is one number, or one per input, (D + 1,).

The last layer is integrated out: its exact posterior given the sampled features,

    ELBO = E_q[log N(y; 0, s^2 Phi Phi' + noise^2 / w)] - KL[q(hidden) || p(hidden)]

with ``Phi`` the sampled features of the training data. Given them the last layer is a Bayesian
linear model, and its posterior (the product of one site per row) abides by the translations that
no row sees. Costs O(N r^2) a draw, r = min(N, H + 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.gaussian_vi.hidden_layers import (
    HiddenPosterior,
    Scale,
    as_tensor,
    per_input,
    with_ones,
)
from skbayes_sym.inference.gaussian_vi.scales import PriorOfLayers
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.linalg import RidgePosterior


@dataclass(frozen=True, eq=False)
class LastLayer:
    """Posterior of the last layer given the hidden ones: ridge regressions, Gaussian noise.

    ``prior_scale`` is the standard deviation of its weights: one number, or one per input and,
    last, that of the biases.
    """

    prior_scale: Scale
    features: Tensor  # inputs of the layer at the data, (S, N, H + 1)
    data: Data
    log_noise: Tensor  # (T,)

    @cached_property
    def ridge(self) -> RidgePosterior:
        """Regressions of all targets, (S, T), in units in which noise and prior are standard."""
        data = self.data
        root = data.weight.sqrt() * (-self.log_noise).exp().unsqueeze(-1)  # (T, N)
        scaled = self.features * as_tensor(self.prior_scale, root)
        return RidgePosterior(scaled.unsqueeze(1), root, root * data.y.T)

    def log_evidence(self) -> Tensor:
        """``log N(y; 0, s^2 Phi Phi' + noise^2 / w)`` of all targets, copies of a row counted."""
        constant = self.data.weight.sum() * (LOG_2PI + 2.0 * self.log_noise)
        return (self.ridge.log_evidence() - 0.5 * constant).sum(-1)

    def conditional(self) -> "Conditional":
        """Normal posteriors of the layer's weights."""
        scale, ridge = self.prior_scale, self.ridge
        mean = per_input(scale, ridge.y) * ridge.mean.mT
        return Conditional(mean, ridge.root, as_tensor(scale, ridge.y), ridge.is_wide)

    def sample(self, *, generator: torch.Generator) -> Tensor:
        """Weights (S, H + 1, T), one draw for each of the hidden layers."""
        drawn = self.ridge.draw(generator=generator).mT
        return per_input(self.prior_scale, drawn) * drawn


class Conditional(NamedTuple):
    """Normal posteriors of the last layer's weights, one a draw of the hidden layers.

    The variance of an output at features ``phi`` is ``|root z|^2`` with ``z = prior_scale phi``, or
    with ``complement`` what that leaves of the prior: ``|z|^2 - |root z|^2``.
    """

    mean: Tensor  # (S, H + 1, T)
    root: Tensor  # (S, T, r, H + 1)
    prior_scale: Tensor  # () or (H + 1,)
    complement: bool

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs at features (S, N, H + 1), (S, N, T)."""
        scaled = features * self.prior_scale
        seen = ((self.root @ scaled.mT.unsqueeze(1)) ** 2).sum(-2).mT
        if self.complement:
            seen = ((scaled**2).sum(-1, keepdim=True) - seen).clamp_min(0.0)
        return features @ self.mean, seen


def propagate(network: MLP, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Inputs of the last layer, (S, N, H + 1), for hidden weights (S, D + 1, H) and x (N, D)."""
    h = with_ones(x)
    for weight in weights:
        h = with_ones(network.activation.function(h @ weight))
    return h


class Layerwise(NamedTuple):
    """A network's posterior: its parts, and how their parameters lie in one vector."""

    network: MLP
    hidden: HiddenPosterior
    last_scale: Scale  # of the last layer's prior

    def under(self, prior_scale: Sequence[Scale]) -> "Layerwise":
        """The same with other prior scales, one a layer."""
        *hidden, last = prior_scale
        return self._replace(
            hidden=replace(self.hidden, prior_scale=tuple(hidden)), last_scale=last
        )

    def split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """``[hidden | log noise]``."""
        n = self.hidden.layout.n_params
        return params[:n], params[n:]

    def draw(
        self, params: Tensor, data: Data, n: int, *, generator: torch.Generator
    ) -> tuple[list[Tensor], Tensor, LastLayer]:
        """``n`` draws of the hidden layers, their KL (S,), and the last layer given them."""
        hidden, log_noise = self.split(params)
        weights, kl = self.hidden.draw(hidden, n, generator=generator)
        features = propagate(self.network, weights, data.x).expand(n, -1, -1)
        return weights, kl, LastLayer(self.last_scale, features, data, log_noise)

    def terms(
        self, params: Tensor, data: Data, n_draws: int, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Log evidence given ``n_draws`` draws of the hidden layers, and their KL, (S,) each.

        Their difference averages to the ELBO.
        """
        _, kl, last = self.draw(params, data, n_draws, generator=generator)
        return last.log_evidence(), kl


class LayerwiseElbo:
    """Negative ELBO and its gradient over one flat vector; a `BufferedLoss`.

    The log density of scales that are learned takes part in the gradient only.

    ``params``: see `Layerwise.split`, then log precisions of the prior; read at every call.
    ``n_draws``: of the hidden layers, a step. ``warm_up``: steps over which the KL's weight rises
    linearly from .02 to 1. Without it wide networks can fall into the mode where the hidden weights
    stay at the prior.
    """

    def __init__(
        self,
        posterior: Layerwise,
        prior: PriorOfLayers,
        data: Data,
        params: Tensor,
        *,
        n_draws: int,
        warm_up: int,
        generator: torch.Generator,
    ) -> None:
        self.params, self.gradient = params, torch.zeros_like(params)
        self._posterior, self._prior, self._data = posterior, prior, data
        self._n_draws, self._warm_up, self._generator = n_draws, warm_up, generator

    def __call__(self, step: int) -> Tensor:
        share = min(1.0, step / self._warm_up) if self._warm_up else 1.0
        temperature = 0.02 + (1.0 - 0.02) * share
        with torch.enable_grad():
            at = self.params.detach().requires_grad_()
            own, hyper = self._prior.split(at)
            posterior = self._posterior.under(self._prior.of_layers(hyper))
            likelihood, kl = posterior.terms(
                own, self._data, self._n_draws, generator=self._generator
            )
            log_hyperprior = self._prior.log_hyperprior(hyper)
            loss = (temperature * kl - likelihood).mean() - log_hyperprior
            (gradient,) = torch.autograd.grad(loss, at)
        self.gradient.copy_(gradient)
        return (kl - likelihood).mean().detach()
