"""The symmetrisation gap of a mean-field Gaussian under exchanges and flips of whole units.

For one hidden layer ``q_G`` of the units is a matrix permanent, so every estimate below is an
estimate of a log-permanent; which side of the gap it bounds follows from the side of that."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import lgamma, log
from numbers import Integral
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from skbayes_sym.numerics.assignment import sample_assignments
from skbayes_sym.numerics.permanent import (
    BETHE_ITERATIONS,
    bethe_bound,
    log_permanent,
    soules_bound,
)
from skbayes_sym.numerics.random import (
    Estimate,
    mean_and_error,
    random_permutations,
    standard_normal,
)
from skbayes_sym.symmetry.gaps.gap import GapGradient, MeanField, Side
from skbayes_sym.symmetry.gaps.unit_tables import UnitTable, disjoint_unit_blocks, unit_tables
from skbayes_sym.symmetry.group import SymmetryGroup


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
            log_weights.detach(), self.n_permutations - 1, generator=generator, first=identity
        )
        terms = _assignment_weight(log_weights, chosen)
        return (terms - log_tau).logsumexp(dim=0) - log(self.n_permutations)


@dataclass(frozen=True)
class InfoNCE:
    """The paper's estimator (Gelberg et al. 2024, Theorem 4.3, with its misplaced sign corrected).

    ``log(|S_d| / K sum_k exp sum_i L[i, g_k(i)])``, ``g_0`` the identity. A lower bound on the
    gap that can't exceed ``log K`` (plus the sign flips, which are summed exactly). K =
    ``n_permutations`` counts the identity; the others are uniform and independent.
    """

    n_permutations: int = 16
    side: ClassVar[Side] = "lower"

    def __post_init__(self) -> None:
        _require_permutations(self)

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        n = self.n_permutations
        (*batch, d, _) = log_weights.shape
        identity = torch.arange(d, device=log_weights.device).expand(1, *batch, d)
        others = random_permutations((n - 1, *batch), d, generator=generator)
        terms = _assignment_weight(log_weights, torch.cat([identity, others]))
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


def unit_log_ratios(layer: UnitTable, loc: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """``L[i, j] - log q_i(w_i)`` at the draws ``w = loc + scale * noise``, (*B, d, d), nats.

    ``L[i, j] = log N(w_i; mu_j, diag sigma_j^2)``, with flips the log of the sum over both signs of
    ``w_i``: ``perm(exp ratios)`` is ``d! q_G / q`` (times 2^d with flips), at least 1. The density
    of the draw comes from its own noise, and the diagonal is known: 0, or what the mirror image of
    the unit adds. So nothing cancels in them, however narrow the posterior.

    ``layer``: its index on the device of the others. ``loc``, ``scale`` (*R, P): mean-field
    Gaussians; differentiable in both, first derivatives only. ``noise`` (*B, P): standard normal,
    shared by all of them. Returns (*R, *B, d, d).

    Six matrix products, O(d^2 p), with the gradient written out: at these sizes most of the
    time of autograd's version goes into the temporaries between them.
    """
    shape = layer.index.shape
    flat = layer.index.flatten()
    vectors = (t.reshape(-1, t.shape[-1]) for t in (loc, scale, noise))
    units = (t.index_select(1, flat).unflatten(1, shape) for t in vectors)
    ratios: Tensor = _UnitLogRatios.apply(*units, layer.flips)  # type: ignore[no-untyped-call]
    return ratios.view(*loc.shape[:-1], *noise.shape[:-1], *ratios.shape[2:])


class _UnitLogRatios(torch.autograd.Function):
    """Matrices (R, B, d, d) of the units' means, scales (R, d, p) and noise (B, d, p); gradient.

    With R the precisions, ``-2 ratios[i, j] = (w_i - mu_j)^2 R_j - noise_i^2 + 2 log(s_j / s_i)``;
    flips add the term of ``-w_i``. Given weights P[i, j] on the entries, the gradient needs the
    sums ``P w^k`` and ``P' w^k`` over units; where ``w`` enters with its sign, P is multiplied by
    the expected sign ``tanh(mu_j R_j w_i)``.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, scale: Tensor, noise: Tensor, flips: bool) -> Tensor:
        precision = scale**-2
        log_scale = scale.log().sum(-1)
        if not flips:
            # Differences of O(1) numbers cancel less than of large ones.
            mu = mu - mu.mean(1, keepdim=True)
        w = torch.addcmul(mu.unsqueeze(1), scale.unsqueeze(1), noise).flatten(1, 2)  # (R, B d, p)
        natural_mean = mu * precision
        constant = (mu * natural_mean).sum(-1) + 2.0 * log_scale
        minus_log_q = 0.5 * (noise * noise).sum(-1) + log_scale.unsqueeze(1)
        even = torch.baddbmm(constant.unsqueeze(1), w * w, precision.mT)
        even = torch.sub(minus_log_q.flatten(1).unsqueeze(-1), even, alpha=0.5)
        odd = torch.bmm(w, natural_mean.mT)
        ctx.save_for_backward(mu, scale, precision, natural_mean, noise, w, odd if flips else None)
        ratios = even.add_(odd.abs() + F.softplus(-2.0 * odd.abs()) if flips else odd)
        ratios = ratios.unflatten(1, noise.shape[:2])
        # A unit in its own place: computed, terms as large as (mu / scale)^2 would have to cancel.
        own_odd = odd.view_as(ratios).diagonal(dim1=-2, dim2=-1)
        own_ratio = F.softplus(-2.0 * own_odd) if flips else torch.zeros_like(own_odd)
        ratios.diagonal(dim1=-2, dim2=-1).copy_(own_ratio)
        return ratios

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        mu, scale, precision, natural_mean, noise, w, odd = ctx.saved_tensors
        received = weights.sum((1, 2)).unsqueeze(-1)
        sent = weights.sum((1, 3)).unsqueeze(-1)
        weights = weights.flatten(1, 2)
        signed = weights if odd is None else weights * odd.tanh()
        by_mean = torch.bmm(signed, natural_mean)
        by_square = torch.bmm(weights, precision)
        d_w = torch.addcmul(by_mean, w, by_square, value=-1.0)
        first = torch.bmm(signed.mT, w)
        second = torch.bmm(weights.mT, w * w)
        shift = torch.addcmul(first, received, mu, value=-1.0)
        # sum_i P[i, j] (w_i - mu_j)^2, the squares multiplied out
        spread = second.addcmul_(mu, first.add_(shift), value=-1.0)
        d_scale = spread.mul_(precision).add_(sent - received).div_(scale)
        d_w = d_w.unflatten(1, noise.shape[:2])
        d_loc = shift.mul_(precision).add_(d_w.sum(1))
        return d_loc, d_scale.add_((d_w * noise).sum(1)), None, None


