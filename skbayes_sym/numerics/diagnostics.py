"""Convergence of chains: rank-normalised split R-hat and effective sample sizes.

Arguments have the shape (chains, draws, quantities). Results have one number per quantity, nan
where it isn't defined.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata

Floats = npt.NDArray[np.float64]


def rank_rhat(draws: npt.ArrayLike, chain_weights: npt.ArrayLike | None = None) -> Floats:
    """Compute the rank-normalised split R-hat, the larger one of bulk and tail.

    Parameters
    ----------
    draws : array-like of shape (C, S, Q)
        Q quantities (predictions, parameters) for S draws of C chains; also tensors on the CPU.
    chain_weights : array-like of shape (C,), optional
        Weights of the chains. Chains of weight 0 are excluded. Other weights have no effect, since
        R-hat measures whether the chains agree.

    Returns
    -------
    ndarray of shape (Q,)
        R-hat: 1 if all half chains agree, above 1.01 if they don't (Vehtari et al.). It is nan for
        fewer than 4 draws per chain, and for quantities that are constant or not finite.

    Notes
    -----
    With W the mean variance within half chains of S draws and B the variance of their means,

        R-hat = sqrt(((S - 1) / S W + B) / W),

    for the normal scores of all draws and for those of ``|x - median|``. O(C S Q log(C S)).

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter, Bürkner (2021), "Rank-normalization, folding, and
    localization: an improved R-hat", Bayesian Analysis 16.
    """
    return _apply_to_half_chains(_larger_rhat, draws, chain_weights)[0]


def bulk_ess(draws: npt.ArrayLike, chain_weights: npt.ArrayLike | None = None) -> Floats:
    """Compute the effective number of draws for means, of the normal scores of split chains.

    Unlike `mean_ess` it is robust to heavy tails and comparable between quantities. Parameters and
    return value are the same.

    Vehtari et al. (2021), section 4.
    """
    n_effective, kish = _apply_to_half_chains(
        lambda x: _ess(_normal_scores(x)), draws, chain_weights
    )
    return kish * n_effective


def mean_ess(draws: npt.ArrayLike, chain_weights: npt.ArrayLike | None = None) -> Floats:
    """Compute the effective number of draws for the mean of each quantity.

    Parameters
    ----------
    draws : array-like of shape (C, S, Q)
        Q quantities for S draws of C chains.
    chain_weights : array-like of shape (C,), optional
        Weights of the chains in the mean; equal by default. Unequal weights reduce the result by
        Kish's factor ``(sum w)^2 / (C sum w^2)``. Chains of weight 0 are excluded.

    Returns
    -------
    ndarray of shape (Q,)
        Effective number of draws. For anticorrelated draws it can exceed C S, by a factor of at
        most ``log10(C S)``. It is nan for fewer than 4 draws per chain, and for quantities that are
        constant or not finite.

    Notes
    -----
    ::

        ESS = C S / (1 + 2 sum_t rho_t),   rho_t = 1 - (W - mean over chains of acov_t) / var+

    The sum ends at the first negative sum of two consecutive autocorrelations, and these sums are
    made monotone (Geyer's initial monotone sequence). Chains that disagree increase ``var+`` and
    reduce the result. O(C S Q log S), by FFT.
    """
    n_effective, kish = _apply_to_half_chains(_ess, draws, chain_weights)
    return kish * n_effective


def _apply_to_half_chains(
    statistic: Callable[[Floats], Floats],
    chain_draws: npt.ArrayLike,
    chain_weights: npt.ArrayLike | None,
) -> tuple[Floats, float]:
    """Apply a statistic to half chains (2C, S // 2, Q), and return it with Kish's factor.

    It is nan for quantities for which it isn't defined. Chains of weight 0 are excluded, and so is
    the middle draw of chains of odd length.
    """
    values = np.asarray(chain_draws, dtype=np.float64)
    kish = 1.0
    if values.ndim != 3:
        raise ValueError(f"draws must have shape (chains, draws, quantities), got {values.shape}.")
    if chain_weights is not None:
        weights = np.asarray(chain_weights, dtype=np.float64)
        if weights.shape != values.shape[:1] or not bool((weights >= 0).all()):
            raise ValueError(
                f"chain_weights must be {len(values)} non-negative numbers, got shape "
                f"{weights.shape}."
            )
        values = values[weights > 0]
        weights = weights[weights > 0]
        kish = 0.0
        if len(weights):
            kish = float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))
    result = np.full(values.shape[2], np.nan)
    half = values.shape[1] // 2
    if half >= 2 and len(values):  # with fewer draws neither statistic exists
        low = values.min(axis=(0, 1))
        high = values.max(axis=(0, 1))
        index = np.flatnonzero(np.isfinite(low) & np.isfinite(high) & (low < high))
        # Blocks of 16 MB, of which about ten copies are made.
        size = max(1, (1 << 21) // (values.shape[0] * values.shape[1]))
        for block in np.split(index, range(size, len(index), size)):
            if len(block):
                draws = values[..., block]
                result[block] = statistic(np.concatenate([draws[:, :half], draws[:, -half:]]))
    return result, kish


def _larger_rhat(halves: Floats) -> Floats:
    """Return the larger R-hat of values and folded values, (Q,)."""
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    bulk = _rhat(_normal_scores(halves))
    tail = _rhat(_normal_scores(folded))
    # fmax ignores nan: a quantity with two values has constant folded values, and no tail.
    return np.asarray(np.fmax(bulk, tail))


def _normal_scores(values: Floats) -> Floats:
    """Replace values by normal scores of their ranks."""
    flat = values.reshape(-1, values.shape[2])
    rank = rankdata(flat, axis=0)
    scores = ndtri((rank - 0.375) / (len(flat) + 0.25))
    return np.asarray(scores.reshape(values.shape))


def _rhat(values: Floats) -> Floats:
    """Return the R-hat of half chains, (Q,)."""
    n = values.shape[1]
    within = values.var(axis=1, ddof=1).mean(axis=0)
    between = values.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt((n - 1) / n + between / within))


def _ess(values: Floats) -> Floats:
    """Return the effective number of draws of half chains, (Q,)."""
    n_chains, n, _ = values.shape
    centred = values - values.mean(axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(centred, 2 * n, axis=1)) ** 2
    # Mean over chains of the biased autocovariances, (S, Q).
    covariance = np.fft.irfft(spectrum.mean(axis=0), axis=0)[:n] / n
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + values.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (within - covariance) / total
    rho[0] = 1.0
    tau = np.maximum(_initial_monotone_sum(rho), 1.0 / np.log10(n_chains * n))
    return np.asarray(n_chains * n / tau)


def _initial_monotone_sum(rho: Floats) -> Floats:
    """Return ``1 + 2 sum_t rho_t`` of Geyer (1992), section 3.3, (S, Q) -> (Q,).

    The pair at which the sum ends still contributes its even autocorrelation if that is positive,
    so that alternating sequences are truncated less abruptly.
    """
    n_pairs = max((len(rho) - 1) // 2, 1)
    even = rho[0 : 2 * n_pairs : 2]
    odd = rho[1 : 2 * n_pairs : 2]
    pairs = even + odd
    is_end = pairs < 0
    is_end[-1] = True
    last = is_end.argmax(axis=0)
    is_counted = np.arange(n_pairs)[:, None] < last
    monotone = np.minimum.accumulate(pairs, axis=0)
    last_even = np.take_along_axis(even, last[None], axis=0)[0]
    total = 2.0 * np.where(is_counted, monotone, 0.0).sum(axis=0)
    return np.asarray(total - 1.0 + np.maximum(last_even, 0.0))
