r"""Augmentations: random transformations of inputs, with learned extents.

An augmentation transforms an input x by a random element of a family,

.. math:: x' = g(x, z), \quad z = L(\eta)\,\epsilon, \quad \epsilon_j \sim U(-1, 1),

and a network averaged over it, :math:`\hat f(x) = E_\epsilon[f(x')]`, is invariant to it as far as
the extents reach. The extents are learned, so :math:`x'` is differentiable in :math:`\eta`.

(A *symmetry* of this package acts on weights; an augmentation acts on inputs.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from skbayes_sym.models.augmentations.ranges import Extent, JointExtent, LearnedExtent

ImageShape = tuple[int, int, int]  # channels, height, width


class Augmentation(Protocol):
    """A family of random input transformations with learned extents."""

    @property
    def extent(self) -> LearnedExtent: ...

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Augmentation":
        """The same family for inputs that are known.

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
        ...

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Transformed inputs (N, S, *I), differentiable in ``eta``.

        Parameters
        ----------
        x : Tensor of shape (N, *I)
        eta : Tensor of shape (extent.n_params,)
        noise : Tensor of shape (N, S, extent.n_noise)
            Uniform on [-1, 1], see `extents.stratified_noise`.
        """
        ...


@dataclass(frozen=True)
class NoAugmentation:
    """Inputs as they are; one sample is enough."""

    @property
    def extent(self) -> Extent:
        return Extent((), ())

    def bind(
        self, scale: Sequence[float], image_shape: ImageShape | None = None
    ) -> "NoAugmentation":
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
    def extent(self) -> JointExtent:
        return JointExtent(tuple(part.extent for part in self.parts))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Composed":
        return Composed(tuple(part.bind(scale, image_shape) for part in self.parts))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        n, s = noise.shape[:2]
        noises = noise.split([part.extent.n_noise for part in self.parts], dim=-1)
        out = x.unsqueeze(1).expand(n, s, *x.shape[1:])
        for part, part_eta, part_noise in zip(
            self.parts, self.extent.split(eta), noises, strict=True
        ):
            rows = out.reshape(n * s, *x.shape[1:])
            out = part.transform(rows, part_eta, part_noise.reshape(n * s, 1, -1))
            out = out.reshape(n, s, *x.shape[1:])
        return out


@dataclass(frozen=True, eq=False)
class InUnits:
    """A family that acts on inputs in their own units, for inputs given in scaled ones.

    Parameters
    ----------
    part : Augmentation
    mean, scale : tuple of float
        ``scaled = (x - mean) / scale``.
    """

    part: Augmentation
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def extent(self) -> LearnedExtent:
        return self.part.extent

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "InUnits":
        return replace(self, part=self.part.bind(scale, image_shape))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        mean, scale = (
            torch.tensor(a, dtype=x.dtype, device=x.device) for a in (self.mean, self.scale)
        )
        return (self.part.transform(x * scale + mean, eta, noise) - mean) / scale
