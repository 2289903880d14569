"""Signs of whole parameters, which no single unit has.

A layer norm divides by the standard deviation of all units. It keeps its output up to a sign if the
layer before it is negated as a whole, and the gain can undo that sign. The same holds for a scalar
that multiplies a layer. `find_overall_signs` finds all sets of parameters whose joint negation
leaves the outputs of a traced module unchanged. Each tensor of the trace has one sign, a product of
the signs of parameters. Operations are odd, even, or products, or need a sign of +1.
"""

from fractions import Fraction
from operator import getitem
from typing import Any

from torch import fx

from skbayes_sym.symmetry.modules.axis_partition import (
    SIGN,
    Exponents,
    add_exponents,
    null_space,
)
from skbayes_sym.symmetry.modules.graph_analysis import find_needed_nodes, operation
from skbayes_sym.symmetry.modules.rules import ENTRYWISE, is_zero

# Operations that are linear in their first argument. Other tensors among their arguments, such as
# indices, need a sign of +1. The entrywise functions are those of `rules`.
_LINEAR = {
    "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "permute", "expand", "select",
    "slice", "split_with_sizes", "flip", "as_strided", "roll", "cumsum", "repeat", "unfold",
    "im2col", "diagonal", "index", "_unsafe_index", "index_select", "gather", "embedding", "sum",
    "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "grid_sampler_2d", "grid_sampler_3d", "_fft_r2c",
    "_fft_c2r", "_fft_c2c", "view_as_real", "view_as_complex",
}  # fmt: skip
_ODD = _LINEAR | {name for name, powers in ENTRYWISE.items() if powers[SIGN] == 1}
_EVEN = {name for name, powers in ENTRYWISE.items() if powers[SIGN] == 0}
_EVEN |= {"var", "linalg_vector_norm", "_pdist_forward"}
_PRODUCTS = {"mul", "div", "mm", "bmm"}
_SUMS = {
    "add",
    "sub",
    "cat",
    "slice_scatter",
    "select_scatter",
    "scatter_add",
    "index_put",
    "where",
}


def find_overall_signs(graph: fx.Graph, moving: list[int]) -> list[set[int]]:
    """Return independent sets of inputs that can be negated together.

    Parameters
    ----------
    graph : fx.Graph
        Graph of ATen operations.
    moving : list of int
        Positions of the graph inputs that may be negated. All others are constants.

    Returns
    -------
    list of set of int
        Indices into ``moving``.
    """
    analysis = _SignAnalysis(graph, moving)
    variables = [name for name in analysis.variables if not name.startswith("c")]
    solutions = null_space(analysis.equations, variables, SIGN)
    return [{int(name) for name in solution} for solution in solutions]


class _SignAnalysis:
    """Signs of all tensors in a trace.

    Parameters
    ----------
    graph : fx.Graph
        Graph of ATen operations.
    moving : list of int
        Positions of the graph inputs that may be negated.

    Attributes
    ----------
    variables : list of str
        Names of the signs of parameters and, beginning with "c", of zeros.
    equations : list of dict
        Products of signs that must be +1, as exponents.
    """

    def __init__(self, graph: fx.Graph, moving: list[int]) -> None:
        self.variables: list[str] = []
        self.equations: list[Exponents] = []
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        positions = {inputs[i]: k for k, i in enumerate(moving)}
        self._signs: dict[fx.Node, Exponents] = {}
        for node in find_needed_nodes(graph):
            if node in positions:
                self._signs[node] = self._add_variable(str(positions[node]))
            elif node.op == "output":
                self._require_plus(node.all_input_nodes)
            elif node.op == "call_function":
                self._signs[node] = self._find_sign(node)
            else:
                self._signs[node] = {}

    def _add_variable(self, name: str) -> Exponents:
        self.variables.append(name)
        return {name: Fraction(1)}

    def _require_plus(self, nodes: list[fx.Node]) -> None:
        """Require that the signs of tensors are +1."""
        self.equations += [self._signs[node] for node in nodes if self._signs[node]]

    def _find_sign(self, node: fx.Node) -> Exponents:
        """Return the sign of an operation's result, and add the equations that it needs."""
        inputs = node.all_input_nodes
        if node.target is getitem:
            if self._has_sign(node):
                return self._signs[inputs[0]]
            return {}
        name = operation(node)
        if not inputs or name.endswith("_like"):
            is_constant_zero = name.startswith(("zeros", "empty")) or node.args[1:2] == (0,)
            if is_constant_zero:
                return self._add_variable(f"c{node.name}")
            return {}
        if name in _ODD or (name == "constant_pad_nd" and not any(node.args[2:])):
            self._require_plus([other for other in inputs if other is not node.args[0]])
            return self._signs[inputs[0]]
        if name == "_to_copy" and node.meta["val"].is_floating_point():
            return self._signs[inputs[0]]
        if name in _EVEN:
            return {}
        if name == "var_mean":
            return self._signs[inputs[0]]
        if name == "pow" and isinstance(node.args[1], int | float) and node.args[1] % 1 == 0:
            return self._product([node.args[0]] * (int(node.args[1]) % 2))
        if name in _PRODUCTS and not node.kwargs:
            return self._product(node.args)
        if name == "addmm":
            return self._sum([node.args[0]], self._product(node.args[1:]))
        if name == "convolution":
            return self._sum(node.args[2:3], self._product(node.args[:2]))
        if name in _SUMS:
            return self._add_terms(node, name)
        self._require_plus(inputs)
        return {}

    def _has_sign(self, node: fx.Node) -> bool:
        """Return whether a result of several keeps the sign; the variance doesn't."""
        (source,) = node.all_input_nodes
        return operation(source) != "var_mean" or bool(node.args[1] == 1)

    def _add_terms(self, node: fx.Node, name: str) -> Exponents:
        """Return the common sign of terms or parts; numbers other than 0 have the sign +1."""
        arguments: Any = node.args
        terms: list[Any] = [*arguments]
        selectors: list[Any] = []
        if name == "cat":
            terms = [*arguments[0]]
        elif name in ("slice_scatter", "select_scatter"):
            terms = terms[:2]
        elif name == "where":
            selectors = terms[:1]
            terms = terms[1:]
        elif name == "scatter_add":
            selectors = [terms[2]]
            terms = [terms[0], terms[3]]
        elif name == "index_put":
            selectors = [index for index in terms[1] if index is not None]
            terms = [terms[0], terms[2]]
        self._require_plus(selectors)
        if any(not isinstance(term, fx.Node) and term != 0 for term in terms):
            self._require_plus([term for term in terms if isinstance(term, fx.Node)])
            return {}
        nonzero = [term for term in terms if isinstance(term, fx.Node) and not is_zero(term)]
        if not nonzero:
            return {}
        return self._sum(nonzero[1:], self._signs[nonzero[0]])

    def _sum(self, nodes: Any, sign: Exponents) -> Exponents:
        """Require that further terms have the same sign, and return it."""
        for node in nodes:
            if isinstance(node, fx.Node):
                difference = add_exponents(sign, self._signs[node])
                self.equations.append(difference)
        return sign

    def _product(self, arguments: Any) -> Exponents:
        """Return the product of signs."""
        sign: Exponents = {}
        for argument in arguments:
            if isinstance(argument, fx.Node):
                sign = add_exponents(sign, self._signs[argument])
        return {name: power % 2 for name, power in sign.items() if power % 2}
