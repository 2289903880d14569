"""Markov chains in blocks: warm-up, draws, and the collection of all results.

A block has its own random stream, pools scales and trajectory lengths only within itself, and
computes in one thread. Its draws are therefore the same in any process and on any machine. They
depend on the number of chains per block, which must therefore depend on the problem only.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import joblib
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity
from skbayes_sym.mcmc.annealing import BurnIn
from skbayes_sym.mcmc.kernels import HMC, Info, Kernel, State, initial_state
from skbayes_sym.mcmc.warmup import (
    DualAveraging,
    PreconditionerAdaptation,
    RunningMoments,
    Window,
    find_reasonable_step_size,
)
from skbayes_sym.numerics.optimise import Loop, OnStep, StopReason
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner, Preconditioner
from skbayes_sym.numerics.progress import current_receiver, report_progress
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.numerics.runtime import one_thread, run_parallel, to_host

# Moves of a block between two calls of on_step.
REPORT_EVERY = 5

Array = npt.NDArray[Any]


class Block(NamedTuple):
    """C chains that move as one batch, with everything their next move needs.

    Parameters
    ----------
    state : State
        Positions, log densities and gradients.
    step_size : Tensor of shape (C,)
        Step size of each chain.
    preconditioner : Preconditioner
        Coordinates in which the chains move.
    random_state : Tensor
        State of the block's random generator.
    """

    state: State
    step_size: Tensor
    preconditioner: Preconditioner
    random_state: Tensor


@dataclass(frozen=True, eq=False)
class Sampler:
    """Settings of chains, except for their starting points and lengths.

    Parameters
    ----------
    kernel : Kernel
        Markov kernel.
    log_density : LogDensity
        Log density that the chains sample.
    adaptation : PreconditionerAdaptation
        Adaptation of the preconditioners during warm-up.
    target_acceptance : float, default=0.8
        Mean acceptance probability to which the warm-up tunes each chain's step size.
    burn_in : BurnIn, optional
        Moves before the warm-up.
    """

    kernel: Kernel
    log_density: LogDensity
    adaptation: PreconditionerAdaptation
    target_acceptance: float = 0.8
    burn_in: BurnIn | None = None


class ChainStatistics(NamedTuple):
    """Counts and sums over the moves of C chains.

    Parameters
    ----------
    n_moves : Tensor of shape (C,), int64
        Number of moves.
    acceptance : Tensor of shape (C,), float64
        Sum of the acceptance probabilities.
    n_accepted : Tensor of shape (C,), int64
        Number of accepted proposals.
    n_divergent : Tensor of shape (C,), int64
        Number of divergent proposals.
    n_gradients : Tensor of shape (C,), int64
        Number of gradient evaluations.
    squared_error : Tensor of shape (C,), float64
        Sum of squared energy errors in nats squared; nan if the kernel has none.
    """

    n_moves: Tensor
    acceptance: Tensor
    n_accepted: Tensor
    n_divergent: Tensor
    n_gradients: Tensor
    squared_error: Tensor

    @classmethod
    def zeros(cls, n_chains: int, device: torch.device | str = "cpu") -> "ChainStatistics":
        """Statistics of ``n_chains`` chains before their first move."""
        count = torch.zeros(n_chains, dtype=torch.int64, device=device)
        total = count.double()
        return cls(count, total, count.clone(), count.clone(), count.clone(), total.clone())

    def add_(self, info: Info) -> None:
        """Add one move of every chain, in place."""
        self.n_moves.add_(1)
        self.acceptance.add_(_round_summand(info.acceptance))
        self.n_accepted.add_(info.accepted)
        self.n_divergent.add_(info.divergent)
        self.n_gradients.add_(info.n_gradients)
        if info.energy_error is None:
            self.squared_error.fill_(torch.nan)
        else:
            # Proposals with an error beyond 10 nats are practically always rejected.
            error = info.energy_error.double().nan_to_num(10.0, 10.0, 10.0).clamp(-10.0, 10.0)
            self.squared_error.add_(_round_summand(error.square()))

    @property
    def mean_acceptance(self) -> Tensor:
        """Mean acceptance probability, (C,); nan for chains without a move."""
        return self.acceptance / self.n_moves

    @property
    def energy_error(self) -> Tensor:
        """Root mean square energy error in nats, clipped at 10, (C,); nan if there is none."""
        return (self.squared_error / self.n_moves).sqrt()


def _round_summand(summand: Tensor) -> Tensor:
    """Round to multiples of 2^-30.

    Sums of up to 8e6 such numbers are exact, so they don't depend on how a run was divided.
    """
    return (summand.double() * 2.0**30).round_() / 2.0**30


class BlockDraws(NamedTuple):
    """Draws of one block and its final state.

    Parameters
    ----------
    draws : ndarray of shape (C, S, D)
        The S draws that were made.
    log_density : ndarray of shape (C, S)
        Log density of each draw in nats.
    block : Block
        Current state of the chains.
    warmup : ChainStatistics
        Statistics of the warm-up.
    sampling : ChainStatistics
        Statistics of the moves after the warm-up.
    stopped : StopReason
        "max_iter" after all moves.
    """

    draws: Array
    log_density: Array
    block: Block
    warmup: ChainStatistics
    sampling: ChainStatistics
    stopped: StopReason


def _summarise_progress(state: State, statistics: ChainStatistics) -> Tensor:
    """Mean log density, mean acceptance and number of divergent moves, (3,)."""
    summary = (
        state.value.mean(),
        statistics.mean_acceptance.mean(),
        statistics.n_divergent.sum(),
    )
    return torch.stack([value.double() for value in summary])


def _name_progress(summary: Tensor) -> Mapping[str, float]:
    """Dictionary of the values of `_summarise_progress`."""
    names = ("log_density", "acceptance", "n_divergent")
    return dict(zip(names, summary.tolist(), strict=True))


def run_block(
    sampler: Sampler,
    block: Block,
    *,
    n_warmup: int,
    n_draws: int,
    thin: int = 1,
    on_step: OnStep | None = None,
) -> BlockDraws:
    """Warm up one block of chains, then draw from it.

    Parameters
    ----------
    sampler : Sampler
        Settings of the chains.
    block : Block
        Starting points, left unchanged. With ``n_warmup=0`` the run that returned the block is
        continued, bit for bit as if it had not been interrupted.
    n_warmup : int
        Moves that adapt step sizes and preconditioner and are discarded.
    n_draws : int
        Number of draws per chain.
    thin : int, default=1
        Every ``thin``-th of ``n_draws * thin`` moves is a draw.
    on_step : callable (step, info) -> bool, optional
        Called every `REPORT_EVERY` moves with the number of moves made. True stops the run.

    Returns
    -------
    BlockDraws

    Notes
    -----
    A `KeyboardInterrupt` ends the run between two moves. It is reported in ``stopped`` instead of
    being raised, so that the caller can keep the draws.
    """
    runner = _BlockRunner(sampler, block, n_draws, on_step)
    with one_thread(), torch.no_grad(), Loop() as loop:
        try:
            runner.warm_up(n_warmup)
            runner.draw(n_draws, thin)
        except _StopRequested:
            loop.stop_if("callback", True)
    return runner.result(loop.stopped)


class _StopRequested(Exception):
    """Raised after ``on_step`` returned True."""


class _BlockRunner:
    """Moves the chains of one block.

    Draws stay on the device until progress is reported, so that a GPU is synchronised only every
    `REPORT_EVERY` moves.
    """

    def __init__(
        self, sampler: Sampler, block: Block, n_draws: int, on_step: OnStep | None
    ) -> None:
        """Allocate the draws.

        Parameters
        ----------
        sampler : Sampler
            Settings of the chains.
        block : Block
            Starting points.
        n_draws : int
            Number of draws per chain.
        on_step : callable (step, info) -> bool or None
            Progress callback.
        """
        self._sampler = sampler
        self._on_step = on_step
        self._state, self._step_size, self._preconditioner, random_state = block
        position = block.state.position
        self._generator = torch.Generator(device=position.device)
        self._generator.set_state(random_state)
        n_chains, n_dims = position.shape
        self._warmup = ChainStatistics.zeros(n_chains, position.device)
        self._sampling = ChainStatistics.zeros(n_chains, position.device)
        numpy_dtype = torch.empty(0, dtype=position.dtype).numpy().dtype
        self._draws = np.empty((n_chains, n_draws, n_dims), numpy_dtype)
        self._log_density = np.empty((n_chains, n_draws), numpy_dtype)
        self._pending: dict[int, Tensor] = {}  # draws and log densities that are on the device
        self._n_draws = 0
        self._n_moves = 0
        self._n_reported = 0

    def warm_up(self, n_warmup: int) -> None:
        """Run the burn-in, if any, and the windows of the adaptation."""
        sampler = self._sampler
        if n_warmup and sampler.burn_in is not None:
            self._burn_in(sampler.burn_in)
        for window in sampler.adaptation.windows(n_warmup):
            self._run_window(window)

    def _run_window(self, window: Window) -> None:
        """Adapt the step sizes, and at the end of the window the preconditioner."""
        sampler = self._sampler
        self._step_size, n_gradients = find_reasonable_step_size(
            self._state,
            sampler.log_density,
            step_size=self._step_size,
            preconditioner=self._preconditioner,
            generator=self._generator,
            target=sampler.target_acceptance,
        )
        self._warmup.n_gradients.add_(n_gradients)
        averaging = DualAveraging.start(self._step_size)
        moments = RunningMoments.empty(self._state.position)
        for _ in range(window.n_moves):
            info = self._move()
            self._record_warmup_move(self._state, info)
            averaging = averaging.update(info.acceptance, sampler.target_acceptance)
            self._step_size = averaging.log_step_size.exp().to(self._step_size)
            if window.learns_scale:
                moments = moments.add(self._state.position)
        self._step_size = averaging.log_average.exp().to(self._step_size)
        if window.learns_scale:
            self._preconditioner = sampler.adaptation.fit(
                self._preconditioner, moments, self._state.position
            )

    def _burn_in(self, burn_in: BurnIn) -> None:
        """Run the burn-in. If it is stopped, return to the sampled density and its precision."""
        initial_position = self._state.position
        density = self._sampler.log_density
        try:
            result = burn_in.run(
                self._state,
                density,
                self._sampler.adaptation,
                generator=self._generator,
                on_move=self._record_warmup_move,
            )
        except BaseException:
            position = self._state.position.to(initial_position)
            self._state = initial_state(position, density)
            raise
        self._state = result.state
        self._preconditioner = result.preconditioner
        self._step_size = result.step_size.to(self._step_size)

    def _record_warmup_move(self, state: State, info: Info) -> None:
        """Record a move of the warm-up and report progress if it is due."""
        self._state = state
        self._record_move(self._warmup, info)
        if self._is_report_due:
            self._report(_summarise_progress(self._state, self._warmup))

    def draw(self, n_draws: int, thin: int) -> None:
        """Make ``n_draws`` draws with ``thin`` moves each."""
        kernel = self._sampler.kernel
        n_moves = n_draws * thin
        n_steps = {}
        # Step sizes are constant now, so a GPU is synchronised only once for their median.
        median_step_size = float(self._step_size.median())
        for move in range(n_moves):
            if isinstance(kernel, HMC):
                n_steps = {"n_steps": kernel.choose_n_steps(median_step_size, self._generator)}
            self._record_move(self._sampling, self._move(**n_steps))
            if (move + 1) % thin == 0:
                position, value, _ = self._state
                draw = torch.cat([position, value.unsqueeze(1).to(position)], 1)
                self._pending[move // thin] = draw
                self._n_draws += 1
            if (move + 1) % REPORT_EVERY == 0 or move + 1 == n_moves:
                summaries = []
                if self._is_report_due:
                    summaries.append(_summarise_progress(self._state, self._sampling))
                for summary in self._transfer(*summaries):
                    self._report(summary)

    def _transfer(self, *tensors: Tensor) -> list[Tensor]:
        """Move pending draws and further tensors to the host, with one synchronisation."""
        if not self._pending:
            return to_host(tensors)
        pending, *on_host = to_host([torch.stack([*self._pending.values()], 1), *tensors])
        index = [*self._pending]
        draws = pending.numpy()
        self._draws[:, index] = draws[..., :-1]
        self._log_density[:, index] = draws[..., -1]
        self._pending = {}
        return on_host

    def _move(self, **n_steps: int) -> Info:
        """Move every chain once."""
        self._state, info = self._sampler.kernel.step(
            self._state,
            self._sampler.log_density,
            step_size=self._step_size,
            preconditioner=self._preconditioner,
            generator=self._generator,
            **n_steps,
        )
        return info

    def _record_move(self, statistics: ChainStatistics, info: Info) -> None:
        """Add a move to the statistics."""
        statistics.add_(info)
        self._n_moves += 1

    @property
    def _is_report_due(self) -> bool:
        return self._on_step is not None and self._n_moves - self._n_reported >= REPORT_EVERY

    def _report(self, summary: Tensor) -> None:
        """Report progress to ``on_step``."""
        self._n_reported = self._n_moves
        if self._on_step is not None and self._on_step(self._n_moves, _name_progress(summary)):
            raise _StopRequested

    def result(self, stopped: StopReason) -> BlockDraws:
        """Draws made so far."""
        statistics = self._transfer(*self._warmup, *self._sampling)
        n_warmup_fields = len(self._warmup)
        block = Block(
            self._state, self._step_size, self._preconditioner, self._generator.get_state()
        )
        return BlockDraws(
            self._draws[:, : self._n_draws],
            self._log_density[:, : self._n_draws],
            block,
            ChainStatistics(*statistics[:n_warmup_fields]),
            ChainStatistics(*statistics[n_warmup_fields:]),
            stopped,
        )


@dataclass(frozen=True, eq=False)
class ChainDraws:
    """Draws of all chains. Draws that a chain didn't make are nan.

    Parameters
    ----------
    draws : ndarray of shape (C, S, D)
        Draws on the host, in the dtype of the positions.
    log_density : ndarray of shape (C, S)
        Log density of each draw in nats.
    n_draws : ndarray of shape (C,), int64
        Number of draws that each chain made: S unless the run was stopped.
    warmup : ChainStatistics
        Statistics of the warm-up, on the host.
    sampling : ChainStatistics
        Statistics of the moves after the warm-up, on the host.
    blocks : list of Block
        Current state of the chains, from which `sample_chains` can continue.
    stopped : StopReason
        "max_iter" if every chain made all its draws.
    """

    draws: Array
    log_density: Array
    n_draws: npt.NDArray[np.int64]
    warmup: ChainStatistics
    sampling: ChainStatistics
    blocks: list[Block]
    stopped: StopReason

    @property
    def complete(self) -> bool:
        """Whether every chain made all its draws."""
        return self.stopped == "max_iter"

    @property
    def stuck(self) -> npt.NDArray[np.bool_]:
        """Whether each chain rejected all its proposals after the warm-up, (C,)."""
        has_moves = self.sampling.n_moves > 0
        has_accepted = self.sampling.n_accepted > 0
        return (has_moves & ~has_accepted).numpy()


def start_blocks(
    position: Tensor,
    log_density: LogDensity,
    *,
    block_size: int,
    seed: int,
    step_size: float = 0.1,
    preconditioners: Sequence[Preconditioner] | None = None,
) -> list[Block]:
    """Divide chains into blocks with independent random streams.

    Parameters
    ----------
    position : Tensor of shape (C, D)
        Starting points.
    log_density : LogDensity
        Log density that the chains sample.
    block_size : int
        Chains per block. The draws depend on it, so it must depend on the problem only, never on
        the machine or the number of jobs.
    seed : int
        Seed of the random streams.
    step_size : float, default=0.1
        Initial value of the search for a step size. Without warm-up it is used as it is.
    preconditioners : sequence of Preconditioner, optional
        One per block; the identity by default.

    Returns
    -------
    list of Block

    Raises
    ------
    ValueError
        If the log density or its gradient is not finite at a starting point.
    """
    parts = [part.clone() for part in position.split(block_size)]
    with one_thread(), torch.no_grad():
        states = [initial_state(part, log_density) for part in parts]
    is_finite = torch.cat([s.value.isfinite() & s.gradient.isfinite().all(1) for s in states])
    if not bool(is_finite.all()):
        bad = (~is_finite).nonzero().flatten().tolist()
        listed = ", ".join(map(str, bad[:10]))
        if len(bad) > 10:
            listed += ", ..."
        raise ValueError(
            f"the log density or its gradient is not finite at the start of {len(bad)} of "
            f"{len(is_finite)} chains (number {listed}): check the data for extreme values, "
            "standardize them, start the chains nearer to the bulk of the prior or give X as "
            "float64."
        )
    if preconditioners is None:
        preconditioners = [DiagonalPreconditioner(torch.ones_like(part)) for part in parts]
    seeds = spawn_seeds(seed, len(parts))
    return [
        Block(
            state,
            torch.full_like(state.value, step_size, dtype=position.dtype),
            preconditioner,
            generator_from(block_seed, position.device).get_state(),
        )
        for state, preconditioner, block_seed in zip(states, preconditioners, seeds, strict=True)
    ]


def sample_chains(
    sampler: Sampler,
    blocks: Sequence[Block],
    *,
    n_warmup: int,
    n_draws: int,
    thin: int = 1,
    n_jobs: int | None = None,
    on_step: OnStep | None = None,
) -> ChainDraws:
    """Run blocks of chains, sequentially or in parallel.

    Parameters
    ----------
    sampler : Sampler
        Settings of the chains.
    blocks : sequence of Block
        From `start_blocks`, or the ``blocks`` of an earlier run to continue it.
    n_warmup : int
        Warm-up moves per chain.
    n_draws : int
        Draws per chain.
    thin : int, default=1
        Moves per draw.
    n_jobs : int, optional
        Number of joblib jobs. `joblib.parallel_config` chooses the backend. The draws depend on
        neither.
    on_step : callable (step, info) -> bool, optional
        Progress callback, where ``step`` counts moves of blocks, ``len(blocks) * (n_warmup +
        n_draws * thin)`` in total. It is called every few moves with one job, and after each block
        with several. True stops the run. By default the moves are reported to the surrounding
        task, which can't stop the run.

    Returns
    -------
    ChainDraws
        After a stop or a `KeyboardInterrupt`, which is reported and not raised, all chains have
        about as many draws if there is one job. With several jobs, finished blocks have all their
        draws and the others none.

    Notes
    -----
    C chains of S draws take ``C S (D + 1)`` numbers on the host. Other processes receive a copy of
    ``sampler`` and of their block.
    """
    if on_step is None and current_receiver() is not None:
        on_step = partial(_report_moves, len(blocks) * (n_warmup + n_draws * thin))
    jobs = [_BlockJob(sampler, i, block, n_warmup, n_draws, thin) for i, block in enumerate(blocks)]
    collector = _DrawCollector(blocks, n_draws)
    with collector.loop:
        if len(blocks) == 1 or joblib.effective_n_jobs(n_jobs) == 1:
            _alternate_blocks(jobs, collector, on_step)
        else:
            with closing(run_parallel(jobs, n_jobs)) as finished:
                for index, part in collector.loop.steps(finished):
                    collector.add(index, part)
                    if on_step is not None:
                        summary = _summarise_progress(part.block.state, part.sampling)
                        should_stop = on_step(collector.n_moves, _name_progress(summary))
                        collector.loop.stop_if("callback", should_stop)
    return collector.result()


def _report_moves(n_moves: int, step: int, _info: Mapping[str, float]) -> bool:
    """Report that ``step`` of ``n_moves`` moves of blocks were made, and continue."""
    report_progress(step, n_moves)
    return False


@dataclass(frozen=True, eq=False)
class _BlockJob:
    """Task for `run_parallel` that runs one block.

    Parameters
    ----------
    sampler : Sampler
        Settings of the chains.
    index : int
        Position of the block in the list of all blocks.
    block : Block
        Starting points.
    n_warmup : int
        Warm-up moves per chain.
    n_draws : int
        Draws per chain.
    thin : int
        Moves per draw.
    """

    sampler: Sampler
    index: int
    block: Block
    n_warmup: int
    n_draws: int
    thin: int

    def __call__(self, on_step: OnStep | None = None) -> tuple[int, BlockDraws]:
        """Run the block; return its index and draws."""
        draws = run_block(
            self.sampler,
            self.block,
            n_warmup=self.n_warmup,
            n_draws=self.n_draws,
            thin=self.thin,
            on_step=on_step,
        )
        return self.index, draws


class _DrawCollector:
    """Collects the draws and statistics of all blocks."""

    def __init__(self, blocks: Sequence[Block], n_draws: int) -> None:
        self.blocks = list(blocks)
        self.loop = Loop()
        offsets = block_offsets(blocks)
        n_chains = offsets[-1]
        self._chains = [slice(*pair) for pair in pairwise(offsets)]
        position = blocks[0].state.position
        self._shape = n_chains, n_draws, position.shape[1]
        self._dtype = torch.empty(0, dtype=position.dtype).numpy().dtype
        self._arrays: tuple[Array, Array] | None = None  # allocated with the first draws
        self._n_draws = np.zeros(n_chains, np.int64)
        self._warmup = ChainStatistics.zeros(n_chains)
        self._sampling = ChainStatistics.zeros(n_chains)

    @property
    def n_moves(self) -> int:
        """Total number of moves of the blocks."""
        first_chains = [chains.start for chains in self._chains]
        n_moves = self._warmup.n_moves[first_chains].sum()
        return int(n_moves + self._sampling.n_moves[first_chains].sum())

    def add(self, index: int, part: BlockDraws) -> None:
        """Append further draws of block ``index``."""
        chains = self._chains[index]
        n_new = part.draws.shape[1]
        if part.draws.shape == self._shape:
            # A single block has made all draws of all chains: use its arrays without a copy.
            self._arrays = part.draws, part.log_density
        else:
            self._arrays = self._arrays or self._make_empty_arrays()
            draws, log_density = self._arrays
            start = self._n_draws[chains.start]
            draws[chains, start : start + n_new] = part.draws
            log_density[chains, start : start + n_new] = part.log_density
        self._n_draws[chains] += n_new
        self.blocks[index] = part.block
        for total, new in zip(self._warmup, part.warmup, strict=True):
            total[chains].add_(new)
        for total, new in zip(self._sampling, part.sampling, strict=True):
            total[chains].add_(new)
        self.loop.stop_if(part.stopped, part.stopped != "max_iter")

    def _make_empty_arrays(self) -> tuple[Array, Array]:
        """Arrays of draws and log densities, filled with nan."""
        draws = np.full(self._shape, np.nan, self._dtype)
        return draws, np.full(self._shape[:2], np.nan, self._dtype)

    def result(self) -> ChainDraws:
        """Draws of all chains."""
        draws, log_density = self._arrays or self._make_empty_arrays()
        return ChainDraws(
            draws,
            log_density,
            self._n_draws,
            self._warmup,
            self._sampling,
            self.blocks,
            self.loop.stopped,
        )


def block_offsets(blocks: Sequence[Block]) -> list[int]:
    """Index of each block's first chain, followed by the number of all chains."""
    return [0, *np.cumsum([len(block.step_size) for block in blocks]).tolist()]


