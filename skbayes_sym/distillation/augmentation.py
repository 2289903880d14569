"""Training rows of a student: observed, interpolated and incomplete ones."""

from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors

from skbayes_sym.base.columns import Columns
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.messages import collect_warnings
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.arguments import is_frame
from skbayes_sym.numerics.dates import DateEncoding, to_datetimes
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.numerics.tables import (
    Table,
    column_kind,
    column_names,
    days_since_reference,
    fill_masked,
    level_key,
    missing_rows,
    read_table,
    to_float,
)
from skbayes_sym.student import Student, to_text, write_date_encodings

_UNKNOWN_LEVEL = "a level that no row has"
_INCOMPLETE_FRACTION = 10  # one additional incomplete row per this many rows
_MAX_DISCRETE_VALUES = 10  # numeric columns with at most this many values aren't interpolated
# One row in ten has a date beyond the range, by up to half its length. Teachers are less certain
# there.
_BEYOND_FRACTION = 0.1
_MAX_BEYOND = 0.5
_N_HELD_OUT = 500  # rows held out, at most, and at most a fifth of all


class TeacherColumns(NamedTuple):
    """How a teacher reads its columns.

    Attributes
    ----------
    names : list of str or None
        Column names. None if the teacher was fitted without names.
    kinds : list of str
        "numeric", "boolean", "date" or "categorical" for each column.
    takes_missing : ndarray of shape (n_columns,)
        Whether the teacher predicts rows with a missing value in the column.
    takes_unknown : ndarray of shape (n_columns,)
        Whether the teacher predicts rows with an unknown level in the column.
    dates : dict of int to DateEncoding
        Encoding of the columns of dates, by their positions.
    """

    names: list[str] | None
    kinds: list[str]
    takes_missing: Array
    takes_unknown: Array
    dates: dict[int, DateEncoding]

    def to_numbers(self, j: int, name: str, column: Array) -> Array:
        """Return column ``j``, which isn't categorical, as numbers; dates are days."""
        if j in self.dates:
            return days_since_reference(name, column, self.dates[j])
        return to_float(name, self.kinds[j], column)


class AugmentedRows(NamedTuple):
    """Rows to train and to evaluate a student.

    Attributes
    ----------
    encoding : dict of str to ndarray
        Encoding of the columns, see `Student`.
    rows : array or frame
        Rows held out, then the training rows.
    n_held_out : int
        Number of rows held out.
    """

    encoding: dict[str, Array]
    rows: Any
    n_held_out: int


def inspect_columns(model: BaseEstimator, X: Any) -> TeacherColumns:
    """Determine how a fitted model reads its columns, by predicting incomplete rows."""
    table = to_table(X)
    names = fitted_attribute(model, "feature_names_in_")
    if names is None:
        names = fitted_attribute(model, "_column_names_in_")
    if names is None:
        names = column_names(X)
    else:
        names = [str(name) for name in names]
    if isinstance(model, BayesianEstimator):
        encoding = model.column_encoding()
    else:
        encoding = None
    if encoding is not None:
        kinds = [column.kind for column in encoding.columns]
        dates = {
            j: column.date for j, column in enumerate(encoding.columns) if column.date is not None
        }
    else:
        kinds = _column_kinds(table)
        dates = _date_encodings(table, kinds)
    example = [column[:2] for column in table.columns]

    def accepts(chosen: Sequence[int], value: Any) -> bool:
        """Whether the model predicts rows with the value in the chosen columns."""
        columns: list[Array] = [column.astype(object) for column in example]
        for j in chosen:
            columns[j] = np.full(2, value, dtype=object)
            if kinds[j] == "date":
                columns[j] = np.full(2, np.datetime64("NaT"), dtype="datetime64[us]")
            elif kinds[j] != "categorical":
                columns[j] = columns[j].astype(np.float64)
        try:
            with collect_warnings():
                model.predict(build_rows(X, columns))
        except Exception:  # a pipeline can raise any exception
            return False
        return True

    def find_accepting(chosen: list[int], value: Any) -> list[int]:
        """Columns that may hold the value, found by bisection."""
        if not chosen or accepts(chosen, value):
            return chosen
        if len(chosen) == 1:
            return []
        half = len(chosen) // 2
        return find_accepting(chosen[:half], value) + find_accepting(chosen[half:], value)

    categorical = [j for j, kind in enumerate(kinds) if kind == "categorical"]
    numeric = [j for j, kind in enumerate(kinds) if kind != "categorical"]
    takes_missing = np.zeros(len(kinds), dtype=bool)
    takes_missing[find_accepting(numeric, np.nan) + find_accepting(categorical, None)] = True
    takes_unknown = np.zeros(len(kinds), dtype=bool)
    takes_unknown[find_accepting(categorical, _UNKNOWN_LEVEL)] = True
    return TeacherColumns(names or None, kinds, takes_missing, takes_unknown, dates)


def to_table(X: Any) -> Table:
    """Columns of ``X``; a ValueError if it isn't a table."""
    table = read_table(fill_masked(X))
    if table is None:
        raise ValueError(f"X must be a table with two axes, got shape {np.shape(X)}.")
    return table


