from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from skbayes_sym.numerics.threads import one_thread


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
