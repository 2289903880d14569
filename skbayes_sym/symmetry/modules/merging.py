"""Align trained copies of one module, and average them."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.modules.module_symmetry import symmetry_of
from skbayes_sym.symmetry.modules.validation import check_module


def merge_modules(modules: Sequence[nn.Module], example_input: Any) -> nn.Module:
    """Average modules of one architecture after their units are aligned.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
        Modules that were trained separately, for example from different initial weights. They
        aren't changed.
    example_input : Tensor or tuple of Tensor
        Arguments of one call.

    Returns
    -------
    torch.nn.Module
        A copy of the first whose parameters and floating-point buffers are the means of
        `align_modules`. Integers and bools are those of the first.

    Raises
    ------
    TypeError
        If ``modules`` isn't a sequence of modules, or the example isn't a tensor.
    ValueError
        As `align_modules` does.

    Notes
    -----
    Averaged networks have smaller activations than the networks they average (Jordan et al. 2023).
    After merging, run a batch norm in train mode on the data again.

    References
    ----------
    Ainsworth et al. (2023), "Git Re-Basin: merging models modulo permutation symmetries".

    Examples
    --------
    >>> import torch
    >>> from skbayes_sym.symmetry import merge_modules
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> turned = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> for ours, theirs in zip(turned.parameters(), net.parameters()):
    ...     ours.data = theirs.data.flip(-1) if ours.shape == (1, 8) else theirs.data.flip(0)
    >>> x = torch.randn(5, 3)
    >>> torch.allclose(merge_modules([net, turned], x)(x), net(x), atol=1e-6)
    True
    """
    copies = align_modules(modules, example_input)
    mean = torch.stack([flatten_module(module) for module in copies]).mean(dim=0)
    return _copy_with_values(copies[0], mean)


def interpolate_modules(first: nn.Module, second: nn.Module, weight: float) -> nn.Module:
    """Return a copy of the first module, moved towards the second on a straight line.

    Parameters
    ----------
    first, second : torch.nn.Module
        Modules of one architecture.
    weight : float
        Weight of the second module; 0 gives the first and 1 the second.
    """
    theta = torch.lerp(flatten_module(first), flatten_module(second), weight)
    return _copy_with_values(first, theta)


def flatten_module(module: nn.Module) -> Tensor:
    """Return the parameters and buffers of a module as one vector (P,) in float64."""
    return torch.cat([t.detach().cpu().double().flatten() for t in _tensors(module).values()])


def align_modules(modules: Sequence[nn.Module], example_input: Any) -> list[nn.Module]:
    """Return copies of modules that compute the same, with units in the order of the first's.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
        Modules of one architecture. They aren't changed.
    example_input : Tensor or tuple of Tensor
        Arguments of one call.

    Returns
    -------
    list of torch.nn.Module
        One for each module.

    Raises
    ------
    TypeError
        If ``modules`` isn't a sequence of modules, or the example isn't a tensor.
    ValueError
        If there is no module, or their parameters have different names or shapes, or their integer
        buffers different values.

    Notes
    -----
    Each module in turn is aligned with the mean of the others until none moves (Ainsworth et al.
    2023, Algorithm 3). All are aligned with one another, so that the alignments are consistent
    around cycles. Running moments of batch norms move along. Parameters that are frozen in all
    modules, and have equal values in all, don't move.
    """
    _check_same_architecture(modules)

    # The group acts on all parameters that differ, and on the buffers.
    template = copy.deepcopy(modules[0]).eval()
    for name, parameter in template.named_parameters():
        copies = [module.get_parameter(name) for module in modules]
        is_frozen = not any(p.requires_grad for p in copies)
        values = parameter.detach()
        is_equal = all(torch.equal(values, p.detach().to(values)) for p in copies)
        parameter.requires_grad_(not (is_frozen and is_equal))
    if not any(p.requires_grad for p in template.parameters()):
        return [copy.deepcopy(module) for module in modules]  # all parameters are equal
    group = symmetry_of(template, example_input, buffers=True)
    moves = torch.cat(
        [
            torch.full((tensor.numel(),), name in group.layout.shapes)
            for name, tensor in _tensors(modules[0]).items()
        ]
    )

    # Align all with the first.
    flat = torch.stack([flatten_module(module) for module in modules])
    theta = flat[:, moves]
    theta = torch.cat([theta[:1], group.align(theta[1:], theta[0])[0]])

    # Align each with the mean of the others. The sum of squared distances falls in each sweep, so
    # that this ends.
    for _ in range(50 if len(modules) > 2 else 0):
        before = theta.clone()
        for i in range(1, len(modules)):
            others = (theta.sum(dim=0) - theta[i]) / (len(modules) - 1)
            theta[i] = group.align(theta[i], others)[0]
        if torch.equal(before, theta):
            break
    flat[:, moves] = theta
    return [_copy_with_values(module, row) for module, row in zip(modules, flat, strict=True)]


def _check_same_architecture(modules: Any) -> None:
    """Raise unless these are modules of one architecture."""
    if isinstance(modules, nn.Module) or not isinstance(modules, Sequence):
        raise TypeError(f"modules must be a list of modules, got {type(modules).__name__}.")
    if not len(modules):
        raise ValueError("modules must hold at least one module, got none.")
    for i, module in enumerate(modules):
        check_module(module, f"modules[{i}]", needs_trainable=False)
    layout = _layout(modules[0])
    integers = [n for n, t in _tensors(modules[0]).items() if not t.is_floating_point()]
    for i, module in enumerate(modules):
        if _layout(module).shapes != layout.shapes:
            raise ValueError(
                "modules must have parameters of the same names and shapes, but those of "
                f"modules[0] and modules[{i}] differ."
            )
        for name in integers:
            ours = _tensors(modules[0])[name]
            theirs = _tensors(module)[name]
            if ours.ndim and not torch.equal(ours, theirs.to(ours)):
                raise ValueError(
                    f"{name}, a buffer of integers or bools, differs between modules[0] and "
                    f"modules[{i}]: they can't be averaged. Give modules with the same one."
                )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _layout(module: nn.Module) -> ParamLayout:
    """Return the names and shapes of the parameters and buffers."""
    return ParamLayout({name: tuple(t.shape) for name, t in _tensors(module).items()})


def _copy_with_values(module: nn.Module, theta: Tensor) -> nn.Module:
    """Return a copy with the parameters and buffers in ``theta`` (P,)."""
    module = copy.deepcopy(module)
    values = _layout(module).unflatten(theta)
    with torch.no_grad():
        for name, tensor in _tensors(module).items():
            if tensor.is_floating_point():  # integers keep their values
                tensor.copy_(values[name])
    return module
