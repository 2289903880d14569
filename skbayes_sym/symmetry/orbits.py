"""All elements of a small group at once, as signed permutations of the entries of a position."""

from itertools import permutations, product
from math import exp, log, prod
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.symmetry.base import Product, SymmetryGroup
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

    Parameters
    ----------
    group : Trivial, Units or a Product of them
        Its factors say which entries belong to which unit.
    n_dims : int
        Length D of a position; entries that belong to no unit stay where they are.
    max_order : int
        Refuse larger groups: the tables hold ``9 |G| D`` bytes.

    Returns
    -------
    Enumeration
        The identity is first.

    Raises
    ------
    ValueError
        If |G| exceeds ``max_order``.
    """
    if not can_enumerate(group, max_order=max_order):
        raise ValueError(
            f"the group has {exp(min(group.log_order, 700.0)):.3g} elements, more than the "
            f"{max_order} that are enumerated: use fewer or narrower hidden layers."
        )
    layers = unit_layers(group)
    tables = [_elements_of(layer) for layer in layers]
    sizes = [len(table.permutation) for table in tables]
    elements, rank = [], torch.arange(prod(sizes))
    for table, size in zip(tables, sizes, strict=True):
        chosen, rank = rank % size, rank // size
        elements.append(SignedPermutation(table.permutation[chosen], table.sign[chosen]))
    # What an element does to 1, 2, ..., D shows where every entry comes from, and its sign.
    probe = torch.arange(1, n_dims + 1).repeat(prod(sizes), 1)
    moved = Product(layers).act(tuple(elements), probe)
    return Enumeration(moved.abs() - 1, moved.sign().to(torch.int8), tuple(elements))


def can_enumerate(group: SymmetryGroup, *, max_order: int = MAX_ORDER) -> bool:
    """Whether the group has at most ``max_order`` elements."""
    return group.log_order <= log(max_order) + 1e-9


def _elements_of(layer: UnitGroup) -> SignedPermutation:
    """All elements of one layer's group, batch shape (|G|,)."""
    d = layer.n_units
    orders = torch.tensor(list(permutations(range(d))) if layer.permutes else [range(d)])
    signs = torch.tensor(list(product((1, -1) if layer.flips else (1,), repeat=d)))
    return SignedPermutation(
        orders.repeat_interleave(len(signs), dim=0), signs.to(torch.int8).repeat(len(orders), 1)
    )
