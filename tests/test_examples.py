"""Every example runs to its end, in its fast mode, and its pictures can be drawn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.rglob("*.py"))
# On the Agg backend `plt.show` draws nothing, and a wrong formula in a label is found by drawing.
RUN_AND_DRAW = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
if "matplotlib" in sys.modules:
    import matplotlib.pyplot as plt
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
        print("figure", number)
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: str(p.relative_to(EXAMPLES)))
def test_runs(script: Path, tmp_path: Path) -> None:
    if "load_dataset" in script.read_text(encoding="utf-8") and not os.environ.get(
        "SKBAYES_SYM_DATA"
    ):
        pytest.skip("needs the data of SKBAYES_SYM_DATA")
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_DRAW, str(script), "--fast"],
        cwd=tmp_path,
        env=os.environ | one_thread | {"MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "nothing was printed and no figure drawn"


def test_there_is_something_to_run() -> None:
    assert len(SCRIPTS) > 20
