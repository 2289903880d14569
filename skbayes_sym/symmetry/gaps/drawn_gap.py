"""The symmetrisation gap of a posterior whose weights depend on one another, from its draws."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.numerics.random import Estimate, mean_and_error
from skbayes_sym.symmetry.fundamental_domain import Enumeration, can_enumerate, enumerate_group
from skbayes_sym.symmetry.gaps.gap import Side
from skbayes_sym.symmetry.gaps.unit_gap import ExactUpTo, Soules, UnitGap
from skbayes_sym.symmetry.group import SymmetryGroup


class DrawnPosterior(Protocol):
    """A posterior over the flat vector of P weights."""

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor: ...

    def log_prob(self, theta: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class DrawnGap:
    r"""Gap under exchanges and flips of units, of a posterior that needn't be mean field.

    A small group is summed over. Of a larger one the gap, the information ``I(g; theta)`` that
    weights have of the group's element, is at least what a guess at the element tells (Barber &
    Agakov 2003):

    .. math:: I(g; \theta) \ge \log |G| + E_q \log r(e \mid \theta), \qquad
              r(g \mid \theta) = \tilde q(g \theta) / \textstyle\sum_h \tilde q(h \theta),

    for any density :math:`\tilde q`: here independent normals with the moments of q's draws, whose
    sums `UnitGap` bounds. Draws by which these are chosen aren't used again.

    ``group``: of units, a factor a layer; ``n_params``: number P of weights; ``max_order``: most
    elements that are summed over, at O(P) a draw and element beside the densities; ``n_draws``:
    draws that are averaged, fewer where all copies of so many are large.
    """

    group: SymmetryGroup
    n_params: int
    max_order: int = 1000
    n_draws: int = 100

    @property
    def side(self) -> Side:
        """On which side of the gap `estimate` lies in expectation."""
        return "exact" if can_enumerate(self.group, max_order=self.max_order) else "lower"

    @cached_property
    def _elements(self) -> Enumeration:
        return enumerate_group(self.group, self.n_params, max_order=self.max_order)

    def estimate(self, posterior: DrawnPosterior, *, generator: torch.Generator) -> Estimate:
        """The gap or the bound in nats, within [0, log |G|], and its Monte Carlo error."""
        log_order = self.group.log_order
        if not log_order:
            return Estimate(0.0, 0.0)
        if self.side == "exact":
            per_draw = self._elements.order * self.n_params
            n = min(self.n_draws, rows_within(1 << 22, per_draw))
            log_q = posterior.log_prob(
                self._elements.orbit(posterior.sample(n, generator=generator))
            )
            values = log_order + log_q[:, 0] - log_q.logsumexp(1)
        else:
            some, theta = posterior.sample(2 * self.n_draws, generator=generator).chunk(2)
            loc, scale = some.mean(0), some.std(0)
            of_units = UnitGap(self.group, ExactUpTo(10, Soules()))
            values = of_units.values(loc, scale, (theta - loc) / scale, generator=generator)
        mean, error = mean_and_error(values)
        return Estimate(min(max(mean, 0.0), log_order), error)
