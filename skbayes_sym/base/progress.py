"""Progress of a fit: callbacks, the log, the deadline, and what an interrupt keeps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from numbers import Integral, Real
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from skbayes_sym.base.messages import logger
from skbayes_sym.base.optimizers import Adam, VariationalAdam
from skbayes_sym.base.scikit_learn import Interval, StrOptions
from skbayes_sym.numerics.optimise import (
    BufferedLoss,
    OptimiseResult,
    ParamGroup,
    half_constant_half_linear,
    minimise,
)
from skbayes_sym.numerics.progress import Receiver, current_receiver

# Constraints on the parameters of estimators that are trained by stochastic gradients.
STEP_CONSTRAINTS: dict[str, list[Any]] = {
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "optimizer": [StrOptions({"adam"}), Adam],
    "n_predict_samples": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "random_state": ["random_state"],
}

# Constraints on the parameters that all estimators share.
RUN_CONSTRAINTS: dict[str, list[Any]] = {"device": [str], "verbose": ["verbose"]}
N_JOBS: list[Any] = [
    Interval(Integral, None, -1, closed="right"),
    Interval(Integral, 1, None, closed="left"),
    None,
]

# Inputs of these dtypes are not converted.
FLOATS = (np.float64, np.float32)

# Number of rows in a block of a prediction, which bounds its memory. Forward passes divide it
# further into blocks that fit into the cache. With 128 rows the standard deviations of a mixture of
# networks take twice as long.
PREDICT_ROWS = 512

# Number of blocks into which callbacks see a fit divided.
_N_BLOCKS = 100

# Called with the number of steps made and some figures; returns whether to stop.
OnStep = Callable[[int, Mapping[str, float]], bool]

# Time at which fits stop, in seconds of `time.monotonic`. Callbacks could do this too, but
# scikit-learn has none before version 1.9.
_deadline: ContextVar[float] = ContextVar("_deadline", default=inf)


class StepConfig(NamedTuple):
    """Parameters of stochastic gradient ascent, as the constructors take them.

    Parameters
    ----------
    max_iter : int
        Largest number of steps.
    tol : float or None
        Tolerance in nats per unit of sample weight. None never stops early.
    batch_size : int or "auto"
        Number of rows per step.
    learning_rate : float or "auto"
        Step size at the start.
    log_variance_rate : float
        Step size of the log variances relative to that of other parameters.
    n_weight_samples : int or "auto"
        Number of weight samples per step.
    """

    max_iter: int
    tol: float | None
    batch_size: int | str
    learning_rate: float | str
    log_variance_rate: float
    n_weight_samples: int | str

    @classmethod
    def from_optimizer(
        cls, adam: VariationalAdam, max_iter: int, tol: float | None
    ) -> "StepConfig":
        """Combine the parameters of an optimiser with those of its estimator.

        Parameters
        ----------
        adam : VariationalAdam
            Parameter ``optimizer`` of the estimator.
        max_iter : int
            Largest number of steps.
        tol : float or None
            Tolerance in nats per row; None for a fixed number of steps.
        """
        return cls(
            max_iter=max_iter,
            tol=tol,
            batch_size=adam.batch_size,
            learning_rate=adam.learning_rate,
            log_variance_rate=adam.log_variance_rate,
            n_weight_samples=adam.n_weight_samples,
        )

    def n_draws(self, auto: int) -> int:
        """Return ``n_weight_samples``, or ``auto`` if that is "auto"."""
        if isinstance(self.n_weight_samples, str):
            return auto
        return self.n_weight_samples

    def rate(self, auto: float) -> float:
        """Return ``learning_rate``, or ``auto`` if that is "auto"."""
        if isinstance(self.learning_rate, str):
            return auto
        return float(self.learning_rate)

    def absolute_tol(self, total_weight: float) -> float | None:
        """Return the tolerance of the bound that is summed over all rows, nats."""
        if self.tol is None:
            return None
        return self.tol * total_weight


@contextmanager
def fit_deadline(seconds: float) -> Iterator[None]:
    """Stop fits inside the context after the block of steps in which the deadline passes.

    Parameters
    ----------
    seconds : float
        Deadline as a value of `time.monotonic`; infinite for none. An earlier deadline set by a
        surrounding fit stays in force. The deadline doesn't reach worker processes.
    """
    token = _deadline.set(min(seconds, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


class Schedule(NamedTuple):
    """Stopping rule and step sizes of an optimiser.

    Parameters
    ----------
    max_iter : int
        Largest number of steps.
    tol : float or None
        Absolute tolerance of the loss. None never stops early.
    factor : callable (float) -> float
        Factor on the step sizes as a function of the fraction of steps made.
    conservative : bool
        See `skbayes_sym.numerics.optimise.minimise`.
    """

    max_iter: int
    tol: float | None
    factor: Callable[[float], float] = half_constant_half_linear
    conservative: bool = False


class FitProgress:
    """Report the progress of a fit to the log and to scikit-learn's callbacks.

    Callbacks see a fit as one task that has a subtask for every block of steps. A fit inside
    another one, as that of a member of a stack, also reports its blocks to the outer fit.

    Parameters
    ----------
    arguments : mapping
        What callbacks receive: the estimator, training data as given to ``fit``, and metadata.
    attributes : callable (FitResult) -> mapping
        Turns the current fit into fitted attributes, for callbacks that need the model in the
        middle of a fit and for interrupts.

    Attributes
    ----------
    n_jobs : int or None
        Number of processes that the method may use.
    n_blocks : int
        Largest number of blocks.
    is_stopped : bool
        Whether a callback has stopped the fit.
    """

    def __init__(
        self, arguments: Mapping[str, Any], attributes: Callable[[Any], Mapping[str, Any]]
    ) -> None:
        self._arguments = arguments
        self._attributes = attributes
        self.n_jobs: int | None = arguments["estimator"].n_jobs
        self.is_stopped = False
        # Callback contexts of the fit and of its present block; None without callbacks.
        self._context: Any = None
        self._block: Any = None
        # Returns the fitted attributes of the current fit; None before there is one.
        self._reconstruct: Callable[[], Mapping[str, Any]] | None = None
        # Fraction of the fit that belongs to earlier stages, and number of blocks reported.
        self._earlier_stages = 0.0
        self._n_reported = 0
        self._n_steps = 0
        self.n_blocks = _N_BLOCKS
        # Receives the progress of this fit if it is a part of another one.
        self._outer_receiver = current_receiver()

    def begin(
        self, n_blocks: int = _N_BLOCKS, current_fit: Callable[[], Any] | None = None
    ) -> None:
        """Begin a fit of at most ``n_blocks`` blocks.

        Parameters
        ----------
        n_blocks : int
            Largest number of blocks that will be reported by `end_block`.
        current_fit : callable () -> FitResult, optional
            Returns the fit as it is after the latest block, when it is needed.
        """
        self.n_blocks = n_blocks
        self._n_left = n_blocks
        self._n_reported = 0
        self._earlier_stages = 0.0
        estimator = self._arguments["estimator"]
        # Callbacks are set on the estimator itself, or on an estimator around it.
        if {"_skl_callbacks", "_parent_callback_ctx"} & vars(estimator).keys():
            self._context = estimator._init_callback_context(max_subtasks=n_blocks)  # noqa: SLF001
            self._context.call_on_fit_task_begin(**self._arguments)
        self._begin_block()
        if current_fit is not None:
            self._reconstruct = lambda: self._attributes(current_fit())

    def _begin_block(self) -> None:
        self._n_left -= 1
        if self._context is not None:
            self._block = self._context.subcontext(task_name="block")
            self._block.call_on_fit_task_begin(**self._arguments)

    def set_current_fit(self, current_fit: Callable[[], Any]) -> None:
        """Set what an interrupt keeps during the computations that follow the method's loops.

        Parameters
        ----------
        current_fit : callable () -> FitResult
            Returns the fit, when it is needed.
        """
        self._reconstruct = lambda: self._attributes(current_fit())
        self._n_steps = max(1, self._n_steps)

    def interrupted_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes of the current fit after Ctrl-C.

        Returns
        -------
        dict
            Attributes, with ``stop_reason_ = "interrupted"``.

        Raises
        ------
        KeyboardInterrupt
            If no step was made, so that there is nothing to keep.
        """
        if self._reconstruct is None or not self._n_steps:
            raise KeyboardInterrupt
        attributes = dict(self._reconstruct())
        n_iter = attributes["n_iter_"] or self._n_steps
        return {**attributes, "n_iter_": n_iter, "stop_reason_": "interrupted"}

    def end_block(self) -> bool:
        """Report a finished block, and return whether a callback or the deadline ends the fit.

        Callbacks can see the current fit after the first block and after every hundredth of a fit.
        """
        n_hundredths = [100 * n // self.n_blocks for n in (self._n_reported, self._n_reported + 1)]
        shows_fit = not self._n_reported or n_hundredths[1] > n_hundredths[0]
        is_stopped = self.report_block(shows_fit=shows_fit)
        return is_stopped or monotonic() > _deadline.get()

    def report_block(self, *, shows_fit: bool) -> bool:
        """Report a finished block to callbacks and to an outer fit.

        Parameters
        ----------
        shows_fit : bool
            Whether callbacks can see the current fit, which they may score.

        Returns
        -------
        bool
            Whether a callback has stopped the fit. No block begins after a stop.
        """
        self._n_steps += 1
        self._n_reported += 1
        if self._outer_receiver is not None:
            fraction = min(self._n_reported / self.n_blocks, 1.0)
            self.is_stopped = self._outer_receiver(fraction) or self.is_stopped
        block = self._block
        self._block = None
        if block is not None:
            arguments = dict(self._arguments)
            if shows_fit:
                arguments["reconstruction_attributes"] = self._reconstruct
            self.is_stopped = bool(block.call_on_fit_task_end(**arguments)) or self.is_stopped
        if not self.is_stopped and self._n_left > 0:
            self._begin_block()
        return self.is_stopped

    def end(self, fitted: Any = None) -> None:
        """Report the end of the method's loops, and first that of a block that is still open.

        Parameters
        ----------
        fitted : FitResult, optional
            The result, if it is ready.
        """
        if fitted is not None:
            self.set_current_fit(lambda: fitted)
        for context in filter(None, (self._block, self._context)):
            arguments = {**self._arguments, "reconstruction_attributes": self._reconstruct}
            context.call_on_fit_task_end(**arguments)

    def stage_receiver(self, fraction: float) -> Receiver:
        """Return the receiver of reports in the next stage of a fit made of several stages.

        Callbacks can't see the current fit in its blocks.

        Parameters
        ----------
        fraction : float
            Fraction of the fit that the stage makes.

        Returns
        -------
        callable (fraction) -> bool
            Reports the blocks that end by this fraction of the stage, for `reporting_to`; returns
            whether to stop.
        """
        before = self._earlier_stages
        self._earlier_stages = before + fraction

        def receive(part: float) -> bool:
            n_done = self.n_blocks * (before + fraction * part)
            while not self.is_stopped and self._n_reported + 1 <= n_done:
                self.report_block(shows_fit=False)
            return self.is_stopped

        return receive

    def stage_callback(self, fraction: float, n_steps: int) -> OnStep:
        """Return the ``on_step`` function of the next stage of a fit made of several stages.

        Together the stages make all blocks that `begin` opens.

        Parameters
        ----------
        fraction : float
            Fraction of the fit that the stage makes.
        n_steps : int
            Number of steps of the stage.

        Returns
        -------
        callable (step, info) -> bool
            Reports the blocks that end by this step; returns whether to stop.
        """
        before = self._earlier_stages
        self._earlier_stages = self._earlier_stages + fraction

        def on_step(step: int, info: Mapping[str, float]) -> bool:
            done = before + fraction * min(step / max(n_steps, 1), 1.0)
            n_done = min(int(self.n_blocks * done + 1e-9), self.n_blocks)
            while self._n_reported < n_done:
                percent = 100 * (self._n_reported + 1) // self.n_blocks
                if percent > 100 * self._n_reported // self.n_blocks:
                    logger.debug("%d %%: %s", percent, _format_figures(info))
                if self.end_block():
                    return True
            return False

        return on_step

    def minimise(
        self,
        objective: BufferedLoss,
        groups: Sequence[ParamGroup],
        schedule: Schedule,
        report: Callable[[float], tuple[str, float]],
    ) -> OptimiseResult:
        """Minimise an objective in a hundred blocks, and report each to the log and callbacks.

        Parameters
        ----------
        objective : BufferedLoss
            Loss and its gradient.
        groups : sequence of ParamGroup
            Parameters with their step sizes.
        schedule : Schedule
            Stopping rule and step sizes.
        report : callable (loss) -> (name, value)
            Name and value of a block's mean loss in the log.

        Returns
        -------
        OptimiseResult
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
    """Report the progress of one of several methods in a fit, as a fraction of the whole fit.

    Parameters
    ----------
    parent : FitProgress
        Progress of the whole fit, which its owner begins and ends.
    fraction : float
        Fraction of the hundred blocks of ``parent`` that this method makes.
    combine : callable (FitResult) -> FitResult, optional
        Turns the current fit of this method into one of the whole, for interrupts.
    """

    def __init__(
        self,
        parent: FitProgress,
        fraction: float,
        combine: Callable[[Any], Any] | None = None,
    ) -> None:
        self._parent = parent
        self.n_jobs = parent.n_jobs
        self._combine = combine
        self._current_fit: Callable[[], Any] | None = None
        # Blocks of the whole fit that belong to this stage, and those already reported.
        self._max_whole_blocks = max(1, round(fraction * parent.n_blocks))
        self._n_whole_blocks = 0
        # Blocks of this stage, and those already reported.
        self.n_blocks = 1
        self._n_reported = 0
        self._earlier_stages = 0.0
        self.is_stopped = False

    def begin(
        self, n_blocks: int = _N_BLOCKS, current_fit: Callable[[], Any] | None = None
    ) -> None:
        """Begin the stage, which has at most ``n_blocks`` blocks."""
        self.n_blocks = n_blocks
        self._current_fit = current_fit

    def report_block(self, *, shows_fit: bool) -> bool:
        """Report the blocks of the whole fit that end with a block of this stage.

        Parameters
        ----------
        shows_fit : bool
            Whether callbacks can see the current fit.

        Returns
        -------
        bool
            Whether a callback has stopped the fit.
        """
        self._n_reported += 1
        if self._n_reported == 1 and self._current_fit is not None:
            self.set_current_fit(self._current_fit)
        n_expected = self._max_whole_blocks * self._n_reported // self.n_blocks
        while not self._parent.is_stopped and self._n_whole_blocks < n_expected:
            self._n_whole_blocks += 1
            if shows_fit:
                self._parent.end_block()
            else:
                self._parent.report_block(shows_fit=False)
        self.is_stopped = self._parent.is_stopped
        return self.is_stopped

    def set_current_fit(self, current_fit: Callable[[], Any]) -> None:
        """Set what an interrupt keeps, as a fit of the whole."""
        combine = self._combine
        if combine is not None:
            self._parent.set_current_fit(lambda: combine(current_fit()))

    def end(self, fitted: Any = None) -> None:
        """Do nothing: the whole fit goes on."""


def steps_per_block(max_iter: int) -> int:
    """Return the number of steps in a block of a fit."""
    return max(1, max_iter // _N_BLOCKS)


def n_blocks(max_iter: int) -> int:
    """Return the number of blocks of a fit of ``max_iter`` steps."""
    return -(-max_iter // steps_per_block(max_iter))


def _format_figures(info: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in info.items())
