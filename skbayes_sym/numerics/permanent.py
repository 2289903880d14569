r"""Log permanents of positive matrices: exact values, bounds on both sides, and scalings.

The permanent of :math:`A = \exp L` sums the weight of every assignment of rows to columns,

.. math:: \operatorname{perm}(A) = \sum_{g \in S_d} \exp \textstyle\sum_i L_{i g(i)}.

All functions work in log space, so entries of +-1e4 are admissible.
"""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from skbayes_sym.numerics.runtime import cache_tensors

# Log of a zero weight in the iterations. It is negligible next to any other weight, but finite, so
# that a row without positive weight gives no NaN. It is within the range of float32.
_LOG_ZERO = -1e30

# Bethe messages diverge if the optimum is a permutation matrix. The bound avoids inf - inf.
# Sigmoids are exactly 0 or 1 for much smaller messages.
_MESSAGE_BOUND = 1e12


def require_square(log_weights: Tensor) -> None:
    """Raise ValueError unless ``log_weights`` is a floating tensor of shape (*B, d, d)."""
    shape = tuple(log_weights.shape)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"log_weights must have shape (*B, d, d), got {shape}; d rows, d columns.")
    if not log_weights.is_floating_point():
        raise ValueError(
            f"log_weights must be floating point, got {log_weights.dtype}; try .double()."
        )


def sinkhorn(log_weights: Tensor, n_iter: int = 10) -> Tensor:
    r"""Scale rows and columns towards a doubly stochastic matrix, in log space.

    The result :math:`B = L + r 1^\top + 1 c^\top` is computed by one softmax over rows, and
    ``n_iter`` rounds of a softmax over columns and one over rows. If columns came first, row levels
    of +-1000 (for a weight vector far from every centre) would remain unscaled for many rounds.

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats; -inf for a zero weight.
    n_iter : int, default=10
        Rounds after the first softmax over rows.

    Returns
    -------
    Tensor of shape (*B, d, d)
        Log of the scaled matrix, about -1e30 for a zero weight. Rows of ``exp(B)`` sum to one, and
        columns do in the limit.

    Notes
    -----
    The result is differentiable; O(n_iter d^2). Convergence is geometric if every positive entry is
    part of a permutation of positive entries. Otherwise it is slow, or absent if the permanent is 0
    (Sinkhorn & Knopp 1967).
    """
    require_square(log_weights)
    scaled = log_weights.clamp(min=_LOG_ZERO).log_softmax(-1)
    for _ in range(n_iter):
        scaled = scaled.log_softmax(-2).log_softmax(-1)
    return scaled


