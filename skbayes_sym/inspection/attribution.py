"""Attribution of predicted means and interval widths to columns, by Shapley values."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Self

import numpy as np
from scipy.special import comb
from scipy.stats import rankdata
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length

from skbayes_sym.base.input_validation import numeric_conversion
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import check_array, num_samples, safe_indexing
from skbayes_sym.inspection._drawing import BLUE, GREY, VERMILLION, Display, hide_frame, split_axes
from skbayes_sym.inspection._fitted import (
    list_feature_names,
    predict_regression,
    read_dates,
    select_target,
)
from skbayes_sym.numerics.arguments import (
    check_arrays,
    check_count,
    check_names,
    check_number,
    check_random_state,
    is_frame,
    short_repr,
)
from skbayes_sym.numerics.tables import (
    column_kind,
    column_names,
    fill_masked,
    read_table,
    to_float,
)

_MAX_ROWS = 5000  # number of rows that are predicted at once
_NO_RANK = (0.65, 0.65, 0.65, 1.0)  # colour of text and of missing values


class AttributionDisplay(Display):
    r"""Contributions of the columns to the predicted mean and to the width of the interval.

    The left panel shows why the prediction of a row differs from the average prediction, and the
    right panel why its interval is wider or narrower than the average one. For a single row there
    is a bar per column, with its value. For several rows there is a point per row and column, whose
    colour is the rank of the value in the column (grey for text and missing values). Columns are
    sorted by the sum of their relative importance for the mean and for the width.

    Parameters
    ----------
    feature_names : sequence of str
        Names of the columns.
    mean : ndarray of shape (n_samples, n_features)
        Contributions to the predicted mean, in the units of ``y``.
    width : ndarray of shape (n_samples, n_features)
        Contributions to the width of the interval, in the units of ``y``.
    mean_error, width_error : ndarray of shape (n_samples, n_features), optional
        Monte Carlo standard errors of the contributions; 0 if they are exact.
    base_mean, base_width : float, optional
        Mean and width of the interval, averaged over the background rows.
    feature_values : array-like of shape (n_samples, n_features), optional
        Values of the columns, for the colours of several rows and the labels of a single row.
    coverage : float, default=0.9
        Coverage of the intervals.
    y_name : str, default="y"
        Name or unit of the target for the axes.
    max_features : int, default=10
        Number of columns that are drawn. If there are more, the sum over the others is drawn too.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes whose area the panels share.
    figure_ : matplotlib Figure
        Figure of the plot.
    panels_ : list of matplotlib Axes
        Panels of the mean and of the width.
    bars_ : list of matplotlib BarContainer
        Bars of the two panels for a single row; otherwise empty.
    points_ : list of matplotlib PathCollection
        Points of each column of the two panels for several rows; otherwise empty.

    See Also
    --------
    PredictiveDisplay : Predictions as a function of one column.
    sklearn.inspection.permutation_importance : Importance of columns for a score.

    Notes
    -----
    The contribution of column :math:`j` to a prediction :math:`f(x)` is its Shapley value [1]_

    .. math::

        \phi_j = \sum_{S \not\ni j} \frac{|S|!\,(d - |S| - 1)!}{d!}\,
        \bigl(v(S \cup \{j\}) - v(S)\bigr), \qquad
        v(S) = \frac1B \sum_{b=1}^B f(x_S, z^b_{\bar S}),

    where columns outside :math:`S` have the values of the background rows :math:`z^b`
    (interventional values [2]_). Contributions sum to :math:`f(x)` minus the average prediction of
    the background, exactly. They describe the model and not causes: of two columns that say the
    same, a model may use either.

    For many columns, the average over all orders of the columns is estimated from sampled orders,
    each with its reverse [3]_, for every background row. The standard errors are those of this
    estimate. They don't include the choice of the background.

    References
    ----------
    .. [1] S. M. Lundberg and S.-I. Lee (2017). "A unified approach to interpreting model
       predictions." Advances in Neural Information Processing Systems 30.
    .. [2] D. Janzing, L. Minorics and P. Bloebaum (2020). "Feature relevance quantification in
       explainable AI: a causal problem." AISTATS.
    .. [3] R. Mitchell, J. Cooper, E. Frank and G. Holmes (2022). "Sampling permutations for Shapley
       value estimation." Journal of Machine Learning Research 23(43).

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.inspection import AttributionDisplay
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> reg = BayesianLinearRegressor().fit(X, y)
    >>> display = AttributionDisplay.from_estimator(reg, X[:1], X)
    >>> display.mean.shape
    (1, 10)
    >>> total = display.mean.sum() + display.base_mean
    >>> bool(abs(total - reg.predict(X[:1])[0]) < 1e-9)
    True
    """

    def __init__(
        self,
        feature_names: Sequence[str],
        mean: Array,
        width: Array,
        *,
        mean_error: Array | None = None,
        width_error: Array | None = None,
        base_mean: float = 0.0,
        base_width: float = 0.0,
        feature_values: Any = None,
        coverage: float = 0.9,
        y_name: str = "y",
        max_features: int = 10,
    ) -> None:
        shapes = {"mean": "nd", "width": "nd", "mean_error": "nd?", "width_error": "nd?"}
        arrays = check_arrays(
            "AttributionDisplay",
            shapes,
            mean=mean,
            width=width,
            mean_error=mean_error,
            width_error=width_error,
        )
        shape = arrays["mean"].shape
        self.feature_names = check_names(
            "AttributionDisplay", "feature_names", feature_names, shape[1]
        )
        if feature_values is not None and np.shape(feature_values) != shape:
            raise ValueError(
                f"AttributionDisplay: feature_values must have the shape {shape}, got "
                f"{np.shape(feature_values)}."
            )
        self.mean = arrays["mean"]
        self.width = arrays["width"]
        self.mean_error = arrays.get("mean_error")
        self.width_error = arrays.get("width_error")
        self.base_mean = check_number("base_mean", base_mean)
        self.base_width = check_number("base_width", base_width)
        self.feature_values = feature_values
        self.coverage = check_number("coverage", coverage, 0.0, 1.0)
        self.y_name = y_name
        self.max_features = check_count("max_features", max_features)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: Any,
        background: Any = None,
        *,
        coverage: float = 0.9,
        target: int = 0,
        n_background: int = 50,
        n_permutations: int = 4,
        random_state: Any = 0,
        y_name: str = "y",
        max_features: int = 10,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Compute the contributions of the columns and plot them.

        Parameters
        ----------
        estimator : estimator
            Fitted regressor that `skbayes_sym.predictive` supports: one of this package, a pipeline
            or search around one, or any other with ``predict(X, return_std=True)``.
        X : frame or array-like of shape (n_samples, n_features)
            Rows whose predictions are explained, with columns of any type that the estimator reads.
        background : frame or array-like of shape (n_rows, n_features), optional
            Rows that the predictions are compared with, for example the training data; ``X`` by
            default. A single row needs a background.
        coverage : float in (0, 1), default=0.9
            Coverage of the central intervals whose width is explained.
        target : int, default=0
            Index of the target.
        n_background : int, default=50
            Largest number of background rows. If there are more, evenly spaced ones are used.
        n_permutations : int, default=4
            Number of orders of the columns that are sampled for every row and background row, an
            even number of at least 4. If all combinations of columns need no more predictions, the
            contributions are exact: with up to three columns by default, with ten columns from
            ``n_permutations=114``.
        random_state : int, RandomState instance or None, default=0
            Seed of the sampled orders.
        y_name : str, default="y"
            Name or unit of the target for the axes.
        max_features : int, default=10
            Number of columns that are drawn.
        ax : matplotlib Axes, optional
            Axes whose area the panels share. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.barh`` for a single row, otherwise of ``Axes.scatter``.

        Returns
        -------
        AttributionDisplay

        Raises
        ------
        TypeError
            If the estimator doesn't predict a distribution of a regression target.
        ValueError
            If ``background`` is missing for a single row or has other columns than ``X``.

        Notes
        -----
        The cost is ``n_samples * n_background * n_permutations * (n_features - 1)`` predictions.
        """
        names = list_feature_names(estimator, X)
        check_count("n_permutations", n_permutations, 4)
        if n_permutations % 2:
            raise ValueError(f"n_permutations must be even, got {n_permutations}.")
        coverage = check_number("coverage", coverage, 0.0, 1.0)
        rng = check_random_state(random_state)
        X = _check_rows(X)
        rows, background_index = _join_background(
            X, background, check_count("n_background", n_background)
        )

        def predict(index: Array) -> Array:
            """Predict mean and width, (m, 2), of rows with cells from ``index``, (m, d)."""
            predictions = []
            for start in range(0, len(index), _MAX_ROWS):
                mixed = _take_cells(rows, index[start : start + _MAX_ROWS])
                distribution = predict_regression(estimator, mixed, cls.__name__)[1]
                mean = select_target(distribution.mean(), target, ndim=1)
                ends = select_target(distribution.interval(coverage), target, ndim=2)
                predictions.append(np.stack([mean, ends[:, 1] - ends[:, 0]], axis=1))
            return np.concatenate(predictions)

        values, errors, base = _explain_rows(
            predict, num_samples(X), background_index, len(names), n_permutations, rng
        )
        display = cls(
            names,
            values[..., 0],
            values[..., 1],
            mean_error=errors[..., 0],
            width_error=errors[..., 1],
            base_mean=float(base[0]),
            base_width=float(base[1]),
            feature_values=_cell_values(X),
            coverage=coverage,
            y_name=y_name,
            max_features=max_features,
        )
        return display.plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        n_drawn = min(len(self.feature_names), self.max_features + 1)
        return (8.0, 1.6 + 0.3 * n_drawn)

    def _draw(self, style: dict[str, Any]) -> None:
        panels = split_axes(self.ax_, [1.0, 1.0])
        self.panels_ = panels
        self.bars_: list[Any] = []
        self.points_: list[Any] = []
        order = self._order_columns()
        drawn = order[: self.max_features]
        others = order[self.max_features :]
        labels = [self._label_column(j) for j in drawn]
        if len(others):
            labels.append(f"sum of {len(others)} other columns")

        contributions = (self.mean, self.mean_error), (self.width, self.width_error)
        for panel, (values, errors) in zip(panels, contributions, strict=True):
            shown = values[:, drawn]
            if len(others):
                shown = np.column_stack([shown, values[:, others].sum(axis=1)])
            panel.axvline(0.0, color=GREY, lw=1, zorder=0)
            if len(values) == 1:
                shown_errors = None
                if errors is not None:
                    shown_errors = np.full(shown.shape[1], np.nan)
                    shown_errors[: len(drawn)] = errors[0, drawn]
                self._draw_bars(panel, shown[0], shown_errors, style)
            else:
                self._draw_points(panel, shown, drawn, style)
            panel.set_ylim(len(labels) - 0.5, -0.5)
            panel.set_yticks(np.arange(len(labels)), labels if panel is panels[0] else [])
            panel.locator_params(axis="x", nbins=5)
            hide_frame(panel)
        panels[0].set(xlabel=f"contribution to the mean ({self.y_name})")
        panels[1].set(xlabel=f"contribution to the width ({self.y_name})")
        self._set_titles()

    def _order_columns(self) -> Array:
        """Indices of the columns, in decreasing order of importance for the mean and the width."""
        importance = np.zeros(len(self.feature_names))
        for values in (self.mean, self.width):
            size = np.abs(values).mean(axis=0)
            if size.sum() > 0.0:
                importance += size / size.sum()
        return np.argsort(-importance, kind="stable")

    def _label_column(self, column: int) -> str:
        """Name of a column, with its value if there is a single row."""
        name = self.feature_names[column]
        if self.feature_values is None or len(self.mean) > 1:
            return name
        value = np.asarray(self.feature_values, dtype=object)[0, column]
        if isinstance(value, float):
            return f"{name} = {value:.4g}"
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[D]")
        return f"{name} = {str(value)[:20]}"

    def _draw_bars(
        self, panel: Any, values: Array, errors: Array | None, style: dict[str, Any]
    ) -> None:
        """Draw the contributions for a single row, with bars of one standard error.

        Parameters
        ----------
        panel : matplotlib Axes
            Panel of the mean or of the width.
        values : ndarray of shape (n_drawn,)
            Contributions.
        errors : ndarray of shape (n_drawn,) or None
            Their standard errors.
        style : dict
            Arguments of ``Axes.barh``.
        """
        colours = np.where(values < 0.0, BLUE, VERMILLION)
        bars = panel.barh(
            np.arange(len(values)), values, **{"xerr": errors, "color": colours, **style}
        )
        self.bars_.append(bars)

    def _draw_points(self, panel: Any, values: Array, drawn: Array, style: dict[str, Any]) -> None:
        """Draw a point per row and column, whose colour is the rank of the value in the column.

        Parameters
        ----------
        panel : matplotlib Axes
            Panel of the mean or of the width.
        values : ndarray of shape (n_samples, n_drawn)
            Contributions.
        drawn : ndarray of int
            Indices of the columns. If ``values`` has one column more, it is a sum over others.
        style : dict
            Arguments of ``Axes.scatter``.
        """
        from matplotlib import colormaps

        colours = colormaps["viridis"]
        # Multiples of the golden ratio spread the points of a column evenly.
        offset = 0.6 * ((0.618034 * np.arange(len(values))) % 1.0 - 0.5)
        for position in range(values.shape[1]):
            ranks = np.full(len(values), np.nan)
            if position < len(drawn) and self.feature_values is not None:
                column = np.asarray(self.feature_values, dtype=object)[:, drawn[position]]
                ranks = _rank_values(column, self.feature_names[drawn[position]])
            point_colours = np.where(np.isnan(ranks)[:, None], _NO_RANK, colours(ranks))
            points = panel.scatter(
                values[:, position],
                position + offset,
                **{"s": 9, "c": point_colours, "linewidths": 0, **style},
            )
            self.points_.append(points)

        if panel is self.panels_[-1] and self.feature_values is not None:
            meanings = {"low value": colours(0.0), "high value": colours(1.0), "text": _NO_RANK}
            for meaning, colour in meanings.items():
                panel.scatter([], [], color=[colour], label=meaning)
            panel.legend(
                loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small"
            )

    def _set_titles(self) -> None:
        """Set the titles: the quantity, and for a single row its value and the average."""
        titles = ["Mean", f"Width of {100 * self.coverage:.4g} % intervals"]
        if len(self.mean) == 1:
            totals = ((self.base_mean, self.mean), (self.base_width, self.width))
            for i, (base, values) in enumerate(totals):
                titles[i] += f": {base + values.sum():.4g}\n(average {base:.4g})"
        for panel, title in zip(self.panels_, titles, strict=True):
            panel.set_title(title, fontsize="medium")


