"""Columns of tables, without torch and scikit-learn: names, missing values, levels, numbers."""

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Integral, Real
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from skbayes_sym.numerics.arguments import is_frame, short_repr
from skbayes_sym.numerics.dates import (
    DateEncoding,
    holds_dates,
    is_date_object,
    is_missing_date,
    read_days,
)

Array = npt.NDArray[Any]

# Codes of missing values and of values without a level.
MISSING = -1
UNKNOWN = -2

# Text that pandas.read_csv reads as a missing number.
_MISSING_TEXT = {"", "nan", "-nan", "na", "n/a", "#n/a", "null", "none", "<na>", "nat"}

_DECIMAL = re.compile(r"[+-]?\d+(\.\d*)?")


def column_names(X: Any) -> list[str]:
    """Return the column names of a frame as text; an empty list if ``X`` isn't a frame."""
    if not is_frame(X):
        return []
    return [str(name) for name in getattr(X, "column_names", X.columns)]


def non_string_column_names(X: Any) -> list[str] | None:
    """Return a frame's column names as text if some aren't strings, or None.

    scikit-learn doesn't compare such names.
    """
    if not is_frame(X):
        return None
    names = list(getattr(X, "column_names", X.columns))
    if all(isinstance(name, str) for name in names):
        return None
    return [str(name) for name in names]


def check_column_names(fitted: list[str] | None, X: Any) -> None:
    """Raise ValueError if a frame's column names, or their order, differ from those in `fit`.

    Parameters
    ----------
    fitted : list of str or None
        Names in `fit`, or None if there were none. Default names 0, 1, ... are compared with
        numbers only.
    X : table
        The new table.
    """
    names = column_names(X)
    if not fitted or not names or names == fitted:
        return
    is_default = fitted == [str(j) for j in range(len(fitted))]
    if is_default and not all(name.isdigit() for name in names):
        return
    missing = [name for name in fitted if name not in names]
    extra = [name for name in names if name not in fitted]
    if missing or extra:
        difference = f"unseen in fit: {short_repr(extra)}, missing: {short_repr(missing)}"
    else:
        difference = f"they must be in the order {short_repr(fitted)}, got {short_repr(names)}"
    raise ValueError(
        f"The feature names of X should match those that were passed during fit: {difference}."
    )


