"""Counts whose log rate is the output."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.base import ExpectedLogProb
from skbayes_sym.models.likelihoods.scalar import Floats, WithoutParameters


@dataclass(frozen=True)
class Poisson(WithoutParameters):
    """``y ~ Poisson(exp f)``, counts (N, 1)."""

    is_discrete: bool = True

    def at(self, params: Tensor) -> "Poisson":
        return self

    def to(self, like: Tensor) -> "Poisson":
        return self

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (y * outputs - outputs.exp() - torch.lgamma(y + 1.0)).squeeze(-1)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> ExpectedLogProb:
        """Closed form: ``y m - exp(m + v / 2) - log y!``."""
        rate = (mean + 0.5 * variance).exp()
        value = (y * mean - rate - torch.lgamma(y + 1.0)).squeeze(-1)
        return ExpectedLogProb(value, y - rate, -0.5 * rate, mean.new_zeros(len(mean), 0))

    def rescaled(self, scale: Tensor) -> "Poisson":
        return self  # counts have no unit

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.exp()

    def variance(self, outputs: Tensor) -> Tensor:
        return outputs.exp()

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        # P(Y <= y) = Q(floor(y) + 1, rate), the regularised upper incomplete gamma function.
        rate = outputs.exp()
        shape = (y.floor() + 1.0).clamp_min(1e-300).expand_as(rate)
        return torch.where(y < 0.0, torch.zeros_like(rate), torch.special.gammaincc(shape, rate))

    def sample(self, outputs: Floats, rng: np.random.Generator) -> Floats:
        # numpy's sampler ends at 2^63; there the relative spread is below 1e-9.
        rate = np.exp(outputs)
        large = rate > 1e18
        drawn = rng.poisson(np.where(large, 0.0, rate)).astype(np.float64)
        return np.where(large, rate, drawn)
