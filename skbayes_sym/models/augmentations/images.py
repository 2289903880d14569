r"""Random transformations of images: affine, brightness, contrast, hue, noise and blur.

An affine transformation is :math:`\exp(\sum_i z_i G_i)` with six generators
:math:`G_i = [A_i\ t_i; 0\ 0]` (Immer et al. 2022, eq. 18 and appendix B), read as the map from
output to input coordinates. The distribution of z is symmetric, so the inverse has the same
distribution. Coordinates are isotropic, so that rotations are rotations even if height and width
differ.

Brightness, contrast and hue have one generator and act on each pixel separately:

.. math:: x' = e^z x, \qquad x' = m + e^z (x - m), \qquad x' = R(z)\,x.

Here m is the image's mean over pixels and channels, and R(z) the rotation of red, green and blue by
z radians about the grey axis (1, 1, 1), which doesn't change greys and the mean of the channels.
Nothing is clipped, so that x' is smooth in z, and z = 0 is the image itself. Noise is independent
for each pixel and channel, and uniform on ±half-width. Blur is diffusion for a time
:math:`z^2 / 2`,

.. math:: x' = e^{z^2 L / 2}\,x, \quad z \sim U(-h, h),

where L is the discrete Laplacian of the pixel grid with no flow across the edges. Its kernel is the
discrete Gaussian kernel of variance :math:`z^2` (Lindeberg 1990, "Scale-space for discrete
signals"), which is smooth in z and the identity at 0. L is diagonal in the cosine basis, so blur
takes two matrix products per dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import pi, prod
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.models.augmentations.augmentation import HalfWidth, ImageShape
from skbayes_sym.numerics.runtime import cache_tensors, constant

# Unit of all half-widths but the rotation's. Steps of learning are a third for them, since a shift
# by half an image, or a factor of e, leaves little of the image, and the evidence is flat there.
_UNIT = 1.0 / 3.0
_LARGEST = 2.0  # limit of these half-widths: the whole image, or a factor of e^2


def _check_image_shape(shape: Any) -> None:
    """Raise a TypeError unless the shape of an image is None or a tuple of positive integers."""
    if shape is None:
        return
    is_sequence = isinstance(shape, tuple | list)
    if not is_sequence or not all(isinstance(size, Integral) and int(size) > 0 for size in shape):
        raise TypeError(
            f"image_shape must be (H, W) or (C, H, W) in positive integers, got {shape!r}."
        )


@dataclass(frozen=True)
class AffineBasis:
    """Six generators of the affine group of the plane.

    Parameters
    ----------
    names : tuple of str
        Names of the generators.
    linear : tuple of tuple of float
        Row-major 2 x 2 part of each generator. The first two generators are the translations.
    displacement : tuple of float
        Mean squared displacement on [-1, 1]^2 per squared unit of each generator. The generators
        are orthogonal, so this makes radians, log scales and half-images comparable.
    """

    names: tuple[str, ...]
    linear: tuple[tuple[float, float, float, float], ...]
    displacement: tuple[float, ...]


BASES = {  # shear is the symmetric one, as in the paper
    "similarity": AffineBasis(
        ("translation_x", "translation_y", "rotation", "scale", "aspect", "shear"),
        ((0, 0, 0, 0), (0, 0, 0, 0), (0, -1, 1, 0), (1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0)),
        (1, 1, 2 / 3, 2 / 3, 2 / 3, 2 / 3),
    ),
    "axis": AffineBasis(
        ("translation_x", "translation_y", "rotation", "scale_x", "scale_y", "shear"),
        ((0, 0, 0, 0), (0, 0, 0, 0), (0, -1, 1, 0), (1, 0, 0, 0), (0, 0, 0, 1), (0, 1, 1, 0)),
        (1, 1, 2 / 3, 1 / 3, 1 / 3, 2 / 3),
    ),
}


@dataclass(frozen=True)
class Affine:
    """Translation (1 = half the image), rotation (radians), log scales and shear of images.

    Images are interpolated bilinearly, with zeros outside.

    Parameters
    ----------
    basis : {"similarity", "axis"} or AffineBasis, default="similarity"
        Parametrisation of scales: joint scale and aspect, or separate x and y (as in the paper).
    correlated : bool, default=False
        Whether generators can be correlated, with 36 parameters instead of 6.
    image_shape : tuple of int, optional
        (C, H, W), which estimators set.

    Notes
    -----
    The cost per image is O(S C H W), mostly for the interpolation.
    """

    basis: str | AffineBasis = "similarity"
    correlated: bool = False
    image_shape: ImageShape | None = None

    def __post_init__(self) -> None:
        _check_image_shape(self.image_shape)

    @property
    def generators(self) -> AffineBasis:
        """The six generators."""
        if not isinstance(self.basis, str):
            return self.basis
        if self.basis not in BASES:
            raise ValueError(f"basis must be 'similarity' or 'axis', got {self.basis!r}.")
        return BASES[self.basis]

    @property
    def displacement(self) -> tuple[float, ...]:
        """Mean squared displacement of a pixel per squared unit of each generator."""
        return self.generators.displacement

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        names = self.generators.names
        limits = tuple(pi if name == "rotation" else _LARGEST / _UNIT for name in names)
        units = tuple(1.0 if name == "rotation" else _UNIT for name in names)
        return HalfWidth(names, limits, units, self.correlated)

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Affine":  # noqa: ARG002
        """Return the family for inputs of known scale and shape."""
        shape = image_shape or self.image_shape
        if shape is None:
            raise ValueError("Affine moves pixels: give image_shape=(H, W) or (C, H, W).")
        return replace(self, image_shape=shape)

    @property
    def _shape(self) -> ImageShape:
        """Shape of the images, after checking that it is known."""
        if self.image_shape is None:
            raise ValueError("Affine has no image_shape yet: bind it first.")
        return self.image_shape

    def matrices(self, z: Tensor) -> Tensor:
        """Return maps [A t] (..., 2, 3) on [-1, 1]^2 for coefficients z (..., 6)."""
        linear = constant(self.generators.linear, z.dtype, z.device)
        _, height, width = self._shape
        m = (z @ linear).unflatten(-1, (2, 2))
        exponential, integral = _exponential(m)
        aspect = constant(((1.0, height / width), (width / height, 1.0)), z.dtype, z.device)
        # Translations in half-images are converted to isotropic units and back, like the matrices.
        shift = (integral * aspect) @ z[..., :2].unsqueeze(-1)
        return torch.cat([exponential * aspect, shift], -1)

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        n, s = noise.shape[:2]
        c, height, width = self._shape
        matrices = self.matrices(noise @ self.half_width.mixing(eta).T)
        grid = matrices.reshape(n * s, 6) @ _grid_basis(height, width, x.dtype, x.device)
        # The samples of an image are stacked along the height of the grid, so that the image isn't
        # copied.
        grid = grid.reshape(n, s * height, width, 2)
        images = x.reshape(n, c, height, width)
        out = F.grid_sample(images, grid, "bilinear", "zeros", align_corners=False)
        return out.unflatten(2, (s, height)).transpose(1, 2).reshape(n, s, *x.shape[1:])


@cache_tensors
def _grid_basis(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (6, 2 H W), which maps a row-major 2 x 3 matrix to (u', v') of all pixels.

    Parameters
    ----------
    height, width : int
        Size of the image in pixels.
    dtype : torch.dtype
        Floating-point type.
    device : torch.device
        Device.
    """
    u = (2.0 * torch.arange(width, dtype=dtype, device=device) + 1.0) / width - 1.0
    v = (2.0 * torch.arange(height, dtype=dtype, device=device) + 1.0) / height - 1.0
    v, u = torch.meshgrid(v, u, indexing="ij")
    pixels = torch.stack([u, v, torch.ones_like(u)]).reshape(3, -1)
    basis = pixels.new_zeros(2, 3, height * width, 2)
    basis[0, :, :, 0] = pixels
    basis[1, :, :, 1] = pixels
    return basis.reshape(6, -1)


