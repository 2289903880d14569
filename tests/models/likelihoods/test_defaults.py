"""What a likelihood inherits: the same as the members that built-in ones write out."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from cases import LIKELIHOODS, LaplaceNoise
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.defaults import BaseLikelihood, TargetLikelihood

every_likelihood = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)
TARGETS = {k: c for k, c in LIKELIHOODS.items() if c.kind != "classes"}
every_target = pytest.mark.parametrize("case", TARGETS.values(), ids=TARGETS)


@every_likelihood
def test_own_members_equal_the_defaults(case, generator):
    likelihood, default = case.likelihood, BaseLikelihood
    shape = (6, case.n_outputs)
    mean, noise = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    variance = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    y = case.targets(6, generator)
    assert_close(likelihood.score(mean, y), default.score(likelihood, mean, y))
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
class Nothing(BaseLikelihood):
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
