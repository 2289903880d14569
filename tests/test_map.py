"""Each module has its tests, or the map of its folder (its ``__init__``) says why not.

That maps name every module is in test_docs.py.

The tests of ``skbayes_sym/a/b.py`` are ``tests/a/test_b.py``. A module without them is excused
where the map of its folder says why, in a paragraph of this form:

    Tested elsewhere: `b` (with `c`), `d` (laws of all groups in `symmetry/test_groups`).
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, TESTS = ROOT / "skbayes_sym", ROOT / "tests"
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


def name_of(folder: Path) -> str:
    """The folder below the package; "" for its root."""
    return folder.relative_to(PACKAGE).as_posix().removeprefix(".")


every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: name_of(f) or ".")


def modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def map_of(folder: Path) -> str:
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    return ast.get_docstring(tree) or ""


def excused(text: str) -> set[str]:
    """Modules that the map says are tested elsewhere."""
    found = re.search(
        r"^Tested elsewhere: (.*?)\.(?:\n\n|\Z)", text, flags=re.DOTALL | re.MULTILINE
    )
    return set(re.findall(r"`(\w+)`\s\(\w", found[1])) if found else set()


def has_tests(folder: Path, module: str) -> bool:
    return (TESTS / name_of(folder) / f"test_{module.lstrip('_')}.py").is_file()


@every_folder
def test_each_module_has_its_tests_or_the_map_says_why_not(folder):
    untested = {m for m in modules(folder) if not has_tests(folder, m)}
    assert untested == excused(map_of(folder))


def test_the_form_of_an_excuse():
    """The rule itself: what it reads, and what it doesn't take for an excuse."""
    text = "Map.\n\nTested elsewhere: `a_b` (with `c`),\n`d`\n(laws in `x/y`).\n\nIn: `e` (n)."
    assert excused(text) == {"a_b", "d"}
    assert excused("`a` (with `b`)") == set()
