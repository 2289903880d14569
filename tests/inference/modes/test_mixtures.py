"""MoLA: exact on Gaussians, weights as told, damped where a mode is flat."""

from math import log, pi

import pytest
import torch
from inference.modes.known_modes import bumps
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.log_density import AutogradPosterior
from skbayes_sym.inference.modes.mixtures import (
    GaussianMixture,
    LowRankMixture,
    curvature,
    find_maximum,
    fit_gaussian_mixture,
    fit_low_rank_mixture,
    fit_mixture_of_laplace,
)

D = 4


def target(function):
    return AutogradPosterior(D, lambda x: x.new_zeros(len(x)), function)


def test_exact_for_separate_gaussians(generator):
    mixture = bumps(generator)
    starts = mixture.loc + 0.5
    found = fit_mixture_of_laplace(target(lambda x: 2.0 + mixture.log_prob(x)), starts)
    assert_close(found.mixture.loc, mixture.loc, rtol=0, atol=1e-5)
    covariance = mixture.cholesky @ mixture.cholesky.mT
    estimated = found.mixture.cholesky @ found.mixture.cholesky.mT
    assert_close(estimated, covariance, rtol=1e-5, atol=1e-5)
    assert_close(found.log_evidence, mixture.log_weights + 2.0, rtol=0, atol=1e-6)
    assert_close(found.mixture.log_weights, mixture.log_weights, rtol=0, atol=1e-6)
    assert found.jitter.tolist() == [0.0, 0.0]
    x = mixture.sample(50, generator=generator)
    assert_close(found.log_prob(x), mixture.log_prob(x), rtol=1e-4, atol=1e-4)
    assert_close(found.log_prob(x.numpy()[:, None])[:, 0], found.log_prob(x))


def test_weights_from_elsewhere(generator):
    mixture = bumps(generator)
    given = torch.tensor([5.0, 7.0])
    density = target(mixture.log_prob)
    found = fit_mixture_of_laplace(density, mixture.loc, given)
    assert_close(found.mixture.log_weights, given.double().log_softmax(0))
    unknown = fit_mixture_of_laplace(density, mixture.loc, torch.tensor([5.0, torch.nan]))
    draws = unknown.sample(200, generator=generator)
    assert bool(((draws - mixture.loc[0]).norm(dim=1) < 40).all())
    draws = found.sample(4000, generator=generator)
    near_second = (draws - mixture.loc[1]).norm(dim=1) < (draws - mixture.loc[0]).norm(dim=1)
    share = float(given.double().softmax(0)[1])
    error = (share * (1 - share) / 4000) ** 0.5
    assert abs(float(near_second.double().mean()) - share) < 4 * error
    first = draws[~near_second]
    z = torch.linalg.solve_triangular(mixture.cholesky[0], (first - mixture.loc[0]).mT, upper=False)
    assert bool((z.mean(dim=1).abs() < 4 / len(first) ** 0.5).all())


def test_a_flat_direction_is_damped():
    density = target(lambda x: -0.5 * (3.0 * x[:, :3]).square().sum(1))
    found = fit_mixture_of_laplace(density, torch.ones(1, D))
    assert 0 < float(found.jitter) < 1e-4
    assert bool(found.mixture.cholesky.isfinite().all())
    assert_close(found.mixture.loc[0, :3], torch.zeros(3).double(), rtol=0, atol=1e-6)


def test_curvature_against_autograd(generator):
    def function(x):
        return -x.square().square().sum(1) - (x[:, 0] * x[:, 1]).cos() + x[:, 2].sin() * x[:, 3]

    at = torch.randn(D, generator=generator, dtype=torch.float64)
    exact = -torch.autograd.functional.hessian(lambda x: function(x[None])[0], at)
    assert_close(curvature(target(function), at), exact, rtol=1e-7, atol=1e-7)


def test_the_maximum_is_never_lower_than_the_start():
    """Outside the ball the density is zero: the search must not end there."""

    def function(x):
        inside = x.square().sum(1) < 4.0
        return torch.where(inside, x.sum(1), -torch.inf)

    start = torch.full((D,), 0.3)
    found = find_maximum(target(function), start)
    assert float(found.square().sum()) < 4.0
    assert float(found.sum()) >= float(start.sum()) - 1e-6


