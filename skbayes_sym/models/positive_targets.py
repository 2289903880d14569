r"""Predictive distributions of positive targets.

If all :math:`n` training targets are positive, the probability that the next one isn't is about
:math:`\epsilon = 1 / (n + 2)` (Laplace's rule of succession). From seven targets on it is at most
0.005: with a symmetric distribution around zero, fewer than 1 % of samples of seven are positive.
Where a distribution F gives values up to zero a larger probability :math:`F(0)`, its density is
multiplied by a constant on each side,

.. math:: p_+(y) = p(y) \, \epsilon / F(0) \quad (y \le 0), \qquad
          p_+(y) = p(y) \, (1 - \epsilon) / (1 - F(0)) \quad (y > 0) .

Elsewhere it stays as it is. The density at a positive target never decreases.

References
----------
Laplace (1814). Essai philosophique sur les probabilités.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.models.log_targets import LogTargets
from skbayes_sym.models.predictive_mixtures import (
    LinearPool,
    NormalMixture,
    TargetPredictive,
    Uncertainty,
)
from skbayes_sym.numerics.bisection import invert_cdf
from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.integration import integrate

# Largest probability of values up to zero, for tables of 7 to 198 rows.
MAX_MASS_BELOW = 0.005
_MIN_ROWS = 7
_TINY = 1e-300


def choose_mass_below(total_weight: float) -> float:
    """Return the largest probability of values up to zero after positive targets only.

    Parameters
    ----------
    total_weight : float
        Number of targets, or the sum of their weights.

    Returns
    -------
    float
    """
    next_differs = 1.0 / (total_weight + 2.0)
    if total_weight < _MIN_ROWS:
        return next_differs
    return min(next_differs, MAX_MASS_BELOW)


@dataclass(frozen=True, eq=False)
class PositiveTargets(TargetPredictive):
    """Distribution of a target that is hardly ever zero or negative.

    Parameters
    ----------
    base : TargetPredictive
        Distribution with a density, (N, 1).
    origin : float
        Value of the target that stands for zero.
    max_mass : float
        Largest probability of values up to ``origin``.
    """

    base: TargetPredictive
    origin: float
    max_mass: float
    log_weights: Tensor | None = None

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

    @property
    def density_jumps(self) -> tuple[float, ...]:
        """Values at which the density jumps."""
        return (self.origin,)

    def take(self, rows: np.ndarray) -> "PositiveTargets":
        """Return the distributions of the rows with these indices."""
        return replace(self, base=self.base.take(rows))

    def rescale(self, mean: Tensor, scale: Tensor) -> "PositiveTargets":
        """Return the distribution of ``mean + scale * target``."""
        origin = float(mean) + float(scale) * self.origin
        if abs(origin) < 1e-12 * abs(float(mean)):
            origin = 0.0
        return replace(self, base=self.base.rescale(mean, scale), origin=origin)

    @cached_property
    def _mass_below(self) -> Tensor:
        """Probability of values up to the origin without the restriction, (N, 1)."""
        return self.base.cdf(self._full(self.origin))

    def _full(self, value: float) -> Tensor:
        """Return a constant value of every row, (N, 1)."""
        return torch.full((self.n_rows, 1), value, dtype=torch.float64)

    @cached_property
    def _is_changed(self) -> Tensor:
        """Whether the distribution of a row differs from that of the base, (N, 1)."""
        return self._mass_below > self.max_mass

    @cached_property
    def _log_mass_above(self) -> Tensor:
        """Log probability of values above the origin without the restriction, (N, 1)."""
        if isinstance(self.base, NormalMixture):
            z = (self.base.loc - self.origin) / self.base.scales
            weighted = torch.special.log_ndtr(z) + self.base.broadcast_weights.log()
            return torch.logsumexp(weighted, dim=0)
        return (1.0 - self._mass_below).clamp_min(_TINY).log()

    @cached_property
    def factor_below(self) -> Tensor:
        """Factor on the density up to the origin, (N, 1)."""
        return torch.where(self._is_changed, self.max_mass / self._mass_below.clamp_min(_TINY), 1.0)

    @cached_property
    def factor_above(self) -> Tensor:
        """Factor on the density above the origin, (N, 1)."""
        factor = (1.0 - self.max_mass) * (-self._log_mass_above).exp().clamp_max(1.0 / _TINY)
        return torch.where(self._is_changed, factor, 1.0)

    def _survival(self, y: Tensor) -> Tensor:
        """Return the probability without the restriction of values above y, (N, 1)."""
        if isinstance(self.base, NormalMixture):
            z = (self.base.loc - y) / self.base.scales
            return (self.base.broadcast_weights * torch.special.log_ndtr(z).exp()).sum(0)
        return 1.0 - self.base.cdf(y)

    def log_prob(self, y: Tensor) -> Tensor:
        """Return the log density of the target of each row, (N,) nats."""
        log_above = np.log1p(-self.max_mass) - self._log_mass_above
        log_factor = torch.where(y > self.origin, log_above, self.factor_below.log())
        log_factor = torch.where(self._is_changed, log_factor, 0.0)
        return self.base.log_prob(y) + log_factor[:, 0]

    def cdf(self, y: Tensor) -> Tensor:
        """Return ``P(target <= y)``, (N, 1)."""
        base = self.base.cdf(y)
        above = 1.0 - self._survival(y) * self.factor_above
        changed = torch.where(y > self.origin, above, base * self.factor_below)
        return torch.where(self._is_changed, changed, base)

    def quantile(self, probability: float) -> Tensor:
        """Return quantiles, (N, 1)."""
        return self.quantiles([probability])[0]

    def quantiles(self, levels: Sequence[float]) -> list[Tensor]:
        """Return quantiles at several levels, each (N, 1)."""
        quantiles = self.base.quantiles(levels)
        rows = self._is_changed[:, 0].nonzero()[:, 0]
        if not len(rows):
            return quantiles
        changed = self.take(rows.numpy())
        restricted = []
        for level, base_quantile in zip(levels, quantiles, strict=True):
            probability = torch.full((len(rows), 1), level, dtype=torch.float64)
            quantile = base_quantile.clone()
            quantile[rows] = changed.invert(changed.cdf, probability)
            restricted.append(quantile)
        return restricted

    def invert(self, cdf: Callable[[Tensor], Tensor], probability: Tensor) -> Tensor:
        """Find values by bisection in units of the standard deviation, (N, 1).

        Parameters
        ----------
        cdf : callable
            Distribution function of the rows.
        probability : Tensor of shape (N, 1)
            Levels that are searched for.

        Returns
        -------
        Tensor of shape (N, 1)
        """
        unit = self.base.std()
        zero = torch.zeros_like(unit)
        return self.origin + unit * invert_cdf(
            lambda z: cdf(self.origin + unit * z), probability, zero
        )

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the distance from the origin, (N, 1)."""
        base_mean = self.base.mean() - self.origin
        base_variance = self.base.uncertainty().total
        above, square_above = self._moments_above(self.base)
        below = base_mean - above
        square_below = base_mean.square() + base_variance - square_above
        mean = self.factor_below * below + self.factor_above * above
        square = self.factor_below * square_below + self.factor_above * square_above
        variance = (square - mean.square()).clamp_min(0.0)
        return (
            torch.where(self._is_changed, mean, base_mean),
            torch.where(self._is_changed, variance, base_variance),
        )

    def _moments_above(self, base: TargetPredictive) -> tuple[Tensor, Tensor]:
        """Return ``E max(x, 0)`` and ``E max(x, 0)^2``, (N, 1).

        Here x is the distance of targets with the distribution ``base`` from the origin.
        """
        if isinstance(base, LinearPool):
            pairs = zip(base.component_weights, base.components, strict=True)
            moments = [(w, *self._moments_above(component)) for w, component in pairs]
            mean = torch.stack([w * mean for w, mean, _ in moments]).sum(0)
            return mean, torch.stack([w * square for w, _, square in moments]).sum(0)
        if isinstance(base, LogTargets):
            mean = base.mean() - self.origin
            return mean, base.uncertainty().total + mean.square()
        if isinstance(base, NormalMixture):
            loc = base.loc - self.origin
            scale = base.scales
            z = loc / scale
            probability = torch.special.log_ndtr(z).exp()
            density = torch.exp(-0.5 * (z.square() + LOG_2PI))
            mean = loc * probability + scale * density
            square = (loc.square() + scale.square()) * probability + loc * scale * density
            weights = base.broadcast_weights
            return (weights * mean).sum(0), (weights * square).sum(0)
        zero = self._full(self.origin)
        top = torch.maximum(base.quantile(1.0 - 1e-10), zero)

        def survival(y: Tensor) -> Tensor:
            return 1.0 - base.cdf(y)

        mean = integrate(survival, zero, top)
        square = integrate(lambda y: 2.0 * (y - self.origin) * survival(y), zero, top)
        return mean, square

    def mean(self) -> Tensor:
        """Return the expected targets, (N, 1)."""
        return torch.where(self._is_changed, self.origin + self._moments[0], self.base.mean())

    @property
    def means(self) -> Tensor:
        """Expected targets given each draw, (S, N, T)."""
        return self.mean().unsqueeze(0)

    @property
    def scales(self) -> Tensor:
        """Standard deviations of the targets given each draw, (S, N, T)."""
        return self._moments[1].sqrt().unsqueeze(0)

    def uncertainty(self) -> Uncertainty:
        """Return variances of the targets, (N, 1).

        The parts of the variance have the same proportions as without the restriction.
        """
        base = self.base.uncertainty()
        ratio = torch.where(self._is_changed, self._moments[1] / base.total, 1.0)
        epistemic = ratio * base.epistemic
        aleatoric = ratio * base.aleatoric
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Sample ``n`` data sets, (n, N, 1)."""
        return self.redraw_below(self.base.sample(n, rng), rng)

    def redraw_below(self, draws: Tensor, rng: np.random.Generator) -> Tensor:
        """Turn samples of the base into samples of the restricted distribution.

        Samples up to the origin are kept with the probability ``max_mass / F(origin)``. Others are
        replaced by samples above the origin.

        Parameters
        ----------
        draws : Tensor of shape (n, N, 1)
            Samples of the base.
        rng : Generator
            Source of random numbers.

        Returns
        -------
        Tensor of shape (n, N, 1)
        """
        uniform = torch.as_tensor(rng.random(tuple(draws.shape)))
        is_replaced = (draws <= self.origin) & (uniform >= self.factor_below)
        rows = is_replaced.nonzero()[:, 1]
        if not len(rows):
            return draws
        samples = draws.double().clone()
        samples[is_replaced] = self.take(rows.numpy()).sample_above(rng)[:, 0]
        return samples

    def sample_above(self, rng: np.random.Generator) -> Tensor:
        """Sample one value above the origin for every row, (N, 1)."""
        uniform = torch.as_tensor(rng.random((self.n_rows, 1)))
        if not isinstance(self.base, NormalMixture):
            level = self._mass_below + uniform * (1.0 - self._mass_below)
            return self.invert(self.base.cdf, level).clamp_min(self.origin)

        # Draw a component given that the value is above the origin, then the value.
        log_mass = torch.special.log_ndtr((self.base.loc - self.origin) / self.base.scales)
        weights = (log_mass + self.base.broadcast_weights.log()).softmax(0)[..., 0]
        threshold = torch.as_tensor(rng.random(self.n_rows))
        component = (weights.cumsum(0) < threshold).sum(0).clamp_max(len(weights) - 1)
        rows = torch.arange(self.n_rows)
        survival = uniform[:, 0] * log_mass[component, rows, 0].exp()
        z = torch.special.ndtri(survival.clamp_min(_TINY))
        value = self.base.loc[component, rows, 0] - self.base.scales[component, rows, 0] * z
        return value.clamp_min(self.origin).unsqueeze(1)


class PositiveDraws:
    """Samples of functions whose targets are hardly ever zero or negative.

    Parameters
    ----------
    draws : object
        Distributions given sampled functions, as a predictor's ``sample_conditionals`` returns.
    distribution : PositiveTargets
        Distribution of the targets.
    """

    def __init__(self, draws: Any, distribution: PositiveTargets) -> None:
        self._draws = draws
        self._distribution = distribution

    @property
    def means(self) -> Tensor:
        """Noise-free functions, (n, N, 1)."""
        return self._draws.means  # type: ignore[no-any-return]

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Sample targets, (n, N, 1)."""
        return self._distribution.redraw_below(self._draws.sample_per_draw(rng), rng)
