from math import log, pi

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from skbayes_sym.numerics.low_rank_normal import log_density_up_to_constant

shapes = pytest.mark.parametrize("shape", [(2, 4, 3), (2, 4, 4), (4, 7), (3, 2, 5, 1), (1, 3)])


def problem(shape, generator):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(*shape), normal(shape[-2]).exp(), normal(shape[-2])


@shapes
def test_equals_the_dense_density(shape, generator):
    features, scale, y = problem(shape, generator)
    design = scale.diag() @ features
    covariance = torch.eye(len(y), dtype=torch.float64) + design @ design.mT
    dense = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    value = log_density_up_to_constant(features, scale, y) - 0.5 * len(y) * log(2 * pi)
    assert_close(value, dense, rtol=1e-12, atol=1e-12)


@shapes
def test_gradient(shape, generator):
    leaves = [t.requires_grad_() for t in problem(shape, generator)]
    assert torch.autograd.gradcheck(log_density_up_to_constant, leaves)


@pytest.mark.parametrize("shape", [(2, 4, 7), (2, 4, 3)])
def test_float32(shape, generator):
    value = log_density_up_to_constant(*(t.float() for t in problem(shape, generator)))
    assert value.dtype == torch.float32