def is_declared_categorical(column: Any) -> bool:
    """Whether the dtype of a frame's column is categorical, whatever its levels."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if isinstance(dtype, type):
        name = dtype.__name__
    else:
        name = type(dtype).__name__
    is_categorical = name in {"CategoricalDtype", "Categorical", "Enum", "DictionaryType"}
    return is_categorical or str(dtype).startswith("dictionary<")


def require_table(X: Any) -> None:
    """Refuse what holds a table but isn't one yet, with the call that makes it one.

    Parameters
    ----------
    X : object
        Rows as the user gave them.

    Raises
    ------
    TypeError
        If ``X`` is a path, a dictionary of columns, a list of dictionaries, a lazy frame, a
        structured array or an iterator.
    ValueError
        If ``X`` is a series, or a frame without columns or with two columns of one name.
    """
    remedy = None
    if isinstance(X, str | bytes | PathLike):
        remedy = "read the file first, such as by pandas.read_csv(X)"
    elif isinstance(X, memoryview):
        remedy = "give numpy.asarray(X)"
    elif isinstance(X, Mapping) and not issparse(X):  # some sparse arrays are dictionaries
        remedy = "give pandas.DataFrame(X)"
    elif isinstance(X, Sequence) and len(X) > 0 and isinstance(X[0], Mapping):
        raise TypeError("X must be a table, got a list of dictionaries: give pandas.DataFrame(X).")
    elif isinstance(X, Iterator):
        remedy = "give list(X)"
    elif type(X).__name__ == "LazyFrame":
        remedy = "give X.collect()"
    elif type(X).__name__ == "Series":
        raise ValueError(
            "X must be 2-dimensional, got a Series: give X.to_frame() if it is a column, or "
            "X.to_frame().T if it is a row."
        )
    elif isinstance(X, np.ndarray) and X.dtype.names:
        remedy = f"its rows are structured, with the fields {X.dtype.names}: pandas.DataFrame(X)"
    if remedy is not None:
        raise TypeError(f"X must be a table, got {type(X).__name__}: {remedy}.")
    if not is_frame(X):
        return
    names = list(getattr(X, "column_names", X.columns))
    if not names:
        raise ValueError(
            f"Found array with 0 feature(s) (shape=({len(X)}, 0)) while a minimum of 1 is "
            "required: X has no columns."
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"X has two columns named {repeated[0]!r}: rename one, or drop it as by "
            "X.loc[:, ~X.columns.duplicated()]."
        )


def fill_masked(X: Any) -> Any:
    """Return ``X`` with masked entries as missing values; ``X`` itself if nothing is masked.

    Raises
    ------
    TypeError
        If ``X`` is no table, such as the path of a file.
    """
    require_table(X)
    if isinstance(X, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in X):
        X = np.ma.array(X)
    if not isinstance(X, np.ma.MaskedArray):
        return X
    if not np.ma.is_masked(X):
        return X.data
    if X.dtype.kind in "US":
        X = X.astype(object)
    if X.dtype.kind == "O":
        return np.where(np.ma.getmaskarray(X), None, X.data)
    return (X if X.dtype.kind == "f" else X.astype(np.float64)).filled(np.nan)


class Table(NamedTuple):
    """Columns of a table.

    Attributes
    ----------
    names : list of str
        Names of the columns.
    columns : list of ndarray
        Values of the columns.
    declared : list of bool
        Whether the dtype of each column declares it categorical.
    """

    names: list[str]
    columns: list[Array]
    declared: list[bool]

    @property
    def is_numeric(self) -> bool:
        """Whether all columns are numeric arrays."""
        return not any(self.declared) and all(c.dtype.kind in "fiubc" for c in self.columns)


def read_table(X: Any) -> Table | None:
    """Return the columns of a frame, list of rows or array; None if not two-dimensional."""
    if is_frame(X):
        names = column_names(X)
        series = list(frame_columns(X))
        columns = [_to_array(s) for s in series]
        for name, values in zip(names, columns, strict=True):
            if values.ndim > 1 or values.dtype.names:
                raise TypeError(
                    f"column {name!r} of X holds several values per row: its argument must be a "
                    "string or a number. Give each value a column."
                )
        return Table(names, columns, [is_declared_categorical(s) for s in series])
    array = X
    if isinstance(X, Sequence) and not isinstance(X, str):
        try:
            array = np.array([list(row) if isinstance(row, tuple) else row for row in X], object)
        except ValueError:  # rows of different lengths, which scikit-learn refuses
            return None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or not array.size:
        return None
    names = [f"{i}" for i in range(array.shape[1])]
    return Table(names, list(array.T), [False] * len(names))


def frame_columns(X: Any) -> Iterator[Any]:
    """Yield the columns of a frame by position, since names may repeat."""
    if hasattr(X, "iloc"):
        yield from (column for _, column in X.items())
    elif hasattr(X, "column_names"):  # pyarrow
        yield from X.columns
    else:
        yield from (X[name] for name in X.columns)


def _to_array(column: Any) -> Array:
    """Return the values of a frame's column; times with a zone are objects that keep it."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if getattr(dtype, "time_zone", getattr(dtype, "tz", None)) is None:
        return np.asarray(column)
    # NumPy's own conversion of polars and pyarrow drops the zone.
    if hasattr(column, "to_pylist"):
        values = column.to_pylist()
    else:
        values = column.to_list()
    return np.array(values, dtype=object)


def dtype_name(column: Any) -> str:
    """Return the name of the dtype of an array or of a frame's column, in lower case."""
    return str(getattr(column, "dtype", getattr(column, "type", None))).lower()


