r"""Posteriors of a network layer by layer, each conditional on the layers sampled before it.

    q(W_1, ..., W_L) = q(W_1) q(W_2 | W_1) ... q(W_L | W_1, ..., W_{L-1})

By the chain rule the sum of the layers' expected KLs is the KL of the whole, so the ELBO stays a
lower bound whatever the layers know of the ones before. That is what the translation symmetry of
a layer asks for: which directions of its weights the data can't see depends on the *sampled*
activations it gets (Kurle et al. 2022, section 5; their average over activations, eqs. 23 and 25,
is not a posterior).

A layer's weights are a matrix (D + 1, H), the biases in the last row; a layer's inputs get a
column of ones. Its prior scale is one number, or one per input, (D + 1,).

The last layer can be integrated out: the exact posterior given the sampled features,

    ELBO = E_q[log N(y; 0, s^2 Phi Phi' + noise^2 / w)] - KL[q(hidden) || p(hidden)]

with ``Phi`` the sampled features of the training data. Given them the last layer is a Bayesian
linear model, and its posterior (the product of one site per row) abides by the translations that
no row sees. Costs O(N r^2) a draw, r = min(N, H + 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple, Self

import torch
from torch import Tensor

from skbayes_sym.inference.gaussian_vi.hidden_layers import (
    HiddenDraws,
    HiddenPosterior,
    Scale,
    as_tensor,
    per_input,
    with_ones,
)
from skbayes_sym.inference.gaussian_vi.scales import PriorOfLayers
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.gaussian import LOG_2PI, log_normal
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import RidgePosterior


class LayerInputs(NamedTuple):
    """Inputs of the last layer's posterior."""

    params: Tensor  # its variational parameters
    features: Tensor  # inputs of the layer at the data, (S, N, H + 1)
    draws: HiddenDraws
    data: Data
    log_noise: Tensor  # (T,)


