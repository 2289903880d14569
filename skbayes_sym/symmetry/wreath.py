"""Units inside units: heads that can be exchanged, and the dimensions inside each head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.symmetry.axis_units import AxisUnits, Tables, is_nearer, is_odd
from skbayes_sym.symmetry.group import Product, SimpleGroup, SymmetryGroup, Trivial
from skbayes_sym.symmetry.units import SignedPermutation

Element = tuple[SignedPermutation, ...]

_MAX_SWEEPS = 50  # coordinate ascent ends when no part moves; this only bounds it


@dataclass(frozen=True, eq=False)
class Wreath(SimpleGroup):
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

    @property
    def log_order(self) -> float:
        return sum(part.log_order for part in self.parts)

    def identity(self) -> Element:
        return tuple(part.identity() for part in self.parts)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Element:
        return tuple(part.sample(shape, generator=generator) for part in self.parts)

    def act(self, g: Element, theta: Tensor) -> Tensor:
        return Product(self.parts).act(g, theta)

    def compose(self, g: Element, h: Element) -> Element:
        batch = np.broadcast_shapes(*(self.parts[0].batch(x[0]) for x in (g, h)))
        carried = (self._carried(k, x, g, batch) for k, x in enumerate(h))
        return tuple(p.compose(a, b) for p, a, b in zip(self.parts, g, carried, strict=True))

    def inverse(self, g: Element) -> Element:
        batch, back = self.parts[0].batch(g[0]), list[SignedPermutation]()
        for k, part in enumerate(self.parts):
            back.append(part.inverse(self._carried(k, g[k], back, batch)))
        return tuple(back)

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Element]:
        """Orbit point near ``reference``: each part in turn, outer units judged by their insides.

        The score of an outer unit in a place is the best that its inner units reach there, which is
        exact for two levels whose inner units share no entries; the other parts stay as they are.
        Sweeps go on while the distance falls.
        """
        batch = np.broadcast_shapes(theta.shape[:-1], reference.shape[:-1])
        theta = theta.expand(*batch, theta.shape[-1])
        total = tuple(part.expand(part.identity(), batch) for part in self.parts)
        for _ in range(_MAX_SWEEPS):
            start = theta
            for k in range(len(self.parts)):
                moved, g = self._improved(k, theta, reference)
                nearer = is_nearer(moved, theta, reference)
                theta = torch.where(nearer.unsqueeze(-1), moved, theta)
                both = zip(self.compose(g, total), total, strict=True)
                total = tuple(a.where(nearer, b) for a, b in both)
            if torch.equal(start, theta):
                break
        return theta, total

    def generators(self) -> list[tuple[str, Element]]:
        return [(name.replace("layer", "level"), g) for name, g in Product(self.parts).generators()]

    def restricted(self, keeps: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        parts: Any = tuple(part.kept(keeps) for part in self.parts)
        group = replace(self, parts=parts)
        return group if any(part.permute or part.n_signs for part in parts) else Trivial()

    def coordinate_orbits(self, n_params: int) -> Tensor:
        return Product(self.parts).coordinate_orbits(n_params)

    def _carried(
        self, k: int, h: SignedPermutation, outer: Sequence[SignedPermutation], batch: Sequence[int]
    ) -> SignedPermutation:
        """Conjugate g h g^-1 of an element ``h`` of part ``k`` by the parts above."""
        names, moves, n = self.above[k], self.parts[k].expand(h, batch), len(batch)
        for j in sorted(name for name in names if name >= 0):
            # Axes of part j's permutation in the order of part k's places, others of size 1.
            order = (*self.above[j], j)
            axes = [n + order.index(name) for name in names if name in order]
            index = self.parts[j].expand(outer[j], batch).permutation.permute(*range(n), *axes)
            places = zip(self.parts[k].places, names, strict=True)
            index = index.reshape(*batch, *(size if name in order else 1 for size, name in places))
            moves = SignedPermutation(*(_along(part, index, n + names.index(j)) for part in moves))
        return moves

    def _improved(self, k: int, theta: Tensor, reference: Tensor) -> tuple[Tensor, Element]:
        """Part ``k`` at its best, and the parts directly inside it at theirs."""
        part, g = self.parts[k], list(self.identity())
        inner = [i for i, names in enumerate(self.above) if names == (k,)]
        if part.places or not inner:
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
        inside = [{e.where: e for e in self.parts[i].entries} for i in inner]
        alone = {e.where: e for e in part.entries if sum(e.where in i for i in inside) == 1}
        shared = [e for e in part.entries if e.where not in alone]
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
