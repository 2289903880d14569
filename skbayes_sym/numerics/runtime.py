"""The machine: one wait for several tensors, constants of a device, threads, jobs, errors."""

import os
import pickle
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import copy_context
from functools import cache, partial, wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import joblib
import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import NotPositiveDefiniteError


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB of freed memory for the process, once.

    Glibc returns freed memory to the system, and gets it again page by page, beyond twice the
    largest block that was freed before. Large temporaries then take twice as long. Freeing a block
    of 32 MB, which nothing is written to, raises the limit. The first fit or prediction does this;
    importing the package doesn't. The environment variable ``SKBAYES_SYM_KEEP_MEMORY=0``
    switches it off.
    """
    if os.environ.get("SKBAYES_SYM_KEEP_MEMORY", "1") != "0":
        torch.empty((1 << 25) - (1 << 16), dtype=torch.uint8)


@cache
def import_symbolic_shapes() -> None:
    """Import what torch imports at its first product with a Jacobian, without a side effect.

    That module imports SymPy, which adds a filter to `warnings.filters`.
    """
    with filters_lock, warnings.catch_warnings():
        import_module("torch.fx.experimental.symbolic_shapes")


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device on the host, bit for bit; a GPU is waited for once, not once each.

    They travel as the bytes of one array, those of the widest dtypes first, so that every one of
    them begins where its dtype may. On the CPU they are handed back as they are.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    as_bytes = [tensors[i].contiguous().flatten().view(torch.uint8) for i in order]
    arrived = torch.cat(as_bytes).cpu().split([len(one) for one in as_bytes])
    on_host = dict(zip(order, arrived, strict=True))
    return [on_host[i].view(t.dtype).view(t.shape) for i, t in enumerate(tensors)]


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

# scikit-learn replaces `warnings.filters`, which all threads share, inside its validation and in
# the fits of its trees. Two such calls that overlap in two threads can leave the filters changed
# for good. Whoever holds this lock is the only one of this package's threads in such a call.
filters_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child of fork mustn't inherit a lock that is held
    os.register_at_fork(
        before=filters_lock.acquire,
        after_in_parent=filters_lock.release,
        after_in_child=filters_lock.release,
    )


def with_filters_lock(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a function of scikit-learn that may replace `warnings.filters` for its duration."""

    @wraps(function)
    def locked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with filters_lock:
            return function(*args, **kwargs)

    return locked


class _QuietParallel(joblib.Parallel):
    """Parallel without the warning that jobs were cancelled: a fit that stops early does that."""

    def _warn_exit_early(self) -> None:
        """Say nothing."""


Job = Callable[[], Result]


def run_parallel(jobs: Sequence[Job[Result]], n_jobs: int | None) -> Generator[Result, None, None]:
    """Results of jobs in their order, from as many processes as joblib makes of ``n_jobs``.

    With one process a job is done when its result is asked for. Other processes are sent what jobs
    have in common once: as a file in memory, or to all workers of Dask, of which some may be lost.
    """
    if len(jobs) <= 1 or joblib.effective_n_jobs(n_jobs) == 1:
        yield from (job() for job in jobs)
        return
    run = _QuietParallel(n_jobs=n_jobs, batch_size=1, return_as="generator")
    backend, _ = joblib.parallel.get_active_backend()
    if isinstance(backend, joblib.parallel.ThreadingBackend):
        # Threads don't inherit context variables, such as the one that collects warnings.
        sent: Any = [partial(copy_context().run, job) for job in jobs]
    else:
        sent = np.frombuffer(pickle.dumps(joblib.wrap_non_picklable_objects(jobs, False)), np.uint8)
        client = vars(backend).get("client")
        sent = sent if client is None else client.scatter(sent, broadcast=True, hash=False)
    with closing(run(joblib.delayed(_alone)(sent, i) for i in range(len(jobs)))) as results:
        yield from results


def _alone(sent: Any, i: int) -> Any:
    """Result of the i-th of the jobs, or of their bytes."""
    jobs = pickle.loads(sent.data) if isinstance(sent, np.ndarray) else sent
    with one_thread(), torch.no_grad():
        return jobs[i]()


