"""Exchange and sign flips of whole units: hidden units, components of a factorisation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lgamma, log
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.assignment import best_assignment
from skbayes_sym.numerics.random import random_permutations
from skbayes_sym.symmetry.group import Product, SymmetryGroup, Trivial


class SignedPermutation(NamedTuple):
    """Unit ``i`` of ``g.theta`` is ``sign[i]`` times unit ``permutation[i]`` of ``theta``."""

    permutation: Tensor  # int64 (*B, d)
    sign: Tensor  # +-1, int8 (*B, d)

    def where(self, mask: Tensor, other: "SignedPermutation") -> "SignedPermutation":
        """This element where ``mask`` (*B,) holds, elsewhere the other."""
        rows = mask.unsqueeze(-1)
        return SignedPermutation(
            torch.where(rows, self.permutation, other.permutation),
            torch.where(rows, self.sign, other.sign),
        )


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

    def on(self, index: Tensor) -> "UnitGroup":
        """Group acting on other entries, int64 (d, p'): of some of its columns, say."""


@dataclass(frozen=True, eq=False)
class Units:
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

    @property
    def permutes(self) -> bool:
        """Whether units may change places."""
        return self.permute

    @property
    def flips(self) -> bool:
        """Whether the sign of a unit is free."""
        return self.flip

    @property
    def n_units(self) -> int:
        """Number d of units."""
        return int(self.index.shape[0])

    @property
    def log_order(self) -> float:
        d = self.n_units
        return (lgamma(d + 1) if self.permute else 0.0) + (d * log(2.0) if self.flip else 0.0)

    @property
    def is_compact(self) -> bool:
        return True

    @property
    def factors(self) -> tuple["Units", ...]:
        return (self,)

    def on(self, index: Tensor) -> "Units":
        """Group acting on other entries, int64 (d, p'): of some of its columns, say."""
        return replace(self, index=index)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> SignedPermutation:
        if self.permute:
            permutation = random_permutations(shape, self.n_units, generator=generator)
        else:
            places = torch.arange(self.n_units, device=generator.device)
            permutation = places.expand(*shape, self.n_units)
        if not self.flip:
            return SignedPermutation(permutation, torch.ones_like(permutation, dtype=torch.int8))
        coin = torch.rand(permutation.shape, generator=generator, device=generator.device)
        return SignedPermutation(permutation, torch.where(coin < 0.5, -1, 1).to(torch.int8))

    def act(self, g: SignedPermutation, theta: Tensor) -> Tensor:
        units = units_of(theta, self.index)
        if self.permute:
            units = gather_units(units, g.permutation)
        if self.flip:
            units = units * g.sign.to(theta).unsqueeze(-1)
        return put_units(theta, self.index, units)

    def inverse(self, g: SignedPermutation) -> SignedPermutation:
        permutation = g.permutation.argsort(dim=-1)
        return SignedPermutation(permutation, g.sign.gather(-1, permutation))

    def compose(self, g: SignedPermutation, h: SignedPermutation) -> SignedPermutation:
        shape = np.broadcast_shapes(g.permutation.shape, h.permutation.shape)
        outer, inner = g.permutation.expand(shape), h.permutation.expand(shape)
        sign = g.sign * h.sign.expand(shape).gather(-1, outer)
        return SignedPermutation(inner.gather(-1, outer), sign)

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, SignedPermutation]:
        """Nearest orbit point in Euclidean distance, by one assignment problem a draw."""
        inner = units_of(reference, self.index) @ units_of(theta, self.index).mT
        if self.permute:
            permutation = best_assignment(inner.abs() if self.flip else inner)
        else:
            permutation = torch.arange(self.n_units, device=inner.device).expand(inner.shape[:-1])
        chosen = inner.gather(-1, permutation.unsqueeze(-1)).squeeze(-1)
        g = SignedPermutation(permutation, positive_or_negative(chosen, free=self.flip))
        return self.act(g, theta), g

    def identity(self) -> SignedPermutation:
        plus = torch.ones(self.n_units, dtype=torch.int8)
        return SignedPermutation(torch.arange(self.n_units), plus)

    def generators(self) -> list[tuple[str, SignedPermutation]]:
        """An exchange and a rotation, and the flip of the first unit; or the flip of each."""
        d, (places, plus) = self.n_units, self.identity()
        named = []
        if self.permute and d > 1:
            swap = places.clone()
            swap[[0, 1]] = swap[[1, 0]]
            named.append(("units 0 and 1 exchanged", SignedPermutation(swap, plus)))
            named.append(("units rotated", SignedPermutation(places.roll(1), plus)))
        for i in range(0 if not self.flip else 1 if self.permute else d):
            sign = plus.clone()
            sign[i] = -1
            named.append((f"sign of unit {i} flipped", SignedPermutation(places, sign)))
        return named

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


def entries_shared_with_no_later_layer(layers: Sequence[UnitGroup]) -> list[Tensor]:
    """Which entries of each layer's units no later layer moves, bool (p_l,).

    Weights from the inputs and from earlier layers, the bias, and in the last layer the weights to
    the outputs.
    """
    masks = []
    for i, layer in enumerate(layers):
        later = [other.index.flatten() for other in layers[i + 1 :]]
        masks.append(~torch.isin(layer.index[0], torch.cat([layer.index[:0, 0], *later])))
    return masks


def positive_or_negative(values: Tensor, *, free: bool = True) -> Tensor:
    """Sign of each value, int8; 1 for zero, and for all where signs aren't free."""
    return torch.where((values < 0) & free, -1, 1).to(torch.int8)


def units_of(theta: Tensor, index: Tensor) -> Tensor:
    """The entries of every unit: (*B, P) -> (*B, d, p)."""
    return theta[..., index]


def gather_units(units: Tensor, g: Tensor) -> Tensor:
    """Put unit ``g[i]`` in place ``i``; batch axes broadcast."""
    batch = np.broadcast_shapes(units.shape[:-2], g.shape[:-1])  # torch's own imports sympy
    units = units.expand(*batch, *units.shape[-2:])
    g = g.to(units.device).expand(*batch, g.shape[-1])
    return units.gather(-2, g.unsqueeze(-1).expand(*g.shape, units.shape[-1]))


def put_units(theta: Tensor, index: Tensor, units: Tensor) -> Tensor:
    """Copy of ``theta`` with the entries of the units replaced; batch axes broadcast."""
    moved = theta.expand(*units.shape[:-2], theta.shape[-1]).clone()
    moved[..., index.flatten()] = units.flatten(-2)
    return moved
