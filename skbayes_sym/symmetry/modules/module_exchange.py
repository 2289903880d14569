"""Exchanges of whole submodules, such as the experts of a mixture.

Children of one module whose parameters have the same names and shapes are candidates. They can be
exchanged if they run side by side and what follows treats them alike: their outputs are added, or
stacked and weighted by a gate. Positions of other parameters move with them: the rows of the gate,
or the columns of the next layer that read their outputs.

Which fixed axes move is found by trial. The rules of operations don't follow an exchange of
modules, so that it is accepted only if it leaves the outputs unchanged in float64, at random
weights and at random inputs, and if every child matters for the outputs.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.axis_units import AxisUnits, UnitEntries
from skbayes_sym.symmetry.modules.numerical_check import ROUNDING, build_output_function
from skbayes_sym.symmetry.modules.pieces import Piece

# Fixed axes that may move with the modules, and random points at which an exchange is tried.
MAX_AXES = 4
N_POINTS = 3


class Siblings(NamedTuple):
    """Children of one module whose parameters have the same names and shapes.

    Attributes
    ----------
    names : tuple of str
        Names of the children, in the order of their parameters.
    parameters : tuple of tuple of str
        Names of the parameters of each child, in one order.
    """

    names: tuple[str, ...]
    parameters: tuple[tuple[str, ...], ...]


class ModuleExchange(NamedTuple):
    """Children that can be exchanged.

    Attributes
    ----------
    siblings : Siblings
        The children.
    units : AxisUnits
        Each child is a unit.
    blocks : tuple of int
        Fixed blocks whose positions move with the children.
    """

    siblings: Siblings
    units: AxisUnits
    blocks: tuple[int, ...]


def find_siblings(layout: ParamLayout, moving: Iterable[str]) -> list[Siblings]:
    """Return sets of children with the same parameters, at equal distances in ``theta``.

    Parameters
    ----------
    layout : ParamLayout
        Names and shapes of the tensors in ``theta``.
    moving : iterable of str
        Names of those that may be moved, in their order.
    """
    children: dict[str, dict[str, list[str]]] = {}
    for name in moving:
        parts = name.split(".")
        for k in range(len(parts) - 1):
            parent = ".".join(parts[:k])
            children.setdefault(parent, {}).setdefault(".".join(parts[: k + 1]), []).append(name)
    found = []
    for by_child in children.values():
        by_signature: dict[Any, list[str]] = {}
        for child, names in by_child.items():
            signature = tuple((name[len(child) :], layout.shapes[name]) for name in names)
            by_signature.setdefault(signature, []).append(child)
        for alike in by_signature.values():
            siblings = Siblings(tuple(alike), tuple(tuple(by_child[child]) for child in alike))
            if len(alike) > 1 and _has_equal_steps(siblings, layout):
                found.append(siblings)
    return found


def _has_equal_steps(siblings: Siblings, layout: ParamLayout) -> bool:
    starts = [layout.slices[names[0]].start for names in siblings.parameters]
    return _equal_step(starts) is not None


def _equal_step(offsets: Sequence[int]) -> int | None:
    """Return the distance of consecutive offsets, None if they differ or aren't positive."""
    steps = {b - a for a, b in itertools.pairwise(offsets)}
    if len(steps) == 1 and min(steps) > 0:
        return steps.pop()
    return None


def run_side_by_side(siblings: Siblings, inputs: dict[str, fx.Node]) -> bool:
    """Return whether no parameter of a child meets a result that depends on another child."""
    nodes = [[inputs[name] for name in names] for names in siblings.parameters]
    reached = [_find_reached(sources) for sources in nodes]
    for i, sources in enumerate(nodes):
        users = {user for source in sources for user in source.users}
        if any(users & others for j, others in enumerate(reached) if j != i):
            return False
    return True


