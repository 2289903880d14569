"""Gradients of the rotation gap, in expectation; its laws are in test_laws.py."""

import pytest
import torch
from cases import GAPS
from gap_oracle import Rows, draws_of, log_density_ratio

from skbayes_sym.symmetry.gaps.rotations import AnchoredRotationGap, IsotropicRotationGap
from skbayes_sym.symmetry.gaps.rows import row_gap
from skbayes_sym.symmetry.gaps.sign_flips import SignFlipGap
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units


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


def test_the_gap_of_rows_by_group():
    index = torch.arange(12).view(4, 3)
    assert isinstance(row_gap(Orthogonal(index), is_isotropic=True), IsotropicRotationGap)
    assert isinstance(row_gap(Orthogonal(index), is_isotropic=False), AnchoredRotationGap)
    one = row_gap(Orthogonal(index.view(12, 1)), is_isotropic=False)
    assert isinstance(one, SignFlipGap)
    assert (one.group.n_units, one.group.permutes, one.group.flips) == (1, False, True)
    flips = row_gap(Units(index.mT, permute=False, flip=True), is_isotropic=False)
    assert isinstance(flips, SignFlipGap)
    with pytest.raises(TypeError, match="no gap of independent rows is known under object"):
        row_gap(object(), is_isotropic=False)
