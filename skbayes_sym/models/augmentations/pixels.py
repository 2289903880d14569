r"""Noise in the pixels of an image, and blur.

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

import torch
from torch import Tensor

from skbayes_sym.models.augmentations.base import ImageShape
from skbayes_sym.models.augmentations.colour import pixels_of, require_image
from skbayes_sym.models.augmentations.half_width import HalfWidth

_UNIT = 1.0 / 3.0  # a step of learning moves the noise by a third of the largest pixel
_LARGEST_NOISE = 1.0  # limit, in largest pixels
_LARGEST_BLUR = 4.0  # pixels


@dataclass(frozen=True)
class NoiseHalfWidth:
    """Half-width shared by many uniform variables."""

    one: HalfWidth  # of one of them
    n_noise: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.one.names

    @property
    def n_params(self) -> int:
        return 1

    def start(self) -> Tensor:
        return self.one.start()

    def lower_limit(self) -> Tensor:
        return self.one.lower_limit()

    def mixing(self, eta: Tensor) -> Tensor:
        """Factor of every variable, (1, 1)."""
        return self.one.mixing(eta)

    def covariance(self, eta: Tensor) -> Tensor:
        return self.one.covariance(eta)


@dataclass(frozen=True)
class PixelNoise:
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

    image_shape: ImageShape | None = None

    @property
    def half_width(self) -> NoiseHalfWidth:
        one = HalfWidth(("noise",), (_LARGEST_NOISE / _UNIT,), (_UNIT,))
        return NoiseHalfWidth(one, prod(self.image_shape or (1,)))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "PixelNoise":
        return replace(self, image_shape=require_image("PixelNoise", image_shape, self.image_shape))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        amount = (noise * self.half_width.mixing(eta)).reshape(*noise.shape[:2], *x.shape[1:])
        return x.unsqueeze(1) + amount


@dataclass(frozen=True)
class Blur:
    """Gaussian blur whose standard deviation is uniform between 0 and its half-width (pixels).

    Parameters
    ----------
    image_shape : tuple of int, optional
        (C, H, W); estimators fill it in.

    Notes
    -----
    One image costs O(S C H W (H + W)).
    """

    image_shape: ImageShape | None = None

    @property
    def half_width(self) -> HalfWidth:
        return HalfWidth(("blur",), (_LARGEST_BLUR,))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Blur":
        return replace(self, image_shape=require_image("Blur", image_shape, self.image_shape))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        shape = require_image("Blur", self.image_shape)
        deviation = noise @ self.half_width.mixing(eta).T  # (N, S, 1)
        rows, row_rates = _cosines(shape[1], x)
        columns, column_rates = _cosines(shape[2], x)
        waves = rows.mT @ pixels_of(x, shape) @ columns  # (N, 1, C, H, W)
        rates = row_rates[:, None] + column_rates
        left = (-0.5 * deviation[..., None, None].square() * rates).exp()
        blurred = rows @ (left * waves) @ columns.mT
        return blurred.reshape(*noise.shape[:2], *x.shape[1:])


def _cosines(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors (n, n) of minus the Laplacian of a path of n pixels, and its eigenvalues."""
    k = torch.arange(n, dtype=torch.float64, device=like.device)
    basis = (pi / n * torch.outer(k + 0.5, k)).cos()
    rates = 4.0 * (0.5 * pi / n * k).sin().square()
    return (basis / basis.norm(dim=0)).to(like), rates.to(like)
