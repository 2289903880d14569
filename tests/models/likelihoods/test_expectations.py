"""Expected log likelihoods of wide outputs, by 64 nodes."""

import pytest
import torch
from cases import LIKELIHOODS, LaplaceNoise
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.bernoulli import Bernoulli
from skbayes_sym.models.likelihoods.expectations import by_autograd
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
