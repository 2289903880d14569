r"""A Gauss-Newton curvature and the prior's precisions: one system, in the smaller of two spaces.

The curvature of M derivatives (rows times outputs) of P weights is :math:`B'B`, B (M, P). With few
rows nothing of size (P, P) is needed: by Woodbury's identity

.. math:: (B'B + D)^{-1} = D^{-1} - D^{-1} B' S^{-1} B D^{-1}, \quad
          |B'B + D| = |D|\,|S|, \quad S = I + B D^{-1} B',

which costs O(M^2 P) in place of O(P^3).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import NotPositiveDefiniteError, log_det

# Derivatives a weight, at most, for which rows are the smaller space: their inner products are
# taken anew for every diagonal, the matrix of the weights is not.
_MOST_DERIVATIVES = 0.5


def are_few(n_derivatives: int, n_params: int) -> bool:
    """Whether so many derivatives of so many weights are the smaller space."""
    return n_derivatives <= _MOST_DERIVATIVES * n_params


def are_outnumbered(n_derivatives: int, n_params: int) -> bool:
    """Whether there are more weights than numbers to learn from."""
    return n_derivatives < n_params


@dataclass(frozen=True, eq=False)
class WeightCurvature:
    """R positive semidefinite matrices, formed, before a diagonal (R, P) is added."""

    matrix: Tensor  # (R, P, P)

    def of(self, which: Tensor) -> "WeightCurvature":
        return WeightCurvature(self.matrix[which])

    def mean_diagonal(self) -> Tensor:
        return self.matrix.diagonal(dim1=1, dim2=2).mean(1)

    def system(self, diagonal: Tensor) -> "WeightSystem":
        matrix = self.matrix.clone()
        matrix.diagonal(dim1=1, dim2=2).add_(diagonal)
        return WeightSystem(*torch.linalg.cholesky_ex(matrix))


@dataclass(frozen=True, eq=False)
class WeightSystem:
    """R positive definite matrices A by their Cholesky factors; O(P^3) each."""

    factor: Tensor  # (R, P, P)
    failed: Tensor  # int (R,), not 0 where a matrix has no factor

    @property
    def log_det(self) -> Tensor:
        """Log determinants (R,)."""
        return log_det(self.factor)

    @cached_property
    def covariance(self) -> Tensor:
        """The inverses, (R, P, P)."""
        return torch.cholesky_inverse(self.factor)

    @property
    def variance(self) -> Tensor:
        """Diagonals of the inverses, (R, P)."""
        return self.covariance.diagonal(dim1=1, dim2=2)

    def solve(self, v: Tensor) -> Tensor:
        """``A^{-1} v``, (R, P) -> (R, P)."""
        return torch.cholesky_solve(v.unsqueeze(2), self.factor).squeeze(2)

    def cholesky(self) -> Tensor:
        return self.factor


@dataclass(frozen=True, eq=False)
class RowCurvature:
    """Matrices ``B'B`` by their rows."""

    root: Tensor  # (R, M, P), B, with M < P

    def of(self, which: Tensor) -> "RowCurvature":
        return RowCurvature(self.root[which])

    def mean_diagonal(self) -> Tensor:
        return self.root.square().sum(1).mean(1)

    def system(self, diagonal: Tensor) -> "RowSystem":
        scaled = self.root / diagonal.unsqueeze(1)
        inner = scaled @ self.root.mT
        inner.diagonal(dim1=1, dim2=2).add_(1.0)
        return RowSystem(self.root, diagonal, scaled, *torch.linalg.cholesky_ex(inner))


@dataclass(frozen=True, eq=False)
class RowSystem:
    """A `WeightSystem` by Cholesky factors of S; O(M^2 P) each."""

    root: Tensor  # (R, M, P), B
    diagonal: Tensor  # (R, P)
    scaled: Tensor  # (R, M, P), B D^{-1}
    inner: Tensor  # (R, M, M)
    failed: Tensor  # int (R,)

    @property
    def log_det(self) -> Tensor:
        return self.diagonal.log().sum(1) + log_det(self.inner)

    @property
    def covariance(self) -> Tensor:
        """O(M P^2)."""
        half = self._half
        return torch.diag_embed(self.diagonal.reciprocal()) - half.mT @ half

    @property
    def variance(self) -> Tensor:
        return self.diagonal.reciprocal() - self._half.square().sum(1)

    @property
    def determined(self) -> Tensor:
        """Diagonals of ``B A^{-1} B'``, (R, M): what every derivative determines, within [0, 1]."""
        return 1.0 - torch.cholesky_inverse(self.inner).diagonal(dim1=1, dim2=2)

    def solve(self, v: Tensor) -> Tensor:
        inner = torch.cholesky_solve(self.scaled @ v.unsqueeze(2), self.inner)
        return v / self.diagonal - (self.scaled.mT @ inner).squeeze(2)

    def cholesky(self) -> Tensor:
        system = WeightCurvature(self.root.mT @ self.root).system(self.diagonal)
        require_factor(system, "Standardise X.")
        return system.factor

    @cached_property
    def _half(self) -> Tensor:
        """``L^{-1} B D^{-1}``, L the factor of S."""
        return torch.linalg.solve_triangular(self.inner, self.scaled, upper=False)


Curvature = WeightCurvature | RowCurvature
System = WeightSystem | RowSystem


def require_factor(system: System, remedy: str) -> None:
    """Raise in words where a posterior's precision has no factor."""
    if bool(system.failed.any()):
        raise NotPositiveDefiniteError(
            f"The posterior's precision isn't positive definite in this arithmetic. {remedy}"
        )
