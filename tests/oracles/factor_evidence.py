"""Log evidence of the ten matrices in tests/factorization/test_vi.py.

``python tests/oracles/factor_evidence.py`` prints it (ten seconds), without the package.

Thermodynamic integration: the logarithm of ``E[p(R | U, V)^t]`` under the prior has the derivative
``E_t[log p(R | U, V)]``, the mean under the posterior at noise variance ``4 / t``, which Gibbs
sampling of the rows of U and V draws from; all temperatures and matrices run side by side.
"""

from math import log, pi, sqrt

import numpy as np
import torch

K, NOISE, N_WARMUP, N_SWEEPS, N_NODES, POWER = 20, 4.0, 60, 240, 24, 5


def matrices() -> torch.Tensor:
    """As in the tests."""
    g = torch.Generator().manual_seed(0)
    u, v, noise = (
        torch.randn(80, 40, width, generator=g, dtype=torch.float64) for width in (20, 20, 40)
    )
    return u @ v.mT / sqrt(20) + 2.0 * noise


def rows(R: torch.Tensor, V: torch.Tensor, t: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """U given V: (C, n, m), (C, m, K) -> (C, n, K)."""
    scale = (t / NOISE)[:, None, None]
    precision = scale * (V.mT @ V) / K + torch.eye(K, dtype=V.dtype)
    factor = torch.linalg.cholesky(precision)
    target = scale * (R @ V) / sqrt(K)
    mean = torch.cholesky_solve(target.mT, factor)
    noise = torch.randn(mean.shape, generator=g, dtype=V.dtype)
    return (mean + torch.linalg.solve_triangular(factor.mT, noise, upper=True)).mT


if __name__ == "__main__":
    g = torch.Generator().manual_seed(1)
    R = matrices()[:10]
    # Gauss-Legendre nodes in s, t = s^5: small t matter most.
    nodes, weights = (torch.as_tensor(a) for a in np.polynomial.legendre.leggauss(N_NODES))
    s = 0.5 * (nodes + 1.0)
    t, weights = s**POWER, 0.5 * weights * POWER * s ** (POWER - 1)
    R, t = R.repeat(N_NODES, 1, 1), t.repeat_interleave(10)
    V = torch.randn(len(t), 40, K, generator=g, dtype=torch.float64)
    total = torch.zeros(len(t), dtype=torch.float64)
    for sweep in range(N_SWEEPS):
        U = rows(R, V, t, g)
        V = rows(R.mT, U, t, g)
        if sweep >= N_WARMUP:
            squares = (R - U @ V.mT / sqrt(K)).square().sum((1, 2))
            total += -0.5 * squares / NOISE - 800.0 * log(2.0 * pi * NOISE)
    mean = (total / (N_SWEEPS - N_WARMUP)).view(N_NODES, 10)
    print([round(float(x), 1) for x in weights @ mean])
