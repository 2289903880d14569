"""Partition of tensor axes into blocks of positions that are permuted together.

`graph_analysis` labels every tensor of a traced module with the structure of its axes, and the
rules of the operations relate these structures. The vocabulary is:

block
    A set of positions on tensor axes that are permuted together, identified by an integer. Each
    axis of a parameter starts as one block. The positions of 8 hidden units on the rows of one
    weight matrix and on the columns of the next end up in the same block.
axis, segment, factor
    An axis is a concatenation of segments. A segment is a product of factors, the first of which
    varies slowest. A factor is one block on this axis, with the exponents of its sign and scale.
    A view makes products, and a slice makes concatenations.
leaf
    A block that hasn't been replaced by smaller ones.
composite
    A block that was replaced by a concatenation. Behind another factor of a product it stays one
    factor, as in the two halves of the dimensions of each head.
fixed
    A fixed block isn't permuted.
controllers
    The blocks whose position may select the permutation of another block. In attention, the
    head controls the permutation of the dimensions inside that head.
family
    A block with one member block for each position of a fixed block. The rows of packed queries,
    keys and values are a family over the three packed parts.
exponents
    A sign flip or a positive rescaling of an axis of a parameter is a variable. The sign (scale)
    of a factor is a product of powers of these variables, stored as a dict of exponents. Signs
    have exponents in GF(2), and scales have rational ones.
equation
    A combination of exponents that must be zero, because an operation requires it. The solutions
    of all equations are the sign flips and rescalings that leave the module's function unchanged.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

SIGN = 0
SCALE = 1
KINDS = (SIGN, SCALE)

Exponents = dict[str, Fraction]  # by variable; variables that aren't listed have exponent 0


class Factor(NamedTuple):
    """A block on one axis of a tensor.

    Attributes
    ----------
    block : int
        The block.
    exponents : tuple of two dicts
        Exponents of the sign and of the scale.
    """

    block: int
    exponents: tuple[Exponents, Exponents] = ({}, {})


Segment = list[Factor]
Axis = list[Segment]
TensorAxes = list[Axis]
ONE: Axis = [[]]  # an axis with a single position


class ConflictError(Exception):
    """Two axes can't have one structure."""


class BlockFamily(NamedTuple):
    """One block for each position of a fixed block.

    Attributes
    ----------
    index_block : int
        The fixed block.
    members : list of int
        The block at each of its positions.
    """

    index_block: int
    members: list[int]


def add_exponents(first: Exponents, second: Exponents, times: Fraction | int = 1) -> Exponents:
    """Return ``first + times second`` without zeros."""
    total = {v: first.get(v, Fraction(0)) + times * second.get(v, 0) for v in (*first, *second)}
    return {v: power for v, power in total.items() if power}


def _rename_variables(
    exponents: tuple[Exponents, Exponents], i: int
) -> tuple[Exponents, Exponents]:
    """Exponents of the i-th piece of a concatenation or family, which has separate variables."""
    sign, scale = ({f"{v}/{i}": power for v, power in e.items()} for e in exponents)
    return sign, scale


