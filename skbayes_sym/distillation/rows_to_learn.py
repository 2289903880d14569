"""Rows that a student learns from: given ones, and others between them."""

from typing import Any

import numpy as np
from sklearn.neighbors import NearestNeighbors

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.numerics.arguments import is_frame
from skbayes_sym.numerics.machine import filters_lock
from skbayes_sym.student import Student, as_numbers


def rows_to_learn(
    X: Any, n_rows: int, rng: np.random.Generator
) -> tuple[dict[str, Array], Any, int]:
    """How a student reads the columns; rows held out, the others and rows between; how many held.

    A row between two neighbours has noise of up to a fifth of a standard deviation. Words, and
    numbers of at most ten values, are those of one of the two, one in ten times of any row.
    """
    columns = [np.asarray(X[name]) for name in X.columns] if is_frame(X) else [*np.asarray(X).T]
    has_words = [
        column.dtype.kind not in "iufb" and any(isinstance(value, str) for value in column)
        for column in columns
    ]
    numbers, words = np.flatnonzero(~np.array(has_words)), np.flatnonzero(has_words)
    values = np.array([as_numbers(columns[j]) for j in numbers]).reshape(-1, len(columns[0]))
    scale = np.nanstd(values, axis=1)
    arrays = {
        "numbers": numbers, "mean": np.nanmean(values, axis=1), "places": words,
        "scale": np.where(scale > 0.0, scale, 1.0), "marked": np.isnan(values).any(axis=1),
    }  # fmt: skip
    for j in words.tolist():
        names, counts = np.unique(columns[j].astype(str), return_counts=True)
        arrays[f"words{j:05}"] = names[np.argsort(-counts, kind="stable")[:30]]
    n_held = min(500, len(columns[0]) // 5)
    held, kept = np.split(rng.permutation(len(columns[0])), [n_held])
    kept, encoded = kept[:n_rows], Student(arrays).encode(X)[kept[:n_rows]]
    n_near = min(len(kept), max(8, 4000 // len(kept)))
    with filters_lock:
        near = NearestNeighbors(n_neighbors=n_near).fit(encoded).kneighbors(encoded)[1]
    first = rng.integers(len(kept), size=max(n_rows - len(kept), 0))
    second = kept[near[first, rng.integers(n_near, size=len(first))]]
    first, before = kept[first], np.concatenate([held, kept])
    share, noise = rng.uniform(-0.2, 1.2, size=len(first)), 0.2 * rng.random(len(first)) ** 2
    numeric = dict(zip(numbers.tolist(), zip(values, scale, strict=True), strict=True))
    for j, column in enumerate(columns):
        some = np.where(rng.random(len(first)) < share, second, first)
        some = np.where(rng.random(len(first)) < 0.1, rng.choice(kept, len(first)), some)
        new = column[some]
        if j in numeric and len(np.unique(value := numeric[j][0])) > 10:
            between = value[first] + share * (value[second] - value[first])
            between += noise * numeric[j][1] * rng.standard_normal(len(first))
            new = np.where(np.isnan(between), value[some], between)
        columns[j] = np.concatenate([column[before], new])
    if not is_frame(X):
        return arrays, np.column_stack(columns), n_held
    return arrays, type(X)(dict(zip(X.columns, columns, strict=True))), n_held
