from math import log, pi

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from skbayes_sym.numerics.low_rank_normal import log_density_up_to_constant

shapes = pytest.mark.parametrize("shape", [(2, 4, 3), (2, 4, 4), (4, 7), (3, 2, 5, 1), (1, 3)])


def problem(shape, generator):
    design = torch.randn(shape, generator=generator, dtype=torch.float64)
    return design, torch.randn(shape[-2], generator=generator, dtype=torch.float64)


@shapes
def test_equals_the_dense_density(shape, generator):
    design, y = problem(shape, generator)
    covariance = torch.eye(len(y), dtype=torch.float64) + design @ design.mT
    dense = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    value = log_density_up_to_constant(design, y) - 0.5 * len(y) * log(2 * pi)
    assert_close(value, dense, rtol=1e-12, atol=1e-12)


@shapes
def test_gradient(shape, generator):
    leaves = [t.requires_grad_() for t in problem(shape, generator)]
    assert torch.autograd.gradcheck(log_density_up_to_constant, leaves)


def test_float32(generator):
    value = log_density_up_to_constant(*(t.float() for t in problem((2, 4, 7), generator)))
    assert value.dtype == torch.float32
