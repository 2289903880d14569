"""What fits tell the user: the log, and warnings that point to the user's line of code.

The log is silent at ``verbose=0``, has a summary at 1 and progress at 2. Fits in several threads
each show their own records, and the logger's level is restored when the last of them ends.

`warnings.catch_warnings` replaces the filters of the whole process: with two fits in two threads
it can leave them changed for good. Warnings of the package are collected by a context variable.
"""

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from math import inf, isfinite
from typing import Any, NamedTuple, TypeVar

from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.numerics.optimise import OptimiseResult, StopReason, compute_gain

logger = logging.getLogger("skbayes_sym")

T = TypeVar("T")

# Verbosity of the outermost fit, so that the models inside it, which have verbose=0, log at its
# level.
_verbose: ContextVar[int] = ContextVar("_verbose", default=0)

_lock = threading.Lock()
# Verbosities of the running fits that show their log, and the logger's level without them.
_verbosities: list[int] = []
_level_before = logging.NOTSET


def log_info(message: str, *args: object) -> None:
    """Log a summary at level INFO if ``verbose`` is at least 1, else at DEBUG.

    A program whose root logger shows INFO therefore doesn't see fits with ``verbose=0``.

    Parameters
    ----------
    message : str
        Format string.
    *args : object
        Values for the format string.
    """
    logger.log(logging.INFO if _verbose.get() else logging.DEBUG, message, *args)


def format_digits(value: float, n_digits: int) -> str:
    """Format a number with so many significant digits, and without exponent below a million."""
    return f"{float(f'{value:.{n_digits}g}'):g}"


def _set_level() -> None:
    """Set the logger's level to the lowest of those that the running fits and the user need."""
    level = _level_before
    if _verbosities:
        if max(_verbosities) > 1:
            level = logging.DEBUG
        else:
            level = logging.INFO
        if _level_before != logging.NOTSET:
            level = min(level, _level_before)
    logger.setLevel(level)


class _ThreadRecords(logging.Filter):
    """Pass the records of one fit only: handlers of a logger receive those of all threads."""

    def __init__(self, verbose: int) -> None:
        super().__init__()
        if verbose > 1:
            self._level = logging.DEBUG
        else:
            self._level = logging.INFO
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record comes from this fit's thread and has a level that the fit shows."""
        return record.thread == self._thread and record.levelno >= self._level


@contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Show the package's log during one fit.

    Parameters
    ----------
    verbose : int
        0 shows nothing, 1 shows records of level INFO, and 2 also those of level DEBUG. It has no
        effect inside a fit that already shows its log.
    """
    global _level_before
    if not verbose or _verbose.get():
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[skbayes_sym] %(message)s"))
    handler.addFilter(_ThreadRecords(verbose))
    token = _verbose.set(int(verbose))
    with _lock:
        if not _verbosities:
            _level_before = logger.level
        _verbosities.append(int(verbose))
        logger.addHandler(handler)
        _set_level()
    try:
        yield
    finally:
        _verbose.reset(token)
        with _lock:
            _verbosities.remove(int(verbose))
            logger.removeHandler(handler)
            _set_level()


_SKIPPED_PACKAGES = {"skbayes_sym", "sklearn", "contextlib"}
# Beginning of messages: the class of the outermost estimator.
_prefix: ContextVar[str] = ContextVar("_prefix", default="")


class CollectedWarning(NamedTuple):
    """A warning that was collected instead of shown.

    Parameters
    ----------
    category : type
        Class of the warning.
    message : str
        Text of the warning.
    """

    category: type[Warning]
    message: str


_collected: ContextVar[list[CollectedWarning] | None] = ContextVar("_collected", default=None)


@contextmanager
def collect_warnings() -> Iterator[list[CollectedWarning]]:
    """Collect the package's own warnings of this thread instead of showing them.

    Yields
    ------
    list of CollectedWarning
        List that is filled while the block runs. Warnings of other packages aren't collected.
    """
    warned: list[CollectedWarning] = []
    token = _collected.set(warned)
    try:
        yield warned
    finally:
        _collected.reset(token)


@contextmanager
def name_in_warnings(estimator: object) -> Iterator[None]:
    """Begin warnings with the class of the user's estimator, also those of models inside it."""
    if _prefix.get():
        token = None
    else:
        token = _prefix.set(f"{type(estimator).__name__}: ")
    try:
        yield
    finally:
        if token is not None:
            _prefix.reset(token)


