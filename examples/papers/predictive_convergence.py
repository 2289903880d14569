"""How much one more draw changes the predictive distribution: Figure 2 of Wiese et al. 2023."""

import torch
from torch import Tensor


def consecutive_kl(log_density: Tensor, y: Tensor) -> Tensor:
    """``KL(p_g || p_{g-1})`` between predictives of the first g and g - 1 draws, g = 2 ... S.

        p_g(y | x) = 1/g sum_{s <= g} p(y | x, draw s)

    Each is normalised on the grid, by the trapezoidal rule; the divergence is averaged over x.

    Parameters
    ----------
    log_density : Tensor of shape (S, N, M)
        ``log p(y_m | x_n, draw s)``, one draw a chain for the paper's figure.
    y : Tensor of shape (M,)
        Increasing. The paper: regular on [-3, 3], as is x.

    Returns
    -------
    Tensor of shape (S - 1,)
        Nats, at least 0 up to rounding; O(1 / g^2). Mass outside the grid is left out.

    Notes
    -----
    O(S N M) time, O(N M) memory beyond the input.
    """
    weight = torch.zeros_like(y)
    weight[1:] += 0.5 * y.diff()
    weight[:-1] += 0.5 * y.diff()
    log_weight = weight.log()
    total, before, found = log_density[0], None, []
    for s in range(len(log_density)):
        total = total if s == 0 else torch.logaddexp(total, log_density[s])
        mass = (total + log_weight).log_softmax(dim=-1)
        if before is not None:
            term = torch.where(mass > -torch.inf, mass.exp() * (mass - before), 0.0)
            found.append(term.sum(dim=-1).mean())
        before = mass
    return torch.stack(found) if found else y.new_zeros(0)
