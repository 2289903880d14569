"""Trained copies of one module brought onto one another, and their average."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.modules.module_symmetry import check_module, symmetry_of


def merge_modules(modules: Sequence[nn.Module], example_input: Any) -> nn.Module:
    """Average of modules of one architecture after their units are aligned.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
        Trained apart, from different starts say; not changed.
    example_input : Tensor or tuple of Tensor
        Arguments of one call.

    Returns
    -------
    torch.nn.Module
        A copy of the first whose parameters and floating-point buffers are the means of
        `align_modules`. Integers and bools are the first's.

    Raises
    ------
    TypeError
        If ``modules`` isn't a sequence of modules, or the example no tensor.
    ValueError
        As `align_modules` does.

    Notes
    -----
    Averaged networks have smaller activations than their parts (Jordan et al. 2023): after merging,
    let a batch norm see the data again in train mode.

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
    return _loaded(
        copies[0], torch.stack([flatten_module(module) for module in copies]).mean(dim=0)
    )


def interpolate_modules(first: nn.Module, second: nn.Module, share: float) -> nn.Module:
    """Copy of the first module, moved a share of the straight way to the second."""
    return _loaded(first, torch.lerp(flatten_module(first), flatten_module(second), share))


def flatten_module(module: nn.Module) -> Tensor:
    """Parameters and buffers of a module, (P,), float64."""
    return torch.cat([t.detach().cpu().double().flatten() for t in _tensors(module).values()])


def align_modules(modules: Sequence[nn.Module], example_input: Any) -> list[nn.Module]:
    """Copies of modules that compute the same, their units in the order of the first's.

    All are moved onto one place, so going from one to another by way of a third is going straight
    (cycle consistency): each in turn is aligned with the mean of the others until none moves
    (Ainsworth et al. 2023, Algorithm 3). Batch norms' running moments move along. Parameters that
    are frozen in all modules, and are the same in all, stay as they are.

    Parameters
    ----------
    modules, example_input : object
        As for `merge_modules`.

    Returns
    -------
    list of torch.nn.Module

    Raises
    ------
    TypeError
        If ``modules`` isn't a sequence of modules, or the example no tensor.
    ValueError
        If there is no module, or their parameters have different names or shapes, or their integer
        buffers different values.
    """
    _check_alike(modules)
    first = copy.deepcopy(modules[0]).eval()
    for name, parameter in first.named_parameters():
        same = [module.get_parameter(name) for module in modules]
        is_frozen = not any(p.requires_grad for p in same)
        values = parameter.detach()
        is_equal = all(torch.equal(values, p.detach().to(values)) for p in same)
        parameter.requires_grad_(not (is_frozen and is_equal))
    if not any(p.requires_grad for p in first.parameters()):
        return [copy.deepcopy(module) for module in modules]  # the same parameters in all
    group = symmetry_of(first, example_input, buffers=True)
    moves = torch.cat([
        torch.full((tensor.numel(),), name in group.layout.shapes)
        for name, tensor in _tensors(modules[0]).items()
    ])  # fmt: skip
    whole = torch.stack([flatten_module(module) for module in modules])
    theta = whole[:, moves]
    theta = torch.cat([theta[:1], group.align(theta[1:], theta[0])[0]])
    # Each sweep lowers the sum of squared distances, so they end.
    for _ in range(50 if len(modules) > 2 else 0):
        before = theta.clone()
        for i in range(1, len(modules)):
            others = (theta.sum(dim=0) - theta[i]) / (len(modules) - 1)
            theta[i] = group.align(theta[i], others)[0]
        if torch.equal(before, theta):
            break
    whole[:, moves] = theta
    return [_loaded(module, moved) for module, moved in zip(modules, whole, strict=True)]


def _check_alike(modules: Any) -> None:
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
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _layout(module: nn.Module) -> ParamLayout:
    return ParamLayout({name: tuple(t.shape) for name, t in _tensors(module).items()})


def _loaded(module: nn.Module, theta: Tensor) -> nn.Module:
    """A copy with these parameters and buffers."""
    module, values = copy.deepcopy(module), _layout(module).unflatten(theta)
    with torch.no_grad():
        for name, tensor in _tensors(module).items():
            if tensor.is_floating_point():  # integers stay the module's own
                tensor.copy_(values[name])
    return module
