"""Calibration of class probabilities: predicted probability and observed frequency."""

from datetime import date
from decimal import Decimal
from numbers import Real
from typing import Any, Self

import numpy as np
from scipy.stats import beta
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length

from skbayes_sym.base.input_validation import warn_reordered_rows
from skbayes_sym.base.rows import Array
from skbayes_sym.inspection._drawing import COLOURS, GREY, MARKERS, Display, hide_frame
from skbayes_sym.inspection._fitted import (
    check_observed_classes,
    require_attributes,
    unwrap_fitted,
)
from skbayes_sym.numerics.arguments import check_arrays, check_count, check_name, short_repr

_DIAGONAL = "perfect"
_CURVE = "class calibration curve"  # identifies the curves of earlier displays


class ClassCalibrationDisplay(Display):
    """Reliability diagram of class probabilities, with the uncertainty of the frequencies.

    Rows are sorted by their predicted probability and divided into bins of equal numbers of rows.
    A point shows the mean probability and the observed frequency of a bin, with a 95 % interval of
    the frequency. Above 0.5, points below the diagonal show that a model is overconfident.

    Parameters
    ----------
    probability : ndarray of shape (n_bins,)
        Mean predicted probabilities of the bins.
    n_events : ndarray of shape (n_bins,)
        Numbers of rows in which the event happened.
    n_rows : ndarray of shape (n_bins,)
        Numbers of rows in the bins.
    event : str, default="event"
        Description of the event whose probability is predicted, for the labels of the axes.
    name : str, default="model"
        Name in the legend.

    Attributes
    ----------
    frequency : ndarray of shape (n_bins,)
        Observed frequencies.
    interval : ndarray of shape (n_bins, 2)
        Limits of the 95 % intervals of the frequencies.
    ax_ : matplotlib Axes
        Axes of the plot.
    figure_ : matplotlib Figure
        Figure of the plot.
    points_ : matplotlib ErrorbarContainer
        Frequencies and their intervals.

    See Also
    --------
    IntervalCalibrationDisplay : Calibration of the intervals of regressors.
    skbayes_sym.metrics.expected_calibration_error : Distance from the diagonal.

    Notes
    -----
    The intervals are Jeffreys intervals: central intervals of the posterior of a frequency under
    the prior Beta(1/2, 1/2).

    References
    ----------
    Brown, Cai & DasGupta (2001). Interval estimation for a binomial proportion.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym.inspection import ClassCalibrationDisplay
    >>> probability = np.linspace(0.05, 0.95, 200)
    >>> happened = np.random.default_rng(0).random(200) < probability
    >>> display = ClassCalibrationDisplay.from_predictions(happened, probability, n_bins=5)
    >>> display.n_rows
    array([40, 40, 40, 40, 40])
    """

    def __init__(
        self,
        probability: Array,
        n_events: Array,
        n_rows: Array,
        *,
        event: str = "event",
        name: str = "model",
    ) -> None:
        arrays = check_arrays(
            "ClassCalibrationDisplay",
            {"probability": "b", "n_events": "b", "n_rows": "b"},
            probability=probability,
            n_events=n_events,
            n_rows=n_rows,
        )
        self.probability = arrays["probability"]
        self.n_events = arrays["n_events"]
        self.n_rows = arrays["n_rows"]
        self.event = event
        self.name = name

    @property
    def frequency(self) -> Array:
        """Observed frequencies of the bins."""
        return np.asarray(self.n_events / self.n_rows)

    @property
    def interval(self) -> Array:
        """Jeffreys intervals of the frequencies, with probability 0.95."""
        n_others = self.n_rows - self.n_events
        low, high = beta.interval(0.95, self.n_events + 0.5, n_others + 0.5)
        low = np.where(self.n_events == 0, 0.0, low)
        high = np.where(n_others == 0, 1.0, high)
        return np.stack([low, high], axis=-1)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: Any,
        y: Any,
        *,
        pos_label: Any = None,
        n_bins: int = 10,
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Predict, compute the observed frequencies and plot them.

        Parameters
        ----------
        estimator : estimator
            Fitted classifier with ``predict_proba``, alone or in a pipeline or a search.
        X : array-like of shape (n_samples, n_features)
            Test rows.
        y : array-like of shape (n_samples,)
            Observed classes.
        pos_label : int, float, bool or str, optional
            Class whose probability is shown. By default the second of two classes; for more
            classes, the most probable class of each row.
        n_bins : int, default=10
            Number of bins with equal numbers of rows.
        name : str, optional
            Name in the legend; the class name of the estimator by default.
        ax : matplotlib Axes, optional
            Axes to draw into, for example those of an earlier display for comparison. New axes by
            default.
        **kwargs : dict
            Arguments of ``Axes.errorbar``.

        Returns
        -------
        ClassCalibrationDisplay

        Raises
        ------
        TypeError
            If the estimator doesn't predict class probabilities.
        ValueError
            If ``pos_label`` isn't a class of the estimator.
        """
        check_consistent_length(X, y)
        warn_reordered_rows(X, y=y)
        model: Any = unwrap_fitted(estimator).model
        required = ["predict_proba", "classes_"]
        require_attributes(model, required, cls.__name__, "a classifier with probabilities")
        name = check_name(cls.__name__, "name", name, type(model).__name__)
        classifier: Any = estimator
        probabilities = np.asarray(classifier.predict_proba(X))
        classes = np.asarray(classifier.classes_)
        observed = check_observed_classes(classifier, y)
        if pos_label is None and len(classes) > 2:
            happened = probabilities.argmax(axis=1) == observed
            probability = probabilities.max(axis=1)
            event = "the most probable class"
        else:
            label = classes[-1] if pos_label is None else pos_label
            positions = np.flatnonzero([_is_same(name, label) for name in classes.tolist()])
            if len(positions) != 1:
                raise ValueError(
                    f"pos_label must be one of the classes {classes.tolist()}, got "
                    f"{short_repr(pos_label)}."
                )
            happened = observed == positions[0]
            probability = probabilities[:, positions[0]]
            event = f"class {label}"
        return cls.from_predictions(
            happened, probability, n_bins=n_bins, event=event, name=name, ax=ax, **kwargs
        )

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        n_bins: int = 10,
        event: str = "event",
        name: str = "model",
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Compute the observed frequencies of given predictions and plot them.

        Parameters
        ----------
        y_true : array-like of bool of shape (n_samples,)
            Whether the event happened.
        y_prob : array-like of shape (n_samples,)
            Predicted probabilities of the event.
        n_bins : int, default=10
            Number of bins with equal numbers of rows; at most one bin per row.
        event : str, default="event"
            Description of the event, for the labels of the axes.
        name : str, default="model"
            Name in the legend.
        ax : matplotlib Axes, optional
            Axes to draw into. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.errorbar``.

        Returns
        -------
        ClassCalibrationDisplay

        Raises
        ------
        ValueError
            If probabilities don't lie between 0 and 1, or ``y_true`` isn't boolean or 0 and 1.
        """
        shapes = {"y_true": "n", "y_prob": "n"}
        happened, probability = check_arrays(
            cls.__name__, shapes, y_true=np.asarray(y_true), y_prob=y_prob
        ).values()
        if not np.isin(happened, [0, 1]).all():
            raise ValueError(f"y_true must be boolean, or 0 and 1, got {short_repr(y_true)}.")
        if np.any((probability < 0) | (probability > 1)):
            raise ValueError(
                f"y_prob must lie between 0 and 1, got {probability.min():g} to "
                f"{probability.max():g}."
            )
        order = np.argsort(probability, kind="stable")
        bins = np.array_split(order, min(check_count("n_bins", n_bins), len(order)))
        means = np.array([probability[rows].mean() for rows in bins])
        n_events = np.array([happened[rows].sum() for rows in bins])
        n_rows = np.array([len(rows) for rows in bins])
        return cls(means, n_events, n_rows, event=event, name=name).plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        return (6.0, 4.2)

    def _draw(self, style: dict[str, Any]) -> None:
        if _DIAGONAL not in self.ax_.get_legend_handles_labels()[1]:
            self.ax_.plot([0, 1], [0, 1], "--", color=GREY, lw=1, label=_DIAGONAL)
        n_earlier = sum(line.get_gid() == _CURVE for line in self.ax_.get_lines())
        bars = np.abs(self.interval.T - self.frequency)
        point_style = {
            "color": COLOURS[n_earlier % len(COLOURS)],
            "fmt": MARKERS[n_earlier % len(MARKERS)] + "-",
            "ms": 4,
            "lw": 1,
            "label": f"{self.name} (95 % intervals)",
        }
        self.points_ = self.ax_.errorbar(
            self.probability, self.frequency, yerr=bars, **{**point_style, **style}
        )
        self.points_[0].set_gid(_CURVE)
        self.ax_.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel=f"predicted probability of {self.event}",
            ylabel="observed frequency",
            title="Calibration of class probabilities",
        )
        self.ax_.legend(loc="upper left", frameon=False, fontsize="small")
        hide_frame(self.ax_)


def _is_same(name: Any, label: Any) -> bool:
    """Whether a label of any type is a class."""
    return isinstance(label, str | bytes | Real | Decimal | date | np.generic) and name == label
