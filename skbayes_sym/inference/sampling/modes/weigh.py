"""Weights of a posterior's modes, from draws that found them.

Chains end where their starts lead them, and particles where a few ancestors were: neither weighs
modes by posterior mass. Here the draws of both are put on one representative of their orbits,
divided into modes, and the mass of each is estimated by bridge sampling.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import hypot, nan
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
    new = torch.ones(chain_draws.shape[:2], dtype=torch.bool, device=chain_draws.device)
    new[:, 1:] = (chain_draws[:, 1:] != chain_draws[:, :-1]).any(dim=-1)
    counts = (new | (new.sum(dim=1, keepdim=True) >= LONG)).flatten()
    parts = [chain_draws.flatten(0, 1)[counts].cpu().double(), *(p.cpu().double() for p in clouds)]
    values = [chain_values.flatten()[counts].cpu().double(), *(log_density(p) for p in parts[1:])]
    sizes = torch.tensor([len(p) for p in parts])
    sources = torch.arange(len(parts)).repeat_interleave(sizes)
    particles = n_chains + torch.arange(int(sizes[1:].sum()))
    chains = torch.cat([torch.arange(n_chains).repeat_interleave(n_draws)[counts.cpu()], particles])
    draws, _ = align_particles(torch.cat(parts), group, None, n_starts=4, generator=generator)
    return DrawPool(draws, torch.cat(values), chains, sources)


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
    estimates = []
    for k, matters in enumerate(contending(pool, modes).tolist()):
        estimate = NOT_ESTIMATED._replace(n_draws=int(modes.counts[k]))
        if matters:
            estimate = _evidence(integrand, pool, modes, k, 0, generator)
            particles = bool((pool.sources[modes.labels == k] > 0).any())
            if particles and not _is_known(estimate):
                estimate = _evidence(integrand, pool, modes, k, None, generator)
        estimates.append(estimate)
    weights = weigh_modes(estimates)
    spread = _spread(integrand, pool, modes, weights, generator)
    return Weighing(pool, modes, estimates, weights, spread)


def _is_known(estimate: BridgeEstimate) -> bool:
    return estimate.standard_error <= 1.0  # False for nan


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
    (n, n_dims), group, max_order = draws.shape, integrand.group, MAX_ORDER
    if has_exact_domain(group) and len(group.factors) == 1:
        # One layer has a fundamental domain, as accurate as a sum over the group: chosen beyond
        # about a second of multiplications. A draw meets five proposals.
        max_order = min(MAX_ORDER, int(2e9 / (5 * n * n_dims**2)))
    return bridge_evidence(
        integrand, draws, chains=pool.chains[chosen],
        # Three Gaussians where draws are many: few modes of a network are one.
        n_components=3 if n >= 30 * n_dims else 1, max_order=max_order, generator=generator,
    )  # fmt: skip


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
        if source == 0 and _is_known(estimates[0]):
            return nan
    known = [e for e in estimates if e.log_evidence == e.log_evidence]
    beyond = [
        abs(a.log_evidence - b.log_evidence) - 2.0 * hypot(a.standard_error, b.standard_error)
        for a, b in combinations(known, 2)
    ]
    return max(0.0, *beyond) if beyond else nan


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
