"""From one temperature to the next: how far to go, and which particles go on.

Particles of ``prior * likelihood^beta`` become particles of ``prior * likelihood^beta'`` by the
weights ``likelihood^(beta' - beta)``. Weights are float64 throughout.
"""

from math import exp, log

import torch
from torch import Tensor

_SMALLEST_STEP = 1e-14  # heavy-tailed likelihoods of prior draws need first steps as small as this
_BISECTIONS = 60


def effective_fraction(log_weights: Tensor) -> float:
    """Kish's effective sample size over their number, ``(mean w)^2 / mean w^2``, in [1/N, 1]."""
    log_n = log(len(log_weights))
    w = log_weights.double()
    once, twice = torch.logsumexp(w, dim=0), torch.logsumexp(2.0 * w, dim=0)
    return exp(2.0 * float(once) - float(twice) - log_n)


def log_mean_weight(log_weights: Tensor) -> float:
    """Log of the mean weight, nats: what the evidence gains by the step."""
    return float(torch.logsumexp(log_weights.double(), dim=0)) - log(len(log_weights))


def next_temperature(log_likelihood: Tensor, beta: float, ess_fraction: float) -> float:
    """The inverse temperature at which the weights' effective fraction is ``ess_fraction``.

    Parameters
    ----------
    log_likelihood : Tensor of shape (N,)
        Of particles at ``beta``; -inf is allowed, nan isn't.
    beta : float
        In [0, 1).
    ess_fraction : float
        In (0, 1).

    Returns
    -------
    float
        In (beta, 1]; by bisection on the log of the step, since steps span many orders.
    """
    log_likelihood = log_likelihood.cpu().double()  # the search is the host's
    if effective_fraction((1.0 - beta) * log_likelihood) >= ess_fraction:
        return 1.0
    low, high = log(_SMALLEST_STEP), log(1.0 - beta)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if effective_fraction(exp(middle) * log_likelihood) >= ess_fraction:
            low = middle
        else:
            high = middle
    return beta + exp(low)


def systematic_resample(log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
    """Ancestors of N equally weighted particles, int64 (N,), in increasing order.

    Particle ``i`` has ``N w_i`` children on average, rounded up or down: one uniform number sets
    N equidistant points on the cumulative weights (Kitagawa 1996).
    """
    n = len(log_weights)
    ends = torch.softmax(log_weights.double(), dim=0).cumsum(dim=0)
    shift = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64)
    points = (torch.arange(n, device=ends.device) + shift.to(ends.device)) / n
    # Rounding may leave the last end below the last point; particles of no weight get none.
    return torch.searchsorted(ends / ends[-1], points, right=True).clamp_max(n - 1)
