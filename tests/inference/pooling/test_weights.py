"""Left-out rows against refits; weights of parts against grids, conditions of optimality, ends."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.pooling import baseline_share, gaining, left_out, stacking_weights
from skbayes_sym.models.predictive_mixtures import NormalMixture

ROWS = torch.ones(40, dtype=torch.float64)


def share_of(first, second, weight):
    return float(stacking_weights(torch.stack([first, second]), weight)[0])


def test_share_is_the_best_of_a_grid(generator):
    first, second = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    weight = torch.rand(50, generator=generator, dtype=torch.float64)
    share = share_of(first, second, weight)
    grid = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:, None]
    score = (weight * (grid * first.exp() + (1 - grid) * second.exp()).log()).sum(1)
    assert abs(share - float(grid[score.argmax()])) < 2e-4


@pytest.mark.parametrize(("gain", "share"), [(0.1, 1.0), (-0.1, 0.0), (800.0, 1.0), (-800.0, 0.0)])
def test_a_model_that_is_better_everywhere_takes_all(gain, share):
    second = torch.linspace(-3.0, 0.0, 5, dtype=torch.float64)
    assert share_of(second + gain, second, torch.ones(5, dtype=torch.float64)) == share


@pytest.mark.parametrize("concentration", [1.0, 1.5])
def test_no_other_weights_score_more(concentration, generator):
    """The slopes of all parts are equal where a weight isn't 0, and no larger elsewhere."""
    log_density = torch.randn(5, 60, generator=generator, dtype=torch.float64)
    log_density[2:4] -= 0.4
    weight = torch.rand(60, generator=generator, dtype=torch.float64)
    p = stacking_weights(log_density, weight, concentration=concentration)
    density = log_density.exp()
    slopes = density @ (weight / (p @ density)) + (concentration - 1.0) / p.clamp_min(1e-300)
    total = float(weight.sum()) + 5 * (concentration - 1.0)
    assert float(p.sum()) == pytest.approx(1.0)
    np.testing.assert_allclose(slopes[p > 0.0], total, rtol=1e-4)
    assert bool((density @ (weight / (p @ density)) <= total * (1.0 + 1e-9)).all())
    assert bool((p == 0.0).any()) == (concentration == 1.0)


def test_a_kind_that_gains_clearly_less_is_not_kept():
    def kept(modes, members):
        kinds = {"modes": modes * ROWS, "members": members * ROWS}
        return gaining(-3.0 * ROWS, kinds, ROWS, 0.85)

    assert kept(-1.0, -1.2) == ["modes", "members"]
    assert kept(-1.0, -1.5) == ["modes"]
    assert kept(-1.5, -1.0) == ["members"]
    assert kept(-3.5, -4.0) == ["modes"]  # none gains: the one that loses least


def test_the_baseline_has_its_stacking_weight_beside_the_kinds_together():
    kinds = {"modes": -1.0 * ROWS, "members": -1.2 * ROWS}
    inner = {"modes": 0.4, "members": 0.6}
    assert baseline_share(-3.0 * ROWS, kinds, inner, ROWS) == 0.0
    assert baseline_share(-0.5 * ROWS, kinds, inner, ROWS) == 1.0
    assert baseline_share(None, kinds, inner, ROWS) == 0.0
    generator = torch.Generator().manual_seed(0)
    linear, modes = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    assert 0.0 < baseline_share(linear, {"modes": modes}, {"modes": 1.0}, ROWS) < 1.0


def test_left_out_rows_are_those_of_refits(generator):
    """A Bayesian linear model at fixed scales, fitted again without each row."""
    x = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    noise = torch.tensor([0.3, 0.8], dtype=torch.float64)  # variances of two targets

    def posterior(rows, t):
        precision = x[rows].T @ x[rows] / noise[t] + torch.eye(3).double()
        return torch.linalg.solve(precision, x[rows].T @ y[rows, t]) / noise[t], precision.inverse()

    expected = torch.zeros(9, dtype=torch.float64)
    fitted, leverage = torch.empty_like(y), torch.empty_like(y)
    for t in range(2):
        mean, covariance = posterior(list(range(9)), t)
        fitted[:, t] = x @ mean
        leverage[:, t] = (x @ covariance * x).sum(1) / noise[t]
        for n in range(9):
            mean, covariance = posterior([m for m in range(9) if m != n], t)
            scale = (x[n] @ covariance @ x[n] + noise[t]).sqrt()
            expected[n] += torch.distributions.Normal(x[n] @ mean, scale).log_prob(y[n, t])
    law = NormalMixture(fitted[None], (leverage * noise)[None], noise)
    assert_close(left_out(law, y).log_prob(y), expected)
