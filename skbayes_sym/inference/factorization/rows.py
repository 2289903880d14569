"""The best Gaussian of a row's factor, given the other side of the factorisation."""

from math import sqrt

import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.symmetry.gaps.base import GapGradient


def row_conditionals(
    sums: tuple[Tensor, Tensor],
    prior_scale: float,
    noise: float,
    gap: GapGradient | None = None,
    rows: slice = slice(0),
    mean: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky factor, precision (n, k, k) and target ``P m`` (n, k) of rows given the others.

    Raises
    ------
    NotPositiveDefiniteError
        If a precision can't be factorised.
    """
    second, first = sums
    k = first.shape[1]
    precision = second / (k * noise)
    precision.diagonal(dim1=-2, dim2=-1).add_(prior_scale**-2)
    target = first / (sqrt(k) * noise)
    if gap is not None and mean is not None:
        added = gap.added_precision[rows]
        held = (added @ mean[rows].unsqueeze(-1)).squeeze(-1).add_(gap.d_mean[rows])
        target += held
        diagonal = precision.diagonal(dim1=-2, dim2=-1)
        least = diagonal.clone()
        precision += added
        # Only an added precision estimated from draws, never a true one, is negative.
        torch.maximum(diagonal, least, out=diagonal)
    factor = cholesky(
        precision,
        what="The precision of a row",
        remedy="The noise is too small next to prior_scale: give a larger noise_std, or use "
        "dtype='float64'.",
    )
    return factor, precision, target
