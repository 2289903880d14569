"""MoLA: exact on Gaussians, weights as told, damped where a mode is flat."""

import torch
from inference.modes.known_modes import bumps
from torch.testing import assert_close

from skbayes_sym.inference.log_density import AutogradPosterior
from skbayes_sym.inference.modes.mixtures import (
    curvature,
    find_maximum,
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
