"""Observed entries of matrices with missing values, dense or sparse, and of lists of entries."""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.rows import Array
from skbayes_sym.factorization.frames import find_list_columns, frame_names
from skbayes_sym.factorization.labels import check_labels, convert_labels
from skbayes_sym.factorization.sparse_entries import Entries, group_entries
from skbayes_sym.numerics.arguments import is_frame, select_optional, short_repr


class ObservedEntries(NamedTuple):
    """Observed entries, sorted by row, and the labels of rows and columns.

    Attributes
    ----------
    rows, columns : int32 ndarray of shape (N,)
        Positions of the entries.
    values : ndarray of shape (N,)
        Values of the entries.
    shape : tuple of int
        Numbers n of rows and m of columns.
    weights : ndarray of shape (N,), optional
        Weights of the entries; None if all are 1.
    row_labels, column_labels : ndarray of shape (n,) and (m,), optional
        Labels; None if rows or columns are numbered.
    list_index : ndarray of shape (N,), optional
        Position of each entry in the list that it was read from.
    context : ndarray of shape (N, c), optional
        Encoded context of the entries.
    """

    rows: Array
    columns: Array
    values: Array
    shape: tuple[int, int]
    weights: Array | None = None
    row_labels: Array | None = None
    column_labels: Array | None = None
    list_index: Array | None = None
    context: Array | None = None

    def select(self, mask: Array) -> "ObservedEntries":
        """Select entries by a mask; rows and columns without entries stay."""
        return self._replace(
            rows=self.rows[mask],
            columns=self.columns[mask],
            values=self.values[mask],
            weights=select_optional(self.weights, mask),
            list_index=select_optional(self.list_index, mask),
            context=select_optional(self.context, mask),
        )

    @property
    def transposed(self) -> "ObservedEntries":
        """The entries of the transposed matrix, in their order."""
        return self._replace(
            rows=self.columns,
            columns=self.rows,
            shape=(self.shape[1], self.shape[0]),
            row_labels=self.column_labels,
            column_labels=self.row_labels,
        )

    @property
    def indicator(self) -> sp.csr_array:
        """Sparse matrix (n, m) that is 1 at the observed entries."""
        ones = np.ones(len(self.values))
        indicator = sp.coo_array((ones, (self.rows, self.columns)), shape=self.shape).tocsr()
        # Entries that are listed twice were added.
        indicator.data[:] = 1.0
        return indicator

    @property
    def entry_labels(self) -> tuple[Array, Array]:
        """Row and column label of each entry, or positions if there are no labels."""
        rows = self.rows
        columns = self.columns
        if self.row_labels is not None:
            rows = self.row_labels[rows]
        if self.column_labels is not None:
            columns = self.column_labels[columns]
        return rows, columns

    def to_tensors(self, device: torch.device, dtype: torch.dtype) -> Entries:
        """Convert to tensors on a device, grouped by row and by column."""

        def convert(part: Array | None) -> torch.Tensor | None:
            if part is None:
                return None
            return torch.as_tensor(part, device=device).to(dtype)

        return group_entries(
            torch.as_tensor(self.rows, device=device),
            torch.as_tensor(self.columns, device=device),
            torch.as_tensor(self.values, device=device).to(dtype),
            self.shape,
            convert(self.weights),
            convert(self.context),
        )


def find_frame_labels(X: Any) -> tuple[Array | None, Array | None]:
    """Return the labels of a frame's rows and columns; None where they are only numbered."""
    if not is_frame(X):
        return None, None
    # Frames of polars and pyarrow have no index.
    index = np.arange(len(X))
    if hasattr(X, "index"):
        index = X.index
    row_labels = _find_labels(index, "the index of X")
    return row_labels, _find_labels(frame_names(X), "columns of X")


def _find_labels(raw: Any, name: str) -> Array | None:
    """Return labels, or None if they are positions or not unique."""
    labels = check_labels(raw, name)
    is_numbered = labels.dtype.kind in "iu" and np.array_equal(labels, np.arange(len(labels)))
    if is_numbered or len(np.unique(labels)) < len(labels):
        return None
    return labels


