"""A check in numbers: does an element of a group leave a module's function unchanged?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.modules.trace import without_dropout

_SEED = 0
ROUNDING = 1e-7  # relative, float64: that of deep networks stays far below, bugs far above


def module_function(
    module: nn.Module, layout: ParamLayout, inputs: tuple[Any, ...]
) -> Callable[[Tensor], Tensor]:
    """All outputs at ``inputs``, flattened, as a function of the flat ``theta`` (P,), in float64.

    ``layout`` names parameters, and buffers where they belong to ``theta``.
    """
    module = without_dropout(module).double()
    buffers = dict(module.named_buffers())
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)

    def outputs(theta: Tensor) -> Tensor:
        values = {name: b.clone() for name, b in buffers.items()}  # norms in train mode write there
        for name, value in layout.unflatten(theta.double()).items():
            values[name] = value.to(buffers[name].dtype) if name in buffers else value
        with torch.no_grad():
            leaves = tree_leaves(torch.func.functional_call(module, values, inputs))
        return torch.cat([t.double().flatten() for t in leaves if isinstance(t, Tensor)])

    return outputs


def largest_change(
    module: nn.Module,
    layout: ParamLayout,
    inputs: tuple[Any, ...],
    group: SymmetryGroup,
    n: int = 1,
) -> float:
    """Largest change of an output under random elements at random weights, relative to outputs.

    0 where the module can't tell: it fails in float64, is random or not finite.
    """
    generator = torch.Generator().manual_seed(_SEED)
    function, worst = module_function(module, layout, inputs), 0.0
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    theta = torch.cat([tensors[name].detach().flatten().double().cpu() for name in layout.shapes])
    for _ in range(n):
        noise = torch.randn(theta.shape, generator=generator, dtype=torch.float64)
        point = theta * (1.0 + 0.3 * noise) + 0.1 * noise.roll(1).abs()
        try:
            before, again = function(point), function(point)
            after = function(group.act(group.sample((), generator=generator), point))
        except (RuntimeError, TypeError, ValueError):
            continue
        scale = before.abs().max()
        if torch.equal(before, again) and bool(scale.isfinite()):
            worst = max(worst, float((after - before).abs().max() / scale.clamp_min(1e-30)))
    return worst