# What allocators say, of a host and of a GPU.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class _Inside(SimpleNamespace):
    """Who runs in one thread, so that overlapping fits in several restore the right value.

    ``n``, ``n_main``: fits inside, and those of them in the main thread; ``before``,
    ``main_before``: the settings that they found.
    """


_LOCK = threading.Lock()
_INSIDE = _Inside(n=0, before=1, n_main=0, main_before=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels in one thread, then restore the setting.

    Sums split over threads round differently, so the number of threads would change the result;
    with one, it is the same alone and inside any ``n_jobs``. At the sizes of this package one
    thread is also as fast as several.
    """
    keep_freed_memory()
    is_main = threading.current_thread() is threading.main_thread()
    with _LOCK:
        if _INSIDE.n == 0:
            _INSIDE.before = torch.get_num_threads()
        if is_main and _INSIDE.n_main == 0:
            _INSIDE.main_before = torch.get_num_threads()
        _INSIDE.n += 1
        _INSIDE.n_main += is_main
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.n -= 1
            _INSIDE.n_main -= is_main
            if _INSIDE.n == 0:
                _release_large_tables()
            # The setting is partly a thread's own: the main thread always gets its own back.
            if is_main and _INSIDE.n_main == 0:
                torch.set_num_threads(_INSIDE.main_before)
            elif _INSIDE.n == 0:
                torch.set_num_threads(_INSIDE.before)


_TABLES: list[dict[tuple[Any, ...], Any]] = []  # of every function with `cache_tensors`
_MOST_TABLES = 64  # of one function
_SMALL_TABLE = 1 << 16  # bytes


def cache_tensors(function: Callable[..., Result]) -> Callable[..., Result]:
    """Cache tensors that depend on sizes and other hashable arguments alone.

    Small ones, of 64 kB at most, stay. Larger ones are kept while a fit or a prediction runs
    (inside `one_thread`) and are released when the last of them ends, so that no memory that grew
    with a model outlives it. Results are shared: never write to them.
    """
    tables: dict[tuple[Any, ...], Any] = {}
    _TABLES.append(tables)

    @wraps(function)
    def cached(*args: Any) -> Any:
        try:
            return tables[args]
        except KeyError:
            pass
        with torch.inference_mode(False):  # else autograd couldn't use them later
            result = function(*args)
        with _LOCK:
            if _INSIDE.n or _n_bytes(result) <= _SMALL_TABLE:
                while len(tables) >= _MOST_TABLES:
                    del tables[next(iter(tables))]
                tables[args] = result
        return result

    return cached


def _release_large_tables() -> None:
    for tables in _TABLES:
        for args in [args for args, table in tables.items() if _n_bytes(table) > _SMALL_TABLE]:
            del tables[args]


def _n_bytes(table: Any) -> int:
    """Bytes of a tensor, or of a tuple of them."""
    if isinstance(table, Tensor):
        return table.numel() * table.element_size()
    return sum(map(_n_bytes, table))


@contextmanager
def explain_torch_errors() -> Iterator[None]:
    """Say what to do where torch finds no memory, or no decomposition of a matrix."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if isinstance(error, torch.linalg.LinAlgError):
            raise NotPositiveDefiniteError(
                "a matrix has no decomposition in this arithmetic: data or hyperparameters are "
                "extreme. Standardise X and y, give X as float64, or give scales, noise and "
                f"learning rates ordinary values. ({reason})"
            ) from error
        if not any(words in str(error) for words in _OUT_OF_MEMORY):
            raise
        raise MemoryError(
            f"out of memory: {reason} Use fewer rows, draws, members or weights at once, or give "
            "X as float32."
        ) from error


@cache_tensors
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor of ``values``, numbers or tuples of them, the same one for every call.

    It is shared: never write to it.
    """
    return torch.tensor(values, dtype=dtype, device=device)


def index_tensor(values: tuple[int, ...], like: Tensor) -> Tensor:
    """Positions as an index on the device of ``like``, int64."""
    return constant(values, torch.int64, like.device)
