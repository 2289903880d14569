"""How many independent chains find every mode: the coupon collector's problem."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import ceil, log
from numbers import Real

import numpy as np
import numpy.typing as npt
from scipy.special import comb

from skbayes_sym.numerics.arguments import check_arrays

Probabilities = npt.NDArray[np.float64]

_MAX_TERMS = 1 << 20  # of the inclusion-exclusion sum: 20 modes that all differ
_ROUNDING = 1e-12  # relative: 0.75 must not fail for 0.7499999999999999


def n_chains_required(
    mode_probabilities: Sequence[float] | Probabilities, probability: float = 0.99
) -> int:
    """Smallest number of independent chains that together visit every mode.

    With ``pi_j`` the probability that a chain ends in mode ``j`` and G the number of chains until
    all modes were seen, n chains suffice with probability

        P(G <= n) = sum over sets J of modes of (-1)^|J| (1 - Pi_J)^n,   Pi_J = sum_{j in J} pi_j.

    Beyond 20 different probabilities (more if many are equal) the sum has too many terms: then the
    smallest n with ``sum_j (1 - pi_j)^n <= 1 - probability``, at 0.99 at most ``0.0051 / min_j pi_j
    + 1`` more.

    Parameters
    ----------
    mode_probabilities : array-like of shape (n_modes,)
        Positive, summing to 1 (to 1e-5). They are assumed, not estimated: a mode left out isn't
        waited for, and these are basins of the chains' starts, not posterior weights.
    probability : float in (0, 1), default=0.99
        Wanted for having visited every mode.

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
    O(2^n_modes) a trial, vectorised, with equal modes taken together, and a bisection up to the
    union bound. The bound of the paper, ``E[G] / (1 - probability)`` by Markov's inequality, is 23
    times as large in the example.

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
    return max(len(pi), _exact(pi, 1.0 - float(probability)))


@np.errstate(divide="ignore")
def _exact(pi: Probabilities, allowed: float) -> int:
    """Chains that miss a mode with a probability of at most ``allowed``."""
    log_missed = np.log1p(-pi)
    enough = allowed * (1.0 + _ROUNDING)
    last = ceil(log(allowed / len(pi)) / log_missed.max()) if len(pi) > 1 else 1

    def first(fails: Callable[[int], float], high: int) -> int:
        """Smallest n in [1, high] where a falling probability of failure is low enough."""
        return 1 + bisect_left(range(1, high), True, key=lambda n: fails(n) <= enough)

    union = first(lambda n: float(np.exp(n * log_missed).sum()), last)
    values, counts = np.unique(pi, return_counts=True)
    if np.prod(counts + 1.0) > _MAX_TERMS:
        return union
    mass = np.zeros(1)
    sign = np.ones(1)
    for value, count in zip(values, counts, strict=True):
        chosen = np.arange(count + 1)
        mass = (mass[:, None] + value * chosen).ravel()
        sign = (sign[:, None] * (-1.0) ** chosen * comb(count, chosen)).ravel()
    log_rest = np.log1p(-np.minimum(mass[1:], 1.0))  # the empty set is P = 1 itself
    return first(lambda n: float(-sign[1:] @ np.exp(n * log_rest)), union)
