r"""The log density ratio behind the gap of Gaussian rows under O(k).

Rows ``x_i ~ N(m_i, S_i)`` of a factorisation are rotated and reflected together by a Haar random
T. With anchors ``a_i`` and ``B = sum_i a_i x_i'``,

.. math:: I(T; x) \ge E_q[\operatorname{tr} B - F(B)],

F the log of the integral of ``exp tr(B T')`` (`log_haar_integral`): the bound of Barber & Agakov
(2003) with a matrix Langevin decoder. It holds for any anchors and any q. With ``S_i = c_i 1`` and
``a_i = m_i / c_i`` it is the gap itself.

Moore (2016, appendix A) replaces B by its symmetric part, which can only lower F, and F by an
approximation that lies above it: what is printed there is no bound.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.optimise import by_autograd, lbfgs
from skbayes_sym.symmetry.gaps.gap import GapGradient, RowPosterior
from skbayes_sym.symmetry.gaps.haar_integral import (
    haar_expansion,
    log_haar_integral,
    pair_curvature,
)


def langevin_gap(inner: Tensor) -> Tensor:
    """``tr B - F(B)`` for each matrix, (*B, k, k) -> (*B,), nats; differentiable.

    A draw's value may be negative; its mean over draws of B is a gap or a bound below it. Cost of
    one set of singular values, O(k^3).
    """
    trace = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace - log_haar_integral(torch.linalg.svdvals(inner))


def anchored_inner(anchors: Tensor, rows: Tensor) -> Tensor:
    """``B = sum_i a_i x_i'`` of draws: (n_rows, p) and (*B, n_rows, k) -> (*B, p, k)."""
    return anchors.mT @ rows


# The added precision costs O(k^3) a row and draw, more than all else, and its error counts twice.
PRECISION_DRAWS = 1


def langevin_gradient(anchors: Tensor, inner: Tensor) -> GapGradient:
    """Value and derivatives from draws of B (D, k, k), the anchors (n_rows, k) held fixed.

    Optimal anchors are stationary, so holding them costs nothing. The added precision is an average
    over the first draw alone.
    """
    expansion = expand_langevin(inner)
    added = added_precision(anchors, expansion.first(PRECISION_DRAWS))
    return GapGradient(expansion.value.mean(), anchors @ expansion.rest.mean(0), added)


class LangevinExpansion(NamedTuple):
    """``tr B - F(B)`` at draws of B, to second order."""

    value: Tensor  # (D,)
    rest: Tensor  # (D, k, k), the gradient: identity minus the mean rotation
    left: Tensor  # (D, k, k), U of B = U diag(s) V'
    right: Tensor  # (D, k, k), V
    even: Tensor  # (D, k, k), see `pair_curvature`, halved
    mixed: Tensor  # (D, k, k), Hessian in the singular values, plus half the odd part

    def first(self, n_draws: int) -> "LangevinExpansion":
        """At the first draws."""
        return LangevinExpansion(*(part[:n_draws] for part in self))


def expand_langevin(inner: Tensor) -> LangevinExpansion:
    """Value, gradient and curvature at draws (D, k, k)."""
    left, s, right_t = torch.linalg.svd(inner)
    expansion = haar_expansion(s)
    even, odd = pair_curvature(s, expansion)
    rotation = (left * expansion.gradient.to(s).unsqueeze(-2)) @ right_t
    identity = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
    trace = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
    return LangevinExpansion(
        trace - expansion.value.to(s),
        identity - rotation,
        left,
        right_t.mT,
        0.5 * even.to(s),
        (expansion.hessian + 0.5 * odd).to(s),
    )


def added_precision(
    anchors: Tensor, expansion: LangevinExpansion, axes: Tensor | None = None
) -> Tensor:
    """``E[d^2 F / dx_i^2] = -2 d gap / d S_i`` (Price's theorem), (n_rows, k, k).

    Positive semi-definite, since F is convex. O(n_rows k^3) a draw. With ``axes`` anchors and B are
    coordinates along them, the answer is not.
    """
    right = expansion.right if axes is None else axes @ expansion.right
    n, k = anchors.shape
    added = anchors.new_zeros(n, k, k)
    share = 1.0 / len(right)
    for begin, end in matrix_blocks(n, k):
        pairs = zip(expansion.left, right, expansion.even, expansion.mixed, strict=True)
        for u, v, even, mixed in pairs:
            turned = anchors[begin:end] @ u
            local = turned.unsqueeze(-1) * (turned.unsqueeze(-2) * (share * mixed))
            local.diagonal(dim1=-2, dim2=-1).add_(turned.square() @ even, alpha=share)
            added[begin:end] += v @ (local @ v.mT)
    return added


_MIXING_STEPS = 20
FREE_MIXING_UP_TO = 3  # components


def mean_variances(posterior: RowPosterior) -> Tensor:
    """Average variance of the entries of each row, (n_rows,)."""
    return posterior.cov.diagonal(dim1=-2, dim2=-1).mean(-1)


def plain_anchors(posterior: RowPosterior) -> Tensor:
    """``m_i / c_i``, (n_rows, k)."""
    return posterior.mean / mean_variances(posterior).unsqueeze(-1)


def anchor_features(posterior: RowPosterior, root: Tensor) -> Tensor:
    """``m_i / c_i`` and ``S_i^-1 m_i`` side by side, (n_rows, 2k); ``root`` is Cholesky's of S."""
    natural_mean = torch.cholesky_solve(posterior.mean.unsqueeze(-1), root).squeeze(-1)
    return torch.cat([plain_anchors(posterior), natural_mean], dim=1)


def learn_mixing(inner: Tensor, gap_of: Callable[[Tensor], Tensor] = langevin_gap) -> Tensor:
    """The matrix W that maximises the mean of ``tr B - F(B)``, ``B = W C``, over draws of C.

    A concave problem where F is convex. W is free for few components; for more it weighs the two
    sets of anchors by one number each, since a free matrix would learn the draws by heart.

    ``inner`` (D, 2k, k): ``C = sum_i features_i x_i'`` of each draw. ``gap_of``: ``tr B - F(B)``;
    of all rotations by default. Returns (k, 2k).
    """
    k = inner.shape[-1]
    one, none = torch.eye(k).to(inner), torch.zeros(k, k).to(inner)
    identity = torch.cat([one, none], 1)
    basis = torch.stack([identity, torch.cat([none, one], 1)])  # matrices that W is combined from
    if k <= FREE_MIXING_UP_TO:
        basis = torch.eye(2 * k * k).view(-1, k, 2 * k).to(inner)

    def loss(weights: Tensor) -> Tensor:
        return -gap_of(torch.tensordot(weights, basis, 1) @ inner).mean()

    start = torch.tensordot(basis, identity, 2) / basis.square().sum((-2, -1))
    weights = lbfgs(by_autograd(loss), start, max_iter=_MIXING_STEPS)
    return torch.tensordot(weights, basis, 1)
