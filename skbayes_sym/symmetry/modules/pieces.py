"""Pieces of parameters, whose axes are blocks of positions that are permuted together."""

from typing import NamedTuple


class PieceAxis(NamedTuple):
    """Axis of a piece.

    Attributes
    ----------
    block : int
        Block of the axis.
    variable : str
        Variable of its signs and scales.
    size, stride : int
        Number of positions, and their distance in the flat ``theta``.
    grid : tuple of PieceAxis, default=()
        The axes whose positions together are those of this axis, the slowest first. The axis has
        no stride then.
    """

    block: int
    variable: str
    size: int
    stride: int
    grid: tuple["PieceAxis", ...] = ()

    def strided(self) -> tuple["PieceAxis", ...]:
        """Return the axes with a stride that this axis consists of."""
        if not self.grid:
            return (self,)
        return tuple(part for axis in self.grid for part in axis.strided())


class Piece(NamedTuple):
    """Part of a parameter each of whose axes is a single block of positions.

    Attributes
    ----------
    parameter : str
        Name of the parameter.
    offset : int
        Position of its first entry in the flat ``theta``.
    axes : list of PieceAxis
        Its axes.
    """

    parameter: str
    offset: int
    axes: list[PieceAxis]

    def find_axes(self, block: int) -> list[int]:
        """Return the axes that consist of a block."""
        return [k for k, axis in enumerate(self.axes) if axis.block == block]

    def replace_axes(self, axes: list[PieceAxis], step: int) -> "Piece":
        """Return a piece with other axes, which begins ``step`` entries later."""
        return Piece(self.parameter, self.offset + step, axes)
