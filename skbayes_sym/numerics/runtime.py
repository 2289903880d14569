"""The runtime: transfers, cached constants, threads, parallel jobs, and explanations of errors."""

import os
import pickle
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import joblib
import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.progress import part_of_progress, report_progress, reporting_to


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB of freed memory in the process, once.

    Glibc returns freed memory to the system if it exceeds twice the largest block that was freed
    before, and then obtains it again page by page. Large temporary arrays take twice as long then.
    Freeing an untouched block of 32 MB raises the limit. The first fit or prediction does this, not
    the import. The environment variable ``SKBAYES_SYM_KEEP_MEMORY=0`` disables it.
    """
    if os.environ.get("SKBAYES_SYM_KEEP_MEMORY", "1") != "0":
        torch.empty((1 << 25) - (1 << 16), dtype=torch.uint8)


@cache
def import_symbolic_shapes() -> None:
    """Import a module that torch imports at its first Jacobian product, without a side effect.

    That module imports SymPy, which adds a filter to `warnings.filters`.
    """
    with filters_lock, warnings.catch_warnings():
        import_module("torch.fx.experimental.symbolic_shapes")


@cache
def import_compiler_bisector() -> None:
    """Import a module that torch imports in its first trace of a graph, without a side effect.

    That module stores the folder of compiled kernels, of which there are none, in the environment.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"
    with filters_lock, suppress(ModuleNotFoundError):  # older versions of torch don't have it
        folder = os.environ.get(name)
        import_module("torch._inductor.compiler_bisector")
        if folder is None:
            os.environ.pop(name, None)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors of one device to the host, bit for bit, with one synchronisation.

    They are transferred as one array of bytes, in order of decreasing item size, so that each is
    aligned. Tensors on the CPU are returned unchanged.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    as_bytes = [tensors[i].contiguous().flatten().view(torch.uint8) for i in order]
    parts = torch.cat(as_bytes).cpu().split([len(part) for part in as_bytes])
    on_host = dict(zip(order, parts, strict=True))
    return [on_host[i].view(t.dtype).view(t.shape) for i, t in enumerate(tensors)]


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

# scikit-learn replaces `warnings.filters`, which all threads share, in its validation and in the
# fits of its trees. Two overlapping calls in different threads can change the filters permanently.
# This lock admits one thread of this package at a time to such a call.
filters_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a forked child mustn't inherit a held lock
    os.register_at_fork(
        before=filters_lock.acquire,
        after_in_parent=filters_lock.release,
        after_in_child=filters_lock.release,
    )


