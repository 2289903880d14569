"""Observed entries of a matrix with missing ones, dense or sparse, or of a list of them."""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from skbayes_sym.base.rows import Array
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.factorization.frames import find_list_columns, frame_names
from skbayes_sym.factorization.labels import check_labels, convert_labels
from skbayes_sym.factorization.sparse_entries import Entries, group_entries
from skbayes_sym.numerics.arguments import is_frame, short_repr


class ObservedEntries(NamedTuple):
    """The observed entries, row by row, and what rows and columns are called."""

    rows: Array  # (N,) int32
    columns: Array  # (N,) int32
    values: Array  # (N,)
    shape: tuple[int, int]
    weights: Array | None = None  # (N,)
    row_labels: Array | None = None  # (n,); None: their positions
    column_labels: Array | None = None  # (m,)
    list_index: Array | None = None  # (N,), of each entry in its list
    context: Array | None = None  # (N, c), coded

    def select(self, kept: Array) -> "ObservedEntries":
        """Entries chosen by a mask; rows and columns stay."""
        return self._replace(
            rows=self.rows[kept],
            columns=self.columns[kept],
            values=self.values[kept],
            weights=None if self.weights is None else self.weights[kept],
            list_index=None if self.list_index is None else self.list_index[kept],
            context=None if self.context is None else self.context[kept],
        )

    @property
    def transposed(self) -> "ObservedEntries":
        """The entries of the transposed matrix, in their order."""
        return self._replace(
            rows=self.columns, columns=self.rows, shape=(self.shape[1], self.shape[0]),
            row_labels=self.column_labels, column_labels=self.row_labels,
        )  # fmt: skip

    @property
    def indicator(self) -> sp.csr_array:
        """Ones where there are entries."""
        ones = np.ones(len(self.values))
        shape = self.shape
        rated = sp.coo_array((ones, (self.rows, self.columns)), shape=shape).tocsr()
        rated.data[:] = 1.0  # an entry listed twice
        return rated

    @property
    def entry_labels(self) -> tuple[Array, Array]:
        """The label of each entry's row and column; its position where there are none."""
        rows = self.row_labels
        columns = self.column_labels
        return (
            self.rows if rows is None else rows[self.rows],
            self.columns if columns is None else columns[self.columns],
        )

    def to_tensors(self, device: torch.device, dtype: torch.dtype) -> Entries:
        """On the device, grouped by row and by column."""
        rows, columns = (torch.as_tensor(a, device=device) for a in (self.rows, self.columns))
        values = torch.as_tensor(self.values, device=device).to(dtype)
        tensors = (
            None if part is None else torch.as_tensor(part, device=device).to(dtype)
            for part in (self.weights, self.context)
        )  # fmt: skip
        return group_entries(rows, columns, values, self.shape, *tensors)


def find_frame_labels(X: Any) -> tuple[Array | None, Array | None]:
    """Names of a frame's rows and columns; None where it only numbers them."""
    if not is_frame(X):
        return None, None
    named = list[Array | None]()
    n_rows = len(X)
    index = X.index if hasattr(X, "index") else np.arange(n_rows)  # polars and pyarrow have none
    for name, labels in (("the index of X", index), ("columns of X", frame_names(X))):
        array = check_labels(labels, name)
        is_numbered = array.dtype.kind in "iu" and np.array_equal(array, np.arange(len(array)))
        named.append(None if is_numbered or len(np.unique(array)) < len(array) else array)
    return named[0], named[1]


def mask_to_nan(X: Any) -> Any:
    """X with NaN in place of masked values, if it is one of NumPy's masked arrays."""
    if not np.ma.isMaskedArray(X):
        return X
    mask = np.ma.getmaskarray(X)
    return np.where(mask, np.nan, np.ma.getdata(X)) if mask.any() else np.ma.getdata(X)


def extract_entries(X: Any) -> ObservedEntries:
    """Entries of a checked matrix that aren't missing.

    ``X``: NaN is missing; in a sparse matrix, what isn't stored is missing too, while a stored zero
    is an observed zero.

    Raises ValueError if an entry is stored twice.
    """
    if sp.issparse(X):
        table = X.tocsr(copy=True)  # adds up what a COO matrix stores twice
        table.sum_duplicates()  # sorts the columns of each row as well
        if table.nnz < X.nnz:
            raise ValueError(
                f"X stores {X.nnz - table.nnz} entries more than once, and a sum of ratings is "
                "none: give a list (rows, columns, values), or call X.sum_duplicates() first."
            )
        coordinates = table.tocoo()
        rows = coordinates.row
        columns = coordinates.col
        values = coordinates.data
        is_seen = ~np.isnan(values)
        rows = rows[is_seen]
        columns = columns[is_seen]
        values = values[is_seen]
    else:
        rows, columns = np.nonzero(~np.isnan(X))
        values = X[rows, columns]
    return ObservedEntries(rows.astype(np.int32), columns.astype(np.int32), values, X.shape)


