"""Predictions by a linear model with a normal posterior."""

from dataclasses import dataclass

import torch
from torch import Tensor

from skbayes_sym.base.noise_levels import at_levels, draw_levels
from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.linear.low_rank import LowRankGaussian
from skbayes_sym.models.likelihoods.likelihood import N_NODES, Likelihood, SiteLikelihood
from skbayes_sym.models.predictive_mixtures import NormalMixture, Predictive
from skbayes_sym.numerics.gaussian import gauss_hermite


@dataclass(frozen=True, eq=False)
class LinearPredictor(BasePredictor):
    """Predictions of a linear model: outputs are normal, in float64.

    Parameters
    ----------
    posterior : LowRankGaussian
        Posterior of the coefficients of scaled inputs.
    offset : Tensor of shape (C,)
        Intercepts.
    likelihood : Likelihood
        Distribution of the targets given the outputs, in scaled units.
    variance_scale : float
        Factor on the variance of the outputs.
    rule : SiteLikelihood, optional
        Quadrature rule over several outputs. For one output Gauss-Hermite quadrature is used.
    levels : Tensor of shape (1, K, C), optional
        Noise levels that represent their posterior if there are few rows, see `noise_levels`.
    """

    posterior: LowRankGaussian
    offset: Tensor
    likelihood: Likelihood
    variance_scale: float = 1.0
    rule: SiteLikelihood | None = None
    levels: Tensor | None = None

    def distribution(self, x: Tensor) -> Predictive:
        """Return the predictive distribution, by quadrature unless the noise is normal."""
        mean, covariance = self.posterior.output_moments(x.double())
        mean = mean + self.offset
        covariance = self.variance_scale * covariance
        if self.rule is not None:
            return self.likelihood.predictive(self.rule.outputs(mean, covariance).to(x))
        if self.likelihood.kind == "normal":
            noise = self.likelihood.noise_scale.square()
            variance = covariance.diagonal(0, -2, -1)
            distribution = NormalMixture(mean[None].to(x), variance[None].to(x), noise)
            if self.levels is None:
                return distribution
            return at_levels(distribution, self.levels)
        nodes, weights = (t.to(mean) for t in gauss_hermite(N_NODES))
        outputs = mean + covariance[..., 0].sqrt() * nodes[:, None, None]
        return self.likelihood.predictive(outputs.to(x), weights.log().to(x))

    def mean(self, x: Tensor) -> Tensor:
        """Return expected targets, for normal noise without computing variances."""
        if self.likelihood.kind != "normal":
            return super().mean(x)
        loc = torch.as_tensor(self.posterior.loc).to(self.offset)
        return (x.double() @ loc.T + self.offset).to(x)

    def covariance(self, x: Tensor) -> Tensor | None:
        """Return the joint covariance of function values, (N, N, T), for normal noise."""
        if self.likelihood.kind != "normal":
            return None
        return self.posterior.output_covariance(x.double())

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Return distributions of the targets given each of ``n`` sampled functions."""
        weights = self.posterior.sample(n, generator=generator).to(self.offset)
        # Functions have the same variance as the outputs of `distribution`.
        loc = torch.as_tensor(self.posterior.loc).to(self.offset).flatten()
        weights = loc + self.variance_scale**0.5 * (weights - loc)
        # (n, C, K)
        weights = weights.unflatten(-1, (len(self.offset), -1))
        outputs = torch.einsum("sck,nk->snc", weights, x.double()) + self.offset
        if self.levels is None:
            return self.likelihood.predictive(outputs.to(x))
        component = torch.zeros(n, dtype=torch.long)
        noise = draw_levels(self.levels, component, generator=generator)
        return NormalMixture(outputs.to(x), x.new_zeros(1, 1, 1), noise.to(x))
