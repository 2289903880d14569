"""Density of a normal whose covariance is the identity plus a low rank, with its gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def log_density_up_to_constant(features: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """``log N(y; 0, I + A A')`` without ``-n / 2 log(2 pi)``, ``A = diag(scale) F``; (*B,) nats.

    Parameters
    ----------
    features : Tensor of shape (*B, n, d)
        F.
    scale : Tensor of shape (n,)
    y : Tensor of shape (n,)

    Notes
    -----
    O(n d r + r^3) with ``r = min(n, d)``. The gradient is written out: with ``K = I + A A'`` and
    ``alpha = K^-1 y`` it is ``(alpha alpha' - K^-1) A`` for A, one matrix product where
    differentiating ``A A'`` and its Cholesky factor takes two and four triangular solves.
    """
    is_wide = features.shape[-1] > features.shape[-2]
    return (_Wide if is_wide else _Narrow).apply(features, scale, y)


class _Wide(torch.autograd.Function):
    """By K, (n, n); ``scale`` never meets the features, only their products."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, scale: Tensor, y: Tensor) -> Tensor:
        products = features @ features.mT
        factor = _factor(products * torch.outer(scale, scale))
        alpha = torch.cholesky_solve(y.expand(features.shape[:-1]).unsqueeze(-1), factor)
        ctx.save_for_backward(features, scale, products, factor, alpha)
        return _value(y, alpha, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, scale, products, factor, alpha = ctx.saved_tensors
        share = d_value[..., None, None]
        by_k = share * (alpha @ alpha.mT - torch.cholesky_inverse(factor))  # twice d value / d K
        d_features = (by_k * torch.outer(scale, scale)) @ features
        d_scale = (by_k * products) @ scale
        return d_features, _summed(d_scale), _summed(-(share * alpha).squeeze(-1))


class _Narrow(torch.autograd.Function):
    """By ``I + A' A``, (d, d)."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, scale: Tensor, y: Tensor) -> Tensor:
        design = scale.unsqueeze(-1) * features
        factor = _factor(design.mT @ design)
        seen = design.mT @ y.unsqueeze(-1)
        alpha = y.unsqueeze(-1) - design @ torch.cholesky_solve(seen, factor)
        ctx.save_for_backward(features, scale, design, factor, alpha)
        return _value(y, alpha, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, scale, design, factor, alpha = ctx.saved_tensors
        share = d_value[..., None, None]
        inverse = torch.cholesky_inverse(factor)
        d_design = (share * alpha) @ (alpha.mT @ design) - design @ (share * inverse)
        d_scale = (d_design * features).sum(-1)
        return (
            scale.unsqueeze(-1) * d_design,
            _summed(d_scale),
            _summed(-(share * alpha).squeeze(-1)),
        )


def _factor(matrix: Tensor) -> Tensor:
    """Cholesky factor of I + matrix; overwrites it."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return torch.linalg.cholesky(matrix)


def _value(y: Tensor, alpha: Tensor, factor: Tensor) -> Tensor:
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return -0.5 * ((y * alpha.squeeze(-1)).sum(-1) + log_det)


def _summed(gradient: Tensor) -> Tensor:
    """Over the leading axes, (*B, n) -> (n,)."""
    return gradient.reshape(-1, gradient.shape[-1]).sum(0)
