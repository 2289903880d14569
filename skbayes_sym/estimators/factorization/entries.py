"""Matrices with missing entries: dense with NaN, sparse with absent ones, or lists of entries."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.inference.factorization.incidence import Entries, entries
from skbayes_sym.numerics.arguments import is_frame

_LISTED = ("row", "column", "value")
_WEIGHT = "weight"


class Observed(NamedTuple):
    """The observed entries, row by row, and what rows and columns are called."""

    rows: Array  # (N,) int32
    columns: Array  # (N,) int32
    values: Array  # (N,)
    shape: tuple[int, int]
    weights: Array | None = None  # (N,)
    row_labels: Array | None = None  # (n,); None: their positions
    column_labels: Array | None = None  # (m,)

    def part(self, kept: Array) -> "Observed":
        """Entries chosen by a mask; rows and columns stay."""
        return self._replace(
            rows=self.rows[kept],
            columns=self.columns[kept],
            values=self.values[kept],
            weights=None if self.weights is None else self.weights[kept],
        )

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Entries:
        """On the device, grouped by row and by column."""
        rows, columns = (torch.as_tensor(a, device=device) for a in (self.rows, self.columns))
        values = torch.as_tensor(self.values, device=device).to(dtype)
        weights = self.weights
        tensor = None if weights is None else torch.as_tensor(weights, device=device).to(dtype)
        return entries(rows, columns, values, self.shape, tensor)


def is_listed(X: Any) -> bool:
    """Whether X is a list of entries: a tuple, or a frame with columns row, column and value."""
    return isinstance(X, tuple) or set(_LISTED) <= set(_names(X)) <= {*_LISTED, _WEIGHT}


def _names(X: Any) -> list[Hashable]:
    return list(X.columns) if is_frame(X) else []


def listed_entries(X: Any) -> Observed:
    """Entries from ``(rows, columns, values)``, with weights as a fourth, or from such a frame.

    Rows and columns are any labels; they are sorted. An entry listed twice is there twice. NaN is
    missing; its row and column are there.

    Raises ValueError if the parts differ in length, or values or weights aren't numbers.
    """
    parts = list(X)
    if _names(X):
        parts = [X[name] for name in (*_LISTED, _WEIGHT) if name in _names(X)]
    if len(parts) not in (3, 4):
        raise ValueError(
            f"a list of entries is (rows, columns, values) or (rows, columns, values, weights), "
            f"got {len(parts)} parts."
        )
    rows, columns = (_labels(part, name) for part, name in zip(parts[:2], _LISTED, strict=False))
    values = _numbers(parts[2], "values")
    weights = _numbers(parts[3], "weights") if len(parts) == 4 else None
    lengths = [len(part) for part in (rows, columns, values, weights) if part is not None]
    if len(set(lengths)) > 1:
        raise ValueError(f"the parts of a list of entries must be of one length, got {lengths}.")
    if weights is not None and not (np.isfinite(weights).all() and (weights >= 0.0).all()):
        raise ValueError("weights must be finite and at least 0.")
    if np.isinf(values).any():
        raise ValueError("values contains infinity; NaN is a missing entry.")
    (row_labels, i), (column_labels, j) = _coded(rows), _coded(columns)
    kept = ~np.isnan(values) if weights is None else ~np.isnan(values) & (weights > 0.0)
    order = np.flatnonzero(kept)[np.lexsort((j[kept], i[kept]))]
    return Observed(
        i[order], j[order], values[order], (len(row_labels), len(column_labels)),
        None if weights is None else weights[order], row_labels, column_labels,
    )  # fmt: skip


def _labels(raw: Any, name: str) -> Array:
    labels = np.asarray(raw)
    if labels.ndim != 1:
        raise ValueError(f"{name}s of a list of entries must be 1D, got shape {labels.shape}.")
    if labels.dtype.kind == "O":
        return labels.astype(str)
    return labels


def _coded(labels: Array) -> tuple[Array, Array]:
    """Distinct labels in their order, and each one's place among them, int32."""
    if labels.dtype.kind in "iu" and len(labels):
        low, high = int(labels.min()), int(labels.max())
        if high - low <= 4 * len(labels):  # a table of what is there beats sorting
            is_there = np.zeros(high - low + 1, dtype=bool)
            is_there[labels - low] = True
            place = np.cumsum(is_there, dtype=np.int32) - np.int32(1)
            distinct = np.flatnonzero(is_there) + low
            return distinct.astype(labels.dtype), place[labels - low]
    distinct, place = np.unique(labels, return_inverse=True)
    return distinct, place.astype(np.int32)


