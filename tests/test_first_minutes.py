"""What a new reader runs first, word for word and in order: README, front page, tutorials."""

import contextlib
import io
import re
from pathlib import Path

import pytest

pytest.importorskip("pandas")
ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "docs").exists(), reason="needs a clone of the repository"),
]


def blocks(page):
    """Code and what is printed after it (None: nothing is said), in order."""
    text = (ROOT / page).read_text()
    found = []
    if page.endswith(".md"):
        pieces = re.findall(r"```(python|text)\n(.*?)```", text, re.DOTALL)
    else:
        pieces = re.findall(r"\.\. (testcode|testoutput)::\n\n((?:   .*\n|\n)+)", text)
        pieces = [(kind, re.sub(r"(?m)^   ", "", body)) for kind, body in pieces]
    for kind, body in pieces:
        if kind in ("python", "testcode"):
            found.append((body, None))
        else:
            found[-1] = (found[-1][0], body)
    return found


def words(printed):
    return printed.split()


PAGES = [
    "README.md",
    "docs/index.rst",
    "docs/user_guide/tutorial.rst",
    "docs/user_guide/tutorial_images.rst",
    "docs/user_guide/tutorial_ratings.rst",
    "docs/user_guide/ecosystem.rst",
]
NEEDS = {"ecosystem": ("mapie", "skpro", "arviz_stats", "optuna", "shap")}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.*the learned noise:UserWarning")
@pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning")
def test_every_block_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    for name in NEEDS.get(Path(page).stem, ()):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, expected in blocks(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if expected is not None:
            assert words(printed.getvalue()) == words(expected)
    assert names
