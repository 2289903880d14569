"""Trace a torch module, and label the axes of all tensors by the rules of its operations.

`trace` records the ATen operations of one call. `GraphAnalysis` gives every tensor of the trace a
`TensorAxes`, the structure of its axes in terms of an `AxisPartition`. For each operation it calls
the rule in ``rules``, which relates the axes of the arguments to those of the result. Passes over
the trace are repeated until nothing changes. The glossary is in
`skbayes_sym.symmetry.modules.axis_partition`.

Nothing is skipped silently. An operation without a rule, or whose rule doesn't know the arguments,
is added to `GraphAnalysis.refused`, and all of its arguments are fixed.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from functools import cache
from operator import getitem
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._C import _get_mkldnn_enabled, _set_mkldnn_enabled
from torch._ops import OpOverload
from torch.nn.modules.dropout import _DropoutNd

from skbayes_sym.numerics.runtime import import_compiler_bisector, import_symbolic_shapes
from skbayes_sym.symmetry.modules.axis_partition import (
    KINDS,
    ONE,
    Axis,
    AxisPartition,
    ConflictError,
    Exponents,
    Factor,
    TensorAxes,
    add_exponents,
    axis_blocks,
)

# Composite operations in torch's core set. They are decomposed, and therefore need no rules.
_COMPOSITE = (
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_fused_rms_norm", "glu",
)  # fmt: skip


def trace(module: nn.Module, inputs: tuple[Any, ...]) -> fx.Graph:
    """Return the graph of ATen operations of ``module(*inputs)``.

    The first inputs of the graph are the parameters, followed by the buffers. Dropout is omitted,
    because it is symmetric in distribution. The module isn't changed.

    Raises
    ------
    ValueError
        If the control flow depends on the values of tensors, or the call fails.
    """
    import_symbolic_shapes()
    import_compiler_bisector()
    from torch.fx.experimental.proxy_tensor import make_fx

    module = without_dropout(module)
    params = dict(module.named_parameters())
    buffers = dict(module.named_buffers())

    def call(params: Any, buffers: Any, args: Any) -> Any:
        return torch.func.functional_call(module, (params, buffers), args)

    traced: Any = call
    try:
        with _plain_kernels(), _python_recurrence(module), _padded_sequences():
            for _ in range(2):  # some decompositions write in place; a second pass removes this
                traced = make_fx(
                    torch.func.functionalize(traced),
                    decomposition_table=_decompositions(),
                    tracing_mode="fake",
                    _allow_non_fake_inputs=True,
                )(params, buffers, inputs)
                if not _writes(traced.graph):
                    break
    except Exception as error:
        if _uses_packed_sequences(error):
            raise ValueError(
                f"{type(module).__name__} can't be traced: it uses packed sequences "
                "(pack_padded_sequence) in a way whose shapes depend on values. Give symmetry_of a "
                "module that runs the same layers on a padded tensor; their symmetry is the same."
            ) from error
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{type(module).__name__} can't be traced: {type(error).__name__}: {reason} A branch "
            "on the values of tensors has no symmetry that one call can show; otherwise check that "
            "module(example_input) runs."
        ) from error
    return traced.graph


def _uses_packed_sequences(error: BaseException) -> bool:
    """Return whether a failed call received or created packed sequences."""
    for frame, _ in walk_tb(error.__traceback__):
        values = frame.f_locals.values()
        if frame.f_code.co_name == "pack_padded_sequence" or any(
            isinstance(value, nn.utils.rnn.PackedSequence) for value in values
        ):
            return True
    return False


@cache
def _decompositions() -> dict[Any, Any]:
    """Return the decompositions into core operations. Cached, as listing them is slow."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    # Older releases lack some operations.
    operations = (getattr(torch.ops.aten, name, None) for name in _COMPOSITE)
    composite = get_decompositions([op for op in operations if op is not None])
    trilinear = {torch.ops.aten._trilinear.default: _decompose_trilinear}
    table: dict[Any, Any] = {**core_aten_decompositions(), **composite, **trilinear}
    for overload in (torch.ops.aten.eye.default, torch.ops.aten.eye.m):
        table.pop(overload, None)  # its rows and columns can be permuted together
    return table


