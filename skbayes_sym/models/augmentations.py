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
from math import pi
from typing import Any, Protocol

import torch
from torch import Tensor

from skbayes_sym.models.affine import AXIS, SIMILARITY, Affine
from skbayes_sym.models.extents import Extent, FreeExtent, JointExtent, LearnedExtent

__all__ = [
    "AXIS",
    "SIMILARITY",
    "Affine",
    "Augmentation",
    "Composed",
    "LogScale",
    "ModuleAugmentation",
    "NoAugmentation",
    "Rotation2D",
    "Translation",
]

_LARGEST_SHIFT = 10.0  # limits of the extents: standard deviations of the column,
_LARGEST_LOG_SCALE = 5.0  # natural logarithm of the factor


class Augmentation(Protocol):
    """A family of random input transformations with learned extents."""

    @property
    def extent(self) -> LearnedExtent: ...

    def bind(self, scale: Sequence[float]) -> "Augmentation":
        """The same family for inputs whose columns have these standard deviations.

        Raises
        ------
        ValueError
            If it names columns that don't exist.
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


def _checked_columns(what: str, columns: Sequence[int], n_features: int) -> tuple[int, ...]:
    if any(not 0 <= c < n_features for c in columns) or len(set(columns)) != len(columns):
        raise ValueError(
            f"{what} needs different columns between 0 and {n_features - 1}, got {columns!r} for "
            f"inputs with {n_features} columns."
        )
    return tuple(int(c) for c in columns)


@dataclass(frozen=True)
class NoAugmentation:
    """Inputs as they are; one sample is enough."""

    @property
    def extent(self) -> Extent:
        return Extent((), ())

    def bind(self, scale: Sequence[float]) -> "NoAugmentation":
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(len(x), noise.shape[1], *x.shape[1:])


@dataclass(frozen=True)
class Rotation2D:
    """Rotation of two columns about a centre, by an angle uniform on ±extent (radians).

    The two columns must be in the same unit: after standardising them one by one a rotation is no
    rotation any more.

    Parameters
    ----------
    columns : tuple of int, default=(0, 1)
    centre : tuple of float, default=(0.0, 0.0)
        Fixed point, in the units of the columns.
    """

    columns: tuple[int, int] = (0, 1)
    centre: tuple[float, float] = (0.0, 0.0)

    @property
    def extent(self) -> Extent:
        return Extent(("rotation",), (pi,))

    def bind(self, scale: Sequence[float]) -> "Rotation2D":
        if len(self.columns) != 2:
            raise ValueError(f"Rotation2D turns two columns, got columns={self.columns!r}.")
        _checked_columns("Rotation2D", self.columns, len(scale))
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        angle = (noise @ self.extent.mixing(eta).T).squeeze(-1)
        centre = torch.tensor(self.centre, dtype=x.dtype, device=x.device)
        u, v = (x[:, list(self.columns)] - centre).unsqueeze(1).unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        turned = torch.stack([cos * u - sin * v, sin * u + cos * v], -1) + centre
        return _with_columns(x, self.columns, turned)


@dataclass(frozen=True)
class Translation:
    """Shift of columns, each by an amount uniform on ±its extent (in the column's unit).

    Parameters
    ----------
    columns : sequence of int, optional
        All by default.
    """

    columns: tuple[int, ...] | None = None
    units: tuple[float, ...] = ()

    @property
    def extent(self) -> Extent:
        columns = self.columns or ()
        names = tuple(f"translation_{c}" for c in columns)
        return Extent(names, (_LARGEST_SHIFT,) * len(columns), self.units)

    def bind(self, scale: Sequence[float]) -> "Translation":
        columns = range(len(scale)) if self.columns is None else self.columns
        checked = _checked_columns("Translation", tuple(columns), len(scale))
        return replace(self, columns=checked, units=tuple(float(scale[c]) for c in checked))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        columns = self.columns or ()
        shift = noise @ self.extent.mixing(eta).T
        return _with_columns(x, columns, x[:, list(columns)].unsqueeze(1) + shift)


@dataclass(frozen=True)
class LogScale:
    """Multiplication of columns by exp(z), with z uniform on ±extent.

    Parameters
    ----------
    columns : sequence of int, optional
        All by default.
    joint : bool, default=True
        Whether all columns get the same factor; else each has its own, and its own extent.
    """

    columns: tuple[int, ...] | None = None
    joint: bool = True

    @property
    def extent(self) -> Extent:
        columns = () if self.columns is None else self.columns
        names = ("log_scale",) if self.joint else tuple(f"log_scale_{c}" for c in columns)
        return Extent(names, (_LARGEST_LOG_SCALE,) * len(names))

    def bind(self, scale: Sequence[float]) -> "LogScale":
        columns = range(len(scale)) if self.columns is None else self.columns
        return replace(self, columns=_checked_columns("LogScale", tuple(columns), len(scale)))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        columns = () if self.columns is None else self.columns
        factor = (noise @ self.extent.mixing(eta).T).exp()  # (N, S, 1) or one a column
        return _with_columns(x, columns, x[:, list(columns)].unsqueeze(1) * factor)


def _with_columns(x: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Rows of ``x`` once a sample, with some columns replaced by ``values`` (N, S, k)."""
    place = {c: i for i, c in enumerate(columns)}
    rest = x.unsqueeze(1).expand(-1, values.shape[1], -1)
    pieces = [
        values[..., place[c]] if c in place else rest[..., c] for c in range(x.shape[1])
    ]  # fmt: skip
    return torch.stack(pieces, -1)


@dataclass(frozen=True, eq=False)
class ModuleAugmentation:
    """Any ``torch.nn.Module`` ``(x, eps) -> x'`` with a learned parameter ``eta``.

    Parameters
    ----------
    module : torch.nn.Module
        Called with rows (M, *I) and noise (M, k), uniform on [-1, 1]; k is ``module.n_noise`` or
        the size of ``eta``. It is never changed; ``eta`` there is where learning starts.
    """

    module: Any

    @cached_property
    def _eta(self) -> Tensor:
        eta = dict(self.module.named_parameters()).get("eta")
        name = type(self.module).__name__
        if eta is None:
            raise ValueError(f"{name} has no parameter `eta`: an invariance needs one to learn.")
        if not eta.requires_grad:
            raise ValueError(
                f"{name}.eta is frozen (requires_grad=False): there is nothing to learn. Unfreeze "
                "it, or apply the transformation to the data instead."
            )
        if not bool(torch.isfinite(eta).all()):
            raise ValueError(f"{name}.eta must be finite, got {eta.detach().tolist()}.")
        return eta.detach().to("cpu", torch.float64)

    @cached_property
    def extent(self) -> FreeExtent:
        n_noise = int(getattr(self.module, "n_noise", self._eta.numel()))
        return FreeExtent(type(self.module).__name__, self._eta, n_noise)

    def bind(self, scale: Sequence[float]) -> "ModuleAugmentation":
        self.extent.start()
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        n, s = noise.shape[:2]
        rows = x.unsqueeze(1).expand(n, s, *x.shape[1:]).reshape(n * s, *x.shape[1:])
        given = {"eta": eta.reshape(self._eta.shape)}
        out = torch.func.functional_call(self.module, given, (rows, noise.flatten(0, 1)))
        if out.shape != rows.shape:
            raise ValueError(
                f"{type(self.module).__name__} must return inputs of the shape it got, "
                f"{tuple(rows.shape)}, got {tuple(out.shape)}."
            )
        return out.reshape(n, s, *x.shape[1:])


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

    def bind(self, scale: Sequence[float]) -> "Composed":
        return Composed(tuple(part.bind(scale) for part in self.parts))

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

    def bind(self, scale: Sequence[float]) -> "InUnits":
        return replace(self, part=self.part.bind(scale))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        mean, scale = (
            torch.tensor(a, dtype=x.dtype, device=x.device) for a in (self.mean, self.scale)
        )
        return (self.part.transform(x * scale + mean, eta, noise) - mean) / scale