def _alternate_blocks(
    jobs: Sequence[_BlockJob], collector: _DrawCollector, on_step: OnStep | None
) -> None:
    """Warm up the blocks one after the other, then let them take turns of a few draws.

    After an interrupt all chains have about the same length. A single block, as on a GPU, runs
    without turns.
    """
    if len(jobs) == 1:
        collector.add(*jobs[0](on_step))
        return
    n_draws = jobs[0].n_draws
    draws_per_round = 10
    rounds = [(jobs[0].n_warmup, 0)]
    for start in range(0, n_draws, draws_per_round):
        rounds.append((0, min(draws_per_round, n_draws - start)))
    for n_warmup, n_new in rounds:
        for job in jobs:
            block = collector.blocks[job.index]
            round_job = replace(job, block=block, n_warmup=n_warmup, n_draws=n_new)
            shifted = on_step and partial(_shift_step, on_step, collector.n_moves)
            collector.add(*round_job(shifted))
            if collector.loop.stopped != "max_iter":
                return


def _shift_step(on_step: OnStep, n_moves: int, step: int, info: Mapping[str, float]) -> bool:
    """Call ``on_step`` for a run that began after ``n_moves`` moves.

    Parameters
    ----------
    on_step : callable (step, info) -> bool
        Progress callback.
    n_moves : int
        Moves before the run.
    step : int
        Moves of the run.
    info : mapping of str to float
        Progress of the run.

    Returns
    -------
    bool
        Whether to stop.
    """
    return on_step(n_moves + step, info)


