"""What symmetry adds to the bounds of one or several estimators."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inspection._drawing import BLUE, GREY, VERMILLION, legend_on_top, no_box, open_axes
from skbayes_sym.inspection._fitted import fitted_model, require
from skbayes_sym.numerics.arguments import check_arrays, check_name, check_names, shown


class GapDisplay:
    """Mean-field bound, symmetry gap and symmetrised bound, a line an estimator.

    The open dot is the bound of the posterior that ignores the symmetry, the filled one the bound
    that knows it; the symmetry gap between them is written on the line. Both are lower bounds on
    the log evidence of the same model and data, so they compare models like evidences do.

    Parameters
    ----------
    names : sequence of str of length n
    elbo_mean_field, symmetry_gap, elbo : ndarray of shape (n,)
        Nats.
    elbo_std_error : ndarray of shape (n,), optional
        Monte Carlo standard errors of ``elbo``; 0 by default.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    mean_field_, symmetrised_ : matplotlib Line2D
        The dots.
    gaps_ : matplotlib LineCollection
    texts_ : list of matplotlib Annotation
        The gaps in nats, one an estimator.

    See Also
    --------
    skbayes_sym.invariance_gap : The gap of any posterior under its model's group.
    ELBODisplay : One bound during a fit.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.inspection import GapDisplay
    >>> reg = BayesianLinearRegressor().fit(*load_diabetes(return_X_y=True))
    >>> GapDisplay.from_estimator(reg, name="linear").symmetry_gap.round(1)
    array([2.9])
    """

    def __init__(
        self,
        names: Sequence[str],
        elbo_mean_field: Array,
        symmetry_gap: Array,
        elbo: Array,
        *,
        elbo_std_error: Array | None = None,
    ) -> None:
        columns = ("elbo_mean_field", "symmetry_gap", "elbo", "elbo_std_error")
        given = check_arrays(
            "GapDisplay", {**dict.fromkeys(columns, "n"), "elbo_std_error": "n?"},
            elbo_mean_field=elbo_mean_field, symmetry_gap=symmetry_gap, elbo=elbo,
            elbo_std_error=elbo_std_error,
        )  # fmt: skip
        self.elbo = given["elbo"]
        self.names = check_names("GapDisplay", "names", names, len(self.elbo))
        self.elbo_mean_field = given["elbo_mean_field"]
        self.symmetry_gap = given["symmetry_gap"]
        self.elbo_std_error = given.get("elbo_std_error")

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        *,
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> "GapDisplay":
        """Read the bounds off one fit and plot.

        Parameters
        ----------
        estimator : estimator
            Fitted variational estimator, or a pipeline or search around one.
        name : str, optional
            The estimator's class by default.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the symmetrised bound's ``Axes.plot``.

        Returns
        -------
        GapDisplay

        Raises
        ------
        NotFittedError
            If the estimator isn't fitted.
        TypeError
            If it has no bounds.
        """
        usual = type(fitted_model(estimator).model).__name__
        name = check_name("GapDisplay", "name", name, usual)
        return cls.from_estimators({name: estimator}, ax=ax, **kwargs)

    @classmethod
    def from_estimators(
        cls, estimators: Mapping[str, Any], *, ax: Any = None, **kwargs: Any
    ) -> "GapDisplay":
        """Read the bounds off several fits and plot.

        Parameters
        ----------
        estimators : dict of str to estimator
            Fitted on the same data, as for `from_estimator`; the first is drawn at the top.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the symmetrised bounds' ``Axes.plot``.

        Returns
        -------
        GapDisplay
        """
        if not isinstance(estimators, Mapping) or not estimators:
            kind = "a dict of names to estimators"
            raise TypeError(f"estimators must be {kind}, got {shown(estimators)}.")
        models = [fitted_model(estimator).model for estimator in estimators.values()]
        columns = ("elbo_mean_field_", "symmetry_gap_", "elbo_", "elbo_std_error_")
        for model in models:
            require(
                model,
                columns,
                cls.__name__,
                "bounds with and without a symmetry",
            )
        values = [np.array([float(getattr(m, c)) for m in models]) for c in columns]
        display = cls(list(estimators), *values[:3], elbo_std_error=values[3])
        return display.plot(ax=ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> "GapDisplay":
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the symmetrised bounds' ``Axes.plot``.

        Returns
        -------
        self : GapDisplay

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        n = len(self.names)
        self.ax_, self.figure_ = open_axes(ax, self, size=(6.0, 1.3 + 0.5 * n))
        rows = np.arange(n)
        self.gaps_ = self.ax_.hlines(rows, self.elbo_mean_field, self.elbo, color=GREY, lw=2)
        open_dot = {"marker": "o", "ls": "", "ms": 8, "mfc": "white", "color": BLUE}
        (self.mean_field_,) = self.ax_.plot(
            self.elbo_mean_field, rows, label="mean-field bound", **open_dot
        )
        error = np.zeros(n) if self.elbo_std_error is None else self.elbo_std_error
        self.ax_.errorbar(self.elbo, rows, xerr=error, ls="", color=VERMILLION, capsize=3)
        dot = {"marker": "o", "ls": "", "ms": 8, "color": VERMILLION}
        (self.symmetrised_,) = self.ax_.plot(
            self.elbo, rows, **{"label": "symmetrised bound", **dot, **kwargs}
        )
        self.texts_ = [
            self.ax_.annotate(
                f"+{gap:.1f}", (0.5 * (low + high), row), (0, 6),
                textcoords="offset points", ha="center", fontsize="small",
            )
            for gap, low, high, row in zip(
                self.symmetry_gap, self.elbo_mean_field, self.elbo, rows, strict=True
            )
        ]  # fmt: skip
        self.ax_.set_yticks(rows, self.names)
        self.ax_.set(xlabel="lower bound on the log evidence (nats)", ylim=(n - 0.5, -0.6))
        self.ax_.margins(x=0.08)
        self.ax_.ticklabel_format(axis="x", useOffset=False)
        legend_on_top(self.ax_, n_columns=2, share=0.4 / (n + 1))
        no_box(self.ax_)
        return self
