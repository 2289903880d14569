"""Matrices with missing entries: dense with NaN, or sparse with absent entries."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.inference.factorization.data import Entries, entries


class Observed(NamedTuple):
    """The observed entries in row-major order."""

    rows: Array  # (N,) int64
    columns: Array  # (N,) int64
    values: Array  # (N,)
    shape: tuple[int, int]

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Entries:
        """On the device, grouped by row and by column."""
        rows, columns = (torch.as_tensor(a, device=device) for a in (self.rows, self.columns))
        values = torch.as_tensor(self.values, device=device).to(dtype)
        return entries(rows, columns, values, self.shape)


def observed_entries(X: Any) -> Observed:
    """Entries of a checked matrix that aren't missing.

    Parameters
    ----------
    X : ndarray or scipy sparse matrix of shape (n_rows, n_columns)
        NaN is missing; in a sparse matrix, what isn't stored is missing too, while a stored zero
        is an observed zero. Entries stored twice are summed.
    """
    if sp.issparse(X):
        table = X.tocsr(copy=True)
        table.sum_duplicates()  # sorts the columns of each row as well
        coordinates = table.tocoo()
        rows, columns, values = coordinates.row, coordinates.col, coordinates.data
        there = ~np.isnan(values)
        rows, columns, values = rows[there], columns[there], values[there]
    else:
        rows, columns = np.nonzero(~np.isnan(X))
        values = X[rows, columns]
    return Observed(rows.astype(np.int64), columns.astype(np.int64), values, X.shape)


def with_entries(X: Any, kept: Array) -> Any:
    """A matrix of the kind of ``X`` with only some of its observed entries.

    Parameters
    ----------
    X : ndarray or scipy sparse matrix
    kept : int64 ndarray
        Positions in the order of `observed_entries`.
    """
    rows, columns, values, shape = observed_entries(X)
    rows, columns, values = rows[kept], columns[kept], values[kept]
    if sp.issparse(X):
        return sp.csr_array((values, (rows, columns)), shape=shape)
    left = np.full(shape, np.nan, dtype=values.dtype)
    left[rows, columns] = values
    return left


def scaling(values: Array, center: bool, scale: bool) -> tuple[float, float, float]:
    """Mean, scale and spread of the observed entries; a spread of 0 counts as 1."""
    values = values.astype(np.float64)
    if len(values) == 0:
        return 0.0, 1.0, 1.0
    mean = float(values.mean()) if center else 0.0
    spread = float(np.sqrt(np.mean((values - mean) ** 2))) or 1.0
    return mean, spread if scale else 1.0, spread


def warn_of_empty(observed: Observed) -> None:
    """Say how many rows and columns have nothing to learn from."""
    n, m = observed.shape
    empty_rows = n - len(np.unique(observed.rows))
    empty_columns = m - len(np.unique(observed.columns))
    if empty_rows or empty_columns:
        warn_user(
            f"{empty_rows} rows and {empty_columns} columns of X have no observed entry: their "
            "factors stay at the prior.",
            UserWarning,
        )


def positions(given: Any, n: int, name: str) -> Tensor:
    """Checked positions in a side of length ``n``."""
    array = np.atleast_1d(np.asarray(given))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be a list of integers, got {given!r}.")
    outside = array[(array < 0) | (array >= n)]
    if outside.size:
        raise ValueError(
            f"{name} must lie between 0 and {n - 1}, the training matrix has {n} {name}; got "
            f"{outside[0]}. For new rows use transform and inverse_transform."
        )
    return torch.as_tensor(array.astype(np.int64))
