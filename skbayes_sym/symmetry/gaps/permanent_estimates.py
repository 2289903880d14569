"""Estimates of the log permanent inside a symmetrised density, each with its side."""

from dataclasses import dataclass
from math import factorial, lgamma, log
from numbers import Integral
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.assignment import sample_assignments
from skbayes_sym.numerics.permanent import (
    BETHE_ITERATIONS,
    bethe_bound,
    log_permanent,
    soules_bound,
)
from skbayes_sym.numerics.random import distinct_permutations, random_permutations
from skbayes_sym.symmetry.gaps.gap import Side


class PermanentEstimate(Protocol):
    """Estimate of ``log perm(exp L)`` from the matrix of one draw, identity first.

    ``side`` says on which side of the gap the estimate lies in expectation: "lower", "exact" or
    "upper" (opposite to the side of the log-permanent).
    """

    @property
    def side(self) -> Side: ...

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """(*B, d, d) -> (*B,), differentiable in ``log_weights``."""


@dataclass(frozen=True)
class Exact:
    """The permanent itself, O(d 2^d)."""

    side: ClassVar[Side] = "exact"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        return log_permanent(log_weights)


@dataclass(frozen=True)
class Soules:
    """Deterministic upper bound on every permanent, so a lower bound on the gap; O(d^2 log d).

    Parameters
    ----------
    tighten : bool, default=True
        Least of four bounds, with a Sinkhorn scaling of the matrix. False takes its rows as they
        are: tens of times faster, and enough where the modes don't overlap.
    """

    tighten: bool = True
    side: ClassVar[Side] = "lower"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        return soules_bound(log_weights, tighten=self.tighten)


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
    side: ClassVar[Side] = "lower"

    def __post_init__(self) -> None:
        _require_permutations(self)

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
    """The paper's estimator (Gelberg et al. 2024, Theorem 4.3, with its misplaced sign corrected).

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
    side: ClassVar[Side] = "lower"

    def __post_init__(self) -> None:
        _require_permutations(self)

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
class Bethe:
    """Bethe's lower bound on the permanent: an UPPER bound on the gap, O(n_iter d^2).

    For reports only: the gradient vanishes just where two modes meet, so it must not be trained on.

    Parameters
    ----------
    n_iter : int
        Rounds of message passing; any number gives a bound.
    """

    n_iter: int = BETHE_ITERATIONS
    side: ClassVar[Side] = "upper"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        return bethe_bound(log_weights, n_iter=self.n_iter)


@dataclass(frozen=True)
class ExactUpTo:
    """Exact for layers of at most ``max_width`` units, ``otherwise`` beyond."""

    max_width: int
    otherwise: PermanentEstimate

    @property
    def side(self) -> Side:
        return self.otherwise.side

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        if log_weights.shape[-1] <= self.max_width:
            return log_permanent(log_weights)
        return self.otherwise(log_weights, generator=generator)


def _assignment_weight(log_weights: Tensor, permutations: Tensor) -> Tensor:
    """``sum_i L[i, g(i)]``: (*B, d, d) and (K, *B, d) -> (K, *B)."""
    expanded = log_weights.expand(*permutations.shape, log_weights.shape[-1])
    return expanded.gather(-1, permutations.unsqueeze(-1)).squeeze(-1).sum(-1)


def _require_permutations(estimate: Importance | InfoNCE) -> None:
    n = estimate.n_permutations
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(
            f"{type(estimate).__name__}: n_permutations must be an int of at least 1 (the identity "
            f"counts), got {n!r}."
        )
