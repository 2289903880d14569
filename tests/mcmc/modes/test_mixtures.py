"""Mixtures of Gaussians: normalised, and found again from their draws."""

import pytest
import torch
from mcmc.modes.known_modes import bumps
from torch.testing import assert_close

from skbayes_sym.mcmc.bridge import fit_gaussian_mixture


def test_mixtures_are_fitted(generator):
    mixture = bumps(generator, distance=3.0)
    draws = mixture.sample(200_000, generator=generator)
    one = fit_gaussian_mixture(draws)
    covariance = draws.T.cov(correction=0)
    shrunk = 0.98 * covariance + 0.02 * torch.diag(covariance.diagonal())
    assert_close(one.cholesky[0] @ one.cholesky[0].mT, shrunk, rtol=1e-6, atol=1e-8)
    assert_close(one.loc[0], draws.mean(0))
    two = fit_gaussian_mixture(bumps(generator).sample(4000, generator=generator), 2)
    assert two.log_weights.exp().sort().values.tolist() == pytest.approx([0.3, 0.7], abs=0.03)
