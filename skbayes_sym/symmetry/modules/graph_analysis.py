"""Traces a module and reads it: tensors get labels, every operation's rule relates the labels."""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from functools import cache
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, fx, nn

from skbayes_sym.numerics.runtime import import_symbolic_shapes
from skbayes_sym.symmetry.modules.axis_partition import (
    KINDS,
    ONE,
    Atoms,
    Axis,
    ConflictError,
    Exponents,
    Label,
    Occurrence,
    added,
    axis_atoms,
)

# Composite operations that the core set keeps: written out, they need no rules of their own.
_COMPOSITE = (
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_fused_rms_norm", "glu",
)  # fmt: skip


def trace(module: nn.Module, inputs: tuple[Any, ...]) -> fx.Graph:
    """Graph of ``module(*inputs)``; its first inputs are the parameters, then the buffers.

    Dropout counts as absent: the function is random, and symmetric in distribution. The module
    isn't changed.

    Raises ValueError if its control flow depends on values, or it fails on the inputs.
    """
    import_symbolic_shapes()
    from torch.fx.experimental.proxy_tensor import make_fx

    module = without_dropout(module)
    params = dict(module.named_parameters())
    buffers = dict(module.named_buffers())

    def call(params: Any, buffers: Any, args: Any) -> Any:
        return torch.func.functional_call(module, (params, buffers), args)

    traced: Any = call
    try:
        with _plain_kernels(), _python_recurrence(module):
            for _ in range(2):  # some decompositions write in place; the second time nothing does
                traced = make_fx(
                    torch.func.functionalize(traced), decomposition_table=_decompositions(),
                    tracing_mode="fake", _allow_non_fake_inputs=True,
                )(params, buffers, inputs)  # fmt: skip
                if not _writes(traced.graph):
                    break
    except Exception as error:
        if _uses_packed_sequences(error):
            raise ValueError(
                f"{type(module).__name__} can't be traced: it uses packed sequences "
                "(pack_padded_sequence), whose shape depends on values. Give symmetry_of a module "
                "that runs the same layers on a padded tensor; their symmetry is the same."
            ) from error
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{type(module).__name__} can't be traced: {type(error).__name__}: {reason} A branch "
            "on the values of tensors has no symmetry that one call can show; otherwise check that "
            "module(example_input) runs."
        ) from error
    return traced.graph


def _uses_packed_sequences(error: BaseException) -> bool:
    """Whether a call that failed was given or made packed sequences."""
    for frame, _ in walk_tb(error.__traceback__):
        values = frame.f_locals.values()
        if frame.f_code.co_name == "pack_padded_sequence" or any(
            isinstance(value, nn.utils.rnn.PackedSequence) for value in values
        ):
            return True
    return False


@cache
def _decompositions() -> dict[Any, Any]:
    """Operations written out in core ones; listing them takes longer than most traces."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    known = (getattr(torch.ops.aten, name, None) for name in _COMPOSITE)  # older releases lack some
    composite = get_decompositions([op for op in known if op is not None])
    return {**core_aten_decompositions(), **composite}


def _writes(graph: fx.Graph) -> bool:
    """Whether an operation writes on what isn't an input; buffers are written when all is done."""
    calls = (node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    written = (node.args[0] for node in calls if node.target._schema.is_mutable)
    return any(node.op != "placeholder" for node in written)


def without_dropout(module: nn.Module) -> nn.Module:
    """A copy, with the same tensors, in which dropout does nothing."""
    tensors = [*module.parameters(), *module.buffers()]
    module = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.eval()
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
    return module


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Attention, encoders and recurrent layers by their definitions, not by fused kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast = torch.backends.mha.get_fastpath_enabled()
    onednn = torch._C._get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)  # `mkldnn.flags` sets more, and warns of GPUs
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(onednn)


def _python_recurrence(module: nn.Module) -> AbstractContextManager[Any]:
    """Recurrent layers by definitions in Python: those in C++ write in place, which costs a pass.

    Others keep theirs, which older releases of torch decompose further.
    """
    from torch._dispatch.python import enable_python_dispatcher

    is_recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
    return enable_python_dispatcher() if is_recurrent else nullcontext()


# how characters of several tensors meet
SAME = "same"
SUM = "sum"
TRIVIAL = "trivial"

# Exponents that multiply the sign and the scale; None: they must be trivial.
Powers = tuple[int | None, Fraction | int | None]

# Of a node and its arguments, in which labels stand for tensors; None: it can't say.
Rule = Callable[..., Any]


