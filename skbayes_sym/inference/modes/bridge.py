"""The evidence of one mode from draws of it, by bridge sampling modulo the symmetry.

    Z = integral over a region of exp(log_density),

the region being unchanged by the symmetry group. Draws and a fitted proposal meet in the middle:
nothing is annealed, and the estimate is good where the proposal is merely fair.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log, nan
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.modes.bridge_ratio import BridgeRatio, bridge_ratio
from skbayes_sym.inference.modes.gaussian_mixture import GaussianMixture, fit_gaussian_mixture
from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain, has_exact_domain
from skbayes_sym.symmetry.orbits import MAX_ORDER, Enumeration, can_enumerate, enumerate_group
from skbayes_sym.symmetry.reference import estimate_reference, orbit_mean_square
from skbayes_sym.symmetry.units import split_units

MIN_DRAWS_PER_DIM = 5  # below that the fitted covariance is noise, and the proposal useless
_PROPOSALS_PER_DRAW = 4
_BLOCKS = 20  # pieces of chains taken as independent when the error is estimated, at least
_CHUNK = 1 << 21  # numbers an array of images may hold: 16 MiB
_ROWS = 2048  # positions of one evaluation of the density

Region = Callable[[Tensor], Tensor]  # (C, D) -> bool (C,)


class BridgeEstimate(NamedTuple):
    """Log evidence of one mode."""

    log_evidence: float  # nats; nan where there are too few draws or the proposal misses the mode
    standard_error: float  # nats
    halves: tuple[float, float]  # the two estimates, each with one half's proposal
    n_draws: int  # that lie in the region
    n_effective: float  # of those, in the sense of the standard error


@dataclass(frozen=True, eq=False)
class Integrand:
    """What is integrated: a density over a region, both unchanged by a group.

    Evaluated in float64 without gradients, in rows that fit the memory.

    Parameters
    ----------
    log_density : callable (C, D) -> (C,)
        Nats, unnormalised, invariant under the group.
    group : Trivial, Units or a Product of them
        Acts on the leading columns.
    region : callable (C, D) -> bool (C,), optional
        The whole space by default. Must be invariant under the group.
    """

    log_density: Callable[[Tensor], Tensor]
    group: SymmetryGroup
    region: Region | None = None

    def __call__(self, position: Tensor) -> Tensor:
        with torch.no_grad():
            value = torch.cat([self.log_density(rows) for rows in position.split(_ROWS)])
        value = value.double().nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        if self.region is None:
            return value
        return value.masked_fill(~self.region(position), -torch.inf)


NOT_ESTIMATED = BridgeEstimate(nan, nan, (nan, nan), 0, 0.0)


def bridge_evidence(
    integrand: Integrand,
    draws: Tensor,
    *,
    chains: Tensor | None = None,
    n_components: int = 1,
    max_order: int = MAX_ORDER,
    generator: torch.Generator,
) -> BridgeEstimate:
    """Log of the integral, with its standard error.

    Draws are split in halves A and B. A mixture of Gaussians h is fitted to A, and the ratio of
    the density to the proposal

        q(x) = 1/|G| sum_g h(g x)

    compared at draws of h and at the draws in B (`bridge_ratio`); then the halves change places,
    and the two estimates are averaged. Larger groups than ``max_order`` are not summed over: then

        Z = |G| Z_F,    F the fundamental domain (`FundamentalDomain`) of half A,

    and h is compared with the density restricted to F, draws of h that miss F counting as zeros.

    Parameters
    ----------
    integrand : Integrand
    draws : Tensor of shape (n, D)
        Aligned draws of ``exp(log_density)`` within the region; others are dropped.
    chains : int64 Tensor of shape (n,), optional
        The chain of each draw; draws of one chain stand in order. Independent draws by default.
        Halves hold different chains where there are enough.
    n_components : int, default=1
        Gaussians in h. Three are a check: modes that are far from Gaussian give another value.
    max_order : int, default=10_000
    generator : torch.Generator

    Returns
    -------
    BridgeEstimate
        nan with fewer than 5 D draws. Only what the draws visited is in the estimate: as to the
        whole space it is, up to its error, a lower bound. The error allows for correlated draws of
        a chain, not for chains that haven't found the whole mode; where the two halves differ by
        more than their errors, their difference is the error.

    Raises
    ------
    ValueError
        If the group is too large to sum over and has no exact fundamental domain (several hidden
        layers).

    Notes
    -----
    O(n D^2 |G|) where the group is summed over, and 4 n evaluations of the density.

    References
    ----------
    Meng and Wong (1996), Statistica Sinica 6. Frühwirth-Schnatter (2004), Econometrics Journal 7.
    """
    draws = draws.detach().double()
    chains = torch.arange(len(draws), device=draws.device) if chains is None else chains
    group, region = integrand.group, integrand.region
    if region is not None:
        inside = region(draws)
        draws, chains = draws[inside], chains[inside]
    if len(draws) < MIN_DRAWS_PER_DIM * draws.shape[1]:
        return NOT_ESTIMATED._replace(n_draws=len(draws))
    first = _half_of(chains, generator)
    make = _symmetrised if can_enumerate(group, max_order=max_order) else _confined
    found = []
    for fit in (first, ~first):
        proposal = make(draws[fit], group, n_components)
        found.append(_compare(integrand, proposal, draws[~fit], chains[~fit], generator))
    return _combine(found, len(draws))


class _Proposal(NamedTuple):
    """A mixture h, how it is compared with the density, and what the comparison leaves out."""

    h: GaussianMixture
    log_prob: Callable[[Tensor], Tensor]  # of the density that is compared
    enter: Callable[[Tensor], Tensor]  # of draws, before they are compared
    covers: Callable[[Tensor], Tensor] | None  # draws of h that count; others are zeros
    log_copies: float  # log of the integral over everything / over what is compared


def _symmetrised(draws: Tensor, group: SymmetryGroup, n_components: int) -> _Proposal:
    h = fit_gaussian_mixture(draws, n_components)
    table = enumerate_group(group, draws.shape[1])
    table = Enumeration(table.gather.to(draws.device), table.sign.to(draws.device), table.elements)

    def log_prob(x: Tensor) -> Tensor:
        rows = x.split(rows_within(_CHUNK, table.order * x.shape[1]))
        sums = [torch.logsumexp(h.log_prob(table.orbit(part)), dim=-1) for part in rows]
        return torch.cat(sums) - log(table.order)

    return _Proposal(h, log_prob, lambda x: x, None, 0.0)


def _confined(draws: Tensor, group: SymmetryGroup, n_components: int) -> _Proposal:
    domain = domain_of(draws, group)
    h = fit_gaussian_mixture(domain.enter(draws)[0], n_components)
    return _Proposal(
        h, h.log_prob, lambda x: domain.enter(x)[0], domain.contains, float(group.log_order)
    )


def domain_of(draws: Tensor, group: SymmetryGroup) -> FundamentalDomain:
    """The fundamental domain around aligned draws (n, D)."""
    cpu = draws.cpu()
    return FundamentalDomain(group, estimate_reference(cpu, orbit_mean_square(cpu, group)))


def can_bridge(group: SymmetryGroup) -> bool:
    """Whether `bridge_evidence` has a way to deal with this group: one of units, not too large."""
    _, others = split_units(group)
    return not others and (can_enumerate(group) or has_exact_domain(group))


def _compare(
    integrand: Integrand,
    proposal: _Proposal,
    draws: Tensor,
    chains: Tensor,
    generator: torch.Generator,
) -> BridgeRatio:
    """One half's draws against the other half's proposal."""
    proposed = proposal.h.sample(_PROPOSALS_PER_DRAW * len(draws), generator=generator)
    at_proposed = torch.full((len(proposed),), -torch.inf, dtype=torch.float64)
    at_proposed = at_proposed.to(draws.device)
    counts = torch.ones(len(proposed), dtype=torch.bool, device=draws.device)
    if proposal.covers is not None:
        counts = proposal.covers(proposed)
    kept = proposed[counts]
    if len(kept):
        at_proposed[counts] = integrand(kept) - proposal.log_prob(kept)
    entered = proposal.enter(draws)
    at_draws = integrand(entered) - proposal.log_prob(entered)
    found = bridge_ratio(at_proposed, at_draws, _blocks_of(chains))
    return found._replace(log_ratio=found.log_ratio + proposal.log_copies)


def _combine(found: list[BridgeRatio], n_draws: int) -> BridgeEstimate:
    """Mean of two estimates whose errors are nearly independent."""
    first, second = found
    mean = 0.5 * (first.log_ratio + second.log_ratio)
    error = 0.5 * (first.standard_error**2 + second.standard_error**2) ** 0.5
    half_difference = 0.5 * abs(first.log_ratio - second.log_ratio)
    # Its standard deviation is ``error``, too; much more shows what neither half sees alone.
    if half_difference > 2.0 * error:
        error = half_difference
    halves = (first.log_ratio, second.log_ratio)
    return BridgeEstimate(mean, error, halves, n_draws, first.n_effective + second.n_effective)


def _half_of(chains: Tensor, generator: torch.Generator) -> Tensor:
    """A random half of the draws, bool (n,): whole chains if neither side gets below a third."""
    for units in (chains, _blocks_of(chains)):
        _, label, size = units.unique(return_inverse=True, return_counts=True)
        order = torch.randperm(len(size), generator=generator, device=generator.device)
        order = order.to(size.device)
        taken = torch.zeros(len(size), dtype=torch.bool, device=size.device)
        taken[order] = size[order].cumsum(0) <= (len(chains) + 1) // 2
        first: Tensor = taken[label]
        if len(chains) <= 3 * int(first.sum()) <= 2 * len(chains):
            break
    return first


def _blocks_of(chains: Tensor) -> Tensor:
    """Labels of consecutive pieces of chains, at least 20 in all where there are draws enough.

    Whole chains where there are many: their means are independent whatever happens within.
    """
    _, label, size = chains.unique(return_inverse=True, return_counts=True)
    pieces = ceil(_BLOCKS / len(size))
    order = label.argsort(stable=True)
    start = (size.cumsum(0) - size)[label[order]]
    rank = torch.empty_like(label)
    rank[order] = torch.arange(len(label), device=label.device) - start
    return label * pieces + rank * pieces // size[label]
