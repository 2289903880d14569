"""Training targets of regressors and classifiers, as values that exist before anything is fitted.

An estimator's validation makes one of these from the ``y`` that a user passes. `Training` turns
them into the arrays that a method fits.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from skbayes_sym.base.rows import Array, Rows, Scaling, target_scaling
from skbayes_sym.base.warnings import warn_user


class Targets(Protocol):
    """Validated targets of all training rows."""

    @property
    def values(self) -> Array:
        """Real targets of shape (n, n_targets), or class codes of shape (n,)."""

    @property
    def ndim(self) -> int:
        """Number of axes of ``y`` as the user gave it."""

    @property
    def classes(self) -> Array | None:
        """Sorted classes of shape (n_classes,); None for regression."""

    def select(self, index: Array) -> Self:
        """Return the targets of the rows that a Boolean or integer index selects."""

    def check(self) -> None:
        """Raise or warn if nothing can be learned from these targets."""

    def scaling(self, rows: Rows) -> Scaling | None:
        """Return the scaling of real targets; None for classes."""


@dataclass(frozen=True, eq=False)
class RegressionTargets:
    """Real-valued targets of a regressor.

    Parameters
    ----------
    values : ndarray of shape (n, n_targets)
        Targets, float64.
    ndim : int
        Number of axes of ``y`` as the user gave it.
    is_standardized : bool
        Whether methods receive the targets in units of their standard deviation.
    is_discrete : bool
        Whether the likelihood is one of counts.
    """

    values: Array
    ndim: int
    is_standardized: bool
    is_discrete: bool

    @property
    def classes(self) -> None:
        """None: these are no classes."""
        return None

    def select(self, index: Array) -> "RegressionTargets":
        """Return the targets of the rows that ``index`` selects."""
        return replace(self, values=self.values[index])

    def check(self) -> None:
        """Warn if a target is constant, which leaves no scale for the noise."""
        is_constant = (self.values == self.values[0]).all(axis=0)
        if len(self.values) < 2 or self.is_discrete or not is_constant.any():
            return
        column = int(is_constant.argmax())
        name = "y" if self.values.shape[1] == 1 else f"column {column} of y"
        warn_user(
            f"{name} is constant ({self.values[0, column]:g}): there is nothing to learn but that, "
            "and no scale to tell noise from, so the absolute value of the targets is used as "
            "their scale. Check the targets.",
            UserWarning,
        )

    def scaling(self, rows: Rows) -> Scaling:
        """Return the mean and standard deviation of every target, or 0 and 1."""
        return target_scaling(rows, enabled=self.is_standardized)


@dataclass(frozen=True, eq=False)
class ClassificationTargets:
    """Class labels of a classifier.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Class label of every row, as the user gave it.
    estimator_name : str
        Class name of the estimator, for error messages.
    """

    labels: Array
    estimator_name: str

    @cached_property
    def _classes_and_codes(self) -> tuple[Array, Array]:
        classes, codes = np.unique(self.labels, return_inverse=True)
        return classes, codes.astype(np.int64)

    @property
    def classes(self) -> Array:
        """Sorted distinct labels, (n_classes,)."""
        return self._classes_and_codes[0]

    @property
    def values(self) -> Array:
        """Position of every row's label among the classes, (n,)."""
        return self._classes_and_codes[1]

    @property
    def ndim(self) -> int:
        """Number of axes of ``y`` as the user gave it."""
        return self.labels.ndim

    def select(self, index: Array) -> "ClassificationTargets":
        """Return the labels of the rows that ``index`` selects."""
        return replace(self, labels=self.labels[index])

    def check(self) -> None:
        """Raise a ValueError if there is only one class."""
        if len(self.classes) < 2:
            raise ValueError(
                f"{self.estimator_name} needs at least 2 classes in y, got 1 class: "
                f"{self.classes.tolist()[0]!r}."
            )

    def scaling(self, _rows: Rows) -> None:
        """Return None: class codes aren't scaled."""
        return None
