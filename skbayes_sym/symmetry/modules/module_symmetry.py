"""The symmetry group of any torch module, found from its trace and checked in numbers."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.axis_units import AxisUnits, UnitEntries, Wreath, is_nearer
from skbayes_sym.symmetry.group import InPlaceActionMixin, Product, SymmetryGroup, described
from skbayes_sym.symmetry.modules.axis_partition import SCALE, SIGN, Exponents, null_space
from skbayes_sym.symmetry.modules.graph_analysis import Reader, trace, without_dropout
from skbayes_sym.symmetry.modules.rules import RULES
from skbayes_sym.symmetry.units import SignedPermutation

ROUNDING = 1e-7  # relative, float64: that of deep networks stays far below, bugs far above


def build_output_function(
    module: nn.Module, layout: ParamLayout, inputs: tuple[Any, ...]
) -> Callable[[Tensor], Tensor]:
    """All outputs at ``inputs``, flattened, as a function of the flat ``theta`` (P,), in float64.

    ``layout`` names parameters, and buffers where they belong to ``theta``. All others are
    constants.
    """
    module = without_dropout(module)
    constants = {
        name: tensor.detach().double() if tensor.is_floating_point() else tensor
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if name not in layout.shapes
    }
    dtypes = {
        name: torch.float64 if tensor.is_floating_point() else tensor.dtype
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)

    def outputs(theta: Tensor) -> Tensor:
        # Copies: norms in train mode write on their buffers.
        values = {name: constant.clone() for name, constant in constants.items()}
        values |= {
            name: value.clone().to(dtypes[name])
            for name, value in layout.unflatten(theta.double()).items()
        }
        with torch.no_grad():
            leaves = tree_leaves(torch.func.functional_call(module, values, inputs))
        return torch.cat([t.double().flatten() for t in leaves if isinstance(t, Tensor)])

    return outputs


def largest_output_change(
    module: nn.Module, layout: ParamLayout, inputs: tuple[Any, ...], group: SymmetryGroup,
    n: int = 1,
) -> float:  # fmt: skip
    """Largest change of an output under random elements at random weights, relative to outputs.

    0 where the module can't tell: it fails in float64, is random or not finite.
    """
    generator = torch.Generator().manual_seed(0)
    function = build_output_function(module, layout, inputs)
    worst = 0.0
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    parts = [tensors[name].detach().flatten().cpu() for name in layout.shapes]
    theta = torch.cat([part.double() for part in parts])
    # Integers and bools are places and masks, which no noise is added to.
    varies = torch.cat([torch.full(part.shape, part.is_floating_point()) for part in parts])
    for _ in range(n):
        noise = torch.randn(theta.shape, generator=generator, dtype=torch.float32)
        point = noise.roll(1).abs_().mul_(0.1).add_(theta.float())
        point = point.addcmul_(noise, theta.float(), value=0.3).double()
        point = torch.where(varies, point, theta)
        try:
            before = function(point)
            after = function(group.act(group.sample((), generator=generator), point))
            change, scale = (float(t.abs().max()) for t in (after - before, before))
            if change <= worst * scale:
                continue
            # No random function changes as little as rounding does.
            if change <= ROUNDING * scale or torch.equal(before, function(point)):
                worst = change / max(scale, 1e-30)
        except (RuntimeError, TypeError, ValueError):
            continue
    return worst


class Rescaling(NamedTuple):
    """Free positive factors of units, which the finite group doesn't contain.

    Attributes
    ----------
    multiplied : tuple of str
        Tensors, or their rows or columns, that are multiplied by the factor of their unit. A power
        other than one is appended, as in ``"rows of weight (power 2)"``.
    divided : tuple of str
        Those that are divided by it.
    n : int
        Number of independent factors, one for each unit.
    """

    multiplied: tuple[str, ...]
    divided: tuple[str, ...]
    n: int

    def __str__(self) -> str:
        sides = {"multiplied": self.multiplied, "divided": self.divided}
        words = "; ".join(f"{verb}: {', '.join(names)}" for verb, names in sides.items() if names)
        return f"{self.n} positive scales, {words}"


@dataclass(frozen=True, repr=False)
class ModuleSymmetry(InPlaceActionMixin, Product):
    """Symmetry group of a module's parameters, as `symmetry_of` finds it.

    Attributes
    ----------
    layout : ParamLayout
        Names and shapes of the parameters, in the order of the flat ``theta``.
    words : tuple of str
        For each factor, its units, the tensors that they move and the operations they pass.
    rescalings : tuple of Rescaling
        Positive scales of units that leave the function unchanged: which tensors are multiplied by
        a factor and which are divided by it. Tensors that can't scale aren't named.
    refused : tuple of str
        Operations without a rule, or with arguments that their rule can't follow, and axes that no
        factor describes: there may be more symmetries.
    hints : tuple of str
        What would make the group larger.
    """

    layout: ParamLayout = field(default_factory=lambda: ParamLayout({}))
    words: tuple[str, ...] = ()
    rescalings: tuple[Rescaling, ...] = ()
    refused: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    def __repr__(self) -> str:
        heading, *lines = self.report().split("\n- ")
        return described(heading, lines)

    @property
    def n_params(self) -> int:
        """Length of ``theta``."""
        return self.layout.n_params

    @property
    def _has_exact_length(self) -> bool:
        return True

    def check_element(self, g: Any) -> None:
        Product.check_element(self, g)

    def batch(self, g: tuple[Any, ...]) -> tuple[int, ...]:
        factors: Any = self.factors
        return np.broadcast_shapes(*(f.batch(h) for f, h in zip(factors, g, strict=True)))

    def move_(self, g: tuple[Any, ...], theta: Tensor) -> Tensor:
        factors: Any = self.factors
        for factor, h in zip(factors, g, strict=True):
            factor.move_(h, theta)
        return theta

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Nearer of two local optima: sweeps from ``theta``, and from factors aligned one by one.

        The second start takes first the factors that share most entries with no factor that is
        still out of order, and compares those entries only (the input's side of a network, then
        inwards): it often brings exact copies back.
        """
        self.check_pair(theta, reference)
        nearest, g = super().align(theta, reference)
        moved, start = self._alternate_blocks(theta, reference)
        other, h = super().align(moved, reference)
        nearer = is_nearer(other, nearest, reference)
        nearest = torch.where(nearer.unsqueeze(-1), other, nearest)
        return nearest, _where(nearer, self.compose(h, start), g)

    def _alternate_blocks(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        waiting = dict(enumerate(self._entries))
        moved = list(self.identity())
        while waiting:
            n_waiting = torch.stack(list(waiting.values())).sum(dim=0)
            alone = {i: entries & (n_waiting == 1) for i, entries in waiting.items()}
            i = max(waiting, key=lambda k: float(alone[k].sum() / waiting[k].sum().clamp_min(1)))
            mask = alone[i].to(reference.device)
            theta, moved[i] = self.factors[i].align(theta, reference * mask)
            del waiting[i]
        return theta, tuple(moved)

    @cached_property
    def _entries(self) -> list[Tensor]:
        """Entries that each factor moves, bool (P,) each: found by a few random elements."""
        places = torch.arange(1.0, self.layout.n_params + 1)
        generator = torch.Generator()
        generator.manual_seed(0)
        return [
            torch.stack([
                factor.act(factor.sample((), generator=generator), places) != places
                for _ in range(4)
            ]).any(dim=0)
            for factor in self.factors
        ]  # fmt: skip

    def report(self) -> str:
        """The factors, rescalings and refusals in words, one a line."""
        lines = [f"{len(self.factors)} factors, log |G| = {self.log_order:.1f} nats", *self.words]
        lines += [f"not in the group: {r}" for r in self.rescalings]
        lines += [f"without a rule: {name}" for name in self.refused]
        return "\n- ".join([*lines, *self.hints])


def _where(mask: Tensor, ours: Any, theirs: Any) -> Any:
    """Elements of factors, ours where ``mask`` (*B,) holds."""
    if isinstance(ours, SignedPermutation):
        return ours.select(mask, theirs)
    return tuple(_where(mask, a, b) for a, b in zip(ours, theirs, strict=True))


def symmetry_of(module: nn.Module, example_input: Any, *, buffers: bool = False) -> ModuleSymmetry:
    """Permutations and sign flips of a module's parameters that leave its function unchanged.

    The module is traced once; every operation says which axes of tensors are permuted together and
    how signs pass (`modules.rules`). What they leave free is the group: units, channels, heads and
    the dimensions inside them, through convolutions, norms, residual sums, concatenation, views,
    attention, recurrent layers and embeddings; signs where functions are odd or linear or have a
    gain. An operation without a rule keeps everything in place that comes into it. A random element
    is tried on the module in float64; factors that change its outputs are left out (and named).

    Parameters
    ----------
    module : torch.nn.Module
        In the mode (train or eval) in which it will be used. It isn't changed. Parameters that are
        frozen (``requires_grad_(False)``) are constants: the group leaves them as they are.
    example_input : Tensor or tuple of Tensor
        Arguments of one call; only shapes and dtypes matter.
    buffers : bool, default=False
        Whether the group acts on the parameters followed by the buffers (running means and
        variances of a batch norm in eval mode then move along). Otherwise buffers are constants.
        Those of integers and bools (positions, masks) never move.

    Returns
    -------
    ModuleSymmetry
        A group on the ``parameters()`` that aren't frozen, flattened in order: ``.factors``,
        ``.act``, ``.align``, ...; and ``.report()``, ``.rescalings``, ``.refused``.

    Raises
    ------
    TypeError
        If ``module`` is no module, or ``example_input`` no tensor or tuple of tensors.
    ValueError
        If control flow depends on the values of tensors, or the call fails; if the module has no
        parameters, only frozen ones, or some whose shapes or values aren't known yet (lazy modules,
        the meta device).

    Notes
    -----
    Not found: exchanges of whole submodules, continuous groups other than scales, symmetries of
    single numbers, and whatever holds for the given weights only. A batch norm in train mode
    couples the rows of a batch: the group is that of the function of the batch.

    Tracing takes 0.1 to 1 s; the rest is small. Elements cost O(P) to apply.

    Examples
    --------
    >>> import torch
    >>> from skbayes_sym.symmetry import symmetry_of
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> group = symmetry_of(net, torch.zeros(2, 3))
    >>> print(group.report())
    1 factors, log |G| = 16.1 nats
    - 8 units, exchanged, each with a sign: rows of 0.weight, 0.bias, columns of 2.weight \
(addmm, tanh)
    """
    check_module(module)
    inputs = validate_inputs(example_input)
    group = derive_symmetry(module, inputs, buffers=buffers)
    if largest_output_change(module, group.layout, inputs, group) <= ROUNDING:
        return group
    changes = [
        largest_output_change(module, group.layout, inputs, factor) for factor in group.factors
    ]
    kept = [change <= ROUNDING for change in changes]
    wrong = itertools.compress(group.words, (not good for good in kept))
    return replace(
        group, factors=tuple(itertools.compress(group.factors, kept)),
        words=tuple(itertools.compress(group.words, kept)),
        refused=(*group.refused, *(f"a check in numbers of {words}" for words in wrong)),
    )  # fmt: skip


def derive_symmetry(
    module: nn.Module, inputs: tuple[Any, ...], *, buffers: bool = False
) -> ModuleSymmetry:
    """`symmetry_of` without the check in numbers."""
    tensors = module_tensors(module, buffers=buffers)
    layout = ParamLayout({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    moving = [names.index(name) for name, t in tensors.items() if t.is_floating_point()]
    reader = Reader(trace(module, inputs), moving, RULES)
    if not reader.read():
        return ModuleSymmetry((), layout=layout, refused=("all: the rules reach no fixed point",))
    constant = [
        name for name, buffer in module.named_buffers()
        if names.index(name) in reader.used and buffer.is_floating_point() and buffer.ndim
    ]  # fmt: skip
    group = _Assembly(reader, layout, [names[i] for i in moving]).group()
    if buffers or not constant:
        return group
    several = "" if len(constant) == 1 else f" and {len(constant) - 1} more"
    hint = (
        f"buffers are constants here ({constant[0]}{several}), which keeps units in their places: "
        "with buffers=True they move along"
    )
    return replace(group, hints=(hint,))


def module_tensors(module: nn.Module, *, buffers: bool) -> dict[str, Tensor]:
    """Tensors of a module that ``theta`` has, by name: frozen parameters are constants."""
    tensors: dict[str, Tensor] = {n: p for n, p in module.named_parameters() if p.requires_grad}
    return tensors | (dict(module.named_buffers()) if buffers else {})


def check_module(
    module: Any, name: str = "module", *, needs_values: bool = True, needs_trainable: bool = True
) -> None:
    """Raise unless this is a module with trainable parameters of known shapes and values.

    Parameters
    ----------
    module : object
        What was given.
    name : str, default="module"
        Name of the argument, for messages.
    needs_values : bool, default=True
        Whether parameters that aren't frozen must have values, too.
    needs_trainable : bool, default=True
        Whether there must be a parameter that isn't frozen.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{name} must be a torch.nn.Module, got {type(module).__name__}.")
    kind = type(module).__name__
    parameters = dict(module.named_parameters())
    for key, tensor in (parameters | dict(module.named_buffers())).items():
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{name}: {key} of {kind} has no shape yet, because the layer is lazy. Call the "
                "module once on an input before."
            )
        if tensor.is_meta and (needs_values or not tensor.requires_grad):
            raise ValueError(
                f"{name}: {key} of {kind} is on the meta device and has no values. Use "
                "module.to_empty(device='cpu') and initialise or load its weights before."
            )
        if tensor.is_complex():
            raise ValueError(
                f"{name}: {key} of {kind} is complex ({tensor.dtype}); parameters and buffers must "
                "be real."
            )
    empty = [key for key, p in parameters.items() if not p.numel()]
    if empty:
        raise ValueError(
            f"{name}: {empty[0]} of {kind} has shape {tuple(parameters[empty[0]].shape)}, no "
            "entries. Give every layer at least one input and one output."
        )
    if not parameters:
        raise ValueError(f"{name}: {kind} has no parameters, so there is nothing to act on.")
    if needs_trainable and not any(p.requires_grad for p in parameters.values()):
        raise ValueError(
            f"{name}: all parameters of {kind} are frozen (requires_grad=False), so nothing may "
            "change. Use module.requires_grad_(True) to let them."
        )


def validate_inputs(example_input: Any) -> tuple[Any, ...]:
    """``example_input`` as the arguments of a call; TypeError unless they are tensors."""
    if isinstance(example_input, nn.utils.rnn.PackedSequence):
        raise TypeError(
            "example_input is a PackedSequence: give a padded tensor instead, on which the module "
            "computes the same."
        )
    inputs = example_input if isinstance(example_input, tuple) else (example_input,)
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(
                "example_input must be a tensor, or a tuple of tensors, the arguments of one call "
                f"of the module; got {type(value).__name__}."
            )
    return tuple(value.detach() for value in inputs)


class _Dimension(NamedTuple):
    """Axis of a piece: its atom, the variable of its signs and scales, size and stride."""

    atom: int
    variable: str
    size: int
    stride: int


class _Piece(NamedTuple):
    """Part of a parameter whose axes are single atoms."""

    parameter: str
    offset: int
    axes: list[_Dimension]

    def atom_axes(self, atom: int) -> list[int]:
        return [k for k, axis in enumerate(self.axes) if axis.atom == atom]

    def with_axes(self, axes: list[_Dimension], step: int) -> "_Piece":
        return _Piece(self.parameter, self.offset + step, axes)


class _Assembly:
    """Makes a group of what the reader knows."""

    def __init__(self, reader: Reader, layout: ParamLayout, moving: Sequence[str]) -> None:
        self.atoms = reader.atoms
        self.reader = reader
        self.layout = layout
        self.labels = dict(zip(moving, reader.parameters, strict=True))
        self.pieces = list(self._pieces())
        self.leaves = sorted({axis.atom for piece in self.pieces for axis in piece.axes})
        self.above = _closed({a: (self.atoms.depends(a) or set()) & {*self.leaves}
                              for a in self.leaves})  # fmt: skip
        self.operations: dict[int, dict[str, None]] = {}
        for atom, names in reader.operations.items():
            for leaf in self.atoms.leaves(atom):
                self.operations.setdefault(leaf, {}).update(names)

    def group(self) -> ModuleSymmetry:
        signs = self._independent(SIGN)
        refused = sorted(self.reader.refused | self.atoms.losses)
        parts: dict[int, AxisUnits] = {}
        for atom in self.leaves:
            if self.atoms.pinned[atom] and not signs[atom]:
                continue
            units = self._units(atom, signs[atom])
            if units is None:
                refused.append(f"units on three axes of one parameter: {self._where(atom)}")
            else:
                parts[atom] = units
        factors: list[SymmetryGroup] = []
        words: list[str] = []
        for atoms in _components(parts, self.above):
            made = self._factors(atoms, parts)
            factors += made
            words += ["; inside: ".join(self._words(a, parts[a]) for a in atoms)] * len(made)
        rescalings = tuple(
            self._rescaling(atom, powers)
            for atom, solutions in self._independent(SCALE).items() for powers in solutions
        )  # fmt: skip
        return ModuleSymmetry(
            tuple(factors), layout=self.layout, words=tuple(words), rescalings=rescalings,
            refused=tuple(refused),
        )  # fmt: skip

    def _pieces(self) -> Iterable[_Piece]:
        offset = 0
        numbers = {name: j for j, name in enumerate(self.labels)}
        for name, shape in self.layout.shapes.items():
            if name not in self.labels:  # integers, which never move
                offset += prod(shape)
                continue
            j = numbers[name]
            label = self.labels[name]
            axes = [
                _Dimension(axis[0][0].atom, f"{j}.{k}", shape[k], prod(shape[k + 1 :]))
                for k, axis in enumerate(label)
            ]
            yield from self._split(_Piece(name, offset, axes)) if prod(shape) else ()
            offset += prod(shape)

    def _split(self, piece: _Piece) -> Iterable[_Piece]:
        """Pieces whose axes are leaves: concatenations and families apart, products as axes."""
        atoms = self.atoms
        for k, axis in enumerate(piece.axes):
            atom = atoms.find(axis.atom)
            step = 0
            segments = atoms.parts[atom]
            family = atoms.family[atom]
            for i, segment in enumerate(segments or ()):
                sizes = [atoms.size[x] for x in segment]
                name = axis.variable + (f"/{i}" if segments and len(segments) > 1 else "")
                strides = [axis.stride * prod(sizes[m + 1 :]) for m in range(len(sizes))]
                inner = map(_Dimension, segment, [name] * len(sizes), sizes, strides)
                axes = [*piece.axes[:k], *inner, *piece.axes[k + 1 :]]
                yield from self._split(piece.with_axes(axes, step))
                step += axis.stride * prod(sizes)
            if family is not None:
                yield from self._split_family(piece, atoms.find(family.of))
            if segments or family is not None:
                return
        leaves = [axis._replace(atom=atoms.find(axis.atom)) for axis in piece.axes if axis.size > 1]
        yield piece.with_axes(leaves, 0)

    def _split_family(self, piece: _Piece, of: int) -> Iterable[_Piece]:
        """A piece for each place of the axis that tells a family's members apart."""
        atoms = self.atoms
        (where,) = [k for k, axis in enumerate(piece.axes) if atoms.find(axis.atom) == of]
        for i in range(atoms.size[of]):
            axes = []
            for axis in piece.axes[:where] + piece.axes[where + 1 :]:
                family = atoms.family[atoms.find(axis.atom)]
                if family is not None and atoms.find(family.of) == of:
                    axis = axis._replace(atom=family.members[i], variable=f"{axis.variable}/{i}")
                axes.append(axis)
            yield from self._split(piece.with_axes(axes, i * piece.axes[where].stride))

    def _independent(self, kind: int) -> dict[int, list[Exponents]]:
        """Powers of the variables of each leaf under a free sign (or scale), a dict for each.

        Products of others, of inner units first, are left out.
        """
        equations = self.atoms.equations_by_leaf(kind)
        constant = _Span()
        kept: dict[int, list[Exponents]] = {a: [] for a in self.leaves}
        for atom in sorted(self.leaves, key=lambda a: -len(self.above[a])):
            beside = _Span()
            for inner in (b for b in self.leaves if atom in self.above[b]):
                for moved in kept[inner]:
                    beside.add(self._bits(inner, moved, whole=True, only=atom))
            names = {x.variable for p in self.pieces for x in p.axes if x.atom == atom}
            for solution in null_space(equations.get(atom, []), sorted(names), kind):
                if not beside.add(self._bits(atom, solution)):
                    continue
                # Signs of all units at once, over all pieces.
                if kind == SCALE or constant.add(self._bits(atom, solution, whole=True)):
                    kept[atom].append(solution)
        return kept

    def _bits(
        self, atom: int, variables: Collection[str], *, whole: bool = False, only: int = -1
    ) -> int:
        """Bits of what a sign negates, two a piece: on each axis of the atom, or in all."""
        bits = 0
        for n, piece in enumerate(self.pieces):
            if only >= 0 and not piece.atom_axes(only):
                continue
            which = [piece.axes[k].variable in variables for k in piece.atom_axes(atom)]
            which = [sum(which) % 2 == 1] if whole else which[:2]
            for m, bit in enumerate(which):
                bits |= bit << (2 * n + m)
        return bits

    def _n_sets(self, atom: int) -> int:
        return prod(self.atoms.size[x] for x in self.above[atom])

    def _units(self, atom: int, signs: Sequence[Collection[str]]) -> AxisUnits | None:
        """The units of an atom; None where they lie on three axes of a parameter."""
        outer = sorted(self.above[atom])
        entries = []
        for piece in (p for p in self.pieces if p.atom_axes(atom)):
            units = piece.atom_axes(atom)
            places = [piece.atom_axes(x) for x in outer]
            if len(units) > 2 or any(len(place) != 1 for place in places):
                return None
            order = [*(place[0] for place in places), *units]
            axes = [piece.axes[k] for k in (*order, *({*range(len(piece.axes))} - {*order}))]
            flips = tuple(tuple(piece.axes[k].variable in s for k in units) for s in signs)
            sizes, strides = zip(*((axis.size, axis.stride) for axis in axes), strict=True)
            entries.append(UnitEntries(piece.offset, sizes, strides, flips, len(units) == 2))
        return AxisUnits(
            tuple(entries), self.atoms.size[atom], len(signs),
            tuple(self.atoms.size[x] for x in outer), not self.atoms.pinned[atom],
        )  # fmt: skip

    def _factors(self, atoms: list[int], parts: dict[int, AxisUnits]) -> tuple[SymmetryGroup, ...]:
        """Direct factors of the units of one component."""
        if len(atoms) == 1:
            part = parts[atoms[0]]
            # Gaps and samplers need a table of positions, which may take 32 MB.
            is_small = sum(prod(e.sizes) for e in part.entries) <= 1 << 22
            units = part.units() if is_small else ()
            is_plain = sum(one.log_order for one in units) == part.log_order
            return units if is_plain else (part,)
        names = {atom: i for i, atom in enumerate(atoms)}
        for x in (x for atom in atoms for x in sorted(self.above[atom])):
            names.setdefault(x, -1 - len(names))
        above = tuple(tuple(names[x] for x in sorted(self.above[atom])) for atom in atoms)
        return (Wreath(tuple(parts[atom] for atom in atoms), above),)

    def _words(self, atom: int, units: AxisUnits) -> str:
        through = ", ".join(self.operations.get(atom, {}))
        return f"{units.moves}: {self._where(atom)} ({through})"

    def _where(self, atom: int) -> str:
        words: dict[str, None] = {}
        for piece in self.pieces:
            for k in piece.atom_axes(atom):
                words[self._describe_axis(piece, k)] = None
        return ", ".join(words)

    def _describe_axis(self, piece: _Piece, k: int) -> str:
        """Parameter of a piece, and which of its axes this is."""
        axis = piece.axes[k]
        shape = self.layout.shapes[piece.parameter]
        position = int(axis.variable.split("/")[0].split(".")[1])
        side = {0: "rows of ", 1: "columns of "}.get(position, f"axis {position} of ")
        part = "" if axis.size == shape[position] else "parts of "
        return f"{part}{side if len(shape) > 1 else ''}{piece.parameter}"

    def _rescaling(self, atom: int, powers: Exponents) -> Rescaling:
        """Describe the scale of an atom's units that has these powers; the first one multiplies."""
        multiplied: dict[str, None] = {}
        divided: dict[str, None] = {}
        orientation = 0
        for piece in self.pieces:
            for k in piece.atom_axes(atom):
                power = powers.get(piece.axes[k].variable, 0)
                if power == 0:
                    continue
                orientation = orientation or (1 if power > 0 else -1)
                suffix = "" if abs(power) == 1 else f" (power {abs(power)})"
                side = multiplied if power * orientation > 0 else divided
                side[self._describe_axis(piece, k) + suffix] = None
        n = self._n_sets(atom) * self.atoms.size[atom]
        return Rescaling(tuple(multiplied), tuple(divided), n)


class _Span:
    """Vectors over GF(2), as whole numbers."""

    def __init__(self) -> None:
        self._by_length: dict[int, int] = {}

    def add(self, vector: int) -> bool:
        """Whether the vector wasn't in the span; now it is."""
        while vector:
            length = vector.bit_length()
            if length not in self._by_length:
                self._by_length[length] = vector
                return True
            vector ^= self._by_length[length]
        return False


def _closed(above: dict[int, set[int]]) -> dict[int, set[int]]:
    """Dependences without cycles, in which what is above an outer atom is above the inner one too.

    Fewer dependences make a smaller group, so those that don't fit are dropped.
    """
    above = {atom: set(names) for atom, names in above.items()}
    for a, b in itertools.combinations(sorted(above), 2):
        if b in above[a] and a in above[b]:
            above[a].discard(b)
    changed = True
    while changed:
        changed = False
        for a, names in above.items():
            for b in sorted(names):
                if not above[b] - {a} <= names or a in above[b]:
                    names.discard(b)
                    changed = True
    return above


def _components(parts: dict[int, AxisUnits], above: dict[int, set[int]]) -> list[list[int]]:
    """Atoms that move one another's places, together; outermost first."""
    component = {atom: {atom} for atom in parts}
    for atom in parts:
        for outer in above[atom] & set(parts):
            joined = component[atom] | component[outer]
            for member in joined:
                component[member] = joined
    unique: dict[int, list[int]] = {}
    for atom in parts:
        members = component[atom]
        unique.setdefault(min(members), sorted(members, key=lambda a: (len(above[a]), a)))
    return list(unique.values())
