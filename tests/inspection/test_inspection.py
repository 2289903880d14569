"""What all Displays promise, and what the one of calibration counts."""

import sys
from inspect import signature

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import BayesianRidge, LinearRegression

from skbayes_sym import MCMCRegressor, SymVIMatrixFactorization, inspection
from skbayes_sym.inspection import IntervalCalibrationDisplay
from skbayes_sym.metrics import interval_calibration_error

DISPLAYS = [getattr(inspection, name) for name in inspection.__all__]
DISPLAYS = [display for display in DISPLAYS if hasattr(display, "from_estimator")]
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


def test_counts_what_the_intervals_hold(linear, table, axes):
    X, y = table
    display = IntervalCalibrationDisplay.from_estimator(
        linear, X, y, coverages=[0.2, 0.5, 0.9], ax=axes
    )
    for coverage, share in zip(display.nominal, display.observed, strict=True):
        low, high = linear.predict_interval(X, coverage).T
        assert share == np.mean((low <= y) & (y <= high))
    assert display.ax_ is axes
    np.testing.assert_array_equal(
        display.line_.get_xydata(), np.column_stack([display.nominal, display.observed])
    )
    label = display.line_.get_label()
    assert label == f"BayesianLinearRegressor (error {display.error:.3f})"


def test_error_is_the_metric_and_that_of_a_known_overconfidence(axes):
    """Normal targets whose standard deviation is twice what the intervals suppose."""
    cdf = norm.cdf(2.0 * norm.ppf((np.arange(4000) + 0.5) / 4000))
    display = IntervalCalibrationDisplay.from_predictions(cdf, ax=axes)
    assert display.error == interval_calibration_error(cdf)
    # The integral of the coverage is P(|2 Z| < |W|) of two standard normals, (2/pi) arctan(1/2).
    assert abs(display.error - (0.5 - 2 / np.pi * np.arctan(0.5))) < 1e-3
    np.testing.assert_allclose(
        display.observed, 2 * norm.cdf(0.5 * norm.ppf(0.5 + 0.5 * display.nominal)) - 1, atol=1e-3
    )


def test_other_models_with_a_standard_deviation(table, axes):
    X, y = table
    model = BayesianRidge().fit(X, y)
    display = IntervalCalibrationDisplay.from_estimator(model, X, y, coverages=[0.5], ax=axes)
    mean, std = model.predict(X, return_std=True)
    assert display.observed == [np.mean(np.abs(y - mean) <= norm.ppf(0.75) * std)]


def test_band_holds_a_perfect_model():
    nominal = np.array([0.1, 0.5, 0.95])
    low, high = IntervalCalibrationDisplay(nominal, nominal, 40, 0.0).band.T * 40
    inside = binom.cdf(high, 40, nominal) - binom.cdf(low - 1, 40, nominal)
    assert np.all(inside >= 0.95)


def test_second_model_in_the_same_axes_shares_the_diagonal(linear, table):
    first = IntervalCalibrationDisplay.from_estimator(linear, *table, name="one")
    second = IntervalCalibrationDisplay.from_estimator(linear, *table, name="two", ax=first.ax_)
    assert second.band_ is None
    labels = [text.get_text().split(" (")[0] for text in second.ax_.get_legend().get_texts()]
    assert labels == ["perfect", "range of chance, 80 rows", "one", "two"]
    assert first.line_.get_color() != second.line_.get_color()


def test_mistakes(linear, table):
    with pytest.raises(ValueError, match="coverages must increase strictly within"):
        IntervalCalibrationDisplay.from_estimator(linear, *table, coverages=[0.9, 0.5])
