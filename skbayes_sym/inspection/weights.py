"""Weights and leave-one-out densities of the members of a stack."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.base.rows import Array
from skbayes_sym.inspection._drawing import BLUE, VERMILLION, Display, hide_frame, split_axes
from skbayes_sym.inspection._fitted import require_attributes, unwrap_fitted
from skbayes_sym.numerics.arguments import check_arrays, check_names


class StackWeightsDisplay(Display):
    """Weights of the members of a stack, and their leave-one-out log densities.

    The left panel shows the weights, which sum to 1. The right panel shows the mean log density of
    a row that the member wasn't fitted on, with bars of one standard error. A member can have a
    high density and a small weight if another member predicts the same.

    Parameters
    ----------
    names : sequence of str
        Names of the members.
    weights : ndarray of shape (n_members,)
        Weights of the members.
    log_density : ndarray of shape (n_members,)
        Mean leave-one-out log densities, in nats per row; NaN if a member has none.
    standard_error : ndarray of shape (n_members,), optional
        Standard errors of ``log_density``. Without them there are no error bars.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes whose area the panels share.
    figure_ : matplotlib Figure
        Figure of the plot.
    panels_ : list of matplotlib Axes
        Panels of the weights and of the densities.
    bars_ : matplotlib BarContainer
        Bars of the weights.
    points_ : matplotlib ErrorbarContainer
        Log densities and their standard errors.

    See Also
    --------
    ModelComparisonDisplay : Cross-validated densities of models that aren't in a stack.

    Examples
    --------
    >>> from skbayes_sym.inspection import StackWeightsDisplay
    >>> display = StackWeightsDisplay(
    ...     ["linear", "trees"], [0.75, 0.25], [-1.25, -1.5], [0.125, 0.25]
    ... )
    >>> display.names, display.weights
    (['linear', 'trees'], array([0.75, 0.25]))
    """

    def __init__(
        self,
        names: Sequence[str],
        weights: Array,
        log_density: Array,
        standard_error: Array | None = None,
    ) -> None:
        arrays = check_arrays(
            "StackWeightsDisplay",
            {"weights": "m", "log_density": "m", "standard_error": "m?"},
            weights=weights,
            log_density=log_density,
            standard_error=standard_error,
        )
        n_members = len(arrays["weights"])
        self.names = check_names("StackWeightsDisplay", "names", names, n_members)
        self.weights = arrays["weights"]
        self.log_density = arrays["log_density"]
        self.standard_error = arrays.get("standard_error")

    @classmethod
    def from_estimator(cls, estimator: BaseEstimator, *, ax: Any = None, **kwargs: Any) -> Self:
        """Plot the weights of a fitted stack.

        Parameters
        ----------
        estimator : estimator
            Fitted stack, alone or in a pipeline or a search.
        ax : matplotlib Axes, optional
            Axes whose area the panels share. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.barh`` for the weights.

        Returns
        -------
        StackWeightsDisplay

        Raises
        ------
        TypeError
            If the estimator isn't a stack.
        ValueError
            If it is a stack of several targets, each of which has weights of its own.
        """
        model: Any = unwrap_fitted(estimator).model
        required = ["weights_", "leave_one_out_log_density_"]
        require_attributes(model, required, cls.__name__, "a stack")
        if any(isinstance(weight, dict) for weight in model.weights_.values()):
            targets = ", ".join(map(repr, model.weights_))
            raise ValueError(
                f"{cls.__name__} shows a stack of one target, but this one has the targets "
                f"{targets}. Pass the stack of one of them, estimators_[name]."
            )
        names = sorted(model.weights_, key=model.weights_.__getitem__, reverse=True)
        scores = model.leave_one_out_log_density_
        unknown = (np.nan, np.nan)
        pairs = np.array([scores.get(name, unknown) for name in names], dtype=float)
        weights = np.array([model.weights_[name] for name in names])
        return cls(names, weights, pairs[:, 0], pairs[:, 1]).plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        return (7.0, 1.6 + 0.3 * len(self.names))

    def _draw(self, style: dict[str, Any]) -> None:
        left, right = self.panels_ = split_axes(self.ax_, [1.0, 1.0])
        positions = np.arange(len(self.names))
        self.bars_ = left.barh(positions, self.weights, **{"color": BLUE, **style})
        self.points_ = right.errorbar(
            self.log_density,
            positions,
            xerr=self.standard_error,
            fmt="o",
            color=VERMILLION,
            label="mean and standard error",
        )
        left.set_yticks(positions, [name.replace("_", " ") for name in self.names])
        left.set(xlim=(0, 1), xlabel="weight", title="Weights in the stack")
        right.set_yticks(positions, [])
        right.set(
            ylim=left.get_ylim(),
            xlabel="log density (nats per row)",
            title="Leave-one-out density",
        )
        right.locator_params(axis="x", nbins=4)
        left.invert_yaxis()
        right.invert_yaxis()
        right.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.3), frameon=False, fontsize="small"
        )
        for panel in self.panels_:
            hide_frame(panel)
