"""Products of a linear layer, in the orientation that BLAS does faster.

A product and its transpose are the same numbers, but kernels work on tiles of fixed shape. With
few rows the turned gradient takes up to three times as long, with many rows a layer that is wider
than its input gains a sixth. A layer of many inputs and few outputs that don't fill tiles takes
two thirds of the time as ``W x'``; with whole tiles of 16, and from some fifty outputs on, that
gains nothing and can take twice as long. (MKL, float32 and float64; gradients measured on two kinds
of CPU, narrow layers on one with AVX-512, where float64 gains a sixth.)
"""

import torch
from torch import Tensor

_LEAST_ROWS = 500  # of a gradient that is turned
_FEW_OUTPUTS, _TILE, _LEAST_INPUTS = 32, 16, 100  # of a layer that is turned


def layer_outputs(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """``x W' + b`` for ``x`` (N, in) and ``W`` (out, in), into ``out`` (N, out)."""
    n_out, n_in = weight.shape
    is_narrow = n_out < _FEW_OUTPUTS and n_out % _TILE and n_in >= _LEAST_INPUTS
    if is_narrow and x.device.type == "cpu":
        return torch.add(torch.mm(weight, x.T).T, bias, out=out)
    return torch.addmm(bias, x, weight.T, out=out)


def weight_gradient(gradient: Tensor, h: Tensor, out: Tensor) -> Tensor:
    """``g' h`` for ``g`` (N, out) and ``h`` (N, in), into ``out`` (out, in)."""
    if gradient.shape[1] <= h.shape[1] or len(h) < _LEAST_ROWS:
        return torch.mm(gradient.T, h, out=out)
    return out.copy_(torch.mm(h.T, gradient).T)
