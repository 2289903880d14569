"""The symmetrisation gap of a mean-field Gaussian under permutations of hidden units.

For a posterior ``q`` and a group ``G`` of its model's symmetries,

    gap = E_q[log q(theta) - log q_G(theta)] = I(g; theta) >= 0,     ELBO_G = ELBO + gap

(Gelberg et al. 2024, Theorem 4.1). For one hidden layer ``q_G`` of the units is a matrix
permanent, so every estimate below is an estimate of a log-permanent; which side of the gap it
bounds follows from the side of that.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from skbayes_sym.symmetry.gaps.permanent_estimates import PermanentEstimate
from skbayes_sym.symmetry.gaps.unit_log_ratios import unit_log_ratios


def unit_gap(
    factor: Any,
    loc: Tensor,
    scale: Tensor,
    noise: Tensor,
    estimate: PermanentEstimate,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Gap of the units of one layer, one value a draw.

    Parameters
    ----------
    factor : UnitGroup
        The layer's group; only the entries it names enter.
    loc, scale : Tensor of shape (P,)
        Mean-field Gaussian posterior.
    noise : Tensor of shape (S, P)
        Standard normal; the draws are ``loc + scale * noise``.
    estimate : PermanentEstimate
    generator : torch.Generator

    Returns
    -------
    gap : Tensor of shape (S,), nats
        Averages to the gap, or to a bound on ``estimate.side`` of it. Each value is at most
        log |G| for exact and upper-bounding permanents. Time O(S d^2 p) plus the estimate's,
        memory O(S (P + d^2)).
    """
    ratios = unit_log_ratios(factor, loc, scale, noise)
    return factor.log_order - estimate(ratios, generator=generator)


def chain_blocks(group: Any) -> tuple[Any, ...]:
    """The layers' groups, each reduced to entries that no later layer's group touches.

    With them the chain rule gives a lower bound on the gap of a deep network,

        I(g_1, ..., g_L; theta) >= sum_l I(g_l; block_l | earlier g aligned),

    each term a permanent (incoming weights and bias of layer l; for the last hidden layer the
    outgoing weights too). For one hidden layer nothing is dropped and the bound is the gap.
    """
    blocks = []
    for i, factor in enumerate(group.factors):
        later = [f.index.flatten() for f in group.factors[i + 1 :]]
        if later:
            shared = torch.isin(factor.index, torch.cat(later)).any(dim=0)
            factor = replace(factor, index=factor.index[:, ~shared])
        blocks.append(factor)
    return tuple(blocks)


def gap_lower(
    group: Any,
    loc: Tensor,
    scale: Tensor,
    noise: Tensor,
    estimate: PermanentEstimate,
    *,
    generator: torch.Generator,
    blocks: Sequence[Any] | None = None,
) -> Tensor:
    """Lower bound on the gap: the sum of `unit_gap` over `chain_blocks`.

    Parameters
    ----------
    group : SymmetryGroup
        With one factor a hidden layer (`MLP.symmetry`, or a `Units` of your own).
    loc, scale : Tensor of shape (P,)
        Mean-field Gaussian posterior.
    noise : Tensor of shape (S, P)
        Standard normal; the draws are ``loc + scale * noise``.
    estimate : PermanentEstimate
        Exact or on the lower side.
    generator : torch.Generator
        For estimates that draw permutations.
    blocks : sequence of groups, optional
        ``chain_blocks(group)``, to compute it only once.

    Returns
    -------
    gap : Tensor of shape (S,), nats
        Averages to a lower bound on the gap; to the gap itself for one hidden layer and `Exact`.
        Differentiable in ``loc`` and ``scale``.
    """
    total = torch.zeros(noise.shape[:-1], dtype=loc.dtype, device=loc.device)
    for block in chain_blocks(group) if blocks is None else blocks:
        total = total + unit_gap(block, loc, scale, noise, estimate, generator=generator)
    return total


def gap_upper(
    group: Any,
    loc: Tensor,
    scale: Tensor,
    noise: Tensor,
    estimate: PermanentEstimate,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Upper bound on the gap, ``I(g; theta) <= sum_l J_l``.

    ``J_l`` is the gap of layer l when the other layers' order is known: the layers' elements are
    independent a priori, so conditioning only adds information.

    Parameters
    ----------
    group, loc, scale, noise, generator
        As in `gap_lower`.
    estimate : PermanentEstimate
        Exact or on the upper side.

    Returns
    -------
    gap : Tensor of shape (S,), nats
        Averages to an upper bound on the gap; to the gap itself for one hidden layer and `Exact`.

    Raises
    ------
    ValueError
        If ``estimate`` is a lower one.
    """
    if estimate.side == "lower":
        raise ValueError(f"gap_upper needs an exact or upper estimate, got {estimate!r}.")
    total = torch.zeros(noise.shape[:-1], dtype=loc.dtype, device=loc.device)
    for factor in group.factors:
        value = unit_gap(factor, loc, scale, noise, estimate, generator=generator)
        total = total + value.clamp(max=factor.log_order)
    return total
