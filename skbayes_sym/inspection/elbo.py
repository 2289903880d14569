"""How a bound, or an estimate of the evidence, rose during a fit."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.unwrap import fitted_attribute
from skbayes_sym.inspection._drawing import BLUE, GREY, VERMILLION, Display, legend_on_top, no_box
from skbayes_sym.inspection._fitted import fitted_model, require
from skbayes_sym.numerics.arguments import check_arrays

_EARLY = 0.25  # of the fit: what lies far below came before it, and needn't be seen


class ELBODisplay(Display):
    """Training objective over the iterations, and the bounds at its end.

    Variational fits show their training ELBO, which is noisy, and the bounds evaluated afterwards:
    mean-field and symmetrised. Laplace fits show their log evidence. The axis leaves out the first
    quarter's depths.

    Parameters
    ----------
    iterations : ndarray of shape (n_points,)
    curve : ndarray of shape (n_points,)
        Nats, of the targets as given.
    elbo_mean_field, elbo : float, optional
        Bounds at the end, nats.
    iteration_name : str, default="iteration"
    curve_name : str, default="training ELBO"

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D
        The curve.
    bounds_ : list of matplotlib Line2D
        Mean-field and symmetrised bound; empty if there are none.

    Notes
    -----
    A flat curve is no proof of convergence; ``stop_reason_`` and a `ConvergenceWarning` say more.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import SymmetrizedVIRegressor
    >>> from skbayes_sym.inspection import ELBODisplay
    >>> reg = SymmetrizedVIRegressor((3,), "tanh", max_iter=500, random_state=0)
    >>> display = ELBODisplay.from_estimator(reg.fit(*load_diabetes(return_X_y=True)))
    >>> bool(display.elbo == reg.elbo_)
    True
    """

    def __init__(
        self, iterations: Array, curve: Array, *, elbo_mean_field: float | None = None,
        elbo: float | None = None, iteration_name: str = "iteration",
        curve_name: str = "training ELBO",
    ) -> None:  # fmt: skip
        arrays = check_arrays(
            "ELBODisplay", {"iterations": "n", "curve": "n", "elbo_mean_field": "?", "elbo": "?"},
            iterations=iterations, curve=curve, elbo_mean_field=elbo_mean_field, elbo=elbo,
        )  # fmt: skip
        self.iterations = arrays["iterations"]
        self.curve = arrays["curve"]
        self.elbo_mean_field = elbo_mean_field
        self.elbo = elbo
        self.iteration_name = iteration_name
        self.curve_name = curve_name

    @classmethod
    def from_estimator(cls, estimator: BaseEstimator, *, ax: Any = None, **kwargs: Any) -> Self:
        """Read the curve off a fit and plot.

        Parameters
        ----------
        estimator : estimator
            Fitted: variational (``elbo_curve_``) or Laplace (``log_evidence_curve_``), or a
            pipeline or search around it.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the curve's ``Axes.plot``.

        Raises
        ------
        TypeError
            If it records no such curve.
        """
        model = fitted_model(estimator).model
        if "log_evidence_curve_" in vars(model):
            curve = np.asarray(model.log_evidence_curve_)
            display = cls(
                np.arange(1, len(curve) + 1), curve,
                iteration_name="hyperparameter update", curve_name="log evidence (Laplace)",
            )  # fmt: skip
            return display.plot(ax=ax, **kwargs)
        need = "a variational or Laplace estimator, with a bound or evidence for every iteration"
        require(model, ["elbo_curve_"], cls.__name__, need)
        curve = np.asarray(model.elbo_curve_)
        # Blocks of steps are of one length, but for the last.
        block = -(-model.n_iter_ // len(curve))
        iterations = np.minimum(block * np.arange(1, len(curve) + 1), model.n_iter_)
        display = cls(
            iterations, curve, elbo=model.elbo_,
            elbo_mean_field=fitted_attribute(model, "elbo_mean_field_"),
        )  # fmt: skip
        return display.plot(ax=ax, **kwargs)

    def _draw(self, style: dict[str, Any]) -> None:
        style = {"color": GREY, "lw": 1.2, "label": self.curve_name, **style}
        (self.line_,) = self.ax_.plot(self.iterations, self.curve, **style)
        bounds = (
            (self.elbo, VERMILLION, "-", "symmetrised"),
            (self.elbo_mean_field, BLUE, "--", "mean-field"),
        )
        self.bounds_ = [
            self.ax_.axhline(value, color=colour, ls=line, lw=1.8, label=f"{name} {value:.1f}")
            for value, colour, line, name in bounds
            if value is not None
        ]
        self.ax_.set(xlabel=self.iteration_name, ylabel="nats", ylim=self._view())
        legend_on_top(self.ax_, n_columns=3)
        no_box(self.ax_)

    def _view(self) -> tuple[float, float]:
        """Limits that hold the bounds and the curve but for its start."""
        late = self.curve[int(_EARLY * len(self.curve)) :]
        seen = np.array([*late, *(b for b in (self.elbo, self.elbo_mean_field) if b is not None)])
        seen = seen[np.isfinite(seen)]
        low, high = (seen.min(), seen.max()) if len(seen) else (0.0, 1.0)
        margin = 0.06 * (high - low) or 1.0
        return float(low - margin), float(high + margin)
