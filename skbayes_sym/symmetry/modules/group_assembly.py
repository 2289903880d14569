"""Assemble the symmetry group of a module from the analysis of its graph.

Every block of positions that isn't fixed, or whose sign is free, becomes an `AxisUnits`. Blocks
that control the permutations of other blocks are combined to a `Wreath`. The glossary is in
`skbayes_sym.symmetry.modules.axis_partition`.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.axis_units import AxisUnits, UnitEntries, Wreath
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.modules.axis_partition import SCALE, SIGN, Exponents, null_space
from skbayes_sym.symmetry.modules.graph_analysis import GraphAnalysis
from skbayes_sym.symmetry.modules.module_exchange import (
    ModuleExchange,
    ModuleExchangeFinder,
    find_own_blocks,
    merge_units,
)
from skbayes_sym.symmetry.modules.pieces import Piece, PieceAxis


class Rescaling(NamedTuple):
    """Free positive factors of units, which the finite group doesn't contain.

    Attributes
    ----------
    multiplied : tuple of str
        Tensors, or their rows or columns, that are multiplied by the factor of their unit. A power
        other than one is appended, as in ``"rows of weight (power 2)"``.
    divided : tuple of str
        Tensors, or their rows or columns, that are divided by it.
    n : int
        Number of independent factors, one for each unit.
    """

    multiplied: tuple[str, ...]
    divided: tuple[str, ...]
    n: int

    def __str__(self) -> str:
        sides = {"multiplied": self.multiplied, "divided": self.divided}
        text = "; ".join(f"{verb}: {', '.join(names)}" for verb, names in sides.items() if names)
        return f"{self.n} positive scales, {text}"


class ScaledAxis(NamedTuple):
    """Part of a parameter that free scales multiply.

    Attributes
    ----------
    offset : int
        Position of its first entry in the flat ``theta``.
    sizes, strides : tuple of int
        Of its axes.
    unit_axes : tuple of int
        Axes whose positions together select the unit.
    first_unit : int
        Number of the first of these units among all that can be rescaled.
    power : float
        An entry is multiplied by the factor of its unit to this power.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    unit_axes: tuple[int, ...]
    first_unit: int
    power: float

    def entries(self) -> np.ndarray:
        """Return the positions of all entries and the numbers of their units, (2, E)."""
        index = np.indices(self.sizes).reshape(len(self.sizes), -1)
        position = self.offset + np.array(self.strides) @ index
        unit_sizes = [self.sizes[axis] for axis in self.unit_axes]
        unit = np.ravel_multi_index(index[list(self.unit_axes)], unit_sizes)
        return np.stack([position, self.first_unit + unit])


class AssembledGroup(NamedTuple):
    """Result of the analysis of a module's graph.

    Attributes
    ----------
    factors : tuple of SymmetryGroup
        Direct factors of the group.
    descriptions : tuple of str
        For each factor, its units, the tensors that contain them and the operations they pass.
    rescalings : tuple of Rescaling
        Free positive scales.
    scaled_axes : tuple of ScaledAxis
        What these scales multiply.
    refused : tuple of str
        Operations without a rule, lost symmetries and units that no factor can describe.
    """

    factors: tuple[SymmetryGroup, ...]
    descriptions: tuple[str, ...]
    rescalings: tuple[Rescaling, ...]
    scaled_axes: tuple[ScaledAxis, ...]
    refused: tuple[str, ...]


def assemble_group(
    analysis: GraphAnalysis,
    layout: ParamLayout,
    moving: Sequence[str],
    overall_signs: Sequence[Collection[int]] = (),
    exchanges: ModuleExchangeFinder | None = None,
) -> AssembledGroup:
    """Assemble the group from a finished analysis.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis, after it has reached a fixed point.
    layout : ParamLayout
        Names and shapes of the tensors in the flat ``theta``.
    moving : sequence of str
        Names of the tensors that may be permuted, in the order of ``analysis.parameters``.
    overall_signs : sequence of collection of int, default=()
        Sets of these tensors, by their positions, that can be negated together.
    exchanges : ModuleExchangeFinder, optional
        Finds exchanges of whole submodules. By default none are looked for.
    """
    return _GroupAssembler(analysis, layout, moving).assemble(overall_signs, exchanges)