def mask_to_nan(X: Any) -> Any:
    """Replace masked values of NumPy's masked arrays by NaN; return other objects unchanged."""
    if not np.ma.isMaskedArray(X):
        return X
    mask = np.ma.getmaskarray(X)
    if not mask.any():
        return np.ma.getdata(X)
    return np.where(mask, np.nan, np.ma.getdata(X))


def extract_entries(X: Any) -> ObservedEntries:
    """Extract the entries of a validated matrix that aren't missing.

    Parameters
    ----------
    X : ndarray or sparse matrix of shape (n, m)
        NaN is missing. In a sparse matrix what isn't stored is missing too, while a stored zero is
        an observed zero.

    Returns
    -------
    ObservedEntries
        Entries in row-major order.

    Raises
    ------
    ValueError
        If an entry is stored twice.
    """
    if sp.issparse(X):
        table = X.tocsr(copy=True)
        # It adds entries that a COO matrix stores twice, and sorts the columns of each row.
        table.sum_duplicates()
        if table.nnz < X.nnz:
            raise ValueError(
                f"X stores {X.nnz - table.nnz} entries more than once: pass a list (rows, columns, "
                "values) if each is an observation, or call X.sum_duplicates() first to add them."
            )
        coordinates = table.tocoo()
        is_observed = ~np.isnan(coordinates.data)
        rows = coordinates.row[is_observed]
        columns = coordinates.col[is_observed]
        values = coordinates.data[is_observed]
    else:
        rows, columns = np.nonzero(~np.isnan(X))
        values = X[rows, columns]
    return ObservedEntries(rows.astype(np.int32), columns.astype(np.int32), values, X.shape)


def keep_entries(X: Any, kept: Array) -> Any:
    """Return a matrix of the type of ``X`` with a subset of its observed entries.

    ``kept`` are positions in the order of `extract_entries`.
    """
    observed = extract_entries(X)
    rows = observed.rows[kept]
    columns = observed.columns[kept]
    values = observed.values[kept]
    if sp.issparse(X):
        return sp.csr_array((values, (rows, columns)), shape=observed.shape)
    matrix = np.full(observed.shape, np.nan, dtype=values.dtype)
    matrix[rows, columns] = values
    return matrix


def compute_scaling(
    values: Array, center: bool, scale: bool, weights: Array | None = None
) -> tuple[float, float, float]:
    """Compute centre and scale of the observed values.

    Parameters
    ----------
    values : ndarray of shape (N,)
        Observed values.
    center, scale : bool
        Whether to centre, and to scale.
    weights : ndarray of shape (N,), optional
        Weights of the entries.

    Returns
    -------
    mean : float
        Weighted mean, or 0 if values aren't centred.
    scale : float
        Standard deviation, or 1 if values aren't scaled.
    std : float
        Standard deviation around ``mean``; 1 if it is 0.

    Raises
    ------
    ValueError
        If the deviations are beyond the range of floating-point numbers.
    """
    values = values.astype(np.float64)
    if len(values) == 0:
        return 0.0, 1.0, 1.0
    is_constant = values.min() == values.max()
    with np.errstate(over="ignore", invalid="ignore"):
        mean = 0.0
        if center:
            mean = float(np.average(values, weights=weights))
        if center and is_constant:
            # The average may differ from it by a rounding error.
            mean = float(values[0])
        deviation = values - mean
        # Relative to a power of two near the largest deviation, no square over- or underflows.
        unit = float(np.exp2(np.frexp(np.abs(deviation).max())[1] - 1.0))
        mean_square = np.average((deviation / unit) ** 2, weights=weights)
        std = unit * float(np.sqrt(mean_square)) or 1.0
    if not np.isfinite(std):
        raise ValueError(
            "the range of the observed entries of X exceeds the range of float64: rescale them, or "
            "take logarithms."
        )
    return mean, std if scale else 1.0, std


