"""Whether predictive intervals hold as many observations as they promise."""

from typing import Any, Self

import numpy as np
from scipy.stats import binom
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length

from skbayes_sym.base.rows import Array
from skbayes_sym.inspection._drawing import COLOURS, GREY, MARKERS, Display, no_box
from skbayes_sym.inspection._fitted import regression_distribution, select_target
from skbayes_sym.metrics import interval_calibration_error
from skbayes_sym.numerics.arguments import check_arrays, check_count, check_name, check_number

_DIAGONAL = "perfect"
_CURVE = "calibration curve"  # marks those that are counted


class IntervalCalibrationDisplay(Display):
    r"""Nominal against observed coverage of central predictive intervals.

    Below the diagonal a model is too sure of itself, above it not sure enough. The legend gives the
    distance of the two, averaged over all coverages
    (`~skbayes_sym.metrics.interval_calibration_error`): 0 is perfect, 1/2 the worst. The grey band
    holds, at each coverage, a perfect model with probability 0.95, for so many independent rows.

    Parameters
    ----------
    nominal : ndarray of shape (n_coverages,)
        Coverages that the intervals were made for.
    observed : ndarray of shape (n_coverages,)
        Shares of the observations they hold.
    n_rows : int
        Number of observations.
    error : float
        `skbayes_sym.metrics.interval_calibration_error`, over all coverages.
    name : str, default="model"

    Attributes
    ----------
    band : ndarray of shape (n_coverages, 2)
        Ends of the band of chance.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D
        Observed over nominal coverage.
    band_ : matplotlib FillBetweenPolyCollection or None
        None where an earlier plot in the same axes has drawn it.

    See Also
    --------
    PredictiveDisplay : The intervals themselves.
    sklearn.calibration.CalibrationDisplay : The probabilities of a classifier.

    Notes
    -----
    Central intervals can hold the right share and still be shifted: too high for some rows, too low
    for others. Counts (``likelihood="poisson"``) are held by more intervals than nominal, since
    their quantiles are whole numbers.

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
            "IntervalCalibrationDisplay", {"nominal": "c", "observed": "c"}, nominal=nominal,
            observed=observed,
        )  # fmt: skip
        self.nominal = arrays["nominal"]
        self.observed = arrays["observed"]
        self.n_rows = check_count("n_rows", n_rows)
        self.error = check_number("error", error, 0.0)
        self.name = name

    @property
    def band(self) -> Array:
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
        """Predict, count and plot.

        Parameters
        ----------
        estimator : estimator
            Fitted regressor that `skbayes_sym.predictive` takes: one of the package, a pipeline or
            search around one, or any other with ``predict(X, return_std=True)``.
        X : array-like of shape (n_samples, n_features)
            Rows that the fit didn't see.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
        coverages : array-like of float in (0, 1), optional
            Increasing; by default 0.05, 0.1, ..., 0.95.
        target : int, default=0
            Which of several targets.
        name : str, optional
            For the legend; the estimator's class by default.
        ax : matplotlib Axes, optional
            Those of an earlier display to compare with it; new ones by default.
        **kwargs : dict
            For the curve's ``Axes.plot``.

        Raises
        ------
        TypeError
            If it predicts no distribution of numbers.
        """
        check_consistent_length(X, y)
        model, distribution = regression_distribution(estimator, X, cls.__name__)
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
        """Count and plot.

        Parameters
        ----------
        cdf : array-like of shape (n_samples,)
            Predicted probability that a target lies at or below the observed one. Of normal
            predictions it is ``scipy.stats.norm.cdf(y, mean, std)``.
        coverages, name, ax, **kwargs : object
            As for `from_estimator`; "model" is the default name.

        """
        coverages = np.linspace(0.05, 0.95, 19) if coverages is None else coverages
        shapes = {"coverages": "c", "cdf": "n"}
        nominal, cdf = check_arrays(cls.__name__, shapes, coverages=coverages, cdf=cdf).values()
        if not np.all((nominal > 0) & (nominal < 1)) or np.any(np.diff(nominal) <= 0):
            raise ValueError(f"coverages must increase strictly within (0, 1), got {coverages!r}.")
        error = interval_calibration_error(cdf)
        reached = np.abs(2.0 * np.asarray(cdf, dtype=float) - 1.0)  # coverage that holds each row
        observed = (reached[:, None] <= nominal).mean(axis=0)
        display = cls(nominal, observed, len(reached), error, name=name)
        return display.plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        return (6.0, 4.2)

    def _draw(self, style: dict[str, Any]) -> None:
        self.band_ = None
        if _DIAGONAL not in self.ax_.get_legend_handles_labels()[1]:
            self.ax_.plot([0, 1], [0, 1], "--", color=GREY, lw=1, label=_DIAGONAL)
            self.band_ = self.ax_.fill_between(
                self.nominal, *self.band.T, color="0.88", lw=0, zorder=0,
                label=f"range of chance, {self.n_rows} rows",
            )  # fmt: skip
        n = sum(line.get_gid() == _CURVE for line in self.ax_.get_lines())  # of earlier displays
        series = {
            "color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)], "ms": 4,
            "gid": _CURVE, "label": f"{self.name} (error {self.error:.3f})",
        }  # fmt: skip
        (self.line_,) = self.ax_.plot(self.nominal, self.observed, **{**series, **style})
        self.ax_.set(
            xlim=(0, 1), ylim=(0, 1), xlabel="coverage of the intervals",
            ylabel="share of observations inside",
        )  # fmt: skip
        self.ax_.legend(loc="lower right", frameon=False, fontsize="small")
        no_box(self.ax_)
