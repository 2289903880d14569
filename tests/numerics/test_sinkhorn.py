"""Doubly stochastic matrices: scaling, rounding, the Bethe fixed point."""

import pytest
import torch
from numerics.log_weights import INF, random_log_weights
from torch.testing import assert_close

from skbayes_sym.numerics.permanent import (
    balancing_scales,
    bethe_log_marginals,
    round_to_doubly_stochastic,
    sinkhorn,
)


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_sinkhorn_is_doubly_stochastic_scaling(scale):
    log_weights = random_log_weights(5, 6, 6, scale=scale)
    scaled = sinkhorn(log_weights, n_iter=2000)
    assert_close(scaled.exp().sum(-1), torch.ones(5, 6, dtype=torch.float64))
    assert_close(scaled.exp().sum(-2), torch.ones(5, 6, dtype=torch.float64), rtol=0, atol=1e-6)
    shift = scaled - log_weights
    interaction = shift - shift[:, :1] - shift[:, :, :1] + shift[:, :1, :1]
    assert_close(interaction, torch.zeros_like(interaction), rtol=0, atol=1e-10)


def test_sinkhorn_starts_with_rows_so_row_levels_leave_no_trace():
    log_weights = random_log_weights(6, 6)
    levels = 1e4 * torch.arange(6.0, dtype=torch.float64).unsqueeze(-1)
    # Tolerance: entries of 5e4 carry a rounding error of 7e-12.
    assert_close(sinkhorn(log_weights + levels), sinkhorn(log_weights), rtol=0, atol=1e-10)


def test_sinkhorn_keeps_zero_weights_at_zero():
    log_weights = random_log_weights(3, 3)
    log_weights[0, 1] = -INF
    scaled = sinkhorn(log_weights).exp()
    assert scaled[0, 1] == 0.0
    assert_close(scaled.sum(-1), torch.ones(3, dtype=torch.float64))
    log_weights[2] = -INF
    assert sinkhorn(log_weights).isfinite().all()


def test_balancing_scales_reproduce_sinkhorn():
    log_weights = random_log_weights(3, 5, 5, scale=4.0)
    row, column = balancing_scales(log_weights)
    assert_close(log_weights + row + column, sinkhorn(log_weights))


@pytest.mark.parametrize("function", [sinkhorn, lambda x: bethe_log_marginals(x, 3)])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_non_square_is_refused_by_name(function, shape):
    with pytest.raises(ValueError, match="log_weights must have shape"):
        function(torch.zeros(shape))
    with pytest.raises(ValueError, match="floating point"):
        function(torch.zeros(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_rounding_is_doubly_stochastic_and_close(scale):
    matrix = (random_log_weights(50, 6, 6, scale=scale)).softmax(-1)
    rounded = round_to_doubly_stochastic(matrix)
    ones = torch.ones(50, 6, dtype=torch.float64)
    assert (rounded >= 0).all()
    assert_close(rounded.sum(-1), ones, rtol=0, atol=1e-14)
    assert_close(rounded.sum(-2), ones, rtol=0, atol=1e-14)
    # Altschuler, Weed & Rigollet (2017), Lemma 7; 1e-13 for rounding.
    violation = (matrix.sum(-1) - 1).abs().sum(-1) + (matrix.sum(-2) - 1).abs().sum(-1)
    assert ((rounded - matrix).abs().sum((-2, -1)) <= 2 * violation + 1e-13).all()


def test_rounding_leaves_doubly_stochastic_matrices_alone():
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert_close(round_to_doubly_stochastic(swap), swap, rtol=0, atol=0)
    with pytest.raises(ValueError, match="matrix must have shape"):
        round_to_doubly_stochastic(torch.zeros(2, 3))


@pytest.mark.parametrize("d", [1, 2, 6])
def test_bethe_marginals_of_equal_and_of_separated_weights(d):
    equal = bethe_log_marginals(torch.zeros(d, d, dtype=torch.float64), 50).exp()
    if d != 2:  # at d = 2 every doubly stochastic matrix is an optimum
        assert_close(equal, torch.full((d, d), 1 / d, dtype=torch.float64))
    identity = torch.eye(d, dtype=torch.float64)
    assert_close(bethe_log_marginals(1e4 * identity, 50).exp(), identity)
