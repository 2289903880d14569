"""Log permanents: enumeration, oracles, gradients, and the side of every bound."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics.log_weights import INF, float64, random_log_weights
from torch.testing import assert_close

from skbayes_sym.numerics import permanent
from skbayes_sym.numerics.permanent import bethe_bound, log_permanent, soules_bound

FUNCTIONS = [log_permanent, soules_bound, bethe_bound]


# By tests/oracles/permanents.py, for L[i, j] = 2 sin(1 + 3i + 5j + ij).
ORACLES = {  # d: log permanent, Soules, Bethe
    2: (0.6620320687, 0.87750388, 0.59489975),
    3: (3.5221145698, 3.89466391, 3.08835005),
    4: (5.7577758846, 6.38648125, 5.17157096),
    5: (8.1058375265, 9.10549185, 7.25571830),
    6: (11.2584996102, 12.64054951, 10.13617488),
    8: (17.6391003463, 19.51548631, 16.33605699),
}


def oracle_log_weights(d):
    i = torch.arange(d, dtype=torch.float64).unsqueeze(-1)
    return 2 * torch.sin(1 + 3 * i + 5 * i.T + i * i.T)


def enumerated(log_weights):
    d = log_weights.shape[-1]
    rows = torch.arange(d)
    terms = [log_weights[..., rows, list(g)].sum(-1) for g in itertools.permutations(range(d))]
    return torch.stack(terms).logsumexp(0)


def value_and_gradient(log_weights):
    log_weights = log_weights.clone().requires_grad_()
    value = log_permanent(log_weights)
    (gradient,) = torch.autograd.grad(value.sum(), log_weights)
    return value.detach(), gradient


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_value_equals_enumeration(d, scale):
    log_weights = random_log_weights(2, 3, d, d, scale=scale, seed=d)
    expected = enumerated(log_weights)
    assert_close(log_permanent(log_weights), expected, rtol=1e-13, atol=1e-12)
    value, gradient = value_and_gradient(log_weights)
    assert_close(value, expected, rtol=1e-13, atol=1e-12)
    leaf = log_weights.clone().requires_grad_()
    (marginals,) = torch.autograd.grad(enumerated(leaf).sum(), leaf)
    assert_close(gradient, marginals, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("d", ORACLES)
def test_value_and_bounds_equal_oracles(d):
    log_weights = oracle_log_weights(d)
    value, soules, bethe = map(float64, ORACLES[d])
    assert_close(log_permanent(log_weights), value, rtol=0, atol=1e-9)
    assert_close(soules_bound(log_weights), soules, rtol=0, atol=1e-7)
    assert_close(bethe_bound(log_weights, 100), bethe, rtol=0, atol=1e-6)


def test_batches_in_blocks_equal_single_matrices(monkeypatch):
    monkeypatch.setattr(permanent, "_BLOCK_ELEMENTS", 50)  # three matrices of width 3 a block
    log_weights = random_log_weights(2, 4, 3, 3)
    values, gradients = value_and_gradient(log_weights)
    for b in itertools.product(range(2), range(4)):
        value, gradient = value_and_gradient(log_weights[b])
        assert_close(values[b], value)
        assert_close(gradients[b], gradient)
    assert log_permanent(log_weights[:0]).shape == (0, 4)


@pytest.mark.parametrize("d", [3, 10])
def test_float32_is_as_accurate_as_float32_can_be(d):
    log_weights = random_log_weights(4, d, d, scale=5.0).float() + 300 * torch.arange(d).unsqueeze(
        -1
    )
    value, gradient = value_and_gradient(log_weights)
    expected, marginals = value_and_gradient(log_weights.double())
    assert value.dtype == gradient.dtype == torch.float32
    assert_close(value.double(), expected, rtol=1e-6, atol=0)
    # Row levels of 300 d are shifted out: the marginals see the spread within rows only.
    assert_close(gradient.double(), marginals, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [0.1, 3.0, 1e3])
@pytest.mark.parametrize("d", [2, 6, 11])
def test_gradient_is_doubly_stochastic(d, scale):
    _, gradient = value_and_gradient(random_log_weights(3, d, d, scale=scale))
    ones = torch.ones(3, d, dtype=torch.float64)
    assert_close(gradient.sum(-1), ones, rtol=0, atol=1e-13)
    assert_close(gradient.sum(-2), ones, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_weights_with_a_positive_permanent(dtype):
    lower = torch.tensor([[1.0, -INF, -INF], [0.5, 2.0, -INF], [0.0, 0.0, 3.0]], dtype=dtype)
    value, gradient = value_and_gradient(lower)
    assert_close(value, torch.tensor(6.0, dtype=dtype))
    assert_close(gradient, torch.eye(3, dtype=dtype))
    block = torch.full((4, 4), -INF, dtype=dtype)
    block[:2, 2:] = block[2:, :2] = 0.0
    value, gradient = value_and_gradient(block)
    assert_close(value, torch.tensor(math.log(4.0), dtype=dtype))
    assert_close(gradient, 0.5 * (block == 0).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_permanent_is_minus_infinity(dtype):
    two_rows_one_column = torch.full((3, 3), -INF, dtype=dtype)
    two_rows_one_column[:, 0] = two_rows_one_column[0] = 0.0
    empty_rows = torch.full((3, 3), -INF, dtype=dtype)
    for log_weights in (two_rows_one_column, empty_rows):
        value, gradient = value_and_gradient(log_weights)
        assert value == -INF
        assert_close(gradient, torch.zeros_like(gradient))
        assert soules_bound(log_weights) >= value
        assert soules_bound(log_weights, tighten=True) >= value
        assert bethe_bound(log_weights) == -INF


def test_width_zero_and_one():
    for function in (log_permanent, soules_bound):
        assert_close(function(torch.zeros(2, 0, 0)), torch.zeros(2))
    for function in FUNCTIONS:
        assert_close(function(torch.tensor([[[3.0]], [[-4.0]]])), torch.tensor([3.0, -4.0]))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 3, 2)])
def test_non_square_is_refused_by_name(function, shape):
    with pytest.raises(ValueError, match=r"log_weights must have shape \(\*B, d, d\)"):
        function(torch.zeros(shape))


def test_wide_matrix_is_refused_with_bytes_and_remedy():
    with pytest.raises(ValueError, match=r"d = 21.*1\.8e\+08 bytes.*soules_bound"):
        log_permanent(torch.zeros(21, 21))


@pytest.mark.long
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


@pytest.mark.parametrize("tighten", [False, True])
def test_soules_gradcheck_and_huge_entries(tighten):
    log_weights = random_log_weights(2, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: soules_bound(x, tighten=tighten), log_weights)
    huge = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.float64)
    assert_close(soules_bound(huge, tighten=tighten), float64(2e4), rtol=1e-12, atol=0)


@pytest.mark.parametrize("n_iter", [1, 20, 100])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_bethe_holds_converged_or_not(scale, n_iter):
    """Unrounded and unconverged, entries from N(0, 10^2) overshot by up to 2.5 nats."""
    for d in (2, 4, 7):
        log_weights = random_log_weights(300, d, d, scale=scale, seed=d)
        # 1e-11: the rounding error of a doubly stochastic matrix times entries of +-40.
        assert (bethe_bound(log_weights, n_iter) <= log_permanent(log_weights) + 1e-11).all()


def test_bethe_is_exact_on_separated_weights_and_zero_weights():
    separated = 1e4 * torch.eye(6, dtype=torch.float64) - 1e4
    assert_close(bethe_bound(separated), float64(0.0), rtol=0, atol=1e-10)
    assert_close(bethe_bound(separated.float()), torch.tensor(0.0), rtol=0, atol=1e-2)
    lower = torch.zeros(3, 3, dtype=torch.float64).log()
    lower.fill_diagonal_(2.0)
    assert_close(bethe_bound(lower), float64(6.0))


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
