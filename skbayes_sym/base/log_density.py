"""Unnormalised log posterior densities of networks, for samplers and optimisers.

A position (C, D) holds the parameters of C chains. Its first columns are the network's ``theta`` in
the order of its layout. They are followed by the parameters of the likelihood, mapped to the real
line, such as the logarithm of the noise level. All values are in nats and summed over the data.
They include all constants, so that the integral of the density over the position is the evidence.
The network itself computes the log likelihood and its gradient, see `chain_likelihood`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, lgamma, log, pi
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from scipy.special import stdtrit
from torch import Tensor
from torch.nn.functional import one_hot, pad

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.network import ChainLikelihood, Network
from skbayes_sym.models.priors import GaussianPrior, Prior, PriorKernel, layer_index
from skbayes_sym.numerics.random import float64_normal


class Evaluation(NamedTuple):
    """A log density and its gradient at C positions.

    Parameters
    ----------
    value : Tensor of shape (C,)
        Log density in nats; -inf outside the support.
    gradient : Tensor of shape (C, D)
        Gradient with respect to the position.
    """

    value: Tensor
    gradient: Tensor


class LogDensity(Protocol):
    """Target density of a transition kernel."""

    @property
    def n_dims(self) -> int:
        """Length D of a position."""

    def __call__(self, position: Tensor) -> Tensor:
        """Return the log density in nats, (C, D) -> (C,)."""

    def evaluate(self, position: Tensor) -> Evaluation:
        """Return log density and gradient at positions (C, D)."""


@runtime_checkable
class HasScaleDirections(Protocol):
    """Density of coordinates whose magnitude may vary a hundredfold between draws."""

    @property
    def scale_directions(self) -> Tensor | None:
        """Signs (K, D) of coordinates that grow or shrink together; None if there are none."""


def make_gradient(log_density: LogDensity) -> Callable[[Tensor], Tensor]:
    """Return the gradient of a density as a function of the position, (C, D) -> (C, D)."""
    gradient: Callable[[Tensor], Tensor] | None = getattr(log_density, "gradient", None)
    return gradient or (lambda position: log_density.evaluate(position).gradient)


@dataclass(frozen=True, eq=False)
class SurrogateGradients:
    """Log density with the gradients of an approximation in lower precision.

    A trajectory stays reversible and volume-preserving whatever function of the position replaces
    the gradient. A kernel that accepts by the energies at both ends of a trajectory therefore
    samples the exact density. Less accurate gradients only lower the acceptance rate.

    A trajectory of ``n`` steps costs ``n`` approximate gradients and one exact value.

    Parameters
    ----------
    exact : LogDensity
        Density that is sampled.
    approximate : LogDensity
        Approximately the same density, in another precision.
    dtype : torch.dtype
        Precision of the approximate density.
    """

    exact: LogDensity
    approximate: LogDensity
    dtype: torch.dtype

    @property
    def n_dims(self) -> int:
        """Length D of a position."""
        return self.exact.n_dims

    def __call__(self, position: Tensor) -> Tensor:
        """Return the exact log density in nats, (C, D) -> (C,)."""
        return self.exact(position)

    def evaluate(self, position: Tensor) -> Evaluation:
        """Return the exact log density and the approximate gradient at positions (C, D)."""
        return Evaluation(self.exact(position), self.gradient(position))

    def gradient(self, position: Tensor) -> Tensor:
        """Return the approximate gradient in the precision of ``position``, (C, D)."""
        return self.approximate.evaluate(position.to(self.dtype)).gradient.to(position)


def by_autograd(log_density: Callable[[Tensor], Tensor], position: Tensor) -> Evaluation:
    """Evaluate a density and differentiate it by torch.

    Parameters
    ----------
    log_density : callable (C, D) -> (C,)
        Log density whose values for different chains are independent.
    position : Tensor of shape (C, D)
        Positions of the chains.

    Returns
    -------
    Evaluation
    """
    with torch.inference_mode(False), torch.enable_grad():
        tracked = position.detach().clone().requires_grad_()
        value = log_density(tracked)
        (gradient,) = torch.autograd.grad(value.sum(), tracked)
    return Evaluation(value.detach(), gradient)


@dataclass(frozen=True, eq=False)
class NetworkPosterior:
    r"""Log posterior of a network: a `LogDensity`.

    Positions (C, D) are ``[theta | log sigma]``, in dtype and on the device of the data. D is P
    plus the number of free parameters of the likelihood. A chain with a coordinate that isn't
    finite, or whose density overflows, has the value -inf and a finite gradient. Other chains
    aren't affected.

    Parameters
    ----------
    network : Network
        Network with P parameters.
    likelihood : Likelihood
        Its free parameters, if any, are logarithms of scales.
    prior : Prior
        Prior of ``theta``. A Gaussian prior costs one pass over the positions, and its scales may
        differ between chains, (C, P). A prior with a ``kernel`` is evaluated by it, and other
        priors by autograd.
    data : Data
        Training rows, on the device of the computation.
    noise_prior_scale : float or Tensor
        Scale s of the prior of the noise level, in the units of ``data.y``.
    noise_prior_degrees : float, default=inf
        Degrees of freedom d of a half-t prior of the noise level. It is half-normal if infinite.

    Notes
    -----
    The log density is ``log p(theta) + log p(log sigma) + log p(y | x, theta, sigma)``. The noise
    level of every output has a half-normal prior, here as a density of its logarithm:

    .. math:: p(\log \sigma) = \sigma \sqrt{2 / \pi} / s \; \exp(-\sigma^2 / 2 s^2).

    For few rows it has the half-t prior of `noise_levels`.
    """

    network: Network
    likelihood: Likelihood
    prior: Prior
    data: Data
    noise_prior_scale: float | Tensor = 1.0
    noise_prior_degrees: float = inf

    @property
    def n_dims(self) -> int:
        """Length D of a position."""
        return self._n_theta + self.likelihood.n_params

    def split(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``theta`` (*B, P) and noise levels (*B, O) of positions; O = 0 without noise."""
        theta = position[..., : self._n_theta]
        params = position[..., self._n_theta :]
        scale = self.likelihood.at(params).noise_scale.to(position)
        return theta, scale.expand(*position.shape[:-1], scale.shape[-1])

    def __call__(self, position: Tensor) -> Tensor:
        """Return the log posterior density in nats, (C, D) -> (C,)."""
        with torch.no_grad():
            return _finite_or_minus_inf(self.log_prior(position) + self.log_likelihood(position))

    def evaluate(self, position: Tensor, rows: Data | None = None) -> Evaluation:
        """Return log density and gradient.

        Parameters
        ----------
        position : Tensor of shape (C, D)
            Positions of the chains.
        rows : Data, optional
            Rows of the likelihood; all training rows by default.

        Returns
        -------
        Evaluation
        """
        if rows is None:
            log_likelihood = self._log_likelihood
        else:
            log_likelihood = self.network.chain_likelihood(self.likelihood, *rows)
        with torch.no_grad():
            value, gradient = self._prior_terms(position)
            if self._gaussian is None:
                theta_value, theta_gradient = self._prior_kernel(position[:, : self._n_theta])
                value.add_(theta_value)
                gradient[:, : self._n_theta].add_(theta_gradient)
            likelihood_gradient = torch.empty_like(position)
            value.add_(log_likelihood.gradient(position, likelihood_gradient))
            gradient.add_(likelihood_gradient)
            return Evaluation(_finite_or_minus_inf(value), gradient.nan_to_num_(0.0, 0.0, 0.0))

    def log_prior(self, position: Tensor) -> Tensor:
        """Return the log prior in nats, (C, D) -> (C,)."""
        with torch.no_grad():
            value = self._prior_terms(position).value
            if self._gaussian is None:
                value = value + self.prior.log_prob(position[:, : self._n_theta])
            return _finite_or_minus_inf(value)

    def log_likelihood(self, position: Tensor) -> Tensor:
        """Return the log likelihood of all rows in nats, (C, D) -> (C,)."""
        return _finite_or_minus_inf(self._log_likelihood.value(position))

    def sample_prior(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` positions from the prior, (n, D)."""
        theta = self.prior.sample(n, generator=generator)
        noise = float64_normal((n, self.likelihood.n_params), generator=generator).abs_()
        if self.noise_prior_degrees < inf:
            # Student's quantile of the same probability.
            probability = torch.special.ndtr(noise).cpu().numpy()
            quantile = stdtrit(self.noise_prior_degrees, probability)
            noise = torch.as_tensor(quantile).to(noise)
        log_sigma = noise.log_() + self._noise_scale.log().to(noise)
        return torch.cat([theta.to(self.data.x), log_sigma.to(self.data.x)], 1)

    def _prior_terms(self, position: Tensor) -> Evaluation:
        """Return the log prior (C,) and its gradient (C, D), without ``theta`` unless Gaussian.

        A coordinate x of ``theta`` contributes ``-precision x^2 / 2``. A log noise level x
        contributes ``x - ratio / 2``, where ``ratio`` is the square of sigma / s, or under a half-t
        prior ``x - (d + 1) / 2 log(1 + ratio / d)``.
        """
        gradient = torch.addcmul(self._slope, position, self._minus_precision)
        twice_value = torch.add(gradient, self._slope).mul_(position)
        n_noise = self.likelihood.n_params
        if n_noise:
            log_sigma = position.narrow(1, self._n_theta, n_noise)
            ratio = torch.add(self._log_inverse_square, log_sigma, alpha=2.0).exp_()
            twice_penalty = slope = ratio
            d = self.noise_prior_degrees
            if d < inf:
                twice_penalty = (d + 1.0) * (ratio / d).log1p()
                slope = (d + 1.0) / (1.0 + d / ratio)
            twice_value.narrow(1, self._n_theta, n_noise).sub_(twice_penalty)
            gradient.narrow(1, self._n_theta, n_noise).sub_(slope)
        return Evaluation(torch.add(self._constant, twice_value.sum(1), alpha=0.5), gradient)

    @cached_property
    def _gaussian(self) -> GaussianPrior | None:
        """The prior as independent normals, if it is Gaussian."""
        return self.prior.gaussian()

    @cached_property
    def _prior_kernel(self) -> PriorKernel:
        """Function that returns value and gradient of the prior at ``theta``."""
        return self.prior.kernel(self.data.x) or partial(by_autograd, self.prior.log_prob)

    @cached_property
    def scale_directions(self) -> Tensor | None:
        """Signs (K, D) of weights that grow or shrink together under a prior that learns scales.

        These are the weights of a prior group; the weights of a layer, because a unit that becomes
        steeper at the same place scales all of them; and the weights of a layer against those of
        the next layer.
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
        directions = torch.cat([one_hot(scales.group).T.float(), layers, against])
        return pad(directions, (0, self.likelihood.n_params)).to(self.data.x)

    @property
    def _n_theta(self) -> int:
        """Number of parameters of the network."""
        return self.network.layout.n_params

    @cached_property
    def _log_likelihood(self) -> ChainLikelihood:
        """Log likelihood of all training rows."""
        return self.network.chain_likelihood(self.likelihood, *self.data)

    @cached_property
    def _minus_precision(self) -> Tensor:
        """Minus the precision of the prior, (D,), or (C, D) if it differs between chains.

        It is 0 for coordinates whose prior isn't normal, such as log noise levels.
        """
        x = self.data.x
        if self._gaussian is None:
            return x.new_zeros(self.n_dims)
        precision = self._gaussian.precision.to(x)
        noise_precision = x.new_zeros(*precision.shape[:-1], self.likelihood.n_params)
        return torch.cat([-precision, noise_precision], -1)

    @cached_property
    def _noise_scale(self) -> Tensor:
        """Scale s of the prior of every noise level, (n_params,)."""
        scale = torch.as_tensor(self.noise_prior_scale, dtype=torch.float64)
        return scale.expand(self.likelihood.n_params)

    @cached_property
    def _slope(self) -> Tensor:
        """1 for log noise levels and 0 for other coordinates, (D,)."""
        slope = self.data.x.new_zeros(self.n_dims)
        slope[self._n_theta :] = 1.0
        return slope

    @cached_property
    def _log_inverse_square(self) -> Tensor:
        """The value ``-2 log s`` for every noise level, (n_params,)."""
        return -2.0 * self._noise_scale.log().to(self.data.x)

    @cached_property
    def _constant(self) -> Tensor:
        """Log normalisation constants of the priors, (1,) or (C,)."""
        noise = self._noise_scale
        scale = torch.ones(0, dtype=torch.float64)
        if self._gaussian is not None:
            scale = self._gaussian.scale.double()
        normal = -scale.log().sum(-1) - 0.5 * log(2 * pi) * scale.shape[-1]
        d = self.noise_prior_degrees
        log_constant = 0.5 * log(2 / pi)
        if d < inf:
            log_constant = log(2.0) + lgamma(0.5 * d + 0.5) - lgamma(0.5 * d) - 0.5 * log(pi * d)
        noise_constant = log_constant * len(noise) - noise.log().sum()
        return (normal.cpu() + noise_constant.cpu()).to(self.data.x).reshape(-1)


def _finite_or_minus_inf(value: Tensor) -> Tensor:
    """Replace values that aren't finite by -inf."""
    return value.nan_to_num_(-inf, -inf, -inf)
