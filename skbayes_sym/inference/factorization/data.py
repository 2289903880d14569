"""Observed entries of a matrix, and the sums over them that every factorisation needs.

Nothing here is ever n_rows x n_columns: a sum costs time and memory linear in the observed entries.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

ROW_BLOCK = 2048  # rows whose (k, k) matrices are worked on at once


class Incidence(NamedTuple):
    """Entries seen from one side: of each row, which columns, and what was seen there."""

    start: Tensor  # (n_rows + 1,) int64, where each row's entries begin
    other: Tensor  # (N,) int64, the column of each
    value: Tensor  # (N,)

    @property
    def n_rows(self) -> int:
        """Rows, those without entries included."""
        return len(self.start) - 1

    def block(self, first: int, last: int) -> "Incidence":
        """Rows ``first`` to ``last - 1``."""
        begin, end = int(self.start[first]), int(self.start[last])
        start = self.start[first : last + 1] - begin
        return Incidence(start, self.other[begin:end], self.value[begin:end])


class Side(NamedTuple):
    """One factor's rows among those of both, ``[U | V]``, and the entries that tell of them."""

    entries: Incidence
    own: slice
    other: slice


class Entries(NamedTuple):
    """The observed entries of a matrix, grouped by row and by column."""

    by_row: Incidence
    by_column: Incidence

    @property
    def sides(self) -> tuple[Side, Side]:
        """U given V, and V given U."""
        rows, columns = slice(0, self.n_rows), slice(self.n_rows, None)
        return Side(self.by_row, rows, columns), Side(self.by_column, columns, rows)

    @property
    def n_observed(self) -> int:
        """Their number N."""
        return len(self.by_row.value)

    @property
    def n_rows(self) -> int:
        """Rows of the matrix."""
        return self.by_row.n_rows

    @property
    def n_columns(self) -> int:
        """Columns of the matrix."""
        return self.by_column.n_rows


def incidence(rows: Tensor, columns: Tensor, values: Tensor, n_rows: int) -> Incidence:
    """Group entries by row; within a row the order given is kept.

    Parameters
    ----------
    rows, columns : int64 Tensor of shape (N,)
    values : Tensor of shape (N,)
    n_rows : int
    """
    order = torch.argsort(rows, stable=True)
    counts = torch.bincount(rows, minlength=n_rows)
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Incidence(start, columns[order], values[order])


def entries(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Entries:
    """Both groupings of the entries ``R[rows[e], columns[e]] = values[e]``."""
    return Entries(
        incidence(rows, columns, values, shape[0]), incidence(columns, rows, values, shape[1])
    )


class Sums(NamedTuple):
    """What its entries say about the factor of each row."""

    second: Tensor  # (n, k, k), sum over its entries of E[v v']
    first: Tensor  # (n, k), sum over its entries of r E[v]


@lru_cache(maxsize=8)
def _triangle(k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Flat places of the lower triangle, and the place in that list of every matrix entry."""
    row, column = torch.tril_indices(k, k, device=device)
    place = torch.empty(k, k, dtype=torch.int64, device=device)
    place[row, column] = place[column, row] = torch.arange(len(row), device=device)
    return row * k + column, place


def packed_second_moments(mean: Tensor, cov: Tensor) -> Tensor:
    """Lower triangles of ``m m' + S``: (n, k) and (n, k, k) -> (n, k (k + 1) / 2)."""
    where, _ = _triangle(mean.shape[1], mean.device)
    blocks = [
        torch.addcmul(s, m.unsqueeze(-1), m.unsqueeze(-2)).flatten(1).index_select(1, where)
        for m, s in zip(mean.split(ROW_BLOCK), cov.split(ROW_BLOCK), strict=True)
    ]
    return torch.cat(blocks)


def sums_over_entries(data: Incidence, packed: Tensor, mean: Tensor) -> Sums:
    """`Sums` of the rows of ``data``; O(N k^2) time, O(n_rows k^2) memory.

    Parameters
    ----------
    data : Incidence
    packed : Tensor of shape (n_other, k (k + 1) / 2)
        `packed_second_moments` of the other side.
    mean : Tensor of shape (n_other, k)
        Means of the other side.
    """
    k = mean.shape[1]
    if len(data.other) == 0:
        return Sums(mean.new_zeros(data.n_rows, k, k), mean.new_zeros(data.n_rows, k))
    _, place = _triangle(k, mean.device)
    where = data.start[:-1]
    second = embedding_bag(data.other, packed, where, mode="sum")
    first = embedding_bag(data.other, mean, where, mode="sum", per_sample_weights=data.value)
    return Sums(second[:, place], first)


def products(left: Tensor, right: Tensor, data: Incidence) -> Tensor:
    """``left[i] . right[j]`` at every entry (i, j) of ``data``, in its order, (N,)."""
    row = torch.repeat_interleave(torch.arange(data.n_rows, device=left.device), data.start.diff())
    blocks = zip(row.split(1 << 18), data.other.split(1 << 18), strict=True)
    parts = [(left[i] * right[j]).sum(-1) for i, j in blocks]
    return torch.cat(parts) if parts else left.new_zeros(0)
