"""Transformations of the columns of a table: rotation, shift and scale."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import pi
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.models.augmentations.augmentation import HalfWidth, ImageShape
from skbayes_sym.numerics.runtime import constant, index_tensor


def _checked_columns(what: str, columns: Any, n_features: int) -> tuple[int, ...]:
    """Return the columns of a transformation as a tuple of distinct positions.

    Parameters
    ----------
    what : str
        Name of the transformation, for the error message.
    columns : sequence of int
        Positions of columns.
    n_features : int
        Number of columns of the inputs.

    Raises
    ------
    TypeError
        If ``columns`` isn't a sequence of integers.
    ValueError
        If a position occurs twice or is out of range.
    """
    is_sequence = isinstance(columns, Sequence | range | np.ndarray)
    if not is_sequence or not all(isinstance(c, Integral) for c in columns):
        raise TypeError(f"columns of {what} must be a sequence of int, got {columns!r}.")
    if any(not 0 <= c < n_features for c in columns) or len(set(columns)) != len(columns):
        raise ValueError(
            f"{what} needs different columns between 0 and {n_features - 1}, got {columns!r} for "
            f"inputs with {n_features} columns."
        )
    return tuple(int(c) for c in columns)


@dataclass(frozen=True)
class Rotation2D:
    """Rotation of two columns about a centre, by an angle uniform on ±half-width (radians).

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
    def half_width(self) -> HalfWidth:
        return HalfWidth(("rotation",), (pi,))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Rotation2D":
        if len(self.columns) != 2:
            raise ValueError(f"Rotation2D turns two columns, got columns={self.columns!r}.")
        _checked_columns("Rotation2D", self.columns, len(scale))
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        angle = (noise @ self.half_width.mixing(eta).T).squeeze(-1)
        centre = constant(self.centre, x.dtype, x.device)
        u, v = (x[:, index_tensor(self.columns, x)] - centre).unsqueeze(1).unbind(-1)
        cos = angle.cos()
        sin = angle.sin()
        turned = torch.stack([cos * u - sin * v, sin * u + cos * v], -1) + centre
        return _with_columns(x, self.columns, turned)


@dataclass(frozen=True)
class ColumnShift:
    """Shift of columns, each by an amount uniform on ±its half-width (in the column's unit).

    Parameters
    ----------
    columns : sequence of int, optional
        All by default.
    """

    columns: tuple[int, ...] | None = None
    units: tuple[float, ...] = ()

    @property
    def half_width(self) -> HalfWidth:
        columns = self.columns or ()
        names = tuple(f"translation_{c}" for c in columns)
        limits = (10.0,) * len(columns)  # standard deviations of the column
        return HalfWidth(names, limits, self.units)

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "ColumnShift":
        columns = range(len(scale)) if self.columns is None else self.columns
        checked = _checked_columns("ColumnShift", columns, len(scale))
        return replace(self, columns=checked, units=tuple(float(scale[c]) for c in checked))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        columns = self.columns or ()
        shift = noise @ self.half_width.mixing(eta).T
        return _with_columns(x, columns, x[:, index_tensor(columns, x)].unsqueeze(1) + shift)


@dataclass(frozen=True)
class LogScale:
    """Multiplication of columns by exp(z), with z uniform on ±half-width.

    Parameters
    ----------
    columns : sequence of int, optional
        All by default.
    joint : bool, default=True
        Whether all columns get the same factor; else each has its own, and its own half-width.
    """

    columns: tuple[int, ...] | None = None
    joint: bool = True

    @property
    def half_width(self) -> HalfWidth:
        columns = () if self.columns is None else self.columns
        names = ("log_scale",) if self.joint else tuple(f"log_scale_{c}" for c in columns)
        return HalfWidth(names, (5.0,) * len(names))  # logarithm of the factor

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "LogScale":
        columns = range(len(scale)) if self.columns is None else self.columns
        return replace(self, columns=_checked_columns("LogScale", columns, len(scale)))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        columns = () if self.columns is None else self.columns
        factor = (noise @ self.half_width.mixing(eta).T).exp()  # (N, S, 1) or one a column
        return _with_columns(x, columns, x[:, index_tensor(columns, x)].unsqueeze(1) * factor)


def _with_columns(x: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Rows of ``x`` once a sample, with some columns replaced by ``values`` (N, S, k)."""
    place = {c: i for i, c in enumerate(columns)}
    rest = x.unsqueeze(1).expand(-1, values.shape[1], -1)
    pieces = [
        values[..., place[c]] if c in place else rest[..., c] for c in range(x.shape[1])
    ]  # fmt: skip
    return torch.stack(pieces, -1)
