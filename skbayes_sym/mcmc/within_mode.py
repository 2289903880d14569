"""More draws of modes whose mass is poorly known, as far as an allowance of work goes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity
from skbayes_sym.mcmc.chains import (
    Block,
    ChainDraws,
    Sampler,
    sample_chains,
    start_blocks,
)
from skbayes_sym.mcmc.kernels import HMC
from skbayes_sym.mcmc.mode_evidence import (
    LEAST_WEIGHT,
    DrawPool,
    ModeWeighting,
    contending,
    mean_log_density_by_mode,
    weigh,
)
from skbayes_sym.mcmc.warmup import FixedPreconditioner
from skbayes_sym.numerics.linalg import cholesky, shrink_to_diagonal
from skbayes_sym.numerics.optimise import OnStep
from skbayes_sym.numerics.preconditioners import (
    DensePreconditioner,
    DiagonalPreconditioner,
    Preconditioner,
)
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.relabelling import orbit_mean

# What a call costs whatever it computes, in multiplications of the time it takes: a sixth of a
# millisecond at some 3 10^10 a second.
_CALL = 5e6

# What a move takes beside its gradients: momenta, energies, whether it stays in its copy; in calls.
A_MOVE = 8.0


@dataclass
class Allowance:
    """A sum that shrinks as gradients are made."""

    per_gradient: float  # multiplications of one chain's gradient: 6 N P for N rows and P weights
    left: float = inf  # below zero once overdrawn: what has begun is finished

    def work(self, n_calls: float, n_chains: float) -> float:
        """Multiplications of gradient calls of ``n_chains`` chains each."""
        return n_calls * (_CALL + n_chains * self.per_gradient)

    def move_cost(self, n_gradients: Tensor, n_moves: Tensor, block_size: int) -> float:
        """Multiplications of chains' gradients (C,) and moves (C,), made in blocks."""
        by_block = zip(n_gradients.split(block_size), n_moves.split(block_size), strict=True)
        n_calls = sum(float(made.max()) + A_MOVE * float(moves.max()) for made, moves in by_block)
        return self.work(n_calls, 0.0) + float(n_gradients.sum()) * self.per_gradient

    def part(self, share: float) -> float:
        """A share of what is left, at least 0."""
        return share * max(self.left, 0.0)


# Trajectories are short here, so shorter steps are cheap. Where a mode narrows, chains whose steps
# are all of one length stay for hundreds of moves, and one such chain costs most of the effective
# draws of 64 (sinusoidal data: 3,100 of 12,800 without jitter, 12,200 with). Steps adapt without
# jitter, which would only make them longer.
_WARM_UP = HMC(max_leapfrog=24)
_DRAWING = HMC(max_leapfrog=64, least_step=0.3)

_WITH_METRIC = 1.3  # what a gradient and two products with a full metric take, in gradients


class ModeRun(NamedTuple):
    """How chains are run in a mode."""

    n_warmup: int
    n_draws: int
    thin: int
    block_size: int
    n_jobs: int | None

    @property
    def n_calls(self) -> float:
        """Gradients that a chain takes, about, if it thins no further than it must: 12 a move."""
        return (_WITH_METRIC * 12 + A_MOVE) * (self.n_warmup + self.n_draws)