def retune_chains(
    sampler: Sampler,
    chains: ChainDraws,
    *,
    min_acceptance: float,
    n_warmup: int,
    thin: int = 1,
    n_jobs: int | None = None,
    on_step: OnStep | None = None,
) -> ChainDraws:
    """Warm up blocks with a low acceptance again and repeat their draws, at most three times.

    Parameters
    ----------
    sampler : Sampler
        Settings that made the draws, without burn-in.
    chains : ChainDraws
        Draws so far. They are returned unchanged if every chain accepted enough or sampling was
        stopped, and kept if the further warm-up is stopped.
    min_acceptance : float
        Mean acceptance probability of a chain below which its block is retuned.
    n_warmup : int
        Moves of each further warm-up. It aims at half the rejection rate of the one before.
    thin : int, default=1
        Moves per draw.
    n_jobs : int, optional
        Number of joblib jobs.
    on_step : callable (step, info) -> bool, optional
        Progress callback of `sample_chains`.

    Returns
    -------
    ChainDraws
        The statistics count replaced draws as warm-up.
    """
    for _ in range(3):
        is_low = chains.sampling.mean_acceptance < min_acceptance
        offsets = block_offsets(chains.blocks)
        low_blocks = [i for i, (a, b) in enumerate(pairwise(offsets)) if bool(is_low[a:b].any())]
        if not chains.complete or not low_blocks:
            return chains

        # Repeat the blocks at a higher target acceptance.
        target_acceptance = 1.0 - 0.5 * (1.0 - sampler.target_acceptance)
        sampler = replace(sampler, target_acceptance=target_acceptance)
        repeated = sample_chains(
            sampler,
            [chains.blocks[i] for i in low_blocks],
            n_warmup=n_warmup,
            n_draws=chains.draws.shape[1],
            thin=thin,
            n_jobs=n_jobs,
            on_step=on_step,
        )
        if not repeated.complete:
            return replace(chains, stopped=repeated.stopped)

        # Replace their draws, states and statistics.
        index = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in low_blocks])
        draws = chains.draws.copy()
        draws[index] = repeated.draws
        log_density = chains.log_density.copy()
        log_density[index] = repeated.log_density
        blocks = list(chains.blocks)
        for i, block in zip(low_blocks, repeated.blocks, strict=True):
            blocks[i] = block
        warmup = ChainStatistics(*(total.clone() for total in chains.warmup))
        for total, replaced, new in zip(warmup, chains.sampling, repeated.warmup, strict=True):
            total[index] += replaced[index] + new
        sampling = ChainStatistics(*(total.clone() for total in chains.sampling))
        for total, new in zip(sampling, repeated.sampling, strict=True):
            total[index] = new
        chains = ChainDraws(
            draws, log_density, chains.n_draws, warmup, sampling, blocks, chains.stopped
        )
    return chains