def boolean_dtypes(X: Any) -> Array:
    """Return which columns of a table have a Boolean dtype, (n_columns,); no columns of lists."""
    if is_frame(X):
        # The attribute ``dtypes`` of pandas changes the warning filters of the program.
        names = map(dtype_name, frame_columns(X))
        return np.array([name.startswith("bool") for name in names], dtype=bool)
    if getattr(X, "ndim", 0) != 2:
        return np.zeros(0, dtype=bool)
    return np.full(X.shape[1], "bool" in str(getattr(X, "dtype", "")))


def row_labels(X: Any) -> Any:
    """Return the row labels of a frame or a column of pandas, None for other inputs."""
    index = getattr(X, "index", None)
    return index if hasattr(index, "is_unique") else None


def has_reordered_rows(index: Any, y: Any) -> bool:
    """Whether row labels and those of a column of pandas are the same in other orders."""
    other: Any = getattr(y, "index", None)
    if not (hasattr(index, "is_unique") and hasattr(other, "is_unique")):
        return False
    if len(index) != len(other) or index.equals(other) or not (index.is_unique and other.is_unique):
        return False
    return bool(index.isin(other).all())


def missing_rows(values: Array) -> Array:
    """Return a mask of the rows in which a column has no value."""
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind in "OT":
        return np.array([is_missing(v) for v in values.tolist()], dtype=bool)
    if values.dtype.kind in "fc":
        return np.isnan(values)
    return np.zeros(len(values), dtype=bool)


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None, NaN, NaT, NA or masked."""
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
        return True
    if is_missing_date(value):
        return True
    return isinstance(value, Real | Decimal) and value != value


def is_missing_text(value: Any) -> bool:
    """Whether a value is missing, or text that `pandas.read_csv` reads as missing."""
    return is_missing(value) or (isinstance(value, str) and value.strip().lower() in _MISSING_TEXT)


def missing_dates(values: Array) -> Array:
    """Return a mask of the rows in which a column of dates has no value."""
    if values.dtype.kind == "M":
        return missing_rows(values)
    return np.array([is_missing_text(value) for value in values.tolist()], dtype=bool)


def days_since_reference(name: str, values: Array, encoding: DateEncoding) -> Array:
    """Return a column of dates as days since the first training date; nan if missing.

    Parameters
    ----------
    name : str
        Name of the column, for messages.
    values : ndarray of shape (n_rows,)
        Dates.
    encoding : DateEncoding
        First training date, order of day and month, and time zone.
    """
    missing = missing_dates(values)
    days = read_days(name, values, encoding.day_first, encoding.utc_offset, missing)
    return days - encoding.reference


def _is_number(value: Any) -> bool:
    """Whether a value is a real number or a bool."""
    return isinstance(value, Real | Decimal | np.bool_)


def column_kind(values: Array, name: str, is_declared: bool = False) -> str:
    """Return the kind of a column: "numeric", "boolean", "date" or "categorical".

    Raises ValueError for durations and complex numbers, and TypeError for other objects that aren't
    text or numbers.

    Parameters
    ----------
    values : ndarray
        Values of the column.
    name : str
        Name of the column, for error messages.
    is_declared : bool
        Whether the dtype of the column declares it categorical.
    """
    if is_declared:
        return "categorical"
    if values.dtype.kind == "b":
        return "boolean"
    if values.dtype.kind in "fiu":
        return "numeric"
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: column {name!r} of X {SPLIT_COMPLEX}")
    if holds_dates(values, is_missing_text):
        return "date"
    check_no_dates(values, name)
    present = [v for v in values.tolist() if not is_missing(v)]
    for value in present:
        is_interval = type(value).__name__ == "Interval"
        if not is_interval and not isinstance(value, str | bytes) and not _is_number(value):
            raise TypeError(
                f"column {name!r} of X holds a {type(value).__name__}: its argument must be a "
                f"string or a number.{_remedy(value)}"
            )
    if not all(map(_is_number, present)):
        return "categorical"
    is_boolean = present and all(isinstance(v, bool | np.bool_) for v in present)
    return "boolean" if is_boolean else "numeric"


def _remedy(value: Any) -> str:
    """Return a sentence that tells how to turn objects of a column into numbers."""
    if isinstance(value, datetime.time):
        return f" {READ_TIMES}"
    if isinstance(value, Mapping | Sequence | np.ndarray | set):
        return f" {SPLIT_ENTRIES}"
    return ""


def check_no_dates(values: Array, name: str) -> None:
    """Raise ValueError if a column that held no dates in `fit` holds dates or durations."""
    if values.dtype.kind == "O":
        first = values[:1000].tolist()
    else:
        first = []
    is_duration = values.dtype.kind == "m" or any(isinstance(v, datetime.timedelta) for v in first)
    if is_duration:
        raise ValueError(f"column {name!r} of X holds durations. {READ_DURATIONS}")
    if values.dtype.kind == "M" or any(is_date_object(v) and not is_missing(v) for v in first):
        raise ValueError(
            f"column {name!r} of X holds dates, but it held none in fit. Fit to dates, or give the "
            "values that fit had."
        )


def level_key(value: Any) -> str:
    """Return text that identifies a level for any dtype: 1, 1.0 and "1" are the same."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real | Decimal):
        # The text of a float32 has as few digits as it was written with.
        if isinstance(value, np.floating):
            number = float(str(value))
        else:
            number = float(value)
        if number.is_integer():
            return str(int(number))
        return repr(number)
    return str(value)