def _decompose_trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    new_axes_1: list[int],
    new_axes_2: list[int],
    new_axes_3: list[int],
    summed: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Compute the sum of products in `torch.nn.Bilinear`.

    Parameters
    ----------
    first, second, third : Tensor
        Factors.
    new_axes_1, new_axes_2, new_axes_3 : list of int
        Axes of one position that are inserted in each factor.
    summed : list of int
        Axes over which the product is summed.
    unroll_dim : int, default=1
        How torch computes it, which doesn't change the result.
    """
    del unroll_dim
    product = torch.ones((), dtype=first.dtype, device=first.device)
    pairs = ((first, new_axes_1), (second, new_axes_2), (third, new_axes_3))
    for factor, new_axes in pairs:
        for axis in new_axes:
            factor = factor.unsqueeze(axis)
        product = product * factor
    return product.sum(summed)


def _writes(graph: fx.Graph) -> bool:
    """Return whether an operation writes on a tensor that isn't an input.

    Buffers are inputs. They are written at the end of the trace, which doesn't matter here.
    """
    calls = (node for node in graph.nodes if isinstance(node.target, OpOverload))
    written = (node.args[0] for node in calls if node.target._schema.is_mutable)
    return any(node.op != "placeholder" for node in written)


def without_dropout(module: nn.Module) -> nn.Module:
    """Return a copy that shares all tensors, with dropout switched off."""
    attributes = [value for layer in module.modules() for value in vars(layer).values()]
    plain_tensors = [value for value in attributes if isinstance(value, Tensor)]
    tensors = [*module.parameters(), *module.buffers(), *plain_tensors]
    module = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    for layer in module.modules():
        if isinstance(layer, _DropoutNd):
            layer.eval()
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
    return module


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Compute attention, encoders and recurrent layers by their definitions, unfused."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast = torch.backends.mha.get_fastpath_enabled()
    onednn = _get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    _set_mkldnn_enabled(False)  # `mkldnn.flags` changes more settings, and warns about GPUs
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        _set_mkldnn_enabled(onednn)


class _PaddedLengths:
    """Stands for the batch sizes of a packed sequence all of whose rows are equally long.

    Attributes
    ----------
    n_rows, n_steps : int
        Shape of the padded sequences.
    lengths : Tensor
        The true lengths.
    device : torch.device
        Where batch sizes are.
    """

    device = torch.device("cpu")

    def __init__(self, n_rows: int, n_steps: int, lengths: Tensor) -> None:
        self.n_rows = n_rows
        self.n_steps = n_steps
        self.lengths = lengths

    def __getitem__(self, step: int) -> int:
        return self.n_rows

    def size(self, _axis: int) -> int:
        """Return the number of steps."""
        return self.n_steps


@contextmanager
def _padded_sequences() -> Iterator[None]:
    """Run recurrent layers on padded sequences instead of packed ones.

    The shape of packed sequences depends on values. The symmetry of layers that run on them is the
    same on padded sequences, because each step has it.
    """
    functions = torch._VF

    def pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Any]:
        if batch_first:
            steps = padded.transpose(0, 1)
        else:
            steps = padded
        return steps.flatten(0, 1), _PaddedLengths(steps.shape[1], steps.shape[0], lengths)

    def unpack(data: Tensor, sizes: Any, batch_first: bool, *_args: Any) -> tuple[Tensor, Tensor]:
        steps = data.unflatten(0, (sizes.n_steps, sizes.n_rows))
        return steps.transpose(0, 1) if batch_first else steps, sizes.lengths

    def run_padded(layer: Callable[..., Any]) -> Callable[..., Any]:
        def run(data: Tensor, sizes: Any, *args: Any) -> Any:
            if not isinstance(sizes, _PaddedLengths):
                return layer(data, sizes, *args)
            steps = data.unflatten(0, (sizes.n_steps, sizes.n_rows))
            output, *states = layer(steps, *args, False)
            return output.flatten(0, 1), *states

        return run

    layers = {name: run_padded(getattr(functions, name)) for name in _RECURRENT_LAYERS}
    replacements = {"_pack_padded_sequence": pack, "_pad_packed_sequence": unpack, **layers}
    originals = {name: getattr(functions, name) for name in replacements}
    for name, function in replacements.items():
        setattr(functions, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(functions, name, function)


_RECURRENT_LAYERS = ("gru", "lstm", "rnn_tanh", "rnn_relu")


def _python_recurrence(module: nn.Module) -> AbstractContextManager[Any]:
    """Use Python decompositions for modules with recurrent layers.

    The C++ versions write in place, which would cost a second pass. Other modules keep theirs,
    because older releases of torch decompose these further.
    """
    from torch._dispatch.python import enable_python_dispatcher

    is_recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
    if is_recurrent:
        return enable_python_dispatcher()
    return nullcontext()


# How the exponents of several arguments combine in an entrywise operation.
SAME = "same"  # they must be equal
SUM = "sum"  # they are added, as in a product
TRIVIAL = "trivial"  # they must be zero

# Powers to which an entrywise function raises the sign and the scale of its argument; None: the
# sign (scale) must be trivial.
Powers = tuple[int | None, Fraction | int | None]

# A rule takes the analysis, the node and the node's arguments, in which `TensorAxes` stand for
# tensors. It returns the axes of the result, or None if it doesn't know the arguments.
Rule = Callable[..., Any]

# Operations that only rearrange entries. Reports don't name them.
_VIEWS = {
    "view", "permute", "clone", "unsqueeze", "squeeze", "expand", "select", "slice",
    "split_with_sizes", "slice_scatter", "cat",
}  # fmt: skip

# Operations that create a constant of one value. Its axes may be permuted.
_UNIFORM_CONSTANTS = ("full", "zeros", "ones", "empty")
_LIKE = ("full_like", "zeros_like", "ones_like", "empty_like")

# Operations that create other deterministic constants. Their axes are fixed.
_CONSTANTS = {
    "arange", "eye", "linspace", "scalar_tensor", "tril_indices", "triu_indices",
}  # fmt: skip


class GraphAnalysis:
    """Structure of the axes of all tensors in a trace.

    Parameters
    ----------
    graph : fx.Graph
        Graph of ATen operations.
    moving : sequence of int
        Positions of the graph inputs whose axes may be permuted, in the order of the flat
        ``theta``. All other inputs (arguments of the module, frozen parameters, buffers) are
        constants.
    rules : dict of str to Rule
        Rule of each operation, by its name.

    Attributes
    ----------
    partition : AxisPartition
        Blocks of positions that are permuted together.
    parameters : list of TensorAxes
        Axes of the moving inputs.
    used : set of int
        Positions of the graph inputs on which the output depends.
    parameter_is_used : list of bool
        Whether the output depends on each moving input.
    refused : set of str
        Operations without a rule, or with arguments that their rule doesn't know. All that enters
        them is fixed.
    operations : dict of int to dict
        Operations that each block passes, in their order.
    """

    def __init__(self, graph: fx.Graph, moving: Sequence[int], rules: dict[str, Rule]) -> None:
        self.partition = AxisPartition()
        self.graph = graph
        self.rules = rules
        self.refused: set[str] = set()
        self.operations: dict[int, dict[str, None]] = {}
        self._constants: dict[Any, Any] = {}  # axes of inputs and constants, the same in all passes
        self._needed = find_needed_nodes(graph)
        needed = set(self._needed)
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        position = {i: k for k, i in enumerate(moving)}
        for i, node in enumerate(inputs):
            free = i in position and node in needed
            variable = f"{position[i]}" if free else None
            self._constants[node] = self.new_axes(output_shape(node), variable, fixed=not free)
        self.parameters: list[TensorAxes] = [self._constants[inputs[i]] for i in moving]
        self.partition.parameter_blocks = [
            factor.block for axes in self.parameters for axis in axes for s in axis for factor in s
        ]
        self.used = {i for i, node in enumerate(inputs) if node in needed}
        self.parameter_is_used = [i in self.used for i in moving]

    def run(self, max_passes: int = 20) -> bool:
        """Analyse the trace until nothing changes; return whether that was reached.

        The equations are those of the last pass, in which the structure was already final.
        """
        if not self._repeat_passes(max_passes):
            return False
        if self.partition.release_controllers():
            return self._repeat_passes(max_passes)
        return True

    def _repeat_passes(self, max_passes: int) -> bool:
        before: Any = None
        for _ in range(max_passes):
            self._run_pass()
            state = self.partition.state()
            if state == before:
                return True
            before = state
        return False

    def _run_pass(self) -> None:
        self.partition.equations = ([], [])
        self.operations = {}
        axes: dict[fx.Node, Any] = {}
        for node in self._needed:
            inputs = [axes[n] for n in node.all_input_nodes]
            if node.op == "output":
                for argument in inputs:
                    self.fix(argument)
            elif node.op in ("placeholder", "get_attr"):
                constant = self.constant_axes(node, node.meta.get("val"), fixed=True)
                axes[node] = self.partition.settle(constant)
            elif node.target is getitem:
                axes[node] = inputs[0][node.args[1]]
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: axes[n])
                result = self._apply_rule(node, inputs, args, kwargs)
                if _is_sequence(node.meta.get("val")):
                    axes[node] = [self.partition.settle(r) for r in result]
                else:
                    axes[node] = self.partition.settle(result)

    def _apply_rule(self, node: fx.Node, inputs: list[TensorAxes], args: Any, kwargs: Any) -> Any:
        """Return the axes of an operation's result; a list of them for several results.

        Parameters
        ----------
        node : fx.Node
            Node of the operation.
        inputs : list of TensorAxes
            Axes of the arguments that are tensors.
        args, kwargs : tuple and dict
            Arguments of the node, in which axes stand for tensors.
        """
        name = operation(node)
        value = node.meta.get("val")
        self.partition.operation = name
        if not node.all_input_nodes or name in _LIKE:
            return self._create_constant(node, name, value)
        blocks = {b for axes in inputs for axis in axes for s in axis_blocks(axis) for b in s}
        if name not in _VIEWS:
            for block in blocks:
                self.operations.setdefault(self.partition.find(block), {})[name] = None
        result = None
        try:
            if name in self.rules:
                result = self.rules[name](self, node, *args, **kwargs)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, ConflictError):
            pass  # the rule doesn't know the arguments; what it has unified stays unified
        if result is None:
            self.refused.add(name)
            for argument in inputs:
                self.fix(argument)
            return self.constant_axes(node, value, fixed=True)
        return result

    def _create_constant(self, node: fx.Node, name: str, value: Any) -> Any:
        """Return the axes of a constant that an operation creates, and refuse unknown operations.

        Zeros have a sign and a scale that are free, so that they get variables, which begin with
        "c" and are eliminated. So has memory that isn't initialised, as all of it is written on.
        """
        if name == "eye" and value.shape[0] == value.shape[1]:
            return self._identity_axes(node, value.shape[0])
        is_uniform = name.startswith(_UNIFORM_CONSTANTS)
        if not is_uniform and name not in _CONSTANTS:
            self.refused.add(name)
        is_zero = name.startswith(("zeros", "empty")) or (is_uniform and node.args[1:2] == (0,))
        variable = f"c{node.name}" if is_zero else None
        return self.constant_axes(node, value, variable, fixed=not is_uniform)

    def _identity_axes(self, node: fx.Node, n: int) -> TensorAxes:
        """Return the axes of an identity matrix, whose rows and columns move together.

        Signs (scales) of a row and of its column must have the product 1.
        """
        block = self.constant_block(node, n)
        row = {f"c{node.name}": Fraction(1)}
        column = {f"c{node.name}": Fraction(-1)}
        return [[[Factor(block, (row, row))]], [[Factor(block, (row, column))]]]

    # Axes of new tensors

    def new_axes(self, sizes: Sequence[int], variable: str | None, *, fixed: bool) -> TensorAxes:
        """Return axes of new blocks, each with a variable for its sign and scale.

        Parameters
        ----------
        sizes : sequence of int
            Number of positions of each axis.
        variable : str or None
            Beginning of the names of the variables; None for axes without signs and scales.
        fixed : bool
            Whether the positions can't be permuted.
        """
        axes: TensorAxes = []
        for k, n in enumerate(sizes):
            exponents: Exponents
            if variable:
                exponents = {f"{variable}.{k}": Fraction(1)}
            else:
                exponents = {}
            block = self.partition.add_block(n, fixed=fixed)
            axes.append([[Factor(block, (exponents, exponents))]])
        return axes

    def constant_axes(
        self, key: Any, value: Any, variable: str | None = None, *, fixed: bool
    ) -> Any:
        """Return the axes of a constant, which are the same in every pass.

        Parameters
        ----------
        key : object
            Identifies the constant.
        value : Tensor or sequence of Tensor
            Gives the shape. A sequence has a list of axes for each tensor.
        variable : str or None, default=None
            Prefix of the variables of its signs and scales; None: both are 1.
        fixed : bool
            Whether the positions are fixed.
        """
        if key not in self._constants:
            if _is_sequence(value):
                axes: Any = [self.new_axes(_shape(v), None, fixed=fixed) for v in value]
            else:
                axes = self.new_axes(_shape(value), variable, fixed=fixed)
            self._constants[key] = axes
        return self._constants[key]

    def constant_block(self, key: Any, n: int) -> int:
        """Return a block of ``n`` equal positions, which is the same in every pass."""
        if key not in self._constants:
            self._constants[key] = self.partition.add_block(n)
        return int(self._constants[key])

    def fixed_axis(self, n: int) -> Axis:
        """Return an axis with ``n`` fixed positions."""
        return [[Factor(self.partition.add_block(n, fixed=True))]]

    # Requirements of rules

    def fix(self, axes: TensorAxes, dims: Iterable[int] | None = None) -> None:
        """Fix the positions on these axes (by default all), with trivial signs and scales."""
        if dims is None:
            dims = range(len(axes))
        selected = [d % len(axes) for d in dims]
        mixed = self.require_trivial([axes[d] for d in selected])
        for block in mixed:
            self.partition.fix(block)
        others = [axis for i, axis in enumerate(axes) if i not in selected]
        self.partition.remove_controllers(others, mixed)

    def fix_and_record(self, axes: TensorAxes, dims: Iterable[int], reason: str) -> None:
        """Fix axes that a rule can't follow, and record the loss if they could be permuted.

        Parameters
        ----------
        axes : TensorAxes
            All axes of a tensor.
        dims : iterable of int
            The axes that are fixed.
        reason : str
            Operation, for the report.
        """
        selected = [axes[d % len(axes)] for d in dims]
        segments = [s for axis in selected for s in self.partition.resolve(axis)]
        self.partition.record_loss(segments, reason)
        self.fix(axes, dims)

    def mix_positions(self, axes: TensorAxes, dims: Iterable[int]) -> None:
        """Declare that an operation mixes the positions on these axes, equally in any order."""
        selected = [d % len(axes) for d in dims]
        mixed = self.require_trivial([axes[d] for d in selected], ())
        others = [self.partition.resolve(axis) for i, axis in enumerate(axes) if i not in selected]
        self.partition.remove_controllers(others, mixed)

    def require_trivial(self, axes: Iterable[Axis], kinds: Sequence[int] = KINDS) -> set[int]:
        """Require that signs and scales on these axes are 1; return the blocks there."""
        factors = [f for axis in axes for s in self.partition.resolve(axis) for f in s]
        for factor in factors:
            self.partition.require_trivial(factor, kinds)
        return {block for f in factors for block in self.partition.components(f.block)}

    def apply_powers(self, axes: TensorAxes, powers: Powers) -> TensorAxes:
        """Return the axes of an entrywise function, which raises sign and scale to powers."""
        for kind in KINDS:
            if powers[kind] is None:
                self.require_trivial(axes, (kind,))
        return [
            [
                [Factor(f.block, _raise_exponents(f.exponents, powers)) for f in segment]
                for segment in self.partition.resolve(axis)
            ]
            for axis in axes
        ]

    def combine(
        self,
        n_axes: int,
        arguments: Sequence[TensorAxes],
        modes: tuple[str, str],
        powers: Sequence[int] | None = None,
    ) -> TensorAxes:
        """Return the axes of an entrywise function of several tensors that broadcast.

        Parameters
        ----------
        n_axes : int
            Number of axes of the result.
        arguments : sequence of TensorAxes
            Axes of the arguments.
        modes : tuple of two str
            How signs and how scales combine: ``SAME``, ``SUM`` or ``TRIVIAL``.
        powers : sequence of int or None, default=None
            For ``SUM``, the power of each argument; None: 1.

        Returns
        -------
        TensorAxes
        """
        powers = powers or [1] * len(arguments)
        result = list[Axis]()
        for k in range(1, n_axes + 1):
            axes = self._unify_all([a[-k] if len(a) >= k else ONE for a in arguments])
            structure = next((axis for axis in axes if axis != ONE), ONE)
            combined: Axis = []
            for i, segment in enumerate(structure):
                combined.append([])
                for j, factor in enumerate(segment):
                    pairs = [a[i][j].exponents if a != ONE else ({}, {}) for a in axes]
                    sign, scale = (
                        self._combine_exponents(
                            factor.block, kind, [pair[kind] for pair in pairs], modes[kind], powers
                        )
                        for kind in KINDS
                    )
                    combined[-1].append(Factor(factor.block, (sign, scale)))
            result.insert(0, combined)
        return result

    def _unify_all(self, axes: list[Axis]) -> list[Axis]:
        """Give axes that broadcast one structure; axes of one position stay as they are."""
        partition = self.partition
        long = [axis for axis in axes if partition.resolve(axis) != ONE]
        for first, second in itertools.combinations(long, 2):
            partition.unify_axes(first, second)
        axes = [partition.resolve(axis) for axis in axes]
        structures = [axis_blocks(axis) for axis in axes if axis != ONE]
        if any(structure != structures[0] for structure in structures):
            frozen = [[[partition.freeze(axis)]] for axis in axes if axis != ONE]
            axes = [frozen[0] if axis != ONE else axis for axis in axes]
        return axes

    def _combine_exponents(
        self, block: int, kind: int, exponents: list[Exponents], mode: str, powers: Sequence[int]
    ) -> Exponents:
        """Combine the exponents of the arguments' factors, and add equations.

        Parameters
        ----------
        block : int
            Block of the factors.
        kind : {SIGN, SCALE}
            Which exponents these are.
        exponents : list of dict
            Exponents of each argument.
        mode : {SAME, SUM, TRIVIAL}
            How they combine.
        powers : sequence of int
            For ``SUM``, the power of each argument.
        """
        if mode == TRIVIAL:
            for e in exponents:
                self.partition.add_equation(block, e, kind)
            return {}
        if mode == SAME:
            for e in exponents[1:]:
                self.partition.add_equation(block, add_exponents(exponents[0], e, -1), kind)
            return exponents[0]
        total: Exponents = {}
        for e, power in zip(exponents, powers, strict=True):
            total = add_exponents(total, e, power)
        return total

    def contract(self, first: Axis, second: Axis, batch: list[Axis], others: list[Axis]) -> None:
        """Require what a sum over an axis of one tensor times an axis of another requires.

        Signs and scales of the two axes cancel. Only batch positions, or positions that are also
        summed, may control the permutation of the summed positions. Summed positions don't control
        the axes of the result, even if the result has such an axis again.

        Parameters
        ----------
        first, second : Axis
            The axes that are summed over, one of each tensor.
        batch : list of Axis
            Axes that both tensors and the result have.
        others : list of Axis
            The other axes of the result.
        """
        partition = self.partition
        first, second = partition.unify_axes(first, second)
        for s, t in zip(first, second, strict=True):
            for f, g in zip(s, t, strict=True):
                for kind in KINDS:
                    total = add_exponents(f.exponents[kind], g.exponents[kind])
                    partition.add_equation(f.block, total, kind)
        summed = {
            block
            for s in partition.resolve(first)
            for f in s
            for block in partition.components(f.block)
        }
        batch_blocks = {f.block for axis in batch for s in partition.resolve(axis) for f in s}
        allowed = batch_blocks | summed
        for block in summed:
            controllers = partition.controllers(block)
            partition.restrict_controllers(
                block, allowed if controllers is None else controllers & allowed
            )
        partition.remove_controllers([partition.resolve(axis) for axis in others], summed)

    def reshape(self, axes: TensorAxes, old: Sequence[int], new: Sequence[int]) -> TensorAxes:
        """Return the axes of a view: old axes are merged to products and split into factors.

        Parameters
        ----------
        axes : TensorAxes
            Axes of the tensor.
        old, new : sequence of int
            Shapes before and after.
        """
        partition = self.partition
        remaining = [axis for axis, n in zip(axes, old, strict=True) if n != 1]
        old_sizes = [n for n in old if n != 1]
        new_sizes = [n for n in new if n != 1]
        result: list[Axis] = []
        while remaining or new_sizes:
            # The smallest groups of old and new axes with equal numbers of positions.
            merged = [remaining.pop(0)]
            target = [new_sizes.pop(0)]
            n = old_sizes.pop(0)
            m = target[0]
            while n != m:
                if n < m:
                    n *= old_sizes.pop(0)
                    merged.append(remaining.pop(0))
                else:
                    target.append(new_sizes.pop(0))
                    m *= target[-1]
            product = partition.resolve(merged[0])
            for axis in map(partition.resolve, merged[1:]):
                (inner,) = axis if len(axis) == 1 else [[partition.fold(axis)]]
                product = [segment + inner for segment in product]
            if len(target) == 1:
                result.append(product)
            else:
                result += self._split_axis(product, target)
        rest = iter(result)
        return [ONE if n == 1 else next(rest) for n in new]

    def _split_axis(self, axis: Axis, sizes: list[int]) -> list[Axis]:
        """Write an axis as a product of axes of these sizes; fix all if that is impossible."""
        partition = self.partition
        try:
            if len(axis) > 1:
                index, pieces = self._stack_pieces(axis, sizes[0])
                return [index, *(self._split_axis(pieces, sizes[1:]) if sizes[2:] else [pieces])]
            segment = axis[0]
            axes = list[Axis]()
            for i, n in enumerate(sizes):
                resolved = partition.resolve([segment])
                if len(resolved) > 1:  # a composite comes first
                    rest = sizes[i:]
                    return [*axes, *(self._split_axis(resolved, rest) if rest[1:] else [resolved])]
                factors = list[Factor]()
                length = 1
                while length < n:
                    first, *segment = segment
                    size = partition.size[first.block]
                    if n % (length * size) == 0:
                        factors = [*factors, first]
                        length = length * size
                        continue
                    if n % length:
                        raise ConflictError
                    partition.factorize(first.block, n // length)
                    segment = [*partition.resolve([[first]])[0], *segment]
                axes.append([factors])
            return axes
        except ConflictError:
            partition.freeze(axis)
            return [self.fixed_axis(n) for n in sizes]

    def _stack_pieces(self, axis: Axis, n: int) -> tuple[Axis, Axis]:
        """Write a concatenation of ``n`` equally long pieces as two axes.

        The first is a fixed block of ``n`` positions. All pieces get the structure of the second.
        Raises `ConflictError` if their parts have different lengths.
        """
        partition = self.partition
        if not partition.can_move(axis):
            raise ConflictError
        segments = iter(axis)
        length = partition.length(axis) // n
        pieces: list[Axis] = []
        for _ in range(n):
            piece: Axis = []
            while partition.length(piece) < length:
                piece.append(next(segments))
            if partition.length(piece) > length:
                raise ConflictError
            pieces.append(piece)
        index, (stacked,) = self.stack([[piece] for piece in pieces])
        return index, stacked

    def stack(self, tensors: list[TensorAxes]) -> tuple[Axis, TensorAxes]:
        """Return the fixed axis along which tensors are stacked, and their other axes.

        Blocks that differ between the tensors become families over the new axis.
        """
        partition = self.partition
        parts = [[partition.resolve(axis) for axis in axes] for axes in zip(*tensors, strict=True)]
        blocks = [tuple(_list_blocks(axis) for axis in axes) for axes in parts]
        index_block = self.constant_block(("stack", tuple(blocks)), len(tensors))
        partition.fix(index_block)
        result: TensorAxes = []
        for axes in parts:
            common = self._find_common_blocks(index_block, axes)
            if common is None:
                structures = [axis_blocks(axis) for axis in axes if axis != ONE]
                if any(structure != structures[0] for structure in structures):
                    partition.record_loss(axes[0], "of axes whose parts differ")
                result += self.combine(1, [[axis] for axis in axes], (SAME, SAME))
            else:
                result.append(self._stack_factors(common, axes))
        return [[Factor(index_block)]], result

    def _find_common_blocks(self, index_block: int, axes: list[Axis]) -> list[list[int]] | None:
        """Return blocks that stand for those of all axes: the same one, or a family of them.

        The result is None if the axes don't consist of leaves of the same sizes.
        """
        partition = self.partition
        blocks = [axis_blocks(axis) for axis in axes]
        sizes = [[[partition.size[b] for b in segment] for segment in axis] for axis in blocks]
        if any(size != sizes[0] for size in sizes):
            return None
        common: list[list[int]] = []
        for segments in zip(*blocks, strict=True):
            common.append([])
            for members in zip(*segments, strict=True):
                if len(set(members)) == 1:
                    common[-1].append(members[0])
                    continue
                if any(partition.segments[b] or partition.families[b] for b in members):
                    return None
                key = ("family", index_block, members)
                if key not in self._constants:
                    self._constants[key] = partition.add_family(index_block, list(members))
                if partition.families[partition.find(self._constants[key])] is None:
                    return None  # an operation needs one block
                common[-1].append(self._constants[key])
        return common

    def _stack_factors(self, common: list[list[int]], axes: list[Axis]) -> Axis:
        """Return an axis of common blocks; signs and scales of a family are those of its members.

        Parameters
        ----------
        common : list of list of int
            Result of `_find_common_blocks`.
        axes : list of Axis
            The stacked axes.
        """
        partition = self.partition
        result: Axis = []
        for i, segment in enumerate(common):
            result.append([])
            for j, block in enumerate(segment):
                factors = [axis[i][j] for axis in axes]
                if block == factors[0].block:
                    sign, scale = (
                        self._combine_exponents(
                            block, kind, [f.exponents[kind] for f in factors], SAME, ()
                        )
                        for kind in KINDS
                    )
                    result[-1].append(Factor(block, (sign, scale)))
                    continue
                for k, factor in enumerate(factors):
                    for kind in KINDS:
                        difference = add_exponents(
                            factor.exponents[kind], {f"c{block}/{k}": Fraction(1)}, -1
                        )
                        partition.add_equation(factor.block, difference, kind)
                exponents = {f"c{block}": Fraction(1)}
                result[-1].append(Factor(block, (exponents, exponents)))
        return partition.resolve(result)


def _list_blocks(axis: Axis) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of an axis as a key."""
    return tuple(tuple(factor.block for factor in segment) for segment in axis)


