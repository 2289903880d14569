r"""The gap of a linear model under translations: a difference of two optima.

A row with inputs x leaves ``w`` free to move orthogonally to x, and no uniform law of such moves
exists: the average q_G of independent normals is improper. What can be compared is the best
posterior that abides by the symmetry of every row, a normal q with any covariance, and the best
independent normals m, at the same hyperparameters (Kurle et al. 2022, eqs. 10 and 23). Where the
likelihood is normal, q is the posterior itself, and

.. math:: L(q) - \max_m L(m) = \min_m KL[m \,\|\, q]
    = \tfrac12 \Bigl( \sum_k \log \Lambda_{kk} - \log \det \Lambda \Bigr) \ge 0

with the precision :math:`\Lambda` of q: Hadamard's inequality, an equality where q is independent.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.gaps.gap import GapGradient, Side
from skbayes_sym.symmetry.translation import Translation


class CorrelatedPosterior(Protocol):
    """A normal law of P weights, by its precision."""

    def precision(self) -> Tensor:
        """(P, P), float64."""

    def precision_diagonal(self) -> Tensor:
        """(P,), float64."""

    def log_det_precision(self) -> Tensor:
        """0-d."""


@dataclass(frozen=True, eq=False)
class TranslationGap:
    """Loss of independent normals against the best posterior of a linear model; a `Gap`.

    ``group``: by the training inputs; every row has translations of its own, orthogonal to it
    alone. ``optima``: the difference where the likelihood isn't normal. The sites of the two optima
    are others then, and only who fits both knows it: no function of one posterior does.
    """

    group: Translation
    optima: Estimate | None = None
    side: ClassVar[Side] = "exact"
    is_random: ClassVar[bool] = False

    def estimate(
        self, posterior: CorrelatedPosterior, n_draws: int | None = None, *,
        generator: torch.Generator,
    ) -> Estimate:  # fmt: skip
        """The difference in nats, O(P r^2) for r directions that the data moved."""
        if self.optima is not None:
            return self.optima
        logs = posterior.precision_diagonal().log().sum()
        return Estimate(float(0.5 * (logs - posterior.log_det_precision())), 0.0)

    def value_and_gradients(
        self, posterior: CorrelatedPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """The closed form and its derivatives, O(P^3); the mean (P,) doesn't matter."""
        precision = posterior.precision()
        diagonal = precision.diagonal()
        value = 0.5 * (diagonal.log().sum() - posterior.log_det_precision())
        added = (precision / diagonal) @ precision - precision
        return GapGradient(value, torch.zeros_like(diagonal), added)
