r"""The continuous ranked probability score of any predictive distribution with a cdf.

.. math:: \mathrm{CRPS}(F, y) = \int (F(x) - \mathbf 1[x \ge y])^2 \, dx

(Gneiting & Raftery 2007, eq. 20, with the sign that makes less better), in the units of the target.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

# Beyond these tails the integrand is below 1e-12 of the spread.
_TAIL = 1e-6
_MOST_COUNTS = 4096
_PANELS, _NODES = (
    8,
    16,
)  # Gauss-Legendre on either side of y: relative error below 1e-6 for mixtures


class HasCdf(Protocol):
    """A distribution of every row's targets."""

    @property
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""
        ...

    def cdf(self, y: Tensor) -> Tensor:
        """P(target <= y), (N, T)."""
        ...

    def quantile(self, probability: float) -> Tensor:
        """(N, T)."""
        ...


def crps(law: HasCdf, y: Tensor) -> Tensor:
    """CRPS of every row and target, (N, T), in target units; less is better.

    Parameters
    ----------
    law : distribution with ``cdf`` and ``quantile``
        Of whole numbers the integral is a sum.
    y : Tensor of shape (N, T)
        Observed targets.

    Notes
    -----
    Costs 256 evaluations of the cdf; of counts as many as there are between the quantiles, at most
    4,096: beyond, steps of 1 are too fine to see, and the sum is an integral.
    """
    low, high = law.quantile(_TAIL), law.quantile(1.0 - _TAIL)
    if law.is_discrete:
        return _sum_over_counts(law, y, low, high)
    low, high = torch.minimum(low, y), torch.maximum(high, y)
    below = _integral(lambda x: law.cdf(x).square(), low, y)
    return below + _integral(lambda x: (1.0 - law.cdf(x)).square(), y, high)


def _integral(f: Callable[[Tensor], Tensor], start: Tensor, end: Tensor) -> Tensor:
    """Composite Gauss-Legendre from ``start`` to ``end``."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    width = (end - start) / _PANELS
    total = torch.zeros_like(start)
    for panel in range(_PANELS):
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            at = start + width * (panel + 0.5 * (node + 1.0))
            total += 0.5 * weight * width * f(at)
    return total


def _sum_over_counts(law: HasCdf, y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    # Beyond the quantiles every count up to y costs 1.
    beyond = (y - high).clamp_min(0.0) + (low - y).clamp_min(0.0)
    inside = torch.minimum(torch.maximum(y, low), high)
    if float((high - low).max()) > _MOST_COUNTS:
        below = _integral(lambda x: law.cdf(x).square(), low, inside)
        return beyond + below + _integral(lambda x: (1.0 - law.cdf(x)).square(), inside, high)
    total = torch.zeros_like(y)
    for step in range(int((high - low).max()) + 1):
        at = low + step
        counted = (law.cdf(at) - (at >= inside).to(y)).square()
        total += torch.where(at <= high, counted, torch.zeros_like(y))
    return beyond + total
