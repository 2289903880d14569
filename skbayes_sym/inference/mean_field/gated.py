"""A gap as a term of the training objective, skipped while it is certified saturated."""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.symmetry.gaps.base import Gap, MeanField


class GatedGap:
    """A gap's value and gradient, skipped while a certificate says that both are settled.

    Every T steps the certificate is evaluated at one draw: it bounds ``log |G| - i(theta)`` from
    above, so a value below ``tol`` certifies that this draw's gap is saturated and its gradient
    negligible. The term is then skipped until the next check; T backs off from ``every`` to
    ``max_every`` while checks keep passing and falls back when one fails, so the gate never
    latches.

    Parameters
    ----------
    gap : Gap
        Exact or a lower bound.
    certificate : Gap, optional
        Of the same group, never above the gap at any draw: ``UnitGap(group, Soules())``. Without
        one the gap is evaluated at every step.
    generator : torch.Generator
        The gap's own stream.
    every, max_every : int
        Fewest and most steps between two checks.
    tol : float
        Nats.

    Raises
    ------
    ValueError
        If ``gap`` is an upper bound.
    """

    def __init__(
        self,
        gap: Gap[MeanField],
        certificate: Gap[MeanField] | None = None,
        *,
        generator: torch.Generator,
        every: int = 25,
        max_every: int = 100,
        tol: float = 1e-2,
    ) -> None:
        if gap.side == "upper":
            raise ValueError(f"{gap!r} bounds the gap from above: train on a lower bound.")
        self.gap, self.certificate = gap, certificate
        self.n_skipped = 0
        self._generator = generator
        self._every, self._max_every, self._tol = every, max_every, tol
        self._period, self._next_check, self._closed = every, 0, False
        self._settled = 0.0  # what the estimate says of a saturated gap

    def add_gradient(
        self, loc: Tensor, log_variance: Tensor, gradient: Tensor, step: int
    ) -> Tensor:
        """Subtract the gap's gradient from that of the loss; returns the estimate (nats)."""
        is_due = self.certificate is not None and step >= self._next_check
        if self._closed and not is_due:
            return self._skipped(loc)
        posterior = _Normals(loc.double(), (0.5 * log_variance.double()).exp())
        if self.certificate is not None and is_due:
            self._check(posterior, self.certificate, step)
            if self._closed:
                return self._skipped(loc)
        found = self.gap.value_and_gradients(posterior, generator=self._generator)
        # By log variances: the variance times the derivative by it.
        d_log_variance = -0.5 * posterior.scale.square() * found.added_precision
        gradient[: len(loc)].sub_(found.d_mean.to(gradient.dtype))
        gradient[len(loc) : 2 * len(loc)].sub_(d_log_variance.to(gradient.dtype))
        return found.value.to(gradient.dtype)

    def _skipped(self, like: Tensor) -> Tensor:
        self.n_skipped += 1
        return like.new_full((), self._settled)

    def _check(self, posterior: MeanField, certificate: Gap[MeanField], step: int) -> None:
        below = certificate.estimate(posterior, 1, generator=self._generator).value
        self._closed = self.gap.group.log_order - below < self._tol
        if self._closed:
            self._settled = self.gap.estimate(posterior, 1, generator=self._generator).value
        self._period = min(2 * self._period, self._max_every) if self._closed else self._every
        self._next_check = step + self._period


class _Normals(NamedTuple):
    """Independent normals where the optimiser stands, float64."""

    loc: Tensor
    scale: Tensor
