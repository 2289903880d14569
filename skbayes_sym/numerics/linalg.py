"""Linear algebra: Cholesky factors with error messages, layers, and ridge regression."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from skbayes_sym.numerics.random import normal_like


class NotPositiveDefiniteError(ArithmeticError):
    """Raised for a matrix that isn't positive definite in the arithmetic at hand."""


def cholesky(matrix: Tensor, *, name: str, remedy: str) -> Tensor:
    """Return lower Cholesky factors, (*B, n, n) -> (*B, n, n).

    Parameters
    ----------
    matrix : Tensor of shape (*B, n, n)
        Symmetric matrices, of which the lower triangle is read.
    name : str
        What the matrix is, for the error message.
    remedy : str
        What users can change, as a sentence.

    Returns
    -------
    Tensor of shape (*B, n, n)
        The factors.

    Raises
    ------
    NotPositiveDefiniteError
        If a matrix isn't positive definite, with the message
        ``"{name} isn't positive definite in this arithmetic. {remedy}"``.
    """
    factor = try_cholesky(matrix)
    if factor is None:
        raise NotPositiveDefiniteError(
            f"{name} isn't positive definite in this arithmetic. {remedy}"
        )
    return factor


def deferred_cholesky(matrix: Tensor, *, name: str, remedy: str) -> Tensor:
    """Return Cholesky factors without synchronisation, for training loops.

    On a GPU, a failure gives nan instead of an error, for which the host would have to wait. The
    loss is then nan, and the training loop raises an error at the end of its block. The parameters
    are those of `cholesky`.
    """
    if matrix.device.type == "cpu":
        return cholesky(matrix, name=name, remedy=remedy)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed == 0)[..., None, None], factor, torch.nan)


def try_cholesky(matrix: Tensor) -> Tensor | None:
    """Return lower Cholesky factors (*B, n, n), or None if any of the matrices has none."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if matrix.numel() and bool(failed.any()):
        return None
    return factor


def matrix_blocks(n: int, size: int) -> list[tuple[int, int]]:
    """Return begin and end of blocks of n matrices (size, size) to process at once.

    All blocks but the last have a multiple of 16 matrices. For n = 0 there is one empty block.
    """
    # 2 MB at once, which fit into the cache. From memory, elementwise operations between the
    # products would take as long as the products.
    step = max(16, (1 << 18) // max(size * size, 1) // 16 * 16)
    return [(begin, min(begin + step, n)) for begin in range(0, max(n, 1), step)]


def log_det(factor: Tensor) -> Tensor:
    """Return the log determinant of ``L L'`` from its Cholesky factor, (*B, n, n) -> (*B,)."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def add_to_diagonal(matrix: Tensor, value: Tensor | float) -> Tensor:
    """Add ``value I`` to matrices (*B, n, n) in place, and return them."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(value)
    return matrix


def shrink_to_diagonal(covariance: Tensor, share: float) -> Tensor:
    """Return ``(1 - share) S + share diag S``, which has full rank for any number of draws.

    The package regularises all covariances (*B, n, n) of draws in this way, which preserves
    variances and therefore units.
    """
    shrunk = (1.0 - share) * covariance
    shrunk.diagonal(dim1=-2, dim2=-1).copy_(covariance.diagonal(dim1=-2, dim2=-1))
    return shrunk


# A product and the transpose of its transposed factors have the same entries, but kernels work on
# tiles of fixed shape. The transposed gradient takes up to three times as long with few rows, and
# saves a sixth with many rows if the layer is wider than its input. A layer of many inputs, and of
# few outputs that don't fill tiles, takes two thirds of the time as ``W x'``. With complete tiles
# of 16, and with about fifty outputs or more, this saves nothing and can take twice as long. (MKL,
# float32 and float64. Gradients were measured on two types of CPU, narrow layers on one with
# AVX-512, where float64 saves a sixth.)
_MIN_TRANSPOSED_ROWS = 500  # smallest number of rows of a transposed gradient
# A layer is transposed with fewer outputs than these, an incomplete tile, and at least as many
# inputs.
_MAX_NARROW_OUTPUTS = 32
_TILE = 16
_MIN_NARROW_INPUTS = 100


def layer_outputs(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """Write ``x W' + b`` to ``out`` (R, N, out), for ``x`` (R, N, in) and ``W`` (R, out, in).

    Parameters
    ----------
    x : Tensor of shape (R, N, n_in)
        Inputs of R layers.
    weight : Tensor of shape (R, n_out, n_in)
        Weights W.
    bias : Tensor of shape (R, n_out)
        Biases b.
    out : Tensor of shape (R, N, n_out)
        Where the result is written.
    """
    *_, n_out, n_in = weight.shape
    is_narrow = n_out < _MAX_NARROW_OUTPUTS and n_out % _TILE and n_in >= _MIN_NARROW_INPUTS
    if is_narrow and x.device.type == "cpu":
        return torch.add(torch.bmm(weight, x.mT).mT, bias.unsqueeze(1), out=out)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT, out=out)


def weight_gradient(gradient: Tensor, h: Tensor, out: Tensor) -> Tensor:
    """Write ``g' h`` to ``out`` (R, out, in), for ``g`` (R, N, out) and ``h`` (R, N, in)."""
    if gradient.shape[2] <= h.shape[2] or h.shape[1] < _MIN_TRANSPOSED_ROWS:
        return torch.bmm(gradient.mT, h, out=out)
    return out.copy_(torch.bmm(h.mT, gradient).mT)


