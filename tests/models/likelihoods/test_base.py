"""Laws of every likelihood, one's own included, over the table."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from cases import LIKELIHOODS, LaplaceNoise
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.likelihood import (
    Likelihood,
    TargetLikelihood,
    collapse_equal_weights,
)
from skbayes_sym.models.likelihoods.noise import Gaussian

every_likelihood = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)


def moments(case, n, generator):
    shape = (n, case.n_outputs)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    variance = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return mean, variance, noise


def all_targets(case, outputs):
    """Targets that stand for all, and what each counts in a sum that is an integral.

    Real targets are midpoints of cells of which one ends at the output, where densities such as
    Laplace's have a kink.
    """
    if case.kind == "classes":
        return torch.arange(2), torch.ones(2, dtype=torch.float64)
    if case.kind == "counts":
        return torch.arange(300.0, dtype=torch.float64)[:, None], torch.ones(300)
    n = 3000 if case.n_targets == 1 else 300
    t = (torch.arange(2 * n, dtype=torch.float64) + 0.5) / n - 1.0  # midpoints of (-1, 1)
    y, jacobian = t / (1 - t**2), (1 + t**2) / (1 - t**2) ** 2 / n
    every = [torch.cartesian_prod(*[t] * case.n_targets) for t in (y, jacobian)]
    grid, weight = (t.reshape(-1, case.n_targets) for t in every)
    return grid + outputs[:, : case.n_targets], weight.prod(1)


def test_the_softmax_equals_torch_distributions(generator):
    f = torch.randn(3, 6, 2, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (6,), generator=generator)
    categorical = torch.distributions.Categorical(logits=f)
    assert_close(Categorical().log_prob(f, labels), categorical.log_prob(labels))


@every_likelihood
def test_densities_integrate_to_one(case, generator):
    outputs = torch.randn(1, case.n_outputs, generator=generator, dtype=torch.float64)
    y, weight = all_targets(case, outputs)
    density = case.likelihood.log_prob(outputs.expand(len(y), -1), y).exp()
    assert float(density @ weight.double()) == pytest.approx(1.0, abs=1e-6)


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
    assert collapse_equal_weights(torch.tensor([2.0, 2.0])).tolist() == [2.0]
    assert collapse_equal_weights(torch.tensor([2.0, 1.0])).tolist() == [2.0, 1.0]


TARGETS = {k: c for k, c in LIKELIHOODS.items() if c.kind != "classes"}
every_target = pytest.mark.parametrize("case", TARGETS.values(), ids=TARGETS)


@every_likelihood
def test_own_members_equal_the_defaults(case, generator):
    likelihood, default = case.likelihood, Likelihood
    shape = (6, case.n_outputs)
    mean, noise = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    variance = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    y = case.targets(6, generator)
    if likelihood.n_outputs_per_target > 1:
        return  # the defaults' nodes are those of one output: it has quadrature of its own
    mine = likelihood.expected_log_prob(mean, variance, y, noise)
    theirs = default.expected_log_prob(likelihood, mean, variance, y, noise)
    # Poisson's and the Gaussian's are closed forms; 64 nodes are exact to rounding for them.
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a.expand_as(b), b, rtol=1e-9, atol=1e-11)


@every_target
def test_the_distribution_is_the_law(case, generator):
    likelihood, default = case.likelihood, TargetLikelihood
    outputs = torch.randn(6, case.n_outputs, generator=generator, dtype=torch.float64)
    y = case.targets(6, generator)
    assert_close(likelihood.log_prob(outputs, y), default.log_prob(likelihood, outputs, y))
    assert_close(likelihood.mean(outputs), default.mean(likelihood, outputs))
    assert_close(likelihood.variance(outputs), default.variance(likelihood, outputs))


@every_target
def test_cdf_is_the_integral_of_the_density(case, generator):
    likelihood = case.likelihood
    outputs = torch.randn(6, case.n_outputs, generator=generator, dtype=torch.float64)
    y = case.targets(6, generator)
    if case.kind == "counts":
        jump = likelihood.cdf(y, outputs) - likelihood.cdf(y - 1.0, outputs)
    else:
        h = 1e-5
        jump = (likelihood.cdf(y + h, outputs) - likelihood.cdf(y - h, outputs)) / (2 * h)
    assert_close(jump.prod(-1), likelihood.log_prob(outputs, y).exp(), rtol=1e-6, atol=1e-10)


@every_target
def test_draws_follow_the_cdf(case):
    likelihood, n = case.likelihood, 4000
    outputs = torch.linspace(-1.0, 1.0, 3, dtype=torch.float64)[:, None].expand(3, case.n_outputs)
    many = outputs.expand(n, 3, case.n_outputs)
    for sample in (likelihood.sample, lambda f, rng: TargetLikelihood.sample(likelihood, f, rng)):
        draws = sample(many, np.random.default_rng(0))
        for y in (outputs[:, : case.n_targets] + shift for shift in (-0.4, 1.0)):
            share, exact = (draws <= y).double().mean(0), likelihood.cdf(y, outputs)
            error = (exact * (1 - exact) / n).sqrt()
            assert bool(((share - exact).abs() <= 5 * error + 1e-12).all())


def test_tensors_move_with_the_data():
    moved = LaplaceNoise(torch.zeros(2, dtype=torch.float64)).to(torch.zeros(0))
    assert moved.log_scale.dtype == torch.float32
    assert moved.n_params == 2
    assert moved.noise_scale.tolist() == [1.0, 1.0]


@dataclass(frozen=True, eq=False)
class Nothing(Likelihood):
    value: torch.Tensor

    @property
    def params(self):
        return self.value


@dataclass(frozen=True, eq=False)
class NoCdf(TargetLikelihood):
    def distribution(self, outputs):
        return torch.distributions.StudentT(3.0, outputs)


def test_what_is_missing_is_named():
    y = torch.zeros(1, 1)
    own = Nothing(torch.zeros(1))
    for call in (
        lambda: own.log_prob(y, y), lambda: own.predictive(y[None]), lambda: own.at(y[0]),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError, match="Nothing"):
            call()
    with pytest.raises(NotImplementedError, match="distribution"):
        TargetLikelihood().log_prob(y, y)
    with pytest.raises(NotImplementedError, match=r"NoCdf\.cdf"):
        NoCdf().predictive(y[None]).quantile(0.5)


def test_positive_targets_are_not_centred():
    @dataclass(frozen=True)
    class Duration(TargetLikelihood):
        def distribution(self, outputs):
            return torch.distributions.Exponential((-outputs).exp())

    assert not Duration().scales_targets
    assert not Duration().is_discrete