@cache
def _integration_rule() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return nodes on [0, 1] of the integral, followed by 1, and the weights of the nodes."""
    nodes, weights = np.polynomial.legendre.leggauss(10)  # exact to rounding
    return (*(0.5 * (nodes + 1.0)).tolist(), 1.0), tuple((0.5 * weights).tolist())


def _exponential(m: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return exp(M) and :math:`\int_0^1 \exp(sM)\,ds` of 2 x 2 matrices, smooth everywhere.

    With :math:`M = hI + M_0`, tr M_0 = 0, :math:`M_0^2 = qI`,
    :math:`\exp(sM) = e^{hs}(C(s^2 q) I + s\,S(s^2 q) M_0)` with the entire functions
    :math:`C = \cosh\sqrt{q}`, :math:`S = \sinh\sqrt{q}/\sqrt{q}`.
    `torch.linalg.matrix_exp` of the 3 x 3 generators is as accurate, and three times slower with
    its gradient.
    """
    half_trace = 0.5 * (m[..., 0, 0] + m[..., 1, 1])
    eye = torch.eye(2, dtype=m.dtype, device=m.device)
    traceless = m - half_trace[..., None, None] * eye
    q = traceless[..., 0, 0] ** 2 + m[..., 0, 1] * m[..., 1, 0]
    nodes, weights = _integration_rule()
    s = constant(nodes, m.dtype, m.device)
    w = constant(weights, m.dtype, m.device)
    growth = (half_trace.unsqueeze(-1) * s).exp()
    cosh, sinhc = _hyperbolic(q.unsqueeze(-1) * s**2)
    on_eye = growth * cosh
    on_traceless = growth * sinhc * s

    def combine(a: Tensor, b: Tensor) -> Tensor:
        return a[..., None, None] * eye + b[..., None, None] * traceless

    return (
        combine(on_eye[..., -1], on_traceless[..., -1]),
        combine(on_eye[..., :-1] @ w, on_traceless[..., :-1] @ w),
    )


