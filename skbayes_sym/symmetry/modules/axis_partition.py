"""Atoms: what is known about the axes of tensors while a module's trace is read.

An *atom* is a set of places on tensor axes that are permuted together. An axis is a list of
*segments* (a concatenation), each a list of occurrences of atoms (their product, the first the
slowest). Every parameter's axis starts as one atom. Operations `unify` atoms, `pin` them (their
places must stay), or refine them (`substitute`): a view makes a product, a slice a concatenation.
``depends`` holds the atoms whose place may choose an atom's permutation, as heads choose that of
the dimensions inside them. A *family* is an atom with one member for each place of a pinned atom:
the three parts of packed queries, keys and values.

Signs and scales are linear: every axis of a parameter is a variable, and an occurrence carries an
exponent of each variable (its *characters*, for the sign over GF(2), for the scale over the
rationals). Operations add equations; what solves them all is a sign flip or a rescaling.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

SIGN = 0
SCALE = 1
KINDS = (SIGN, SCALE)

Exponents = dict[str, Fraction]  # of variables; those not named are 0


class Occurrence(NamedTuple):
    """An atom on one axis of a tensor, and the characters of its sign and its scale."""

    atom: int
    characters: tuple[Exponents, Exponents] = ({}, {})


Segment = list[Occurrence]
Axis = list[Segment]
Label = list[Axis]
ONE: Axis = [[]]  # an axis of a single place


class ConflictError(Exception):
    """Two axes can't have one structure."""


class AtomFamily(NamedTuple):
    """Atoms for the places of a pinned atom."""

    of: int
    members: list[int]


def added(first: Exponents, second: Exponents, times: Fraction | int = 1) -> Exponents:
    """``first + times second``."""
    total = {v: first.get(v, Fraction(0)) + times * second.get(v, 0) for v in (*first, *second)}
    return {v: power for v, power in total.items() if power}


def _piece(characters: tuple[Exponents, Exponents], i: int) -> tuple[Exponents, Exponents]:
    """Characters of the i-th piece of a concatenation, each of which has variables of its own."""
    sign, scale = ({f"{v}/{i}": power for v, power in e.items()} for e in characters)
    return sign, scale


