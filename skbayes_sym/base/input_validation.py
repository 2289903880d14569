"""Checks of inputs and their conversion to numbers, with errors that name the place and remedy."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from skbayes_sym.base.messages import warn_user
from skbayes_sym.numerics.arguments import is_frame
from skbayes_sym.numerics.dates import parse_text
from skbayes_sym.numerics.tables import (
    READ_DURATION_TEXT,
    READ_DURATIONS,
    READ_FORMATTED_NUMBERS,
    READ_TIMES,
    SPLIT_COMPLEX,
    SPLIT_ENTRIES,
    column_names,
    dtype_name,
    frame_columns,
    has_reordered_rows,
    is_clock_time,
    is_declared_categorical,
    is_duration_text,
    is_formatted_number,
    is_missing_number,
    read_table,
    row_labels,
)

Array = npt.NDArray[Any]

# Remedy for text in inputs.
ENCODE = " Encode categories first, by OneHotEncoder for example."
# Remedy for dates in inputs.
_NUMBER_DATES = (
    "Give numbers: days since a date, or a month. The stacks and BayesianMLPRegressor read dates."
)

# Text that NumPy's message quotes.
_QUOTED = re.compile(
    r"could not convert string to float: (np\.str_\()?(?P<quote>['\"])(?P<text>.*)(?P=quote)"
)


@contextmanager
def numeric_conversion(name: str, remedy: str = "", X: Any = None, y: Any = None) -> Iterator[None]:
    """Explain errors of conversions to numbers, and locate missing and infinite ones.

    Parameters
    ----------
    name : str
        Name of the argument that is converted.
    remedy : str
        Sentence that tells what to do about text.
    X : table, optional
        Table whose columns of dates, durations and times are refused, whose other columns without
        numbers are named, and whose infinities are located.
    y : array-like, optional
        Targets whose missing and infinite values are located.

    Raises
    ------
    TypeError, ValueError
        Naming the argument and the columns.
    """
    _refuse_times(name, X)
    try:
        # scikit-learn looks for infinities in a sum, which may overflow for finite numbers.
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except RuntimeError as error:
        if "requires grad" not in str(error):
            raise
        raise TypeError(
            f"{name} must hold numbers, got a tensor that requires grad: give its detach()."
        ) from error
    except OverflowError as error:
        # An int such as 10**400.
        raise ValueError(
            f"{name} must hold numbers in the range of float64{_non_numeric_columns(X)}: {error}."
        ) from error
    except np.exceptions.DTypePromotionError as error:
        raise ValueError(
            f"{name} must hold numbers, got columns without a common type, such as dates"
            f"{_non_numeric_columns(X)}. {_NUMBER_DATES}"
        ) from error
    except TypeError as error:
        # The conversion of an object of another kind, such as a dict.
        if "unsupported ScalarType" in str(error):
            raise TypeError(
                f"{name} must be of a type that NumPy has: {error}. Give its double()."
            ) from error
        if "float() argument" not in str(error):
            raise
        raise TypeError(
            f"{name} must hold numbers: {error}.{_remedy_for_object(str(error), remedy)}"
        ) from error
    except ValueError as error:
        message = _explain_value_error(str(error), name, remedy, X, y)
        if message is None:
            raise
        raise ValueError(message) from error


def _explain_value_error(message: str, name: str, remedy: str, X: Any, y: Any) -> str | None:
    """Explain a message of NumPy or scikit-learn; None if it is of another kind.

    Parameters
    ----------
    message : str
        Message of the ``ValueError``.
    name, remedy : str
        As in `numeric_conversion`.
    X, y : array-like or None
        Inputs and targets, in which the values are located.

    Returns
    -------
    str or None
        Message that names the argument, columns and rows.
    """
    if message.startswith("Input X contains infinity"):
        return f"{message}{_locate(X, np.isinf)}"
    if message.startswith("Input X contains NaN"):
        return (
            f"Input X contains NaN.{_locate(X, np.isnan)} Fill missing values, as by "
            "SimpleImputer, or use an estimator that takes them, such as the stacks and "
            "BayesianMLP."
        )
    if message.startswith(("Input y contains NaN", "Input y contains infinity")):
        where = _locate(y, lambda values: ~np.isfinite(values))
        return f"{message}{where} Leave rows without a target out of X and y."
    if message.startswith("Complex data not supported"):
        return f"Complex data not supported: {_complex_part(name, X)} {SPLIT_COMPLEX}"
    if "inhomogeneous shape" in message:
        return f"{name} must have rows of one length{_non_numeric_columns(X)}: {message}"
    # NumPy's errors of text, of mixed types, and of nested sequences.
    phrases = ("could not convert", "Cannot cast", "setting an array element")
    if any(phrase in message for phrase in phrases):
        remedy = _remedy_for_text(message, remedy)
        return f"{name} must hold numbers: {message}{_non_numeric_columns(X)}.{remedy}"
    return None


def _remedy_for_object(message: str, remedy: str) -> str:
    """Return the remedy for the kind of object that an error of a conversion names.

    Parameters
    ----------
    message : str
        Message that ends with the type, such as "... not 'datetime.date'".
    remedy : str
        Remedy for other objects. If it is empty, there is none for any.
    """
    kind = message.rsplit(" ", 1)[-1].strip("'").rsplit(".", 1)[-1]
    if not remedy:
        return ""
    if kind in ("timedelta", "Timedelta"):
        return f" {READ_DURATIONS}"
    if kind == "time":
        return f" {READ_TIMES}"
    if kind in ("date", "datetime", "Timestamp", "Period"):
        return f" {_NUMBER_DATES}"
    if kind in ("dict", "list", "tuple", "set"):
        return f" {SPLIT_ENTRIES}"
    return remedy


def _remedy_for_text(message: str, remedy: str) -> str:
    """Return the remedy for the text that an error of a conversion quotes.

    Parameters
    ----------
    message : str
        Message such as "could not convert string to float: '1,5'".
    remedy : str
        Remedy for other text. If it is empty, there is none for any.
    """
    quoted = _QUOTED.search(message)
    if quoted is None or not remedy:
        return remedy
    text = quoted["text"]
    if is_missing_number(text):
        return (
            f" If {text!r} means that a number is missing, give NaN, as by "
            "pandas.to_numeric(column, errors='coerce'), or the option na_values of "
            "pandas.read_csv."
        )
    if is_clock_time(text):
        return f" {READ_TIMES}"
    if is_duration_text(text):
        return f" {READ_DURATION_TEXT}"
    if is_formatted_number(text):
        return f" Convert it first, {READ_FORMATTED_NUMBERS}."
    if parse_text(text) is not None:
        return f" {_NUMBER_DATES}"
    return remedy


def _non_numeric_columns(X: Any) -> str:
    """Return a clause with the columns of a frame that aren't numbers; empty for arrays."""
    if is_frame(X):
        kinds = {c: np.asarray(X[c]).dtype.kind for c in X.columns}
    else:
        kinds = {}
    names = [str(name) for name, kind in kinds.items() if kind not in "biuf"]
    if names:
        return f" (in {_enumerate(names)})"
    return ""


