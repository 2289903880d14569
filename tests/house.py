"""The house in figures: untyped nouns, arrows between floors, and its budgets.

    python tests/house.py [folder of a checkout]

Everything is read from the source text; nothing is imported. `test_architecture.py` and
`test_budgets.py` hold the tree to the figures that are promises.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FLOORS = [
    {"numerics"}, {"symmetry"}, {"models"}, {"inference"}, {"metrics", "datasets"},
    {"estimators"}, {"saving", "callbacks"}, {"inspection", "model_selection", "acquisition"},
    {"student"}, {"distillation"}, {""},
]  # fmt: skip
ORDER = {name: i for i, floor in enumerate(FLOORS) for name in floor}

# One folder a method: none knows another's. `estimators/bayesian_mlp` pools two methods' fits.
METHODS = {
    "inference": {
        "gaussian_vi", "linear", "laplace", "factorization", "sampling",
    },
    "estimators": {"vi", "layerwise", "mcmc", "laplace", "linear", "factorization", "ensemble"},
}  # fmt: skip
NOUNS = {"estimator", "group", "factor", "posterior", "likelihood", "prior", "network"}
MOST_PARAMETERS = 6

# First words of docstrings that leave a sentence without a verb.
VERBLESS = {
    "Of", "What", "With", "From", "Where", "As", "By", "So", "Those", "Whose", "To", "Its",
    "Nothing", "One",
}  # fmt: skip


class House(NamedTuple):
    """What was measured."""

    file_lines: dict[str, int]
    n_parameters: list[int]  # of functions and methods, without self and cls
    untyped_nouns: Counter[str]  # parameters of these names annotated Any
    back_arrows: list[str]
    budgets: Counter[str]

    @property
    def n_many_parameters(self) -> int:
        """Functions with more than six parameters, constructors of estimators aside."""
        return sum(n > MOST_PARAMETERS for n in self.n_parameters)


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


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    a = node.args
    given = [*a.posonlyargs, *a.args, *a.kwonlyargs]
    return [x for x in given if x.arg not in {"self", "cls"}]


def measure(root: Path) -> House:
    """Read a checkout."""
    package = root / "skbayes_sym"
    classes: Counter[str] = Counter()
    basenames: Counter[str] = Counter()
    house = House({}, [], Counter(), [], Counter())
    for path in sorted(package.rglob("*.py")):
        text, here = path.read_text(encoding="utf-8"), place(path, package)
        name, tree = path.relative_to(package).as_posix(), ast.parse(text)
        house.file_lines[name] = text.count("\n")
        _measure_functions(house, tree, floor_of(here))
        _measure_imports(house, tree, name, here)
        _measure_words(house.budgets, tree)
        classes.update(
            node.name for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )  # fmt: skip
        basenames[path.name] += path.name != "__init__.py"
    tests = (path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*.py"))
    house.budgets.update(
        {
            "package lines": sum(house.file_lines.values()),
            "test lines": sum(text.count("\n") for text in tests),
            "class names twice": sum(n > 1 for n in classes.values()),
            "shared basenames": sum(n for n in basenames.values() if n > 1),
        }
    )
    return house


def _measure_words(budgets: Counter[str], tree: ast.Module) -> None:
    """Numbers at module level, attributes that stand for a kind, docstrings without a verb."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = node.value
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            budgets["module numbers"] += sum(map(_is_number, parts))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            budgets["attribute signs"] += node.func.id in {"hasattr", "getattr"}
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            said = ast.get_docstring(node) or ""
            budgets["verbless docstrings"] += re.split(r"\W", said)[0] in VERBLESS
        is_estimator = isinstance(node, ast.ClassDef) and node.name.endswith(
            ("Regressor", "Classifier", "Factorization")
        )
        if is_estimator:
            most = max(
                budgets["constructor parameters"], len(_constructor_parameters(node, classes))
            )
            budgets["constructor parameters"] = most


def _constructor_parameters(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Arguments of ``__init__``, or fields of a dataclass and of its bases in the same file."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return {argument.arg for argument in _arguments(part)}
    bases = (classes[name] for base in node.bases if (name := ast.unparse(base)) in classes)
    names = set[str]().union(*(_constructor_parameters(base, classes) for base in bases))
    if any("dataclass" in ast.unparse(one) for one in node.decorator_list):
        fields = (part for part in node.body if isinstance(part, ast.AnnAssign))
        names |= {
            ast.unparse(field.target) for field in fields
            if not re.match("KW_ONLY|ClassVar", ast.unparse(field.annotation))
        }  # fmt: skip
    return names


_ARITHMETIC = (
    ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Call, ast.Name,
    ast.Attribute, ast.expr_context, ast.Tuple,
)  # fmt: skip


def _is_number(value: ast.expr) -> bool:
    """Whether an expression is a number written out, perhaps through others or a function."""
    inside = list(ast.walk(value))
    return all(isinstance(node, _ARITHMETIC) for node in inside) and any(
        isinstance(node, ast.Constant) and type(node.value) in (int, float) for node in inside
    )


def _measure_functions(house: House, tree: ast.Module, floor: str) -> None:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        arguments = _arguments(node)
        is_constructor = node.name == "__init__" and floor in {"estimators", "inspection"}
        house.n_parameters.append(0 if is_constructor else len(arguments))
        for argument in arguments:
            is_any = isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"
            if is_any and argument.arg in NOUNS:
                house.untyped_nouns[f"{argument.arg} ({floor})"] += 1


def _measure_imports(house: House, tree: ast.Module, name: str, here: tuple[str, ...]) -> None:
    for module, _ in imported(tree):
        parts = module.split(".")
        if parts[0] != "skbayes_sym":
            continue
        there = tuple(parts[1:])
        if ORDER[floor_of(there)] > ORDER[floor_of(here)]:
            house.back_arrows.append(f"{name} -> {module}")


def report(house: House) -> str:
    """The figures as text."""
    share = house.n_many_parameters / len(house.n_parameters)
    lines = [
        f"files {len(house.file_lines)}, functions {len(house.n_parameters)}",
        f"more than {MOST_PARAMETERS} parameters: {house.n_many_parameters} ({share:.1%})",
        f"back-arrows {len(house.back_arrows)}",
        *(f"  back: {arrow}" for arrow in house.back_arrows),
        *(f"{name}: {n:,}" for name, n in house.budgets.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(measure(Path(sys.argv[1] if len(sys.argv) > 1 else "."))))
