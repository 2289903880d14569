"""Linear assignment of units, and random assignments: the discrete part of aligning draws."""

from itertools import permutations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from skbayes_sym.numerics.permanent import require_square, sinkhorn


def best_assignment(similarity: Tensor) -> Tensor:
    """Return the permutation that maximises the total similarity, exactly.

    Parameters
    ----------
    similarity : Tensor of shape (*B, d, d)
        Gain of putting unit ``j`` of a draw into place ``i`` of the reference; finite.

    Returns
    -------
    Tensor of shape (*B, d), int64
        ``permutation[..., i]`` is the unit for place ``i``.

    Notes
    -----
    Up to 4 units, all d! permutations are compared at once. Otherwise it takes O(d^3) per draw
    (Jonker-Volgenant), on the CPU.
    """
    d = similarity.shape[-1]
    if 0 < d <= 4:  # trying all d! permutations is faster than a solver call per draw
        table = torch.tensor(list(permutations(range(d))), device=similarity.device)
        totals = similarity[..., torch.arange(d, device=similarity.device), table].sum(dim=-1)
        return table[totals.argmax(dim=-1)]
    flat = similarity.detach().reshape(-1, d, d).cpu().double().numpy()
    columns = np.empty(flat.shape[:2], dtype=np.int64)
    for row, values in zip(columns, flat, strict=True):
        row[:] = linear_sum_assignment(values, maximize=True)[1]
    return torch.from_numpy(columns).reshape(*similarity.shape[:-2], d).to(similarity.device)


def has_improving_exchange(similarity: Tensor, tol: Tensor | float = 0.0) -> Tensor:
    """Whether an exchange of two units increases the total similarity by more than ``tol``.

    Otherwise the identity can still differ from `best_assignment`, since longer cycles can gain
    where no exchange does. The shapes are (*B, d, d) -> (*B,); O(d^2) per draw.
    """
    gain = similarity - similarity.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    return (gain + gain.mT).amax(dim=(-2, -1)) > tol


def second_best_margin(similarity: Tensor) -> Tensor:
    """Return the loss of total similarity from the best to the second best permutation.

    The best permutation must be the identity. Any other permutation is a set of cycles, each with a
    loss, so the second best is the single cheapest cycle. The recursion of Floyd and Warshall on
    the losses ``similarity[i, i] - similarity[j, i]`` of moving unit ``i`` to place ``j`` considers
    all of them.

    Parameters
    ----------
    similarity : Tensor of shape (*B, d, d)
        See `best_assignment`. No cycle may gain.

    Returns
    -------
    Tensor of shape (*B,)
        The loss, non-negative up to rounding; inf for one unit. O(d^3) per draw, vectorised.
    """
    d = similarity.shape[-1]
    path = similarity.diagonal(dim1=-2, dim2=-1).unsqueeze(-2) - similarity
    path.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    for k in range(d if d > 1 else 0):
        path = torch.minimum(path, path[..., :, k, None] + path[..., None, k, :])
    return path.diagonal(dim1=-2, dim2=-1).amin(dim=-1)


