r"""How noise changes with the level of the target, and how heavy its tails are, by left-out rows.

A network trained with one noise per target has the right mean, roughly, and one width for all rows.
Targets that can't be negative, or that are measured in per cent, scatter more where they are large;
counts of rare events and faults of instruments have tails. What a row leaves out says both. With
the noise :math:`s` that a model was trained with and the pooled mean :math:`m(x)`, in standard
deviations of the training rows' and kept within their range,

.. math:: y \mid x \sim (1 - p) N(f(x), v_0 \sigma^2) + p N(f(x), v_1 \sigma^2), \quad
          \sigma = s \exp(o + g\, m(x)),

where the two variances average to :math:`\sigma^2` (the contaminated normal of Tukey 1960). Offset
o, slope g, share p and ratio :math:`v_1 / v_0` are those of the highest density of the left-out
rows under priors, and kept only where the Bayesian information criterion (Schwarz 1978) prefers
them to one noise of any level. The weights of the networks are left as they are.
"""

from dataclasses import dataclass, replace
from math import exp, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.models.predictive import NormalMixture
from skbayes_sym.numerics.optimise import by_autograd, lbfgs

Array = npt.NDArray[np.float64]

# Prior standard deviations. Noise proportional to the target has a slope of about the target's
# coefficient of variation: rarely more than 1. The level of the noise is what training has said:
# left-out rows of linearised networks are too favourable to ask them. Whether there is a shape is
# decided beside a level that is free, or tails would stand in for it.
_SLOPE_STD, _OFFSET_STD, _FREE = 0.5, 0.1, 1.0
_MOST_WIDE = 0.5  # of the rows; beyond, the other state would be called the wide one
# Bounds of the logit of the share (of `_MOST_WIDE`) and of the logarithm of ratio - 1.
_LOGIT, _LOG_RATIO = (-6.0, 6.0), (-3.0, 5.0)
_MAX_ITER = 100
_VISIBLE = 1.5  # ratio of standard deviations from which tails are worth a word


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """Noise whose width depends on the predicted mean, of two normals.

    Parameters
    ----------
    offset, slope : ndarray of shape (T,)
        Of the logarithm of the factor on the standard deviation; slope per ``spread``.
    centre, spread : ndarray of shape (T,)
        Average and standard deviation of the predicted means of training rows.
    lowest, highest : ndarray of shape (T,)
        Ends of these means, in units of ``spread``: beyond, the factor stays what it is there.
    wide_share : float
        Share p of the noise that has the larger variance.
    wide_ratio : float
        By how much the larger variance exceeds the smaller.
    mean_square : ndarray of shape (T,)
        Mean square of the factor over the training rows.
    """

    offset: Array
    slope: Array
    centre: Array
    spread: Array
    lowest: Array
    highest: Array
    wide_share: float
    wide_ratio: float
    mean_square: Array

    def __str__(self) -> str:
        growth = ", ".join(f"{exp(g):.2g}" for g in self.slope)
        text = f"noise {growth} times as wide per standard deviation of the mean"
        wide = self.wide_ratio**0.5
        if wide < _VISIBLE:
            return text
        return f"{text}, and {wide:.2g} times as wide again in {self.wide_share:.2g} of the rows"

    def factor(self, mean: Tensor) -> Tensor:
        """Factor on the noise's standard deviation, given predicted means (N, T)."""
        centre, spread, low, high, offset, slope = (
            torch.as_tensor(t).to(mean)
            for t in (
                self.centre, self.spread, self.lowest, self.highest, self.offset, self.slope
            )
        )  # fmt: skip
        level = ((mean - centre) / spread).clamp(low, high)
        return (offset + slope * level).exp()

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Factors (2,) on the variance, which average to 1, and their shares (2,)."""
        share = torch.tensor(self.wide_share, dtype=torch.float64)
        return _states(share, torch.full_like(share, self.wide_ratio))

    def shaped(self, law: NormalMixture) -> NormalMixture:
        """The distribution with this noise in place of noise of one width: two states a draw."""
        return _widened(law, self.factor(law.mean()), *self.states)


@dataclass(frozen=True, eq=False)
class TwoNoises(NormalMixture):
    """Draws whose rows have noise of one of two widths each, when they are drawn from.

    ``noise_variance`` is the average; ``noise_states`` are factors on it and their shares.
    """

    noise_states: tuple[Tensor, Tensor] = (torch.ones(1), torch.ones(1))

    def _sample(self, chosen: Tensor, rng: np.random.Generator) -> Tensor:
        (narrow, wide), (_, share) = self.noise_states
        is_wide = rng.random((len(chosen), self.loc.shape[1], 1)) < float(share)
        variance = torch.as_tensor(np.where(is_wide, float(wide), float(narrow))).to(self.loc)
        normal = rng.standard_normal((len(chosen), *self.loc.shape[1:]))
        noise = self.noise_variance.expand_as(self.loc)[chosen] * variance
        return self.loc[chosen] + noise.sqrt() * torch.as_tensor(normal).to(self.loc)


def _states(wide_share: Tensor, wide_ratio: Tensor) -> tuple[Tensor, Tensor]:
    shares = torch.stack([1.0 - wide_share, wide_share])
    return torch.stack([torch.ones_like(wide_ratio), wide_ratio]) / (
        1.0 + wide_share * (wide_ratio - 1.0)
    ), shares


def _widened(
    law: NormalMixture, factor: Tensor, variances: Tensor, shares: Tensor
) -> NormalMixture:
    """Every draw once for each state, its noise widened by ``factor`` (N, T)."""
    n, noise = len(shares), law.noise_variance * factor.square()
    log_weights = law.log_weights
    if log_weights is None:
        log_weights = noise.new_full((len(law.loc),), -log(len(law.loc)))
    return replace(
        law,
        loc=law.loc.repeat(n, 1, 1),
        variance=law.variance.expand_as(law.loc).repeat(n, 1, 1),
        noise_variance=torch.cat([noise * v for v in variances.to(noise).unbind()]),
        log_weights=(shares.to(noise).log().unsqueeze(1) + log_weights).flatten(),
        covariance=None if law.covariance is None else law.covariance.repeat(n, 1, 1, 1),
    )


def fit_noise_shape(law: NormalMixture, y: Tensor, weight: Tensor) -> NoiseShape | None:
    """The shape that left-out rows like best; None where one noise does as well.

    Parameters
    ----------
    law : NormalMixture
        Of every row given all others: S models, N rows, T targets.
    y : Tensor of shape (N, T)
    weight : Tensor of shape (N,)

    Notes
    -----
    O(S N T) an evaluation, some hundred of them.
    """
    total, mean = float(weight.sum()), law.mean()
    centre = weight @ mean / total
    spread = (weight @ (mean - centre).square() / total).sqrt()
    if not bool((spread > 0.0).all()):
        return None
    level = (mean - centre) / spread
    losses = _Losses(law, y, weight, level, _FREE)
    start = level.new_zeros(level.shape[1])
    plain = lbfgs(by_autograd(losses.of_one_noise), start, max_iter=_MAX_ITER)
    free = losses.lowest(torch.cat([plain, start, start.new_tensor([-1.0, 1.0])]))
    gain = float(losses.of_one_noise(plain) - losses.of_shape(free))
    if gain < 0.5 * (len(start) + 2) * log(max(total, 1.0)):
        return None
    best = losses._replace(offset_std=_OFFSET_STD).lowest(free)
    offset, slope, tails = best.split([len(start), len(start), 2])
    share, ratio = (float(t) for t in _tails(tails))
    mean_square = weight @ (2.0 * (offset + slope * level)).exp() / total
    columns = (offset, slope, centre, spread, level.amin(0), level.amax(0), mean_square)
    a, b, c, d, e, f, square = (np.asarray(t.double().cpu().numpy()) for t in columns)
    return NoiseShape(a, b, c, d, e, f, share, ratio, square)


class _Losses(NamedTuple):
    """Minus the log density of left-out rows and of the prior, up to a constant, nats."""

    law: NormalMixture
    y: Tensor
    weight: Tensor
    level: Tensor  # predicted means (N, T), standardised
    offset_std: float

    def of_one_noise(self, offset: Tensor) -> Tensor:
        one = offset.new_ones(1)
        density = _widened(self.law, offset.exp(), one, one).log_prob(self.y)
        return 0.5 * (offset / self.offset_std).square().sum() - self.weight @ density

    def of_shape(self, position: Tensor) -> Tensor:
        n_targets = self.level.shape[1]
        offset, slope, tails = position.split([n_targets, n_targets, 2])
        variances, shares = _states(*_tails(tails))
        law = _widened(self.law, (offset + slope * self.level).exp(), variances, shares)
        squares = (offset / self.offset_std).square() + (slope / _SLOPE_STD).square()
        return 0.5 * squares.sum() - self.weight @ law.log_prob(self.y)

    def lowest(self, start: Tensor) -> Tensor:
        """Where `of_shape` is lowest."""
        bounds = [(-5.0, 5.0)] * (len(start) - 2) + [_LOGIT, _LOG_RATIO]
        return lbfgs(by_autograd(self.of_shape), start, max_iter=_MAX_ITER, bounds=bounds)


def _tails(position: Tensor) -> tuple[Tensor, Tensor]:
    """Share of the wide state, and the ratio of the variances."""
    return _MOST_WIDE * position[0].sigmoid(), 1.0 + position[1].exp()
