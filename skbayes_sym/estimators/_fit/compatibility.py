"""Whether objects of the user's own have what a method asks of them, and parameters a meaning."""

from collections.abc import Sequence
from inspect import signature

import numpy as np
from sklearn.base import BaseEstimator


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
        if name in defaults and not np.array_equal(
            getattr(estimator, name), defaults[name].default
        ):
            raise ValueError(
                f"{name}={getattr(estimator, name)!r} does not apply: {why}. Leave {name} at its "
                f"default, or use {instead}."
            )