class _GroupAssembler:
    """Assembles a group from what the analysis found.

    Attributes
    ----------
    pieces : list of Piece
        The parameters, split into pieces whose axes are leaves.
    leaves : list of int
        All blocks of the pieces.
    controllers : dict of int to set of int
        The leaves that may control each leaf.
    grids : dict of int to tuple of int
        The two leaves whose positions are those of a grid of units, which is a leaf itself.
    outer : dict of int to set of int
        The controllers of each leaf in the group, without cycles.
    """

    def __init__(self, analysis: GraphAnalysis, layout: ParamLayout, moving: Sequence[str]) -> None:
        self.analysis = analysis
        self.partition = analysis.partition
        self.layout = layout
        self.axes = dict(zip(moving, analysis.parameters, strict=True))
        self.pieces = list(self._find_pieces())
        self.leaves = sorted({axis.block for piece in self.pieces for axis in piece.axes})
        self.controllers = {
            block: (self.partition.controllers(block) or set()) & {*self.leaves}
            for block in self.leaves
        }
        self.operations: dict[int, dict[str, None]] = {}
        for block, names in analysis.operations.items():
            for leaf in self.partition.leaves(block):
                self.operations.setdefault(leaf, {}).update(names)
        self.grids: dict[int, tuple[int, int]] = {}
        while pair := next(filter(self._is_grid, itertools.combinations(self.leaves, 2)), None):
            self._merge_grid(*pair)
        self.outer = _make_transitive(self.controllers)

    def assemble(
        self,
        overall_signs: Sequence[Collection[int]],
        exchanges: ModuleExchangeFinder | None = None,
    ) -> AssembledGroup:
        """Return the factors with their descriptions."""
        refused = sorted(
            self.analysis.refused | self.partition.losses | set(self._find_joint_exchanges())
        )

        signs = self._find_independent(SIGN)
        units, without_units = self._find_units(signs)
        refused += without_units

        # Blocks that control one another form one factor, and so do modules that are exchanged.
        factors: list[SymmetryGroup] = []
        descriptions: list[str] = []
        components = _connected_components(units, self.outer)
        exchanged = list[ModuleExchange]()
        found: Iterable[ModuleExchange] = ()
        if exchanges is not None:
            found = exchanges.find(self.pieces, self.partition.is_fixed, self.partition.size)
        for exchange in found:
            modules = ", ".join(exchange.siblings.names)
            others = [other.units for other in exchanged]
            merged = self._merge_modules(exchange, components, units, others)
            if merged is None:
                refused.append(f"exchange of modules whose units aren't alike: {modules}")
                continue
            exchanged.append(exchange)
            factor, inner, components = merged
            factors.append(factor)
            descriptions.append(self._describe_modules(exchange, [(x, units[x]) for x in inner]))
        for blocks in components:
            component = self._build_factors(blocks, units)
            factors += component
            levels = [self._describe_units(block, units[block]) for block in blocks]
            descriptions += ["; inside: ".join(levels)] * len(component)

        # Signs of whole tensors that aren't products of the units' signs.
        span = _Span()
        for block in units:
            for sign in signs[block]:
                span.add(self._encode_sign(block, sign, all_units=True))
        names = [*self.axes]
        for positions in overall_signs:
            negated = [names[k] for k in sorted(positions)]
            bits = sum(1 << (2 * n) for n, p in enumerate(self.pieces) if p.parameter in negated)
            if not span.add(bits):
                continue
            if all(_treats_alike(negated, exchange) for exchange in exchanged):
                factors += self._build_overall_sign(negated).simplify()
                descriptions.append(f"one sign of all entries of {', '.join(negated)}")

        scales = [
            (block, powers)
            for block, solutions in self._find_independent(SCALE).items()
            for powers in solutions
        ]
        return AssembledGroup(
            tuple(factors),
            tuple(descriptions),
            tuple(self._describe_rescaling(block, powers) for block, powers in scales),
            tuple(self._find_scaled_axes(scales)),
            tuple(refused),
        )

    def _find_units(
        self, signs: Mapping[int, Sequence[Exponents]]
    ) -> tuple[dict[int, AxisUnits], list[str]]:
        """Return one set of units for each block that is permuted or has free signs.

        Parameters
        ----------
        signs : mapping of int to sequence
            Independent signs of each block.

        Returns
        -------
        units : dict of int to AxisUnits
            Units of the blocks.
        refused : list of str
            Descriptions of the blocks whose units can't be represented.
        """
        units: dict[int, AxisUnits] = {}
        refused: list[str] = []
        for block in self.leaves:
            if self.partition.is_fixed[block] and not signs[block]:
                continue
            block_units = self._build_units(block, signs[block])
            if block_units is None:
                tensors = self._describe_tensors(block)
                refused.append(f"units on three axes of one parameter: {tensors}")
            else:
                units[block] = block_units
        return units, refused

    # Modules

    def _merge_modules(
        self,
        exchange: ModuleExchange,
        components: Sequence[list[int]],
        units: dict[int, AxisUnits],
        others: Sequence[AxisUnits],
    ) -> tuple[SymmetryGroup, list[int], list[list[int]]] | None:
        """Combine the exchange of modules with the units inside them.

        Parameters
        ----------
        exchange : ModuleExchange
            The modules.
        components : sequence of list of int
            Blocks of the other factors.
        units : dict of int to AxisUnits
            Units of the blocks.
        others : sequence of AxisUnits
            Exchanges of other modules.

        Returns
        -------
        tuple or None
            The factor, the blocks inside the first module, and the blocks of the factors that
            remain. None if the units of the modules aren't alike, or if another factor treats the
            modules differently.
        """
        own = find_own_blocks(exchange.siblings, self.pieces)
        inside: list[list[list[int]]] = [[] for _ in own]
        remaining: list[list[int]] = []
        for blocks in components:
            homes = [k for k, mine in enumerate(own) if mine & {*blocks}]
            if not homes:
                remaining.append(blocks)
            elif len(homes) == 1 and {*blocks} <= own[homes[0]]:
                inside[homes[0]].append(blocks)
            else:
                return None
        outer_blocks = {x for blocks in components for b in blocks for x in self.outer[b]}
        separate = [*others, *(units[block] for blocks in remaining for block in blocks)]
        if outer_blocks & {*exchange.blocks} or not all(
            _commute(exchange.units, other, self.layout.n_params) for other in separate
        ):
            return None

        parts = [exchange.units]
        above: list[tuple[int, ...]] = [()]
        ordered = [self._order_components(x, units) for x in inside]
        if len({tuple(map(len, x)) for x in ordered}) > 1:
            return None
        for alike in zip(*ordered, strict=True):
            levels = [self._number_levels(blocks, len(parts)) for blocks in alike]
            for same in zip(*alike, strict=True):
                merged = merge_units([units[block] for block in same])
                numbers = {
                    tuple(level[x] for x in sorted(self.outer[block]))
                    for level, block in zip(levels, same, strict=True)
                }
                if merged is None or len(numbers) > 1:
                    return None
                parts.append(merged)
                above.append((0, *numbers.pop()))
        inner = [block for blocks in ordered[0] for block in blocks]
        if len(parts) == 1:
            return exchange.units, inner, remaining
        return Wreath(tuple(parts), tuple(above)), inner, remaining

    def _order_components(
        self, components: Sequence[list[int]], units: dict[int, AxisUnits]
    ) -> list[list[int]]:
        """Sort the blocks of factors by their first entries, outer blocks before inner ones."""

        def first_entry(block: int) -> int:
            return min(e.offset for e in units[block].entries)

        ordered = [
            sorted(blocks, key=lambda b: (len(self.outer[b]), first_entry(b)))
            for blocks in components
        ]
        return sorted(ordered, key=lambda blocks: first_entry(blocks[0]))

    def _number_levels(self, blocks: Sequence[int], first: int) -> dict[int, int]:
        """Number blocks from ``first`` on, and outer blocks that nothing moves from -1 down."""
        level = {block: first + i for i, block in enumerate(blocks)}
        fixed = (x for block in blocks for x in sorted(self.outer[block]) if x not in level)
        return level | {x: -1 - i for i, x in enumerate(dict.fromkeys(fixed))}

    def _describe_modules(
        self, exchange: ModuleExchange, inner: Sequence[tuple[int, AxisUnits]]
    ) -> str:
        """Describe modules, what moves with them, and the units inside each of them."""
        moved = [*exchange.siblings.names, *map(self._describe_tensors, exchange.blocks)]
        heading = f"{len(exchange.siblings.names)} modules, exchanged: {', '.join(moved)}"
        return "; inside each: ".join([heading, *(self._describe_units(*x) for x in inner)])

    # Grids of units

    def _is_mutual(self, pair: tuple[int, int]) -> bool:
        """Return whether each of two blocks may control the permutation of the other."""
        a, b = pair
        is_fixed = self.partition.is_fixed[a] or self.partition.is_fixed[b]
        return not is_fixed and b in self.controllers[a] and a in self.controllers[b]

    def _is_grid(self, pair: tuple[int, int]) -> bool:
        """Return whether all exchanges among the positions of a grid of two blocks are symmetries.

        If each of two blocks may control the permutation of the other, rows and columns of their
        grid may be permuted separately in each column and row. Together, these permutations are all
        permutations of the grid. Each parameter must have both blocks once, or neither of them.
        """
        return self._is_mutual(pair) and self._counts_in_pieces(pair) <= {(0, 0), (1, 1)}

    def _counts_in_pieces(self, pair: tuple[int, int]) -> set[tuple[int, int]]:
        """Return how many axes of a piece consist of each of two blocks, for all pieces."""
        a, b = pair
        return {(len(piece.find_axes(a)), len(piece.find_axes(b))) for piece in self.pieces}

    def _is_recurrent_grid(self, pair: tuple[int, int]) -> bool:
        """Return whether a matrix maps a grid of two blocks to itself, and all others have both.

        The position on such a matrix of one block can't select the permutation of the other, as it
        has two. The exchanges of the grid may be symmetries, but no rule finds them.
        """
        is_fixed = any(self.partition.is_fixed[block] for block in pair)
        counts = self._counts_in_pieces(pair)
        return not is_fixed and (2, 2) in counts and counts <= {(0, 0), (1, 1), (2, 2)}

    def _merge_grid(self, a: int, b: int) -> None:
        """Replace two blocks by one, whose positions are those of their grid."""
        sizes = self.partition.size
        grid = self.partition.add_block(sizes[a] * sizes[b])
        self.grids[grid] = (a, b)
        for n, piece in enumerate(self.pieces):
            positions = [k for x in (a, b) for k in piece.find_axes(x)]
            if positions:
                first, second = (piece.axes[k] for k in positions)
                rest = [axis for k, axis in enumerate(piece.axes) if k not in positions]
                joint = PieceAxis(grid, first.variable, sizes[grid], 0, (first, second))
                self.pieces[n] = piece.replace_axes([*rest, joint], 0)
        self.leaves = sorted({*self.leaves, grid} - {a, b})
        self.controllers[grid] = self.controllers[a] & self.controllers[b]
        for blocks in self.controllers.values():
            if {a, b} <= blocks:
                blocks.add(grid)
        self.controllers = {x: self.controllers[x] - {a, b} for x in self.leaves}
        self.operations[grid] = {**self.operations.get(a, {}), **self.operations.get(b, {})}

    def _find_joint_exchanges(self) -> Iterator[str]:
        """Describe exchanges between the rows of a grid of units that no factor contains."""
        for a, b in itertools.combinations(self.leaves, 2):
            if not (self._is_mutual((a, b)) or self._is_recurrent_grid((a, b))):
                continue
            sizes = f"{self.partition.size[a]} x {self.partition.size[b]}"
            yield (
                f"exchanges among all of {sizes} units that views regroup: "
                f"{self._describe_tensors(a)}"
            )

    # Pieces of parameters

    def _find_pieces(self) -> Iterable[Piece]:
        """Split all parameters on which the output depends into pieces whose axes are leaves."""
        offset = 0
        positions = {name: j for j, name in enumerate(self.axes)}
        used = set(itertools.compress(self.axes, self.analysis.parameter_is_used))
        for name, shape in self.layout.shapes.items():
            n_entries = prod(shape)
            if name in used and n_entries > 0:  # tensors of integers never move
                axes = [
                    PieceAxis(
                        axis[0][0].block, f"{positions[name]}.{k}", shape[k], prod(shape[k + 1 :])
                    )
                    for k, axis in enumerate(self.axes[name])
                ]
                yield from self._split(Piece(name, offset, axes))
            offset += n_entries

    def _split(self, piece: Piece) -> Iterable[Piece]:
        """Split a piece until each of its axes is a leaf of the partition.

        Parameters
        ----------
        piece : Piece
            Part of a parameter, with strides of its axes in the vector of all weights.

        Yields
        ------
        Piece
            Pieces that cover the same entries.
        """
        partition = self.partition
        # An axis that concatenates segments gives a piece per segment, and a segment that is a
        # product of blocks becomes one axis per block.
        for k, axis in enumerate(piece.axes):
            segments = partition.segments[partition.find(axis.block)]
            step = 0
            for i, segment in enumerate(segments or ()):
                sizes = [partition.size[x] for x in segment]
                is_concatenation = segments is not None and len(segments) > 1
                if is_concatenation:
                    name = f"{axis.variable}/{i}"
                else:
                    name = axis.variable
                strides = [axis.stride * prod(sizes[m + 1 :]) for m in range(len(sizes))]
                inner = map(PieceAxis, segment, [name] * len(sizes), sizes, strides)
                axes = [*piece.axes[:k], *inner, *piece.axes[k + 1 :]]
                yield from self._split(piece.replace_axes(axes, step))
                step += axis.stride * prod(sizes)
            if segments:
                return
        # A family of blocks gives a piece per member, once its index is an axis of the piece.
        for axis in piece.axes:
            family = partition.families[partition.find(axis.block)]
            if family is not None:
                yield from self._split_family(piece, partition.find(family.index_block))
                return
        leaves = [
            axis._replace(block=partition.find(axis.block)) for axis in piece.axes if axis.size > 1
        ]
        yield piece.replace_axes(leaves, 0)

    def _split_family(self, piece: Piece, index_block: int) -> Iterable[Piece]:
        """Split a piece along the axis that indexes the members of its families."""
        partition = self.partition
        (index,) = [
            k for k, axis in enumerate(piece.axes) if partition.find(axis.block) == index_block
        ]
        for i in range(partition.size[index_block]):
            axes = []
            for axis in piece.axes[:index] + piece.axes[index + 1 :]:
                family = partition.families[partition.find(axis.block)]
                if family is not None and partition.find(family.index_block) == index_block:
                    axis = axis._replace(block=family.members[i], variable=f"{axis.variable}/{i}")
                axes.append(axis)
            yield from self._split(piece.replace_axes(axes, i * piece.axes[index].stride))

    # Signs and scales

    def _find_independent(self, kind: int) -> dict[int, list[Exponents]]:
        """Return the independent free signs (or scales) of the units of each leaf.

        Each is given by the powers of the leaf's variables. Signs that are products of other signs
        are omitted. Those of inner units take precedence.
        """
        equations = self.partition.equations_by_leaf(kind)
        global_span = _Span()
        independent: dict[int, list[Exponents]] = {block: [] for block in self.leaves}
        for block in sorted(self.leaves, key=lambda b: -len(self.outer[b])):
            span = _Span()
            for inner in (b for b in self.leaves if block in self.outer[b]):
                for solution in independent[inner]:
                    span.add(self._encode_sign(inner, solution, all_units=True, only=block))
            for solution in self._solve(block, equations, kind):
                if not span.add(self._encode_sign(block, solution)):
                    continue
                # Flipping all units at once may be the product of such flips of other blocks.
                if kind == SCALE or global_span.add(
                    self._encode_sign(block, solution, all_units=True)
                ):
                    independent[block].append(solution)
        return independent

    def _solve(
        self, block: int, equations: dict[int, list[Exponents]], kind: int
    ) -> list[Exponents]:
        """Return a basis of the signs (scales) of a block; those of a grid are of either axis."""
        if block in self.grids:
            return [x for axis in self.grids[block] for x in self._solve(axis, equations, kind)]
        names = {
            part.variable
            for piece in self.pieces
            for axis in piece.axes
            for part in (axis, *_grid_parts(axis))
            if part.block == block
        }
        return null_space(equations.get(block, []), sorted(names), kind)

    def _encode_sign(
        self, block: int, variables: Collection[str], *, all_units: bool = False, only: int = -1
    ) -> int:
        """Encode which pieces a sign negates as a bit vector.

        Parameters
        ----------
        block : int
            Block whose units have the sign.
        variables : collection of str
            Variables of the axes that the sign negates.
        all_units : bool, default=False
            Whether all units are flipped at once, so that a piece with two axes of units stays.
            Otherwise the two axes have a bit each.
        only : int, default=-1
            Encode only pieces that contain this block; negative: all pieces.
        """
        bits = 0
        for n, piece in enumerate(self.pieces):
            if only >= 0 and not piece.find_axes(only):
                continue
            negated = [piece.axes[k].variable in variables for k in piece.find_axes(block)]
            if all_units:
                negated = [sum(negated) % 2 == 1]
            else:
                negated = negated[:2]
            for m, bit in enumerate(negated):
                bits |= bit << (2 * n + m)
        return bits

    # Factors

    def _build_units(self, block: int, signs: Sequence[Collection[str]]) -> AxisUnits | None:
        """Return the units of a block; None if they lie on three axes of one parameter."""
        outer = sorted(self.outer[block])
        entries = []
        for piece in (p for p in self.pieces if p.find_axes(block)):
            unit_axes = piece.find_axes(block)
            outer_axes = [piece.find_axes(x) for x in outer]
            if len(unit_axes) > 2 or any(len(axes) != 1 for axes in outer_axes):
                return None
            order = [*(axes[0] for axes in outer_axes), *unit_axes]
            others = {*range(len(piece.axes))} - {*order}
            axes = [piece.axes[k] for k in (*order, *others)]
            flips = tuple(tuple(piece.axes[k].variable in s for k in unit_axes) for s in signs)
            strided = [part for axis in axes for part in axis.strided()]
            if len(strided) > len(axes):
                merged = tuple(len(axis.strided()) for axis in axes)
            else:
                merged = ()
            entries.append(
                UnitEntries(
                    piece.offset,
                    tuple(axis.size for axis in strided),
                    tuple(axis.stride for axis in strided),
                    flips,
                    len(unit_axes) == 2,
                    merged,
                )
            )
        return AxisUnits(
            tuple(entries),
            self.partition.size[block],
            len(signs),
            tuple(self.partition.size[x] for x in outer),
            not self.partition.is_fixed[block],
        )

    def _build_factors(
        self, blocks: list[int], units: dict[int, AxisUnits]
    ) -> tuple[SymmetryGroup, ...]:
        """Return the direct factors of the units of one component."""
        if len(blocks) == 1:
            return units[blocks[0]].simplify()
        # Levels are numbered from the outermost. Outer blocks that nothing moves are negative.
        level = {block: i for i, block in enumerate(blocks)}
        for x in (x for block in blocks for x in sorted(self.outer[block])):
            level.setdefault(x, -1 - len(level))
        above = tuple(tuple(level[x] for x in sorted(self.outer[block])) for block in blocks)
        return (Wreath(tuple(units[block] for block in blocks), above),)

    def _build_overall_sign(self, negated: Sequence[str]) -> AxisUnits:
        """Return a single unit with a sign, which consists of all entries of some tensors."""
        entries = []
        for name in negated:
            place = self.layout.slices[name]
            n_entries = place.stop - place.start
            entries.append(UnitEntries(place.start, (1, n_entries), (n_entries, 1), ((True,),)))
        return AxisUnits(tuple(entries), 1, 1, permute=False)

    # Descriptions

    def _describe_units(self, block: int, units: AxisUnits) -> str:
        """Describe units, the tensors that contain them, and the operations they pass."""
        through = ", ".join(self.operations.get(block, {}))
        return f"{units.moves}: {self._describe_tensors(block)} ({through})"

    def _describe_tensors(self, block: int) -> str:
        """List the axes of tensors that contain a block."""
        names: dict[str, None] = {}
        for piece in self.pieces:
            for k in piece.find_axes(block):
                names[self._describe_axis(piece, k)] = None
        return ", ".join(names)

    def _describe_axis(self, piece: Piece, k: int) -> str:
        """Describe an axis of a piece, such as "rows of 0.weight"."""
        axis = piece.axes[k]
        shape = self.layout.shapes[piece.parameter]
        position = int(axis.variable.split("/")[0].split(".")[1])
        name = piece.parameter
        if len(shape) > 1:
            axis_name = {0: "rows", 1: "columns"}.get(position, f"axis {position}")
            name = f"{axis_name} of {name}"
        if axis.size != shape[position]:
            name = f"parts of {name}"
        return name

    def _describe_rescaling(self, block: int, powers: Exponents) -> Rescaling:
        """Describe a free scale of a block's units; the first tensor is multiplied."""
        multiplied: dict[str, None] = {}
        divided: dict[str, None] = {}
        orientation = 0
        for piece in self.pieces:
            for k in piece.find_axes(block):
                power = powers.get(piece.axes[k].variable, 0)
                if power == 0:
                    continue
                orientation = orientation or (1 if power > 0 else -1)
                if abs(power) == 1:
                    suffix = ""
                else:
                    suffix = f" (power {abs(power)})"
                if power * orientation > 0:
                    tensors = multiplied
                else:
                    tensors = divided
                tensors[self._describe_axis(piece, k) + suffix] = None
        n_outer = prod(self.partition.size[x] for x in self.outer[block])
        return Rescaling(tuple(multiplied), tuple(divided), n_outer * self.partition.size[block])

    def _find_scaled_axes(self, scales: Sequence[tuple[int, Exponents]]) -> Iterator[ScaledAxis]:
        """Find what free scales of blocks multiply; each outer position has units of its own."""
        first_unit = 0
        for block, powers in scales:
            outer = sorted(self.outer[block])
            for piece in self.pieces:
                for k in piece.find_axes(block):
                    power = float(powers.get(piece.axes[k].variable, 0))
                    if power != 0.0:
                        strided = [part for axis in piece.axes for part in axis.strided()]
                        unit_axes = [
                            strided.index(part)
                            for m in (*(piece.find_axes(x)[0] for x in outer), k)
                            for part in piece.axes[m].strided()
                        ]
                        yield ScaledAxis(
                            piece.offset,
                            tuple(axis.size for axis in strided),
                            tuple(axis.stride for axis in strided),
                            tuple(unit_axes),
                            first_unit,
                            power,
                        )
            first_unit += prod(self.partition.size[x] for x in (*outer, block))


