"""Settings of the whole suite, and the device that it runs on besides the CPU."""

import ast
import os
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


def pytest_collection_modifyitems(config, items):
    """Tests that start processes come first and share them.

    Put the pretend device in place before the first `backward`, if a test wants it.
    """
    items.sort(key=lambda item: item.get_closest_marker("processes") is None)
    wanted = any("cuda" in getattr(item, "fixturenames", ()) for item in items)
    if (wanted or config.getoption("--pretend-gpu")) and torch.version.cuda is None:
        import pretend_cuda

        pretend_cuda.prepare()


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Under `pytest -n` the tests of a file share a worker, and those that start processes do.

    So a fit that many tests read is made once, and so are those processes.
    """
    if config.getvalue("dist") != "load":
        return None  # asked for otherwise
    from xdist.scheduler import LoadFileScheduling

    found: dict[str, set[str]] = {}

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path, _, test = nodeid.partition("::")
            if path not in found:
                found[path] = starting_processes(config.rootpath / path)
            return "processes" if test.partition("[")[0] in found[path] else path

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