def balancing_scales(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return log row scales (*B, d, 1) and log column scales (*B, 1, d) of the Sinkhorn scaling.

    They are averages over positive entries, and exact if there are no zero weights. Otherwise they
    are approximate, which suffices for a bound that holds for all scales. Differentiable; O(d^2).
    """
    positive = log_weights > -torch.inf
    shift = (sinkhorn(log_weights) - log_weights).where(positive, 0.0)
    row = shift.sum(-1, keepdim=True) / positive.sum(-1, keepdim=True).clamp(min=1)
    remainder = (shift - row).where(positive, 0.0)
    column = remainder.sum(-2, keepdim=True) / positive.sum(-2, keepdim=True).clamp(min=1)
    return row, column


def bethe_log_marginals(log_weights: Tensor, n_iter: int) -> Tensor:
    r"""Compute log Bethe marginals of a random assignment by sum-product message passing.

    Messages go from rows to columns, then from columns to rows. Each is the negative log sum of the
    other entries:

    .. math:: u_{ij} = -\log \sum_{k \ne j} e^{L_{ik} + v_{ik}}, \quad
        v_{ij} = -\log \sum_{k \ne i} e^{L_{kj} + u_{kj}}, \quad
        P_{ij} = \operatorname{sigmoid}(L_{ij} + u_{ij} + v_{ij}).

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats; -inf for a zero weight.
    n_iter : int
        Rounds of messages.

    Returns
    -------
    Tensor of shape (*B, d, d)
        Log of P. The fixed point is doubly stochastic and maximises the Bethe functional.

    Notes
    -----
    O(n_iter d^2). Source: Vontobel (2013), "The Bethe permanent of a nonnegative matrix".
    """
    require_square(log_weights)
    finite = log_weights.clamp(min=_LOG_ZERO)
    to_row = to_column = torch.zeros_like(finite)
    for _ in range(n_iter):
        to_column = -_logsumexp_without_self(finite + to_row, -1)
        to_row = -_logsumexp_without_self(finite + to_column, -2)
    return logsigmoid(finite + to_column + to_row)


def _logsumexp_without_self(x: Tensor, dim: int) -> Tensor:
    """Return the logsumexp along ``dim`` over all other entries, within _MESSAGE_BOUND."""
    total = x.logsumexp(dim, keepdim=True)
    peak = x.argmax(dim, keepdim=True)
    # Subtracting an entry from the sum is accurate if it is at most half of the sum. The largest
    # entry can be nearly all of it, so the sum without it is computed separately.
    others = total + torch.log1p(-(x - total).exp())
    without_peak = x.scatter(dim, peak, -torch.inf).logsumexp(dim, keepdim=True)
    return others.scatter(dim, peak, without_peak).clamp(-_MESSAGE_BOUND, _MESSAGE_BOUND)


def round_to_doubly_stochastic(matrix: Tensor) -> Tensor:
    r"""Modify a nearly doubly stochastic matrix so that rows and columns sum to one.

    Rows with sums above one are scaled down, then columns. The missing row mass :math:`e` and
    column mass :math:`f` are added as :math:`e f^\top / \|e\|_1`. The matrix changes by at most
    twice its violation in the L1 norm (Altschuler, Weed & Rigollet 2017, Algorithm 2, Lemma 7).

    Parameters
    ----------
    matrix : Tensor of shape (*B, d, d)
        Non-negative matrix.

    Notes
    -----
    O(d^2). Missing mass within rounding error is ignored, so zero entries of a doubly stochastic
    matrix stay zero.
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


MAX_EXACT_WIDTH = 20  # 80 MiB of indices; one more row doubles time and memory

# Terms of the recursion that are held at once (2 MiB in float64). Larger batches are split.
_BLOCK_ELEMENTS = 2**18


@cache_tensors
def _subset_layers(d: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return the predecessors of subsets of s + 1 columns, for s = 0..d-1, as flat indices.

    Subsets of one size are numbered by increasing bit mask. Entry (k, S) of (s+1, C(d, s+1)) is
    ``number * d + j``, where j is the k-th column of S, and ``number`` is that of S without j among
    the subsets of size s.
    """
    column = torch.arange(d, device=device)
    masks = torch.arange(2**d, device=device)
    holds = ((masks[:, None] >> column) & 1).bool()
    size = holds.sum(-1)
    number = torch.empty_like(masks)
    sources = []
    for s in range(d + 1):
        subsets = masks[size == s]
        if s > 0:
            members = holds[subsets].nonzero()[:, 1].view(-1, s)
            smaller = subsets[:, None] ^ (1 << members)
            sources.append((number[smaller] * d + members).mT.flatten())
        number[subsets] = torch.arange(len(subsets), device=device)
    return tuple(sources)


class _Step(NamedTuple):
    """A step of the recursion, which adds one row, for a batch of R matrices.

    Attributes
    ----------
    partial : Tensor of shape (C(d, s+1), R)
        Log permanent of the first s + 1 rows on each subset of s + 1 columns.
    terms : Tensor of shape (s+1, C(d, s+1), R)
        Its summands by the column of the last row, relative to the largest.
    total : Tensor of shape (C(d, s+1), R)
        Sum of the terms.
    """

    partial: Tensor
    terms: Tensor
    total: Tensor


def _steps(log_rows: Tensor) -> Iterator[_Step]:
    """Yield the steps of the recursion for rows (d, d, R).

    The batch is the last axis, so that gathers copy contiguous rows.
    """
    d, _, batch = log_rows.shape
    partial = log_rows.new_zeros(1, batch)
    for s, source in enumerate(_subset_layers(d, log_rows.device)):
        extended = (partial[:, None] + log_rows[s]).flatten(0, 1)
        terms = extended.index_select(0, source).view(s + 1, math.comb(d, s + 1), batch)
        # The clamp turns "all terms are -inf" into -inf rather than NaN.
        peak = terms.amax(0).clamp_(min=torch.finfo(terms.dtype).min)
        terms = terms.sub_(peak).exp_()
        total = terms.sum(0)
        partial = total.log().add_(peak)
        yield _Step(partial, terms, total)


def _value_and_marginals(log_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return log permanents (R,) and marginals (d, d, R) by a forward-backward recursion.

    In the backward pass, ``weight[S]`` is the probability that the first |S| rows take the columns
    S. It is distributed over the last of these columns in proportion to the terms of the forward
    sum.
    """
    d, _, batch = log_rows.shape
    steps = list(_steps(log_rows))
    marginals = torch.empty_like(log_rows)
    weight = log_rows.new_ones(1, batch)
    smallest = torch.finfo(log_rows.dtype).tiny
    for s in reversed(range(d)):
        probabilities = steps[s].terms.mul_(weight / steps[s].total.clamp_(min=smallest))
        by_origin = probabilities.new_zeros(math.comb(d, s), d, batch)
        source = _subset_layers(d, log_rows.device)[s]
        by_origin.flatten(0, 1).index_copy_(0, source, probabilities.flatten(0, 1))
        torch.sum(by_origin, dim=0, out=marginals[s])
        weight = by_origin.sum(1)
    return steps[-1].partial[0], marginals


def _blocks(log_rows: Tensor) -> tuple[Tensor, ...]:
    """Split (d, d, R) over R so that the terms of one block don't exceed _BLOCK_ELEMENTS."""
    d = log_rows.shape[0]
    return torch.split(log_rows, max(1, _BLOCK_ELEMENTS // (d * 2 ** (d - 1))), dim=-1)


class _LogPermanent(torch.autograd.Function):
    """Log permanent (R,) of rows (d, d, R), with the marginals as its gradient."""

    @staticmethod
    def forward(ctx: Any, log_rows: Tensor) -> Tensor:
        """Return the log permanents, and save the marginals."""
        values, marginals = zip(*map(_value_and_marginals, _blocks(log_rows)), strict=True)
        ctx.save_for_backward(torch.cat(marginals, -1))
        return torch.cat(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the marginals times the gradient."""
        marginals: Tensor = ctx.saved_tensors[0]
        return marginals * grad


def log_permanent(log_weights: Tensor) -> Tensor:
    r"""Compute the exact log permanent, :math:`\log \sum_g \exp \sum_i L_{i g(i)}`.

    The recursion is ``f[S] = logsumexp_{j in S} (f[S - j] + L[|S| - 1, j])`` for column subsets S.

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats, d <= 20; -inf for a zero weight.

    Returns
    -------
    Tensor of shape (*B,)
        Log permanents in nats: 0 for d = 0 (one empty assignment), -inf if the permanent is zero.
        The gradient is the doubly stochastic matrix of assignment marginals P(g(i) = j), or 0 if
        there are none. It has no graph.

    Raises
    ------
    ValueError
        If ``log_weights`` isn't a floating tensor of shape (*B, d, d), or if d > 20.

    Notes
    -----
    O(d 2^d) per matrix, with or without gradient, and 4 d 2^d bytes of cached indices (80 MiB at
    d = 20). Recursion of Bellman, Held and Karp (1962).
    """
    require_square(log_weights)
    d = log_weights.shape[-1]
    if d > MAX_EXACT_WIDTH:
        raise ValueError(
            f"log_weights has d = {d}, expected d <= {MAX_EXACT_WIDTH}: the exact recursion needs "
            f"{4 * d * 2.0**d:.1e} bytes of indices alone. Bound it by soules_bound (above) and "
            "bethe_bound (below), or estimate it from sample_assignments."
        )
    if d == 0:
        return log_weights.sum((-2, -1))
    # Any shift is exact. The clamp avoids NaN for a row without positive weight.
    shift = log_weights.detach().amax(-1, keepdim=True)
    shift = shift.clamp(min=torch.finfo(log_weights.dtype).min)
    batch = log_weights.shape[:-2]
    log_rows = (log_weights - shift).reshape(batch.numel(), d, d).movedim(0, -1).contiguous()
    if torch.is_grad_enabled() and log_weights.requires_grad:
        value: Tensor = _LogPermanent.apply(log_rows)  # type: ignore[no-untyped-call]
    else:
        last_steps = [deque(_steps(block), maxlen=1).pop() for block in _blocks(log_rows)]
        value = torch.cat([step.partial[0] for step in last_steps])
    return value.view(batch) + shift.sum((-2, -1))


BETHE_ITERATIONS = 20  # 100 iterations improve the bound by 0.05 nats at 200 units, 1e-3 at 20


@cache_tensors
def _soules_log_increments(d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the log of delta_k = (k!)^(1/k) - ((k-1)!)^(1/(k-1)), k = 1..d, with delta_1 = 1."""
    k = torch.arange(1, d + 1, dtype=torch.float64)
    geometric_means = torch.exp(torch.lgamma(k + 1.0) / k)
    increments = geometric_means.diff(prepend=torch.zeros(1, dtype=torch.float64))
    return increments.log().to(device=device, dtype=dtype)


def _soules_rows(log_weights: Tensor) -> Tensor:
    """Sum the log of sum_k delta_k (k-th largest weight) over rows, (*B, d, d) -> (*B,)."""
    decreasing = log_weights.sort(dim=-1, descending=True).values
    d = log_weights.shape[-1]
    dtype = log_weights.dtype
    device = log_weights.device
    return (decreasing + _soules_log_increments(d, dtype, device)).logsumexp(-1).sum(-1)


def soules_bound(log_weights: Tensor, *, tighten: bool = False) -> Tensor:
    r"""Compute an upper bound on the log permanent that holds for every matrix.

    With :math:`a_{i(1)} \ge a_{i(2)} \ge \dots` the sorted weights of row i,

    .. math:: \operatorname{perm}(A) \le \prod_i \sum_k a_{i(k)} \delta_k, \qquad
        \delta_k = (k!)^{1/k} - ((k-1)!)^{1/(k-1)}, \ \delta_1 = 1.

    This generalises the Bregman-Minc bound to real weights. It is exact for the identity, for equal
    weights, and for blocks of these. An upper bound on the permanent is a *lower* bound on a
    symmetrisation gap.

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats; -inf for a zero weight.
    tighten : bool, default=False
        Whether to take the smallest of four bounds: for rows and columns of the matrix itself and
        of its Sinkhorn scaling.

    Returns
    -------
    Tensor of shape (*B,)
        Bounds in nats, differentiable almost everywhere.

    Notes
    -----
    O(d^2 log d). Source: Soules (2003), Linear and Multilinear Algebra 51(4).
    """
    require_square(log_weights)
    if not tighten:
        return _soules_rows(log_weights)
    row, column = balancing_scales(log_weights)
    balanced = log_weights + row + column
    bounds = _soules_rows(torch.stack([log_weights, log_weights.mT, balanced, balanced.mT]))
    scale = row.sum((-2, -1)) + column.sum((-2, -1))
    return torch.minimum(bounds[:2].amin(0), bounds[2:].amin(0) - scale)


def bethe_bound(log_weights: Tensor, n_iter: int = BETHE_ITERATIONS) -> Tensor:
    r"""Compute a lower bound on the log permanent: the log of the Bethe permanent.

    .. math:: \log\operatorname{perm}(\exp L) \ge \sum_{ij} P_{ij} (L_{ij} - \log P_{ij})
        + \sum_{ij} (1 - P_{ij}) \log(1 - P_{ij})

    holds for every doubly stochastic P (Schrijver 1998; Gurvits 2011, arXiv:1106.2844), and only
    for those. The Bethe permanent is the largest such value. Here P is `bethe_log_marginals`,
    rounded to be doubly stochastic, so the bound also holds before convergence. A lower bound on
    the permanent is an
    *upper* bound on a symmetrisation gap, to be reported and not to be maximised.

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats, d >= 1; -inf for a zero weight.
    n_iter : int, default=20
        Rounds of messages. More rounds improve the bound.

    Returns
    -------
    Tensor of shape (*B,)
        Bounds in nats; -inf if rounding puts mass on a zero weight. The gradient is P, held fixed,
        which is exact at the maximum.

    Notes
    -----
    O(n_iter d^2). After convergence the bound is at most (d/2) log 2 nats below the log permanent
    (Anari & Rezaei 2019). Convergence is slow if two assignments nearly tie. Source: Vontobel
    (2013).
    """
    require_square(log_weights)
    log_marginals = bethe_log_marginals(log_weights.detach(), n_iter)
    # Without scaling and rounding, marginals that haven't converged would exceed the bound by nats.
    plan = round_to_doubly_stochastic(sinkhorn(log_marginals).exp())
    rest = (1.0 - plan).clamp(min=0.0)
    entropy = torch.xlogy(rest, rest) - torch.xlogy(plan, plan)
    energy = (plan * log_weights).where(plan > 0.0, 0.0)  # a zero weight left out costs nothing
    return (energy + entropy).sum((-2, -1))
