"""Where and in which precision a fit computes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def resolve_device(device: str) -> torch.device:
    """The device a parameter ``device`` stands for; never another one silently.

    Raises
    ------
    ValueError
        If the name isn't a device, or a CUDA device that isn't there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device={device!r} is not a device: use 'auto', 'cpu', 'cuda' or 'cuda:1'."
        ) from error
    if resolved.type == "cuda":
        n = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= n:
            raise ValueError(
                f"device={device!r} was asked for, but torch sees {n} CUDA devices here. "
                "Use device='auto' or 'cpu', or install a CUDA build of torch."
            )
    return resolved


def resolve_dtype(dtype: str, X: np.ndarray) -> torch.dtype:
    """The torch dtype; ``"auto"`` follows ``X`` (float32 stays float32)."""
    name = str(X.dtype) if dtype == "auto" else dtype
    return {"float32": torch.float32, "float64": torch.float64}[name]


class _OneThread:
    """Counts who is inside, so that overlapping fits in several threads restore the right value."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 1

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.get_num_threads()
            self._inside += 1
            torch.set_num_threads(1)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            # The setting is partly a thread's own: the main thread always gets its own back.
            if self._inside == 0 or threading.current_thread() is threading.main_thread():
                torch.set_num_threads(self._before)


_ONE_THREAD = _OneThread()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels in one thread, then restore the setting.

    Sums split over threads round differently, so the number of threads would change the fit;
    with one, the result is the same alone and inside any ``n_jobs``. At the sizes of this package
    one thread is also as fast as several.
    """
    _ONE_THREAD.enter()
    try:
        yield
    finally:
        _ONE_THREAD.leave()
