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

Predictions of points have no noise of their own: any width for all rows may stand for it, whose
level is free then, and the shape is always kept.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import exp, log

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.optimise import by_autograd, lbfgs

Array = npt.NDArray[np.float64]

# Prior standard deviations. Noise proportional to the target has a slope of about the target's
# coefficient of variation: rarely more than 1. The level of the noise is what training has said:
# left-out rows of linearised networks are too favourable to ask them. Whether there is a shape is
# decided beside a level that is free, or tails would stand in for it.
_SLOPE_STD, _OFFSET_STD, _FREE = 0.5, 0.1, 1.0
_TAILS_STD = 3.0  # of the shape of point predictions
_MOST_WIDE = 0.5  # of the rows; beyond, the other state would be called the wide one
# Bounds of the logit of the share (of `_MOST_WIDE`) and of the logarithm of ratio - 1.
_LOGIT, _LOG_RATIO = (-6.0, 6.0), (-3.0, 5.0)
_MAX_ITER = 100
_VISIBLE = 1.5  # ratio of standard deviations from which tails are worth a word


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """Noise whose width depends on the predicted mean, of two normals.

    ``offset``, ``slope`` (T,): of the logarithm of the factor on the standard deviation; slope per
    ``spread``. ``centre``, ``spread`` (T,): average and standard deviation of the predicted means
    of training rows. ``lowest``, ``highest`` (T,): ends of these means, in units of ``spread``:
    beyond, the factor stays what it is there.
    """

    offset: Array
    slope: Array
    centre: Array
    spread: Array
    lowest: Array
    highest: Array
    wide_share: float  # share p of the noise that has the larger variance
    wide_ratio: float  # by how much the larger variance exceeds the smaller
    mean_square: Array  # (T,); mean square of the factor over the training rows

    def __str__(self) -> str:
        growth = ", ".join(f"{exp(g):.2g}" for g in self.slope)
        text = f"noise {growth} times as wide per standard deviation of the mean"
        wide = self.wide_ratio**0.5
        if wide < _VISIBLE:
            return text
        return f"{text}, and {wide:.2g} times as wide again in {self.wide_share:.2g} of the rows"

    def factor(self, mean: Tensor) -> Tensor:
        """Factor on the noise's standard deviation, given predicted means (N, T)."""
        arrays = (self.centre, self.spread, self.lowest, self.highest, self.offset, self.slope)
        centre, spread, low, high, offset, slope = (torch.as_tensor(a).to(mean) for a in arrays)
        level = ((mean - centre) / spread).clamp(low, high)
        return (offset + slope * level).exp()

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Factors (2,) on the variance, which average to 1, and their shares (2,)."""
        return _states(*torch.tensor([self.wide_share, self.wide_ratio], dtype=torch.float64))

    def shaped(self, law: NormalMixture) -> NormalMixture:
        """The distribution with this noise in place of noise of one width: two states a draw."""
        return _widened(law, self.factor(law.mean()), *self.states)


def _states(share: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    variances = torch.stack([torch.ones_like(ratio), ratio]) / (1.0 + share * (ratio - 1.0))
    return variances, torch.stack([1.0 - share, share])


def _widened(
    law: NormalMixture, factor: Tensor, variances: Tensor, shares: Tensor
) -> NormalMixture:
    """Every draw once for each state, its noise widened by ``factor`` (N, T)."""
    n, noise = len(shares), (law.noise_variance * factor.square()).expand_as(law.loc)
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


def fit_noise_shape(
    law: NormalMixture, y: Tensor, weight: Tensor, *, is_free: bool = False
) -> NoiseShape | None:
    """The shape that left-out rows like best; None where one noise does as well.

    ``law``: of every row given all others: S models, N rows, T targets; ``y`` (N, T); ``weight``
    (N,); ``is_free``: whether the law's noise is a guess: its level is free then, and the shape is
    never None.

    O(S N T) an evaluation, some hundred of them.
    """
    total, mean, n = float(weight.sum()), law.mean(), y.shape[1]
    centre = weight @ mean / total
    spread = (weight @ (mean - centre).square() / total).sqrt()
    if not bool((spread > 0.0).all()):
        if not is_free:
            return None
        spread = torch.where(spread > 0.0, spread, 1.0)
    level = (mean - centre) / spread

    def loss(position: Tensor, offset_std: float) -> Tensor:
        """Minus the log density of rows and prior; of an offset alone for one noise."""
        offset, slope, tails = position.tensor_split([n, 2 * n])
        log_factor, states = offset, (offset.new_ones(1), offset.new_ones(1))
        if len(slope):
            log_factor, states = offset + slope * level, _states(*_tails(tails))
        squares = (offset / offset_std).square().sum() + (slope / _SLOPE_STD).square().sum()
        if is_free and len(slope):
            squares = squares + ((tails - _tail_start(tails)) / _TAILS_STD).square().sum()
        return 0.5 * squares - weight @ _widened(law, log_factor.exp(), *states).log_prob(y)

    def lowest(start: Tensor, offset_std: float) -> Tensor:
        bounds = None if len(start) == n else [(-5.0, 5.0)] * (2 * n) + [_LOGIT, _LOG_RATIO]
        of_std = by_autograd(partial(loss, offset_std=offset_std))
        return lbfgs(of_std, start, max_iter=_MAX_ITER, bounds=bounds)

    plain = lowest(level.new_zeros(n), _FREE)
    free = lowest(torch.cat([plain, plain.new_zeros(n), _tail_start(plain)]), _FREE)
    if not is_free:
        if float(loss(plain, _FREE) - loss(free, _FREE)) < 0.5 * (n + 2) * log(max(total, 1.0)):
            return None
        free = lowest(free, _OFFSET_STD)
    offset, slope, tails = free.tensor_split([n, 2 * n])
    share, ratio = (float(t) for t in _tails(tails))
    mean_square = weight @ (2.0 * (offset + slope * level)).exp() / total
    columns = (offset, slope, centre, spread, level.amin(0), level.amax(0), mean_square)
    *shape, square = (np.asarray(t.double().cpu().numpy()) for t in columns)
    return NoiseShape(*shape, share, ratio, square)  # type: ignore[call-arg, arg-type]


def _tail_start(like: Tensor) -> Tensor:
    """Start of the search of share and ratio, and centre of their prior."""
    return like.new_tensor([-1.0, 1.0])


def _tails(position: Tensor) -> tuple[Tensor, Tensor]:
    """Share of the wide state, and the ratio of the variances."""
    return _MOST_WIDE * position[0].sigmoid(), 1.0 + position[1].exp()
