"""Calibration errors against their definitions."""

import numpy as np
import pytest
from scipy import integrate, stats

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


def test_intervals_of_a_spread_that_is_wrong():
    """With infinitely many rows it is the integral of |P(|z| < s q_c) - c|."""
    y = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    for scale in (0.5, 2.0):
        limit = integrate.quad(
            lambda c, s=scale: abs(2 * stats.norm.cdf(s * stats.norm.ppf((1 + c) / 2)) - 1 - c),
            0, 1,
        )[0]  # fmt: skip
        found = interval_calibration_error(stats.norm.cdf(y, scale=scale))
        assert found == pytest.approx(limit, abs=1 / 20_000)


@pytest.mark.long
def test_intervals_by_chance():
    """E|F_n(c) - c| is about sqrt(2 c (1 - c) / (pi n)), whose integral is sqrt(pi / 32 n)."""
    n, n_repeats = 100, 2000
    draws = np.random.default_rng(0).random((n_repeats, n))
    errors = np.array([interval_calibration_error(u) for u in draws])
    standard_error = errors.std() / n_repeats**0.5
    normal_approximation = 2e-3 * 0.031
    expected = (np.pi / 32 / n) ** 0.5
    assert abs(errors.mean() - expected) < 4 * standard_error + normal_approximation


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


def test_drawn_classes_are_calibrated():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(3), size=20_000)
    y = (rng.random((20_000, 1)) > proba.cumsum(axis=1)).sum(axis=1)
    # Each of 15 bins is off by at most sqrt(1 / 4 n_b) on average.
    assert expected_calibration_error(y, proba) < 2 * np.sqrt(15 / 4 / 20_000)
    assert expected_calibration_error(y, proba[:, ::-1]) > 0.2
