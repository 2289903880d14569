"""Rules of ATen operations that select, move or order entries, and of distances and transforms.

They complete the table in `skbayes_sym.symmetry.modules.rules`, whose docstring tells how to add a
rule. Most of them fix the axis along which entries are selected, and leave the other axes free.
"""

from collections.abc import Iterable
from typing import Any

from torch import fx

from skbayes_sym.symmetry.modules.axis_partition import (
    ONE,
    SCALE,
    Factor,
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
)
from skbayes_sym.symmetry.modules.rules import expand_axes, reduce, rule_decorator

SELECTION_RULES: dict[str, Rule] = {}
_rule = rule_decorator(SELECTION_RULES)


def _fix_axes(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    dims: Iterable[int],
    powers: Powers = (1, 1),
) -> TensorAxes:
    """Return the axes of a function along fixed axes, separately at all other positions.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the argument.
    dims : iterable of int
        The fixed axes.
    powers : tuple, default=(1, 1)
        Powers of the sign and the scale.
    """
    if len(x):
        selected = [d % len(x) for d in dims]
    else:
        selected = []
    analysis.fix_and_record(x, selected, "along an axis of units")
    sizes = output_shape(node)
    result = analysis.apply_powers(x, powers)
    return [
        analysis.fixed_axis(sizes[k]) if k in selected else axis for k, axis in enumerate(result)
    ]


def _is_used(node: fx.Node, i: int) -> bool:
    """Return whether the i-th of several results of a node is used."""
    return any(user.args[1] == i and user.users for user in node.users)


# Entries that change their places


@_rule("flip")
def _flip(analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dims: list[int]) -> TensorAxes:
    """Reverse the order along fixed axes."""
    return _fix_axes(analysis, node, x, dims)


@_rule("roll")
def _roll(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, _shifts: Any, dims: Any = ()
) -> TensorAxes:
    """Shift along fixed axes; without axes, along the flattened tensor."""
    dims = [dims] if isinstance(dims, int) else list(dims)
    return _fix_axes(analysis, node, x, dims or range(len(x)))


@_rule("cumsum")
def _accumulate_sum(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int, **_kwargs: Any
) -> TensorAxes:
    """Sum all entries up to each place of an axis."""
    return _fix_axes(analysis, node, x, [dim])


@_rule("cumprod", "logcumsumexp")
def _accumulate(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int, **_kwargs: Any
) -> TensorAxes:
    """Combine all entries up to each place of an axis; neither odd nor even."""
    return _fix_axes(analysis, node, x, [dim], (None, None))


@_rule("cummax", "cummin")
def _accumulate_extreme(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int
) -> list[TensorAxes]:
    """Take the extreme of all entries up to each place of an axis, and its place."""
    values = _fix_axes(analysis, node, x, [dim], (None, 1))
    return [values, analysis.apply_powers(values, (0, 0))]


@_rule("repeat")
def _repeat(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, repeats: list[int]
) -> TensorAxes | None:
    """Repeat along axes; the copies may be exchanged unless the axis is a concatenation."""
    resolve = analysis.partition.resolve
    n_new = len(repeats) - len(x)
    if n_new < 0:
        return None
    copies = analysis.constant_axes(("repeat", node), node.meta["val"], fixed=False)
    result: TensorAxes = []
    for k, n in enumerate(repeats):
        if k >= n_new:
            axis = resolve(x[k - n_new])
        else:
            axis = ONE
        if n == 1:
            result.append(axis)
        elif axis == ONE:
            result.append(copies[k])
        elif len(axis) > 1:
            result.append(axis * n)
        else:
            block = analysis.constant_block(("copies", node, k), n)
            result.append([[Factor(block), *axis[0]]])
    return result


@_rule("copy")
def _copy(
    analysis: GraphAnalysis, node: fx.Node, _x: TensorAxes, source: TensorAxes, *_args: Any
) -> TensorAxes:
    """Overwrite a tensor, so that the result has the axes of the source."""
    return expand_axes(analysis, node, source, node.args[1])


