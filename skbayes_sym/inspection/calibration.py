"""Calibration of predictive intervals: nominal and observed coverage."""

from typing import Any, Self

import numpy as np
from scipy.stats import binom
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length

from skbayes_sym.base.input_validation import warn_reordered_rows
from skbayes_sym.base.rows import Array
from skbayes_sym.inspection._drawing import COLOURS, GREY, MARKERS, Display, hide_frame
from skbayes_sym.inspection._fitted import predict_regression, select_target
from skbayes_sym.metrics import interval_calibration_error
from skbayes_sym.numerics.arguments import check_arrays, check_count, check_name, check_number

_DIAGONAL = "perfect"
_CURVE = "calibration curve"  # identifies the curves of earlier displays


class IntervalCalibrationDisplay(Display):
    r"""Nominal against observed coverage of central predictive intervals.

    Below the diagonal a model is overconfident, above it underconfident. The legend gives the
    absolute difference of nominal and observed coverage, averaged over all coverages
    (`~skbayes_sym.metrics.interval_calibration_error`): 0 is perfect and 1/2 the worst. At each
    coverage, a perfect model lies in the grey band with probability 0.95, if the rows are
    independent.

    Parameters
    ----------
    nominal : ndarray of shape (n_coverages,)
        Nominal coverages of the intervals.
    observed : ndarray of shape (n_coverages,)
        Fractions of the observations in the intervals.
    n_rows : int
        Number of observations.
    error : float
        `skbayes_sym.metrics.interval_calibration_error`, over all coverages.
    name : str, default="model"
        Name in the legend.

    Attributes
    ----------
    band : ndarray of shape (n_coverages, 2)
        Lower and upper limits of the grey band.
    ax_ : matplotlib Axes
        Axes of the plot.
    figure_ : matplotlib Figure
        Figure of the plot.
    line_ : matplotlib Line2D
        Observed over nominal coverage.
    band_ : matplotlib FillBetweenPolyCollection or None
        Grey band, or None if an earlier display in the same axes has drawn it.

    See Also
    --------
    PredictiveDisplay : Plot the intervals themselves.
    sklearn.calibration.CalibrationDisplay : Calibration of a classifier's probabilities.

    Notes
    -----
    Central intervals can have the right coverage and still be shifted: too high for some rows and
    too low for others. For counts (``likelihood="poisson"``) the observed coverage exceeds the
    nominal one, because their quantiles are integers.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.inspection import IntervalCalibrationDisplay
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = BayesianLinearRegressor().fit(X[:300], y[:300])
    >>> display = IntervalCalibrationDisplay.from_estimator(reg, X[300:], y[300:])
    >>> display.error < 0.1
    True
    """

    def __init__(
        self, nominal: Array, observed: Array, n_rows: int, error: float, *, name: str = "model"
    ) -> None:
        arrays = check_arrays(
            "IntervalCalibrationDisplay",
            {"nominal": "c", "observed": "c"},
            nominal=nominal,
            observed=observed,
        )
        self.nominal = arrays["nominal"]
        self.observed = arrays["observed"]
        self.n_rows = check_count("n_rows", n_rows)
        self.error = check_number("error", error, 0.0)
        self.name = name

    @property
    def band(self) -> Array:
        """Central interval of the observed coverage of a perfect model, with probability 0.95."""
        ends = binom.interval(0.95, self.n_rows, np.asarray(self.nominal))
        return np.stack(ends, axis=-1) / self.n_rows

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: Any,
        y: Any,
        *,
        coverages: Any = None,
        target: int = 0,
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Predict, compute the observed coverages and plot them.

        Parameters
        ----------
        estimator : estimator
            Fitted regressor that `skbayes_sym.predictive` supports: one of this package, a pipeline
            or search around one, or any other with ``predict(X, return_std=True)``.
        X : array-like of shape (n_samples, n_features)
            Test rows.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Observed targets.
        coverages : array-like of float in (0, 1), optional
            Nominal coverages in increasing order; 0.05, 0.1, ..., 0.95 by default.
        target : int, default=0
            Index of the target.
        name : str, optional
            Name in the legend; the class name of the estimator by default.
        ax : matplotlib Axes, optional
            Axes to draw into, for example those of an earlier display for comparison. New axes by
            default.
        **kwargs : dict
            Arguments of ``Axes.plot`` for the curve.

        Returns
        -------
        IntervalCalibrationDisplay

        Raises
        ------
        TypeError
            If the estimator doesn't predict a distribution of a regression target.
        """
        check_consistent_length(X, y)
        warn_reordered_rows(X, y=y)
        model, distribution = predict_regression(estimator, X, cls.__name__)
        name = check_name(cls.__name__, "name", name, type(model).__name__)
        return cls.from_predictions(
            select_target(distribution.cdf(y), target, ndim=1),
            coverages=coverages,
            name=name,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls, cdf: Any, *, coverages: Any = None, name: str = "model", ax: Any = None, **kwargs: Any
    ) -> Self:
        """Compute the observed coverages of given predictions and plot them.

        Parameters
        ----------
        cdf : array-like of shape (n_samples,)
            Predicted cumulative distribution function at the observed targets. For normal
            predictions it is ``scipy.stats.norm.cdf(y, mean, std)``.
        coverages : array-like of float in (0, 1), optional
            Nominal coverages in increasing order; 0.05, 0.1, ..., 0.95 by default.
        name : str, default="model"
            Name in the legend.
        ax : matplotlib Axes, optional
            Axes to draw into. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.plot`` for the curve.

        Returns
        -------
        IntervalCalibrationDisplay

        Raises
        ------
        ValueError
            If ``coverages`` don't increase within (0, 1).
        """
        if coverages is None:
            coverages = np.linspace(0.05, 0.95, 19)
        shapes = {"coverages": "c", "cdf": "n"}
        nominal, cdf = check_arrays(cls.__name__, shapes, coverages=coverages, cdf=cdf).values()
        if not np.all((nominal > 0) & (nominal < 1)) or np.any(np.diff(nominal) <= 0):
            raise ValueError(f"coverages must increase strictly within (0, 1), got {coverages!r}.")
        error = interval_calibration_error(cdf)
        # The smallest central interval that contains each observation.
        min_coverage = np.abs(2.0 * np.asarray(cdf, dtype=float) - 1.0)
        observed = (min_coverage[:, None] <= nominal).mean(axis=0)
        display = cls(nominal, observed, len(min_coverage), error, name=name)
        return display.plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        return (6.0, 4.2)

    def _draw(self, style: dict[str, Any]) -> None:
        self.band_ = None
        if _DIAGONAL not in self.ax_.get_legend_handles_labels()[1]:
            self.ax_.plot([0, 1], [0, 1], "--", color=GREY, lw=1, label=_DIAGONAL)
            self.band_ = self.ax_.fill_between(
                self.nominal,
                *self.band.T,
                color="0.88",
                lw=0,
                zorder=0,
                label=f"range of chance, {self.n_rows} rows",
            )
        n_earlier = sum(line.get_gid() == _CURVE for line in self.ax_.get_lines())
        curve_style = {
            "color": COLOURS[n_earlier % len(COLOURS)],
            "marker": MARKERS[n_earlier % len(MARKERS)],
            "ms": 4,
            "gid": _CURVE,
            "label": f"{self.name} (error {self.error:.3f})",
        }
        (self.line_,) = self.ax_.plot(self.nominal, self.observed, **{**curve_style, **style})
        self.ax_.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel="coverage of the intervals",
            ylabel="fraction of observations inside",
        )
        self.ax_.legend(loc="lower right", frameon=False, fontsize="small")
        hide_frame(self.ax_)
