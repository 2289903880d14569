"""A block of chains: warm-up, then draws.

A block has its own random stream, pools scales and trajectory lengths within itself only, and
computes in one thread, so that its draws depend on nothing but where it started: they are the same
in this process, in another, on another machine, or when run again after a machine was lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.sampling.annealing import Approach
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.kernels.kernel import (
    Info,
    Kernel,
    Preconditioner,
    State,
    initial_state,
)
from skbayes_sym.inference.sampling.warmup import (
    DualAveraging,
    PreconditionerAdaptation,
    RunningMoments,
    Window,
    reasonable_step_size,
)
from skbayes_sym.numerics.machine import one_thread, to_host
from skbayes_sym.numerics.optimise import Loop, OnStep, Stopped

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
    stopped: Stopped  # "max_iter" after all moves


def figures_of(draws: BlockDraws) -> Mapping[str, float]:
    """Figures for ``on_step``."""
    return _named(_figures(draws.block.state, draws.sampling))


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
    decides what to keep and raises it again. The log density is evaluated under `torch.no_grad`.
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
        self._sampler, self._on_step = sampler, on_step
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
        if n_warmup and self._sampler.approach is not None:
            self._come_near(self._sampler.approach)
        for window in self._sampler.adaptation.windows(n_warmup):
            self._search_step_size()
            moments = self._adapt_step_size(window)
            if window.learns_scale:
                self._preconditioner = self._sampler.adaptation.fit(
                    self._preconditioner, moments, position=self._state.position
                )

    def _come_near(self, approach: Approach) -> None:
        began, density = self._state.position, self._sampler.log_density
        try:
            place = approach.run(
                self._state, density, self._sampler.adaptation,
                generator=self._generator, tell=self._told,
            )  # fmt: skip
        except BaseException:  # stopped on the way, maybe under another density
            self._state = initial_state(self._state.position.to(began), density)
            raise
        self._state, self._preconditioner = place.state, place.preconditioner
        self._step_size = place.step_size.to(self._step_size)

    def _told(self, state: State, info: Info) -> None:
        """Take in a move that somebody else made."""
        self._state = state
        self._warmup.add_(info)
        self._n_moves += 1
        if self._is_due:
            self._report(_figures(self._state, self._warmup))

    def _search_step_size(self) -> None:
        self._step_size, n_gradients = reasonable_step_size(
            self._state, self._sampler.log_density, step_size=self._step_size,
            preconditioner=self._preconditioner, generator=self._generator,
            target=self._sampler.target_acceptance,
        )  # fmt: skip
        self._warmup.n_gradients.add_(n_gradients)

    def _adapt_step_size(self, window: Window) -> RunningMoments:
        averaging = DualAveraging.start(self._step_size)
        moments = RunningMoments.empty(self._state.position)
        for _ in range(window.n_moves):
            info = self._move(self._warmup)
            if self._is_due:
                self._report(_figures(self._state, self._warmup))
            averaging = averaging.update(info.acceptance, self._sampler.target_acceptance)
            self._step_size = averaging.log_step_size.exp().to(self._step_size)
            if window.learns_scale:
                moments = moments.add(self._state.position)
        self._step_size = averaging.log_average.exp().to(self._step_size)
        return moments

    def draw(self, n_draws: int, thin: int) -> None:
        kernel, n_moves, length = self._sampler.kernel, n_draws * thin, {}
        median = float(self._step_size.median())  # a GPU is asked once: step sizes stay
        for move in range(n_moves):
            if isinstance(kernel, HMC):
                length = {"n_steps": kernel.n_steps(median, self._generator)}
            self._move(self._sampling, **length)
            if (move + 1) % thin == 0:
                self._keep(move // thin)
            if (move + 1) % REPORT_EVERY == 0 or move + 1 == n_moves:
                told = [_figures(self._state, self._sampling)] if self._is_due else []
                for figures in self._look(*told):
                    self._report(figures)

    def _keep(self, n: int) -> None:
        """Note where the chains are as draw ``n``."""
        position, value, _ = self._state
        self._unread[n] = torch.cat([position, value.unsqueeze(1).to(position)], 1)
        self._n_draws = n + 1

    def _look(self, *asked: Tensor) -> list[Tensor]:
        """Bring the last draws, and what else is asked for, to the host, which waits once."""
        if not self._unread:
            return to_host(asked)
        drawn, *answers = to_host([torch.stack([*self._unread.values()], 1), *asked])
        which, numbers = [*self._unread], drawn.numpy()
        self._draws[:, which], self._log_density[:, which] = numbers[..., :-1], numbers[..., -1]
        self._unread = {}
        return answers

    def _move(self, tally: Tally, **told: int) -> Info:
        self._state, info = self._sampler.kernel.step(
            self._state, self._sampler.log_density, step_size=self._step_size,
            preconditioner=self._preconditioner, generator=self._generator, **told,
        )  # fmt: skip
        tally.add_(info)
        self._n_moves += 1
        return info

    @property
    def _is_due(self) -> bool:
        return self._on_step is not None and self._n_moves - self._reported >= REPORT_EVERY

    def _report(self, figures: Tensor) -> None:
        self._reported = self._n_moves
        if self._on_step is not None and self._on_step(self._n_moves, _named(figures)):
            raise _StopRequested

    def result(self, stopped: Stopped) -> BlockDraws:
        counts = self._look(*self._warmup, *self._sampling)
        half, made = len(self._warmup), self._n_draws
        block = Block(
            self._state, self._step_size, self._preconditioner, self._generator.get_state()
        )
        return BlockDraws(
            self._draws[:, :made], self._log_density[:, :made], block,
            Tally(*counts[:half]), Tally(*counts[half:]), stopped,
        )  # fmt: skip
