"""The symmetry group of any torch module, derived from its trace and checked numerically."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.axis_units import is_nearer
from skbayes_sym.symmetry.group import InPlaceActionMixin, Product, format_lines
from skbayes_sym.symmetry.modules.graph_analysis import GraphAnalysis, trace
from skbayes_sym.symmetry.modules.group_assembly import Rescaling, ScaledAxis, assemble_group
from skbayes_sym.symmetry.modules.module_exchange import ModuleExchangeFinder
from skbayes_sym.symmetry.modules.numerical_check import (
    ROUNDING,
    NotCheckableError,
    largest_output_change,
)
from skbayes_sym.symmetry.modules.overall_signs import find_overall_signs
from skbayes_sym.symmetry.modules.rules import RULES as ARITHMETIC_RULES
from skbayes_sym.symmetry.modules.selection_rules import SELECTION_RULES
from skbayes_sym.symmetry.modules.validation import check_module, validate_inputs
from skbayes_sym.symmetry.units import SignedPermutation

RULES = {**ARITHMETIC_RULES, **SELECTION_RULES}
_LINE_WIDTH = 98  # of a line in the repr


@dataclass(frozen=True, repr=False)
class ModuleSymmetry(InPlaceActionMixin, Product):
    """Symmetry group of a module's parameters, as returned by `symmetry_of`.

    Attributes
    ----------
    factors : tuple of SymmetryGroup
        Direct factors, one for each set of units.
    layout : ParamLayout
        Names and shapes of the parameters, in the order of the flat ``theta``.
    descriptions : tuple of str
        For each factor, its units, the tensors that contain them and the operations they pass.
    rescalings : tuple of Rescaling
        Positive scales of units that leave the function unchanged: which tensors are multiplied by
        a factor and which are divided by it. Tensors that can't scale aren't named.
    scaled_axes : tuple of ScaledAxis
        The parts of ``theta`` that these scales multiply.
    refused : tuple of str
        Operations without a rule, or with arguments that their rule doesn't know, axes whose parts
        a view can't follow, exchanges among units that views regroup, axes that no factor can
        describe, and factors that failed the numerical check. There may be more symmetries.
    hints : tuple of str
        What would make the group larger.
    unchecked : str
        Why the group wasn't checked numerically; empty if it was.
    """

    layout: ParamLayout = field(default_factory=lambda: ParamLayout({}))
    descriptions: tuple[str, ...] = ()
    rescalings: tuple[Rescaling, ...] = ()
    scaled_axes: tuple[ScaledAxis, ...] = ()
    refused: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    unchecked: str = ""

    def __repr__(self) -> str:
        heading, *lines = self._report_lines()
        lines = [shorten(line, _LINE_WIDTH, placeholder=" ...") for line in lines]
        return format_lines(heading, lines, remedy="print(group.report()) shows all")

    def report(self) -> str:
        """Return the factors, rescalings and refusals as text, one in each line.

        A line "refused" names an operation without a rule, or another reason why there may be more
        symmetries.
        """
        return "\n- ".join(self._report_lines())

    def _report_lines(self) -> list[str]:
        n = len(self.factors)
        factors = "1 factor" if n == 1 else f"{n} factors"
        lines = [f"Symmetry group of {factors}, log |G| = {self.log_order:.1f} nats"]
        lines += self.descriptions
        lines += [f"not in the group: {rescaling}" for rescaling in self.rescalings]
        lines += [f"refused: {reason}" for reason in self.refused]
        lines += self.hints
        if self.unchecked:
            lines.append(f"not checked numerically: {self.unchecked}")
        return lines

    @property
    def n_params(self) -> int:
        """Length of ``theta``."""
        return self.layout.n_params

    @property
    def _has_exact_length(self) -> bool:
        return True

    def check_element(self, g: Any) -> None:
        """Raise unless ``g`` has an element of every factor."""
        Product.check_element(self, g)

    def batch(self, g: tuple[Any, ...]) -> tuple[int, ...]:
        """Return the batch shape of an element."""
        factors: Any = self.factors
        return np.broadcast_shapes(*(f.batch(h) for f, h in zip(factors, g, strict=True)))

    def move_(self, g: tuple[Any, ...], theta: Tensor) -> Tensor:
        """Act on ``theta`` in place, without checks."""
        factors: Any = self.factors
        for factor, h in zip(factors, g, strict=True):
            factor.move_(h, theta)
        return theta

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Move ``theta`` near ``reference``: the nearer of two local optima.

        Coordinate ascent over the factors starts from ``theta``, and from a second point, to which
        the factors are aligned one by one. The next factor is always the one with the largest
        fraction of entries that no other remaining factor moves, and only these entries are
        compared. In a network this goes from the inputs inwards.

        If ``theta`` is a symmetric copy of ``reference``, the second point is exact as long as
        these entries tell the units of each factor apart. They do in feed-forward, convolutional,
        recurrent and attention networks. Copies may be missed if units lie on two axes of one
        parameter and pass no other parameter before (4 of 25 random copies of a network that
        mixes units by a matrix of their own), and if whole modules are exchanged that have two
        sets of units with common weights. There the result is a local optimum.

        Parameters
        ----------
        theta : Tensor of shape (*B, P)
            Weights to move.
        reference : Tensor of shape (*B, P)
            Where to move them.

        Returns
        -------
        moved : Tensor of shape (*B, P)
            ``g.theta``.
        g : tuple
            The element of the group.
        """
        self.check_pair(theta, reference)
        nearest, g = super().align(theta, reference)
        moved, first_moves = self._align_one_by_one(theta, reference)
        other, h = super().align(moved, reference)
        nearer = is_nearer(other, nearest, reference)
        nearest = torch.where(nearer.unsqueeze(-1), other, nearest)
        return nearest, _select_elements(nearer, self.compose(h, first_moves), g)

    def _align_one_by_one(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Align each factor once, by the entries that it alone can still move."""
        remaining = dict(enumerate(self._moved_entries))
        elements = list(self.identity())
        while remaining:
            n_factors = torch.stack(list(remaining.values())).sum(dim=0)
            exclusive = {i: entries & (n_factors == 1) for i, entries in remaining.items()}
            i = max(
                remaining,
                key=lambda k: float(exclusive[k].sum() / remaining[k].sum().clamp_min(1)),
            )
            mask = exclusive[i].to(reference.device)
            theta, elements[i] = self.factors[i].align(theta, reference * mask)
            del remaining[i]
        return theta, tuple(elements)

    @cached_property
    def _moved_entries(self) -> list[Tensor]:
        """Entries that each factor moves, bool (P,), found with four random elements of it."""
        positions = torch.arange(1.0, self.layout.n_params + 1)
        generator = torch.Generator()
        generator.manual_seed(0)
        masks = []
        for factor in self.factors:
            moved = [
                factor.act(factor.sample((), generator=generator), positions) != positions
                for _ in range(4)
            ]
            masks.append(torch.stack(moved).any(dim=0))
        return masks


def _select_elements(mask: Tensor, first: Any, second: Any) -> Any:
    """Return elements of factors, the first where ``mask`` (*B,) holds, else the second."""
    if isinstance(first, SignedPermutation):
        return first.select(mask, second)
    return tuple(_select_elements(mask, a, b) for a, b in zip(first, second, strict=True))


def symmetry_of(module: nn.Module, example_input: Any, *, buffers: bool = False) -> ModuleSymmetry:
    """Find permutations and sign flips of a module's parameters that keep its function.

    The module is traced once. A rule for every operation says which axes of tensors are permuted
    together and how signs pass (`skbayes_sym.symmetry.modules.rules`). The remaining freedom is the
    group. Its factors are units, channels, heads and the dimensions inside them. They are followed
    through convolutions, norms, residual sums, concatenation, views, attention, recurrent layers
    and embeddings. Signs are free where functions are odd or linear, or have a gain. Whole
    parameters have a sign where a norm over all units follows, or a scalar multiplies a layer.

    All tensors that enter an operation without a rule are fixed, and the operation is named in
    ``refused``. A random element is tried on the module in float64. Factors that change the outputs
    are removed and named.

    Parameters
    ----------
    module : torch.nn.Module
        In the mode (train or eval) in which it will be used. It isn't changed. Parameters that are
        frozen (``requires_grad_(False)``) are constants, on which the group doesn't act.
    example_input : Tensor or tuple of Tensor
        Arguments of one call. The group depends on their shapes and dtypes only.
    buffers : bool, default=False
        Whether the group acts on the parameters followed by the buffers (running means and
        variances of a batch norm in eval mode then move along). Otherwise buffers are constants.
        Buffers of integers and bools (positions, masks) never move.

    Returns
    -------
    ModuleSymmetry
        A group acting on the ``parameters()`` that aren't frozen, flattened in order. It has
        ``factors``, ``act`` and ``align`` like every group, and ``report()``, ``rescalings``,
        ``refused`` and ``unchecked``.

    Raises
    ------
    TypeError
        If ``module`` isn't a module, or ``example_input`` isn't a tensor or tuple of tensors.
    ValueError
        If control flow depends on the values of tensors, or the call fails. If the module has no
        parameters, only frozen ones, or some whose shapes or values aren't known yet (lazy modules,
        the meta device).

    Notes
    -----
    The group doesn't contain continuous groups other than scales, symmetries of single entries, and
    symmetries that hold for the given weights only. A batch norm in train mode couples the rows of
    a batch: the group is that of the function of the batch.

    Children of one module are exchanged as a whole if they run side by side and have parameters of
    the same names and shapes. No rule finds these exchanges. They are tried at random weights,
    constants and inputs (`skbayes_sym.symmetry.modules.module_exchange`).

    A module that fails in float64, is random, or has infinite outputs can't be checked numerically.
    The group then follows from the rules alone, as ``unchecked`` and the report state.

    Tracing takes 0.1 to 1 s, and the rest is fast. Elements cost O(P) to apply.

    Examples
    --------
    >>> import torch
    >>> from skbayes_sym.symmetry import symmetry_of
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> group = symmetry_of(net, torch.zeros(2, 3))
    >>> print(group.report())
    Symmetry group of 1 factor, log |G| = 16.1 nats
    - 8 units, exchanged, each with a sign: rows of 0.weight, 0.bias, columns of 2.weight \
