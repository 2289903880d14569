"""Assignment of units to units: the discrete half of aligning draws."""

from itertools import permutations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

# Up to here trying all d! permutations at once beats one solver call a draw.
_ENUMERABLE_WIDTH = 4


def best_assignment(similarity: Tensor) -> Tensor:
    """Permutation that maximises the total similarity, exactly.

    Parameters
    ----------
    similarity : Tensor of shape (*B, d, d)
        Gain of putting unit ``j`` of the draw in place ``i`` of the reference; finite.

    Returns
    -------
    permutation : int64 Tensor of shape (*B, d)
        ``permutation[..., i]`` is the unit that goes to place ``i``.

    Notes
    -----
    All d! at once up to 4 units, else O(d^3) a draw (Jonker-Volgenant),
    on the CPU.
    """
    d = similarity.shape[-1]
    if 0 < d <= _ENUMERABLE_WIDTH:
        table = torch.tensor(list(permutations(range(d))), device=similarity.device)
        totals = similarity[..., torch.arange(d, device=similarity.device), table].sum(dim=-1)
        return table[totals.argmax(dim=-1)]
    flat = similarity.detach().reshape(-1, d, d).cpu().double().numpy()
    found = np.empty(flat.shape[:2], dtype=np.int64)
    for row, values in zip(found, flat, strict=True):
        row[:] = linear_sum_assignment(values, maximize=True)[1]
    return torch.from_numpy(found).reshape(*similarity.shape[:-2], d).to(similarity.device)


def can_exchange(similarity: Tensor, tol: Tensor | float = 0.0) -> Tensor:
    """Whether exchanging some two units raises the total similarity by more than ``tol``.

    Necessary for the identity not to be `best_assignment`, not sufficient: longer cycles may gain
    where no exchange does. O(d^2) a draw.

    Parameters
    ----------
    similarity : Tensor of shape (*B, d, d)
    tol : float or Tensor of shape (*B,)

    Returns
    -------
    bool Tensor of shape (*B,)
    """
    gain = similarity - similarity.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    return (gain + gain.mT).amax(dim=(-2, -1)) > tol


def runner_up_loss(similarity: Tensor) -> Tensor:
    """Loss of total similarity from the identity, the best permutation, to the second best.

    Any other permutation is a set of cycles, each of which loses something, so the second best is
    the single cheapest cycle: all of them are seen by Floyd and Warshall's recursion on the losses
    ``similarity[i, i] - similarity[j, i]`` of moving unit ``i`` to place ``j``.

    Parameters
    ----------
    similarity : Tensor of shape (*B, d, d)
        As in `best_assignment`, which must be the identity: no cycle may gain.

    Returns
    -------
    loss : Tensor of shape (*B,)
        Non-negative up to rounding; inf for one unit. O(d^3) a draw, vectorised over draws.
    """
    d = similarity.shape[-1]
    path = similarity.diagonal(dim1=-2, dim2=-1).unsqueeze(-2) - similarity
    path.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    for k in range(d if d > 1 else 0):
        path = torch.minimum(path, path[..., :, k, None] + path[..., None, k, :])
    return path.diagonal(dim1=-2, dim2=-1).amin(dim=-1)
