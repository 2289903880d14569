"""Predictions of an estimator, over one feature or row by row."""

from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_consistent_length

from skbayes_sym.base.predictive import predictive
from skbayes_sym.base.regressor import check_quantile_levels
from skbayes_sym.base.rows import Array, numeric_conversion
from skbayes_sym.base.scikit_learn import check_array
from skbayes_sym.inspection._drawing import (
    BLUE,
    COLOURS,
    GREY,
    MARKERS,
    VERMILLION,
    Display,
    no_box,
)
from skbayes_sym.inspection._fitted import (
    feature_names,
    fitted_model,
    observations,
    regression_distribution,
    select_target,
)
from skbayes_sym.numerics.arguments import check_arrays, check_count, is_frame

# Axes of what is drawn: points, levels or classes, observations.
_FAN = {"x": "n", "values": "nq", "levels": "q?", "x_observed": "o?", "y_observed": "o?"}
_SHAPES = {
    "fan": _FAN,
    "probabilities": _FAN,
    "intervals": {**_FAN, "x_observed": "n?", "y_observed": "n?"},
}
_MOST_ROWS = 200  # drawn of all intervals, evenly over the ordered medians
_LINES = ("-", "--", "-.", ":")


class PredictiveDisplay(Display):
    """Predictive distributions: a fan over one feature, or an interval for every row.

    With one feature (or ``feature`` given) a regressor's quantiles are drawn as nested bands over
    its values, a classifier's class probabilities as lines. With several features every row gets
    its interval at its predicted median, and the observation beside it; those outside are marked.

    Parameters
    ----------
    x : ndarray of shape (n_points,)
        Values of the feature, or the predicted medians of the rows (``kind="intervals"``).
    values : ndarray of shape (n_points, n_levels) or (n_points, n_classes)
        Quantiles of a new target, in increasing order, in its units; or class probabilities.
    kind : {"fan", "intervals", "probabilities"}, default="fan"
    levels : ndarray of shape (n_levels,), optional
        Levels of the quantiles; symmetric about 0.5, which is one of them.
    classes : ndarray of shape (n_classes,), optional
        Of "probabilities".
    x_observed, y_observed : ndarray of shape (n_observed,), optional
        Observations to draw beside it. For "intervals" ``x_observed`` is ``x``.
    x_name : str, default="x"
    y_name : str, default="y"

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        The median; of "probabilities" one a class.
    bands_ : list of matplotlib artists
        From the widest to the narrowest: one a coverage.
    points_ : list of matplotlib Line2D
        The observations: those inside the widest interval, then those outside ("intervals"), one a
        class ("probabilities"), or all in one.

    See Also
    --------
    IntervalCalibrationDisplay : Whether the intervals hold as many observations as they should.

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
        self, x: Array, values: Array, *, kind: str = "fan", levels: Array | None = None,
        classes: Array | None = None, x_observed: Array | None = None,
        y_observed: Array | None = None, x_name: str = "x", y_name: str = "y",
    ) -> None:  # fmt: skip
        if not isinstance(kind, str) or kind not in _SHAPES:
            raise ValueError(f"kind must be one of {sorted(_SHAPES)}, got {kind!r}.")
        arrays = check_arrays(
            "PredictiveDisplay", _SHAPES[kind], x=x, values=values, levels=levels,
            x_observed=x_observed, y_observed=None if kind == "probabilities" else y_observed,
        )  # fmt: skip
        needed = {"probabilities": [], "intervals": ["levels", "y_observed"], "fan": ["levels"]}
        for name in needed[kind]:
            if name not in arrays:
                raise ValueError(f"PredictiveDisplay: kind={kind!r} needs {name}.")
        self.x = arrays["x"]
        self.values = arrays["values"]
        self.kind = kind
        self.levels = arrays.get("levels")
        self.classes = classes
        self.x_observed = arrays.get("x_observed")
        self.y_observed = y_observed if kind == "probabilities" else arrays.get("y_observed")
        self.x_name = x_name
        self.y_name = y_name

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
            Rows to predict, or the data whose range the feature's values span.
        y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
            Observations. Intervals of rows need them; over one of several features they aren't
            drawn, since they belong to other values of the other features.
        feature : int or str, optional
            Feature to vary; the others stay at their medians, those that aren't numbers at their
            most frequent value. By default the only one.
        grid : int or array-like of shape (n_points,), default=200
            Values of the feature, or how many between slightly beyond the ends of its range.
        coverages : sequence of float in (0, 1), optional
            Of the bands; by default 0.5, 0.8 and 0.95, of rows 0.9.
        target : int, default=0
            Which of several targets.
        average : bool, default=False
            Draw the partial dependence on ``feature``: the function, without noise, averaged over
            100 of the rows with that feature changed, and the bands of its posterior.
        y_name : str, optional
            Name and unit of the target for the axis.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the observations' ``Axes.plot``.

        Raises
        ------
        TypeError
            If it predicts no quantiles or probabilities.
        ValueError
            If rows have no ``y``, or there is no such feature.
        """
        if y is not None:
            check_consistent_length(X, y)
        names = feature_names(estimator, X)
        if feature is None and len(names) == 1:
            feature = 0
        model = fitted_model(estimator).model
        if feature is None:
            if is_classifier(model):
                raise ValueError(
                    f"{type(model).__name__} is a classifier and X has {len(names)} features: say "
                    "over which one PredictiveDisplay shall draw the probabilities (feature=0)."
                )
            if y is None:
                raise ValueError(
                    f"PredictiveDisplay needs y to draw the intervals of {type(model).__name__} "
                    "beside observations; or give the feature to draw them over."
                )
            levels = _levels((0.9,) if coverages is None else coverages)
            quantiles = _quantiles(estimator, X, levels, target)
            observed = observations(y, target)
            y_name = "observed" if y_name is None else y_name
            return cls.from_predictions(
                observed, quantiles, levels.tolist(), y_name=y_name, ax=ax, **kwargs
            )
        position = _find_column(feature, names)
        values = _feature_values(X, position)
        points = _make_grid(grid, values)
        chosen = np.unique(np.linspace(0, len(values) - 1, 100).round().astype(int))
        rows = _replace_feature(X, position, points, chosen if average else None)
        settings: dict[str, Any] = {"x_name": names[position]}
        if not (y is None or average or len(names) > 1):
            settings |= {"x_observed": values, "y_observed": np.asarray(y)}
        if is_classifier(model):
            distribution = predictive(estimator, rows)
            proba = (
                distribution.proba()
                .reshape(len(points), -1, len(distribution.classes))
                .mean(axis=1)
            )
            settings |= {"kind": "probabilities", "values": proba, "classes": distribution.classes,
                         "y_name": "probability"}  # fmt: skip
        else:
            levels = _levels((0.5, 0.8, 0.95) if coverages is None else coverages)
            if average:
                drawn = select_target(predictive(estimator, rows).functions(400), target, ndim=2)
                means = drawn.reshape(len(points), -1, drawn.shape[-1]).mean(axis=1)
                quantiles = np.quantile(means, levels, axis=1).T
            else:
                quantiles = _quantiles(estimator, rows, levels, target)
            if "y_observed" in settings:
                settings["y_observed"] = observations(y, target)
            settings |= {"values": quantiles, "levels": levels}
        if y_name is not None:
            settings["y_name"] = y_name
        return cls(points, **settings).plot(ax=ax, **kwargs)

    @classmethod
    def from_predictions(
        cls, y_true: Any, quantiles: Any, levels: Sequence[float], *, y_name: str = "observed",
        ax: Any = None, **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Plot the interval of every row beside what was observed.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
        quantiles : array-like of shape (n_samples, n_levels)
            Predicted by any model, in increasing order.
        levels : sequence of float in (0, 1)
            Of the quantiles: symmetric about 0.5, which is one of them.
        y_name : str, default="observed"
            Name and unit of the target for the axis.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the observations' ``Axes.plot``.

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
            median, values, kind="intervals", levels=fractions, x_observed=median,
            y_observed=observed.astype(float), x_name="predicted median", y_name=y_name,
        )  # fmt: skip
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
        no_box(self.ax_)

    def _pairs(self) -> list[tuple[float, int, int]]:
        """Coverage of each band and the columns of its ends, widest first."""
        levels = np.asarray(self.levels)
        n = len(levels)
        return [(float(levels[n - 1 - i] - levels[i]), i, n - 1 - i) for i in range(n // 2)]

    def _draw_fan(self, style: dict[str, Any]) -> None:
        from matplotlib.colors import to_rgb

        pairs = self._pairs()
        for depth, (coverage, low, high) in enumerate(pairs, start=1):
            share = 0.7 * depth / max(3, len(pairs))  # of colour in white: opaque, as in legends
            band = self.ax_.fill_between(
                self.x, self.values[:, low], self.values[:, high], lw=0,
                color=[1.0 - share * (1.0 - part) for part in to_rgb(BLUE)],
                label=f"{100 * coverage:.3g} %",
            )  # fmt: skip
            self.bands_.append(band)
        median = self.values[:, len(pairs)]
        self.lines_ = self.ax_.plot(self.x, median, color=BLUE, lw=2, label="median")
        if self.x_observed is not None:
            self.points_ = self.ax_.plot(
                self.x_observed, self.y_observed, **{"label": "observed", "zorder": 3, **style}
            )
        self.ax_.margins(x=0)
        self.ax_.autoscale(axis="y")  # an earlier fan in the same axes has fixed the limits
        bottom, top = self.ax_.get_ylim()  # those of the data: the legend gets a tenth above them
        self.ax_.set_ylim(bottom, top + (top - bottom) / 9.0)
        self.ax_.legend(
            loc="upper left", ncols=len(pairs) + 2, frameon=False, fontsize="small",
            columnspacing=1.2, handletextpad=0.5, borderaxespad=0.2,
        )  # fmt: skip

    def _draw_intervals(self, style: dict[str, Any]) -> None:
        _, low, high = self._pairs()[0]
        y = np.asarray(self.y_observed)
        inside = (self.values[:, low] <= y) & (y <= self.values[:, high])
        shown = np.zeros(len(y), dtype=bool)
        chosen = np.linspace(0, len(y) - 1, min(len(y), _MOST_ROWS)).round().astype(int)
        shown[np.argsort(self.x, kind="stable")[chosen]] = True
        x = self.x[shown]
        values = self.values[shown]
        self.bands_ = [
            self.ax_.vlines(
                x, values[:, a], values[:, b], color=BLUE, lw=1.5, alpha=0.35,
                label=f"{100 * share:.3g} % interval",
            )
            for share, a, b in self._pairs()
        ]  # fmt: skip
        ends = [float(x.min()), float(x.max())]
        self.lines_ = self.ax_.plot(ends, ends, color=GREY, lw=1, zorder=1, label="median")
        cross = {**style, "marker": "X", "ms": 6, "color": VERMILLION}
        for mask, how, label in ((inside, style, "inside"), (~inside, cross, "outside")):
            name = f"{label}: {mask.sum()} of {len(y)}"
            drawn = self.ax_.plot(self.x[mask & shown], y[mask & shown], **{"label": name, **how})
            self.points_ += drawn
        self.ax_.legend(frameon=False, fontsize="small")

    def _draw_probabilities(self, style: dict[str, Any]) -> None:
        for i, name in enumerate([] if self.classes is None else self.classes):
            colour = COLOURS[i % len(COLOURS)]
            line = _LINES[i % len(_LINES)]
            self.lines_ += self.ax_.plot(
                self.x, self.values[:, i], color=colour, ls=line, lw=2, label=str(name)
            )
            if self.x_observed is None:
                continue
            x = self.x_observed[self.y_observed == name]
            height = np.full(len(x), -0.04 * (i + 1))  # a line of marks a class, below 0
            marks = {**style, "color": colour, "marker": MARKERS[i % len(MARKERS)], "ms": 4}
            self.points_ += self.ax_.plot(x, height, **marks)
        self.ax_.legend(frameon=False, fontsize="small", title="class")
        self.ax_.set_yticks(np.linspace(0, 1, 6))
        self.ax_.margins(x=0.02)


def _levels(coverages: Sequence[float]) -> Array:
    """Levels of the ends of central intervals and of the median, in increasing order."""
    widths = np.unique(check_quantile_levels(coverages, "coverages"))
    return np.concatenate([0.5 - 0.5 * widths[::-1], [0.5], 0.5 + 0.5 * widths])


def _quantiles(estimator: BaseEstimator, X: Any, levels: Array, target: int) -> Array:
    distribution = regression_distribution(estimator, X, "PredictiveDisplay")[1]
    return select_target(distribution.quantile(levels), target, ndim=2)


def _find_column(feature: int | str, names: list[str]) -> int:
    """Column of a feature given by position or name."""
    if isinstance(feature, str):
        if feature not in names:
            raise ValueError(f"feature must be one of {names}, got {feature!r}.")
        return names.index(feature)
    if not isinstance(feature, Integral) or not 0 <= feature < len(names):
        raise ValueError(f"feature must lie between 0 and {len(names) - 1}, got {feature!r}.")
    return int(feature)


def _make_grid(grid: Any, values: Array) -> Array:
    """Values of a feature: those given, or so many over the range seen and a little beyond it."""
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


def _feature_values(X: Any, position: int) -> Array:
    """Numbers of one feature, (n_samples,); NaN where one is missing."""
    column = _columns(X)[position]
    with numeric_conversion(f"feature {position}"):
        values: Array = np.asarray(column, dtype=float)
    if np.isnan(values).all():
        raise ValueError(f"feature {position} has no value in X: give rows that have some.")
    return values


def _replace_feature(X: Any, position: int, points: Array, chosen: Array | None = None) -> Any:
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
    with numeric_conversion("X"):
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
