"""Check numerically that a group leaves the outputs of a module unchanged."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.modules.graph_analysis import without_dropout

# Largest relative change of outputs in float64 that counts as rounding. The rounding of deep
# networks is much smaller, and a false symmetry changes outputs much more.
ROUNDING = 1e-7


class NotCheckableError(Exception):
    """A module's outputs can't be compared; the message says why."""


def build_output_function(
    module: nn.Module,
    layout: ParamLayout,
    inputs: tuple[Any, ...],
    perturb: Callable[[Tensor], Tensor] | None = None,
) -> Callable[[Tensor], Tensor]:
    """Return all outputs at ``inputs``, flattened, as a function of the flat ``theta``.

    Parameters
    ----------
    module : torch.nn.Module
        The module, which isn't changed.
    layout : ParamLayout
        Names and shapes of the parameters and buffers that ``theta`` contains. All others are
        constants.
    inputs : tuple of Tensor
        Arguments of a call.
    perturb : callable, optional
        Function of float64 tensors that replaces the real constants. By default they stay.

    Returns
    -------
    callable (P,) -> (n_outputs,)
        Computes in float64.
    """
    module = without_dropout(module)
    tensors = [*module.named_parameters(), *module.named_buffers()]
    constants = {
        name: tensor.detach().double() if tensor.is_floating_point() else tensor
        for name, tensor in tensors
        if name not in layout.shapes
    }
    if perturb is not None:
        constants = {
            name: perturb(constant) if constant.is_floating_point() else constant
            for name, constant in constants.items()
        }
    dtypes = {
        name: torch.float64 if tensor.is_floating_point() else tensor.dtype
        for name, tensor in tensors
    }
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)

    def outputs(theta: Tensor) -> Tensor:
        # Batch norms in train mode write on their buffers, so that all tensors are copied.
        values = {name: constant.clone() for name, constant in constants.items()}
        for name, value in layout.unflatten(theta.double()).items():
            values[name] = value.clone().to(dtypes[name])
        with torch.no_grad():
            leaves = tree_leaves(torch.func.functional_call(module, values, inputs))
        return torch.cat([t.double().flatten() for t in leaves if isinstance(t, Tensor)])

    return outputs


def largest_output_change(
    module: nn.Module,
    layout: ParamLayout,
    inputs: tuple[Any, ...],
    group: SymmetryGroup,
    n: int = 1,
) -> float:
    """Return the largest relative change of an output under random elements of a group.

    Parameters
    ----------
    module : torch.nn.Module
        The module, which isn't changed.
    layout : ParamLayout
        Names and shapes of the tensors that the group acts on.
    inputs : tuple of Tensor
        Arguments of a call.
    group : SymmetryGroup
        The group.
    n : int, default=1
        Number of random elements, each at different random weights.

    Returns
    -------
    float
        Largest change, in units of the largest output.

    Raises
    ------
    NotCheckableError
        If the module fails in float64 at all weights that were tried, or its outputs aren't
        finite, or they differ between two calls with the same weights.
    """
    generator = torch.Generator().manual_seed(0)
    function = build_output_function(module, layout, inputs)
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    parts = [tensors[name].detach().flatten().cpu() for name in layout.shapes]
    theta = torch.cat([part.double() for part in parts])
    # Integers and bools are positions and masks, which must keep their values.
    is_real = torch.cat([torch.full(part.shape, part.is_floating_point()) for part in parts])
    largest: float | None = None
    failure = ""
    for _ in range(n):
        noise = torch.randn(theta.shape, generator=generator, dtype=torch.float32)
        point = noise.roll(1).abs_().mul_(0.1).add_(theta.float())
        point = point.addcmul_(noise, theta.float(), value=0.3).double()
        point = torch.where(is_real, point, theta)
        moved = group.act(group.sample((), generator=generator), point)
        try:
            change = _relative_change(function, point, moved)
        except NotCheckableError as error:
            failure = str(error)
        else:
            if largest is None:
                largest = change
            else:
                largest = max(largest, change)
    if largest is None:
        raise NotCheckableError(failure)
    return largest


def _relative_change(function: Callable[[Tensor], Tensor], point: Tensor, moved: Tensor) -> float:
    """Return the largest change of an output between two points, relative to the largest output."""
    try:
        before = function(point)
        after = function(moved)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise NotCheckableError(
            f"it fails in float64 ({type(error).__name__}: {reason})"
        ) from error
    if not bool(before.isfinite().all() and after.isfinite().all()):
        raise NotCheckableError("its outputs aren't finite at random weights")
    if not len(before):
        return 0.0
    change = float((after - before).abs().max())
    scale = float(before.abs().max())
    # A random function doesn't change as little as rounding does.
    if change > ROUNDING * scale and not torch.equal(before, function(point)):
        raise NotCheckableError("its outputs are random")
    return change / max(scale, 1e-30)
