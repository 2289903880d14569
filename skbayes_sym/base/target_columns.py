"""Columns of a training table that are the target itself."""

from typing import Any

import numpy as np

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.arguments import is_frame
from skbayes_sym.numerics.tables import missing_rows, read_table

# A column of zeros and ones equals a target of two equally frequent classes in so many rows with a
# probability of 1e-6.
_MIN_ROWS = 20
_NUMERIC_KINDS = "fiub"


def find_target_columns(X: Any, y: Any) -> list[str]:
    """Find the columns of a frame that equal a target in every row.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Training inputs as the user passed them. Only the columns of frames are compared: arrays are
        usually made column by column, and have no column that was left in.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Targets or class labels.

    Returns
    -------
    list of str
        Names of the columns. Constant targets equal no column.
    """
    targets = np.asarray(y)
    if not is_frame(X) or len(targets) < _MIN_ROWS:
        return []
    targets = targets.reshape(len(targets), -1)
    table = read_table(X)
    if table is None:
        return []
    return [
        name
        for name, column in zip(table.names, table.columns, strict=True)
        if any(_is_same_variable(column, target) for target in targets.T)
    ]


def _is_same_variable(column: Array, target: Array) -> bool:
    """Whether two arrays of shape (n_samples,) vary and are equal in every row."""
    is_numeric = [array.dtype.kind in _NUMERIC_KINDS for array in (column, target)]
    if is_numeric[0] != is_numeric[1] or column.shape != target.shape:
        return False
    if missing_rows(column).any():
        # Targets have no missing values, and pandas' NA isn't comparable.
        return False
    if not all(is_numeric):
        column = column.astype(object)
        target = target.astype(object)
    varies = bool(np.any(target != target[0]))
    return varies and bool(np.all(column == target))


def warn_target_columns(X: Any, y: Any) -> None:
    """Warn if a column of a training frame is the target, see `find_target_columns`."""
    for name in find_target_columns(X, y):
        warn_user(
            f"column {name!r} of X equals y in every row. If it is the target that was left in X, "
            "drop it: new rows don't have it, and no other column matters beside it.",
            UserWarning,
        )