# Operations that say nothing of why units can be exchanged.
_VIEWS = {
    "view", "permute", "clone", "unsqueeze", "squeeze", "expand", "select", "slice",
    "split_with_sizes", "slice_scatter", "cat",
}  # fmt: skip


class Reader:
    """Labels of all tensors of a trace, read again and again until nothing changes.

    Parameters
    ----------
    graph : fx.Graph
        Of ATen operations.
    moving : sequence of int
        Which of its inputs have axes that may be permuted, in the order of the flat ``theta``. All
        others (inputs of the module, frozen parameters, buffers) are constants.
    rules : dict of str to Rule
        Rule of each operation. One without a rule, or whose rule fails, pins all that comes in.
    """

    def __init__(self, graph: fx.Graph, moving: Sequence[int], rules: dict[str, Rule]) -> None:
        self.atoms = Atoms()
        self.graph = graph
        self.rules = rules
        self.refused: set[str] = set()
        self.operations: dict[int, dict[str, None]] = {}  # that each atom takes part in, in order
        self._labels: dict[Any, Any] = {}  # of inputs and constants; kept over passes
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        position = {i: k for k, i in enumerate(moving)}
        for i, node in enumerate(inputs):
            free = i in position and bool(node.users)
            variable = f"{position[i]}" if free else None
            self._labels[node] = self.fresh(output_shape(node), variable, pinned=not free)
        self.parameters: list[Label] = [self._labels[inputs[i]] for i in moving]
        self._needed = _needed(graph)
        # Inputs on which the output depends, by their positions.
        self.used = {i for i, node in enumerate(inputs) if node in set(self._needed)}

    def read(self, max_passes: int = 20) -> bool:
        """Pass over the trace until nothing changes; whether that was reached.

        The equations of the last pass count: by then the structure is fixed.
        """
        before: Any = None
        for _ in range(max_passes):
            self._pass()
            state = self.atoms.state()
            if state == before:
                return True
            before = state
        return False

    def _pass(self) -> None:
        self.atoms.equations = ([], [])
        self.operations = {}
        labels: dict[fx.Node, Any] = {}
        for node in self._needed:
            inputs = [labels[n] for n in node.all_input_nodes]
            if node.op == "output":
                for one in inputs:
                    self.pin(one)
            elif node.op != "call_function":
                constant = self.kept(node, node.meta["val"], pinned=True)
                labels[node] = self.atoms.settle(constant)
            elif "getitem" in str(node.target):
                labels[node] = inputs[0][node.args[1]]
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: labels[n])
                result = self._apply(node, inputs, args, kwargs)
                several = isinstance(node.meta["val"], tuple | list)
                settle = self.atoms.settle
                labels[node] = [settle(r) for r in result] if several else settle(result)

    def _apply(self, node: fx.Node, inputs: list[Label], args: Any, kwargs: Any) -> Any:
        """Labels of what an operation returns."""
        name = operation(node)
        value = node.meta["val"]
        self.atoms.operation = name
        if not node.all_input_nodes or name in ("full_like", "zeros_like", "ones_like"):
            is_constant = name.startswith(("full", "zeros", "ones"))
            is_zero = name.startswith("zeros") or (is_constant and node.args[1:2] == (0,))
            return self.kept(node, value, f"c{node.name}" if is_zero else None,
                             pinned=not is_constant)  # fmt: skip
        moved = {a for one in inputs for axis in one for s in axis_atoms(axis) for a in s}
        for atom in moved if name not in _VIEWS else ():
            self.operations.setdefault(self.atoms.find(atom), {})[name] = None
        try:
            result = self.rules[name](self, node, *args, **kwargs) if name in self.rules else None
        except (IndexError, KeyError, TypeError, ValueError, ConflictError):
            result = None  # arguments that the rule doesn't know; what it joined stays joined
        if result is None:
            self.refused.add(name)
            for one in inputs:
                self.pin(one)
            return self.kept(node, value, pinned=True)
        return result

    def fresh(self, sizes: Sequence[int], variable: str | None, *, pinned: bool) -> Label:
        """A label of new atoms, with a variable for each axis."""
        label: Label = []
        for k, n in enumerate(sizes):
            one: Exponents = {f"{variable}.{k}": Fraction(1)} if variable else {}
            atom = self.atoms.new(n, pinned=pinned, depends=set() if pinned else None)
            label.append([[Occurrence(atom, (one, one))]])
        return label

    def kept(self, key: Any, value: Any, variable: str | None = None, *, pinned: bool) -> Any:
        """The label of a constant, the same in every pass; a list for several tensors."""
        if key not in self._labels:
            if isinstance(value, tuple | list):
                label: Any = [self.fresh(_sizes(v), None, pinned=pinned) for v in value]
            else:
                label = self.fresh(_sizes(value), variable, pinned=pinned)
            self._labels[key] = label
        return self._labels[key]

    def pinned(self, n: int) -> Axis:
        """An axis whose places stay."""
        return [[Occurrence(self.atoms.new(n, pinned=True, depends=set()))]]

    def pin(self, label: Label, dims: Iterable[int] | None = None) -> None:
        """These axes (by default all) must stay in place, sign and scale too."""
        chosen = range(len(label)) if dims is None else [d % len(label) for d in dims]
        mixed = self.trivial([label[d] for d in chosen])
        for atom in mixed:
            self.atoms.pin(atom)
        self.atoms.forget([axis for i, axis in enumerate(label) if i not in chosen], mixed)

    def lose(self, label: Label, dims: Iterable[int], reason: str) -> None:
        """Pin axes that a rule can't follow, and name the operation if they could have moved."""
        chosen = [label[d % len(label)] for d in dims]
        self.atoms.note_loss([s for axis in chosen for s in self.atoms.resolve(axis)], reason)
        self.pin(label, dims)

    def mix(self, label: Label, dims: Iterable[int]) -> None:
        """An operation over these axes is the same for any order of their places."""
        chosen = [d % len(label) for d in dims]
        mixed = self.trivial([label[d] for d in chosen], ())
        kept = [self.atoms.resolve(axis) for i, axis in enumerate(label) if i not in chosen]
        self.atoms.forget(kept, mixed)

    def trivial(self, axes: Iterable[Axis], kinds: Sequence[int] = KINDS) -> set[int]:
        """Signs and scales on these axes must be 1; the atoms there."""
        occurrences = [o for axis in axes for s in self.atoms.resolve(axis) for o in s]
        for occurrence in occurrences:
            self.atoms.trivial(occurrence, kinds)
        return {o.atom for o in occurrences}

    def raised(self, label: Label, powers: Powers) -> Label:
        """The label of an entrywise function: characters to some powers."""
        for kind in KINDS:
            if powers[kind] is None:
                self.trivial(label, (kind,))
        return [
            [[Occurrence(o.atom, _raised(o.characters, powers)) for o in segment]
             for segment in self.atoms.resolve(axis)]
            for axis in label
        ]  # fmt: skip

    def pointwise(
        self, n_axes: int, labels: Sequence[Label], modes: tuple[str, str],
        powers: Sequence[int] | None = None,
    ) -> Label:  # fmt: skip
        """The label of an entrywise function of tensors that broadcast.

        ``modes``: how their signs and scales meet: they must be the same, they are added (a
        product, each to one of ``powers``), or they must be trivial.
        """
        powers = powers or [1] * len(labels)
        result = list[Axis]()
        for k in range(1, n_axes + 1):
            axes = self._unified([label[-k] if len(label) >= k else ONE for label in labels])
            whole = next((axis for axis in axes if axis != ONE), ONE)
            axis: Axis = []
            for i, segment in enumerate(whole):
                axis.append([])
                for j, occurrence in enumerate(segment):
                    atom = occurrence.atom
                    met = [a[i][j].characters if a != ONE else ({}, {}) for a in axes]
                    sign, scale = (
                        self._met(atom, kind, [c[kind] for c in met], modes[kind], powers)
                        for kind in KINDS
                    )
                    axis[-1].append(Occurrence(atom, (sign, scale)))
            result.insert(0, axis)
        return result

    def _unified(self, axes: list[Axis]) -> list[Axis]:
        atoms = self.atoms
        long = [axis for axis in axes if atoms.resolve(axis) != ONE]
        for first, second in itertools.combinations(long, 2):
            atoms.unify_axes(first, second)
        axes = [atoms.resolve(axis) for axis in axes]
        structures = [axis_atoms(axis) for axis in axes if axis != ONE]
        if any(structure != structures[0] for structure in structures):
            frozen = [[[atoms.freeze(axis)]] for axis in axes if axis != ONE]
            axes = [frozen[0] if axis != ONE else axis for axis in axes]
        return axes

    def _met(
        self, atom: int, kind: int, met: list[Exponents], mode: str, powers: Sequence[int]
    ) -> Exponents:
        if mode == TRIVIAL:
            for exponents in met:
                self.atoms.equate(atom, exponents, kind)
            return {}
        if mode == SAME:
            for exponents in met[1:]:
                self.atoms.equate(atom, added(met[0], exponents, -1), kind)
            return met[0]
        total: Exponents = {}
        for exponents, power in zip(met, powers, strict=True):
            total = added(total, exponents, power)
        return total

    def contract(self, first: Axis, second: Axis, batch: list[Axis], kept: list[Axis]) -> None:
        """An axis of one tensor is summed against an axis of another.

        Signs and scales of the two cancel. What is summed may be permuted by the place of the batch
        only; what is kept can't be by the place of what is summed, though the result may have such
        an axis again.
        """
        atoms = self.atoms
        first, second = atoms.unify_axes(first, second)
        for s, t in zip(first, second, strict=True):
            for o, p in zip(s, t, strict=True):
                for kind in KINDS:
                    atoms.equate(o.atom, added(o.characters[kind], p.characters[kind]), kind)
        summed = {o.atom for s in atoms.resolve(first) for o in s}
        aligned = {o.atom for axis in batch for s in atoms.resolve(axis) for o in s}
        for atom in summed:
            names = atoms.depends(atom)
            atoms.restrict(atom, aligned | summed if names is None else names & (aligned | summed))
        atoms.forget([atoms.resolve(axis) for axis in kept], summed)

    def reshaped(self, label: Label, old: Sequence[int], new: Sequence[int]) -> Label:
        """The label of a view: axes are merged to products, and divided into factors."""
        atoms = self.atoms
        axes = [axis for axis, n in zip(label, old, strict=True) if n != 1]
        sizes = [n for n in old if n != 1]
        goals = [n for n in new if n != 1]
        result: list[Axis] = []
        while axes or goals:
            merged = [axes.pop(0)]
            goal = [goals.pop(0)]
            n = sizes.pop(0)
            m = goal[0]
            while n != m:
                if n < m:
                    n *= sizes.pop(0)
                    merged.append(axes.pop(0))
                else:
                    goal.append(goals.pop(0))
                    m *= goal[-1]
            whole = atoms.resolve(merged[0])
            for axis in map(atoms.resolve, merged[1:]):
                one = axis if len(axis) == 1 else [[atoms.freeze(axis)]]
                whole = [segment + one[0] for segment in whole]
            result += [whole] if len(goal) == 1 else self._divided(whole, goal)
        rest = iter(result)
        return [ONE if n == 1 else next(rest) for n in new]

    def _divided(self, whole: Axis, sizes: list[int]) -> list[Axis]:
        """An axis as a product of axes of these sizes; all pinned where its structure has none."""
        atoms = self.atoms
        try:
            if len(whole) > 1:
                raise ConflictError
            segment = whole[0]
            axes = list[Axis]()
            for n in sizes:
                row = list[Occurrence]()
                have = 1
                while have < n:
                    first, *segment = atoms.resolve([segment])[0]
                    size = atoms.size[first.atom]
                    if n % (have * size) == 0:
                        row = [*row, first]
                        have = have * size
                        continue
                    if n % have:
                        raise ConflictError
                    atoms.divide(first.atom, n // have)
                    segment = [*atoms.resolve([[first]])[0], *segment]
                axes.append([row])
            return axes
        except ConflictError:
            atoms.freeze(whole)
            return [self.pinned(n) for n in sizes]


def operation(node: fx.Node) -> str:
    """Name of a node's ATen operation."""
    target = node.target
    packet: Any = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target
    return str(packet.__name__)


def output_shape(node: Any) -> torch.Size:
    """Shape of what a node returns; of several tensors, of the first."""
    value = node.meta["val"]
    return _sizes(value[0] if isinstance(value, tuple | list) else value)


def _sizes(value: Any) -> torch.Size:
    return value.shape if isinstance(value, Tensor) else torch.Size()


def _raised(characters: tuple[Exponents, Exponents], powers: Powers) -> tuple[Exponents, Exponents]:
    sign, scale = (
        {} if power is None else added({}, exponents, power)
        for exponents, power in zip(characters, powers, strict=True)
    )
    return sign, scale


def _needed(graph: fx.Graph) -> list[fx.Node]:
    """The nodes on which the output depends, in order."""
    needed = set[fx.Node]()
    todo = [node for node in graph.nodes if node.op == "output"]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += node.all_input_nodes
    return [node for node in graph.nodes if node in needed]