@_rule("select_scatter")
def _replace_position(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, y: TensorAxes, dim: int, _i: int
) -> TensorAxes:
    """Overwrite one place of a fixed axis.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x, y : TensorAxes
        Axes of the tensor and of the new content.
    dim : int
        The fixed axis.
    """
    dim = dim % len(x)
    x = _fix_axes(analysis, node, x, [dim])
    y = [*y[:dim], ONE, *y[dim:]]
    rest = [ONE if k == dim else axis for k, axis in enumerate(x)]
    result = analysis.combine(len(x), [rest, y], (SAME, SAME))
    result[dim] = x[dim]
    return result


@_rule("unfold")
def _sliding_windows(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int, *_args: Any
) -> TensorAxes:
    """Cut windows from a fixed axis, whose places are a new last axis."""
    windows = _fix_axes(analysis, node, x, [dim])
    return [*windows, analysis.fixed_axis(output_shape(node)[-1])]


@_rule("im2col")
def _patches(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, kernel: list[int], *_args: Any
) -> TensorAxes:
    """Cut patches from images: (N, C, H, W) -> (N, C x places of a patch, patches)."""
    analysis.fix_and_record(x, [-2, -1], "over an axis of units")
    n_channels = output_shape(node.args[0])[-3]
    n_places = kernel[0] * kernel[1]
    places = analysis.fixed_axis(n_places)
    rows = [n_channels * n_places]
    (channels,) = analysis.reshape([x[-3], places], [n_channels, n_places], rows)
    return [*x[:-3], channels, analysis.fixed_axis(output_shape(node)[-1])]


@_rule("diagonal")
def _diagonal(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    offset: int = 0,
    first: int = 0,
    second: int = 1,
) -> TensorAxes:
    """Take the diagonal of two axes, which becomes the last axis.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the argument.
    offset : int, default=0
        Distance from the main diagonal.
    first, second : int, default=(0, 1)
        The two axes.
    """
    sizes = output_shape(node.args[0])
    first = first % len(x)
    second = second % len(x)
    rest = [axis for k, axis in enumerate(x) if k not in (first, second)]
    if offset == 0 and sizes[first] == sizes[second]:
        diagonal = analysis.combine(1, [[x[first]], [x[second]]], (SUM, SUM))
        return [*rest, *diagonal]
    analysis.fix_and_record(x, [first, second], "that isn't the main one")
    return [*rest, analysis.fixed_axis(output_shape(node)[-1])]


# Entries selected by indices


@_rule("index", "_unsafe_index")
def _index(analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, indices: list[Any]) -> TensorAxes:
    """Select positions by index tensors, which fixes the indexed axes.

    The axes of the indices replace the indexed axes if these are neighbours, and come first
    otherwise.
    """
    indexed = [k for k, index in enumerate(indices) if index is not None]
    table: Any = node.args[0]
    if table.op == "placeholder":  # its rows are no units
        analysis.fix(x, indexed)
    analysis.fix_and_record(x, indexed, "of chosen places")
    for k in indexed:
        analysis.fix(indices[k])
    rest = [axis for k, axis in enumerate(x) if k not in indexed]
    n_new = len(output_shape(node)) - len(rest)
    are_neighbours = indexed == list(range(indexed[0], indexed[-1] + 1))
    start = indexed[0] if are_neighbours else 0
    new = [analysis.fixed_axis(n) for n in output_shape(node)[start : start + n_new]]
    return [*rest[:start], *new, *rest[start:]]


@_rule("index_select")
def _index_select(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int, index: TensorAxes
) -> TensorAxes:
    """Select positions of one axis."""
    analysis.fix(index)
    return _fix_axes(analysis, node, x, [dim])


