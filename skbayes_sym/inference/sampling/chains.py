"""Many chains: divided into blocks that can run anywhere, and put together again.

What a block draws doesn't depend on where, when or beside what it runs (see `run_block`), so the
number of jobs, the backend and the loss of a machine change nothing. The number of chains a block
does, and must therefore depend on the problem only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import joblib
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.sampling.blocks import (
    Array,
    Block,
    BlockDraws,
    Sampler,
    Tally,
    figures_of,
    run_block,
)
from skbayes_sym.inference.sampling.kernels.kernel import (
    DiagonalPreconditioner,
    Preconditioner,
    State,
    initial_state,
)
from skbayes_sym.numerics.machine import closing, one_thread
from skbayes_sym.numerics.optimise import Loop, OnStep, Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds


@dataclass(frozen=True, eq=False)
class ChainDraws:
    """Draws of all chains; where a chain made fewer than the others, the rest is nan."""

    draws: Array  # (C, S, D): on the host, in the dtype of the positions
    log_density: Array  # (C, S): nats
    # (C,), int64: draws that each chain made: all S of them unless the run was cut short.
    n_draws: npt.NDArray[np.int64]
    warmup: Tally  # on the host
    sampling: Tally
    blocks: list[Block]  # what another `sample_chains` continues from
    stopped: Stopped  # "max_iter" if every chain made all its draws

    @property
    def complete(self) -> bool:
        """Every chain made all its draws."""
        return self.stopped == "max_iter"

    @property
    def stuck(self) -> npt.NDArray[np.bool_]:
        """(C,): chains whose draws are all the same point: no move was accepted."""
        made, moved = self.sampling.n_moves > 0, self.sampling.n_accepted > 0
        return (made & ~moved).numpy()


def start_blocks(
    position: Tensor,  # (C, D)
    log_density: LogDensity,
    *,
    # Chains a block. Draws depend on it, so it must depend on the problem only: never on the
    # machine or the number of jobs.
    block_size: int,
    seed: int,
    # Where the search for a step size begins; used as it is without warm-up.
    step_size: float = 0.1,
    preconditioners: Sequence[Preconditioner] | None = None,  # one a block; the identity by default
) -> list[Block]:
    """Divide chains into blocks, each with a random stream of its own."""
    parts = [part.clone() for part in position.split(block_size)]
    with one_thread(), torch.no_grad():
        states = [initial_state(part, log_density) for part in parts]
    _check_finite(states)
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


def _check_finite(states: Sequence[State]) -> None:
    finite = torch.cat([s.value.isfinite() & s.gradient.isfinite().all(1) for s in states])
    if bool(finite.all()):
        return
    bad = (~finite).nonzero().flatten().tolist()
    named = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
    raise ValueError(
        f"the log density or its gradient is not finite at the start of {len(bad)} of "
        f"{len(finite)} chains (number {named}): check the data for extreme values, standardize "
        "them, start the chains nearer to the bulk of the prior or give X as float64."
    )


def sample_chains(
    sampler: Sampler,
    # From `start_blocks`, or the ``blocks`` of an earlier run to go on with.
    blocks: Sequence[Block],
    *,
    n_warmup: int,
    n_draws: int,
    thin: int = 1,
    # As joblib has it; `joblib.parallel_config` chooses the backend. The draws don't depend on
    # either.
    n_jobs: int | None = None,
    # (step, info) -> bool: ``step`` counts moves of blocks, ``len(blocks) * (n_warmup + n_draws *
    # thin)`` in all. Called every few moves with one job, when a block is finished with several;
    # True stops.
    on_step: OnStep | None = None,
) -> ChainDraws:
    """Run blocks of chains, in turn or side by side.

    After a stop or a `KeyboardInterrupt` (reported, not raised: the caller decides what to
    keep): with one job, the blocks were warmed up one after another, then drew in turns, so
    that all chains have about as many draws; with several, the blocks that were finished have
    all their draws and the others none.

    Memory on the host: ``C S (D + 1)`` numbers for C chains of S draws; on the device, what one
    block's gradient needs, times the number of jobs. Processes other than this one get a copy of
    ``sampler`` and of their block.
    """
    run = _Run(sampler, n_warmup, n_draws, thin)
    gathered = _Gathered(blocks, n_draws)
    with gathered.loop:
        if len(blocks) == 1 or joblib.effective_n_jobs(n_jobs) == 1:
            _in_turn(run, gathered, on_step)
        else:
            _side_by_side(run, gathered, on_step, n_jobs)
    return gathered.result()


@dataclass(frozen=True, eq=False)
class _Run:
    """Run any block. Jobs are objects, not functions of arrays: Dask would hand those to
    one worker, and a worker that is lost could not be replaced."""

    sampler: Sampler
    n_warmup: int
    n_draws: int
    thin: int

    def __call__(self, block: Block, on_step: OnStep | None = None) -> BlockDraws:
        return run_block(
            self.sampler, block, n_warmup=self.n_warmup, n_draws=self.n_draws, thin=self.thin,
            on_step=on_step,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Job:
    run: _Run
    index: int
    block: Block

    def __call__(self) -> tuple[int, BlockDraws]:
        return self.index, self.run(self.block)


class _Gathered:
    """All chains' results so far."""

    def __init__(self, blocks: Sequence[Block], n_draws: int) -> None:
        self.blocks, self.loop = list(blocks), Loop()
        ends = block_ends(blocks)
        self._chains = [slice(*pair) for pair in pairwise(ends)]
        position = blocks[0].state.position
        self._shape = ends[-1], n_draws, position.shape[1]
        self._dtype = torch.empty(0, dtype=position.dtype).numpy().dtype
        self._arrays: tuple[Array, Array] | None = None  # once anything is drawn
        self._n_draws = np.zeros(ends[-1], np.int64)
        self._tallies = Tally.zeros(ends[-1]), Tally.zeros(ends[-1])  # of warm-up and sampling

    @property
    def n_moves(self) -> int:
        """Moves of blocks made so far."""
        firsts = [chains.start for chains in self._chains]
        return int(sum(tally.n_moves[firsts].sum() for tally in self._tallies))

    def add(self, index: int, part: BlockDraws) -> None:
        """Append what block ``index`` did next."""
        chains, made = self._chains[index], part.draws.shape[1]
        if part.draws.shape == self._shape:
            self._arrays = part.draws, part.log_density
        else:
            self._arrays = self._arrays or self._nothing()
            start = self._n_draws[chains.start]
            for whole, new in zip(self._arrays, (part.draws, part.log_density), strict=True):
                whole[chains, start : start + made] = new
        self._n_draws[chains] += made
        self.blocks[index] = part.block
        for total, tally in zip(self._tallies, (part.warmup, part.sampling), strict=True):
            for mine, its in zip(total, tally, strict=True):
                mine[chains].add_(its)
        self.loop.stop_if(part.stopped, part.stopped != "max_iter")

    def _nothing(self) -> tuple[Array, Array]:
        """Draws and log densities that nobody has made yet."""
        draws = np.full(self._shape, np.nan, self._dtype)
        return draws, np.full(self._shape[:2], np.nan, self._dtype)

    def result(self) -> ChainDraws:
        arrays = self._arrays or self._nothing()
        return ChainDraws(*arrays, self._n_draws, *self._tallies, self.blocks, self.loop.stopped)


