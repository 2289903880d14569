"""Exchange and sign flips of whole units: hidden units, or components of a factorisation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import lgamma, log, prod
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import check_flag, check_tensor
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
    """Element of a group of units.

    Unit ``i`` of ``g.theta`` is ``sign[i]`` times unit ``permutation[i]`` of ``theta``.

    Attributes
    ----------
    permutation : int64 Tensor of shape (*B, d)
        Which unit moves to each position.
    sign : int8 Tensor of shape (*B, d)
        +1 or -1.
    """

    permutation: Tensor
    sign: Tensor

    def select(self, mask: Tensor, other: "SignedPermutation") -> "SignedPermutation":
        """Return this element where ``mask`` (*B,) holds, and ``other`` elsewhere."""
        parts = []
        for own_part, other_part in zip(self, other, strict=True):
            rows = mask.view(*mask.shape, *[1] * (own_part.ndim - mask.ndim))
            parts.append(torch.where(rows, own_part, other_part))
        return SignedPermutation(*parts)


@runtime_checkable
class UnitGroup(SymmetryGroup, Protocol):
    """A group that moves whole units of one layer. Its elements are `SignedPermutation`."""

    @property
    def index(self) -> Tensor:
        """Positions in the flat ``theta`` of the entries of each unit, int64 (d, p)."""

    @property
    def permutes(self) -> bool:
        """Whether units can be exchanged."""

    @property
    def flips(self) -> bool:
        """Whether the sign of a unit is free."""

    @property
    def n_units(self) -> int:
        """Number d of units."""

    def with_index(self, index: Tensor) -> "UnitGroup":
        """Return the same group acting on other entries.

        Parameters
        ----------
        index : int64 Tensor of shape (d, p')
            Positions of the entries of each unit, for example some columns of `index`.
        """


class SignedPermutations(InPlaceActionMixin, SimpleGroup):
    """Base of groups that exchange units and flip their signs.

    There may be outer axes, such as the heads of an attention layer. At each position of the outer
    axes there are separate units, which move independently.

    Attributes
    ----------
    n_units : int
        Number d of units.
    n_signs : int
        Number of independent signs of a unit.
    outer_shape : tuple of int
        Sizes of the outer axes.
    permute : bool
        Whether units can be exchanged.
    """

    n_units: int
    n_signs: int
    outer_shape: tuple[int, ...]
    permute: bool

    @property
    def log_order(self) -> float:
        """Log of the number of elements, in nats."""
        if self.permute:
            permutations = lgamma(self.n_units + 1)
        else:
            permutations = 0.0
        return prod(self.outer_shape) * (permutations + self.n_signs * self.n_units * log(2.0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.moves}, log |G| = {self.log_order:.1f} nats"

    @property
    def moves(self) -> str:
        """Description of the units and of how they move."""
        if self.outer_shape:
            copies = f"{prod(self.outer_shape)} times "
        else:
            copies = ""
        moves = ["exchanged" if self.permute else "in their places"]
        if self.n_signs:
            if self.n_signs == 1:
                signs = "a sign"
            else:
                signs = f"{self.n_signs} signs"
            moves.append(f"each with {signs}")
        return f"{copies}{self.n_units} units, {', '.join(moves)}"

    def check_element(self, g: Any) -> None:
        """Raise unless ``g`` is an element of this group."""
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
        """Return the identity element."""
        shape = (*self.outer_shape, self.n_units)
        signs = torch.ones(*shape, self.n_signs, dtype=torch.int8)
        return SignedPermutation(torch.arange(self.n_units).expand(shape), signs)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> SignedPermutation:
        """Sample uniform elements with batch shape ``shape``."""
        shape = (*shape, *self.outer_shape)
        device = generator.device
        permutation = torch.arange(self.n_units, device=device).expand(*shape, self.n_units)
        if self.permute:
            permutation = random_permutations(shape, self.n_units, generator=generator)
        coin = torch.rand((*permutation.shape, self.n_signs), generator=generator, device=device)
        return SignedPermutation(permutation, torch.where(coin < 0.5, -1, 1).to(torch.int8))

    def batch(self, g: SignedPermutation) -> tuple[int, ...]:
        """Return the batch shape of an element."""
        return tuple(g.permutation.shape[: -1 - len(self.outer_shape)])

    def generators(self) -> list[tuple[str, SignedPermutation]]:
        """Return generators at every outer position.

        They are an exchange of two units, a cyclic shift, and flips of the first unit. Without
        exchanges, there are flips of every unit.
        """
        d = self.n_units
        generators = []
        orders = {"0 and 1 exchanged": [1, 0, *range(2, d)], "rotated": [d - 1, *range(d - 1)]}
        for position in product(*map(range, self.outer_shape)):
            if position:
                suffix = f" at place {', '.join(map(str, position))}"
            else:
                suffix = ""
            for name, order in orders.items() if self.permute and d > 1 else ():
                permutation, signs = (part.clone() for part in self.identity())
                permutation[position] = torch.tensor(order)
                generators.append((f"units {name}{suffix}", SignedPermutation(permutation, signs)))
            for k, i in product(range(self.n_signs), range(1 if self.permute else d)):
                permutation, signs = (part.clone() for part in self.identity())
                signs.view(*permutation.shape, -1)[(*position, i, k)] = -1
                sign_name = "sign" if self.n_signs == 1 else f"sign {k}"
                g = SignedPermutation(permutation, signs)
                generators.append((f"{sign_name} of unit {i} flipped{suffix}", g))
        return generators

    def subgroup(self, *, permute: bool, signs: Sequence[int]) -> "SignedPermutations":
        """Return the subgroup with or without exchanges, and with some of the signs.

        Parameters
        ----------
        permute : bool
            Whether units can be exchanged.
        signs : sequence of int
            Which signs are free.
        """
        raise NotImplementedError

    def invariant_subgroup(
        self, is_invariant: Callable[[SymmetryGroup], bool]
    ) -> "SignedPermutations":
        """Return the `subgroup` of what ``is_invariant`` accepts.

        Exchanges and each sign are tried separately. The result is a group of units, even if it is
        trivial because it has neither.
        """

        def accepts(*, permute: bool, signs: Sequence[int]) -> bool:
            part: Any = self.subgroup(permute=permute, signs=signs)
            return is_invariant(part)

        signs = [k for k in range(self.n_signs) if accepts(permute=False, signs=(k,))]
        permute = self.permute and accepts(permute=True, signs=())
        return self.subgroup(permute=permute, signs=signs)

    def restrict(self, is_invariant: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        """Return the largest subgroup made of parts that ``is_invariant`` accepts."""
        group: Any = self.invariant_subgroup(is_invariant)
        if group.permute or group.n_signs:
            return group
        return Trivial()

    def inverse(self, g: SignedPermutation) -> SignedPermutation:
        """Return the inverse of ``g``."""
        self.check_element(g)
        permutation = g.permutation.argsort(dim=-1)
        return SignedPermutation(
            permutation, permute_axis(g.sign, permutation, permutation.ndim - 1)
        )

    def compose(self, g: SignedPermutation, h: SignedPermutation) -> SignedPermutation:
        """Return the element that acts as ``h`` first, then as ``g``."""
        self.check_element(g)
        self.check_element(h)
        shape = np.broadcast_shapes(g.permutation.shape, h.permutation.shape)
        expanded = [
            SignedPermutation(
                x.permutation.expand(shape),
                x.sign.expand(*shape, *x.sign.shape[x.permutation.ndim :]),
            )
            for x in (g, h)
        ]
        outer, inner = expanded
        axis = len(shape) - 1
        return SignedPermutation(
            permute_axis(inner.permutation, outer.permutation, axis),
            outer.sign * permute_axis(inner.sign, outer.permutation, axis),
        )


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

    def __post_init__(self) -> None:
        check_tensor("Units", "index", self.index, 2, is_index=True)
        check_flag("permute", self.permute)
        check_flag("flip", self.flip)

    @cached_property
    def n_params(self) -> int:  # type: ignore[override]
        """Length of the shortest ``theta`` that has all entries that the group moves."""
        if self.index.numel():
            return 1 + int(self.index.max())
        return 0

    @property
    def permutes(self) -> bool:
        """Whether units can be exchanged."""
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
        """Return the subgroup with or without exchanges, and with some of the signs."""
        return replace(self, permute=permute, flip=len(signs) > 0)

    def with_index(self, index: Tensor) -> "Units":
        """Return the same group acting on other entries.

        Parameters
        ----------
        index : int64 Tensor of shape (d, p')
            Positions of the entries of each unit, for example some columns of `index`.
        """
        return replace(self, index=index)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> SignedPermutation:
        """Sample uniform elements with batch shape ``shape``."""
        permutation, signs = super().sample(shape, generator=generator)
        none = torch.ones_like(permutation, dtype=torch.int8)
        return SignedPermutation(permutation, signs.squeeze(-1) if self.flip else none)

    def move_(self, g: SignedPermutation, theta: Tensor) -> Tensor:
        """Act on ``theta`` in place, without checks."""
        units = gather_units(theta, self.index)
        batch = theta.shape[:-1]
        if self.permute:
            units = permute_axis(
                units, g.permutation.to(theta.device).expand(*batch, -1), len(batch)
            )
        if self.flip:
            units = units * g.sign.to(theta).unsqueeze(-1)
        theta[..., self.index.flatten()] = units.flatten(-2)
        return theta

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, SignedPermutation]:
        """Return the nearest orbit point in Euclidean distance, and the element used.

        One assignment problem is solved for each draw.

        Parameters
        ----------
        theta, reference : Tensor of shape (*B, P)
            Weights to move, and where to move them.

        Returns
        -------
        moved : Tensor of shape (*B, P)
            ``g.theta``.
        g : SignedPermutation
            The element of the group.
        """
        self.check_pair(theta, reference)
        inner = gather_units(reference, self.index) @ gather_units(theta, self.index).mT
        if self.permute:
            permutation = best_assignment(inner.abs() if self.flip else inner)
        else:
            permutation = torch.arange(self.n_units, device=inner.device).expand(inner.shape[:-1])
        matched = inner.gather(-1, permutation.unsqueeze(-1)).squeeze(-1)
        g = SignedPermutation(permutation, nonzero_sign(matched, free=self.flip))
        return self.act(g, theta), g

    def identity(self) -> SignedPermutation:
        """Return the identity element."""
        plus = torch.ones(self.n_units, dtype=torch.int8)
        return SignedPermutation(torch.arange(self.n_units), plus)

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Return the columns of ``index`` as orbits if units can be exchanged."""
        orbits = torch.arange(n_params)
        if self.permute and self.n_units:
            index = self.index.cpu()
            orbits[index] = index.amin(dim=0).expand(index.shape)
        return orbits


def unit_layers(group: SymmetryGroup) -> tuple[UnitGroup, ...]:
    """Return the factors of a group as groups of units, one for each layer.

    The trivial group has none.

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
    """Return the subgroup that consists of units, and the other factors."""
    others = tuple(f for f in group.factors if not isinstance(f, UnitGroup))
    if not others:
        return group, ()
    units = tuple(f for f in group.factors if isinstance(f, UnitGroup))
    if not units:
        return Trivial(), others
    return Product(units), others


def anchored_entries(layers: Sequence[UnitGroup]) -> list[Tensor]:
    """Return which entries of each layer's units no later layer moves.

    These are the weights from the inputs and from earlier layers, the bias, and in the last layer
    the weights to the outputs.

    Parameters
    ----------
    layers : sequence of UnitGroup
        Groups of units, the first layer first.

    Returns
    -------
    list of bool Tensor of shape (p_l,)
        For each layer a mask of the columns of its ``index``.
    """
    masks = []
    for i, layer in enumerate(layers):
        later = [other.index.flatten() for other in layers[i + 1 :]]
        masks.append(~torch.isin(layer.index[0], torch.cat([layer.index[:0, 0], *later])))
    return masks


def nonzero_sign(values: Tensor, *, free: bool = True) -> Tensor:
    """Return the sign of each value as int8; +1 for zero, and for all if signs aren't free."""
    return torch.where((values < 0) & free, -1, 1).to(torch.int8)


def gather_units(theta: Tensor, index: Tensor) -> Tensor:
    """Return the entries of every unit, (*B, P) -> (*B, d, p)."""
    return theta[..., index]


def permute_axis(values: Tensor, permutation: Tensor, axis: int) -> Tensor:
    """Permute the positions of an axis: entry ``permutation[..., i]`` moves to position ``i``.

    Parameters
    ----------
    values : Tensor of shape (*A, d, *rest)
        Values.
    permutation : int64 Tensor of shape (*A', d)
        A permutation for each leading position. ``A'`` is ``A`` or its beginning.
    axis : int
        The axis of size d.
    """
    if permutation.ndim == 1:
        return values.index_select(axis, permutation)
    between = [1] * (axis + 1 - permutation.ndim)
    rest = [1] * (values.ndim - axis - 1)
    index = permutation.reshape(*permutation.shape[:-1], *between, permutation.shape[-1], *rest)
    return values.gather(axis, index.expand(values.shape))
