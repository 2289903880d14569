"""Units that lie along axes of a network's parameters, whatever its layers are, and inside units.

`Units` lists the positions of every unit's entries, and a unit has one sign. Here a unit is a place
on an axis: strided views say where its entries are and cost no memory. It may have several signs,
each of which negates some of its entries (the weights and the gain before a relu, not the bias); it
may lie on two axes of one parameter (recurrent weights, a residual branch of one layer); and there
may be one such set of units at every place of outer units (`Wreath`: heads that can be exchanged,
and the dimensions inside each head).
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

from skbayes_sym.numerics.assignment import best_assignment
from skbayes_sym.symmetry.group import (
    InPlaceActionMixin,
    Product,
    SimpleGroup,
    SymmetryGroup,
    Trivial,
    format_lines,
)
from skbayes_sym.symmetry.units import SignedPermutation, SignedPermutations, Units, take

Tables = dict[tuple[bool, ...], Tensor]  # scores by the set of signs that negate what is compared


@dataclass(frozen=True)
class UnitEntries:
    """Entries of one parameter as a strided view of the flat ``theta``.

    ``sizes`` and ``strides`` have the places of outer units first, then the units, once or (a pair)
    twice, then all other axes. ``flips[k]`` says for each axis of units whether sign ``k`` of a
    unit negates its entries.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    flips: tuple[tuple[bool, ...], ...] = ()
    is_pair: bool = False

    def view(self, theta: Tensor) -> Tensor:
        """View of the entries, (*B, P) -> (*B, *sizes)."""
        step = theta.stride(-1)
        strides = (*theta.stride()[:-1], *(step * stride for stride in self.strides))
        offset = theta.storage_offset() + step * self.offset
        return theta.as_strided((*theta.shape[:-1], *self.sizes), strides, offset)

    @property
    def end(self) -> int:
        """Position behind the last entry."""
        return (
            1
            + self.offset
            + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
        )

    @property
    def location(self) -> tuple[int, frozenset[tuple[int, int]]]:
        """The entries, whatever the order of the axes."""
        return self.offset, frozenset(zip(self.strides, self.sizes, strict=True))

    @property
    def flipped(self) -> tuple[bool, ...]:
        """Which signs negate the entries, those of all units alike."""
        return tuple(sum(flips) % 2 == 1 for flips in self.flips)