def block_ends(blocks: Sequence[Block]) -> list[int]:
    """Numbers of the chains that blocks begin with, and of all chains."""
    return [0, *np.cumsum([len(block.step_size) for block in blocks]).tolist()]


def _in_turn(run: _Run, gathered: _Gathered, on_step: OnStep | None) -> None:
    """Warm up block after block, then let each make a few draws at a time.

    A single one, as on a GPU, does it all at once. An interrupt finds all chains about as long.
    """
    if len(gathered.blocks) == 1:
        gathered.add(0, run(gathered.blocks[0], on_step))
        return
    rounds, turn = [replace(run, n_draws=0)], 10
    for start in range(0, run.n_draws, turn):
        rounds.append(replace(run, n_warmup=0, n_draws=min(turn, run.n_draws - start)))
    for part in rounds:
        for index, block in enumerate(gathered.blocks):
            gathered.add(index, part(block, _after(gathered.n_moves, on_step)))
            if gathered.loop.stopped != "max_iter":
                return


def _after(n_moves: int, on_step: OnStep | None) -> OnStep | None:
    """``on_step`` for a run that begins after ``n_moves`` moves."""
    if on_step is None:
        return None
    return lambda step, info: on_step(n_moves + step, info)


def _side_by_side(
    run: _Run, gathered: _Gathered, on_step: OnStep | None, n_jobs: int | None
) -> None:
    """Hand each block to joblib as one job; results come as they finish."""
    jobs = (
        joblib.delayed(_Job(run, index, block))() for index, block in enumerate(gathered.blocks)
    )
    parallel = joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")
    with closing(parallel(jobs)) as finished:
        for index, part in gathered.loop.steps(finished):
            gathered.add(index, part)
            if on_step is not None:
                gathered.loop.stop_if("callback", on_step(gathered.n_moves, figures_of(part)))