def _explain_rows(
    predict: Callable[[Array], Array],
    n_samples: int,
    background_index: Array,
    n_features: int,
    n_permutations: int,
    rng: np.random.RandomState,
) -> tuple[Array, Array, Array]:
    """Compute Shapley values of several outputs for the first rows of a table.

    Parameters
    ----------
    predict : callable
        Outputs (m, k) for rows whose cells are taken from the rows ``index`` (m, d) of a table.
    n_samples : int
        Number of explained rows, which are the first ones of the table.
    background_index : ndarray of shape (n_background,)
        Indices of the background rows.
    n_features : int
        Number of columns d.
    n_permutations : int
        Number of sampled orders per row and background row.
    rng : RandomState
        Random numbers.

    Returns
    -------
    values, errors : ndarray of shape (n_samples, d, k)
        Shapley values and their Monte Carlo standard errors.
    base : ndarray of shape (k,)
        Average output of the background rows.
    """
    every_index = np.concatenate([np.arange(n_samples), background_index])
    outputs = predict(np.repeat(every_index[:, None], n_features, axis=1))
    base_outputs = outputs[n_samples:]
    is_exact = 2**n_features <= n_permutations * (n_features - 1) + 2
    values = np.empty((n_samples, n_features, outputs.shape[1]))
    errors = np.zeros_like(values)
    for row in range(n_samples):

        def mix(is_explained: Array, background: Array, row: int = row) -> Array:
            """Predict rows (m, d) of which some cells are explained and others background."""
            return predict(np.where(is_explained, row, background[:, None]))

        if is_exact:
            values[row] = _exact_shapley(mix, background_index, n_features)
        else:
            values[row], errors[row] = _sampled_shapley(
                mix, outputs[row], base_outputs, background_index, n_features, n_permutations, rng
            )
    return values, errors, base_outputs.mean(axis=0)


