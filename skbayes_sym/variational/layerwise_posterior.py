r"""Posteriors of a network layer by layer, each conditional on the sampled layers before it.

    q(W_1, ..., W_L) = q(W_1) q(W_2 | W_1) ... q(W_L | W_1, ..., W_{L-1})

By the chain rule the expected KL divergences of the layers add up to the KL divergence of the
joint posterior. The ELBO is therefore a lower bound however a layer's posterior depends on the
layers before it. The translation symmetry of a layer requires such a dependence: the null space of
a layer's weights depends on the *sampled* activations that the layer receives (Kurle et al. 2022,
section 5). Their average over activations, eqs. 23 and 25, is not a posterior.

A layer's weights are a matrix (D + 1, H) with the biases in the last row, and its inputs get a
column of ones. Its prior scale is one number, or one per input, (D + 1,).

The last layer is integrated out, with its exact posterior given the sampled features:

    ELBO = E_q[log N(y; 0, s^2 Phi Phi' + noise^2 / w)] - KL[q(hidden) || p(hidden)]

Here ``Phi`` are the sampled features of the training data. Given them the last layer is a Bayesian
linear model. Its posterior, the product of one site per row, is invariant to translations in the
null space of the features. A draw costs O(N r^2), where r = min(N, H + 1).

Learned scales are point estimates, like the noise. Training maximises the ELBO plus the log density
of the log precisions, so that the ELBO at the learned scales is a lower bound on
log p(y | scales).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.noise_levels import HalfTPrior
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
    append_ones,
    as_column,
    as_tensor,
)
from skbayes_sym.variational.noise import draw_likelihoods


@dataclass(frozen=True, eq=False)
class LayerwisePrior:
    """Fixed or learned prior scales of a network's layers.

    Parameters
    ----------
    network : MLP
        Network.
    scales : GroupScalePrior
        Prior of the network's weights.

    Raises
    ------
    ValueError
        If the prior isn't the same for all units of a layer.
    """

    network: MLP
    scales: GroupScalePrior

    def __post_init__(self) -> None:
        # Learned scales that are equal now can differ later, so their groups are compared.
        if self.scales.is_learned:
            values = self.scales.group.double()
        else:
            values = self.scales.scale
        for weight, bias in self.network.layers(values):
            if not bool((weight == weight[:1]).all() and (bias == bias[:1]).all()):
                raise ValueError(
                    "the prior must be the same for all units of a layer: give a number as "
                    "prior, or one per layer."
                )

    @property
    def start(self) -> Tensor:
        """Initial log precisions, float64 (G,); empty if the scales are fixed."""
        hyper = self.scales.hyper.double()
        return hyper if self.scales.is_learned else hyper[:0]

    def split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Split a vector into the posterior's parameters and, last, the log precisions."""
        n = len(params) - len(self.start)
        return params[:n], params[n:]

    def layer_scales(self, hyper: Tensor) -> list[Tensor]:
        """Scales (D + 1,) of every layer's D inputs and, last, its biases."""
        if not self.scales.is_learned:
            return [s.to(hyper) for s in self._fixed_scales]
        scale = (-0.5 * hyper).exp()
        return [scale[index_tensor(group, hyper)] for group in self._groups]

    @cached_property
    def _groups(self) -> list[tuple[int, ...]]:
        """Group of each input's weights, by layer."""
        return [tuple(group.tolist()) for group in self._first_unit(self.scales.group)]

    @cached_property
    def _fixed_scales(self) -> list[Tensor]:
        """Scale of each input's weights, by layer."""
        return self._first_unit(self.scales.scale)

    def _first_unit(self, values: Tensor) -> list[Tensor]:
        """Values (D + 1,) of the first unit's weights and bias, by layer."""
        layers = self.network.layers(values)
        return [torch.cat([weight[0], bias[:1]]) for weight, bias in layers]


