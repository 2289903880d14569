"""Known parameters of the likelihood of every row: errors of measurement, and exposures of counts.

A measurement with the known standard deviation e has the total variance ``e^2 + noise_std_^2``,
since both errors are independent. A count during the exposure t has the mean ``t exp(f)``. In
predictions, a known error is 0 and an exposure is 1 unless they are given.
"""

from typing import Any

import numpy as np

from skbayes_sym.base.rows import Array, numeric_conversion
from skbayes_sym.numerics.arguments import check_not_masked


def check_noise_std(noise_std: Any, shape: tuple[int, int]) -> Array:
    """Return known standard deviations of targets.

    Parameters
    ----------
    noise_std : array-like of shape (n_samples,) or (n_samples, n_targets)
        Standard deviations in the units of the targets, at least 0.
    shape : tuple of int
        Number of rows and of targets.

    Returns
    -------
    ndarray of shape (n_samples, n_targets)

    Raises
    ------
    ValueError
        If the shape is wrong, or a value is negative, missing or infinite.
    """
    values = _check_rows("noise_std", noise_std, shape)
    _refuse_rows("noise_std", values, values < 0.0, "at least 0: they are standard deviations")
    return values


def check_exposure(exposure: Any, shape: tuple[int, int]) -> Array:
    """Return exposures of counts.

    Parameters
    ----------
    exposure : array-like of shape (n_samples,) or (n_samples, n_targets)
        Exposures, such as lengths of time, positive.
    shape : tuple of int
        Number of rows and of targets.

    Returns
    -------
    ndarray of shape (n_samples, n_targets)

    Raises
    ------
    ValueError
        If the shape is wrong, or a value isn't positive or is missing or infinite.
    """
    values = _check_rows("exposure", exposure, shape)
    _refuse_rows("exposure", values, values <= 0.0, "positive: leave out rows without exposure")
    return values


def _check_rows(name: str, values: Any, shape: tuple[int, int]) -> Array:
    """Return finite values of every row and target.

    Parameters
    ----------
    name : str
        Name of the argument.
    values : array-like of shape (n_samples,) or (n_samples, n_targets)
        Values as the user gave them.
    shape : tuple of int
        Number of rows and of targets.

    Returns
    -------
    ndarray of shape (n_samples, n_targets)
    """
    check_not_masked(name, values)
    with numeric_conversion(name):
        array = np.array(values, dtype=np.float64)
    n_rows, n_targets = shape
    if array.shape not in {(n_rows,), shape}:
        alternative = ""
        if n_targets > 1:
            alternative = f" or {shape}"
        raise ValueError(
            f"{name} must have one value for each of the {n_rows} rows of X, of shape ({n_rows},)"
            f"{alternative}, got shape {array.shape}."
        )
    array = np.broadcast_to(array.reshape(n_rows, -1), shape)
    _refuse_rows(name, array, ~np.isfinite(array), "finite: leave out rows for which it is unknown")
    return array


def _refuse_rows(name: str, values: Array, is_refused: Array, requirement: str) -> None:
    """Raise a ValueError with the first row that is refused.

    Parameters
    ----------
    name : str
        Name of the argument.
    values, is_refused : ndarray of shape (n_samples, n_targets)
        Values, and which of them are refused.
    requirement : str
        What the values must be.
    """
    is_refused_row = is_refused.any(axis=1)
    if is_refused_row.any():
        row = int(is_refused_row.argmax())
        value = values[row][is_refused[row]][0]
        raise ValueError(f"{name} is {value:g} in row {row}, but values must be {requirement}.")
