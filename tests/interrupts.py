"""Ctrl-C at the n-th call of a function of this package: the same moment on any machine."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import skbayes_sym

_PACKAGE = str(Path(skbayes_sym.__file__).parent)


class Counter:
    """Counts calls of the package's functions in the ``with`` block; raises at one of them.

    A generator isn't counted: its frame is entered once more where Python closes it, and what is
    raised there Python reports and drops, whoever wrote it.

    Parameters
    ----------
    strike : int, optional
        The call at which a `KeyboardInterrupt` comes; never without.
    """

    def __init__(self, strike: int | None = None) -> None:
        self.strike, self.n_calls = strike, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_flags & inspect.CO_GENERATOR:
            return
        if not code.co_filename.startswith(_PACKAGE):
            return
        self.n_calls += 1
        if self.n_calls == self.strike:
            sys.setprofile(None)
            raise KeyboardInterrupt

    def __enter__(self) -> "Counter":
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


def n_calls(work: Callable[[], object]) -> int:
    """How many calls there are to strike at."""
    with Counter() as counter:
        work()
    return counter.n_calls
