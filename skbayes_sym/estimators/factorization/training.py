"""A matrix as its factorisation takes it: checked, centred, scaled, on the device."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.utils import check_random_state

from skbayes_sym.estimators._fit.callbacks import FitTask
from skbayes_sym.estimators._fit.device import resolve_device, resolve_dtype
from skbayes_sym.estimators.factorization.entries import (
    Observed,
    observed_entries,
    scaling,
    warn_of_empty,
)
from skbayes_sym.inference.factorization.data import Entries

_INITIAL_NOISE = 0.5  # in units of the spread of the observed entries
_NOISE_RANGE = (1e-3, 1e2)  # likewise


class TakesMatrix(Protocol):
    """An estimator as `MatrixTraining.open` asks it."""

    device: str
    dtype: str
    center: bool
    scale: bool
    random_state: Any

    def _check_matrix(self, X: Any, *, reset: bool) -> Any: ...


@dataclass(frozen=True, eq=False)
class MatrixTraining:
    """What a factorisation is fitted to.

    Parameters
    ----------
    observed : Observed
        Its entries, centred and scaled.
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
    """

    observed: Observed
    mean: float
    scale: float
    spread: float
    seed: int
    device: torch.device
    dtype: torch.dtype
    begin: Callable[[int], FitTask]

    @classmethod
    def open(cls, estimator: TakesMatrix, X: Any) -> "MatrixTraining":
        """Validate everything before the first array is allocated for the fit."""
        device = resolve_device(estimator.device)
        checked = estimator._check_matrix(X, reset=True)
        observed = observed_entries(checked)
        mean, scale, spread = scaling(observed.values, estimator.center, estimator.scale)
        values = (observed.values.astype(np.float64) - mean) / scale
        return cls(
            observed=observed._replace(values=values),
            mean=mean,
            scale=scale,
            spread=spread / scale,
            seed=int(check_random_state(estimator.random_state).randint(2**31 - 1)),
            device=device,
            dtype=resolve_dtype(estimator.dtype, checked),
            # Its target is the matrix itself: scikit-learn's monitor scores nothing without one.
            begin=lambda n_blocks: FitTask(estimator, X, X, None, n_blocks),
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

    @cached_property
    def double_entries(self) -> Entries:
        """The same in float64, whatever the working precision."""
        if self.dtype == torch.float64:
            return self.entries
        return self.observed.tensors(self.device, torch.float64)

    @property
    def log_jacobian(self) -> float:
        """Turns a log density of scaled entries into that of the entries as given, nats."""
        return -len(self.observed.values) * float(np.log(self.scale))

    def noise(self, noise_std: str | float) -> tuple[float, tuple[float, float] | None]:
        """Noise variance in scaled units, as given or to start from, and its range if learned.

        With nothing to learn from it stays where it starts.
        """
        if not isinstance(noise_std, str):
            return float((noise_std / self.scale) ** 2), None
        start = float((_INITIAL_NOISE * self.spread) ** 2)
        if len(self.observed.values) == 0:
            return start, None
        low, high = (float((r * self.spread) ** 2) for r in _NOISE_RANGE)
        return start, (low, high)

    def attributes(self) -> dict[str, Any]:
        """Fitted attributes that depend on the matrix alone."""
        return {
            "mean_": self.mean,
            "scale_": self.scale,
            "device_": str(self.device),
            "dtype_": str(self.dtype).removeprefix("torch."),
        }