def plain_spelling(level: str) -> str:
    """Return the text of a level without case and with single spaces, none around it."""
    return " ".join(level.split()).casefold()


def level_number(text: str) -> float | None:
    """Return the number that the text of a level represents, or None."""
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        number = float(text)
    except ValueError:
        return None
    if np.isfinite(number) and "_" not in text:
        return number
    return None


# Numbers with a currency, a thousands separator, a decimal comma, a percent sign, or a unit after a
# space, such as "1.5 kg" or "20 km/h".
_FORMATTED_NUMBER = re.compile(
    r"[(+-]?\s*([$€£¥]|[A-Z]{3}\s)?\s*[+-]?"
    r"(\d{1,3}([,.' \u00a0]\d{3})+|\d+)([.,]\d+)?\s*\)?\s*"
    r"([%$€£¥]|(?<=\s)[^\W\d]{1,5}(/[^\W\d]{1,3})?)?"
)


# Text that people write for a missing number.
_PLACEHOLDER = re.compile(r"[\s?*.-]*|missing|unknown", re.IGNORECASE)
# Times of day, such as "08:30" or "8:30:15 pm".
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(\s*[ap]\.?m\.?)?", re.IGNORECASE)

# Durations as pandas and Python print them, such as "2 days 16:00:00".
_DURATION = re.compile(r"-?\d+ days?,? \+?\d{1,2}:\d{2}:\d{2}(\.\d+)?")

# What to do about numbers as people write them, durations and times of day.
READ_FORMATTED_NUMBERS = (
    "without units and signs of currency, percent and thousands, as by the options thousands and "
    "decimal of pandas.read_csv, or by column.str.replace('[$,%a-z ]', '', regex=True) and "
    "pandas.to_numeric"
)
READ_DURATIONS = "Give numbers, such as days: column / numpy.timedelta64(1, 'D')."
READ_DURATION_TEXT = (
    "Give numbers, such as days, as by pandas.to_timedelta(column) / numpy.timedelta64(1, 'D')."
)
READ_TIMES = "Give the hour, such as value.hour + value.minute / 60."
SPLIT_COMPLEX = "holds complex numbers. Give real and imaginary parts, or absolute values."
SPLIT_ENTRIES = "Give each of its entries a column, such as by pandas.DataFrame(column.tolist())."


def is_missing_number(text: str) -> bool:
    """Whether a text stands for a missing number, such as ``"?"``, ``"-"`` or ``"N/A"``."""
    return is_missing_text(text) or _PLACEHOLDER.fullmatch(text) is not None


def is_clock_time(text: str) -> bool:
    """Whether a text is a time of day, such as ``"08:30"``."""
    return _CLOCK.fullmatch(text.strip()) is not None


def is_duration_text(text: str) -> bool:
    """Whether a text is a duration as pandas and Python print it, such as "2 days 16:00:00"."""
    return _DURATION.fullmatch(text.strip()) is not None


