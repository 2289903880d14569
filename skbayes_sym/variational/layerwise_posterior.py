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

Scales that are learned are points, like the noise: training maximises the ELBO plus the density of
the log precisions over both, so that the ELBO at the scales found stays a lower bound on
log p(y | scales).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.predictive_mixtures import NormalMixture, Predictive
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.linalg import RidgePosterior
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.runtime import index_tensor
from skbayes_sym.variational.hidden_layers import (
    HiddenPosterior,
    Scale,
    as_tensor,
    per_input,
    with_ones,
)


@dataclass(frozen=True, eq=False)
class LayerwisePrior:
    """Given or learned scales of a network's layers."""

    network: MLP
    scales: GroupScalePrior

    def __post_init__(self) -> None:
        # Scales that are equal now need not stay so: groups are what counts where they move.
        told = self.scales.group.double() if self.scales.is_learned else self.scales.scale
        for weight, bias in self.network.layers(told):
            if not bool((weight == weight[:1]).all() and (bias == bias[:1]).all()):
                raise ValueError(
                    "the prior must be the same for all units of a layer: give a number as "
                    "prior, or one per layer."
                )

    @property
    def start(self) -> Tensor:
        """Log precisions to start from, float64 (G,); none of scales that are given."""
        hyper = self.scales.hyper.double()
        return hyper if self.scales.is_learned else hyper[:0]

    def split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The posterior's parameters, and log precisions, which come last."""
        n = len(params) - len(self.start)
        return params[:n], params[n:]

    def layer_scales(self, hyper: Tensor) -> list[Tensor]:
        """Scales (D + 1,) of every layer's D inputs and, last, its biases."""
        if not self.scales.is_learned:
            return [s.to(hyper) for s in self._given]
        scale = (-0.5 * hyper).exp()
        return [scale[index_tensor(group, hyper)] for group in self._groups]

    @cached_property
    def _groups(self) -> list[tuple[int, ...]]:
        return [tuple(group.tolist()) for group in self._first_unit_scales(self.scales.group)]

    @cached_property
    def _given(self) -> list[Tensor]:
        return self._first_unit_scales(self.scales.scale)

    def _first_unit_scales(self, values: Tensor) -> list[Tensor]:
        layers = self.network.layers(values)
        return [torch.cat([weight[0], bias[:1]]) for weight, bias in layers]


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
        scale = self.prior_scale
        ridge = self.ridge
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
        self, posterior: Layerwise, prior: LayerwisePrior, data: Data, params: Tensor, *,
        n_draws: int, warm_up: int, generator: torch.Generator,
    ) -> None:  # fmt: skip
        self.params, self.gradient = params, torch.zeros_like(params)
        self._posterior = posterior
        self._prior = prior
        self._data = data
        self._n_draws = n_draws
        self._warm_up = warm_up
        self._generator = generator

    def __call__(self, step: int) -> Tensor:
        share = min(1.0, step / self._warm_up) if self._warm_up else 1.0
        temperature = 0.02 + (1.0 - 0.02) * share
        with torch.enable_grad():
            params = self.params.detach().requires_grad_()
            posterior_params, hyper = self._prior.split(params)
            posterior = self._posterior.under(self._prior.layer_scales(hyper))
            likelihood, kl = posterior.terms(
                posterior_params, self._data, self._n_draws, generator=self._generator
            )
            log_hyperprior = self._prior.scales.log_hyperprior(hyper)
            loss = (temperature * kl - likelihood).mean() - log_hyperprior
            (gradient,) = torch.autograd.grad(loss, params)
        self.gradient.copy_(gradient)
        return (kl - likelihood).mean().detach()


@dataclass(frozen=True, eq=False)
class LayerwisePosterior:
    """Posterior over a network's weights, layer by layer.

    It is no `Posterior`: no density is known of weights that it didn't draw itself. ``x``, ``y``,
    ``weight``: training data in scaled units, on which the last layer depends.
    """

    parts: Layerwise
    params: npt.NDArray[Any]  # see `Layerwise.split`
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    weight: npt.NDArray[Any]

    def _given(self, n: int, generator: torch.Generator) -> tuple[list[Tensor], Tensor, LastLayer]:
        """``n`` draws of the hidden layers, their KL, and the last layer given them."""
        params, *rows = (
            torch.as_tensor(array, device=generator.device)
            for array in (self.params, self.x, self.y, self.weight)
        )
        return self.parts.draw(params, Data(*rows), n, generator=generator)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws of all weights in the network's flat order, (n, P), float64."""
        weights, _, last = self._given(n, generator)
        values = {}
        for layer, weight in enumerate([*weights, last.sample(generator=generator)], start=1):
            values[f"W{layer}"], values[f"b{layer}"] = weight[:, :-1].mT, weight[:, -1]
        return self.parts.network.layout.flatten(values)

    def predictor(
        self, n: int, likelihood: Likelihood, *, generator: torch.Generator
    ) -> "LayerwisePredictor":
        """Average over ``n`` draws of the hidden layers and the last layer given them.

        Drawn on the generator's device, so that predictions agree across devices.
        """
        (weights, _, last_layer) = self._given(n, generator)
        to = likelihood.noise_scale.device
        mean, root, prior_scale, complement = last_layer.conditional()
        last = Conditional(mean.to(to), root.to(to), prior_scale.to(to), complement)
        return LayerwisePredictor(self, [w.to(to) for w in weights], last, likelihood)


@dataclass(frozen=True, eq=False)
class LayerwisePredictor(BasePredictor):
    """Averages over S draws of the hidden layers, the last one integrated out."""

    posterior: LayerwisePosterior
    weights: list[Tensor]  # of the hidden layers, (S, D + 1, H)
    last: Conditional
    likelihood: Likelihood

    def distribution(self, x: Tensor) -> Predictive:
        parts = [last.moments(features) for last, features in self._blocks(x.double())]
        mean, variance = (torch.cat(t).to(x) for t in zip(*parts, strict=True))
        return NormalMixture(mean, variance, self.likelihood.noise_scale.square())

    def mean(self, x: Tensor) -> Tensor:
        sums = [(features @ last.mean).sum(0) for last, features in self._blocks(x.double())]
        return (torch.stack(sums).sum(0) / len(self.last.mean)).to(x)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        theta = self.posterior.sample(n, generator=generator).to(x)
        return self.likelihood.predictive(self.posterior.parts.network.forward(theta, x))

    def _blocks(self, x: Tensor) -> Iterator[tuple[Conditional, Tensor]]:
        """The last layer and its inputs (block, N, H + 1), block of draws by block of draws."""
        n = len(self.last.mean)
        network = self.posterior.parts.network
        size = n_rows_per_block(1 << 21, len(x) * self.last.mean.shape[1])  # of features: 16 MB
        for start in range(0, n, size):
            block = slice(start, start + size)
            last = self.last._replace(mean=self.last.mean[block], root=self.last.root[block])
            features = propagate(network, [w[block] for w in self.weights], x)
            yield last, features.expand(len(last.mean), -1, -1)
