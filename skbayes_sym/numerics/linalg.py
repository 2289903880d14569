"""Linear algebra: Cholesky factors with a remedy, layers, ridge regression, many ridge systems."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from skbayes_sym.numerics.random import normal_like


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix that must be positive definite isn't, in the arithmetic at hand."""


def cholesky(matrix: Tensor, *, name: str, remedy: str) -> Tensor:
    """Lower Cholesky factors, (*B, n, n) -> (*B, n, n).

    ``matrix`` (*B, n, n): symmetric; the lower triangle is read. ``name``: what the matrix is, as
    the beginning of a sentence. ``remedy``: a sentence: what to change. Raises
    NotPositiveDefiniteError: ``"{name} isn't positive definite in this arithmetic. {remedy}"``.
    """
    factor = try_cholesky(matrix)
    if factor is None:
        raise NotPositiveDefiniteError(
            f"{name} isn't positive definite in this arithmetic. {remedy}"
        )
    return factor


def deferred_cholesky(matrix: Tensor, *, name: str, remedy: str) -> Tensor:
    """`cholesky` for training loops: on a GPU a failure is nan instead of an error.

    An error would have the host wait for every factor. The loss is nan then, and the loop that
    looks at it at the end of its block says so.
    """
    if matrix.device.type == "cpu":
        return cholesky(matrix, name=name, remedy=remedy)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed == 0)[..., None, None], factor, torch.nan)


def try_cholesky(matrix: Tensor) -> Tensor | None:
    """Lower Cholesky factors (*B, n, n), or None if any of the matrices has none."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return None if matrix.numel() and bool(failed.any()) else factor


def matrix_blocks(n: int, size: int) -> list[tuple[int, int]]:
    """Begin and end of parts of n matrices (size, size) to work on at once; one empty part of none.

    All parts but the last have a multiple of 16 matrices.
    """
    # 2 MB at once, which the processor's cache holds: from memory, elementwise steps between the
    # products cost as much as these.
    step = max(16, (1 << 18) // max(size * size, 1) // 16 * 16)
    return [(begin, min(begin + step, n)) for begin in range(0, max(n, 1), step)]


def log_det(factor: Tensor) -> Tensor:
    """Log determinant of ``L L'`` from its Cholesky factor, (*B, n, n) -> (*B,)."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def add_to_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    """``matrix + value I`` for matrices (*B, n, n), in place; returns the matrix."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(value)
    return matrix


def shrink_to_diagonal(covariance: Tensor, share: float) -> Tensor:
    """``(1 - share) S + share diag S``, of full rank however few draws S is estimated from.

    The one way a covariance (*B, n, n) of draws is regularised here: it keeps all variances, and
    with them the units.
    """
    shrunk = (1.0 - share) * covariance
    shrunk.diagonal(dim1=-2, dim2=-1).copy_(covariance.diagonal(dim1=-2, dim2=-1))
    return shrunk


# A product and its transpose are the same numbers, but kernels work on tiles of fixed shape. With
# few rows the turned gradient takes up to three times as long, with many rows a layer that is wider
# than its input gains a sixth. A layer of many inputs and few outputs that don't fill tiles takes
# two thirds of the time as ``W x'``; with whole tiles of 16, and from some fifty outputs on, that
# gains nothing and can take twice as long. (MKL, float32 and float64; gradients measured on two
# kinds of CPU, narrow layers on one with AVX-512, where float64 gains a sixth.)
_LEAST_ROWS = 500  # of a gradient that is turned
# of a layer that is turned
_FEW_OUTPUTS = 32
_TILE = 16
_LEAST_INPUTS = 100


def layer_outputs(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """``x W' + b`` for ``x`` (R, N, in) and ``W`` (R, out, in), into ``out`` (R, N, out)."""
    *_, n_out, n_in = weight.shape
    is_narrow = n_out < _FEW_OUTPUTS and n_out % _TILE and n_in >= _LEAST_INPUTS
    if is_narrow and x.device.type == "cpu":
        return torch.add(torch.bmm(weight, x.mT).mT, bias.unsqueeze(1), out=out)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT, out=out)


def weight_gradient(gradient: Tensor, h: Tensor, out: Tensor) -> Tensor:
    """``g' h`` for ``g`` (R, N, out) and ``h`` (R, N, in), into ``out`` (R, out, in)."""
    if gradient.shape[2] <= h.shape[2] or h.shape[1] < _LEAST_ROWS:
        return torch.bmm(gradient.mT, h, out=out)
    return out.copy_(torch.bmm(h.mT, gradient).mT)


class Resolvent(NamedTuple):
    """Solutions with the two functions of the matrix that a Gaussian KL needs."""

    solution: Tensor  # (*B, n, J, H)
    trace: Tensor  # of (I + a_h K)^-1, (*B, H)
    log_det: Tensor  # of I + a_h K, (*B, H)


