"""Bernoulli, counts and Student-t: densities, moments and laws of targets, against scipy."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.categorical import Bernoulli
from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.noise import Gaussian, StudentT

OUTPUTS = torch.tensor([[[-1.0], [0.3], [2.0]]], dtype=torch.float64)
COUNTS = torch.tensor([[0.0], [2.0], [11.0]], dtype=torch.float64)
STUDENT = StudentT(torch.tensor([np.log(0.7)]), df=4.0)
RATE = np.exp(OUTPUTS.numpy()[0])
LAWS = {
    "normal": (
        Gaussian(torch.tensor([np.log(0.7)])),
        stats.norm(OUTPUTS.numpy()[0], 0.7),
        COUNTS - 3.0,
    ),
    "poisson": (Poisson(), stats.poisson(RATE), COUNTS),
    "negative-binomial": (
        NegativeBinomial(torch.tensor([np.log(0.4)])),
        stats.nbinom(2.5, 2.5 / (2.5 + RATE)),
        COUNTS,
    ),
    "student-t": (STUDENT, stats.t(4.0, OUTPUTS.numpy()[0], 0.7), COUNTS - 3.0),
    "student-t-learned": (
        StudentT(torch.tensor([np.log(0.7)]), "learn", log_tail=torch.tensor([np.log(4 / 7)])),
        stats.t(7.0, OUTPUTS.numpy()[0], 0.7),
        COUNTS - 3.0,
    ),
}
every_law = pytest.mark.parametrize(("likelihood", "distribution", "y"), LAWS.values(), ids=LAWS)


@every_law
def test_the_law_of_a_target(likelihood, distribution, y):
    log_density = distribution.logpmf if likelihood.is_discrete else distribution.logpdf
    expected = torch.as_tensor(log_density(y.numpy())).squeeze(-1)
    assert_close(likelihood.log_prob(OUTPUTS, y)[0], expected, rtol=1e-12, atol=1e-12)
    assert_close(likelihood.mean(OUTPUTS)[0], torch.as_tensor(distribution.mean()))
    assert_close(likelihood.variance(OUTPUTS)[0], torch.as_tensor(distribution.var()))
    for shift in (0.0, 0.4, -0.4):
        expected = torch.as_tensor(distribution.cdf(y.numpy() + shift))
        assert_close(likelihood.cdf(y + shift, OUTPUTS)[0], expected, rtol=1e-10, atol=1e-12)


def test_bernoulli_is_a_logistic_curve():
    f = torch.tensor([[-50.0], [-1.0], [2.0], [800.0]], dtype=torch.float64)
    expected = stats.logistic.logcdf(f.numpy())[:, 0]
    one, zero = torch.ones(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    assert_close(Bernoulli().log_prob(f, one), torch.as_tensor(expected))
    assert_close(Bernoulli().log_prob(-f, zero), torch.as_tensor(expected))


def test_infinite_variance_of_heavy_tails():
    heavy = StudentT(torch.zeros(1, dtype=torch.float64), df=2.0)
    assert torch.isinf(heavy.variance(OUTPUTS)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e-12, 1e-6, 1e-3, 0.049, 0.051, 1.0, 100.0])
def test_any_dispersion_keeps_its_digits(alpha, dtype):
    """scipy's own loses digits below 1e-6, so there the reference is Poisson's, off by O(alpha)."""
    y = torch.tensor([[0.0], [1.0], [30.0], [2000.0]], dtype=dtype)
    f = torch.tensor([[0.0], [-3.0], [3.0], [7.5]], dtype=dtype)
    likelihood = NegativeBinomial(torch.tensor([np.log(alpha)], dtype=dtype))
    mean = np.exp(f.double().numpy())
    distribution = (
        stats.nbinom(1 / alpha, 1 / (1 + alpha * mean)) if alpha > 1e-5 else stats.poisson(mean)
    )
    expected = torch.as_tensor(distribution.logpmf(y.numpy())[:, 0])
    # Terms as large as y log y cancel; Poisson's is off by alpha (y - mu)^2 / 2.
    error = 2e4 * 4 * torch.finfo(dtype).eps + (2e5 * alpha if alpha < 1e-5 else 1e-9)
    assert_close(likelihood.log_prob(f, y).double(), expected, rtol=1e-6, atol=error)


@pytest.mark.parametrize("df", [0.0, -1.0, "fit"])
def test_degrees_of_freedom_are_checked(df):
    with pytest.raises(ValueError, match="df must be positive or 'learn'"):
        StudentT(df=df)


def test_rates_beyond_the_sampler():
    outputs = torch.tensor([50.0, 1.0], dtype=torch.float64)
    draws = Poisson().sample(outputs, np.random.default_rng(0))
    assert float(draws[0]) == np.exp(50.0)
    assert draws[1] < 20
