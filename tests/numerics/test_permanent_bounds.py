"""Bounds of log permanents: their side, where they are exact, their gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics.log_weights import INF, float64, random_log_weights
from torch.testing import assert_close

from skbayes_sym.numerics.permanent import log_permanent
from skbayes_sym.numerics.permanent_bounds import bethe_bound, gurvits_schrijver_bound, soules_bound


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    d=st.integers(1, 7),
    scale=st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0, 50.0]),
)
def test_soules_is_above_every_permanent(seed, d, scale):
    log_weights = random_log_weights(20, d, d, scale=scale, seed=seed)
    value = log_permanent(log_weights)
    # 1e-12 nats: rounding of values up to 50 * 7; the note found 3e-14 on 10,000 matrices.
    raw, tight = soules_bound(log_weights), soules_bound(log_weights, tighten=True)
    assert (raw >= value - 1e-12).all()
    assert (tight >= value - 1e-12).all()
    assert (tight <= raw + 1e-12).all()
    assert (soules_bound(log_weights.mT) >= tight - 1e-12).all()


@pytest.mark.parametrize("tighten", [False, True])
@pytest.mark.parametrize("d", [2, 5, 30])
def test_soules_is_exact_on_equal_and_on_separated_weights(d, tighten):
    equal = torch.zeros(d, d, dtype=torch.float64)
    log_factorial = float64(math.lgamma(d + 1))
    assert_close(soules_bound(equal, tighten=tighten), log_factorial, rtol=1e-13, atol=1e-13)
    separated = 1e4 * torch.eye(d, dtype=torch.float64) - 1e4
    assert_close(soules_bound(separated, tighten=tighten), float64(0.0), rtol=0, atol=1e-10)


def test_soules_is_exact_on_blocks_of_equal_weights():
    blocks = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)).double().log()
    assert_close(soules_bound(blocks), float64(math.log(12.0)))
    assert_close(soules_bound(blocks, tighten=True), float64(math.log(12.0)))


@pytest.mark.parametrize("tighten", [False, True])
def test_soules_gradcheck_and_huge_entries(tighten):
    log_weights = random_log_weights(2, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: soules_bound(x, tighten=tighten), log_weights)
    huge = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.float64)
    assert_close(soules_bound(huge, tighten=tighten), float64(2e4), rtol=1e-12, atol=0)


def test_soules_with_zero_weights_has_a_finite_gradient():
    log_weights = random_log_weights(4, 4)
    log_weights[0, 1] = log_weights[2, 3] = -INF
    log_weights.requires_grad_()
    bound = soules_bound(log_weights, tighten=True)
    (gradient,) = torch.autograd.grad(bound, log_weights)
    assert bound >= log_permanent(log_weights)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("n_iter", [1, 20, 100])
@pytest.mark.parametrize("bound", [bethe_bound, gurvits_schrijver_bound])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_lower_bounds_hold_converged_or_not(bound, scale, n_iter):
    """Unrounded and unconverged, entries from N(0, 10^2) overshot by up to 2.5 nats."""
    for d in (2, 4, 7):
        log_weights = random_log_weights(300, d, d, scale=scale, seed=d)
        # 1e-11: the rounding error of a doubly stochastic matrix times entries of +-40.
        assert (bound(log_weights, n_iter) <= log_permanent(log_weights) + 1e-11).all()


def test_bethe_is_the_best_value_of_the_functional_and_close_to_the_permanent():
    log_weights = random_log_weights(100, 6, 6)
    bethe = bethe_bound(log_weights, 500)
    assert (bethe >= gurvits_schrijver_bound(log_weights) - 1e-9).all()
    # Anari & Rezaei (2019): perm <= 2^(d/2) perm_Bethe.
    assert (log_permanent(log_weights) - bethe <= 3 * math.log(2.0) + 1e-6).all()


def test_bethe_of_two_is_the_better_assignment():
    log_weights = random_log_weights(200, 2, 2, scale=3.0)
    diagonals = torch.stack([log_weights, log_weights.flip(-1)]).diagonal(dim1=-2, dim2=-1).sum(-1)
    # Near a tie the messages move by the difference: it bounds the error of n rounds by 1/n.
    assert_close(bethe_bound(log_weights, 1000), diagonals.amax(0), rtol=0, atol=1e-3)


@pytest.mark.parametrize("bound", [bethe_bound, gurvits_schrijver_bound])
def test_lower_bounds_are_exact_on_separated_weights_and_zero_weights(bound):
    separated = 1e4 * torch.eye(6, dtype=torch.float64) - 1e4
    assert_close(bound(separated), float64(0.0), rtol=0, atol=1e-10)
    assert_close(bound(separated.float()), torch.tensor(0.0), rtol=0, atol=1e-2)
    lower = torch.zeros(3, 3, dtype=torch.float64).log()
    lower.fill_diagonal_(2.0)
    assert_close(bound(lower), float64(6.0))


@pytest.mark.parametrize("bound", [bethe_bound, gurvits_schrijver_bound])
def test_lower_bounds_of_equal_weights(bound):
    """P = 1/d: d log d + d (d - 1) log(1 - 1/d)."""
    expected = float64(5 * math.log(5) + 20 * math.log(0.8))
    assert_close(bound(torch.zeros(5, 5, dtype=torch.float64)), expected)


def test_bethe_gradient_is_its_doubly_stochastic_matrix():
    log_weights = random_log_weights(4, 4)
    log_weights.requires_grad_()
    (gradient,) = torch.autograd.grad(bethe_bound(log_weights, 600), log_weights)
    ones = torch.ones(4, dtype=torch.float64)
    assert_close(gradient.sum(-1), ones)
    assert_close(gradient.sum(-2), ones)
    step = 1e-4 * random_log_weights(4, 4, seed=1)
    with torch.no_grad():
        up, down = bethe_bound(log_weights + step, 600), bethe_bound(log_weights - step, 600)
    # Central difference: relative error about step^2.
    assert_close((up - down) / 2, (gradient * step).sum(), rtol=1e-5, atol=1e-10)
