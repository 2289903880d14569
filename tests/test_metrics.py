"""Calibration errors against their definitions."""

import numpy as np
import pytest
from scipy import integrate

from skbayes_sym.metrics import expected_calibration_error, interval_calibration_error


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
