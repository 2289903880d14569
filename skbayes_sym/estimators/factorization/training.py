"""A matrix as its factorisation takes it: checked, centred, scaled, on the device."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from sklearn.utils import check_random_state

from skbayes_sym.estimators._fit.callbacks import FitTask
from skbayes_sym.estimators._fit.device import dtype_of, resolve_device, worthwhile
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import LARGEST
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.factorization.entries import (
    Observed,
    frame_labels,
    is_listed,
    listed_entries,
    observed_entries,
    scaling,
    warn_of_empty,
)
from skbayes_sym.estimators.factorization.side_features import SideFeatures
from skbayes_sym.inference.factorization.data import Entries

_INITIAL_NOISE = 0.5  # in units of the spread of the observed entries
# Likewise; and where the prior's scales are learned, since a prior held wide needs more room.
_INITIAL_NOISE_LEARNED = 0.88
_NOISE_RANGE = (1e-3, 1e2)
_CHOSEN_COMPONENTS = 10  # of "auto", when nobody knows yet
# Variance of the noise that turns factors into labels: their unit is free.
_LATENT_NOISE = 0.75


class TakesMatrix(Protocol):
    """An estimator as `MatrixTraining.open` asks it."""

    device: str
    dtype: str
    n_components: int | str
    center: bool
    scale: bool
    likelihood: Any
    random_state: Any

    def _check_matrix(self, X: Any, *, reset: bool) -> Any: ...

    def _set_columns(self, labels: Array) -> None: ...


class Given(NamedTuple):
    """What `fit` was given."""

    X: Any
    row_features: Any = None
    column_features: Any = None


@dataclass(frozen=True, eq=False)
class MatrixTraining:
    """What a factorisation is fitted to.

    Parameters
    ----------
    observed : Observed
        Its entries, centred and scaled; of ordinal ones the labels' positions in ``classes``.
    mean, scale : float
        What the entries as given were centred and divided by.
    spread : float
        Standard deviation of the observed entries, in scaled units.
    seed : int
        The one source of randomness of a fit.
    device, dtype
        Where and in which precision it computes.
    begin : callable (n_blocks) -> FitTask
        Opens the callbacks' task.
    features : (SideFeatures or None, SideFeatures or None)
        Of the rows and of the columns.
    classes : ndarray, optional
        Distinct values in increasing order, of ordinal entries only.
    """

    observed: Observed
    mean: float
    scale: float
    spread: float
    seed: int
    device: torch.device
    dtype: torch.dtype
    begin: Callable[[int], FitTask]
    features: tuple[SideFeatures | None, SideFeatures | None] = (None, None)
    classes: Array | None = None

    @classmethod
    def open(cls, estimator: TakesMatrix, given: Given) -> "MatrixTraining":
        """Validate everything before the first array is allocated for the fit."""
        X = given.X
        observed, checked = observe(estimator, X)
        device = worthwhile(
            estimator.device,
            resolve_device(estimator.device),
            lambda: _flops_a_sweep(observed, estimator.n_components),
        )
        features = (
            SideFeatures.open(given.row_features, observed.shape[0], "row_features"),
            SideFeatures.open(given.column_features, observed.shape[1], "column_features"),
        )
        classes, mean, scale, spread = None, 0.0, 1.0, 1.0
        if estimator.likelihood == "ordinal":
            classes, place = np.unique(observed.values, return_inverse=True)
            values = place.astype(np.float64)
        else:
            mean, scale, spread = scaling(
                observed.values, estimator.center, estimator.scale, observed.weights
            )
            values = (observed.values.astype(np.float64) - mean) / scale
            if estimator.center and len(values) and not values.any():
                warn_user(
                    "all observed entries of X are equal: there is nothing to learn but that.",
                    UserWarning,
                )
        named = {"float32": torch.float32, "float64": torch.float64}
        dtype = named.get(estimator.dtype, dtype_of(checked))
        _require_range(spread / scale, dtype)
        return cls(
            observed=observed._replace(values=values),
            mean=mean,
            scale=scale,
            spread=spread / scale,
            seed=int(check_random_state(estimator.random_state).randint(2**31 - 1)),
            device=device,
            dtype=dtype,
            # Its target is the matrix itself: scikit-learn's monitor scores nothing without one.
            begin=lambda n_blocks: FitTask(estimator, X, X, None, n_blocks),
            features=features,
            classes=classes,
        )

    def warn_of_empty(self) -> None:
        """Say how many rows and columns have nothing to learn from."""
        warn_of_empty(self.observed)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self.observed.shape

    @cached_property
    def entries(self) -> Entries:
        """On the device, in the working precision."""
        return self.observed.tensors(self.device, self.dtype)

    @property
    def double_entries(self) -> Entries:
        """Those by row in float64, whatever the working precision; those by column as they are."""
        if self.dtype == torch.float64:
            return self.entries
        values, weights = self.observed.values, self.observed.weights  # already row by row
        by_row = self.entries.by_row._replace(
            value=torch.as_tensor(values, device=self.device).double(),
            weight=None
            if weights is None
            else torch.as_tensor(weights, device=self.device).double(),
        )
        return self.entries._replace(by_row=by_row)

    @property
    def total_weight(self) -> float:
        """Entries, each counted by its weight."""
        weights = self.observed.weights
        return float(len(self.observed.values) if weights is None else weights.sum())

    @property
    def log_jacobian(self) -> float:
        """Turns a log density of scaled entries into that of the entries as given, nats."""
        return -self.total_weight * float(np.log(self.scale))

    def noise(
        self, noise_std: str | float, learns_scales: bool
    ) -> tuple[float, tuple[float, float] | None]:
        """Noise variance in scaled units, as given or to start from, and its range if learned.

        With nothing to learn from it stays where it starts.
        """
        if self.classes is not None:
            return _LATENT_NOISE, None
        if not isinstance(noise_std, str):
            return float((noise_std / self.scale) ** 2), None
        start = _INITIAL_NOISE_LEARNED if learns_scales else _INITIAL_NOISE
        start = float((start * self.spread) ** 2)
        if len(self.observed.values) == 0:
            return start, None
        low, high = (float((r * self.spread) ** 2) for r in _NOISE_RANGE)
        return start, (low, high)

    def attributes(self) -> dict[str, Any]:
        """Fitted attributes that depend on the matrix alone."""
        named = {
            "row_labels_": self.observed.row_labels,
            "column_labels_": self.observed.column_labels,
            "classes_": self.classes,
        }
        return {
            "mean_": self.mean,
            "scale_": self.scale,
            "n_observed_": len(self.observed.values),
            "device_": str(self.device),
            "dtype_": str(self.dtype).removeprefix("torch."),
            "_feature_scaling_": tuple(
                None if side is None else side.scaling for side in self.features
            ),
            **{name: value for name, value in named.items() if value is not None},
        }


def _flops_a_sweep(observed: Observed, n_components: int | str) -> float:
    """Second moments at every entry, and a system of every row and column, about."""
    k = _CHOSEN_COMPONENTS if isinstance(n_components, str) else n_components
    return 2.0 * k**2 * len(observed.values) + k**3 * sum(observed.shape)


def observe(estimator: TakesMatrix, X: Any) -> tuple[Observed, Any]:
    """The entries of a matrix or a list of entries, and what their precision is read off."""
    if is_listed(X):
        observed = listed_entries(X)
        if 0 in observed.shape:
            raise ValueError("a list of entries has 0 sample(s): at least one entry is required.")
        labels = observed.column_labels
        estimator._set_columns(np.arange(observed.shape[1]) if labels is None else labels)
        return observed, observed.values
    rows, columns = frame_labels(X)
    checked = estimator._check_matrix(X, reset=True)
    observed = observed_entries(checked)
    return observed._replace(row_labels=rows, column_labels=columns), checked


def _require_range(spread: float, dtype: torch.dtype) -> None:
    """Refuse scaled entries whose squares leave the arithmetic's range."""
    largest = LARGEST[dtype]
    if not 1.0 / largest <= spread <= largest:
        raise ValueError(
            f"the observed entries of X spread by {spread:.3g}, which must lie between "
            f"{1.0 / largest:g} and {largest:g} in this arithmetic: use scale=True, rescale them, "
            "or give X as float64."
        )