class Atoms:
    """Union-find over atoms, their refinements and dependences, and the characters' equations."""

    def __init__(self) -> None:
        self.size: list[int] = []
        self.pinned: list[bool] = []
        self.parts: list[list[list[int]] | None] = []  # the segments that replaced an atom
        self.family: list[AtomFamily | None] = []
        self._parent: list[int] = []
        self._depends: list[set[int] | None] = []  # None: nothing has restricted it yet
        self._pending: list[tuple[int, set[int]]] = []
        self.equations: tuple[list[tuple[int, Exponents]], list[tuple[int, Exponents]]] = ([], [])
        self.operation = ""  # that is being read
        self.losses: set[str] = set()  # operations that pinned what might have moved, and why

    def new(self, size: int, *, pinned: bool = False, depends: set[int] | None = None) -> int:
        """A new atom; unpinned ones may depend on anything until something restricts them."""
        self._parent.append(len(self._parent))
        self.size.append(size)
        self.pinned.append(pinned)
        self.parts.append(None)
        self.family.append(None)
        self._depends.append(depends)
        return len(self._parent) - 1

    def find(self, atom: int) -> int:
        """The representative of an atom."""
        while self._parent[atom] != atom:
            atom = self._parent[atom]
        return atom

    def leaves(self, atom: int) -> set[int]:
        """The atoms that stand for it now."""
        atom = self.find(atom)
        inner = [x for segment in self.parts[atom] or [] for x in segment]
        family = self.family[atom]
        inner += family.members if family else []
        return set().union(*(self.leaves(x) for x in inner)) if inner else {atom}

    def state(self) -> list[tuple[int, tuple[int, ...]]]:
        """Unpinned atoms and what they depend on: two equal states are a fixed point."""
        free = (a for a in range(len(self.size)) if self.find(a) == a and not self.pinned[a])
        return [(a, tuple(sorted(self.depends(a) or ()))) for a in free if self.parts[a] is None]

    def depends(self, atom: int) -> set[int] | None:
        """Atoms whose place may choose the permutation of ``atom``; None: any."""
        names = self._depends[atom]
        return None if names is None else self._current(names) - {atom}

    def restrict(self, atom: int, allowed: set[int]) -> None:
        """Only these may choose its permutation."""
        atom = self.find(atom)
        before = self.depends(atom)
        self._depends[atom] = set(allowed) if before is None else before & allowed
        family = self.family[atom]
        if family and self.find(family.of) not in (self._depends[atom] or ()):
            self._collapse(atom)

    def forget(self, kept: Iterable[Axis], mixed: set[int]) -> None:
        """An operation mixes places: they choose no permutation of what is kept."""
        for occurrence in (o for axis in kept for segment in axis for o in segment):
            names = self.depends(self.find(occurrence.atom))
            if names is not None:
                self.restrict(occurrence.atom, names - mixed)

    def settle(self, label: Label) -> Label:
        """The label in leaves, whose dependences are restricted to what this tensor has once."""
        while self._pending:
            atom, names = self._pending.pop()
            for leaf in self.leaves(atom):
                self.restrict(leaf, self._current(names))
        atoms = [axis_atoms(self.resolve(axis)) for axis in label]
        for i, axis in enumerate(atoms):
            common = [set.intersection(*map(set, a)) for j, a in enumerate(atoms) if j != i]
            for atom in {a for segment in axis for a in segment}:
                beside = set.intersection(*[set(s) - {atom} for s in axis if atom in s])
                present = [a for group in (*common, beside) for a in group]
                self.restrict(atom, {a for a in present if present.count(a) == 1 and a != atom})
        return [self.resolve(axis) for axis in label]

    def _current(self, names: set[int]) -> set[int]:
        current = set()
        todo = list(names)
        while todo:
            atom = self.find(todo.pop())
            parts = self.parts[atom]
            if parts is None:
                current.add(atom)
            elif len(parts) == 1:
                todo += parts[0]
        return current

    def pin(self, atom: int) -> None:
        """Keep its places."""
        for x in {self.find(atom)} | self.leaves(atom):
            self.pinned[x] = True

    def can_move(self, segments: Iterable[Segment]) -> bool:
        """Whether any of these places could still move."""
        leaves = {leaf for s in segments for o in s for leaf in self.leaves(o.atom)}
        return any(self.size[leaf] > 1 and not self.pinned[leaf] for leaf in leaves)

    def note_loss(self, segments: Iterable[Segment], reason: str) -> None:
        """Name the present operation if any of these places could have moved until now."""
        if self.can_move(segments):
            self.losses.add(f"{self.operation} {reason}".strip())

    def resolve(self, axis: Axis) -> Axis:
        """The axis in leaves; atoms of one place are left out."""
        resolved: Axis = []
        for segment in axis:
            products: Axis = [[]]
            for occurrence in segment:
                atom = self.find(occurrence.atom)
                if self.size[atom] == 1:
                    continue
                inner = self._inside(atom, occurrence.characters)
                if len(inner) > 1 and products != ONE:  # a concatenation under a product
                    inner = [[self.freeze(inner)]]
                products = inner if products == ONE else [p + inner[0] for p in products]
            resolved += products
        return resolved

    def _inside(self, atom: int, characters: tuple[Exponents, Exponents]) -> Axis:
        parts = self.parts[atom]
        if parts is None:
            return [[Occurrence(atom, characters)]]
        several = len(parts) > 1
        return self.resolve([
            [Occurrence(x, _piece(characters, i) if several else characters) for x in segment]
            for i, segment in enumerate(parts)
        ])  # fmt: skip

    def length(self, axis: Axis) -> int:
        """Number of places of an axis."""
        return sum(prod(self.size[o.atom] for o in segment) for segment in axis)

    def freeze(self, axis: Axis) -> Occurrence:
        """Pin all of an axis, signs and scales too; one pinned atom that stands for it."""
        self.note_loss(axis, "of axes whose parts differ")
        for occurrence in (o for segment in axis for o in segment):
            self.pin(occurrence.atom)
            self.trivial(occurrence)
            for leaf in self.leaves(occurrence.atom):
                self.restrict(leaf, set())
        return Occurrence(self.new(self.length(axis), pinned=True, depends=set()))

    def unify(self, first: int, second: int) -> None:
        """Make two atoms one."""
        first = self.find(first)
        second = self.find(second)
        if first == second:
            return
        if self.parts[first] is not None or self.parts[second] is not None:
            self.unify_axes([[Occurrence(first)]], [[Occurrence(second)]])
            return
        if self.family[second]:
            first, second = second, first
        ours = self.family[first]
        theirs = self.family[second]
        if ours and theirs:
            if self.find(ours.of) != self.find(theirs.of):
                self._collapse(second)
                self.unify(first, second)
                return
            for a, b in zip(ours.members, theirs.members, strict=True):
                self.unify(a, b)
            self.family[second] = None
        self._parent[second] = first
        self.pinned[first] = self.pinned[first] or self.pinned[second]
        if self.pinned[first]:
            self.pin(first)
        names = self._depends[second]
        if names is not None:  # what both depend on may be unified by the same operation
            self._pending.append((first, names))

    def unify_axes(self, first: Axis, second: Axis) -> tuple[Axis, Axis]:
        """Give two axes one structure and return them; both are frozen if there is none."""
        try:
            while True:
                first = self.resolve(first)
                second = self.resolve(second)
                if axis_atoms(first) == axis_atoms(second):
                    return first, second
                self._approach(first, second)
        except ConflictError:
            return [[self.freeze(first)]], [[self.freeze(second)]]

    def _approach(self, first: Axis, second: Axis) -> None:
        """Refine or unify where two axes first differ."""
        for s, t in zip(first, second, strict=False):
            n = self.length([s])
            m = self.length([t])
            if n != m:
                return self.cut(s if n > m else t, min(n, m))
            for o, p in zip(s, t, strict=False):
                a, b = sorted((self.find(o.atom), self.find(p.atom)), key=lambda x: self.size[x])
                if self.size[a] != self.size[b]:
                    return self.divide(b, self.size[a])
                if a != b:
                    return self.unify(a, b)
        raise ConflictError

    def cut(self, segment: Segment, n: int) -> None:
        """Make two segments of one, the first of ``n`` places."""
        slowest = segment[0].atom
        rest = self.length([segment[1:]])
        if n % rest:
            raise ConflictError
        self.substitute(slowest, [[n // rest], [self.size[slowest] - n // rest]])

    def divide(self, atom: int, n: int) -> None:
        """Make an atom a product, the first factor of ``n`` places."""
        if self.size[atom] % n:
            raise ConflictError
        self.substitute(atom, [[n, self.size[atom] // n]])

    def substitute(self, atom: int, sizes: list[list[int]]) -> None:
        """An atom becomes a concatenation of products of new atoms of these sizes.

        The later factors of a product may depend on the earlier ones.
        """
        atom = self.find(atom)
        if self.family[atom]:
            self.pin(atom)
            self._collapse(atom)
            raise ConflictError
        segments = []
        names = self._depends[atom]
        for row in sizes:
            above: list[int] = []
            for n in row:
                depends = None if names is None else names | set(above)
                above.append(self.new(n, pinned=self.pinned[atom], depends=depends))
            segments.append(above)
        self.parts[atom] = segments

    def member(self, occurrence: Occurrence, index: int, i: int) -> Occurrence:
        """The occurrence at place ``i`` of a pinned atom ``index`` that may choose its permutation.

        Families over the places of two atoms aren't kept: the first one collapses.
        """
        atom = occurrence.atom
        names = self.depends(atom)
        if names is None or index not in names:
            return occurrence
        family = self.family[atom]
        if family and self.find(family.of) != index:
            self._collapse(atom)
            return occurrence
        if not family:
            members = []
            for k in range(self.size[index]):  # what it depends on may be a family over it itself
                depends = {self._member_index(x, index, k) for x in names - {index}}
                members.append(self.new(self.size[atom], pinned=self.pinned[atom], depends=depends))
            family = self.family[atom] = AtomFamily(index, members)
        return Occurrence(family.members[i], _piece(occurrence.characters, i))

    def _member_index(self, atom: int, index: int, k: int) -> int:
        family = self.family[atom]
        return family.members[k] if family and self.find(family.of) == index else atom

    def _collapse(self, atom: int) -> None:
        """Make the members of a family one atom."""
        family = self.family[atom]
        if family is None:
            return
        first, *others = family.members
        self.family[atom], self.parts[atom] = None, [[first]]
        for other in others:
            self.unify(first, other)

    def trivial(self, occurrence: Occurrence, kinds: Sequence[int] = KINDS) -> None:
        """Set its sign and its scale to 1."""
        for kind in kinds:
            self.equate(occurrence.atom, occurrence.characters[kind], kind)

    def equate(self, atom: int, exponents: Exponents, kind: int) -> None:
        """This combination of variables must be 0 at every place of ``atom``."""
        if exponents:
            self.equations[kind].append((atom, exponents))

    def equations_by_leaf(self, kind: int) -> dict[int, list[Exponents]]:
        """The equations by leaf."""
        by_leaf: dict[int, list[Exponents]] = {}
        for atom, exponents in self.equations[kind]:
            for leaf, spread in self._spread(atom, exponents):
                by_leaf.setdefault(leaf, []).append(spread)
        return by_leaf

    def _spread(self, atom: int, exponents: Exponents) -> list[tuple[int, Exponents]]:
        atom = self.find(atom)
        family = self.family[atom]
        pieces = [[x] for x in family.members] if family else self.parts[atom]
        if not pieces:
            return [(atom, exponents)]
        spread = []
        for i, segment in enumerate(pieces):
            part = _piece((exponents, {}), i)[0] if len(pieces) > 1 else exponents
            spread += [pair for x in segment for pair in self._spread(x, part)]
        return spread


def axis_atoms(axis: Axis) -> list[list[int]]:
    """Atoms of the segments of an axis."""
    return [[o.atom for o in segment] for segment in axis]


def null_space(
    equations: list[Exponents], variables: list[str], kind: int
) -> list[dict[str, Fraction]]:
    """Basis of the exponents that solve the equations, over GF(2) or the rationals.

    Variables of constants (their names begin with "c") are eliminated. Any other that isn't named
    is one of a foreign axis, which should not be: everything that meets it is set to 0.
    """
    others = sorted({v for e in equations for v in e} - set(variables))
    foreign = {v for v in others if not v.startswith("c")}
    for e in [e for e in equations if foreign & set(e)]:
        equations = [*equations, *({v: Fraction(1)} for v in e)]
    columns = others + variables
    order = {v: i for i, v in enumerate(columns)}

    def less(x: Exponents, factor: Fraction, y: Exponents) -> Exponents:
        total = added(x, y, -factor)
        return {v: p % 2 for v, p in total.items() if p % 2} if kind == SIGN else total

    rows: dict[str, Exponents] = {}  # by their first variable, which no other row has
    for e in equations:
        row = less(e, Fraction(0), {})
        for c in rows.keys() & row.keys():
            row = less(row, row[c], rows[c])
        if row:
            c = min(row, key=order.__getitem__)
            row = less({}, -1 / row[c], row)
            rows = {p: less(x, x[c], row) if c in x else x for p, x in rows.items()} | {c: row}
    basis = []
    for c in (c for c in columns if c not in rows):
        solution = less({}, Fraction(1), {p: row[c] for p, row in rows.items() if c in row})
        solution = {v: x for v, x in {c: Fraction(1), **solution}.items() if v in variables}
        if solution:
            basis.append(solution)
    return basis
