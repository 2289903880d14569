"""Log densities and times of models that were compared on the same folds."""

from typing import Any, Self

import numpy as np

from skbayes_sym.inspection._drawing import (
    BLUE,
    GREY,
    VERMILLION,
    Display,
    hide_frame,
    label_log_axis,
    split_axes,
)
from skbayes_sym.numerics.arguments import short_repr

_COLUMNS = ["log_density", "log_density_se", "fit_seconds", "predict_seconds"]


class ModelComparisonDisplay(Display):
    """Log densities and times in the table of `skbayes_sym.model_selection.compare_models`.

    The left panel shows the mean log density of held-out rows with bars of one standard error, and
    a line at the best model. The right panel shows the seconds of fit and prediction per fold. The
    standard errors of two models are correlated, since they predict the same rows: compare models
    by the columns ``difference`` and ``difference_se`` of the table.

    Parameters
    ----------
    table : pandas.DataFrame
        Table that `~skbayes_sym.model_selection.compare_models` returns, with one row per model.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes whose area the panels share.
    figure_ : matplotlib Figure
        Figure of the plot.
    panels_ : list of matplotlib Axes
        Panels of the densities and of the times.
    points_ : matplotlib ErrorbarContainer
        Log densities and their standard errors.
    bars_ : list of matplotlib BarContainer
        Bars of the seconds of fit and of prediction.

    See Also
    --------
    StackWeightsDisplay : Densities of the members of one stack.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.inspection import ModelComparisonDisplay
    >>> from skbayes_sym.model_selection import compare_models
    >>> X, y = load_diabetes(return_X_y=True)
    >>> models = {"linear": BayesianLinearRegressor(), "ridge": BayesianRidge()}
    >>> display = ModelComparisonDisplay.from_table(compare_models(models, X, y, cv=2))
    >>> sorted(display.table.index)
    ['linear', 'ridge']
    """

    def __init__(self, table: Any) -> None:
        missing = [name for name in _COLUMNS if name not in getattr(table, "columns", [])]
        if missing:
            raise ValueError(
                f"table must be the result of compare_models, with a column {missing[0]!r}; got "
                f"{short_repr(table)}."
            )
        self.table = table

    @classmethod
    def from_table(cls, table: Any, *, ax: Any = None, **kwargs: Any) -> Self:
        """Plot the table of `~skbayes_sym.model_selection.compare_models`.

        Parameters
        ----------
        table : pandas.DataFrame
            Table with one row per model.
        ax : matplotlib Axes, optional
            Axes whose area the panels share. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.errorbar`` for the densities.

        Returns
        -------
        ModelComparisonDisplay

        Raises
        ------
        ValueError
            If the table isn't a result of `~skbayes_sym.model_selection.compare_models`.
        """
        return cls(table).plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        return (7.0, 1.8 + 0.35 * len(self.table))

    def _draw(self, style: dict[str, Any]) -> None:
        """Draw the log densities on the left, and the times on the right."""
        left, right = self.panels_ = split_axes(self.ax_, [1.0, 1.0])
        positions = np.arange(len(self.table))
        columns = {name: self.table[name].to_numpy(dtype=float) for name in _COLUMNS}
        density = columns["log_density"]
        self.points_ = left.errorbar(
            density,
            positions,
            xerr=columns["log_density_se"],
            **{"fmt": "o", "color": BLUE, "label": "mean and standard error", **style},
        )
        if np.isfinite(density).any():
            left.axvline(np.nanmax(density), color=GREY, ls="--", lw=1, label="best model")
        for position in positions[np.isnan(density)]:
            left.text(0.5, position, "no result", transform=left.get_yaxis_transform(), va="center")
        self.bars_ = [
            right.barh(positions - 0.2, columns["fit_seconds"], 0.38, color=BLUE, label="fit"),
            right.barh(
                positions + 0.2, columns["predict_seconds"], 0.38, color=VERMILLION, label="predict"
            ),
        ]
        left.set_yticks(positions, [str(name) for name in self.table.index])
        left.set(xlabel="log density (nats per row)", title="Held-out density")
        left.locator_params(axis="x", nbins=4)
        right.set_yticks(positions, [])
        right.set(xlabel="time per fold (seconds)", title="Time")
        if np.nan_to_num(columns["fit_seconds"]).any():  # nan if all fits failed
            right.set_xscale("log")
            label_log_axis(right.xaxis)
        for panel in self.panels_:
            panel.set_ylim(len(positions) - 0.5, -0.5)
            panel.legend(
                loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=2, frameon=False,
                fontsize="small",
            )  # fmt: skip
            hide_frame(panel)
