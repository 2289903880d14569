"""The modes of a sampled posterior: what they weigh, and how many chains found them."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inspection._drawing import (
    BLUE,
    VERMILLION,
    Display,
    legend_on_top,
    no_box,
    split_axes,
)
from skbayes_sym.inspection._fitted import fitted_model, require
from skbayes_sym.numerics.arguments import check_arrays

_COLUMNS = ("weight", "log_evidence", "std_error", "n_explorers")
_MOST_MODES = 10  # drawn, in the order given
_LEGEND = 0.5  # rows that the legend takes


class ModesDisplay(Display):
    """Posterior mass of every mode beside the share of chains that found it, and its log evidence.

    Bars are masses, by bridge sampling; open dots the shares of the chains that ended in the mode,
    each from its own start. Where the two differ, counting chains would have been wrong. The right
    panel has the log evidence of each mode, all symmetric copies counted, with two standard errors
    to either side.

    Parameters
    ----------
    weight : ndarray of shape (n_modes,)
        Posterior masses; NaN where they can't be trusted.
    log_evidence, std_error : ndarray of shape (n_modes,)
        Nats.
    n_explorers : ndarray of int of shape (n_modes,)
        Chains that ended there on their own.

    Attributes
    ----------
    ax_ : matplotlib Axes
        The axes given, or new ones; the frame of the two panels.
    axes_ : list of two matplotlib Axes
        Shares, and log evidences.
    figure_ : matplotlib Figure
    bars_ : matplotlib BarContainer
        Masses.
    found_ : matplotlib Line2D
        Shares of the chains.
    evidence_ : matplotlib ErrorbarContainer

    See Also
    --------
    skbayes_sym.MCMCRegressor : Its attribute ``modes_``.
    SymmetryDisplay : Where the modes lie in the space of weights.

    Notes
    -----
    A mode that nobody visited isn't here; ``diagnostics_.unseen_basin`` says how large its basin
    can be.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym.inspection import ModesDisplay
    >>> display = ModesDisplay(
    ...     np.array([0.9, 0.1]), np.array([-50.0, -52.2]), np.array([0.1, 0.2]), np.array([12, 20])
    ... )
    >>> display.plot().found_.get_xdata()
    array([0.375, 0.625])
    """

    def __init__(
        self, weight: Array, log_evidence: Array, std_error: Array, n_explorers: Array
    ) -> None:
        arrays = check_arrays(
            "ModesDisplay", dict.fromkeys(_COLUMNS, "m"), weight=weight, log_evidence=log_evidence,
            std_error=std_error, n_explorers=n_explorers,
        )  # fmt: skip
        self.weight = arrays["weight"]
        self.log_evidence = arrays["log_evidence"]
        self.std_error = arrays["std_error"]
        self.n_explorers = arrays["n_explorers"]

    @classmethod
    def from_estimator(cls, estimator: BaseEstimator, *, ax: Any = None, **kwargs: Any) -> Self:
        """Read the modes off a fit and plot.

        Parameters
        ----------
        estimator : estimator
            Fitted, with ``modes_``, or a pipeline or search around it.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the masses' ``Axes.barh``.

        Raises
        ------
        TypeError
            If it knows no modes.
        ValueError
            If it didn't look for any.
        """
        model = fitted_model(estimator).model
        require(model, ["modes_"], cls.__name__, "a sampled posterior that was searched for modes")
        if not model.modes_:
            raise ValueError(
                f"ModesDisplay needs modes, and this {type(model).__name__} has none: fit it with "
                'remove_symmetries=ModeWeights("evidence").'
            )
        columns = {n: np.array([getattr(mode, n) for mode in model.modes_]) for n in _COLUMNS}
        return cls(**columns).plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        return 6.0, 1.6 + 0.45 * min(len(self.weight), _MOST_MODES)

    def _draw(self, style: dict[str, Any]) -> None:
        n = min(len(self.weight), _MOST_MODES)
        self.axes_ = split_axes(self.ax_, (1.3, 1.0))
        self._draw_shares(self.axes_[0], n, style)
        self._draw_evidence(self.axes_[1], n)
        for panel in self.axes_:
            panel.set_ylim(n - 0.5, -0.5 - _LEGEND)
            no_box(panel)

    def _draw_shares(self, ax: Any, n: int, style: dict[str, Any]) -> None:
        rows = np.arange(n)
        share = self.n_explorers / max(np.sum(self.n_explorers), 1)
        mass = np.nan_to_num(self.weight[:n])
        self.bars_ = ax.barh(
            rows, mass, **{"height": 0.6, "color": BLUE, "alpha": 0.6, "label": "mass", **style}
        )
        (self.found_,) = ax.plot(
            share[:n], rows, "o", ms=7, mfc="white", mew=2, color=VERMILLION, clip_on=False,
            label="share of chains",
        )  # fmt: skip
        ax.set_yticks(rows, [f"mode {k}: {self.n_explorers[k]} chains" for k in range(n)])
        unknown = "" if np.all(np.isfinite(self.weight)) else " (masses not trusted)"
        hidden = len(self.weight) - n
        rest = f"; {hidden} lighter modes not shown" if hidden else ""
        ax.set(xlim=(0, 1), xlabel=f"share of the posterior{unknown}{rest}")
        handles = [self.bars_, self.found_]
        legend_on_top(ax, n_columns=2, share=0.0, handles=handles)

    def _draw_evidence(self, ax: Any, n: int) -> None:
        rows = np.arange(n)
        self.evidence_ = ax.errorbar(
            self.log_evidence[:n], rows, xerr=2.0 * self.std_error[:n], fmt="o", ms=5,
            color="black", capsize=3,
        )  # fmt: skip
        ax.set_yticks([])
        ax.margins(x=0.15)
        ax.locator_params(axis="x", nbins=3)
        ax.ticklabel_format(axis="x", useOffset=False)
        ax.set_xlabel("log evidence (nats)")
