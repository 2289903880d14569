r"""Continuous ranked probability score of predictive distributions.

.. math:: \mathrm{CRPS}(F, y) = \int (F(x) - \mathbf 1[x \ge y])^2 \, dx

(Gneiting & Raftery 2007, eq. 20, with the sign for which lower is better), in the unit of the
target.
"""

import torch
from torch import Tensor

from skbayes_sym.models.predictive_mixtures import NormalMixture, TargetPredictive
from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.integration import integrate

_TAIL = 1e-8  # probability of each tail outside of which the integrand is below 1e-16


def crps(distribution: TargetPredictive, y: Tensor) -> Tensor:
    """Compute the CRPS of every row and target; lower is better.

    Parameters
    ----------
    distribution : TargetPredictive
        Predictive distribution of N rows and T targets.
    y : Tensor of shape (N, T)
        Observed targets.

    Returns
    -------
    Tensor of shape (N, T)
        Scores in the units of the targets.

    Notes
    -----
    For mixtures of up to 200 normals the result is exact, at a cost of O(S^2) per row. Otherwise
    the integral is adaptive, with a relative error of about 1e-6 in float64: panels are halved as
    long as that changes the integral. It takes at least 192 evaluations of the cdf, and 32 more for
    each halved panel. For counts the integral is a sum over the counts between two extreme
    quantiles. If there are more than 4,096 of them, steps of 1 are negligible and the sum is
    computed as an integral.
    """
    if isinstance(distribution, NormalMixture) and len(distribution.loc) <= 200:
        return _normal_mixture_crps(distribution, y)
    low = distribution.quantile(_TAIL)
    high = distribution.quantile(1.0 - _TAIL)
    if distribution.is_discrete:
        # The score is linear in y between two counts.
        count = y.floor()
        fraction = y - count
        score = _sum_over_counts(distribution, count, low, high)
        if not bool(fraction.any()):
            return score
        return (1.0 - fraction) * score + fraction * _sum_over_counts(
            distribution, count + 1.0, low, high
        )
    low = torch.minimum(low, y)
    high = torch.maximum(high, y)
    below = integrate(lambda x: distribution.cdf(x).square(), low, y)
    return below + integrate(lambda x: (1.0 - distribution.cdf(x)).square(), y, high)


def _normal_mixture_crps(distribution: NormalMixture, y: Tensor) -> Tensor:
    """Compute ``E|Y - y| - E|Y - Y'| / 2`` in closed form.

    (Grimit, Gneiting, Berrocal & Johnson 2006, eq. 5.)
    """
    loc = distribution.loc
    variance = distribution.scales.square()
    weights = distribution.broadcast_weights

    def distance(mean: Tensor, variance: Tensor) -> Tensor:
        """Mean of ``|N(mean, variance)|``, averaged over the normals."""
        std = variance.sqrt().clamp_min(torch.finfo(mean.dtype).tiny)
        z = mean / std
        density = torch.exp(-0.5 * (z.square() + LOG_2PI))
        return (weights * (2.0 * std * density + mean * torch.erf(z / 2**0.5))).sum(0)

    pairs = zip(weights.expand_as(loc), loc, variance, strict=True)
    pair_distances = [w * distance(loc - m, variance + v) for w, m, v in pairs]
    return distance(loc - y, variance) - 0.5 * torch.stack(pair_distances).sum(0)


def _sum_over_counts(
    distribution: TargetPredictive, y: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """Compute the CRPS at integers ``y``, as a sum over the counts between two quantiles.

    Parameters
    ----------
    distribution : TargetPredictive
        Distribution of counts.
    y : Tensor of shape (N, T)
        Observed counts.
    low, high : Tensor of shape (N, T)
        Quantiles between which counts are summed.
    """
    # Outside the quantiles the integrand is 1 for every count up to y.
    beyond = (y - high).clamp_min(0.0) + (low - y).clamp_min(0.0)
    inside = torch.minimum(torch.maximum(y, low), high)
    if float((high - low).max()) > 4096:
        below = integrate(lambda x: distribution.cdf(x).square(), low, inside)
        return (
            beyond + below + integrate(lambda x: (1.0 - distribution.cdf(x)).square(), inside, high)
        )
    total = torch.zeros_like(y)
    for step in range(int((high - low).max()) + 1):
        count = low + step
        square = (distribution.cdf(count) - (count >= inside).to(y)).square()
        total += torch.where(count <= high, square, torch.zeros_like(y))
    return beyond + total
