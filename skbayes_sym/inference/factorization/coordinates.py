"""Offsets as coordinates of the factors: which numbers of a row are free, and which are pinned.

With ``x_ij = a_i + b_j + u_i . v_j / sqrt(k)`` and ``p = k^(1/4)`` the rows ``(u_i, p a_i, p)`` and
``(v_j, p, p b_j)`` have the inner product ``sqrt(k) x_ij``: an offset is one more coordinate, known
to be p on the other side. Sums over entries, moments of products and draws need not know of it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from skbayes_sym.inference.factorization.data import Sums
from skbayes_sym.numerics.constants import positions


class Free(NamedTuple):
    """Coordinates of the rows of one side."""

    free: tuple[int, ...]  # the factors first, then the side's own offset
    pinned: tuple[int, ...]  # known to be `pin`: where the other side keeps its offset
    pin: float

    @property
    def is_everything(self) -> bool:
        """Whether nothing is pinned."""
        return not self.pinned


@dataclass(frozen=True)
class Coordinates:
    """``n_components`` factors, then an offset of the rows, then one of the columns.

    Parameters
    ----------
    n_components : int
    row_offsets, column_offsets : bool, default=False
    """

    n_components: int
    row_offsets: bool = False
    column_offsets: bool = False

    @property
    def n_coordinates(self) -> int:
        """Numbers a row has."""
        return self.n_components + self.row_offsets + self.column_offsets

    @property
    def pin(self) -> float:
        """``k^(1/4)``."""
        return float(self.n_components**0.25)

    @property
    def sides(self) -> tuple[Free, Free]:
        """Of the rows, and of the columns."""
        k = self.n_components
        rows = (k,) if self.row_offsets else ()
        columns = (k + len(rows),) if self.column_offsets else ()
        factors = tuple(range(k))
        return (
            Free((*factors, *rows), columns, self.pin),
            Free((*factors, *columns), rows, self.pin),
        )

    def pinned(self, mean: Tensor, n_rows: int) -> Tensor:
        """Set what is known, in place; ``mean`` is (n + m, D)."""
        for rows, side in zip((slice(n_rows), slice(n_rows, None)), self.sides, strict=True):
            mean[rows, positions(side.pinned, mean)] = self.pin
        return mean


def given_pinned(sums: Sums, side: Free) -> Sums:
    """What is left for the free coordinates to explain, (n, d, d) and (n, d)."""
    if side.is_everything:
        return sums
    second, first = sums
    free, root_k = positions(side.free, first), side.pin**2
    known = side.pin * second[:, :, positions(side.pinned, first)].sum(-1) / root_k
    return Sums(second[:, free][:, :, free], (first - known)[:, free])


def free_part(mean: Tensor, cov: Tensor, side: Free) -> tuple[Tensor, Tensor]:
    """Means and covariances of the free coordinates, (n, d) and (n, d, d)."""
    if side.is_everything:
        return mean, cov
    free = positions(side.free, mean)
    return mean[:, free], cov[:, free][:, :, free]


def with_pinned(mean: Tensor, cov: Tensor, side: Free) -> tuple[Tensor, Tensor]:
    """The inverse of `free_part`: all D coordinates, the pinned ones without spread."""
    if side.is_everything:
        return mean, cov
    n, size = len(mean), len(side.free) + len(side.pinned)
    free = positions(side.free, mean)
    full_mean, full_cov = mean.new_full((n, size), side.pin), cov.new_zeros(n, size, size)
    full_mean[:, free] = mean
    full_cov[:, free.unsqueeze(-1), free] = cov
    return full_mean, full_cov
