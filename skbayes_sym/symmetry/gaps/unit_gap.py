"""The symmetrisation gap of a mean-field Gaussian under exchanges and flips of whole units.

For one hidden layer, ``q_G`` of the units is a matrix permanent. Every estimate below is therefore
an estimate of a log-permanent, and the side on which it lies gives the side of the gap's bound.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import lgamma, log
from numbers import Integral
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from skbayes_sym.numerics.arguments import check_count, short_repr
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
    """Estimate of ``log perm(exp L)`` from the matrix of a draw in its true order."""

    @property
    def side(self) -> Side:
        """Side of the gap on which the estimate lies, opposite to the side of the permanent."""

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the estimates, (*B, d, d) -> (*B,), differentiable in ``log_weights``."""


@dataclass(frozen=True)
class Exact:
    """The exact permanent, O(d 2^d)."""

    side: ClassVar[Side] = "exact"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the estimates, (*B, d, d) -> (*B,)."""
        del generator  # deterministic
        return log_permanent(log_weights)


@dataclass(frozen=True)
class Soules:
    """Deterministic upper bound on the permanent, a lower bound on the gap; O(d^2 log d).

    Parameters
    ----------
    tighten : bool, default=True
        Whether to return the smallest of four bounds, with a Sinkhorn scaling of the matrix. False
        uses the rows without scaling, which is tens of times faster, and sufficient if the modes
        don't overlap.
    """

    tighten: bool = True
    side: ClassVar[Side] = "lower"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the estimates, (*B, d, d) -> (*B,)."""
        del generator  # deterministic
        return soules_bound(log_weights, tighten=self.tighten)


@dataclass(frozen=True)
class Importance:
    """Importance-weighted sum over assignments, including the true one.

    Parameters
    ----------
    n_permutations : int, default=16
        Number K of assignments, including the identity.

    Notes
    -----
    The estimate is ``log 1/K sum_k exp(sum_i L[i, g_k(i)] - log tau(g_k))`` with ``g_0`` the
    identity and the others from the Sinkhorn proposal ``tau``. Because ``g_0`` is a draw from the
    posterior of ``g`` given the weights, the expectation lies above that of the log-permanent for
    any ``tau`` that is equivariant to the order of the units. This gives a lower bound on the gap,
    which rises with K. The cost is O(K d^2). No gradient flows through ``tau`` and ``g_k``.
    """

    n_permutations: int = 16
    side: ClassVar[Side] = "lower"

    def __post_init__(self) -> None:
        _require_permutations(self)

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the estimates, (*B, d, d) -> (*B,)."""
        d = log_weights.shape[-1]
        identity = torch.arange(d, device=log_weights.device).expand(1, *log_weights.shape[:-1])
        assignments, log_tau = sample_assignments(
            log_weights.detach(), self.n_permutations - 1, generator=generator, first=identity
        )
        terms = _assignment_weight(log_weights, assignments)
        return (terms - log_tau).logsumexp(dim=0) - log(self.n_permutations)


@dataclass(frozen=True)
class InfoNCE:
    """Estimator of Gelberg et al. (2024, Theorem 4.3, with its misplaced sign corrected).

    Parameters
    ----------
    n_permutations : int, default=16
        Number K of permutations, including the identity. The others are uniform and independent.

    Notes
    -----
    The estimate is ``log(|S_d| / K sum_k exp sum_i L[i, g_k(i)])`` with ``g_0`` the identity. It
    gives a lower bound on the gap that can't exceed ``log K`` (plus the sign flips, which are
    summed exactly).
    """

    n_permutations: int = 16
    side: ClassVar[Side] = "lower"

    def __post_init__(self) -> None:
        _require_permutations(self)

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the estimates, (*B, d, d) -> (*B,)."""
        n = self.n_permutations
        (*batch, d, _) = log_weights.shape
        identity = torch.arange(d, device=log_weights.device).expand(1, *batch, d)
        others = random_permutations((n - 1, *batch), d, generator=generator)
        terms = _assignment_weight(log_weights, torch.cat([identity, others]))
        return terms.logsumexp(dim=0) + lgamma(d + 1) - log(n)


