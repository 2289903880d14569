import torch
from torch.testing import assert_close

from skbayes_sym.models.priors import GaussianPrior


def test_gaussian_prior(generator):
    prior = GaussianPrior(torch.tensor([0.5, 2.0], dtype=torch.float64))
    theta = prior.sample(20_000, generator=generator)
    normal = torch.distributions.Normal(0.0, prior.scale)
    assert_close(prior.log_prob(theta), normal.log_prob(theta).sum(-1))
    assert_close(theta.std(0), prior.scale, rtol=4 / (2 * 20_000) ** 0.5, atol=0)
    assert_close(prior.precision, torch.tensor([4.0, 0.25], dtype=torch.float64))
