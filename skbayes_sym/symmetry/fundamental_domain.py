"""Fundamental domains: the region of weights that holds exactly one member of every orbit."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.symmetry.base import Product, SymmetryGroup
from skbayes_sym.symmetry.orbits import MAX_ORDER, Enumeration, can_enumerate, enumerate_group
from skbayes_sym.symmetry.reference import DiagonalReference, improve_labels
from skbayes_sym.symmetry.units import SignedPermutation, UnitGroup, unit_layers

_TOLERANCE = 1e-9  # relative gain that counts as one: rounding must not decide who is inside
_CHUNK = 1 << 20  # scores a table may hold: 8 MiB


@dataclass(frozen=True, eq=False)
class FundamentalDomain:
    """Where the labels of hidden units fit a given reference best.

        F = {theta : argmax over g of log N(g.theta; mean, diag variance) = identity}

    The copies ``g^-1 F`` tile the space: almost every orbit has |G| members and exactly one in F.
    So a density that the group leaves unchanged is the average of its copies on F, moved about,
    and sampling it within F loses nothing.

    Parameters
    ----------
    group : Trivial, Units or a Product of them
    reference : DiagonalReference of shape (P,)
        Mean and variance of every entry of ``theta``. A mean that some g leaves unchanged, or
        equal variances and means of two units, make F the whole space along that g.

    Raises
    ------
    ValueError
        With two or more hidden layers and more than 10,000 group elements: the best joint labels
        are a quadratic assignment problem, and layer by layer is not exact.

    Notes
    -----
    With one hidden layer of d units of p entries membership is an assignment problem,
    O(d^2 p + d^3) a position; with several, O(|G| P) over all elements. Computed in float64 on the
    CPU. Columns of a position beyond P don't matter and don't move.
    """

    group: SymmetryGroup
    reference: DiagonalReference

    def __post_init__(self) -> None:
        if not has_exact_domain(self.group):
            raise ValueError(
                "the best joint labels of several hidden layers are found exactly only by trying "
                f"all elements of the group, at most {MAX_ORDER}; this one has e^"
                f"{self.group.log_order:.1f}. Use one hidden layer or narrower ones."
            )

    def contains(self, position: Tensor) -> Tensor:
        """Whether each position lies in F, (C, D) -> bool (C,); False where not finite."""
        if not self._layers:  # the whole space; nothing goes to the host
            return position.double().square().sum(dim=1).isfinite()
        theta, finite = self._theta(position)
        return (finite & ~self._best(theta)[1]).to(position.device)

    def enter(self, position: Tensor) -> tuple[Tensor, tuple[SignedPermutation, ...]]:
        """The member of each orbit that lies in F, and the element that leads there.

        Parameters
        ----------
        position : Tensor of shape (C, D)

        Returns
        -------
        position : Tensor of shape (C, D)
        g : tuple of SignedPermutation, one a hidden layer, batch shape (C,)
            The identity where the position is in F already, or isn't finite.
        """
        if not self._layers:
            return position, ()
        g, _ = self._best(self._theta(position)[0])
        g = tuple(SignedPermutation(*(part.to(position.device) for part in h)) for h in g)
        return Product(self._layers).act(g, position), g

    def _best(self, theta: Tensor) -> tuple[tuple[SignedPermutation, ...], Tensor]:
        """The best element for each row, and whether it beats the identity."""
        if len(self._layers) > 1:
            return self._best_of_all(theta)
        g, moved = improve_labels(theta, self._layers[0], self.reference, thorough=True)
        return (g,), moved

    def _best_of_all(self, theta: Tensor) -> tuple[tuple[SignedPermutation, ...], Tensor]:
        linear, quadratic = self._tables
        best = []
        for rows in theta.split(rows_within(_CHUNK, len(linear))):
            score = rows @ linear.mT + rows.square() @ quadratic.mT
            top, which = score.max(dim=-1)
            own = score[:, 0]
            best.append(torch.where(top - own > _TOLERANCE * (1.0 + own.abs()), which, 0))
        chosen = torch.cat(best)
        elements = self._enumeration.elements
        g = tuple(SignedPermutation(h.permutation[chosen], h.sign[chosen]) for h in elements)
        return g, chosen > 0

    def _theta(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """The weights in float64, rows that have no score at the mean instead, and which do."""
        theta = position[:, : len(self.reference.mean)].detach().cpu().double()
        finite = (theta.square() / self.reference.variance).sum(dim=-1).isfinite()
        return torch.where(finite.unsqueeze(-1), theta, self.reference.mean), finite

    @property
    def _layers(self) -> tuple[UnitGroup, ...]:
        return unit_layers(self.group)

    @cached_property
    def _enumeration(self) -> Enumeration:
        return enumerate_group(self.group, len(self.reference.mean))

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """``log N(g_k.theta)``, less a constant, is linear in theta and theta^2: (|G|, P) each."""
        mean, variance = self.reference
        pull_back = self._enumeration.pull_back
        return pull_back(mean / variance), pull_back(-0.5 / variance, signed=False)


def has_exact_domain(group: SymmetryGroup) -> bool:
    """Whether `FundamentalDomain` can tell who is inside: one hidden layer, or a small group."""
    return len(group.factors) <= 1 or can_enumerate(group)
