"""Matrix products of a linear layer, in the orientation that BLAS does faster.

A product and its transpose are the same numbers, but kernels work on tiles of fixed shape: where
one side is short, one of the two can take three times as long. The thresholds are measured
(float32 and float64, MKL, 100 to 5,000 rows); the times at both sides of them differ by a tenth.
"""

import torch
from torch import Tensor

# A turned affine map has a pass over its result on top, so it has to gain more.
_FORWARD_RATIO = 8


def affine(bias: Tensor, h: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """``h W' + b`` for ``h`` (N, in), ``W`` (out, in), into ``out`` (N, out)."""
    n_out, n_in = weight.shape
    if n_in < _FORWARD_RATIO * n_out or n_out == 1:
        return torch.addmm(bias, h, weight.T, out=out)
    return torch.add(torch.mm(weight, h.T).T, bias, out=out)


def weight_gradient(gradient: Tensor, h: Tensor, out: Tensor) -> Tensor:
    """``g' h`` for ``g`` (N, out) and ``h`` (N, in), into ``out`` (out, in)."""
    if gradient.shape[1] <= h.shape[1]:
        return torch.mm(gradient.T, h, out=out)
    return out.copy_(torch.mm(h.T, gradient).T)
