"""Assignment of units to units: the discrete half of aligning draws."""

from itertools import permutations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from skbayes_sym.numerics.permanent import require_square, sinkhorn


def best_assignment(similarity: Tensor) -> Tensor:
    """Permutation that maximises the total similarity, exactly.

    ``similarity`` (*B, d, d): gain of putting unit ``j`` of the draw in place ``i`` of the
    reference; finite. Returns ``permutation`` int64 (*B, d): ``permutation[..., i]`` is the unit
    that goes to place ``i``.

    All d! at once up to 4 units, else O(d^3) a draw (Jonker-Volgenant),
    on the CPU.
    """
    d = similarity.shape[-1]
    if 0 < d <= 4:  # trying all d! permutations at once beats one solver call a draw
        table = torch.tensor(list(permutations(range(d))), device=similarity.device)
        totals = similarity[..., torch.arange(d, device=similarity.device), table].sum(dim=-1)
        return table[totals.argmax(dim=-1)]
    flat = similarity.detach().reshape(-1, d, d).cpu().double().numpy()
    columns = np.empty(flat.shape[:2], dtype=np.int64)
    for row, values in zip(columns, flat, strict=True):
        row[:] = linear_sum_assignment(values, maximize=True)[1]
    return torch.from_numpy(columns).reshape(*similarity.shape[:-2], d).to(similarity.device)


def has_improving_exchange(similarity: Tensor, tol: Tensor | float = 0.0) -> Tensor:
    """Whether exchanging some two units raises the total similarity by more than ``tol``.

    Necessary for the identity not to be `best_assignment`, not sufficient: longer cycles may gain
    where no exchange does. O(d^2) a draw.

    ``similarity`` (*B, d, d). Returns bool (*B,).
    """
    gain = similarity - similarity.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    return (gain + gain.mT).amax(dim=(-2, -1)) > tol


def second_best_margin(similarity: Tensor) -> Tensor:
    """Loss of total similarity from the identity, the best permutation, to the second best.

    Any other permutation is a set of cycles, each of which loses something, so the second best is
    the single cheapest cycle: all of them are seen by Floyd and Warshall's recursion on the losses
    ``similarity[i, i] - similarity[j, i]`` of moving unit ``i`` to place ``j``.

    ``similarity`` (*B, d, d): as in `best_assignment`, which must be the identity: no cycle may
    gain. Returns ``loss`` (*B,): non-negative up to rounding; inf for one unit. O(d^3) a draw,
    vectorised over draws.
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
    r"""Draw assignments of rows to columns, roughly in proportion to their weight.

    Let :math:`B` be the Sinkhorn scaling of the weights. Columns are visited in decreasing order
    of confidence :math:`\max_i B_{ij} / \sum_i B_{ij}`; column :math:`j` takes row :math:`i` among
    the rows :math:`R` still free with probability :math:`B_{ij} / \sum_{k \in R} B_{kj}`. So

    .. math:: \tau(g) = \prod_j B_{g^{-1}(j) j} / \textstyle\sum_{k \in R_j} B_{kj}

    is exact, and :math:`E_\tau[\exp(\sum_i L_{i g(i)}) / \tau(g)]` is the permanent of
    :math:`\exp L`.

    ``log_weights`` (*B, d, d): nats, finite or -inf. ``n``: draws for each matrix. ``n_iter``:
    Sinkhorn rounds; any number gives a valid proposal. ``first`` (k, *B, d), int64: assignments put
    before the draws. Returns ``permutations`` (k + n, *B, d), int64, whose ``[m, ..., i]`` is the
    column assigned to row ``i``, and their exact log probabilities, (k + n, *B) nats. Raises
    ValueError if ``log_weights`` is not a floating tensor of shape (*B, d, d).

    Permuting the rows permutes the law: a tie broken by row index would inflate a symmetrisation
    gap, since draws of a factorised posterior arrive in identity order. A dead end (only zero
    weights left) is completed uniformly. In float64, without gradients. O(n d^2) a matrix.
    """
    require_square(log_weights)
    scores, columns = _visiting_order(log_weights.double(), n_iter)
    d = scores.shape[-1]
    # Gumbel-max: argmax_i (score_i + gumbel_i) over the free rows has the law proportional to
    # exp(score_i), with gumbel = -log(-log u). The smallest u is kept off 0, where it is infinite.
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
    """Scores (*B, d steps, d rows) of the column visited at each step, and its index (*B, d)."""
    scaled = sinkhorn(log_weights, n_iter)
    confidence = scaled.amax(-2) - scaled.logsumexp(-2)
    columns = confidence.argsort(dim=-1, descending=True, stable=True)
    # At 1e6 float64 resolves the Gumbel noise to 1e-10. _LOG_ZERO would absorb it, and ties would
    # then go to the lowest row index.
    by_column = scaled.clamp(min=-1e6).mT
    return by_column.take_along_dim(columns.unsqueeze(-1), dim=-2), columns


def _choose_rows(perturbed: Tensor) -> Tensor:
    """Best free row at each step: (d steps, n, *B, d rows) -> (n, *B, d steps). Overwrites."""
    chosen = torch.empty(perturbed.shape[:-1], dtype=torch.int64, device=perturbed.device)
    taken = torch.zeros_like(perturbed[:1]).squeeze(0)
    for scores, row in zip(perturbed, chosen, strict=True):
        torch.argmax(scores.add_(taken), dim=-1, out=row)
        taken.scatter_(-1, row.unsqueeze(-1), -torch.inf)
    return chosen.movedim(0, -1)


def _log_prob(scores: Tensor, rows: Tensor) -> Tensor:
    """Log probability (n, *B) of taking `rows` (n, *B, d) in this order, from scores (*B, d, d)."""
    d = scores.shape[-1]
    # by_step[..., t, s] is the score at step t of the row taken at step s: free at t iff s >= t.
    index = rows.unsqueeze(-2).expand(*rows.shape, d)
    by_step = scores.expand(index.shape).gather(-1, index)
    past = torch.ones(d, d, dtype=torch.bool, device=scores.device).tril(-1)
    free = by_step.masked_fill(past, -torch.inf).logsumexp(-1)
    return (by_step.diagonal(dim1=-2, dim2=-1) - free).sum(-1)
