"""Class names are unique, and `one_fit` counts the functions that a fit enters."""

from pathlib import Path

from fits import FITS
from house import measure
from one_fit import entered


def test_no_two_classes_share_a_name():
    assert measure(Path(__file__).parents[1]).duplicate_class_names == []


def test_functions_entered_by_a_fit_are_counted():
    case = FITS["linear-gaussian"]
    walk = entered(*case)
    assert "/linear/estimators.py" in walk.files
    assert any(name.endswith("RowEstimator.fit") for _, name in walk.functions)
    assert len(walk.files) <= len(walk.functions)
    assert 2 < walk.deepest < 30
