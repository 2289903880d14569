r"""How large the factors of one side should be, all rows together.

Where the prior's scales are learned, a component that explains nothing shrinks like :math:`1 / t`
under coordinate ascent: its rows follow the prior, and the prior its rows. Multiplied by numbers
:math:`s_c` of their own, rows and prior move at once. With the other side held, the bound is

.. math:: -\frac{1}{2 \sigma^2} \left(\tfrac1k s^\top H s - \tfrac{2}{\sqrt k} b^\top s\right)
    + \log p(\text{rows} \cdot s) + n \sum_c \log s_c, \qquad
    H = \sum_i E[\theta_i \theta_i^\top] \circ \sum_j E[v_j v_j^\top], \quad
    b = \sum_i E[\theta_i] \circ \sum_j r_{ij} E[v_j],

sums that a sweep has anyway: parameter expansion (Liu, Rubin & Wu 1998) for a factorisation.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.conditionals import Noise
from skbayes_sym.inference.factorization.hyperpriors import (
    RowLaw,
    SideMoments,
    SidePrior,
)

_LEAST, _MOST = (
    0.5,
    2.0,
)  # a step: sums are of q before it, and components must not be lost at once
_WORTH = 1e-3  # relative changes below are left alone
_HALVINGS = 3


class ScaleSums(NamedTuple):
    """What entries say of the size of a side's rows, float64."""

    second: Tensor  # (d, d), H
    first: Tensor  # (d,), b
    gap: Tensor  # (k,), slope of the gap in log s

    def fit(self, scales: Tensor, n_components: int) -> float:
        """What rows multiplied by these (d,) add to the expected squares beyond ``sum r^2``."""
        sums = torch.stack((scales @ self.second @ scales, self.first @ scales))
        by_second, by_first = sums.tolist()  # a GPU is waited for once
        return float(by_second / n_components - 2.0 * by_first / n_components**0.5)


class Rescaled(NamedTuple):
    """Rows of a side at their best size."""

    scales: Tensor | None  # (d,), 1 for offsets; None: they stay
    moments: SideMoments
    law: RowLaw
    value: float  # the prior's part of the bound


def rescaled(
    sums: ScaleSums, moments: SideMoments, prior: SidePrior, law: RowLaw, noise: Noise
) -> Rescaled:
    """What to multiply a side's coordinates by, and the best law of what comes of it.

    A Newton step, shortened until the bound rises. O(k^3), whatever the number of rows.
    """
    k, d = noise.n_components, len(sums.first)
    own, value = prior.learned(moments, law)
    stay = Rescaled(None, moments, own, value)
    # H s / (k s2) = b / (sqrt(k) s2) + c, the rest's slope c at s = 1; offsets stay.
    slope = (sums.first / k**0.5 - sums.second[:, k:].sum(1) / k)[:k]
    slope = slope + noise.variance * (prior.growth(own)[:k] + sums.gap)
    wanted, _ = torch.linalg.solve_ex(sums.second[:k, :k] / k, slope)
    step = wanted.clamp(_LEAST, _MOST).log()
    if not float(step.abs().max()) >= _WORTH:
        return stay  # nan: no entries tell of the size
    before = value - 0.5 * sums.fit(torch.ones_like(sums.first), k) / noise.variance
    for _ in range(_HALVINGS):
        scales = sums.first.new_ones(d)
        scales[:k] = step.exp()
        found = moments.scaled(scales)
        law_there, value = prior.learned(found, law)
        after = value - 0.5 * sums.fit(scales, k) / noise.variance
        if after + float((moments.n + sums.gap) @ step) > before:
            return Rescaled(scales, found, law_there, value)
        step = 0.5 * step
    return stay
