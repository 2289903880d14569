"""Anchors of the bound on a rotation gap: given, or learned from draws."""

from collections.abc import Callable

import torch
from torch import Tensor

from skbayes_sym.numerics.optimise import by_autograd, lbfgs
from skbayes_sym.symmetry.gaps.base import RowPosterior
from skbayes_sym.symmetry.gaps.langevin import langevin_gap

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

    Parameters
    ----------
    inner : Tensor of shape (D, 2k, k)
        ``C = sum_i features_i x_i'`` of each draw.
    gap_of : callable (*B, k, k) -> (*B,)
        ``tr B - F(B)``; of all rotations by default.

    Returns
    -------
    Tensor of shape (k, 2k)
    """
    k = inner.shape[-1]
    basis = _mixing_basis(k).to(inner)

    def loss(weights: Tensor) -> Tensor:
        return -gap_of(torch.tensordot(weights, basis, 1) @ inner).mean()

    identity = torch.cat([torch.eye(k), torch.zeros(k, k)], dim=1).to(inner)
    start = torch.tensordot(basis, identity, 2) / basis.square().sum((-2, -1))
    weights = lbfgs(by_autograd(loss), start, max_iter=_MIXING_STEPS)
    return torch.tensordot(weights, basis, 1)


def _mixing_basis(k: int) -> Tensor:
    """Matrices (p, k, 2k) that W is combined from."""
    if k <= FREE_MIXING_UP_TO:
        return torch.eye(2 * k * k).view(-1, k, 2 * k)
    none = torch.zeros(k, k)
    return torch.stack([torch.cat([torch.eye(k), none], 1), torch.cat([none, torch.eye(k)], 1)])
