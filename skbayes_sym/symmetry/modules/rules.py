"""Rules: what each ATen operation says about the axes of its arguments and of its result.

A rule takes the reader, the node and its arguments, labels for tensors, and returns the label of
the result (a list for several); None: it can't say, and everything that comes in is pinned. It must
say no less than what the operation needs: an equation too many costs a symmetry, one too few makes
a false one. "Sign" and "scale" below are the characters: what happens to the result where an entry
of the argument is negated or multiplied by a positive number.
"""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from torch import fx

from skbayes_sym.symmetry.modules.axis_partition import ONE, Axis, ConflictError, Label
from skbayes_sym.symmetry.modules.graph_analysis import (
    SAME,
    SUM,
    TRIVIAL,
    Powers,
    Reader,
    Rule,
    operation,
    output_shape,
)  # fmt: skip

RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


# Powers of the sign and of the scale. Odd functions keep the sign, even ones lose it, positively
# homogeneous ones keep the scale; for all others it must be trivial.
_ENTRYWISE: dict[str, Powers] = {
    "clone alias detach lift_fresh_copy neg contiguous": (1, 1),
    "tanh sin asinh atan erf tan asin sinh": (1, None),
    "cos cosh": (0, None),
    "abs": (0, 1),
    "sign": (1, 0),
    "relu leaky_relu": (None, 1),
    "reciprocal": (1, -1),
    "sqrt": (None, Fraction(1, 2)),
    "rsqrt": (None, Fraction(-1, 2)),
    "sigmoid gelu silu exp log log1p expm1 softplus elu hardswish hardsigmoid hardtanh clamp mish "
    "celu selu erfc log_sigmoid logical_not bitwise_not isnan isinf": (None, None),
}


def _entrywise(powers: Powers) -> Rule:
    def rule(r: Reader, node: fx.Node, x: Label, *rest: Any, **more: Any) -> Any:
        is_one = not any(isinstance(other, list) for other in (*rest, *more.values()))
        return r.raised(x, powers) if is_one else None

    return rule


for _names, _powers in _ENTRYWISE.items():
    RULES.update(dict.fromkeys(_names.split(), _entrywise(_powers)))


@_rule("_to_copy")
def _convert(r: Reader, node: fx.Node, x: Label, **more: Any) -> Any:
    """Conversion to another dtype: to whole numbers or bools nothing is kept."""
    is_real = node.meta["val"].is_floating_point()
    return r.raised(x, (1, 1) if is_real else (None, None))


@_rule("add", "sub")
def _add(r: Reader, node: fx.Node, a: Label, b: Any, **more: Any) -> Any:
    """Terms have the same sign and scale; with a number other than 0, none."""
    if not isinstance(b, list):
        return r.raised(a, (1, 1) if b == 0 else (None, None))
    return r.pointwise(len(output_shape(node)), [a, b], (SAME, SAME))


@_rule("mul")
def _multiply(r: Reader, node: fx.Node, a: Label, b: Any, power: int = 1) -> Any:
    """Signs and scales of factors are multiplied."""
    if not isinstance(b, list):
        return r.raised(a, (1, 1))
    return r.pointwise(len(output_shape(node)), [a, b], (SUM, SUM), [1, power])


RULES["div"] = lambda r, node, a, b: _multiply(r, node, a, b, -1)


@_rule("pow")
def _power(r: Reader, node: fx.Node, a: Any, p: Any) -> Any:
    """``a^p``: the sign to a whole power, the scale to any."""
    if isinstance(p, list) or not isinstance(a, list):
        return None
    return r.raised(a, (int(p) if p == int(p) else None, Fraction(p)))


@_rule("logical_and", "logical_or", "bitwise_and", "bitwise_or", "eq", "ne", "lt", "gt", "le", "ge")
@_rule("maximum", "minimum")
def _compare(r: Reader, node: fx.Node, *arguments: Any) -> Any:
    """Compared numbers have no sign, and for the larger or smaller one the same scale."""
    labels = [a for a in arguments if isinstance(a, list)]
    mode = SAME if operation(node) in ("maximum", "minimum") else TRIVIAL
    return r.pointwise(len(output_shape(node)), labels, (TRIVIAL, mode))


