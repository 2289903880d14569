import pytest
import torch
from cases import LIKELIHOODS
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.priors import GaussianPrior

every_likelihood = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)


def moments(case, n, generator):
    shape = (n, case.n_outputs)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    variance = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return mean, variance, noise


def test_densities_equal_torch_distributions(generator):
    f = torch.randn(3, 6, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    likelihood = LIKELIHOODS["gaussian-fixed"].likelihood
    normal = torch.distributions.Normal(f, likelihood.noise_std)
    assert_close(likelihood.log_prob(f, y), normal.log_prob(y).sum(-1))
    labels = torch.randint(0, 2, (6,), generator=generator)
    categorical = torch.distributions.Categorical(logits=f)
    assert_close(Categorical().log_prob(f, labels), categorical.log_prob(labels))


@every_likelihood
def test_expectation_equals_monte_carlo(case, generator):
    mean, variance, _ = moments(case, 4, generator)
    y = case.targets(4, generator)
    n = 50_000
    eps = torch.randn(n, *mean.shape, generator=generator, dtype=torch.float64)
    samples = case.likelihood.log_prob(mean + variance.sqrt() * eps, y)
    if case.likelihood.needs_noise:  # itself a one-draw estimate: average it
        flat = [t.expand(n, *t.shape).flatten(0, 1) for t in (mean, variance)]
        expected = case.likelihood.expected_log_prob(
            *flat, y.repeat(n), eps.flatten(0, 1)
        ).value.unflatten(0, (n, -1))
        assert_close(expected, samples)
    else:
        expected = case.likelihood.expected_log_prob(mean, variance, y, None).value
        error = samples.std(0) / n**0.5
        assert bool(((expected - samples.mean(0)).abs() < 5 * error).all())


@every_likelihood
def test_derivatives_equal_autograd(case, generator):
    mean, variance, noise = moments(case, 6, generator)
    y = case.targets(6, generator)
    params = case.likelihood.params.double().clone().requires_grad_()
    leaves = [mean.requires_grad_(), variance.requires_grad_()]
    result = case.likelihood.at(params).expected_log_prob(*leaves, y, noise)
    wanted = [*leaves, params] if case.likelihood.n_params else leaves
    got = torch.autograd.grad(result.value.sum(), wanted)
    assert_close(result.d_mean, got[0], rtol=1e-12, atol=1e-13)
    assert_close(result.d_variance.expand_as(variance), got[1], rtol=1e-12, atol=1e-13)
    assert result.d_params.shape == (6, case.likelihood.n_params)
    if case.likelihood.n_params:
        assert_close(result.d_params.sum(0), got[2], rtol=1e-12, atol=1e-13)


@every_likelihood
def test_parameters_round_trip(case):
    likelihood = case.likelihood
    assert likelihood.params.numel() == likelihood.n_params
    assert torch.equal(likelihood.at(likelihood.params).params, likelihood.params)


def test_fixed_noise_has_no_parameters():
    fixed = Gaussian(torch.zeros(1), learn=False)
    assert fixed.n_params == 0
    assert fixed.at(torch.zeros(0)) is fixed


def test_categorical_asks_for_noise():
    with pytest.raises(ValueError, match="needs noise"):
        Categorical().expected_log_prob(torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1), None)


def test_gaussian_prior(generator):
    prior = GaussianPrior(torch.tensor([0.5, 2.0], dtype=torch.float64))
    theta = prior.sample(20_000, generator=generator)
    normal = torch.distributions.Normal(0.0, prior.scale)
    assert_close(prior.log_prob(theta), normal.log_prob(theta).sum(-1))
    assert_close(theta.std(0), prior.scale, rtol=4 / (2 * 20_000) ** 0.5, atol=0)
    assert_close(prior.precision, torch.tensor([4.0, 0.25], dtype=torch.float64))