def retuned(
    sampler: Sampler,  # that made the draws, without its approach
    # Returned as it is where every chain accepted enough, or was stopped. It is kept too where the
    # further warm-up is stopped.
    chains: ChainDraws,
    *,
    least_acceptance: float,  # mean probability of a chain's proposals while drawing
    # Moves of every further warm-up, of which there are at most three. Each aims at half of the
    # rejections that the one before aimed at.
    n_warmup: int,
    thin: int = 1,
    n_jobs: int | None = None,
    on_step: OnStep | None = None,
) -> ChainDraws:
    """The same chains, those of blocks with a low acceptance after another warm-up."""
    for _ in range(3):
        low, ends = chains.sampling.mean_acceptance < least_acceptance, block_ends(chains.blocks)
        chosen = [i for i, (a, b) in enumerate(pairwise(ends)) if bool(low[a:b].any())]
        if not chains.complete or not chosen:
            return chains
        aim = 1.0 - 0.5 * (1.0 - sampler.target_acceptance)
        sampler = replace(sampler, target_acceptance=aim)
        again = sample_chains(
            sampler, [chains.blocks[i] for i in chosen], n_warmup=n_warmup,
            n_draws=chains.draws.shape[1], thin=thin, n_jobs=n_jobs, on_step=on_step,
        )  # fmt: skip
        if not again.complete:
            return replace(chains, stopped=again.stopped)
        chains = _replaced(chains, chosen, again)
    return chains


def _replaced(first: ChainDraws, chosen: Sequence[int], again: ChainDraws) -> ChainDraws:
    """Draws of the chosen blocks by those they made again; the old ones count as warm-up."""
    ends, blocks = block_ends(first.blocks), list(first.blocks)
    chains = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in chosen])
    draws, value = first.draws.copy(), first.log_density.copy()
    draws[chains], value[chains] = again.draws, again.log_density
    warmup, sampling = (Tally(*(t.clone() for t in x)) for x in (first.warmup, first.sampling))
    for total, before, new in zip(warmup, first.sampling, again.warmup, strict=True):
        total[chains] += before[chains] + new
    for total, new in zip(sampling, again.sampling, strict=True):
        total[chains] = new
    for i, block in zip(chosen, again.blocks, strict=True):
        blocks[i] = block
    return ChainDraws(draws, value, first.n_draws, warmup, sampling, blocks, first.stopped)
