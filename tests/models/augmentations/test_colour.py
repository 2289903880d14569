"""Colours of images against formulae written by hand."""

from math import pi

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.models.augmentations.images import Brightness, Contrast, Hue

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
    for family in (Brightness(), Contrast(), Hue()):
        with pytest.raises(ValueError, match=f"{type(family).__name__} changes pixels: give"):
            family.bind((1.0,))
