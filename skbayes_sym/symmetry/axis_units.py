"""Units that lie along axes of the parameters of any network, and units inside units.

`Units` lists the positions of every unit's entries, and a unit has one sign. An `AxisUnits` is more
general. A unit is a position on an axis, and strided views, which cost no memory, define its
entries. It may have several signs, each of which negates some of its entries (such as the weights
and the gain before a relu, but not the bias). It may lie on two axes of one parameter, as in
recurrent weights or a residual branch of one layer. There may be separate units at every position
of outer units. `Wreath` combines such levels, such as heads that can be exchanged, and the
dimensions inside each head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import (
    check_count,
    check_flag,
    check_ints,
    check_parts,
    short_repr,
)
from skbayes_sym.numerics.assignment import best_assignment
from skbayes_sym.symmetry.group import (
    InPlaceActionMixin,
    Product,
    SimpleGroup,
    SymmetryGroup,
    Trivial,
    format_lines,
)
from skbayes_sym.symmetry.units import SignedPermutation, SignedPermutations, Units, permute_axis

# Gaps and samplers need a table of positions. 2^22 entries take 32 MB.
_MAX_TABLE_ENTRIES = 1 << 22

# Scores of units, by the set of signs that negate the compared entries.
Tables = dict[tuple[bool, ...], Tensor]


@dataclass(frozen=True)
class UnitEntries:
    """Entries of one parameter as a strided view of the flat ``theta``.

    Parameters
    ----------
    offset : int
        Position of the first entry.
    sizes, strides : tuple of int
        Of the axes: outer units first, then the units, once or (for a pair) twice, then all others.
    flips : tuple of tuple of bool, default=()
        For each sign of a unit, and each axis of units, whether the sign negates the entries.
    is_pair : bool, default=False
        Whether the units lie on two axes.
    merged : tuple of int, default=()
        For each axis, how many consecutive strided axes number its positions, as for units on a
        grid. By default one.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    flips: tuple[tuple[bool, ...], ...] = ()
    is_pair: bool = False
    merged: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_count("offset of UnitEntries", self.offset, 0)
        for name in ("sizes", "strides", "merged"):
            check_ints("UnitEntries", name, getattr(self, name))
        if len(self.sizes) != len(self.strides):
            raise ValueError(
                f"sizes and strides of UnitEntries must have one entry for each axis, got "
                f"{self.sizes} and {self.strides}."
            )

    def read(self, theta: Tensor) -> Tensor:
        """Return the entries, (*B, P) -> (*B, *shape); a view unless axes are merged."""
        entries = self._strided(theta)
        if self.merged:
            entries = entries.reshape(*theta.shape[:-1], *self.shape)
        return entries

    def write_(self, theta: Tensor, values: Tensor) -> None:
        """Overwrite the entries of ``theta`` (*B, P) with values (*B, *shape)."""
        entries = self._strided(theta)
        entries.copy_(values.reshape(entries.shape))

    def _strided(self, theta: Tensor) -> Tensor:
        step = theta.stride(-1)
        strides = (*theta.stride()[:-1], *(step * stride for stride in self.strides))
        offset = theta.storage_offset() + step * self.offset
        return theta.as_strided((*theta.shape[:-1], *self.sizes), strides, offset)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Numbers of positions of the axes, after some are merged."""
        if not self.merged:
            return self.sizes
        sizes = iter(self.sizes)
        return tuple(prod(next(sizes) for _ in range(n)) for n in self.merged)

    @property
    def end(self) -> int:
        """Position behind the last entry."""
        last = sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
        return self.offset + last + 1

    @property
    def location(self) -> tuple[int, frozenset[tuple[int, int]]]:
        """Key of the set of entries, which doesn't depend on the order of the axes."""
        return self.offset, frozenset(zip(self.strides, self.sizes, strict=True))

    @property
    def flipped(self) -> tuple[bool, ...]:
        """Which signs negate the entries if all units have the same signs."""
        return tuple(sum(flips) % 2 == 1 for flips in self.flips)


