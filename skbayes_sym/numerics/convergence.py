"""Whether a curve still rises, and where a fixed-point iteration leads."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


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


class AndersonMixing:
    r"""Proposals for the fixed point of a map g (Walker & Ni 2011, type II).

    Of the last few steps :math:`x_i \to g(x_i)` with residuals :math:`f_i = g(x_i) - x_i`,

    .. math:: \sum_i \alpha_i g(x_i), \qquad
        \alpha = \arg\min \Bigl| \sum_i \alpha_i f_i \Bigr|, \quad \sum_i \alpha_i = 1.

    On linear maps it is GMRES. Elsewhere it is a proposal only: the caller asks whether it is
    better.

    ``depth``: steps that are mixed.
    """

    def __init__(self, depth: int = 8) -> None:
        self._depth = depth
        self._history: list[tuple[Tensor, Tensor]] = []  # (residual, target)

    def propose(self, current: Tensor, target: Tensor) -> Tensor | None:
        """After a step from ``current`` to ``target``, both (n,); None after the first."""
        self._history.append((target - current, target))
        del self._history[: -self._depth]
        if len(self._history) < 2:
            return None
        residuals, goals = (torch.stack(t, dim=1) for t in zip(*self._history, strict=True))
        steps = residuals[:, 1:] - residuals[:, :-1]
        # On the host: a GPU has no driver for steps that depend on each other.
        wanted = residuals[:, -1:].cpu()
        mix = torch.linalg.lstsq(steps.cpu(), wanted, driver="gelsd").solution[:, 0].to(goals)
        return goals[:, -1] - (goals[:, 1:] - goals[:, :-1]) @ mix
