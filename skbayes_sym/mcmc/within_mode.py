"""Chains within one mode: further draws for an uncertain evidence, within a compute budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    MIN_WEIGHT,
    DrawPool,
    ModeEvidence,
    estimate_mode_evidence,
    mean_log_density_by_mode,
    select_relevant_modes,
)
from skbayes_sym.mcmc.warmup import FixedPreconditioner
from skbayes_sym.numerics.linalg import cholesky, shrink_to_diagonal
from skbayes_sym.numerics.optimise import OnStep
from skbayes_sym.numerics.preconditioners import (
    DensePreconditioner,
    DiagonalPreconditioner,
    Preconditioner,
)
from skbayes_sym.numerics.progress import part_of_progress
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.relabelling import orbit_mean

# Overhead of a call to a gradient, in multiplications that take the same time: a sixth of a
# millisecond at about 3e10 multiplications per second.
_CALL_OVERHEAD = 5e6

# Cost of a move in addition to its gradients, in calls: momenta, energies, and the test whether the
# chain stays in its fundamental domain.
MOVE_OVERHEAD = 8.0


@dataclass
class ComputeBudget:
    """Number of multiplications that may be spent.

    Parameters
    ----------
    gradient_cost : float
        Multiplications per gradient of one chain: 6 N P for N rows and P weights.
    remaining : float, default=inf
        Multiplications left. It becomes negative when the last run exceeds the budget, because a
        run that has begun is completed.
    """

    gradient_cost: float
    remaining: float = inf

    def batch_cost(self, n_calls: float, n_chains: float) -> float:
        """Multiplications of ``n_calls`` gradient calls, each for ``n_chains`` chains."""
        return n_calls * (_CALL_OVERHEAD + n_chains * self.gradient_cost)

    def move_cost(self, n_gradients: Tensor, n_moves: Tensor, block_size: int) -> float:
        """Multiplications of moves made in blocks of chains.

        Parameters
        ----------
        n_gradients : Tensor of shape (C,)
            Gradients of each chain.
        n_moves : Tensor of shape (C,)
            Moves of each chain.
        block_size : int
            Chains per block. The longest chain of a block determines its number of calls.

        Returns
        -------
        float
        """
        n_calls = 0.0
        by_block = zip(n_gradients.split(block_size), n_moves.split(block_size), strict=True)
        for gradients, moves in by_block:
            n_calls += float(gradients.max()) + MOVE_OVERHEAD * float(moves.max())
        return self.batch_cost(n_calls, 0.0) + float(n_gradients.sum()) * self.gradient_cost

    def fraction(self, fraction: float) -> float:
        """Fraction of the remaining budget, at least 0."""
        return fraction * max(self.remaining, 0.0)


# Trajectories within a mode are short, so shorter steps are cheap. Where a mode narrows, chains
# with a constant step size stay for hundreds of moves, and one such chain costs most of the
# effective draws of 64: on the sinusoidal data 3,100 of 12,800 draws are effective without jitter
# and 12,200 with it. Step sizes are adapted without jitter, which would only make them longer.
_WARMUP_KERNEL = HMC(max_leapfrog=24)
_SAMPLING_KERNEL = HMC(max_leapfrog=64, min_step_factor=0.3)

# Cost of a gradient and two products with a dense preconditioner, in gradients.
_DENSE_GRADIENT_COST = 1.3


class ChainSettings(NamedTuple):
    """Settings of chains within a mode.

    Parameters
    ----------
    n_warmup : int
        Warm-up moves.
    n_draws : int
        Draws per chain.
    thin : int
        Most moves per draw.
    block_size : int
        Chains per block.
    n_jobs : int or None
        Number of processes.
    """

    n_warmup: int
    n_draws: int
    thin: int
    block_size: int
    n_jobs: int | None

    @property
    def n_calls(self) -> float:
        """Approximate number of calls per chain with minimal thinning, at 12 gradients per move."""
        return (_DENSE_GRADIENT_COST * 12 + MOVE_OVERHEAD) * (self.n_warmup + self.n_draws)


@dataclass(frozen=True, eq=False)
class ModeSampler:
    """Chains that start from draws of one mode, preconditioned by the mode's covariance.

    Parameters
    ----------
    log_density : LogDensity
        Log density in the precision and on the device of the chains.
    group : SymmetryGroup
        Trivial, Units or a product of them.
    settings : ChainSettings
        Length and distribution of the chains.
    like : Tensor
        Tensor with the dtype and device of the chains.
    generator : torch.Generator
        Random stream that selects the starting points.

    Notes
    -----
    The preconditioner is the dense covariance of the mode's aligned draws. It is valid for one copy
    of the mode only, so the chains are confined to the fundamental domain of that copy (`HMC`). If
    the boundary rejects more than a tenth of the proposals that would have been accepted, or there
    are fewer than two draws per parameter to estimate the covariance, chains run unconfined with
    scales pooled over coordinate orbits, which commute with the group. In both cases the target is
    the whole posterior, so chains may move to another mode.
    """

    log_density: LogDensity
    group: SymmetryGroup
    settings: ChainSettings
    like: Tensor
    generator: torch.Generator

    def sample_mode(
        self,
        evidence: ModeEvidence,
        mode: int,
        n_chains: int,
        *,
        seed: int,
        budget: ComputeBudget | None = None,
        on_step: OnStep | None = None,
    ) -> ChainDraws:
        """Run chains in one mode.

        Parameters
        ----------
        evidence : ModeEvidence
            Modes and their draws.
        mode : int
            Index of the mode.
        n_chains : int
            Number of chains.
        seed : int
            Seed of the chains.
        budget : ComputeBudget, optional
            Limits the thinning and the length of trajectories. It is reduced by the cost of
            the chains. Unlimited by default.
        on_step : callable (step, info) -> bool, optional
            Progress callback of `sample_chains`.

        Returns
        -------
        ChainDraws
            The draws of the warm-up, which are none, if it was stopped.
        """
        domain = evidence.modes.regions.domains[mode]
        is_in_mode = evidence.modes.labels == mode
        draws = domain.enter(evidence.pool.draws[is_in_mode])[0]
        order = torch.randperm(len(draws), generator=self.generator)
        starts = draws[order[torch.arange(n_chains) % len(draws)]].to(self.like)
        if budget is None:
            budget = ComputeBudget(0.0)

        run = partial(self._run_chains, budget, on_step)

        def warm_up(kernel: HMC, preconditioner: Preconditioner) -> ChainDraws:
            n_blocks = -(-n_chains // self.settings.block_size)
            blocks = start_blocks(
                starts,
                self.log_density,
                block_size=self.settings.block_size,
                seed=seed,
                step_size=0.5,
                preconditioners=[preconditioner] * n_blocks,
            )
            with part_of_progress(0.0, 0.5):
                return run(kernel, blocks, n_warmup=self.settings.n_warmup, n_draws=0)

        # Warm up in the fundamental domain, with the covariance of the mode.
        warm: ChainDraws | None = None
        chain_domain: FundamentalDomain | None = domain
        thin = self.settings.thin
        if len(draws) >= 2 * draws.shape[1]:
            preconditioner = fit_dense_preconditioner(draws.to(self.like))
            warm = warm_up(replace(_WARMUP_KERNEL, domain=domain), preconditioner)

        # Warm up without the domain if the boundary costs too much. These chains mix more slowly,
        # so they are thinned more.
        if warm is None or (warm.complete and _boundary_loss(warm) > 0.1):
            scale = fit_pooled_preconditioner(draws, self.group).scale.to(self.like)
            warm = warm_up(_WARMUP_KERNEL, DiagonalPreconditioner(scale))
            chain_domain = None
            thin = 3 * thin
        if not warm.complete:
            return warm

        thin, kernel = self._choose_thinning(warm, thin, budget)
        kernel = replace(kernel, domain=chain_domain)
        with part_of_progress(0.5, 1.0):
            return run(kernel, warm.blocks, n_warmup=0, n_draws=self.settings.n_draws, thin=thin)

    def _run_chains(
        self,
        budget: ComputeBudget,
        on_step: OnStep | None,
        kernel: HMC,
        blocks: Sequence[Block],
        **lengths: int,
    ) -> ChainDraws:
        """Run chains and reduce the budget by their cost.

        Parameters
        ----------
        budget : ComputeBudget
            Budget that is reduced.
        on_step : callable (step, info) -> bool, optional
            Progress callback of `sample_chains`.
        kernel : HMC
            Kernel of the chains.
        blocks : sequence of Block
            States of the chains.
        **lengths : int
            Numbers of moves, see `sample_chains`.

        Returns
        -------
        ChainDraws
        """
        sampler = Sampler(kernel, self.log_density, FixedPreconditioner(), 0.9)
        chains = sample_chains(
            sampler, blocks, n_jobs=self.settings.n_jobs, on_step=on_step, **lengths
        )
        n_gradients = (chains.warmup.n_gradients + chains.sampling.n_gradients).double()
        cost = _DENSE_GRADIENT_COST * n_gradients
        n_moves = chains.warmup.n_moves + chains.sampling.n_moves
        budget.remaining -= budget.move_cost(cost, n_moves, self.settings.block_size)
        return chains

    def _choose_thinning(
        self, warm: ChainDraws, max_thin: int, budget: ComputeBudget
    ) -> tuple[int, HMC]:
        """Choose moves per draw and the length of trajectories from the cost of the warm-up.

        In a curved mode, steps are up to a hundred times shorter than the mode is wide, whatever
        the preconditioner. One long trajectory per draw, of at most 1,024 steps, is then more
        effective than many short ones of the same cost. A truncated trajectory has three quarters
        of the maximum number of steps on average.

        Parameters
        ----------
        warm : ChainDraws
            Chains after their warm-up.
        max_thin : int
            Most moves per draw.
        budget : ComputeBudget
            Budget of the draws.

        Returns
        -------
        thin : int
            Moves per draw.
        kernel : HMC
            Kernel with the chosen maximum number of steps.
        """
        max_gradients = float(warm.warmup.n_gradients.max())
        gradients_per_move = max(max_gradients / max(self.settings.n_warmup, 1), 1.0)
        cost_per_call = budget.batch_cost(_DENSE_GRADIENT_COST, len(warm.n_draws))
        calls_per_draw = budget.remaining / (cost_per_call * self.settings.n_draws)
        step_sizes = torch.cat([block.step_size.double() for block in warm.blocks])
        full_length = _SAMPLING_KERNEL.mean_path / float(step_sizes.median())

        # Trajectories that fit into the maximum of the warm-up aren't truncated. Early moves of the
        # warm-up may have been shorter.
        if full_length <= _WARMUP_KERNEL.max_leapfrog:
            calls_per_move = max(gradients_per_move, full_length) + MOVE_OVERHEAD
            return max(1, int(min(max_thin, calls_per_draw / calls_per_move))), _SAMPLING_KERNEL

        # Otherwise make trajectories as long as the budget allows.
        steps_per_draw = calls_per_draw - MOVE_OVERHEAD
        if budget.remaining == inf:
            steps_per_move = gradients_per_move
        else:
            steps_per_move = full_length
        steps_per_draw = min(steps_per_draw, max_thin * steps_per_move)
        max_steps = int(min(max(steps_per_draw / 0.75, _WARMUP_KERNEL.max_leapfrog), 1024))
        n_moves = steps_per_draw / min(full_length, 0.75 * max_steps)
        kernel = replace(_SAMPLING_KERNEL, max_leapfrog=max_steps)
        return max(1, int(min(max_thin, n_moves))), kernel


def fit_pooled_preconditioner(aligned: Tensor, group: SymmetryGroup) -> DiagonalPreconditioner:
    """Fit standard deviations pooled over coordinate orbits, which commute with the group.

    Parameters
    ----------
    aligned : Tensor of shape (n, D)
        Draws, on one representative of each orbit.
    group : SymmetryGroup
        Symmetry of the density.

    Returns
    -------
    DiagonalPreconditioner
    """
    variance = orbit_mean(_floored_variance(aligned.double()), group)
    return DiagonalPreconditioner(variance.sqrt().to(aligned))


def fit_dense_preconditioner(aligned: Tensor) -> DensePreconditioner:
    """Fit the Cholesky factor of ``0.98 S + 0.02 diag(S)``, S the covariance of aligned draws.

    Parameters
    ----------
    aligned : Tensor of shape (n, D)
        Draws, on one representative of each orbit.

    Returns
    -------
    DensePreconditioner
    """
    x = aligned.double()
    centred = x - x.mean(dim=0)
    covariance = shrink_to_diagonal(centred.mT @ centred, 0.02) / len(x)
    covariance.diagonal().copy_(_floored_variance(x))
    factor = cholesky(
        covariance,
        name="The covariance of the draws",
        remedy="Standardize the data, or raise n_draws.",
    )
    return DensePreconditioner(factor.to(aligned))


def _floored_variance(x: Tensor) -> Tensor:
    """Variance of each column (n, D) -> (D,), at least 1e-12 of the mean square."""
    mean_square = x.square().mean(dim=0)
    relative_floor = 1e-12
    floor = relative_floor * mean_square.clamp_min(torch.finfo(x.dtype).tiny / relative_floor)
    return torch.maximum(x.var(dim=0, correction=0), floor)


def _boundary_loss(chains: ChainDraws) -> float:
    """Fraction of the proposals accepted by the integrator that the boundary rejected."""
    statistics = chains.warmup
    n_acceptable = max(float(statistics.acceptance.sum()), 1e-9)
    return 1.0 - float(statistics.n_accepted.sum()) / n_acceptable


def refine_evidence(
    log_density: LogDensity,
    evidence: ModeEvidence,
    sampler: ModeSampler,
    *,
    n_chains: int,
    seed: int,
    budget: ComputeBudget | None = None,
) -> ModeEvidence:
    """Add draws to modes whose evidence matters and is uncertain, and estimate it again.

    A mode that few chains reached has too few independent draws for bridge sampling. Chains that
    start from these draws make more.

    Parameters
    ----------
    log_density : LogDensity
        Log density in float64, on the CPU.
    evidence : ModeEvidence
        Modes and their evidence so far.
    sampler : ModeSampler
        Sampler of the further chains.
    n_chains : int
        Number of chains per refined mode.
    seed : int
        Seed of the chains.
    budget : ComputeBudget, optional
        Modes are refined from the highest down, as long as the budget lasts. It is reduced by
        the cost of this function. Unlimited by default.

    Returns
    -------
    ModeEvidence
        ``evidence`` itself if no mode was refined.

    Raises
    ------
    KeyboardInterrupt
        If sampling was stopped.
    """
    if budget is None:
        budget = ComputeBudget(0.0)
    for i, round_seed in enumerate(spawn_seeds(seed, 2)):
        pool = evidence.pool
        regions = evidence.modes.regions
        uncertain = _uncertain_modes(evidence)
        seeds = spawn_seeds(round_seed, len(uncertain))
        for k, (mode, mode_seed) in enumerate(zip(uncertain, seeds, strict=True)):
            # Each draw is compared with four draws of the proposal. Each of these enters the
            # domain of every mode, which solves an assignment problem in about five microseconds.
            n_entered = n_chains * sampler.settings.n_draws * regions.n_modes
            bridging_cost = 6 * 1.5e5 * n_entered
            sampling_cost = budget.batch_cost(sampler.settings.n_calls, n_chains)
            if sampling_cost + bridging_cost > budget.remaining:
                break
            budget.remaining -= bridging_cost
            # A round is half of the task, and its chains are four fifths of the round.
            start = 0.5 * i + 0.4 * k / len(uncertain)
            with part_of_progress(start, start + 0.4 / len(uncertain)):
                chains = sampler.sample_mode(
                    evidence, mode, n_chains, seed=mode_seed, budget=budget
                )
            if not chains.complete:
                raise KeyboardInterrupt

            # Add the draws to the pool, as new chains.
            positions = torch.as_tensor(chains.draws).flatten(0, 1).double()
            first_index = 1 + int(pool.chains.max())
            chain_index = first_index + torch.arange(n_chains)
            new = DrawPool(
                draws=regions.domains[mode].enter(positions)[0],
                values=torch.as_tensor(chains.log_density).flatten().double(),
                chains=chain_index.repeat_interleave(chains.draws.shape[1]),
            )
            pool = DrawPool(*(torch.cat(pair) for pair in zip(pool, new, strict=True)))
        if pool is evidence.pool:
            return evidence
        with part_of_progress(0.5 * i + 0.4, 0.5 * i + 0.5):
            evidence = estimate_mode_evidence(
                log_density, pool, sampler.group, generator=sampler.generator
            )
    return evidence


def _uncertain_modes(evidence: ModeEvidence) -> list[int]:
    """Modes whose evidence needs more draws, from the highest down.

    Only the eight highest are considered. If none of them has enough draws, refining more modes
    won't help.
    """
    mean_log_density = mean_log_density_by_mode(evidence.pool, evidence.modes)
    is_relevant = select_relevant_modes(evidence.pool, evidence.modes)
    highest = mean_log_density.argsort(descending=True, stable=True)[:8].tolist()
    return [k for k in highest if is_relevant[k] and _needs_refinement(evidence, k)]


def _needs_refinement(evidence: ModeEvidence, mode: int) -> bool:
    """Whether more draws of a mode can change the weights or the total evidence."""
    log_evidence = evidence.estimates[mode].log_evidence
    standard_error = evidence.estimates[mode].standard_error
    if standard_error <= 0.3:  # False for nan
        return False
    upper_bound = log_evidence + 3.0 * standard_error
    is_negligible = upper_bound - evidence.summary.log_evidence < log(MIN_WEIGHT)  # False for nan
    return not is_negligible
