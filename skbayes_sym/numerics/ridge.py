"""Bayesian linear regression with unit prior and unit noise, in the smaller dimension."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from skbayes_sym.numerics.gaussian import kl_from_standard
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky, deferred_cholesky, log_det
from skbayes_sym.numerics.random import normal_like


@dataclass(frozen=True, eq=False)
class RidgePosterior:
    """Weights ``w ~ N(0, I)`` given ``y = A w + e`` with ``e ~ N(0, I)``, ``A = diag(scale) F``.

    Leading axes ``*B`` of the three broadcast: features may be shared by targets, and targets by
    draws of features.

    Parameters
    ----------
    features : Tensor of shape (*B, n, d)
        F.
    scale : Tensor of shape (*B, n)
        Prior over noise standard deviation of every row.
    y : Tensor of shape (*B, n)
        Targets in units of the noise.

    Notes
    -----
    One Cholesky factor of ``I + A A'`` if ``is_wide`` (d > n) and of ``I + A' A`` otherwise:
    O(n d r + r^3) with ``r = min(n, d)``.
    """

    features: Tensor
    scale: Tensor
    y: Tensor

    @property
    def is_wide(self) -> bool:
        """More weights than rows."""
        return self.features.shape[-1] > self.features.shape[-2]

    @cached_property
    def _design(self) -> Tensor:
        return self.scale.unsqueeze(-1) * self.features

    @cached_property
    def _factor(self) -> Tensor:
        a = self._design
        trains = torch.is_grad_enabled()
        products = a @ a.mT if self.is_wide else a.mT @ a
        return _factor(products, deferred_cholesky if trains else cholesky)

    @cached_property
    def root(self) -> Tensor:
        """R of the posterior covariance, (*B, r, d): ``I - R' R`` if ``is_wide``, else ``R' R``."""
        if self.is_wide:
            return torch.linalg.solve_triangular(self._factor, self._design, upper=False)
        eye = torch.eye(self._factor.shape[-1], dtype=self.y.dtype, device=self.y.device)
        return torch.linalg.solve_triangular(
            self._factor, eye.expand_as(self._factor), upper=False
        )  # fmt: skip

    @cached_property
    def mean(self) -> Tensor:
        """Posterior mean, (*B, d)."""
        target = self.y.expand(self._design.shape[:-1]).unsqueeze(-1)
        if self.is_wide:
            white = torch.linalg.solve_triangular(self._factor, target, upper=False)
        else:
            white = self.root @ (self._design.mT @ target)
        return (self.root.mT @ white).squeeze(-1)

    def variance(self, features: Tensor) -> Tensor:
        """Posterior variance of ``features @ w``, (*B, N, d) -> (*B, N)."""
        seen = (self.root @ features.mT).square().sum(-2)
        return (features.square().sum(-1) - seen).clamp_min(0.0) if self.is_wide else seen

    def kl(self) -> Tensor:
        """KL from the prior, (*B,) nats."""
        d = self.features.shape[-1]
        trace = torch.cholesky_inverse(self._factor).diagonal(dim1=-2, dim2=-1).sum(-1)
        trace = trace + (d - self._factor.shape[-1])  # unseen directions keep their variance
        return kl_from_standard(trace, self.mean.square().sum(-1), -log_det(self._factor), d)

    def log_evidence(self) -> Tensor:
        """``log N(y; 0, I + A A')`` without ``-n / 2 log(2 pi)``, (*B,) nats.

        Differentiable once. The gradient is written out: with ``K = I + A A'`` and
        ``alpha = K^-1 y`` it is ``(alpha alpha' - K^-1) A`` for A, one matrix product where
        differentiating ``A A'`` and its Cholesky factor takes two and four triangular solves.
        """
        evidence = _WideEvidence if self.is_wide else _NarrowEvidence
        return evidence.apply(self.features, self.scale, self.y)

    def draw(self, *, generator: torch.Generator) -> Tensor:
        """One draw of the weights, (*B, d): a prior draw moved by the data it got wrong.

        Matheron's rule.
        """
        a = self._design
        prior, error = (
            normal_like((*a.shape[:-2], size, 1), generator=generator, like=a)
            for size in (a.shape[-1], a.shape[-2])
        )
        wrong = self.y.unsqueeze(-1) - a @ prior - error
        if self.is_wide:
            shift = a.mT @ torch.cholesky_solve(wrong, self._factor)
        else:
            shift = torch.cholesky_solve(a.mT @ wrong, self._factor)
        return (prior + shift).squeeze(-1)


class _WideEvidence(torch.autograd.Function):
    """By K, (n, n); ``scale`` never meets the features, only their products."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, scale: Tensor, y: Tensor) -> Tensor:
        products = features @ features.mT
        factor = _factor(products * _outer(scale), deferred_cholesky)
        alpha = torch.cholesky_solve(y.expand(factor.shape[:-1]).unsqueeze(-1), factor)
        ctx.save_for_backward(features, scale, y, products, factor, alpha)
        return _evidence(y, alpha, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, scale, y, products, factor, alpha = ctx.saved_tensors
        share = d_value[..., None, None]
        by_k = share * (alpha @ alpha.mT - torch.cholesky_inverse(factor))  # twice d value / d K
        d_features = (by_k * _outer(scale)) @ features
        d_scale = ((by_k * products) @ scale.unsqueeze(-1)).squeeze(-1)
        d_y = -(share * alpha).squeeze(-1)
        return _like(d_features, features), _like(d_scale, scale), _like(d_y, y)


class _NarrowEvidence(torch.autograd.Function):
    """By ``I + A' A``, (d, d)."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, scale: Tensor, y: Tensor) -> Tensor:
        design = scale.unsqueeze(-1) * features
        factor = _factor(design.mT @ design, deferred_cholesky)
        seen = design.mT @ y.unsqueeze(-1)
        alpha = y.unsqueeze(-1) - design @ torch.cholesky_solve(seen, factor)
        ctx.save_for_backward(features, scale, y, design, factor, alpha)
        return _evidence(y, alpha, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, scale, y, design, factor, alpha = ctx.saved_tensors
        share = d_value[..., None, None]
        inverse = torch.cholesky_inverse(factor)
        d_design = (share * alpha) @ (alpha.mT @ design) - design @ (share * inverse)
        d_features = scale.unsqueeze(-1) * d_design
        d_scale, d_y = (d_design * features).sum(-1), -(share * alpha).squeeze(-1)
        return _like(d_features, features), _like(d_scale, scale), _like(d_y, y)


def _factor(matrix: Tensor, factored: Callable[..., Tensor] = cholesky) -> Tensor:
    """Cholesky factor of I + matrix; overwrites it."""
    return factored(
        add_to_diagonal(matrix, 1.0), what="The precision of a ridge regression",
        remedy="Rows outweigh the prior by more digits than there are: give a larger noise_std, "
        "give a smaller prior, standardize the data or give X as float64.",
    )  # fmt: skip


def _evidence(y: Tensor, alpha: Tensor, factor: Tensor) -> Tensor:
    return -0.5 * ((y * alpha.squeeze(-1)).sum(-1) + log_det(factor))


def _outer(scale: Tensor) -> Tensor:
    return scale.unsqueeze(-1) * scale.unsqueeze(-2)


def _like(gradient: Tensor, argument: Tensor) -> Tensor:
    """Summed over the axes along which the argument was broadcast."""
    return gradient.sum_to_size(argument.shape)
