"""New rows and single entries against dense Gaussians and draws."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from factorization.factorization_problems import incomplete
from scipy import stats
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from skbayes_sym.factorization.entry_predictor import (
    FactorMoments,
    FactorPredictor,
    draw_moments,
    entry_means,
    entry_variances,
)
from skbayes_sym.factorization.hyperpriors import RowPrior
from skbayes_sym.factorization.sparse_entries import Coordinates, append_fixed
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.likelihoods.noise import Gaussian

N, M, K = 14, 9, 3
PRIOR_SCALE, NOISE = 1.5, 0.3
NORMAL = Gaussian(torch.tensor([0.5 * np.log(NOISE)]))
EMPTY = torch.zeros(0, K, dtype=torch.float64)
LAW = RowPrior(torch.eye(K, dtype=torch.float64) / PRIOR_SCALE**2, EMPTY)
PRIOR_MEANS = torch.zeros(N, K, dtype=torch.float64)


def factors(generator, n, spread):
    mean = torch.randn(n, K, generator=generator, dtype=torch.float64)
    root = spread * torch.randn(n, K, K, generator=generator, dtype=torch.float64)
    return FactorMoments(mean, root @ root.mT)


def predictor_of(columns, rows=None, likelihood=NORMAL, intercept=0.0):
    return FactorPredictor(
        rows or columns, columns, Coordinates(K), (LAW, LAW), likelihood, intercept
    )


def entries_of(row, data):
    own = slice(int(data.by_row.indptr[row]), int(data.by_row.indptr[row + 1]))
    return data.by_row.indices[own], data.by_row.value[own]


def test_means_of_new_rows_are_bayesian_regression(generator):
    """With the moments of V: ``E[v v']`` adds its covariance to every entry's precision."""
    data, columns = incomplete(generator, (N, M), K), factors(generator, M, 0.4)
    got = predictor_of(columns).row_posterior(data.by_row, PRIOR_MEANS)
    for i in range(N):
        own, r = entries_of(i, data)
        v = columns.mean[own]
        precision = (v.T @ v + columns.cov[own].sum(0)) / (K * NOISE)
        precision += torch.eye(K, dtype=torch.float64) / PRIOR_SCALE**2
        target = v.T @ r / (sqrt(K) * NOISE)
        assert_close(got.mean[i], torch.linalg.solve(precision, target))
        assert_close(got.cov[i], torch.linalg.inv(precision))


@pytest.mark.parametrize("spread", [0.0, 0.4], ids=["known", "uncertain"])
def test_log_densities_of_rows_are_dense_normals(spread, generator):
    data, columns = incomplete(generator, (N, M), K), factors(generator, M, spread)
    got = predictor_of(columns).row_log_densities(data.by_row, PRIOR_MEANS)
    for i in range(N):
        own, r = entries_of(i, data)
        v, trace = columns.mean[own], columns.cov[own].diagonal(dim1=1, dim2=2).sum(1)
        noise = NOISE + PRIOR_SCALE**2 / K * trace
        dense = PRIOR_SCALE**2 / K * v @ v.T + torch.diag(noise)
        expected = MultivariateNormal(torch.zeros_like(r), dense).log_prob(r)
        assert_close(got[i], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.long
def test_moments_of_entries_are_those_of_draws(generator):
    """Within 4 standard errors of 40,000 draws of both factors."""
    n = 40_000
    rows, columns = factors(generator, 4, 0.4), factors(generator, 5, 0.3)
    i, j = torch.cartesian_prod(torch.arange(4), torch.arange(5)).T
    mean, cov = (torch.cat(pair) for pair in zip(rows, columns, strict=True))
    noise = torch.randn(n, 9, K, 1, generator=generator, dtype=torch.float64)
    draws = mean + (torch.linalg.cholesky(cov) @ noise).squeeze(-1)
    products = (draws[:, i] * draws[:, 4 + j]).sum(-1) / sqrt(K)
    by_hand = products.mean(0), products.var(0, correction=0)
    for got, expected in zip(draw_moments(draws, 4, i, j, K), by_hand, strict=True):
        assert_close(got, expected)
    variance = entry_variances(rows, columns, i, j, K)
    error = products.sub(products.mean(0)).square().std(0) / sqrt(n)
    assert bool(((products.var(0) - variance).abs() < 4 * error).all())
    centre, error = entry_means(rows.mean, columns.mean, i, j, K), (variance / n).sqrt()
    assert bool(((products.mean(0) - centre).abs() < 4 * error).all())
    predictor = predictor_of(columns, rows)
    drawn = predictor.outputs(torch.stack([i, j], 1), 4000, generator=generator)[..., 0]
    assert bool(((drawn.mean(0) - centre).abs() < 5 * (variance / 4000).sqrt()).all())


def test_the_law_of_a_count_is_a_mixture_over_its_rate(generator):
    """And all of it comes back from arrays."""
    predictor = predictor_of(factors(generator, M, 0.2), None, Poisson(), 0.7)
    anyone = factors(generator, 1, 1.0), factors(generator, 1, 1.0)
    predictor = replace(predictor, unseen=anyone)
    x = torch.tensor([[0, 1], [3, 3], [5, 8]])
    mean, variance = predictor.moments(x)
    row_prior = predictor.distribution(x)
    rate = (mean + 0.5 * variance).exp()
    assert_close(row_prior.mean()[:, 0], rate)
    assert_close(row_prior.std()[:, 0] ** 2, rate + rate**2 * (variance.exp() - 1.0))
    z = np.random.default_rng(0).standard_normal(200_000)
    rates = np.exp(mean.numpy()[:, None] + variance.sqrt().numpy()[:, None] * z)
    expected = np.log(stats.poisson.pmf(2, rates).mean(1))
    y = torch.full((3, 1), 2.0, dtype=torch.float64)
    np.testing.assert_allclose(predictor.log_density(x, y), expected, atol=0.02)
    again = FactorPredictor.from_arrays(predictor.to_arrays(), Poisson())
    assert_close(again.distribution(x).mean(), row_prior.mean(), rtol=0, atol=0)
    assert_close(again.mean(x), row_prior.mean())
    rates = again.sample_functions(x, 9, generator=torch.Generator().manual_seed(0))
    outputs = again.outputs(x, 9, generator=torch.Generator().manual_seed(0))
    assert_close(rates, outputs.exp())


@pytest.mark.parametrize("offsets", [(False, False), (True, False), (True, True)])
def test_the_transposed_matrix_and_rows_that_are_added(offsets, generator):
    """Moments of an entry are the same from either side; new rows follow, old ones stay."""
    network = Coordinates(K, *offsets)
    wide = [
        FactorMoments(*append_fixed(*side, free)) for side, free in (
            (factors_of(generator, n, K + own), free)
            for n, own, free in zip((5, 4, 1, 1), offsets * 2, network.splits * 2, strict=True)
        )
    ]  # fmt: skip
    row_priors = (LAW, LAW)
    draws = torch.randn(3, 9, network.n_coordinates, generator=generator, dtype=torch.float64)
    for drawn in (None, draws):
        whole = FactorPredictor(
            wide[0], wide[1], network, row_priors, NORMAL, 0.3, drawn, (wide[2], wide[3])
        )
        x = torch.cartesian_prod(torch.arange(5), torch.arange(4))
        expected = whole.moments(x)
        for found, value in zip(whole.transposed.moments(x.flip(1)), expected, strict=True):
            assert_close(found, value)
        more = whole.append_unseen(2, 1)
        assert (len(more.rows.mean), len(more.columns.mean)) == (7, 5)
        for found, value in zip(more.moments(x), expected, strict=True):
            assert_close(found, value)
        mean, variance = more.moments(torch.tensor([[5, 4], [6, 4]]))
        assert float(variance.min()) > 0.0
        if drawn is None:
            assert_close(mean[0], mean[1])


def factors_of(generator, n, d):
    mean = torch.randn(n, d, generator=generator, dtype=torch.float64)
    root = torch.randn(n, d, d, generator=generator, dtype=torch.float64)
    return mean, root @ root.mT
