"""Toy data of the papers, drawn anew."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skbayes_sym.numerics.arguments import check_count, check_flag, check_number, check_random_state

__all__ = [
    "make_absolute_value", "make_low_rank", "make_regression2d",
    "make_repeated_datum", "make_rings", "make_sinusoidal",
]  # fmt: skip

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LARGEST = 1e100  # of factors: beyond, their products leave the range of numbers
Seed = int | np.random.RandomState | None


def _checked_rng(noise: float, random_state: Seed, **sizes: int) -> np.random.RandomState:
    """Stream of the draws, with sizes and noise checked."""
    for name, size in sizes.items():
        check_count(name, size)
    check_number("noise", noise, 0.0, _LARGEST)
    return check_random_state(random_state)


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
    rng = _checked_rng(noise, random_state, n_samples=n_samples)
    X = rng.uniform(0.0, 8.0, size=(n_samples, 1))
    return X, np.sin(X[:, 0]) + rng.normal(scale=noise, size=n_samples)


def make_regression2d(
    n_samples: int = 256,
    *,
    noise: float = 0.1,
    formula: Literal["file", "paper"] = "file",
    random_state: Seed = None,
) -> tuple[Floats, Floats]:
    """Draw y = f(x) + noise * e with x ~ U(-2, 2)^2 and e ~ N(0, 1), not standardised.

    Wiese et al. (2023), App. E.1 (D_R). Their print and their data file disagree:

    - ``formula="file"``: f(x) = x1 (sin(x1) + cos(x2)), what the published file was made with;
    - ``formula="paper"``: f(x) = x1 sin(x1) + cos(x2), as printed.

    Returns
    -------
    X : (n_samples, 2), y : (n_samples,)
    """
    rng = _checked_rng(noise, random_state, n_samples=n_samples)
    if not isinstance(formula, str) or formula not in ("file", "paper"):
        raise ValueError(f"formula must be 'file' or 'paper', got {formula!r}.")
    X = rng.uniform(-2.0, 2.0, size=(n_samples, 2))
    factor = X[:, 0] if formula == "file" else 1.0
    mean = X[:, 0] * np.sin(X[:, 0]) + factor * np.cos(X[:, 1])
    return X, mean + rng.normal(scale=noise, size=n_samples)


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


def make_low_rank(
    n_rows: int = 40,
    n_columns: int = 40,
    *,
    n_components: int = 20,
    noise: float = 2.0,
    random_state: Seed = None,
) -> tuple[Floats, Floats]:
    """Draw R = U V' / sqrt(k) + noise * E, all entries of U, V and E standard normal.

    Moore (2016), section 2, at the sizes of Fig. 4. The text calls U V' the matrix to recover;
    the model printed beside it has the 1 / sqrt(k), and so does this.

    Returns
    -------
    R : (n_rows, n_columns), the data; mean : (n_rows, n_columns), U V' / sqrt(k), of rank k.
    """
    sizes = {"n_rows": n_rows, "n_columns": n_columns, "n_components": n_components}
    rng = _checked_rng(noise, random_state, **sizes)
    U = rng.normal(size=(n_rows, n_components))
    V = rng.normal(size=(n_columns, n_components))
    mean = U @ V.T / math.sqrt(n_components)
    return mean + rng.normal(scale=noise, size=mean.shape), mean


def make_rings(
    n_samples: int = 200, *, angle: float = 120.0, noise: float = 0.06, random_state: Seed = None
) -> tuple[Floats, NDArray[np.int64]]:
    """Draw two arcs and a blob, in two classes: partly invariant to rotation about the origin.

    A point on the arc of radius r is (cos t (r + noise e1), sin t (r + noise e2)), with t
    uniform over [0, angle] degrees and e1, e2 ~ N(0, 1) independent. Class 0: half of the
    points, r = 0.5. Class 1: two thirds of the rest at r = 1, the others N(0, noise^2 I).

    Immer, van der Ouderaa et al. (2022), App. J.1, print only "a soft +-60 degree rotational
    invariance"; the numbers are their code's, whose arc is +-60 degrees about 60 degrees, not 0.

    Returns
    -------
    X : (n_samples, 2), y : (n_samples,) in {0, 1}, shuffled.
    """
    rng = _checked_rng(noise, random_state, n_samples=n_samples)
    check_number("angle", angle, -_LARGEST, _LARGEST)
    n_zero = n_samples // 2
    n_outer = int((n_samples - n_zero) / 1.5)
    sizes = [n_zero, n_outer, n_samples - n_zero - n_outer]
    radius = np.repeat([0.5, 1.0, 0.0], sizes)[:, None] + noise * rng.normal(size=(n_samples, 2))
    t = rng.uniform(0.0, math.radians(angle), size=n_samples)
    direction = np.column_stack([np.cos(t), np.sin(t)])
    direction[n_zero + n_outer :] = 1.0  # the blob lies on no arc
    order = rng.permutation(n_samples)
    return (direction * radius)[order], np.repeat([0, 1, 1], sizes)[order]


def make_repeated_datum(
    n_samples: int = 1, *, n_features: int = 10, noise: float = 0.0, random_state: Seed = None
) -> tuple[Floats, Floats]:
    """Repeat one input of a linear model with too many weights: X_nk = 1/K, y_n = 1 + noise e_n.

    Kurle et al. (2022), section 4: y = 1'w / K + e, which K - 1 translations of w leave as it
    is; the 1/K is a part of X here. Fig. 1: all y = 1 (``noise=0``), a model with noise variance
    1 / (2 pi e) and prior N(0, K I), under which the variance of 1'w / K is 1 for every K.

    Returns
    -------
    X : (n_samples, n_features), y : (n_samples,)
    """
    rng = _checked_rng(noise, random_state, n_samples=n_samples, n_features=n_features)
    X = np.full((n_samples, n_features), 1.0 / n_features)
    return X, 1.0 + rng.normal(scale=noise, size=n_samples)
