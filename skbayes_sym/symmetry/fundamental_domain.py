"""Small groups listed element by element, and the one copy of weight space that a group leaves."""

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import exp, log, prod
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.symmetry.group import Product, SymmetryGroup
from skbayes_sym.symmetry.relabelling import DiagonalReference, improve_labelling
from skbayes_sym.symmetry.units import SignedPermutation, UnitGroup, unit_layers

MAX_ORDER = 10_000  # elements up to which tables over the whole group are cheap


class Enumeration(NamedTuple):
    """The elements ``g_0 = identity, g_1, ...`` of a group, acting on positions of length D.

    Entry ``e`` of ``g_k.x`` is ``sign[k, e] * x[gather[k, e]]``.
    """

    gather: Tensor  # int64 (|G|, D)
    sign: Tensor  # +-1, int8 (|G|, D)
    elements: tuple[SignedPermutation, ...]  # one a layer, batch shape (|G|,)

    @property
    def order(self) -> int:
        """Number |G| of elements."""
        return len(self.gather)

    def orbit(self, position: Tensor) -> Tensor:
        """All images of each position, (*B, D) -> (*B, |G|, D)."""
        return position[..., self.gather] * self.sign.to(position)

    def pull_back(self, weights: Tensor, *, signed: bool = True) -> Tensor:
        """Row ``k`` is ``g_k^-1.weights``, (D,) -> (|G|, D).

        Scores of all images are then one product: ``(g_k.x) . weights = x . (g_k^-1.weights)``;
        without signs the same for squares of the entries.
        """
        moved = self.sign.to(weights) * weights if signed else weights.expand(self.gather.shape)
        return torch.zeros_like(moved).scatter_(1, self.gather, moved)


def enumerate_group(
    group: SymmetryGroup, n_dims: int, *, max_order: int = MAX_ORDER
) -> Enumeration:
    """Table of all elements of a finite group.

    ``group``: its factors say which entries belong to which unit. ``n_dims``: length D of a
    position; entries that belong to no unit stay where they are. ``max_order``: refuse larger
    groups: the tables hold ``9 |G| D`` bytes. Returns: the identity is first. Raises ValueError if
    |G| exceeds ``max_order``.
    """
    if not can_enumerate(group, max_order=max_order):
        raise ValueError(
            f"the group has {exp(min(group.log_order, 700.0)):.3g} elements, more than the "
            f"{max_order} that are enumerated: use fewer or narrower hidden layers."
        )
    layers = unit_layers(group)
    tables = [_enumerate_elements(layer) for layer in layers]
    sizes = [len(table.permutation) for table in tables]
    elements = []
    rank = torch.arange(prod(sizes))
    for table, size in zip(tables, sizes, strict=True):
        chosen = rank % size
        rank = rank // size
        elements.append(SignedPermutation(table.permutation[chosen], table.sign[chosen]))
    # What an element does to 1, 2, ..., D shows where every entry comes from, and its sign.
    probe = torch.arange(1, n_dims + 1).repeat(prod(sizes), 1)
    moved = Product(layers).act(tuple(elements), probe)
    return Enumeration(moved.abs() - 1, moved.sign().to(torch.int8), tuple(elements))


def can_enumerate(group: SymmetryGroup, *, max_order: int = MAX_ORDER) -> bool:
    """Whether the group has at most ``max_order`` elements."""
    return group.log_order <= log(max_order) + 1e-9


def _enumerate_elements(layer: UnitGroup) -> SignedPermutation:
    """All elements of one layer's group, batch shape (|G|,)."""
    d = layer.n_units
    orders = torch.tensor(list(permutations(range(d))) if layer.permutes else [range(d)])
    signs = torch.tensor(list(product((1, -1) if layer.flips else (1,), repeat=d)))
    return SignedPermutation(
        orders.repeat_interleave(len(signs), dim=0), signs.to(torch.int8).repeat(len(orders), 1)
    )


@dataclass(frozen=True, eq=False)
class FundamentalDomain:
    """Region where the labels of hidden units fit a given reference best.

        F = {theta : argmax over g of log N(g.theta; mean, diag variance) = identity}

    The copies ``g^-1 F`` tile the space: almost every orbit has |G| members and exactly one in F.
    So a density that the group leaves unchanged is the average of its copies on F, moved about,
    and sampling it within F loses nothing.

    ``reference``: mean and variance of every entry of ``theta``. A mean that some g leaves
    unchanged, or equal variances and means of two units, make F the whole space along that g.
    Raises ValueError with two or more hidden layers and more than 10,000 group elements: the best
    joint labels are a quadratic assignment problem, and layer by layer is not exact.

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

        ``position`` (C, D). Returns ``position`` (C, D), ``g``: the identity where the position is
        in F already, or isn't finite.
        """
        if not self._layers:
            return position, ()
        g, _ = self._best(self._theta(position)[0])
        g = tuple(SignedPermutation(*(part.to(position.device) for part in h)) for h in g)
        return Product(self._layers).act(g, position), g

    def _best(self, theta: Tensor) -> tuple[tuple[SignedPermutation, ...], Tensor]:
        """The best element for each row, and whether it beats the identity."""
        if len(self._layers) > 1:
            return self._best_element(theta)
        g, moved = improve_labelling(theta, self._layers[0], self.reference, thorough=True)
        return (g,), moved

    def _best_element(self, theta: Tensor) -> tuple[tuple[SignedPermutation, ...], Tensor]:
        linear, quadratic = self._tables
        best = []
        for rows in theta.split(n_rows_per_block(1 << 20, len(linear))):
            score = rows @ linear.mT + rows.square() @ quadratic.mT
            top, which = score.max(dim=-1)
            current = score[:, 0]
            gains = top - current > 1e-9 * (1.0 + current.abs())  # by more than rounding
            best.append(torch.where(gains, which, 0))
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
