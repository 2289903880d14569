"""A Gaussian a chain, of the few directions that its draws span: more of them would be guesses.

S draws of D weights know S - 1 directions. Weights of a network are strongly correlated, so that a
diagonal of the same variances is a far worse law than those directions alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import log_normal_multivariate
from skbayes_sym.numerics.linalg import cholesky, log_det
from skbayes_sym.numerics.random import normal_like

# Of every variance, what is given to the coordinate alone. With none there would be no density;
# with 0.01 four chains of [16] * 4 on airfoil lose 0.14 nats per row, from 0.001 on nothing.
_DIAGONAL_SHARE = 0.001


@dataclass(frozen=True, eq=False)
class LowRankMixture:
    """``sum_k w_k N(loc_k, F_k F_k' + diag(v_k))``; a `Posterior`.

    Parameters
    ----------
    log_weights : Tensor of shape (K,)
        Normalised.
    loc : Tensor of shape (K, D)
    factor : Tensor of shape (K, D, R)
    variance : Tensor of shape (K, D)
        Positive.
    """

    log_weights: Tensor
    loc: Tensor
    factor: Tensor
    variance: Tensor

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, D)."""
        which = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        z = normal_like((n, self.factor.shape[2]), generator=generator, like=self.loc)
        draws = normal_like((n, self.loc.shape[1]), generator=generator, like=self.loc)
        draws.mul_(self.variance.sqrt()[which]).add_(self.loc[which])
        for k in range(len(self.loc)):
            own = which == k
            draws[own] += z[own] @ self.factor[k].mT
        return draws

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, D) -> (*B,). O(K D R) a point, by Woodbury's identity."""
        log_weights, *laws = (
            t.to(theta.device) for t in (self.log_weights, self.loc, self.factor, self.variance)
        )
        parts = [
            _log_normal(theta - loc, factor, variance)
            for loc, factor, variance in zip(*laws, strict=True)
        ]
        return torch.logsumexp(torch.stack(parts, -1) + log_weights, -1)


def _log_normal(residual: Tensor, factor: Tensor, variance: Tensor) -> Tensor:
    """``log N(residual; 0, F F' + diag(v))`` in nats, (*B, D) -> (*B,)."""
    root = variance.rsqrt()
    scaled = factor * root.unsqueeze(1)
    one = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    inner = scaled.mT @ scaled + one
    lower = cholesky(inner, what="The covariance of a chain's draws", remedy="Use finite draws.")
    z = residual * root
    along = torch.linalg.solve_triangular(lower, (z @ scaled).unsqueeze(-1), upper=False)
    square = z.square().sum(-1) - along.square().sum((-2, -1))
    return log_normal_multivariate(square, log_det(lower) - 2.0 * root.log().sum(), len(variance))


def fit_low_rank_mixture(draws: Tensor, log_weights: Tensor) -> LowRankMixture:
    """A Gaussian for every chain: its draws' mean, and ``0.999 S + 0.001 diag(S)`` of their
    covariance S.

    Parameters
    ----------
    draws : Tensor of shape (C, S, D)
        At least 2 a chain, all of one chain near one copy of a mode.
    log_weights : Tensor of shape (C,)
        Of the chains; needn't be normalised.

    Returns
    -------
    LowRankMixture

    Notes
    -----
    Rank S, without any decomposition: the factor's columns are the draws less their mean. O(C S D)
    time and memory.

    References
    ----------
    Maddox et al. (2019), "A simple baseline for Bayesian uncertainty in deep learning", section
    3.3, who give half of the variance to the diagonal.
    """
    loc = draws.mean(1)
    residual = (draws - loc.unsqueeze(1)) / (draws.shape[1] - 1) ** 0.5
    total = residual.square().sum(1)
    tiny = torch.finfo(draws.dtype).eps * (1.0 + loc.abs())
    return LowRankMixture(
        log_weights.log_softmax(0), loc, (1.0 - _DIAGONAL_SHARE) ** 0.5 * residual.mT.contiguous(),
        (_DIAGONAL_SHARE * total).clamp_min(tiny.square()),
    )  # fmt: skip