@dataclass(frozen=True, eq=False)
class ModeSampler:
    """Chains that start from draws of one mode, with the metric of that mode.

    The metric is the full covariance of the mode's aligned draws, which is right for one copy of
    the mode only: chains are confined to it (`HMC`). Where the copy's boundary stops more than a
    tenth of the accepted proposals, or there are fewer than two draws a parameter to know the
    covariance from, chains run free instead, with scales pooled over coordinate orbits. Either way
    the target is the whole posterior: chains may leave for another mode, if there is a way.
    """

    log_density: LogDensity  # in the precision and on the device that chains run with
    group: SymmetryGroup
    plan: ModeRun
    like: Tensor  # gives dtype and device of the chains
    generator: torch.Generator  # chooses the starts

    def __call__(
        self, weighing: ModeWeighting, k: int, n_chains: int, *, seed: int,
        allowance: Allowance | None = None, on_step: OnStep | None = None,
    ) -> ChainDraws:  # fmt: skip
        """Run ``n_chains`` chains in mode ``k``; ``on_step`` as in `sample_chains`.

        They thin, and trajectories are as long, as far as ``allowance`` goes; what they cost is
        taken off it.
        """
        domain = weighing.modes.regions.domains[k]
        draws = domain.enter(weighing.pool.draws[weighing.modes.labels == k])[0]
        chosen = torch.randperm(len(draws), generator=self.generator)
        starts = draws[chosen[torch.arange(n_chains) % len(draws)]].to(self.like)
        plan = self.plan
        allowance = allowance or Allowance(0.0)

        def run(kernel: HMC, blocks: Sequence[Block], **lengths: int) -> ChainDraws:
            """Run chains, and take what they cost off the allowance."""
            sampler = Sampler(kernel, self.log_density, FixedPreconditioner(), 0.9)
            made = sample_chains(sampler, blocks, n_jobs=plan.n_jobs, on_step=on_step, **lengths)
            work = _WITH_METRIC * (made.warmup.n_gradients + made.sampling.n_gradients).double()
            n_moves = made.warmup.n_moves + made.sampling.n_moves
            allowance.left -= allowance.move_cost(work, n_moves, plan.block_size)
            return made

        def warmed_up(kernel: HMC, preconditioner: Preconditioner) -> ChainDraws:
            blocks = start_blocks(
                starts, self.log_density, block_size=plan.block_size, seed=seed, step_size=0.5,
                preconditioners=[preconditioner] * -(-n_chains // plan.block_size),
            )  # fmt: skip
            return run(kernel, blocks, n_warmup=plan.n_warmup, n_draws=0)

        warm: ChainDraws | None = None
        thin = plan.thin
        is_confined = True
        if len(draws) >= 2 * draws.shape[1]:
            metric = full_preconditioner(draws.to(self.like))
            warm = warmed_up(replace(_WARM_UP, domain=domain), metric)
        if warm is None or (warm.complete and _boundary_loss(warm) > 0.1):
            scale = pooled_preconditioner(draws, self.group).scale.to(self.like)
            warm = warmed_up(_WARM_UP, DiagonalPreconditioner(scale))
            # free chains are less efficient
            thin = 3 * thin
            is_confined = False
        if not warm.complete:
            return warm
        thin, kernel = self._spaced(warm, thin, allowance)
        kernel = replace(kernel, domain=domain if is_confined else None)
        return run(kernel, warm.blocks, n_warmup=0, n_draws=plan.n_draws, thin=thin)

    def _spaced(self, warm: ChainDraws, thin: int, allowance: Allowance) -> tuple[int, HMC]:
        """Moves a draw, at most ``thin``, and the trajectories, by what the warm-up's cost.

        A mode that bends has steps a hundred times shorter than it is wide, whatever the metric.
        One long trajectory a draw, of 1,024 steps at most, is then worth many short ones of the
        same cost. A trajectory that is cut has three quarters of the most, on average.
        """
        made = float(warm.warmup.n_gradients.max())
        a_move = max(made / max(self.plan.n_warmup, 1), 1.0)
        n_chains = len(warm.n_draws)
        a_draw = allowance.left / (allowance.work(_WITH_METRIC, n_chains) * self.plan.n_draws)
        steps = torch.cat([block.step_size.double() for block in warm.blocks])
        whole = _DRAWING.mean_path / float(steps.median())
        if whole <= _WARM_UP.max_leapfrog:
            each = max(a_move, whole) + A_MOVE  # early moves of a warm-up may be shorter
            return max(1, int(min(thin, a_draw / each))), _DRAWING
        a_draw -= A_MOVE
        a_draw = min(a_draw, thin * (a_move if allowance.left == inf else whole))
        most = int(min(max(a_draw / 0.75, _WARM_UP.max_leapfrog), 1024))
        n_moves = a_draw / min(whole, 0.75 * most)
        return max(1, int(min(thin, n_moves))), replace(_DRAWING, max_leapfrog=most)


def pooled_preconditioner(
    aligned: Tensor,  # (N, D): one representative of each orbit
    group: SymmetryGroup,
) -> DiagonalPreconditioner:
    """Standard deviations pooled over coordinate orbits: no group element changes them."""
    return DiagonalPreconditioner(orbit_mean(_variance(aligned.double()), group).sqrt().to(aligned))


def full_preconditioner(aligned: Tensor) -> DensePreconditioner:
    """Cholesky factor of ``0.98 S + 0.02 diag S``, ``S`` the covariance of aligned draws."""
    x = aligned.double()
    centred = x - x.mean(dim=0)
    covariance = shrink_to_diagonal(centred.mT @ centred, 0.02) / len(x)
    covariance.diagonal().copy_(_variance(x))  # at least its floor
    factor = cholesky(
        covariance,
        name="The covariance of the draws",
        remedy="Standardize the data, or raise n_draws.",
    )
    return DensePreconditioner(factor.to(aligned))


def _variance(x: Tensor) -> Tensor:
    mean_square = x.square().mean(dim=0)
    least = 1e-12
    floor = least * mean_square.clamp_min(torch.finfo(x.dtype).tiny / least)
    return torch.maximum(x.var(dim=0, correction=0), floor)


def _boundary_loss(run: ChainDraws) -> float:
    """Share of proposals that the integrator would have had accepted and the boundary stopped."""
    tally = run.warmup
    return 1.0 - float(tally.n_accepted.sum()) / max(float(tally.acceptance.sum()), 1e-9)


def refine(
    log_density: LogDensity,
    weighing: ModeWeighting,
    sampler: ModeSampler,
    *,
    n_chains: int,  # for each such mode
    seed: int,
    # What it may cost: modes have their turns, the highest first, as long as it lasts. No end by
    # default.
    allowance: Allowance | None = None,
) -> ModeWeighting:
    """Draw more from modes that matter and whose evidence is poorly known, and weigh again.

    A mode that few chains reached has too few independent draws to be bridged. Chains started from
    those it has make more.

    ``weighing`` itself if nothing was to be done.
    """
    allowance = allowance or Allowance(0.0)
    for round_seed in spawn_seeds(seed, 2):
        pool = weighing.pool
        # The eight highest that aren't hopeless: where none has draws enough, more won't do.
        height = mean_log_density_by_mode(pool, weighing.modes)
        may_matter = contending(pool, weighing.modes)
        highest = height.argsort(descending=True, stable=True)[:8].tolist()
        unsure = [k for k in highest if may_matter[k] and _matters(weighing, k)]
        for k, mode_seed in zip(unsure, spawn_seeds(round_seed, len(unsure)), strict=True):
            # With a draw four of the proposal are compared, and each of them is entered in the
            # domain of every mode, by an assignment of some five microseconds.
            n_entered = n_chains * sampler.plan.n_draws * weighing.modes.regions.n_modes
            bridging = 6 * 1.5e5 * n_entered
            if allowance.work(sampler.plan.n_calls, n_chains) + bridging > allowance.left:
                break
            allowance.left -= bridging
            run = sampler(weighing, k, n_chains, seed=mode_seed, allowance=allowance)
            if not run.complete:
                raise KeyboardInterrupt
            domain = weighing.modes.regions.domains[k]
            draws = domain.enter(torch.as_tensor(run.draws).flatten(0, 1).double())[0]
            names = 1 + int(pool.chains.max()) + torch.arange(n_chains)
            new = (
                draws, torch.as_tensor(run.log_density).flatten().double(),
                names.repeat_interleave(run.draws.shape[1]),
            )  # fmt: skip
            pool = DrawPool(*(torch.cat(pair) for pair in zip(pool, new, strict=True)))
        if pool is weighing.pool:
            return weighing
        weighing = weigh(log_density, pool, sampler.group, generator=sampler.generator)
    return weighing


def _matters(weighing: ModeWeighting, k: int) -> bool:
    """Whether more draws of mode ``k`` can change the weights or the whole evidence."""
    value = weighing.estimates[k].log_evidence
    error = weighing.estimates[k].standard_error
    if error <= 0.3:  # False for nan
        return False
    highest = value + 3.0 * error - weighing.weights.log_evidence
    return not highest < log(LEAST_WEIGHT)  # True for nan
