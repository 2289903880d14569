"""Have the chains mixed: rank-normalised split R-hat and effective sample sizes.

Everything is (chains, draws, quantities) in, one number a quantity out, nan where it isn't defined.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata

Floats = npt.NDArray[np.float64]


def rank_rhat(draws: npt.ArrayLike, chain_weights: npt.ArrayLike | None = None) -> Floats:
    """Rank-normalised split R-hat, the larger of bulk and tail.

        R-hat = sqrt(((S - 1) / S W + B) / W)

    with W the mean variance within half chains of S draws and B the variance of their means, once
    for the normal scores of all draws and once for those of ``|x - median|``.

    ``draws`` (C, S, Q): Q quantities (predictions, parameters) at S draws of C chains; CPU tensors
    welcome. ``chain_weights`` (C,): chains of weight 0 are left out. The sizes of the others don't
    matter: the question is whether the chains agree. Returns (Q,), 1 if all half chains agree,
    above 1.01 (Vehtari et al.) if they don't. nan for fewer than 4 draws a chain, for quantities
    that aren't finite or that no draw changes.

    O(C S Q log(C S)).

    Vehtari, Gelman, Simpson, Carpenter, Bürkner (2021), "Rank-normalization, folding, and
    localization: an improved R-hat", Bayesian Analysis 16.
    """
    return _apply_where_defined(_larger_rhat, draws, chain_weights)[0]


def bulk_ess(draws: npt.ArrayLike, chain_weights: npt.ArrayLike | None = None) -> Floats:
    """Effective number of draws for means, of the normal scores of split chains.

    As `mean_ess`, robust to heavy tails and comparable between quantities; arguments and returns
    as there.

    Vehtari et al. (2021), section 4.
    """
    n_effective, kish = _apply_where_defined(
        lambda x: _ess(_normal_scores(x)), draws, chain_weights
    )
    return kish * n_effective


def mean_ess(draws: npt.ArrayLike, chain_weights: npt.ArrayLike | None = None) -> Floats:
    """Effective number of draws for the mean of each quantity.

        ESS = C S / (1 + 2 sum_t rho_t),   rho_t = 1 - (W - mean over chains of acov_t) / var+,

    summed while pairs of consecutive autocorrelations stay positive, and made to fall (Geyer's
    initial monotone sequence). Chains that disagree raise ``var+`` and lower the result.

    ``draws`` (C, S, Q). ``chain_weights`` (C,): weight of every chain in the mean, equal by
    default. Unequal ones cost Kish's factor ``(sum w)^2 / (C sum w^2)``; chains of weight 0 are
    left out. Returns (Q,), can exceed C S for anticorrelated draws, at most by ``log10(C S)``. nan
    for fewer than 4 draws a chain, for quantities that aren't finite or that no draw changes.

    O(C S Q log S), by FFT.
    """
    n_effective, kish = _apply_where_defined(_ess, draws, chain_weights)
    return kish * n_effective


def _apply_where_defined(
    statistic: Callable[[Floats], Floats], draws: npt.ArrayLike, chain_weights: npt.ArrayLike | None
) -> tuple[Floats, float]:
    """A statistic of half chains (2C, S // 2, Q) where it exists, else nan; and Kish's factor.

    Chains of weight 0 are left out, as is the middle draw of odd chains.
    """
    values = np.asarray(draws, dtype=np.float64)
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
        kish = (
            float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())) if len(weights) else 0.0
        )
    values_of = np.full(values.shape[2], np.nan)
    half = values.shape[1] // 2
    if half >= 2 and len(values):  # below neither statistic exists
        low = values.min(axis=(0, 1))
        high = values.max(axis=(0, 1))
        which = np.flatnonzero(np.isfinite(low) & np.isfinite(high) & (low < high))
        size = max(1, (1 << 21) // (values.shape[0] * values.shape[1]))  # some ten copies of 16 MB
        for block in np.split(which, range(size, len(which), size)):
            if len(block):
                chosen = values[..., block]
                values_of[block] = statistic(np.concatenate([chosen[:, :half], chosen[:, -half:]]))
    return values_of, kish


def _larger_rhat(halves: Floats) -> Floats:
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    both = [_rhat(_normal_scores(part)) for part in (halves, folded)]
    # fmax: a quantity that takes two values has constant folds, and no tail.
    return np.asarray(np.fmax(*both))


def _normal_scores(values: Floats) -> Floats:
    flat = values.reshape(-1, values.shape[2])
    rank = rankdata(flat, axis=0)
    scores = ndtri((rank - 0.375) / (len(flat) + 0.25))
    return np.asarray(scores.reshape(values.shape))


def _rhat(values: Floats) -> Floats:
    n = values.shape[1]
    within = values.var(axis=1, ddof=1).mean(axis=0)
    between = values.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt((n - 1) / n + between / within))


def _ess(values: Floats) -> Floats:
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
    """``1 + 2 sum_t rho_t`` of Geyer (1992), section 3.3, (S, Q) -> (Q,).

    The pair that ends the sum still counts with its even autocorrelation, if positive: sequences
    that alternate in sign are cut less abruptly.
    """
    n_pairs = max((len(rho) - 1) // 2, 1)
    even = rho[0 : 2 * n_pairs : 2]
    odd = rho[1 : 2 * n_pairs : 2]
    pairs = even + odd
    ends = pairs < 0
    ends[-1] = True
    last = ends.argmax(axis=0)
    counted = np.arange(n_pairs)[:, None] < last
    falling = np.minimum.accumulate(pairs, axis=0)
    at_end = np.take_along_axis(even, last[None], axis=0)[0]
    total = 2.0 * np.where(counted, falling, 0.0).sum(axis=0)
    return np.asarray(total - 1.0 + np.maximum(at_end, 0.0))
