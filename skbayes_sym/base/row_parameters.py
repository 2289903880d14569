"""Known parameters of the likelihood of every row: errors of measurement, and exposures of counts.

A measurement with the known standard deviation e has the total variance ``e^2 + noise_std_^2``,
since both errors are independent. A count during the exposure t has the mean ``t exp(f)``. In
predictions, a known error is 0 and an exposure is 1 unless they are given. Estimators that take
them have the method `fit` of this module.
"""

from typing import Any

import numpy as np

from skbayes_sym.base.input_validation import numeric_conversion
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import fit_context
from skbayes_sym.numerics.arguments import check_not_masked

# Largest known error, whose square is a number.
_MAX_ERROR = 1e150
# Largest exposure; products with counts and weights are numbers.
_MAX_EXPOSURE = 1e100


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
    limit = f"at most {_MAX_ERROR:g}, whose square is a number: leave out such rows"
    _refuse_rows("noise_std", values, values > _MAX_ERROR, limit)
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
    is_extreme = (values < 1.0 / _MAX_EXPOSURE) | (values > _MAX_EXPOSURE)
    limits = f"between {1.0 / _MAX_EXPOSURE:g} and {_MAX_EXPOSURE:g}: use another unit"
    _refuse_rows("exposure", values, is_extreme, limits)
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


@fit_context(prefer_skip_nested_validation=True)
def fit(
    self: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    noise_std: Any = None,
    exposure: Any = None,
) -> Any:
    """Fit the posterior.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Training inputs.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Targets.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative multiplicities: a weight of 2 is the row given twice, exactly.
    noise_std : array-like of shape (n_samples,) or (n_samples, n_targets), optional
        Known standard deviations of the errors of ``y``, in its units, for the default likelihood.
        Row i has the variance ``noise_std[i]**2 + noise_std_**2``. The parameter ``noise_std`` of
        the estimator sets the second term. Predictions are for targets without known errors:
        `predictive` adds them. In pipelines and searches, ``set_fit_request(noise_std=True)``
        requests them. Linear models take them for one target. Networks are trained by Adam then.
    exposure : array-like of shape (n_samples,) or (n_samples, n_targets), optional
        Positive exposures of counts, such as lengths of time, for ``likelihood="poisson"`` and, of
        networks, "negative_binomial": the mean of row i is ``exposure[i] * exp(f)``. Predictions
        are per unit of exposure, and `predictive` multiplies them.

    Returns
    -------
    self : object
        The fitted estimator.

    Raises
    ------
    ValueError
        If a known standard deviation is negative or missing, an exposure isn't positive, or
        likelihood or optimiser don't support them.
    KeyboardInterrupt
        If interrupted, after keeping the model reached so far.
    """
    return self._fit_rows(X, y, sample_weight, noise_std=noise_std, exposure=exposure)