@_rule("index_put", "_unsafe_index_put")
def _index_put(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    indices: list[Any],
    values: TensorAxes,
    accumulate: bool = False,
) -> TensorAxes | None:
    """Write values at positions that are given by index tensors, or add them there.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the tensor.
    indices : list of TensorAxes or None
        The index of each axis.
    values : TensorAxes
        Axes of the values.
    accumulate : bool, default=False
        Whether values are added, which needs the same symmetry.
    """
    del accumulate
    indexed = [k for k, index in enumerate(indices) if index is not None]
    analysis.fix_and_record(x, indexed, "of chosen places")
    for k in indexed:
        analysis.fix(indices[k])
    n_rest = len(x) - len(indexed)
    are_neighbours = indexed == list(range(indexed[0], indexed[-1] + 1))
    if not are_neighbours or len(values) < n_rest:
        return None

    # The axes of the indices are where the first indexed axis was.
    index_nodes: Any = node.args[1]
    n_index_axes = max(len(output_shape(index)) for index in index_nodes if index is not None)
    n_selected = n_rest + n_index_axes
    values = [ONE] * (n_selected - len(values)) + values
    at_index = range(indexed[0], indexed[0] + n_index_axes)
    analysis.fix_and_record(values, at_index, "of chosen places")
    rest_of_values = [axis for k, axis in enumerate(values) if k not in at_index]
    rest = [axis for k, axis in enumerate(x) if k not in indexed]
    combined = iter(analysis.combine(n_rest, [rest, rest_of_values], (SAME, SAME)))
    sizes = output_shape(node)
    return [
        analysis.fixed_axis(sizes[k]) if k in indexed else next(combined) for k in range(len(x))
    ]


@_rule("gather")
def _gather(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int, index: TensorAxes, **_kw: Any
) -> TensorAxes | None:
    """Select positions of one axis, at each position of the others by a separate index."""
    return _select_along(analysis, node, dim, [x], index, (2,))


@_rule("scatter_add", "scatter")
def _scatter(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int, index: TensorAxes, source: Any
) -> TensorAxes | None:
    """Write on, or add to, positions of one axis that an index tensor selects.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the tensor.
    dim : int
        The axis on which positions are selected.
    index : TensorAxes
        Axes of the index.
    source : TensorAxes or float
        Axes of the values, or a single value.
    """
    if isinstance(source, list):
        return _select_along(analysis, node, dim, [x, source], index, (2, 3))
    if source != 0:
        analysis.require_trivial(x)
    return _select_along(analysis, node, dim, [x], index, (2,))


@_rule("scatter_reduce")
def _scatter_reduce(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    dim: int,
    index: TensorAxes,
    source: TensorAxes,
    reduce: str,
    **_kwargs: Any,
) -> TensorAxes | None:
    """Combine values at positions of one axis that an index tensor selects.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the tensor.
    dim : int
        The axis on which positions are selected.
    index, source : TensorAxes
        Axes of the index and of the values.
    reduce : {"sum", "mean", "prod", "amax", "amin"}
        How values are combined.
    """
    powers: Powers = {"sum": (1, 1), "mean": (1, 1), "prod": (None, None)}.get(reduce, (None, 1))
    arguments = [analysis.apply_powers(x, powers), analysis.apply_powers(source, powers)]
    return _select_along(analysis, node, dim, arguments, index, (2, 3))


def _select_along(
    analysis: GraphAnalysis,
    node: fx.Node,
    dim: int,
    arguments: list[TensorAxes],
    index: TensorAxes,
    places: tuple[int, ...],
) -> TensorAxes | None:
    """Return the axes of an operation whose index has the same axes as the tensors.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    dim : int
        The axis on which positions are selected, and which is fixed.
    arguments : list of TensorAxes
        Axes of the tensors.
    index : TensorAxes
        Axes of the index.
    places : tuple of int
        Where the index and further tensors are among the arguments of the node.

    Returns
    -------
    TensorAxes or None
        None if another axis of the index is shorter than that of the tensor.
    """
    sizes = output_shape(node)
    if not len(sizes):
        return None
    dim = dim % len(sizes)
    compared = [node.args[0], *(node.args[k] for k in places)]
    for argument in compared:
        shape = output_shape(argument)
        if any(n != m for k, (n, m) in enumerate(zip(shape, sizes, strict=True)) if k != dim):
            return None
    analysis.require_trivial(index)
    for axes in (*arguments, index):
        analysis.fix_and_record(axes, [dim], "along an axis of units")
    others = [[ONE if k == dim else axis for k, axis in enumerate(axes)] for axes in arguments]
    values = analysis.combine(len(sizes), others, (SAME, SAME))
    selector = [ONE if k == dim else axis for k, axis in enumerate(index)]
    selector = analysis.apply_powers(selector, (0, 0))
    result = analysis.combine(len(sizes), [values, selector], (SUM, SUM))
    result[dim] = analysis.fixed_axis(sizes[dim])
    return result


