"""The symmetrisation gap of a mean-field Gaussian under permutations of hidden units.

For a posterior ``q`` and a group ``G`` of its model's symmetries,

    gap = E_q[log q(theta) - log q_G(theta)] = I(g; theta) >= 0,     ELBO_G = ELBO + gap

(Gelberg et al. 2024, Theorem 4.1). For one hidden layer ``q_G`` of the units is a matrix
permanent, so every estimate below is an estimate of a log-permanent; which side of the gap it
bounds follows from the side of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import factorial, lgamma, log
from typing import Any, Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.permanent import (
    bethe_bound,
    gurvits_schrijver_bound,
    log_permanent,
    soules_bound,
)
from skbayes_sym.numerics.random import distinct_permutations, random_permutations
from skbayes_sym.numerics.sinkhorn import sample_assignments
from skbayes_sym.symmetry.excess import excess_log_density


class PermanentEstimate(Protocol):
    """Estimate of ``log perm(exp L)`` from the matrix of one draw, identity first.

    ``side`` says on which side of the gap the estimate lies in expectation: "lower", "exact" or
    "upper" (opposite to the side of the log-permanent).
    """

    @property
    def side(self) -> str: ...

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """(*B, d, d) -> (*B,), differentiable in ``log_weights``."""
        ...


@dataclass(frozen=True)
class Exact:
    """The permanent itself, O(d 2^d)."""

    side: str = "exact"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        return log_permanent(log_weights)


@dataclass(frozen=True)
class Soules:
    """Deterministic upper bound on every permanent, so a lower bound on the gap; O(d^2 log d)."""

    side: str = "lower"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        return soules_bound(log_weights, tighten=True)


@dataclass(frozen=True)
class Importance:
    """Importance-weighted sum over ``n_permutations`` assignments, the true one among them.

    ``log 1/K sum_k exp(sum_i L[i, g_k(i)] - log tau(g_k))`` with ``g_0`` the identity and the
    others from the Sinkhorn proposal ``tau``. Because ``g_0`` was drawn from the posterior of
    ``g`` given the weights, the expectation lies above that of the log-permanent for any ``tau``
    that is equivariant to the order of the units: a lower bound on the gap, rising with K.
    O(K d^2); no gradient flows through ``tau`` and ``g_k``.
    """

    n_permutations: int = 16
    side: str = "lower"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        d = log_weights.shape[-1]
        identity = torch.arange(d, device=log_weights.device).expand(1, *log_weights.shape[:-1])
        chosen, log_tau = sample_assignments(
            log_weights.detach(), self.n_permutations - 1, generator=generator, given=identity
        )
        terms = _assignment_weight(log_weights, chosen)
        return (terms - log_tau).logsumexp(dim=0) - log(self.n_permutations)


@dataclass(frozen=True)
class InfoNCE:
    """The paper's estimator (Gelberg et al. 2024, Theorem 4.3, with its misplaced sign mended).

    ``log(|S_d| / K sum_k exp sum_i L[i, g_k(i)])``, ``g_0`` the identity. A lower bound on the
    gap that can't exceed ``log K`` (plus the sign flips, which are summed exactly).

    Parameters
    ----------
    n_permutations : int
        K, the identity included.
    replacement : bool
        False draws the others without replacement from the rest of the group: still a bound,
        tighter, and exact at K = d!. True is the paper's iid draw.
    """

    n_permutations: int = 16
    replacement: bool = False
    side: str = "lower"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        d = log_weights.shape[-1]
        n = self.n_permutations if self.replacement else min(self.n_permutations, factorial(d))
        identity = torch.arange(d, device=log_weights.device).expand(1, d)
        if self.replacement:
            others = random_permutations((n - 1,), d, generator=generator)
        else:
            others = distinct_permutations(n - 1, d, generator=generator)
        drawn = torch.cat([identity, others])
        drawn = drawn.reshape(n, *(1,) * (log_weights.ndim - 2), d)
        terms = _assignment_weight(log_weights, drawn.expand(n, *log_weights.shape[:-1]))
        return terms.logsumexp(dim=0) + lgamma(d + 1) - log(n)


@dataclass(frozen=True)
class DoublyStochastic:
    """Bethe and Gurvits-Schrijver lower bounds on the permanent: an UPPER bound on the gap.

    The larger of two pointwise bounds is one. For reports only: the gradient vanishes just where
    two modes meet, so it must not be trained on. O(n_iter d^2).

    Parameters
    ----------
    n_iter : int
        Message passing rounds of the Bethe bound; on trained networks 20 come within 2e-4 nats of
        100 at a fifth of the cost.
    """

    n_iter: int = 20
    side: str = "upper"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        bethe = bethe_bound(log_weights, n_iter=self.n_iter)
        return torch.maximum(bethe, gurvits_schrijver_bound(log_weights))


@dataclass(frozen=True)
class ExactUpTo:
    """Exact for layers of at most ``max_width`` units, ``otherwise`` beyond."""

    max_width: int
    otherwise: PermanentEstimate

    @property
    def side(self) -> str:
        return self.otherwise.side

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        if log_weights.shape[-1] <= self.max_width:
            return log_permanent(log_weights)
        return self.otherwise(log_weights, generator=generator)


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
    factor : UnitPermutation or SignedUnitPermutation
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
    excess = excess_log_density(factor, loc, scale, noise)
    return factor.log_order - estimate(excess, generator=generator)


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
        With one factor a hidden layer (`MLP.symmetry`, or a `UnitPermutation` of your own).
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


def _assignment_weight(log_weights: Tensor, permutations: Tensor) -> Tensor:
    """``sum_i L[i, g(i)]``: (*B, d, d) and (K, *B, d) -> (K, *B)."""
    expanded = log_weights.expand(*permutations.shape, log_weights.shape[-1])
    return expanded.gather(-1, permutations.unsqueeze(-1)).squeeze(-1).sum(-1)
