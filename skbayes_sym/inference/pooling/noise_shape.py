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

from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.inference.pooling.left_out import LeftOut
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
        Of them, in units of ``spread``: beyond, the factor stays what it is there.
    wide_share : float
        Share p of the noise that has the larger variance.
    wide_ratio : float
        By how much the larger variance exceeds the smaller.
    mean_square : ndarray of shape (T,)
        Of the factor, over the training rows.
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
        """On the noise's standard deviation, given predicted means (N, T)."""
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
        share = torch.tensor([1.0 - self.wide_share, self.wide_share], dtype=torch.float64)
        variance = torch.tensor([1.0, self.wide_ratio], dtype=torch.float64)
        return variance / (share @ variance), share


@dataclass(frozen=True, eq=False)
class PooledLeftOut:
    """Left-out rows of the S models of a pool.

    Parameters
    ----------
    laws : LeftOut
        (S, N, T).
    log_shares : Tensor of shape (S,)
        Of the models, nats.
    y : Tensor of shape (N, T)
    weight : Tensor of shape (N,)
    """

    laws: LeftOut
    log_shares: Tensor
    y: Tensor
    weight: Tensor

    def mean(self) -> Tensor:
        """(N, T)."""
        return torch.einsum("s,snt->nt", self.log_shares.exp(), self.laws.mean)

    def log_prob(self, factor: Tensor, variances: Tensor, shares: Tensor) -> Tensor:
        """Sum over rows with noise of ``factor`` (N, T) and states of ``variances`` (2,), nats."""
        noise = self.laws.noise_variance * factor.square()
        each = [
            LeftOut(self.laws.mean, self.laws.variance, noise * v).log_prob(self.y)
            for v in variances.unbind()
        ]
        states = torch.stack(each) + shares.log().reshape(-1, 1, 1)
        per_row = (states.logsumexp(0) + self.log_shares.unsqueeze(1)).logsumexp(0)
        return self.weight @ per_row


def fit_noise_shape(rows: PooledLeftOut) -> NoiseShape | None:
    """The shape that left-out rows like best; None where one noise does as well.

    Notes
    -----
    O(S N T) an evaluation, some hundred of them.
    """
    total = float(rows.weight.sum())
    mean = rows.mean()
    centre = rows.weight @ mean / total
    spread = (rows.weight @ (mean - centre).square() / total).sqrt()
    if not bool((spread > 0.0).all()):
        return None
    level = (mean - centre) / spread
    losses = _Losses(rows, level, _FREE)
    start = level.new_zeros(level.shape[1])
    plain = lbfgs(by_autograd(losses.of_one_noise), start, max_iter=_MAX_ITER)
    free = losses.lowest(torch.cat([plain, start, start.new_tensor([-1.0, 1.0])]))
    gain = float(losses.of_one_noise(plain) - losses.of_shape(free))
    if gain < 0.5 * (len(start) + 2) * log(max(total, 1.0)):
        return None
    found = _Losses(rows, level, _OFFSET_STD).lowest(free)
    offset, slope, tails = found.split([len(start), len(start), 2])
    share, ratio = (float(t) for t in _tails(tails))
    mean_square = rows.weight @ (2.0 * (offset + slope * level)).exp() / total
    return NoiseShape(
        offset=_array(offset), slope=_array(slope), centre=_array(centre), spread=_array(spread),
        lowest=_array(level.amin(0)), highest=_array(level.amax(0)), wide_share=share,
        wide_ratio=ratio, mean_square=_array(mean_square),
    )  # fmt: skip


class _Losses(NamedTuple):
    """Minus the log density of left-out rows and of the prior, up to a constant, nats."""

    rows: PooledLeftOut
    level: Tensor  # predicted means (N, T), standardised
    offset_std: float

    def of_one_noise(self, offset: Tensor) -> Tensor:
        one = offset.new_ones(1)
        density = self.rows.log_prob(offset.exp().expand_as(self.level), one, one)
        return 0.5 * (offset / self.offset_std).square().sum() - density

    def of_shape(self, position: Tensor) -> Tensor:
        n_targets = self.level.shape[1]
        offset, slope, tails = position.split([n_targets, n_targets, 2])
        share, ratio = _tails(tails)
        shares = torch.stack([1.0 - share, share])
        variances = torch.stack([torch.ones_like(ratio), ratio]) / (1.0 + share * (ratio - 1.0))
        density = self.rows.log_prob((offset + slope * self.level).exp(), variances, shares)
        squares = (offset / self.offset_std).square() + (slope / _SLOPE_STD).square()
        return 0.5 * squares.sum() - density

    def lowest(self, start: Tensor) -> Tensor:
        """Where `of_shape` is lowest."""
        bounds = [(-5.0, 5.0)] * (len(start) - 2) + [_LOGIT, _LOG_RATIO]
        return lbfgs(by_autograd(self.of_shape), start, max_iter=_MAX_ITER, bounds=bounds)


def _array(values: Tensor) -> Array:
    return np.asarray(values.double().cpu().numpy())


def _tails(position: Tensor) -> tuple[Tensor, Tensor]:
    """Share of the wide state, and the ratio of the variances."""
    return _MOST_WIDE * position[0].sigmoid(), 1.0 + position[1].exp()