@_rule("where")
def _where(r: Reader, node: fx.Node, condition: Label, *chosen: Any) -> Any:
    r.trivial(condition)
    labels = [r.raised(condition, (0, 0)), *[c for c in chosen if isinstance(c, list)]]
    return r.pointwise(len(output_shape(node)), labels, (TRIVIAL, TRIVIAL))


@_rule("mm")
def _matrix_product(r: Reader, node: fx.Node, a: Label, b: Label) -> Any:
    r.contract(a[1], b[0], [], [a[0], b[1]])
    return [a[0], b[1]]


RULES["addmm"] = lambda r, node, c, a, b: _add(r, node, c, _matrix_product(r, node, a, b))


@_rule("bmm")
def _batch_product(r: Reader, node: fx.Node, a: Label, b: Label) -> Any:
    (batch, *_) = r.pointwise(3, [[a[0], ONE, ONE], [b[0], ONE, ONE]], (SUM, SUM))
    r.contract(a[2], b[1], [batch], [a[1], b[2]])
    return [batch, a[1], b[2]]


@_rule("convolution")
def _convolution(r: Reader, node: fx.Node, x: Label, w: Label, b: Label | None, *more: Any) -> Any:
    """A product over channels, by group; kernels and space stay in place."""
    is_transposed = more[3]
    groups = more[5]
    if is_transposed and groups > 1:
        return None
    r.pin(x, range(2, len(x)))
    r.pin(w, range(2, len(w)))
    rows, columns = (w[1], w[0]) if is_transposed else (w[0], w[1])
    if groups == 1:
        r.contract(x[1], columns, [], [x[0], rows])
        axis = rows
    else:
        length = r.atoms.length
        resolve = r.atoms.resolve
        n = length(resolve(x[1]))
        m = length(resolve(rows))
        group, inner = r.reshaped([x[1]], [n], [groups, n // groups])
        same_group, out = r.reshaped([rows], [m], [groups, m // groups])
        (group,) = r.pointwise(1, [[group], [same_group]], (SUM, SUM))
        r.contract(inner, columns, [group], [x[0], out])
        (axis,) = r.reshaped([group, out], [groups, m // groups], [m])
    if b is not None:
        x0, axis = r.pointwise(2, [[x[0], axis], b], (SAME, SAME))
        x = [x0, *x[1:]]
    return [x[0], axis, *[r.pinned(n) for n in output_shape(node)[2:]]]


# Powers of what is reduced; on the reduced axes signs and scales are trivial: all are added.
_REDUCTIONS: dict[str, Powers] = {
    "sum": (1, 1), "mean": (1, 1), "amax": (None, 1), "amin": (None, 1), "any": (None, None),
    "all": (None, None),
}  # fmt: skip


def _reduced(r: Reader, x: Label, dims: Any, keepdim: bool, powers: Powers) -> Label:
    dims = range(len(x)) if dims is None or dims == [] else dims
    chosen = [d % len(x) for d in ([dims] if isinstance(dims, int) else dims)]
    r.trivial([x[d] for d in chosen])
    result = r.raised(x, powers)
    kept = (i for i in range(len(x)) if keepdim or i not in chosen)
    return [ONE if i in chosen else result[i] for i in kept]


for _name, _powers in _REDUCTIONS.items():
    RULES[_name] = lambda r, node, x, dims=None, keepdim=False, powers=_powers, **more: _reduced(
        r, x, dims, keepdim, powers
    )


@_rule("var", "var_mean")
def _variance(
    r: Reader, node: fx.Node, x: Label, dims: Any = None, *, correction: Any = 1, keepdim: Any = 0
) -> Any:
    variance, mean = (_reduced(r, x, dims, keepdim, powers) for powers in ((0, 2), (1, 1)))
    return [variance, mean] if isinstance(node.meta["val"], tuple | list) else variance


@_rule("_softmax", "_log_softmax")
def _softmax(r: Reader, node: fx.Node, x: Label, dim: int, *rest: Any) -> Any:
    """The same for any order of the places; signs and scales are trivial."""
    r.mix(x, [dim])
    return r.raised(x, (None, None))


def _spatial(r: Reader, node: fx.Node, x: Label, n_kept: int, powers: Powers) -> Label:
    """Operations over space, which stays in place, apart for each of the first axes."""
    r.lose(x, range(n_kept, len(x)), "over an axis of units")
    space = [r.pinned(n) for n in output_shape(node)[n_kept:]]
    return [*r.raised(x[:n_kept], powers), *space]


RULES["max_pool2d_with_indices"] = lambda r, node, x, *rest: (
    [_spatial(r, node, x, len(x) - 2, (None, 1))] * 2
)  # fmt: skip


@_rule("constant_pad_nd")
def _pad(r: Reader, node: fx.Node, x: Label, pad: list[int], value: float = 0.0) -> Any:
    """A concatenation with constants, of zeros for any sign; space stays in place."""
    sizes = output_shape(node)
    result = list(x)
    for i in range(len(pad) // 2):
        k = len(x) - 1 - i
        before = pad[2 * i]
        behind = pad[2 * i + 1]
        if before == behind == 0:
            continue
        segments = r.atoms.resolve(x[k])
        if min(before, behind) < 0 or not r.atoms.can_move(segments):
            r.lose(x, [k], "that cuts units apart")
            result[k] = r.pinned(sizes[k])
            continue
        if value != 0:
            r.trivial(axis for j, axis in enumerate(x) if j != k)
        result[k] = [
            *(r.pinned(before) if before else []), *segments, *(r.pinned(behind) if behind else []),
        ]  # fmt: skip
    return result


for _name in ("avg_pool2d", "_adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d"):
    RULES[_name] = lambda r, node, x, *rest, **more: _spatial(r, node, x, 2, (1, 1))


@_rule("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze")
def _view(r: Reader, node: fx.Node, x: Label, *rest: Any) -> Any:
    return r.reshaped(x, output_shape(node.args[0]), output_shape(node))


@_rule("as_strided")
def _as_strided(r: Reader, node: fx.Node, x: Label, *rest: Any) -> Any:
    before: Any = node.args[0]
    old = before.meta["val"]
    new = node.meta["val"]
    same = old.is_contiguous() and new.is_contiguous() and old.numel() == new.numel()
    return _view(r, node, x) if same and new.storage_offset() == old.storage_offset() else None


RULES["permute"] = lambda r, node, x, dims: [x[d] for d in dims]


@_rule("expand")
def _expand(r: Reader, node: fx.Node, x: Label, *rest: Any, **more: Any) -> Any:
    """New places hold copies: they may be permuted."""
    old = output_shape(node.args[0])
    new = output_shape(node)
    fresh = r.kept(("expand", node), node.meta["val"], pinned=False)
    lead = len(new) - len(old)
    is_kept = (k >= lead and old[k - lead] == n for k, n in enumerate(new))
    return [x[k - lead] if kept else fresh[k] for k, kept in enumerate(is_kept)]


@_rule("embedding")
def _embedding(r: Reader, node: fx.Node, w: Label, index: Label, *rest: Any) -> Any:
    r.pin(w, [0])
    r.trivial(index)
    return [*index, w[1]]


@_rule("index", "_unsafe_index")
def _index(r: Reader, node: fx.Node, x: Label, indices: list[Any]) -> Any:
    used = [k for k, i in enumerate(indices) if i is not None]
    r.lose(x, used, "of chosen places")
    for k in used:
        r.pin(indices[k])
    if used != list(range(used[0], len(x))):
        return None
    return [*x[: used[0]], *[r.pinned(n) for n in output_shape(node)[used[0] :]]]


@_rule("cat")
def _concatenate(r: Reader, node: fx.Node, labels: list[Label], dim: int = 0) -> Any:
    """Segments one after another; the other axes are the same.

    A piece of one place is an empty segment: nothing moves there, and what lies before and behind
    it is free.
    """
    dim = dim % len(labels[0])
    others = [[ONE if i == dim else axis for i, axis in enumerate(x)] for x in labels]
    result = r.pointwise(len(output_shape(node)), others, (SAME, SAME))
    result[dim] = [segment for x in labels for segment in r.atoms.resolve(x[dim])]
    return result


@_rule("select")
def _select(r: Reader, node: fx.Node, x: Label, dim: int, i: int) -> Any:
    """Keep one place of an axis: what it may choose the permutation of is a family."""
    atoms = r.atoms
    dim = dim % len(x)
    axis = atoms.resolve(x[dim])
    rest = [atoms.resolve(other) for j, other in enumerate(x) if j != dim]
    if len(axis) > 1 and _place_alone(r, axis, i % atoms.length(axis)):
        return rest
    could_move = any(not atoms.pinned[o.atom] for s in axis for o in s)
    single = r.trivial([axis])
    for atom in single:
        atoms.pin(atom)
    if len([o for s in axis for o in s]) != 1:
        if could_move:
            atoms.losses.add(f"{operation(node)} of one place of an axis")
        atoms.forget(rest, single)
        return rest
    (index,) = single
    i %= atoms.size[index]
    result = [[[atoms.member(o, index, i) for o in s] for s in axis] for axis in rest]
    is_family = any(atoms.family[o.atom] is not None for axis in rest for s in axis for o in s)
    if could_move and not is_family:
        atoms.losses.add(f"{operation(node)} of one place of an axis")
    return result


def _place_alone(r: Reader, axis: Axis, i: int) -> bool:
    """Whether a place of an axis is a segment of its own, which nothing moves."""
    place = 0
    for segment in axis:
        n = r.atoms.length([segment])
        if place <= i < place + n:
            return n == 1
        place += n
    return False


@_rule("slice")
def _slice(
    r: Reader, node: fx.Node, x: Label, dim: int = 0, start: Any = 0, end: Any = None, step: int = 1
) -> Any:
    """Some segments of an axis, which is cut where the slice begins and ends."""
    atoms = r.atoms
    dim = dim % len(x)
    n = max(atoms.length(atoms.resolve(x[dim])), 1)
    start, end, _ = slice(start, end).indices(n)
    if (start, end, step) == (0, n, 1):
        return list(x)
    if end - start == 1:  # as unbind is decomposed
        rest = _select(r, node, x, dim, start)
        return [*rest[:dim], ONE, *rest[dim:]]
    result = list(x)
    segments = _segments(r, x[dim], start, end) if step == 1 else None
    if segments is None:
        r.lose(x, [dim], "that cuts units apart")
        segments = r.pinned(len(range(start, end, step)))
    result[dim] = segments
    return result


def _segments(r: Reader, axis: Any, start: int, end: int) -> Any:
    """The segments between two places; None where the axis can't be cut there."""
    atoms = r.atoms
    try:
        for edge in (start, end):
            place = 0
            for segment in atoms.resolve(axis):
                n = atoms.length([segment])
                if place < edge < place + n:
                    atoms.cut(segment, edge - place)
                place += n
    except ConflictError:
        return None
    whole = atoms.resolve(axis)
    ends = itertools.accumulate(atoms.length([s]) for s in whole)
    return [segment for segment, e in zip(whole, ends, strict=True) if start < e <= end]


@_rule("split_with_sizes")
def _split(r: Reader, node: fx.Node, x: Label, sizes: list[int], dim: int = 0) -> Any:
    ends = [0, *itertools.accumulate(sizes)]
    if max(sizes) > 1:  # cut first, so that pieces of one place are segments of their own
        for start, end in itertools.pairwise(ends):
            _segments(r, x[dim % len(x)], start, end)
    return [_slice(r, node, x, dim, a, b) for a, b in itertools.pairwise(ends)]


@_rule("slice_scatter")
def _put_slice(
    r: Reader, node: fx.Node, x: Label, y: Label, dim: int = 0, start: Any = 0, end: Any = None
) -> Any:
    """A concatenation: what stands before, the new part, what stands behind."""
    n = output_shape(node)[dim]
    m = output_shape(node.args[1])[dim]
    start = start or 0
    before = [_slice(r, node, x, dim, 0, start)] if start else []
    behind = [_slice(r, node, x, dim, start + m, n)] if start + m < n else []
    return _concatenate(r, node, [*before, y, *behind], dim)
