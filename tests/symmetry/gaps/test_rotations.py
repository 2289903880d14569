"""Gradients of the rotation gap, in expectation; its laws are in test_laws.py."""

import pytest
import torch
from cases import GAPS
from gap_oracle import Rows, draws_of, log_density_ratio

from skbayes_sym.symmetry.gaps.rotations import IsotropicRotationGap
from skbayes_sym.symmetry.orthogonal import Orthogonal


@pytest.mark.long
def test_gradient_of_isotropic_rows_in_expectation(generator):
    """Along one direction, against differences of the exact gap at common noise."""
    gap, posterior = GAPS["rotations-isotropic"].gap, GAPS["rotations-isotropic"].posterior
    mean, cov = posterior
    move = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    found = [gap.value_and_gradients(posterior, generator=generator) for _ in range(200)]
    by_mean = torch.stack([(g.d_mean * move).sum() for g in found])
    # Every covariance times 1 + h: -1/2 tr(added precision S).
    by_scale = torch.stack([-0.5 * (g.added_precision * cov).sum() for g in found])
    h, noise = 1e-3, torch.randn(1500, *mean.shape, generator=generator, dtype=torch.float64)

    def value(q):
        return log_density_ratio(gap.group, q, draws_of(q, noise.flatten(1)))

    pairs = [
        (by_mean, value(Rows(mean + h * move, cov)) - value(Rows(mean - h * move, cov))),
        (by_scale, value(Rows(mean, cov * (1 + h))) - value(Rows(mean, cov * (1 - h)))),
    ]
    for derivative, difference in pairs:
        expected = difference / (2.0 * h)
        error = (derivative.var() / len(derivative) + expected.var() / len(expected)) ** 0.5
        assert abs(float(derivative.mean() - expected.mean())) < 4.0 * float(error) + 1e-5
        assert abs(float(expected.mean())) > 4.0 * float(error)  # there is something to find


@pytest.mark.parametrize(("k", "side"), [(1, "exact"), (3, "exact"), (4, "lower")])
def test_side_of_isotropic_rows(k, side):
    assert IsotropicRotationGap(Orthogonal(torch.arange(2 * k).view(2, k))).side == side