def keep_entries(X: Any, kept: Array) -> Any:
    """A matrix of the kind of ``X`` with only some of its observed entries.

    ``kept``: positions in the order of `extract_entries`.
    """
    rows, columns, values, shape = extract_entries(X)[:4]
    rows = rows[kept]
    columns = columns[kept]
    values = values[kept]
    if sp.issparse(X):
        return sp.csr_array((values, (rows, columns)), shape=shape)
    emptied = np.full(shape, np.nan, dtype=values.dtype)
    emptied[rows, columns] = values
    return emptied


def compute_scaling(
    values: Array, center: bool, scale: bool, weights: Array | None = None
) -> tuple[float, float, float]:
    """Mean, scale and spread of the observed entries; a spread of 0 counts as 1."""
    values = values.astype(np.float64)
    if len(values) == 0:
        return 0.0, 1.0, 1.0
    is_constant = values.min() == values.max()  # their mean may differ from them in rounding
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.average(values, weights=weights)) if center else 0.0
        mean = float(values[0]) if center and is_constant else mean
        away = values - mean
        # In units of a power of two near the largest: no square over- or underflows.
        unit = float(np.exp2(np.frexp(np.abs(away).max())[1] - 1.0))
        spread = unit * float(np.sqrt(np.average((away / unit) ** 2, weights=weights))) or 1.0
    if not np.isfinite(spread):
        raise ValueError(
            "the observed entries of X span more than numbers can: rescale them, or take "
            "logarithms."
        )
    return mean, spread if scale else 1.0, spread


def warn_empty_rows(observed: ObservedEntries, *, has_features: Sequence[bool]) -> None:
    """Say how many rows and columns have nothing to learn from; ``is_told``: by their features."""
    counts = [
        0 if featured else n - np.count_nonzero(np.bincount(places, minlength=n))
        for places, n, featured in zip(observed[:2], observed.shape, has_features, strict=True)
    ]
    if any(counts):
        warn_user(
            f"{counts[0]} rows and {counts[1]} columns of X have no observed entry: their factors "
            "stay at the prior.",
            UserWarning,
        )


def is_entry_list(X: Any, columns: Any = "auto") -> bool:
    """Whether X is a list of entries: a tuple, or a frame whose columns say so."""
    return isinstance(X, tuple) or find_list_columns(X, columns) is not None


# Labels of rows and of columns, values (NaN is missing) and weights, (N,) each, as listed.
EntryList = tuple[Array, Array, Array, Array | None]


def extend_labels(
    observed: ObservedEntries, side: int, more: Array, name: str, *, is_numbered: bool = False
) -> ObservedEntries:
    """The entries of a list with these labels, sorted, among those of its rows (0) or columns.

    Parameters
    ----------
    observed : ObservedEntries
    side : {0, 1}
    more : ndarray
        Labels of features.
    name : str
        Of the features, in messages.
    is_numbered : bool, default=False
        Whether ``more`` are positions that nobody chose as labels.

    Raises
    ------
    ValueError
        If labels are of another kind, or if positions would shift labels that begin at 1.
    """
    if side == 1:
        turned = extend_labels(observed.transposed, 0, more, name, is_numbered=is_numbered)
        return turned.transposed
    old = observed.row_labels
    m = observed.shape[1]
    if old is None:
        return observed
    more = convert_labels(more, old, f"labels of {name}", "labels of the entries")
    if not len(np.setdiff1d(more, old)):
        return observed
    if is_numbered and len(old) and 0 not in old:
        raise ValueError(
            f"{name} has no labels: its rows are numbered from 0, but entries are labelled from "
            f"{old[0].item()!r}. Call {name}.set_index(...) with the column of labels, or give one "
            "row for each label, in their order, as an array."
        )
    labels = np.union1d(old, more)
    rows = np.searchsorted(labels, old).astype(np.int32)[observed.rows]
    return observed._replace(rows=rows, row_labels=labels, shape=(len(labels), m))