def _find_reached(sources: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the nodes that depend on some others."""
    reached = set[fx.Node]()
    stack = [user for source in sources for user in source.users]
    while stack:
        node = stack.pop()
        if node not in reached:
            reached.add(node)
            stack += node.users
    return reached


class ModuleExchangeFinder:
    """Finds children that can be exchanged.

    Parameters
    ----------
    module : torch.nn.Module
        The module, which isn't changed.
    inputs : tuple
        Arguments of one call.
    layout : ParamLayout
        Names and shapes of the tensors in the flat ``theta``.
    nodes : dict of str to fx.Node
        Input of the graph for each of these tensors that may be moved. Integers never are.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: tuple[Any, ...],
        layout: ParamLayout,
        nodes: dict[str, fx.Node],
    ) -> None:
        self._layout = layout
        self._candidates = [
            siblings
            for siblings in find_siblings(layout, nodes)
            if run_side_by_side(siblings, nodes)
        ]
        self._module = module
        self._inputs = inputs

    def find(
        self, pieces: Sequence[Piece], is_fixed: Sequence[bool], sizes: Sequence[int]
    ) -> Iterator[ModuleExchange]:
        """Find exchanges.

        Parameters
        ----------
        pieces : sequence
            All parameters, split into parts each of whose axes is a block.
        is_fixed : sequence of bool
            Whether the positions of each block are fixed.
        sizes : sequence of int
            Number of positions of each block.

        Yields
        ------
        ModuleExchange
            Exchanges of children, none of which is inside another.
        """
        if not self._candidates:
            return
        points: list[_Point] = []
        taken = set[str]()
        for siblings in self._candidates:
            names = {name for child in siblings.parameters for name in child}
            if names & taken:
                continue
            base = self._entries_of_children(siblings, pieces)
            if base is None:
                continue
            points = points or self._make_points()
            if not all(self._changes_outputs(child, points) for child in siblings.names):
                continue
            n = len(siblings.names)
            others = [piece for piece in pieces if piece.parameter not in names]
            fixed = {
                axis.block
                for piece in others
                for axis in piece.axes
                if is_fixed[axis.block] and sizes[axis.block] == n
            }
            for blocks in self._subsets(sorted(fixed)):
                entries = [*base, *_entries_of_blocks(others, blocks)]
                units = AxisUnits(tuple(entries), n)
                if _is_symmetry(units, points):
                    taken |= names
                    yield ModuleExchange(siblings, units, blocks)
                    break

    @staticmethod
    def _subsets(blocks: Sequence[int]) -> Iterator[tuple[int, ...]]:
        for size in range(min(len(blocks), MAX_AXES) + 1):
            yield from itertools.combinations(blocks[: 2 * MAX_AXES], size)

    def _entries_of_children(
        self, siblings: Siblings, pieces: Sequence[Piece]
    ) -> list[UnitEntries] | None:
        """Return the children's own entries, and those that read their outputs.

        They have the axes of the pieces, so that alignment recognises entries of inner units. The
        result is None if they differ between the children.
        """
        names = {name for child in siblings.parameters for name in child}
        own = find_own_blocks(siblings, pieces)
        by_child = [
            [
                piece
                for piece in pieces
                if piece.parameter in child
                or (
                    piece.parameter not in names
                    and any(axis.block in blocks for axis in piece.axes)
                )
            ]
            for child, blocks in zip(siblings.parameters, own, strict=True)
        ]
        if len({len(pieces_of_child) for pieces_of_child in by_child}) > 1:
            return None
        entries = []
        for alike in zip(*by_child, strict=True):
            shapes = {_strided_shape(piece) for piece in alike}
            step = _equal_step([piece.offset for piece in alike])
            readers = {piece.parameter for piece in alike} - names
            if step is None or len(shapes) > 1 or len(readers) > 1:
                return None
            sizes, strides = shapes.pop()
            entries.append(UnitEntries(alike[0].offset, (len(alike), *sizes), (step, *strides)))
        return entries

    def _make_points(self) -> list["_Point"]:
        """Return random weights, constants and inputs.

        Constants are random, too, because the modules may have different ones after training.
        """
        generator = torch.Generator().manual_seed(1)

        def perturb(values: Tensor) -> Tensor:
            noise = torch.randn(values.shape, generator=generator, dtype=torch.float64)
            noise = noise.to(values.device)
            return values * (1.0 + 0.3 * noise) + 0.1 * noise.roll(1).abs()

        tensors = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        parts = [tensors[name].detach().flatten().cpu() for name in self._layout.shapes]
        theta = torch.cat([part.double() for part in parts])
        is_real = torch.cat([torch.full(part.shape, part.is_floating_point()) for part in parts])
        points = []
        for _ in range(N_POINTS):
            inputs = tuple(
                torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
                if isinstance(x, Tensor) and x.is_floating_point()
                else x
                for x in self._inputs
            )
            function = build_output_function(self._module, self._layout, inputs, perturb)
            points.append(_Point(function, torch.where(is_real, perturb(theta), theta)))
        return points

    def _changes_outputs(self, child: str, points: Sequence["_Point"]) -> bool:
        """Return whether the outputs depend on a child."""
        factor = torch.ones(self._layout.n_params, dtype=torch.float64)
        for name, place in self._layout.slices.items():
            if name.startswith(f"{child}."):
                factor[place] += 0.5 * torch.arange(place.stop - place.start).add(1.0).cos()
        return all(point.change(point.theta * factor) > 1e3 * ROUNDING for point in points)


