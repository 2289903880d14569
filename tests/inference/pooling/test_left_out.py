"""Left-out densities against refits; shares against a grid and at the ends."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.pooling.left_out import (
    expected_share,
    left_out,
    mixed,
    stacked_share,
)


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
    assert_close(left_out(y, fitted, leverage, noise).log_prob(y), expected)


def test_share_is_the_best_of_a_grid(generator):
    first, second = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    weight = torch.rand(50, generator=generator, dtype=torch.float64)
    share = stacked_share(first, second, weight)
    grid = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:, None]
    score = (weight * (grid * first.exp() + (1 - grid) * second.exp()).log()).sum(1)
    assert abs(share - float(grid[score.argmax()])) < 2e-4


@pytest.mark.parametrize("n", [5, 500])
def test_expected_share_is_a_flat_priors_posterior_mean(n, generator):
    first, second = torch.randn(2, n, generator=generator, dtype=torch.float64)
    weight = torch.rand(n, generator=generator, dtype=torch.float64)
    grid = (torch.arange(20_000, dtype=torch.float64)[:, None] + 0.5) / 20_000
    posterior = ((grid * first.exp() + (1 - grid) * second.exp()).log() @ weight).softmax(0)
    found = expected_share(first, second, weight)
    assert found == pytest.approx(float(posterior @ grid[:, 0]), abs=1e-6)


def test_expected_share_of_many_rows_is_the_stacking_weight(generator):
    first, second = 0.5 * torch.randn(2, 4000, generator=generator, dtype=torch.float64)
    weight = torch.ones(4000, dtype=torch.float64)
    share = stacked_share(first, second, weight)
    assert 0.0 < share < 1.0
    assert expected_share(first, second, weight) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("gain", "share"), [(0.1, 1.0), (-0.1, 0.0), (800.0, 1.0), (-800.0, 0.0)])
def test_a_model_that_is_better_everywhere_takes_all(gain, share):
    second = torch.linspace(-3.0, 0.0, 5, dtype=torch.float64)
    assert stacked_share(second + gain, second, torch.ones(5, dtype=torch.float64)) == share


def test_mixture_of_equal_models_is_the_model():
    one = torch.tensor([-1.0, -700.0, 3.0], dtype=torch.float64)
    np.testing.assert_allclose(mixed(one.expand(4, 3)), one)