def resolvent(matrix: Tensor, gain: Tensor, right: Tensor) -> Resolvent:
    """Solve ``(I + a_h K) x = r`` for H gains by one eigendecomposition.

    ``matrix`` (*B, n, n): K, symmetric and positive semidefinite; ``gain`` (H,): a, positive;
    ``right`` (*B, n, J, H): J right-hand sides for every gain.

    O(n^3 + n^2 J H) instead of O(n^3 H) for H Cholesky factors. The gradient is written out: with
    ``y = (I + a K)^-1 xbar`` it is ``-sum a_h y x'`` for K, and ties of eigenvalues, where the
    derivatives of eigenvectors are infinite, do no harm.
    """
    return Resolvent(*_Resolvent.apply(matrix, gain, right))


class _Resolvent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, gain: Tensor, right: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        values = values.clamp_min(0.0)  # rounding makes some of them negative
        scaled = values.unsqueeze(-1) * gain  # (*B, n, H)
        shrink = 1.0 / (1.0 + scaled)
        solution = _rotate(vectors, shrink.unsqueeze(-2) * _rotate(vectors.mT, right))
        ctx.save_for_backward(values, vectors, gain, shrink, solution)
        return solution, shrink.sum(-2), scaled.log1p().sum(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_solution: Tensor, d_trace: Tensor, d_log_det: Tensor) -> Any:
        values, vectors, gain, shrink, solution = ctx.saved_tensors
        y_rotated = shrink.unsqueeze(-2) * _rotate(vectors.mT, d_solution)
        y = _rotate(vectors, y_rotated)
        outer = (y * gain).flatten(-2) @ solution.flatten(-2).mT
        inner = d_log_det.unsqueeze(-2) * shrink - d_trace.unsqueeze(-2) * shrink**2
        spectral = (inner * gain).sum(-1)
        d_matrix = (vectors * spectral.unsqueeze(-2)) @ vectors.mT - 0.5 * (outer + outer.mT)
        x_rotated = _rotate(vectors.mT, solution)
        by_gain = (values[..., None, None] * y_rotated * x_rotated).sum((-3, -2))
        d_gain = (values.unsqueeze(-1) * inner).sum(-2) - by_gain
        return d_matrix, d_gain.reshape(-1, d_gain.shape[-1]).sum(0), y


def _rotate(vectors: Tensor, right: Tensor) -> Tensor:
    """``vectors @ right`` over the third axis from the end."""
    return (vectors @ right.flatten(-2)).unflatten(-1, right.shape[-2:])


@dataclass(frozen=True, eq=False)
class RidgePosterior:
    """Weights ``w ~ N(0, I)`` given ``y = A w + e`` with ``e ~ N(0, I)``, ``A = diag(scale) F``.

    Leading axes ``*B`` of the three broadcast: features may be shared by targets, and targets by
    draws of features.

    One Cholesky factor of ``I + A A'`` if ``is_wide`` (d > n) and of ``I + A' A`` otherwise:
    O(n d r + r^3) with ``r = min(n, d)``.
    """

    features: Tensor  # (*B, n, d); F
    scale: Tensor  # (*B, n); prior over noise standard deviation of every row
    y: Tensor  # (*B, n); targets in units of the noise

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
        return _factor(a @ a.mT if self.is_wide else a.mT @ a, cholesky)

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

    def log_evidence(self) -> Tensor:
        """``log N(y; 0, I + A A')`` without ``-n / 2 log(2 pi)``, (*B,) nats.

        Differentiable once. The gradient is written out: with ``K = I + A A'`` and
        ``alpha = K^-1 y`` it is ``(alpha alpha' - K^-1) A`` for A, one matrix product where
        differentiating ``A A'`` and its Cholesky factor takes two and four triangular solves.
        """
        evidence = _WideEvidence if self.is_wide else _NarrowEvidence
        return evidence.apply(self.features, self.scale, self.y)

    def draw(self, *, generator: torch.Generator) -> Tensor:
        """Draw the weights, (*B, d): a prior draw moved by the data it got wrong.

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
    """Evidence by K, (n, n); ``scale`` never meets the features, only their products."""

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
    """Evidence by ``I + A' A``, (d, d)."""

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
        d_scale = (d_design * features).sum(-1)
        d_y = -(share * alpha).squeeze(-1)
        return _like(d_features, features), _like(d_scale, scale), _like(d_y, y)


def _factor(matrix: Tensor, factored: Callable[..., Tensor] = cholesky) -> Tensor:
    """Cholesky factor of I + matrix; overwrites it."""
    return factored(
        add_to_diagonal(matrix, 1.0), name="The precision of a ridge regression",
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
