r"""The gap of a linear model under translations: a difference of two optima.

A row with inputs x leaves ``w`` free to move orthogonally to x. There is no uniform distribution of
such moves, and the average q_G of independent normals is improper. The gap instead compares two
optima at the same hyperparameters (Kurle et al. 2022, eqs. 10 and 23): the best posterior that has
the symmetry of every row, a normal q with any covariance, and the best independent normals m. With
a normal likelihood, q is the posterior itself, and

.. math:: L(q) - \max_m L(m) = \min_m KL[m \,\|\, q]
    = \tfrac12 \Bigl( \sum_k \log \Lambda_{kk} - \log \det \Lambda \Bigr) \ge 0

with the precision :math:`\Lambda` of q. This is Hadamard's inequality, with equality if q is
independent.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.gaps.gap import GapGradient, Side
from skbayes_sym.symmetry.translation import Translation


class CorrelatedPosterior(Protocol):
    """A normal distribution of P weights, given by its precision."""

    def precision(self) -> Tensor:
        """Return the precision (P, P), float64."""

    def precision_diagonal(self) -> Tensor:
        """Return the diagonal of the precision (P,), float64."""

    def log_det_precision(self) -> Tensor:
        """Return the log determinant of the precision, a tensor of shape ()."""


@dataclass(frozen=True, eq=False)
class TranslationGap:
    """`Gap` of independent normals against the best posterior of a linear model.

    Parameters
    ----------
    group : Translation
        Defined by the training inputs. Each row has separate translations, orthogonal to the row.
    optima : Estimate or None, default=None
        The difference of the optima, if the likelihood isn't normal. The two optima then have
        different sites, so that the difference isn't a function of one posterior, and both must be
        fitted.
    """

    group: Translation
    optima: Estimate | None = None
    side: ClassVar[Side] = "exact"
    is_random: ClassVar[bool] = False

    def estimate(
        self,
        posterior: CorrelatedPosterior,
        n_draws: int | None = None,
        *,
        generator: torch.Generator,
    ) -> Estimate:
        """Return the difference in nats, in O(P r^2) for r directions that the data inform."""
        del n_draws, generator  # a closed form
        if self.optima is not None:
            return self.optima
        logs = posterior.precision_diagonal().log().sum()
        return Estimate(float(0.5 * (logs - posterior.log_det_precision())), 0.0)

    def value_and_gradients(
        self, posterior: CorrelatedPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Return the closed form and its derivatives, O(P^3). They don't depend on the mean."""
        del generator  # nothing is random
        precision = posterior.precision()
        diagonal = precision.diagonal()
        value = 0.5 * (diagonal.log().sum() - posterior.log_det_precision())
        added = (precision / diagonal) @ precision - precision
        return GapGradient(value, torch.zeros_like(diagonal), added)
