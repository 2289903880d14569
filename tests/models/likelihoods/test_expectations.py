"""Expected log likelihoods of wide outputs, by 64 nodes."""

import pytest
import torch
from cases import LIKELIHOODS, LaplaceNoise
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.bernoulli import Bernoulli
from skbayes_sym.models.likelihoods.expectations import (
    _LOGISTIC,
    N_NODES,
    by_autograd,
    by_quadrature,
    logistic_nodes,
)
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.likelihoods.student_t import StudentT


def test_nodes_are_shared_by_independent_targets(generator):
    """One sum over 64 nodes serves all outputs: closed form of two Gaussian targets."""
    likelihood = Gaussian(torch.tensor([-0.3, 0.2], dtype=torch.float64))
    mean, y = (torch.randn(4, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    variance = 0.1 + torch.rand(4, 2, generator=generator, dtype=torch.float64)
    nothing = torch.empty(4, 0)
    found = by_autograd(likelihood, mean, variance, y, nothing)
    exact = likelihood.expected_log_prob(mean, variance, y, nothing)
    for a, b in zip(found, exact, strict=True):
        assert_close(a, b.expand_as(a), rtol=1e-10, atol=1e-12)


def test_the_number_of_draws_is_asked_of_the_likelihood():
    assert LIKELIHOODS["own-softmax"].likelihood.n_noise(3) == 3
    assert LIKELIHOODS["own-softmax"].likelihood.n_noise(1) == 0
    assert LaplaceNoise(torch.zeros(2)).n_noise(2) == 0


@pytest.mark.parametrize("requires_grad", [False, True])
def test_graphs_are_kept_where_asked_for(requires_grad):
    mean = torch.zeros(1, 1, dtype=torch.float64, requires_grad=requires_grad)
    one = torch.ones(1, 1, dtype=torch.float64)
    likelihood = LaplaceNoise(torch.zeros(1, dtype=torch.float64))
    found = likelihood.expected_log_prob(mean, one, one, torch.empty(1, 0))
    assert found.value.requires_grad == requires_grad
    assert found.d_mean.requires_grad == requires_grad


@pytest.mark.parametrize("law", [Bernoulli(), StudentT()])
def test_an_output_without_variance_is_a_number(law):
    """Where a quadrature's derivative by the variance would be 0 / 0; there it is ``l'' / 2``."""
    mean = torch.tensor([[0.3], [-1.0]], dtype=torch.float64)
    y = torch.tensor([1, 0]) if isinstance(law, Bernoulli) else mean + 0.4
    zero = torch.zeros_like(mean)
    found = law.expected_log_prob(mean, zero, y, mean.new_empty(2, 0))
    assert_close(found.value, law.log_prob(mean, y))
    step = 1e-4
    high, middle, low = (law.log_prob(mean + s * step, y) for s in (1, 0, -1))
    curvature = (high - 2.0 * middle + low) / step**2
    assert_close(found.d_variance[:, 0], 0.5 * curvature, atol=1e-5, rtol=0.0)
    slopes = by_autograd(law, mean, zero, y, mean.new_empty(2, 0))
    assert all(part.isfinite().all() for part in slopes)


def logistic_by_sums(mean, sd):
    """Value and slopes of ``E[log s(f)]`` by 8,001 equidistant points: exact to rounding."""
    z = torch.linspace(-9.5, 9.5, 8001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * z * z, 0)
    f = mean.unsqueeze(-1) + sd * z
    slope = torch.sigmoid(-f)
    value = torch.nn.functional.logsigmoid(f)
    return value @ weights, slope @ weights, (slope * z) @ weights / (2.0 * sd)


@pytest.mark.parametrize("sd", [*_LOGISTIC, 0.01, 1.5])
def test_logistic_expectations_are_exact_to_rounding_whatever_their_width(sd):
    """As many nodes as the widest output asks for, value and slopes from one sigmoid."""
    mean = torch.cat([torch.linspace(-40.0, 40.0, 81), torch.tensor([0.3, -700.0])]).double()
    variance = torch.full_like(mean, sd**2).unsqueeze(-1)
    y = torch.ones(len(mean), dtype=torch.int64)
    found = Bernoulli().expected_log_prob(mean.unsqueeze(-1), variance, y, variance[:, :0])
    value, by_mean, by_variance = logistic_by_sums(mean, sd)
    tol = {"rtol": 1e-12, "atol": 1e-12}
    assert_close(found.value, value, **tol)
    assert_close(found.d_mean[:, 0], by_mean, **tol)
    assert_close(found.d_variance[:, 0], by_variance, **tol)


def test_wide_outputs_ask_for_the_most_nodes():
    """Of fewer the error of an output this wide would be seen: 7e-4 nats by 12."""
    assert logistic_nodes(torch.tensor([[0.5**2], [3.0**2]])) == N_NODES
    mean, wide = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 9.0).double()
    y, no_noise = torch.ones(1, dtype=torch.int64), wide[:, :0]
    most = Bernoulli().expected_log_prob(mean, wide, y, no_noise).value
    exact = logistic_by_sums(mean[0], 3.0)[0]
    few = by_quadrature(
        lambda f: (torch.nn.functional.logsigmoid(f), torch.sigmoid(-f)), mean, wide, n_nodes=12
    ).value
    assert_close(most, exact, rtol=0.0, atol=1e-6)
    assert abs(float(few - exact)) > 1e-4
