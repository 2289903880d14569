"""Normal copulas against SciPy, brute force and simulated data."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest, multivariate_normal, norm, poisson

from skbayes_sym.models import NormalMixture, Poisson, TargetMixture
from skbayes_sym.models.copula import (
    CopulaTargets,
    fit_correlation,
    invert_scores,
    middle_cdf,
    normal_scores,
)


def mixture(n_rows=4, seed=0, gap=1.0):
    rng = np.random.default_rng(seed)
    loc = torch.as_tensor(gap * rng.normal(size=(3, n_rows, 1)))
    variance = torch.as_tensor(0.1 + rng.random((3, n_rows, 1)))
    return NormalMixture(loc, 0.0 * loc, variance, torch.tensor([0.0, 0.5, -0.5]).double())


def counts(rates):
    log_rates = torch.as_tensor(np.log(rates)).reshape(1, -1, 1)
    return TargetMixture(Poisson(), log_rates)


def copula(*marginals, r=0.6):
    return CopulaTargets(marginals, torch.tensor([[1.0, r], [r, 1.0]], dtype=torch.float64))


def test_normal_marginals_give_the_bivariate_normal_density():
    loc = torch.tensor([[[1.0], [-2.0]]]).double()
    std = [0.5, 3.0]
    marginals = [NormalMixture(loc, 0 * loc, torch.full_like(loc, s * s)) for s in std]
    distribution = copula(*marginals, r=-0.7)
    cov = np.array([[0.25, -0.7 * 1.5], [-0.7 * 1.5, 9.0]])
    y = np.array([[1.3, 0.2], [-2.5, -9.0]])
    expected = [
        multivariate_normal([m, m], cov).logpdf(v) for m, v in zip([1.0, -2.0], y, strict=True)
    ]
    np.testing.assert_allclose(distribution.log_prob(torch.tensor(y)), expected, rtol=1e-9)
    per_target = distribution.log_prob_per_target(torch.tensor(y))
    np.testing.assert_allclose(per_target[0], norm([1, 1], std).logpdf(y[0]), rtol=1e-12)


def test_the_joint_density_of_mixtures_integrates_to_one():
    side = torch.linspace(-8.0, 8.0, 301, dtype=torch.float64)
    y = torch.cartesian_prod(side, side)
    one = np.zeros(len(y), dtype=int)
    distribution = copula(mixture(1, 1), mixture(1, 2)).take(one)
    total = distribution.log_prob(y).exp().sum() * (side[1] - side[0]) ** 2
    # The sum is spectrally accurate, but normal scores are cut at 8.
    assert abs(total - 1.0) < 1e-4


def test_independent_targets_have_the_sum_of_log_densities():
    distribution = copula(mixture(4, 1), mixture(4, 2), r=0.0)
    y = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).double()
    expected = distribution.log_prob_per_target(y).sum(1)
    np.testing.assert_allclose(distribution.log_prob(y), expected, rtol=1e-12)


@pytest.mark.parametrize("gap", [1.0, 30.0])
def test_values_with_given_scores_are_quantiles(gap):
    marginal = mixture(3, 4, gap=gap)
    levels = torch.tensor([1e-6, 0.02, 0.4, 0.5, 0.77, 0.999]).double()
    scores = torch.special.ndtri(levels)[:, None].expand(-1, 3)
    values = invert_scores(marginal, scores)
    expected = torch.stack([marginal.quantile(float(p))[:, 0] for p in levels])
    np.testing.assert_allclose(values, expected, atol=1e-3 * gap)
    np.testing.assert_allclose(marginal.cdf(values[3][:, None]), 0.5, atol=1e-6)


def test_draws_keep_the_marginals_and_have_the_correlation():
    distribution = copula(mixture(2, 1), mixture(2, 2))
    draws = distribution.sample(2000, np.random.default_rng(0))
    assert draws.shape == (2000, 2, 2)
    for row in range(2):
        u = np.stack([distribution.cdf(draw)[row].numpy() for draw in draws])
        assert min(kstest(u[:, 0], "uniform").pvalue, kstest(u[:, 1], "uniform").pvalue) > 1e-3
        # Standard error (1 - 0.6^2) / sqrt(2000) = 0.014.
        assert abs(np.corrcoef(norm.ppf(u).T)[0, 1] - 0.6) < 0.06


def test_counts_keep_their_marginals():
    distribution = copula(mixture(1, 1), counts([3.0]))
    draws = distribution.sample(6000, np.random.default_rng(0))[:, 0, 1].numpy()
    assert (draws == np.rint(draws)).all()
    share = np.bincount(draws.astype(int), minlength=20)[:20] / len(draws)
    np.testing.assert_allclose(share, poisson(3.0).pmf(np.arange(20)), atol=0.03)
    below = middle_cdf(distribution.marginals[1], torch.tensor([[2.0]]).double())
    expected = 0.5 * (poisson(3.0).cdf(1) + poisson(3.0).cdf(2))
    np.testing.assert_allclose(below.item(), expected, rtol=1e-6)


def test_the_correlation_of_many_rows_is_recovered_from_any_shape():
    rng = np.random.default_rng(3)
    true = np.array([[1.0, 0.4, -0.3], [0.4, 1.0, 0.2], [-0.3, 0.2, 1.0]])
    z = rng.multivariate_normal(np.zeros(3), true, size=20_000)
    estimate = fit_correlation(norm.cdf(z) ** [1.0, 2.0, 0.3], np.ones(len(z)))
    np.testing.assert_allclose(estimate, true, atol=0.03)
    np.testing.assert_array_equal(np.diag(estimate), 1.0)


def test_few_rows_are_shrunk_and_the_matrix_stays_positive_definite():
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(50):
        noise = fit_correlation(rng.random((8, 2)), np.ones(8))
        raw = np.corrcoef(norm.ppf(rng.random((8, 2))).T)
        errors.append([noise[0, 1] ** 2, raw[0, 1] ** 2])
    shrunk, plain = np.mean(errors, axis=0)
    assert shrunk < 0.7 * plain
    same = rng.random(30)
    for columns in ([same, same], [same, same, 1 - same], rng.random((12, 5))):
        eigenvalues = np.linalg.eigvalsh(
            fit_correlation(np.column_stack(columns), np.ones(len(columns[0])))
        )
        assert eigenvalues.min() > 1e-6
    np.testing.assert_array_equal(fit_correlation(rng.random((2, 2)), np.ones(2)), np.eye(2))


def test_weights_are_repetitions_and_unknown_rows_do_not_count():
    rng = np.random.default_rng(1)
    u = rng.random((40, 3))
    weight = rng.integers(0, 4, size=40).astype(float)
    repeated = np.repeat(u, weight.astype(int), axis=0)
    expected = fit_correlation(repeated, np.ones(len(repeated)))
    np.testing.assert_allclose(fit_correlation(u, weight), expected, rtol=1e-12)
    u[5, 1] = np.nan
    weight[:] = 1.0
    expected = fit_correlation(np.delete(u, 5, axis=0), weight[1:])
    np.testing.assert_array_equal(fit_correlation(u, weight), expected)
    scores = normal_scores(np.array([0.3, 0.1, 0.3]), np.ones(3))
    np.testing.assert_allclose(scores, norm.ppf([2.5 / 4, 1 / 4, 2.5 / 4]))


def test_rows_and_units_change_as_those_of_a_single_target():
    distribution = copula(mixture(4, 1), mixture(4, 2))
    mean, scale = torch.tensor([1.0, -3.0]).double(), torch.tensor([2.0, 0.5]).double()
    y = torch.zeros(4, 2).double()
    rescaled = distribution.rescale(mean, scale)
    expected = distribution.log_prob(y) - scale.log().sum()
    np.testing.assert_allclose(rescaled.log_prob(mean + scale * y), expected, rtol=1e-9)
    rows = np.array([2, 0])
    np.testing.assert_array_equal(distribution.take(rows).mean(), distribution.mean()[rows])
    np.testing.assert_array_equal(distribution.std(), distribution.scales[0])
