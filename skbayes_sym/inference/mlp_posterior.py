"""The posterior of an MLP's weights and noise, by hand-written passes over all chains at once."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log, pi

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import Evaluation
from skbayes_sym.models.data import Data
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.base import ChainLikelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.numerics.random import float64_normal


@dataclass(frozen=True, eq=False)
class MLPPosterior:
    """``log p(theta) + log p(log sigma) + beta log p(y | x, theta, sigma)``: a `LogPosterior`.

    Positions (C, D) are ``[theta | log sigma]``, D = P + the likelihood's free parameters, with
    dtype and device of the data. The standard deviation of the noise of every output has a
    half-normal prior, here as a density of its logarithm:

        p(log sigma) = sigma sqrt(2 / pi) / s exp(-sigma^2 / 2 s^2).

    Parameters
    ----------
    network : MLP
    likelihood : Likelihood
        Its own parameters, if any, are log standard deviations of noise.
    prior : GaussianPrior
        Of ``theta``, (P,).
    data : Data
    noise_prior_scale : float or Tensor of shape (n_outputs,), default=1.0
        The half-normal's ``s``, in the scale of ``data.y``.
    beta : float, default=1.0
        Inverse temperature: the posterior at 1, the prior at 0.

    Notes
    -----
    A chain with a coordinate that isn't finite, or whose density overflows, has the value -inf
    and a finite gradient; the others don't notice.
    """

    network: MLP
    likelihood: Likelihood
    prior: GaussianPrior
    data: Data
    noise_prior_scale: float | Tensor = 1.0
    beta: float = 1.0

    @property
    def n_dims(self) -> int:
        """Length D of a position."""
        return self._n_theta + self.likelihood.n_params

    def split(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """``theta`` (*B, P) and the scales of the noise (*B, O); O = 0 without noise."""
        theta, own = position[..., : self._n_theta], position[..., self._n_theta :]
        scale = self.likelihood.at(own).noise_scale.to(position)
        return theta, scale.expand(*position.shape[:-1], scale.shape[-1])

    def __call__(self, position: Tensor) -> Tensor:
        with torch.no_grad():
            value = self.log_prior(position)
            if self.beta:
                value = _finite_or_minus_inf(value + self.beta * self.log_likelihood(position))
            return value

    def evaluate(self, position: Tensor) -> Evaluation:
        with torch.no_grad():
            gradient = torch.empty_like(position)
            value, ratio = self._prior_terms(position, gradient)  # before it is overwritten
            if self.beta:
                value.add_(self._log_lik.gradient(position, gradient), alpha=self.beta)
            else:
                gradient.zero_()
            if self.beta not in (0.0, 1.0):
                gradient.mul_(self.beta)
            gradient.addcmul_(position, self._minus_precision)
            if self.likelihood.n_params:
                gradient[:, self._n_theta :].add_(1.0 - ratio)
            return Evaluation(_finite_or_minus_inf(value), gradient.nan_to_num_(0.0, 0.0, 0.0))

    def log_prior(self, position: Tensor) -> Tensor:
        with torch.no_grad():
            return _finite_or_minus_inf(self._prior_terms(position, torch.empty_like(position))[0])

    def log_likelihood(self, position: Tensor) -> Tensor:
        return _finite_or_minus_inf(self._log_lik.value(position))

    def sample_prior(self, n: int, *, generator: torch.Generator) -> Tensor:
        theta = self.prior.sample(n, generator=generator)
        noise = float64_normal((n, self.likelihood.n_params), generator=generator)
        log_sigma = noise.abs_().log_() + self._noise_scale.log().to(noise)
        return torch.cat([theta.to(self.data.x), log_sigma.to(self.data.x)], 1)

    def tempered(self, beta: float) -> "MLPPosterior":
        return replace(self, beta=beta)

    def _prior_terms(self, position: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
        """Log prior (C,), and (sigma / s)^2 (C, n_params)."""
        squares = torch.mul(position, position, out=scratch)
        value = torch.addmv(self._constant, squares, self._minus_precision, alpha=0.5)
        log_sigma = position[:, self._n_theta :]
        ratio = log_sigma.exp().mul_(self._inverse_scale).square_()
        if self.likelihood.n_params:
            value.add_(torch.add(log_sigma, ratio, alpha=-0.5).sum(1))
        return value, ratio

    @property
    def _n_theta(self) -> int:
        return self.network.layout.n_params

    @cached_property
    def _log_lik(self) -> ChainLikelihood:
        return self.network.chain_likelihood(self.likelihood, *self.data)

    @cached_property
    def _minus_precision(self) -> Tensor:
        """By coordinate (D,); 0 at the noise, whose prior isn't normal."""
        x = self.data.x
        return torch.cat([-self.prior.precision.to(x), x.new_zeros(self.likelihood.n_params)])

    @cached_property
    def _noise_scale(self) -> Tensor:
        scale = torch.as_tensor(self.noise_prior_scale, dtype=torch.float64)
        return scale.expand(self.likelihood.n_params)

    @cached_property
    def _inverse_scale(self) -> Tensor:
        return self._noise_scale.reciprocal().to(self.data.x)

    @cached_property
    def _constant(self) -> Tensor:
        """Log normalisers of the prior, (1,)."""
        scale, noise = self.prior.scale.double(), self._noise_scale
        normal = -scale.log().sum() - 0.5 * log(2 * pi) * len(scale)
        half_normal = 0.5 * log(2 / pi) * len(noise) - noise.log().sum()
        return (normal.cpu() + half_normal.cpu()).to(self.data.x).unsqueeze(0)


def _finite_or_minus_inf(value: Tensor) -> Tensor:
    """Values that aren't finite become -inf."""
    return value.nan_to_num_(-inf, -inf, -inf)
