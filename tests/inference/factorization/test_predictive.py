"""New rows and single entries against dense Gaussians and draws."""

from math import sqrt

import pytest
import torch
from inference.factorization.factorization_problems import incomplete
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from skbayes_sym.inference.factorization.coordinates import Coordinates
from skbayes_sym.inference.factorization.hyperpriors import RowLaw
from skbayes_sym.inference.factorization.likelihoods import NoiseState, Normal
from skbayes_sym.inference.factorization.predictive import (
    Columns,
    draw_moments,
    entry_means,
    entry_variances,
    row_log_densities,
    row_posterior,
)

N, M, K = 14, 9, 3
PRIOR_SCALE, NOISE = 1.5, 0.3
EMPTY = torch.zeros(0, K, dtype=torch.float64)
LAW = RowLaw(torch.eye(K, dtype=torch.float64) / PRIOR_SCALE**2, EMPTY)
PRIOR_MEANS = torch.zeros(N, K, dtype=torch.float64)


def factors(generator, n, spread):
    mean = torch.randn(n, K, generator=generator, dtype=torch.float64)
    root = spread * torch.randn(n, K, K, generator=generator, dtype=torch.float64)
    return mean, root @ root.mT


def entries_of(row, data):
    own = slice(int(data.by_row.start[row]), int(data.by_row.start[row + 1]))
    return data.by_row.other[own], data.by_row.value[own]


def test_means_of_new_rows_are_bayesian_regression(generator):
    """With the moments of V: ``E[v v']`` adds its covariance to every entry's precision."""
    data, (mean, cov) = incomplete(generator, (N, M), K), factors(generator, M, 0.4)
    columns = Columns(mean, cov, Coordinates(K), LAW, NoiseState(NOISE), Normal())
    got = row_posterior(data.by_row, columns, PRIOR_MEANS)
    for i in range(N):
        own, r = entries_of(i, data)
        v = mean[own]
        precision = (v.T @ v + cov[own].sum(0)) / (K * NOISE)
        precision += torch.eye(K, dtype=torch.float64) / PRIOR_SCALE**2
        target = v.T @ r / (sqrt(K) * NOISE)
        assert_close(got.mean[i], torch.linalg.solve(precision, target))
        assert_close(got.cov[i], torch.linalg.inv(precision))


@pytest.mark.parametrize("spread", [0.0, 0.4], ids=["known", "uncertain"])
def test_log_densities_of_rows_are_dense_normals(spread, generator):
    data, (mean, cov) = incomplete(generator, (N, M), K), factors(generator, M, spread)
    columns = Columns(mean, cov, Coordinates(K), LAW, NoiseState(NOISE), Normal())
    got = row_log_densities(data.by_row, columns, PRIOR_MEANS)
    for i in range(N):
        own, r = entries_of(i, data)
        v, trace = mean[own], cov[own].diagonal(dim1=1, dim2=2).sum(1)
        noise = NOISE + PRIOR_SCALE**2 / K * trace
        dense = PRIOR_SCALE**2 / K * v @ v.T + torch.diag(noise)
        expected = MultivariateNormal(torch.zeros_like(r), dense).log_prob(r)
        assert_close(got[i], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.long
def test_moments_of_entries_are_those_of_draws(generator):
    """Within 4 standard errors of 40,000 draws of both factors."""
    n = 40_000
    (u, u_cov), (v, v_cov) = factors(generator, 4, 0.4), factors(generator, 5, 0.3)
    i, j = torch.cartesian_prod(torch.arange(4), torch.arange(5)).T
    mean, cov = torch.cat([u, v]), torch.cat([u_cov, v_cov])
    noise = torch.randn(n, 9, K, 1, generator=generator, dtype=torch.float64)
    draws = mean + (torch.linalg.cholesky(cov) @ noise).squeeze(-1)
    products = (draws[:, i] * draws[:, 4 + j]).sum(-1) / sqrt(K)
    by_hand = products.mean(0), products.var(0, correction=0)
    for got, expected in zip(draw_moments(draws, 4, i, j, K), by_hand, strict=True):
        assert_close(got, expected)
    variance = entry_variances((u, u_cov), (v, v_cov), i, j, K)
    error = products.sub(products.mean(0)).square().std(0) / sqrt(n)
    assert bool(((products.var(0) - variance).abs() < 4 * error).all())
    error = (variance / n).sqrt()
    assert bool(((products.mean(0) - entry_means(u, v, i, j, K)).abs() < 4 * error).all())
