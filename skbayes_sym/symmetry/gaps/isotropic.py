r"""Derivatives of the gap of isotropic rows under O(k), by few draws.

For rows ``N(m_i, c_i 1)`` the gap depends on :math:`Q = \sum_i m_i m_i^\top / c_i` alone, and not
on Q's basis. So in the axes of Q its slope is diagonal, whatever its draws say: turning two axes
round turns Q into itself, and every entry off the diagonal into its negative. With
``B = Q + Q^{1/2} Z`` and R the mean rotation given B,

.. math:: \frac{\partial \operatorname{gap}}{\partial m_i} = \frac{1}{c_i} G m_i, \qquad
    G = E[1 - R] \text{ in the axes of } Q, \qquad
    -2 \frac{\partial \operatorname{gap}}{\partial c_i} = \frac{1}{c_i^2} m_i^\top G m_i,

k numbers are to be estimated instead of k (k + 1) / 2. A posterior that is fitted to n pairs of
draws then ends about .5 / n nats below its optimum at k = 20, instead of 30 / n.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.symmetry.gaps.anchors import mean_variances
from skbayes_sym.symmetry.gaps.base import GapGradient, RowPosterior
from skbayes_sym.symmetry.gaps.langevin import (
    PRECISION_DRAWS,
    LangevinExpansion,
    added_precision,
    expand_langevin,
)


class Distance(NamedTuple):
    """``Q = sum_i m_i m_i' / c_i``: how far rows are from 0, and along which axes."""

    values: Tensor  # (k,), increasing
    axes: Tensor  # (k, k), columns

    @classmethod
    def of(cls, loc: Tensor, variance: Tensor) -> "Distance":
        """Of rows with means (n_rows, k) and variances (n_rows,)."""
        values, axes = torch.linalg.eigh(loc.mT @ (loc / variance.unsqueeze(-1)))
        return cls(values.clamp(min=0.0), axes)

    def draws(self, noise: Tensor) -> Tensor:
        """Draws of B in the axes of Q, from standard normal numbers (D, k, k).

        The rows enter through Q alone, so a draw costs O(k^3) however many they are.
        """
        return self.values.diag() + self.values.sqrt().unsqueeze(-1) * noise


def isotropic_gradient(
    loc: Tensor, variance: Tensor, distance: Distance, inner: Tensor
) -> GapGradient:
    """Value and derivatives from draws of B in the axes of Q, (D, k, k).

    The added precision is shaped by the first draw alone, and as large as all of them say.
    """
    expansion = expand_langevin(inner)
    slope = expansion.rest.diagonal(dim1=-2, dim2=-1).mean(0)
    rows = _Rows(loc, variance, distance)
    return rows.gradient(expansion.value.mean(), slope, expansion.first(PRECISION_DRAWS))


class _Rows(NamedTuple):
    """Rows ``N(m_i, c_i 1)``."""

    loc: Tensor  # (n_rows, k)
    variance: Tensor  # (n_rows,)
    distance: Distance

    def gradient(self, value: Tensor, slope: Tensor, few: LangevinExpansion) -> GapGradient:
        """Where G is ``slope`` (k,) in the axes of Q; ``few`` draws shape the added precision."""
        axes = self.distance.axes
        anchors = (self.loc / self.variance.unsqueeze(-1)) @ axes
        due = anchors.square() @ slope
        added = added_precision(anchors, few, axes)
        found = added.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=torch.finfo(due.dtype).tiny)
        added *= (due / found)[:, None, None]
        return GapGradient(value, (anchors * slope) @ axes.mT, added)


@dataclass(frozen=True, eq=False)
class IsotropicGapModel:
    r"""The gap around one posterior, without draws.

    Its slope along an axis of Q falls as that axis grows, from 1 at 0 and in the end as one over
    :math:`\lambda`. With the value and the slopes of many draws at :math:`\lambda^0`,

    .. math:: \operatorname{gap} \approx \operatorname{gap}^0 + \tfrac12 \sum_j
        a_j \log \frac{a_j + \lambda_j}{a_j + \lambda_j^0}, \qquad
        G_{jj} = 2 \frac{\partial \operatorname{gap}}{\partial \lambda_j}
        = \frac{a_j}{a_j + \lambda_j},

    with a such that slopes are equal there. Being a function, it lets steps be judged by
    differences far below the noise of draws.

    Parameters
    ----------
    value : Tensor, 0-d
        Nats.
    values : Tensor of shape (k,)
        :math:`\lambda^0`, increasing.
    bend : Tensor of shape (k,)
        a.
    shape : Tensor of shape (PRECISION_DRAWS, k, k)
        Standard normal: the draws that shape added precisions.
    """

    value: Tensor
    values: Tensor
    bend: Tensor
    shape: Tensor

    @classmethod
    def of(cls, distance: Distance, noise: Tensor) -> "IsotropicGapModel":
        """From draws (D, k, k), standard normal, in the axes of Q."""
        expansion = expand_langevin(distance.draws(noise))
        slope = expansion.rest.diagonal(dim1=-2, dim2=-1).mean(0)
        tiny = torch.finfo(slope.dtype).tiny
        slope, rotation, length = (t.clamp(min=tiny) for t in (slope, 1.0 - slope, distance.values))
        bend = length * slope / rotation
        return cls(expansion.value.mean(), distance.values, bend, noise[:PRECISION_DRAWS])

    def at(self, posterior: RowPosterior) -> Tensor:
        """Its value at a posterior, nats."""
        return self._at(Distance.of(posterior.mean, mean_variances(posterior)))

    def gradients(self, posterior: RowPosterior) -> GapGradient:
        """Its value and derivatives."""
        variance = mean_variances(posterior)
        distance = Distance.of(posterior.mean, variance)
        slope = self.bend / (self.bend + distance.values)
        few = expand_langevin(distance.draws(self.shape))
        return _Rows(posterior.mean, variance, distance).gradient(self._at(distance), slope, few)

    def _at(self, distance: Distance) -> Tensor:
        grown = (distance.values - self.values) / (self.bend + self.values)
        return self.value + 0.5 * (self.bend * grown.log1p()).sum()