@_rule("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    analysis: GraphAnalysis,
    node: fx.Node,
    table: TensorAxes,
    index: TensorAxes,
    offsets: TensorAxes,
    _scale_by_frequency: bool = False,
    mode: int = 0,
    *others: Any,
) -> list[TensorAxes]:
    """Combine selected rows of a table: sums, means (mode 1) or maxima (mode 2).

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    table, index, offsets : TensorAxes
        Axes of the arguments.
    mode : {0, 1, 2}, default=0
        How rows are combined.
    *others : object
        Further arguments, such as weights of the rows.
    """
    analysis.fix(table, [0])
    for axes in (index, offsets, *(other for other in others if isinstance(other, list))):
        analysis.fix(axes)
    features = analysis.apply_powers([table[1]], (1, 1) if mode < 2 else (None, 1))
    bags = [analysis.fixed_axis(output_shape(node)[0]), *features]
    sizes = [value.shape for value in node.meta["val"][1:]]
    return [bags, *([analysis.fixed_axis(n) for n in shape] for shape in sizes)]


# Order


@_rule("sort", "topk", "max", "min", "median", "nanmedian", "kthvalue", "mode")
def _order(analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, *args: Any, **kwargs: Any) -> Any:
    """Order the entries along an axis, and return all or some of them with their places.

    The values don't depend on the order of the places, but what uses the places does.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the argument.
    *args, **kwargs : object
        Further arguments of the operation.
    """
    if not isinstance(node.meta["val"], tuple | list):  # over all axes
        return reduce(analysis, x, None, False, (None, 1))
    name = operation(node)
    # The number of entries, or the index of one, comes before the axis.
    n_first = int(name in ("topk", "kthvalue"))
    is_reduced = name not in ("sort", "topk")
    if len(args) > n_first:
        dim = args[n_first]
    else:
        dim = kwargs.get("dim", -1)
    if isinstance(dim, bool) or not len(x):  # an overload with other arguments
        return None
    dim = dim % len(x)
    keepdim = len(output_shape(node)) == len(x)
    if _is_used(node, 1):
        analysis.fix_and_record(x, [dim], "with the places along an axis of units")
    values = reduce(analysis, x, [dim], keepdim, (None, 1))
    analysis.mix_positions(x, [dim])
    if not is_reduced:
        values[dim] = analysis.fixed_axis(output_shape(node)[dim])
    return [values, analysis.apply_powers(values, (0, 0))]


@_rule("argmax", "argmin")
def _find_extreme(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: Any = None, *_args: Any
) -> TensorAxes:
    """Return the place of the extreme along an axis, by default of the flattened tensor."""
    dims = range(len(x)) if dim is None else [dim % len(x)]
    analysis.fix_and_record(x, dims, "along an axis of units")
    keepdim = len(output_shape(node)) == len(x)
    places = reduce(analysis, x, list(dims), keepdim, (None, None))
    return places


@_rule("argsort")
def _find_order(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dim: int = -1, *_args: Any
) -> TensorAxes:
    """Return the places in increasing order along an axis."""
    return _fix_axes(analysis, node, x, [dim], (None, None))


# Reductions


