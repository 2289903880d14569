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

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.symmetry.gaps.base import GapGradient
from skbayes_sym.symmetry.gaps.langevin import PRECISION_DRAWS, added_precision, expand_langevin


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
    anchors = (loc / variance.unsqueeze(-1)) @ distance.axes
    due = anchors.square() @ slope
    added = added_precision(anchors, expansion.first(PRECISION_DRAWS), distance.axes)
    found = added.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=torch.finfo(due.dtype).tiny)
    added *= (due / found)[:, None, None]
    return GapGradient(expansion.value.mean(), (anchors * slope) @ distance.axes.mT, added)
