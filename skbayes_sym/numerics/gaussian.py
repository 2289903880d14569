"""Normal distributions: divergences and log densities in nats, and quadrature nodes."""

from functools import cache
from math import log, pi

import numpy as np
import torch
from torch import Tensor

LOG_2PI = log(2.0 * pi)


def kl_elementwise(loc: Tensor, log_variance: Tensor, prior_log_variance: Tensor) -> Tensor:
    """Return ``KL[N(loc, exp log_variance) || N(0, exp prior_log_variance)]``, elementwise.

    Shapes broadcast. Sum the result over independent entries.
    """
    log_ratio = log_variance - prior_log_variance
    squares = loc.square() * (-prior_log_variance).exp()
    return 0.5 * (log_ratio.exp() + squares - 1.0 - log_ratio)


def kl_from_standard(trace: Tensor, squares: Tensor, log_det: Tensor, n: int) -> Tensor:
    """Return ``KL[N(m, S) || N(0, I)] = (tr S + |m|^2 - n - log det S) / 2``, (*B,).

    Parameters
    ----------
    trace, squares, log_det : Tensor of shape (*B,)
        ``tr S``, ``|m|^2`` and ``log det S``.
    n : int
        Dimension.
    """
    return 0.5 * (trace + squares - n - log_det)


def normal_log_prob(squares: Tensor, log_scale: Tensor) -> Tensor:
    """Return the log density of a normal at squared distances from its mean, elementwise.

    It is linear in ``squares``, so expected squares give the expected log density.
    """
    return -0.5 * (squares * (-2.0 * log_scale).exp() + LOG_2PI) - log_scale


def multivariate_normal_log_prob(squares: Tensor, log_det: Tensor, n: int) -> Tensor:
    """Return ``log N(x; m, S)`` in n dimensions, for ``squares = (x - m)' S^-1 (x - m)``."""
    return -0.5 * (squares + log_det + n * LOG_2PI)


@cache
def gauss_hermite(n_nodes: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights (n_nodes,) of ``E[f(z)]`` for z ~ N(0, 1), float64.

    The rule is exact for polynomials of degree up to 2 n - 1.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    with torch.inference_mode(False):  # the result is cached for callers that differentiate
        return torch.as_tensor(nodes), torch.as_tensor(weights / weights.sum())


# Pairs of quasi-Monte Carlo points per dimension from which on their second moments are corrected.
_MIN_POINTS_PER_MOMENT = 16


def sobol_normal(n_points: int, dimension: int, *, seed: int) -> Tensor:
    """Return quasi-Monte Carlo points of N(0, I), (n_points, dimension), float64.

    The points are a scrambled Sobol sequence (Owen 1995; unbiased over seeds) and its mirror image,
    so that odd moments vanish. If there are at least 32 points per dimension, a linear map makes
    their second moments those of N(0, I): averages of quadratic functions are exact, and those of
    other functions have a bias that falls as 1 / ``n_points``. ``n_points`` is rounded up to twice
    a power of two.
    """
    half = 1 << max(0, (max(n_points, 2) // 2 - 1).bit_length())
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    uniform = engine.draw(half, dtype=torch.float64)
    # The engine computes its first point in torch's default dtype, which users may change.
    uniform[0] = uniform[0].float()
    tiny = torch.finfo(torch.float32).eps  # the first scrambled point may be 0
    z = torch.special.ndtri(uniform.clamp(tiny, 1.0 - tiny))
    if half >= _MIN_POINTS_PER_MOMENT * dimension:
        factor = torch.linalg.cholesky(z.T @ z / half)
        z = torch.linalg.solve_triangular(factor, z.T, upper=False).T
    return torch.cat([z, -z])
