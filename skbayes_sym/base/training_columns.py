"""Types and values of columns in the training data, with which later rows are compared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skbayes_sym.base.columns import (
    Columns,
    boolean_columns,
    warn_booleans,
    warn_not_boolean,
    warn_varying,
)
from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.tables import boolean_dtypes


@dataclass(frozen=True, eq=False)
class TrainingColumns:
    """Types and values of the columns in `fit`.

    Columns that are encoded are compared by their encoding, and have ``is_binary`` alone.

    Parameters
    ----------
    is_binary : ndarray of bool of shape (n_columns,)
        Whether columns may hold Booleans: all but those of numbers other than 0 and 1.
    has_boolean_dtype : ndarray of bool of shape (n_columns,), optional
        Whether the dtype of columns is Boolean. Lists have no columns.
    boolean_positions : ndarray of int of shape (n_boolean,), optional
        Positions of the columns of a table of numbers that hold Booleans, whatever their dtype.
    constant_positions : ndarray of int of shape (n_constant,), optional
        Positions of constant columns. Images and a single row have none.
    constants : ndarray of shape (n_constant,), optional
        Values of these columns.
    """

    is_binary: Array
    has_boolean_dtype: Array | None = None
    boolean_positions: Array | None = None
    constant_positions: Array | None = None
    constants: Array | None = None

    @classmethod
    def from_numbers(
        cls, X: Any, numbers: Array, *, is_table: bool, is_image: bool
    ) -> "TrainingColumns":
        """Describe columns that need no encoding.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Training rows as the user passed them.
        numbers : ndarray of shape (n_samples, n_columns)
            The same as numbers.
        is_table : bool
            Whether ``X`` may be a table.
        is_image : bool
            Whether rows are images, whose pixels can be constant by chance.
        """
        positions = None
        if is_table:
            positions = boolean_columns(X)
        is_binary = ((numbers == 0.0) | (numbers == 1.0)).all(axis=0)
        described = cls(is_binary, boolean_dtypes(X), positions)
        if len(numbers) == 1 or is_image:
            return described
        constant = np.flatnonzero((numbers == numbers[0]).all(axis=0))
        return replace(described, constant_positions=constant, constants=numbers[0, constant])

    @classmethod
    def from_encoding(cls, columns: Columns, encoded: Array) -> "TrainingColumns":
        """Describe the columns of a table by its encoding and the encoded rows."""
        return cls(columns.binary_columns(encoded))

    def warn_changes(self, names: Sequence[str], X: Any, numbers: Array | None = None) -> None:
        """Warn of Booleans in place of numbers and the reverse, and of columns that began to vary.

        Parameters
        ----------
        names : sequence of str of length n_columns
            Names of the columns.
        X : array-like of shape (n_samples, n_columns)
            Inputs of a prediction as the user gave them.
        numbers : ndarray of shape (n_samples, n_columns), optional
            The same as numbers. Encoded tables are checked by their encoding.
        """
        is_boolean = boolean_dtypes(X)
        if len(is_boolean) == len(self.is_binary):
            changed = np.flatnonzero(is_boolean & ~self.is_binary)
            warn_booleans([names[j] for j in changed.tolist()])
        if numbers is None:
            return
        if self.has_boolean_dtype is not None:
            for j in np.flatnonzero(self.has_boolean_dtype).tolist():
                warn_not_boolean(names[j], numbers[:, j])
        if self.constants is None or self.constant_positions is None or not len(self.constants):
            return
        columns = [
            f"{names[j]!r} ({value:g} in fit)"
            for j, value in zip(self.constant_positions.tolist(), self.constants, strict=True)
        ]
        warn_varying(columns, self.constants, numbers[:, self.constant_positions])
