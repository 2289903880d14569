"""Permanents and bounds that test_permanent.py compares with: L[i, j] = 2 sin(1 + 3i + 5j + ij).

``python tests/oracles/permanents.py`` prints them. Nothing of the package is imported.
"""

from itertools import permutations
from math import factorial

import numpy as np
from scipy.optimize import minimize
from scipy.special import xlogy


def log_weights(d: int) -> np.ndarray:
    i, j = np.indices((d, d))
    return 2.0 * np.sin(1.0 + 3.0 * i + 5.0 * j + i * j)


def permanent(a: np.ndarray) -> float:
    """Sum over all permutations."""
    rows = np.arange(len(a))
    return float(sum(np.prod(a[rows, list(p)]) for p in permutations(rows)))


def soules(a: np.ndarray) -> float:
    """Soules (2005): rows in falling order times differences of ``k!^(1/k)``."""
    levels = np.array([0.0] + [factorial(k) ** (1.0 / k) for k in range(1, len(a) + 1)])
    return float(np.prod(-np.sort(-a, axis=1) @ np.diff(levels)))


def bethe(a: np.ndarray) -> float:
    """Log of the Bethe permanent (Vontobel 2013): concave, over doubly stochastic matrices."""
    d = len(a)

    def loss(b: np.ndarray) -> float:
        b = b.reshape(d, d)
        return float(-(b * np.log(a)).sum() + xlogy(b, b).sum() - xlogy(1.0 - b, 1.0 - b).sum())

    sums = np.concatenate([np.kron(np.eye(d), np.ones(d)), np.kron(np.ones(d), np.eye(d))])
    found = minimize(
        loss, np.full(d * d, 1.0 / d), method="SLSQP", bounds=[(1e-12, 1.0 - 1e-12)] * d * d,
        constraints={"type": "eq", "fun": lambda b: sums[:-1] @ b - 1.0},
        options={"maxiter": 2000, "ftol": 1e-13},
    )  # fmt: skip
    return -float(found.fun)


if __name__ == "__main__":
    for d in (2, 3, 4, 5, 6, 8):
        a = np.exp(log_weights(d))
        print(d, *(f"{x:.10f}" for x in (np.log(permanent(a)), np.log(soules(a)), bethe(a))))
    a = np.exp(log_weights(3))
    minors = [[np.delete(np.delete(a, i, 0), j, 1) for j in range(3)] for i in range(3)]
    shares = a * [[permanent(m) for m in row] for row in minors] / permanent(a)
    print("marginals of 3:", np.round(shares, 4).tolist())
