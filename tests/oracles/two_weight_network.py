"""Numbers that tests of the two-weight network compare with, without its example or the package.

``python tests/oracles/two_weight_network.py`` prints them (test_two_weight_network.py, EVIDENCE and
GAPS). With ``f(x) = relu(w_1 x) + relu(w_2 x)`` the data of either sign of x see one number of the
weights, the sum of their positive or of their negative parts: the evidence is an integral over
quadrants, and expectations of the log likelihood are moments of rectified normals.
"""

from collections.abc import Iterator

import numpy as np
from scipy.integrate import dblquad
from scipy.optimize import minimize
from scipy.stats import norm

X = -10.0 + 20.0 * (np.arange(100) + 0.5) / 100
NOISE = 4.0
SQUARES = np.array([(X[X > 0.0] ** 2).sum(), (X[X < 0.0] ** 2).sum()])
CONSTANT = -0.5 * len(X) * np.log(2.0 * np.pi * NOISE**2)
REACH = 2.5  # beyond it there is less than 1e-30 of the posterior
PAID_BACK = {"mean-field": 0.0, "K = 2, iid": 0.5, "exact": 1.0}

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
Z = np.stack(np.meshgrid(_NODES, _NODES), -1).reshape(-1, 2)
MASS = np.outer(_WEIGHTS, _WEIGHTS).ravel() / (2.0 * np.pi)


def log_evidence(alpha: float) -> float:
    """log p(y), quadrant by quadrant."""

    def joint(w2: float, w1: float) -> float:
        parts = np.array([max(w1, 0.0) + max(w2, 0.0), max(-w1, 0.0) + max(-w2, 0.0)])
        misfit = (SQUARES * (alpha - parts) ** 2).sum()
        return float(np.exp(-0.5 * misfit / NOISE**2) * norm.pdf(w1) * norm.pdf(w2))

    sides = [(-REACH, 0.0), (0.0, REACH)]
    total = sum(dblquad(joint, *a, *b, epsabs=1e-13)[0] for a in sides for b in sides)
    return float(np.log(total) + CONSTANT)


def rectified(loc: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of max(w, 0) for w ~ N(loc, sd^2)."""
    ratio = loc / sd
    mean = loc * norm.cdf(ratio) + sd * norm.pdf(ratio)
    square = (loc**2 + sd**2) * norm.cdf(ratio) + loc * sd * norm.pdf(ratio)
    return mean, square - mean**2


def expected_log_joint(alpha: float, loc: np.ndarray, sd: np.ndarray) -> float:
    """E_q[log p(y, w)]."""
    misfit = 0.0
    for squares, sign in zip(SQUARES, (1.0, -1.0), strict=True):
        mean, variance = rectified(sign * loc, sd)
        misfit += squares * ((alpha - mean.sum()) ** 2 + variance.sum())
    log_prior = -0.5 * (loc**2 + sd**2 + np.log(2.0 * np.pi)).sum()
    return float(CONSTANT - 0.5 * misfit / NOISE**2 + log_prior)


def information(loc: np.ndarray, sd: np.ndarray) -> float:
    """E_q[log q - log q_G], by Gauss-Hermite."""
    w = loc + sd * Z
    there = norm.logpdf(w[:, ::-1], loc, sd).sum(1) - norm.logpdf(w, loc, sd).sum(1)
    return float(MASS @ (np.log(2.0) - np.logaddexp(0.0, there)))


def gaps(alpha: float) -> Iterator[float]:
    """log p(y) - ELBO_G at the optimum of each objective."""
    evidence = log_evidence(alpha)

    def bound(params: np.ndarray, paid_back: float) -> float:
        loc, sd = params[:2], np.exp(params[2:])
        entropy = (params[2:] + 0.5 * np.log(2.0 * np.pi * np.e)).sum()
        symmetrised = paid_back * information(loc, sd) if paid_back else 0.0
        return expected_log_joint(alpha, loc, sd) + entropy + symmetrised

    starts = [np.array([m, -m, np.log(0.1), np.log(0.1)]) for m in (0.001, 0.5 * alpha, alpha)]
    for share in PAID_BACK.values():
        found = [
            minimize(
                lambda p, share=share: -bound(p, share), start, method="Nelder-Mead",
                options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 4000},
            )
            for start in starts
        ]  # fmt: skip
        best = min(found, key=lambda result: result.fun)
        yield evidence - bound(best.x, 1.0)


if __name__ == "__main__":
    for alpha in (0.05, 0.10, 0.15, 0.20, 0.30):
        figures = ", ".join(f"{gap:.6f}" for gap in gaps(alpha))
        print(f"{alpha:.2f}: log evidence {log_evidence(alpha):.7f}, gaps {figures}")
