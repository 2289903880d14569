"""What a comparison hands to `compare_all`: ratios, their promises, and how a round measures them.

A comparison (``compare_*.py`` and its like) has ``SOURCES``; each prepares its arms once and then
measures, a round at a time, every ratio it names. A peer that isn't installed is an `ImportError`
of ``prepare``, or a ratio that a round leaves out.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Round = Callable[[int], dict[str, float]]  # by seed: a figure a name


class Ratio(NamedTuple):
    """A figure of the table, and what was promised for it."""

    name: str
    bound: float | None = None  # None: nothing was
    at_most: bool = True
    by: str = "median"  # of rounds, "worst" or "mean": what the promise is about

    def worst(self, values: list[float]) -> float:
        """The round that tells most against us."""
        return float(np.max(values) if self.at_most else np.min(values))

    def judged(self, values: list[float]) -> float:
        """What is held against the promise."""
        if self.by == "worst":
            return self.worst(values)
        return float(np.median(values) if self.by == "median" else np.mean(values))

    def met(self, values: list[float]) -> bool:
        """Whether the promise is kept; where there is none it is."""
        if self.bound is None:
            return True
        figure = self.judged(values)
        return figure <= self.bound if self.at_most else figure >= self.bound


class Source(NamedTuple):
    """Ratios that are measured together."""

    name: str
    title: str
    ratios: tuple[Ratio, ...]
    prepare: Callable[[], Round]
