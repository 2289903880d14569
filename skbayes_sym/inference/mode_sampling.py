"""From draws that found modes to draws that weigh them: evidence, then chains shared out by it.

Chains end where their starts lead them, and particles where a few ancestors were: neither weighs
modes by posterior mass. Here the draws of both are put on one representative of their orbits,
divided into modes, and each mode's mass is estimated by bridge sampling; then new chains are
started in the modes, as many as their mass asks for, with the covariance of their mode as the
metric and confined to one copy of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.bridge import (
    NOT_ESTIMATED,
    BridgeEstimate,
    bridge_evidence,
)
from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.mcmc.adaptation import FixedWhitening
from skbayes_sym.inference.mcmc.aligned import AlignedKernel
from skbayes_sym.inference.mcmc.base import DiagonalWhitening, Kernel, Whitening
from skbayes_sym.inference.mcmc.blocks import Sampler
from skbayes_sym.inference.mcmc.chains import ChainDraws, sample_chains, start_blocks
from skbayes_sym.inference.mcmc.hmc import HMC
from skbayes_sym.inference.mcmc.particle_scales import (
    align_particles,
    full_whitening,
    pooled_whitening,
)
from skbayes_sym.inference.modes import Modes, ModeWeights, find_modes, weigh_modes
from skbayes_sym.numerics.optimise import OnStep
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.domain import FundamentalDomain, has_exact_domain
from skbayes_sym.symmetry.enumeration import MAX_ORDER

# A mode so many nats lower, on average over its draws, than the best holds no mass worth bridging:
# its volume would have to be e^30 times larger.
_HOPELESS = 30.0

# Of the posterior: modes below it get no chain.
LEAST_WEIGHT = 1e-3

_STEP_SIZE = 0.5  # where the search begins, in standard deviations of the mode

# Trajectories are short here, so shorter steps are cheap. Where a mode narrows, chains whose steps
# are all of one length stay for hundreds of moves, and one such chain costs most of the effective
# draws of 64 (sinusoidal data: 3,100 of 12,800 without jitter, 12,200 with). Steps adapt without
# jitter, which would only make them longer.
_WARM_UP = HMC(max_leapfrog=64)
_DRAWING = HMC(max_leapfrog=64, least_step=0.3)
_TARGET_ACCEPTANCE = 0.9
_FREE_THIN = 3  # times as many moves a draw where chains run free: they are less efficient

# Gaussians in the bridge's proposal where there are so many draws a parameter: few modes of a
# network are one Gaussian.
_COMPONENTS, _MANY_DRAWS = 3, 30

# Multiplications (draws, times parameters squared, times group elements) beyond which bridging
# within the fundamental domain, as accurate, is chosen: about a second.
_MOST_WORK = 2e9

_MOST_LOST = 0.1  # of accepted proposals, at the boundary of a copy, that its metric is worth
_WELL_KNOWN = 0.3  # nats of error up to which a mode's evidence needs no further draws
_ROUNDS = 2  # of further draws
_MOST_REFINED = 8  # modes that get more, the highest: where none has enough draws, more won't do


class Pool(NamedTuple):
    """Draws of chains and particles, one representative of each orbit, float64 on the CPU."""

    draws: Tensor  # (n, D)
    values: Tensor  # (n,), log density, nats
    chains: Tensor  # int64 (n,): the chain of each; every particle is its own
    sources: Tensor  # int64 (n,): 0 for chains, i for island i


class Weighing(NamedTuple):
    """Modes, and what each counts for."""

    pool: Pool
    modes: Modes
    estimates: list[BridgeEstimate]  # one a mode; not estimated where hopeless
    weights: ModeWeights
    # Nats between the sources' own estimates of the heaviest mode, beyond their errors; nan if
    # there is only one.
    spread: float


def pool_draws(
    chain_draws: Tensor,
    chain_values: Tensor,
    islands: Sequence[Tensor],
    log_density: LogDensity,
    group: Any,
    *,
    generator: torch.Generator,
) -> Pool:
    """Unite the draws of chains (C, S, D) with the particles (N, D) of islands, and align them."""
    n_chains, n_draws, _ = chain_draws.shape
    parts = [chain_draws.flatten(0, 1).cpu().double(), *(p.cpu().double() for p in islands)]
    values = [chain_values.flatten().cpu().double(), *(log_density(p) for p in parts[1:])]
    sizes = torch.tensor([len(p) for p in parts])
    sources = torch.arange(len(parts)).repeat_interleave(sizes)
    own = n_chains + torch.arange(int(sizes[1:].sum()))
    chains = torch.cat([torch.arange(n_chains).repeat_interleave(n_draws), own])
    draws, _ = align_particles(torch.cat(parts), group, None, n_starts=4, generator=generator)
    return Pool(draws, torch.cat(values), chains, sources)


def weigh(
    log_density: LogDensity, pool: Pool, group: Any, *, generator: torch.Generator
) -> Weighing:
    """Divide the pool into modes and estimate the evidence of each by `bridge_evidence`.

    Parameters
    ----------
    log_density : LogDensity
        In float64, on the CPU.
    pool : Pool
    group : Trivial, UnitPermutation, SignedUnitPermutation or a Product of them
    generator : torch.Generator

    Returns
    -------
    Weighing
        ``spread`` compares estimates from the chains alone and from each island alone, where they
        have draws enough in the heaviest mode.
    """
    modes = find_modes(pool.draws, pool.values, pool.chains, group)
    height = _heights(pool, modes)
    hopeless = height < height.max() - _HOPELESS
    estimates = [
        NOT_ESTIMATED._replace(n_draws=int(modes.counts[k]))
        if hopeless[k]
        else _evidence(log_density, pool, modes, group, k, None, generator)
        for k in range(len(hopeless))
    ]
    weights = weigh_modes(estimates)
    spread = _spread(log_density, pool, modes, group, weights, generator)
    return Weighing(pool, modes, estimates, weights, spread)


def _evidence(
    log_density: LogDensity,
    pool: Pool,
    modes: Modes,
    group: Any,
    k: int,
    source: int | None,
    generator: torch.Generator,
) -> BridgeEstimate:
    """Evidence of mode ``k`` from one source's draws, or from all."""
    own = modes.labels == k
    if source is not None:
        own &= pool.sources == source
    if not bool(own.any()):
        return NOT_ESTIMATED
    draws = modes.regions.domains[k].enter(pool.draws[own])[0]
    region = modes.regions.region(k) if modes.regions.n_modes > 1 else None
    return bridge_evidence(
        log_density, draws, group, chains=pool.chains[own], region=region,
        n_components=_COMPONENTS if len(draws) >= _MANY_DRAWS * draws.shape[1] else 1,
        max_order=_summed_order(group, draws), generator=generator,
    )  # fmt: skip


