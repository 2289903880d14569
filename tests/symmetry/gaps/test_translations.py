"""What independent normals lose under translations, against optima found by search."""

import math

import numpy as np
import pytest
import torch
from gap_oracle import correlated

from skbayes_sym.linear.low_rank import LowRankGaussian
from skbayes_sym.numerics.optimise import lbfgs, with_gradient
from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.gaps.translations import TranslationGap
from skbayes_sym.symmetry.translation import Translation

NOISE, PRIOR = 0.7, 1.3  # standard deviations


@pytest.fixture
def regression(generator):
    """More weights than rows."""
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(3, generator=generator, dtype=torch.float64)


def exact_posterior(x, y):
    """Dense algebra, and the log evidence."""
    precision = x.T @ x / NOISE**2 + torch.eye(x.shape[1], dtype=x.dtype) / PRIOR**2
    cov = torch.linalg.inv(precision)
    loc = cov @ x.T @ y / NOISE**2
    marginal = PRIOR**2 * x @ x.T + NOISE**2 * torch.eye(len(y), dtype=y.dtype)
    distribution = torch.distributions.MultivariateNormal(torch.zeros_like(y), marginal)
    posterior = LowRankGaussian(loc[None].numpy(), np.ones(len(loc)), None, cov.numpy(), 1.0)
    return posterior, float(distribution.log_prob(y))


def best_mean_field_bound(x, y):
    """By L-BFGS over means and log standard deviations."""
    k = x.shape[1]

    def loss(params):
        loc, scale = params[:k], params[k:].exp()
        outputs, variance = x @ loc, (x**2) @ scale**2
        squares = ((y - outputs) ** 2 + variance) / NOISE**2
        log_lik = -0.5 * (squares + math.log(2 * math.pi * NOISE**2)).sum()
        ratio = (loc**2 + scale**2) / PRIOR**2
        return 0.5 * (ratio - 1.0 - (scale / PRIOR).log() * 2).sum() - log_lik

    start = torch.zeros(2 * k, dtype=torch.float64)
    found = lbfgs(with_gradient(loss), start, max_iter=2000, ftol=1e-15, gtol=1e-9)
    return -float(loss(found))


def test_is_the_difference_of_the_two_optima(regression, generator):
    posterior, log_evidence = exact_posterior(*regression)
    gap = TranslationGap(Translation(regression[0]))
    found = gap.estimate(posterior, generator=generator)
    expected = log_evidence - best_mean_field_bound(*regression)
    assert found.value == pytest.approx(expected, abs=1e-8)
    assert expected > 0.3


def test_no_translations_no_gap(generator):
    """Orthogonal inputs: each row sees a weight of its own, and q is independent."""
    x = torch.diag(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))
    posterior, _ = exact_posterior(x, torch.ones(3, dtype=torch.float64))
    gap = TranslationGap(Translation(x))
    assert gap.estimate(posterior, generator=generator).value == pytest.approx(0.0, abs=1e-14)
    assert (
        gap.value_and_gradients(posterior, generator=generator).added_precision.abs().max() < 1e-12
    )


def test_what_only_the_fit_knows_is_handed_on(generator):
    known = Estimate(1.5, 0.1)
    gap = TranslationGap(Translation(torch.ones(1, 4)), known)
    assert gap.estimate(correlated(4), generator=generator) == known
