"""Plots of predictive distributions, over one feature or row by row."""

from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_consistent_length

from skbayes_sym.base.input_validation import warn_reordered_rows
from skbayes_sym.base.predictive import predictive
from skbayes_sym.base.regressor import check_quantile_levels
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import check_array
from skbayes_sym.inspection._drawing import (
    BLUE,
    COLOURS,
    GREY,
    MARKERS,
    VERMILLION,
    Display,
    hide_frame,
)
from skbayes_sym.inspection._fitted import (
    check_observations,
    check_observed_classes,
    list_feature_names,
    predict_regression,
    read_dates,
    select_target,
    unwrap_fitted,
)
from skbayes_sym.numerics.arguments import check_arrays, check_count, is_frame
from skbayes_sym.numerics.dates import to_datetimes
from skbayes_sym.numerics.tables import (
    Table,
    column_kind,
    level_key,
    missing_rows,
    read_table,
    to_float,
)

# Axes of the arrays of each kind of plot: points (n), levels or classes (q), observations (o).
_FAN = {"x": "n", "values": "nq", "levels": "q?", "x_observed": "o?", "y_observed": "o?"}
_SHAPES = {
    "fan": _FAN,
    "probabilities": _FAN,
    "intervals": {**_FAN, "x_observed": "n?", "y_observed": "n?"},
}
_MAX_INTERVALS = 200  # number of intervals drawn, evenly spaced over the ordered medians
_MAX_UPRIGHT = 60  # number of characters of all levels that fit below an axis
_LINES = ("-", "--", "-.", ":")


