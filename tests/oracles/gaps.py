"""Numbers that tests of the gaps compare with, by SciPy's quadrature alone.

``python tests/oracles/gaps.py`` prints them. Nothing of the package is imported.
"""

import numpy as np
from scipy.integrate import dblquad, quad
from scipy.stats import norm


def sign_flip(a: float) -> float:
    """``log 2 - E log(1 + exp(-2 t))``, t ~ N(a, a): one unit at squared distance a, and its mirror
    image (test_sign_flips.py); two equal units at distance delta are ``a = delta^2 / 2``
    (test_units.py)."""
    spread = a**0.5
    ends = a - 12.0 * spread, a + 12.0 * spread
    lost, _ = quad(
        lambda t: np.logaddexp(0.0, -2.0 * t) * norm.pdf(t, a, spread), *ends, epsabs=1e-13
    )
    return np.log(2.0) - lost


def two_units(loc: tuple[float, float], scale: tuple[float, float]) -> float:
    """``E[log q - log q_G]`` of two units of one weight each that may change places."""

    def log_q(x: float, y: float) -> float:
        return float(norm.logpdf(x, loc[0], scale[0]) + norm.logpdf(y, loc[1], scale[1]))

    def integrand(y: float, x: float) -> float:
        own, other = log_q(x, y), log_q(y, x)
        return np.exp(own) * (own - np.logaddexp(own, other) + np.log(2.0))

    ends = [(m - 9.0 * s, m + 9.0 * s) for m, s in zip(loc, scale, strict=True)]
    value, _ = dblquad(integrand, *ends[0], *ends[1], epsabs=1e-10)
    return value


def mean_of_product(r: float) -> float:
    """``E[u v | r]``, r = u v + N(0, 1), u and v standard normal (Moore's Figure 3)."""

    def weight(v: float) -> float:
        return norm.pdf(v) * norm.pdf(r, 0.0, (1.0 + v * v) ** 0.5)

    above, _ = quad(lambda v: weight(v) * r * v * v / (1.0 + v * v), -np.inf, np.inf, epsabs=1e-13)
    below, _ = quad(weight, -np.inf, np.inf, epsabs=1e-13)
    return above / below


if __name__ == "__main__":
    for delta in (0.25, 0.5, 1.0, 2.0, 4.0):
        a = delta**2 / 2.0
        print(f"two equal units {delta:g} apart, one unit at a = {a:g}: {sign_flip(a):.8f}")
    print(f"N(0.3, 0.4^2) and N(-0.5, 0.9^2): {two_units((0.3, -0.5), (0.4, 0.9)):.8f}")
    for r in (0.5, 2.0, 4.0):
        print(f"E[uv | r = {r:g}] = {mean_of_product(r):.8f}")
