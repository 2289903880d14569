"""The dependency rules and what adding something costs, parsed from the imports."""

import ast
from functools import cache
from pathlib import Path

import pytest
from house import ORDER, House, floor_of, imported, measure, place
from mutants import MUTANTS, mutated
from test_docs import PUBLIC

import skbayes_sym

PACKAGE = Path(skbayes_sym.__file__).parent
BELOW_SKLEARN = {"numerics", "symmetry", "models"}

Import = tuple[str, tuple[str, ...], str, ast.stmt]  # file, where it stands, module, statement


@pytest.fixture(scope="module")
def house() -> House:
    return measure(PACKAGE.parent)


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name, here = path.relative_to(PACKAGE).as_posix(), place(path, PACKAGE)
        found += [(name, here, module, node) for module, node in imported(tree)]
    return found


@pytest.mark.long
def test_imports_point_down(house: House) -> None:
    assert house.back_arrows == []


@pytest.mark.long
def test_imports_are_absolute(imports: list[Import]) -> None:
    """Relative ones hide the floor."""
    assert [f"{name}: {module}" for name, _, module, _ in imports if module.startswith(".")] == []


def test_scikit_learn_stays_above_and_matplotlib_inside_functions(imports: list[Import]) -> None:
    for name, here, module, node in imports:
        top = module.partition(".")[0]
        if top == "sklearn":
            assert floor_of(here) not in BELOW_SKLEARN, f"{name} imports {module}"
        if top == "matplotlib":
            assert node.col_offset > 0, f"{name} imports matplotlib at module level"


def test_parameters_that_hold_models_have_types(house: House) -> None:
    assert house.untyped_nouns == {}


def test_functions_of_four_parameters_describe_them(house: House) -> None:
    assert house.undocumented == []


def test_there_is_something_to_check(house: House) -> None:
    floors = {floor_of(place(PACKAGE / name, PACKAGE)) for name in house.file_lines}
    assert floors >= set(ORDER) - {"callbacks"}
    assert house.n_functions > 1000


def test_what_scikit_learn_keeps_private_comes_through_one_file(imports: list[Import]) -> None:
    """Its versions differ there."""
    private = [
        f"{name}: {alias.name} of {module}"
        for name, _, module, node in imports
        if module.split(".")[0] == "sklearn" and name != "base/scikit_learn.py"
        for alias in node.names
        if module == "sklearn.callback"
        or any(p.startswith("_") and not p.endswith("_") for p in [*module.split("."), alias.name])
    ]
    assert private == []


def test_every_bug_that_is_planted_has_its_place() -> None:
    for mutant in MUTANTS:
        _, text, changed = mutated(mutant)  # raises unless its text is there once
        assert changed != text, mutant


# Names to import, and places in files without pickle: a line each, where they are wanted.
NAMES = {"__init__.py", "models/__init__.py", "symmetry/__init__.py", "mcmc/samplers.py"}
PLACES = {"saving/values.py"}
STRINGS = "models/likelihoods/__init__.py"  # what stands for a likelihood

# A file of each kind, and the tables that give it a string as shorthand.
ADDED: dict[str, tuple[str, set[str]]] = {
    "likelihood": (
        "models.likelihoods.counts",
        {"linear/estimators.py", "stacking/members/counts.py", STRINGS},
    ),
    "likelihood of labels": (
        "models.likelihoods.ordinal",
        {
            "factorization/entry_sites.py",
            "factorization/estimators.py",
            "factorization/fit.py",
            STRINGS,
        },
    ),
    "network": ("models.networks.convolutional", {"laplace/base.py"}),
    "gap": ("symmetry.gaps.translations", {"inspection/invariance_gap.py"}),
    "estimator": ("variational.layerwise", set()),
    "estimator of the first edition": ("variational.estimators", set()),
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
