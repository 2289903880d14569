r"""Augmentations: random transformations of inputs, with learned half-widths.

An augmentation transforms an input x by a random element of a family,

.. math:: x' = g(x, z), \quad z = L(\eta)\,\epsilon, \quad \epsilon_j \sim U(-1, 1),

and a network averaged over it, :math:`\hat f(x) = E_\epsilon[f(x')]`, is invariant to it as far as
the half-widths reach. The half-widths are learned, so :math:`x'` is differentiable in :math:`\eta`.

(A *symmetry* of this package acts on weights; an augmentation acts on inputs.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from torch import Tensor

from skbayes_sym.models.augmentations.half_width import HalfWidth, JointHalfWidth, LearnedHalfWidth
from skbayes_sym.numerics.machine import constant

ImageShape = tuple[int, int, int]  # channels, height, width


class Augmentation(Protocol):
    """A family of random input transformations with learned half-widths."""

    @property
    def half_width(self) -> LearnedHalfWidth: ...

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Augmentation":
        """Family for inputs that are known.

        Parameters
        ----------
        scale : sequence of float
            Standard deviations of the columns.
        image_shape : tuple of int, optional
            (C, H, W) if the columns are pixels.

        Raises
        ------
        ValueError
            If it names columns that don't exist, or moves pixels and there are none.
        """

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Transformed inputs (N, S, *I), differentiable in ``eta``.

        Parameters
        ----------
        x : Tensor of shape (N, *I)
        eta : Tensor of shape (half_width.n_params,)
        noise : Tensor of shape (N, S, half_width.n_noise)
            Uniform on [-1, 1], see `stratified_noise`.
        """


@dataclass(frozen=True)
class Identity:
    """Inputs as they are; one sample is enough."""

    @property
    def half_width(self) -> HalfWidth:
        return HalfWidth((), ())

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Identity":
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(len(x), noise.shape[1], *x.shape[1:])


@dataclass(frozen=True)
class Composed:
    """Families applied one after the other, each with its own noise.

    Parameters
    ----------
    parts : tuple of Augmentation
        The first acts first.
    """

    parts: tuple[Augmentation, ...]

    @cached_property
    def half_width(self) -> JointHalfWidth:
        return JointHalfWidth(tuple(part.half_width for part in self.parts))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Composed":
        return Composed(tuple(part.bind(scale, image_shape) for part in self.parts))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        n, s = noise.shape[:2]
        noises = noise.split([part.half_width.n_noise for part in self.parts], dim=-1)
        out = x.unsqueeze(1).expand(n, s, *x.shape[1:])
        for part, part_eta, part_noise in zip(
            self.parts, self.half_width.split(eta), noises, strict=True
        ):
            rows = out.reshape(n * s, *x.shape[1:])
            out = part.transform(rows, part_eta, part_noise.reshape(n * s, 1, -1))
            out = out.reshape(n, s, *x.shape[1:])
        return out


@dataclass(frozen=True, eq=False)
class InRescaledUnits:
    """A family that acts on inputs in their own units, for inputs given in scaled ones.

    ``mean``, ``scale``: ``scaled = (x - mean) / scale``.
    """

    part: Augmentation
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def half_width(self) -> LearnedHalfWidth:
        return self.part.half_width

    def bind(
        self, scale: Sequence[float], image_shape: ImageShape | None = None
    ) -> "InRescaledUnits":
        return replace(self, part=self.part.bind(scale, image_shape))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        mean, scale = (constant(values, x.dtype, x.device) for values in (self.mean, self.scale))
        return (self.part.transform(x * scale + mean, eta, noise) - mean) / scale