@dataclass(frozen=True, eq=False)
class LastLayer:
    """Posterior of the last layer given the hidden ones: ridge regressions with normal noise.

    Parameters
    ----------
    prior_scale : Scale
        Prior standard deviation of the weights: one number, or one per input and, last, one for
        the biases.
    features : Tensor of shape (S, N, H + 1)
        Inputs of the layer at the training data.
    data : Data
        Training data.
    log_noise : Tensor of shape (T,)
        Log standard deviations of the noise.
    """

    prior_scale: Scale
    features: Tensor
    data: Data
    log_noise: Tensor

    @cached_property
    def ridge(self) -> RidgePosterior:
        """Regressions of all targets, (S, T), in units in which noise and prior are standard."""
        data = self.data
        root = data.weight.sqrt() * (-self.log_noise).exp().unsqueeze(-1)  # (T, N)
        scaled = self.features * as_tensor(self.prior_scale, root)
        return RidgePosterior(scaled.unsqueeze(1), root, root * data.y.T)

    def log_evidence(self) -> Tensor:
        """``log N(y; 0, s^2 Phi Phi' + noise^2 / w)``, summed over targets, (S,) nats.

        A row of weight w counts as w copies.
        """
        constant = self.data.weight.sum() * (LOG_2PI + 2.0 * self.log_noise)
        return (self.ridge.log_evidence() - 0.5 * constant).sum(-1)

    def conditional(self) -> "LastLayerPosterior":
        """Normal posteriors of the layer's weights."""
        scale = self.prior_scale
        ridge = self.ridge
        mean = as_column(scale, ridge.y) * ridge.mean.mT
        return LastLayerPosterior(mean, ridge.root, as_tensor(scale, ridge.y), ridge.is_wide)

    def sample(self, *, generator: torch.Generator) -> Tensor:
        """Weights (S, H + 1, T), one draw for each draw of the hidden layers."""
        draw = self.ridge.draw(generator=generator).mT
        return as_column(self.prior_scale, draw) * draw


class LastLayerPosterior(NamedTuple):
    """Normal posteriors of the last layer's weights, one for each draw of the hidden layers.

    With ``z = prior_scale phi``, the variance of an output at features ``phi`` is ``|root z|^2``,
    or ``|z|^2 - |root z|^2`` if ``is_complement``.

    Attributes
    ----------
    mean : Tensor of shape (S, H + 1, T)
        Means of the weights.
    root : Tensor of shape (S, T, r, H + 1)
        Roots of the covariance, or of what the data subtract from the prior's covariance.
    prior_scale : Tensor of shape () or (H + 1,)
        Prior standard deviation.
    is_complement : bool
        Whether ``root`` is that of the subtracted part.
    """

    mean: Tensor
    root: Tensor
    prior_scale: Tensor
    is_complement: bool

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs at features (S, N, H + 1), each (S, N, T)."""
        scaled = features * self.prior_scale
        variance = ((self.root @ scaled.mT.unsqueeze(1)) ** 2).sum(-2).mT
        if self.is_complement:
            variance = ((scaled**2).sum(-1, keepdim=True) - variance).clamp_min(0.0)
        return features @ self.mean, variance


def propagate(network: MLP, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Inputs of the last layer, (S, N, H + 1), for hidden weights (S, D + 1, H) and x (N, D)."""
    h = append_ones(x)
    for weight in weights:
        h = append_ones(network.activation.function(h @ weight))
    return h


class LayerwiseFamily(NamedTuple):
    """Variational family of a network's weights, and the layout of its parameters.

    Attributes
    ----------
    network : MLP
        Network.
    hidden : HiddenPosterior
        Posteriors of the hidden layers.
    last_scale : Scale
        Prior standard deviation of the last layer's weights.
    """

    network: MLP
    hidden: HiddenPosterior
    last_scale: Scale

    def with_prior_scale(self, prior_scale: Sequence[Scale]) -> "LayerwiseFamily":
        """Return the family under other prior scales, one for each layer."""
        *hidden, last = prior_scale
        return self._replace(
            hidden=replace(self.hidden, prior_scale=tuple(hidden)), last_scale=last
        )

    def split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Split a vector into ``[hidden | log noise]``."""
        n = self.hidden.layout.n_params
        return params[:n], params[n:]

    def draw(
        self, params: Tensor, data: Data, n: int, *, generator: torch.Generator
    ) -> tuple[list[Tensor], Tensor, LastLayer]:
        """Draw the hidden layers and condition the last layer on them.

        Parameters
        ----------
        params : Tensor
            Variational parameters, see `split`.
        data : Data
            Training data.
        n : int
            Number S of draws.
        generator : torch.Generator
            Source of randomness.

        Returns
        -------
        weights : list of Tensor
            Weights (S, D + 1, H) of the hidden layers.
        kl : Tensor of shape (S,)
            Their KL divergences from the prior, nats.
        last : LastLayer
            Posterior of the last layer for each draw.
        """
        hidden, _ = self.split(params)
        weights, kl = self.hidden.draw(hidden, n, generator=generator)
        return weights, kl, self.last_layer(params, weights, data, n)

    def last_layer(
        self, params: Tensor, weights: Sequence[Tensor], data: Data, n: int
    ) -> LastLayer:
        """Condition the last layer on draws of the hidden layers.

        Parameters
        ----------
        params : Tensor
            Variational parameters, see `split`.
        weights : sequence of Tensor
            Weights (S, D + 1, H) of the hidden layers.
        data : Data
            Training data.
        n : int
            Number S of draws.
        """
        _, log_noise = self.split(params)
        features = propagate(self.network, weights, data.x).expand(n, -1, -1)
        return LastLayer(self.last_scale, features, data, log_noise)

    def elbo_terms(
        self, params: Tensor, data: Data, n_draws: int, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Terms whose difference averages to the ELBO.

        Parameters
        ----------
        params : Tensor
            Variational parameters, see `split`.
        data : Data
            Training data.
        n_draws : int
            Number S of draws of the hidden layers.
        generator : torch.Generator
            Source of randomness.

        Returns
        -------
        log_evidence : Tensor of shape (S,)
            Log evidence given each draw, nats.
        kl : Tensor of shape (S,)
            KL divergence of the hidden layers, nats.
        """
        _, kl, last = self.draw(params, data, n_draws, generator=generator)
        return last.log_evidence(), kl


