"""Offsets as coordinates of the factors: which numbers of a row are free, and which are pinned.

With ``x_ij = a_i + b_j + u_i . v_j / sqrt(k)`` and ``p = k^(1/4)`` the rows ``(u_i, p a_i, p)`` and
``(v_j, p, p b_j)`` have the inner product ``sqrt(k) x_ij``: an offset is one more coordinate, known
to be p on the other side. Sums over entries, moments of products and draws need not know of it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from skbayes_sym.inference.factorization.incidence import PackedSums, Sums
from skbayes_sym.numerics.machine import positions


class Free(NamedTuple):
    """Coordinates of the rows of one side."""

    free: tuple[int, ...]  # the factors first, then the side's own offset
    pinned: tuple[int, ...]  # known to be `pin`: where the other side keeps its offset
    pin: float


@dataclass(frozen=True)
class Coordinates:
    """``n_components`` factors, then an offset of the rows, then one of the columns."""

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
        """Coordinates of the rows, and of the columns."""
        k = self.n_components
        rows = (k,) if self.row_offsets else ()
        columns = (k + len(rows),) if self.column_offsets else ()
        free = (*range(k), *rows), (*range(k), *columns)
        return Free(free[0], columns, self.pin), Free(free[1], rows, self.pin)

    def pinned(self, mean: Tensor, n_rows: int) -> Tensor:
        """Set what is known, in place; ``mean`` is (n + m, D)."""
        for rows, side in zip((slice(n_rows), slice(n_rows, None)), self.sides, strict=True):
            mean[rows, positions(side.pinned, mean)] = self.pin
        return mean


class ToExplain(NamedTuple):
    """Sums that its entries leave for the free coordinates of each row to explain."""

    sums: Sums  # of shapes (n, d, d) and (n, d)
    constant: Tensor  # (n,), what pinned ones alone add to the sum of squares beyond those of r


def given_pinned(sums: PackedSums, side: Free) -> ToExplain:
    """Take what pinned coordinates explain off the sums."""
    second = sums.matrix(side.free, side.free)
    if not side.pinned:
        return ToExplain(Sums(second, sums.first), sums.first.new_zeros(len(sums.first)))
    root_k, first = side.pin**2, sums.first
    known = side.pin * sums.matrix(side.free, side.pinned).sum(-1) / root_k
    alone = sums.matrix(side.pinned, side.pinned).sum((-2, -1)) / root_k
    constant = alone - 2.0 / side.pin * first[:, positions(side.pinned, first)].sum(-1)
    return ToExplain(Sums(second, first[:, positions(side.free, first)] - known), constant)


def free_part(mean: Tensor, cov: Tensor, side: Free) -> tuple[Tensor, Tensor]:
    """Means and covariances of the free coordinates, (n, d) and (n, d, d)."""
    if not side.pinned:
        return mean, cov
    free = positions(side.free, mean)
    return mean[:, free], cov[:, free.unsqueeze(-1), free]


def put_free(mean: Tensor, cov: Tensor, part: tuple[Tensor, Tensor], side: Free) -> None:
    """Set the free coordinates of means (n, D) and covariances (n, D, D), in place."""
    free = positions(side.free, mean)
    mean[:, free], cov[:, free.unsqueeze(-1), free] = part


def with_pinned(mean: Tensor, cov: Tensor, side: Free) -> tuple[Tensor, Tensor]:
    """The inverse of `free_part`: all D coordinates, the pinned ones without spread."""
    if not side.pinned:
        return mean, cov
    n, size = len(mean), len(side.free) + len(side.pinned)
    full_mean, full_cov = mean.new_full((n, size), side.pin), cov.new_zeros(n, size, size)
    put_free(full_mean, full_cov, (mean, cov), side)
    return full_mean, full_cov