def _column_kinds(table: Table) -> list[str]:
    """Kind of every column by its values and its dtype."""
    columns = zip(table.columns, table.names, table.declared, strict=True)
    kinds = [column_kind(*column) for column in columns]
    # A model that isn't of this package reads dates as text only in their own format.
    return [
        "categorical" if kind == "date" and values.dtype.kind != "M" else kind
        for kind, values in zip(kinds, table.columns, strict=True)
    ]


def _date_encodings(table: Table, kinds: Sequence[str]) -> dict[int, DateEncoding]:
    """Encodings of the columns of dates, by their positions."""
    encodings = {}
    for j, kind in enumerate(kinds):
        if kind == "date":
            column = Table([table.names[j]], [table.columns[j]], [False])
            date = Columns.from_table(column).columns[0].date
            assert date is not None
            encodings[j] = date
    return encodings


def build_rows(X: Any, columns: Sequence[Array]) -> Any:
    """Rows with these columns, of the type of ``X`` if it is a frame."""
    if not is_frame(X):
        return _build_array(columns)
    if hasattr(X, "iloc"):  # pandas
        series = {}
        for name, column in zip(X.columns, columns, strict=True):
            values = column
            # Objects without text are numbers or booleans, which get their own dtype back.
            if column.dtype.kind == "O" and not any(isinstance(v, str | bytes) for v in column):
                missing = missing_rows(column)
                filled = [np.nan if m else v for v, m in zip(column, missing, strict=True)]
                values = np.array(filled)
            series[name] = values
        return type(X)(series)
    names = column_names(X)
    lists = {name: column.tolist() for name, column in zip(names, columns, strict=True)}
    if hasattr(X, "column_names"):  # pyarrow
        return type(X).from_pydict(lists)
    return type(X)(lists, strict=False)


def _build_array(columns: Sequence[Array]) -> Array:
    """Array with these columns: float64 unless a value is text or None."""
    if all(column.dtype.kind in "iufb" for column in columns):
        return np.column_stack(columns)
    rows = np.empty((len(columns[0]), len(columns)), dtype=object)
    for j, column in enumerate(columns):
        rows[:, j] = column
    if any(v is None or isinstance(v, str | bytes | date) for v in rows.ravel()):
        return rows
    return rows.astype(np.float64)


