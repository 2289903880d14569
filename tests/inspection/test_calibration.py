"""Coverage is counted, and its area and band are those of the definitions."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from skbayes_sym.inspection import CalibrationDisplay


def test_counts_what_the_intervals_hold(linear, table, axes):
    X, y = table
    display = CalibrationDisplay.from_estimator(linear, X, y, coverages=[0.2, 0.5, 0.9], ax=axes)
    for coverage, share in zip(display.nominal, display.observed, strict=True):
        low, high = linear.predict_interval(X, coverage).T
        assert share == np.mean((low <= y) & (y <= high))
    assert display.ax_ is axes
    np.testing.assert_array_equal(
        display.line_.get_xydata(), np.column_stack([display.nominal, display.observed])
    )
    label = display.line_.get_label()
    assert label == f"BayesianLinearRegressor (area {display.area:.3f})"


def test_area_is_that_between_the_straight_lines():
    """Against a fine trapezoidal rule, with a crossing of the diagonal."""
    nominal, observed = np.array([0.2, 0.5, 0.8]), np.array([0.35, 0.4, 0.7])
    fine = np.linspace(0, 1, 1_000_001)
    curve = np.interp(fine, [0, *nominal, 1], [0, *observed, 1])
    expected = np.trapezoid(np.abs(curve - fine), fine)
    assert abs(CalibrationDisplay(nominal, observed, 10).area - expected) < 1e-9
    assert CalibrationDisplay(nominal, nominal, 10).area == 0.0


def test_area_of_a_known_overconfidence():
    """Normal targets whose standard deviation is twice what the intervals suppose."""
    nominal = np.linspace(0, 1, 2001)[1:-1]
    observed = 2 * norm.cdf(0.5 * norm.ppf(0.5 + 0.5 * nominal)) - 1
    # The integral of the coverage is P(|2 Z| < |W|) of two standard normals, (2/pi) arctan(1/2).
    expected = 0.5 - 2 / np.pi * np.arctan(0.5)
    assert abs(CalibrationDisplay(nominal, observed, 10).area - expected) < 1e-4


def test_band_holds_a_perfect_model():
    nominal = np.array([0.1, 0.5, 0.95])
    low, high = CalibrationDisplay(nominal, nominal, 40).band.T * 40
    inside = binom.cdf(high, 40, nominal) - binom.cdf(low - 1, 40, nominal)
    assert np.all(inside >= 0.95)


def test_second_model_in_the_same_axes_shares_the_diagonal(linear, table):
    first = CalibrationDisplay.from_estimator(linear, *table, name="one")
    second = CalibrationDisplay.from_estimator(linear, *table, name="two", ax=first.ax_)
    assert second.band_ is None
    labels = [text.get_text().split(" (")[0] for text in second.ax_.get_legend().get_texts()]
    assert labels == ["perfect", "range of chance, 80 rows", "one", "two"]
    assert first.line_.get_color() != second.line_.get_color()


def test_mistakes(linear, table):
    with pytest.raises(ValueError, match="coverages must increase strictly within"):
        CalibrationDisplay.from_estimator(linear, *table, coverages=[0.9, 0.5])
