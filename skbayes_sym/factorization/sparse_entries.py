"""Observed entries of a matrix, the sums over them, and which numbers of a row these tell of.

Nothing here is ever n_rows x n_columns: a sum costs time and memory linear in the observed entries.

Offsets are coordinates of the factors. With ``x_ij = a_i + b_j + u_i . v_j / sqrt(k)`` and
``p = k^(1/4)`` the rows ``(u_i, p a_i, p)`` and ``(v_j, p, p b_j)`` have the inner product
``sqrt(k) x_ij``: an offset is one more coordinate, known to be p on the other side. Sums over
entries, moments of products and draws need not know of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.runtime import cache_tensors, index_tensor


class CSREntries(NamedTuple):
    """Entries seen from one side: of each row, which columns, and what was seen there."""

    start: Tensor  # (n_rows + 1,) int64, where each row's entries begin
    other: Tensor  # (N,) int32, the column of each
    value: Tensor  # (N,)
    weight: Tensor | None = None  # (N,), how often each counts; None: all once
    context: Tensor | None = None  # (N, c), what else is known of each

    @property
    def n_rows(self) -> int:
        """Rows, those without entries included."""
        return len(self.start) - 1

    def block(self, first: int, last: int) -> "CSREntries":
        """Rows ``first`` to ``last - 1``."""
        if (first, last) == (0, self.n_rows):
            return self
        begin = int(self.start[first])
        end = int(self.start[last])
        start = self.start[first : last + 1] - begin
        weight, context = (
            None if part is None else part[begin:end] for part in (self.weight, self.context)
        )
        return CSREntries(start, self.other[begin:end], self.value[begin:end], weight, context)

    @property
    def row(self) -> Tensor:
        """The row of each entry, (N,) int64."""
        rows = torch.arange(self.n_rows, device=self.start.device)
        return torch.repeat_interleave(rows, self.start.diff())

    @property
    def asked(self) -> Tensor:
        """Place of each entry and its context, (N, 2 + c)."""
        places = torch.stack([self.row, self.other.long()], dim=1)
        return places if self.context is None else torch.cat([places, self.context], dim=1)

    @property
    def total_weight(self) -> float:
        """Number of entries, each counted by its weight."""
        return float(len(self.value) if self.weight is None else self.weight.double().sum())

    @property
    def squares(self) -> float:
        """Weighted sum of the squared values."""
        squares = self.value.double().square()
        return float((squares if self.weight is None else squares * self.weight).sum())


class FactorEntries(NamedTuple):
    """Rows of one factor among those of both, ``[U | V]``, and the entries that tell of them."""

    entries: CSREntries
    own: slice
    other: slice


class Entries(NamedTuple):
    """The observed entries of a matrix, grouped by row and by column."""

    by_row: CSREntries
    by_column: CSREntries
    order: Tensor  # (N,) int32: entry e of by_column is entry order[e] of by_row

    def with_values(self, value: Tensor, weight: Tensor | None) -> "Entries":
        """Other values and weights at the same places, given in the order of ``by_row``."""
        turned = None if weight is None else weight[self.order]
        return self._replace(
            by_row=self.by_row._replace(value=value, weight=weight),
            by_column=self.by_column._replace(value=value[self.order], weight=turned),
        )

    @property
    def sides(self) -> tuple[FactorEntries, FactorEntries]:
        """U given V, and V given U."""
        rows = slice(0, self.n_rows)
        columns = slice(self.n_rows, None)
        return FactorEntries(self.by_row, rows, columns), FactorEntries(
            self.by_column, columns, rows
        )

    @property
    def n_observed(self) -> int:
        """Number N of entries."""
        return len(self.by_row.value)

    @property
    def n_rows(self) -> int:
        """Rows of the matrix."""
        return self.by_row.n_rows

    @property
    def n_columns(self) -> int:
        """Columns of the matrix."""
        return self.by_column.n_rows


def group_entries(
    rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int],
    weights: Tensor | None = None, context: Tensor | None = None,
) -> Entries:  # fmt: skip
    """Both groupings of the entries ``R[rows[e], columns[e]] = values[e]``.

    Within a row, and within a column, the order given is kept. Entries that come row by row are
    not copied.

    ``rows``, ``columns``: N below 2^31; ``values`` (N,); ``weights`` (N,); ``context`` (N, c).
    """
    rows = rows.int()
    columns = columns.int()
    if bool((rows[1:] < rows[:-1]).any()):
        order = torch.argsort(rows, stable=True)
        rows = rows[order]
        columns = columns[order]
        values = values[order]
        weights, context = (None if part is None else part[order] for part in (weights, context))
    turn = torch.argsort(columns, stable=True).int()
    turned = None if weights is None else weights[turn]
    starts = []
    for places, n in zip((rows, columns), shape, strict=True):
        counts = torch.bincount(places, minlength=n)
        starts.append(torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
    return Entries(
        CSREntries(starts[0], columns, values, weights, context),
        CSREntries(starts[1], rows[turn], values[turn], turned),
        turn,
    )


class NormalEquations(NamedTuple):
    """Sums over the entries of each row."""

    second: Tensor  # weighted, of E[v v']: (n, k, k), or packed lower triangles (n, k (k + 1) / 2)
    first: Tensor  # (n, k), weighted sum over its entries of r E[v]

    def matrix(self, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        """Part of packed second sums, (n, r, c)."""
        _, place = _triangle(self.first.shape[1], self.second.device)
        i, j = (index_tensor(tuple(part), self.second) for part in (rows, columns))
        return self.second[:, place[i][:, j]]


@cache_tensors
def _triangle(k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Flat places of the lower triangle, and the place in that list of every matrix entry."""
    row, column = torch.tril_indices(k, k, device=device)
    place = torch.empty(k, k, dtype=torch.int64, device=device)
    place[row, column] = place[column, row] = torch.arange(len(row), device=device)
    return row * k + column, place


