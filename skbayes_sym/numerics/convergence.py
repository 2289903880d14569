"""Whether a curve still rises: the mean of its end against the mean of what came before."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np


class Gain(NamedTuple):
    """How much higher the end of a curve is than what came before."""

    value: float
    standard_error: float  # as if the values were independent; infinite of too short a curve

    def exceeds(self, tol: float) -> bool:
        """Whether the gain is above ``tol`` by more than three standard errors."""
        return self.value > tol + 3.0 * self.standard_error

    def falls_short_of(self, tol: float) -> bool:
        """Whether the gain is below ``tol`` by more than three standard errors."""
        return self.value + 3.0 * self.standard_error < tol


def gain(curve: Sequence[float], window: int) -> Gain:
    """Mean of the last ``window`` values less that of as many before them.

    Of a curve shorter than two windows nothing is known: infinite, with an infinite error.
    """
    if len(curve) < 2 * window:
        return Gain(inf, inf)
    last, before = curve[-window:], curve[-2 * window : -window]
    error = np.hypot(np.std(last), np.std(before)) / window**0.5
    return Gain(float(np.mean(last) - np.mean(before)), float(error))


def last_tenth_gain(curve: Sequence[float]) -> Gain:
    """`gain` of the last tenth of the curve, of one value at least."""
    return gain(curve, max(1, len(curve) // 10))


def stalled(curve: Sequence[float], window: int, tol: float) -> bool:
    """Whether the gain over ``window`` values is known and below ``tol``."""
    return gain(curve, window).value < tol