def warn_empty_rows(observed: ObservedEntries, *, has_features: Sequence[bool]) -> None:
    """Warn of rows and columns without entries.

    Parameters
    ----------
    observed : ObservedEntries
        Entries.
    has_features : sequence of bool
        Whether rows, and columns, have features, from which their factors are predicted.
    """
    n_empty = []
    for axis, index in enumerate((observed.rows, observed.columns)):
        n = observed.shape[axis]
        n_observed = np.count_nonzero(np.bincount(index, minlength=n))
        n_empty.append(0 if has_features[axis] else n - n_observed)
    if any(n_empty):
        warn_user(
            f"{n_empty[0]} rows and {n_empty[1]} columns of X have no observed entry: their "
            "factors stay at the prior.",
            UserWarning,
        )


def is_entry_list(X: Any, columns: Any = "auto") -> bool:
    """Whether X is a list of entries: a tuple, or a frame whose columns have these roles."""
    return isinstance(X, tuple) or find_list_columns(X, columns) is not None


# Labels of rows and of columns, values (NaN is missing) and weights, (N,) each, in listed order.
EntryList = tuple[Array, Array, Array, Array | None]


def extend_labels(
    observed: ObservedEntries, axis: int, labels: Array, name: str, *, is_numbered: bool = False
) -> ObservedEntries:
    """Add labels to those of the rows, or the columns, of a list of entries.

    Parameters
    ----------
    observed : ObservedEntries
        Entries of the list.
    axis : {0, 1}
        0 for rows, 1 for columns.
    labels : ndarray
        Labels of features.
    name : str
        Name of the features in error messages.
    is_numbered : bool, default=False
        Whether ``labels`` are only the positions of a frame's rows.

    Returns
    -------
    ObservedEntries
        Entries in a matrix with all labels, which are sorted.

    Raises
    ------
    ValueError
        If labels are of another kind, or if positions are added to labels that begin at 1.
    """
    if axis == 1:
        transposed = extend_labels(observed.transposed, 0, labels, name, is_numbered=is_numbered)
        return transposed.transposed
    old = observed.row_labels
    if old is None:
        return observed
    labels = convert_labels(labels, old, f"labels of {name}", "labels of the entries")
    if not len(np.setdiff1d(labels, old)):
        return observed
    if is_numbered and len(old) and 0 not in old:
        raise ValueError(
            f"{name} has no labels: its rows are numbered from 0, but entries are labelled from "
            f"{old[0].item()!r}. Call {name}.set_index(...) with the column of labels, or give one "
            "row for each label, in their order, as an array."
        )
    all_labels = np.union1d(old, labels)
    rows = np.searchsorted(all_labels, old).astype(np.int32)[observed.rows]
    shape = (len(all_labels), observed.shape[1])
    return observed._replace(rows=rows, row_labels=all_labels, shape=shape)


def split_entry_list(X: Any, columns: Any = "auto") -> EntryList:
    """Split a list of entries into rows, columns, values and weights.

    Parameters
    ----------
    X : tuple or DataFrame
        List of entries.
    columns : "auto", tuple or dict, default="auto"
        Parameter ``columns`` of the estimator.

    Returns
    -------
    EntryList
        Labels, values and weights; the latter are None if the list has none.

    Raises
    ------
    ValueError
        If the parts differ in length, labels are missing, or values or weights aren't numbers.
    """
    list_columns = find_list_columns(X, columns)
    if list_columns is None:
        names: list[Any] = ["rows", "columns", "values", "weights"]
        parts = list(X)
    else:
        names = list(list_columns)
        parts = [X[name] for name in names]
    if len(parts) not in (3, 4):
        raise ValueError(
            f"a list of entries is (rows, columns, values) or (rows, columns, values, weights), "
            f"got {len(parts)} parts."
        )
    row_labels = check_labels(parts[0], names[0])
    column_labels = check_labels(parts[1], names[1])
    values = _check_values(parts[2], names[2])
    weights = None
    if len(parts) == 4:
        weights = _check_values(parts[3], names[3])
    checked = (row_labels, column_labels, values, weights)
    lengths = [len(part) for part in checked if part is not None]
    if len(set(lengths)) > 1:
        raise ValueError(f"the parts of a list of entries must be of one length, got {lengths}.")
    if weights is not None and not (np.isfinite(weights).all() and (weights >= 0.0).all()):
        raise ValueError("weights must be finite and at least 0.")
    is_infinite = np.isinf(values)
    if is_infinite.any():
        raise ValueError(
            f"{names[2]} contains infinity, the first at position {int(is_infinite.argmax())}. "
            "A missing entry is NaN."
        )
    return row_labels, column_labels, values, weights


