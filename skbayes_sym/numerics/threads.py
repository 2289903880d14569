"""How many threads torch computes with."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _OneThread:
    """Counts who is inside, so that overlapping fits in several threads restore the right value."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 1
        self._main_inside, self._main_before = 0, 1

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.get_num_threads()
            if _in_main_thread() and self._main_inside == 0:
                self._main_before = torch.get_num_threads()
            self._inside += 1
            self._main_inside += _in_main_thread()
            torch.set_num_threads(1)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            self._main_inside -= _in_main_thread()
            # The setting is partly a thread's own: the main thread always gets its own back.
            if _in_main_thread() and self._main_inside == 0:
                torch.set_num_threads(self._main_before)
            elif self._inside == 0:
                torch.set_num_threads(self._before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_ONE_THREAD = _OneThread()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels in one thread, then restore the setting.

    Sums split over threads round differently, so the number of threads would change the result;
    with one, it is the same alone and inside any ``n_jobs``. At the sizes of this package one
    thread is also as fast as several.
    """
    _ONE_THREAD.enter()
    try:
        yield
    finally:
        _ONE_THREAD.leave()
