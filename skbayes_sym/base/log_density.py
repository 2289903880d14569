"""Log densities of whole posteriors, as samplers see them: one flat position a chain.

A position (C, D) holds C chains. Its first columns are the network's ``theta``, in the order of its
layout; parameters of the likelihood follow, mapped to the whole line (the log of the noise). All
values are in nats, summed over the data, with every constant kept, so that their integral over the
position is the evidence. Passes through a network are its own business (`chain_likelihood`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, log, pi
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.network import ChainLikelihood, Network
from skbayes_sym.models.priors import GaussianPrior, Prior, PriorKernel, layer_index
from skbayes_sym.numerics.random import float64_normal


class Evaluation(NamedTuple):
    """A log density and its gradient at C positions."""

    value: Tensor  # (C,), nats; -inf where there is no mass
    gradient: Tensor  # (C, D)


class LogDensity(Protocol):
    """A target as a kernel sees it."""

    @property
    def n_dims(self) -> int:
        """Length D of a position."""

    def __call__(self, position: Tensor) -> Tensor:
        """(C, D) -> (C,) nats."""

    def evaluate(self, position: Tensor) -> Evaluation:
        """Value and gradient at (C, D)."""


@runtime_checkable
class HasScaleDirections(Protocol):
    """A density of coordinates that may be a hundred times larger in one draw than in the next."""

    @property
    def scale_directions(self) -> Tensor | None:
        """Signs (K, D) of coordinates that grow or shrink together; None if none vary so."""


def make_gradient(log_density: LogDensity) -> Callable[[Tensor], Tensor]:
    """(C, D) -> (C, D), without the value: a density's own ``gradient``, if it has one."""
    gradient: Callable[[Tensor], Tensor] | None = getattr(log_density, "gradient", None)
    return gradient or (lambda position: log_density.evaluate(position).gradient)


@dataclass(frozen=True, eq=False)
class SurrogateGradients:
    """A density whose gradients are those of another, in less precision: a `LogDensity`.

    A trajectory that is kicked by whatever function of its position turns back on itself and keeps
    volumes. So a kernel that accepts by the energies at its ends samples the density itself,
    however rough the gradients between: rougher ones are accepted less often, that is all.

    A trajectory of ``n`` steps costs ``n`` rough gradients and one exact value.
    """

    exact: LogDensity  # has the values
    rough: LogDensity  # about the same, in ``dtype``: has the gradients
    dtype: torch.dtype

    @property
    def n_dims(self) -> int:
        return self.exact.n_dims

    def __call__(self, position: Tensor) -> Tensor:
        return self.exact(position)

    def evaluate(self, position: Tensor) -> Evaluation:
        return Evaluation(self.exact(position), self.gradient(position))

    def gradient(self, position: Tensor) -> Tensor:
        """Rough, in the precision of ``position``."""
        return self.rough.evaluate(position.to(self.dtype)).gradient.to(position)


Batched = Callable[[Tensor], Tensor]  # (C, D) -> (C,)


def by_autograd(log_density: Batched, position: Tensor) -> Evaluation:
    """Any density, chain by chain independent, differentiated by torch."""
    with torch.inference_mode(False), torch.enable_grad():
        tracked = position.detach().clone().requires_grad_()
        value = log_density(tracked)
        (gradient,) = torch.autograd.grad(value.sum(), tracked)
    return Evaluation(value.detach(), gradient)


