"""The best Gaussian of a row's factor, given the other side of the factorisation."""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.data import Sums
from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.symmetry.gaps.base import GapGradient


class RowTerms(NamedTuple):
    """What a gap adds to the conditionals of rows."""

    precision: Tensor  # (n, k, k), estimated: not always positive
    target: Tensor  # (n, k)


class RowSystem(NamedTuple):
    """Conditionals ``N(P^-1 t, P^-1)`` of rows."""

    factor: Tensor  # Cholesky factor of P, (n, k, k)
    precision: Tensor  # P, (n, k, k)
    target: Tensor  # t, (n, k)


def gap_terms(gap: GapGradient, mean: Tensor, rows: slice) -> RowTerms:
    """``Q`` and ``f + Q m`` of some of all rows, whose means (n + m, k) were ``mean``."""
    added = gap.added_precision[rows]
    target = (added @ mean[rows].unsqueeze(-1)).squeeze(-1).add_(gap.d_mean[rows])
    return RowTerms(added, target)


def row_conditionals(
    sums: Sums, prior_scale: float, noise_variance: float, added: RowTerms | None = None
) -> RowSystem:
    """The best Gaussians of rows given the others.

    Raises
    ------
    NotPositiveDefiniteError
        If a precision can't be factorised.
    """
    second, first = sums
    k = first.shape[1]
    precision = second / (k * noise_variance)
    precision.diagonal(dim1=-2, dim2=-1).add_(prior_scale**-2)
    target = first / (sqrt(k) * noise_variance)
    if added is not None:
        target += added.target
        diagonal = precision.diagonal(dim1=-2, dim2=-1)
        least = diagonal.clone()
        precision += added.precision
        # Only an added precision estimated from draws, never a true one, is negative.
        torch.maximum(diagonal, least, out=diagonal)
    factor = cholesky(
        precision,
        what="The precision of a row",
        remedy="The noise is too small next to prior_scale: give a larger noise_std, or use "
        "dtype='float64'.",
    )
    return RowSystem(factor, precision, target)