def operation(node: fx.Node) -> str:
    """Return the name of a node's operation.

    Operations outside of torch's own namespaces get their namespace as a prefix, so that a custom
    operation never uses the rule of an ATen operation of the same name.
    """
    target = node.target
    if not isinstance(target, OpOverload):
        return str(getattr(target, "__name__", target))
    name = str(target.overloadpacket.__name__)
    if target.namespace in ("aten", "prims"):
        return name
    return f"{target.namespace}::{name}"


def output_shape(node: Any) -> torch.Size:
    """Return the shape of a node's result; of several tensors, that of the first."""
    value = node.meta["val"]
    return _shape(value[0] if _is_sequence(value) else value)


def _shape(value: Any) -> torch.Size:
    if isinstance(value, Tensor):
        return value.shape
    return torch.Size()


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _raise_exponents(
    exponents: tuple[Exponents, Exponents], powers: Powers
) -> tuple[Exponents, Exponents]:
    """Multiply the exponents by powers; a power of None makes the result trivial."""
    sign, scale = (
        {} if power is None else add_exponents({}, e, power)
        for e, power in zip(exponents, powers, strict=True)
    )
    return sign, scale


def find_needed_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes on which the output depends, in their order."""
    needed = set[fx.Node]()
    stack = [node for node in graph.nodes if node.op == "output"]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    return [node for node in graph.nodes if node in needed]