(addmm, tanh)
    """
    check_module(module)
    inputs = validate_inputs(example_input)
    group = derive_symmetry(module, inputs, buffers=buffers)
    if not group.factors:
        return group
    try:
        if largest_output_change(module, group.layout, inputs, group) <= ROUNDING:
            return group
        # Some factor is wrong. Each is checked by itself.
        changes = [
            largest_output_change(module, group.layout, inputs, factor) for factor in group.factors
        ]
    except NotCheckableError as error:
        return replace(group, unchecked=str(error))
    is_right = [change <= ROUNDING for change in changes]
    is_wrong = [change > ROUNDING for change in changes]
    wrong = compress(group.descriptions, is_wrong)
    return replace(
        group,
        factors=tuple(compress(group.factors, is_right)),
        descriptions=tuple(compress(group.descriptions, is_right)),
        refused=(
            *group.refused,
            *(f"{units}, which failed the numerical check" for units in wrong),
        ),
    )


def derive_symmetry(
    module: nn.Module, inputs: tuple[Any, ...], *, buffers: bool = False
) -> ModuleSymmetry:
    """Derive the group from the rules, without the numerical check of `symmetry_of`.

    Parameters
    ----------
    module : nn.Module
        Module to analyse.
    inputs : tuple
        Example inputs.
    buffers : bool, default=False
        Whether buffers move with the parameters.
    """
    tensors = select_tensors(module, buffers=buffers)
    layout = ParamLayout({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    moving = [names.index(name) for name, t in tensors.items() if t.is_floating_point()]
    graph = trace(module, inputs)
    analysis = GraphAnalysis(graph, moving, RULES)
    if not analysis.run():
        return ModuleSymmetry((), layout=layout, refused=("all: the rules reach no fixed point",))
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    by_name = {names[i]: sources[i] for i in moving}
    assembled = assemble_group(
        analysis,
        layout,
        [names[i] for i in moving],
        find_overall_signs(graph, moving),
        ModuleExchangeFinder(module, inputs, layout, by_name),
    )

    # Constant buffers of real numbers tell units apart, as running means do in eval mode.
    constant = [
        name
        for name, buffer in module.named_buffers()
        if names.index(name) in analysis.used and buffer.is_floating_point() and buffer.ndim
    ]
    hints: tuple[str, ...] = ()
    if constant and not buffers:
        if len(constant) == 1:
            others = ""
        else:
            others = f" and {len(constant) - 1} more"
        hints = (
            f"pass buffers=True to move buffers with units ({constant[0]}{others}): as "
            "constants they keep units in their places",
        )
    return ModuleSymmetry(
        assembled.factors,
        layout=layout,
        descriptions=assembled.descriptions,
        rescalings=assembled.rescalings,
        scaled_axes=assembled.scaled_axes,
        refused=assembled.refused,
        hints=hints,
    )


def select_tensors(module: nn.Module, *, buffers: bool) -> dict[str, Tensor]:
    """Return the tensors in ``theta`` by name; frozen parameters are constants."""
    tensors: dict[str, Tensor] = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if buffers:
        tensors |= dict(module.named_buffers())
    return tensors
