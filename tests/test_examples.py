"""Every example runs to its end, in its fast mode, and its pictures can be drawn."""

import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.rglob("*.py"))


@pytest.fixture
def figures() -> Iterator[None]:
    """None before and none after, drawn by a backend that shows nothing."""
    backend = plt.get_backend()
    plt.switch_backend("agg")
    with plt.rc_context():
        yield
    plt.close("all")
    plt.switch_backend(backend)


# In one process, since importing takes longer than most of them. They warn as they do for a user:
# a few steps don't converge.
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: str(p.relative_to(EXAMPLES)))
def test_runs(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "load_dataset" in script.read_text(encoding="utf-8") and not os.environ.get(
        "SKBAYES_SYM_DATA"
    ):
        pytest.skip("needs the data of SKBAYES_SYM_DATA")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "--fast"])
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    runpy.run_path(str(script), run_name="__main__")
    numbers = plt.get_fignums()
    for number in numbers:  # a wrong formula in a label is found by drawing
        plt.figure(number).canvas.draw()
    assert numbers or capsys.readouterr().out.strip(), "nothing was printed and no figure drawn"


def test_there_is_something_to_run() -> None:
    assert len(SCRIPTS) > 20
