"""Rules of ATen operations: how the axes of the arguments relate to those of the result.

A rule must require at least what the operation needs. A requirement too many costs a symmetry. One
too few makes a false symmetry, which the numerical check of `symmetry_of` finds and removes.

The glossary is in `skbayes_sym.symmetry.modules.axis_partition`. "Sign" and "scale" describe what
happens to a result if an entry of the argument is negated or multiplied by a positive number.

Adding a rule
-------------
An operation without a rule appears in ``symmetry_of(module, x).refused`` under its name. To add its
rule:

1. Entrywise functions and reductions are one entry in ``_ENTRYWISE_GROUPS`` or ``_REDUCTIONS``:
   the powers to which they raise the sign and the scale. Any other rule is a function with the
   decorator ``@_rule("name", ...)``, here or in ``selection_rules``. It receives the
   `GraphAnalysis`, the node and the node's arguments, in which a `TensorAxes` stands for each
   tensor. It returns the `TensorAxes` of the result, a list of them for several results, or None
   if it can't handle the arguments. Methods of `GraphAnalysis` state the requirements:
   ``apply_powers`` and ``combine`` (entrywise functions), ``contract`` (sums of products),
   ``reshape`` (views), ``mix_positions`` and ``fix``. Linear and even operations may be listed in
   ``overall_signs``, too.
2. Add a module that uses the operation, with the order of its group, to ``OPERATIONS`` in
   ``tests/symmetry/modules/test_rules.py``. The tests check the order, the group laws, and that
   random elements leave the module's outputs unchanged.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from torch import fx

from skbayes_sym.symmetry.modules.axis_partition import (
    KINDS,
    ONE,
    Axis,
    ConflictError,
    TensorAxes,
)
from skbayes_sym.symmetry.modules.graph_analysis import (
    SAME,
    SUM,
    TRIVIAL,
    GraphAnalysis,
    Powers,
    Rule,
    operation,
    output_shape,
)  # fmt: skip

RULES: dict[str, Rule] = {}


def rule_decorator(table: dict[str, Rule]) -> Callable[..., Callable[[Rule], Rule]]:
    """Return a decorator that enters a function in a table, as the rule of named operations."""

    def register_names(*names: str) -> Callable[[Rule], Rule]:
        def register(function: Rule) -> Rule:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return register_names


_rule = rule_decorator(RULES)


# Entrywise functions. Odd functions keep the sign, even ones lose it, and positively homogeneous
# ones keep the scale. For all others the sign (scale) must be trivial, which is written as None.
_ENTRYWISE_GROUPS: dict[str, Powers] = {
    "clone alias detach lift_fresh_copy neg contiguous": (1, 1),
    "tanh sin asinh atan erf tan asin sinh atanh erfinv round trunc": (1, None),
    "cos cosh": (0, None),
    "abs": (0, 1),
    "sign": (1, 0),
    "relu leaky_relu": (None, 1),
    "reciprocal": (1, -1),
    "sqrt": (None, Fraction(1, 2)),
    "rsqrt": (None, Fraction(-1, 2)),
    "sigmoid gelu silu exp exp2 log log2 log10 log1p expm1 softplus elu hardswish hardsigmoid mish "
    "celu selu erfc log_sigmoid logical_not bitwise_not isnan isinf acos acosh floor ceil digamma "
    "lgamma logit": (None, None),
}


def _make_entrywise_rule(powers: Powers) -> Rule:
    """Return the rule of an entrywise function of a single tensor."""

    def rule(
        analysis: GraphAnalysis, _node: fx.Node, x: TensorAxes, *args: Any, **kwargs: Any
    ) -> TensorAxes | None:
        if any(isinstance(other, list) for other in (*args, *kwargs.values())):
            return None
        return analysis.apply_powers(x, powers)

    return rule


ENTRYWISE: dict[str, Powers] = {
    name: powers for names, powers in _ENTRYWISE_GROUPS.items() for name in names.split()
}
RULES.update({name: _make_entrywise_rule(powers) for name, powers in ENTRYWISE.items()})


@_rule("clamp", "hardtanh")
def _clamp(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, low: Any = None, high: Any = None
) -> TensorAxes | None:
    """Bound values: an odd function if the bounds are opposite numbers.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the argument.
    low, high : float or None
        Bounds. ``hardtanh`` has the bounds -1 and 1 by default.
    """
    if operation(node) == "hardtanh":
        low = -1.0 if low is None else low
        high = 1.0 if high is None else high
    if isinstance(low, list) or isinstance(high, list):
        return _compare(analysis, node, x, low, high)
    is_odd = low is not None and high is not None and low == -high
    is_homogeneous = low in (None, 0) and high in (None, 0)
    return analysis.apply_powers(x, (1 if is_odd else None, 1 if is_homogeneous else None))


@_rule("_to_copy")
def _convert(analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, **_kwargs: Any) -> TensorAxes:
    """Convert to another dtype; integers and bools keep neither sign nor scale."""
    is_real = node.meta["val"].is_floating_point()
    return analysis.apply_powers(x, (1, 1) if is_real else (None, None))


@_rule("add", "sub")
def _add(analysis: GraphAnalysis, node: fx.Node, a: Any, b: Any, **_kwargs: Any) -> TensorAxes:
    """Add terms of the same sign and scale. A number other than 0 makes them trivial."""
    if not isinstance(a, list):
        a, b = b, a
    if not isinstance(b, list):
        return analysis.apply_powers(a, (1, 1) if b == 0 else (None, None))
    return analysis.combine(len(output_shape(node)), [a, b], (SAME, SAME))


@_rule("mul")
def _multiply(analysis: GraphAnalysis, node: fx.Node, a: Any, b: Any, power: int = 1) -> TensorAxes:
    """Multiply signs and scales of the factors."""
    if not isinstance(a, list):
        return analysis.apply_powers(b, (power, power))
    if not isinstance(b, list):
        return analysis.apply_powers(a, (1, 1))
    return analysis.combine(len(output_shape(node)), [a, b], (SUM, SUM), [1, power])


@_rule("div")
def _divide(
    analysis: GraphAnalysis, node: fx.Node, a: Any, b: Any, *, rounding_mode: str | None = None
) -> TensorAxes | None:
    """Divide signs and scales."""
    if rounding_mode is not None:
        return _compare(analysis, node, a, b)
    return _multiply(analysis, node, a, b, -1)


@_rule("pow")
def _power(analysis: GraphAnalysis, node: fx.Node, a: Any, p: Any) -> TensorAxes | None:
    """Raise the sign to an integer power, and the scale to any power."""
    if isinstance(p, list) or not isinstance(a, list):
        return _compare(analysis, node, a, p)
    return analysis.apply_powers(a, (int(p) if p == int(p) else None, Fraction(p)))


@_rule("logical_and", "logical_or", "logical_xor", "eq", "ne", "lt", "gt", "le", "ge", "fmod")
@_rule("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift")
@_rule("maximum", "minimum", "remainder", "floor_divide", "atan2", "hypot")
def _compare(analysis: GraphAnalysis, node: fx.Node, *arguments: Any) -> TensorAxes:
    """Compare or combine values of trivial sign; a maximum or minimum keeps the common scale."""
    tensors = [a for a in arguments if isinstance(a, list)]
    if operation(node) in ("eq", "ne") and arguments[1] == 0:
        return analysis.apply_powers(tensors[0], (0, 0))
    if operation(node) in ("maximum", "minimum"):
        mode = SAME
    else:
        mode = TRIVIAL
    return analysis.combine(len(output_shape(node)), tensors, (TRIVIAL, mode))


@_rule("where")
def _where(
    analysis: GraphAnalysis, node: fx.Node, condition: TensorAxes, *values: Any
) -> TensorAxes:
    """Select between values of the same sign and scale, by a condition that keeps its value.

    A single zero may have any sign.
    """
    analysis.require_trivial(condition)
    n_axes = len(output_shape(node))
    nonzero = [v for v, n in zip(values, node.args[1:], strict=True) if not is_zero(n)]
    condition = analysis.apply_powers(condition, (0, 0))
    if not nonzero:
        return condition
    selected = analysis.combine(n_axes, nonzero, (SAME, SAME))
    return analysis.combine(n_axes, [condition, selected], (SUM, SUM))


def is_zero(node: Any) -> bool:
    """Return whether a node is the constant zero, a tensor without axes."""
    is_constant = isinstance(node, fx.Node) and not node.all_input_nodes
    if not is_constant or node.op != "call_function" or len(output_shape(node)):
        return False
    if operation(node) == "scalar_tensor":
        return bool(node.args[0] == 0)
    return node.args[1:2] == (0,)


@_rule("mm")
def _matrix_product(
    analysis: GraphAnalysis, _node: fx.Node, a: TensorAxes, b: TensorAxes
) -> TensorAxes:
    """Sum over the columns of ``a`` and the rows of ``b``."""
    analysis.contract(a[1], b[0], [], [a[0], b[1]])
    return [a[0], b[1]]


@_rule("addmm")
def _affine(
    analysis: GraphAnalysis, node: fx.Node, c: TensorAxes, a: TensorAxes, b: TensorAxes
) -> TensorAxes:
    """Add a matrix product and a bias."""
    return _add(analysis, node, c, _matrix_product(analysis, node, a, b))


@_rule("bmm")
def _batch_product(
    analysis: GraphAnalysis, _node: fx.Node, a: TensorAxes, b: TensorAxes
) -> TensorAxes:
    """Multiply matrices for each batch position."""
    (batch, *_) = analysis.combine(3, [[a[0], ONE, ONE], [b[0], ONE, ONE]], (SUM, SUM))
    analysis.contract(a[2], b[1], [batch], [a[1], b[2]])
    return [batch, a[1], b[2]]


@_rule("convolution")
def _convolution(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    w: TensorAxes,
    b: TensorAxes | None,
    *settings: Any,
) -> TensorAxes | None:
    """Sum over the channels of each group, for all positions in space.

    Positions in kernels are fixed, and so are those in space, except along axes with a kernel of
    one position.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x, w, b : TensorAxes
        Axes of the argument, the kernels and the bias.
    *settings : object
        Stride, padding, dilation, whether the convolution is transposed, output padding, groups.
    """
    is_transposed = settings[3]
    groups = settings[5]
    space = _convolve_space(analysis, node, x, settings)
    analysis.fix(w, range(2, len(w)))
    rows, columns = (w[1], w[0]) if is_transposed else (w[0], w[1])
    if groups == 1:
        analysis.contract(x[1], columns, [], [x[0], rows, *space])
        channels = rows
    else:
        n = output_shape(node.args[0])[1]
        m = output_shape(node)[1]
        group, inner = analysis.reshape([x[1]], [n], [groups, n // groups])
        out = rows
        if is_transposed:
            same_group, columns = analysis.reshape([columns], [n], [groups, n // groups])
        else:
            same_group, out = analysis.reshape([rows], [m], [groups, m // groups])
        (group,) = analysis.combine(1, [[group], [same_group]], (SUM, SUM))
        analysis.contract(inner, columns, [group], [x[0], out, *space])
        (channels,) = analysis.reshape([group, out], [groups, m // groups], [m])
    result = [x[0], channels, *space]
    if b is not None:
        bias = [*b, *[ONE] * len(space)]
        return analysis.combine(len(result), [result, bias], (SAME, SAME))
    return result


def _convolve_space(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, settings: Sequence[Any]
) -> TensorAxes:
    """Return the axes of space behind a convolution; kernels of one position leave them free.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the convolution.
    x : TensorAxes
        Axes of the argument.
    settings : sequence
        Settings of the convolution.
    """
    stride, padding, _, _, output_padding, _ = settings
    kernel = output_shape(node.args[1])[2:]
    sizes = output_shape(node)[2:]
    space = []
    for i, n in enumerate(kernel):
        extra = padding[i % len(padding)] or output_padding[i % len(output_padding)]
        if n == 1 and stride[i % len(stride)] == 1 and not extra:
            space.append(x[2 + i])
            continue
        analysis.fix_and_record(x, [2 + i], "over an axis of units")
        space.append(analysis.fixed_axis(sizes[i]))
    return space


# Reductions: powers of the sign and the scale of what is reduced. On the reduced axes themselves
# signs and scales must be trivial, because all positions are added or compared.
_REDUCTIONS: dict[str, Powers] = {
    "sum": (1, 1), "mean": (1, 1), "amax": (None, 1), "amin": (None, 1), "any": (None, None),
    "all": (None, None),
}  # fmt: skip


def reduce(
    analysis: GraphAnalysis,
    x: TensorAxes,
    dims: Any,
    keepdim: bool,
    powers: Powers,
    kinds: Sequence[int] = KINDS,
) -> TensorAxes:
    """Return the axes of a reduction.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    x : TensorAxes
        Axes of the argument.
    dims : int, sequence of int or None
        Reduced axes; None or an empty list: all.
    keepdim : bool
        Whether reduced axes stay, with one position.
    powers : tuple
        Powers of the sign and the scale.
    kinds : sequence of int, default=KINDS
        What must be trivial on the reduced axes.
    """
    if dims is None or dims == []:
        dims = range(len(x))
    reduced = [d % len(x) for d in ([dims] if isinstance(dims, int) else dims)]
    analysis.require_trivial([x[d] for d in reduced], kinds)
    result = analysis.apply_powers(x, powers)
    remaining = (i for i in range(len(x)) if keepdim or i not in reduced)
    return [ONE if i in reduced else result[i] for i in remaining]


def _make_reduction_rule(powers: Powers) -> Rule:
    """Return the rule of a reduction."""

    def rule(
        analysis: GraphAnalysis,
        _node: fx.Node,
        x: TensorAxes,
        dims: Any = None,
        keepdim: bool = False,
        **_kwargs: Any,
    ) -> TensorAxes:
        return reduce(analysis, x, dims, keepdim, powers)

    return rule


for _name, _powers in _REDUCTIONS.items():
    RULES[_name] = _make_reduction_rule(_powers)


@_rule("var", "var_mean")
def _variance(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    dims: Any = None,
    *,
    correction: Any = 1,
    keepdim: Any = 0,
) -> Any:
    """Reduce to the variance, whose sign is +1, and to the mean."""
    del correction  # a constant factor
    variance, mean = (reduce(analysis, x, dims, keepdim, powers) for powers in ((0, 2), (1, 1)))
    if isinstance(node.meta["val"], tuple | list):
        return [variance, mean]
    return variance


@_rule("_softmax", "_log_softmax")
def _softmax(
    analysis: GraphAnalysis, _node: fx.Node, x: TensorAxes, dim: int, *_args: Any
) -> TensorAxes:
    """Normalise over one axis, equally for any order of its positions."""
    analysis.mix_positions(x, [dim])
    return analysis.apply_powers(x, (None, None))


def _fix_space(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, n_leading: int, powers: Powers
) -> TensorAxes:
    """Return the axes of an operation over space, separately for all leading positions.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the argument.
    n_leading : int
        Number of leading axes, which may be permuted. All later axes are fixed.
    powers : tuple
        Powers of the sign and the scale.
    """
    analysis.fix_and_record(x, range(n_leading, len(x)), "over an axis of units")
    space = [analysis.fixed_axis(n) for n in output_shape(node)[n_leading:]]
    return [*analysis.apply_powers(x[:n_leading], powers), *space]


def _count_leading(node: fx.Node, x: TensorAxes) -> int:
    """Return how many axes of an operation over space, such as ``avg_pool2d``, aren't space."""
    (digits,) = re.findall(r"(\d)d", operation(node))
    return len(x) - int(digits)


