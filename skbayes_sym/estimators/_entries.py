"""Matrices with missing entries: dense with NaN, or sparse with absent entries."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from skbayes_sym.estimators._data import Array
from skbayes_sym.inference.factor_data import Entries, entries


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
