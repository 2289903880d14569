"""Transformations of images against formulae, the heat equation and SciPy."""

from math import pi

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models.augmentations.families import family
from scipy import ndimage
from scipy.linalg import expm
from torch.testing import assert_close

from skbayes_sym.models.augmentations.augmentation import HalfWidth, amplitude
from skbayes_sym.models.augmentations.images import (
    BASES,
    Affine,
    Blur,
    Brightness,
    Contrast,
    Hue,
    PixelNoise,
    _exponential,
)


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


SHAPE = (3, 4, 5)


def changed(family, size, generator, shape=SHAPE):
    """Images, and the same at the coefficient ``size``."""
    x = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
    bound = family.bind((1.0,), shape)
    eta = torch.tensor([0.4], dtype=torch.float64)
    noise = torch.full((2, 1, 1), size, dtype=torch.float64) / bound.half_width.mixing(eta)
    return x, bound.transform(x, eta, noise)[:, 0]


def test_brightness_multiplies_and_contrast_leaves_the_mean(generator):
    factor = torch.tensor(0.7, dtype=torch.float64).exp()
    x, bright = changed(Brightness(), 0.7, generator)
    assert_close(bright, factor * x)
    x, strong = changed(Contrast(), 0.7, generator)
    assert_close(strong.mean((1, 2, 3)), x.mean((1, 2, 3)))
    assert_close(strong.std((1, 2, 3)), factor * x.std((1, 2, 3)))
    grey, _ = changed(Contrast(), 0.7, generator, (1, 4, 5))
    assert grey.shape == (2, 1, 4, 5)


def test_a_third_of_a_turn_moves_every_colour_to_the_next(generator):
    x, turned = changed(Hue(), 2 * pi / 3, generator)
    assert_close(turned, x.roll(1, 1))  # red to green, green to blue, blue to red
    x, turned = changed(Hue(), 0.9, generator)
    assert_close(turned.mean(1), x.mean(1))
    assert_close(turned.norm(dim=1), x.norm(dim=1))
    grey = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    hue, eta = Hue((3, 1, 1)), torch.ones(1, dtype=torch.float64)
    assert_close(hue.transform(grey, eta, torch.ones(1, 1, 1).double())[:, 0], grey)


def test_there_must_be_colours_to_change():
    with pytest.raises(ValueError, match=r"Hue turns red.* image_shape=\(1, 4, 5\) has 1 channel"):
        Hue().bind((1.0,), (1, 4, 5))
    for colour in (Brightness(), Contrast(), Hue()):
        with pytest.raises(ValueError, match=f"{type(colour).__name__} changes pixels: give"):
            colour.bind((1.0,))


def blurred(x, sigma):
    family = Blur().bind((1.0,), tuple(x.shape[1:]))
    eta = torch.tensor([0.5], dtype=torch.float64)
    noise = torch.full((len(x), 1, 1), sigma, dtype=torch.float64) / family.half_width.mixing(eta)
    return family.transform(x, eta, noise)[:, 0]


def laplacian(n):
    """Second differences on a path, nothing flowing over its ends."""
    matrix = np.diag(np.full(n - 1, 1.0), 1) + np.diag(np.full(n - 1, 1.0), -1)
    return matrix - np.diag(matrix.sum(1))


def test_blur_is_diffusion_and_adds_up(generator):
    x = torch.rand(2, 2, 7, 5, generator=generator, dtype=torch.float64)
    down, across = (torch.as_tensor(expm(0.5 * 1.3**2 * laplacian(n))) for n in (7, 5))
    assert_close(blurred(x, 1.3), down @ x @ across)
    assert_close(blurred(blurred(x, 0.6), 0.8), blurred(x, 1.0))  # variances add up
    assert_close(blurred(x, 1.3).mean((2, 3)), x.mean((2, 3)))
    assert_close(blurred(x, 1e3), x.mean((2, 3), keepdim=True).expand_as(x))


def test_wide_blur_is_that_of_a_sampled_gaussian(generator):
    x = torch.rand(1, 1, 40, 30, generator=generator, dtype=torch.float64)
    expected = ndimage.gaussian_filter(x[0, 0].numpy(), 3.0, mode="reflect", truncate=8.0)
    # Discrete and sampled kernels differ by O(1 / variance) of a smooth image's variation.
    found = blurred(x, 3.0)[0, 0].numpy()
    assert np.abs(found - expected).max() < 0.05 * np.ptp(expected)


def test_noise_is_one_number_a_pixel_and_of_the_half_width(generator):
    family = PixelNoise().bind((1.0,), (2, 3, 4))
    eta = torch.tensor([0.9], dtype=torch.float64)
    assert family.half_width.n_noise == 24
    assert family.half_width.n_params == 1
    noise = 2.0 * torch.rand(500, 3, 24, generator=generator, dtype=torch.float64) - 1.0
    x = torch.rand(500, 2, 3, 4, generator=generator, dtype=torch.float64)
    added = family.transform(x, eta, noise) - x.unsqueeze(1)
    reach = float(amplitude(family.half_width, eta))
    assert float(added.abs().max()) <= reach
    # Variance of a uniform law at 5 standard errors of 36,000 squares.
    assert float(added.square().mean()) == pytest.approx(reach**2 / 3, rel=5 * 0.9 / 36_000**0.5)
    with pytest.raises(ValueError, match="PixelNoise changes pixels: give image_shape"):
        PixelNoise().bind((1.0,))