def _grid_parts(axis: PieceAxis) -> Iterator[PieceAxis]:
    """Return the axes of a grid, and of grids inside it."""
    for part in axis.grid:
        yield part
        yield from _grid_parts(part)


class _Span:
    """Span of vectors over GF(2), which are integers whose bits are the entries."""

    def __init__(self) -> None:
        self._by_length: dict[int, int] = {}

    def add(self, vector: int) -> bool:
        """Add a vector; return whether it wasn't in the span before."""
        while vector:
            length = vector.bit_length()
            if length not in self._by_length:
                self._by_length[length] = vector
                return True
            vector ^= self._by_length[length]
        return False


def _commute(first: AxisUnits, second: AxisUnits, n_params: int) -> bool:
    """Return whether random elements of two groups commute on random weights."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(n_params, generator=generator, dtype=torch.float64)
    for _ in range(4):
        g = first.sample((), generator=generator)
        h = second.sample((), generator=generator)
        if not torch.equal(first.act(g, second.act(h, theta)), second.act(h, first.act(g, theta))):
            return False
    return True


def _treats_alike(negated: Collection[str], exchange: ModuleExchange) -> bool:
    """Return whether a sign negates the same tensors of all modules that are exchanged."""
    patterns = {tuple(name in negated for name in names) for names in exchange.siblings.parameters}
    return len(patterns) == 1


def _make_transitive(controllers: dict[int, set[int]]) -> dict[int, set[int]]:
    """Drop controllers until there are no cycles and the relation is transitive.

    Fewer controllers make a smaller group, so that dropping them is safe.
    """
    outer = {block: set(blocks) for block, blocks in controllers.items()}
    for a, b in itertools.combinations(sorted(outer), 2):
        if b in outer[a] and a in outer[b]:
            outer[a].discard(b)
    changed = True
    while changed:
        changed = False
        for a, blocks in outer.items():
            for b in sorted(blocks):
                if not outer[b] - {a} <= blocks or a in outer[b]:
                    blocks.discard(b)
                    changed = True
    return outer


def _connected_components(
    units: dict[int, AxisUnits], outer: dict[int, set[int]]
) -> list[list[int]]:
    """Group blocks that control one another; the outermost come first."""
    component = {block: {block} for block in units}
    for block in units:
        for controller in outer[block] & set(units):
            joined = component[block] | component[controller]
            for member in joined:
                component[member] = joined
    unique: dict[int, list[int]] = {}
    for block in units:
        members = component[block]
        unique.setdefault(min(members), sorted(members, key=lambda b: (len(outer[b]), b)))
    return list(unique.values())
