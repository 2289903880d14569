"""What doesn't apply, or lacks what a method asks of it, is refused by name, never ignored."""

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
        Parameters without a meaning here; those that the estimator doesn't have are passed over.
    why : str
        The reason, as a clause.
    instead : str
        What to use.

    Raises
    ------
    ValueError
        With the parameter, its value, the reason and the remedy.
    """
    defaults = signature(type(estimator)).parameters
    for name in names:
        if name not in defaults:
            continue
        value = getattr(estimator, name)
        if not np.array_equal(value, defaults[name].default):
            raise ValueError(
                f"{name}={value!r} does not apply: {why}. Leave {name} at its "
                f"default, or use {instead}."
            )


def require_members(given: object, members: Sequence[str], *, parameter: str, remedy: str) -> None:
    """Ask the object, not its type.

    Raises
    ------
    TypeError
        Naming the parameter, the object, what it lacks and the remedy.
    """
    missing = [name for name in members if not hasattr(given, name)]
    if missing:
        raise TypeError(
            f"{parameter}={given!r} has no {' and no '.join(missing)}, which this estimator asks "
            f"of it. {remedy}"
        )
