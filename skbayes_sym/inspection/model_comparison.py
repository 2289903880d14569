"""The table of a comparison as a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inspection._drawing import BLUE, GREY, no_box, open_axes, split_axes
from skbayes_sym.numerics.arguments import check_arrays, check_names, is_frame, shown

_LABELS = {
    "log_density": "log density\n(nats per row)",
    "difference": "log density,\ndifference to best\n(nats per row)",
    "rmse": "RMSE\n(units of y)",
    "accuracy": "accuracy",
    "calibration_error": "calibration error",
    "evidence": "evidence\n(nats)",
    "loo": "PSIS-LOO\n(nats per row)",
    "fit_seconds": "fit (seconds)",
    "predict_seconds": "predict (seconds)",
}
_NAME = "ModelComparisonDisplay"
_SPANS_ORDERS = ("fit_seconds", "predict_seconds")  # drawn on a logarithmic axis


class ModelComparisonDisplay:
    """Models beside each other, one panel for each of some columns of their table.

    Parameters
    ----------
    models : list of str
        Names, from the top of the picture down.
    values, errors : dict of str to ndarray of shape (n_models,)
        Columns of the table and their standard errors, nan where there are none.
    is_bound : ndarray of bool of shape (n_models,)
        Whether the evidence is a lower bound.

    Attributes
    ----------
    ax_ : matplotlib Axes or ndarray of Axes
        The panels; one Axes if there is one column.
    figure_ : matplotlib Figure

    See Also
    --------
    skbayes_sym.model_selection.compare_models : Makes the table.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import ARDRegression, BayesianRidge
    >>> from skbayes_sym.inspection import ModelComparisonDisplay
    >>> from skbayes_sym.model_selection import compare_models
    >>> X, y = load_diabetes(return_X_y=True)
    >>> table = compare_models({"ridge": BayesianRidge(), "ARD": ARDRegression()}, X, y)
    >>> display = ModelComparisonDisplay.from_table(table)
    >>> len(display.ax_)
    3
    >>> plt.close(display.figure_)
    """

    def __init__(
        self, models: Sequence[str], values: dict[str, Array], errors: dict[str, Array],
        is_bound: Array,
    ) -> None:  # fmt: skip
        for name, columns in {"values": values, "errors": errors}.items():
            if not isinstance(columns, Mapping):
                kind = "a dict of columns of the table"
                raise TypeError(f"{_NAME}: {name} must be {kind}, got {shown(columns)}.")
        arrays = check_arrays(_NAME, {"is_bound": "m"}, is_bound=is_bound)
        self.is_bound = arrays["is_bound"].astype(bool)
        n = len(self.is_bound)
        self.models = check_names(_NAME, "models", models, n)
        shapes = {str(name): n for name in (*values, *errors)}
        self.values = check_arrays(_NAME, shapes, **values)
        self.errors = check_arrays(_NAME, shapes, **errors)

    @classmethod
    def from_table(
        cls, table: Any, *, ax: Any = None, columns: Sequence[str] | None = None
    ) -> "ModelComparisonDisplay":
        """Take the numbers from a table and plot.

        Parameters
        ----------
        table : pandas.DataFrame or dict
            As `compare_models` returns it; rows may be chosen or sorted first.
        ax, columns : object
            As for `plot`.

        Returns
        -------
        ModelComparisonDisplay
        """
        columns_of = table.columns if is_frame(table) else table if isinstance(table, dict) else ()
        needed = {"evidence_side", "model"} if isinstance(table, dict) else {"evidence_side"}
        if not needed <= set(columns_of):
            raise TypeError(f"table must be what compare_models returns, got {shown(table)}.")
        models = table["model"] if isinstance(table, dict) else table.index
        values = {k: np.asarray(table[k], dtype=float) for k in _LABELS if k in table}
        unknown = np.full(len(models), np.nan)
        errors = {
            k: np.asarray(table[f"{k}_se"], dtype=float) if f"{k}_se" in table else unknown
            for k in values
        }
        is_bound = np.asarray(table["evidence_side"]) == "lower"
        return cls([str(name) for name in models], values, errors, is_bound).plot(
            ax, columns=columns
        )

    def plot(
        self, ax: Any = None, *, columns: Sequence[str] | None = None
    ) -> "ModelComparisonDisplay":
        """Draw a panel a column, a point a model, with bars of two standard errors.

        Parameters
        ----------
        ax : matplotlib Axes or sequence of Axes, optional
            One for each column, or one whose frame the columns share; by default a new figure.
        columns : sequence of str, optional
            By default "difference", "rmse" or "accuracy", and "calibration_error". An evidence that
            is a lower bound points to the right; seconds are on a logarithmic axis. Nothing is
            drawn where a number isn't finite.

        Returns
        -------
        self : ModelComparisonDisplay
        """
        shown = self._shown(columns)
        if ax is None or not np.ndim(ax):
            size = (1.0 + 1.8 * len(shown), 1.1 + 0.33 * len(self.models))
            ax, _ = open_axes(ax, self, size)
        panels = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
        if len(panels) == 1 < len(shown):
            panels = np.array(split_axes(panels[0], [1.0] * len(shown), gap=0.12 / len(shown)))
        if len(panels) != len(shown):
            raise ValueError(f"ax has {len(panels)} Axes for the {len(shown)} columns {shown}.")
        for panel, name in zip(panels, shown, strict=True):
            self._draw(panel, name)
            panel.tick_params(labelleft=panel is panels[0])
        self.ax_ = panels if len(panels) > 1 else panels[0]
        self.figure_ = panels[0].figure
        return self

    def _shown(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            usual = ("difference", "rmse", "accuracy", "calibration_error")
            return [name for name in usual if name in self.values]
        missing = [name for name in columns if name not in self.values]
        if missing or not columns:
            raise ValueError(f"columns must be among {list(self.values)}, got {list(columns)}.")
        return list(columns)

    def _draw(self, panel: Any, name: str) -> None:
        values, errors = self.values[name], self.errors[name]
        places = np.arange(len(values))
        drawn = np.isfinite(values)
        bars = 2.0 * np.nan_to_num(errors[drawn])
        panel.errorbar(values[drawn], places[drawn], xerr=bars, fmt="o", color=BLUE, ms=5)
        if name == "difference":
            panel.axvline(0.0, color=GREY, lw=1, zorder=0)
        if name == "evidence":
            bound = drawn & self.is_bound
            panel.plot(values[bound], places[bound], ">", color=BLUE, ms=9)
        if name in _SPANS_ORDERS:
            panel.set_xscale("log")
        else:
            panel.locator_params(axis="x", nbins=3)
            panel.ticklabel_format(axis="x", useOffset=False)
        panel.set_yticks(places, self.models)
        panel.margins(x=0.12)
        panel.set_ylim(len(values) - 0.5, -0.5)  # the first on top
        panel.set_xlabel(_LABELS[name])
        panel.grid(axis="y", color="0.92")
        panel.set_axisbelow(True)
        no_box(panel)
