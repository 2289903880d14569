"""The gap as a term of the training objective, skipped while it is certified saturated."""

from typing import Any

import torch
from torch import Tensor

from skbayes_sym.numerics.random import standard_normal
from skbayes_sym.symmetry.gaps.permanent_estimates import PermanentEstimate, Soules
from skbayes_sym.symmetry.gaps.units import chain_blocks, gap_lower


class GapTerm:
    """The gap's value and gradient, skipped while a certificate says that both are settled.

    Every T steps the Soules bound is evaluated at one draw: it bounds ``log |G| - i(theta)`` from
    above, so a value below ``tol`` certifies that this draw's gap is saturated and its gradient
    negligible. The term is then skipped until the next check; T backs off from ``every`` to
    ``max_every`` while checks keep passing and falls back when one fails, so the gate never
    latches.

    Parameters
    ----------
    group : SymmetryGroup
        The network's, with one factor a hidden layer.
    estimate : PermanentEstimate
        Exact or on the lower side.
    n_draws : int
        Posterior draws a step.
    generator : torch.Generator
        The gap's own stream.
    every, max_every : int
        Fewest and most steps between two checks.
    tol : float
        Nats.
    """

    def __init__(
        self,
        group: Any,
        estimate: PermanentEstimate,
        *,
        n_draws: int,
        generator: torch.Generator,
        every: int = 25,
        max_every: int = 100,
        tol: float = 1e-2,
    ) -> None:
        if estimate.side == "upper":
            raise ValueError(f"{estimate!r} bounds the gap from above: train on a lower bound.")
        self.group, self.estimate = group, estimate
        self.n_skipped = 0
        self._blocks = chain_blocks(group)
        self._n_draws, self._generator = n_draws, generator
        self._every, self._max_every, self._tol = every, max_every, tol
        self._period, self._next_check, self._closed = every, 0, False
        self._settled = torch.zeros(())  # what the estimate says of a saturated gap

    def add_gradient(
        self, loc: Tensor, log_variance: Tensor, gradient: Tensor, step: int
    ) -> Tensor:
        """Subtract the gap's gradient from that of the loss; returns the estimate (nats)."""
        if step >= self._next_check:
            self._check(loc, log_variance, step)
        if self._closed:
            self.n_skipped += 1
            return self._settled
        both = torch.stack([loc, log_variance]).double().requires_grad_()
        with torch.enable_grad():
            mean, log_var = both.unbind()
            value = self._gap(mean, log_var, self.estimate, self._n_draws).mean()
            (d_both,) = torch.autograd.grad(value, both)
        n = len(loc)
        gradient[: 2 * n].sub_(d_both.flatten().to(gradient.dtype))
        return value.detach().to(gradient.dtype)

    def _gap(
        self, loc: Tensor, log_variance: Tensor, estimate: PermanentEstimate, n: int
    ) -> Tensor:
        noise = standard_normal((n, len(loc)), generator=self._generator, like=loc)
        scale = (0.5 * log_variance).exp()
        return gap_lower(
            self.group, loc, scale, noise, estimate, generator=self._generator, blocks=self._blocks
        )

    def _check(self, loc: Tensor, log_variance: Tensor, step: int) -> None:
        with torch.no_grad():
            at = loc.double(), log_variance.double()
            gap = self._gap(*at, Soules(), 1)
            self._closed = bool(self.group.log_order - gap.min() < self._tol)
            if self._closed:
                self._settled = self._gap(*at, self.estimate, 1).mean().to(loc.dtype)
        self._period = min(2 * self._period, self._max_every) if self._closed else self._every
        self._next_check = step + self._period
