"""The package's log: silent at ``verbose=0``, a summary at 1, progress at 2.

Fits in several threads each show their own records, and the logger's level is restored when the
last of them ends.
"""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger("skbayes_sym")

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