def _summed_order(group: Any, draws: Tensor) -> int:
    """Largest group worth summing over: one layer has a fundamental domain instead."""
    if not has_exact_domain(group) or len(group.factors) > 1:
        return MAX_ORDER
    n, n_dims = draws.shape
    return min(MAX_ORDER, int(_MOST_WORK / (n * n_dims**2)))


def _spread(
    log_density: LogDensity,
    pool: Pool,
    modes: Modes,
    group: Any,
    weights: ModeWeights,
    generator: torch.Generator,
) -> float:
    if not bool(weights.weights.isfinite().all()):
        return nan
    heaviest = int(weights.weights.argmax())
    found = [
        _evidence(log_density, pool, modes, group, heaviest, source, generator)
        for source in pool.sources.unique().tolist()
    ]
    known = [e for e in found if e.log_evidence == e.log_evidence]
    return max((_apart(a, b) for a, b in combinations(known, 2)), default=nan)


def _apart(a: BridgeEstimate, b: BridgeEstimate) -> float:
    """By how much two estimates differ beyond two standard errors of their difference."""
    error = (a.std_error**2 + b.std_error**2) ** 0.5
    return max(0.0, abs(a.log_evidence - b.log_evidence) - 2.0 * error)


def share_out(weights: Tensor, n_chains: int) -> Tensor:
    """Chains for every mode, int64 (K,): by largest remainders, at least one from 0.001 on."""
    weights = weights.nan_to_num(0.0)
    wanted = weights >= LEAST_WEIGHT
    if int(wanted.sum()) > n_chains:  # the heaviest only
        wanted &= weights >= weights.sort(descending=True).values[n_chains - 1]
    share = torch.where(wanted, weights, 0.0)
    share = share / share.sum() * n_chains
    counts = share.floor().clamp_min(1.0).where(wanted, torch.zeros(())).long()
    while int(counts.sum()) != n_chains:
        excess = share - counts
        if int(counts.sum()) < n_chains:
            counts[excess.argmax()] += 1
        else:
            counts[excess.where(counts > 1, torch.inf).argmin()] -= 1
    return counts


