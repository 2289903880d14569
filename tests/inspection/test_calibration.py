"""Coverage is counted, and its error and band are those of the definitions."""

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.linear_model import BayesianRidge

from skbayes_sym.inspection import IntervalCalibrationDisplay
from skbayes_sym.metrics import interval_calibration_error


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
