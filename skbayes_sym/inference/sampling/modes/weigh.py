"""Weights of a posterior's modes, from draws that found them.

Chains end where their starts lead them, and particles where a few ancestors were: neither weighs
modes by posterior mass. Here the draws of both are put on one representative of their orbits,
divided into modes, and the mass of each is estimated by bridge sampling.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.sampling.kernels.particle_alignment import align_particles
from skbayes_sym.inference.sampling.modes.bridge import (
    NOT_ESTIMATED,
    BridgeEstimate,
    Integrand,
    bridge_evidence,
)
from skbayes_sym.inference.sampling.modes.find import (
    LONG,
    DrawModes,
    ModeMasses,
    find_modes,
    weigh_modes,
)
from skbayes_sym.symmetry.fundamental_domain import MAX_ORDER, has_exact_domain
from skbayes_sym.symmetry.group import SymmetryGroup

# A mode so many nats lower, on average over its draws, than the best holds no mass worth bridging:
# its volume would have to be e^30 times larger.
NEGLIGIBLE_DEFICIT_NATS = 30.0

# Of the posterior: modes below it get no chain.
LEAST_WEIGHT = 1e-3

# Gaussians in the bridge's proposal where there are so many draws a parameter: few modes of a
# network are one Gaussian.
_COMPONENTS, _MANY_DRAWS = 3, 30

# Multiplications (draws, times parameters squared, times group elements) beyond which bridging
# within the fundamental domain, as accurate, is chosen: about a second. Each half's proposal meets
# its own four draws a draw, and the other half.
_MOST_WORK, _MEETINGS = 2e9, 5

# Nats up to which the chains' own estimate is one.
_KNOWN_BY_CHAINS = 1.0


_CHAINS = 0  # among the sources


class DrawPool(NamedTuple):
    """Draws of chains and particles, one representative of each orbit, float64 on the CPU."""

    draws: Tensor  # (n, D)
    values: Tensor  # (n,), log density, nats
    chains: Tensor  # int64 (n,): the chain of each; every particle is its own
    sources: Tensor  # int64 (n,): 0 for chains, i for the i-th cloud of particles


class Weighing(NamedTuple):
    """Modes, and what each counts for."""

    pool: DrawPool
    modes: DrawModes
    estimates: list[BridgeEstimate]  # one a mode; not estimated where hopeless
    weights: ModeMasses
    # Nats between the sources' own estimates of the heaviest mode, beyond their errors; nan where
    # the chains know it, or there is only one source.
    spread: float


def pool_draws(
    chain_draws: Tensor,
    chain_values: Tensor,
    clouds: Sequence[Tensor],
    log_density: LogDensity,
    group: SymmetryGroup,
    *,
    generator: torch.Generator,
) -> DrawPool:
    """Unite the draws of chains (C, S, D) with clouds of particles (N, D), and align them.

    A chain that hardly moved says where it is, not how often: its draws count once each.
    """
    n_chains, n_draws, _ = chain_draws.shape
    counts = _told(chain_draws).flatten()
    parts = [chain_draws.flatten(0, 1)[counts].cpu().double(), *(p.cpu().double() for p in clouds)]
    values = [chain_values.flatten()[counts].cpu().double(), *(log_density(p) for p in parts[1:])]
    sizes = torch.tensor([len(p) for p in parts])
    sources = torch.arange(len(parts)).repeat_interleave(sizes)
    particles = n_chains + torch.arange(int(sizes[1:].sum()))
    chains = torch.cat([torch.arange(n_chains).repeat_interleave(n_draws)[counts.cpu()], particles])
    draws, _ = align_particles(torch.cat(parts), group, None, n_starts=4, generator=generator)
    return DrawPool(draws, torch.cat(values), chains, sources)


def _told(draws: Tensor) -> Tensor:
    """Which draws of chains (C, S, D) count, bool (C, S): not the repeats of few points."""
    new = torch.ones(draws.shape[:2], dtype=torch.bool, device=draws.device)
    new[:, 1:] = (draws[:, 1:] != draws[:, :-1]).any(dim=-1)
    return new | (new.sum(dim=1, keepdim=True) >= LONG)


def weigh(
    log_density: LogDensity,  # in float64, on the CPU
    pool: DrawPool,
    group: SymmetryGroup,
    *,
    generator: torch.Generator,
) -> Weighing:
    """Divide the pool into modes and estimate the evidence of each by `bridge_evidence`.

    Where chains have draws enough in a mode their own estimate counts, whatever clouds say: a
    few ancestors' particles find modes, and rarely all of one. Elsewhere everything counts,
    and ``spread`` compares estimates from each source alone.
    """
    integrand = Integrand(log_density, group)
    modes = find_modes(pool.draws, pool.values, pool.chains, group)
    may_matter = contending(pool, modes)
    estimates = [
        _from_chains_or_all(integrand, pool, modes, k, generator)
        if may_matter[k]
        else NOT_ESTIMATED._replace(n_draws=int(modes.counts[k]))
        for k in range(len(may_matter))
    ]
    weights = weigh_modes(estimates)
    spread = _spread(integrand, pool, modes, weights, generator)
    return Weighing(pool, modes, estimates, weights, spread)


def _from_chains_or_all(
    integrand: Integrand, pool: DrawPool, modes: DrawModes, k: int, generator: torch.Generator
) -> BridgeEstimate:
    """Evidence of mode ``k`` from the chains where that is known, else from all draws."""
    by_chains = _evidence(integrand, pool, modes, k, _CHAINS, generator)
    alone = not bool((pool.sources[modes.labels == k] != _CHAINS).any())
    if alone or _is_known(by_chains):
        return by_chains
    return _evidence(integrand, pool, modes, k, None, generator)


def _is_known(estimate: BridgeEstimate) -> bool:
    return estimate.standard_error <= _KNOWN_BY_CHAINS  # False for nan


def _evidence(
    integrand: Integrand,
    pool: DrawPool,
    modes: DrawModes,
    k: int,
    source: int | None,
    generator: torch.Generator,
) -> BridgeEstimate:
    """Evidence of mode ``k`` from one source's draws, or from all."""
    chosen = modes.labels == k
    if source is not None:
        chosen &= pool.sources == source
    if not bool(chosen.any()):
        return NOT_ESTIMATED
    draws = modes.regions.domains[k].enter(pool.draws[chosen])[0]
    if modes.regions.n_modes > 1:
        integrand = replace(integrand, region=modes.regions.region(k))
    return bridge_evidence(
        integrand, draws, chains=pool.chains[chosen],
        n_components=_COMPONENTS if len(draws) >= _MANY_DRAWS * draws.shape[1] else 1,
        max_order=_summed_order(integrand.group, draws), generator=generator,
    )  # fmt: skip


