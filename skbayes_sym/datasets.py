"""Synthetic data sets of the papers, drawn from their definitions."""

import numpy as np
from numpy.typing import NDArray

from skbayes_sym.numerics.arguments import check_count, check_flag, check_number, check_random_state

__all__ = ["make_absolute_value", "make_sinusoidal"]

Floats = NDArray[np.float64]
_MAX_FACTOR = 1e100  # products of larger factors overflow
Seed = int | np.random.RandomState | None


def make_sinusoidal(
    n_samples: int = 150, *, noise: float = 0.3, random_state: Seed = None
) -> tuple[Floats, Floats]:
    """Draw y = sin(x) + noise * e with x ~ U(0, 8) and e ~ N(0, 1), not standardised.

    Parameters
    ----------
    n_samples : int, default=150
        Number of rows.
    noise : float, default=0.3
        Standard deviation of the noise.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of the draw.

    Returns
    -------
    X : ndarray of shape (n_samples, 1)
        Inputs.
    y : ndarray of shape (n_samples,)
        Targets.

    Notes
    -----
    Wiese et al. (2023), appendix E.1 (D_S, after Daxberger et al., 2021), print no formula. Their
    file is such a draw with both columns standardised.
    """
    check_count("n_samples", n_samples)
    check_number("noise", noise, 0.0, _MAX_FACTOR)
    rng = check_random_state(random_state)
    X = rng.uniform(0.0, 8.0, size=(n_samples, 1))
    return X, np.sin(X[:, 0]) + rng.normal(scale=noise, size=n_samples)


def make_absolute_value(
    n_samples: int = 100, *, alpha: float, spaced: bool = True, random_state: Seed = None
) -> tuple[Floats, Floats]:
    """Make ``y = alpha |x| = relu(alpha x) + relu(-alpha x)`` on [-10, 10], without noise.

    Parameters
    ----------
    n_samples : int, default=100
        Number of rows.
    alpha : float
        Slope.
    spaced : bool, default=True
        Whether the inputs are the evenly spaced ``x_n = -10 + 20 (n + 1/2) / N``, n = 0..N-1.
        Otherwise they are drawn from U(-10, 10), as in the paper.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of the draw, for ``spaced=False``.

    Returns
    -------
    X : ndarray of shape (n_samples, 1)
        Inputs.
    y : ndarray of shape (n_samples,)
        Targets.

    Notes
    -----
    With these data the network relu(w1 x) + relu(w2 x) has the two modes (alpha, -alpha) and
    (-alpha, alpha) (Gelberg et al. 2024, section 5).
    """
    check_count("n_samples", n_samples)
    check_number("alpha", alpha, -_MAX_FACTOR, _MAX_FACTOR)
    if check_flag("spaced", spaced):
        x = -10.0 + 20.0 * (np.arange(n_samples) + 0.5) / n_samples
    else:
        x = check_random_state(random_state).uniform(-10.0, 10.0, size=n_samples)
    return x[:, None], alpha * np.abs(x)
