"""The gap of isotropic rows under O(20) that test_langevin.py compares with, by Gibbs sampling.

``python tests/oracles/rotations.py`` prints it (a minute). Nothing of the package is imported.

With means ``sqrt(d) I`` and unit variances the log ratio of a draw ``x = sqrt(d) I + z`` is
``tr B - log E exp(tr B T')``, ``B = sqrt(d) x``, T uniform on O(20). The integral is found along
``t B``, t from 0 to 1: its logarithm has the derivative ``E tr(B T')`` under ``exp(t tr B T')``. T
is sampled by rotations in coordinate planes, whose angle is a von Mises variable given the rest.
"""

import numpy as np

K, N_DRAWS, N_SWEEPS, N_WARMUP = 20, 64, 80, 20
# Gauss-Legendre nodes in s, t = s^4: small t matter most.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(30)
S = 0.5 * (NODES + 1.0)


def sweep(T: np.ndarray, B: np.ndarray, rng: np.random.Generator) -> None:
    """Rotate every pair of rows, then flip signs of rows, in place; (C, K, K) both."""
    for i in range(K):
        for j in range(i + 1, K):
            a = np.einsum("ck,ck->c", B[:, i], T[:, i]) + np.einsum("ck,ck->c", B[:, j], T[:, j])
            b = np.einsum("ck,ck->c", B[:, j], T[:, i]) - np.einsum("ck,ck->c", B[:, i], T[:, j])
            angle = rng.vonmises(np.arctan2(b, a), np.hypot(a, b))
            c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
            first, second = T[:, i].copy(), T[:, j].copy()
            T[:, i], T[:, j] = c * first - s * second, s * first + c * second
    row = rng.integers(K)
    odds = -2.0 * np.einsum("ck,ck->c", B[:, row], T[:, row])
    T[:, row] *= np.where(np.log(rng.random(len(T))) < odds, -1.0, 1.0)[:, None]


def gap(distance: float, rng: np.random.Generator) -> tuple[float, float]:
    """Mean over draws, and its standard error, nats."""
    x = distance**0.5 * np.eye(K) + rng.standard_normal((N_DRAWS, K, K))
    B = distance**0.5 * x
    t = np.repeat(S**4, N_DRAWS)
    tilted = t[:, None, None] * np.tile(B, (len(S), 1, 1))
    T = np.tile(np.eye(K), (len(t), 1, 1))
    total = np.zeros(len(t))
    for step in range(N_SWEEPS):
        sweep(T, tilted, rng)
        if step >= N_WARMUP:
            total += np.einsum("cij,cij->c", np.tile(B, (len(S), 1, 1)), T)
    mean = (total / (N_SWEEPS - N_WARMUP)).reshape(len(S), N_DRAWS)
    log_integral = np.einsum("s,sd->d", 0.5 * WEIGHTS * 4.0 * S**3, mean)
    values = np.trace(B, axis1=1, axis2=2) - log_integral
    return float(values.mean()), float(values.std(ddof=1) / N_DRAWS**0.5)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    for distance in (1.0, 5.0, 20.0, 100.0, 1000.0):
        value, error = gap(distance, rng)
        print(f"distance {distance:g}: {value:.2f} +- {error:.2f}")
