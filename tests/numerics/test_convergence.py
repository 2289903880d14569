"""Gains of curves: by hand, of noise and of curves that are too short."""

from math import inf

import numpy as np
import pytest
import torch

from skbayes_sym.numerics.optimise import (
    AndersonMixing,
    compute_final_gain,
    compute_gain,
    has_stalled,
)


def test_gain_is_that_of_the_last_window():
    found = compute_gain([9.0, 1.0, 2.0, 4.0, 6.0], 2)
    assert found.value == 5.0 - 1.5
    assert found.standard_error == pytest.approx(np.hypot(1.0, 0.5) / 2**0.5)


def test_the_last_tenth_of_a_rising_line():
    found = compute_final_gain(np.arange(100.0))
    assert found.value == 10.0
    assert found.exceeds(0.1)
    assert not found.exceeds(10.0)


def test_nothing_is_known_of_a_short_curve():
    found = compute_final_gain([1.0])
    assert found == (inf, inf)
    assert not found.exceeds(0.0)
    assert not has_stalled([1.0, 1.0, 1.0], 2, tol=1.0)


def test_noise_rarely_exceeds_nothing():
    """Three standard errors of windows of 50: far fewer than 5 % of curves without a trend."""
    curves = np.random.default_rng(0).standard_normal((1000, 500))
    assert np.mean([compute_final_gain(c).exceeds(0.0) for c in curves]) < 0.005


def test_stalled_needs_two_windows_and_a_small_gain():
    assert has_stalled([0.0, 0.0, 0.0, 0.1], 2, tol=0.1)
    assert not has_stalled([0.0, 0.0, 0.0, 0.3], 2, tol=0.1)
    assert has_stalled([3.0, 2.0, 1.0, 0.0], 2, tol=0.0)


N = 6


@pytest.fixture
def linear_map(generator):
    """A contraction by .95 at least along its slowest axis, and its fixed point."""
    axes, _ = torch.linalg.qr(torch.randn(N, N, generator=generator, dtype=torch.float64))
    matrix = axes @ torch.linspace(0.2, 0.95, N, dtype=torch.float64).diag() @ axes.mT
    shift = torch.randn(N, generator=generator, dtype=torch.float64)
    identity = torch.eye(N, dtype=torch.float64)
    return lambda x: matrix @ x + shift, torch.linalg.solve(identity - matrix, shift)


def test_as_many_steps_as_dimensions_find_the_fixed_point(linear_map):
    """GMRES ends after N steps (Walker & Ni 2011, theorem 2.2); plain ones are far then."""
    step, fixed = linear_map
    mixing, x, plain = AndersonMixing(N + 1), torch.zeros(N, dtype=torch.float64), None
    for _ in range(N + 1):
        plain = step(torch.zeros_like(x) if plain is None else plain)
        found = mixing.propose(x, step(x))
        x = step(x) if found is None else found
    torch.testing.assert_close(x, fixed, rtol=0, atol=1e-8)
    assert float((plain - fixed).abs().max()) > 0.1


def test_one_step_says_nothing_and_the_oldest_are_forgotten(linear_map, generator):
    step, _ = linear_map
    points = torch.randn(5, N, generator=generator, dtype=torch.float64)
    long, short = AndersonMixing(3), AndersonMixing(3)
    assert long.propose(points[0], step(points[0])) is None
    found = [long.propose(x, step(x)) for x in points[1:]][-1]
    expected = [short.propose(x, step(x)) for x in points[2:]][-1]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_at_the_fixed_point_it_stays(linear_map):
    step, fixed = linear_map
    mixing = AndersonMixing()
    mixing.propose(fixed, fixed)
    torch.testing.assert_close(mixing.propose(fixed, step(fixed)), fixed, rtol=0, atol=1e-10)
