"""What all Displays promise."""

import sys
from inspect import signature

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression

from skbayes_sym import MCMCRegressor, SymVIMatrixFactorization, inspection

DISPLAYS = [getattr(inspection, name) for name in inspection.__all__]
X, Y = np.arange(6.0)[:, None], np.arange(6.0)


def looked_at(display):
    """What of the data it takes beside the estimator: rows, targets, both or nothing."""
    taken = signature(display.from_estimator).parameters
    return {name: data for name, data in {"X": X, "y": Y}.items() if name in taken}


@pytest.mark.parametrize("display", DISPLAYS)
def test_unfitted_estimators_are_named(display):
    with pytest.raises(NotFittedError, match="MCMCRegressor"):
        display.from_estimator(MCMCRegressor(), **looked_at(display))


@pytest.mark.parametrize("display", DISPLAYS)
def test_foreign_estimators_are_named_with_the_need(display):
    with pytest.raises(
        TypeError, match=rf"{display.__name__} needs .*; LinearRegression (has no|doesn)"
    ):
        display.from_estimator(LinearRegression().fit(X, Y), **looked_at(display))


@pytest.mark.parametrize(
    ("display", "estimator"),
    [
        (inspection.InvarianceDisplay, SymVIMatrixFactorization(1, max_iter=2, tol=9.0)),
        (inspection.SymmetryDisplay, SymVIMatrixFactorization(1, max_iter=2, tol=9.0)),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_unsuitable_estimators_of_our_own_are_named(display, estimator):
    estimator.fit(np.random.default_rng(0).standard_normal((6, 2)), Y)
    with pytest.raises(TypeError, match=f"needs .*; {type(estimator).__name__} has no"):
        display.from_estimator(estimator)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(ImportError, match=r"IntervalCalib.*pip install matplotlib"):
        inspection.IntervalCalibrationDisplay.from_predictions([0.5])
