"""Structure of the package, read from its source: dependency order, parameters, class names.

    python tests/house.py [folder of a checkout]

Nothing is imported. `test_architecture.py` and `test_house.py` fail where a rule is broken.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Subpackages and top-level modules, from the lowest level to the highest. A module imports from
# its own subpackage and from lower levels.
FLOORS = [
    {"numerics"}, {"symmetry"}, {"models"}, {"metrics", "datasets"}, {"base"},
    {"linear", "laplace", "factorization"}, {"lila", "variational", "mcmc", "ensemble"},
    {"bayesian_mlp"}, {"stacking"}, {"saving", "callbacks", "skpro"},
    {"inspection", "model_selection", "acquisition"}, {"student"}, {"joint_student"},
    {"distillation"}, {""},
]  # fmt: skip
ORDER = {name: i for i, floor in enumerate(FLOORS) for name in floor}

# Parameters of these names have a type other than Any.
NOUNS = {"estimator", "group", "factor", "posterior", "likelihood", "prior", "network"}


class House(NamedTuple):
    """Measurements of a checkout."""

    file_lines: dict[str, int]
    n_functions: int
    untyped_nouns: Counter[str]  # parameters named in NOUNS that are annotated Any
    back_arrows: list[str]  # imports of other subpackages of the same or a higher level
    duplicate_class_names: list[str]  # public classes that are defined in two modules
    undocumented: list[str]  # functions with four or more parameters without a list of them


def place(path: Path, package: Path) -> tuple[str, ...]:
    """Folders and name of a file below the package; () for its root."""
    parts = path.relative_to(package).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def floor_of(parts: tuple[str, ...]) -> str:
    """The name of the floor; "" for the package's root."""
    return parts[0] if parts and parts[0] in ORDER else ""


def imported(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Every module that is imported, wherever in the file, and the statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "skbayes_sym":
            yield from ((f"skbayes_sym.{alias.name}", node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), node


def measure(root: Path) -> House:
    """Read a checkout."""
    package = root / "skbayes_sym"
    file_lines: dict[str, int] = {}
    classes: Counter[str] = Counter()
    untyped: Counter[str] = Counter()
    back_arrows: list[str] = []
    functions: list[tuple[str, ast.FunctionDef]] = []
    n_functions = 0
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        parts = place(path, package)
        name = path.relative_to(package).as_posix()

        file_lines[name] = text.count("\n")
        back_arrows += _find_back_arrows(tree, name, parts)
        functions += [(name, node) for node in outer_functions(tree)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
            elif isinstance(node, ast.FunctionDef):
                n_functions += 1
                untyped.update(f"{noun} ({floor_of(parts)})" for noun in _untyped_nouns(node))
    duplicates = [name for name, count in classes.items() if count > 1]
    undocumented = _find_undocumented(functions)
    return House(file_lines, n_functions, untyped, back_arrows, duplicates, undocumented)


def outer_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions of a module and methods of its classes, but not functions inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from (child for child in node.body if isinstance(child, ast.FunctionDef))


RULE_FILES = ("symmetry/modules/rules.py", "symmetry/modules/selection_rules.py")


def _find_undocumented(functions: list[tuple[str, ast.FunctionDef]]) -> list[str]:
    """Functions with four or more parameters whose docstring doesn't describe them.

    A method may leave it to one of the same name, which it overrides. The rules of
    ``symmetry/modules`` have the arguments of torch's operations, and `forward` and `backward` of
    autograd functions those of torch.
    """
    documented = {n.name for _, n in functions if "Parameters\n" in (ast.get_docstring(n) or "")}
    skipped = {*documented, "forward", "backward", "__init__"}
    undocumented = []
    for file, node in functions:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        n_own = sum(argument.arg not in ("self", "cls") for argument in arguments)
        is_rule = file in RULE_FILES and node.decorator_list
        if n_own >= 4 and node.name not in skipped and not is_rule:
            undocumented.append(f"{file}: {node.name}")
    return undocumented


def _untyped_nouns(node: ast.FunctionDef) -> list[str]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [
        argument.arg
        for argument in arguments
        if argument.arg in NOUNS
        and isinstance(argument.annotation, ast.Name)
        and argument.annotation.id == "Any"
    ]


def _find_back_arrows(tree: ast.Module, name: str, parts: tuple[str, ...]) -> list[str]:
    arrows = []
    for module, _ in imported(tree):
        top, *target = module.split(".")
        if top != "skbayes_sym":
            continue
        here = floor_of(parts)
        there = floor_of(tuple(target))
        if here != there and ORDER[there] >= ORDER[here]:
            arrows.append(f"{name} -> {module}")
    return arrows


def report(house: House) -> str:
    """The measurements as text."""
    lines = [
        f"files {len(house.file_lines)}, lines {sum(house.file_lines.values()):,}, "
        f"functions {house.n_functions}",
        f"imports against the dependency order: {len(house.back_arrows)}",
        *(f"  {arrow}" for arrow in house.back_arrows),
        f"class names defined twice: {', '.join(house.duplicate_class_names) or 'none'}",
        f"undocumented parameters: {', '.join(house.undocumented) or 'none'}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(measure(Path(sys.argv[1] if len(sys.argv) > 1 else "."))))