class LastLayer:
    """Posterior of the last layer given the hidden ones, as ridge regressions; Gaussian noise.

    ``prior_scale`` is the standard deviation of its weights: one number, or one per input and,
    last, that of the biases.
    """

    prior_scale: Scale

    @property
    def layout(self) -> ParamLayout:
        """Layout of the variational parameters."""
        raise NotImplementedError

    def under(self, prior_scale: Scale) -> Self:
        """The same with another prior scale."""
        return replace(self, prior_scale=prior_scale)  # type: ignore[type-var]

    def start(self, data: Data, *, generator: torch.Generator) -> Tensor:
        raise NotImplementedError

    def ridge(self, inputs: LayerInputs) -> RidgePosterior:
        """Regressions of all targets, (S, T), in units in which noise and prior are standard."""
        raise NotImplementedError

    def elbo(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        """Expected log likelihood, summed by weight, and own KL; (S,) each, nats.

        Their difference is what counts: a layer that is integrated out gives its log evidence
        and 0.
        """
        raise NotImplementedError

    def condition(self, inputs: LayerInputs) -> "Conditional":
        """Posterior given the hidden layers and the training data."""
        return self.conditional(self.ridge(inputs))

    def conditional(self, ridge: RidgePosterior) -> "Conditional":
        """The layer's posterior from its regressions."""
        scale = self.prior_scale
        mean = per_input(scale, ridge.y) * ridge.mean.mT
        return Conditional(mean, ridge.root, as_tensor(scale, ridge.y), ridge.is_wide)

    def sample(self, inputs: LayerInputs, *, generator: torch.Generator) -> Tensor:
        """Last-layer weights (S, H + 1, T), one draw for each of the hidden layers."""
        drawn = self.ridge(inputs).draw(generator=generator).mT
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


@dataclass(frozen=True, eq=False)
class CollapsedLast(LastLayer):
    """The last layer given the hidden ones, exactly."""

    prior_scale: Scale

    @property
    def layout(self) -> ParamLayout:
        return ParamLayout({})

    def start(self, data: Data, *, generator: torch.Generator) -> Tensor:
        return data.x.new_zeros(0)

    def elbo(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        # log N(y; 0, s^2 Phi Phi' + noise^2 / w) a target, copies of a row counted.
        log_ratio = self.ridge(inputs).log_evidence()
        constant = inputs.data.weight.sum() * (LOG_2PI + 2.0 * inputs.log_noise)
        total = (log_ratio - 0.5 * constant).sum(-1)
        return total, torch.zeros_like(total)

    def ridge(self, inputs: LayerInputs) -> RidgePosterior:
        data = inputs.data
        root = data.weight.sqrt() * (-inputs.log_noise).exp().unsqueeze(-1)  # (T, N)
        scaled = inputs.features * as_tensor(self.prior_scale, root)
        return RidgePosterior(scaled.unsqueeze(1), root, root * data.y.T)


@dataclass(frozen=True, eq=False)
class InducingLast(LastLayer):
    """Product-form sites for the last layer, its Gaussian expectation in closed form."""

    prior_scale: Scale
    n_inducing: int
    n_outputs: int

    @property
    def layout(self) -> ParamLayout:
        m, t = self.n_inducing, self.n_outputs
        return ParamLayout({"values": (m, t), "log_gain": (t,), "log_precision": (m,)})

    def start(self, data: Data, *, generator: torch.Generator) -> Tensor:
        """Targets of the rows that `InducingHidden.start` takes with a generator of equal seed.

        Precisions are those of N / M data of noise 0.1 each.
        """
        rows = torch.randperm(len(data.x), generator=generator)[: self.n_inducing]
        values = data.y[rows.to(data.y.device)]
        precision = float(data.weight.sum()) / self.n_inducing / 0.1**2
        return self.layout.flatten({
            "values": values,
            "log_gain": values.new_zeros(self.n_outputs),
            "log_precision": values.new_full((self.n_inducing,), log(precision)),
        })  # fmt: skip

    def ridge(self, inputs: LayerInputs) -> RidgePosterior:
        p = self.layout.unflatten(inputs.params)
        root = (0.5 * (p["log_precision"] + p["log_gain"].unsqueeze(-1))).exp()  # (T, M)
        scaled = inputs.draws.inducing * as_tensor(self.prior_scale, root)
        return RidgePosterior(scaled.unsqueeze(1), root, root * p["values"].T)

    def elbo(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        ridge = self.ridge(inputs)
        mean, variance = self.conditional(ridge).moments(inputs.features)
        squares = (inputs.data.y - mean) ** 2 + variance
        log_prob = log_normal(squares, inputs.log_noise)
        return inputs.data.weight @ log_prob.sum(-1).mT, ridge.kl().sum(-1)


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
    last: LastLayer

    def under(self, prior_scale: Sequence[Scale]) -> "Layerwise":
        """The same with other prior scales, one a layer."""
        *hidden, last = prior_scale
        return self._replace(hidden=self.hidden.under(tuple(hidden)), last=self.last.under(last))

    def split(self, params: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[hidden | last | log noise]``."""
        n, m = self.hidden.layout.n_params, self.last.layout.n_params
        return params[:n], params[n : n + m], params[n + m :]

    def terms(
        self, params: Tensor, data: Data, n_draws: int, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Expected log likelihood and KL of ``n_draws`` draws of the hidden layers, (S,) each.

        Their difference averages to the ELBO. ``data.weight`` is that of the whole data set.
        """
        hidden, last, log_noise = self.split(params)
        draws = self.hidden.draw(hidden, n_draws, generator=generator)
        features = propagate(self.network, draws.weights, data.x).expand(n_draws, -1, -1)
        likelihood, kl = self.last.elbo(LayerInputs(last, features, draws, data, log_noise))
        return likelihood, draws.kl + kl


class LayerwiseElbo:
    """Negative ELBO and its gradient over one flat vector; a `BufferedLoss`.

    The log density of scales that are learned takes part in the gradient only.

    ``batches``: rows of every step; draws come from their generator, too. ``params``: see
    `Layerwise.split`, then log precisions of the prior; read at every call. ``n_draws``: of the
    hidden layers, a step. ``warm_up``: steps over which the KL's weight rises linearly from `_COLD`
    to 1. Without it wide networks can fall into the mode where the hidden weights stay at the
    prior.
    """

    _COLD = 0.02

    def __init__(
        self,
        posterior: Layerwise,
        prior: PriorOfLayers,
        batches: Batches,
        params: Tensor,
        *,
        n_draws: int,
        warm_up: int,
    ) -> None:
        self.params, self.gradient = params, torch.zeros_like(params)
        self._posterior, self._prior, self._batches = posterior, prior, batches
        self._n_draws, self._warm_up = n_draws, warm_up

    def __call__(self, step: int) -> Tensor:
        share = min(1.0, step / self._warm_up) if self._warm_up else 1.0
        temperature = self._COLD + (1.0 - self._COLD) * share
        with torch.enable_grad():
            at = self.params.detach().requires_grad_()
            own, hyper = self._prior.split(at)
            posterior = self._posterior.under(self._prior.of_layers(hyper))
            batch, generator = self._batches.next(), self._batches.generator
            likelihood, kl = posterior.terms(own, batch, self._n_draws, generator=generator)
            log_hyperprior = self._prior.log_hyperprior(hyper)
            loss = (temperature * kl - likelihood).mean() - log_hyperprior
            (gradient,) = torch.autograd.grad(loss, at)
        self.gradient.copy_(gradient)
        return (kl - likelihood).mean().detach()