@_rule("prod")
def _product(
    analysis: GraphAnalysis,
    node: fx.Node,
    x: TensorAxes,
    dim: int | None = None,
    keepdim: bool = False,
    **_kwargs: Any,
) -> TensorAxes:
    """Multiply all entries along an axis; signs and scales are raised to their number.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    node : fx.Node
        Node of the operation.
    x : TensorAxes
        Axes of the argument.
    dim : int or None, default=None
        The axis; None: all.
    keepdim : bool, default=False
        Whether the axis stays, with one position.
    """
    if dim is None:
        return reduce(analysis, x, None, keepdim, (None, None))
    n = output_shape(node.args[0])[dim]
    return reduce(analysis, x, [dim], keepdim, (n, n))


@_rule("linalg_vector_norm")
def _norm(
    analysis: GraphAnalysis,
    _node: fx.Node,
    x: TensorAxes,
    order: float = 2.0,
    dims: Any = None,
    keepdim: bool = False,
    **_kwargs: Any,
) -> TensorAxes:
    """Compute a norm over axes: even in every entry.

    Parameters
    ----------
    analysis : GraphAnalysis
        The analysis.
    x : TensorAxes
        Axes of the argument.
    order : float, default=2.0
        Order of the norm; 0 counts the entries that aren't zero.
    dims : int, sequence of int or None, default=None
        Reduced axes; None: all.
    keepdim : bool, default=False
        Whether reduced axes stay, with one position.
    """
    return reduce(analysis, x, dims, keepdim, (0, 1 if order != 0 else None), (SCALE,))


@_rule("_cdist_forward")
def _distances(
    analysis: GraphAnalysis, node: fx.Node, a: TensorAxes, b: TensorAxes, *_args: Any
) -> TensorAxes:
    """Compute distances of all rows of one matrix from those of another.

    The units of both may be exchanged and change sign together.
    """
    n_axes = len(output_shape(node))
    analysis.require_trivial([a[-1], b[-1]], (SCALE,))
    analysis.require_trivial([*a[:-1], *b[:-1]])
    batch = analysis.combine(n_axes - 2, [a[:-2], b[:-2]], (TRIVIAL, TRIVIAL))
    analysis.contract(a[-1], b[-1], batch, [a[-2], b[-2]])
    return analysis.apply_powers([*batch, a[-2], b[-2]], (0, 0))


@_rule("_pdist_forward")
def _pair_distances(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, *_args: Any
) -> TensorAxes:
    """Compute distances of all pairs of rows."""
    analysis.fix_and_record(x, [0], "along an axis of units")
    reduce(analysis, x, [1], False, (0, None), (SCALE,))
    analysis.mix_positions(x, [1])
    return [analysis.fixed_axis(output_shape(node)[0])]


# Transforms


@_rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def _fourier(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, dims: list[int], *_args: Any
) -> TensorAxes:
    """Transform fixed axes linearly."""
    return _fix_axes(analysis, node, x, dims)


@_rule("view_as_real")
def _split_complex(analysis: GraphAnalysis, _node: fx.Node, x: TensorAxes) -> TensorAxes:
    """Put real and imaginary parts on a new last axis."""
    return [*x, analysis.fixed_axis(2)]


@_rule("view_as_complex")
def _join_complex(analysis: GraphAnalysis, _node: fx.Node, x: TensorAxes) -> TensorAxes:
    """Take real and imaginary parts from the last axis."""
    analysis.fix(x, [-1])
    return x[:-1]


@_rule("grid_sampler_2d", "grid_sampler_3d")
def _sample_grid(
    analysis: GraphAnalysis, node: fx.Node, x: TensorAxes, grid: TensorAxes, *_args: Any
) -> TensorAxes:
    """Interpolate images linearly at points of space, separately for each channel."""
    analysis.fix_and_record(x, range(2, len(x)), "over an axis of units")
    analysis.fix(grid)
    batch = analysis.combine(1, [[x[0]], [grid[0]]], (SUM, SUM))
    return [*batch, x[1], *(analysis.fixed_axis(n) for n in output_shape(node)[2:])]
