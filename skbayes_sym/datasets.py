"""Toy data of the papers, drawn anew."""

import numpy as np
from numpy.typing import NDArray

from skbayes_sym.numerics.arguments import check_count, check_flag, check_number, check_random_state

__all__ = ["make_absolute_value", "make_sinusoidal"]

Floats = NDArray[np.float64]
_LARGEST = 1e100  # of factors: beyond, their products leave the range of numbers
Seed = int | np.random.RandomState | None


def make_sinusoidal(
    n_samples: int = 150, *, noise: float = 0.3, random_state: Seed = None
) -> tuple[Floats, Floats]:
    """Draw y = sin(x) + noise * e with x ~ U(0, 8) and e ~ N(0, 1), not standardised.

    Wiese et al. (2023), App. E.1 (D_S, after Daxberger et al., 2021). They print no formula;
    their file is such a draw, both columns standardised.

    Returns
    -------
    X : (n_samples, 1), y : (n_samples,)
    """
    check_count("n_samples", n_samples)
    check_number("noise", noise, 0.0, _LARGEST)
    rng = check_random_state(random_state)
    X = rng.uniform(0.0, 8.0, size=(n_samples, 1))
    return X, np.sin(X[:, 0]) + rng.normal(scale=noise, size=n_samples)


def make_absolute_value(
    n_samples: int = 100, *, alpha: float, spaced: bool = True, random_state: Seed = None
) -> tuple[Floats, Floats]:
    """Make ``y = alpha |x| = relu(alpha x) + relu(-alpha x)`` on [-10, 10], without noise.

    Gelberg et al. (2024), section 5: the network relu(w1 x) + relu(w2 x) then has the two
    modes (alpha, -alpha) and (-alpha, alpha). The paper draws x ~ U(-10, 10): ``spaced=False``.
    ``spaced=True`` takes x_n = -10 + 20 (n + 1/2) / N, n = 0..N-1, and needs no seed.

    Returns
    -------
    X : (n_samples, 1), y : (n_samples,)
    """
    check_count("n_samples", n_samples)
    check_number("alpha", alpha, -_LARGEST, _LARGEST)
    if check_flag("spaced", spaced):
        x = -10.0 + 20.0 * (np.arange(n_samples) + 0.5) / n_samples
    else:
        x = check_random_state(random_state).uniform(-10.0, 10.0, size=n_samples)
    return x[:, None], alpha * np.abs(x)
