"""Expected log likelihoods of wide outputs, by 64 nodes."""

import pytest
import torch
from cases import LIKELIHOODS, LaplaceNoise
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.expectations import by_autograd
from skbayes_sym.models.likelihoods.gaussian import Gaussian


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
