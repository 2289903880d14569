"""A fit seen from outside: its method's blocks for callbacks, its log, why it stopped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from numbers import Integral, Real
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from skbayes_sym.base.log import logger
from skbayes_sym.base.optimizers import Adam, VariationalAdam
from skbayes_sym.base.scikit_learn import Interval, StrOptions
from skbayes_sym.numerics.optimise import (
    BufferedLoss,
    OptimiseResult,
    ParamGroup,
    half_constant_half_linear,
    minimise,
)

STEP_CONSTRAINTS: dict[str, list[Any]] = {
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "optimizer": [StrOptions({"adam"}), Adam],
    "n_predict_samples": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "random_state": ["random_state"],
}


class StepConfig(NamedTuple):
    """StepConfig of stochastic gradient ascent, in the words of the constructors."""

    max_iter: int
    tol: float | None  # nats per unit of sample weight; None: never stops
    batch_size: int | str
    learning_rate: float | str
    log_variance_rate: float  # of the log variances' step size, relative to the others'
    n_weight_samples: int | str

    @classmethod
    def from_optimizer(
        cls, adam: VariationalAdam, max_iter: int, tol: float | None
    ) -> "StepConfig":
        """Steps as an optimiser says."""
        rates = adam.learning_rate, adam.log_variance_rate
        return cls(max_iter, tol, adam.batch_size, *rates, adam.n_weight_samples)

    def n_draws(self, auto: int) -> int:
        """``n_weight_samples``, with ``auto`` by default."""
        return auto if isinstance(self.n_weight_samples, str) else self.n_weight_samples

    def rate(self, auto: float) -> float:
        """``learning_rate``, with ``auto`` by default."""
        return auto if isinstance(self.learning_rate, str) else float(self.learning_rate)

    def absolute_tol(self, total_weight: float) -> float | None:
        """``tol`` of the whole bound, nats."""
        return None if self.tol is None else self.tol * total_weight


FLOATS = (np.float64, np.float32)  # inputs of these dtypes are taken as they are

# Rows a prediction handles at once, of which passes take blocks that stay in cache: memory is
# bounded however many rows are asked for. With 128 a pool's standard deviations take twice as long.
PREDICT_ROWS = 512

# How a fit runs, whatever it fits.
RUN_CONSTRAINTS: dict[str, list[Any]] = {"device": [str], "verbose": ["verbose"]}
N_JOBS: list[Any] = [
    Interval(Integral, None, -1, closed="right"), Interval(Integral, 1, None, closed="left"), None
]  # fmt: skip

_BLOCKS = 100  # of a fit, that callbacks see

OnStep = Callable[[int, Mapping[str, float]], bool]

# Time at which fits stop, in seconds of `time.monotonic`. Callbacks could do this too, but
# scikit-learn has none before version 1.9.
_deadline: ContextVar[float] = ContextVar("_deadline", default=inf)


@contextmanager
def fit_deadline(seconds: float) -> Iterator[None]:
    """Stop the fits inside after the block of steps in which the deadline passes.

    Parameters
    ----------
    seconds : float
        Deadline as a value of `time.monotonic`; infinite for none. An earlier deadline set by a
        surrounding fit stays in force. Worker processes don't know of it.
    """
    token = _deadline.set(min(seconds, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


class Schedule(NamedTuple):
    """When an optimiser stops, and how its steps shrink."""

    max_iter: int
    tol: float | None  # on the loss, absolute; None: never
    factor: Callable[[float], float] = half_constant_half_linear
    conservative: bool = False  # see `minimise`


class FitProgress:
    """Report the progress of a fit to the log and to scikit-learn's callbacks.

    Callbacks see a fit as one task that has a subtask for every block of steps.

    Parameters
    ----------
    arguments : mapping
        What callbacks receive: the estimator, training data as given to ``fit``, and metadata.
    attributes : callable
        Turns the current fit into fitted attributes, for callbacks that need the model in the
        middle of a fit and for interrupts.
    """

    def __init__(
        self, arguments: Mapping[str, Any], attributes: Callable[[Any], Mapping[str, Any]]
    ) -> None:
        self._arguments = arguments
        self._attributes = attributes
        self.n_jobs: int | None = arguments[
            "estimator"
        ].n_jobs  # processes that the work is shared by
        self._context: Any = (
            None  # of the arguments, and of its present block; none without callbacks
        )
        self._block: Any = None
        self._reconstruct: Callable[[], Mapping[str, Any]] | None = None
        self._phases_before = 0.0
        self._reported = 0
        self._n_steps = 0

    def begin(self, n_blocks: int = _BLOCKS, so_far: Callable[[], Any] | None = None) -> None:
        """Open a task of at most ``n_blocks``; ``so_far`` gives what has been found, if asked."""
        self._n_left = n_blocks
        estimator = self._arguments["estimator"]
        # Callbacks are its own, or of an estimator around it.
        if {"_skl_callbacks", "_parent_callback_ctx"} & vars(estimator).keys():
            self._context = estimator._init_callback_context(max_subtasks=n_blocks)
            self._context.call_on_fit_task_begin(**self._arguments)
        self._begin_block()
        if so_far is not None:
            self._reconstruct = lambda: self._attributes(so_far())

    def _begin_block(self) -> None:
        self._n_left -= 1
        if self._context is not None:
            self._block = self._context.subcontext(task_name="block")
            self._block.call_on_fit_task_begin(**self._arguments)

    def set_current_fit(self, current_fit: Callable[[], Any]) -> None:
        """Say what has been found, should an interrupt end here what follows the loops."""
        self._reconstruct = lambda: self._attributes(current_fit())
        self._n_steps = max(1, self._n_steps)

    def interrupted_attributes(self) -> dict[str, Any]:
        """Fitted attributes of what had been found when Ctrl-C came."""
        if self._reconstruct is None or not self._n_steps:
            raise KeyboardInterrupt
        attributes = dict(self._reconstruct())
        n_iter = attributes["n_iter_"] or self._n_steps
        return {**attributes, "n_iter_": n_iter, "stop_reason_": "interrupted"}

    def end_block(self) -> bool:
        """Report a finished block; True if a callback or the deadline ends the fit."""
        self._n_steps += 1
        stop = monotonic() > _deadline.get()
        block = self._block
        self._block = None
        if block is not None:
            ended = {**self._arguments, "reconstruction_attributes": self._reconstruct}
            stop = bool(block.call_on_fit_task_end(**ended)) or stop
        if not stop and self._n_left > 0:
            self._begin_block()
        return stop

    def end(self, fitted: Any = None) -> None:
        """Report the end of the method's loops, with what was ``fitted`` if it is ready.

        A block that ended early is reported first.
        """
        if fitted is not None:
            self.set_current_fit(lambda: fitted)
        for context in filter(None, (self._block, self._context)):
            ended = {**self._arguments, "reconstruction_attributes": self._reconstruct}
            context.call_on_fit_task_end(**ended)

    def stage_callback(self, share: float, n_steps: int) -> OnStep:
        """``on_step`` of the next stage, of ``n_steps`` steps, which is ``share`` of the fit.

        For fits made of several stages: together they are the hundred blocks that `begin` opens.
        """
        before = self._phases_before
        self._phases_before = self._phases_before + share

        def on_step(step: int, info: Mapping[str, float]) -> bool:
            done = int(_BLOCKS * (before + share * min(step / max(n_steps, 1), 1.0)) + 1e-9)
            while self._reported < min(done, _BLOCKS):
                self._reported += 1
                logger.debug("%d %%: %s", self._reported, _figures(info))
                if self.end_block():
                    return True  # no block begins after a stop
            return False

        return on_step

    def minimise(
        self, objective: BufferedLoss, groups: Sequence[ParamGroup], schedule: Schedule,
        report: Callable[[float], tuple[str, float]],
    ) -> OptimiseResult:  # fmt: skip
        """Minimise in a hundred blocks, each reported to the log and to callbacks.

        ``report``: what the log says of a block's mean loss.
        """

        def on_step(step: int, info: Mapping[str, float]) -> bool:
            name, value = report(info["loss"])
            logger.debug("step %d: %s %.6g", step, name, value)
            stop = self.end_block()
            self._n_steps = step
            return stop

        return minimise(
            objective,
            groups=groups,
            max_iter=schedule.max_iter,
            block_size=steps_per_block(schedule.max_iter),
            on_step=on_step,
            schedule=schedule.factor,
            tol=schedule.tol,
            conservative=schedule.conservative,
        )


class StageProgress(FitProgress):
    """Run of one of several methods in a fit: its blocks are a share of the whole fit's.

    ``whole``: begun and ended by whoever makes the stages; ``share``: of the hundred blocks of
    ``whole``; ``as_whole``: of what this stage keeps in case of an interrupt.
    """

    def __init__(
        self, whole: FitProgress, share: float, as_whole: Callable[[Any], Any] | None = None
    ) -> None:
        self._whole, self._most = whole, max(1, round(share * _BLOCKS))
        self.n_jobs = whole.n_jobs
        self._as_whole = as_whole
        self._so_far: Callable[[], Any] | None = None
        self._n_blocks = 1
        self._done = 0
        self._told = 0
        self._phases_before = 0.0
        self._reported = 0

    def begin(self, n_blocks: int = _BLOCKS, so_far: Callable[[], Any] | None = None) -> None:
        self._n_blocks = n_blocks
        self._so_far = so_far

    def end_block(self) -> bool:
        self._done += 1
        if self._done == 1 and self._so_far is not None:
            self.set_current_fit(self._so_far)
        stop = False
        while not stop and self._told < self._most * self._done // self._n_blocks:
            self._told += 1
            stop = self._whole.end_block()
        return stop

    def set_current_fit(self, current_fit: Callable[[], Any]) -> None:
        as_whole = self._as_whole
        if as_whole is not None:
            self._whole.set_current_fit(lambda: as_whole(current_fit()))

    def end(self, fitted: Any = None) -> None:
        """End a stage, while the whole fit goes on."""


def steps_per_block(max_iter: int) -> int:
    """StepConfig between two looks at the loss."""
    return max(1, max_iter // _BLOCKS)


def n_blocks(max_iter: int) -> int:
    """How many blocks `steps_per_block` makes of ``max_iter`` steps."""
    return -(-max_iter // steps_per_block(max_iter))


def _figures(info: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in info.items())