def _complex_part(name: str, X: Any) -> str:
    """Return a phrase for the columns of a table that are complex, or "y" if none of X is."""
    table = read_table(X)
    if table is None:
        return name
    names = [
        name
        for name, values in zip(table.names, table.columns, strict=True)
        if np.iscomplexobj(values)
    ]
    if names:
        return f"column {_enumerate(names)} of X"
    return "y"


def _locate(values: Any, is_invalid: Callable[[Array], Array]) -> str:
    """Return a sentence with the first row of invalid numbers, and their column in a table."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return ""
    positions = np.argwhere(is_invalid(numbers))
    if not positions.size:  # none is invalid, or y is a single number
        return ""
    row, *column = positions[0].tolist()
    if not column:
        return f" The first is in row {row}."
    name = column[0]
    if is_frame(values):
        name = list(values.columns)[name]
    return f" The first is in row {row}, column {name!r}."


def _enumerate(names: list[str]) -> str:
    """Join the first five names."""
    ellipsis = ", ..." if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + ellipsis


def _refuse_times(name: str, X: Any) -> None:
    """Raise a ValueError if a table has columns whose dtype is one of dates, durations or times.

    NumPy and polars would read them as numbers whose unit depends on the dtype.
    """
    if is_frame(X):
        dtypes = list(zip(column_names(X), map(dtype_name, frame_columns(X)), strict=True))
    elif isinstance(X, np.ndarray) and X.dtype.kind in "mM":
        dtypes = [(str(j), dtype_name(X)) for j in range(X.shape[-1])]
    else:
        return
    durations = [column for column, dtype in dtypes if dtype.startswith(("timedelta", "duration"))]
    if durations:
        raise ValueError(
            f"{name} must hold numbers, got durations (in {_enumerate(durations)}). "
            f"{READ_DURATIONS}"
        )
    # "time" begins the types of times of day, and "timestamp" those of dates.
    dates = [column for column, dtype in dtypes if dtype.startswith(("date", "time", "period"))]
    if dates:
        raise ValueError(
            f"{name} must hold numbers, got columns of another type, such as dates (in "
            f"{_enumerate(dates)}). {_NUMBER_DATES}"
        )


def refuse_categorical(X: Any) -> None:
    """Raise a ValueError if a table has columns of a categorical dtype.

    Their levels may be numbers, but numbers that don't measure anything.
    """
    if not is_frame(X):
        return
    pairs = zip(column_names(X), frame_columns(X), strict=True)
    categorical = [name for name, column in pairs if is_declared_categorical(column)]
    if categorical:
        raise ValueError(
            f"X must hold numbers, got columns of a categorical dtype (in "
            f"{_enumerate(categorical)}).{ENCODE} If "
            "their levels are numbers that measure something, convert them by astype(float)."
        )


def warn_reordered_rows(X: Any, **columns: Any) -> None:
    """Warn if a frame and a column of pandas have the same row labels in different orders.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Inputs as the user gave them.
    **columns : array-like of shape (n_samples,) or None
        Targets, weights and the like by the names of the arguments.
    """
    warn_reordered_labels(row_labels(X), **columns)


def warn_reordered_labels(labels: Any, **columns: Any) -> None:
    """Warn if columns have the row labels of X in a different order, see `warn_reordered_rows`."""
    for name, column in columns.items():
        if has_reordered_rows(labels, column):
            warn_user(
                f"X and {name} have the same row labels in different orders, but rows are "
                f"matched by position. Give {name}.loc[X.index] if labels tell which rows "
                "belong together.",
                UserWarning,
            )


def is_finite_array(X: Any, n_features: int) -> bool:
    """Whether scikit-learn's validation would return ``X`` itself: finite floats, (n, n_features).

    False is possible for finite numbers whose sum overflows.
    """
    if type(X) is not np.ndarray or X.dtype not in (np.float64, np.float32):
        return False
    if X.ndim != 2 or X.shape[1] != n_features or not len(X):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(X.sum()))


def require_rows(X: Any) -> None:
    """Raise a ValueError if the rows of an array have several axes, such as images."""
    shape = tuple(getattr(X, "shape", ()))
    if len(shape) < 3:
        return
    has_channels_last = len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] > 4
    image = shape[1:]
    move = ""
    if has_channels_last:
        image = (shape[3], *shape[1:3])
        move = "np.moveaxis(X, 3, 1)"
    raise ValueError(
        f"X has shape {shape}, but rows of X have one axis. Give {move or 'X'}.reshape(len(X), -1);"
        f" LILAClassifier and LILARegressor take such images with image_shape={image}."
    )
