"""Warnings that point to the user's own line, and that never change the process's filters.

`warnings.catch_warnings` replaces the filters of the whole process: with two fits in two threads
it can leave them changed for good. Warnings of the package are collected by a context variable.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf, isfinite
from typing import NamedTuple

from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.numerics.optimise import OptimiseResult, StopReason, compute_gain

_NOT_THE_USER = {"skbayes_sym", "sklearn", "contextlib"}
_whose: ContextVar[str] = ContextVar("_whose", default="")


class CollectedWarning(NamedTuple):
    """A warning that was collected instead of shown."""

    category: type[Warning]
    message: str


_collected: ContextVar[list[CollectedWarning] | None] = ContextVar("_collected", default=None)


@contextmanager
def collect_warnings() -> Iterator[list[CollectedWarning]]:
    """Collect the package's own warnings of this thread instead of showing them.

    Yields
    ------
    list of CollectedWarning
        Filled while the block runs. Warnings of other packages aren't collected.
    """
    warned: list[CollectedWarning] = []
    token = _collected.set(warned)
    try:
        yield warned
    finally:
        _collected.reset(token)


@contextmanager
def name_in_warnings(estimator: object) -> Iterator[None]:
    """Let warnings begin with the class of the estimator that the user has, not of its parts."""
    token = None if _whose.get() else _whose.set(f"{type(estimator).__name__}: ")
    try:
        yield
    finally:
        if token is not None:
            _whose.reset(token)


def warn_user(message: str, category: type[Warning] = ConvergenceWarning) -> None:
    """Warn at the nearest caller outside the package, scikit-learn and context managers.

    A counted ``stacklevel`` would hold for one way into `fit` only: a pipeline has more frames.
    """
    message = _whose.get() + message
    collected = _collected.get()
    if collected is not None:
        collected.append(CollectedWarning(category, message))
        return
    frame = sys._getframe(1)
    level = 2
    while frame.f_back and str(frame.f_globals.get("__name__")).split(".")[0] in _NOT_THE_USER:
        frame = frame.f_back
        level = level + 1
    warnings.warn(message, category, stacklevel=level)


# Nats per unit of sample weight. Of targets without noise scales move on at less for hundreds of
# steps, while predictions stay.
_STILL_MOVING = 1e-2


def warn_unless_converged(
    result: OptimiseResult, tol: float | None, total_weight: float, what: str = "the ELBO"
) -> None:
    """A warning with the figure if the last steps still raised the objective.

    By more than ``tol`` in the last tenth, or by ten times that in the last fifth: steps are short
    at the end, and progress as slow.

    ``tol``: nats per unit of sample weight that count as converged; None asks for no test.
    ``what``: what was raised.
    """
    if tol is None or result.stopped != "max_iter":
        return
    curve = [-loss for loss in result.loss_curve]
    for name, share, limit in (("tenth", 10, tol), ("fifth", 5, 10.0 * tol)):
        rise = compute_gain(curve, max(1, len(curve) // share))
        if rise.exceeds(limit * total_weight):
            warn_user(
                f"not converged: the last {name} of the {result.n_iter} steps still raised {what} "
                f"by {rise.value / total_weight:.2g} nats per row (tol={tol:g}). Raise "
                "max_iter or learning_rate."
            )
            return


def warn_moving_mode(
    curve: Sequence[float], stopped: StopReason, tol: object, total_weight: float
) -> None:
    """A warning if a search that was cut short was still moving its best mode.

    ``curve``: its log evidence after every update, nats; NaN where there was none. ``tol``: none
    asks for no test.
    """
    known = [value for value in curve if isfinite(value)]
    if tol is None or stopped != "max_iter":
        return
    change = abs(known[-1] - known[-3]) / total_weight if len(known) > 2 else inf
    if change > _STILL_MOVING:
        why = "the search ended before its scales were updated three times"
        if change < inf:
            why = f"the last two updates moved the log evidence by {change:.2g} nats per row"
        warn_user(f"not converged: {why}. Raise max_iter.", ConvergenceWarning)
