"""Tables as they are read: words, booleans and missing values as numbers.

One encoder inside the model. A word of few is a column of its own; of many the frequent ones are,
and all have their place in alphabetical order besides. A missing number is the median, and its own
indicator where it is missing often enough to say something.
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from skbayes_sym.estimators._fit.rows import Array, require_rows
from skbayes_sym.estimators._fit.warnings import warn_user

_MOST_WORDS = 30  # with a column of their own
_LEAST_MISSING = 0.02  # share of a column's rows from which that it is missing says something


class Column(NamedTuple):
    """How one column becomes numbers.

    ``words``: those with a column, by frequency (none: the column holds numbers); ``order``: all of
    them, where they are many; ``middle``: of the numbers, for a missing one; ``tells_missing``:
    whether missing values have an indicator.
    """

    name: str
    words: tuple[str, ...]
    order: tuple[str, ...]
    middle: float
    tells_missing: bool


class Table(NamedTuple):
    """Columns as they were given: their names, and an array each."""

    names: list[str]
    columns: list[Array]


def table_of(X: Any) -> Table | None:
    """The columns of a table that holds words or missing values; None if it is all numbers."""
    try:
        names, columns = [str(c) for c in X.columns], [np.asarray(X[c]) for c in X.columns]
    except (AttributeError, TypeError):
        array = X
        if isinstance(X, Sequence) and not isinstance(X, str):
            array = np.array([list(row) if isinstance(row, tuple) else row for row in X], object)
        if not isinstance(array, np.ndarray) or array.ndim != 2 or not array.size:
            return None
        names, columns = [f"{i}" for i in range(array.shape[1])], list(array.T)
    gaps = [bool(_missing(c).any()) for c in columns]
    if not any(gaps) and all(c.dtype.kind in "fiubc" for c in columns):
        return None
    words = [_is_words(c, name) for name, c in zip(names, columns, strict=True)]
    return Table(names, columns) if any(words + gaps) else None


def _missing(values: Array) -> Array:
    """Mask of the rows in which a column holds no value."""
    if values.dtype.kind in "OT":
        return np.array([_is_missing(v) for v in values.tolist()], dtype=bool)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or (
        isinstance(value, float) and value != value
    )  # fmt: skip


def _is_words(values: Array, name: str) -> bool:
    """Whether a column holds words. Raises ValueError of dates, TypeError of other objects."""
    if values.dtype.kind in "mM" or any(
        isinstance(v, datetime.date | datetime.timedelta) for v in values[:1000].tolist()
    ):
        raise ValueError(
            "X must hold numbers, got columns of neither words nor numbers, such as dates (in "
            f"{name!r}). Give numbers: days since a date, or a month."
        )
    if values.dtype.kind in "fiubc":
        return False
    present = [v for v in values.tolist() if not _is_missing(v)]
    for value in present:
        if not isinstance(value, str | bytes | Number):
            raise TypeError(
                f"column {name!r} of X holds a {type(value).__name__}: its argument must be a "
                "string or a number."
            )
    return any(isinstance(v, str | bytes) for v in present)


@dataclass(frozen=True, eq=False)
class Columns:
    """How every column of a table becomes numbers; ``kept``: of all that come out, those that vary.

    All are kept where none varies.
    """

    columns: tuple[Column, ...]
    kept: Array

    @classmethod
    def learned(cls, table: Table) -> "Columns":
        """Words, middles and what is missing, of training rows."""
        columns = [_column(n, c) for n, c in zip(table.names, table.columns, strict=True)]
        everything = cls(tuple(columns), np.arange(0))._encoded(table)
        varies = np.flatnonzero((everything != everything[:1]).any(axis=0))
        return cls(tuple(columns), varies if len(varies) else np.arange(everything.shape[1]))

    @property
    def n_outputs(self) -> int:
        """Number of columns that come out."""
        return len(self.kept)

    def encoded(self, table: Table) -> Array:
        """All columns as numbers, (n_rows, n_outputs); a word never seen is none of those known."""
        return self._encoded(table)[:, self.kept]

    def _encoded(self, table: Table) -> Array:
        pairs = zip(self.columns, table.columns, strict=True)
        return np.column_stack([_numbers(column, values) for column, values in pairs])


def _column(name: str, values: Array) -> Column:
    missing = _missing(values)
    share = float(missing.mean())
    tells_missing = _LEAST_MISSING <= share < 1.0
    if not _is_words(values, name):
        numbers = values[~missing].astype(np.float64)
        middle = float(_median(numbers)) if len(numbers) else 0.0
        return Column(name, (), (), middle, tells_missing)
    words, counts = np.unique([str(v) for v in values[~missing].tolist()], return_counts=True)
    by_count = [str(w) for w in words[np.argsort(-counts, kind="stable")][:_MOST_WORDS]]
    order = tuple(map(str, words)) if len(words) > _MOST_WORDS else ()
    if order and sum(map(_is_number, order)) > len(order) / 2:
        warn_user(
            f"column {name!r} of X holds numbers as text and is read as words: if it measures "
            "something, convert it first, as by pandas.to_numeric(column, errors='coerce').",
            UserWarning,
        )
    return Column(name, tuple(by_count), order, 0.0, tells_missing)


def _is_number(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False


def _median(numbers: Array) -> Array:
    """Medians of columns, by halves: two of the largest numbers may have no sum."""
    return np.asarray(2.0 * np.median(numbers / 2.0, axis=0))


def _numbers(column: Column, values: Array) -> Array:
    """Numbers of one column, (n_rows, some)."""
    missing = _missing(values)
    indicator = [missing.astype(np.float64)] * column.tells_missing
    if not column.words:
        if _is_words(values, column.name):
            raise ValueError(
                f"X must hold numbers in column {column.name!r}, as it did in fit, got words such "
                f"as {next(v for v in values.tolist() if isinstance(v, str))!r}."
            )
        numbers = np.full(len(values), column.middle)
        numbers[~missing] = values[~missing].astype(np.float64)
        if np.isinf(numbers).any():
            raise ValueError(f"Input X contains infinity, in column {column.name!r}.")
        return np.column_stack([numbers, *indicator])
    texts = np.array(["" if m else str(v) for v, m in zip(values.tolist(), missing, strict=True)])
    if len(column.words) == 2:  # one column; halfway where neither
        first, second = (np.where(missing, False, texts == w) for w in column.words)
        return np.column_stack([0.5 + 0.5 * second - 0.5 * first, *indicator])
    parts = [np.where(missing, 0.0, texts == word) for word in column.words]
    if column.order:
        parts.append(np.searchsorted(np.array(column.order), texts) / len(column.order))
    return np.column_stack([*parts, *indicator])


class TakesTables:
    """An estimator that takes tables as they are read; before the mixin that checks targets.

    ``columns_in_``: how columns become numbers; None where all were.
    """

    columns_in_: Columns | None = None
    x_mean_: Array
    dtype_: str
    _medians_in_: Array  # of the columns, where all were numbers
    _finite: ClassVar[bool | str] = "allow-nan"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = True
        tags.input_tags.string = False
        return tags

    def _check_targets(self, X: Any, y: Any) -> tuple[Array, Array]:
        require_rows(X)
        table = table_of(X)
        columns = None if table is None else Columns.learned(table)
        numbers = X if table is None or columns is None else columns.encoded(table)
        checked: tuple[Array, Array] = super()._check_targets(numbers, y)  # type: ignore[misc]
        if table is not None:
            validate_data(self, X, skip_check_array=True)  # the columns that were given
        self.columns_in_ = columns
        if columns is None:
            self._medians_in_ = _median(checked[0])
        return checked

    def _check_inputs(self, X: Any) -> Any:
        check_is_fitted(self)
        if self.columns_in_ is None:
            numbers: Array = super()._check_inputs(X)  # type: ignore[misc]
            missing = np.isnan(numbers)
            if missing.any():
                numbers = np.where(missing, self._medians_in_, numbers).astype(numbers.dtype)
            return self._with_given(numbers, X)
        require_rows(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        table = table_of(X)
        if table is None:
            array = check_array(X, dtype=None, ensure_all_finite=False)
            table = Table([c.name for c in self.columns_in_.columns], list(array.T))
        return self._with_given(self.columns_in_.encoded(table), X)

    def _example(self) -> Any:
        """Row that the estimator takes, a frame where `fit` saw names."""
        if self.columns_in_ is None:
            row = self.x_mean_[None].astype(self.dtype_)
        else:
            values = [c.words[0] if c.words else c.middle for c in self.columns_in_.columns]
            row = np.array([values], dtype=object)
        try:
            from pandas import DataFrame
        except ImportError:
            return row
        return DataFrame(row, columns=vars(self).get("feature_names_in_"))

    def _with_given(self, encoded: Array, X: Any) -> Any:
        """Rows of a question: as numbers, where nothing else is needed."""
        return encoded
