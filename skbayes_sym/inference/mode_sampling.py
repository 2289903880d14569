"""Chains that stay in the modes they start in, to draw from them and to know their mass better.

They start from the draws that found a mode, with the covariance of the mode as the metric and
confined to one copy of it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.kernels.base import DiagonalPreconditioner, Kernel, Preconditioner
from skbayes_sym.inference.kernels.confined import ConfinedHMC
from skbayes_sym.inference.kernels.hmc import HMC
from skbayes_sym.inference.kernels.particle_alignment import (
    full_preconditioner,
    pooled_preconditioner,
)
from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.mcmc.adaptation import FixedPreconditioner
from skbayes_sym.inference.mcmc.blocks import Sampler
from skbayes_sym.inference.mcmc.chains import ChainDraws, sample_chains, start_blocks
from skbayes_sym.inference.multimodal.bridge import BridgeEstimate
from skbayes_sym.inference.multimodal.weights import (
    NEGLIGIBLE_DEFICIT_NATS,
    Pool,
    Weighing,
    mean_log_density_by_mode,
    weigh,
)
from skbayes_sym.numerics.optimise import OnStep
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain

_STEP_SIZE = 0.5  # where the search begins, in standard deviations of the mode

# Trajectories are short here, so shorter steps are cheap. Where a mode narrows, chains whose steps
# are all of one length stay for hundreds of moves, and one such chain costs most of the effective
# draws of 64 (sinusoidal data: 3,100 of 12,800 without jitter, 12,200 with). Steps adapt without
# jitter, which would only make them longer.
_WARM_UP = HMC(max_leapfrog=64)
_DRAWING = HMC(max_leapfrog=64, least_step=0.3)
_TARGET_ACCEPTANCE = 0.9
_FREE_THIN = 3  # times as many moves a draw where chains run free: they are less efficient

_MOST_LOST = 0.1  # of accepted proposals, at the boundary of a copy, that its metric is worth
_WELL_KNOWN = 0.3  # nats of error up to which a mode's evidence needs no further draws
_ROUNDS = 2  # of further draws
_MOST_REFINED = 8  # modes that get more, the highest: where none has enough draws, more won't do


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
    group : Trivial, Units or a Product of them
    plan : ModeRun
    like : Tensor
        Gives dtype and device of the chains.
    generator : torch.Generator
        Chooses the starts.

    Notes
    -----
    The metric is the full covariance of the mode's aligned draws, which is right for one copy of
    the mode only: chains are confined to it (`ConfinedHMC`). Where units overlap so much that the
    copy's boundary stops more than a tenth of the accepted proposals, chains run free instead,
    with scales pooled over coordinate orbits, which commute with the group.

    Either way the target is the whole posterior: chains may leave for another mode, if there is a
    way.
    """

    log_density: LogDensity
    group: SymmetryGroup
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
        confined: list[Kernel] = [ConfinedHMC(domain, hmc) for hmc in (_WARM_UP, _DRAWING)]
        warm = self._warm_up(
            confined[0], starts, full_preconditioner(own.to(self.like)), seed, on_step
        )
        kernel, thin = confined[1], self.plan.thin
        if _boundary_loss(warm) > _MOST_LOST:
            pooled = pooled_preconditioner(own, self.group)
            preconditioner = DiagonalPreconditioner(pooled.scale.to(self.like))
            warm = self._warm_up(_WARM_UP, starts, preconditioner, seed, on_step)
            kernel, thin = _DRAWING, _FREE_THIN * thin
        if not warm.complete:
            return warm
        return sample_chains(
            self._sampler(kernel), warm.blocks, n_warmup=0, n_draws=self.plan.n_draws,
            thin=thin, n_jobs=self.plan.n_jobs, on_step=on_step,
        )  # fmt: skip

    def _sampler(self, kernel: Kernel) -> Sampler:
        return Sampler(kernel, self.log_density, FixedPreconditioner(), _TARGET_ACCEPTANCE)

    def _warm_up(
        self,
        kernel: Kernel,
        starts: Tensor,
        preconditioner: Preconditioner,
        seed: int,
        on_step: OnStep | None,
    ) -> ChainDraws:
        size = self.plan.block_size
        blocks = start_blocks(
            starts, self.log_density, block_size=size, seed=seed, step_size=_STEP_SIZE,
            preconditioners=[preconditioner] * -(-len(starts) // size),
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
            if not found.complete:
                raise KeyboardInterrupt
            pool = _with_chains(pool, found, weighing.modes.regions.domains[k])
        weighing = weigh(log_density, pool, sampler.group, generator=sampler.generator)
    return weighing


def _is_known(estimate: BridgeEstimate) -> bool:
    return estimate.standard_error <= _WELL_KNOWN  # False for nan


def _contenders(weighing: Weighing) -> list[int]:
    """Modes that aren't hopeless, the highest first."""
    height = mean_log_density_by_mode(weighing.pool, weighing.modes)
    order: list[int] = height.argsort(descending=True, stable=True)[:_MOST_REFINED].tolist()
    return [k for k in order if height[k] >= height.max() - NEGLIGIBLE_DEFICIT_NATS]


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
