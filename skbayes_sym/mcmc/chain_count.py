"""Number of independent chains that find every mode: the coupon collector's problem."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import ceil, log
from numbers import Real

import numpy as np
import numpy.typing as npt
from scipy.special import comb

from skbayes_sym.numerics.arguments import check_arrays

Probabilities = npt.NDArray[np.float64]

# Maximum number of terms of the inclusion-exclusion sum: 20 modes with different probabilities.
_MAX_TERMS = 1 << 20

# Relative tolerance, so that 0.75 doesn't fail for 0.7499999999999999.
_ROUNDING = 1e-12


def n_chains_required(
    mode_probabilities: Sequence[float] | Probabilities, probability: float = 0.99
) -> int:
    """Smallest number of independent chains that together visit every mode.

    Parameters
    ----------
    mode_probabilities : array-like of shape (n_modes,)
        Probability that a chain ends in each mode; positive, with sum 1 (up to 1e-5). These are
        assumptions about the basins of the starting points and not posterior weights. A mode that
        is missing here isn't waited for.
    probability : float in (0, 1), default=0.99
        Probability of visiting every mode.

    Returns
    -------
    int
        At least the number of modes.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    Notes
    -----
    With ``pi_j`` the probability that a chain ends in mode ``j`` and G the number of chains until
    all modes were seen, n chains suffice with probability

        P(G <= n) = sum over sets J of modes of (-1)^|J| (1 - Pi_J)^n,   Pi_J = sum_{j in J} pi_j.

    Beyond 20 different probabilities (more if many are equal) the sum has too many terms. The
    result is then the smallest n with ``sum_j (1 - pi_j)^n <= 1 - probability``, which at 0.99 is
    larger by at most ``0.0051 / min_j pi_j + 1``.

    An evaluation of the sum takes O(2^n_modes). Equal modes are taken together, and the smallest n
    is found by bisection below the union bound. The bound of the paper, ``E[G] / (1 -
    probability)`` by Markov's inequality, is 23 times as large in the example.

    References
    ----------
    Wiese et al. (2023), Proposition 2.

    Examples
    --------
    >>> from skbayes_sym.mcmc.chain_count import n_chains_required
    >>> n_chains_required([0.57, 0.35, 0.08])
    56
    """
    shapes = {"mode_probabilities": "m"}
    arrays = check_arrays("n_chains_required", shapes, mode_probabilities=mode_probabilities)
    pi = arrays["mode_probabilities"].astype(float)
    if pi.size == 0:
        raise ValueError("mode_probabilities must have at least one mode, got none.")
    if not bool((np.isfinite(pi) & (pi > 0.0)).all()):
        raise ValueError(
            f"mode_probabilities must be positive, got {pi.tolist()}. Leave out modes that no "
            "chain can reach."
        )
    total = float(pi.sum())
    if abs(total - 1.0) > 1e-5:
        raise ValueError(
            f"mode_probabilities must sum to 1, got a sum of {total:.6g}. Divide them by their sum "
            "if they are counts or weights; add the missing modes if they are not all."
        )
    pi = pi / total
    if not isinstance(probability, Real) or not 0.0 < probability < 1.0:
        raise ValueError(f"probability must lie strictly between 0 and 1, got {probability!r}.")
    return max(len(pi), _find_n_chains(pi, 1.0 - float(probability)))


@np.errstate(divide="ignore")
def _find_n_chains(pi: Probabilities, max_failure: float) -> int:
    """Smallest number of chains that miss a mode with probability at most ``max_failure``."""
    log_miss = np.log1p(-pi)
    tolerance = max_failure * (1.0 + _ROUNDING)
    if len(pi) > 1:
        upper_bound = ceil(log(max_failure / len(pi)) / log_miss.max())
    else:
        upper_bound = 1

    def find_smallest(failure: Callable[[int], float], high: int) -> int:
        """Smallest n in [1, high] at which the decreasing ``failure`` probability is tolerable."""
        return 1 + bisect_left(range(1, high), True, key=lambda n: failure(n) <= tolerance)

    # The union bound.
    n_chains = find_smallest(lambda n: float(np.exp(n * log_miss).sum()), upper_bound)
    values, counts = np.unique(pi, return_counts=True)
    if np.prod(counts + 1.0) > _MAX_TERMS:
        return n_chains

    # Inclusion and exclusion over the number of modes of each probability.
    mass = np.zeros(1)
    coefficient = np.ones(1)
    for value, count in zip(values, counts, strict=True):
        n_modes = np.arange(count + 1)
        mass = (mass[:, None] + value * n_modes).ravel()
        coefficient = (coefficient[:, None] * (-1.0) ** n_modes * comb(count, n_modes)).ravel()
    log_rest = np.log1p(-np.minimum(mass[1:], 1.0))  # the empty set contributes 1
    return find_smallest(lambda n: float(-coefficient[1:] @ np.exp(n * log_rest)), n_chains)
