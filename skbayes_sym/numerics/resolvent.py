"""Many ridge systems with one matrix: ``(I + a_h K) x_h = r_h`` for all h at once."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Resolvent(NamedTuple):
    """Solutions with the two functions of the matrix that a Gaussian KL needs."""

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
        a, positive.
    right : Tensor of shape (*B, n, J, H)
        J right-hand sides for every gain.

    Notes
    -----
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
