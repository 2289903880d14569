"""Normal distributions: divergences and log densities in nats, nodes of expectations."""

from functools import cache
from math import log, pi

import numpy as np
import torch
from torch import Tensor

LOG_2PI = log(2.0 * pi)


def kl_elementwise(loc: Tensor, log_variance: Tensor, prior_log_variance: Tensor) -> Tensor:
    """``KL[N(loc, exp log_variance) || N(0, exp prior_log_variance)]`` of every entry.

    Shapes broadcast; sum over the entries of independent ones.
    """
    log_ratio = log_variance - prior_log_variance
    squares = loc.square() * (-prior_log_variance).exp()
    return 0.5 * (log_ratio.exp() + squares - 1.0 - log_ratio)


def kl_from_standard(trace: Tensor, squares: Tensor, log_det: Tensor, n: int) -> Tensor:
    """``KL[N(m, S) || N(0, I)] = (tr S + |m|^2 - n - log det S) / 2`` in n dimensions, (*B,)."""
    return 0.5 * (trace + squares - n - log_det)


def normal_log_prob(squares: Tensor, log_scale: Tensor) -> Tensor:
    """Log density of a normal at squared distances ``squares`` from its mean, elementwise.

    Linear in ``squares``: of expected squares it is the expected log density.
    """
    return -0.5 * (squares * (-2.0 * log_scale).exp() + LOG_2PI) - log_scale


def multivariate_normal_log_prob(squares: Tensor, log_det: Tensor, n: int) -> Tensor:
    """``log N(x; m, S)`` in n dimensions, ``squares = (x - m)' S^-1 (x - m)``, (*B,)."""
    return -0.5 * (squares + log_det + n * LOG_2PI)


@cache
def gauss_hermite(n_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights (n_nodes,) of ``E[f(z)]``, z ~ N(0, 1), float64.

    Exact for polynomials up to degree 2 n - 1.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    with torch.inference_mode(False):  # kept for callers that differentiate, whoever asks first
        return torch.as_tensor(nodes), torch.as_tensor(weights / weights.sum())


def sobol_normal(n_points: int, dimension: int, *, seed: int) -> Tensor:
    """Quasi-Monte Carlo points of N(0, I), (n_points, dimension), float64.

    A scrambled Sobol sequence (Owen 1995; unbiased for each seed) and its mirror image, so that
    odd moments vanish. ``n_points`` is rounded up to twice a power of two.
    """
    half = 1 << max(0, (max(n_points, 2) // 2 - 1).bit_length())
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    uniform = engine.draw(half, dtype=torch.float64)
    # The engine computes its first point in torch's default dtype, which users may change.
    uniform[0] = uniform[0].float()
    tiny = torch.finfo(torch.float32).eps  # the first scrambled point may be 0
    z = torch.special.ndtri(uniform.clamp(tiny, 1.0 - tiny))
    return torch.cat([z, -z])