def find_own_blocks(siblings: Siblings, pieces: Sequence[Piece]) -> list[set[int]]:
    """Return the blocks that lie on parameters of one child and of no other, by child."""
    blocks = []
    for names in siblings.parameters:
        own = {axis.block for piece in pieces if piece.parameter in names for axis in piece.axes}
        blocks.append(own)
    return [
        own - {block for other in blocks if other is not own for block in other} for own in blocks
    ]


def merge_units(units: Sequence[AxisUnits]) -> AxisUnits | None:
    """Return the units of all children as one, with the children as an outer axis.

    The result is None if the units of the children aren't alike.

    Parameters
    ----------
    units : sequence of AxisUnits
        Units of each child.
    """
    first = units[0]
    for other in units[1:]:
        kinds = [(u.n_units, u.n_signs, u.outer_shape, u.permute) for u in (first, other)]
        if kinds[0] != kinds[1] or len(first.entries) != len(other.entries):
            return None
    entries = []
    n = len(units)
    for alike in zip(*(u.entries for u in units), strict=True):
        shapes = {(e.sizes, e.strides, e.flips, e.is_pair, e.merged) for e in alike}
        step = _equal_step([e.offset for e in alike])
        if step is None or len(shapes) > 1:
            return None
        inner = alike[0]
        merged = (1, *inner.merged) if inner.merged else ()
        sizes = (n, *inner.sizes)
        strides = (step, *inner.strides)
        entries.append(
            UnitEntries(inner.offset, sizes, strides, inner.flips, inner.is_pair, merged)
        )
    outer_shape = (n, *first.outer_shape)
    return AxisUnits(tuple(entries), first.n_units, first.n_signs, outer_shape, first.permute)


def _strided_shape(piece: Piece) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes and strides of the axes of a piece."""
    strided = [part for axis in piece.axes for part in axis.strided()]
    return tuple(axis.size for axis in strided), tuple(axis.stride for axis in strided)


def _entries_of_blocks(pieces: Sequence[Piece], blocks: Sequence[int]) -> Iterator[UnitEntries]:
    """Return entries of pieces with one of some blocks, each of whose positions is a unit."""
    for piece in pieces:
        matching = [axis for axis in piece.axes if axis.block in blocks]
        if not matching:
            continue
        rest = [axis for axis in piece.axes if axis is not matching[0]]
        ordered = [matching[0], *(part for axis in rest for part in axis.strided())]
        yield UnitEntries(
            piece.offset,
            tuple(axis.size for axis in ordered),
            tuple(axis.stride for axis in ordered),
        )


class _Point:
    """Weights, constants and inputs at which groups are tried.

    Parameters
    ----------
    function : callable
        Outputs as a function of weights (P,).
    theta : Tensor of shape (P,)
        Weights.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], theta: Tensor) -> None:
        self.theta = theta
        self._function = function
        try:
            self._outputs = function(theta)
        except Exception:  # the module may need inputs of another kind
            self._outputs = torch.empty(0)

    def change(self, theta: Tensor) -> float:
        """Return the largest relative change of an output; nan if it is unknown."""
        before = self._outputs
        if not len(before) or not bool(before.isfinite().all()):
            return float("nan")
        after = self._function(theta)
        return float((after - before).abs().max() / before.abs().max().clamp_min(1e-30))


def _is_symmetry(units: AxisUnits, points: Sequence[_Point]) -> bool:
    """Return whether every generator and a random element leave the outputs unchanged."""
    generator = torch.Generator().manual_seed(2)
    elements = [g for _, g in units.generators()]
    elements += [units.sample((), generator=generator)]
    return all(
        point.change(units.act(g, point.theta)) <= ROUNDING for point in points for g in elements
    )