def _exact_shapley(
    mix: Callable[[Array, Array], Array], background_index: Array, n_features: int
) -> Array:
    """Sum over all sets of columns, (d, k)."""
    sets = np.arange(2**n_features)
    is_member = (sets[:, None] >> np.arange(n_features)) % 2 == 1
    n_background = len(background_index)
    outputs = mix(np.repeat(is_member, n_background, axis=0), np.tile(background_index, len(sets)))
    averages = outputs.reshape(len(sets), n_background, -1).mean(axis=1)
    n_members = is_member.sum(axis=1)
    values = np.empty((n_features, averages.shape[1]))
    for j in range(n_features):
        without = sets[~is_member[:, j]]
        weight = 1.0 / (n_features * comb(n_features - 1, n_members[without]))
        values[j] = weight @ (averages[without + 2**j] - averages[without])
    return values


def _sampled_shapley(
    mix: Callable[[Array, Array], Array],
    output: Array,
    base_outputs: Array,
    background_index: Array,
    n_features: int,
    n_permutations: int,
    rng: np.random.RandomState,
) -> tuple[Array, Array]:
    """Average over sampled orders of the columns and their reverses, for every background row.

    Parameters
    ----------
    mix : callable
        Outputs (m, k) of rows whose cells are explained or background.
    output : ndarray of shape (k,)
        Output of the explained row.
    base_outputs : ndarray of shape (n_background, k)
        Outputs of the background rows.
    background_index : ndarray of shape (n_background,)
        Their indices.
    n_features : int
        Number of columns d.
    n_permutations : int
        Number of orders per background row, reverses included.
    rng : RandomState
        Random numbers.

    Returns
    -------
    values, errors : ndarray of shape (d, k)
        Shapley values and their standard errors.
    """
    n_background = len(background_index)
    n_pairs = n_permutations // 2
    # Position of each column in the order in which columns take their explained values.
    position = np.argsort(rng.random_sample((n_background, n_pairs, n_features)), axis=-1)
    position = np.stack([position, n_features - 1 - position], axis=2)
    n_explained = np.arange(1, n_features)
    is_explained = position[..., None, :] < n_explained[:, None]
    shape = is_explained.shape[:-1]
    background = np.broadcast_to(background_index[:, None, None, None], shape)
    outputs = mix(is_explained.reshape(-1, n_features), background.ravel())

    # Outputs along each order, from the background row to the explained row.
    path = np.empty((*shape[:-1], n_features + 1, len(output)))
    path[..., 0, :] = base_outputs[:, None, None]
    path[..., 1:-1, :] = outputs.reshape(*shape, -1)
    path[..., -1, :] = output
    steps = np.diff(path, axis=-2)
    contributions = np.take_along_axis(steps, position[..., None], axis=-2)

    # Pairs of the same background row are independent estimates of the same value.
    pairs = contributions.mean(axis=2)
    variance = pairs.var(axis=1, ddof=1).mean(axis=0) / (n_background * n_pairs)
    return pairs.mean(axis=(0, 1)), np.sqrt(variance)


