"""Meng and Wong's optimal bridge: the ratio of two normalising constants from draws of both."""

from math import log, nan
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.optimise import root


class BridgeRatio(NamedTuple):
    """Solution of the bridge equation."""

    log_ratio: float
    standard_error: float  # of log_ratio, nats
    n_effective: float


def bridge_ratio(
    log_l_proposal: Tensor, log_l_draws: Tensor, blocks: Tensor | None = None
) -> BridgeRatio:
    """Meng and Wong's optimal bridge between a proposal and draws of an unnormalised density.

    With l = density / proposal, at n1 draws of the proposal and n2 of the density, solves

        r = mean over proposals of l / (s1 r + s2 l)  /  mean over draws of 1 / (s1 r + s2 l),

    ``s1 = n1 / (n1 + n2) = 1 - s2``. Their fixed-point iteration converges to the same number,
    slowly where the two hardly meet; in log r the difference of the sides is monotone, and the
    root is bracketed.

    Parameters
    ----------
    log_l_proposal : Tensor of shape (n1,)
        log l at draws of the proposal; -inf where the density is zero.
    log_l_draws : Tensor of shape (n2,)
    blocks : int64 Tensor of shape (n2,), optional
        Labels of groups of draws independent of each other; every draw its own by default. In the
        weights and in the error, n2 is replaced by the effective number that the blocks reveal.

    Returns
    -------
    BridgeRatio
        Error by the delta method: relative variances of the two means, added
        (Frühwirth-Schnatter's equation, with sums over blocks for the draws). nan if no proposal
        meets the density.

    References
    ----------
    Meng and Wong (1996), Statistica Sinica 6. Frühwirth-Schnatter (2004), Econometrics Journal 7.
    """
    if not bool(log_l_proposal.isfinite().any()):
        return BridgeRatio(nan, nan, 0.0)
    blocks = torch.arange(len(log_l_draws)) if blocks is None else blocks
    n_effective = float(len(log_l_draws))
    for _ in range(2):  # effective draws at the first solution set the weights of the second
        log_s = _log_shares(len(log_l_proposal), n_effective)
        log_r = _solve(log_l_proposal, log_l_draws, log_s)
        over = _relative(_bridge_terms(log_l_proposal, log_r, log_s)[0])
        under = _relative(_bridge_terms(log_l_draws, log_r, log_s)[1])
        from_proposals = float(over.var() / over.mean() ** 2) / len(over)
        from_draws = _variance_of_mean(under, blocks) / float(under.mean() ** 2)
        independent = float(under.var() / under.mean() ** 2)
        if from_draws > 0.0:
            n_effective = min(max(independent / from_draws, 1.0), float(len(under)))
    return BridgeRatio(log_r, (from_proposals + from_draws) ** 0.5, n_effective)


def _relative(log_terms: Tensor) -> Tensor:
    """Terms in units of the largest: relative variances don't change, and none underflows."""
    return (log_terms - log_terms.max()).exp()


def _variance_of_mean(values: Tensor, blocks: Tensor) -> float:
    """Variance of the mean of values (n,) that depend on each other only within blocks."""
    _, label = blocks.unique(return_inverse=True)
    n_blocks = int(label.max()) + 1
    sums = values.new_zeros(n_blocks).index_add_(0, label.to(values.device), values - values.mean())
    return float(sums.square().sum()) / len(values) ** 2 * n_blocks / max(n_blocks - 1, 1)


def _log_shares(n_proposal: float, n_draws: float) -> tuple[float, float]:
    total = log(n_proposal + n_draws)
    return log(n_proposal) - total, log(n_draws) - total


def _bridge_terms(log_l: Tensor, log_r: float, log_s: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Logs of ``l / (s1 r + s2 l)`` and ``r / (s1 r + s2 l)``."""
    below = torch.logaddexp(torch.full_like(log_l, log_s[0] + log_r), log_s[1] + log_l)
    return log_l - below, log_r - below


def _solve(at_proposal: Tensor, at_draws: Tensor, log_s: tuple[float, float]) -> float:
    """log r at which the two means agree."""

    def imbalance(log_r: float) -> float:
        over = _bridge_terms(at_proposal, log_r, log_s)[0]
        under = _bridge_terms(at_draws, log_r, log_s)[1]
        ours = torch.logsumexp(over, 0) - log(len(over))
        theirs = torch.logsumexp(under, 0) - log(len(under))
        return float(ours - theirs)

    both = torch.cat([at_proposal, at_draws])
    finite = both[both.isfinite()]
    low, high = float(finite.min()) - 1.0, float(finite.max()) + 1.0
    while imbalance(low) < 0.0:  # zeros among the proposals put r below every finite l
        low -= 2.0 * (high - low)
    return root(imbalance, low, high)
