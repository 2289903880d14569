r"""Left-out rows of linearised models, and how two models should share the rows they leave out.

A model that is linear in its weights, with normal noise and prior, predicts a row that is left out
in closed form. With the residual :math:`r_n` and the leverage :math:`h_n = \beta\, j_n' C j_n` of
the fit to all rows (noise precision :math:`\beta`, posterior covariance C),

.. math:: y_n \mid y_{-n} \sim N\big(y_n - r_n / (1 - h_n),\; \beta^{-1} / (1 - h_n)\big)

(Rasmussen & Williams 2006, eqs. 5.10 to 5.12). Of a linearised network it is an approximation, and
too favourable: the features themselves have seen the row.
"""

from math import log, pi
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_MOST_LEVERAGE = 1.0 - 1e-6
_HALVINGS = 60
_NODES = 64  # of a share's expectation; denser towards 0 and 1


class LeftOut(NamedTuple):
    """What models say of every row given all others: normals, (*B, N, T).

    Parameters
    ----------
    mean : Tensor of shape (*B, N, T)
        Of the function.
    variance : Tensor of shape (*B, N, T)
        Of the function, noise apart.
    noise_variance : Tensor broadcastable to (*B, N, T)
    """

    mean: Tensor
    variance: Tensor
    noise_variance: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density (*B, N) of every row, all targets together, nats."""
        total = self.variance + self.noise_variance
        return -0.5 * ((y - self.mean).square() / total + (2.0 * pi * total).log()).sum(-1)


def left_out(y: Tensor, fitted: Tensor, leverage: Tensor, noise_variance: Tensor) -> LeftOut:
    """Every row given all others.

    Parameters
    ----------
    y : Tensor of shape (N, T)
    fitted, leverage : Tensor of shape (*B, N, T)
        Means and leverages of the fit to all rows; a row of weight w is one of w repetitions.
    noise_variance : Tensor broadcastable to (*B, N, T)
    """
    leverage = leverage.clamp(0.0, _MOST_LEVERAGE)
    left = 1.0 - leverage
    return LeftOut(y - (y - fitted) / left, noise_variance * leverage / left, noise_variance)


def mixed(log_density: Tensor) -> Tensor:
    """Log density of the equal mixture of models, (S, N) -> (N,)."""
    return log_density.logsumexp(0) - log(len(log_density))


def stacked_share(first: Tensor, second: Tensor, weight: Tensor) -> float:
    r"""The share p of the first of two models that left-out rows like best.

    .. math:: \max_{0 \le p \le 1} \sum_n w_n \log\big(p\, e^{a_n} + (1 - p)\, e^{b_n}\big)

    (stacking of predictive distributions, Yao et al. 2018, eq. 8). Concave in p, so its derivative
    is halved down to a sign change; 0 and 1 are reached.

    Parameters
    ----------
    first, second : Tensor of shape (N,)
        Log densities a and b of left-out rows, nats.
    weight : Tensor of shape (N,)
    """
    ratio = (first - second).clamp(-500.0, 500.0).expm1()

    def slope(p: float) -> float:
        return float((weight * ratio / (1.0 + p * ratio)).sum())

    if slope(0.0) <= 0.0:
        return 0.0
    if slope(1.0) >= 0.0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) > 0.0 else (low, middle)
    return 0.5 * (low + high)


def expected_share(first: Tensor, second: Tensor, weight: Tensor) -> float:
    r"""The share p of the first of two models that is expected after the left-out rows.

    .. math:: \frac{\int_0^1 p\, L(p)\, dp}{\int_0^1 L(p)\, dp}, \quad
              L(p) = \prod_n \big(p\, e^{a_n} + (1 - p)\, e^{b_n}\big)^{w_n}

    The mean of what `stacked_share` maximises, under a flat prior: a few rows leave it near 1/2,
    many take it to the stacking weight. By 64 Gauss-Legendre nodes, whose distance (at most .025)
    is what the share is known to.

    Parameters
    ----------
    first, second : Tensor of shape (N,)
        Log densities a and b of left-out rows, nats.
    weight : Tensor of shape (N,)
    """
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    p = torch.as_tensor((nodes + 1.0) / 2.0).to(first)
    log_p, log_rest = p.log().unsqueeze(1), (1.0 - p).log().unsqueeze(1)
    log_likelihood = (log_p + first).logaddexp(log_rest + second) @ weight
    posterior = torch.softmax(log_likelihood + torch.as_tensor(weights).to(first).log(), 0)
    return float(posterior @ p)