def pack_second_moments(mean: Tensor, cov: Tensor) -> Tensor:
    """Lower triangles of ``m m' + S``: (n, k) and (n, k, k) -> (n, k (k + 1) / 2)."""
    where, _ = _triangle(mean.shape[1], mean.device)
    packed = mean.new_empty(len(mean), len(where))
    for begin, end in matrix_blocks(len(mean), mean.shape[1]):
        m = mean[begin:end]
        s = cov[begin:end]
        full = torch.addcmul(s, m.unsqueeze(-1), m.unsqueeze(-2)).flatten(1)
        torch.index_select(full, 1, where, out=packed[begin:end])
    return packed


def triangle_multiplicity(mean: Tensor) -> Tensor:
    """Multiplicity of each number of a packed triangle in the matrix, (k (k + 1) / 2,)."""
    k = mean.shape[1]
    row, column = torch.tril_indices(k, k, device=mean.device)
    return 2.0 - (row == column).to(mean)


def compute_normal_equations(data: CSREntries, packed: Tensor, mean: Tensor) -> NormalEquations:
    """`compute_packed_equations`, unpacked."""
    sums = compute_packed_equations(data, packed, mean)
    every = range(mean.shape[1])
    return NormalEquations(sums.matrix(every, every), sums.first)


def compute_packed_equations(data: CSREntries, packed: Tensor, mean: Tensor) -> NormalEquations:
    """Sums of the rows of ``data``; O(N k^2) time, O(n_rows k^2) memory.

    ``packed`` (n_other, k (k + 1) / 2): `pack_second_moments` of the other side; ``mean``
    (n_other, k): means of the other side.
    """
    if len(data.other) == 0:
        return NormalEquations(
            *(mean.new_zeros(data.n_rows, part.shape[1]) for part in (packed, mean))
        )
    where = data.start[:-1].to(data.other)
    weight = data.weight
    second = embedding_bag(data.other, packed, where, mode="sum", per_sample_weights=weight)
    value = data.value if weight is None else data.value * weight
    first = embedding_bag(data.other, mean, where, mode="sum", per_sample_weights=value)
    return NormalEquations(second, first)


