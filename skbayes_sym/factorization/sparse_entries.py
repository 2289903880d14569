"""Observed entries of a matrix in compressed form, and sums over them.

No array here has n_rows x n_columns elements. A sum costs time and memory linear in the number of
observed entries.

Offsets of rows and columns are treated as coordinates of the factors. With
``x_ij = a_i + b_j + u_i . v_j / sqrt(k)`` and ``p = k^(1/4)``, the augmented rows
``(u_i, p a_i, p)`` and ``(v_j, p, p b_j)`` have the inner product ``sqrt(k) x_ij``. An offset is
therefore one more coordinate, whose counterpart in the other factor is fixed to p. Sums over
entries, moments of products and draws treat all coordinates alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from skbayes_sym.numerics.arguments import select_optional
from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.runtime import cache_tensors, index_tensor

# Elements of each factor that `compute_products` gathers at once: they stay in the CPU's cache.
_ELEMENTS_PER_BLOCK = 1 << 18


class CSREntries(NamedTuple):
    """Observed entries in compressed sparse row format.

    Attributes
    ----------
    indptr : int64 Tensor of shape (n_rows + 1,)
        The entries of row i have the positions ``indptr[i]`` to ``indptr[i + 1] - 1``.
    indices : int32 Tensor of shape (N,)
        Column of each entry.
    value : Tensor of shape (N,)
        Value of each entry.
    weight : Tensor of shape (N,) or None
        Number of times that each entry counts; None if all count once.
    context : Tensor of shape (N, c) or None
        Encoded context of each entry.
    """

    indptr: Tensor
    indices: Tensor
    value: Tensor
    weight: Tensor | None = None
    context: Tensor | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows, including those without entries."""
        return len(self.indptr) - 1

    def slice_rows(self, first: int, last: int) -> "CSREntries":
        """Return the rows ``first`` to ``last - 1``."""
        if (first, last) == (0, self.n_rows):
            return self
        begin = int(self.indptr[first])
        end = int(self.indptr[last])
        return CSREntries(
            self.indptr[first : last + 1] - begin,
            self.indices[begin:end],
            self.value[begin:end],
            select_optional(self.weight, slice(begin, end)),
            select_optional(self.context, slice(begin, end)),
        )

    @property
    def row_index(self) -> Tensor:
        """Row of each entry, (N,) int64."""
        rows = torch.arange(self.n_rows, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff())

    @property
    def inputs(self) -> Tensor:
        """Row, column and context of each entry, (N, 2 + c): inputs of a `FactorPredictor`."""
        pairs = torch.stack([self.row_index, self.indices.long()], dim=1)
        if self.context is None:
            return pairs
        return torch.cat([pairs, self.context], dim=1)

    @property
    def total_weight(self) -> float:
        """Number of entries, each counted by its weight."""
        if self.weight is None:
            return float(len(self.value))
        return float(self.weight.double().sum())

    @property
    def sum_of_squares(self) -> float:
        """Weighted sum of the squared values."""
        squares = self.value.double().square()
        if self.weight is not None:
            squares = squares * self.weight
        return float(squares.sum())


class FactorEntries(NamedTuple):
    """Entries from which the rows of one factor are updated given the other factor.

    The rows of both factors are stored in one array, those of U before those of V.

    Attributes
    ----------
    entries : CSREntries
        Entries grouped by the rows of this factor.
    own_rows, other_rows : slice
        Positions of the rows of this factor and of the other one in the array.
    """

    entries: CSREntries
    own_rows: slice
    other_rows: slice


