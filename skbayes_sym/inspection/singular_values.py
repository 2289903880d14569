"""The singular values that a matrix factorisation keeps."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inspection._drawing import GREY, has_label, next_series, no_box, open_axes
from skbayes_sym.inspection._fitted import fitted_model, require
from skbayes_sym.numerics.arguments import check_arrays, check_name

_OFF = 1e-3  # of the largest: a component below it is switched off
_DATA, _NOISE = "data", "noise level"


class SingularValueDisplay:
    r"""Singular values of the posterior mean of a factorised matrix.

    .. math:: E[U V^\top] / \sqrt{k} \cdot \mathrm{scale},

    in the units of the matrix, its mean and offsets left out. Components that inference switches
    off are 0. The dashed line is the largest singular value that noise alone would have,
    ``noise_std_ (sqrt n + sqrt m) / sqrt(share observed)``, and the legend counts the components
    above it. The singular values of the data, noise included, are drawn in grey if a complete
    matrix is given.

    Parameters
    ----------
    values : ndarray of shape (n_components,)
        In decreasing order.
    data_values : ndarray, optional
        Those of the data.
    noise_level : float, optional
        Largest singular value of noise.
    name : str, default="model"

    Attributes
    ----------
    n_active : int
        Components above a thousandth of the largest.
    n_above_noise : int or None
        Components above the noise level, if it is known.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D
    data_line_, noise_line_ : matplotlib Line2D or None

    See Also
    --------
    skbayes_sym.SymVIMatrixFactorization : The estimator.

    Notes
    -----
    O((n + m) k^2) for an n x m matrix, which is never formed; with the draws of ``solver="gibbs"``
    their number times k takes the place of k. The mean of products can have more than k singular
    values; the k largest are shown.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym import SymVIMatrixFactorization
    >>> from skbayes_sym.inspection import SingularValueDisplay
    >>> X = np.outer(np.arange(8), np.arange(6)) + np.random.default_rng(0).normal(size=(8, 6))
    >>> display = SingularValueDisplay.from_estimator(
    ...     SymVIMatrixFactorization(2, random_state=0).fit(X), X
    ... )
    >>> bool(display.values[0] < display.data_values[0])
    True
    """

    def __init__(
        self,
        values: Array,
        *,
        data_values: Array | None = None,
        noise_level: float | None = None,
        name: str = "model",
    ) -> None:
        given = check_arrays(
            "SingularValueDisplay", {"values": "k", "data_values": "d?", "noise_level": "?"},
            values=values, data_values=data_values, noise_level=noise_level,
        )  # fmt: skip
        self.values = given["values"]
        self.data_values = given.get("data_values")
        self.noise_level = noise_level
        self.name = name

    @property
    def n_active(self) -> int:
        return int(np.sum(self.values > _OFF * np.max(self.values, initial=0.0)))

    @property
    def n_above_noise(self) -> int | None:
        return None if self.noise_level is None else int(np.sum(self.values > self.noise_level))

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: Any = None,
        *,
        name: str | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> "SingularValueDisplay":
        """Compute and plot.

        Parameters
        ----------
        estimator : estimator
            Fitted matrix factorisation, or a search around one.
        X : array-like of shape (n_rows, n_columns), optional
            The matrix, without missing entries, to draw its own singular values too.
        name : str, optional
            For the legend; the estimator's class by default.
        ax : matplotlib Axes, optional
            Those of an earlier display to compare with it; new ones by default.
        **kwargs : dict
            For ``Axes.plot``.

        Returns
        -------
        SingularValueDisplay

        Raises
        ------
        NotFittedError
            If the estimator isn't fitted.
        TypeError
            If it is no matrix factorisation.
        ValueError
            If ``X`` has missing entries.
        """
        model = fitted_model(estimator).model
        require(model, ["components_", "components_cov_"], cls.__name__, "a matrix factorisation")
        data_values = None
        if X is not None:
            matrix = check_arrays(cls.__name__, {"X": "nm"}, X=X)["X"].astype(float)
            if not np.all(np.isfinite(matrix)):
                raise ValueError(
                    "SingularValueDisplay draws the singular values of X only if X is complete: "
                    "leave X out where entries are missing."
                )
            data_values = np.linalg.svd(matrix - model.mean_, compute_uv=False)
        display = cls(
            _values(model),
            data_values=data_values,
            noise_level=_noise_level(model),
            name=check_name(cls.__name__, "name", name, type(model).__name__),
        )
        return display.plot(ax=ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> "SingularValueDisplay":
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For ``Axes.plot``.

        Returns
        -------
        self : SingularValueDisplay

        Raises
        ------
        ImportError
            Without matplotlib.
        """
        self.ax_, self.figure_ = open_axes(ax, self)
        k = len(self.values)
        self.data_line_ = None
        if self.data_values is not None and not has_label(self.ax_, _DATA):
            shown = self.data_values[:k]
            (self.data_line_,) = self.ax_.plot(
                np.arange(1, len(shown) + 1), shown, ".-", color=GREY, lw=1, label=_DATA
            )
        counted = f"{self.n_active} of {k} components"
        self.noise_line_ = None
        if self.noise_level is not None:
            counted = f"{self.n_above_noise} of {k} above the noise"
            if not has_label(self.ax_, _NOISE):
                style = {"ls": "--", "color": GREY, "lw": 1, "label": _NOISE}
                self.noise_line_ = self.ax_.axhline(self.noise_level, **style)
        label = f"{self.name} ({counted})"
        style = {"ms": 5, "label": label, **next_series(self.ax_), **kwargs}
        (self.line_,) = self.ax_.plot(np.arange(1, k + 1), self.values, **style)
        self.ax_.set(xlabel="component", ylabel="singular value (units of the matrix)")
        self.ax_.set_ylim(bottom=0)
        self.ax_.xaxis.get_major_locator().set_params(integer=True)
        self.ax_.legend(frameon=False, fontsize="small")
        no_box(self.ax_)
        return self


def _noise_level(model: Any) -> float:
    """Edge of the singular values of independent noise (Bai & Yin 1993), as the fit sees it."""
    n, m = (len(side.mean) for side in model.posterior_)
    share = max(getattr(model, "n_observed_", n * m), 1) / (n * m)
    return float(model.noise_std_ * (np.sqrt(n) + np.sqrt(m)) / np.sqrt(share))


def _values(model: Any) -> Array:
    """Of the average over draws of U V', by the triangular factors of all of them side by side."""
    n, k = model.posterior_.rows.mean.shape
    if hasattr(model, "samples_"):
        draws = np.asarray(model.samples_, dtype=float)
    else:
        means = [model.posterior_.rows.mean, model.posterior_.columns.mean]
        draws = np.concatenate(means).astype(float)[None]
    left, right = (np.concatenate(list(part), axis=1) for part in (draws[:, :n], draws[:, n:]))
    core = np.linalg.qr(left).R @ np.linalg.qr(right).R.T
    values = np.linalg.svd(core, compute_uv=False)[:k]
    return values / (len(draws) * np.sqrt(k)) * model.scale_
