"""Derivatives in the axes of Q: against differences of the gap itself, and what they spare."""

import pytest
import torch
from cases import GAPS
from gap_oracle import Rows, draws_of, log_density_ratio

from skbayes_sym.symmetry.gaps.rotations import (
    IsotropicRotationGap,
    SecondMoment,
    isotropic_gradient,
    langevin_gradient,
)
from skbayes_sym.symmetry.orthogonal import Orthogonal

K, N_DRAWS = 3, 4000


def rows(generator, k=K):
    """Means (7, k) and variances (7,)."""
    loc = torch.randn(7, k, generator=generator, dtype=torch.float64)
    return loc, 0.3 + torch.rand(7, generator=generator, dtype=torch.float64)


def noise(generator, k=K, n=N_DRAWS):
    drawn = torch.randn(n // 2, k, k, generator=generator, dtype=torch.float64)
    return torch.cat([drawn, -drawn])


@pytest.mark.long
@pytest.mark.kept("4")
@pytest.mark.parametrize("k", [4, 8])
def test_the_same_on_average_as_without_axes_and_less_random(k, generator):
    loc, variance = rows(generator, k)
    anchors, distance = loc / variance.unsqueeze(-1), SecondMoment.from_rows(loc, variance)
    mine, plain = [], []
    for _ in range(100):
        drawn = noise(generator, k, 12)
        mine.append(isotropic_gradient(loc, variance, distance, distance.sample_inner(drawn)))
        inner = distance.axes @ distance.sample_inner(drawn) @ distance.axes.mT
        plain.append(langevin_gradient(anchors, inner))
    for part in (1, 2):
        a, b = (torch.stack([g[part] for g in found]) for found in (mine, plain))
        error = ((a.var(0) + b.var(0)) / len(a)).sqrt()
        assert bool(((a.mean(0) - b.mean(0)).abs() < 5.0 * error + 1e-9).all())
    spread = [torch.stack([g.d_mean for g in found]).var(0).sum() for found in (mine, plain)]
    assert float(spread[0]) < 0.5 * float(spread[1])


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


def test_no_means_no_slope():
    """Q = 0: no axes, nothing added, no NaN."""
    loc, variance = torch.zeros(5, 4, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    distance = SecondMoment.from_rows(loc, variance)
    inner = distance.sample_inner(torch.randn(6, 4, 4, dtype=torch.float64))
    for part in isotropic_gradient(loc, variance, distance, inner):
        torch.testing.assert_close(part, torch.zeros_like(part), rtol=0, atol=1e-12)