class Resolvent(NamedTuple):
    """Solutions, and two functions of the matrix that a Gaussian KL divergence needs.

    Attributes
    ----------
    solution : Tensor of shape (*B, n, J, H)
        Solutions for each right-hand side and gain.
    trace : Tensor of shape (*B, H)
        Trace of ``(I + a_h K)^-1``.
    log_det : Tensor of shape (*B, H)
        Log determinant of ``I + a_h K``.
    """

    solution: Tensor  # (*B, n, J, H)
    trace: Tensor  # of (I + a_h K)^-1, (*B, H)
    log_det: Tensor  # of I + a_h K, (*B, H)


def resolvent(matrix: Tensor, gain: Tensor, right: Tensor) -> Resolvent:
    """Solve ``(I + a_h K) x = r`` for H gains by one eigendecomposition.

    Parameters
    ----------
    matrix : Tensor of shape (*B, n, n)
        K, symmetric and positive semidefinite.
    gain : Tensor of shape (H,)
        Positive gains a.
    right : Tensor of shape (*B, n, J, H)
        J right-hand sides for each gain.

    Returns
    -------
    Resolvent
        Solutions, traces and log determinants.

    Notes
    -----
    The cost is O(n^3 + n^2 J H) instead of O(n^3 H) for H Cholesky factors. The gradient is
    explicit: with ``y = (I + a K)^-1 xbar`` it is ``-sum a_h y x'`` for K. Repeated eigenvalues, at
    which the derivatives of eigenvectors are infinite, are therefore harmless.
    """
    return Resolvent(*_Resolvent.apply(matrix, gain, right))


