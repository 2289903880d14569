"""Haar matrices, and Procrustes alignment."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics.random import random_orthogonal
from skbayes_sym.symmetry.orthogonal import Orthogonal

N = 40_000


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_elements_are_orthogonal(k, generator):
    g = random_orthogonal((5, 7), k, generator=generator)
    identity = torch.eye(k, dtype=torch.float64).expand(5, 7, k, k)
    assert_close(g @ g.mT, identity, rtol=0, atol=1e-14)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_moments_of_the_haar_measure(k, generator):
    """E T = 0, E T_ij^2 = 1/k, E T_ij^4 = 3 / (k (k + 2)); det is a fair coin."""
    g = random_orthogonal((N,), k, generator=generator)
    for power, expected in ((1, 0.0), (2, 1.0 / k), (4, 3.0 / (k * (k + 2.0)))):
        moment = g**power
        error = 5.0 * moment.std(0).clamp(min=1e-12) / N**0.5
        assert bool(((moment.mean(0) - expected).abs() < error + 1e-12).all())
    assert abs(float(torch.linalg.det(g).mean())) < 4.0 / N**0.5


def test_uniform_under_translation(generator):
    """The angle of a planar element is uniform, whichever element it is multiplied by."""
    g = random_orthogonal((N,), 2, generator=generator)
    fixed = random_orthogonal((), 2, generator=generator)
    for moved in (g, fixed @ g, g @ fixed):
        turn = torch.atan2(moved[:, 1, 0], moved[:, 0, 0]) / (2.0 * torch.pi) + 0.5
        ecdf = torch.arange(1, N + 1) / N
        distance = float((turn.sort().values - ecdf).abs().max())
        assert distance < 1.95 / N**0.5  # Kolmogorov-Smirnov at 1e-3


def test_alignment_undoes_a_rotation_exactly(generator):
    group = Orthogonal(torch.arange(30).view(10, 3))
    theta = torch.randn(4, 30, generator=generator, dtype=torch.float64)
    g = group.sample((4,), generator=generator)
    aligned, back = group.align(group.act(g, theta), theta)
    assert_close(aligned, theta, rtol=0, atol=1e-12)
    assert_close(back, group.inverse(g), rtol=0, atol=1e-12)


def test_generators_and_other_entries(generator):
    """Entries outside of the rows stay; generators are elements, one a reflection."""
    group = Orthogonal(torch.tensor([[0, 2, 4], [1, 3, 5]]))
    theta = torch.randn(8, generator=generator, dtype=torch.float64)
    names = []
    for name, g in group.generators():
        names.append(name)
        assert_close(g @ g.mT, group.identity(), rtol=0, atol=1e-15)
        assert_close(group.act(g, theta)[6:], theta[6:], rtol=0, atol=0)
    assert len(names) == len(set(names)) == 3
    assert group.log_order == float("inf")
