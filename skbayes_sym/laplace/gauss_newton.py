r"""Levenberg-Marquardt on the Gauss-Newton system, many restarts as one batch.

Steps :math:`(A + \mathrm{diag}\,\alpha + \lambda \bar a I)\,\delta = -\nabla E` minimise the
negative log posterior of weights with a Gaussian prior of precisions :math:`\alpha`,

.. math:: E(\theta) = -\log p(y \mid \theta) + \tfrac12 \sum_k \alpha_k \theta_k^2.

A is the Gauss-Newton curvature of the likelihood, and :math:`\bar a` the mean of its diagonal
(Levenberg 1944, Marquardt 1963; Foresee & Hagan 1997 for networks). After a step that gained the
fraction :math:`\rho` of what the quadratic model predicted, the damping is multiplied by
:math:`1 - \rho`, but by no less than a ninth. A step that fell short is therefore not followed by a
longer one, which would fail, and nearly all steps succeed at the first attempt.

The curvature of M derivatives (rows times outputs) of P weights is :math:`B'B` with B (M, P). With
few rows nothing of size (P, P) is needed: by Woodbury's identity

.. math:: (B'B + D)^{-1} = D^{-1} - D^{-1} B' S^{-1} B D^{-1}, \quad
          |B'B + D| = |D|\,|S|, \quad S = I + B D^{-1} B',

which costs O(M^2 P) instead of O(P^3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import NotPositiveDefiniteError, log_det

INITIAL_DAMPING = 1e-2
MIN_DAMPING = 1e-9
MAX_ATTEMPTS = 8  # systems solved in one step


def is_row_space_smaller(n_derivatives: int, n_params: int) -> bool:
    """Whether to solve systems in the space of the derivatives rather than of the weights.

    The derivatives' inner products are computed again for every diagonal, and the matrix of the
    weights is not. So the derivatives must be fewer by a quarter.
    """
    return n_derivatives <= 0.75 * n_params


@dataclass(frozen=True, eq=False)
class WeightCurvature:
    """R positive semidefinite matrices ``unit * matrix``, without the prior's diagonal.

    Attributes
    ----------
    matrix : Tensor of shape (R, P, P)
    unit : Tensor of shape (R,)
    """

    matrix: Tensor
    unit: Tensor

    def select(self, index: Tensor) -> "WeightCurvature":
        """Select restarts."""
        return WeightCurvature(self.matrix[index], self.unit[index])

    def mean_diagonal(self) -> Tensor:
        """Means of the diagonals, (R,)."""
        return self.unit * self.matrix.diagonal(dim1=1, dim2=2).mean(1)

    def system(self, diagonal: Tensor) -> "WeightSystem":
        """Add a diagonal (R, P), and factorise."""
        matrix = self.matrix * self.unit[:, None, None]
        matrix.diagonal(dim1=1, dim2=2).add_(diagonal)
        return WeightSystem(*torch.linalg.cholesky_ex(matrix))


@dataclass(frozen=True, eq=False)
class WeightSystem:
    """R positive definite matrices A with their Cholesky factors; O(P^3) each.

    Attributes
    ----------
    factor : Tensor of shape (R, P, P)
    failed : Tensor of shape (R,), int
        Not 0 where a matrix has no Cholesky factor.
    """

    factor: Tensor
    failed: Tensor

    @property
    def log_det(self) -> Tensor:
        """Log determinants, (R,)."""
        return log_det(self.factor)

    @cached_property
    def covariance(self) -> Tensor:
        """Inverses, (R, P, P)."""
        return torch.cholesky_inverse(self.factor)

    @property
    def variance(self) -> Tensor:
        """Diagonals of the inverses, (R, P)."""
        return self.covariance.diagonal(dim1=1, dim2=2)

    def solve(self, v: Tensor) -> Tensor:
        """Return ``A^{-1} v``, (R, P) -> (R, P)."""
        return torch.cholesky_solve(v.unsqueeze(2), self.factor).squeeze(2)

    def cholesky(self) -> Tensor:
        """Cholesky factors of A, (R, P, P)."""
        return self.factor


@dataclass(frozen=True, eq=False)
class RowCurvature:
    """R matrices ``B'B``.

    Attributes
    ----------
    root : Tensor of shape (R, M, P)
        B, with M < P.
    """

    root: Tensor

    def select(self, index: Tensor) -> "RowCurvature":
        """Select restarts."""
        return RowCurvature(self.root[index])

    def mean_diagonal(self) -> Tensor:
        """Means of the diagonals, (R,)."""
        return self.root.square().sum(1).mean(1)

    def system(self, diagonal: Tensor) -> "RowSpaceSystem":
        """Add a diagonal (R, P), and factorise S."""
        scaled = self.root / diagonal.unsqueeze(1)
        inner = scaled @ self.root.mT
        inner.diagonal(dim1=1, dim2=2).add_(1.0)
        return RowSpaceSystem(self.root, diagonal, scaled, *torch.linalg.cholesky_ex(inner))


@dataclass(frozen=True, eq=False)
class RowSpaceSystem:
    """A `WeightSystem` by the Cholesky factors of S; O(M^2 P) each.

    Attributes
    ----------
    root : Tensor of shape (R, M, P)
        B.
    diagonal : Tensor of shape (R, P)
        Diagonal of D.
    scaled : Tensor of shape (R, M, P)
        B D^{-1}.
    inner : Tensor of shape (R, M, M)
        Cholesky factors of S.
    failed : Tensor of shape (R,), int
        Not 0 where a matrix has no Cholesky factor.
    """

    root: Tensor
    diagonal: Tensor
    scaled: Tensor
    inner: Tensor
    failed: Tensor

    @property
    def log_det(self) -> Tensor:
        """Log determinants of A, (R,)."""
        return self.diagonal.log().sum(1) + log_det(self.inner)

    @property
    def covariance(self) -> Tensor:
        """Inverses of A, (R, P, P); O(M P^2)."""
        half = self._half
        return torch.diag_embed(self.diagonal.reciprocal()) - half.mT @ half

    @property
    def variance(self) -> Tensor:
        """Diagonals of the inverses, (R, P)."""
        return self.diagonal.reciprocal() - self._half.square().sum(1)

    @property
    def leverages(self) -> Tensor:
        """Diagonals of ``B A^{-1} B'``, (R, M), within [0, 1]."""
        return 1.0 - torch.cholesky_inverse(self.inner).diagonal(dim1=1, dim2=2)

    def solve(self, v: Tensor) -> Tensor:
        """Return ``A^{-1} v``, (R, P) -> (R, P)."""
        inner = torch.cholesky_solve(self.scaled @ v.unsqueeze(2), self.inner)
        return v / self.diagonal - (self.scaled.mT @ inner).squeeze(2)

    def cholesky(self) -> Tensor:
        """Cholesky factors of A, (R, P, P); O(P^3).

        Raises
        ------
        NotPositiveDefiniteError
            If a matrix has none.
        """
        product = self.root.mT @ self.root
        system = WeightCurvature(product, product.new_ones(len(product))).system(self.diagonal)
        require_factor(system, "Standardise X.")
        return system.factor

    @cached_property
    def _half(self) -> Tensor:
        """``L^{-1} B D^{-1}``, where L is the Cholesky factor of S."""
        return torch.linalg.solve_triangular(self.inner, self.scaled, upper=False)


