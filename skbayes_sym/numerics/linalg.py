"""Cholesky factors that say what failed and what to do, and what is read off them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# Numbers of a stack of matrices that is worked on at once, so that it stays in the processor's
# cache: from memory, elementwise steps between the products cost as much as these.
_NUMBERS_AT_ONCE = 1 << 18


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix that must be positive definite isn't, in the arithmetic at hand."""


@contextmanager
def decompositions_in_words() -> Iterator[None]:
    """Say what to do where torch's own decompositions fail.

    Raises
    ------
    NotPositiveDefiniteError
        In place of a `torch.linalg.LinAlgError`.
    """
    try:
        yield
    except torch.linalg.LinAlgError as error:
        raise NotPositiveDefiniteError(
            "a matrix has no decomposition in this arithmetic: data or hyperparameters are "
            "extreme. Standardise X and y, give X as float64, or give scales, noise and "
            f"learning rates ordinary values. ({str(error).splitlines()[0]})"
        ) from error


def cholesky(matrix: Tensor, *, what: str, remedy: str) -> Tensor:
    """Lower Cholesky factors, (*B, n, n) -> (*B, n, n).

    Parameters
    ----------
    matrix : Tensor of shape (*B, n, n)
        Symmetric; the lower triangle is read.
    what : str
        What the matrix is, as the beginning of a sentence.
    remedy : str
        A sentence: what to change.

    Raises
    ------
    NotPositiveDefiniteError
        ``"{what} isn't positive definite in this arithmetic. {remedy}"``
    """
    factor = try_cholesky(matrix)
    if factor is None:
        raise NotPositiveDefiniteError(
            f"{what} isn't positive definite in this arithmetic. {remedy}"
        )
    return factor


def deferred_cholesky(matrix: Tensor, *, what: str, remedy: str) -> Tensor:
    """`cholesky` for training loops: on a GPU a failure is nan instead of an error.

    An error would have the host wait for every factor. The loss is nan then, and the loop that
    looks at it at the end of its block says so.
    """
    if matrix.device.type == "cpu":
        return cholesky(matrix, what=what, remedy=remedy)
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
    step = max(16, _NUMBERS_AT_ONCE // max(size * size, 1) // 16 * 16)
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