class LayerwiseElbo:
    """Negative ELBO and its gradient over one flat vector; a `BufferedLoss`.

    The log densities of learned scales and of the noise contribute to the gradient but not to the
    loss.

    Parameters
    ----------
    family : LayerwiseFamily
        Variational family.
    prior : LayerwisePrior
        Prior scales.
    data : Data
        Training data in float64.
    params : Tensor
        Vector of `LayerwiseFamily.split`, then the log precisions of the prior. It is read at
        every call.
    n_draws : int
        Number of draws of the hidden layers per step.
    warm_up : int
        Number of steps over which the weight of the KL rises linearly from 0.02 to 1. Without it
        wide networks can end in the mode where the hidden weights stay at the prior.
    generator : torch.Generator
        Source of randomness.
    noise_prior : HalfTPrior, optional
        Prior of the noise level. It is flat by default.
    """

    def __init__(
        self,
        family: LayerwiseFamily,
        prior: LayerwisePrior,
        data: Data,
        params: Tensor,
        *,
        n_draws: int,
        warm_up: int,
        generator: torch.Generator,
        noise_prior: HalfTPrior | None = None,
    ) -> None:
        self.params = params
        self.gradient = torch.zeros_like(params)
        self._family = family
        self._prior = prior
        self._data = data
        self._n_draws = n_draws
        self._warm_up = warm_up
        self._generator = generator
        self._noise_prior = noise_prior

    def __call__(self, step: int) -> Tensor:
        """Return the loss in nats and write the gradient."""
        if self._warm_up:
            progress = min(1.0, step / self._warm_up)
        else:
            progress = 1.0
        kl_weight = 0.02 + (1.0 - 0.02) * progress
        with torch.enable_grad():
            params = self.params.detach().requires_grad_()
            variational, hyper = self._prior.split(params)
            family = self._family.with_prior_scale(self._prior.layer_scales(hyper))
            log_evidence, kl = family.elbo_terms(
                variational, self._data, self._n_draws, generator=self._generator
            )
            log_prior = self._prior.scales.log_hyperprior(hyper)
            if self._noise_prior is not None:
                log_noise = family.split(variational)[1]
                log_prior = log_prior + self._noise_prior.log_density(log_noise).sum()
            loss = (kl_weight * kl - log_evidence).mean() - log_prior
            (gradient,) = torch.autograd.grad(loss, params)
        self.gradient.copy_(gradient)
        return (kl - log_evidence).mean().detach()


