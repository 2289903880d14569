r"""Weights of the parts of a pool, by the rows that each part leaves out.

Stacking of predictive distributions (Yao et al. 2018, eq. 8) maximises the log score of left-out
rows, here with a Dirichlet prior of concentration c whose logarithm is added,

.. math:: \max_{p \in \Delta} \sum_n w_n \log \sum_k p_k e^{a_{kn}} + (c - 1) \sum_k \log p_k .

It is concave in p. A part may be anything that has a log density of every row.
"""

from collections.abc import Mapping
from math import isnan, log

import torch
from torch import Tensor

_HALVINGS = 60
_MOST_EXCHANGES = 100  # a part
_TOL = 1e-10  # nats per unit of weight, by which no other weights score more
_LOWEST = -500.0  # nats below the best part of a row


def stacking_weights(log_density: Tensor, weight: Tensor, *, concentration: float = 1.0) -> Tensor:
    """Weights (K,) of the parts that maximise the log score of left-out rows.

    The two parts of steepest and least slope exchange their weight, exactly each time, until the
    largest slope promises no more; 0 and 1 are reached. Equal parts leave all to the last.

    ``log_density`` (K, N): of every row by the parts that leave it out, nats; ``weight`` (N,);
    ``concentration``: at least 1, a flat prior.
    """
    density = (log_density - log_density.amax(0)).clamp_min(_LOWEST).exp()
    pull, p = concentration - 1.0, torch.zeros(len(density)).to(density)
    p[-1] = 1.0
    for _ in range(_MOST_EXCHANGES * len(p)):
        slopes = density @ (weight / (p @ density)) + (pull / p if pull else 0.0)
        first = int(slopes.argmax())
        second = int(torch.where(p > 0.0, slopes, torch.inf).argmin())
        gain = slopes[first] - p @ slopes.nan_to_num(0.0, posinf=0.0)
        if first == second or gain <= _TOL * weight.sum():
            break
        both = float(p[first] + p[second])
        p[[first, second]] = 0.0
        share = _exchanged(density[first], density[second], p @ density, both, weight, pull)
        p[first], p[second] = share, both - share
    return p


def _exchanged(
    first: Tensor, second: Tensor, rest: Tensor, both: float, weight: Tensor, pull: float
) -> float:
    """Share of ``both`` that the first of two parts takes, where the score's slope changes sign."""
    less = first - second

    def rises(share: float) -> bool:
        slope = float((weight * less / (rest + both * second + share * less)).sum())
        return slope + (pull / share - pull / (both - share) if pull else 0.0) > 0.0

    if not pull and not rises(0.0):
        return 0.0
    if not pull and rises(both):
        return both
    low, high = 0.0, both
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rises(middle) else (low, middle)
    return 0.5 * (low + high)


def gaining(
    baseline: Tensor, kinds: Mapping[str, Tensor], weight: Tensor, least: float
) -> list[str]:
    """Kinds that gain at least the share ``least`` of the best kind's gain over the baseline.

    ``baseline``, ``values of kinds`` (N,): log densities of left-out rows, nats; ``weight`` (N,);
    ``least``: where no kind gains, the one that loses least is kept.
    """
    gains = {kind: float(weight @ (density - baseline)) for kind, density in kinds.items()}
    gains = {kind: gain for kind, gain in gains.items() if not isnan(gain)}  # a density needs noise
    best = max(gains.values())
    return [kind for kind, gain in gains.items() if gain >= min(least * best, best)]


def baseline_share(
    baseline: Tensor | None, kinds: Mapping[str, Tensor], inner: Mapping[str, float], weight: Tensor
) -> float:
    """Stacking weight of a baseline beside kinds in the proportions ``inner``, which add up to 1.

    ``baseline``, ``values of kinds`` (N,): log densities of left-out rows, nats; without a baseline
    its weight is 0. ``inner``: of those kinds that count. ``weight`` (N,).
    """
    if baseline is None:
        return 0.0
    together = torch.stack([kinds[kind] + log(p) for kind, p in inner.items()]).logsumexp(0)
    return float(stacking_weights(torch.stack([baseline, together]), weight)[0])