def test_mixtures_normalise_and_fit(generator):
    mixture = bumps(generator, distance=3.0)
    draws = mixture.sample(200_000, generator=generator)
    wide = GaussianMixture(
        torch.zeros(1).double(),
        draws.mean(0)[None],
        1.5 * torch.linalg.cholesky(draws.T.cov())[None],
    )
    proposed = wide.sample(200_000, generator=generator)
    ratio = (mixture.log_prob(proposed) - wide.log_prob(proposed)).exp()
    assert abs(float(ratio.mean()) - 1.0) < 4 * float(ratio.std()) / 200_000**0.5
    one = fit_gaussian_mixture(draws)
    covariance = draws.T.cov(correction=0)
    shrunk = 0.98 * covariance + 0.02 * torch.diag(covariance.diagonal())
    assert_close(one.cholesky[0] @ one.cholesky[0].mT, shrunk, rtol=1e-6, atol=1e-8)
    assert_close(one.loc[0], draws.mean(0))
    two = fit_gaussian_mixture(bumps(generator).sample(4000, generator=generator), 2)
    assert two.log_weights.exp().sort().values.tolist() == pytest.approx([0.3, 0.7], abs=0.03)
    normal = -0.5 * draws.square().sum(1) - 0.5 * 4 * log(2 * pi)
    standard = GaussianMixture(
        torch.zeros(1).double(), torch.zeros(1, 4).double(), torch.eye(4).double()[None]
    )
    assert_close(standard.log_prob(draws), normal)


def mixture(generator, n_dims=5, rank=3):
    return LowRankMixture(
        torch.tensor([0.25, 0.75]).double().log(),
        torch.randn(2, n_dims, generator=generator).double(),
        torch.randn(2, n_dims, rank, generator=generator).double(),
        0.1 + torch.rand(2, n_dims, generator=generator).double(),
    )


def test_its_density_is_that_of_the_full_covariance(generator):
    law = mixture(generator)
    at = torch.randn(3, 2, 5, generator=generator).double()
    components = zip(law.log_weights.exp(), law.loc, law.factor, law.variance, strict=True)
    expected = sum(
        float(w) * stats.multivariate_normal(m, f @ f.mT + torch.diag(v)).pdf(at)
        for w, m, f, v in components
    )
    assert_close(law.log_prob(at).exp(), torch.as_tensor(expected), rtol=1e-10, atol=0)
    assert law.log_prob(at[0, 0]).shape == ()


def test_its_draws_have_its_moments(generator):
    law, n = mixture(generator), 200_000
    draws, w = law.sample(n, generator=generator), law.log_weights.exp()
    mean = w @ law.loc
    each = law.factor @ law.factor.mT + torch.diag_embed(law.variance)
    offset = law.loc - mean
    covariance = (w[:, None, None] * (each + offset[:, :, None] * offset[:, None])).sum(0)
    error = (covariance.diagonal() / n).sqrt()
    assert bool(((draws.mean(0) - mean).abs() < 4.5 * error).all())
    # products of at most six-fold variance: their standard deviations are below 3 s_i s_j
    spread = covariance.diagonal().sqrt()
    bound = 4.5 * 3.0 * spread[:, None] * spread / n**0.5
    assert bool(((draws.T.cov() - covariance).abs() < bound).all())


def test_a_fit_keeps_mean_variances_and_nearly_all_correlation(generator):
    draws = torch.randn(2, 6, 9, generator=generator).double()
    law = fit_low_rank_mixture(draws, torch.tensor([0.0, 1.0]).double())
    assert_close(law.log_weights.exp().sum(), torch.tensor(1.0).double())
    for k in range(2):
        found = law.factor[k] @ law.factor[k].mT + torch.diag(law.variance[k])
        sample = draws[k].T.cov()
        assert_close(law.loc[k], draws[k].mean(0))
        assert_close(found.diagonal(), sample.diagonal())
        assert_close(found, 0.999 * sample + 0.001 * torch.diag(sample.diagonal()))


def test_a_constant_coordinate_stays_where_it_is(generator):
    draws = torch.randn(1, 4, 3, generator=generator).double()
    draws[..., 1] = 2.0
    law = fit_low_rank_mixture(draws, torch.zeros(1).double())
    drawn = law.sample(50, generator=generator)
    assert_close(drawn[:, 1], torch.full((50,), 2.0).double(), rtol=0, atol=1e-13)
    assert bool(law.log_prob(drawn).isfinite().all())
