"""Generators obey the equations they print."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skbayes_sym.datasets import (
    make_absolute_value,
    make_low_rank,
    make_regression2d,
    make_repeated_datum,
    make_rings,
    make_sinusoidal,
)

N = 20_000  # sd of a sample sd is noise / sqrt(2 N) = noise / 200: 2.5 % is 5 standard errors

SD_RTOL = 5 / math.sqrt(2 * N)

GENERATORS = {
    "sinusoidal": (make_sinusoidal, (150, 1)),
    "regression2d": (make_regression2d, (256, 2)),
    "absolute": (lambda **k: make_absolute_value(alpha=2.0, spaced=False, **k), (100, 1)),
    "low_rank": (make_low_rank, (40, 40)),
    "rings": (make_rings, (200, 2)),
    "repeated": (lambda **k: make_repeated_datum(6, n_features=3, noise=1.0, **k), (6, 3)),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_repeat_with_a_seed_and_leave_the_global_rng_alone(name):
    make, shape = GENERATORS[name]
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    X, y = make(random_state=3)
    again, other = make(random_state=np.random.RandomState(3)), make(random_state=4)
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert X.shape == shape
    assert X.dtype == np.float64
    assert len(y) == shape[0]
    assert_array_equal(X, again[0])
    assert_array_equal(y, again[1])
    assert not (np.array_equal(X, other[0]) and np.array_equal(y, other[1]))


def test_sinusoidal_noise_and_range():
    X, y = make_sinusoidal(N, noise=0.5, random_state=0)
    assert X.min() >= 0
    assert X.max() <= 8
    assert_allclose(np.std(y - np.sin(X[:, 0])), 0.5, rtol=SD_RTOL)


@pytest.mark.parametrize("formula", ["file", "paper"])
def test_regression2d_has_both_formulas(formula):
    X, y = make_regression2d(N, noise=0.2, formula=formula, random_state=0)
    a, b = X.T
    mean = a * (np.sin(a) + np.cos(b)) if formula == "file" else a * np.sin(a) + np.cos(b)
    assert_allclose(np.std(y - mean), 0.2, rtol=SD_RTOL)
    assert np.abs(X).max() <= 2


def test_regression2d_rejects_another_formula():
    with pytest.raises(ValueError, match="'file' or 'paper', got 'print'"):
        make_regression2d(formula="print")
    with pytest.raises(ValueError, match="'file' or 'paper', got array"):
        make_regression2d(formula=np.zeros(2))


@pytest.mark.parametrize("spaced", [True, False])
def test_absolute_value_is_two_relus(spaced):
    X, y = make_absolute_value(50, alpha=1.5, spaced=spaced, random_state=0)
    x = X[:, 0]
    assert_allclose(y, np.maximum(1.5 * x, 0) + np.maximum(-1.5 * x, 0))
    assert np.abs(x).max() <= 10
    if spaced:
        assert_allclose(np.diff(x), 0.4)
        assert_allclose(x, -x[::-1], atol=1e-14)


def test_low_rank_has_the_rank_and_scale_of_the_model():
    R, mean = make_low_rank(200, 100, n_components=7, noise=0.5, random_state=0)
    assert np.linalg.matrix_rank(mean) == 7
    assert_allclose(np.std(R - mean), 0.5, rtol=SD_RTOL)
    assert_array_equal(*make_low_rank(5, 4, noise=0.0, random_state=0))
    # entries of U V' / sqrt(k) have mean 0 and variance 1; E ||UV'||^2 / (n m k) = 1 with
    # variance close to 2 (1/n + 1/m) / k, dominated by the norms of the rows of U and V
    assert_allclose(np.mean(mean**2), 1.0, atol=5 * math.sqrt(2 * (1 / 200 + 1 / 100) / 7))


def test_rings_have_the_sizes_and_radii_of_the_paper():
    X, y = make_rings(200, noise=0.0, random_state=0)
    radius = np.hypot(*X.T)
    for label, r, count in ((0, 0.5, 100), (1, 1.0, 66), (1, 0.0, 34)):
        assert np.sum((y == label) & np.isclose(radius, r)) == count
    degrees = np.degrees(np.arctan2(X[:, 1], X[:, 0]))[radius > 0.1]
    assert degrees.min() >= 0
    assert degrees.max() <= 120
    assert y[:20].min() == 0  # shuffled
    assert y[:20].max() == 1


def test_rings_noise_is_multiplicative_on_arcs_and_additive_on_the_blob():
    X, y = make_rings(6 * N, angle=0.0, noise=0.1, random_state=0)
    inner = X[y == 0]
    assert_allclose(inner[:, 1], 0, atol=0)  # sin 0 times the noise
    assert_allclose(np.std(inner[:, 0] - 0.5), 0.1, rtol=SD_RTOL)
    blob = X[(y == 1) & (X[:, 1] != 0)]
    assert_allclose(blob.std(0), 0.1, rtol=SD_RTOL)


def test_repeated_datum_is_the_figure_of_the_paper():
    X, y = make_repeated_datum(10, n_features=5)
    assert_array_equal(X, np.full((10, 5), 0.2))
    assert_array_equal(y, np.ones(10))
    assert_allclose(5 * np.sum(X[0] ** 2), 1.0)  # variance of X w under w ~ N(0, K I)
