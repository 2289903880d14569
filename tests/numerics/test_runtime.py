"""Several tensors of a device reach the host in one copy, bit for bit."""

import os
import platform
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from threading import Event

import joblib
import pytest
import torch

from skbayes_sym.numerics.progress import report_progress
from skbayes_sym.numerics.runtime import (
    cache_tensors,
    keep_freed_memory,
    one_thread,
    run_parallel,
    to_host,
)

_MIXED = (
    torch.tensor([True, False, True]),
    torch.randn(2, 3, generator=torch.Generator().manual_seed(0)),
    torch.tensor([[-1.0, torch.nan]], dtype=torch.float64),
    torch.arange(6).reshape(2, 3).T,  # not contiguous
    torch.zeros(0, 3),
    torch.tensor(7.5, dtype=torch.float64),
)


def test_one_wait_for_all(cuda):
    there = [tensor.to("cuda") for tensor in _MIXED]
    with cuda.trace() as seen:
        here = to_host(there)
    assert sum(seen.waits.values()) == 1
    for tensor, found in zip(_MIXED, here, strict=True):
        assert (found.device.type, found.dtype, found.shape) == ("cpu", tensor.dtype, tensor.shape)
        torch.testing.assert_close(found, tensor, rtol=0.0, atol=0.0, equal_nan=True)


def test_what_is_on_the_host_stays_as_it_is():
    assert all(a is b for a, b in zip(to_host(_MIXED), _MIXED, strict=True))
    assert to_host([]) == []


def waited(i):
    time.sleep(0.1)
    return i


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_leaving_early_is_silent(n_jobs):
    # Jobs that take a moment: joblib's own threads stumble where results and the end cross.
    jobs = [partial(waited, i) for i in range(20)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with closing(run_parallel(jobs, n_jobs)) as results:
            assert next(results) == 0
    with pytest.raises(StopIteration):
        next(results)


def thread_and_process(_i):
    return threading.get_ident(), os.getpid()


def places(jobs, n_jobs=2, **hints):
    """Whether jobs run in this process, and whether in this thread."""
    found = list(run_parallel(jobs, n_jobs, **hints))
    is_thread = {ident == threading.get_ident() for ident, _ in found}
    is_process = {pid == os.getpid() for _, pid in found}
    return is_process, is_thread


@pytest.mark.long
@pytest.mark.processes
def test_threads_are_a_hint_that_a_backend_of_the_user_replaces():
    jobs = [partial(thread_and_process, i) for i in range(4)]
    assert places(jobs, prefer="threads") == ({True}, {False})
    with joblib.parallel_config("loky"):
        assert places(jobs, prefer="threads")[0] == {False}
    assert places(jobs)[0] == {False}


def test_the_hint_keeps_the_number_of_jobs_of_a_context():
    jobs = [partial(thread_and_process, i) for i in range(4)]
    with joblib.parallel_config(n_jobs=2):
        assert places(jobs, None, prefer="threads") == ({True}, {False})


def reported(begun, stopped, i):
    """Report until told to stop, as a fit does."""
    if i == 0:
        begun.wait(10.0)
        return
    begun.set()
    while not report_progress(1, 2):
        time.sleep(0.001)
    stopped.set()


def test_threads_that_are_left_early_stop_at_their_next_report():
    begun, stopped = Event(), Event()
    jobs = [partial(reported, begun, stopped, i) for i in range(2)]
    with closing(run_parallel(jobs, 2, prefer="threads")) as results:
        next(results)
        assert not stopped.is_set()
    assert stopped.wait(10.0)


class Rows:
    """What jobs have in common; it counts how often it is sent."""

    n_sent = 0

    def __reduce__(self):
        Rows.n_sent += 1
        return Rows, ()


def of_rows(rows, i):
    return type(rows).__name__, i


@pytest.mark.long
@pytest.mark.processes
def test_what_jobs_have_in_common_is_sent_once():
    rows, before = Rows(), Rows.n_sent
    jobs = [partial(of_rows, rows, i) for i in range(5)]
    assert list(run_parallel(jobs, 2)) == [("Rows", i) for i in range(5)]
    assert Rows.n_sent == before + 1
    with joblib.parallel_config("threading"):
        assert list(run_parallel(jobs, 2)) == [("Rows", i) for i in range(5)]
    assert Rows.n_sent == before + 1


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_nested_blocks_restore_at_the_outermost():
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_restored_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), one_thread():
        raise RuntimeError("inside")
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_that_overlap():
    def inside():
        with one_thread():
            return torch.get_num_threads()

    with one_thread(), ThreadPoolExecutor(3) as pool:
        assert {f.result() for f in [pool.submit(inside) for _ in range(20)]} == {1}
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_main_thread_gets_its_own_back_where_another_was_inside_first():
    entered, leave = Event(), Event()

    def lingering():
        torch.set_num_threads(1)
        with one_thread():
            entered.set()
            leave.wait()

    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(lingering)
            entered.wait()
            torch.set_num_threads(2)
            with one_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2
        finally:
            leave.set()
    assert torch.get_num_threads() == 2


FAULTS = """
import resource, sys, torch
from skbayes_sym.numerics.runtime import one_thread
if "fit" in sys.argv:
    with one_thread():  # as every fit and every prediction does
        pass
for _ in range(60):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.full((1 << 18,), 1.0, dtype=torch.float64) for _ in range(8)]  # 2 MB each, 512 pages
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_is_kept_from_the_first_fit_on():
    """Each round of 16 MB takes 4,096 pages from the system where freed memory isn't kept."""
    environment = {**os.environ, "SKBAYES_SYM_KEEP_MEMORY": "1"}
    run = [sys.executable, "-c", FAULTS, "fit"]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) < 100


@pytest.mark.parametrize(("switch", "expected"), [("1", 1), ("0", 0)])
def test_the_allocator_is_left_alone_if_switched_off(monkeypatch, switch, expected):
    allocations = []
    monkeypatch.setenv("SKBAYES_SYM_KEEP_MEMORY", switch)
    monkeypatch.setattr(torch, "empty", lambda *size, **_: allocations.append(size))
    keep_freed_memory.__wrapped__()
    assert len(allocations) == expected


def test_importing_leaves_the_allocator_alone():
    code = (
        "import skbayes_sym as sk; [getattr(sk, name) for name in sk.__all__]\n"
        "from skbayes_sym.numerics.runtime import keep_freed_memory\n"
        "print(keep_freed_memory.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0


def test_large_tables_are_released_when_the_last_fit_ends():
    made = []

    @cache_tensors
    def table(n):
        made.append(n)
        return torch.zeros(n), torch.ones(2)

    small, large = 10, 1 << 15  # 256 kB
    assert table(small) is table(small)
    assert table(large) is not table(large)  # outside nothing large is kept
    with one_thread():
        first = table(large)
        with one_thread():
            assert table(large) is first
        assert table(large) is first
    assert table(large) is not first
    assert made == [small] + 4 * [large]


def test_tables_are_few():
    made = []

    @cache_tensors
    def table(n):
        made.append(n)
        return torch.zeros(1)

    for n in range(100):
        table(n)
    table(99)
    assert len(made) == 100  # the last are kept
    table(0)
    assert len(made) == 101  # the first aren't


def test_tables_made_in_inference_mode_can_be_differentiated_through():
    @cache_tensors
    def table(n):
        return torch.ones(n)

    with torch.inference_mode():
        assert not table(3).is_inference()
