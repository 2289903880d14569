"""Exchange and sign flips of whole units: hidden units, components of a factorisation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import lgamma, log, prod
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.assignment import best_assignment
from skbayes_sym.numerics.random import random_permutations
from skbayes_sym.symmetry.group import (
    InPlaceActionMixin,
    Product,
    SimpleGroup,
    SymmetryGroup,
    Trivial,
)


class SignedPermutation(NamedTuple):
    """Unit ``i`` of ``g.theta`` is ``sign[i]`` times unit ``permutation[i]`` of ``theta``."""

    permutation: Tensor  # int64 (*B, d)
    sign: Tensor  # +-1, int8 (*B, d)

    def select(self, mask: Tensor, other: "SignedPermutation") -> "SignedPermutation":
        """This element where ``mask`` (*B,) holds, elsewhere the other."""
        masks = (mask.view(*mask.shape, *[1] * (part.ndim - mask.ndim)) for part in self)
        parts = zip(masks, self, other, strict=True)
        return SignedPermutation(*(torch.where(rows, ours, theirs) for rows, ours, theirs in parts))


@runtime_checkable
class UnitGroup(SymmetryGroup, Protocol):
    """A group that moves whole units of one layer; its elements are `SignedPermutation`."""

    @property
    def index(self) -> Tensor:
        """Positions in the flat ``theta`` of the entries of each unit, int64 (d, p)."""

    @property
    def permutes(self) -> bool:
        """Whether units may change places."""

    @property
    def flips(self) -> bool:
        """Whether the sign of a unit is free."""

    @property
    def n_units(self) -> int:
        """Number d of units."""

    def with_index(self, index: Tensor) -> "UnitGroup":
        """Group acting on other entries, int64 (d, p'): of some of its columns, say."""


class SignedPermutations(InPlaceActionMixin, SimpleGroup):
    """Base of groups that exchange units and flip their signs, apart at each of some places."""

    n_units: int
    n_signs: int  # of a unit
    outer_shape: tuple[int, ...]
    permute: bool

    @property
    def log_order(self) -> float:
        permutations = lgamma(self.n_units + 1) if self.permute else 0.0
        return prod(self.outer_shape) * (permutations + self.n_signs * self.n_units * log(2.0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.moves}, log |G| = {self.log_order:.1f} nats"

    @property
    def moves(self) -> str:
        """The units and what moves them, in words."""
        several = f"{prod(self.outer_shape)} times " if self.outer_shape else ""
        moves = ["exchanged" if self.permute else "in their places"]
        if self.n_signs:
            moves.append(
                "each with " + ("a sign" if self.n_signs == 1 else f"{self.n_signs} signs")
            )
        return f"{several}{self.n_units} units, {', '.join(moves)}"

    def check_element(self, g: Any) -> None:
        if not isinstance(g, SignedPermutation):
            raise TypeError(
                f"an element of this group is a SignedPermutation, got {type(g).__name__}: take "
                "one of group.sample or group.generators."
            )
        shape = (*self.outer_shape, self.n_units)
        if tuple(g.permutation.shape[-len(shape) :]) != shape:
            raise ValueError(
                f"the element has a permutation of shape {tuple(g.permutation.shape)}, but this "
                f"group has shape (..., {', '.join(map(str, shape))}): it is one of another group."
            )

    def identity(self) -> SignedPermutation:
        shape = (*self.outer_shape, self.n_units)
        signs = torch.ones(*shape, self.n_signs, dtype=torch.int8)
        return SignedPermutation(torch.arange(self.n_units).expand(shape), signs)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> SignedPermutation:
        shape = (*shape, *self.outer_shape)
        device = generator.device
        permutation = torch.arange(self.n_units, device=device).expand(*shape, self.n_units)
        if self.permute:
            permutation = random_permutations(shape, self.n_units, generator=generator)
        coin = torch.rand((*permutation.shape, self.n_signs), generator=generator, device=device)
        return SignedPermutation(permutation, torch.where(coin < 0.5, -1, 1).to(torch.int8))

    def batch(self, g: SignedPermutation) -> tuple[int, ...]:
        return tuple(g.permutation.shape[: -1 - len(self.outer_shape)])

    def generators(self) -> list[tuple[str, SignedPermutation]]:
        """An exchange, a rotation and flips of the first unit (or of each), at every place."""
        d = self.n_units
        named = []
        orders = {"0 and 1 exchanged": [1, 0, *range(2, d)], "rotated": [d - 1, *range(d - 1)]}
        for place in product(*map(range, self.outer_shape)):
            where = f" at place {', '.join(map(str, place))}" if place else ""
            for name, order in orders.items() if self.permute and d > 1 else ():
                permutation, signs = (part.clone() for part in self.identity())
                permutation[place] = torch.tensor(order)
                named.append((f"units {name}{where}", SignedPermutation(permutation, signs)))
            for k, i in product(range(self.n_signs), range(1 if self.permute else d)):
                permutation, signs = (part.clone() for part in self.identity())
                signs.view(*permutation.shape, -1)[(*place, i, k)] = -1
                which = "" if self.n_signs == 1 else f" {k}"
                g = SignedPermutation(permutation, signs)
                named.append((f"sign{which} of unit {i} flipped{where}", g))
        return named

    def subgroup(self, *, permute: bool, signs: Sequence[int]) -> "SignedPermutations":
        """Subgroup with or without exchanges, and with some of the signs."""
        raise NotImplementedError

    def kept(self, keeps: Callable[[SymmetryGroup], bool]) -> "SignedPermutations":
        """`subgroup` of what ``keeps`` accepts; without exchanges and signs it is trivial."""

        def has(*, permute: bool, signs: Sequence[int]) -> bool:
            part: Any = self.subgroup(permute=permute, signs=signs)
            return keeps(part)

        signs = [k for k in range(self.n_signs) if has(permute=False, signs=(k,))]
        permute = self.permute and has(permute=True, signs=())
        return self.subgroup(permute=permute, signs=signs)

    def restrict(self, keeps: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        group: Any = self.kept(keeps)
        return group if group.permute or group.n_signs else Trivial()

    def inverse(self, g: SignedPermutation) -> SignedPermutation:
        self.check_element(g)
        permutation = g.permutation.argsort(dim=-1)
        return SignedPermutation(permutation, take(g.sign, permutation, permutation.ndim - 1))

    def compose(self, g: SignedPermutation, h: SignedPermutation) -> SignedPermutation:
        self.check_element(g)
        self.check_element(h)
        shape = np.broadcast_shapes(g.permutation.shape, h.permutation.shape)
        (outer, ours), (inner, theirs) = (
            (p.expand(shape), sign.expand(*shape, *sign.shape[p.ndim :])) for p, sign in (g, h)
        )
        axis = len(shape) - 1
        return SignedPermutation(take(inner, outer, axis), ours * take(theirs, outer, axis))


@dataclass(frozen=True, eq=False, repr=False)
class Units(SignedPermutations):
    """Exchange of interchangeable units, sign flips of units, or both.

    Unit ``i`` owns the entries ``theta[index[i]]``: its incoming weights, its bias and its
    outgoing weights, in the same order for every unit. Exchanging units leaves every layer's
    function unchanged (Gelberg et al. 2024, Definition 2.1). Negating the incoming weights and the
    bias of a unit negates an odd activation (tanh, identity); negating the outgoing weights undoes
    it. In a factorisation ``R = U V'`` a unit is a component: a column of U together with the same
    column of V (Moore 2016, section 3.1).

    Parameters
    ----------
    index : int64 Tensor of shape (d, p)
        Positions in the flat ``theta`` of the ``p`` entries of each of the ``d`` units.
    permute : bool, default=True
        Whether units can be exchanged: d! elements, times 2^d with flips.
    flip : bool, default=False
        Whether the sign of each unit is free: 2^d elements, times d! with exchanges.

    Notes
    -----
    An element is a `SignedPermutation`; without ``permute`` its permutation is the identity,
    without ``flip`` its signs are +1.
    """

    index: Tensor
    permute: bool = True
    flip: bool = False
    outer_shape: tuple[int, ...] = field(default=(), init=False, repr=False)

    @cached_property
    def n_params(self) -> int:  # type: ignore[override]
        return 1 + int(self.index.max()) if self.index.numel() else 0

    @property
    def permutes(self) -> bool:
        """Whether units may change places."""
        return self.permute

    @property
    def flips(self) -> bool:
        """Whether the sign of a unit is free."""
        return self.flip

    @property
    def n_units(self) -> int:  # type: ignore[override]
        """Number d of units."""
        return int(self.index.shape[0])

    @property
    def n_signs(self) -> int:  # type: ignore[override]
        """1 with flips, else 0."""
        return int(self.flip)

    def subgroup(self, *, permute: bool, signs: Sequence[int]) -> "Units":
        return replace(self, permute=permute, flip=len(signs) > 0)

    def with_index(self, index: Tensor) -> "Units":
        """Group acting on other entries, int64 (d, p'): of some of its columns, say."""
        return replace(self, index=index)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> SignedPermutation:
        permutation, signs = super().sample(shape, generator=generator)
        none = torch.ones_like(permutation, dtype=torch.int8)
        return SignedPermutation(permutation, signs.squeeze(-1) if self.flip else none)

    def move_(self, g: SignedPermutation, theta: Tensor) -> Tensor:
        units = gather_units(theta, self.index)
        batch = theta.shape[:-1]
        if self.permute:
            units = take(units, g.permutation.to(theta.device).expand(*batch, -1), len(batch))
        if self.flip:
            units = units * g.sign.to(theta).unsqueeze(-1)
        theta[..., self.index.flatten()] = units.flatten(-2)
        return theta

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, SignedPermutation]:
        """Nearest orbit point in Euclidean distance, by one assignment problem a draw."""
        self.check_pair(theta, reference)
        inner = gather_units(reference, self.index) @ gather_units(theta, self.index).mT
        if self.permute:
            permutation = best_assignment(inner.abs() if self.flip else inner)
        else:
            permutation = torch.arange(self.n_units, device=inner.device).expand(inner.shape[:-1])
        chosen = inner.gather(-1, permutation.unsqueeze(-1)).squeeze(-1)
        g = SignedPermutation(permutation, nonzero_sign(chosen, free=self.flip))
        return self.act(g, theta), g

    def identity(self) -> SignedPermutation:
        plus = torch.ones(self.n_units, dtype=torch.int8)
        return SignedPermutation(torch.arange(self.n_units), plus)

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Orbits, one a column of ``index`` where units are exchanged; see `SymmetryGroup`."""
        orbits = torch.arange(n_params)
        if self.permute and self.n_units:
            index = self.index.cpu()
            orbits[index] = index.amin(dim=0).expand(index.shape)
        return orbits


def unit_layers(group: SymmetryGroup) -> tuple[UnitGroup, ...]:
    """The factors of a group as groups of units, one a layer; none for the trivial group.

    Raises
    ------
    TypeError
        If a factor isn't made of units.
    """
    layers = []
    for factor in group.factors:
        if not isinstance(factor, UnitGroup):
            raise TypeError(
                "this needs a group of exchangeable units (`Units`, or a `Product` of them), got "
                f"the factor {type(factor).__name__}."
            )
        layers.append(factor)
    return tuple(layers)


def split_units(group: SymmetryGroup) -> tuple[SymmetryGroup, tuple[SymmetryGroup, ...]]:
    """The subgroup that is made of units, and the other factors."""
    others = tuple(f for f in group.factors if not isinstance(f, UnitGroup))
    if not others:
        return group, ()
    units = tuple(f for f in group.factors if isinstance(f, UnitGroup))
    return Product(units) if units else Trivial(), others


def anchored_entries(layers: Sequence[UnitGroup]) -> list[Tensor]:
    """Which entries of each layer's units no later layer moves, bool (p_l,).

    Weights from the inputs and from earlier layers, the bias, and in the last layer the weights to
    the outputs.
    """
    masks = []
    for i, layer in enumerate(layers):
        later = [other.index.flatten() for other in layers[i + 1 :]]
        masks.append(~torch.isin(layer.index[0], torch.cat([layer.index[:0, 0], *later])))
    return masks


def nonzero_sign(values: Tensor, *, free: bool = True) -> Tensor:
    """Sign of each value, int8; 1 for zero, and for all where signs aren't free."""
    return torch.where((values < 0) & free, -1, 1).to(torch.int8)


def gather_units(theta: Tensor, index: Tensor) -> Tensor:
    """The entries of every unit: (*B, P) -> (*B, d, p)."""
    return theta[..., index]


def take(values: Tensor, permutation: Tensor, axis: int) -> Tensor:
    """Put entry ``permutation[..., i]`` of an axis in place ``i``.

    ``values`` (*A, d, *rest), ``permutation`` (*A', d), where ``A'`` is ``A`` or its beginning.
    """
    if permutation.ndim == 1:
        return values.index_select(axis, permutation)
    between = [1] * (axis + 1 - permutation.ndim)
    rest = [1] * (values.ndim - axis - 1)
    index = permutation.reshape(*permutation.shape[:-1], *between, permutation.shape[-1], *rest)
    return values.gather(axis, index.expand(values.shape))