def split_entry_list(X: Any, columns: Any = "auto") -> EntryList:
    """Rows, columns, values and maybe weights of a tuple, or of a frame with columns of them.

    Raises ValueError if the parts differ in length, labels are missing, or values or weights
    aren't numbers.
    """
    named = find_list_columns(X, columns)
    names: list[Any] = ["rows", "columns", "values", "weights"] if named is None else list(named)
    parts = list(X) if named is None else [X[name] for name in named]
    if len(parts) not in (3, 4):
        raise ValueError(
            f"a list of entries is (rows, columns, values) or (rows, columns, values, weights), "
            f"got {len(parts)} parts."
        )
    rows, places = (check_labels(*pair) for pair in zip(parts[:2], names, strict=False))
    values = _numbers(parts[2], names[2])
    weights = _numbers(parts[3], names[3]) if len(parts) == 4 else None
    lengths = [len(part) for part in (rows, places, values, weights) if part is not None]
    if len(set(lengths)) > 1:
        raise ValueError(f"the parts of a list of entries must be of one length, got {lengths}.")
    if weights is not None and not (np.isfinite(weights).all() and (weights >= 0.0).all()):
        raise ValueError("weights must be finite and at least 0.")
    if np.isinf(values).any():
        raise ValueError("values contains infinity; NaN is a missing entry.")
    return rows, places, values, weights


def parse_entry_list(X: Any, columns: Any = "auto") -> ObservedEntries:
    """Entries of a list, row by row.

    Rows and columns are any labels; they are sorted. NaN is a missing value; its row and column
    are there. An entry listed twice was observed twice.
    """
    rows, places, values, weights = split_entry_list(X, columns)
    (row_labels, i), (column_labels, j) = _coded(rows), _coded(places)
    kept = ~np.isnan(values) if weights is None else ~np.isnan(values) & (weights > 0.0)
    order = np.flatnonzero(kept)[np.lexsort((j[kept], i[kept]))]
    return ObservedEntries(
        i[order], j[order], values[order], (len(row_labels), len(column_labels)),
        None if weights is None else weights[order], row_labels, column_labels, order,
    )  # fmt: skip


def warn_conflicting_values(observed: ObservedEntries) -> None:
    """Say that entries are listed again, in the same context, with another value."""
    values = observed.values
    (rows, places) = observed.entry_labels
    keys = "[rows, columns]"
    codes = [observed.rows, observed.columns]
    order = np.arange(len(values))  # already by row and column
    if observed.context is not None:
        keys = "[rows, columns, *context]"
        codes = [*codes, *observed.context.T]
        order = np.lexsort(codes[::-1])
    first = order[:-1]
    second = order[1:]
    is_same = np.all([code[first] == code[second] for code in codes], axis=0)
    again = first[is_same & (values[first] != values[second])]
    if again.size:
        warn_user(
            f"{again.size} entries are listed again with another value, such as "
            f"({rows[again[0]]!s}, {places[again[0]]!s}): each counts as an observation of its "
            f"own. If it is none, frame.drop_duplicates({keys}, keep='last') keeps the last.",
            UserWarning,
        )


def _coded(labels: Array) -> tuple[Array, Array]:
    """Distinct labels in their order, and each one's place among them, int32."""
    if labels.dtype.kind in "iu" and len(labels):
        low = int(labels.min())
        high = int(labels.max())
        if high - low <= 4 * len(labels):  # a table of what is there beats sorting
            is_there = np.zeros(high - low + 1, dtype=bool)
            is_there[labels - low] = True
            place = np.cumsum(is_there, dtype=np.int32) - np.int32(1)
            distinct = np.flatnonzero(is_there) + low
            return distinct.astype(labels.dtype), place[labels - low]
    distinct, place = np.unique(labels, return_inverse=True)
    return distinct, place.astype(np.int32)


def _numbers(raw: Any, name: Hashable) -> Array:
    """Values as float32 or float64, (N,); what is missing or masked is NaN."""
    numbers = np.asarray(mask_to_nan(raw))
    if numbers.dtype.kind == "O":  # of pandas' nullable dtypes, or Decimal
        missing = [value is None or type(value).__name__ == "NAType" for value in numbers]
        has_words = any(isinstance(value, str | bytes) for value in numbers)
        with suppress(TypeError, ValueError):
            numbers = numbers if has_words else np.where(missing, np.nan, numbers).astype(float)
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} of a list of entries must be numbers, 1D; got {numbers.dtype} of shape "
            f"{numbers.shape} such as {short_repr(numbers[:2].tolist())}."
        )
    return numbers if numbers.dtype == np.float32 else numbers.astype(np.float64)
