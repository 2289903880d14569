"""Counts whose log rate is the output."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributions import Distribution

from skbayes_sym.models.likelihoods.base import ExpectedLogProb, Kind
from skbayes_sym.models.likelihoods.defaults import TargetLikelihood

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Poisson(TargetLikelihood):
    """``y ~ Poisson(exp f)``, counts (N, T)."""

    kind: ClassVar[Kind] = "counts"

    def distribution(self, outputs: Tensor) -> Distribution:
        return torch.distributions.Poisson(outputs.exp(), validate_args=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (y * outputs - outputs.exp() - torch.lgamma(y + 1.0)).sum(-1)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Closed form: ``y m - exp(m + v / 2) - log y!``."""
        rate = (mean + 0.5 * variance).exp()
        value = (y * mean - rate - torch.lgamma(y + 1.0)).sum(-1)
        return ExpectedLogProb(value, y - rate, -0.5 * rate, mean.new_zeros(len(mean), 0))

    def constant_outputs(self, y: Floats, weight: Floats) -> Floats:
        """Log of the mean count; half a count where there was none."""
        return log_mean_count(y, weight)

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        # P(Y <= y) = Q(floor(y) + 1, rate), the regularised upper incomplete gamma function.
        rate = outputs.exp()
        shape = (y.floor() + 1.0).clamp_min(1e-300).expand_as(rate)
        return torch.where(y < 0.0, torch.zeros_like(rate), torch.special.gammaincc(shape, rate))

    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        with np.errstate(over="ignore"):  # of a rate beyond numbers so is the count
            rate = np.exp(outputs.cpu().double().numpy())
        return torch.as_tensor(poisson_counts(rate, rng)).to(outputs)


def log_mean_count(y: Floats, weight: Floats) -> Floats:
    """Log of the mean of the first column's counts, (1,); half a count where there was none."""
    average = np.atleast_1d(weight @ y[:, 0] / weight.sum())
    return np.asarray(np.log(np.maximum(average, 0.5 / weight.sum())))


def poisson_counts(rate: Floats, rng: np.random.Generator) -> Floats:
    """Draws of every rate. numpy's sampler ends at 2^63; there the spread is below 1e-9."""
    large = rate > 1e18
    drawn = rng.poisson(np.where(large, 0.0, rate)).astype(np.float64)
    return np.where(large, np.rint(rate), drawn)
