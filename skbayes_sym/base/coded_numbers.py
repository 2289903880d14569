"""Columns of a training table whose numbers are codes: of missing values, or of dates.

Files often hold -999 where a value is missing, and dates as numbers such as 20240131. Both are
numbers like any other to a model, and both spoil its fit: the code of a missing value is far from
all values, and the dates 20240131 and 20240201 are a day apart, but their numbers 70.
"""

from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.arguments import is_frame
from skbayes_sym.numerics.tables import missing_rows, read_table

# Codes of missing values consist of nines, with either sign.
_MISSING_CODES = tuple(float("9" * n_digits) for n_digits in range(1, 9))
_MIN_CODES = 2  # rows that hold a code
_MIN_OTHERS = 3  # distinct other values

# Numbers of so many digits and of these years can be dates.
_DATE_FORMATS = {8: "%Y%m%d", 6: "%Y%m"}
_FIRST_YEAR = 1900
_LAST_YEAR = 2099
_MIN_DATES = 10  # distinct dates


class MissingCode(NamedTuple):
    """Number that seems to stand for a missing value, and the number of rows that hold it."""

    value: float
    n_rows: int


def find_missing_code(values: Array) -> MissingCode | None:
    """Find a number that seems to stand for missing values.

    It is the smallest or largest value, consists of nines, such as -999 or 99, is in several rows,
    and is further from the next value than the other values are from each other.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Numbers of a column, nan where missing.

    Returns
    -------
    MissingCode or None
        The code, None if there is none.
    """
    if not len(values) or np.isnan(values).all():
        return None
    for code in (float(np.nanmin(values)), float(np.nanmax(values))):
        if abs(code) not in _MISSING_CODES:
            continue
        others = values[(values != code) & ~np.isnan(values)]
        n_codes = int((values == code).sum())
        if n_codes < _MIN_CODES or len(np.unique(others)) < _MIN_OTHERS:
            continue
        with np.errstate(over="ignore"):
            is_far = np.abs(others - code).min() > np.ptp(others)
        if is_far:
            return MissingCode(code, n_codes)
    return None


def find_date_format(values: Array) -> str | None:
    """Find the format of dates that are written as numbers, such as 20240131 or 202401.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Numbers of a column, nan where missing.

    Returns
    -------
    str or None
        Format for `pandas.to_datetime`, None if a number is no date, if there are few, or if all
        are of one year.
    """
    present = values[~np.isnan(values)]
    if len(present) < _MIN_DATES or present.min() < _FIRST_YEAR * 100 or present.max() >= 10**8:
        return None
    distinct = np.unique(present)
    if len(distinct) < _MIN_DATES or (distinct != np.round(distinct)).any():
        return None
    n_digits = len(f"{distinct[0]:.0f}")
    if n_digits not in _DATE_FORMATS or len(f"{distinct[-1]:.0f}") != n_digits:
        return None

    # A date without a day has the first day of its month.
    numbers = distinct.astype(np.int64)
    if n_digits == 6:
        numbers = 100 * numbers + 1
    year = numbers // 10_000
    month = numbers // 100 % 100
    day = numbers % 100
    is_date = (year >= _FIRST_YEAR) & (year <= _LAST_YEAR)
    is_date &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    if not is_date.all() or year[0] == year[-1]:
        return None
    return _DATE_FORMATS[n_digits]


def _read_numbers(column: Array) -> Array | None:
    """Return the numbers of a column (n,), nan where missing; None if it doesn't hold numbers."""
    if column.dtype.kind in "iuf":
        return column.astype(np.float64)
    if column.dtype.kind != "O":
        return None

    # Nullable dtypes of pandas arrive as objects.
    is_missing = missing_rows(column)
    present = column[~is_missing]
    if not all(isinstance(value, Real) and not isinstance(value, bool) for value in present):
        return None
    values = np.full(len(column), np.nan)
    values[~is_missing] = present.astype(np.float64)
    return values


def warn_coded_numbers(X: Any) -> None:
    """Warn of the numeric columns of a training frame that seem to hold codes.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Training inputs as the user passed them. Only frames are examined, which come from files.
    """
    if not is_frame(X):
        return
    table = read_table(X)
    if table is None:
        return
    for name, column in zip(table.names, table.columns, strict=True):
        values = _read_numbers(column)
        if values is None:
            continue
        code = find_missing_code(values)
        if code is not None:
            warn_user(
                f"column {name!r} of X holds {code.value:.0f} in {code.n_rows} rows, far from all "
                "other values. If it means that a value is missing, replace it before fit and "
                f"predictions, as by column.replace({code.value:.0f}, numpy.nan).",
                UserWarning,
            )
        date_format = find_date_format(values)
        if date_format is not None:
            warn_user(
                f"column {name!r} of X holds dates as numbers, such as {np.nanmin(values):.0f}. "
                "Convert it before fit and predictions, as by pandas.to_datetime(column, "
                f"format={date_format!r}).",
                UserWarning,
            )