@dataclass(frozen=True)
class Bethe:
    """Bethe's lower bound on the permanent, an UPPER bound on the gap; O(n_iter d^2).

    It is for reports only. The gradient vanishes exactly where two modes meet, so that it must not
    be used for training.

    Parameters
    ----------
    n_iter : int
        Rounds of message passing. Any number gives a bound.
    """

    n_iter: int = BETHE_ITERATIONS
    side: ClassVar[Side] = "upper"

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the estimates, (*B, d, d) -> (*B,)."""
        del generator  # deterministic
        return bethe_bound(log_weights, n_iter=self.n_iter)


@dataclass(frozen=True)
class ExactUpTo:
    """Exact for narrow layers, another estimate for wider ones.

    Parameters
    ----------
    max_width : int
        Largest number of units of a layer with an exact permanent.
    otherwise : PermanentEstimate
        Estimate for wider layers.
    """

    max_width: int
    otherwise: PermanentEstimate

    @property
    def side(self) -> Side:
        """Side of the estimate for wide layers."""
        return self.otherwise.side

    def __call__(self, log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the estimates, (*B, d, d) -> (*B,)."""
        if log_weights.shape[-1] <= self.max_width:
            return log_permanent(log_weights)
        return self.otherwise(log_weights, generator=generator)


def _assignment_weight(log_weights: Tensor, permutations: Tensor) -> Tensor:
    """Return ``sum_i L[i, g(i)]``: (*B, d, d) and (K, *B, d) -> (K, *B)."""
    expanded = log_weights.expand(*permutations.shape, log_weights.shape[-1])
    return expanded.gather(-1, permutations.unsqueeze(-1)).squeeze(-1).sum(-1)


def _require_permutations(estimate: Importance | InfoNCE) -> None:
    """Raise ValueError unless the number of permutations is a positive integer."""
    n = estimate.n_permutations
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(
            f"{type(estimate).__name__}: n_permutations must be an int of at least 1 (the identity "
            f"counts), got {n!r}."
        )


