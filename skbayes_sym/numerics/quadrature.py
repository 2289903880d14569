"""Nodes and weights for expectations under normal distributions."""

from functools import cache

import numpy as np
import torch
from torch import Tensor


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
    tiny = torch.finfo(torch.float32).eps  # the first scrambled point may be 0
    z = torch.special.ndtri(uniform.clamp(tiny, 1.0 - tiny))
    return torch.cat([z, -z])
