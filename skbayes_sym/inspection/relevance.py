"""Which columns of the input matter, by the scales that a prior has learned for them."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inspection._drawing import BLUE, GREY, no_box, open_axes
from skbayes_sym.inspection._fitted import fitted_model, require
from skbayes_sym.numerics.arguments import check_arrays, check_name, check_names

_ROW = 0.28  # inches a column takes, beside `_MARGIN` for the axis
_MARGIN = 1.2


class RelevanceDisplay:
    r"""Learned prior scale of the weights from every column, with its spread over restarts.

    Of automatic relevance determination (``prior=ARD()``): a column that the data have no use for
    has its scale driven down, the same for all hidden units. A dot is the geometric mean over the
    modes found from several starts, the line behind it runs from the smallest to the largest, and
    its ticks are the modes. The columns most relevant stand above.

    Parameters
    ----------
    relevance : ndarray of shape (n_modes, n_features)
        Scales, of standardised columns: ``relevance_`` of a fitted estimator.
    feature_names : sequence of str
    name : str, default="model"

    Attributes
    ----------
    mean : ndarray of shape (n_features,)
        Geometric mean over the modes.
    order : int ndarray of shape (n_features,)
        Columns, the most relevant first.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    points_ : matplotlib Line2D
        The dots, from the most relevant column on.
    ranges_ : matplotlib LineCollection

    See Also
    --------
    sklearn.inspection.permutation_importance : What predictions lose without a column.

    Notes
    -----
    Scales of different modes are alike where the data determine them; where ranges overlap the
    order says little. A column along which the function bends needs large weights; one that acts
    linearly gets by with small ones, and a larger weight behind the hidden units, so that a small
    scale doesn't say that a column is useless. Columns that carry the same information share it.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skbayes_sym import LaplaceRegressor
    >>> from skbayes_sym.inspection import RelevanceDisplay
    >>> from skbayes_sym.models import ARD
    >>> X, y = make_friedman1(150, noise=1.0, random_state=0)  # bent along the first three
    >>> reg = LaplaceRegressor((5,), prior=ARD(), n_restarts=2, random_state=0).fit(X, y)
    >>> display = RelevanceDisplay.from_estimator(reg)
    >>> sorted(display.order[:3].tolist())
    [0, 1, 2]
    """

    def __init__(self, relevance: Array, feature_names: list[str], *, name: str = "model") -> None:
        self.relevance = check_arrays("RelevanceDisplay", {"relevance": "md"}, relevance=relevance)[
            "relevance"
        ]
        n = self.relevance.shape[1]
        self.feature_names = check_names("RelevanceDisplay", "feature_names", feature_names, n)
        self.name = name

    @property
    def mean(self) -> Array:
        return np.asarray(np.exp(np.log(self.relevance).mean(axis=0)))

    @property
    def order(self) -> Array:
        return np.argsort(-self.mean, kind="stable")

    @classmethod
    def from_estimator(
        cls, estimator: BaseEstimator, *, name: str | None = None, ax: Any = None, **kwargs: Any
    ) -> "RelevanceDisplay":
        """Read the scales and plot them.

        Parameters
        ----------
        estimator : estimator
            Fitted one with ``relevance_``, such as `LaplaceRegressor(prior=ARD())`; or a pipeline
            or search around it.
        name : str, optional
            For the title; the estimator's class by default.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the dots' ``Axes.plot``.

        Returns
        -------
        RelevanceDisplay

        Raises
        ------
        NotFittedError
            If the estimator isn't fitted.
        TypeError
            If it has learned no scale per column.
        """
        model = fitted_model(estimator).model
        require(model, ["relevance_"], cls.__name__, "a fit with one scale a column (prior=ARD())")
        relevance = np.atleast_2d(model.relevance_)
        given = getattr(model, "feature_names_in_", None)
        numbers = [f"x{j}" for j in range(relevance.shape[1])]
        names = numbers if given is None else [str(one) for one in given]
        name = check_name(cls.__name__, "name", name, type(model).__name__)
        return cls(relevance, names, name=name).plot(ax=ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> "RelevanceDisplay":
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the dots' ``Axes.plot``.

        Returns
        -------
        self : RelevanceDisplay

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        order = self.order
        rows, values = np.arange(len(order)), self.relevance[:, order]
        self.ax_, self.figure_ = open_axes(ax, self, size=(6.0, _MARGIN + _ROW * len(order)))
        low, high = values.min(axis=0), values.max(axis=0)
        self.ranges_ = self.ax_.hlines(rows, low, high, color=GREY, lw=1.5, zorder=1)
        for one in values:
            self.ax_.plot(one, rows, "|", color=GREY, ms=7, zorder=1)
        style = {"color": BLUE, "marker": "o", "linestyle": "none", **kwargs}
        (self.points_,) = self.ax_.plot(self.mean[order], rows, zorder=2, **style)
        self.ax_.set_xscale("log")
        self.ax_.set_yticks(rows, [self.feature_names[j] for j in order])
        self.ax_.invert_yaxis()
        n_modes = len(values)
        modes = "1 mode" if n_modes == 1 else f"{n_modes} modes"
        self.ax_.set(xlabel=f"prior scale of a column's weights ({modes})", title=self.name)
        no_box(self.ax_)
        return self
