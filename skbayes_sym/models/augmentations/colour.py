r"""Random changes of the colours of images: brightness, contrast and hue.

Each has one generator and acts on every pixel by itself:

.. math:: x' = e^z x, \qquad x' = m + e^z (x - m), \qquad x' = R(z)\,x,

with m the image's mean over pixels and channels, and R(z) the turn of red, green and blue by z
radians about the grey axis (1, 1, 1), which leaves greys and the mean of the three as they are.
Nothing is clipped, so that x' is smooth in z; z = 0 is the image itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import pi
from typing import Self

import torch
from torch import Tensor

from skbayes_sym.models.augmentations.base import ImageShape
from skbayes_sym.models.augmentations.half_width import HalfWidth

_UNIT = 1.0 / 3.0  # a step of learning moves a log factor by a third, as `Affine`'s
_LARGEST = 2.0  # limit of the log factors: e^2, a picture in the dark


def require_image(name: str, *shapes: ImageShape | None) -> ImageShape:
    """The first shape of images that is given; there must be one."""
    for shape in shapes:
        if shape is not None:
            return shape
    raise ValueError(f"{name} changes pixels: give image_shape=(H, W) or (C, H, W).")


def pixels_of(x: Tensor, image_shape: ImageShape) -> Tensor:
    """Rows or images (N, *I) as (N, 1, C, H, W)."""
    return x.reshape(len(x), 1, *image_shape)


@dataclass(frozen=True)
class _Factor:
    """A change by a random factor exp(z), z uniform on ±half-width."""

    image_shape: ImageShape | None = None

    @property
    def half_width(self) -> HalfWidth:
        return HalfWidth((type(self).__name__.lower(),), (_LARGEST / _UNIT,), (_UNIT,))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> Self:
        shape = require_image(type(self).__name__, image_shape, self.image_shape)
        return replace(self, image_shape=shape)

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        factor = (noise @ self.half_width.mixing(eta).T).exp()[..., None, None]
        images = pixels_of(x, require_image(type(self).__name__, self.image_shape))
        changed = self._changed(images, factor)
        return changed.reshape(*noise.shape[:2], *x.shape[1:])

    def _changed(self, images: Tensor, factor: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Brightness(_Factor):
    """Multiplication of an image by exp(z), z uniform on ±half-width: black stays black.

    Parameters
    ----------
    image_shape : tuple of int, optional
        (C, H, W); estimators fill it in.
    """

    def _changed(self, images: Tensor, factor: Tensor) -> Tensor:
        return images * factor


@dataclass(frozen=True)
class Contrast(_Factor):
    """Multiplication of an image's differences from its mean by exp(z), z uniform on ±half-width.

    Parameters
    ----------
    image_shape : tuple of int, optional
        (C, H, W); estimators fill it in.
    """

    def _changed(self, images: Tensor, factor: Tensor) -> Tensor:
        mean = images.mean((2, 3, 4), keepdim=True)
        return mean + factor * (images - mean)


@dataclass(frozen=True)
class Hue:
    """Turn of red, green and blue about the grey axis by an angle uniform on ±half-width (radians).

    A turn by 2 pi / 3 makes green of red. For images of three channels.

    Parameters
    ----------
    image_shape : tuple of int, optional
        (3, H, W); estimators fill it in.
    """

    image_shape: ImageShape | None = None

    @property
    def half_width(self) -> HalfWidth:
        return HalfWidth(("hue",), (pi,))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Hue":
        shape = require_image("Hue", image_shape, self.image_shape)
        if shape[0] != 3:
            raise ValueError(
                f"Hue turns red, green and blue, but image_shape={shape} has {shape[0]} "
                "channel(s). Leave it out, or give image_shape=(3, H, W)."
            )
        return replace(self, image_shape=shape)

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        angle = (noise @ self.half_width.mixing(eta).T)[..., None]
        images = pixels_of(x, require_image("Hue", self.image_shape)).flatten(3)
        turned = _turns(angle) @ images
        return turned.reshape(*noise.shape[:2], *x.shape[1:])


def _turns(angle: Tensor) -> Tensor:
    """Rotations (..., 3, 3) about (1, 1, 1) by angles (..., 1, 1): Rodrigues' formula."""
    eye = torch.eye(3, dtype=angle.dtype, device=angle.device)
    grey = torch.full_like(eye, 1.0 / 3.0)
    cross = (eye.roll(1, 0) - eye.roll(-1, 0)) / 3.0**0.5
    return grey + angle.cos() * (eye - grey) + angle.sin() * cross