@torch.no_grad()
def sample_assignments(
    log_weights: Tensor, n: int, *, generator: torch.Generator, n_iter: int = 10,
    first: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    r"""Sample assignments of rows to columns, roughly in proportion to their weight.

    Let :math:`B` be the Sinkhorn scaling of the weights. Columns are visited in decreasing order
    of confidence :math:`\max_i B_{ij} / \sum_i B_{ij}`. Column :math:`j` takes row :math:`i` among
    the free rows :math:`R` with probability :math:`B_{ij} / \sum_{k \in R} B_{kj}`. Hence

    .. math:: \tau(g) = \prod_j B_{g^{-1}(j) j} / \textstyle\sum_{k \in R_j} B_{kj}

    is exact, and :math:`E_\tau[\exp(\sum_i L_{i g(i)}) / \tau(g)]` is the permanent of
    :math:`\exp L`.

    Parameters
    ----------
    log_weights : Tensor of shape (*B, d, d)
        Log weights in nats, finite or -inf.
    n : int
        Number of draws per matrix.
    generator : torch.Generator
        Random generator.
    n_iter : int, default=10
        Sinkhorn iterations. Any number gives a valid proposal.
    first : Tensor of shape (k, *B, d), int64, optional
        Assignments that are put before the draws.

    Returns
    -------
    permutations : Tensor of shape (k + n, *B, d), int64
        ``permutations[m, ..., i]`` is the column of row ``i``.
    log_prob : Tensor of shape (k + n, *B)
        Their exact log probabilities, in nats.

    Raises
    ------
    ValueError
        If ``log_weights`` isn't a floating tensor of shape (*B, d, d).

    Notes
    -----
    The distribution is equivariant under permutations of the rows. If ties were broken by row
    index, the symmetrisation gap would be too large, since draws of a factorised posterior are in
    identity order. If only zero weights are left, the assignment is completed uniformly. The
    computation is in float64, without gradients, and takes O(n d^2) per matrix.
    """
    require_square(log_weights)
    scores, columns = _visiting_order(log_weights.double(), n_iter)
    d = scores.shape[-1]
    # Gumbel-max: argmax_i (score_i + gumbel_i) over the free rows has probabilities proportional to
    # exp(score_i), with gumbel = -log(-log u). u is bounded away from 0, where it is infinite.
    uniform = scores.new_empty((d, n, *scores.shape[:-2], d)).uniform_(generator=generator)
    minus_gumbel = uniform.clamp_(min=torch.finfo(uniform.dtype).tiny).log_().neg_().log_()
    rows = _choose_rows(scores.movedim(-2, 0).unsqueeze(1) - minus_gumbel)
    permutations = torch.empty_like(rows).scatter_(-1, rows, columns.expand(rows.shape))
    if first is not None:
        permutations = torch.cat([first, permutations])
        in_order = first.argsort(-1).gather(-1, columns.expand(first.shape))
        rows = torch.cat([in_order, rows])
    return permutations, _log_prob(scores, rows).to(log_weights.dtype)


def _visiting_order(log_weights: Tensor, n_iter: int) -> tuple[Tensor, Tensor]:
    """Return scores (*B, d steps, d rows) of the column at each step, and its index (*B, d)."""
    scaled = sinkhorn(log_weights, n_iter)
    confidence = scaled.amax(-2) - scaled.logsumexp(-2)
    columns = confidence.argsort(dim=-1, descending=True, stable=True)
    # float64 resolves the Gumbel noise to 1e-10 at 1e6. _LOG_ZERO would absorb it, and ties would
    # go to the lowest row index.
    by_column = scaled.clamp(min=-1e6).mT
    return by_column.take_along_dim(columns.unsqueeze(-1), dim=-2), columns


def _choose_rows(perturbed: Tensor) -> Tensor:
    """Return the best free row per step, (d steps, n, *B, d rows) -> (n, *B, d steps), in place."""
    rows = torch.empty(perturbed.shape[:-1], dtype=torch.int64, device=perturbed.device)
    penalty = torch.zeros_like(perturbed[:1]).squeeze(0)  # -inf for rows that aren't free
    for scores, row in zip(perturbed, rows, strict=True):
        torch.argmax(scores.add_(penalty), dim=-1, out=row)
        penalty.scatter_(-1, row.unsqueeze(-1), -torch.inf)
    return rows.movedim(0, -1)


def _log_prob(scores: Tensor, rows: Tensor) -> Tensor:
    """Return log probabilities (n, *B) of rows (n, *B, d), from scores (*B, d, d)."""
    d = scores.shape[-1]
    # by_step[..., t, s] is the score at step t of the row taken at step s: free at t iff s >= t.
    index = rows.unsqueeze(-2).expand(*rows.shape, d)
    by_step = scores.expand(index.shape).gather(-1, index)
    past = torch.ones(d, d, dtype=torch.bool, device=scores.device).tril(-1)
    free = by_step.masked_fill(past, -torch.inf).logsumexp(-1)
    return (by_step.diagonal(dim1=-2, dim2=-1) - free).sum(-1)
