"""Assignment of units to units: the discrete half of aligning draws."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def best_assignment(similarity: Tensor) -> Tensor:
    """Permutation that maximises the total similarity, exactly.

    Parameters
    ----------
    similarity : Tensor of shape (*B, d, d)
        Gain of putting unit ``j`` of the draw in place ``i`` of the reference.

    Returns
    -------
    permutation : int64 Tensor of shape (*B, d)
        ``permutation[..., i]`` is the unit that goes to place ``i``.

    Notes
    -----
    O(d^3) a draw (Jonker-Volgenant, `scipy.optimize.linear_sum_assignment`), on the CPU.
    """
    d = similarity.shape[-1]
    flat = similarity.detach().reshape(-1, d, d).cpu().double().numpy()
    rows = [torch.from_numpy(linear_sum_assignment(s, maximize=True)[1]) for s in flat]
    stacked = torch.stack(rows) if rows else torch.zeros(0, d)
    return stacked.long().reshape(*similarity.shape[:-2], d).to(similarity.device)