class _Resolvent(torch.autograd.Function):
    """`resolvent` with an explicit gradient."""

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, gain: Tensor, right: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return solution, trace and log determinant."""
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
        """Return the derivatives by matrix, gain and right-hand side."""
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
    """Return ``vectors @ right`` over the third axis from the end."""
    return (vectors @ right.flatten(-2)).unflatten(-1, right.shape[-2:])


@dataclass(frozen=True, eq=False)
class RidgePosterior:
    """Posterior of ``w ~ N(0, I)`` given ``y = A w + e``, ``e ~ N(0, I)``, ``A = diag(scale) F``.

    Leading axes ``*B`` broadcast, so targets can share features, and draws of features can share
    targets.

    Parameters
    ----------
    features : Tensor of shape (*B, n, d)
        Features F.
    scale : Tensor of shape (*B, n)
        Ratio of the prior's to the noise's standard deviation, for each row.
    y : Tensor of shape (*B, n)
        Targets in units of the noise.

    Notes
    -----
    This takes one Cholesky factor of ``I + A A'`` if ``is_wide`` (d > n), and of ``I + A' A``
    otherwise: O(n d r + r^3) with ``r = min(n, d)``.
    """

    features: Tensor
    scale: Tensor
    y: Tensor

    @property
    def is_wide(self) -> bool:
        """Whether there are more weights than rows."""
        return self.features.shape[-1] > self.features.shape[-2]

    @cached_property
    def _design(self) -> Tensor:
        """Design matrix A, (*B, n, d)."""
        return self.scale.unsqueeze(-1) * self.features

    @cached_property
    def _factor(self) -> Tensor:
        """Cholesky factor of ``I + A A'`` or ``I + A' A``."""
        a = self._design
        return _factor(a @ a.mT if self.is_wide else a.mT @ a, cholesky)

    @cached_property
    def root(self) -> Tensor:
        """Root R (*B, r, d) of the covariance, ``I - R' R`` if ``is_wide``, else ``R' R``."""
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
        """Return ``log N(y; 0, I + A A')`` without ``-n / 2 log(2 pi)``, (*B,) nats.

        It is differentiable once, by an explicit gradient. With ``K = I + A A'`` and ``alpha = K^-1
        y`` it is ``(alpha alpha' - K^-1) A`` for A. This is one matrix product, whereas
        differentiating ``A A'`` and its Cholesky factor takes two products and four triangular
        solves.
        """
        evidence = _WideEvidence if self.is_wide else _NarrowEvidence
        return evidence.apply(self.features, self.scale, self.y)

    def draw(self, *, generator: torch.Generator) -> Tensor:
        """Sample the weights, (*B, d), by Matheron's rule: a corrected prior draw."""
        a = self._design
        prior, error = (
            normal_like((*a.shape[:-2], size, 1), generator=generator, like=a)
            for size in (a.shape[-1], a.shape[-2])
        )
        residual = self.y.unsqueeze(-1) - a @ prior - error
        if self.is_wide:
            shift = a.mT @ torch.cholesky_solve(residual, self._factor)
        else:
            shift = torch.cholesky_solve(a.mT @ residual, self._factor)
        return (prior + shift).squeeze(-1)


class _WideEvidence(torch.autograd.Function):
    """Evidence by K, (n, n); ``scale`` multiplies products of the features."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, scale: Tensor, y: Tensor) -> Tensor:
        """Return the log evidence."""
        products = features @ features.mT
        factor = _factor(products * _outer(scale), deferred_cholesky)
        alpha = torch.cholesky_solve(y.expand(factor.shape[:-1]).unsqueeze(-1), factor)
        ctx.save_for_backward(features, scale, y, products, factor, alpha)
        return _evidence(y, alpha, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the derivatives by features, scale and targets."""
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
        """Return the log evidence."""
        design = scale.unsqueeze(-1) * features
        factor = _factor(design.mT @ design, deferred_cholesky)
        projection = design.mT @ y.unsqueeze(-1)
        alpha = y.unsqueeze(-1) - design @ torch.cholesky_solve(projection, factor)
        ctx.save_for_backward(features, scale, y, design, factor, alpha)
        return _evidence(y, alpha, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the derivatives by features, scale and targets."""
        features, scale, y, design, factor, alpha = ctx.saved_tensors
        share = d_value[..., None, None]
        inverse = torch.cholesky_inverse(factor)
        d_design = (share * alpha) @ (alpha.mT @ design) - design @ (share * inverse)
        d_features = scale.unsqueeze(-1) * d_design
        d_scale = (d_design * features).sum(-1)
        d_y = -(share * alpha).squeeze(-1)
        return _like(d_features, features), _like(d_scale, scale), _like(d_y, y)


def _factor(matrix: Tensor, factored: Callable[..., Tensor] = cholesky) -> Tensor:
    """Return the Cholesky factor of I + matrix; overwrites the matrix."""
    return factored(
        add_to_diagonal(matrix, 1.0), name="The precision of a ridge regression",
        remedy="Rows outweigh the prior by more digits than there are: give a larger noise_std, "
        "give a smaller prior, standardize the data or give X as float64.",
    )  # fmt: skip


def _evidence(y: Tensor, alpha: Tensor, factor: Tensor) -> Tensor:
    """Return the log evidence from ``alpha = K^-1 y`` and the factor."""
    return -0.5 * ((y * alpha.squeeze(-1)).sum(-1) + log_det(factor))


def _outer(scale: Tensor) -> Tensor:
    """Return outer products of scales, (*B, n) -> (*B, n, n)."""
    return scale.unsqueeze(-1) * scale.unsqueeze(-2)


def _like(gradient: Tensor, argument: Tensor) -> Tensor:
    """Sum a gradient over the axes along which the argument was broadcast."""
    return gradient.sum_to_size(argument.shape)


def as_double(values: Tensor) -> Tensor:
    """Return real numbers in float64, and integers such as class codes as they are."""
    if values.is_floating_point():
        return values.double()
    return values
