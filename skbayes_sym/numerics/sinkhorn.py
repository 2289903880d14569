"""Doubly stochastic matrices from log weights."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

SINKHORN_ITERATIONS = 10

# A zero weight (log -inf) enters the iterations as this: still zero next to any other weight, but
# finite, so that a row without positive weight gives no NaN. Fits float32.
_LOG_ZERO = -1e30

# Bethe messages grow without end where the optimum is a permutation matrix. Far below this bound a
# sigmoid is exactly 0 or 1; the bound keeps inf - inf out of the iteration.
_MESSAGE_BOUND = 1e12


def require_square(log_weights: Tensor) -> None:
    """Raise ValueError unless `log_weights` is a floating tensor of shape (*B, d, d)."""
    shape = tuple(log_weights.shape)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"log_weights must have shape (*B, d, d), got {shape}; d rows, d columns.")
    if not log_weights.is_floating_point():
        raise ValueError(
            f"log_weights must be floating point, got {log_weights.dtype}; try .double()."
        )


def sinkhorn(log_weights: Tensor, n_iter: int = SINKHORN_ITERATIONS) -> Tensor:
    r"""Scale rows and columns towards a doubly stochastic matrix, in log space.

    :math:`B = L + r 1^\top + 1 c^\top` after one row softmax and `n_iter` rounds of a column and a
    row softmax. Column-first would leave row levels of +-1000 (one weight vector far from every
    centre) unscaled for many rounds.

    ``log_weights`` (*B, d, d): log weights in nats. -inf is a zero weight. ``n_iter``: column and
    row rounds after the first row step. Returns (*B, d, d), log of the scaled matrix, finite: a
    zero weight comes back as about -1e30. Rows of ``exp(B)`` sum to one; columns do so in the
    limit.

    Permuting the rows of `log_weights` permutes the rows of the result. Differentiable, cost
    O(n_iter d^2). Convergence is geometric if every positive entry lies on a permutation of
    positive entries, slow otherwise, absent where the permanent is 0 (Sinkhorn & Knopp 1967).
    """
    require_square(log_weights)
    scaled = log_weights.clamp(min=_LOG_ZERO).log_softmax(-1)
    for _ in range(n_iter):
        scaled = scaled.log_softmax(-2).log_softmax(-1)
    return scaled


def balancing_scales(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Log row scales (*B, d, 1) and log column scales (*B, 1, d) of the Sinkhorn scaling.

    Means over the positive entries: exact without zero weights. With them merely some scales,
    which is all that a bound that holds for every scaling asks for. Differentiable, cost O(d^2).
    """
    positive = log_weights > -torch.inf
    shift = (sinkhorn(log_weights) - log_weights).where(positive, 0.0)
    row = shift.sum(-1, keepdim=True) / positive.sum(-1, keepdim=True).clamp(min=1)
    remainder = (shift - row).where(positive, 0.0)
    column = remainder.sum(-2, keepdim=True) / positive.sum(-2, keepdim=True).clamp(min=1)
    return row, column


def bethe_log_marginals(log_weights: Tensor, n_iter: int) -> Tensor:
    r"""Log of the Bethe marginals of a random assignment, by sum-product message passing.

    Row to column, then column to row, each message the negative log sum of the others:

    .. math:: u_{ij} = -\log \sum_{k \ne j} e^{L_{ik} + v_{ik}}, \quad
        v_{ij} = -\log \sum_{k \ne i} e^{L_{kj} + u_{kj}}, \quad
        P_{ij} = \operatorname{sigmoid}(L_{ij} + u_{ij} + v_{ij}).

    ``log_weights`` (*B, d, d): log weights in nats. -inf is a zero weight. ``n_iter``: rounds; the
    fixed point is doubly stochastic and the maximum of the Bethe functional. Returns (*B, d, d),
    log of P, at most 0.

    Cost O(n_iter d^2). Source: Vontobel (2013), "The Bethe permanent of a nonnegative matrix".
    """
    require_square(log_weights)
    finite = log_weights.clamp(min=_LOG_ZERO)
    to_row = to_column = torch.zeros_like(finite)
    for _ in range(n_iter):
        to_column = -_log_sum_of_others(finite + to_row, -1)
        to_row = -_log_sum_of_others(finite + to_column, -2)
    return logsigmoid(finite + to_column + to_row)


def _log_sum_of_others(x: Tensor, dim: int) -> Tensor:
    """Logsumexp along `dim` over all entries but the one at hand, within _MESSAGE_BOUND."""
    total = x.logsumexp(dim, keepdim=True)
    peak = x.argmax(dim, keepdim=True)
    # Taking out its own share is accurate for an entry that holds at most half of the sum. The
    # largest may hold all of it but 1e-300, so its others are summed afresh.
    others = total + torch.log1p(-(x - total).exp())
    beside_peak = x.scatter(dim, peak, -torch.inf).logsumexp(dim, keepdim=True)
    return others.scatter(dim, peak, beside_peak).clamp(-_MESSAGE_BOUND, _MESSAGE_BOUND)


def round_to_doubly_stochastic(matrix: Tensor) -> Tensor:
    r"""Repair a nearly doubly stochastic matrix so that rows and columns sum to one.

    Rows with sums above one are scaled down, then columns; the missing row mass :math:`e` and
    column mass :math:`f` are added as :math:`e f^\top / \|e\|_1`. The matrix moves by at most
    twice its violation in the L1 norm (Altschuler, Weed & Rigollet 2017, Algorithm 2, Lemma 7).

    ``matrix`` (*B, d, d): non-negative entries (not logs), finite. Returns (*B, d, d), rows and
    columns sum to one up to rounding.

    Cost O(d^2). Missing mass that is only rounding error is left out: zero entries of a matrix
    that needs no repair stay zero.
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix must have shape (*B, d, d), got {tuple(matrix.shape)}.")
    capped = matrix / matrix.sum(-1, keepdim=True).clamp(min=1.0)
    capped = capped / capped.sum(-2, keepdim=True).clamp(min=1.0)
    row_missing = (1.0 - capped.sum(-1, keepdim=True)).clamp(min=0.0)
    column_missing = (1.0 - capped.sum(-2, keepdim=True)).clamp(min=0.0)
    missing = row_missing.sum(-2, keepdim=True)
    info = torch.finfo(matrix.dtype)
    patch = row_missing * column_missing / missing.clamp(min=info.tiny)
    rounding_error = 4.0 * info.eps * matrix.shape[-1]
    return capped + patch * (missing > rounding_error)