def _numbers(raw: Any, name: str) -> Array:
    numbers = np.asarray(raw)
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiub":
        raise ValueError(f"{name} of a list of entries must be numbers, 1D; got {raw!r}.")
    return numbers if numbers.dtype == np.float32 else numbers.astype(np.float64)


def frame_labels(X: Any) -> tuple[Array | None, Array | None]:
    """Names of a frame's rows and columns; None where it only numbers them."""
    if not _names(X):
        return None, None
    return _names_or_none(X.index), _names_or_none(X.columns)


def _names_or_none(labels: Sequence[Hashable]) -> Array | None:
    array = np.asarray(labels)
    if array.dtype.kind == "O":
        array = array.astype(str)
    is_numbered = array.dtype.kind in "iu" and np.array_equal(array, np.arange(len(array)))
    return None if is_numbered or len(np.unique(array)) < len(array) else array


def observed_entries(X: Any) -> Observed:
    """Entries of a checked matrix that aren't missing.

    ``X``: NaN is missing; in a sparse matrix, what isn't stored is missing too, while a stored zero
    is an observed zero. Entries stored twice are summed.
    """
    if sp.issparse(X):
        table = X.tocsr(copy=True)
        table.sum_duplicates()  # sorts the columns of each row as well
        coordinates = table.tocoo()
        rows, columns, values = coordinates.row, coordinates.col, coordinates.data
        is_seen = ~np.isnan(values)
        rows, columns, values = rows[is_seen], columns[is_seen], values[is_seen]
    else:
        rows, columns = np.nonzero(~np.isnan(X))
        values = X[rows, columns]
    return Observed(rows.astype(np.int32), columns.astype(np.int32), values, X.shape)


def with_entries(X: Any, kept: Array) -> Any:
    """A matrix of the kind of ``X`` with only some of its observed entries.

    ``kept``: positions in the order of `observed_entries`.
    """
    rows, columns, values, shape = observed_entries(X)[:4]
    rows, columns, values = rows[kept], columns[kept], values[kept]
    if sp.issparse(X):
        return sp.csr_array((values, (rows, columns)), shape=shape)
    emptied = np.full(shape, np.nan, dtype=values.dtype)
    emptied[rows, columns] = values
    return emptied


def scaling(
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
        away, unit = _in_units(values - mean)
        spread = unit * float(np.sqrt(np.average(away**2, weights=weights))) or 1.0
    if not np.isfinite(spread):
        raise ValueError(
            "the observed entries of X span more than numbers can: rescale them, or take "
            "logarithms."
        )
    return mean, spread if scale else 1.0, spread


def _in_units(values: Array) -> tuple[Array, float]:
    """Values in units of a power of two near the largest: no square over- or underflows."""
    unit = float(np.exp2(np.frexp(np.abs(values).max())[1] - 1.0))
    return values / unit, unit


def warn_of_empty(observed: Observed) -> None:
    """Say how many rows and columns have nothing to learn from."""
    n, m = observed.shape
    empty_rows = n - np.count_nonzero(np.bincount(observed.rows, minlength=n))
    empty_columns = m - np.count_nonzero(np.bincount(observed.columns, minlength=m))
    if empty_rows or empty_columns:
        warn_user(
            f"{empty_rows} rows and {empty_columns} columns of X have no observed entry: their "
            "factors stay at the prior.",
            UserWarning,
        )


def positions(raw: Any, n: int, name: str, labels: Array | None = None) -> Tensor:
    """Checked positions in a side of length ``n``, of labels if the side has them."""
    if labels is not None:
        return _of_labels(raw, labels, name)
    array = np.atleast_1d(np.asarray(raw))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be a list of integers, got {raw!r}.")
    outside = array[(array < 0) | (array >= n)]
    if outside.size:
        raise ValueError(
            f"{name} must lie between 0 and {n - 1}, the training matrix has {n} {name}; got "
            f"{outside[0]}. For new rows use transform and inverse_transform."
        )
    return torch.as_tensor(array.astype(np.int64))


def _of_labels(raw: Any, labels: Array, name: str) -> Tensor:
    array = np.atleast_1d(np.asarray(raw))
    if array.ndim != 1:
        raise ValueError(f"{name} must be a list of labels, got {raw!r}.")
    if labels.dtype.kind == "U":
        array = array.astype(str)
    order = np.argsort(labels)
    place = np.searchsorted(labels, array, sorter=order).clip(max=len(labels) - 1)
    chosen = order[place] if len(array) else np.zeros(0, dtype=np.int64)
    unknown = array[labels[chosen] != array]
    if unknown.size:
        raise ValueError(
            f"{name} has {unknown[0].item()!r}, a label that was not there in fit. For new rows "
            "use predict_new_rows."
        )
    return torch.as_tensor(chosen.astype(np.int64))
