"""Linear maps to coordinates in which a density is about as wide in all directions."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Preconditioner(Protocol):
    """A linear map ``position = L z`` under which the target is about as wide in all directions.

    Momenta live in the coordinates z and are standard normal there: the mass matrix is
    ``(L L')^-1``.
    """

    def to_position(self, z: Tensor) -> Tensor:
        """``L z``, (C, D) -> (C, D)."""

    def to_gradient(self, gradient: Tensor) -> Tensor:
        """``L' gradient``, (C, D) -> (C, D)."""


@dataclass(frozen=True, eq=False)
class DiagonalPreconditioner:
    """Coordinate by coordinate: ``scale`` (C, D), each chain its own, or (D,)."""

    scale: Tensor

    def to_position(self, z: Tensor) -> Tensor:
        return self.scale * z

    def to_gradient(self, gradient: Tensor) -> Tensor:
        return self.scale * gradient


@dataclass(frozen=True, eq=False)
class DensePreconditioner:
    """A Cholesky factor of the covariance: (D, D) for all chains or (C, D, D)."""

    cholesky: Tensor

    def to_position(self, z: Tensor) -> Tensor:
        return (self.cholesky @ z.unsqueeze(-1)).squeeze(-1) if self._own else z @ self.cholesky.mT

    def to_gradient(self, gradient: Tensor) -> Tensor:
        if self._own:
            return (self.cholesky.mT @ gradient.unsqueeze(-1)).squeeze(-1)
        return gradient @ self.cholesky

    @property
    def _own(self) -> bool:
        return self.cholesky.ndim == 3
