"""Units of a module's group as tables of positions that a gap can sum over.

Units may have several signs, each of which negates some of their entries, and units inside them,
such as heads and the dimensions of each head. A table of scores can't represent entries with the
units on two axes, and some levels of deeper nests. These are omitted. Then the draws contain less
information on the group's element, or the average is over a subgroup. In both cases the gap falls,
and stays a lower bound.
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
    """Units with their signs, and the units inside them.

    Attributes
    ----------
    index : int64 Tensor of shape (*D, d, p)
        Positions of each unit's entries in ``theta``. Tables inside have a leading axis for the
        outer units.
    negated : bool Tensor of shape (K, p)
        Entries that each sign of a unit negates.
    outer : bool Tensor of shape (K', p)
        Entries that the signs of the outer unit negate.
    permutes : bool
        Whether units can be exchanged.
    moved : int64 Tensor of shape (n,)
        All positions that the units move. Some may be missing in ``index``.
    is_complete : bool
        Whether none is missing.
    inside : tuple of UnitTable
        Units inside each unit.
    """

    index: Tensor
    negated: Tensor
    outer: Tensor
    permutes: bool
    moved: Tensor
    is_complete: bool = True
    inside: tuple["UnitTable", ...] = ()

    @classmethod
    def from_units(cls, units: UnitGroup) -> "UnitTable":
        """Build the table of plain units, whose single sign, if any, negates all entries."""
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
        """Whether `Units` can represent the same group."""
        return not self.inside and len(self.negated) < 2 and bool(self.negated.all())

    @property
    def n_units(self) -> int:
        """Number d of units."""
        return int(self.index.shape[-2])

    @property
    def widest(self) -> int:
        """Number of units of the widest level with exchanges."""
        return max([self.n_units * self.permutes, *(table.widest for table in self.inside)])

    @property
    def n_scores(self) -> int:
        """Number of scores of one draw."""
        return self.n_units**2 * max([1, *(table.n_scores for table in self.inside)])

    @property
    def log_order(self) -> float:
        """Log of the number of elements, nats."""
        d = self.n_units
        units_log_order = lgamma(d + 1) * self.permutes + len(self.negated) * d * log(2.0)
        return units_log_order + d * sum(table.log_order for table in self.inside)

    def map(self, change: Callable[["UnitTable"], "UnitTable"]) -> "UnitTable":
        """Apply a change to every level."""
        return replace(change(self), inside=tuple(table.map(change) for table in self.inside))

    def to(self, device: torch.device) -> "UnitTable":
        """Return the table with its positions on a device."""
        return self.map(lambda table: replace(table, index=table.index.to(device)))

    def without(self, positions: Tensor) -> "UnitTable":
        """Remove all columns that contain any of these positions."""

        def remove_columns(table: UnitTable) -> UnitTable:
            keep = ~torch.isin(table.index, positions).flatten(0, -2).any(dim=0)
            return replace(
                table,
                index=table.index[..., keep],
                negated=table.negated[:, keep],
                outer=table.outer[:, keep],
            )

        return self.map(remove_columns)

    def values(self, loc: Tensor, scale: Tensor, noise: Tensor, permanent: LogPermanent) -> Tensor:
        """Compute ``log q - log q_G`` of the units' entries at draws; see `UnitGap.values`.

        Parameters
        ----------
        loc, scale : Tensor of shape (P,)
            Means and standard deviations.
        noise : Tensor of shape (S, P)
            Standard normal noise.
        permanent : callable (*B, d, d) -> (*B,)
            Log-permanent, or an estimate of it.

        Returns
        -------
        Tensor of shape (S,)
            Values in nats.

        Notes
        -----
        ``q_G`` is a permanent over the units. Its entries are the densities of a unit's entries in
        the position of another unit, summed over its signs and over the units inside it. The latter
        sums are permanents, too.
        """
        plus = loc.new_ones(self.index.shape[-1])
        scores = self.scores(loc, scale, noise, permanent, plus)
        return self.log_order - self.log_sum(scores, permanent)

    def log_sum(self, scores: Tensor, permanent: LogPermanent) -> Tensor:
        """Sum the exponentials of scores over all permutations, in logs, (*B, d, d) -> (*B,)."""
        if self.permutes:
            return permanent(scores)
        return scores.diagonal(dim1=-2, dim2=-1).sum(-1)

    def scores(
        self, loc: Tensor, scale: Tensor, noise: Tensor, permanent: LogPermanent, sign: Tensor
    ) -> Tensor:
        """Compute log densities of unit ``i`` in position ``j`` less that in its true position.

        Parameters
        ----------
        loc, scale : Tensor of shape (P,)
            Means and standard deviations.
        noise : Tensor of shape (S, P)
            Standard normal noise.
        permanent : callable (*B, d, d) -> (*B,)
            Log-permanent of the units inside.
        sign : Tensor of shape (p,)
            Signs of the entries, under the outer unit's signs.

        Returns
        -------
        Tensor of shape (S, d, d)
            Scores, summed over all signs. Tables inside return (S, D, D, d, d), the scores of each
            unit of outer unit ``h`` in each position of outer unit ``k``.
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
        if self.index.ndim > 2:  # compare every outer unit with every other
            stays = stays & torch.eye(len(mu), dtype=torch.bool, device=loc.device)[..., None, None]
            w = w.unsqueeze(-3)
            minus_log_q = minus_log_q.unsqueeze(-2)
        even = -0.5 * ((w * w) @ precision.mT) - constant.unsqueeze(-2) + minus_log_q.unsqueeze(-1)
        plain = w @ natural.mT
        scores = []
        for choice in product((1.0, -1.0), repeat=len(self.negated)):
            signs = sign * _signs(self.negated, choice, sign)
            odd = (w * signs) @ natural.mT
            # On the diagonal, terms as large as (mu / sd)^2 would have to cancel.
            score = torch.where(stays, odd - plain, even + odd)
            for table in self.inside:
                inner = _signs(table.outer, choice, sign)
                inner_scores = table.scores(loc, scale, noise, permanent, inner)
                score = score + table.log_sum(inner_scores, permanent)
            scores.append(score)
        return torch.stack(scores).logsumexp(0)


def _signs(negated: Tensor, choice: Sequence[float], like: Tensor) -> Tensor:
    """Return the sign of every entry, (p,), under a choice of signs of a unit."""
    signs = torch.ones(negated.shape[-1])
    for row, sign in zip(negated, choice, strict=True):
        signs = torch.where(row, sign * signs, signs)
    return signs.to(like)


def unit_tables(group: SymmetryGroup) -> tuple[UnitTable, ...]:
    """Return the factors of a group as tables; TypeError if one doesn't consist of units."""
    return tuple(table for factor in group.factors for table in _tables(factor))


def disjoint_unit_blocks(group: SymmetryGroup) -> tuple[UnitTable, ...]:
    """Return the factors' tables, each reduced to entries that no later factor moves.

    With them the chain rule gives a lower bound on the gap of a deep network,

        I(g_1, ..., g_L; theta) >= sum_l I(g_l; block_l | earlier g aligned).

    Each term is a permanent. A block contains the incoming weights and biases of layer l, for the
    last hidden layer also the outgoing weights. For one hidden layer nothing is dropped, and the
    bound is the gap.
    """
    blocks: list[UnitTable] = []
    later = torch.zeros(0, dtype=torch.int64)
    for table in reversed(unit_tables(group)):
        blocks.append(table.without(later))
        later = torch.cat([later, table.moved.cpu()])
    return tuple(reversed(blocks))


def _tables(factor: SymmetryGroup) -> Iterator[UnitTable]:
    """Build the tables of one factor."""
    if isinstance(factor, AxisUnits):
        yield from _separate_tables(factor, factor.entries)
    elif isinstance(factor, Wreath):
        parts = factor.parts
        above = factor.above
        if above[0] or any(names != (0,) for names in above[1:]):
            # Deeper nests: the subgroup of the innermost units.
            innermost = {*range(len(parts))} - {name for names in above for name in names}
            for k in sorted(innermost):
                yield from (replace(t, is_complete=False) for t in _tables(parts[k]))
            return
        # Two levels. Entries that exactly one inner part moves belong to it.
        by_location = [{e.location: e for e in part.entries} for part in parts]
        n_owners = {
            location: sum(location in entries for entries in by_location[1:])
            for location in by_location[0]
        }
        inside = tuple(
            _build_table(part, [e for w, e in entries.items() if n_owners[w] == 1], by_location[0])
            for part, entries in zip(parts[1:], by_location[1:], strict=True)
        )
        shared = [e for w, e in by_location[0].items() if n_owners[w] == 0]
        (outer,) = _separate_tables(parts[0], shared)
        is_complete = max(n_owners.values()) < 2 and not any(
            e.is_pair for part in parts for e in part.entries
        )
        yield replace(outer, inside=inside, is_complete=is_complete)
    else:
        yield from map(UnitTable.from_units, unit_layers(factor))


def _separate_tables(units: AxisUnits, entries: Sequence[UnitEntries]) -> Iterator[UnitTable]:
    """Build a table for each outer position, which has separate units."""
    table = _build_table(units, entries)
    n_positions = prod(units.outer_shape)
    indices = table.index.reshape(n_positions, *table.index.shape[-2:])
    moved_positions = table.moved.reshape(n_positions, -1)
    for index, moved in zip(indices, moved_positions, strict=True):
        yield replace(table, index=index, moved=moved)


def _build_table(
    units: AxisUnits, entries: Sequence[UnitEntries], outer: Mapping[Any, UnitEntries] | None = None
) -> UnitTable:
    """Build the table of entries that lie on one axis of units, at all outer positions.

    Parameters
    ----------
    units : AxisUnits
        The units.
    entries : sequence of UnitEntries
        Entries of the table. Those with the units on two axes are omitted.
    outer : dict or None, default=None
        The outer unit's entries by location, which tell what its signs negate.
    """
    plain = [e for e in entries if not e.is_pair]
    n_params = max(e.end for e in units.entries)
    positions = torch.arange(n_params)
    shape = (*units.outer_shape, units.n_units)
    index = [e.read(positions).reshape(*shape, -1) for e in plain]
    moved = [e.read(positions).reshape(*units.outer_shape, -1) for e in units.entries]

    def expand_flips(flips: Sequence[Sequence[bool]], n_signs: int) -> Tensor:
        """Repeat which signs negate each of the entries for all of their columns."""
        expanded = [
            torch.tensor(f, dtype=torch.bool).view(n_signs, 1).expand(-1, table.shape[-1])
            for f, table in zip(flips, index, strict=True)
        ]
        return torch.cat([torch.zeros(n_signs, 0, dtype=torch.bool), *expanded], dim=-1)

    outer_flips: list[tuple[bool, ...]] = [()] * len(plain)
    if outer:
        outer_flips = [outer[e.location].flipped for e in plain]
    n_outer_signs = max(map(len, outer_flips), default=0)
    return UnitTable(
        index=torch.cat([positions.new_zeros(*shape, 0), *index], dim=-1),
        negated=expand_flips([e.flipped for e in plain], units.n_signs),
        outer=expand_flips(outer_flips, n_outer_signs),
        permutes=units.permute,
        moved=torch.cat(moved, dim=-1),
        is_complete=len(plain) == len(units.entries),
    )
