"""Rows that a student learns from: given ones, others between them, and incomplete ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors

from skbayes_sym.base.columns import TabularInputMixin
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.rows import Array
from skbayes_sym.base.warnings import collect_warnings
from skbayes_sym.numerics.arguments import is_frame
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.numerics.tables import (
    Table,
    column_kind,
    column_names,
    fill_masked,
    level_key,
    missing_rows,
    read_table,
    to_float,
)
from skbayes_sym.student import Student, to_text

_UNSEEN = "a level that no row has"
_N_INCOMPLETE = 10  # one row in so many has a missing value or an unknown level


class TeacherColumns(NamedTuple):
    """Columns as a teacher reads them.

    ``names``: None if it was fitted without names. ``kinds``: "numeric", "boolean" or "categorical"
    of each. ``takes_missing``, ``takes_unknown`` (n_columns,): whether it predicts rows with a
    missing value, or an unknown level, there.
    """

    names: list[str] | None
    kinds: list[str]
    takes_missing: Array
    takes_unknown: Array


def teacher_columns(model: BaseEstimator, X: Any) -> TeacherColumns:
    """Find out how a fitted model reads its columns, by asking for incomplete rows."""
    table = table_of_rows(X)
    names = fitted_attribute(model, "feature_names_in_")
    names = fitted_attribute(model, "_column_names_in_") if names is None else names
    names = column_names(X) if names is None else [str(name) for name in names]
    if isinstance(model, TabularInputMixin):
        kinds = [column.kind for column in model.column_encoding().columns]
    else:
        named = zip(table.columns, table.names, table.declared, strict=True)
        kinds = [column_kind(*column) for column in named]
    first = [column[:2] for column in table.columns]

    def accepts(chosen: Sequence[int], value: Any) -> bool:
        columns: list[Array] = [column.astype(object) for column in first]
        for j in chosen:
            columns[j] = np.full(2, value, dtype=object)
            if kinds[j] != "categorical":
                columns[j] = columns[j].astype(np.float64)
        try:
            with collect_warnings():
                model.predict(rows_like(X, columns))
        except Exception:  # whatever a pipeline makes of it
            return False
        return True

    def accepted(chosen: list[int], value: Any) -> list[int]:
        """The columns that may hold the value, found by halving."""
        if not chosen or accepts(chosen, value):
            return chosen
        half = len(chosen) // 2
        return [] if not half else accepted(chosen[:half], value) + accepted(chosen[half:], value)

    categorical = [j for j, kind in enumerate(kinds) if kind == "categorical"]
    numeric = [j for j, kind in enumerate(kinds) if kind != "categorical"]
    takes_missing = np.zeros(len(kinds), dtype=bool)
    takes_missing[accepted(numeric, np.nan) + accepted(categorical, None)] = True
    takes_unknown = np.zeros(len(kinds), dtype=bool)
    takes_unknown[accepted(categorical, _UNSEEN)] = True
    return TeacherColumns(names or None, kinds, takes_missing, takes_unknown)


def table_of_rows(X: Any) -> Table:
    """Columns of rows to learn from."""
    table = read_table(fill_masked(X))
    if table is None:
        raise ValueError(f"X must be a table with two axes, got shape {np.shape(X)}.")
    return table


def rows_like(X: Any, columns: Sequence[Array]) -> Any:
    """Rows of these columns, of the type of ``X`` if it is a frame."""
    if not is_frame(X):
        is_numeric = all(column.dtype.kind in "iufb" for column in columns)
        if is_numeric:
            return np.column_stack(columns)
        rows = np.empty((len(columns[0]), len(columns)), dtype=object)
        for j, column in enumerate(columns):
            rows[:, j] = column
        # A table that was all numbers stays one, unless a value says otherwise.
        is_number = not any(v is None or isinstance(v, str | bytes) for v in rows.ravel())
        return rows.astype(np.float64) if is_number else rows
    if hasattr(X, "iloc"):
        parts = {}
        for name, column in zip(X.columns, columns, strict=True):
            plain = column
            if column.dtype.kind == "O" and not any(isinstance(v, str | bytes) for v in column):
                plain = np.array(
                    [np.nan if m else v for v, m in zip(column, missing_rows(column), strict=True)]
                )
            parts[name] = plain
        return type(X)(parts)
    names = column_names(X)
    lists = {name: column.tolist() for name, column in zip(names, columns, strict=True)}
    if hasattr(X, "column_names"):  # pyarrow
        return type(X).from_pydict(lists)
    return type(X)(lists, strict=False)


def rows_to_learn(
    X: Any, n_rows: int, rng: np.random.Generator, teacher: TeacherColumns | None = None
) -> tuple[dict[str, Array], Any, int]:
    """Rows to learn from, and how a student reads their columns.

    A row between two neighbours has noise of up to a fifth of a standard deviation. Levels, and
    numbers of at most ten values, are those of one of the two, one in ten times of any row. Where
    the teacher predicts incomplete rows, one row in ten beyond these has a missing value or an
    unknown level.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Given rows.
    n_rows : int
        Number of complete rows to learn from.
    rng : numpy.random.Generator
        Source of randomness.
    teacher : TeacherColumns, optional
        Columns as the teacher reads them. By default as ``X`` shows them.

    Returns
    -------
    arrays : dict of str to ndarray
        Encoding of the columns, see `Student`.
    rows : array or frame
        Rows held out, then those to learn from.
    n_held : int
        Number of rows held out.
    """
    table = table_of_rows(X)
    columns = list(table.columns)
    if teacher is None:
        named = zip(table.columns, table.names, table.declared, strict=True)
        has_gaps = np.array([bool(missing_rows(column).any()) for column in columns])
        kinds = [column_kind(*column) for column in named]
        names = column_names(X) or None
        teacher = TeacherColumns(names, kinds, has_gaps, np.zeros(len(columns), dtype=bool))
    is_categorical = np.array([kind == "categorical" for kind in teacher.kinds])
    numbers = np.flatnonzero(~is_categorical)
    places = np.flatnonzero(is_categorical)
    values = np.array(
        [to_float(table.names[j], teacher.kinds[j], columns[j]) for j in numbers]
    ).reshape(-1, len(columns[0]))
    empty = np.isnan(values).all(axis=1)
    center = np.zeros(len(numbers))
    scale = np.ones(len(numbers))
    center[~empty] = np.nanmean(values[~empty], axis=1)
    scale[~empty] = np.nanstd(values[~empty], axis=1)
    all_levels = []
    for j in places.tolist():
        column = columns[j] = columns[j].astype(object)
        keys = [level_key(v) for v in column[~missing_rows(column)]]
        levels, counts = np.unique(np.array(keys, dtype=object), return_counts=True)
        all_levels.append(levels[np.argsort(-counts, kind="stable")].tolist())
    arrays = {
        "numbers": numbers, "mean": center, "places": places,
        "scale": np.where(scale > 0.0, scale, 1.0), "marked": teacher.takes_missing[numbers],
        "booleans": np.array([teacher.kinds[j] == "boolean" for j in numbers], dtype=bool),
        "takes_missing": teacher.takes_missing[places],
        "takes_unknown": teacher.takes_unknown[places], "levels": to_text(all_levels),
    }  # fmt: skip
    if teacher.names is not None:
        arrays["names"] = to_text(teacher.names)
    n_held = min(500, len(columns[0]) // 5)
    held, kept = np.split(rng.permutation(len(columns[0])), [n_held])
    kept = kept[:n_rows]
    encoded = Student(arrays).encode(rows_like(X, [column[kept] for column in columns]))
    n_near = min(len(kept), max(8, 4000 // len(kept)))
    with filters_lock:
        near = NearestNeighbors(n_neighbors=n_near).fit(encoded).kneighbors(encoded)[1]
    first = rng.integers(len(kept), size=max(n_rows - len(kept), 0))
    second = kept[near[first, rng.integers(n_near, size=len(first))]]
    first = kept[first]
    before = np.concatenate([held, kept])
    share = rng.uniform(-0.2, 1.2, size=len(first))
    noise = 0.2 * rng.random(len(first)) ** 2
    numeric = dict(zip(numbers.tolist(), zip(values, scale, strict=True), strict=True))
    for j, column in enumerate(columns):
        some = np.where(rng.random(len(first)) < share, second, first)
        some = np.where(rng.random(len(first)) < 0.1, rng.choice(kept, len(first)), some)
        new = column[some]
        if j in numeric:
            value, spread = numeric[j]
            column = value
            new = value[some]
            if len(np.unique(value)) > 10:
                between = value[first] + share * (value[second] - value[first])
                between += noise * spread * rng.standard_normal(len(first))
                new = np.where(np.isnan(between), value[some], between)
        columns[j] = np.concatenate([column[before], new])
    columns = _with_incomplete_rows(columns, n_held, teacher, all_levels, places, rng)
    return arrays, rows_like(X, columns), n_held


def _with_incomplete_rows(
    columns: list[Array], n_held: int, teacher: TeacherColumns, all_levels: list[list[str]],
    places: Array, rng: np.random.Generator,
) -> list[Array]:  # fmt: skip
    """Append rows with a missing value or an unknown level in one column."""
    holes: list[tuple[int, Any]] = []
    for j in range(len(columns)):
        is_categorical = teacher.kinds[j] == "categorical"
        if teacher.takes_missing[j]:
            holes.append((j, None if is_categorical else np.nan))
        if teacher.takes_unknown[j]:
            holes.append((j, _UNSEEN))
    n = (len(columns[0]) - n_held) // _N_INCOMPLETE
    if not holes or not n:
        return columns
    rows = rng.integers(n_held, len(columns[0]), size=n)
    which = rng.integers(len(holes), size=n)
    added = [column[rows] for column in columns]
    for k, (j, value) in enumerate(holes):
        added[j][which == k] = value
    return [np.concatenate(pair) for pair in zip(columns, added, strict=True)]
