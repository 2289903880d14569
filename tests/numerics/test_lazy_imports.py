"""Public names of packages are imported when they are first used."""

import subprocess
import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["skbayes_sym.models", "skbayes_sym.symmetry"])
def test_all_public_names_exist_and_are_listed(name):
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    assert [n for n in package.__all__ if not hasattr(package, n)] == []
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


@pytest.mark.long
def test_modules_are_attributes_before_they_are_imported():
    code = "import skbayes_sym.symmetry as s; print(s.axis_units.AxisUnits is s.AxisUnits)"
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert printed.stdout.split() == [b"True"]


@pytest.mark.long
def test_stacks_import_neither_symmetry_gaps_nor_transformations():
    code = "import skbayes_sym, sys; skbayes_sym.PredictiveStackingRegressor; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    unused = ("skbayes_sym.symmetry.gaps", "skbayes_sym.symmetry.modules")
    unused += ("skbayes_sym.models.augmentations", "skbayes_sym.models.networks.convolutional")
    names = printed.stdout.decode().split()
    assert [name for name in names if name.startswith(unused)] == []