class ModeRun(NamedTuple):
    """How chains are run in a mode."""

    n_warmup: int
    n_draws: int
    thin: int
    block_size: int
    n_jobs: int | None


@dataclass(frozen=True, eq=False)
class ModeSampler:
    """Chains that start from draws of one mode, with the metric of that mode.

    Parameters
    ----------
    log_density : LogDensity
        In the precision and on the device that chains run with.
    kinds : int64 Tensor of shape (D,)
        Entries that the group exchanges have the same number.
    plan : ModeRun
    like : Tensor
        Gives dtype and device of the chains.
    generator : torch.Generator
        Chooses the starts.

    Notes
    -----
    The metric is the full covariance of the mode's aligned draws, which is right for one copy of
    the mode only: chains are confined to it (`AlignedKernel`). Where units overlap so much that the
    copy's boundary stops more than a tenth of the accepted proposals, chains run free instead,
    with scales pooled over entries of a kind, which commute with the group.

    Either way the target is the whole posterior: chains may leave for another mode, if there is a
    way.
    """

    log_density: LogDensity
    kinds: Tensor
    plan: ModeRun
    like: Tensor
    generator: torch.Generator

    def __call__(
        self, weighing: Weighing, k: int, n_chains: int, *, seed: int, on_step: OnStep | None = None
    ) -> ChainDraws:
        """Run ``n_chains`` chains in mode ``k``; ``on_step`` as in `sample_chains`."""
        domain = weighing.modes.regions.domains[k]
        own = domain.enter(weighing.pool.draws[weighing.modes.labels == k])[0]
        chosen = torch.randperm(len(own), generator=self.generator)
        starts = own[chosen[torch.arange(n_chains) % len(own)]].to(self.like)
        confined: list[Kernel] = [AlignedKernel(domain, hmc) for hmc in (_WARM_UP, _DRAWING)]
        warm = self._warm_up(confined[0], starts, full_whitening(own.to(self.like)), seed, on_step)
        kernel, thin = confined[1], self.plan.thin
        if _boundary_loss(warm) > _MOST_LOST:
            pooled = pooled_whitening(own, self.kinds)
            whitening = DiagonalWhitening(pooled.scale.to(self.like))
            warm = self._warm_up(_WARM_UP, starts, whitening, seed, on_step)
            kernel, thin = _DRAWING, _FREE_THIN * thin
        if warm.stopped != "complete":
            return warm
        return sample_chains(
            self._sampler(kernel), warm.blocks, n_warmup=0, n_draws=self.plan.n_draws,
            thin=thin, n_jobs=self.plan.n_jobs, on_step=on_step,
        )  # fmt: skip

    def _sampler(self, kernel: Kernel) -> Sampler:
        return Sampler(kernel, self.log_density, FixedWhitening(), _TARGET_ACCEPTANCE)

    def _warm_up(
        self,
        kernel: Kernel,
        starts: Tensor,
        whitening: Whitening,
        seed: int,
        on_step: OnStep | None,
    ) -> ChainDraws:
        size = self.plan.block_size
        blocks = start_blocks(
            starts, self.log_density, block_size=size, seed=seed, step_size=_STEP_SIZE,
            whitenings=[whitening] * -(-len(starts) // size),
        )  # fmt: skip
        return sample_chains(
            self._sampler(kernel),
            blocks,
            n_warmup=self.plan.n_warmup,
            n_draws=0,
            n_jobs=self.plan.n_jobs,
            on_step=on_step,
        )


def _boundary_loss(run: ChainDraws) -> float:
    """Share of proposals that the integrator would have had accepted and the boundary stopped."""
    tally = run.warmup
    return 1.0 - float(tally.n_accepted.sum()) / max(float(tally.acceptance.sum()), 1e-9)


def refine(
    log_density: LogDensity,
    weighing: Weighing,
    group: Any,
    sampler: ModeSampler,
    *,
    n_chains: int,
    seed: int,
) -> Weighing:
    """Draw more from modes that matter and whose evidence is poorly known, and weigh again.

    A mode that few chains reached, or particles with few ancestors, has too few independent draws
    to be bridged. Chains started from those it has make more.

    Parameters
    ----------
    log_density : LogDensity
        See `weigh`.
    weighing : Weighing
    group
        See `weigh`.
    sampler : ModeSampler
    n_chains : int
        For each such mode.
    seed : int

    Returns
    -------
    Weighing
        ``weighing`` itself if nothing was to be done.

    Raises
    ------
    KeyboardInterrupt
        If the chains were interrupted.
    """
    for round_seed in spawn_seeds(seed, _ROUNDS):
        unsure = [k for k in _contenders(weighing) if not _is_known(weighing.estimates[k])]
        if not unsure:
            return weighing
        pool = weighing.pool
        for k, mode_seed in zip(unsure, spawn_seeds(round_seed, len(unsure)), strict=True):
            found = sampler(weighing, k, n_chains, seed=mode_seed)
            if found.stopped != "complete":
                raise KeyboardInterrupt
            pool = _with_chains(pool, found, weighing.modes.regions.domains[k])
        weighing = weigh(log_density, pool, group, generator=sampler.generator)
    return weighing


def _is_known(estimate: BridgeEstimate) -> bool:
    return estimate.std_error <= _WELL_KNOWN  # False for nan


def _contenders(weighing: Weighing) -> list[int]:
    """Modes that aren't hopeless, the highest first."""
    height = _heights(weighing.pool, weighing.modes)
    order: list[int] = height.argsort(descending=True, stable=True)[:_MOST_REFINED].tolist()
    return [k for k in order if height[k] >= height.max() - _HOPELESS]


def _heights(pool: Pool, modes: Modes) -> Tensor:
    """Mean log density of each mode's draws, (K,) nats."""
    return torch.stack([pool.values[modes.labels == k].mean() for k in range(len(modes.counts))])


def _with_chains(pool: Pool, run: ChainDraws, domain: FundamentalDomain) -> Pool:
    """The pool and these chains, on the domain's copy."""
    n_chains, n_draws, _ = run.draws.shape
    draws = domain.enter(torch.as_tensor(run.draws).flatten(0, 1).double())[0]
    names = 1 + int(pool.chains.max()) + torch.arange(n_chains)
    return Pool(
        torch.cat([pool.draws, draws]),
        torch.cat([pool.values, torch.as_tensor(run.log_density).flatten().double()]),
        torch.cat([pool.chains, names.repeat_interleave(n_draws)]),
        torch.cat([pool.sources, torch.zeros(len(draws), dtype=torch.int64)]),
    )
