r"""Levenberg-Marquardt on the Gauss-Newton system, many restarts as one batch.

The negative log posterior of weights with a Gaussian prior of precisions :math:`\alpha`,

.. math:: E(\theta) = -\log p(y \mid \theta) + \tfrac12 \sum_k \alpha_k \theta_k^2,

is lowered by steps :math:`(A + \mathrm{diag}\,\alpha + \lambda \bar a I)\,\delta = -\nabla E` with
the Gauss-Newton curvature A of the likelihood and the mean :math:`\bar a` of its diagonal
(Levenberg 1944, Marquardt 1963; Foresee & Hagan 1997 for networks).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.systems import Curvature

_MOST_TRIES = 8  # step sizes tried in one iteration
_SHRINK, _GROW, _UNDEFINED = 4.0, 6.0, 10.0  # of the damping: after success, failure, no factor
_LEAST_DAMPING = 1e-9
INITIAL_DAMPING = 1e-2


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


class Step(NamedTuple):
    theta: Tensor  # (R, P)
    damping: Tensor  # (R,)
    n_moved: int


def step(
    misfit: Misfit,
    theta: Tensor,
    expansion: Expansion,
    precision: Tensor,
    damping: Tensor,
    *,
    is_wary: bool = False,
) -> Step:
    """One damped Gauss-Newton step of every restart, never upwards.

    A restart whose curvature has no Cholesky factor is damped more. If the step is wary, damping
    stays where it had to be raised: there are fewer tries, at most eight systems, and less is
    gained by every step. Worth it where a try costs as much as the expansion.

    ``theta`` (R, P); ``precision`` (R, P); ``damping`` (R,).
    """
    gradient = expansion.gradient + precision * theta
    energy = expansion.value + 0.5 * (precision * theta.square()).sum(1)
    unit = expansion.curvature.mean_diagonal()
    moved = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
    start, theta, damping = damping, theta.clone(), damping.clone()
    tried = torch.arange(len(theta), device=theta.device)
    for _ in range(_MOST_TRIES):
        added = precision[tried] + (damping[tried] * unit[tried]).unsqueeze(1)
        system = expansion.curvature.of(tried).system(added)
        candidate = theta[tried] - system.solve(gradient[tried])
        lower = misfit(candidate, tried) + 0.5 * (precision[tried] * candidate.square()).sum(1)
        better = (lower < energy[tried]) & (system.failed == 0)
        theta[tried] = torch.where(better.unsqueeze(1), candidate, theta[tried])
        moved[tried] = better
        factors = torch.where(system.failed > 0, _UNDEFINED, _GROW).to(damping)
        more = damping[tried].clamp_min(_LEAST_DAMPING) * factors
        damping[tried] = torch.where(better, damping[tried], more)
        tried = (~moved).nonzero().flatten()
        if not len(tried):
            break
    # At a minimum nothing is lower: the damping found there says nothing about the next step.
    lowered = (damping / _SHRINK).clamp_min(_LEAST_DAMPING)
    if is_wary:
        lowered = torch.where(damping > start, damping, lowered)
    damping = torch.where(moved, lowered, start)
    return Step(theta, damping, len(theta) - len(tried))