# Of a certificate, and of what it certifies: draws of a gap that is settled hardly differ.
_CERTIFICATE_DRAWS = 4


def saturation_tolerance(log_order: float) -> float:
    """Nats below ``log |G|`` that don't matter: a share of it, as draws scatter with it."""
    return max(1e-3, 1e-4 * log_order)


@dataclass(frozen=True, eq=False)
class UnitGap:
    """Gap of independent normals under a group of units, a factor a layer; a `Gap`.

    Parameters
    ----------
    group : SymmetryGroup
        `Units`, or a product with one of them a layer (``MLP.symmetry()``), or what `symmetry_of`
        found in a module; its entries of ``theta`` alone matter.
    permanent : PermanentEstimate
        Exact, or on the side of ``bound``.
    bound : {"lower", "upper"}, default="lower"
        Which bound to take of several layers. Lower: the chain rule over
        `disjoint_unit_blocks`. Upper: ``I(g; theta) <= sum_l J_l`` with J_l the gap of layer l if
        the other layers' order is known; the layers' elements are independent a priori, so
        conditioning only adds information. Of one layer both are the gap. Units on two axes of
        a parameter and units inside units count for what their other entries say below, and for
        all of their ``log |G|`` above.
    n_draws : int, default=1
        Posterior draws of `value_and_gradients`.

    Raises
    ------
    TypeError
        If a factor isn't a group of units.
    ValueError
        If ``permanent`` bounds the gap from the other side.
    """

    group: SymmetryGroup
    permanent: PermanentEstimate
    bound: Literal["lower", "upper"] = "lower"
    n_draws: int = 1
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.permanent.side not in {"exact", self.bound}:
            raise ValueError(
                f"a {self.bound} bound on the gap needs an exact or {self.bound} estimate of the "
                f"permanents, got {self.permanent!r}."
            )

    @property
    def side(self) -> Side:
        """Side: one layer's sum over the group is a permanent, several layers' is bounded."""
        is_exact = self.permanent.side == "exact" and len(self._layers) == 1
        is_exact = is_exact and all(table.is_whole for table in self._layers)
        return "exact" if is_exact or not self._layers else self.bound

    @cached_property
    def _layers(self) -> tuple[UnitTable, ...]:
        return unit_tables(self.group)

    @property
    def _area(self) -> int:
        """Entries of the widest layer's matrix."""
        return max(table.n_scores for table in self._layers)

    @cached_property
    def _terms(self) -> tuple[UnitTable, ...]:
        if self.bound == "lower":
            return disjoint_unit_blocks(self.group)
        return tuple(t for t in self._layers if t.is_whole and not t.inside)

    @cached_property
    def _unknown(self) -> float:
        """Nats that an upper bound has to grant what it can't sum."""
        known = sum(table.log_order for table in self._terms)
        return self.group.log_order - known if self.bound == "upper" else 0.0

    @cached_property
    def _moved(self) -> dict[torch.device, tuple[UnitTable, ...]]:
        return {}

    def _terms_on(self, device: torch.device) -> tuple[UnitTable, ...]:
        """Move the layers' indices to a device once, not every step."""
        if device not in self._moved:
            self._moved[device] = tuple(t.to(device) for t in self._terms)
        return self._moved[device]

    def values(
        self, loc: Tensor, scale: Tensor, noise: Tensor, *, generator: torch.Generator
    ) -> Tensor:
        """Values, one a draw ``loc + scale * noise``; they average to the gap or to the bound.

        ``loc``, ``scale`` (P,), or (R, P) of several posteriors: differentiable in both, first
        derivatives only; ``noise`` (S, P): standard normal, shared by all posteriors;
        ``generator``: for estimates that draw permutations. Returns (S,) or (R, S), nats, at most
        log |G| each for exact and upper-bounding permanents. Time O(S d^2 p) a layer plus the
        permanents', memory O(S (P + d^2)).
        """
        shape = *loc.shape[:-1], *noise.shape[:-1]
        total = torch.full(shape, self._unknown, dtype=loc.dtype, device=loc.device)
        for layer in self._terms_on(loc.device):
            value = unit_gap(layer, loc, scale, noise, self.permanent, generator=generator)
            total = total + (value.clamp(max=layer.log_order) if self.bound == "upper" else value)
        return total

    def estimate(
        self, posterior: MeanField, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average of `values`, in float64 on the generator's device.

        The gap lies in [0, log |G|], so an average outside is moved to the nearer end. A lower
        bound of layers too wide to sum is first looked at through `Soules`, at draws of its own:
        where it is `saturation_tolerance` log |G| it is what a few fresh draws are given to, at a
        fraction of the cost. Either way the average is a lower bound, since the choice doesn't see
        the draws.
        """
        if not self._layers:
            return Estimate(0.0, 0.0)
        loc, scale = _tensors(posterior, generator)
        # A near-saturated gap is skewed, so many of narrow layers.
        n_draws = n_draws or max(16, min(1000, (1 << 20) // self._area))
        # Layers of 10 units or fewer are summed exactly.
        if self.permanent.side == "lower" and self._area > 100:
            certified = replace(self, permanent=Soules(tighten=False))
            certificate = certified._average(loc, scale, _CERTIFICATE_DRAWS, generator)
            tolerance = saturation_tolerance(self.group.log_order)
            if self.group.log_order - certificate.value < tolerance:
                few = min(n_draws, _CERTIFICATE_DRAWS)
                return certified._average(loc, scale, few, generator)
        return self._average(loc, scale, n_draws, generator)

    def _average(
        self, loc: Tensor, scale: Tensor, n_draws: int, generator: torch.Generator
    ) -> Estimate:
        # 16 MB in float64 at once; a draw's estimate is made of about 64 assignments.
        chunk = max(1, (1 << 21) // max(4 * len(loc), 64 * self._area))
        values = []
        with torch.no_grad():
            for start in range(0, n_draws, chunk):
                shape = (min(chunk, n_draws - start), len(loc))
                noise = standard_normal(shape, generator=generator, like=loc)
                values.append(self.values(loc, scale, noise, generator=generator))
        mean, error = mean_and_error(torch.cat(values))
        return Estimate(min(max(mean, 0.0), self.group.log_order), error)

    def value_and_gradients(
        self, posterior: MeanField, *, generator: torch.Generator
    ) -> GapGradient:
        """Mean of ``n_draws`` fresh `values` and its derivatives, in float64.

        Of posteriors with means and scales (R, P) one each, from the same noise.
        """
        loc, scale = (t.requires_grad_() for t in _tensors(posterior, generator))
        noise = standard_normal((self.n_draws, loc.shape[-1]), generator=generator, like=loc)
        if not self._layers:
            return GapGradient(loc.new_zeros(loc.shape[:-1]), *(torch.zeros_like(loc),) * 2)
        with torch.enable_grad():
            value = self.values(loc, scale, noise, generator=generator).mean(-1)
            d_loc, d_scale = torch.autograd.grad(value.sum(), (loc, scale))
        return GapGradient(value.detach(), d_loc, -d_scale / scale.detach())


def _tensors(posterior: MeanField, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mean and scale in float64, cut off from what they were computed from."""
    loc, scale = (
        torch.as_tensor(values, dtype=torch.float64, device=generator.device).detach()
        for values in (posterior.loc, posterior.scale)
    )
    return loc, scale


def unit_gap(
    layer: UnitTable, loc: Tensor, scale: Tensor, noise: Tensor, permanent: PermanentEstimate, *,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """Gap of the units of one layer, one value a draw, (*R, S); see `UnitGap.values`."""
    if not layer.is_plain:  # whose gradient isn't written out
        if loc.ndim > 1:
            one = partial(unit_gap, layer, noise=noise, permanent=permanent, generator=generator)
            return torch.stack([one(*moments) for moments in zip(loc, scale, strict=True)])
        # A permanent inside another has no true order among its terms, as draws of orders need.
        sure = _drawing_nothing(permanent) if layer.inside else permanent
        return layer.values(loc, scale, noise, partial(sure, generator=generator))
    ratios = unit_log_ratios(layer, loc, scale, noise)
    if not layer.permutes:  # every unit in its own place, either sign
        return layer.log_order - ratios.diagonal(dim1=-2, dim2=-1).sum(-1)
    return layer.log_order - permanent(ratios, generator=generator)


def _drawing_nothing(permanent: PermanentEstimate) -> PermanentEstimate:
    """The estimate, with Soules' bound for what would draw permutations."""
    if isinstance(permanent, ExactUpTo):
        return replace(permanent, otherwise=_drawing_nothing(permanent.otherwise))
    return permanent if isinstance(permanent, Exact | Soules) else Soules()
