"""Warnings that point to the user's own line."""

import sys
import warnings

_NOT_THE_USER = {"skbayes_sym", "sklearn", "contextlib"}


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the nearest caller outside the package, scikit-learn and context managers.

    A counted ``stacklevel`` would hold for one way into `fit` only: a pipeline has more frames.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back and _package(frame.f_globals) in _NOT_THE_USER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