@dataclass(frozen=True, eq=False)
class LayerwisePosterior:
    """Posterior over a network's weights, layer by layer.

    It isn't a `Posterior`, because the density is only known of weights that it has drawn.

    Attributes
    ----------
    family : LayerwiseFamily
        Variational family under the learned prior scales.
    params : ndarray
        Variational parameters, see `LayerwiseFamily.split`.
    x : ndarray of shape (N, D)
        Training inputs in scaled units, on which the last layer depends.
    y : ndarray of shape (N, T)
        Training targets in scaled units.
    weight : ndarray of shape (N,)
        Sample weights.
    """

    family: LayerwiseFamily
    params: npt.NDArray[Any]
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    weight: npt.NDArray[Any]

    def _draw(
        self, n: int, generator: torch.Generator
    ) -> tuple[list[Tensor], Iterator[tuple[slice, LastLayer]]]:
        """Draw the hidden layers, and yield blocks of the draws with the last layer given them.

        The features of all training rows are held for one block at a time.
        """
        params, *rows = (
            torch.as_tensor(array, device=generator.device)
            for array in (self.params, self.x, self.y, self.weight)
        )
        family = self.family
        hidden, _ = family.split(params)
        weights, _ = family.hidden.draw(hidden, n, generator=generator)

        def condition() -> Iterator[tuple[slice, LastLayer]]:
            for block in _draw_blocks(n, len(self.x) * (family.network.sizes[-2] + 1)):
                size = len(range(*block.indices(n)))
                hidden_weights = [w[block] for w in weights]
                yield block, family.last_layer(params, hidden_weights, Data(*rows), size)

        return weights, condition()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws of all weights in the network's flat order, (n, P), float64."""
        weights, last_layers = self._draw(n, generator)
        last_weight = torch.cat([last.sample(generator=generator) for _, last in last_layers])
        values = {}
        for layer, weight in enumerate([*weights, last_weight], start=1):
            values[f"W{layer}"] = weight[:, :-1].mT
            values[f"b{layer}"] = weight[:, -1]
        return self.family.network.layout.flatten(values)

    def predictor(
        self, n: int, likelihood: Likelihood, *, generator: torch.Generator
    ) -> "LayerwisePredictor":
        """Predictor that averages over ``n`` draws of the hidden layers.

        Weights are drawn on the generator's device, so that predictions agree across devices.
        """
        weights, last_layers = self._draw(n, generator)
        device = likelihood.noise_scale.device
        n_rows, n_targets = self.y.shape
        n_inputs = self.family.network.sizes[-2] + 1
        # Allocated first: results between large temporary arrays would keep their memory from
        # being used again.
        dtype = torch.as_tensor(self.params).dtype
        mean = torch.empty(n, n_inputs, n_targets, dtype=dtype, device=device)
        shape = n, n_targets, min(n_rows, n_inputs), n_inputs
        root = torch.empty(shape, dtype=dtype, device=device)
        for block, last_layer in last_layers:
            conditional = last_layer.conditional()
            mean[block] = conditional.mean.to(device)
            root[block] = conditional.root.to(device)
        last = LastLayerPosterior(
            mean, root, conditional.prior_scale.to(device), conditional.is_complement
        )
        return LayerwisePredictor(self, [w.to(device) for w in weights], last, likelihood)


def _draw_blocks(n_draws: int, n_features: int) -> Iterator[slice]:
    """Yield slices of draws whose features, so many numbers for each draw, take about 16 MB."""
    size = n_rows_per_block(1 << 21, n_features)
    for start in range(0, n_draws, size):
        yield slice(start, start + size)


@dataclass(frozen=True, eq=False)
class LayerwisePredictor(BasePredictor):
    """Predictions averaged over S draws of the hidden layers, with the last one integrated out.

    Attributes
    ----------
    posterior : LayerwisePosterior
        Posterior of the weights.
    weights : list of Tensor
        Draws of the hidden weights, (S, D + 1, H).
    last : LastLayerPosterior
        Posterior of the last layer for each draw.
    likelihood : Likelihood
        Likelihood at its fitted parameters.
    """

    posterior: LayerwisePosterior
    weights: list[Tensor]
    last: LastLayerPosterior
    likelihood: Likelihood

    def distribution(self, x: Tensor) -> Predictive:
        """Predictive distribution at inputs (N, D)."""
        moments = [last.moments(features) for last, features in self._blocks(x.double())]
        mean, variance = (torch.cat(t).to(x) for t in zip(*moments, strict=True))
        return NormalMixture(mean, variance, self.likelihood.noise_scale.square())

    def mean(self, x: Tensor) -> Tensor:
        """Predictive mean at inputs (N, D)."""
        sums = [(features @ last.mean).sum(0) for last, features in self._blocks(x.double())]
        return (torch.stack(sums).sum(0) / len(self.last.mean)).to(x)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Predictive distributions of ``n`` new draws of the weights."""
        theta = self.posterior.sample(n, generator=generator).to(x)
        likelihood = draw_likelihoods(self.likelihood, n, generator=generator)
        return likelihood.predictive(self.posterior.family.network.forward(theta, x))

    def _blocks(self, x: Tensor) -> Iterator[tuple[LastLayerPosterior, Tensor]]:
        """Yield the last layer and its inputs (block, N, H + 1) for blocks of draws."""
        n_draws = len(self.last.mean)
        network = self.posterior.family.network
        for block in _draw_blocks(n_draws, len(x) * self.last.mean.shape[1]):
            last = self.last._replace(mean=self.last.mean[block], root=self.last.root[block])
            features = propagate(network, [w[block] for w in self.weights], x)
            yield last, features.expand(len(last.mean), -1, -1)
