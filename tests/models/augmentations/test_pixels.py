"""Noise in pixels, and blur against the heat equation and SciPy's Gaussian filter."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from scipy.linalg import expm
from torch.testing import assert_close

from skbayes_sym.models.augmentations.augmentation import amplitude
from skbayes_sym.models.augmentations.images import Blur, PixelNoise


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