@dataclass(frozen=True, eq=False, repr=False)
class AxisUnits(SignedPermutations):
    """Exchange and sign flips of units that are positions on axes of parameters.

    Parameters
    ----------
    entries : tuple of UnitEntries
        The units' entries in all parameters.
    n_units : int
        Number d of units.
    n_signs : int, default=0
        Number K of independent signs of a unit. ``UnitEntries.flips`` defines which entries each
        negates.
    outer_shape : tuple of int, default=()
        Sizes of the outer axes. Each position on them has separate units, which move independently.
    permute : bool, default=True
        Whether units can be exchanged.

    Notes
    -----
    The group is ``(Z_2^K wr S_d)`` to the power of the number of outer positions. `Wreath` adds
    the permutations of the outer positions themselves. An element is a `SignedPermutation` with a
    permutation (*B, *outer_shape, d) and signs (*B, *outer_shape, d, K). The action costs O(P).
    Alignment costs O(d P) and assignment problems of size d.
    """

    entries: tuple[UnitEntries, ...]
    n_units: int
    n_signs: int = 0
    outer_shape: tuple[int, ...] = ()
    permute: bool = True

    def __post_init__(self) -> None:
        check_parts("AxisUnits", "entries", self.entries, ("offset", "strides"), "UnitEntries")
        check_count("n_units of AxisUnits", self.n_units, 0)
        check_count("n_signs of AxisUnits", self.n_signs, 0)
        check_ints("AxisUnits", "outer_shape", self.outer_shape)
        check_flag("permute", self.permute)

    @cached_property
    def n_params(self) -> int:  # type: ignore[override]
        """Length of the shortest ``theta`` that has all entries that the group moves."""
        return max((entries.end for entries in self.entries), default=0)

    def units(self) -> tuple[Units, ...]:
        """Return the subgroup that `Units` can describe, one for each outer position.

        A sign that negates all entries of a unit is kept, and other signs aren't. Units on two axes
        of one parameter have no such subgroup, and the result is empty. The tables of positions
        take 8 bytes per entry.
        """
        signs = range(self.n_signs)
        flip = any(all(e.flips[k] == (True,) for e in self.entries) for k in signs)
        if any(e.is_pair for e in self.entries) or not (self.permute or flip):
            return ()
        positions = torch.arange(self.n_params)
        shape = (prod(self.outer_shape), self.n_units, -1)
        index = torch.cat([e.read(positions).reshape(shape) for e in self.entries], dim=-1)
        return tuple(Units(table, self.permute, flip) for table in index)

    def simplify(self) -> tuple[SymmetryGroup, ...]:
        """Return units as tables of positions if these are small and describe the same group."""
        is_small = sum(prod(e.sizes) for e in self.entries) <= _MAX_TABLE_ENTRIES
        plain = self.units() if is_small else ()
        if sum(part.log_order for part in plain) == self.log_order:
            return plain
        return (self,)

    def subgroup(self, *, permute: bool, signs: Sequence[int]) -> "AxisUnits":
        """Return the subgroup with or without exchanges, and with some of the signs."""
        entries = (replace(e, flips=tuple(e.flips[k] for k in signs)) for e in self.entries)
        return replace(self, entries=tuple(entries), n_signs=len(signs), permute=permute)

    def move_(self, g: SignedPermutation, theta: Tensor) -> Tensor:
        """Act on ``theta`` in place, without checks."""
        batch = theta.shape[:-1]
        g = self.expand(SignedPermutation(*(part.to(theta.device) for part in g)), batch)
        for e in self.entries:
            values = e.read(theta)
            for axis in range(1 + e.is_pair):
                if self.permute:
                    values = permute_axis(
                        values, g.permutation, len(batch) + len(self.outer_shape) + axis
                    )
                signs = [k for k, flips in enumerate(e.flips) if flips[axis]]
                if signs:
                    sign = g.sign[..., signs].prod(dim=-1).to(theta)
                    n_trailing = values.ndim - sign.ndim - axis
                    shape = (*sign.shape[:-1], *[1] * axis, sign.shape[-1], *[1] * n_trailing)
                    values = values * sign.view(shape)
            e.write_(theta, values)
        return theta

    def expand(self, g: SignedPermutation, batch: Sequence[int]) -> SignedPermutation:
        """Return an element with the batch shape ``batch``."""
        shape = (*batch, *self.outer_shape, self.n_units)
        return SignedPermutation(g.permutation.expand(shape), g.sign.expand(*shape, self.n_signs))

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, SignedPermutation]:
        """Return the nearest orbit point, and the element used.

        This is exact unless units lie on two axes of one parameter. Then the score is quadratic in
        the permutation. It is linearised at the current order, and the assignment problem solved,
        as long as the distance falls. The result is the nearer of two local optima, one from
        ``theta`` and one from the order in which its other entries fit best.

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
        plain = [e for e in self.entries if not e.is_pair]
        g = self.best(self.totals(self.scores(theta, reference, plain)))
        moved = self.act(g, theta)
        if len(plain) == len(self.entries):
            return moved, g
        nearest, nearest_g = self._descend(theta, self.identity(), reference)
        other, other_g = self._descend(moved, g, reference)
        nearer = is_nearer(other, nearest, reference)
        nearest = torch.where(nearer.unsqueeze(-1), other, nearest)
        return nearest, other_g.select(nearer, nearest_g)

    def _descend(
        self, theta: Tensor, total: SignedPermutation, reference: Tensor
    ) -> tuple[Tensor, SignedPermutation]:
        """Solve linearised assignment problems from ``theta``, which ``total`` has moved."""
        batch = np.broadcast_shapes(theta.shape[:-1], reference.shape[:-1])
        theta = theta.expand(*batch, theta.shape[-1])
        total = self.expand(total, batch)
        for _ in range(10):
            g = self.best(self.totals(self.scores(theta, reference, self.entries)))
            moved = self.act(g, theta)
            nearer = is_nearer(moved, theta, reference)
            if not bool(nearer.any()):
                break
            theta = torch.where(nearer.unsqueeze(-1), moved, theta)
            total = self.compose(g, total).select(nearer, total)
        return theta, total

    def scores(
        self,
        theta: Tensor,
        reference: Tensor,
        entries: Sequence[UnitEntries],
        *,
        across: bool = False,
    ) -> Tables:
        """Return inner products of unit ``i`` of the reference with unit ``j`` of ``theta``.

        Parameters
        ----------
        theta, reference : Tensor of shape (*B, P)
            Weights.
        entries : sequence of UnitEntries
            The compared entries. In a pair, the units on the other axis stay in place.
        across : bool, default=False
            Whether to compare every position of a single outer axis with every other.

        Returns
        -------
        dict
            A table (*B, *outer_shape, d, d) for each set of signs that negate the entries, with
            ``across`` of shape (*B, n, n, d, d).
        """
        tables: Tables = {}
        for e in entries:
            for axis in range(1 + e.is_pair):
                rows = self._rows(e.read(reference), e, axis)
                columns = self._rows(e.read(theta), e, axis)
                if across:
                    rows = rows.unsqueeze(-3)
                    columns = columns.unsqueeze(-4)
                key = tuple(flips[axis] for flips in e.flips)
                tables[key] = rows @ columns.mT + tables.get(key, 0.0)
        return tables

    def _rows(self, values: Tensor, e: UnitEntries, axis: int) -> Tensor:
        """Return the entries of each unit, (*B, *outer_shape, d, p)."""
        units = values.ndim - len(e.shape) + len(self.outer_shape)
        values = values.transpose(units, units + axis)
        # The size isn't inferred, because a batch may be empty.
        n_entries = prod(values.shape[units + 1 :])
        return values.reshape(*values.shape[: units + 1], n_entries)

    @property
    def choices(self) -> list[tuple[int, ...]]:
        """All combinations of signs of one unit, 2^K tuples of +-1."""
        return list(product((1, -1), repeat=self.n_signs))

    def totals(self, tables: Tables) -> Tensor:
        """Return the sum of all tables of `scores` for each of `choices`, (2^K, ..., d, d)."""
        default = torch.zeros(self.n_units, self.n_units)
        zero = torch.zeros_like(next(iter(tables.values()), default))
        signed = ([-t if is_odd(key, c) else t for key, t in tables.items()] for c in self.choices)
        return torch.stack([sum(terms, zero) for terms in signed])

    def best(self, totals: Tensor) -> SignedPermutation:
        """Return the element that maximises the sum of the scores, over permutations and signs."""
        score, choice = totals.max(dim=0)
        permutation = self._best_permutation(score)
        selected = choice.gather(-1, permutation.unsqueeze(-1)).squeeze(-1)
        signs = torch.tensor(self.choices, dtype=torch.int8, device=score.device)
        return SignedPermutation(permutation, signs.view(len(totals), self.n_signs)[selected])

    def best_score(self, tables: Tables) -> Tensor:
        """Return the largest sum of scores over all elements, (*B, *outer_shape)."""
        score = self.totals(tables).amax(dim=0)
        return score.gather(-1, self._best_permutation(score).unsqueeze(-1)).sum(dim=(-2, -1))

    def _best_permutation(self, score: Tensor) -> Tensor:
        """Return the permutations that maximise the score."""
        if self.permute:
            return best_assignment(score)
        return torch.arange(self.n_units, device=score.device).expand(score.shape[:-1])

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Return an orbit for each position on the other axes; a pair's diagonal is separate."""
        orbits = torch.arange(n_params)
        units = len(self.outer_shape)
        for e in self.entries if self.permute else ():
            values = e.read(orbits)
            if not e.is_pair:
                e.write_(orbits, values.amin(dim=units, keepdim=True).expand(values.shape).clone())
                continue
            same = torch.eye(self.n_units, dtype=torch.bool)
            same = same.view(*same.shape, *[1] * (len(e.shape) - units - 2))
            for mask in (same, ~same):
                first = torch.where(mask, values, n_params).amin((units, units + 1), keepdim=True)
                values = torch.where(mask, first, values)
            e.write_(orbits, values)
        return orbits


