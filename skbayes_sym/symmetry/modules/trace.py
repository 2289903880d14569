"""Trace of a module in few ATen operations: parameters are inputs, branches those of one call."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

# Composite operations that the core set keeps: written out, they need no rules of their own.
_COMPOSITE = (
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_fused_rms_norm", "glu",
)  # fmt: skip


def trace(module: nn.Module, inputs: tuple[Any, ...]) -> fx.Graph:
    """Graph of ``module(*inputs)``; its first inputs are the parameters, then the buffers.

    Dropout counts as absent: the function is random, and symmetric in distribution. The module
    isn't changed.

    Raises ValueError if its control flow depends on values, or it fails on the inputs.
    """
    from torch._decomp import core_aten_decompositions, get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    module = without_dropout(module)
    params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    known = (getattr(torch.ops.aten, name, None) for name in _COMPOSITE)  # older releases lack some
    composite = get_decompositions([op for op in known if op is not None])
    table = {**core_aten_decompositions(), **composite}

    def call(params: Any, buffers: Any, args: Any) -> Any:
        return torch.func.functional_call(module, (params, buffers), args)

    traced: Any = call
    try:
        with _plain_kernels():
            for _ in range(2):  # decompositions write in place; the second time nothing does
                traced = make_fx(
                    torch.func.functionalize(traced), decomposition_table=table,
                    tracing_mode="fake", _allow_non_fake_inputs=True,
                )(params, buffers, inputs)  # fmt: skip
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{type(module).__name__} can't be traced: {type(error).__name__}: {reason} A branch "
            "on the values of tensors has no symmetry that one call can show; otherwise check that "
            "module(example_input) runs."
        ) from error
    return traced.graph


def without_dropout(module: nn.Module) -> nn.Module:
    """A copy in which dropout does nothing."""
    module = copy.deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.eval()
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
    return module


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Attention, encoders and recurrent layers by their definitions, not by fused kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast, onednn = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)  # `mkldnn.flags` sets more, and warns of GPUs
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(onednn)