def parse_entry_list(X: Any, columns: Any = "auto") -> ObservedEntries:
    """Read the observed entries of a list.

    Rows and columns are any labels, which are sorted. NaN is a missing value, whose row and column
    exist. An entry that is listed twice was observed twice. Entries of weight 0 are left out.

    Parameters
    ----------
    X : tuple or DataFrame
        List of entries.
    columns : "auto", tuple or dict, default="auto"
        Parameter ``columns`` of the estimator.

    Returns
    -------
    ObservedEntries
        Entries, sorted by row and column.
    """
    listed_rows, listed_columns, values, weights = split_entry_list(X, columns)
    row_labels, rows = _index_distinct(listed_rows)
    column_labels, columns = _index_distinct(listed_columns)
    is_observed = ~np.isnan(values)
    if weights is not None:
        is_observed &= weights > 0.0
    order = np.flatnonzero(is_observed)
    order = order[np.lexsort((columns[order], rows[order]))]
    return ObservedEntries(
        rows[order],
        columns[order],
        values[order],
        (len(row_labels), len(column_labels)),
        select_optional(weights, order),
        row_labels,
        column_labels,
        order,
    )


def warn_conflicting_values(observed: ObservedEntries) -> None:
    """Warn of entries that are listed twice, in the same context, with different values."""
    values = observed.values
    keys = "[rows, columns]"
    codes = [observed.rows, observed.columns]
    # Entries are already sorted by row and column.
    order = np.arange(len(values))
    if observed.context is not None:
        keys = "[rows, columns, *context]"
        codes = [*codes, *observed.context.T]
        order = np.lexsort(codes[::-1])
    first = order[:-1]
    second = order[1:]
    is_same_entry = np.all([code[first] == code[second] for code in codes], axis=0)
    conflicts = first[is_same_entry & (values[first] != values[second])]
    if conflicts.size:
        rows, columns = observed.entry_labels
        example = conflicts[0]
        warn_user(
            f"{conflicts.size} entries are listed again with another value, such as "
            f"({rows[example]!s}, {columns[example]!s}): each counts as a separate "
            f"observation. To keep only the last, use frame.drop_duplicates({keys}, keep='last').",
            UserWarning,
        )


def _index_distinct(labels: Array) -> tuple[Array, Array]:
    """Return the sorted distinct labels, and the position of each label among them, int32."""
    if labels.dtype.kind in "iu" and len(labels):
        low = int(labels.min())
        high = int(labels.max())
        # For a dense range of integers, a lookup table is faster than sorting.
        if high - low <= 4 * len(labels):
            occurs = np.zeros(high - low + 1, dtype=bool)
            occurs[labels - low] = True
            table = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
            distinct = np.flatnonzero(occurs) + low
            return distinct.astype(labels.dtype), table[labels - low]
    distinct, index = np.unique(labels, return_inverse=True)
    return distinct, index.astype(np.int32)


def _check_values(raw: Any, name: Hashable) -> Array:
    """Convert values to float32 or float64, (N,), with NaN for missing or masked ones."""
    values = np.asarray(mask_to_nan(raw))
    if values.dtype.kind == "O":
        # Columns of pandas' nullable dtypes, or of decimals.
        is_missing = [value is None or type(value).__name__ == "NAType" for value in values]
        has_text = any(isinstance(value, str | bytes) for value in values)
        if not has_text:
            with suppress(TypeError, ValueError):
                values = np.where(is_missing, np.nan, values).astype(float)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        remedy = ""
        if values.ndim == 1 and values.dtype.kind in "OUST":
            remedy = " Use pandas.to_numeric for text, or .map(...) for words."
        texts = [value for value in values.ravel().tolist() if isinstance(value, str | bytes)]
        raise ValueError(
            f"{name} of a list of entries must be numbers, 1D; got {values.dtype} of shape "
            f"{values.shape} such as {short_repr((texts or values.tolist())[:2])}.{remedy}"
        )
    if values.dtype == np.float32:
        return values
    return values.astype(np.float64)