def augment_rows(
    X: Any, n_rows: int, rng: np.random.Generator, teacher: TeacherColumns | None = None
) -> AugmentedRows:
    """Make rows to train a student on, and the encoding of its columns.

    A new row lies between two neighbours, plus noise of up to a fifth of a standard deviation.
    Levels, and numbers in columns with at most ten values, are those of one of the two neighbours,
    or with probability 0.1 those of any row. If the teacher predicts incomplete rows, one row in
    ten is added with a missing value or an unknown level.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Observed rows.
    n_rows : int
        Number of complete training rows.
    rng : numpy.random.Generator
        Source of randomness.
    teacher : TeacherColumns, optional
        Columns as the teacher reads them. By default the columns are read from ``X``.

    Returns
    -------
    AugmentedRows
        Encoding of the columns, rows and number of held-out rows.
    """
    table = to_table(X)
    columns = list(table.columns)
    if teacher is None:
        has_missing = np.array([bool(missing_rows(column).any()) for column in columns])
        no_unknown = np.zeros(len(columns), dtype=bool)
        names = column_names(X) or None
        kinds = _column_kinds(table)
        dates = _date_encodings(table, kinds)
        teacher = TeacherColumns(names, kinds, has_missing, no_unknown, dates)

    is_categorical = np.array([kind == "categorical" for kind in teacher.kinds])
    numeric = np.flatnonzero(~is_categorical)
    for j in np.flatnonzero(is_categorical).tolist():
        columns[j] = columns[j].astype(object)
    values = np.empty((len(numeric), len(columns[0])))
    for k, j in enumerate(numeric.tolist()):
        values[k] = teacher.to_numbers(j, table.names[j], columns[j])
    encoding, scale = _fit_encoding(columns, values, teacher)

    # Pairs of neighbours in the student's encoding.
    n_held_out = min(_N_HELD_OUT, len(columns[0]) // 5)
    held_out, train = np.split(rng.permutation(len(columns[0])), [n_held_out])
    train = train[:n_rows]
    encoded = Student(encoding).encode(build_rows(X, [column[train] for column in columns]))
    n_neighbors = min(len(train), max(8, 4000 // len(train)))
    with filters_lock:
        neighbors = NearestNeighbors(n_neighbors=n_neighbors).fit(encoded).kneighbors(encoded)[1]
    first = rng.integers(len(train), size=max(n_rows - len(train), 0))
    second = train[neighbors[first, rng.integers(n_neighbors, size=len(first))]]
    first = train[first]

    # Interpolation, with an extrapolation of up to a fifth of the distance.
    observed = np.concatenate([held_out, train])
    fraction = rng.uniform(-0.2, 1.2, size=len(first))
    noise = 0.2 * rng.random(len(first)) ** 2
    numeric_position = dict(zip(numeric.tolist(), range(len(numeric)), strict=True))
    for j, column in enumerate(columns):
        source = np.where(rng.random(len(first)) < fraction, second, first)
        source = np.where(rng.random(len(first)) < 0.1, rng.choice(train, len(first)), source)
        new = column[source]
        if j in numeric_position:
            k = numeric_position[j]
            column = values[k]
            new = column[source]
            if len(np.unique(column)) > _MAX_DISCRETE_VALUES:
                between = column[first] + fraction * (column[second] - column[first])
                between += noise * scale[k] * rng.standard_normal(len(first))
                new = np.where(np.isnan(between), column[source], between)
        if j in teacher.dates:
            new = _move_beyond(new, column, rng)
        columns[j] = np.concatenate([column[observed], new])
    for j, encoded_date in teacher.dates.items():
        columns[j] = to_datetimes(encoded_date.reference + columns[j])
    columns = _append_incomplete_rows(columns, n_held_out, teacher, rng)
    return AugmentedRows(encoding, build_rows(X, columns), n_held_out)


def _move_beyond(days: Array, observed: Array, rng: np.random.Generator) -> Array:
    """Move some days beyond the last one that was observed."""
    if np.isnan(observed).all():
        return days
    last = np.nanmax(observed)
    length = last - np.nanmin(observed)
    beyond = last + _MAX_BEYOND * length * rng.random(len(days))
    return np.where(rng.random(len(days)) < _BEYOND_FRACTION, beyond, days)


def _fit_encoding(
    columns: list[Array], values: Array, teacher: TeacherColumns
) -> tuple[dict[str, Array], Array]:
    """Return the student's encoding of columns, and the scale of the numeric ones.

    Parameters
    ----------
    columns : list of ndarray of shape (n_rows,)
        Columns; the categorical ones hold objects.
    values : ndarray of shape (n_numeric, n_rows)
        Values of the other columns as numbers, nan if missing.
    teacher : TeacherColumns
        Columns as the teacher reads them.

    Returns
    -------
    encoding : dict of str to ndarray
        Encoding of the columns, see `Student`.
    scale : ndarray of shape (n_numeric,)
        Standard deviations of the numeric columns, 0 for constant ones.
    """
    is_categorical = np.array([kind == "categorical" for kind in teacher.kinds])
    numeric = np.flatnonzero(~is_categorical)
    categorical = np.flatnonzero(is_categorical)
    is_empty = np.isnan(values).all(axis=1)
    center = np.zeros(len(numeric))
    scale = np.ones(len(numeric))
    center[~is_empty] = np.nanmean(values[~is_empty], axis=1)
    scale[~is_empty] = np.nanstd(values[~is_empty], axis=1)

    # Levels of the categorical columns, the most frequent first.
    all_levels = []
    for j in categorical.tolist():
        column = columns[j]
        keys = [level_key(v) for v in column[~missing_rows(column)]]
        levels, counts = np.unique(np.array(keys, dtype=object), return_counts=True)
        all_levels.append(levels[np.argsort(-counts, kind="stable")].tolist())

    encoding = {
        "numeric": numeric,
        "mean": center,
        "categorical": categorical,
        "scale": np.where(scale > 0.0, scale, 1.0),
        "missing_indicator": teacher.takes_missing[numeric],
        "is_boolean": np.array([teacher.kinds[j] == "boolean" for j in numeric], dtype=bool),
        "takes_missing": teacher.takes_missing[categorical],
        "takes_unknown": teacher.takes_unknown[categorical],
        "levels": to_text(all_levels),
    }
    if teacher.dates:
        encoding["dates"] = write_date_encodings(teacher.dates)
    if teacher.names is not None:
        encoding["names"] = to_text(teacher.names)
    return encoding, scale


def _append_incomplete_rows(
    columns: list[Array], n_held_out: int, teacher: TeacherColumns, rng: np.random.Generator
) -> list[Array]:
    """Append rows with a missing value or an unknown level in one column.

    Parameters
    ----------
    columns : list of ndarray
        Columns of complete rows, held-out rows first.
    n_held_out : int
        Number of rows held out, which aren't repeated.
    teacher : TeacherColumns
        Columns as the teacher reads them.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    list of ndarray
        Columns with the additional rows.
    """
    # Columns and the values that are put into them.
    replacements: list[tuple[int, Any]] = []
    for j, kind in enumerate(teacher.kinds):
        if teacher.takes_missing[j]:
            missing = {"categorical": None, "date": np.datetime64("NaT")}
            replacements.append((j, missing.get(kind, np.nan)))
        if teacher.takes_unknown[j]:
            replacements.append((j, _UNKNOWN_LEVEL))
    n = (len(columns[0]) - n_held_out) // _INCOMPLETE_FRACTION
    if not replacements or not n:
        return columns
    rows = rng.integers(n_held_out, len(columns[0]), size=n)
    choice = rng.integers(len(replacements), size=n)
    added = [column[rows] for column in columns]
    for k, (j, value) in enumerate(replacements):
        added[j][choice == k] = value
    return [np.concatenate(pair) for pair in zip(columns, added, strict=True)]