class Entries(NamedTuple):
    """Observed entries of a matrix, grouped by row and by column.

    Attributes
    ----------
    by_row, by_column : CSREntries
        Entries of the matrix and of its transpose. Only ``by_row`` has a context.
    order : int32 Tensor of shape (N,)
        Entry e of ``by_column`` is entry ``order[e]`` of ``by_row``.
    """

    by_row: CSREntries
    by_column: CSREntries
    order: Tensor

    def with_values(self, value: Tensor, weight: Tensor | None) -> "Entries":
        """Replace values and weights, both given in the order of ``by_row``."""
        return self._replace(
            by_row=self.by_row._replace(value=value, weight=weight),
            by_column=self.by_column._replace(
                value=value[self.order], weight=select_optional(weight, self.order)
            ),
        )

    @property
    def by_factor(self) -> tuple[FactorEntries, FactorEntries]:
        """Entries for the update of U given V, and for that of V given U."""
        rows = slice(0, self.n_rows)
        columns = slice(self.n_rows, None)
        return (
            FactorEntries(self.by_row, rows, columns),
            FactorEntries(self.by_column, columns, rows),
        )

    @property
    def n_observed(self) -> int:
        """Number N of entries."""
        return len(self.by_row.value)

    @property
    def n_rows(self) -> int:
        """Number of rows of the matrix."""
        return self.by_row.n_rows

    @property
    def n_columns(self) -> int:
        """Number of columns of the matrix."""
        return self.by_column.n_rows


def group_entries(
    rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int],
    weights: Tensor | None = None, context: Tensor | None = None,
) -> Entries:  # fmt: skip
    """Group the entries ``R[rows[e], columns[e]] = values[e]`` by row and by column.

    Within a row, and within a column, entries keep their order. Entries that are already sorted by
    row aren't copied.

    Parameters
    ----------
    rows, columns : int32 or int64 Tensor of shape (N,)
        Positions of the entries, with N below 2^31.
    values : Tensor of shape (N,)
        Values of the entries.
    shape : tuple of int
        Numbers of rows and columns.
    weights : Tensor of shape (N,), optional
        Weights of the entries.
    context : Tensor of shape (N, c), optional
        Encoded context of the entries.

    Returns
    -------
    Entries
        The entries in both groupings.
    """
    rows = rows.int()
    columns = columns.int()
    is_sorted = not bool((rows[1:] < rows[:-1]).any())
    if not is_sorted:
        order = torch.argsort(rows, stable=True)
        rows = rows[order]
        columns = columns[order]
        values = values[order]
        weights = select_optional(weights, order)
        context = select_optional(context, order)
    order_by_column = torch.argsort(columns, stable=True).int()
    by_row = CSREntries(_count_pointers(rows, shape[0]), columns, values, weights, context)
    by_column = CSREntries(
        _count_pointers(columns, shape[1]),
        rows[order_by_column],
        values[order_by_column],
        select_optional(weights, order_by_column),
    )
    return Entries(by_row, by_column, order_by_column)


def _count_pointers(rows: Tensor, n_rows: int) -> Tensor:
    """Return the row pointers of compressed sparse rows, (n_rows + 1,)."""
    counts = torch.bincount(rows, minlength=n_rows)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