class AxisPartition:
    """Union-find structure over blocks, with their refinements, controllers and equations.

    The module's docstring explains the terms. Blocks are integers; the lists below are indexed by
    them.

    Attributes
    ----------
    size : list of int
        Number of positions of each block.
    is_fixed : list of bool
        Whether each block is fixed.
    segments : list
        For a block that was refined, the segments (lists of blocks) that replace it; else None.
    families : list of BlockFamily or None
        The family that replaces a block, if any.
    equations : tuple of two lists
        Equations of the signs and of the scales. Each is a pair of a block and a combination of
        exponents that must be zero at every position of the block.
    operation : str
        Name of the operation that is being analysed.
    losses : set of str
        Operations that fixed positions of parameters which could have been permuted, with the
        reason.
    parameter_blocks : list of int
        Blocks of the parameters' axes.
    """

    def __init__(self) -> None:
        self.size: list[int] = []
        self.is_fixed: list[bool] = []
        self.segments: list[list[list[int]] | None] = []
        self.families: list[BlockFamily | None] = []
        self._parent: list[int] = []
        self._controllers: list[set[int] | None] = []  # None: not restricted yet
        self._pending: list[tuple[int, set[int]]] = []
        self._early: set[int] = set()  # fixed blocks whose controllers unify has restricted
        self._stacked_families: list[tuple[int, int]] = []  # from `add_family`, with their sizes
        self.equations: tuple[list[tuple[int, Exponents]], list[tuple[int, Exponents]]] = ([], [])
        self.operation = ""
        self.losses: set[str] = set()
        self.parameter_blocks: list[int] = []

    def add_block(
        self, size: int, *, fixed: bool = False, controllers: set[int] | None = None
    ) -> int:
        """Add a block, and return its index.

        Parameters
        ----------
        size : int
            Number of positions.
        fixed : bool, default=False
            Whether they can't be permuted.
        controllers : set of int, optional
            Blocks that may control the permutations of this one. By default all may until they are
            restricted.
        """
        self._parent.append(len(self._parent))
        self.size.append(size)
        self.is_fixed.append(fixed)
        self.segments.append(None)
        self.families.append(None)
        self._controllers.append(controllers)
        return len(self._parent) - 1

    def find(self, block: int) -> int:
        """Return the representative of a block."""
        while self._parent[block] != block:
            block = self._parent[block]
        return block

    def leaves(self, block: int) -> set[int]:
        """Return the blocks that currently replace a block."""
        block = self.find(block)
        inner = [x for segment in self.segments[block] or [] for x in segment]
        family = self.families[block]
        if family:
            inner += family.members
        if not inner:
            return {block}
        return set().union(*(self.leaves(x) for x in inner))

    def components(self, block: int) -> set[int]:
        """Return the blocks that a block was refined to, in which families stay whole."""
        block = self.find(block)
        segments = self.segments[block]
        if segments is None:
            return {block}
        inner = [x for segment in segments for x in segment]
        return {component for x in inner for component in self.components(x)}

    def state(self) -> tuple[list[tuple[int, tuple[int, ...]]], list[tuple[int, int]]]:
        """Return the leaves that aren't fixed with their controllers, and sizes of fixed ones.

        The analysis has reached a fixed point when two passes end in equal states. Fixed blocks get
        new numbers in each pass, so that only numbers of controllers are compared.
        """
        free = [
            b
            for b in range(len(self.size))
            if self.find(b) == b and not self.is_fixed[b] and self.segments[b] is None
        ]
        leaves = {leaf for block in self.parameter_blocks for leaf in self.leaves(block)}
        states = []
        for block in free:
            controllers = self.controllers(block) or set()
            moving = sorted(b for b in controllers if not self.is_fixed[b])
            states.append((block, (len(controllers), *moving)))
        sizes = [
            (self.size[b], len(leaves & (self.controllers(b) or set())))
            for b in leaves
            if self.is_fixed[b]
        ]
        return states, sorted(sizes)

    # Controllers

    def controllers(self, block: int) -> set[int] | None:
        """Return the blocks whose position may select the permutation; None stands for any."""
        controllers = self._controllers[block]
        if controllers is None:
            return None
        return self._current(controllers) - {block}

    def restrict_controllers(self, block: int, allowed: set[int]) -> None:
        """Allow only these blocks to control ``block``; a composite stands for its components."""
        block = self.find(block)
        if self.segments[block] is not None:
            for component in self.components(block):
                self.restrict_controllers(component, allowed)
            return
        before = self.controllers(block)
        self._controllers[block] = set(allowed) if before is None else before & allowed
        family = self.families[block]
        if family is None:
            return
        index_block = self.find(family.index_block)
        if index_block not in (self._controllers[block] or ()):
            self._collapse_family(block)
            return
        for k, member in enumerate(family.members):
            # Parts of a member may control one another.
            parts = self.components(member)
            members = {self._member_or_block(self.find(x), index_block, k) for x in allowed}
            self.restrict_controllers(member, parts | self._current(members))

    def release_controllers(self) -> bool:
        """Forget the controllers of fixed blocks that were unified; return whether there were any.

        Dimensions that rotate with their position are unified by the constant angles, before an
        operation unifies the heads that control the signs of queries with those of keys. When the
        heads are known to be the same, further passes find the common controllers.
        """
        for block in map(self.find, self._early):
            if self.is_fixed[block]:
                self._controllers[block] = None
        return bool(self._early)

    def remove_controllers(self, axes: Iterable[Axis], mixed: set[int]) -> None:
        """Remove controllers whose positions an operation mixes, from all blocks on some axes."""
        factors = [f for axis in axes for segment in axis for f in segment]
        for block in {b for factor in factors for b in self.components(factor.block)}:
            controllers = self.controllers(block)
            if controllers is not None:
                self.restrict_controllers(block, controllers - mixed)

    def settle(self, axes: TensorAxes) -> TensorAxes:
        """Resolve the axes of a tensor and restrict the controllers to blocks it has just once.

        A controller must have one definite position for each entry of the tensor. Components of a
        composite have none. A fixed block without a sign and scale here needs no restriction.
        """
        # Restrict the leaves of blocks that were unified since the last operation.
        while self._pending:
            block, controllers = self._pending.pop()
            for leaf in self.leaves(block):
                before = self.controllers(leaf)
                self.restrict_controllers(leaf, self._current(controllers))
                if self.is_fixed[leaf] and self.controllers(leaf) != before:
                    self._early.add(leaf)

        # Blocks that need controllers: they have a sign or scale here, or can be permuted.
        resolved = [self.resolve(axis) for axis in axes]
        blocks = [axis_blocks(axis) for axis in resolved]
        factors = [factor for axis in resolved for segment in axis for factor in segment]
        free = {f.block for f in factors if any(f.exponents) or self.can_move([[f]])}
        # Components of composites have no definite position.
        all_blocks = {b for axis in blocks for segment in axis for b in segment}
        composites = (b for b in all_blocks if self.segments[b] is not None)
        hidden = {component for b in composites for component in self.components(b)}
        # A block has a position at all entries if each segment of an axis contains it, and this
        # position is unique if only one axis does.
        for i, axis in enumerate(blocks):
            others = [set.intersection(*map(set, a)) for j, a in enumerate(blocks) if j != i]
            for block in {b for segment in axis for b in segment} & free:
                same_axis = set.intersection(*[set(s) - {block} for s in axis if block in s])
                present = [b for group in (*others, same_axis) for b in group]
                unique = {b for b in present if present.count(b) == 1 and b != block}
                self.restrict_controllers(block, unique - hidden)
        return [self.resolve(axis) for axis in axes]

    def _current(self, blocks: set[int]) -> set[int]:
        """Replace refined blocks by their factors; concatenations have no single replacement."""
        current = set()
        stack = list(blocks)
        while stack:
            block = self.find(stack.pop())
            segments = self.segments[block]
            if segments is None:
                current.add(block)
            elif len(segments) == 1:
                stack += segments[0]
        return current

    # Fixed blocks

    def fix(self, block: int) -> None:
        """Fix a block and its leaves."""
        for leaf in {self.find(block)} | self.leaves(block):
            self.is_fixed[leaf] = True

    def can_move(self, segments: Iterable[Segment]) -> bool:
        """Return whether any position of these segments can still be permuted."""
        leaves = {leaf for s in segments for f in s for leaf in self.leaves(f.block)}
        return any(self.size[leaf] > 1 and not self.is_fixed[leaf] for leaf in leaves)

    def record_loss(self, segments: Iterable[Segment], reason: str) -> None:
        """Record the current operation if positions could have been permuted until now."""
        segments = list(segments)
        if self.can_move(segments) and self._has_parameters(segments):
            self.losses.add(f"{self.operation} {reason}".strip())

    def _has_parameters(self, segments: Iterable[Segment]) -> bool:
        """Return whether some parameter has positions of these segments."""
        leaves = {leaf for s in segments for f in s for leaf in self.leaves(f.block)}
        return any(leaves & self.leaves(block) for block in self.parameter_blocks)

    def freeze(self, axis: Axis) -> Factor:
        """Fix an axis with trivial signs and scales; return one fixed factor of its length."""
        self.record_loss(axis, "of axes whose parts differ")
        has_signs = any(factor.exponents[SIGN] for segment in axis for factor in segment)
        if has_signs and self._has_parameters(axis):
            self.losses.add(f"{self.operation} of axes whose parts differ")
        for factor in (f for segment in axis for f in segment):
            self.fix(factor.block)
            self.require_trivial(factor)
            for leaf in self.leaves(factor.block):
                self.restrict_controllers(leaf, set())
        return Factor(self.add_block(self.length(axis), fixed=True, controllers=set()))

    # Structure of axes

    def fold(self, axis: Axis) -> Factor:
        """Return a composite for a concatenation, so that it can follow other factors.

        Its sign and scale are new variables, which are those of the segments.
        """
        if not any(axis):  # each segment has a single position
            return Factor(self.add_block(len(axis), fixed=True, controllers=set()))
        composite = self.add_block(self.length(axis))
        self.segments[composite] = axis_blocks(axis)
        variable = f"c{composite}"
        for i, segment in enumerate(axis):
            for factor in segment:
                for kind in KINDS:
                    difference = add_exponents(
                        factor.exponents[kind], {f"{variable}/{i}": Fraction(1)}, -1
                    )
                    self.add_equation(factor.block, difference, kind)
        exponents = {variable: Fraction(1)}
        return Factor(composite, (exponents, exponents))

    def resolve(self, axis: Axis) -> Axis:
        """Express an axis in leaves and composites, without blocks of a single position."""
        resolved: Axis = []
        for segment in axis:
            products: Axis = [[]]
            for factor in segment:
                block = self.find(factor.block)
                if self.size[block] == 1:
                    continue
                inner = self._replacement(block, factor.exponents)
                if len(inner) > 1 and products != ONE:  # a concatenation inside a product
                    inner = [[Factor(block, factor.exponents)]]
                if products == ONE:
                    products = inner
                else:
                    products = [p + inner[0] for p in products]
            resolved += products
        return resolved

    def _replacement(self, block: int, exponents: tuple[Exponents, Exponents]) -> Axis:
        """Return the axis in leaves that replaces one block."""
        segments = self.segments[block]
        if segments is None:
            return [[Factor(block, exponents)]]
        if len(segments) == 1:
            pieces = [exponents]
        else:
            pieces = [_rename_variables(exponents, i) for i in range(len(segments))]
        return self.resolve(
            [
                [Factor(x, piece) for x in segment]
                for segment, piece in zip(segments, pieces, strict=True)
            ]
        )

    def length(self, axis: Axis) -> int:
        """Return the number of positions of an axis."""
        return sum(prod(self.size[f.block] for f in segment) for segment in axis)

    def unify(self, first: int, second: int) -> None:
        """Unify two blocks, because an operation relates their positions one to one.

        Blocks that were refined are unified segment by segment, and families member by member.

        Raises
        ------
        ConflictError
            If the segments don't match.
        """
        first = self.find(first)
        second = self.find(second)
        if first == second:
            return
        for block, other in ((first, second), (second, first)):
            if self.families[block] and other in self.leaves(block):
                self._collapse_family(block)  # a family equals one of its members
                self.unify(first, second)
                return
        if self.segments[first] is not None or self.segments[second] is not None:
            axes = self.unify_axes([[Factor(first)]], [[Factor(second)]])
            if axis_blocks(axes[0]) != axis_blocks(axes[1]):
                raise ConflictError
            first = self.find(first)
            second = self.find(second)
            if not (self._contains(first, second) or self._contains(second, first)):
                self._parent[second] = first
            return
        if self.families[second]:  # if only one block is a family, it stays
            exchanged = first
            first = second
            second = exchanged
        first_family = self.families[first]
        second_family = self.families[second]
        if first_family and second_family:
            if self.find(first_family.index_block) != self.find(second_family.index_block):
                self._collapse_family(second)
                self.unify(first, second)
                return
            for a, b in zip(first_family.members, second_family.members, strict=True):
                self.unify(a, b)
            self.families[second] = None
        self._parent[second] = first
        self.is_fixed[first] = self.is_fixed[first] or self.is_fixed[second]
        if self.is_fixed[first]:
            self.fix(first)
        controllers = self._controllers[second]
        if controllers is not None:  # the same operation may still unify their controllers
            self._pending.append((first, controllers))

    def _contains(self, block: int, other: int) -> bool:
        """Return whether one block is another, or was refined to blocks that contain the other."""
        block = self.find(block)
        inner = [x for segment in self.segments[block] or [] for x in segment]
        return block == other or any(self._contains(x, other) for x in inner)

    def unify_axes(self, first: Axis, second: Axis) -> tuple[Axis, Axis]:
        """Give two axes the same structure and return them; freeze both if that is impossible."""
        try:
            while True:
                first = self.resolve(first)
                second = self.resolve(second)
                if axis_blocks(first) == axis_blocks(second):
                    return first, second
                self._reduce_difference(first, second)
        except ConflictError:
            return [[self.freeze(first)]], [[self.freeze(second)]]

    def _reduce_difference(self, first: Axis, second: Axis) -> None:
        """Refine or unify blocks where two resolved axes first differ."""
        for s, t in zip(first, second, strict=False):
            n = self.length([s])
            m = self.length([t])
            if n != m:
                longer = s if n > m else t
                return self.split_segment(longer, min(n, m))
            for f, g in zip(s, t, strict=False):
                small, large = sorted(
                    (self.find(f.block), self.find(g.block)), key=lambda x: self.size[x]
                )
                if self.size[small] != self.size[large]:
                    return self.factorize(large, self.size[small])
                if small != large:
                    return self.unify(small, large)
        raise ConflictError

    def split_segment(self, segment: Segment, n: int) -> None:
        """Split a segment into two, the first of which has ``n`` positions."""
        slowest = segment[0].block
        rest = self.length([segment[1:]])
        if n % rest:
            raise ConflictError
        self.replace_block(slowest, [[n // rest], [self.size[slowest] - n // rest]])

    def factorize(self, block: int, n: int) -> None:
        """Make a block a product of two, the first of which has ``n`` positions."""
        if self.size[block] % n:
            raise ConflictError
        self.replace_block(block, [[n, self.size[block] // n]])

    def replace_block(self, block: int, sizes: list[list[int]]) -> None:
        """Replace a block by a concatenation of products of new blocks of the given sizes.

        The factors of a product may control one another.
        """
        block = self.find(block)
        if self.segments[block] is not None:  # the parts of a composite have other sizes
            raise ConflictError
        family = self.families[block]
        if family:
            self._collapse_family(block)
            self.replace_block(family.members[0], sizes)
            return
        for other, family in enumerate(self.families):
            if family and self.find(family.index_block) == block:
                self._collapse_family(other)  # its index has no longer a single block
        segments = []
        controllers = self._controllers[block]
        for row in sizes:
            segment = [self.add_block(n, fixed=self.is_fixed[block]) for n in row]
            if controllers is not None:
                for new in segment:
                    self._controllers[new] = controllers | set(segment) - {new}
            segments.append(segment)
        self.segments[block] = segments

    # Families

    def select_member(self, factor: Factor, index_block: int, i: int) -> Factor:
        """Return the factor at position ``i`` of a fixed block that may control it.

        A block that this fixed block may control becomes a family over it. Families over two
        blocks aren't supported, so that the first family collapses.
        """
        block = factor.block
        if self.segments[block] is not None:
            self.record_loss([[factor]], "of parts that differ")
            return factor
        controllers = self.controllers(block)
        if controllers is None or index_block not in controllers:
            return factor
        family = self.families[block]
        if family and self.find(family.index_block) != index_block:
            self._collapse_family(block)
            return factor
        if not family:
            members = []
            for k in range(self.size[index_block]):
                # A controller may itself be a family over the same block.
                inherited = {
                    self._member_or_block(x, index_block, k) for x in controllers - {index_block}
                }
                fixed = self.is_fixed[block]
                members.append(self.add_block(self.size[block], fixed=fixed, controllers=inherited))
            family = BlockFamily(index_block, members)
            self.families[block] = family
        return Factor(family.members[i], _rename_variables(factor.exponents, i))

    def add_family(self, index_block: int, members: list[int]) -> int:
        """Add a block that is a different one at each position of a fixed block."""
        family = self.add_block(self.size[members[0]])
        self.families[family] = BlockFamily(index_block, members)
        self._stacked_families.append((family, len(members)))
        return family

    def _member_or_block(self, block: int, index_block: int, k: int) -> int:
        """Return the member at position ``k``, or the block if it is no family over the index."""
        family = self.families[block]
        if family and self.find(family.index_block) == index_block:
            return family.members[k]
        return block

    def _collapse_family(self, block: int) -> None:
        """Make the members of a family one block."""
        family = self.families[block]
        if family is None:
            return
        first, *others = family.members
        if len({self.find(member) for member in family.members}) > 1:
            self.record_loss([[Factor(block)]], "of parts that differ")
        self.families[block] = None
        self.segments[block] = [[first]]
        for other in others:
            self.unify(first, other)

    # Equations

    def require_trivial(self, factor: Factor, kinds: Sequence[int] = KINDS) -> None:
        """Require that the sign and the scale of a factor are 1."""
        for kind in kinds:
            self.add_equation(factor.block, factor.exponents[kind], kind)

    def add_equation(self, block: int, exponents: Exponents, kind: int) -> None:
        """Require that a combination of variables is 0 at every position of ``block``.

        Parameters
        ----------
        block : int
            Block of the variables.
        exponents : dict of str to Fraction
            Exponent of each variable.
        kind : int
            ``SIGN`` or ``SCALE``.
        """
        if exponents:
            self.equations[kind].append((block, exponents))

    def equations_by_leaf(self, kind: int) -> dict[int, list[Exponents]]:
        """Return the equations of each leaf."""
        # If the members of a stacked family became one block, their signs and scales are the same.
        links = [
            (family, {f"c{family}": Fraction(1), f"c{family}/{k}": Fraction(-1)})
            for family, n_members in self._stacked_families
            if self.families[self.find(family)] is None
            for k in range(n_members)
        ]
        by_leaf: dict[int, list[Exponents]] = {}
        for block, exponents in [*self.equations[kind], *links]:
            for leaf, leaf_exponents in self._distribute(block, exponents):
                by_leaf.setdefault(leaf, []).append(leaf_exponents)
        return by_leaf

    def _distribute(self, block: int, exponents: Exponents) -> list[tuple[int, Exponents]]:
        """Return an equation of a block as equations of its leaves."""
        block = self.find(block)
        family = self.families[block]
        pieces = self.segments[block]
        if family:
            pieces = [[x] for x in family.members]
        if not pieces:
            return [(block, exponents)]
        equations = []
        for i, segment in enumerate(pieces):
            if len(pieces) > 1:
                piece = _rename_variables((exponents, {}), i)[0]
            else:
                piece = exponents
            equations += [pair for x in segment for pair in self._distribute(x, piece)]
        return equations


def axis_blocks(axis: Axis) -> list[list[int]]:
    """Return the blocks of each segment of an axis."""
    return [[f.block for f in segment] for segment in axis]


def null_space(
    equations: list[Exponents], variables: list[str], kind: int
) -> list[dict[str, Fraction]]:
    """Return a basis of the exponents that solve the equations.

    Solved by Gaussian elimination over GF(2) for signs and over the rationals for scales.
    Variables of constants, whose names begin with "c", are eliminated. Any other variable outside
    ``variables`` belongs to another block. This shouldn't happen; for safety, everything in an
    equation with such a variable is set to 0.
    """
    others = sorted({v for e in equations for v in e} - set(variables))
    foreign = {v for v in others if not v.startswith("c")}
    for e in [e for e in equations if foreign & set(e)]:
        equations = [*equations, *({v: Fraction(1)} for v in e)]
    columns = others + variables
    order = {v: i for i, v in enumerate(columns)}

    def subtract(x: Exponents, factor: Fraction, y: Exponents) -> Exponents:
        total = add_exponents(x, y, -factor)
        if kind == SIGN:
            return {v: p % 2 for v, p in total.items() if p % 2}
        return total

    # Reduced row echelon form. Rows are keyed by their pivot, which no other row contains.
    rows: dict[str, Exponents] = {}
    for e in equations:
        row = subtract(e, Fraction(0), {})
        for pivot in rows.keys() & row.keys():
            row = subtract(row, row[pivot], rows[pivot])
        if row:
            pivot = min(row, key=order.__getitem__)
            row = subtract({}, -1 / row[pivot], row)
            rows = {p: subtract(x, x[pivot], row) if pivot in x else x for p, x in rows.items()}
            rows[pivot] = row

    # One basis vector for each variable that is no pivot.
    basis = []
    for free in (v for v in columns if v not in rows):
        solution = subtract(
            {}, Fraction(1), {p: row[free] for p, row in rows.items() if free in row}
        )
        solution = {v: x for v, x in {free: Fraction(1), **solution}.items() if v in variables}
        if solution:
            basis.append(solution)
    return basis
