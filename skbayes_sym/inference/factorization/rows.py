"""The best Gaussian of a row's factor, given the other side of the factorisation."""

from math import sqrt

import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.symmetry.gaps.rotations import Pull


def row_conditionals(
    sums: tuple[Tensor, Tensor],
    prior_scale: float,
    noise: float,
    pull: Pull | None = None,
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
    if pull is not None and mean is not None:
        stiffness = pull.stiffness[rows]
        held = (stiffness @ mean[rows].unsqueeze(-1)).squeeze(-1).add_(pull.force[rows])
        target += held
        diagonal = precision.diagonal(dim1=-2, dim2=-1)
        least = diagonal.clone()
        precision += stiffness
        # Only a stiffness estimated from draws, never a true one, is negative.
        torch.maximum(diagonal, least, out=diagonal)
    factor = cholesky(
        precision,
        what="The precision of a row",
        remedy="The noise is too small next to prior_scale: give a larger noise_std, or use "
        "dtype='float64'.",
    )
    return factor, precision, target