def with_filters_lock(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a function of scikit-learn that may temporarily replace `warnings.filters`."""

    @wraps(function)
    def locked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with filters_lock:
            return function(*args, **kwargs)

    return locked


class _QuietParallel(joblib.Parallel):
    """Parallel without the warning about cancelled jobs, since fits that stop early cancel jobs."""

    def _warn_exit_early(self) -> None:
        """Do nothing."""


Job = Callable[[], Result]


def run_parallel(
    jobs: Sequence[Job[Result]], n_jobs: int | None, *, prefer: str | None = None
) -> Generator[Result, None, None]:
    """Yield the results of jobs in order.

    With one process or thread, each job runs when its result is requested. Worker processes receive
    all jobs once, as a file in memory, or by Dask's broadcast to all workers, of which some may be
    lost. Jobs are equal parts of the surrounding task's progress, and report to it within this
    thread. Those of other processes and threads are reported when their results arrive.

    Parameters
    ----------
    jobs : sequence of callable () -> result
        The jobs.
    n_jobs : int or None
        Number of processes or threads, as in joblib.
    prefer : {"threads"}, optional
        Runs jobs in threads unless the user has chosen a backend of joblib. This suits jobs that
        spend most of their time in large array operations, which release the global interpreter
        lock. Processes take some seconds to start, since each imports torch and scikit-learn.
    """
    if len(jobs) <= 1 or joblib.effective_n_jobs(n_jobs) == 1:
        for i, job in enumerate(jobs):
            with part_of_progress(i / len(jobs), (i + 1) / len(jobs)):
                result = job()
            yield result
        return
    hints: dict[str, Any] = {}
    if prefer is not None:
        # The hint alone would replace the number of jobs in a context of joblib by one.
        n_jobs = joblib.effective_n_jobs(n_jobs)
        hints["prefer"] = prefer
    run = _QuietParallel(n_jobs=n_jobs, batch_size=1, return_as="generator", **hints)
    backend, _ = joblib.parallel.get_active_backend(**hints)
    is_closed = threading.Event()
    if isinstance(backend, joblib.parallel.ThreadingBackend):
        # Threads don't inherit context variables, such as the one that collects warnings. Only this
        # thread reports progress. A thread can't be ended, so that fits are stopped by the answer
        # to their next report.
        with reporting_to(lambda _fraction: is_closed.is_set()):
            payload: Any = [partial(copy_context().run, job) for job in jobs]
    else:
        pickled = pickle.dumps(joblib.wrap_non_picklable_objects(jobs, False))
        payload = np.frombuffer(pickled, np.uint8)
        client = getattr(backend, "client", None)
        if client is not None:
            payload = client.scatter(payload, broadcast=True, hash=False)
    tasks = (joblib.delayed(_run_job)(payload, i) for i in range(len(jobs)))
    try:
        with closing(run(tasks)) as results:
            for i, result in enumerate(results):
                report_progress(i + 1, len(jobs))
                yield result
    finally:
        is_closed.set()


def _run_job(payload: Any, i: int) -> Any:
    """Return the result of one job, in one thread and without gradients.

    ``payload`` are the jobs, or their pickled bytes.
    """
    if isinstance(payload, np.ndarray):
        jobs = pickle.loads(payload.data)
    else:
        jobs = payload
    with one_thread(), torch.no_grad(), reporting_to(None):
        return jobs[i]()


# Parts of allocation errors on a host or a GPU.
_ALLOCATION_ERRORS = ("can't allocate memory", "not enough memory", "out of memory")


@dataclass
class _OneThreadUsers:
    """Contexts of `one_thread` that are open, from which the last restores the setting.

    Attributes
    ----------
    n : int
        Number of open contexts.
    before : int
        Number of threads before the first of them.
    n_main : int
        Number of open contexts in the main thread.
    main_before : int
        Number of threads before the first of those.
    """

    n: int = 0
    before: int = 1
    n_main: int = 0
    main_before: int = 1


_LOCK = threading.Lock()
_USERS = _OneThreadUsers()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels in one thread, and restore the setting afterwards.

    Sums that are split over threads round differently, so results would depend on the number of
    threads. With one thread, they are the same alone and inside any ``n_jobs``. For the array sizes
    of this package one thread is also as fast as several.
    """
    keep_freed_memory()
    is_main = threading.current_thread() is threading.main_thread()
    with _LOCK:
        if _USERS.n == 0:
            _USERS.before = torch.get_num_threads()
        if is_main and _USERS.n_main == 0:
            _USERS.main_before = torch.get_num_threads()
        _USERS.n += 1
        _USERS.n_main += is_main
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            _USERS.n -= 1
            _USERS.n_main -= is_main
            if _USERS.n == 0:
                _release_large_tables()
            # Part of the setting belongs to the thread, so the main thread restores it itself.
            if is_main and _USERS.n_main == 0:
                torch.set_num_threads(_USERS.main_before)
            elif _USERS.n == 0:
                torch.set_num_threads(_USERS.before)


_TABLES: list[dict[tuple[Any, ...], Any]] = []  # caches of all functions with `cache_tensors`
_MAX_TABLES = 64  # largest number of results per function
_SMALL_TABLE = 1 << 16  # bytes


def cache_tensors(function: Callable[..., Result]) -> Callable[..., Result]:
    """Cache tensors that depend on sizes and other hashable arguments only.

    Results of up to 64 kB are kept. Larger ones are kept while a fit or a prediction runs (inside
    `one_thread`), and released when the last of them ends, so that no memory that depends on the
    size of a model outlives it. Results are shared and must not be modified.
    """
    tables: dict[tuple[Any, ...], Any] = {}
    _TABLES.append(tables)

    @wraps(function)
    def cached(*args: Any) -> Any:
        try:
            return tables[args]
        except KeyError:
            pass
        with torch.inference_mode(False):  # autograd can't use inference tensors
            result = function(*args)
        with _LOCK:
            if _USERS.n or _n_bytes(result) <= _SMALL_TABLE:
                while len(tables) >= _MAX_TABLES:
                    del tables[next(iter(tables))]
                tables[args] = result
        return result

    return cached


def _release_large_tables() -> None:
    """Remove large results from all caches."""
    for tables in _TABLES:
        for args in [args for args, table in tables.items() if _n_bytes(table) > _SMALL_TABLE]:
            del tables[args]


def _n_bytes(table: Any) -> int:
    """Return the size of a tensor, or of a tuple of tensors, in bytes."""
    if isinstance(table, Tensor):
        return table.numel() * table.element_size()
    return sum(map(_n_bytes, table))


@contextmanager
def explain_torch_errors() -> Iterator[None]:
    """Explain torch's errors about memory and about decompositions, with a remedy."""
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
        if not any(text in str(error) for text in _ALLOCATION_ERRORS):
            raise
        raise MemoryError(
            f"out of memory: {reason} Use fewer rows, draws, members or weights at once, or give "
            "X as float32."
        ) from error


@cache_tensors
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a cached tensor of ``values``, numbers or tuples of them. It must not be modified.

    Parameters
    ----------
    values : tuple
        Numbers, or tuples of them.
    dtype : torch.dtype
        Dtype of the tensor.
    device : torch.device
        Its device.
    """
    return torch.tensor(values, dtype=dtype, device=device)


def index_tensor(values: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an index tensor, int64, on the device of ``like``."""
    return constant(values, torch.int64, like.device)
