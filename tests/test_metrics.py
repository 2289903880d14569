"""Calibration errors against their definitions."""

import numpy as np
import pytest
from scipy import integrate, stats

from skbayes_sym.metrics import (
    expected_calibration_error,
    interval_calibration_error,
    uncertainty_error_measures,
)


def by_quadrature(u):
    """The definition, each coverage by counting."""
    coverage = np.linspace(0, 1, 200_001)
    observed = np.searchsorted(np.sort(np.abs(2 * u - 1)), coverage, side="right") / u.size
    return integrate.trapezoid(np.abs(observed - coverage), coverage)


@pytest.mark.parametrize("shape", [(1,), (7,), (50,), (20, 3)])
@pytest.mark.parametrize("power", [0.3, 1.0, 4.0])
def test_intervals_against_quadrature(shape, power):
    u = np.random.default_rng(0).random(shape) ** power
    # A step of the counts inside a cell of the grid costs at most half a cell each.
    assert interval_calibration_error(u) == pytest.approx(by_quadrature(u.ravel()), abs=5e-6)


@pytest.mark.parametrize(("u", "expected"), [([0.5], 0.5), ([1.0], 0.5), ([0.0, 1.0], 0.5)])
def test_intervals_at_the_extremes(u, expected):
    """Intervals that hold everything, and intervals that hold nothing."""
    assert interval_calibration_error(u) == expected


@pytest.mark.parametrize("bad", [[-0.1, 0.5], [0.5, 1.1], [np.nan], []])
def test_intervals_refuse(bad):
    with pytest.raises(ValueError):
        interval_calibration_error(bad)


def test_classes_by_hand():
    y = ["a", "b", "b", "a"]
    proba = [[0.95, 0.05], [0.95, 0.05], [0.25, 0.75], [0.75, 0.25]]
    # Of two bins in use, one is right half the time at 0.95, the other always at 0.75.
    expected = 0.5 * (0.95 - 0.5) + 0.5 * (1.0 - 0.75)
    assert expected_calibration_error(y, proba, n_bins=10) == pytest.approx(expected)
    # One bin: three of four right at a mean confidence of 0.85.
    assert expected_calibration_error(y, proba, n_bins=1) == pytest.approx(0.1)


def test_an_upper_edge_belongs_to_its_bin():
    y, proba = [0, 1], [[0.5, 0.5], [0.4, 0.6]]  # bins (0, 0.5] and (0.5, 1]
    assert expected_calibration_error(y, proba, n_bins=2) == pytest.approx(0.5 * 0.5 + 0.5 * 0.4)
    assert expected_calibration_error(y, [[1.0, 0.0], [0.0, 1.0]]) == 0.0


def test_classes_that_nobody_observed():
    proba = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]
    with pytest.raises(ValueError, match="3 columns for 2 classes"):
        expected_calibration_error(["a", "b"], proba)
    found = expected_calibration_error(["a", "b"], proba, labels=["a", "b", "c"])
    assert found == pytest.approx(0.5 * 0.5 + 0.5 * 0.7)


def test_a_bin_holds_its_upper_end():
    """Bins are (0, 1/2] and (1/2, 1]: confidences of 0.5 and 0.9 don't cancel."""
    proba = [[0.5, 0.5], [0.9, 0.1]]
    assert expected_calibration_error([0, 1], proba, labels=[0, 1], n_bins=2) == pytest.approx(0.7)


def test_uncertainty_error_measures_follow_their_definitions():
    rng = np.random.default_rng(0)
    y = rng.normal(size=40)
    y_pred = y + rng.normal(size=40)
    std = rng.integers(1, 14, size=40) / 4.0  # with ties
    measures = uncertainty_error_measures(y, y_pred, std, threshold=0.8, n_groups=4)
    error = np.abs(y - y_pred)
    large, small = std[error > 0.8], std[error <= 0.8]
    pairs = large[:, None] - small
    assert measures["large_error_auc"] == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
    assert measures["pearson"] == pytest.approx(np.corrcoef(error, std)[0, 1])
    ranks = [stats.rankdata(values) for values in (error, std)]
    assert measures["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    index = sum(e * (e - error.mean()) * (u - std.mean()) for e, u in zip(error, std, strict=True))
    scale = np.abs(error - error.mean()).mean() * np.abs(std - std.mean()).mean() * error.mean()
    assert measures["reliability_prediction_index"] == pytest.approx(index / 40 / scale)
    edges = np.quantile(std, [0.25, 0.5, 0.75])
    group = (std[:, None] > edges).sum(axis=1)
    rmse = [np.sqrt(np.mean(error[group == k] ** 2)) for k in range(4)]
    assert measures["rmse_by_uncertainty"] == pytest.approx(rmse)


def test_uncertainty_error_measures_do_not_depend_on_units():
    rng = np.random.default_rng(1)
    y = rng.normal(size=50)
    std = rng.uniform(0.5, 2.0, size=50)
    one = uncertainty_error_measures(y, np.zeros(50), std)
    other = uncertainty_error_measures(5.0 * y, np.zeros(50), 3.0 * std, threshold=5.0)
    for name in ("pearson", "spearman", "reliability_prediction_index", "large_error_auc"):
        assert other[name] == pytest.approx(one[name])
    assert other["rmse_by_uncertainty"] == pytest.approx(5.0 * one["rmse_by_uncertainty"])


def test_uncertainty_error_measures_of_constants_are_nan():
    measures = uncertainty_error_measures([0.0, 0.5], [0.0, 0.0], [1.0, 1.0])
    assert np.isnan(measures["pearson"])
    assert np.isnan(measures["large_error_auc"])
    with pytest.raises(ValueError, match="y_std must be at least 0, got -1"):
        uncertainty_error_measures([0.0, 1.0], [0.0, 0.0], [1.0, -1.0])
    with pytest.raises(ValueError, match="inconsistent numbers"):
        uncertainty_error_measures([0.0, 1.0], [0.0, 0.0], [1.0])
