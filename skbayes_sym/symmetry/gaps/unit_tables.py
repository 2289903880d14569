"""Units of a group found in a module, as tables of positions that a gap can sum over.

Units may have several signs, each of which negates some of their entries, and units inside them:
heads, and the dimensions of each. What no table of scores can say is left out (entries with the
units on two axes; some levels of deeper nests): less is then known of the group's element, or a
subgroup is averaged over, so that the gap falls and stays a lower bound.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import lgamma, log, prod
from typing import Any

import torch
from torch import Tensor

from skbayes_sym.symmetry.axis_units import AxisUnits, UnitEntries, Wreath
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import UnitGroup, unit_layers

LogPermanent = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class UnitTable:
    """Units that may change places, the signs of each, and the units inside them.

    ``index`` (*D, d, p): positions of each unit's entries; tables inside have an axis of the outer
    units in front. ``negated`` bool (K, p): what each sign of a unit negates. ``outer`` bool
    (K', p): what the signs of the outer unit negate. ``moved`` (n,): all positions that the units
    move, of which some may be missing in ``index``.
    """

    index: Tensor
    negated: Tensor
    outer: Tensor
    permutes: bool
    moved: Tensor
    is_whole: bool = True  # whether nothing is missing
    inside: tuple["UnitTable", ...] = ()

    @classmethod
    def from_units(cls, units: UnitGroup) -> "UnitTable":
        """Table of plain units: one sign, which negates all, or none."""
        index = units.index
        p = units.index.shape[1]
        negated = torch.ones(int(units.flips), p, dtype=torch.bool)
        return cls(index, negated, negated[:0], units.permutes, index.flatten())

    @property
    def flips(self) -> bool:
        """Whether there are signs."""
        return len(self.negated) > 0

    @property
    def is_plain(self) -> bool:
        """Whether a `Units` could say the same."""
        return not self.inside and len(self.negated) < 2 and bool(self.negated.all())

    @property
    def n_units(self) -> int:
        """Number d of units."""
        return int(self.index.shape[-2])

    @property
    def widest(self) -> int:
        """Units of the widest level that change places."""
        return max([self.n_units * self.permutes, *(table.widest for table in self.inside)])

    @property
    def n_scores(self) -> int:
        """Numbers that a draw is scored by."""
        return self.n_units**2 * max([1, *(table.n_scores for table in self.inside)])

    @property
    def log_order(self) -> float:
        """Log of the number of elements, nats."""
        d = self.n_units
        units_log_order = lgamma(d + 1) * self.permutes + len(self.negated) * d * log(2.0)
        return units_log_order + d * sum(table.log_order for table in self.inside)

    def map(self, change: Callable[["UnitTable"], "UnitTable"]) -> "UnitTable":
        """A change of every level."""
        return replace(change(self), inside=tuple(table.map(change) for table in self.inside))

    def to(self, device: torch.device) -> "UnitTable":
        """Table with its positions on a device."""
        return self.map(lambda table: replace(table, index=table.index.to(device)))

    def without(self, positions: Tensor) -> "UnitTable":
        """Columns without any of these positions."""

        def change(t: UnitTable) -> UnitTable:
            keep = ~torch.isin(t.index, positions).flatten(0, -2).any(dim=0)
            return replace(t, index=t.index[..., keep], negated=t.negated[:, keep],
                           outer=t.outer[:, keep])  # fmt: skip

        return self.map(change)

    def values(self, loc: Tensor, scale: Tensor, noise: Tensor, permanent: LogPermanent) -> Tensor:
        """``log q - log q_G`` of the units' entries at draws, (S,) nats; see `UnitGap.values`.

        ``q_G`` is a permanent over the units, whose entries are the density of a unit's entries in
        another's place, summed over its signs and over the units inside it: permanents again.
        """
        plus = loc.new_ones(self.index.shape[-1])
        scores = self._scores(loc, scale, noise, permanent, plus)
        return self.log_order - self._summed(scores, permanent)

    def _summed(self, scores: Tensor, permanent: LogPermanent) -> Tensor:
        return permanent(scores) if self.permutes else scores.diagonal(dim1=-2, dim2=-1).sum(-1)

    def _scores(
        self, loc: Tensor, scale: Tensor, noise: Tensor, permanent: LogPermanent, sign: Tensor
    ) -> Tensor:
        """Log density of unit ``i`` in place ``j`` less that in its own, (S, d, d), all signs.

        Inside: of each unit of outer unit ``h`` in each place of outer unit ``k``, (S, D, D, d, d).
        ``sign`` (p,): of the entries, under the outer unit's signs.
        """
        mu = loc[self.index]
        sd = scale[self.index]
        eps = noise[..., self.index]
        stays = torch.eye(self.n_units, dtype=torch.bool, device=loc.device)
        log_sd = sd.log().sum(-1)
        w = mu + sd * eps
        minus_log_q = 0.5 * eps.square().sum(-1) + log_sd
        precision = sd**-2
        natural = mu * precision
        constant = 0.5 * (mu * mu * precision).sum(-1) + log_sd
        if self.index.ndim > 2:  # every outer unit with every other
            stays = stays & torch.eye(len(mu), dtype=torch.bool, device=loc.device)[..., None, None]
            w = w.unsqueeze(-3)
            minus_log_q = minus_log_q.unsqueeze(-2)
        even = -0.5 * ((w * w) @ precision.mT) - constant.unsqueeze(-2) + minus_log_q.unsqueeze(-1)
        plain = w @ natural.mT
        scores = []
        for choice in product((1.0, -1.0), repeat=len(self.negated)):
            signs = sign * _signs(self.negated, choice, sign)
            odd = (w * signs) @ natural.mT
            # In its own place terms as large as (mu / sd)^2 would have to cancel.
            score = torch.where(stays, odd - plain, even + odd)
            for table in self.inside:
                inner = _signs(table.outer, choice, sign)
                below = table._scores(loc, scale, noise, permanent, inner)
                score = score + table._summed(below, permanent)
            scores.append(score)
        return torch.stack(scores).logsumexp(0)


def _signs(negated: Tensor, choice: Sequence[float], like: Tensor) -> Tensor:
    """Sign of every entry, (p,), under a choice of signs of a unit."""
    signs = torch.ones(negated.shape[-1])
    for row, sign in zip(negated, choice, strict=True):
        signs = torch.where(row, sign * signs, signs)
    return signs.to(like)


def unit_tables(group: SymmetryGroup) -> tuple[UnitTable, ...]:
    """The factors of a group as tables; TypeError if one isn't made of units."""
    return tuple(table for factor in group.factors for table in _tables(factor))


def disjoint_unit_blocks(group: SymmetryGroup) -> tuple[UnitTable, ...]:
    """The factors' tables, each reduced to entries that no later one's units move.

    With them the chain rule gives a lower bound on the gap of a deep network,

        I(g_1, ..., g_L; theta) >= sum_l I(g_l; block_l | earlier g aligned),

    each term a permanent (incoming weights and bias of layer l; for the last hidden layer the
    outgoing weights too). For one hidden layer nothing is dropped and the bound is the gap.
    """
    blocks: list[UnitTable] = []
    later = torch.zeros(0, dtype=torch.int64)
    for table in reversed(unit_tables(group)):
        blocks.append(table.without(later))
        later = torch.cat([later, table.moved.cpu()])
    return tuple(reversed(blocks))


def _tables(factor: SymmetryGroup) -> Iterator[UnitTable]:
    if isinstance(factor, AxisUnits):
        yield from _nested_tables(factor, factor.entries)
    elif isinstance(factor, Wreath):
        parts = factor.parts
        above = factor.above
        if above[0] or any(names != (0,) for names in above[1:]):
            inner = {*range(len(parts))} - {name for names in above for name in names}
            for k in sorted(inner):  # the subgroup of the innermost units
                yield from (replace(t, is_whole=False) for t in _tables(parts[k]))
            return
        by_place = [{e.location: e for e in part.entries} for part in parts]
        n_owners = {where: sum(where in inside for inside in by_place[1:]) for where in by_place[0]}
        inside = tuple(
            _table(part, [e for w, e in entries.items() if n_owners[w] == 1], by_place[0])
            for part, entries in zip(parts[1:], by_place[1:], strict=True)
        )
        (outer,) = _nested_tables(parts[0], [e for w, e in by_place[0].items() if n_owners[w] == 0])
        is_whole = max(n_owners.values()) < 2 and not any(
            e.is_pair for part in parts for e in part.entries
        )
        yield replace(outer, inside=inside, is_whole=is_whole)
    else:
        yield from map(UnitTable.from_units, unit_layers(factor))


def _nested_tables(units: AxisUnits, entries: Sequence[UnitEntries]) -> Iterator[UnitTable]:
    """A table for each place that has units of its own."""
    table = _table(units, entries)
    n_places = prod(units.outer_shape)
    for index, moved in zip(
        table.index.reshape(n_places, *table.index.shape[-2:]),
        table.moved.reshape(n_places, -1), strict=True,
    ):  # fmt: skip
        yield replace(table, index=index, moved=moved)


def _table(
    units: AxisUnits, entries: Sequence[UnitEntries], outer: Mapping[Any, UnitEntries] | None = None
) -> UnitTable:
    """Table of the entries that lie on one axis of units, at all places.

    ``outer`` has what an outer unit's signs negate.
    """
    plain = [e for e in entries if not e.is_pair]
    n_params = 1 + max(
        e.offset + sum((n - 1) * s for n, s in zip(e.sizes, e.strides, strict=True))
        for e in units.entries
    )
    positions = torch.arange(n_params)
    shape = (*units.outer_shape, units.n_units)
    index = [e.view(positions).reshape(*shape, -1) for e in plain]
    moved = [e.view(positions).reshape(*units.outer_shape, -1) for e in units.entries]

    def columns(flips: Sequence[Sequence[bool]], n_signs: int) -> Tensor:
        wide = [
            torch.tensor(f, dtype=torch.bool).view(n_signs, 1).expand(-1, table.shape[-1])
            for f, table in zip(flips, index, strict=True)
        ]
        return torch.cat([torch.zeros(n_signs, 0, dtype=torch.bool), *wide], dim=-1)

    above = [outer[e.location].flipped if outer else () for e in plain]
    return UnitTable(
        torch.cat([positions.new_zeros(*shape, 0), *index], dim=-1),
        columns([e.flipped for e in plain], units.n_signs),
        columns(above, len(above[0]) if above else 0),
        units.permute, torch.cat(moved, dim=-1), len(plain) == len(units.entries),
    )  # fmt: skip
