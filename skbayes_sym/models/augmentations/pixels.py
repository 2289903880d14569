r"""Random changes of the pixels of images: brightness, contrast, hue, noise and blur.

The first three have one generator and act on every pixel by itself:

.. math:: x' = e^z x, \qquad x' = m + e^z (x - m), \qquad x' = R(z)\,x,

with m the image's mean over pixels and channels, and R(z) the turn of red, green and blue by z
radians about the grey axis (1, 1, 1), which leaves greys and the mean of the three as they are.
Nothing is clipped, so that x' is smooth in z; z = 0 is the image itself.

Noise is an amount of its own for every pixel and channel, uniform on ±half-width. Blur is diffusion
for a time :math:`z^2 / 2`,

.. math:: x' = e^{z^2 L / 2}\,x, \quad z \sim U(-h, h),

with L the discrete Laplacian of the pixel grid, nothing flowing over the edges: the discrete
Gaussian kernel of variance :math:`z^2` (Lindeberg 1990), smooth in z everywhere and the identity at
0, which a sampled Gaussian isn't. L is diagonal in the cosine basis, so that it takes two products
with a matrix a dimension.

References
----------
Lindeberg (1990). Scale-space for discrete signals. IEEE Transactions on Pattern Analysis and
Machine Intelligence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import pi, prod
from typing import Self

import torch
from torch import Tensor

from skbayes_sym.models.augmentations.augmentation import ImageShape
from skbayes_sym.models.augmentations.half_width import HalfWidth

_UNIT = 1.0 / 3.0  # a step of learning moves a log factor, or noise, by a third, as `Affine`'s
_LARGEST = 2.0  # limit of the log factors: e^2, a picture in the dark
_LARGEST_NOISE = 1.0  # limit, in largest pixels
_LARGEST_BLUR = 4.0  # pixels


@dataclass(frozen=True)
class _OfPixels:
    """A change of images (N, 1, C, H, W) by coefficients (N, S, k)."""

    image_shape: ImageShape | None = None

    @property
    def half_width(self) -> HalfWidth:
        raise NotImplementedError

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        raise NotImplementedError

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> Self:
        shape = image_shape or self.image_shape
        if shape is None:
            name = type(self).__name__
            raise ValueError(f"{name} changes pixels: give image_shape=(H, W) or (C, H, W).")
        return replace(self, image_shape=shape)

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        images = x.reshape(len(x), 1, *(self.image_shape or self.bind(()).image_shape or ()))
        changed = self._changed(images, noise @ self.half_width.mixing(eta).T)
        return changed.reshape(*noise.shape[:2], *x.shape[1:])


class _Factor(_OfPixels):
    """A change by a random factor exp(z), z uniform on ±half-width."""

    @property
    def half_width(self) -> HalfWidth:
        return HalfWidth((type(self).__name__.lower(),), (_LARGEST / _UNIT,), (_UNIT,))


class Brightness(_Factor):
    """Multiplication of an image by exp(z), z uniform on ±half-width: black stays black.

    Parameters
    ----------
    image_shape : tuple of int, optional
        (C, H, W); estimators fill it in.
    """

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        return images * z.exp()[..., None, None]


class Contrast(_Factor):
    """Multiplication of an image's differences from its mean by exp(z), z uniform on ±half-width.

    Parameters
    ----------
    image_shape : tuple of int, optional
        (C, H, W); estimators fill it in.
    """

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        mean = images.mean((2, 3, 4), keepdim=True)
        return mean + z.exp()[..., None, None] * (images - mean)


class Hue(_OfPixels):
    """Turn of red, green and blue about the grey axis by an angle uniform on ±half-width (radians).

    A turn by 2 pi / 3 makes green of red. For images of three channels.

    Parameters
    ----------
    image_shape : tuple of int, optional
        (3, H, W); estimators fill it in.
    """

    @property
    def half_width(self) -> HalfWidth:
        return HalfWidth(("hue",), (pi,))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Hue":
        bound = super().bind(scale, image_shape)
        shape = bound.image_shape
        if shape is not None and shape[0] != 3:
            raise ValueError(
                f"Hue turns red, green and blue, but image_shape={shape} has {shape[0]} "
                "channel(s). Leave it out, or give image_shape=(3, H, W)."
            )
        return bound

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        return _turns(z[..., None]) @ images.flatten(3)


def _turns(angle: Tensor) -> Tensor:
    """Rotations (..., 3, 3) about (1, 1, 1) by angles (..., 1, 1): Rodrigues' formula."""
    eye = torch.eye(3, dtype=angle.dtype, device=angle.device)
    grey = torch.full_like(eye, 1.0 / 3.0)
    cross = (eye.roll(1, 0) - eye.roll(-1, 0)) / 3.0**0.5
    return grey + angle.cos() * (eye - grey) + angle.sin() * cross


@dataclass(frozen=True)
class NoiseHalfWidth(HalfWidth):
    """Half-width shared by many uniform variables."""

    n_variables: int = 1

    @property
    def n_noise(self) -> int:
        return self.n_variables


class PixelNoise(_OfPixels):
    """Noise in every pixel and channel, uniform on ±half-width.

    Its half-width is in units of the largest pixel of the training data (with
    ``standardize=False`` in those of the pixels).

    Parameters
    ----------
    image_shape : tuple of int, optional
        (C, H, W); estimators fill it in.

    Notes
    -----
    It draws as many numbers as there are pixels: about as much work as `Affine`'s interpolation.
    """

    @property
    def half_width(self) -> NoiseHalfWidth:
        n_pixels = prod(self.image_shape or (1,))
        return NoiseHalfWidth(("noise",), (_LARGEST_NOISE / _UNIT,), (_UNIT,), n_variables=n_pixels)

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        amount = (noise * self.half_width.mixing(eta)).reshape(*noise.shape[:2], *x.shape[1:])
        return x.unsqueeze(1) + amount


class Blur(_OfPixels):
    """Gaussian blur whose standard deviation is uniform between 0 and its half-width (pixels).

    Parameters
    ----------
    image_shape : tuple of int, optional
        (C, H, W); estimators fill it in.

    Notes
    -----
    One image costs O(S C H W (H + W)).
    """

    @property
    def half_width(self) -> HalfWidth:
        return HalfWidth(("blur",), (_LARGEST_BLUR,))

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        rows, row_rates = _cosines(images.shape[-2], images)
        columns, column_rates = _cosines(images.shape[-1], images)
        waves = rows.mT @ images @ columns  # (N, 1, C, H, W)
        rates = row_rates[:, None] + column_rates
        decay = (-0.5 * z[..., None, None].square() * rates).exp()
        return rows @ (decay * waves) @ columns.mT


def _cosines(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors (n, n) of minus the Laplacian of a path of n pixels, and its eigenvalues."""
    k = torch.arange(n, dtype=torch.float64, device=like.device)
    basis = (pi / n * torch.outer(k + 0.5, k)).cos()
    rates = 4.0 * (0.5 * pi / n * k).sin().square()
    return (basis / basis.norm(dim=0)).to(like), rates.to(like)