def unit_log_ratios(layer: UnitTable, loc: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """Compute log density ratios ``L[i, j] - log q_i(w_i)`` at draws ``w = loc + scale * noise``.

    Parameters
    ----------
    layer : UnitTable
        Units of the layer, with an index on the device of the other arguments.
    loc, scale : Tensor of shape (*R, P)
        Means and standard deviations of mean-field Gaussians. The result is differentiable in both,
        with first derivatives only.
    noise : Tensor of shape (*B, P)
        Standard normal noise, shared by all Gaussians.

    Returns
    -------
    Tensor of shape (*R, *B, d, d)
        Log ratios, nats.

    Notes
    -----
    ``L[i, j] = log N(w_i; mu_j, diag sigma_j^2)``. With flips it is the log of the sum over both
    signs of ``w_i``. Then ``perm(exp ratios)`` is ``d! q_G / q`` (times 2^d with flips), and is at
    least 1.

    The density of the draw is computed from its noise. The diagonal is known: it is 0, or the
    contribution of the unit's mirror image. Therefore nothing cancels, however narrow the posterior
    is.

    The cost is six matrix products, O(d^2 p). The gradient is written out, because at these sizes
    autograd spends most of its time on temporaries between the products.
    """
    shape = layer.index.shape
    flat = layer.index.flatten()
    vectors = (t.reshape(-1, t.shape[-1]) for t in (loc, scale, noise))
    units = (t.index_select(1, flat).unflatten(1, shape) for t in vectors)
    ratios: Tensor = _UnitLogRatios.apply(*units, layer.flips)  # type: ignore[no-untyped-call]
    return ratios.view(*loc.shape[:-1], *noise.shape[:-1], *ratios.shape[2:])


class _UnitLogRatios(torch.autograd.Function):
    """Log ratios (R, B, d, d) from means and scales (R, d, p) and noise (B, d, p), with gradient.

    With R the precisions, ``-2 ratios[i, j] = (w_i - mu_j)^2 R_j - noise_i^2 + 2 log(s_j / s_i)``.
    Flips add the term of ``-w_i``. With incoming gradients P[i, j], the gradient needs the sums
    ``P w^k`` and ``P' w^k`` over units. Where ``w`` enters with its sign, P is multiplied by the
    expected sign ``tanh(mu_j R_j w_i)``.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor, scale: Tensor, noise: Tensor, flips: bool) -> Tensor:
        precision = scale**-2
        log_scale = scale.log().sum(-1)
        if not flips:
            # Centred means are smaller, so that less cancels in the differences.
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
        # The diagonal is known exactly. In the general expression, terms as large as
        # (mu / scale)^2 would have to cancel.
        odd_diagonal = odd.view_as(ratios).diagonal(dim1=-2, dim2=-1)
        if flips:
            diagonal = F.softplus(-2.0 * odd_diagonal)
        else:
            diagonal = torch.zeros_like(odd_diagonal)
        ratios.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
        return ratios

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        mu, scale, precision, natural_mean, noise, w, odd = ctx.saved_tensors
        received = weights.sum((1, 2)).unsqueeze(-1)
        sent = weights.sum((1, 3)).unsqueeze(-1)
        weights = weights.flatten(1, 2)
        if odd is None:
            signed = weights
        else:
            signed = weights * odd.tanh()
        by_mean = torch.bmm(signed, natural_mean)
        by_square = torch.bmm(weights, precision)
        d_w = torch.addcmul(by_mean, w, by_square, value=-1.0)
        first = torch.bmm(signed.mT, w)
        second = torch.bmm(weights.mT, w * w)
        shift = torch.addcmul(first, received, mu, value=-1.0)
        # sum_i P[i, j] (w_i - mu_j)^2, with the squares multiplied out.
        spread = second.addcmul_(mu, first.add_(shift), value=-1.0)
        d_scale = spread.mul_(precision).add_(sent - received).div_(scale)
        d_w = d_w.unflatten(1, noise.shape[:2])
        d_loc = shift.mul_(precision).add_(d_w.sum(1))
        return d_loc, d_scale.add_((d_w * noise).sum(1)), None, None


# Number of draws that show that a gap is saturated, and that then estimate it. Draws of a saturated
# gap hardly differ.
_CERTIFICATE_DRAWS = 4


def saturation_tolerance(log_order: float) -> float:
    """Return the distance from ``log |G|`` at which a gap counts as saturated, in nats.

    It is proportional to ``log |G|``, as is the scatter of draws.
    """
    return max(1e-3, 1e-4 * log_order)


@dataclass(frozen=True, eq=False)
class UnitGap:
    """`Gap` of independent normals under a group of units, with one factor for each layer.

    Parameters
    ----------
    group : SymmetryGroup
        `Units`, a product with one of them for each layer (``MLP.symmetry()``), or the result of
        `symmetry_of`. Entries of ``theta`` that it doesn't move have no effect.
    permanent : PermanentEstimate
        Exact, or on the side of ``bound``.
    bound : {"lower", "upper"}, default="lower"
        Which bound to use for several layers. With one layer both are the gap. "lower" is the chain
        rule over `disjoint_unit_blocks`. "upper" is ``I(g; theta) <= sum_l J_l`` with J_l the gap
        of layer l given the order of the other layers. The layers' elements are independent a
        priori, so that conditioning only adds information. For units on two axes of a parameter,
        and units inside units, the lower bound uses their other entries only, and the upper bound
        all of their ``log |G|``.
    n_draws : int, default=1
        Number of posterior draws in `value_and_gradients`.

    Raises
    ------
    TypeError
        If a factor isn't a group of units.
    ValueError
        If ``bound`` has another value, or ``permanent`` bounds the gap from the other side.
    """

    group: SymmetryGroup
    permanent: PermanentEstimate
    bound: Literal["lower", "upper"] = "lower"
    n_draws: int = 1
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not hasattr(self.group, "factors"):
            raise TypeError(
                f"group of UnitGap must be a symmetry group, got {short_repr(self.group)}."
            )
        if not hasattr(self.permanent, "side"):
            raise TypeError(
                "permanent of UnitGap must be an estimate of permanents, such as Exact(), got "
                f"{short_repr(self.permanent)}."
            )
        check_count("n_draws of UnitGap", self.n_draws)
        if not isinstance(self.bound, str) or self.bound not in ("lower", "upper"):
            raise ValueError(f'bound must be "lower" or "upper", got {short_repr(self.bound)}.')
        if self.permanent.side not in {"exact", self.bound}:
            raise ValueError(
                f"a {self.bound} bound on the gap needs an exact or {self.bound} estimate of the "
                f"permanents, got {self.permanent!r}."
            )

    @property
    def side(self) -> Side:
        """Exact for one layer with an exact permanent; several layers are bounded."""
        is_exact = self.permanent.side == "exact" and len(self._layers) == 1
        is_exact = is_exact and all(table.is_complete for table in self._layers)
        if is_exact or not self._layers:
            return "exact"
        return self.bound

    @cached_property
    def _layers(self) -> tuple[UnitTable, ...]:
        return unit_tables(self.group)

    @property
    def _area(self) -> int:
        """Number of entries of the widest layer's matrix."""
        return max(table.n_scores for table in self._layers)

    @cached_property
    def _terms(self) -> tuple[UnitTable, ...]:
        if self.bound == "lower":
            return disjoint_unit_blocks(self.group)
        return tuple(t for t in self._layers if t.is_complete and not t.inside)

    @cached_property
    def _unknown(self) -> float:
        """Nats that an upper bound adds for units that it can't sum over."""
        if self.bound != "upper":
            return 0.0
        return self.group.log_order - sum(table.log_order for table in self._terms)

    @cached_property
    def _moved(self) -> dict[torch.device, tuple[UnitTable, ...]]:
        return {}

    def _terms_on(self, device: torch.device) -> tuple[UnitTable, ...]:
        """Return the layers with their indices on a device, which are copied there only once."""
        if device not in self._moved:
            self._moved[device] = tuple(t.to(device) for t in self._terms)
        return self._moved[device]

    def values(
        self, loc: Tensor, scale: Tensor, noise: Tensor, *, generator: torch.Generator
    ) -> Tensor:
        """Compute one value for each draw; they average to the gap or to the bound.

        Parameters
        ----------
        loc, scale : Tensor of shape (P,) or (R, P)
            Means and standard deviations of one or several posteriors. The result is differentiable
            in both, with first derivatives only.
        noise : Tensor of shape (S, P)
            Standard normal noise, shared by all posteriors. Draws are ``loc + scale * noise``.
        generator : torch.Generator
            For estimates that draw permutations.

        Returns
        -------
        Tensor of shape (S,) or (R, S)
            Values in nats, at most log |G| each for exact and upper-bounding permanents.

        Notes
        -----
        Each layer takes O(S d^2 p) time and the permanents, and O(S (P + d^2)) memory.
        """
        shape = *loc.shape[:-1], *noise.shape[:-1]
        total = torch.full(shape, self._unknown, dtype=loc.dtype, device=loc.device)
        for layer in self._terms_on(loc.device):
            value = unit_gap(layer, loc, scale, noise, self.permanent, generator=generator)
            if self.bound == "upper":
                value = value.clamp(max=layer.log_order)
            total = total + value
        return total

    def estimate(
        self, posterior: MeanField, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average `values` in float64 on the generator's device.

        Parameters
        ----------
        posterior : MeanField
            Means and standard deviations.
        n_draws : int or None, default=None
            Number of draws; None: 16 to 1,000, fewer for wide layers.
        generator : torch.Generator
            Random number generator.

        Returns
        -------
        Estimate
            The average, clipped to [0, log |G|], where the gap lies.

        Notes
        -----
        For layers that are too wide for an exact sum, the lower bound is first estimated with
        `Soules`, from separate draws. If this is within `saturation_tolerance` of log |G|, a few
        fresh draws of `Soules` are the result, at a fraction of the cost. In both cases the average
        is a lower bound, because the decision doesn't depend on the draws that are averaged.
        """
        if not self._layers:
            return Estimate(0.0, 0.0)
        loc, scale = _tensors(posterior, generator)
        # The values of a nearly saturated gap are skewed, so that narrow layers get many draws.
        n_draws = n_draws or max(16, min(1000, (1 << 20) // self._area))
        # Layers of 10 units or fewer are summed exactly.
        if self.permanent.side == "lower" and self._area > 100:
            certified = replace(self, permanent=Soules(tighten=False))
            certificate = certified.average_values(loc, scale, _CERTIFICATE_DRAWS, generator)
            tolerance = saturation_tolerance(self.group.log_order)
            if self.group.log_order - certificate.value < tolerance:
                n_draws = min(n_draws, _CERTIFICATE_DRAWS)
                return certified.average_values(loc, scale, n_draws, generator)
        return self.average_values(loc, scale, n_draws, generator)

    def average_values(
        self, loc: Tensor, scale: Tensor, n_draws: int, generator: torch.Generator
    ) -> Estimate:
        """Average `values` over draws.

        Parameters
        ----------
        loc, scale : Tensor of shape (P,)
            Means and standard deviations.
        n_draws : int
            Number of draws.
        generator : torch.Generator
            Random number generator.
        """
        # Chunks of 16 MB in float64. The estimate of one draw uses about 64 assignments.
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
        """Compute the mean of ``n_draws`` fresh `values` and its derivatives, in float64.

        Posteriors with means and scales (R, P) have one result each, from the same noise.
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
    """Return the mean and scale in float64, without their computation graph."""
    loc, scale = (
        torch.as_tensor(values, dtype=torch.float64, device=generator.device).detach()
        for values in (posterior.loc, posterior.scale)
    )
    return loc, scale


def unit_gap(
    layer: UnitTable,
    loc: Tensor,
    scale: Tensor,
    noise: Tensor,
    permanent: PermanentEstimate,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Compute the gap of the units of one layer, one value for each draw.

    Parameters
    ----------
    layer : UnitTable
        Units of the layer.
    loc, scale : Tensor of shape (*R, P)
        Means and standard deviations.
    noise : Tensor of shape (S, P)
        Standard normal noise.
    permanent : PermanentEstimate
        Estimate of the permanent.
    generator : torch.Generator
        For estimates that draw permutations.

    Returns
    -------
    Tensor of shape (*R, S)
        Values in nats; see `UnitGap.values`.
    """
    if not layer.is_plain:
        # The general case by autograd, one posterior at a time.
        if loc.ndim > 1:
            return torch.stack(
                [
                    unit_gap(layer, *moments, noise, permanent, generator=generator)
                    for moments in zip(loc, scale, strict=True)
                ]
            )
        # Estimates that draw permutations need the true order among the terms, which a permanent
        # inside another doesn't have.
        if layer.inside:
            permanent = _make_deterministic(permanent)
        return layer.values(loc, scale, noise, partial(permanent, generator=generator))
    ratios = unit_log_ratios(layer, loc, scale, noise)
    if not layer.permutes:  # every unit stays in place, with either sign
        return layer.log_order - ratios.diagonal(dim1=-2, dim2=-1).sum(-1)
    return layer.log_order - permanent(ratios, generator=generator)


def _make_deterministic(permanent: PermanentEstimate) -> PermanentEstimate:
    """Replace estimates that draw permutations by Soules' bound."""
    if isinstance(permanent, ExactUpTo):
        return replace(permanent, otherwise=_make_deterministic(permanent.otherwise))
    if isinstance(permanent, Exact | Soules):
        return permanent
    return Soules()
