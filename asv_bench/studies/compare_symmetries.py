"""Permutations that other packages find in twelve modules, next to `symmetry_of`.

    python asv_bench/studies/compare_symmetries.py

Runs ``rebasin`` (merging of networks) and ``torch-pruning`` (groups of coupled channels) where they
are installed (``pip install rebasin torch-pruning``). Neither reports the order of a group or finds
signs. Printed for each module and package are:

* the number of groups: factors of the symmetry group, tensors that ``rebasin`` permuted, and groups
  of coupled channels of Torch-Pruning, without those of the outputs,
* log |G|: of the group, and of all permutations of the coupled channels in each group,
* the largest relative change of an output (float64), for ``symmetry_of`` under a random element,
  for ``rebasin`` after its own permutation, and for Torch-Pruning after a random permutation of the
  channels in all groups; a correct method leaves only rounding,
* seconds of CPU.

The modules are those of ``count_symmetries.py``.
"""

import contextlib
import copy
import importlib.util
import io
import time
from collections.abc import Callable
from math import lgamma
from typing import Any, NamedTuple

import torch
from count_symmetries import ARCHITECTURES
from torch import nn

from skbayes_sym.symmetry import symmetry_of
from skbayes_sym.symmetry.modules.numerical_check import largest_output_change

NAMES = (
    "MLP, tanh", "VGG, batch norm", "ResNet", "ResNeXt", "MobileNetV2", "DenseNet", "U-Net",
    "style network", "ViT", "GRU, encoder and decoder", "tied autoencoder", "graph convolution",
)  # fmt: skip


class Finding(NamedTuple):
    """What a package finds in a module."""

    n_groups: int
    log_order: float | None
    change: float
    n_signs: int


def relative_change(before: torch.Tensor, after: torch.Tensor) -> float:
    """Return the largest change of an output, relative to the largest output."""
    return float((after - before).abs().max() / before.abs().max())


def find_ours(module: nn.Module, inputs: tuple[Any, ...]) -> Finding:
    """Run `symmetry_of`."""
    group = symmetry_of(module, inputs)
    change = largest_output_change(module, group.layout, inputs, group, n=3)
    n_signs = sum("sign" in text for text in group.descriptions)
    return Finding(len(group.factors), group.log_order, change, n_signs)


def find_rebasin(module: nn.Module, inputs: tuple[Any, ...]) -> Finding:
    """Align a copy with other weights, as ``rebasin`` does before it merges."""
    from rebasin import PermutationCoordinateDescent

    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter))
        values = [parameter.clone() for parameter in other.parameters()]
        before = other(*inputs)
        data = inputs if len(inputs) > 1 else inputs[0]
        PermutationCoordinateDescent(module, other, data).rebasin()
        after = other(*inputs)
    moved = [not torch.equal(a, b) for a, b in zip(values, other.parameters(), strict=True)]
    return Finding(sum(moved), None, relative_change(before, after), 0)


def find_torch_pruning(module: nn.Module, inputs: tuple[Any, ...]) -> Finding:
    """Permute the channels of all groups of the dependency graph."""
    import torch_pruning

    module = copy.deepcopy(module)
    graph = torch_pruning.DependencyGraph()
    graph.build_dependency(module, example_inputs=inputs if len(inputs) > 1 else inputs[0])
    groups = [group for group in graph.get_all_groups() if len(group) > 1]
    with torch.no_grad():
        before = module(*inputs)
        for group in groups:
            permute_channels(graph, group)
        after = module(*inputs)
    log_order = sum(lgamma(len(group[0].idxs) + 1) for group in groups)
    return Finding(len(groups), log_order, relative_change(before, after), 0)


def permute_channels(graph: Any, group: Any) -> None:
    """Permute the coupled channels of a group at random, in all tensors that contain them."""
    order = torch.randperm(len(group[0].idxs))
    for item in group:
        layer = item.dep.target.module
        if not isinstance(layer, nn.Module) or not list(layer.parameters(recurse=False)):
            continue
        is_output = graph.is_out_channel_pruning_fn(item.dep.handler)
        positions = torch.tensor(item.idxs)
        roots = torch.tensor(item.root_idxs)
        # The k-th entry of a channel gets the k-th entry of the channel that replaces it.
        by_root = [positions[roots == root] for root in group[0].idxs]
        source = torch.cat([by_root[int(i)] for i in order])
        target = torch.cat(by_root)
        is_transposed = isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d)
        for name, values in (*layer.named_parameters(recurse=False), *layer.named_buffers()):
            if values.ndim == 0 or (name == "bias" and not is_output):
                continue
            axis = 0 if is_output == (not is_transposed) or values.ndim == 1 else 1
            changed = values.index_select(axis, source)
            values.index_copy_(axis, target, changed)


FINDERS: dict[str, tuple[str, Callable[..., Finding]]] = {
    "symmetry_of": ("skbayes_sym", find_ours),
    "rebasin": ("rebasin", find_rebasin),
    "torch-pruning": ("torch_pruning", find_torch_pruning),
}


def main() -> None:
    """Print the table."""
    for name in NAMES:
        for package, (import_name, find) in FINDERS.items():
            if importlib.util.find_spec(import_name) is None:
                print(f"{name:26} {package:14} not installed")
                continue
            torch.manual_seed(0)
            module = ARCHITECTURES[name].make().double()
            inputs = ARCHITECTURES[name].inputs
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            arguments = tuple(x.double() if x.is_floating_point() else x for x in arguments)
            start = time.process_time()
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    finding = find(module, arguments)
            except Exception as error:
                reason = (str(error).splitlines() or [""])[0][:60]
                print(f"{name:26} {package:14} failed: {type(error).__name__}: {reason}")
                continue
            seconds = time.process_time() - start
            log_order = "-" if finding.log_order is None else f"{finding.log_order:.1f}"
            print(
                f"{name:26} {package:14} groups {finding.n_groups:3d}  log|G| {log_order:>6}  "
                f"with signs {finding.n_signs:2d}  change {finding.change:.0e}  {seconds:5.2f} s"
            )


if __name__ == "__main__":
    main()
