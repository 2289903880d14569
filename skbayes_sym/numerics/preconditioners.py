"""Linear changes of coordinates after which a density has a similar scale in all directions."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Preconditioner(Protocol):
    """A linear map ``position = L z`` after which the target has a similar scale in all directions.

    Momenta are standard normal in the coordinates z, so the mass matrix is ``(L L')^-1``.
    """

    def to_position(self, z: Tensor) -> Tensor:
        """Return ``L z``, (C, D) -> (C, D)."""

    def to_gradient(self, gradient: Tensor) -> Tensor:
        """Return ``L' gradient``, (C, D) -> (C, D)."""


@dataclass(frozen=True, eq=False)
class DiagonalPreconditioner:
    """Diagonal map with ``scale`` (C, D), different for each chain, or (D,)."""

    scale: Tensor

    def to_position(self, z: Tensor) -> Tensor:
        """Return ``L z``, (C, D) -> (C, D)."""
        return self.scale * z

    def to_gradient(self, gradient: Tensor) -> Tensor:
        """Return ``L' gradient``, (C, D) -> (C, D)."""
        return self.scale * gradient


@dataclass(frozen=True, eq=False)
class DensePreconditioner:
    """Cholesky factor of a covariance, (D, D) for all chains or (C, D, D)."""

    cholesky: Tensor

    def to_position(self, z: Tensor) -> Tensor:
        """Return ``L z``, (C, D) -> (C, D)."""
        if self._is_per_chain:
            return (self.cholesky @ z.unsqueeze(-1)).squeeze(-1)
        return z @ self.cholesky.mT

    def to_gradient(self, gradient: Tensor) -> Tensor:
        """Return ``L' gradient``, (C, D) -> (C, D)."""
        if self._is_per_chain:
            return (self.cholesky.mT @ gradient.unsqueeze(-1)).squeeze(-1)
        return gradient @ self.cholesky

    @property
    def _is_per_chain(self) -> bool:
        """Whether each chain has its own factor."""
        return self.cholesky.ndim == 3