def is_odd(key: Sequence[bool], choice: Sequence[int]) -> bool:
    """Return whether a choice of signs negates entries that have the signs in ``key``."""
    return sum(has and sign < 0 for has, sign in zip(key, choice, strict=True)) % 2 == 1


def is_nearer(moved: Tensor, before: Tensor, reference: Tensor) -> Tensor:
    """Return whether a move brought ``theta`` nearer to the reference, by more than rounding.

    Parameters
    ----------
    moved, before : Tensor of shape (*B, P)
        Weights after and before the move.
    reference : Tensor of shape (*B, P)
        Where to move them.

    Returns
    -------
    bool Tensor of shape (*B,)
    """
    distance = (moved - reference).square().sum(dim=-1)
    old_distance = (before - reference).square().sum(dim=-1)
    return distance < old_distance * (1.0 - 1e-12)


Element = tuple[SignedPermutation, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Wreath(InPlaceActionMixin, SimpleGroup):
    """Semidirect product of units and of the units inside each of them.

    Part ``k`` moves independently at every position of the parts above it. An element is a tuple
    with the `SignedPermutation` of every part. The outermost, ``g_0``, acts first.

    Moving outer units carries the inner ones along, so that composition isn't that of the parts:
    ``(g h)_1 = g_1 (g_0 h_1 g_0^-1)``. With ``pi`` the permutation of ``g_0``, the conjugate
    ``g_0 h_1 g_0^-1`` has at position ``j`` what ``h_1`` has at position ``pi(j)``.

    Parameters
    ----------
    parts : tuple of AxisUnits
        The levels, outermost first.
    above : tuple of tuple of int
        For each part and each of its outer axes, the part whose units lie on this axis. A negative
        number is an axis that nothing moves, with the same number wherever it is the same axis. A
        part that lies inside another must name all parts that the other lies inside.
    """

    parts: tuple[AxisUnits, ...]
    above: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_parts("Wreath", "parts", self.parts, ("entries", "n_units"), "AxisUnits")
        if not isinstance(self.above, tuple) or len(self.above) != len(self.parts):
            raise TypeError(
                "above of Wreath must be a tuple with a tuple of ints for each part, got "
                f"{short_repr(self.above)}."
            )
        for names in self.above:
            check_ints("Wreath", "above", names, minimum=None)
        for k, names in enumerate(self.above):
            if any(j >= k or not {*self.above[j]} <= {*names} for j in names if j >= 0):
                raise ValueError(
                    f"part {k} lies inside {names}: name outer parts first, and with a part all "
                    "that it lies inside."
                )

    def __repr__(self) -> str:
        heading = f"Wreath of {len(self.parts)} levels, log |G| = {self.log_order:.1f} nats"
        return format_lines(heading, [part.moves for part in self.parts])

    @cached_property
    def n_params(self) -> int:  # type: ignore[override]
        """Length of the shortest ``theta`` that has all entries that the group moves."""
        return max((part.n_params for part in self.parts), default=0)

    def check_element(self, g: Any) -> None:
        """Raise unless ``g`` is an element of this group."""
        if not isinstance(g, tuple) or len(g) != len(self.parts):
            raise ValueError(
                f"an element of this group is a tuple with one element for each of its "
                f"{len(self.parts)} levels: take one of group.sample or group.generators."
            )
        for part, inner in zip(self.parts, g, strict=True):
            part.check_element(inner)

    @property
    def log_order(self) -> float:
        """Log of the number of elements, in nats."""
        return sum(part.log_order for part in self.parts)

    def identity(self) -> Element:
        """Return the identity element."""
        return tuple(part.identity() for part in self.parts)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Element:
        """Sample uniform elements with batch shape ``shape``."""
        return tuple(part.sample(shape, generator=generator) for part in self.parts)

    def batch(self, g: Element) -> tuple[int, ...]:
        """Return the batch shape of an element."""
        return self.parts[0].batch(g[0])

    def move_(self, g: Element, theta: Tensor) -> Tensor:
        """Act on ``theta`` in place, without checks."""
        for part, h in zip(self.parts, g, strict=True):
            part.move_(h, theta)
        return theta

    def compose(self, g: Element, h: Element) -> Element:
        """Return the element that acts as ``h`` first, then as ``g``."""
        self.check_element(g)
        self.check_element(h)
        batch = np.broadcast_shapes(self.batch(g), self.batch(h))
        conjugates = (self._conjugate(k, x, g, batch) for k, x in enumerate(h))
        return tuple(p.compose(a, b) for p, a, b in zip(self.parts, g, conjugates, strict=True))

    def inverse(self, g: Element) -> Element:
        """Return the inverse of ``g``."""
        self.check_element(g)
        batch = self.batch(g)
        inverse = list[SignedPermutation]()
        for k, part in enumerate(self.parts):
            inverse.append(part.inverse(self._conjugate(k, g[k], inverse, batch)))
        return tuple(inverse)

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Element]:
        """Return an orbit point near ``reference``, and the element used.

        The parts are aligned in turn while the distance falls. The score of an outer unit at a
        position is the best score that its inner units can have there. This is exact for two levels
        whose inner units share no entries. The other parts stay as they are.

        Parameters
        ----------
        theta, reference : Tensor of shape (*B, P)
            Weights to move, and where to move them.

        Returns
        -------
        moved : Tensor of shape (*B, P)
            ``g.theta``.
        g : tuple of SignedPermutation
            The element of the group.
        """
        self.check_pair(theta, reference)
        batch = np.broadcast_shapes(theta.shape[:-1], reference.shape[:-1])
        theta = theta.expand(*batch, theta.shape[-1])
        total = tuple(part.expand(part.identity(), batch) for part in self.parts)
        for _ in range(50):  # ends when no part moves
            start = theta
            for k in range(len(self.parts)):
                moved, g = self._align_part(k, theta, reference)
                nearer = is_nearer(moved, theta, reference)
                theta = torch.where(nearer.unsqueeze(-1), moved, theta)
                pairs = zip(self.compose(g, total), total, strict=True)
                total = tuple(new.select(nearer, old) for new, old in pairs)
            if torch.equal(start, theta):
                break
        return theta, total

    def generators(self) -> list[tuple[str, Element]]:
        """Return named elements that generate the group."""
        return [(name.replace("layer", "level"), g) for name, g in Product(self.parts).generators()]

    def restrict(self, is_invariant: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        """Return the largest subgroup made of parts that ``is_invariant`` accepts.

        If no part that moves lies inside another one, they are direct factors.
        """
        parts: Any = tuple(part.invariant_subgroup(is_invariant) for part in self.parts)
        moving = {k for k, part in enumerate(parts) if part.permute or part.n_signs}
        if not moving:
            return Trivial()
        if any(moving & {*self.above[k]} for k in moving):
            return replace(self, parts=parts)
        return Product(tuple(factor for k in sorted(moving) for factor in parts[k].simplify()))

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Return the orbits of the entries of ``theta``; see `SymmetryGroup`."""
        return Product(self.parts).coordinate_orbits(n_params)

    def _conjugate(
        self, k: int, h: SignedPermutation, outer: Sequence[SignedPermutation], batch: Sequence[int]
    ) -> SignedPermutation:
        """Conjugate an element of one part by the parts above, g h g^-1.

        Parameters
        ----------
        k : int
            The part.
        h : SignedPermutation
            Its element.
        outer : sequence of SignedPermutation
            Elements of the parts above.
        batch : sequence of int
            Batch shape of the result.
        """
        names = self.above[k]
        conjugate = self.parts[k].expand(h, batch)
        n = len(batch)
        for j in sorted(name for name in names if name >= 0):
            # The permutation of part j, with its axes in the order of the outer axes of part k.
            # Other outer axes have size 1.
            order = (*self.above[j], j)
            axes = [n + order.index(name) for name in names if name in order]
            index = self.parts[j].expand(outer[j], batch).permutation.permute(*range(n), *axes)
            sizes = zip(self.parts[k].outer_shape, names, strict=True)
            index = index.reshape(*batch, *(size if name in order else 1 for size, name in sizes))
            axis = n + names.index(j)
            conjugate = SignedPermutation(*(_gather_axis(part, index, axis) for part in conjugate))
        return conjugate

    def _align_part(self, k: int, theta: Tensor, reference: Tensor) -> tuple[Tensor, Element]:
        """Align part ``k``, and the parts directly inside it."""
        part = self.parts[k]
        g = list(self.identity())
        inner = [i for i, names in enumerate(self.above) if names == (k,)]
        if part.outer_shape or not inner:
            theta, g[k] = part.align(theta, reference)
            return theta, tuple(g)
        g[k] = part.best(self._nested_totals(k, inner, theta, reference))
        theta = part.act(g[k], theta)
        for i in inner:
            theta, g[i] = self.parts[i].align(theta, reference)
        return theta, tuple(g)

    def _nested_totals(self, k: int, inner: list[int], theta: Tensor, reference: Tensor) -> Tensor:
        """Return `AxisUnits.totals` of a part, with inner units optimal for each match and sign.

        Parameters
        ----------
        k : int
            The part.
        inner : list of int
            The parts directly inside it.
        theta, reference : Tensor of shape (*B, P)
            Weights.

        Returns
        -------
        Tensor of shape (2^K, *B, d, d)
        """
        part = self.parts[k]
        inner_entries = [{e.location: e for e in self.parts[i].entries} for i in inner]
        # Entries that exactly one inner part moves. All others are scored with the outer units.
        exclusive = {
            e.location: e
            for e in part.entries
            if sum(e.location in entries for entries in inner_entries) == 1
        }
        shared = [e for e in part.entries if e.location not in exclusive]
        totals = list(part.totals(part.scores(theta, reference, shared)))
        for i, entries in zip(inner, inner_entries, strict=True):
            scores_by_key = {}
            for key in {e.flipped for e in exclusive.values()}:
                compared = [
                    entries[location]
                    for location, e in exclusive.items()
                    if location in entries and e.flipped == key
                ]
                scores_by_key[key] = self.parts[i].scores(theta, reference, compared, across=True)
            for c, choice in enumerate(part.choices):
                tables: Tables = {}
                for key, scores in scores_by_key.items():
                    for name, table in scores.items():
                        signed = -table if is_odd(key, choice) else table
                        tables[name] = signed + tables.get(name, 0.0)
                totals[c] = totals[c] + self.parts[i].best_score(tables)
        return torch.stack(totals)


def _gather_axis(values: Tensor, index: Tensor, axis: int) -> Tensor:
    """Gather along one axis by an index with the leading axes of ``values``."""
    index = index.reshape(*index.shape, *[1] * (values.ndim - index.ndim))
    return values.gather(axis, index.expand(values.shape))
