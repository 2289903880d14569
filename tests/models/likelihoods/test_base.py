"""Laws of every likelihood, one's own included, over the table."""

import pytest
import torch
from cases import LIKELIHOODS
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.base import collapsed_weight
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.gaussian import Gaussian

every_likelihood = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)


def moments(case, n, generator):
    shape = (n, case.n_outputs)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    variance = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return mean, variance, noise


def all_targets(case):
    """Targets that stand for all, and what each counts in a sum that is an integral."""
    if case.kind == "classes":
        return torch.arange(2), torch.ones(2, dtype=torch.float64)
    if case.kind == "counts":
        return torch.arange(300.0, dtype=torch.float64)[:, None], torch.ones(300)
    t = (torch.arange(600, dtype=torch.float64) + 0.5) / 300 - 1.0  # midpoints of (-1, 1)
    y, jacobian = t / (1 - t**2), (1 + t**2) / (1 - t**2) ** 2 / 300
    every = [torch.cartesian_prod(*[t] * case.n_targets) for t in (y, jacobian)]
    grid, weight = (t.reshape(-1, case.n_targets) for t in every)
    return grid, weight.prod(1)


def test_densities_equal_torch_distributions(generator):
    f = torch.randn(3, 6, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    likelihood = LIKELIHOODS["gaussian-fixed"].likelihood
    normal = torch.distributions.Normal(f, likelihood.noise_scale)
    assert_close(likelihood.log_prob(f, y), normal.log_prob(y).sum(-1))
    labels = torch.randint(0, 2, (6,), generator=generator)
    categorical = torch.distributions.Categorical(logits=f)
    assert_close(Categorical().log_prob(f, labels), categorical.log_prob(labels))


@every_likelihood
def test_densities_integrate_to_one(case, generator):
    y, weight = all_targets(case)
    outputs = torch.randn(1, case.n_outputs, generator=generator, dtype=torch.float64)
    density = case.likelihood.log_prob(outputs.expand(len(y), -1), y).exp()
    # Midpoints miss a share of the cell around Laplace's kink.
    tolerance = 1e-4 if case is LIKELIHOODS["own-laplace"] else 1e-6
    assert float(density @ weight.double()) == pytest.approx(1.0, abs=tolerance)


@every_likelihood
def test_expectation_equals_monte_carlo(case, generator):
    mean, variance, _ = moments(case, 4, generator)
    y = case.targets(4, generator)
    n, likelihood = 50_000, case.likelihood
    eps = torch.randn(n, *mean.shape, generator=generator, dtype=torch.float64)
    samples = likelihood.log_prob(mean + variance.sqrt() * eps, y)
    if likelihood.n_noise(case.n_outputs):  # itself a one-draw estimate: average it
        flat = [t.expand(n, *t.shape).flatten(0, 1) for t in (mean, variance)]
        expected = likelihood.expected_log_prob(
            *flat, y.repeat(n), eps.flatten(0, 1)
        ).value.unflatten(0, (n, -1))
        assert_close(expected, samples)
    else:
        expected = likelihood.expected_log_prob(mean, variance, y, mean.new_empty(4, 0)).value
        # The quadrature of Laplace's kink is off by a fraction of the nodes' distance.
        error = samples.std(0) / n**0.5 + (0.005 if case is LIKELIHOODS["own-laplace"] else 0.0)
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
def test_every_chain_has_parameters_of_its_own(case, generator):
    likelihood, y = case.likelihood, case.targets(5, generator)
    outputs = torch.randn(3, 5, case.n_outputs, generator=generator, dtype=torch.float64)
    shape = (3, likelihood.n_params)
    params = torch.randn(shape, generator=generator, dtype=torch.float64)
    together = likelihood.at(params.unsqueeze(1)).log_prob(outputs, y)
    alone = [likelihood.at(p).log_prob(f, y) for p, f in zip(params, outputs, strict=True)]
    assert_close(together, torch.stack(alone), rtol=1e-12, atol=1e-13)


@every_likelihood
def test_parameters_round_trip(case):
    likelihood = case.likelihood
    assert likelihood.params.numel() == likelihood.n_params
    assert torch.equal(likelihood.at(likelihood.params).params, likelihood.params)
    assert likelihood.to(torch.zeros(0, dtype=torch.float32)).noise_scale.dtype in {
        torch.float32, likelihood.noise_scale.dtype if not likelihood.n_params else torch.float32
    }  # fmt: skip


@every_likelihood
def test_only_real_targets_are_scaled(case):
    assert case.likelihood.scales_targets == (case.kind == "real")


def test_fixed_noise_has_no_parameters():
    fixed = Gaussian(torch.zeros(1), learn=False)
    assert fixed.n_params == 0
    assert fixed.at(torch.zeros(0)) is fixed


def test_equal_weights_collapse():
    assert collapsed_weight(torch.tensor([2.0, 2.0])).tolist() == [2.0]
    assert collapsed_weight(torch.tensor([2.0, 1.0])).tolist() == [2.0, 1.0]
