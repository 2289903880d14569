"""Real numbers, positive numbers and counts from mixtures of normals."""

import numpy as np
import pytest
from scipy import integrate, stats

from skbayes_sym.numerics.latent_mixtures import CountMixture, PositiveMixture, RealMixture

WEIGHTS = np.array([[0.3, 0.5], [0.7, 0.5]])
LOC = np.array([[0.2, 3.0], [1.0, 5.0]])
SCALE = np.array([[0.6, 0.5], [0.3, 0.8]])
LEVELS = np.array([0.01, 0.3, 0.5, 0.99])[:, None]


@pytest.mark.parametrize("kind", [RealMixture, PositiveMixture])
def test_density_moments_quantiles_and_draws_belong_to_one_distribution(kind):
    mixture = kind(WEIGHTS, LOC, SCALE)
    z = np.linspace(-4.0, 12.0, 20001)[:, None] + np.zeros(2)
    y = mixture.from_latent(z)
    density = np.exp(mixture.log_prob(y))
    np.testing.assert_allclose(integrate.trapezoid(density, y, axis=0), 1.0, rtol=1e-5)
    mean, std = mixture.moments()
    np.testing.assert_allclose(integrate.trapezoid(density * y, y, axis=0), mean, rtol=1e-3)
    square = integrate.trapezoid(density * y**2, y, axis=0)
    np.testing.assert_allclose(np.sqrt(square - mean**2), std, rtol=0.01)
    np.testing.assert_allclose(mixture.mean(), mean)
    quantiles = mixture.from_latent(mixture.latent_quantile(LEVELS))
    np.testing.assert_allclose(mixture.cdf(quantiles), LEVELS + np.zeros(2), atol=1e-9)
    np.testing.assert_array_equal(mixture.cdf_below(quantiles), mixture.cdf(quantiles))
    draws = mixture.from_latent(mixture.latent_sample(4000, np.random.default_rng(0)))
    assert min(stats.kstest(mixture.cdf(draws)[:, n], "uniform").pvalue for n in (0, 1)) > 1e-3


def test_masses_moments_quantiles_and_draws_of_counts_belong_to_one_distribution():
    mixture = CountMixture(WEIGHTS, LOC, SCALE)
    count = np.arange(400.0)[:, None]
    mass = np.exp(mixture.log_prob(count + np.zeros(2)))
    np.testing.assert_allclose(mass.sum(axis=0), 1.0, rtol=1e-9)
    np.testing.assert_allclose(mixture.cdf(count), mass.cumsum(axis=0), atol=1e-12)
    np.testing.assert_allclose(mixture.cdf_below(count), mass.cumsum(axis=0) - mass, atol=1e-12)
    mean, std = mixture.moments()
    np.testing.assert_allclose(mean, count[:, 0] @ mass, rtol=1e-5)
    np.testing.assert_allclose(std**2, (count[:, 0] ** 2 @ mass) - mean**2, rtol=1e-4)
    quantiles = mixture.from_latent(mixture.latent_quantile(LEVELS))
    assert (mixture.cdf(quantiles) >= LEVELS).all()
    assert (mixture.cdf(quantiles - 1.0) < LEVELS).all()
    draws = mixture.from_latent(mixture.latent_sample(20_000, np.random.default_rng(0)))
    np.testing.assert_allclose(draws.mean(axis=0), mean, rtol=0.02)
    np.testing.assert_array_equal(mixture.log_prob(np.array([[-1.0, 0.5]])), -np.inf)


def test_moments_of_large_counts_are_those_of_squares():
    mixture = CountMixture(np.ones((1, 1)), np.array([[40.0]]), np.array([[0.6]]))
    count = np.arange(1000.0, 2600.0)[:, None]
    mass = np.exp(mixture.log_prob(count))[:, 0]
    mean, std = mixture.moments()
    assert mean[0] == pytest.approx(mass @ count[:, 0], rel=1e-6)
    assert std[0] == pytest.approx(np.sqrt(mass @ (count[:, 0] - mean) ** 2), rel=1e-4)


def test_a_negligible_component_does_not_have_the_mean_of_positive_targets():
    wild = PositiveMixture(np.array([[0.9999], [1e-4]]), np.zeros((2, 1)), np.array([[0.5], [6.0]]))
    plain = PositiveMixture(np.ones((1, 1)), np.zeros((1, 1)), np.array([[0.5]]))
    for got, expected in zip(wild.moments(), plain.moments(), strict=True):
        assert got[0] == pytest.approx(expected[0], rel=0.01)