@dataclass(frozen=True, eq=False)
class NetworkPosterior:
    """``log p(theta) + log p(log sigma) + log p(y | x, theta, sigma)``: a `LogDensity`.

    Positions (C, D) are ``[theta | log sigma]``, D = P + the likelihood's free parameters, with
    dtype and device of the data. The standard deviation of the noise of every output has a
    half-normal prior, here as a density of its logarithm:

        p(log sigma) = sigma sqrt(2 / pi) / s exp(-sigma^2 / 2 s^2).

    ``prior``: of ``theta``; a Gaussian one costs one pass over the positions (its scales may be the
    chains' own, (C, P)), one with a ``kernel`` its own, others take autograd.

    A chain with a coordinate that isn't finite, or whose density overflows, has the value -inf
    and a finite gradient; the others don't notice.
    """

    network: Network
    likelihood: Likelihood  # its own parameters, if any, are logarithms of scales
    prior: Prior
    data: Data
    noise_prior_scale: float | Tensor = 1.0  # the half-normal's ``s``, in the scale of ``data.y``

    @property
    def n_dims(self) -> int:
        """Length D of a position."""
        return self._n_theta + self.likelihood.n_params

    def split(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """``theta`` (*B, P) and the scales of the noise (*B, O); O = 0 without noise."""
        theta = position[..., : self._n_theta]
        params = position[..., self._n_theta :]
        scale = self.likelihood.at(params).noise_scale.to(position)
        return theta, scale.expand(*position.shape[:-1], scale.shape[-1])

    def __call__(self, position: Tensor) -> Tensor:
        with torch.no_grad():
            return _finite_or_minus_inf(self.log_prior(position) + self.log_likelihood(position))

    def evaluate(self, position: Tensor, rows: Data | None = None) -> Evaluation:
        """Value and gradient at (C, D), of ``rows`` if others than ``data`` are given."""
        if rows is None:
            likelihood = self._log_lik
        else:
            likelihood = self.network.chain_likelihood(self.likelihood, *rows)
        with torch.no_grad():
            value, gradient = self._prior_terms(position)
            if self._gaussian is None:
                of_theta, slope = self._prior_kernel(position[:, : self._n_theta])
                value.add_(of_theta)
                gradient[:, : self._n_theta].add_(slope)
            d_log_lik = torch.empty_like(position)
            value.add_(likelihood.gradient(position, d_log_lik))
            gradient.add_(d_log_lik)
            return Evaluation(_finite_or_minus_inf(value), gradient.nan_to_num_(0.0, 0.0, 0.0))

    def log_prior(self, position: Tensor) -> Tensor:
        with torch.no_grad():
            value = self._prior_terms(position).value
            if self._gaussian is None:
                value = value + self.prior.log_prob(position[:, : self._n_theta])
            return _finite_or_minus_inf(value)

    def log_likelihood(self, position: Tensor) -> Tensor:
        return _finite_or_minus_inf(self._log_lik.value(position))

    def sample_prior(self, n: int, *, generator: torch.Generator) -> Tensor:
        theta = self.prior.sample(n, generator=generator)
        noise = float64_normal((n, self.likelihood.n_params), generator=generator)
        log_sigma = noise.abs_().log_() + self._noise_scale.log().to(noise)
        return torch.cat([theta.to(self.data.x), log_sigma.to(self.data.x)], 1)

    def _prior_terms(self, position: Tensor) -> Evaluation:
        """Log prior (C,), of ``theta`` too if Gaussian, and its gradient (C, D).

        A coordinate's is ``-precision x^2 / 2``; at the noise ``x - ratio / 2``, with ``ratio``
        the square of sigma / s.
        """
        gradient = torch.addcmul(self._slope, position, self._minus_precision)
        twice = torch.add(gradient, self._slope).mul_(position)
        if n_noise := self.likelihood.n_params:
            log_sigma, of_noise, d_own = (
                t.narrow(1, self._n_theta, n_noise) for t in (position, twice, gradient)
            )
            ratio = torch.add(self._log_inverse_square, log_sigma, alpha=2.0).exp_()
            of_noise.sub_(ratio)
            d_own.sub_(ratio)
        return Evaluation(torch.add(self._constant, twice.sum(1), alpha=0.5), gradient)

    @cached_property
    def _gaussian(self) -> GaussianPrior | None:
        return self.prior.gaussian()

    @cached_property
    def _prior_kernel(self) -> PriorKernel:
        """Value and gradient of the prior at ``theta``: its own, or by autograd."""
        return self.prior.kernel(self.data.x) or partial(by_autograd, self.prior.log_prob)

    @cached_property
    def scale_directions(self) -> Tensor | None:
        """Signs (K, D) of weights that grow or shrink together under a prior that learns scales.

        Those of a group; of a layer, as a unit grows steep where it stands; of a layer against the
        weights that its outputs meet.
        """
        scales = self.prior.learned_scales
        layout = self.network.layout
        if scales is None:
            return None
        layer = layer_index(layout)
        weights = torch.zeros(len(layer), dtype=torch.float32)
        for name, shape in layout.shapes.items():
            weights[layout.positions(name)] = float(len(shape) > 1)
        layers = one_hot(layer).T.float()
        against = layers[:-1] - layers[1:] * weights
        rows = torch.cat([one_hot(scales.group).T.float(), layers, against])
        return pad(rows, (0, self.likelihood.n_params)).to(self.data.x)

    @property
    def _n_theta(self) -> int:
        return self.network.layout.n_params

    @cached_property
    def _log_lik(self) -> ChainLikelihood:
        return self.network.chain_likelihood(self.likelihood, *self.data)

    @cached_property
    def _minus_precision(self) -> Tensor:
        """Minus the prior's precision by coordinate; 0 where it isn't normal, as at the noise.

        (D,), or (C, D) of chains with priors of their own.
        """
        x = self.data.x
        if self._gaussian is None:
            return x.new_zeros(self.n_dims)
        precision = self._gaussian.precision.to(x)
        of_noise = x.new_zeros(*precision.shape[:-1], self.likelihood.n_params)
        return torch.cat([-precision, of_noise], -1)

    @cached_property
    def _noise_scale(self) -> Tensor:
        scale = torch.as_tensor(self.noise_prior_scale, dtype=torch.float64)
        return scale.expand(self.likelihood.n_params)

    @cached_property
    def _slope(self) -> Tensor:
        """1 at the noise, 0 elsewhere, (D,)."""
        slope = self.data.x.new_zeros(self.n_dims)
        slope[self._n_theta :] = 1.0
        return slope

    @cached_property
    def _log_inverse_square(self) -> Tensor:
        """``-2 log s`` (n_params,)."""
        return -2.0 * self._noise_scale.log().to(self.data.x)

    @cached_property
    def _constant(self) -> Tensor:
        """Log normalisers of the normal and half-normal priors, (1,) or (C,)."""
        noise = self._noise_scale
        scale = (
            torch.ones(0, dtype=torch.float64)
            if self._gaussian is None
            else self._gaussian.scale.double()
        )
        normal = -scale.log().sum(-1) - 0.5 * log(2 * pi) * scale.shape[-1]
        half_normal = 0.5 * log(2 / pi) * len(noise) - noise.log().sum()
        return (normal.cpu() + half_normal.cpu()).to(self.data.x).reshape(-1)


def _finite_or_minus_inf(value: Tensor) -> Tensor:
    """Values that aren't finite become -inf."""
    return value.nan_to_num_(-inf, -inf, -inf)
