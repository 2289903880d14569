"""The one dependency rule, parsed from the imports."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skbayes_sym

PACKAGE = Path(skbayes_sym.__file__).parent
LAYERS = ["numerics", "symmetry", "models", "inference", "estimators", "inspection"]
MAY_IMPORT_SKLEARN = {
    "estimators", "inspection", "model_selection", "datasets", "saving", "metrics.py"
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            yield node.module or "", node


def top(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    for name, node in imports(path):
        parts = name.split(".")
        if parts[0] == "sklearn":
            assert top(path) in MAY_IMPORT_SKLEARN, f"{name} below the faces"
        if parts[0] == "matplotlib":
            assert node.col_offset > 0, "matplotlib at module level"
        ours = parts[0] == "skbayes_sym" and len(parts) > 1 and parts[1] in LAYERS
        if ours and top(path) in LAYERS:
            assert LAYERS.index(parts[1]) <= LAYERS.index(top(path)), f"back-arrow to {name}"


def test_there_is_something_to_check() -> None:
    assert {top(p) for p in FILES} >= {"numerics", "symmetry", "models", "inference", "estimators"}


def test_importing_the_package_touches_no_gpu_and_no_compiler() -> None:
    """`torch._dynamo` costs over a second; it comes with torch.optim, which nothing here uses."""
    code = (
        "import sys, skbayes_sym, torch; "
        "from skbayes_sym import SymmetrizedVIRegressor; import numpy as np; "
        "SymmetrizedVIRegressor((2,), max_iter=2, tol=9.0).fit(np.eye(3), np.arange(3.0)); "
        "assert not torch.cuda.is_initialized(); "
        "assert 'torch._dynamo' not in sys.modules; assert 'matplotlib' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
