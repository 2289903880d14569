"""The one dependency rule, parsed from the imports."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skbayes_sym

PACKAGE = Path(skbayes_sym.__file__).parent

# Imports point to the same floor or to one before. The package root comes last: it imports all.
FLOORS = [
    {"numerics"},
    {"symmetry"},
    {"models"},
    {"inference"},
    {"metrics", "datasets"},
    {"estimators"},
    {"saving", "callbacks"},
    {"inspection", "model_selection"},
    {""},
]
ORDER = {name: i for i, floor in enumerate(FLOORS) for name in floor}
BELOW_SKLEARN = {"numerics", "symmetry", "models", "inference"}
# One folder a method: none knows another's. `inference/reference` varies what methods do and may
# know them; none knows it.
METHODS = {
    "inference": {
        "mean_field", "layerwise", "linear", "laplace", "factorization", "mcmc", "smc",
        "multimodal", "reference",
    },
    "estimators": {"vi", "layerwise", "mcmc", "laplace", "linear", "factorization", "ensemble"},
}  # fmt: skip
BEING_MOVED = {("ensemble", "vi"), ("layerwise", "vi"), ("vi", "layerwise"),
               ("factorization", "mean_field")}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    """Every import of a file: the module, and where it stands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            if node.module == "skbayes_sym":
                for alias in node.names:
                    yield f"skbayes_sym.{alias.name}", node
            else:
                yield node.module or "", node


def place(path: Path) -> tuple[str, ...]:
    """Where a file stands below the package: folders and name; () for the root."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def floor(parts: tuple[str, ...]) -> str:
    return parts[0] if parts and parts[0] in ORDER else ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = place(path)
    for name, node in imports(path):
        parts = name.split(".")
        if parts[0] == "sklearn":
            assert floor(here) not in BELOW_SKLEARN, f"{name} below the faces"
        if parts[0] == "matplotlib":
            assert node.col_offset > 0, "matplotlib at module level"
        if parts[0] == "skbayes_sym":
            there = tuple(parts[1:])
            assert ORDER[floor(there)] <= ORDER[floor(here)], f"back-arrow to {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_method_imports_another(path: Path) -> None:
    here = place(path)
    methods = METHODS.get(floor(here), set())
    if len(here) < 3 or here[1] not in methods - {"reference"}:
        return
    for name, _ in imports(path):
        there = name.split(".")[1:]
        if len(there) > 1 and there[0] == here[0]:
            if (here[1], there[1]) in BEING_MOVED:
                continue
            assert there[1] not in methods - {here[1]}, f"imports another method's {name}"


def test_there_is_something_to_check() -> None:
    assert {floor(place(p)) for p in FILES} >= set(ORDER) - {"callbacks"}


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