@dataclass(frozen=True, eq=False, repr=False)
class AxisUnits(SignedPermutations):
    """Exchange and sign flips of units that are places on axes of parameters.

    Parameters
    ----------
    entries : tuple of UnitEntries
        Where the units' entries are.
    n_units : int
        Number d of units.
    n_signs : int, default=0
        Number K of independent signs of a unit; ``UnitEntries.flips`` says what each negates.
    outer_shape : tuple of int, default=()
        Sizes of outer axes, each place of which has units of its own, which move independently.
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

    @cached_property
    def n_params(self) -> int:  # type: ignore[override]
        return max((entries.end for entries in self.entries), default=0)

    def units(self) -> tuple[Units, ...]:
        """Subgroup that tables of positions can describe: a `Units` a place; () if there is none.

        A sign that negates all of a unit stays; others, and units on two axes of one parameter,
        don't. Tables take 8 bytes an entry.
        """
        signs = range(self.n_signs)
        flip = any(all(e.flips[k] == (True,) for e in self.entries) for k in signs)
        if any(e.is_pair for e in self.entries) or not (self.permute or flip):
            return ()
        positions = torch.arange(self.n_params)
        shape = (prod(self.outer_shape), self.n_units, -1)
        index = torch.cat([e.view(positions).reshape(shape) for e in self.entries], dim=-1)
        return tuple(Units(table, self.permute, flip) for table in index)

    def subgroup(self, *, permute: bool, signs: Sequence[int]) -> "AxisUnits":
        entries = (replace(e, flips=tuple(e.flips[k] for k in signs)) for e in self.entries)
        return replace(self, entries=tuple(entries), n_signs=len(signs), permute=permute)

    def move_(self, g: SignedPermutation, theta: Tensor) -> Tensor:
        batch = theta.shape[:-1]
        g = self.expand(SignedPermutation(*(part.to(theta.device) for part in g)), batch)
        for e in self.entries:
            values = e.view(theta)
            for axis in range(1 + e.is_pair):
                if self.permute:
                    values = take(values, g.permutation, len(batch) + len(self.outer_shape) + axis)
                which = [k for k, flips in enumerate(e.flips) if flips[axis]]
                if which:
                    sign = g.sign[..., which].prod(dim=-1).to(theta)
                    n_rest = values.ndim - sign.ndim - axis
                    values = values * sign.view(*sign.shape[:-1], *[1] * axis, -1, *[1] * n_rest)
            e.view(theta).copy_(values)
        return theta

    def expand(self, g: SignedPermutation, batch: Sequence[int]) -> SignedPermutation:
        """Element with the batch shape ``batch``."""
        shape = (*batch, *self.outer_shape, self.n_units)
        return SignedPermutation(g.permutation.expand(shape), g.sign.expand(*shape, self.n_signs))

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, SignedPermutation]:
        """Nearest orbit point: exact, but for units on two axes of one parameter.

        There the score is quadratic in the permutation: assignments to its linearisation at the
        present order follow one another as long as the distance falls (a local optimum), once from
        ``theta`` and once from where its other entries fit best.
        """
        self.check_pair(theta, reference)
        plain = [e for e in self.entries if not e.is_pair]
        g = self.best(self.totals(self.scores(theta, reference, plain)))
        moved = self.act(g, theta)
        if len(plain) == len(self.entries):
            return moved, g
        nearest, total = self._descended(theta, self.identity(), reference)
        other, second = self._descended(moved, g, reference)
        nearer = is_nearer(other, nearest, reference)
        return torch.where(nearer.unsqueeze(-1), other, nearest), second.select(nearer, total)

    def _descended(
        self, theta: Tensor, total: SignedPermutation, reference: Tensor
    ) -> tuple[Tensor, SignedPermutation]:
        """Assignments to linearised scores from ``theta``, to which ``total`` led."""
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
        self, theta: Tensor, reference: Tensor, entries: Sequence[UnitEntries], *,
        across: bool = False,
    ) -> Tables:  # fmt: skip
        """Inner products of unit ``i`` of the reference with unit ``j``, [i, j].

        A table (*B, *outer_shape, d, d) for each set of signs that negate what is compared. Of a
        pair the other unit stays in its place. ``across``: every place of the reference (of one
        axis) with every place of ``theta``, (*B, n, n, d, d).
        """
        tables: Tables = {}
        for e in entries:
            for axis in range(1 + e.is_pair):
                ours, theirs = (self._rows(e.view(t), e, axis) for t in (reference, theta))
                if across:
                    ours = ours.unsqueeze(-3)
                    theirs = theirs.unsqueeze(-4)
                key = tuple(flips[axis] for flips in e.flips)
                tables[key] = ours @ theirs.mT + tables.get(key, 0.0)
        return tables

    def _rows(self, values: Tensor, e: UnitEntries, axis: int) -> Tensor:
        """Entries of each unit, (*B, *outer_shape, d, p)."""
        units = values.ndim - len(e.sizes) + len(self.outer_shape)
        values = values.transpose(units, units + axis)
        return values.reshape(*values.shape[: units + 1], -1)

    @property
    def choices(self) -> list[tuple[int, ...]]:
        """All signs of one unit, 2^K tuples of +-1."""
        return list(product((1, -1), repeat=self.n_signs))

    def totals(self, tables: Tables) -> Tensor:
        """Sums of the tables of `scores` under each of `choices`, (2^K, ..., d, d)."""
        none = torch.zeros(self.n_units, self.n_units)
        zero = torch.zeros_like(next(iter(tables.values()), none))
        signed = ([-t if is_odd(key, c) else t for key, t in tables.items()] for c in self.choices)
        return torch.stack([sum(terms, zero) for terms in signed])

    def best(self, totals: Tensor) -> SignedPermutation:
        """Element that maximises the sum of the scores, the signs of each match at their best."""
        score, choice = totals.max(dim=0)
        permutation = self._best_permutation(score)
        chosen = choice.gather(-1, permutation.unsqueeze(-1)).squeeze(-1)
        signs = torch.tensor(self.choices, dtype=torch.int8, device=score.device)
        return SignedPermutation(permutation, signs.view(len(totals), self.n_signs)[chosen])

    def best_score(self, tables: Tables) -> Tensor:
        """Largest sum of scores that an element reaches, (*B, *outer_shape)."""
        score = self.totals(tables).amax(dim=0)
        return score.gather(-1, self._best_permutation(score).unsqueeze(-1)).sum(dim=(-2, -1))

    def _best_permutation(self, score: Tensor) -> Tensor:
        if self.permute:
            return best_assignment(score)
        return torch.arange(self.n_units, device=score.device).expand(score.shape[:-1])

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Orbits, one for each place of the other axes; a pair's diagonal apart."""
        orbits = torch.arange(n_params)
        units = len(self.outer_shape)
        for e in self.entries if self.permute else ():
            values = e.view(orbits)
            if not e.is_pair:
                values.copy_(values.amin(dim=units, keepdim=True).expand(values.shape).clone())
                continue
            same = torch.eye(self.n_units, dtype=torch.bool)
            same = same.view(*same.shape, *[1] * (len(e.sizes) - units - 2))
            for mask in (same, ~same):
                first = torch.where(mask, values, n_params).amin((units, units + 1), keepdim=True)
                values.copy_(torch.where(mask, first, values))
        return orbits


