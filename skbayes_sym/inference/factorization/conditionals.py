"""The best Gaussian of a row's factor, given the other side of the factorisation."""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.hyperpriors import RowLaw
from skbayes_sym.inference.factorization.incidence import Sums
from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.symmetry.gaps.gap import GapGradient


class RowTerms(NamedTuple):
    """Terms that a gap adds to the conditionals of rows."""

    precision: Tensor  # (n, k, k), estimated: not always positive
    target: Tensor  # (n, k)


class Noise(NamedTuple):
    """Noise of an entry ``u . v / sqrt(k)``."""

    n_components: int
    variance: float


class RowSystem(NamedTuple):
    """Conditionals ``N(P^-1 t, P^-1)`` of rows."""

    factor: Tensor  # Cholesky factor of P, (n, k, k)
    precision: Tensor  # P, (n, k, k)
    target: Tensor  # t, (n, k)


def gap_terms(gap: GapGradient, mean: Tensor, rows: slice) -> RowTerms:
    """``Q`` and ``f + Q m`` of some of all rows, whose means (n + m, k) were ``mean``."""
    added = gap.added_precision[rows]
    # As m' Q: Q is symmetric, and m' on the left takes a third of the time.
    target = (mean[rows].unsqueeze(-2) @ added).squeeze(-2).add_(gap.d_mean[rows])
    return RowTerms(added, target)


def row_conditionals(
    sums: Sums,
    law: RowLaw,
    means: Tensor,
    noise: Noise,
    added: RowTerms | None = None,
) -> RowSystem:
    """The best Gaussians of the free coordinates of rows given the others.

    ``sums``: of shapes (n, d, d) and (n, d); ``law``: the rows' prior; ``means`` (n, d): prior
    means; ``added``: of the first k coordinates.
    """
    second, first = sums
    precision = second / (noise.n_components * noise.variance)
    precision += law.precision.to(precision)
    target = first / (sqrt(noise.n_components) * noise.variance)
    target += (means @ law.precision).to(target)
    if added is not None:
        k = added.target.shape[1]
        target[:, :k] += added.target
        diagonal = precision.diagonal(dim1=-2, dim2=-1)[:, :k]
        least = diagonal.clone()
        precision[:, :k, :k] += added.precision
        # Only an added precision estimated from draws, never a true one, is negative.
        torch.maximum(diagonal, least, out=diagonal)
    factor = cholesky(
        precision,
        what="The precision of a row",
        remedy="The noise is too small next to the prior: give a larger noise_std, or "
        "give X as float64.",
    )
    return RowSystem(factor, precision, target)
