"""Training targets of regressors and classifiers, as values that exist before anything is fitted.

An estimator's validation makes one of these from the ``y`` that a user passes. `Training` turns
them into the arrays that a method fits.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any, Protocol, Self

import numpy as np

from skbayes_sym.base.gross_errors import Mask, find_gross_errors
from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.rows import Array, Rows, Scaling, target_scaling
from skbayes_sym.numerics.dates import is_date_object
from skbayes_sym.numerics.tables import (
    is_formatted_number,
    is_missing,
    is_missing_text,
    level_key,
)

# Number of gross errors that a warning names.
_N_NAMED = 5


def require_targets(y: Any) -> None:
    """Raise a TypeError if ``y`` is no array, list or column of targets.

    Parameters
    ----------
    y : object
        Targets or labels as the user gave them. None is left to scikit-learn.
    """
    remedy = None
    if isinstance(y, Mapping):
        remedy = "give list(y.values()), in the order of the rows of X"
    elif isinstance(y, Set):
        remedy = "a set has no order: give a list in the order of the rows of X"
    elif isinstance(y, Iterator):
        remedy = "give list(y)"
    elif isinstance(y, str | bytes):
        remedy = f"give the column of this name, such as frame[{y!r}]"
    elif isinstance(y, Real | Decimal):
        remedy = "give an array with one value for each row of X"
    elif isinstance(y, np.ndarray) and y.dtype.names:
        remedy = f"give one of its fields, {', '.join(map(repr, y.dtype.names))}"
    if remedy is not None:
        raise TypeError(
            f"y must hold one target for each row of X, got {type(y).__name__}: {remedy}."
        )


def read_numbers(y: Any, estimator_name: str, classifier_name: str) -> Any:
    """Return real targets as an array of numbers if they are text or objects, else as they are.

    Missing targets become nan, which the validation of numbers refuses.

    Parameters
    ----------
    y : array-like of shape (n,) or (n, n_targets)
        Targets as the user gave them.
    estimator_name, classifier_name : str
        Names of the regressor, and of the classifier for labels, for error messages.

    Raises
    ------
    ValueError
        If a target is a date, a label, or another object that is no number.
    """
    array = np.asarray(y)
    kind = array.dtype.kind
    if kind in "mM" and array.size:
        _refuse_date(array.ravel()[0], estimator_name)
    if kind not in "USOT" or not array.ndim:
        return y
    values = array.ravel().tolist()
    numbers = np.full(len(values), np.nan)
    refused = []
    for position, value in enumerate(values):
        is_date = is_date_object(value) or isinstance(value, timedelta)
        if is_date and not is_missing(value):
            _refuse_date(value, estimator_name)
        try:
            numbers[position] = float(value)
        except (TypeError, ValueError, OverflowError):
            refused.append(position)
    refused = [position for position in refused if not is_missing_text(values[position])]
    if refused:
        value = values[refused[0]]
        row = refused[0] * len(array) // len(values)
        if isinstance(value, int):
            raise ValueError(
                f"y must hold numbers in the range of float64, got an int of "
                f"{value.bit_length():,} bits in row {row}."
            )
        if not isinstance(value, str | bytes):
            raise ValueError(
                f"y must hold numbers, got a {type(value).__name__} in row {row}. Use "
                f"{classifier_name} if these are classes, with labels as by y.astype(str)."
            )
        is_formatted = is_formatted_number(level_key(value))
        if is_formatted or 2 * len(refused) < len(values):
            raise ValueError(
                f"y must hold numbers, got the text {value!r} in row {row}. Convert it first, as "
                "by pandas.to_numeric. Decimals need a point, and numbers have no units and no "
                "separators of thousands."
            )
        raise ValueError(
            f"y holds labels such as {value!r}, but {estimator_name} predicts numbers. Use "
            f"{classifier_name}."
        )
    return numbers.reshape(array.shape)


def _refuse_date(value: Any, estimator_name: str) -> None:
    """Raise a ValueError for a target that is a date or a duration."""
    raise ValueError(
        f"y holds dates or durations such as {value!s}, but {estimator_name} predicts numbers. "
        "Give days since a date, as by (y - y.min()) / pandas.Timedelta('1D')."
    )


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

    def as_counts(self) -> Self:
        """Return the targets as counts with exposures."""

    def check(self) -> None:
        """Raise or warn if nothing can be learned from these targets."""

    def find_gross_errors(self, rows: Rows) -> Mask | None:
        """Return which distinct rows have gross errors; None if they aren't looked for."""

    def warn_gross_errors(self, index: Array) -> None:
        """Warn about gross errors in the rows with these indices, at least one."""

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
    excludes_outliers : bool, default=False
        Whether rows with gross errors are left out of the fit.
    classifier_name : str, default=""
        Class name of the classifier for targets that are 0 or 1; "" if there is none.
    """

    values: Array
    ndim: int
    is_standardized: bool
    is_discrete: bool
    excludes_outliers: bool = False
    classifier_name: str = ""

    @property
    def classes(self) -> None:
        """None: these are no classes."""
        return None

    def select(self, index: Array) -> "RegressionTargets":
        """Return the targets of the rows that ``index`` selects."""
        return replace(self, values=self.values[index])

    def as_counts(self) -> "RegressionTargets":
        """Return the targets as counts with exposures, which explain large values."""
        return replace(self, is_discrete=True, excludes_outliers=False)

    def check(self) -> None:
        """Warn if a target is constant, which leaves no scale for the noise, or holds classes."""
        is_constant = (self.values == self.values[0]).all(axis=0)
        if self.is_discrete:
            return
        is_binary = ((self.values == 0.0) | (self.values == 1.0)).all()
        if self.classifier_name and is_binary and not is_constant.any():
            warn_user(
                "all targets are 0 or 1, for which a regressor predicts intervals that no target "
                f"can have. Use {self.classifier_name}, whose predict_proba gives the probability "
                "of 1.",
                UserWarning,
            )
        if len(self.values) < 2 or not is_constant.any():
            return
        column = int(is_constant.argmax())
        if self.values.shape[1] == 1:
            name = "y"
        else:
            name = f"column {column} of y"
        warn_user(
            f"{name} is constant ({self.values[0, column]:g}): every prediction is this value. "
            "The scale of the targets can't be estimated, so their absolute value is used "
            "instead. Check the targets.",
            UserWarning,
        )

    def find_gross_errors(self, rows: Rows) -> Mask | None:
        """Return which distinct rows have gross errors; None if they aren't looked for."""
        if not self.excludes_outliers:
            return None
        return find_gross_errors(rows)

    def warn_gross_errors(self, index: Array) -> None:
        """Warn about gross errors in the rows with these indices, at least one."""
        named = [
            f"row {i} (y = {', '.join(f'{value:.6g}' for value in self.values[i])})"
            for i in index[:_N_NAMED]
        ]
        if len(index) > _N_NAMED:
            named.append("...")
        warn_user(
            f"rows with targets far beyond all others, which X doesn't explain, are left out of "
            f"the fit: {len(index)} of {len(self.values)}, {', '.join(named)}. Correct or remove "
            "these gross errors, or use outliers='keep' if the targets are right.",
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

    def as_counts(self) -> "ClassificationTargets":
        """Raise a TypeError, since classes aren't counts."""
        raise TypeError(
            f"{self.estimator_name} takes no exposure, since it predicts classes and not counts."
        )

    def check(self) -> None:
        """Raise a ValueError if there is only one class."""
        if len(self.classes) < 2:
            raise ValueError(
                f"{self.estimator_name} needs at least 2 classes in y, got 1 class: "
                f"{self.classes.tolist()[0]!r}."
            )

    def find_gross_errors(self, _rows: Rows) -> None:
        """Return None: classes have no gross errors."""
        return None

    def warn_gross_errors(self, _index: Array) -> None:
        """Do nothing: classes have no gross errors."""

    def scaling(self, _rows: Rows) -> None:
        """Return None: class codes aren't scaled."""
        return None