def is_odd(key: Sequence[bool], choice: Sequence[int]) -> bool:
    """Whether a choice of signs negates what has the signs in ``key``."""
    return sum(has and sign < 0 for has, sign in zip(key, choice, strict=True)) % 2 == 1


def is_nearer(moved: Tensor, before: Tensor, reference: Tensor) -> Tensor:
    """Whether a move brought each ``theta`` (*B, P) nearer, by more than rounding, bool (*B,)."""
    ours, theirs = ((t - reference).square().sum(dim=-1) for t in (moved, before))
    return ours < theirs * (1.0 - 1e-12)


Element = tuple[SignedPermutation, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Wreath(InPlaceActionMixin, SimpleGroup):
    """Semidirect product of units and of the units at each of their places.

    Part ``k`` moves independently at every place of the parts above it. An element is a tuple with
    the `SignedPermutation` of every part; the outermost, ``g_0``, acts first. Moving outer units
    carries the inner ones along: with ``pi`` the permutation of ``g_0``, ``g_0 h_1 g_0^-1`` has at
    place ``j`` what ``h_1`` has at place ``pi(j)``, and ``(g h)_1 = g_1 (g_0 h_1 g_0^-1)``:
    composition isn't that of the parts.

    Parameters
    ----------
    parts : tuple of AxisUnits
        Outermost first.
    above : tuple of tuple of int
        For each part and each of its axes of places, the part whose units these are; a negative
        number is an axis that nothing moves, the same number wherever it is the same axis. With a
        part, all that it lies inside must be named.
    """

    parts: tuple[AxisUnits, ...]
    above: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
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
        return max((part.n_params for part in self.parts), default=0)

    def check_element(self, g: Any) -> None:
        if not isinstance(g, tuple) or len(g) != len(self.parts):
            raise ValueError(
                f"an element of this group is a tuple with one element for each of its "
                f"{len(self.parts)} levels: take one of group.sample or group.generators."
            )
        for part, inner in zip(self.parts, g, strict=True):
            part.check_element(inner)

    @property
    def log_order(self) -> float:
        return sum(part.log_order for part in self.parts)

    def identity(self) -> Element:
        return tuple(part.identity() for part in self.parts)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Element:
        return tuple(part.sample(shape, generator=generator) for part in self.parts)

    def batch(self, g: Element) -> tuple[int, ...]:
        return self.parts[0].batch(g[0])

    def move_(self, g: Element, theta: Tensor) -> Tensor:
        for part, h in zip(self.parts, g, strict=True):
            part.move_(h, theta)
        return theta

    def compose(self, g: Element, h: Element) -> Element:
        self.check_element(g)
        self.check_element(h)
        batch = np.broadcast_shapes(self.batch(g), self.batch(h))
        carried = (self._carried(k, x, g, batch) for k, x in enumerate(h))
        return tuple(p.compose(a, b) for p, a, b in zip(self.parts, g, carried, strict=True))

    def inverse(self, g: Element) -> Element:
        self.check_element(g)
        batch = self.batch(g)
        back = list[SignedPermutation]()
        for k, part in enumerate(self.parts):
            back.append(part.inverse(self._carried(k, g[k], back, batch)))
        return tuple(back)

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Element]:
        """Orbit point near ``reference``: each part in turn, outer units judged by their insides.

        The score of an outer unit in a place is the best that its inner units reach there, which is
        exact for two levels whose inner units share no entries; the other parts stay as they are.
        Sweeps go on while the distance falls.
        """
        self.check_pair(theta, reference)
        batch = np.broadcast_shapes(theta.shape[:-1], reference.shape[:-1])
        theta = theta.expand(*batch, theta.shape[-1])
        total = tuple(part.expand(part.identity(), batch) for part in self.parts)
        for _ in range(50):  # ends when no part moves
            start = theta
            for k in range(len(self.parts)):
                moved, g = self._improved(k, theta, reference)
                nearer = is_nearer(moved, theta, reference)
                theta = torch.where(nearer.unsqueeze(-1), moved, theta)
                both = zip(self.compose(g, total), total, strict=True)
                total = tuple(a.select(nearer, b) for a, b in both)
            if torch.equal(start, theta):
                break
        return theta, total

    def generators(self) -> list[tuple[str, Element]]:
        return [(name.replace("layer", "level"), g) for name, g in Product(self.parts).generators()]

    def restrict(self, keeps: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        parts: Any = tuple(part.kept(keeps) for part in self.parts)
        group = replace(self, parts=parts)
        return group if any(part.permute or part.n_signs for part in parts) else Trivial()

    def coordinate_orbits(self, n_params: int) -> Tensor:
        return Product(self.parts).coordinate_orbits(n_params)

    def _carried(
        self, k: int, h: SignedPermutation, outer: Sequence[SignedPermutation], batch: Sequence[int]
    ) -> SignedPermutation:
        """Conjugate g h g^-1 of an element ``h`` of part ``k`` by the parts above."""
        names = self.above[k]
        moves = self.parts[k].expand(h, batch)
        n = len(batch)
        for j in sorted(name for name in names if name >= 0):
            # Axes of part j's permutation in the order of part k's places, others of size 1.
            order = (*self.above[j], j)
            axes = [n + order.index(name) for name in names if name in order]
            index = self.parts[j].expand(outer[j], batch).permutation.permute(*range(n), *axes)
            places = zip(self.parts[k].outer_shape, names, strict=True)
            index = index.reshape(*batch, *(size if name in order else 1 for size, name in places))
            moves = SignedPermutation(*(_along(part, index, n + names.index(j)) for part in moves))
        return moves

    def _improved(self, k: int, theta: Tensor, reference: Tensor) -> tuple[Tensor, Element]:
        """Part ``k`` at its best, and the parts directly inside it at theirs."""
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
        """`AxisUnits.totals` of part ``k``, inner units at their best for every match and sign."""
        part = self.parts[k]
        inside = [{e.location: e for e in self.parts[i].entries} for i in inner]
        alone = {e.location: e for e in part.entries if sum(e.location in i for i in inside) == 1}
        shared = [e for e in part.entries if e.location not in alone]
        totals = list(part.totals(part.scores(theta, reference, shared)))
        for i, entries in zip(inner, inside, strict=True):
            by_key = {
                key: self.parts[i].scores(
                    theta, reference, [entries[w] for w, e in alone.items()
                                       if w in entries and e.flipped == key], across=True)
                for key in {e.flipped for e in alone.values()}
            }  # fmt: skip
            for c, choice in enumerate(part.choices):
                tables: Tables = {}
                for key, some in by_key.items():
                    for name, table in some.items():
                        signed = -table if is_odd(key, choice) else table
                        tables[name] = signed + tables.get(name, 0.0)
                totals[c] = totals[c] + self.parts[i].best_score(tables)
        return torch.stack(totals)


def _along(values: Tensor, index: Tensor, axis: int) -> Tensor:
    """Take entries of one axis by an index that has the axes in front of ``values``."""
    index = index.reshape(*index.shape, *[1] * (values.ndim - index.ndim))
    return values.gather(axis, index.expand(values.shape))
