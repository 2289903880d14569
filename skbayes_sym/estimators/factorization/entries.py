"""Observed entries of a matrix with missing ones: dense with NaN, or sparse."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.inference.factorization.incidence import Entries, entries
from skbayes_sym.numerics.arguments import is_frame


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

    @property
    def transposed(self) -> "Observed":
        """The entries of the transposed matrix, in their order."""
        return self._replace(
            rows=self.columns, columns=self.rows, shape=(self.shape[1], self.shape[0]),
            row_labels=self.column_labels, column_labels=self.row_labels,
        )  # fmt: skip

    @property
    def rated(self) -> sp.csr_array:
        """Ones where there are entries."""
        ones, shape = np.ones(len(self.values)), self.shape
        rated = sp.coo_array((ones, (self.rows, self.columns)), shape=shape).tocsr()
        rated.data[:] = 1.0  # an entry listed twice
        return rated

    @property
    def labelled(self) -> tuple[Array, Array]:
        """The label of each entry's row and column; its position where there are none."""
        rows, columns = self.row_labels, self.column_labels
        return (
            self.rows if rows is None else rows[self.rows],
            self.columns if columns is None else columns[self.columns],
        )

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Entries:
        """On the device, grouped by row and by column."""
        rows, columns = (torch.as_tensor(a, device=device) for a in (self.rows, self.columns))
        values = torch.as_tensor(self.values, device=device).to(dtype)
        weights = self.weights
        tensor = None if weights is None else torch.as_tensor(weights, device=device).to(dtype)
        return entries(rows, columns, values, self.shape, tensor)


def frame_labels(X: Any) -> tuple[Array | None, Array | None]:
    """Names of a frame's rows and columns; None where it only numbers them."""
    if not is_frame(X):
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


def warn_of_empty(observed: Observed, *, is_told: Sequence[bool]) -> None:
    """Say how many rows and columns have nothing to learn from; ``is_told``: by their features."""
    counts = [
        0 if told else n - np.count_nonzero(np.bincount(places, minlength=n))
        for places, n, told in zip(observed[:2], observed.shape, is_told, strict=True)
    ]
    if any(counts):
        warn_user(
            f"{counts[0]} rows and {counts[1]} columns of X have no observed entry: their factors "
            "stay at the prior.",
            UserWarning,
        )
