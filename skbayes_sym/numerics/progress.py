"""Progress of long computations, which report it without knowing the fit that they belong to.

A fit receives the reports of the computations inside `reporting_to`. Computations divide the task
that surrounds them by `part_of_progress`. Without a receiver, reports have no effect.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Called with the fraction of the task that is done; returns whether the fit should stop.
Receiver = Callable[[float], bool]

_receiver: ContextVar[Receiver | None] = ContextVar("_receiver", default=None)


def current_receiver() -> Receiver | None:
    """Return the receiver of the surrounding task, or None."""
    return _receiver.get()


def report_progress(n_done: float, n_total: float) -> bool:
    """Report that ``n_done`` of ``n_total`` equal parts of the surrounding task are done.

    Returns
    -------
    bool
        Whether the fit should stop. Computations that can't stop ignore it.
    """
    receiver = _receiver.get()
    if receiver is None:
        return False
    return receiver(min(n_done / n_total, 1.0))


@contextmanager
def reporting_to(receiver: Receiver | None) -> Iterator[None]:
    """Send reports made inside the context to a receiver, or to none."""
    token = _receiver.set(receiver)
    try:
        yield
    finally:
        _receiver.reset(token)


@contextmanager
def part_of_progress(start: float, stop: float) -> Iterator[None]:
    """Map progress inside the context to the interval from ``start`` to ``stop`` outside.

    Parameters
    ----------
    start, stop : float
        Fractions of the surrounding task that are done before and after the part.
    """
    outer = _receiver.get()
    if outer is None:
        yield
        return
    with reporting_to(lambda fraction: outer(start + (stop - start) * fraction)):
        yield
    outer(stop)