def is_formatted_number(text: str) -> bool:
    """Whether a text is a number as people write it, such as ``"$1,234.50"`` or ``"1.5 kg"``."""
    return _FORMATTED_NUMBER.fullmatch(text.strip()) is not None


class Levels:
    """Codes of values in a list of levels.

    A value is first looked up by its `level_key`. Otherwise a number, a bool, or text of a plain
    decimal number has the level of the same number if there is exactly one: 1234 is "01234", "1.0"
    is 1, True is "true".
    """

    def __init__(self, levels: Sequence[str]) -> None:
        self._exact = {level: code for code, level in enumerate(levels)}
        self._by_number: dict[float, int] = {}
        for level, code in self._exact.items():
            number = level_number(level)
            if number is not None:
                is_ambiguous = number in self._by_number
                self._by_number[number] = UNKNOWN if is_ambiguous else code

    def code(self, value: Any) -> int:
        """Return the code of a value, or `MISSING` or `UNKNOWN`."""
        if is_missing(value):
            return MISSING
        key = level_key(value)
        if key in self._exact:
            return self._exact[key]
        if not key.strip():
            return MISSING  # as read_csv reads it
        is_text = not _is_number(value)
        if is_text and not _DECIMAL.fullmatch(key) and key.lower() not in ("true", "false"):
            return UNKNOWN
        number = level_number(key)
        if number is None:
            return UNKNOWN
        return self._by_number.get(number, UNKNOWN)

    def codes(self, name: str, values: Array) -> Array:
        """Return the codes (n_rows,) of a column.

        Raises TypeError that names the column and the row if a value can't be a level.
        """
        if values.dtype.kind in "fiub":
            distinct, inverse = np.unique(values, return_inverse=True)
            return np.array([self.code(v) for v in distinct], dtype=int)[inverse.ravel()]
        known: dict[Any, int] = {}
        codes = np.empty(len(values), dtype=int)
        for row, value in enumerate(values.tolist()):
            key = (type(value), value)
            try:
                code = known.get(key)
            except TypeError as error:
                raise TypeError(
                    f"column {name!r} of X holds a {type(value).__name__} in row {row}: its "
                    f"argument must be a string or a number.{_remedy(value)}"
                ) from error
            if code is None:
                code = known[key] = self.code(value)
            codes[row] = code
        return codes


def to_float(name: str, kind: str, values: Array) -> Array:
    """Return the values of a numeric column as float64, nan if missing.

    Raises ValueError that names column, row and value if a value isn't a number.

    Parameters
    ----------
    name : str
        Name of the column.
    kind : {"numeric", "boolean"}
        Kind of the column in `fit`.
    values : ndarray
        Values, of any dtype.
    """
    check_no_dates(values, name)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    numbers = np.empty(len(values))
    for row, value in enumerate(values.tolist()):
        try:
            numbers[row] = _parse_number(value, kind == "boolean")
        except ValueError as error:
            text = str(value)
            if re.fullmatch(r"[+-]?\d+,\d+", text):
                comma = " Decimals need a point."
            else:
                comma = ""
            raise ValueError(
                f"X must hold numbers in column {name!r}, as it did in fit, got "
                f"{short_repr(value)} in row {row}.{comma}"
            ) from error
        except TypeError as error:
            raise TypeError(
                f"column {name!r} of X holds a {type(value).__name__} in row {row}: its "
                "argument must be a string or a number."
            ) from error
    return numbers


def _parse_number(value: Any, is_boolean: bool) -> float:
    """Return a value of a numeric column; ValueError for text, TypeError for other objects."""
    if is_missing(value):
        return np.nan
    if _is_number(value):
        return float(value)
    if not isinstance(value, str | bytes):
        raise TypeError(value)
    text = level_key(value).strip()
    if text.lower() in _MISSING_TEXT:
        return np.nan
    if is_boolean and text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    if "_" in text:  # only Python reads 1_000 as a number
        raise ValueError(text)
    return float(text)
