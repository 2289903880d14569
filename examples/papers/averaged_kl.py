"""KL of the posterior that one row makes, of which Kurle et al. (2022, eqs. 23 and 25) take means.

They average the posteriors of single data, where Bayes' rule multiplies their sites. Predicting
with the mean-field posterior ``q_0`` of the last layer but charging the mean over rows of
``KL[q_mix^(n) || p]`` counts one row's worth of KL however many there are: no bound, and it
under-regularises.
"""

import torch
from torch import Tensor


def single_datum_kl(
    loc: Tensor, variance: Tensor, x: Tensor, prior_scale: float | Tensor
) -> Tensor:
    """``KL[q_mix || p]`` of the rank-one site that one row makes of ``N(loc, variance)``.

    Parameters
    ----------
    loc, variance : Tensor of shape (D, T)
        Of the mean-field likelihood (`repeated_datum`).
    x : Tensor of shape (*B, N, D)
        The row's features.
    prior_scale : float or Tensor of shape (D,)

    Returns
    -------
    Tensor of shape (*B, N, T), nats
        ``1/2 [-r - log(1 - r) + (x' m)^2 x' S x / (x' (V + S) x)^2]`` with
        ``r = x' S x / (x' (V + S) x)`` and S the prior covariance.
    """
    prior = ((x * prior_scale) ** 2).sum(-1, keepdim=True)
    total = prior + x**2 @ variance
    share = prior / total
    explained = (x @ loc) ** 2 * prior / total**2
    return 0.5 * (explained - share - torch.log1p(-share))
