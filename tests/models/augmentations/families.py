"""Augmentations that their laws are tested on."""

import torch
from cases import AUGMENTATIONS

from skbayes_sym.models.augmentations.augmentation import Composed, sample_stratified_noise
from skbayes_sym.models.augmentations.images import (
    Affine,
    Blur,
    Brightness,
    Contrast,
    Hue,
    PixelNoise,
)

SCALE = (1.5, 2.0, 1.0)
COLOURS = (3, 5, 4)

IMAGES = {
    "similarity": Affine(image_shape=(2, 5, 4)),
    "axis": Affine("axis", image_shape=(2, 5, 4)),
    "correlated": Affine(image_shape=(2, 5, 4), correlated=True),
    "brightness": Brightness(COLOURS),
    "contrast": Contrast(COLOURS),
    "hue": Hue(COLOURS),
    "noise": PixelNoise(COLOURS),
    "blur": Blur(COLOURS),
    "colours": Composed(
        (Brightness(COLOURS), Contrast(COLOURS), Hue(COLOURS), PixelNoise(COLOURS), Blur(COLOURS))
    ),
}


def family(name, generator, n=4, s=3):
    """A bound family with inputs, parameters and noise."""
    augmentation = (AUGMENTATIONS | IMAGES)[name].bind(SCALE)
    shape = (3,)
    if name in IMAGES:
        shape = (2, 5, 4) if isinstance(augmentation, Affine) else COLOURS
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    half_width = augmentation.half_width
    eta = 0.3 * torch.randn(half_width.n_params, generator=generator, dtype=torch.float64)
    noise = sample_stratified_noise(n, s, half_width.n_noise, generator=generator, like=x)
    return augmentation, x, eta, noise
