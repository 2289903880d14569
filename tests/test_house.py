"""Class names, functions that a fit enters, and imports that every environment can resolve."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from fits import FITS
from house import measure
from one_fit import entered

import skbayes_sym
from skbayes_sym.base.public_names import ESTIMATOR_MODULES


def test_no_two_classes_share_a_name():
    assert measure(Path(__file__).parents[1]).duplicate_class_names == []


@pytest.mark.parametrize("name", [n for names in ESTIMATOR_MODULES.values() for n in names])
def test_an_estimator_has_at_most_four_classes_of_the_package(name):
    """Itself, regressor or classifier, the method, and the base of all estimators."""
    kind = getattr(skbayes_sym, name)
    own = [base.__name__ for base in kind.__mro__ if base.__module__.startswith("skbayes_sym")]
    assert len(own) <= 4, own


def test_functions_entered_by_a_fit_are_counted():
    case = FITS["linear-gaussian"]
    walk = entered(*case)
    assert "/linear/estimators.py" in walk.files
    assert any(name.endswith("BayesianEstimator._fit_rows") for _, name in walk.functions)
    assert len(walk.files) <= len(walk.functions)
    assert 2 < walk.deepest < 30


# Packages that `.ci/run` installs in each of its environments, the oldest one included.
EVERYWHERE = {
    *("numpy", "scipy", "sklearn", "torch", "joblib", "pandas", "safetensors"),
    *("pytest", "hypothesis"),
}


@pytest.mark.parametrize("folder", ["base", "numerics", "saving"])
def test_the_oldest_environment_can_import(folder):
    """An optional package is imported inside the tests that need it, which skip without it."""
    for path in sorted((Path(__file__).parent / folder).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [str(node.module)]
            else:
                names = []
            for name in {name.partition(".")[0] for name in names}:
                spec = importlib.util.find_spec(name)
                if spec is not None and "site-packages" in str(spec.origin):
                    assert name in EVERYWHERE, f"{path.name} imports {name} at its top"


def test_headings_of_docstrings_stand_on_lines_of_their_own():
    package = Path(skbayes_sym.__file__).parent
    joined = [
        f"{path.relative_to(package)}: {line.strip()[:40]}"
        for path in sorted(package.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r" +[A-Z][A-Za-z ]+ -{4,} \S", line)
    ]
    assert joined == []
