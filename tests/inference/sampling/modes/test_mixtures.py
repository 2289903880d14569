"""Mixtures of Gaussians: normalised, and found again from their draws."""

from math import log, pi

import pytest
import torch
from inference.sampling.modes.known_modes import bumps
from torch.testing import assert_close

from skbayes_sym.inference.sampling.modes.bridge import GaussianMixture, fit_gaussian_mixture


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
