"""Likelihoods of rows with known errors or exposures: densities, curvature and expectations."""

import numpy as np
import pytest
import torch
from scipy.stats import nbinom, norm, poisson
from torch.testing import assert_close

from skbayes_sym.models import Gaussian, NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.likelihood import Likelihood, expect_by_autograd
from skbayes_sym.models.likelihoods.row_parameters import (
    ExposedCounts,
    KnownErrors,
    extend_likelihood,
)

OUTPUTS = torch.tensor([[0.3], [-1.0], [2.0]], dtype=torch.float64)
COUNTS = torch.tensor([[0.0], [2.0], [20.0]], dtype=torch.float64)
EXPOSURE = torch.tensor([[0.5], [3.0], [2.0]], dtype=torch.float64)
LOG_NOISE = torch.tensor([-0.4], dtype=torch.float64)
ROWS = torch.cat([COUNTS, EXPOSURE], 1)


def test_the_density_of_known_errors_has_both_variances():
    likelihood = extend_likelihood(Gaussian(LOG_NOISE))
    assert isinstance(likelihood, KnownErrors)
    scale = np.hypot(np.exp(-0.4), EXPOSURE.numpy())
    expected = norm.logpdf(COUNTS.numpy(), OUTPUTS.numpy(), scale)[:, 0]
    np.testing.assert_allclose(likelihood.log_prob(OUTPUTS, ROWS), expected)
    # Two targets: both are followed by both errors.
    two = torch.cat([COUNTS, COUNTS, EXPOSURE, EXPOSURE], 1)
    twice = likelihood.log_prob(OUTPUTS.expand(-1, 2), two)
    np.testing.assert_allclose(twice, 2.0 * expected)


def test_the_mean_of_counts_is_multiplied():
    mean = (EXPOSURE * OUTPUTS.exp()).numpy()[:, 0]
    likelihood = extend_likelihood(Poisson())
    assert isinstance(likelihood, ExposedCounts)
    expected = poisson.logpmf(COUNTS.numpy()[:, 0], mean)
    np.testing.assert_allclose(likelihood.log_prob(OUTPUTS, ROWS), expected)
    dispersed = extend_likelihood(NegativeBinomial(LOG_NOISE))
    size = np.exp(0.4)
    expected = nbinom.logpmf(COUNTS.numpy()[:, 0], size, size / (size + mean))
    np.testing.assert_allclose(dispersed.log_prob(OUTPUTS, ROWS), expected)


@pytest.mark.parametrize("base", [Gaussian(LOG_NOISE), Poisson(), NegativeBinomial(LOG_NOISE)])
def test_curvature_and_expectations_follow_from_the_density(base):
    likelihood = extend_likelihood(base)
    root = likelihood.hessian_root(OUTPUTS, ROWS)
    generic = Likelihood.hessian_root(likelihood, OUTPUTS, ROWS)
    assert_close(root.square(), generic.square())
    variance = torch.full_like(OUTPUTS, 0.3)
    none = OUTPUTS.new_empty(3, 0)
    closed = likelihood.expected_log_prob(OUTPUTS, variance, ROWS, none)
    quadrature = expect_by_autograd(likelihood, OUTPUTS, variance, ROWS, none)
    for mine, theirs in zip(closed, quadrature, strict=True):
        assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


def test_parameters_are_those_of_the_extended_likelihood():
    base = NegativeBinomial(LOG_NOISE)
    likelihood = extend_likelihood(base)
    assert likelihood.n_params == 1
    assert likelihood.is_discrete
    assert not likelihood.scales_targets
    moved = likelihood.at(torch.tensor([1.0]))
    assert float(moved.base.log_dispersion) == 1.0
    assert likelihood.to(torch.zeros(1)).params.dtype == torch.float32
    gaussian = extend_likelihood(Gaussian(LOG_NOISE))
    assert gaussian.scales_targets
    assert not gaussian.is_discrete
    assert float(gaussian.noise_scale) == pytest.approx(np.exp(-0.4))


def test_the_constant_is_the_rate_of_all_counts():
    weight = np.array([1.0, 2.0, 1.0])
    constant = extend_likelihood(Poisson()).fit_constant_outputs(ROWS.numpy(), weight)
    assert constant == pytest.approx(np.log((2.0 * 2.0 + 20.0) / (0.5 + 2.0 * 3.0 + 2.0)))