def _check_rows(X: Any) -> Any:
    """Frame, or array of any type with two axes and at least one row."""
    if is_frame(X):
        check_consistent_length(X)
        return X
    with numeric_conversion("X"):
        return check_array(fill_masked(X), dtype=None, ensure_all_finite=False)


def _join_background(X: Any, background: Any, n_background: int) -> tuple[Any, Array]:
    """Append background rows to the explained rows.

    Parameters
    ----------
    X : frame or ndarray of shape (n_samples, n_features)
        Explained rows.
    background : frame or array-like of shape (n_rows, n_features), or None
        Background rows, or None for the explained ones.
    n_background : int
        Largest number of background rows.

    Returns
    -------
    rows : frame or ndarray
        The explained rows, followed by the background if it isn't ``X``.
    index : ndarray of int
        Indices of the background rows in ``rows``, evenly spaced if there are too many.
    """
    n_samples = num_samples(X)
    if background is None:
        if n_samples == 1:
            raise ValueError(
                "background is needed to explain a single row: pass the training rows."
            )
        rows = X
        index = np.arange(n_samples)
    else:
        background = _check_rows(background)
        names = column_names(X)
        if column_names(background) != names or background.shape[1] != X.shape[1]:
            raise ValueError(
                f"background must have the {X.shape[1]} columns of X"
                f"{' ' + short_repr(names) if names else ''}, got {short_repr(background)}."
            )
        index = n_samples + np.arange(num_samples(background))
        if is_frame(X):
            library = import_module(type(X).__module__.partition(".")[0])
            rows = library.concat([X, background])
        else:
            rows = np.concatenate([X, background])
    if len(index) > n_background:
        chosen = np.linspace(0, len(index) - 1, n_background).round().astype(int)
        index = index[chosen]
    return rows, index


