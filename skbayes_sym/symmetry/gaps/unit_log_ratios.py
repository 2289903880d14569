"""How much likelier a draw of a unit is in another's place: the matrix in a symmetrised density."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from skbayes_sym.symmetry.units import UnitGroup


def unit_log_ratios(layer: UnitGroup, loc: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """``L[i, j] - log q_i(w_i)`` at the draws ``w = loc + scale * noise``, (*B, d, d), nats.

    ``L[i, j] = log N(w_i; mu_j, diag sigma_j^2)``, with flips the log of the sum over both signs of
    ``w_i``: ``perm(exp ratios)`` is ``d! q_G / q`` (times 2^d with flips), at least 1. The density
    of the draw comes from its own noise, and the diagonal is known: 0, or what the mirror image of
    the unit adds. So nothing cancels in them, however narrow the posterior.

    Parameters
    ----------
    layer : UnitGroup
        Its index on the device of the others.
    loc, scale : Tensor of shape (P,)
        Mean-field Gaussian; differentiable in both, first derivatives only.
    noise : Tensor of shape (*B, P)
        Standard normal.

    Notes
    -----
    Six matrix products, O(d^2 p), with the gradient written out: at these sizes most of the
    time of autograd's version goes into the temporaries between them.
    """
    shape, flat = layer.index.shape, layer.index.flatten()
    mu, sd = (t.index_select(0, flat).view(shape) for t in (loc, scale))
    own_noise = noise.reshape(-1, noise.shape[-1]).index_select(-1, flat).unflatten(-1, shape)
    ratios: Tensor = _UnitLogRatios.apply(  # type: ignore[no-untyped-call]
        mu, sd, own_noise, layer.flips
    )
    return ratios.reshape(*noise.shape[:-1], *ratios.shape[1:])


class _UnitLogRatios(torch.autograd.Function):
    """The matrix from the units' means, scales (d, p) and noise (B, d, p), and its gradient.

    With R the precisions, ``-2 ratios[i, j] = (w_i - mu_j)^2 R_j - noise_i^2 + 2 log(s_j / s_i)``;
    flips add the term of ``-w_i``. Given weights P[i, j] on the entries, the gradient needs the
    sums ``P w^k`` and ``P' w^k`` over units; where ``w`` enters with its sign, P is multiplied by
    the expected sign ``tanh(mu_j R_j w_i)``.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, scale: Tensor, noise: Tensor, flips: bool) -> Tensor:
        precision, log_scale = scale**-2, scale.log().sum(-1)
        if not flips:
            mu = mu - mu.mean(0)  # differences of O(1) numbers cancel less than of large ones
        w = torch.addcmul(mu, scale, noise)
        natural_mean = mu * precision
        constant = (mu * natural_mean).sum(-1) + 2.0 * log_scale
        own = 0.5 * (noise * noise).sum(-1) + log_scale
        even = -0.5 * ((w * w) @ precision.mT + constant) + own.unsqueeze(-1)
        odd = w @ natural_mean.mT
        ctx.save_for_backward(mu, scale, precision, natural_mean, noise, w, odd if flips else None)
        ratios = even.add_(odd.abs() + F.softplus(-2.0 * odd.abs()) if flips else odd)
        # A unit in its own place: computed, terms as large as (mu / scale)^2 would have to cancel.
        own_odd = odd.diagonal(dim1=-2, dim2=-1)
        own_ratio = F.softplus(-2.0 * own_odd) if flips else torch.zeros_like(own_odd)
        ratios.diagonal(dim1=-2, dim2=-1).copy_(own_ratio)
        return ratios

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        mu, scale, precision, natural_mean, noise, w, odd = ctx.saved_tensors
        signed = weights if odd is None else weights * odd.tanh()
        d_w = torch.addcmul(signed @ natural_mean, w, weights @ precision, value=-1.0)
        first, second = _columns(signed, w), _columns(weights, w * w)
        received = weights.sum((0, 1)).unsqueeze(-1)
        given = weights.sum((0, 2)).unsqueeze(-1)
        shift = torch.addcmul(first, received, mu, value=-1.0)
        # sum_i P[i, j] (w_i - mu_j)^2, the squares multiplied out
        spread = second.addcmul_(mu, first.add_(shift), value=-1.0)
        d_scale = spread.mul_(precision).add_(given - received).div_(scale)
        d_loc = shift.mul_(precision).add_(d_w.sum(0))
        return d_loc, d_scale.add_((d_w * noise).sum(0)), None, None


def _columns(weights: Tensor, w: Tensor) -> Tensor:
    """``sum_i P[i, j] w_i`` over all draws: (B, d, d) and (B, d, p) -> (d, p)."""
    return weights.flatten(0, 1).mT @ w.flatten(0, 1)