def _summed_order(group: SymmetryGroup, draws: Tensor) -> int:
    """Largest group worth summing over: one layer has a fundamental domain instead."""
    if not has_exact_domain(group) or len(group.factors) > 1:
        return MAX_ORDER
    n, n_dims = draws.shape
    return min(MAX_ORDER, int(_MOST_WORK / (_MEETINGS * n * n_dims**2)))


def _spread(
    integrand: Integrand,
    pool: DrawPool,
    modes: DrawModes,
    weights: ModeMasses,
    generator: torch.Generator,
) -> float:
    if not bool(weights.weights.isfinite().all()):
        return nan
    heaviest = int(weights.weights.argmax())
    sources = pool.sources[modes.labels == heaviest].unique().tolist()
    if len(sources) < 2:
        return nan
    estimates = []
    for source in sources:
        estimates.append(_evidence(integrand, pool, modes, heaviest, source, generator))
        if source == _CHAINS and _is_known(estimates[0]):
            return nan
    known = [e for e in estimates if e.log_evidence == e.log_evidence]
    return max((_apart(a, b) for a, b in combinations(known, 2)), default=nan)


def _apart(a: BridgeEstimate, b: BridgeEstimate) -> float:
    """Difference of two estimates beyond two standard errors of it."""
    error = (a.standard_error**2 + b.standard_error**2) ** 0.5
    return max(0.0, abs(a.log_evidence - b.log_evidence) - 2.0 * error)


def largest_remainders(weights: Tensor, n_chains: int) -> Tensor:
    """Chains for every mode, int64 (K,): by largest remainders, at least one from 0.001 on."""
    weights = weights.nan_to_num(0.0)
    wanted = weights >= LEAST_WEIGHT
    if int(wanted.sum()) > n_chains:  # the heaviest only
        wanted &= weights >= weights.sort(descending=True).values[n_chains - 1]
    share = torch.where(wanted, weights, 0.0)
    share = share / share.sum() * n_chains
    counts = share.floor().clamp_min(1.0).where(wanted, torch.zeros(())).long()
    while int(counts.sum()) != n_chains:
        remainder = share - counts
        if int(counts.sum()) < n_chains:
            counts[remainder.argmax()] += 1
        else:
            counts[remainder.where(counts > 1, torch.inf).argmin()] -= 1
    return counts


def contending(pool: DrawPool, modes: DrawModes) -> Tensor:
    """Which modes may hold mass worth a bridge, bool (K,): those that none is far above."""
    height = mean_log_density_by_mode(pool, modes)
    return height >= height.max() - NEGLIGIBLE_DEFICIT_NATS


def mean_log_density_by_mode(pool: DrawPool, modes: DrawModes) -> Tensor:
    """Mean log density of each mode's draws, (K,) nats."""
    return torch.stack([pool.values[modes.labels == k].mean() for k in range(len(modes.counts))])
