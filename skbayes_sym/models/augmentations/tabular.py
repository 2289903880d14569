"""Transformations of table columns: rotation, shift and scaling."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import pi
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.models.augmentations.augmentation import HalfWidth, ImageShape
from skbayes_sym.numerics.arguments import check_flag, check_ints, is_number, short_repr
from skbayes_sym.numerics.runtime import constant, index_tensor


def _as_tuple(owner: str, columns: Any) -> tuple[Any, ...]:
    """Return positions of columns as a tuple; TypeError for anything but a sequence of ints."""
    return check_ints(owner, "columns", columns, minimum=None)


def _check_columns(owner: str, columns: Any, n_features: int) -> tuple[int, ...]:
    """Return the columns of a transformation as a tuple of distinct positions.

    Parameters
    ----------
    owner : str
        Name of the transformation, for the error message.
    columns : sequence of int or None
        Positions of columns; None for all.
    n_features : int
        Number of columns of the inputs.

    Raises
    ------
    TypeError
        If ``columns`` isn't a sequence of integers.
    ValueError
        If a position occurs twice or is out of range.
    """
    if columns is None:
        columns = range(n_features)
    columns = _as_tuple(owner, columns)
    if any(not 0 <= c < n_features for c in columns) or len(set(columns)) != len(columns):
        raise ValueError(
            f"{owner} needs different columns between 0 and {n_features - 1}, got {columns!r} for "
            f"inputs with {n_features} columns."
        )
    return columns


def _bound_columns(columns: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the columns of a transformation; none before it is bound if it is of all columns."""
    if columns is None:
        return ()
    return columns


@dataclass(frozen=True)
class Rotation2D:
    """Rotation of two columns about a centre, by an angle uniform on ±half-width (radians).

    Both columns must have the same unit. After standardising each of them, a rotation would no
    longer be one.

    Parameters
    ----------
    columns : tuple of int, default=(0, 1)
        Indices of the two columns.
    centre : tuple of float, default=(0.0, 0.0)
        Fixed point, in the units of the columns.
    """

    columns: tuple[int, int] = (0, 1)
    centre: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        # Columns and centre may be lists, but tuples are hashed.
        object.__setattr__(self, "columns", _as_tuple("Rotation2D", self.columns))
        is_sequence = isinstance(self.centre, tuple | list | np.ndarray)
        if not is_sequence or len(self.centre) != 2 or not all(map(is_number, self.centre)):
            raise TypeError(
                f"centre of Rotation2D must be two numbers, got {short_repr(self.centre)}."
            )
        object.__setattr__(self, "centre", tuple(float(value) for value in self.centre))

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        return HalfWidth(("rotation",), (pi,))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Rotation2D":  # noqa: ARG002
        """Return the family for inputs of known scale and shape."""
        if len(self.columns) != 2:
            raise ValueError(f"Rotation2D turns two columns, got columns={self.columns!r}.")
        _check_columns("Rotation2D", self.columns, len(scale))
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        angle = (noise @ self.half_width.mixing(eta).T).squeeze(-1)
        centre = constant(self.centre, x.dtype, x.device)
        u, v = (x[:, index_tensor(self.columns, x)] - centre).unsqueeze(1).unbind(-1)
        cos = angle.cos()
        sin = angle.sin()
        rotated = torch.stack([cos * u - sin * v, sin * u + cos * v], -1) + centre
        return _with_columns(x, self.columns, rotated)


@dataclass(frozen=True)
class ColumnShift:
    """Shift of columns by amounts that are uniform on ±half-width, in the units of the columns.

    Parameters
    ----------
    columns : sequence of int, optional
        Indices of the columns; all by default.
    units : tuple of float
        Standard deviations of the columns, which `bind` sets.
    """

    columns: tuple[int, ...] | None = None
    units: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", _as_tuple("ColumnShift", self.columns))
        if not isinstance(self.units, tuple) or not all(map(is_number, self.units)):
            raise TypeError(
                f"units of ColumnShift must be a tuple of numbers, got {short_repr(self.units)}."
            )

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        columns = _bound_columns(self.columns)
        names = tuple(f"translation_{c}" for c in columns)
        limits = (10.0,) * len(columns)  # standard deviations of the column
        return HalfWidth(names, limits, self.units)

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "ColumnShift":  # noqa: ARG002
        """Return the family for inputs of known scale and shape."""
        checked = _check_columns("ColumnShift", self.columns, len(scale))
        return replace(self, columns=checked, units=tuple(float(scale[c]) for c in checked))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        columns = _bound_columns(self.columns)
        shift = noise @ self.half_width.mixing(eta).T
        return _with_columns(x, columns, x[:, index_tensor(columns, x)].unsqueeze(1) + shift)


@dataclass(frozen=True)
class LogScale:
    """Multiplication of columns by exp(z), with z uniform on ±half-width.

    Parameters
    ----------
    columns : sequence of int, optional
        Indices of the columns; all by default.
    joint : bool, default=True
        Whether all columns are multiplied by the same factor. Otherwise each has its own factor and
        half-width.
    """

    columns: tuple[int, ...] | None = None
    joint: bool = True

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", _as_tuple("LogScale", self.columns))
        check_flag("joint", self.joint)

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        columns = _bound_columns(self.columns)
        names = ("log_scale",) if self.joint else tuple(f"log_scale_{c}" for c in columns)
        return HalfWidth(names, (5.0,) * len(names))  # logarithm of the factor

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "LogScale":  # noqa: ARG002
        """Return the family for inputs of known scale and shape."""
        return replace(self, columns=_check_columns("LogScale", self.columns, len(scale)))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        columns = _bound_columns(self.columns)
        factor = (noise @ self.half_width.mixing(eta).T).exp()  # (N, S, 1) or (N, S, k)
        return _with_columns(x, columns, x[:, index_tensor(columns, x)].unsqueeze(1) * factor)


def _with_columns(x: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Return ``x`` for each sample, with columns replaced by ``values`` (N, S, k)."""
    index = {column: i for i, column in enumerate(columns)}
    unchanged = x.unsqueeze(1).expand(-1, values.shape[1], -1)
    pieces = [
        values[..., index[column]] if column in index else unchanged[..., column]
        for column in range(x.shape[1])
    ]
    return torch.stack(pieces, -1)
