r"""Predictive distributions of positive targets whose logarithm is modelled.

The target is :math:`y = a + b e^z` for a mixture of normals of z. Density, distribution function,
quantiles and samples follow from those of z. Means and variances are those of
:math:`a + b \min(e^z, c)`: they would be determined by the farthest tail otherwise, about which
few rows say anything. For a normal distribution of z,

.. math:: E \min(e^z, c)^k = e^{k m + k^2 s^2 / 2} \, \Phi\left(\frac{\log c - m}{s} - k s\right)
          + c^k \, \Phi\left(\frac{m - \log c}{s}\right) .
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.models.predictive_mixtures import NormalMixture, TargetPredictive, Uncertainty


@dataclass(frozen=True, eq=False)
class LogTargets(TargetPredictive):
    """Distribution of ``location + scale * exp(z)`` for a mixture of normals of z.

    Parameters
    ----------
    base : NormalMixture
        Distribution of z, (N, 1).
    max_log : float
        Largest z that counts in means and variances.
    location, scale : float
        Units of the target.
    """

    base: NormalMixture
    max_log: float
    location: float = 0.0
    scale: float = 1.0

    @property
    def log_weights(self) -> Tensor | None:  # type: ignore[override]
        """Log weights of the draws, (S,)."""
        return self.base.log_weights

    @property
    def _like(self) -> Tensor:
        """Return a tensor whose first axis is that of the draws."""
        return self.base.loc

    def take(self, rows: np.ndarray) -> "LogTargets":
        """Return the distributions of the rows with these indices."""
        return replace(self, base=self.base.take(rows))

    def rescale(self, mean: Tensor, scale: Tensor) -> "LogTargets":
        """Return the distribution of ``mean + scale * target``."""
        location = float(mean) + float(scale) * self.location
        if abs(location) < 1e-12 * abs(float(mean)):
            location = 0.0
        return replace(self, location=location, scale=float(scale) * self.scale)

    def add_normal(self, drift: Tensor, variance: Tensor) -> "LogTargets":
        """Approximate the distribution of the target plus a normal variable.

        The logarithm gets the moments of a lognormal factor with the same relative drift and
        variance, both compared with the median.

        Parameters
        ----------
        drift, variance : Tensor of shape (N, 1)
            Mean and variance of the variable.

        Returns
        -------
        LogTargets
        """
        # Far from the training data medians leave the range of floats, but their logarithms don't.
        log_unit = np.log(self.scale) + self.base.quantile(0.5)
        log_ratio = variance.to(log_unit).log() - 2.0 * log_unit
        factor_variance = torch.logaddexp(log_ratio.new_zeros(()), log_ratio)
        base = replace(
            self.base,
            loc=self.base.loc + _log_factor(drift.to(log_unit), log_unit),
            variance=self.base.variance + factor_variance,
            covariance=None,
        )
        return replace(self, base=base)

    def shift(self, amount: Tensor) -> "LogTargets":
        """Add numbers (S, N, 1) to the targets of every draw, as a factor on them."""
        log_unit = np.log(self.scale) + self.base.loc
        loc = self.base.loc + _log_factor(amount.to(log_unit), log_unit)
        return replace(self, base=replace(self.base, loc=loc))

    def _to_logarithm(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return z of targets, and whether they are above the location."""
        exponential = (y - self.location) / self.scale
        is_positive = exponential > 0.0
        return torch.where(is_positive, exponential, 1.0).log(), is_positive

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        """Return the log density of each row given each draw, (S, N) nats."""
        z, is_positive = self._to_logarithm(y)
        log_prob = self.base.log_prob_per_draw(z) - (z[:, 0] + np.log(self.scale))
        return torch.where(is_positive[:, 0], log_prob, -torch.inf)

    def cdf(self, y: Tensor) -> Tensor:
        """Return ``P(target <= y)``, (N, 1)."""
        z, is_positive = self._to_logarithm(y)
        return torch.where(is_positive, self.base.cdf(z), 0.0)

    def quantile(self, probability: float) -> Tensor:
        """Return quantiles, (N, 1)."""
        return self.quantiles([probability])[0]

    def quantiles(self, levels: Sequence[float]) -> list[Tensor]:
        """Return quantiles at several levels, each (N, 1)."""
        return [self.location + self.scale * z.exp() for z in self.base.quantiles(levels)]

    def _power_means(self, power: int) -> Tensor:
        """Return the expected power of ``min(exp(z), exp(max_log))`` given each draw, (S, N, 1)."""
        loc = self.base.loc
        std = self.base.scales
        distance = (self.max_log - loc) / std
        log_moment = power * loc + 0.5 * (power * std).square()
        inside = (log_moment + torch.special.log_ndtr(distance - power * std)).exp()
        beyond = (power * self.max_log + torch.special.log_ndtr(-distance)).exp()
        return inside + beyond

    @cached_property
    def means(self) -> Tensor:
        """Expected targets given each draw, (S, N, 1)."""
        return self.location + self.scale * self._power_means(1)

    @property
    def scales(self) -> Tensor:
        """Standard deviations of the targets given each draw, (S, N, 1)."""
        variance = self._power_means(2) - self._power_means(1).square()
        return self.scale * variance.clamp_min(0.0).sqrt()

    def uncertainty(self) -> Uncertainty:
        """Return variances of the targets, (N, 1).

        Their parts have the same proportions as those of z.
        """
        mean = (self.broadcast_weights * self._power_means(1)).sum(0)
        square = (self.broadcast_weights * self._power_means(2)).sum(0)
        total = self.scale**2 * (square - mean.square()).clamp_min(0.0)
        logarithm = self.base.uncertainty()
        epistemic = total * (logarithm.epistemic / logarithm.total)
        return Uncertainty(total, epistemic, total - epistemic)

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Sample ``n`` data sets, (n, N, 1)."""
        return self.location + self.scale * self.base.sample(n, rng).exp()

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Sample one data set from each draw, (S, N, 1)."""
        return self.location + self.scale * self.base.sample_per_draw(rng).exp()


def _log_factor(amount: Tensor, log_unit: Tensor) -> Tensor:
    """Return the logarithm of the factor that adds an amount to a unit, at least -90 % of it."""
    log_size = amount.abs().log() - log_unit
    growth = torch.logaddexp(log_size.new_zeros(()), log_size)
    decline = torch.log1p(-log_size.exp().clamp_max(0.9))
    return torch.where(amount > 0.0, growth, decline)
