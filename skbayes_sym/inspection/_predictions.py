"""Arrays of a picture of predictions: the arguments of a `PredictiveDisplay`."""

from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_array

from skbayes_sym.estimators._fit.rows import Array, numbers_due
from skbayes_sym.estimators.predictive import predictive
from skbayes_sym.estimators.regressor import quantile_levels
from skbayes_sym.inspection._fitted import fitted_model, observations, of_target, regression_law
from skbayes_sym.numerics.arguments import check_count, is_frame

_MARGIN = 0.05  # a grid over a feature goes so much of its range beyond the data, to either side
_FARTHEST = 1e300  # from zero, that a grid with its margin may reach


def _levels(coverages: Sequence[float]) -> Array:
    """Levels of the ends of central intervals and of the median, in increasing order."""
    widths = np.unique(quantile_levels(coverages))
    if not len(widths) or not np.all((widths > 0) & (widths < 1)):
        raise ValueError(f"coverages must lie strictly between 0 and 1, got {coverages!r}.")
    return np.concatenate([0.5 - 0.5 * widths[::-1], [0.5], 0.5 + 0.5 * widths])


def _quantiles(
    estimator: BaseEstimator, X: Any, y: Any, coverages: Sequence[float], target: int
) -> dict[str, Any]:
    _, law = regression_law(estimator, X, "PredictiveDisplay")
    levels = _levels(coverages)
    values = of_target(law.quantile(levels), target, ndim=2)
    observed = None if y is None else observations(y, target)
    return {"values": values, "levels": levels, "y_observed": observed}


def over_feature(
    estimator: BaseEstimator, X: Any, coverages: Sequence[float], target: int, y: Array | None,
    n_rows: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Predictions along the values of one feature; of functions averaged over ``n_rows`` rows."""
    if not is_classifier(fitted_model(estimator).model):
        if n_rows == 1:
            return _quantiles(estimator, X, y, coverages, target)
        levels = _levels(coverages)
        drawn = of_target(predictive(estimator, X).functions(400), target, ndim=2)
        means = drawn.reshape(-1, n_rows, drawn.shape[-1]).mean(axis=1)
        values = np.quantile(means, levels, axis=1).T
        return {"values": values, "levels": levels, "y_observed": None}
    law = predictive(estimator, X)
    proba = law.proba()
    return {
        "kind": "probabilities",
        "values": proba.reshape(-1, n_rows, proba.shape[1]).mean(axis=1),
        "classes": law.classes,
        "y_observed": y,
        "y_name": "probability",
    }


def of_rows(
    estimator: BaseEstimator, X: Any, y: Any, coverages: Sequence[float], target: int
) -> dict[str, Any]:
    """Predictions of every row, placed at their medians."""
    model = fitted_model(estimator).model
    if is_classifier(model):
        raise ValueError(
            f"{type(model).__name__} is a classifier and X has {np.shape(X)[1]} features: say over "
            "which one PredictiveDisplay shall draw the probabilities (feature=0, say)."
        )
    if y is None:
        raise ValueError(
            f"PredictiveDisplay needs y to draw the intervals of {type(model).__name__} beside "
            "observations; or give the feature to draw them over."
        )
    settings = _quantiles(estimator, X, y, coverages, target)
    median = settings["values"][:, len(settings["levels"]) // 2]
    return {
        **settings, "x": median, "x_observed": median, "kind": "intervals",
        "x_name": "predicted median", "y_name": "observed",
    }  # fmt: skip


def column_of(feature: int | str, names: list[str]) -> int:
    """Column of a feature given by position or name."""
    if isinstance(feature, str):
        if feature not in names:
            raise ValueError(f"feature must be one of {names}, got {feature!r}.")
        return names.index(feature)
    if not isinstance(feature, Integral) or not 0 <= feature < len(names):
        raise ValueError(f"feature must lie between 0 and {len(names) - 1}, got {feature!r}.")
    return int(feature)


def grid_of(grid: Any, values: Array) -> Array:
    """Values of a feature: those given, or so many over the range seen."""
    if np.ndim(grid):
        return np.asarray(grid, dtype=float)
    low, high = np.nanmin(values), np.nanmax(values)
    if not np.isfinite(0.5 * high - 0.5 * low) or max(abs(low), abs(high)) > _FARTHEST:
        raise ValueError(
            f"the feature reaches from {low:.3g} to {high:.3g}, too far for a grid: rescale it, or "
            "give grid= its values."
        )
    margin = _MARGIN * (high - low)
    return np.linspace(low - margin, high + margin, check_count("grid", grid))


def values_of(X: Any, position: int) -> Array:
    """Numbers of one feature, (n_samples,); NaN where one is missing."""
    column = _columns(X)[position]
    with numbers_due(f"feature {position}"):
        values: Array = np.asarray(column, dtype=float)
    if np.isnan(values).all():
        raise ValueError(f"feature {position} has no value in X: give rows that have some.")
    return values


def slice_of(X: Any, position: int, points: Array, chosen: Array | None = None) -> Any:
    """Rows with one feature at ``points``, typed as ``X``.

    The others stay at their medians, those that aren't numbers at their most frequent value; or
    they are those of the ``chosen`` rows, at each of the points.
    """
    columns = [np.asarray(column) for column in _columns(X)]
    if chosen is None:
        rows = [np.repeat(_typical(column), len(points)) for column in columns]
    else:
        rows = [np.tile(column[chosen], len(points)) for column in columns]
    rows[position] = np.repeat(points, 1 if chosen is None else len(chosen))
    if not is_frame(X):
        array = np.column_stack(rows)
        is_single = isinstance(X, np.ndarray) and X.dtype == np.float32
        return array.astype(np.float32) if is_single else array
    frame = type(X)(dict(zip(X.columns, rows, strict=True)))
    if isinstance(frame.columns, list):  # polars has one type for words, and no `astype`
        return frame
    named = [name for name in X.columns if not _are_numbers(X[name])]
    return frame.astype({name: X[name].dtype for name in named})


def _columns(X: Any) -> list[Any]:
    """Columns of a frame or of an array."""
    if is_frame(X):
        return [X[name] for name in X.columns]
    with numbers_due("X"):
        return list(check_array(X, dtype=float, ensure_all_finite="allow-nan").T)


def _are_numbers(column: Any) -> bool:
    return np.asarray(column).dtype.kind in "iuf"


def _typical(column: Any) -> Any:
    """The median of numbers; of anything else the most frequent value, missing ones left out."""
    values = np.asarray(column)
    if _are_numbers(values):
        return np.nanmedian(values)
    values = np.asarray([value for value in values.tolist() if value == value], dtype=object)
    return Counter(values).most_common(1)[0][0] if len(values) else None
