"""A gap as a term of the training objective, skipped while it is certified saturated."""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.random import standard_normal
from skbayes_sym.symmetry.gaps.gap import Gap, MeanField
from skbayes_sym.symmetry.gaps.unit_gap import UnitGap


class GatedGap:
    """A gap's value and gradient, skipped while a certificate says that both are settled.

    The certificate bounds ``log |G| - i(theta)`` from above at one draw, so a value below ``tol``
    certifies that this draw's gap is saturated and its gradient negligible. It is looked at before
    the first step, then at the first beginning of a block of steps that lies T steps or more beyond
    the last look: a GPU has been waited for there. While the certificate passes the term is
    skipped, and T backs off from ``every`` to ``max_every``; T falls back when it fails, so the
    gate never latches.

    ``gap``: exact or a lower bound. ``certificate``: of the same group, never above the gap at any
    draw: ``UnitGap(group, Soules())``. Without one the gap is evaluated at every step.
    ``generator``: the gap's own stream. ``hold``: steps that a value and its gradient stand for.
    ``block``: steps of a block. ``every``, ``max_every``: fewest and most steps between two checks.
    ``tol``: nats, and at least 1e-4 of ``log |G|``, with which draws scatter.
    """

    def __init__(
        self,
        gap: Gap[MeanField],
        certificate: UnitGap | None = None,
        *,
        generator: torch.Generator,
        hold: int = 1,
        block: int = 10,
        every: int = 25,
        max_every: int = 100,
        tol: float = 1e-2,
    ) -> None:
        if gap.side == "upper":
            raise ValueError(f"{gap!r} bounds the gap from above: train on a lower bound.")
        self.gap, self.certificate = gap, certificate
        self.n_skipped = 0
        self._generator = generator
        self._hold, self._block, self._every, self._max_every = hold, block, every, max_every
        self._tol = max(tol, 1e-4 * gap.group.log_order)
        self._held: tuple[Tensor, Tensor] | None = None
        self._period, self._next_check, self._closed = every, 0, False
        self._settled = 0.0  # nats, what the certificate said of a saturated gap

    def add_gradient(
        self, loc: Tensor, log_variance: Tensor, gradient: Tensor, step: int, share: float = 1.0
    ) -> Tensor:
        """Subtract a share of the gap's gradient from the loss's; returns the estimate (nats)."""
        if step >= self._next_check and step % self._block == 0:
            self._look(loc, log_variance, step)
        if self._closed:
            self.n_skipped, self._held = self.n_skipped + 1, None
            return loc.new_full((), self._settled)
        if self._held is None or step % self._hold == 0:
            posterior = _Normals(loc.double(), (0.5 * log_variance.double()).exp())
            estimate = self.gap.value_and_gradients(posterior, generator=self._generator)
            # By log variances: the variance times the derivative by it.
            d_log_variance = -0.5 * posterior.scale.square() * estimate.added_precision
            both = torch.cat([estimate.d_mean, d_log_variance])
            self._held = estimate.value.to(gradient.dtype), both.to(gradient.dtype)
        value, held = self._held
        gradient[: len(held)].sub_(held, alpha=share)
        return value

    def _look(self, loc: Tensor, log_variance: Tensor, step: int) -> None:
        """Open or close as the certificate says."""
        if self.certificate is None:
            return
        mean, scale = loc.double(), (0.5 * log_variance.double()).exp()
        noise = standard_normal((1, len(mean)), generator=self._generator, like=mean)
        value = float(self.certificate.values(mean, scale, noise, generator=self._generator))
        self._closed = self.gap.group.log_order - value < self._tol
        self._settled = value
        self._period = min(2 * self._period, self._max_every) if self._closed else self._every
        self._next_check = step + self._period


class _Normals(NamedTuple):
    """Independent normals where the optimiser stands, float64."""

    loc: Tensor
    scale: Tensor