Curvature = WeightCurvature | RowCurvature
System = WeightSystem | RowSpaceSystem


def require_factor(system: System, remedy: str) -> None:
    """Raise an error with a remedy if a posterior's precision has no Cholesky factor."""
    if bool(system.failed.any()):
        raise NotPositiveDefiniteError(
            f"The posterior's precision isn't positive definite in this arithmetic. {remedy}"
        )


class Expansion(NamedTuple):
    """Second-order expansion of the negative log likelihood at R weight vectors, nats.

    Attributes
    ----------
    value : Tensor of shape (R,)
    gradient : Tensor of shape (R, P)
    curvature : Curvature
        Gauss-Newton matrices.
    """

    value: Tensor
    gradient: Tensor
    curvature: Curvature

    def select(self, index: Tensor) -> "Expansion":
        """Select restarts."""
        return Expansion(self.value[index], self.gradient[index], self.curvature.select(index))

    def at(self, _hyper: object) -> "Expansion":
        """Return self: without hyperparameters of the likelihood the expansion doesn't change."""
        return self


# Returns the negative log likelihood (r,) at weights (r, P) of the restarts of an index (r,).
Misfit = Callable[[Tensor, Tensor], Tensor]


def step(
    misfit: Misfit,
    theta: Tensor,
    expansion: Expansion,
    precision: Tensor,
    damping: Tensor,
    *,
    conservative: bool = False,
) -> tuple[Tensor, Tensor, int]:
    """Make one damped Gauss-Newton step of every restart, which never raises the energy.

    Parameters
    ----------
    misfit : Misfit
        Negative log likelihood of some of the restarts.
    theta : Tensor of shape (R, P)
        Weights.
    expansion : Expansion
        Expansion of the negative log likelihood at ``theta``.
    precision : Tensor of shape (R, P)
        Prior precision of every weight.
    damping : Tensor of shape (R,)
        The factors lambda.
    conservative : bool, default=False
        Whether the damping stays where it had to be raised. There are fewer attempts, and every
        step gains less. This pays if an attempt costs as much as the expansion.

    Returns
    -------
    theta : Tensor of shape (R, P)
        Weights after the step.
    damping : Tensor of shape (R,)
        Damping of the next step.
    n_moved : int
        Number of restarts that moved.

    Notes
    -----
    At most eight attempts are made, and each costs a system. A restart whose curvature has no
    Cholesky factor is damped more.
    """
    gradient = expansion.gradient + precision * theta
    energy = expansion.value + 0.5 * (precision * theta.square()).sum(1)
    unit = expansion.curvature.mean_diagonal()
    moved = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
    start = damping
    theta = theta.clone()
    damping = damping.clone()
    ratio = torch.ones_like(damping)
    tried = torch.arange(len(theta), device=theta.device)
    curvature = expansion.curvature
    for _ in range(MAX_ATTEMPTS):
        added = (damping[tried] * unit[tried]).unsqueeze(1)
        system = curvature.system(precision[tried] + added)
        delta = system.solve(gradient[tried])
        candidate = theta[tried] - delta
        lower = misfit(candidate, tried) + 0.5 * (precision[tried] * candidate.square()).sum(1)
        # At a minimum the gain is below the rounding of the energy, and can't be measured.
        slope = (gradient[tried] * delta).sum(1)
        gain = energy[tried] - lower
        is_flat = slope < 4.0 * torch.finfo(theta.dtype).eps * energy[tried].abs()
        better = ((gain > 0.0) | is_flat) & (system.failed == 0)
        predicted = 0.5 * (slope + (added * delta.square()).sum(1))
        ratio[tried] = torch.where(is_flat, 1.0, gain / predicted)
        theta[tried] = torch.where(better.unsqueeze(1), candidate, theta[tried])
        moved[tried] = better
        # Failed attempts are repeated with more damping.
        factors = torch.where(system.failed > 0, 10.0, 6.0).to(damping)
        raised = damping[tried].clamp_min(MIN_DAMPING) * factors
        damping[tried] = torch.where(better, damping[tried], raised)
        tried = (~moved).nonzero().flatten()
        if not len(tried):
            break
        curvature = expansion.curvature.select(tried)
    lowered = (damping * (1.0 - ratio).clamp(1.0 / 9.0, 1.0)).clamp_min(MIN_DAMPING)
    if conservative:
        lowered = torch.where(damping > start, damping, lowered)
    # At a minimum no step is lower, and the damping that was reached there doesn't suit the next
    # step.
    damping = torch.where(moved, lowered, start)
    return theta, damping, len(theta) - len(tried)