class PredictiveDisplay(Display):
    """Predictive distributions over one feature, or an interval for every row.

    For one feature, or if ``feature`` is given, a regressor's quantiles are drawn as nested bands
    over its values, and a classifier's class probabilities as lines. A feature of text, categories
    or booleans has one bar or point for each level. For several features, the interval of every row
    is drawn at its predicted median, together with the observation. Observations outside their
    interval are marked.

    Parameters
    ----------
    x : ndarray of shape (n_points,)
        Values of the feature, the positions of its levels if there are ``x_levels``, or the
        predicted medians of the rows (``kind="intervals"``).
    values : ndarray of shape (n_points, n_levels) or (n_points, n_classes)
        Quantiles of a new target in increasing order, in its units; or class probabilities.
    kind : {"fan", "intervals", "probabilities"}, default="fan"
        Quantiles over a feature, intervals of rows, or class probabilities over a feature.
    levels : ndarray of shape (n_levels,), optional
        Levels of the quantiles, symmetric about 0.5 and including it.
    classes : ndarray of shape (n_classes,), optional
        Classes, for ``kind="probabilities"``.
    x_observed, y_observed : ndarray of shape (n_observed,), optional
        Observations. For ``kind="intervals"`` ``x_observed`` is ``x``.
    x_name : str, default="x"
        Label of the horizontal axis.
    y_name : str, default="y"
        Label of the vertical axis.
    x_levels : sequence of str of length n_points, optional
        Levels of a categorical feature, which label the positions ``x``.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the plot.
    figure_ : matplotlib Figure
        Figure of the plot.
    lines_ : list of matplotlib Line2D
        Line of the median, or one line per class for ``kind="probabilities"``. For a categorical
        feature these are markers.
    bands_ : list of matplotlib artists
        One band per coverage, from the widest to the narrowest.
    points_ : list of matplotlib Line2D
        Observations. For ``kind="intervals"`` these are the ones inside the widest interval and the
        ones outside; for ``kind="probabilities"`` there is one item per class; otherwise one item.

    See Also
    --------
    IntervalCalibrationDisplay : Nominal against observed coverage of the intervals.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.inspection import PredictiveDisplay
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = BayesianLinearRegressor().fit(X[:400], y[:400])
    >>> display = PredictiveDisplay.from_estimator(reg, X[400:], y[400:])
    >>> display.kind, display.values.shape
    ('intervals', (42, 3))
    """

    def __init__(
        self,
        x: Array,
        values: Array,
        *,
        kind: str = "fan",
        levels: Array | None = None,
        classes: Array | None = None,
        x_observed: Array | None = None,
        y_observed: Array | None = None,
        x_name: str = "x",
        y_name: str = "y",
        x_levels: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(kind, str) or kind not in _SHAPES:
            raise ValueError(f"kind must be one of {sorted(_SHAPES)}, got {kind!r}.")
        # Observed classes needn't be numbers.
        if kind == "probabilities":
            numeric_y_observed = None
        else:
            numeric_y_observed = y_observed
        arrays = check_arrays(
            "PredictiveDisplay",
            _SHAPES[kind],
            x=x,
            values=values,
            levels=levels,
            x_observed=x_observed,
            y_observed=numeric_y_observed,
        )
        required = {"probabilities": [], "intervals": ["levels", "y_observed"], "fan": ["levels"]}
        for name in required[kind]:
            if name not in arrays:
                raise ValueError(f"PredictiveDisplay: kind={kind!r} needs {name}.")
        self.x = arrays["x"]
        self.values = arrays["values"]
        self.kind = kind
        self.levels = arrays.get("levels")
        self.classes = classes
        self.x_observed = arrays.get("x_observed")
        if kind == "probabilities":
            self.y_observed = y_observed
        else:
            self.y_observed = arrays.get("y_observed")
        if x_levels is not None and len(x_levels) != len(arrays["x"]):
            n_points = len(arrays["x"])
            raise ValueError(
                f"x_levels must name the {n_points} positions x, got {len(x_levels)} levels."
            )
        self.x_name = x_name
        self.y_name = y_name
        self.x_levels = x_levels

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: Any,
        y: Any = None,
        *,
        feature: int | str | None = None,
        grid: Any = 200,
        coverages: Sequence[float] | None = None,
        target: int = 0,
        average: bool = False,
        y_name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Predict and plot.

        Parameters
        ----------
        estimator : estimator
            Fitted regressor or classifier of the package, or a pipeline or search around one.
        X : array-like of shape (n_samples, n_features)
            Rows to predict, or data that give the range or the levels of the feature.
        y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
            Observations. Intervals of rows need them. They aren't drawn over one of several
            features, since their other features have other values.
        feature : int or str, optional
            Feature that is varied. The other features have their median, or their most frequent
            value if they aren't numeric. A single feature is varied by default.
        grid : int or array-like of shape (n_points,), default=200
            Values of the feature, or the number of values in a grid slightly wider than its range.
            For a feature of text, categories or booleans these are levels, or the number of levels
            to draw, of which the most frequent ones are taken.
        coverages : sequence of float in (0, 1), optional
            Coverages of the bands. By default 0.5, 0.8 and 0.95 over a feature and 0.9 for rows.
        target : int, default=0
            Index of the target.
        average : bool, default=False
            Whether to draw the partial dependence on ``feature``: the noise-free function, averaged
            over 100 rows with this feature replaced, with the bands of its posterior.
        y_name : str, optional
            Name and unit of the target for the axis. By default the name of the series ``y``.
        ax : matplotlib Axes, optional
            Axes to draw into. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.plot`` for the observations.

        Returns
        -------
        PredictiveDisplay

        Raises
        ------
        TypeError
            If the estimator predicts neither quantiles nor probabilities.
        ValueError
            If ``y`` is missing for intervals of rows, or there is no such feature.
        """
        if y is not None:
            check_consistent_length(X, y)
            warn_reordered_rows(X, y=y)
        names = list_feature_names(estimator, X)
        model = unwrap_fitted(estimator).model
        if y_name is None and not is_classifier(model):
            y_name = _series_name(y)

        # A single feature is varied by default. With several, every row has an interval.
        if feature is None and len(names) > 1:
            _require_observed_regression(model, y, len(names))
            levels = _interval_levels((0.9,) if coverages is None else coverages)
            quantiles = _predict_quantiles(estimator, X, levels, target)
            observed = check_observations(y, target)
            if y_name is None:
                y_name = "observed"
            return cls.from_predictions(
                observed, quantiles, levels.tolist(), y_name=y_name, ax=ax, **kwargs
            )

        # Vary the feature in copies of a typical row, or of 100 rows for an average.
        column = _find_column(0 if feature is None else feature, names)
        axis = _make_feature_axis(X, column, names[column], grid)
        n_points = len(axis.points)
        averaged_rows = None
        if average:
            averaged_rows = _spread_rows(len(axis.observed))
        rows = _replace_feature(X, column, axis.points, averaged_rows)

        # Observations are comparable if they have no other features.
        observations: dict[str, Any] = {}
        if y is not None and len(names) == 1 and not average:
            y_observed = _check_targets(estimator, y, target)
            observations = {"x_observed": axis.observed, "y_observed": y_observed}

        # Predict class probabilities or quantiles.
        if is_classifier(model):
            predictions = _average_probabilities(estimator, rows, n_points)
        else:
            predictions = _predict_bands(
                estimator, rows, coverages, target, n_points, average=average
            )
        if y_name is not None:
            predictions["y_name"] = y_name

        display = cls(
            axis.x, x_name=names[column], x_levels=axis.levels, **observations, **predictions
        )
        display.plot(ax=ax, **kwargs)
        if axis.is_date:
            display.ax_.xaxis_date()
        return display

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        quantiles: Any,
        levels: Sequence[float],
        *,
        y_name: str = "observed",
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Plot the interval and the observation of every row, for given predictions.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            Observed targets.
        quantiles : array-like of shape (n_samples, n_levels)
            Predicted quantiles of any model in increasing order.
        levels : sequence of float in (0, 1)
            Levels of the quantiles, symmetric about 0.5 and including it.
        y_name : str, default="observed"
            Name and unit of the target for the axis.
        ax : matplotlib Axes, optional
            Axes to draw into. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.plot`` for the observations.

        Returns
        -------
        PredictiveDisplay

        Raises
        ------
        ValueError
            If the levels aren't symmetric about 0.5 or don't match the quantiles.
        """
        shapes = {"y_true": "n", "quantiles": "nq", "levels": "l"}
        observed, values, fractions = check_arrays(
            cls.__name__, shapes, y_true=y_true, quantiles=quantiles, levels=levels
        ).values()
        n_levels = len(fractions)
        is_symmetric = np.allclose(fractions + fractions[::-1], 1.0)
        if not is_symmetric or n_levels % 2 == 0 or values.shape[1] != n_levels:
            raise ValueError(
                "levels must be symmetric about 0.5, which must be one of them, with a column of "
                f"quantiles each; got {levels!r} for {values.shape[1]} columns."
            )
        median = values[:, n_levels // 2]
        display = cls(
            median,
            values,
            kind="intervals",
            levels=fractions,
            x_observed=median,
            y_observed=observed.astype(float),
            x_name="predicted median",
            y_name=y_name,
        )
        return display.plot(ax=ax, **kwargs)

    def _draw(self, style: dict[str, Any]) -> None:
        self.lines_: list[Any] = []
        self.bands_: list[Any] = []
        self.points_: list[Any] = []
        style = {"ls": "", "marker": ".", "ms": 5, "color": "black", **style}
        if self.kind == "probabilities":
            self._draw_probabilities(style)
        elif self.kind == "intervals":
            self._draw_intervals(style)
        else:
            self._draw_fan(style)
        self.ax_.set(xlabel=self.x_name, ylabel=self.y_name)
        if self.x_levels is not None:
            self.ax_.set_xticks(self.x, self.x_levels)
            if sum(map(len, self.x_levels)) > _MAX_UPRIGHT:
                self.ax_.tick_params(axis="x", rotation=90)
        hide_frame(self.ax_)

    def _list_bands(self) -> list[tuple[float, int, int]]:
        """Coverage of each band and the columns of its ends, from the widest to the narrowest."""
        levels = np.asarray(self.levels)
        last = len(levels) - 1
        return [(float(levels[last - i] - levels[i]), i, last - i) for i in range(len(levels) // 2)]

    def _draw_fan(self, style: dict[str, Any]) -> None:
        """Draw quantiles as nested bands over the feature."""
        from matplotlib.colors import to_rgb

        bands = self._list_bands()
        for depth, (coverage, low, high) in enumerate(bands, start=1):
            # An opaque mixture with white looks the same in the legend.
            opacity = 0.7 * depth / max(3, len(bands))
            band_style: dict[str, Any] = {
                "lw": 0,
                "color": [1.0 - opacity * (1.0 - channel) for channel in to_rgb(BLUE)],
                "label": f"{100 * coverage:.3g} %",
            }
            lower = self.values[:, low]
            upper = self.values[:, high]
            if self.x_levels is None:
                band = self.ax_.fill_between(self.x, lower, upper, **band_style)
            else:
                band = self.ax_.bar(self.x, upper - lower, 0.5, lower, **band_style)
                for bar in band:
                    bar.sticky_edges.y.clear()  # a margin below the lowest bar
            self.bands_.append(band)
        median = self.values[:, len(bands)]
        median_style: dict[str, Any] = {"color": BLUE, "lw": 2, "label": "median"}
        if self.x_levels is not None:
            median_style |= {"ls": "", "marker": "_", "ms": 14, "mew": 2}
        self.lines_ = self.ax_.plot(self.x, median, **median_style)
        if self.x_observed is not None:
            self.points_ = self.ax_.plot(
                self.x_observed, self.y_observed, **{"label": "observed", "zorder": 3, **style}
            )
        if self.x_levels is None:
            self.ax_.margins(x=0)
        # Reset the limits, which an earlier fan in the same axes has fixed, and leave a tenth of
        # the height above the data to the legend.
        self.ax_.autoscale(axis="y")
        bottom, top = self.ax_.get_ylim()
        self.ax_.set_ylim(bottom, top + (top - bottom) / 9.0)
        self.ax_.legend(
            loc="upper left",
            ncols=len(bands) + 2,
            frameon=False,
            fontsize="small",
            columnspacing=1.2,
            handletextpad=0.5,
            borderaxespad=0.2,
        )

    def _draw_intervals(self, style: dict[str, Any]) -> None:
        """Draw the interval and the observation of a subsample of the rows."""
        bands = self._list_bands()
        _, low, high = bands[0]
        y = np.asarray(self.y_observed)
        is_inside = (self.values[:, low] <= y) & (y <= self.values[:, high])
        n_shown = min(len(y), _MAX_INTERVALS)
        ranks = np.linspace(0, len(y) - 1, n_shown).round().astype(int)
        is_shown = np.zeros(len(y), dtype=bool)
        is_shown[np.argsort(self.x, kind="stable")[ranks]] = True
        x = self.x[is_shown]
        values = self.values[is_shown]
        self.bands_ = [
            self.ax_.vlines(
                x,
                values[:, lower],
                values[:, upper],
                color=BLUE,
                lw=1.5,
                alpha=0.35,
                label=f"{100 * coverage:.3g} % interval",
            )
            for coverage, lower, upper in bands
        ]
        ends = [float(x.min()), float(x.max())]
        self.lines_ = self.ax_.plot(ends, ends, color=GREY, lw=1, zorder=1, label="median")
        outside_style = {**style, "marker": "X", "ms": 6, "color": VERMILLION}
        groups = ((is_inside, style, "inside"), (~is_inside, outside_style, "outside"))
        for is_member, group_style, label in groups:
            shown = is_member & is_shown
            name = f"{label}: {is_member.sum()} of {len(y)}"
            self.points_ += self.ax_.plot(self.x[shown], y[shown], **{"label": name, **group_style})
        self.ax_.legend(frameon=False, fontsize="small")

    def _draw_probabilities(self, style: dict[str, Any]) -> None:
        """Draw one line per class over the feature, and the observations below."""
        classes: Any
        if self.classes is None:
            classes = []
        else:
            classes = self.classes
        for i, name in enumerate(classes):
            colour = COLOURS[i % len(COLOURS)]
            line_style: dict[str, Any] = {"ls": _LINES[i % len(_LINES)], "lw": 2}
            if self.x_levels is not None:
                line_style = {"ls": "", "marker": MARKERS[i % len(MARKERS)], "ms": 8}
            self.lines_ += self.ax_.plot(
                self.x, self.values[:, i], color=colour, label=str(name), **line_style
            )
            if self.x_observed is None:
                continue
            x = self.x_observed[self.y_observed == name]
            height = np.full(len(x), -0.04 * (i + 1))  # one row of markers per class, below 0
            marker_style = {**style, "color": colour, "marker": MARKERS[i % len(MARKERS)], "ms": 4}
            self.points_ += self.ax_.plot(x, height, **marker_style)
        self.ax_.legend(frameon=False, fontsize="small", title="class")
        self.ax_.set_yticks(np.linspace(0, 1, 6))
        self.ax_.margins(x=0.02 if self.x_levels is None else 0.1)


def _interval_levels(coverages: Sequence[float]) -> Array:
    """Quantile levels of the ends of central intervals and of the median, in increasing order."""
    widths = np.unique(check_quantile_levels(coverages, "coverages"))
    return np.concatenate([0.5 - 0.5 * widths[::-1], [0.5], 0.5 + 0.5 * widths])


def _series_name(y: Any) -> str | None:
    """Return the name of a series of targets, None if it has none."""
    name = getattr(y, "name", None)
    return name if isinstance(name, str) and name else None


def _require_observed_regression(model: Any, y: Any, n_features: int) -> None:
    """Raise a ValueError if intervals of rows can't be drawn: of a classifier, or without y."""
    if is_classifier(model):
        raise ValueError(
            f"{type(model).__name__} is a classifier and X has {n_features} features: pass "
            "the feature over which the probabilities are drawn, such as feature=0."
        )
    if y is None:
        raise ValueError(
            f"PredictiveDisplay needs y to draw the intervals of {type(model).__name__} "
            "beside observations; or give the feature to draw them over."
        )


def _check_targets(estimator: BaseEstimator, y: Any, target: int) -> Array:
    """Return observed classes or targets, (n_samples,), after checks.

    Parameters
    ----------
    estimator : estimator
        Fitted classifier or regressor, or a pipeline or search around one.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Observations.
    target : int
        Index of the target.
    """
    if is_classifier(unwrap_fitted(estimator).model):
        check_observed_classes(estimator, y)
        return np.asarray(y).ravel()
    return check_observations(y, target)


def _average_probabilities(estimator: BaseEstimator, rows: Any, n_points: int) -> dict[str, Any]:
    """Return class probabilities at the values of the feature as arguments of the display."""
    distribution = predictive(estimator, rows)
    classes = distribution.classes
    proba = distribution.proba().reshape(n_points, -1, len(classes)).mean(axis=1)
    return {
        "kind": "probabilities",
        "values": proba,
        "classes": classes,
        "y_name": "probability",
    }


def _dependence_quantiles(
    estimator: BaseEstimator, rows: Any, levels: Array, target: int, n_points: int
) -> Array:
    """Return posterior quantiles of the partial dependence, (n_points, n_levels).

    Parameters
    ----------
    estimator : estimator
        Fitted regressor.
    rows : array-like of shape (n_points * n_averaged, n_features)
        Rows over which functions are averaged, by value of the feature.
    levels : ndarray of shape (n_levels,)
        Levels of the quantiles.
    target : int
        Index of the target.
    n_points : int
        Number of values of the feature.

    Returns
    -------
    ndarray of shape (n_points, n_levels)
    """
    functions = predictive(estimator, rows).functions(400)
    functions = select_target(functions, target, ndim=2)
    means = functions.reshape(n_points, -1, functions.shape[-1]).mean(axis=1)
    return np.asarray(np.quantile(means, levels, axis=1).T)


def _predict_quantiles(estimator: BaseEstimator, X: Any, levels: Array, target: int) -> Array:
    """Predict quantiles of one target.

    Parameters
    ----------
    estimator : estimator
        Fitted regressor.
    X : array-like of shape (n_samples, n_features)
        Rows to predict.
    levels : ndarray of shape (n_levels,)
        Levels of the quantiles.
    target : int
        Index of the target.

    Returns
    -------
    ndarray of shape (n_samples, n_levels)
    """
    distribution = predict_regression(estimator, X, "PredictiveDisplay")[1]
    return select_target(distribution.quantile(levels), target, ndim=2)


def _predict_bands(
    estimator: BaseEstimator,
    rows: Any,
    coverages: Sequence[float] | None,
    target: int,
    n_points: int,
    *,
    average: bool,
) -> dict[str, Any]:
    """Predict quantiles for every value of the feature.

    Parameters
    ----------
    estimator : estimator
        Fitted regressor, or a pipeline or search around one.
    rows : array-like
        Rows with these values of the feature, several for each value for an average.
    coverages : sequence of float, optional
        Coverages of the bands, by default 0.5, 0.8 and 0.95.
    target : int
        Index of the target.
    n_points : int
        Number of values of the feature.
    average : bool
        Whether the quantiles are those of the noise-free function, averaged over rows.

    Returns
    -------
    dict
        Arguments ``values`` and ``levels`` of the display.
    """
    if coverages is None:
        coverages = (0.5, 0.8, 0.95)
    levels = _interval_levels(coverages)
    if average:
        quantiles = _dependence_quantiles(estimator, rows, levels, target, n_points)
    else:
        quantiles = _predict_quantiles(estimator, rows, levels, target)
    return {"values": quantiles, "levels": levels}


def _spread_rows(n_rows: int, n_selected: int = 100) -> Array:
    """Indices of at most ``n_selected`` evenly spaced rows."""
    return np.unique(np.linspace(0, n_rows - 1, n_selected).round().astype(int))


class _FeatureAxis(NamedTuple):
    """Values of the feature over which predictions are plotted.

    Parameters
    ----------
    points : ndarray of shape (n_points,)
        Values that replace the feature.
    x : ndarray of shape (n_points,)
        Their positions.
    observed : ndarray of shape (n_samples,)
        Positions of the rows of ``X``.
    levels : list of str, optional
        Names of the points if the feature is categorical.
    is_date : bool
        Whether the feature is a date.
    """

    points: Array
    x: Array
    observed: Array
    levels: list[str] | None
    is_date: bool


def _make_feature_axis(X: Any, column: int, name: str, grid: Any) -> _FeatureAxis:
    """Choose the values over which a feature is varied.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Rows as the user passed them.
    column : int
        Index of the feature.
    name : str
        Its name.
    grid : int or array-like of shape (n_points,)
        Parameter of `PredictiveDisplay.from_estimator`.

    Returns
    -------
    _FeatureAxis
    """
    table = _read_columns(X)
    values = table.columns[column]
    kind = column_kind(values, name, table.declared[column])
    if kind in ("categorical", "boolean"):
        points = _list_levels(X, values, column, grid)
        keys = [level_key(level) for level in points]
        observed = np.array([_find_level(value, keys) for value in values.tolist()])
        return _FeatureAxis(points, np.arange(len(points)), observed, keys, is_date=False)
    observed = _read_feature(values, column, kind)
    points = _make_grid(grid, observed)
    return _FeatureAxis(points, points, observed, None, is_date=kind == "date")


def _find_column(feature: int | str, names: list[str]) -> int:
    """Index of a feature given by index or name."""
    if isinstance(feature, str):
        if feature not in names:
            raise ValueError(f"feature must be one of {names}, got {feature!r}.")
        return names.index(feature)
    if not isinstance(feature, Integral) or not 0 <= feature < len(names):
        raise ValueError(f"feature must lie between 0 and {len(names) - 1}, got {feature!r}.")
    return int(feature)


def _make_grid(grid: Any, values: Array) -> Array:
    """Values of a feature: given ones, or a grid slightly wider than the range of ``values``."""
    if np.ndim(grid):
        return check_arrays("PredictiveDisplay", {"grid": "n"}, grid=grid)["grid"]
    low = np.nanmin(values)
    high = np.nanmax(values)
    if not np.isfinite(0.5 * high - 0.5 * low) or max(abs(low), abs(high)) > 1e300:
        raise ValueError(
            f"the feature reaches from {low:.3g} to {high:.3g}, too far for a grid: rescale it, or "
            "give grid= its values."
        )
    margin = 0.05 * (high - low)
    return np.linspace(low - margin, high + margin, check_count("grid", grid))


def _list_levels(X: Any, values: Array, position: int, grid: Any) -> Array:
    """Return levels of a categorical feature, (n_levels,): given ones, or the most frequent ones.

    They are in the order of pandas categories, otherwise in alphabetical order.

    Parameters
    ----------
    X : frame or array-like of shape (n_samples, n_features)
        Data.
    values : ndarray of shape (n_samples,)
        Values of the feature.
    position : int
        Index of the feature.
    grid : int or array-like of shape (n_levels,)
        Number of levels, or levels.
    """
    if np.ndim(grid):
        levels = list(grid)
    else:
        counts = Counter(values[~missing_rows(values)].tolist())
        levels = [level for level, _ in counts.most_common(check_count("grid", grid))]
        if not levels:
            raise ValueError(f"feature {position} has no value in X: give rows that have some.")
        levels.sort(key=level_key)
        dtype: Any = X.iloc[:, position].dtype if hasattr(X, "iloc") else None
        if hasattr(dtype, "categories"):
            levels.sort(key=dtype.categories.tolist().index)
    points = np.empty(len(levels), dtype=object)
    points[:] = levels
    return points


def _find_level(value: Any, keys: list[str]) -> float:
    """Position of a value among levels, nan if it isn't one of them."""
    key = level_key(value)
    return float(keys.index(key)) if key in keys else np.nan


def _read_feature(values: Array, position: int, kind: str) -> Array:
    """Return values of a numeric feature or days of dates, (n_samples,); nan if missing."""
    if kind == "date":
        return read_dates(values)
    numbers = to_float(f"{position}", kind, values)
    if np.isnan(numbers).all():
        raise ValueError(f"feature {position} has no value in X: give rows that have some.")
    return numbers


def _replace_feature(X: Any, position: int, points: Array, rows: Array | None = None) -> Any:
    """Make rows in which one feature has the values ``points``.

    Parameters
    ----------
    X : frame or array-like of shape (n_samples, n_features)
        Data that give the other features.
    position : int
        Index of the replaced feature.
    points : ndarray of shape (n_points,)
        Its values; days for dates.
    rows : ndarray of shape (n_rows,), optional
        Indices of rows that give the other features at every point. By default there is one row per
        point with the median of numeric features and the most frequent value of others.

    Returns
    -------
    frame or ndarray of shape (n_points, n_features) or (n_points * n_rows, n_features)
        Of the type of ``X``.
    """
    table = _read_columns(X)
    kinds = [
        column_kind(values, name, is_declared)
        for name, values, is_declared in zip(*table, strict=True)
    ]
    is_date = kinds[position] == "date"
    if is_date:
        points = to_datetimes(points)
    if rows is None:
        replaced = [
            np.repeat(_typical_value(values, kind), len(points))
            for values, kind in zip(table.columns, kinds, strict=True)
        ]
        replaced[position] = points
    else:
        replaced = [np.tile(values[rows], len(points)) for values in table.columns]
        replaced[position] = np.repeat(points, len(rows))
    if not is_frame(X):
        if set(kinds) != {"numeric"}:
            replaced = [values.astype(object) for values in replaced]
        array = np.column_stack(replaced)
        if isinstance(X, np.ndarray) and X.dtype == np.float32:
            array = array.astype(np.float32)
        return array
    frame = type(X)(dict(zip(X.columns, replaced, strict=True)))
    if isinstance(frame.columns, list):  # polars has one type for strings, and no `astype`
        return frame
    kept = [name for name, kind in zip(X.columns, kinds, strict=True) if kind != "numeric"]
    if is_date:
        kept.remove(X.columns[position])
    return frame.astype({name: X[name].dtype for name in kept})


def _read_columns(X: Any) -> Table:
    """Columns of a frame or of an array."""
    if not is_frame(X):
        X = check_array(X, dtype=None, ensure_all_finite="allow-nan")
    table = read_table(X)
    assert table is not None
    return table


def _typical_value(values: Array, kind: str) -> Any:
    """Median of a numeric column, otherwise the most frequent value that isn't missing."""
    if kind == "numeric":
        return np.nanmedian(to_float("X", kind, values))
    if values.dtype.kind == "M":
        present = np.sort(values[~np.isnat(values)])
        if len(present):
            return present[len(present) // 2]
        return np.datetime64("NaT")
    present = values[~missing_rows(values)].tolist()
    if not present:
        return None
    return Counter(present).most_common(1)[0][0]
