"""Enumeration of small groups, and a fundamental domain of the action on weights."""

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

MAX_ORDER = 10_000  # number of elements up to which tables over the whole group are cheap


class Enumeration(NamedTuple):
    """The elements ``g_0 = identity, g_1, ...`` of a group, acting on positions of length D.

    Entry ``e`` of ``g_k.x`` is ``sign[k, e] * x[gather[k, e]]``.

    Attributes
    ----------
    gather : int64 Tensor of shape (|G|, D)
        Position that each entry comes from.
    sign : int8 Tensor of shape (|G|, D)
        Sign of each entry, +1 or -1.
    elements : tuple of SignedPermutation
        The elements of each layer's group, with batch shape (|G|,).
    """

    gather: Tensor
    sign: Tensor
    elements: tuple[SignedPermutation, ...]

    @property
    def order(self) -> int:
        """Number |G| of elements."""
        return len(self.gather)

    def orbit(self, position: Tensor) -> Tensor:
        """Return all images of each position, (*B, D) -> (*B, |G|, D)."""
        return position[..., self.gather] * self.sign.to(position)

    def pull_back(self, weights: Tensor, *, signed: bool = True) -> Tensor:
        """Return ``g_k^-1.weights`` in row ``k``, (D,) -> (|G|, D).

        The scores of all images are then one product, ``(g_k.x) . weights = x . (g_k^-1.weights)``.

        Parameters
        ----------
        weights : Tensor of shape (D,)
            Weights of the entries.
        signed : bool, default=True
            Whether signs act on the weights. False is for weights of squared entries.
        """
        moved = weights.expand(self.gather.shape)
        if signed:
            moved = self.sign.to(weights) * weights
        return torch.zeros_like(moved).scatter_(1, self.gather, moved)


def enumerate_group(
    group: SymmetryGroup, n_dims: int, *, max_order: int = MAX_ORDER
) -> Enumeration:
    """List all elements of a finite group.

    Parameters
    ----------
    group : SymmetryGroup
        Product of groups of units.
    n_dims : int
        Length D of a position. Entries that belong to no unit don't move.
    max_order : int, default=10,000
        Largest number of elements. The tables take ``9 |G| D`` bytes.

    Returns
    -------
    Enumeration
        The elements, the identity first.

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
    tables = [_enumerate_elements(layer) for layer in layers]
    sizes = [len(table.permutation) for table in tables]
    # The digits of an element's rank, in a mixed radix, are its positions in the tables of layers.
    elements = []
    rank = torch.arange(prod(sizes))
    for table, size in zip(tables, sizes, strict=True):
        position = rank % size
        rank = rank // size
        elements.append(SignedPermutation(table.permutation[position], table.sign[position]))
    # The image of 1, 2, ..., D shows where every entry comes from, and its sign.
    probe = torch.arange(1, n_dims + 1).repeat(prod(sizes), 1)
    moved = Product(layers).act(tuple(elements), probe)
    return Enumeration(moved.abs() - 1, moved.sign().to(torch.int8), tuple(elements))


def can_enumerate(group: SymmetryGroup, *, max_order: int = MAX_ORDER) -> bool:
    """Return whether the group has at most ``max_order`` elements."""
    return group.log_order <= log(max_order) + 1e-9


def _enumerate_elements(layer: UnitGroup) -> SignedPermutation:
    """Return all elements of one layer's group, with batch shape (|G|,)."""
    d = layer.n_units
    if layer.permutes:
        orders = list(permutations(range(d)))
    else:
        orders = [tuple(range(d))]
    sign_values = (1, -1) if layer.flips else (1,)
    orders_table = torch.tensor(orders)
    signs = torch.tensor(list(product(sign_values, repeat=d)))
    return SignedPermutation(
        orders_table.repeat_interleave(len(signs), dim=0),
        signs.to(torch.int8).repeat(len(orders), 1),
    )


@dataclass(frozen=True, eq=False)
class FundamentalDomain:
    """Region of weights where the order and signs of hidden units fit a reference best.

        F = {theta : argmax over g of log N(g.theta; mean, diag variance) = identity}

    The copies ``g^-1 F`` tile the space. Almost every orbit has |G| members, exactly one of which
    is in F. An invariant density is therefore determined by its restriction to F, and it is enough
    to sample within F.

    Parameters
    ----------
    group : SymmetryGroup
        Product of groups of units.
    reference : DiagonalReference
        Mean and variance of every entry of ``theta``. If some g leaves the mean unchanged, or two
        units have equal means and variances, F is the whole space along that g.

    Raises
    ------
    ValueError
        If there are two or more hidden layers and more than 10,000 group elements. The best joint
        labels are then the solution of a quadratic assignment problem, for which labelling layer by
        layer isn't exact.

    Notes
    -----
    With one hidden layer of d units with p entries, membership is an assignment problem of cost
    O(d^2 p + d^3) for each position. With several layers all elements are tried, which costs
    O(|G| P). Computations are in float64 on the CPU. Columns of a position beyond P are ignored and
    don't move.
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
        """Return whether each position lies in F, (C, D) -> bool (C,); False if it isn't finite."""
        if not self._layers:  # F is the whole space, and nothing is copied to the host
            return position.double().square().sum(dim=1).isfinite()
        theta, finite = self._theta(position)
        return (finite & ~self._best(theta)[1]).to(position.device)

    def enter(self, position: Tensor) -> tuple[Tensor, tuple[SignedPermutation, ...]]:
        """Return the member of each orbit that lies in F, and the element used.

        Parameters
        ----------
        position : Tensor of shape (C, D)
            Positions.

        Returns
        -------
        position : Tensor of shape (C, D)
            Positions in F.
        g : tuple of SignedPermutation
            An element of each layer's group. It is the identity if the position is in F already, or
            isn't finite.
        """
        if not self._layers:
            return position, ()
        g, _ = self._best(self._theta(position)[0])
        g = tuple(SignedPermutation(*(part.to(position.device) for part in h)) for h in g)
        return Product(self._layers).act(g, position), g

    def _best(self, theta: Tensor) -> tuple[tuple[SignedPermutation, ...], Tensor]:
        """Return the best element for each row, and whether it is better than the identity."""
        if len(self._layers) > 1:
            return self._best_element(theta)
        g, moved = improve_labelling(theta, self._layers[0], self.reference, thorough=True)
        return (g,), moved

    def _best_element(self, theta: Tensor) -> tuple[tuple[SignedPermutation, ...], Tensor]:
        """Find the best of all elements, for groups of several layers."""
        linear, quadratic = self._tables
        best = []
        for rows in theta.split(n_rows_per_block(1 << 20, len(linear))):
            score = rows @ linear.mT + rows.square() @ quadratic.mT
            highest, position = score.max(dim=-1)
            current = score[:, 0]
            is_better = highest - current > 1e-9 * (1.0 + current.abs())  # more than rounding
            best.append(torch.where(is_better, position, 0))
        index = torch.cat(best)
        elements = self._enumeration.elements
        g = tuple(SignedPermutation(h.permutation[index], h.sign[index]) for h in elements)
        return g, index > 0

    def _theta(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights in float64, and which have finite scores; others become the mean."""
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
        """Coefficients of theta and theta^2 in ``log N(g_k.theta)``, (|G|, P) each."""
        mean, variance = self.reference
        pull_back = self._enumeration.pull_back
        return pull_back(mean / variance), pull_back(-0.5 / variance, signed=False)


def has_exact_domain(group: SymmetryGroup) -> bool:
    """Return whether `FundamentalDomain` can be exact: for one hidden layer, or a small group."""
    return len(group.factors) <= 1 or can_enumerate(group)
