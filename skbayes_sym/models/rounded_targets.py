"""Distributions of counts that are made of distributions of real targets by rounding."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.models.predictive_mixtures import (
    NormalMixture,
    TargetPredictive,
    Uncertainty,
    round_near_counts,
    snap_to_counts,
)
from skbayes_sym.numerics.integration import integrate

# Largest count up to which moments of a rounded target are sums. Beyond, they are integrals.
_MAX_SUMMED_COUNTS = 512


@dataclass(frozen=True, eq=False)
class RoundedTargets(TargetPredictive):
    """Distribution of the count nearest to a real target, ``max(0, round(x))``.

    Rounding gives densities and probabilities of counts a common measure. A positive count k has
    the probability ``P(k - 1/2 < x <= k + 1/2)``, and 0 has the probability ``P(x <= 1/2)``.

    Parameters
    ----------
    base : TargetPredictive
        Distribution of x, (N, 1), in the units of the counts.
    location, scale : float
        The target is ``location + scale * count``.
    """

    base: TargetPredictive
    location: float = 0.0
    scale: float = 1.0
    log_weights: Tensor | None = None

    @property
    def is_discrete(self) -> bool:
        """Whether the targets are integers."""
        return True

    @property
    def _like(self) -> Tensor:
        """Return a tensor whose first axis is that of the draws."""
        return torch.zeros(1, dtype=torch.float64)

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return self.base.n_rows

    @property
    def n_targets(self) -> int:
        """Number of targets T."""
        return 1

    def take(self, rows: np.ndarray) -> "RoundedTargets":
        """Return the distributions of the rows with these indices."""
        return replace(self, base=self.base.take(rows))

    def rescale(self, mean: Tensor, scale: Tensor) -> "RoundedTargets":
        """Return the distribution of ``mean + scale * target``."""
        units = float(mean) + float(scale) * self.location, float(scale) * self.scale
        location, unit = snap_to_counts(*units)
        return replace(self, location=location, scale=unit)

    @property
    def units(self) -> tuple[float, float]:
        """Location and scale of discrete targets, which are ``location + scale * count``."""
        return self.location, self.scale

    def _counts(self, y: Tensor) -> Tensor:
        """Return the counts that correspond to targets, integers without rounding errors."""
        return round_near_counts((y - self.location) / self.scale)

    def cdf(self, y: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (N, T)."""
        counts = self._counts(y).floor()
        return torch.where(counts >= 0.0, self.base.cdf(counts.clamp_min(0.0) + 0.5), 0.0)

    def log_prob(self, y: Tensor) -> Tensor:
        """Return the joint log density of the targets of each row, (N,) nats."""
        counts = self._counts(y)
        inside = ((counts >= 0.0) & (counts == counts.floor()))[:, 0]
        counts = counts.clamp_min(0.0).round()
        return torch.where(inside, self._log_mass(counts), -torch.inf)

    def _log_mass(self, counts: Tensor) -> Tensor:
        """Return log probabilities of non-negative integers, (N, 1) -> (N,)."""
        base = self.base
        if isinstance(base, NormalMixture):
            upper = (counts + 0.5 - base.loc) / base.scales
            lower = (counts - 0.5 - base.loc) / base.scales
            lower = torch.where(counts == 0.0, -torch.inf, lower)
            # In the upper tail both probabilities are near 1, and their complements aren't.
            swap = lower > 0.0
            high = torch.where(swap, -lower, upper)
            low = torch.where(swap, -upper, lower)
            log_high = torch.special.log_ndtr(high)
            log_mass = log_high + torch.log1p(-(torch.special.log_ndtr(low) - log_high).exp())
            return torch.logsumexp(log_mass + base.broadcast_weights.log(), dim=0)[:, 0]
        below = torch.where(counts == 0.0, 0.0, base.cdf(counts - 0.5))
        mass = (base.cdf(counts + 0.5) - below)[:, 0]
        # A difference that is mostly rounding error is replaced by the density at the count.
        return torch.where(mass > 1e-10, mass.log(), base.log_prob(counts))

    def quantile(self, probability: float) -> Tensor:
        """Return quantiles of each target, (N, T)."""
        value = self.base.quantile(probability)
        counts = (value - 0.5 - 1e-9 * (1.0 + value.abs())).ceil().clamp_min(0.0)
        return self.location + self.scale * counts

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the count, (N, 1), by sums of ``P(count > k)``."""
        top = self.base.quantile(1.0 - 1e-10).clamp_min(0.0)

        def survival(x: Tensor) -> Tensor:
            return 1.0 - self.base.cdf(x)

        highest = float(top.max())
        if highest > _MAX_SUMMED_COUNTS:  # steps of 1 are negligible
            zero = torch.zeros_like(top)
            mean = integrate(survival, zero, top)
            square = integrate(lambda x: 2.0 * x * survival(x), zero, top)
        else:
            mean = torch.zeros_like(top)
            square = torch.zeros_like(top)
            for k in range(int(highest) + 2):
                probability = survival(torch.full_like(top, k + 0.5))
                mean = mean + probability
                square = square + (2.0 * k + 1.0) * probability
        return mean, (square - mean.square()).clamp_min(0.0)

    def mean(self) -> Tensor:
        """Return the expected targets, (N, T)."""
        return self.location + self.scale * self._moments[0]

    @property
    def means(self) -> Tensor:
        """Expected targets given each draw, (S, N, T)."""
        return self.mean().unsqueeze(0)

    @property
    def scales(self) -> Tensor:
        """Standard deviations of the targets given each draw, (S, N, T)."""
        return self.scale * self._moments[1].sqrt().unsqueeze(0)

    def uncertainty(self) -> Uncertainty:
        """Return variances of the targets, (N, 1).

        The epistemic variance is that of x, at most the total variance of the count.
        """
        total = self._moments[1]
        epistemic = torch.minimum(self.base.uncertainty().epistemic, total)
        square = self.scale**2
        return Uncertainty(square * total, square * epistemic, square * (total - epistemic))

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Sample ``n`` data sets, (n, N, T)."""
        counts = self.base.sample(n, rng).round().clamp_min(0.0)
        return self.location + self.scale * counts
