"""Affine transformations of images against matrices written by hand and the library's grid."""

from math import pi

import pytest
import torch
import torch.nn.functional as F
from models.augmentations.families import family
from torch.testing import assert_close

from skbayes_sym.models.augmentations.augmentation import HalfWidth
from skbayes_sym.models.augmentations.images import BASES, Affine, _exponential


def test_exponential_and_its_integral_by_the_general_routine(generator):
    m = 1.5 * torch.randn(300, 2, 2, generator=generator, dtype=torch.float64)
    m[0] = 0.0
    m[1] = torch.tensor([[0.0, -pi], [pi, 0.0]])
    exponential, integral = _exponential(m)
    assert_close(exponential, torch.matrix_exp(m), rtol=1e-10, atol=1e-11)
    # exp([M t; 0 0]) = [exp(M), integral t; 0 1]
    shift = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    whole = torch.zeros(300, 3, 3, dtype=torch.float64)
    whole[:, :2, :2], whole[:, :2, 2] = m, shift
    expected = torch.matrix_exp(whole)[:, :2, 2]
    assert_close((integral @ shift.unsqueeze(-1)).squeeze(-1), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("basis", BASES)
def test_matrices_of_a_square_image_are_the_papers(basis, generator):
    z = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    generators = torch.zeros(6, 3, 3, dtype=torch.float64)
    generators[:, :2, :2] = torch.tensor(BASES[basis].linear).reshape(6, 2, 2)
    generators[0, 0, 2] = generators[1, 1, 2] = 1.0
    expected = torch.matrix_exp(torch.einsum("ni,ijk->njk", z, generators))[:, :2]
    found = Affine(basis, image_shape=(1, 8, 8)).matrices(z)
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_displacements_by_averaging_over_the_square():
    side = (2.0 * torch.arange(200.0, dtype=torch.float64) + 1.0) / 200 - 1.0
    v, u = torch.meshgrid(side, side, indexing="ij")
    points = torch.stack([u.flatten(), v.flatten()])
    for basis in BASES.values():
        moves = [
            torch.ones(1, 40_000).double() if i < 2
            else torch.tensor(m, dtype=torch.float64).reshape(2, 2) @ points
            for i, m in enumerate(basis.linear)
        ]  # fmt: skip
        found = torch.tensor([float((d**2).sum(0).mean()) for d in moves])
        # Midpoint rule on 200 x 200 points: error of order 1/200^2.
        assert_close(found, torch.tensor(basis.displacement), rtol=1e-4, atol=0.0)
        for i in range(2, 6):  # orthogonal in displacement
            for j in range(2, i):
                assert abs(float((moves[i] * moves[j]).sum(0).mean())) < 1e-10


def test_a_rotation_of_a_wide_image_keeps_angles():
    """A quarter turn maps the middle of the right edge to that of the lower, in pixels."""
    z = torch.zeros(1, 6, dtype=torch.float64)
    z[0, 2] = pi / 2
    a = Affine(image_shape=(1, 10, 20)).matrices(z)[0, :, :2]
    half = torch.tensor([10.0, 5.0], dtype=torch.float64)  # pixels per unit
    in_pixels = half[:, None] * a / half
    expected = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    assert_close(in_pixels, expected, rtol=0.0, atol=1e-12)


def test_translation_of_one_is_half_the_image():
    x = torch.rand(1, 1, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = torch.zeros(1, 6, dtype=torch.float64)
    z[0, 0] = 1.0
    matrices = Affine(image_shape=(1, 8, 12)).matrices(z)
    assert_close(matrices[0, :, 2], torch.tensor([1.0, 0.0], dtype=torch.float64))
    grid = F.affine_grid(matrices, (1, 1, 8, 12), align_corners=False)
    moved = F.grid_sample(x, grid, align_corners=False)
    assert_close(moved[..., :6], x[..., 6:])
    assert float(moved[..., 6:].abs().max()) < 1e-12


def test_grid_is_that_of_the_library(generator):
    augmentation, x, eta, noise = family("similarity", generator)
    matrices = augmentation.matrices(noise @ augmentation.half_width.mixing(eta).T)
    expected = torch.stack(
        [
            F.grid_sample(
                x, F.affine_grid(matrices[:, s], x.shape, align_corners=False), align_corners=False
            )
            for s in range(3)
        ],
        1,
    )
    assert_close(augmentation.transform(x, eta, noise), expected)
    flat = augmentation.transform(x.flatten(1), eta, noise)  # images as rows of a table
    assert_close(flat, expected.flatten(2))


def test_off_diagonal_entries_are_damped():
    half_width = HalfWidth(("a", "b"), (1e6, 1e6), correlated=True)
    mixing = half_width.mixing(torch.ones(4, dtype=torch.float64))
    expected = torch.tensor([[1.0, 0.2], [0.2, 1.0]], dtype=torch.float64)
    assert_close(mixing, expected)
