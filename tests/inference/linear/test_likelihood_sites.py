"""Expectations under softmax: derivatives, Monte Carlo, invariances."""

import numpy as np
import pytest
import torch
from inference.linear.linear_problems import class_data, fit, softmax
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.categorical import Bernoulli
from skbayes_sym.models.likelihoods.likelihood import ScalarSites


def random_moments(n_outputs=3, n=4):
    rng = np.random.default_rng(7)
    root = rng.normal(size=(n, n_outputs, n_outputs))
    covariance = torch.as_tensor(root @ root.transpose(0, 2, 1))
    mean = torch.as_tensor(rng.normal(size=(n, n_outputs)))
    return mean, covariance, torch.as_tensor(rng.integers(0, n_outputs, n))


def test_softmax_derivatives_equal_autograd():
    mean, covariance, y = random_moments()
    leaves = mean.requires_grad_(), covariance.requires_grad_()
    terms = softmax()(mean.detach(), covariance.detach(), y)
    value = softmax().value(*leaves, y)
    assert_close(terms.value, value.detach(), rtol=1e-12, atol=1e-13)
    gradient, by_covariance = torch.autograd.grad(value.sum(), leaves)
    assert_close(terms.gradient, gradient, rtol=1e-10, atol=1e-12)
    # autograd takes the entries as free: only the symmetric part means something.
    symmetric = 0.5 * (by_covariance + by_covariance.mT)
    assert_close(terms.curvature, -2 * symmetric, rtol=1e-8, atol=1e-10)


def test_softmax_expectation_equals_monte_carlo(generator):
    mean, covariance, y = random_moments()
    draws = torch.randn(100_000, 4, 3, generator=generator, dtype=torch.float64)
    f = mean + torch.einsum("ncd,snd->snc", torch.linalg.cholesky(covariance), draws)
    samples = f.log_softmax(-1).gather(-1, y.expand(100_000, 4).unsqueeze(-1)).squeeze(-1)
    got = softmax(n_points=8192).value(mean, covariance, y)
    assert bool(((got - samples.mean(0)).abs() < 5 * samples.std(0) / 100_000**0.5).all())


def test_softmax_is_blind_to_shifts():
    mean, covariance, y = random_moments()
    terms = softmax()(mean, covariance, y)
    shifted = softmax()(mean + 5.0, covariance + 3.0, y)
    assert_close(shifted.value, terms.value, rtol=1e-9, atol=1e-10)
    assert_close(terms.curvature.sum(-1), torch.zeros(4, 3).double(), rtol=0, atol=1e-12)


def test_two_classes_by_softmax_are_logistic():
    """Two rows of weights of variance v are a logistic model of variance 2 v."""
    data = class_data()
    logistic = fit(data, ScalarSites(Bernoulli()), 3.0)
    two = fit(data._replace(n_outputs=2), softmax(2, n_points=4096), 1.5)
    # Free direction of both rows together stays at the prior: its KL is 0.
    assert float(two.elbo) == pytest.approx(float(logistic.elbo), abs=2e-3)
    assert_close(two.loc[1] - two.loc[0], logistic.loc[0], rtol=0, atol=3e-3)
