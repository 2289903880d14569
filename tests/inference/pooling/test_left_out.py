"""Left-out densities against refits."""

import torch
from torch.testing import assert_close

from skbayes_sym.inference.pooling.left_out import left_out
from skbayes_sym.models.predictive import NormalMixture


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
