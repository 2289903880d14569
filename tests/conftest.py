"""Settings of the whole suite, and the device that it runs on besides the CPU."""

import ast
import os
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # else scikit-learn skips some of its checks

import pytest
import torch
from _pytest.doctest import DoctestModule

torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption(
        "--pretend-gpu",
        action="store_true",
        help="run everything on a machine that seems to have a GPU (tests/pretend_cuda.py)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Examples in docstrings are the package's: below tests nobody looks for them."""
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


@pytest.hookimpl(tryfirst=True)  # before slow ones are left out
def pytest_collection_modifyitems(config, items):
    """Tests that start processes come first and share them; other cases than those kept are slow.

    Put the pretend device in place before the first `backward`, if a test wants it.
    """
    are_all = not config.getoption("lf", False) and all("::" not in arg for arg in config.args)
    for test, cases in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        mark_slow_but_kept(test, list(cases), are_all)
    items.sort(key=lambda item: item.get_closest_marker("processes") is None)
    wanted = any("cuda" in getattr(item, "fixturenames", ()) for item in items)
    if (wanted or config.getoption("--pretend-gpu")) and torch.version.cuda is None:
        import pretend_cuda

        pretend_cuda.prepare()


def mark_slow_but_kept(test, cases, are_all):
    """A law's cases that show no more than those named by ``kept``."""
    kept = cases[0].get_closest_marker("kept")
    if kept is None:
        return
    names = [case.callspec.id for case in cases]
    for case, name in zip(cases, names, strict=True):
        if not any(fnmatchcase(name, one) for one in kept.args):
            case.add_marker(pytest.mark.slow)
    lost = [one for one in kept.args if not any(fnmatchcase(name, one) for name in names)]
    if are_all and lost:
        raise pytest.UsageError(f"{test} has no case {lost}: it has {names}")


def starting_processes(path: Path) -> set[str]:
    """Names of the tests of a file that are marked so."""
    text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
    if "mark.processes" not in text:
        return set()
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {
        test.name
        for test in found
        if any("mark.processes" in ast.unparse(each) for each in test.decorator_list)
    }


def reads_fits(path: Path) -> bool:
    """Whether tests of a file read the fits of `fits.py`."""
    text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
    return "from fits import" in text and "fitted(" in text


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Under `pytest -n` the tests of a file share a worker, and those that start processes do.

    So do those that read the fits of `fits.py`: each is made once, and so are the processes.
    """
    if config.getvalue("dist") != "load":
        return None  # asked for otherwise
    from xdist.scheduler import LoadFileScheduling

    found: dict[str, set[str]] = {}
    shared: dict[str, bool] = {}

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path, _, test = nodeid.partition("::")
            if path not in found:
                found[path] = starting_processes(config.rootpath / path)
                shared[path] = reads_fits(config.rootpath / path)
            if test.partition("[")[0] in found[path]:
                return "processes"
            return "fits" if shared[path] else path

    return ByFile(config, log)


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh seeded stream."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def cuda():
    """The real GPU (None), or the pretend one's handle; skips where neither can be had."""
    if torch.version.cuda is not None:
        if not torch.cuda.is_available():
            pytest.skip("this torch has CUDA and this machine no GPU")
        yield None
        return
    from pretend_cuda import Unavailable, pretend_cuda

    try:
        device = pretend_cuda()
        handle = device.__enter__()
    except Unavailable as error:
        pytest.skip(str(error))
    yield handle
    device.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def _everywhere(request):
    """With ``--pretend-gpu`` every test sees a GPU."""
    if request.config.getoption("--pretend-gpu"):
        request.getfixturevalue("cuda")