@contextmanager
def name_target_in_warnings(name: str) -> Iterator[None]:
    """Name one of several targets at the beginning of warnings."""
    token = _prefix.set(f"{_prefix.get()}target {name!r}: ")
    try:
        yield
    finally:
        _prefix.reset(token)


def warn_user(message: str, category: type[Warning] = ConvergenceWarning) -> None:
    """Warn at the nearest caller outside the package, scikit-learn and context managers.

    A constant ``stacklevel`` would only be right for one way into `fit`: a pipeline has more
    frames.

    Parameters
    ----------
    message : str
        Text of the warning.
    category : type
        Class of the warning.
    """
    _show_warning(_prefix.get() + message, category)


def warn_once(method: Callable[..., T]) -> Callable[..., T]:
    """Decorate a method so that an object shows each of its warnings once.

    Several methods of a predictive distribution evaluate the same rows. The object has an attribute
    ``_shown``, the set of warnings that were shown.

    Parameters
    ----------
    method : callable
        Method that can warn by `warn_user`.

    Returns
    -------
    callable
        The same method without repeated warnings.
    """

    @wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> T:
        shown = frozenset(self._shown)
        warned: list[CollectedWarning] = []
        try:
            with collect_warnings() as warned:
                return method(self, *args, **kwargs)
        finally:
            for warning in dict.fromkeys(warned):
                if warning not in shown:
                    self._shown.add(warning)
                    _show_warning(warning.message, warning.category)

    return wrapped


def _show_warning(message: str, category: type[Warning]) -> None:
    """Collect a warning, or show it at the nearest caller outside the package."""
    collected = _collected.get()
    if collected is not None:
        collected.append(CollectedWarning(category, message))
        return
    frame = sys._getframe(1)  # noqa: SLF001 -- it has no public name
    level = 2
    while frame.f_back and str(frame.f_globals.get("__name__")).split(".")[0] in _SKIPPED_PACKAGES:
        frame = frame.f_back
        level = level + 1
    warnings.warn(message, category, stacklevel=level)


# Change of the log evidence, in nats per unit of sample weight, from which a mode counts as moving.
# For targets without noise the scales change by less for hundreds of steps, while predictions stay
# the same.
_MOVING_MODE_TOL = 1e-2


def warn_unless_converged(
    result: OptimiseResult, tol: float | None, total_weight: float, objective: str = "the ELBO"
) -> None:
    """Warn if the last steps still raised the objective.

    The gain must be less than ``tol`` in the last tenth of the steps and less than ten times
    ``tol`` in the last fifth: steps are short at the end, and so is the progress that they make.

    Parameters
    ----------
    result : OptimiseResult
        Result with the losses, which are minus the objective.
    tol : float or None
        Tolerance in nats per unit of sample weight; None for no warning.
    total_weight : float
        Sum of the sample weights.
    objective : str
        Name of the objective in the warning.
    """
    if tol is None or result.stopped != "max_iter":
        return
    curve = [-loss for loss in result.loss_curve]
    for name, divisor, limit in (("tenth", 10, tol), ("fifth", 5, 10.0 * tol)):
        gain = compute_gain(curve, max(1, len(curve) // divisor))
        if gain.exceeds(limit * total_weight):
            warn_user(
                f"not converged: the last {name} of the {result.n_iter} steps still raised "
                f"{objective} by {gain.value / total_weight:.2g} nats per row (tol={tol:g}). Raise "
                "max_iter or learning_rate."
            )
            return


def warn_moving_mode(
    curve: Sequence[float], stopped: StopReason, tol: object, total_weight: float
) -> None:
    """Warn if mode finding was cut short while its best mode was still moving.

    Parameters
    ----------
    curve : sequence of float
        Log evidence after every update in nats; NaN if there was none.
    stopped : StopReason
        Why mode finding stopped.
    tol : object
        None for no warning.
    total_weight : float
        Sum of the sample weights.
    """
    evidence = [value for value in curve if isfinite(value)]
    if tol is None or stopped != "max_iter":
        return
    if len(evidence) > 2:
        change = abs(evidence[-1] - evidence[-3]) / total_weight
    else:
        change = inf
    if change > _MOVING_MODE_TOL:
        reason = "the search ended before its scales were updated three times"
        if change < inf:
            reason = f"the last two updates moved the log evidence by {change:.2g} nats per row"
        warn_user(f"not converged: {reason}. Raise max_iter.", ConvergenceWarning)
