"""Many chains: divided into blocks that can run anywhere, warmed up, drawn from, put together.

A block has its own random stream, pools scales and trajectory lengths within itself only, and
computes in one thread, so that its draws are the same in any process, on any machine. The number of
chains of a block does change them, and must therefore depend on the problem only.
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
from skbayes_sym.mcmc.annealing import Approach
from skbayes_sym.mcmc.kernels import HMC, Info, Kernel, State, initial_state
from skbayes_sym.mcmc.warmup import (
    DualAveraging,
    PreconditionerAdaptation,
    RunningMoments,
    reasonable_step_size,
)
from skbayes_sym.numerics.optimise import Loop, OnStep, StopReason
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner, Preconditioner
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.numerics.runtime import one_thread, run_parallel, to_host

# Moves of a block between two calls of on_step.
REPORT_EVERY = 10

Array = npt.NDArray[Any]


class Block(NamedTuple):
    """C chains that run together, and all that their next move needs."""

    state: State
    step_size: Tensor  # (C,)
    preconditioner: Preconditioner
    random_state: Tensor  # of the block's generator


@dataclass(frozen=True, eq=False)
class Sampler:
    """How chains are run: everything but where they start and how long they are."""

    kernel: Kernel
    log_density: LogDensity
    adaptation: PreconditionerAdaptation  # what warm-up does to the preconditioners
    # Mean acceptance probability that warm-up tunes each chain's step size to.
    target_acceptance: float = 0.8
    approach: Approach | None = None  # what chains do before they warm up, if they do


class Tally(NamedTuple):
    """Counts and sums of the moves of C chains, one number a chain."""

    n_moves: Tensor  # (C,), int64
    acceptance: Tensor  # (C,), float64, summed over moves
    n_accepted: Tensor  # (C,), int64
    n_divergent: Tensor  # (C,), int64
    n_gradients: Tensor  # (C,), int64
    squared_error: Tensor  # (C,), float64, of energies, nats squared; nan where moves have none

    @classmethod
    def zeros(cls, n_chains: int, device: torch.device | str = "cpu") -> "Tally":
        count = torch.zeros(n_chains, dtype=torch.int64, device=device)
        zero = count.double()
        return cls(count, zero, count.clone(), count.clone(), count.clone(), zero.clone())

    def add_(self, info: Info) -> None:
        """Take in one move."""
        self.n_moves.add_(1)
        self.acceptance.add_(_fine(info.acceptance))
        self.n_accepted.add_(info.accepted)
        self.n_divergent.add_(info.divergent)
        self.n_gradients.add_(info.n_gradients)
        if info.energy_error is None:
            self.squared_error.fill_(torch.nan)
        else:  # beyond 10 nats a proposal is as good as lost
            error = info.energy_error.double().nan_to_num(10.0, 10.0, 10.0).clamp(-10.0, 10.0)
            self.squared_error.add_(_fine(error.square()))

    @property
    def mean_acceptance(self) -> Tensor:
        """(C,); nan for chains that made no move."""
        return self.acceptance / self.n_moves

    @property
    def energy_error(self) -> Tensor:
        """Root mean square (C,), nats, errors beyond 10 counting as 10; nan where there is none."""
        return (self.squared_error / self.n_moves).sqrt()


def _fine(summand: Tensor) -> Tensor:
    """Multiples of 2^-30: their sums are exact for 8e6 moves, wherever a run was cut in parts."""
    return (summand.double() * 2.0**30).round_() / 2.0**30


class BlockDraws(NamedTuple):
    """Draws of a block, and where it stopped."""

    draws: Array  # (C, n_draws made, D)
    log_density: Array  # (C, n_draws made), nats
    block: Block  # where the chains are now
    warmup: Tally
    sampling: Tally
    stopped: StopReason  # "max_iter" after all moves


def _figures(state: State, tally: Tally) -> Tensor:
    """Mean log density, mean acceptance, divergent moves, (3,)."""
    figures = (state.value.mean(), tally.mean_acceptance.mean(), tally.n_divergent.sum())
    return torch.stack([figure.double() for figure in figures])


def _named(figures: Tensor) -> Mapping[str, float]:
    names = ("log_density", "acceptance", "n_divergent")
    return dict(zip(names, figures.tolist(), strict=True))


def run_block(
    sampler: Sampler,
    # Left as it is. With ``n_warmup=0`` the run that left it goes on, bit for bit as if it had not
    # been cut in two.
    block: Block,
    *,
    n_warmup: int,  # moves that adapt step sizes and preconditioner; thrown away
    n_draws: int,  # every ``thin``-th of ``n_draws * thin`` further moves is kept
    thin: int = 1,
    # (step, info) -> bool: told every `REPORT_EVERY` moves how many were made; True stops.
    on_step: OnStep | None = None,
) -> BlockDraws:
    """Warm one block of chains up, then draw from it.

    A `KeyboardInterrupt` ends the run between two moves and is reported in ``stopped``: the caller
    decides what to keep and raises it again.
    """
    run = _BlockMoves(sampler, block, n_draws, on_step)
    with one_thread(), torch.no_grad(), Loop() as loop:
        try:
            run.warm_up(n_warmup)
            run.draw(n_draws, thin)
        except _StopRequested:
            loop.stop_if("callback", True)
    return run.result(loop.stopped)


class _StopRequested(Exception):
    """``on_step`` said so."""


class _BlockMoves:
    """A block on its way."""

    def __init__(
        self, sampler: Sampler, block: Block, n_draws: int, on_step: OnStep | None
    ) -> None:
        self._sampler = sampler
        self._on_step = on_step
        self._state, self._step_size, self._preconditioner, random_state = block
        position = block.state.position
        self._generator = torch.Generator(device=position.device)
        self._generator.set_state(random_state)
        n_chains, n_dims = position.shape
        self._warmup, self._sampling = (Tally.zeros(n_chains, position.device) for _ in range(2))
        numpy_dtype = torch.empty(0, dtype=position.dtype).numpy().dtype
        self._draws = np.empty((n_chains, n_draws, n_dims), numpy_dtype)
        self._log_density = np.empty((n_chains, n_draws), numpy_dtype)
        self._unread: dict[int, Tensor] = {}  # draws and their log densities, on the device
        self._n_draws = self._n_moves = self._reported = 0

    def warm_up(self, n_warmup: int) -> None:
        sampler = self._sampler
        if n_warmup and sampler.approach is not None:
            self._approach_mode(sampler.approach)
        for window in sampler.adaptation.windows(n_warmup):
            self._step_size, n_gradients = reasonable_step_size(
                self._state, sampler.log_density, step_size=self._step_size,
                preconditioner=self._preconditioner, generator=self._generator,
                target=sampler.target_acceptance,
            )  # fmt: skip
            self._warmup.n_gradients.add_(n_gradients)
            averaging = DualAveraging.start(self._step_size)
            moments = RunningMoments.empty(self._state.position)
            for _ in range(window.n_moves):
                info = self._move()
                self._told(self._state, info)
                averaging = averaging.update(info.acceptance, sampler.target_acceptance)
                self._step_size = averaging.log_step_size.exp().to(self._step_size)
                if window.learns_scale:
                    moments = moments.add(self._state.position)
            self._step_size = averaging.log_average.exp().to(self._step_size)
            if window.learns_scale:
                self._preconditioner = sampler.adaptation.fit(
                    self._preconditioner, moments, position=self._state.position
                )

    def _approach_mode(self, approach: Approach) -> None:
        began = self._state.position
        density = self._sampler.log_density
        try:
            place = approach.run(
                self._state, density, self._sampler.adaptation,
                generator=self._generator, tell=self._told,
            )  # fmt: skip
        except BaseException:  # stopped on the way, maybe under another density
            self._state = initial_state(self._state.position.to(began), density)
            raise
        self._state = place.state
        self._preconditioner = place.preconditioner
        self._step_size = place.step_size.to(self._step_size)

    def _told(self, state: State, info: Info) -> None:
        """Take in a move of the warm-up."""
        self._state = state
        self._count(self._warmup, info)
        if self._is_due:
            self._report(_figures(self._state, self._warmup))

    def draw(self, n_draws: int, thin: int) -> None:
        kernel = self._sampler.kernel
        n_moves = n_draws * thin
        length = {}
        median = float(self._step_size.median())  # a GPU is asked once: step sizes stay
        for move in range(n_moves):
            if isinstance(kernel, HMC):
                length = {"n_steps": kernel.n_steps(median, self._generator)}
            self._count(self._sampling, self._move(**length))
            if (move + 1) % thin == 0:
                position, value, _ = self._state
                kept = torch.cat([position, value.unsqueeze(1).to(position)], 1)
                self._unread[move // thin] = kept
                self._n_draws += 1
            if (move + 1) % REPORT_EVERY == 0 or move + 1 == n_moves:
                told = [_figures(self._state, self._sampling)] if self._is_due else []
                for figures in self._look(*told):
                    self._report(figures)

    def _look(self, *asked: Tensor) -> list[Tensor]:
        """Bring the last draws, and what else is asked for, to the host, which waits once."""
        if not self._unread:
            return to_host(asked)
        drawn, *answers = to_host([torch.stack([*self._unread.values()], 1), *asked])
        which = [*self._unread]
        numbers = drawn.numpy()
        self._draws[:, which], self._log_density[:, which] = numbers[..., :-1], numbers[..., -1]
        self._unread = {}
        return answers

    def _move(self, **told: int) -> Info:
        self._state, info = self._sampler.kernel.step(
            self._state, self._sampler.log_density, step_size=self._step_size,
            preconditioner=self._preconditioner, generator=self._generator, **told,
        )  # fmt: skip
        return info

    def _count(self, tally: Tally, info: Info) -> None:
        tally.add_(info)
        self._n_moves += 1

    @property
    def _is_due(self) -> bool:
        return self._on_step is not None and self._n_moves - self._reported >= REPORT_EVERY

    def _report(self, figures: Tensor) -> None:
        self._reported = self._n_moves
        if self._on_step is not None and self._on_step(self._n_moves, _named(figures)):
            raise _StopRequested

    def result(self, stopped: StopReason) -> BlockDraws:
        counts = self._look(*self._warmup, *self._sampling)
        half = len(self._warmup)
        made = self._n_draws
        block = Block(
            self._state, self._step_size, self._preconditioner, self._generator.get_state()
        )
        return BlockDraws(
            self._draws[:, :made], self._log_density[:, :made], block,
            Tally(*counts[:half]), Tally(*counts[half:]), stopped,
        )  # fmt: skip


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
    stopped: StopReason  # "max_iter" if every chain made all its draws

    @property
    def complete(self) -> bool:
        """Every chain made all its draws."""
        return self.stopped == "max_iter"

    @property
    def stuck(self) -> npt.NDArray[np.bool_]:
        """(C,): chains whose draws are all the same point: no move was accepted."""
        made = self.sampling.n_moves > 0
        moved = self.sampling.n_accepted > 0
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
    finite = torch.cat([s.value.isfinite() & s.gradient.isfinite().all(1) for s in states])
    if not bool(finite.all()):
        bad = (~finite).nonzero().flatten().tolist()
        named = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise ValueError(
            f"the log density or its gradient is not finite at the start of {len(bad)} of "
            f"{len(finite)} chains (number {named}): check the data for extreme values, "
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
    # From `start_blocks`, or the ``blocks`` of an earlier run to go on with.
    blocks: Sequence[Block],
    *,
    n_warmup: int,
    n_draws: int,
    thin: int = 1,
    # As joblib has it; `joblib.parallel_config` chooses the backend. The draws don't depend on
    # either.
    n_jobs: int | None = None,
    # (step, info) -> bool: ``step`` counts moves of blocks. Called every few moves with one job,
    # when a block is finished with several; True stops.
    on_step: OnStep | None = None,
) -> ChainDraws:
    """Run blocks of chains, in turn or side by side.

    After a stop or a `KeyboardInterrupt` (reported, not raised) with one job all chains have about
    as many draws; with several, the blocks that were finished have all and the others none.
    """
    jobs = [_Job(sampler, i, block, n_warmup, n_draws, thin) for i, block in enumerate(blocks)]
    gathered = _Gathered(blocks, n_draws)
    with gathered.loop:
        if len(blocks) == 1 or joblib.effective_n_jobs(n_jobs) == 1:
            _alternate_blocks(jobs, gathered, on_step)
        else:
            with closing(run_parallel(jobs, n_jobs)) as finished:
                for index, part in gathered.loop.steps(finished):
                    gathered.add(index, part)
                    if on_step is not None:
                        figures = _named(_figures(part.block.state, part.sampling))
                        gathered.loop.stop_if("callback", on_step(gathered.n_moves, figures))
    return gathered.result()


@dataclass(frozen=True, eq=False)
class _Job:
    """Run of a block, for `run_parallel`."""

    sampler: Sampler
    index: int
    block: Block
    n_warmup: int
    n_draws: int
    thin: int

    def __call__(self, on_step: OnStep | None = None) -> tuple[int, BlockDraws]:
        return self.index, run_block(
            self.sampler, self.block, n_warmup=self.n_warmup, n_draws=self.n_draws, thin=self.thin,
            on_step=on_step,
        )  # fmt: skip


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
        chains = self._chains[index]
        made = part.draws.shape[1]
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


def _alternate_blocks(jobs: Sequence[_Job], gathered: _Gathered, on_step: OnStep | None) -> None:
    """Warm up block after block, then let each make a few draws at a time.

    A single one, as on a GPU, does it all at once. An interrupt finds all chains about as long.
    """
    if len(jobs) == 1:
        gathered.add(*jobs[0](on_step))
        return
    n_draws = jobs[0].n_draws
    turn = 10
    rounds = [(jobs[0].n_warmup, 0)]
    rounds += [(0, min(turn, n_draws - start)) for start in range(0, n_draws, turn)]
    for n_warmup, n in rounds:
        for job in jobs:
            block = gathered.blocks[job.index]
            part = replace(job, block=block, n_warmup=n_warmup, n_draws=n)
            begun = gathered.n_moves
            gathered.add(*part(on_step and partial(_later, on_step, begun)))
            if gathered.loop.stopped != "max_iter":
                return


def _later(on_step: OnStep, n_moves: int, step: int, info: Mapping[str, float]) -> bool:
    """Tell ``on_step`` of a run that began after ``n_moves`` moves."""
    return on_step(n_moves + step, info)


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
        low = chains.sampling.mean_acceptance < least_acceptance
        ends = block_ends(chains.blocks)
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
        # Their draws by those they made again; the old ones count as warm-up.
        chain_indices = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in chosen])
        draws = chains.draws.copy()
        value = chains.log_density.copy()
        blocks = list(chains.blocks)
        draws[chain_indices], value[chain_indices] = again.draws, again.log_density
        warmup, sampling = (
            Tally(*(t.clone() for t in x)) for x in (chains.warmup, chains.sampling)
        )
        for total, before, new in zip(warmup, chains.sampling, again.warmup, strict=True):
            total[chain_indices] += before[chain_indices] + new
        for total, new in zip(sampling, again.sampling, strict=True):
            total[chain_indices] = new
        for i, block in zip(chosen, again.blocks, strict=True):
            blocks[i] = block
        chains = ChainDraws(draws, value, chains.n_draws, warmup, sampling, blocks, chains.stopped)
    return chains