def compute_products(of_rows: Tensor, of_columns: Tensor, data: CSREntries) -> Tensor:
    """``of_rows[i] . of_columns[j]`` at every entry (i, j) of ``data``, in its order, (N,)."""
    n_at_once = max(64, (1 << 18) // max(of_rows.shape[1], 1))  # within the cache
    blocks = zip(data.row.split(n_at_once), data.other.split(n_at_once), strict=True)
    parts = [(of_rows[i] * of_columns[j]).sum(-1) for i, j in blocks]
    return torch.cat(parts) if parts else of_rows.new_zeros(0)


class CoordinateSplit(NamedTuple):
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
    def sides(self) -> tuple[CoordinateSplit, CoordinateSplit]:
        """Coordinates of the rows, and of the columns."""
        k = self.n_components
        rows = (k,) if self.row_offsets else ()
        columns = (k + len(rows),) if self.column_offsets else ()
        free = (*range(k), *rows), (*range(k), *columns)
        return CoordinateSplit(free[0], columns, self.pin), CoordinateSplit(free[1], rows, self.pin)

    def pinned(self, mean: Tensor, n_rows: int) -> Tensor:
        """Set what is known, in place; ``mean`` is (n + m, D)."""
        for rows, side in zip((slice(n_rows), slice(n_rows, None)), self.sides, strict=True):
            mean[rows, index_tensor(side.pinned, mean)] = self.pin
        return mean


def eliminate_fixed(sums: NormalEquations, side: CoordinateSplit) -> tuple[NormalEquations, Tensor]:
    """Sums (n, d, d) and (n, d) that entries leave for the free coordinates of rows to explain.

    And what pinned ones alone add to the sum of squares beyond those of r, (n,).
    """
    second = sums.matrix(side.free, side.free)
    if not side.pinned:
        return NormalEquations(second, sums.first), sums.first.new_zeros(len(sums.first))
    root_k = side.pin**2
    first = sums.first
    known = side.pin * sums.matrix(side.free, side.pinned).sum(-1) / root_k
    alone = sums.matrix(side.pinned, side.pinned).sum((-2, -1)) / root_k
    constant = alone - 2.0 / side.pin * first[:, index_tensor(side.pinned, first)].sum(-1)
    return NormalEquations(second, first[:, index_tensor(side.free, first)] - known), constant


def select_free(mean: Tensor, cov: Tensor, side: CoordinateSplit) -> tuple[Tensor, Tensor]:
    """Means and covariances of the free coordinates, (n, d) and (n, d, d)."""
    if not side.pinned:
        return mean, cov
    free = index_tensor(side.free, mean)
    return mean[:, free], cov[:, free.unsqueeze(-1), free]


def assign_free(
    mean: Tensor, cov: Tensor, part: tuple[Tensor, Tensor], side: CoordinateSplit
) -> None:
    """Set the free coordinates of means (n, D) and covariances (n, D, D), in place."""
    free = index_tensor(side.free, mean)
    mean[:, free], cov[:, free.unsqueeze(-1), free] = part


def append_fixed(mean: Tensor, cov: Tensor, side: CoordinateSplit) -> tuple[Tensor, Tensor]:
    """The inverse of `select_free`: all D coordinates, the pinned ones without spread."""
    if not side.pinned:
        return mean, cov
    n = len(mean)
    size = len(side.free) + len(side.pinned)
    full_mean = mean.new_full((n, size), side.pin)
    full_cov = cov.new_zeros(n, size, size)
    assign_free(full_mean, full_cov, (mean, cov), side)
    return full_mean, full_cov