def _hyperbolic(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosh(sqrt q) and sinh(sqrt q) / sqrt q by their power series in q.

    With 20 terms the error is below 1e-12 for |q| < 60, which includes all admissible half-widths.
    """
    even = odd = torch.ones_like(q)
    for k in range(20, 0, -1):
        even = torch.addcmul(torch.ones_like(q), even, q, value=1.0 / (2 * k * (2 * k - 1)))
        odd = torch.addcmul(torch.ones_like(q), odd, q, value=1.0 / (2 * k * (2 * k + 1)))
    return even, odd


@dataclass(frozen=True)
class _PixelTransformation:
    """Transformation of images (N, 1, C, H, W) by coefficients (N, S, k)."""

    image_shape: ImageShape | None = None

    def __post_init__(self) -> None:
        _check_image_shape(self.image_shape)

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        raise NotImplementedError

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        """Return transformed images (N, S, C, H, W) for coefficients z (N, S, k)."""
        raise NotImplementedError

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> Self:  # noqa: ARG002
        """Return the family for inputs of known scale and shape."""
        shape = image_shape or self.image_shape
        if shape is None:
            name = type(self).__name__
            raise ValueError(f"{name} changes pixels: give image_shape=(H, W) or (C, H, W).")
        return replace(self, image_shape=shape)

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        images = x.reshape(len(x), 1, *(self.image_shape or self.bind(()).image_shape or ()))
        changed = self._changed(images, noise @ self.half_width.mixing(eta).T)
        return changed.reshape(*noise.shape[:2], *x.shape[1:])


class _Factor(_PixelTransformation):
    """Transformation by a random factor exp(z), with z uniform on ±half-width."""

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        return HalfWidth((type(self).__name__.lower(),), (_LARGEST / _UNIT,), (_UNIT,))


class Brightness(_Factor):
    """Multiplication of an image by exp(z), with z uniform on ±half-width; black stays black.

    ``image_shape`` is (C, H, W), which estimators set.
    """

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        """Return transformed images (N, S, C, H, W) for coefficients z (N, S, k)."""
        return images * z.exp()[..., None, None]


class Contrast(_Factor):
    """Multiplication of an image's deviations from its mean by exp(z), z uniform on ±half-width.

    ``image_shape`` is (C, H, W), which estimators set.
    """

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        """Return transformed images (N, S, C, H, W) for coefficients z (N, S, k)."""
        mean = images.mean((2, 3, 4), keepdim=True)
        return mean + z.exp()[..., None, None] * (images - mean)


class Hue(_PixelTransformation):
    """Rotation of the colours about the grey axis, by an angle uniform on ±half-width (radians).

    A rotation by 2 pi / 3 turns red into green. Images need three channels.

    ``image_shape`` is (3, H, W), which estimators set.
    """

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        return HalfWidth(("hue",), (pi,))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Hue":
        """Return the family for inputs of known scale and shape."""
        bound = super().bind(scale, image_shape)
        shape = bound.image_shape
        if shape is not None and shape[0] != 3:
            raise ValueError(
                f"Hue turns red, green and blue, but image_shape={shape} has {shape[0]} "
                "channel(s). Leave it out, or give image_shape=(3, H, W)."
            )
        return bound

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        """Return transformed images (N, S, C, H, W) for coefficients z (N, S, k)."""
        return _hue_rotations(z[..., None]) @ images.flatten(3)


def _hue_rotations(angle: Tensor) -> Tensor:
    """Return rotations (..., 3, 3) about (1, 1, 1) by angles (..., 1, 1) (Rodrigues' formula)."""
    eye = torch.eye(3, dtype=angle.dtype, device=angle.device)
    grey = torch.full_like(eye, 1.0 / 3.0)
    cross = (eye.roll(1, 0) - eye.roll(-1, 0)) / 3.0**0.5
    return grey + angle.cos() * (eye - grey) + angle.sin() * cross


@dataclass(frozen=True)
class NoiseHalfWidth(HalfWidth):
    """Half-width that many uniform variables share."""

    n_variables: int = 1

    @property
    def n_noise(self) -> int:
        """Number of independent uniform variables."""
        return self.n_variables


class PixelNoise(_PixelTransformation):
    """Noise in every pixel and channel, uniform on ±half-width.

    The half-width is in units of the largest pixel of the training data, or in pixel units with
    ``standardize=False``.

    ``image_shape`` is (C, H, W), which estimators set.

    Notes
    -----
    It samples as many numbers as there are pixels, about as much work as the interpolation of
    `Affine`.
    """

    @property
    def half_width(self) -> NoiseHalfWidth:
        """Distribution of the coefficients."""
        n_pixels = prod(self.image_shape or (1,))
        limit = 1.0  # the largest pixel
        return NoiseHalfWidth(("noise",), (limit / _UNIT,), (_UNIT,), n_variables=n_pixels)

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        amount = (noise * self.half_width.mixing(eta)).reshape(*noise.shape[:2], *x.shape[1:])
        return x.unsqueeze(1) + amount


class Blur(_PixelTransformation):
    """Gaussian blur with a standard deviation uniform between 0 and its half-width (pixels).

    ``image_shape`` is (C, H, W), which estimators set.

    Notes
    -----
    The cost per image is O(S C H W (H + W)).
    """

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        return HalfWidth(("blur",), (4.0,))  # pixels

    def _changed(self, images: Tensor, z: Tensor) -> Tensor:
        """Return transformed images (N, S, C, H, W) for coefficients z (N, S, k)."""
        rows, row_rates = _cosines(images.shape[-2], images)
        columns, column_rates = _cosines(images.shape[-1], images)
        waves = rows.mT @ images @ columns  # (N, 1, C, H, W)
        rates = row_rates[:, None] + column_rates
        decay = (-0.5 * z[..., None, None].square() * rates).exp()
        return rows @ (decay * waves) @ columns.mT


def _cosines(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvectors (n, n) and eigenvalues of minus the Laplacian of a path of n pixels."""
    k = torch.arange(n, dtype=torch.float64, device=like.device)
    basis = (pi / n * torch.outer(k + 0.5, k)).cos()
    rates = 4.0 * (0.5 * pi / n * k).sin().square()
    return (basis / basis.norm(dim=0)).to(like), rates.to(like)
