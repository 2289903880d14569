r"""Levenberg-Marquardt on the Gauss-Newton system, many restarts as one batch.

The negative log posterior of weights with a Gaussian prior of precisions :math:`\alpha`,

.. math:: E(\theta) = -\log p(y \mid \theta) + \tfrac12 \sum_k \alpha_k \theta_k^2,

is lowered by steps :math:`(A + \mathrm{diag}\,\alpha + \lambda \bar a I)\,\delta = -\nabla E` with
the Gauss-Newton curvature A of the likelihood and the mean :math:`\bar a` of its diagonal
(Levenberg 1944, Marquardt 1963; Foresee & Hagan 1997 for networks). After a step that gained the
share :math:`\rho` of what the quadratic model promised, damping falls to
:math:`1 - \rho` of what it was, but no further than to a ninth: a step that fell short is not
followed by a longer one, which would fail, and nearly all are taken at the first try.

The curvature of M derivatives (rows times outputs) of P weights is :math:`B'B`, B (M, P). With few
rows nothing of size (P, P) is needed: by Woodbury's identity

.. math:: (B'B + D)^{-1} = D^{-1} - D^{-1} B' S^{-1} B D^{-1}, \quad
          |B'B + D| = |D|\,|S|, \quad S = I + B D^{-1} B',

which costs O(M^2 P) in place of O(P^3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import NotPositiveDefiniteError, log_det

INITIAL_DAMPING = 1e-2


def is_row_space_smaller(n_derivatives: int, n_params: int) -> bool:
    """Whether so many derivatives of so many weights are the smaller space.

    Their inner products are taken anew for every diagonal, the matrix of the weights is not.
    """
    return n_derivatives <= 0.75 * n_params


@dataclass(frozen=True, eq=False)
class WeightCurvature:
    """R positive semidefinite matrices, formed, before a diagonal (R, P) is added."""

    matrix: Tensor  # (R, P, P), in units of
    unit: Tensor  # (R,)

    def of(self, which: Tensor) -> "WeightCurvature":
        return WeightCurvature(self.matrix[which], self.unit[which])

    def mean_diagonal(self) -> Tensor:
        return self.unit * self.matrix.diagonal(dim1=1, dim2=2).mean(1)

    def system(self, diagonal: Tensor) -> "WeightSystem":
        matrix = self.matrix * self.unit[:, None, None]
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

    def system(self, diagonal: Tensor) -> "RowSpaceSystem":
        scaled = self.root / diagonal.unsqueeze(1)
        inner = scaled @ self.root.mT
        inner.diagonal(dim1=1, dim2=2).add_(1.0)
        return RowSpaceSystem(self.root, diagonal, scaled, *torch.linalg.cholesky_ex(inner))


@dataclass(frozen=True, eq=False)
class RowSpaceSystem:
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
        product = self.root.mT @ self.root
        system = WeightCurvature(product, product.new_ones(len(product))).system(self.diagonal)
        require_factor(system, "Standardise X.")
        return system.factor

    @cached_property
    def _half(self) -> Tensor:
        """``L^{-1} B D^{-1}``, L the factor of S."""
        return torch.linalg.solve_triangular(self.inner, self.scaled, upper=False)


Curvature = WeightCurvature | RowCurvature
System = WeightSystem | RowSpaceSystem


def require_factor(system: System, remedy: str) -> None:
    """Raise in words where a posterior's precision has no factor."""
    if bool(system.failed.any()):
        raise NotPositiveDefiniteError(
            f"The posterior's precision isn't positive definite in this arithmetic. {remedy}"
        )


class Expansion(NamedTuple):
    """The negative log likelihood of R weight vectors to second order, nats."""

    value: Tensor  # (R,)
    gradient: Tensor  # (R, P)
    curvature: Curvature  # Gauss-Newton

    def of(self, which: Tensor) -> "Expansion":
        return Expansion(self.value[which], self.gradient[which], self.curvature.of(which))

    def expansion(self, _: object) -> "Expansion":
        """Itself: a likelihood without hyperparameters has one expansion."""
        return self


# The negative log likelihood at weights (r, P) of the restarts (r,), at their present noise: (r,).
Misfit = Callable[[Tensor, Tensor], Tensor]


def step(
    misfit: Misfit, theta: Tensor, expansion: Expansion, precision: Tensor, damping: Tensor, *,
    is_wary: bool = False,
) -> tuple[Tensor, Tensor, int]:  # fmt: skip
    """Weights and damping after a damped Gauss-Newton step, never upwards, and how many moved.

    A restart whose curvature has no Cholesky factor is damped more. If the step is wary, damping
    stays where it had to be raised: there are fewer tries, at most eight systems, and less is
    gained by every step. Worth it where a try costs as much as the expansion.

    ``theta`` (R, P); ``precision`` (R, P); ``damping`` (R,).
    """
    gradient = expansion.gradient + precision * theta
    energy = expansion.value + 0.5 * (precision * theta.square()).sum(1)
    unit = expansion.curvature.mean_diagonal()
    moved = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
    start = damping
    theta = theta.clone()
    damping = damping.clone()
    least = 1e-9
    ratio = torch.ones_like(damping)
    tried = torch.arange(len(theta), device=theta.device)
    curvature = expansion.curvature
    for _ in range(8):
        added = (damping[tried] * unit[tried]).unsqueeze(1)
        system = curvature.system(precision[tried] + added)
        away = system.solve(gradient[tried])
        candidate = theta[tried] - away
        lower = misfit(candidate, tried) + 0.5 * (precision[tried] * candidate.square()).sum(1)
        # What a step at a minimum gains is below the rounding of the energy, which mustn't judge.
        slope = (gradient[tried] * away).sum(1)
        gain = energy[tried] - lower
        is_flat = slope < 4.0 * torch.finfo(theta.dtype).eps * energy[tried].abs()
        better = ((gain > 0.0) | is_flat) & (system.failed == 0)
        promised = 0.5 * (slope + (added * away.square()).sum(1))
        ratio[tried] = torch.where(is_flat, 1.0, gain / promised)
        theta[tried] = torch.where(better.unsqueeze(1), candidate, theta[tried])
        moved[tried] = better
        factors = torch.where(system.failed > 0, 10.0, 6.0).to(damping)
        more = damping[tried].clamp_min(least) * factors
        damping[tried] = torch.where(better, damping[tried], more)
        tried = (~moved).nonzero().flatten()
        if not len(tried):
            break
        curvature = expansion.curvature.of(tried)
    # At a minimum nothing is lower: the damping found there says nothing about the next step.
    lowered = (damping * (1.0 - ratio).clamp(1.0 / 9.0, 1.0)).clamp_min(least)
    if is_wary:
        lowered = torch.where(damping > start, damping, lowered)
    damping = torch.where(moved, lowered, start)
    return theta, damping, len(theta) - len(tried)