@_rule("max_pool2d_with_indices", "max_pool3d_with_indices")
@_rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def _max_pool(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, *_args: Any
) -> list[TensorAxes]:
    """Take the maximum over space, and its position."""
    return [_fix_space(analysis, node, x, _count_leading(node, x), (None, 1))] * 2


@_rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
@_rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d")
@_rule("upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
@_rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
@_rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _average_pool(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, *_args: Any, **_kwargs: Any
) -> TensorAxes:
    """Average, pad or interpolate linearly over space."""
    return _fix_space(analysis, node, x, _count_leading(node, x), (1, 1))


@_rule("constant_pad_nd")
def _pad(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, pad: list[int], value: float = 0.0
) -> TensorAxes:
    """Concatenate constants before and behind each axis; zeros have any sign and scale."""
    sizes = output_shape(node)
    result = list(x)
    for i in range(len(pad) // 2):
        k = len(x) - 1 - i
        n_before = pad[2 * i]
        n_behind = pad[2 * i + 1]
        if n_before == n_behind == 0:
            continue
        segments = analysis.partition.resolve(x[k])
        if min(n_before, n_behind) < 0 or not analysis.partition.can_move(segments):
            analysis.fix_and_record(x, [k], "that cuts units apart")
            result[k] = analysis.fixed_axis(sizes[k])
            continue
        if value != 0:
            analysis.require_trivial(axis for j, axis in enumerate(x) if j != k)
        axis = list(segments)
        if n_before:
            axis = [*analysis.fixed_axis(n_before), *axis]
        if n_behind:
            axis = [*axis, *analysis.fixed_axis(n_behind)]
        result[k] = axis
    return result


@_rule("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze")
def _view(analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, *_args: Any) -> TensorAxes:
    """Merge axes and split them."""
    return analysis.reshape(x, output_shape(node.args[0]), output_shape(node))


@_rule("as_strided")
def _as_strided(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, *_args: Any
) -> TensorAxes | None:
    """Handle strided views that are plain reshapes of contiguous tensors."""
    argument: Any = node.args[0]
    old = argument.meta["val"]
    new = node.meta["val"]
    is_reshape = old.is_contiguous() and new.is_contiguous() and old.numel() == new.numel()
    if not is_reshape or new.storage_offset() != old.storage_offset():
        return None
    return _view(analysis, node, x)


@_rule("permute")
def _permute(
    _analysis: GraphAnalysis, _node: fx.Node, x: TensorAxes, dims: list[int]
) -> TensorAxes:
    """Reorder the axes."""
    return [x[d] for d in dims]


@_rule("expand")
def _expand(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, *_args: Any, **_kwargs: Any
) -> TensorAxes:
    """Copy along axes."""
    return expand_axes(analysis, node, x, node.args[0])


def expand_axes(analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, argument: Any) -> TensorAxes:
    """Return the axes of an argument that is copied along axes; the copies may be permuted.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation, which has the shape of the result.
    x : TensorAxes
        Axes of the argument.
    argument : fx.Node
        Node of the argument.
    """
    old = output_shape(argument)
    new = output_shape(node)
    copies = analysis.constant_axes(("expand", node), node.meta["val"], fixed=False)
    n_new = len(new) - len(old)
    is_old = (k >= n_new and old[k - n_new] == n for k, n in enumerate(new))
    return [x[k - n_new] if old_axis else copies[k] for k, old_axis in enumerate(is_old)]


@_rule("embedding")
def _embedding(
    analysis: GraphAnalysis, _node: fx.Node, w: TensorAxes, index: TensorAxes, *_args: Any
) -> TensorAxes:
    """Select rows by index, which fixes the rows."""
    analysis.fix(w, [0])
    analysis.require_trivial(index)
    return [*index, w[1]]


@_rule("cat")
def _concatenate(
    analysis: GraphAnalysis, _node: fx.Node, tensors: list[TensorAxes], dim: int = 0
) -> TensorAxes:
    """Concatenate tensors along an axis."""
    return concatenate(analysis, tensors, dim)


def concatenate(analysis: GraphAnalysis, tensors: list[TensorAxes], dim: int) -> TensorAxes:
    """Concatenate the segments of one axis; the other axes are the same.

    A tensor with one position there has an empty segment, in which nothing moves. The segments
    before and behind it stay free. If all have one position there, tensors are stacked.

    Parameters
    ----------
    analysis : GraphAnalysis
        Analysis with the partition of all axes.
    tensors : list of TensorAxes
        Axes of each tensor.
    dim : int
        Axis along which they are concatenated.
    """
    dim = dim % len(tensors[0])
    if len(tensors) > 1 and all(analysis.partition.resolve(x[dim]) == ONE for x in tensors):
        others = [[axis for i, axis in enumerate(x) if i != dim] for x in tensors]
        index, result = analysis.stack(others)
        return [*result[:dim], index, *result[dim:]]
    others = [[ONE if i == dim else axis for i, axis in enumerate(x)] for x in tensors]
    result = analysis.combine(len(tensors[0]), others, (SAME, SAME))
    resolve = analysis.partition.resolve
    result[dim] = [segment for x in tensors for segment in resolve(x[dim])]
    return result


@_rule("select")
def _select(analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int, i: int) -> TensorAxes:
    """Select one position of an axis, which is fixed.

    Blocks on the other axes that this axis may control become families over its positions.
    """
    partition = analysis.partition
    dim = dim % len(x)
    axis = partition.resolve(x[dim])
    others = [partition.resolve(other) for j, other in enumerate(x) if j != dim]
    if len(axis) > 1 and _is_single_segment(analysis, axis, i % partition.length(axis)):
        return others
    factors = [f for s in axis for f in s]
    could_move = partition.can_move(axis)
    blocks = analysis.require_trivial([axis])
    for block in blocks:
        partition.fix(block)
    if len(factors) != 1:
        if could_move:
            partition.losses.add(f"{operation(node)} of one place of an axis")
        partition.remove_controllers(others, blocks)
        return others
    (index_block,) = blocks
    i %= partition.size[index_block]
    result = [
        [[partition.select_member(f, index_block, i) for f in s] for s in axis] for axis in others
    ]
    is_family = any(
        partition.families[f.block] is not None for axis in others for s in axis for f in s
    )
    if could_move and not is_family:
        partition.losses.add(f"{operation(node)} of one place of an axis")
    return result


def _is_single_segment(analysis: GraphAnalysis, axis: Axis, i: int) -> bool:
    """Return whether position ``i`` is a segment by itself, in which nothing moves."""
    start = 0
    for segment in axis:
        n = analysis.partition.length([segment])
        if start <= i < start + n:
            return n == 1
        start += n
    return False


@_rule("slice")
def _slice(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    dim: int = 0,
    start: Any = 0,
    end: Any = None,
    step: int = 1,
) -> TensorAxes:
    """Keep some segments of an axis, which is split where the slice begins and ends.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the argument.
    dim : int, default=0
        The sliced axis.
    start, end, step : int or None
        As in ``x[start:end:step]``.
    """
    partition = analysis.partition
    dim = dim % len(x)
    n = max(partition.length(partition.resolve(x[dim])), 1)
    start, end, _ = slice(start, end).indices(n)
    if (start, end, step) == (0, n, 1):
        return list(x)
    if end - start == 1:  # decompositions of unbind contain such slices
        others = _select(analysis, node, x, dim, start)
        return [*others[:dim], ONE, *others[dim:]]
    if step > 1 and n % step == 0 and start < step and end > n - step + start:
        # One position of each row of a matrix with n / step rows.
        sizes = list(output_shape(node.args[0]))
        rows = [*sizes[:dim], n // step, step, *sizes[dim + 1 :]]
        return _select(analysis, node, analysis.reshape(x, sizes, rows), dim + 1, start)
    result = list(x)
    segments = None
    if step == 1:
        segments = _find_segments(analysis, x[dim], start, end)
    if segments is None:
        analysis.fix_and_record(x, [dim], "that cuts units apart")
        segments = analysis.fixed_axis(len(range(start, end, step)))
    result[dim] = segments
    return result


def _find_segments(analysis: GraphAnalysis, axis: Axis, start: int, end: int) -> Axis | None:
    """Return the segments between two positions; None if the axis can't be split there.

    Parameters
    ----------
    analysis : GraphAnalysis
        Analysis of the traced module.
    axis : Axis
        Axis that is split.
    start, end : int
        Positions of the segment's ends.
    """
    partition = analysis.partition
    try:
        for edge in (start, end):
            position = 0
            for segment in partition.resolve(axis):
                n = partition.length([segment])
                if position < edge < position + n:
                    partition.split_segment(segment, edge - position)
                position += n
    except ConflictError:
        return None
    segments = partition.resolve(axis)
    ends = itertools.accumulate(partition.length([s]) for s in segments)
    return [segment for segment, e in zip(segments, ends, strict=True) if start < e <= end]


@_rule("split_with_sizes")
def _split(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, sizes: list[int], dim: int = 0
) -> list[TensorAxes]:
    """Slice an axis into consecutive pieces."""
    ends = [0, *itertools.accumulate(sizes)]
    if max(sizes) > 1:  # split first, so that pieces of one position are separate segments
        for start, end in itertools.pairwise(ends):
            _find_segments(analysis, x[dim % len(x)], start, end)
    return [_slice(analysis, node, x, dim, a, b) for a, b in itertools.pairwise(ends)]


@_rule("slice_scatter")
def _replace_slice(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    y: TensorAxes,
    dim: int = 0,
    start: Any = 0,
    end: Any = None,
    step: int = 1,
) -> TensorAxes | None:
    """Concatenate the segments before a slice, its new content, and the segments behind it.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x, y : TensorAxes
        Axes of the tensor and of the new content.
    dim : int, default=0
        The sliced axis.
    start, end, step : int or None
        As in ``x[start:end:step]``.
    """
    del end  # follows from the size of y
    sizes = list(output_shape(node))
    n = sizes[dim]
    m = output_shape(node.args[1])[dim]
    start = start or 0
    if step > 1:
        if m * step != n or start >= step:
            return None
        # The columns of a matrix with n / step rows, one of which is new.
        rows = [*sizes[:dim], m, step, *sizes[dim + 1 :]]
        matrix = analysis.reshape(x, sizes, rows)
        columns = [_select(analysis, node, matrix, dim + 1, i) for i in range(step) if i != start]
        columns.insert(start, y)
        stacked = [[*column[: dim + 1], ONE, *column[dim + 1 :]] for column in columns]
        return analysis.reshape(concatenate(analysis, stacked, dim + 1), rows, sizes)
    pieces = [y]
    if start:
        pieces.insert(0, _slice(analysis, node, x, dim, 0, start))
    if start + m < n:
        pieces.append(_slice(analysis, node, x, dim, start + m, n))
    return concatenate(analysis, pieces, dim)
