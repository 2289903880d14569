"""One progress report for a fit made of several stages."""

from collections.abc import Callable, Mapping
from typing import Any

from skbayes_sym.estimators._fit.callbacks import Reconstruct
from skbayes_sym.estimators._fit.context import FitContext, logger

_BLOCKS = 100  # tasks that callbacks see

OnStep = Callable[[int, Mapping[str, float]], bool]


class Progress:
    """The stages of a fit as hundred blocks of one task.

    Parameters
    ----------
    context : FitContext
    reconstruct : callable, optional
        Gives callbacks the model as it stands; without it they see no model until the fit ends.
    """

    def __init__(self, context: FitContext, reconstruct: Reconstruct | None = None) -> None:
        self._task = context.begin(_BLOCKS)
        self._reconstruct = reconstruct
        self._before, self._reported = 0.0, 0

    def phase(self, share: float, n_steps: int) -> OnStep:
        """``on_step`` for the next stage, of ``n_steps`` steps, which is ``share`` of the fit."""
        before, self._before = self._before, self._before + share

        def on_step(step: int, info: Mapping[str, float]) -> bool:
            done = int(_BLOCKS * (before + share * min(step / max(n_steps, 1), 1.0)) + 1e-9)
            while self._reported < min(done, _BLOCKS):
                self._reported += 1
                logger.debug("%d %%: %s", self._reported, _figures(info))
                if self._task.end_block(self._reconstruct):
                    return True  # no block begins after a stop
            return False

        return on_step

    def end(self, reconstruct: Reconstruct | None = None) -> None:
        """The fit is over."""
        self._task.end(reconstruct)


def _figures(info: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in info.items())
