"""Gains of curves: by hand, of noise and of curves that are too short."""

from math import inf

import numpy as np
import pytest

from skbayes_sym.numerics.convergence import gain, last_tenth_gain, stalled


def test_gain_is_that_of_the_last_window():
    found = gain([9.0, 1.0, 2.0, 4.0, 6.0], 2)
    assert found.value == 5.0 - 1.5
    assert found.standard_error == pytest.approx(np.hypot(1.0, 0.5) / 2**0.5)


def test_the_last_tenth_of_a_rising_line():
    found = last_tenth_gain(np.arange(100.0))
    assert found.value == 10.0
    assert found.exceeds(0.1)
    assert not found.exceeds(10.0)


def test_nothing_is_known_of_a_short_curve():
    found = last_tenth_gain([1.0])
    assert found == (inf, inf)
    assert not found.exceeds(0.0)
    assert not stalled([1.0, 1.0, 1.0], 2, tol=1.0)


def test_noise_rarely_exceeds_nothing():
    """Three standard errors of windows of 50: far fewer than 5 % of curves without a trend."""
    curves = np.random.default_rng(0).standard_normal((1000, 500))
    assert np.mean([last_tenth_gain(c).exceeds(0.0) for c in curves]) < 0.005


def test_stalled_needs_two_windows_and_a_small_gain():
    assert stalled([0.0, 0.0, 0.0, 0.1], 2, tol=0.1)
    assert not stalled([0.0, 0.0, 0.0, 0.3], 2, tol=0.1)
    assert stalled([3.0, 2.0, 1.0, 0.0], 2, tol=0.0)
