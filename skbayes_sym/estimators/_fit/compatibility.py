"""Parameters that don't apply are refused by name, never silently ignored."""

from collections.abc import Sequence
from inspect import signature

import numpy as np
from sklearn.base import BaseEstimator


def refuse(estimator: BaseEstimator, names: Sequence[str], why: str, instead: str) -> None:
    """Raise if a parameter that doesn't apply was given another value than its default.

    Parameters
    ----------
    estimator : estimator
    names : sequence of str
        Parameters without a meaning here.
    why : str
        Completes "...: ".
    instead : str
        What to use.

    Raises
    ------
    ValueError
        With the parameter, its value, the reason and the remedy.
    """
    defaults = signature(type(estimator)).parameters
    for name in names:
        value = getattr(estimator, name)
        default = defaults[name].default
        if not np.array_equal(value, default):
            raise ValueError(
                f"{name}={value!r} does not apply: {why}. Leave {name} at its default, or use "
                f"{instead}."
            )