def _take_cells(rows: Any, index: Array) -> Any:
    """Rows whose cells in column j are those of the rows ``index[:, j]``, of the same type."""
    if not is_frame(rows):
        return rows[index, np.arange(index.shape[1])]
    columns = {}
    for name, positions in zip(rows.columns, index.T, strict=True):
        column = safe_indexing(rows[name], positions)
        # The index of a pandas column would be aligned with those of others.
        columns[name] = getattr(column, "array", column)
    return type(rows)(columns)


def _cell_values(X: Any) -> Array | None:
    """Values of a table as an array of objects, (n_samples, n_features)."""
    table = read_table(X)
    if table is None:
        return None
    values = np.empty((len(table.columns[0]), len(table.columns)), dtype=object)
    for j, column in enumerate(table.columns):
        values[:, j] = list(column)
    return values


def _rank_values(column: Array, name: str) -> Array:
    """Ranks of numbers or dates between 0 and 1; NaN for text and missing values."""
    kind = column_kind(column, name)
    ranks = np.full(len(column), np.nan)
    if kind == "categorical":
        return ranks
    if kind == "date":
        numbers = read_dates(column)
    else:
        numbers = to_float(name, kind, column)
    is_known = ~np.isnan(numbers)
    if is_known.sum() > 1:
        ranks[is_known] = (rankdata(numbers[is_known]) - 1.0) / (is_known.sum() - 1.0)
    return ranks