class NormalEquations(NamedTuple):
    """Normal equations of the regression of each row's entries on the other factor.

    Attributes
    ----------
    gram : Tensor of shape (n, k, k) or (n, k (k + 1) / 2)
        Weighted sums of ``E[v v']`` over the entries of each row, as matrices or as packed lower
        triangles.
    rhs : Tensor of shape (n, k)
        Weighted sums of ``r E[v]`` over the entries of each row.
    """

    gram: Tensor
    rhs: Tensor

    def unpack_block(self, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        """Return a block of every packed Gram matrix, (n, len(rows), len(columns))."""
        _, packed_index = _index_triangle(self.rhs.shape[1], self.gram.device)
        row_index = index_tensor(tuple(rows), self.gram)
        column_index = index_tensor(tuple(columns), self.gram)
        return self.gram[:, packed_index[row_index][:, column_index]]


@cache_tensors
def _index_triangle(k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Index the lower triangle of a symmetric (k, k) matrix.

    Returns
    -------
    flat_index : Tensor of shape (k (k + 1) / 2,)
        Positions of the elements of the triangle in the flattened matrix.
    packed_index : Tensor of shape (k, k)
        Positions of all elements of the matrix in the packed triangle.
    """
    row, column = torch.tril_indices(k, k, device=device)
    packed_index = torch.empty(k, k, dtype=torch.int64, device=device)
    packed_index[row, column] = packed_index[column, row] = torch.arange(len(row), device=device)
    return row * k + column, packed_index


def pack_second_moments(mean: Tensor, cov: Tensor) -> Tensor:
    """Lower triangles of ``m m' + S``: (n, k) and (n, k, k) -> (n, k (k + 1) / 2)."""
    flat_index, _ = _index_triangle(mean.shape[1], mean.device)
    packed = mean.new_empty(len(mean), len(flat_index))
    for begin, end in matrix_blocks(len(mean), mean.shape[1]):
        m = mean[begin:end]
        s = cov[begin:end]
        full = torch.addcmul(s, m.unsqueeze(-1), m.unsqueeze(-2)).flatten(1)
        torch.index_select(full, 1, flat_index, out=packed[begin:end])
    return packed


def triangle_multiplicity(mean: Tensor) -> Tensor:
    """Number of times that each element of a packed triangle occurs in the matrix.

    The shape is (k (k + 1) / 2,) for means (n, k). Diagonal elements occur once, others twice.
    """
    k = mean.shape[1]
    row, column = torch.tril_indices(k, k, device=mean.device)
    return 2.0 - (row == column).to(mean)


def compute_normal_equations(data: CSREntries, packed: Tensor, mean: Tensor) -> NormalEquations:
    """Compute the normal equations of all rows, with Gram matrices (n, k, k).

    Parameters are those of `compute_packed_equations`.
    """
    equations = compute_packed_equations(data, packed, mean)
    coordinates = range(mean.shape[1])
    return NormalEquations(equations.unpack_block(coordinates, coordinates), equations.rhs)


def compute_packed_equations(data: CSREntries, packed: Tensor, mean: Tensor) -> NormalEquations:
    """Compute the normal equations of all rows, with packed Gram matrices.

    Parameters
    ----------
    data : CSREntries
        Entries of n rows.
    packed : Tensor of shape (n_other, k (k + 1) / 2)
        Second moments of the other factor, by `pack_second_moments`.
    mean : Tensor of shape (n_other, k)
        Means of the other factor.

    Returns
    -------
    NormalEquations
        One system for each row. It takes O(N k^2) time and O(n k^2) memory.
    """
    if len(data.indices) == 0:
        gram = mean.new_zeros(data.n_rows, packed.shape[1])
        return NormalEquations(gram, mean.new_zeros(data.n_rows, mean.shape[1]))
    starts = data.indptr[:-1].to(data.indices)
    weight = data.weight
    gram = embedding_bag(data.indices, packed, starts, mode="sum", per_sample_weights=weight)
    value = data.value
    if weight is not None:
        value = value * weight
    rhs = embedding_bag(data.indices, mean, starts, mode="sum", per_sample_weights=value)
    return NormalEquations(gram, rhs)


def compute_products(row_factors: Tensor, column_factors: Tensor, data: CSREntries) -> Tensor:
    """Inner products ``row_factors[i] . column_factors[j]`` at the entries (i, j), (N,)."""
    block_size = max(64, _ELEMENTS_PER_BLOCK // max(row_factors.shape[1], 1))
    blocks = zip(data.row_index.split(block_size), data.indices.split(block_size), strict=True)
    products = [(row_factors[i] * column_factors[j]).sum(-1) for i, j in blocks]
    if not products:
        return row_factors.new_zeros(0)
    return torch.cat(products)


class CoordinateSplit(NamedTuple):
    """Free and fixed coordinates of the augmented rows of one factor.

    Attributes
    ----------
    free : tuple of int
        The components, then the offset of this factor if it has one.
    fixed : tuple of int
        The coordinate that multiplies the offset of the other factor, if that has one.
    fixed_value : float
        Value of the fixed coordinate.
    """

    free: tuple[int, ...]
    fixed: tuple[int, ...]
    fixed_value: float


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of an augmented row: components, then the offset of the row, of the column.

    Parameters
    ----------
    n_components : int
        Number k of components.
    row_offsets, column_offsets : bool, default=False
        Whether rows, or columns, have offsets.
    """

    n_components: int
    row_offsets: bool = False
    column_offsets: bool = False

    @property
    def n_coordinates(self) -> int:
        """Number D of coordinates."""
        return self.n_components + self.row_offsets + self.column_offsets

    @property
    def fixed_value(self) -> float:
        """Value ``k^(1/4)`` of fixed coordinates, by which offsets are multiplied as well."""
        return float(self.n_components**0.25)

    @property
    def splits(self) -> tuple[CoordinateSplit, CoordinateSplit]:
        """Free and fixed coordinates of the rows of U, and of those of V."""
        k = self.n_components
        row_offset = (k,) if self.row_offsets else ()
        column_offset = (k + len(row_offset),) if self.column_offsets else ()
        return (
            CoordinateSplit((*range(k), *row_offset), column_offset, self.fixed_value),
            CoordinateSplit((*range(k), *column_offset), row_offset, self.fixed_value),
        )

    def set_fixed(self, mean: Tensor, n_rows: int) -> Tensor:
        """Set the fixed coordinates of means (n + m, D) in place, and return the means."""
        factors = (slice(n_rows), slice(n_rows, None))
        for rows, split in zip(factors, self.splits, strict=True):
            mean[rows, index_tensor(split.fixed, mean)] = self.fixed_value
        return mean


def eliminate_fixed(
    equations: NormalEquations, split: CoordinateSplit
) -> tuple[NormalEquations, Tensor]:
    """Reduce normal equations of all D coordinates to the d free ones.

    Parameters
    ----------
    equations : NormalEquations
        Packed equations in all coordinates.
    split : CoordinateSplit
        Coordinates of the rows.

    Returns
    -------
    equations : NormalEquations
        Equations of the shapes (n, d, d) and (n, d), in which the contribution of the fixed
        coordinates is subtracted from the entries.
    constant : Tensor of shape (n,)
        What the fixed coordinates alone add to the sum of squared errors, beyond the sum of
        squared entries.
    """
    gram = equations.unpack_block(split.free, split.free)
    rhs = equations.rhs
    if not split.fixed:
        return NormalEquations(gram, rhs), rhs.new_zeros(len(rhs))
    value = split.fixed_value
    root_k = value**2
    free_by_fixed = equations.unpack_block(split.free, split.fixed).sum(-1)
    known = value * free_by_fixed / root_k
    fixed_square = equations.unpack_block(split.fixed, split.fixed).sum((-2, -1)) / root_k
    fixed_rhs = rhs[:, index_tensor(split.fixed, rhs)].sum(-1)
    constant = fixed_square - 2.0 / value * fixed_rhs
    free_rhs = rhs[:, index_tensor(split.free, rhs)]
    return NormalEquations(gram, free_rhs - known), constant


def select_free(mean: Tensor, cov: Tensor, split: CoordinateSplit) -> tuple[Tensor, Tensor]:
    """Select the means (n, d) and covariances (n, d, d) of the free coordinates."""
    if not split.fixed:
        return mean, cov
    free = index_tensor(split.free, mean)
    return mean[:, free], cov[:, free.unsqueeze(-1), free]


def assign_free(
    mean: Tensor, cov: Tensor, moments: tuple[Tensor, Tensor], split: CoordinateSplit
) -> None:
    """Set the moments of the free coordinates in place.

    Parameters
    ----------
    mean : Tensor of shape (n, D)
        Means of all coordinates.
    cov : Tensor of shape (n, D, D)
        Covariances of all coordinates.
    moments : tuple of Tensor
        Means (n, d) and covariances (n, d, d) of the free coordinates.
    split : CoordinateSplit
        Coordinates of the rows.
    """
    free = index_tensor(split.free, mean)
    free_mean, free_cov = moments
    mean[:, free] = free_mean
    cov[:, free.unsqueeze(-1), free] = free_cov


def append_fixed(mean: Tensor, cov: Tensor, split: CoordinateSplit) -> tuple[Tensor, Tensor]:
    """Add the fixed coordinates, which have no variance: the inverse of `select_free`.

    Parameters
    ----------
    mean : Tensor of shape (n, d)
        Means of the free coordinates.
    cov : Tensor of shape (n, d, d)
        Their covariances.
    split : CoordinateSplit
        Free and fixed coordinates.
    """
    if not split.fixed:
        return mean, cov
    n = len(mean)
    n_coordinates = len(split.free) + len(split.fixed)
    full_mean = mean.new_full((n, n_coordinates), split.fixed_value)
    full_cov = cov.new_zeros(n, n_coordinates, n_coordinates)
    assign_free(full_mean, full_cov, (mean, cov), split)
    return full_mean, full_cov
