"""Density of a normal whose covariance is the identity plus a low rank, with its gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def log_density_up_to_constant(design: Tensor, y: Tensor) -> Tensor:
    """``log N(y; 0, I + A A')`` without its constant ``-n / 2 log(2 pi)``, (*B,) nats.

    Parameters
    ----------
    design : Tensor of shape (*B, n, d)
        A.
    y : Tensor of shape (n,)

    Notes
    -----
    O(n d r + r^3) with ``r = min(n, d)``. The gradient is written out: with ``K = I + A A'`` and
    ``alpha = K^-1 y`` it is ``alpha alpha' A - K^-1 A`` for A, one matrix product where
    differentiating ``A A'`` and its Cholesky factor takes two and four triangular solves.
    """
    return _LogDensity.apply(design, y)


class _LogDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, design: Tensor, y: Tensor) -> Tensor:
        is_wide = design.shape[-1] > design.shape[-2]
        gram = design @ design.mT if is_wide else design.mT @ design
        gram.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor = torch.linalg.cholesky(gram)
        column = y.expand(*design.shape[:-1]).unsqueeze(-1)
        if is_wide:
            alpha = torch.cholesky_solve(column, factor)
        else:
            alpha = column - design @ torch.cholesky_solve(design.mT @ column, factor)
        ctx.save_for_backward(design, factor, alpha)
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * ((y * alpha.squeeze(-1)).sum(-1) + log_det)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> Any:
        design, factor, alpha = ctx.saved_tensors
        share = d_value[..., None, None]
        inverse = torch.cholesky_inverse(factor)
        if design.shape[-1] > design.shape[-2]:
            d_design = (share * (alpha @ alpha.mT - inverse)) @ design
        else:
            d_design = (share * alpha) @ (alpha.mT @ design) - design @ (share * inverse)
        d_y = -(share * alpha).squeeze(-1)
        return d_design, d_y.reshape(-1, d_y.shape[-1]).sum(0)
