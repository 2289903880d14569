"""What adding something costs: the table of the contributor's page, as far as imports can tell.

The last thing added of each kind stands for the next: its file may be known by the maps that
re-export names, by the files of `saving` and by the tables of shorthand named here, by nothing
else.
"""

import ast
from functools import cache
from pathlib import Path

import pytest
from house import imported
from test_docs import PUBLIC

import skbayes_sym

PACKAGE = Path(skbayes_sym.__file__).parent

# Names to import, and places in files without pickle: a line each, where they are wanted.
NAMES = {"__init__.py", "models/__init__.py", "symmetry/__init__.py", "estimators/samplers.py"}
PLACES = {"saving/values.py", "saving/classes.py"}
STRINGS = "models/likelihoods/__init__.py"  # what stands for a likelihood

# A file of each kind, and the tables that give it a string as shorthand.
ADDED: dict[str, tuple[str, set[str]]] = {
    "likelihood": (
        "models.likelihoods.counts",
        {"estimators/linear/linear_regressor.py", STRINGS},
    ),
    "likelihood of labels": (
        "models.likelihoods.ordinal",
        {
            "inference/factorization/entry_sites.py",
            "estimators/factorization/matrix_factorization.py",
            "estimators/factorization/fitting.py",
            STRINGS,
        },
    ),
    "network": ("models.networks.convolutional", {"estimators/laplace/common.py"}),
    "gap": ("symmetry.gaps.translations", {"inspection/invariance_gap.py"}),
    "estimator": ("estimators.layerwise.layerwise_vi", set()),
    "estimator of the first edition": ("estimators.vi.symmetrized_vi", set()),
}


@cache
def sources() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text("utf-8")) for p in paths}


@cache
def modules_of() -> dict[str, set[str]]:
    """What every file imports."""
    return {name: {found for found, _ in imported(tree)} for name, tree in sources().items()}


@pytest.mark.parametrize("kind", ADDED)
def test_one_file_and_a_line_where_a_name_is_wanted(kind: str) -> None:
    module, shorthand = ADDED[kind]
    known = {name for name, found in modules_of().items() if f"skbayes_sym.{module}" in found}
    assert known, "the module has moved"
    assert known <= NAMES | PLACES | shorthand


@pytest.mark.long
def test_an_activation_is_an_entry() -> None:
    """Its name stands in one file; strings that are no prose."""
    knows: dict[str, set[str]] = {"softplus": set(), "sigmoid": set()}
    for file, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in knows:
                knows[str(node.value)].add(file)
    assert set(map(frozenset, knows.values())) == {frozenset({"models/networks/mlp.py"})}


def test_third_parties_need_no_file_and_no_private_name() -> None:
    """What `test_extension` defines is made of public names only."""
    tree = ast.parse((Path(__file__).parent / "test_extension.py").read_text("utf-8"))
    modules = {name for name, _ in imported(tree) if name.startswith("skbayes_sym")}
    assert modules <= {*PUBLIC, *(f"skbayes_sym.{name}" for name in skbayes_sym.__all__)}
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not any(alias.name.startswith("_") for node in statements for alias in node.names)
