"""The bridge between the loops' ``on_step`` and `sklearn.callback`."""

import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.scikit_learn import callback_context

logger = logging.getLogger("skbayes_sym")

Reconstruct = Callable[[], Mapping[str, Any]]


class FitTask:
    """One fit as scikit-learn's callbacks see it: a task with one subtask a block of steps.

    ``X``, ``y``, ``metadata``: training data as given to ``fit``, handed to the callbacks;
    ``n_blocks``: most subtasks there can be.
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        X: Any,
        y: Any,
        metadata: Mapping[str, Any] | None,
        n_blocks: int,
    ) -> None:
        self._estimator = estimator
        self._data = {"X": X, "y": y, "metadata": metadata}
        self._n_blocks = self._left = n_blocks
        self._start: float | None = perf_counter()  # None once the time has been told
        self._context = callback_context(estimator, n_blocks)
        self._context.call_on_fit_task_begin(estimator=estimator, **self._data)
        self._block: Any = None
        self._begin_block()

    def _begin_block(self) -> None:
        self._block = self._context.subcontext(task_name="block")
        self._block.call_on_fit_task_begin(estimator=self._estimator, **self._data)
        self._left -= 1

    def end_block(self, reconstruct: Reconstruct | None) -> bool:
        """Report a finished block; True if a callback asks to stop."""
        stop = self._block.call_on_fit_task_end(
            estimator=self._estimator, reconstruction_attributes=reconstruct, **self._data
        )
        self._block = None
        self._tell_time()
        if not stop and self._left > 0:
            self._begin_block()
        return bool(stop)

    def _tell_time(self) -> None:
        """Log once, after the first block, how long the fit may take."""
        if self._start is None or self._n_blocks < 2:
            return
        seconds, self._start = perf_counter() - self._start, None
        logger.info(
            "first of %d blocks: %.2g s, so up to %.2g s in all",
            self._n_blocks,
            seconds,
            seconds * self._n_blocks,
        )

    def end(self, reconstruct: Reconstruct | None) -> None:
        """Report the end of the fit, first of a block that ended early if there is one."""
        if self._block is not None:
            self._block.call_on_fit_task_end(
                estimator=self._estimator, reconstruction_attributes=reconstruct, **self._data
            )
        self._context.call_on_fit_task_end(
            estimator=self._estimator, reconstruction_attributes=reconstruct, **self._data
        )
