"""Gibbs sampling of the factors: the posterior itself, up to Monte Carlo error.

The sampler of Salakhutdinov & Mnih (2008) with fixed hyperparameters: rows of U given V are
independent Gaussians, and the other way round.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.data import (
    ROW_BLOCK,
    Side,
    packed_second_moments,
    products,
    sums_over_entries,
)
from skbayes_sym.inference.factorization.problem import FactorProblem, FactorState
from skbayes_sym.inference.factorization.rows import row_conditionals
from skbayes_sym.inference.factorization.vi import OnStep
from skbayes_sym.numerics.optimise import Loop, Stopped
from skbayes_sym.numerics.random import normal_like, numpy_generator


class GibbsDraws(NamedTuple):
    """Draws of the factors after the warm-up."""

    rows: Tensor  # (S, n + m, k), those of U first, then those of V
    noise_variance: Tensor  # (S,)
    n_sweeps: int
    stopped: Stopped


def sample_factors(
    problem: FactorProblem,
    start: FactorState,
    *,
    n_warmup: int,
    n_kept: int,
    on_step: OnStep,
) -> GibbsDraws:
    """Alternate between the rows of U, of V and the noise.

    Parameters
    ----------
    problem : FactorProblem
        Its noise variance, if it has a range, is sampled (prior uniform in its logarithm); else it
        is that of ``start``.
    start : FactorState
        Its means are the starting point.
    n_warmup, n_kept : int
        Sweeps thrown away, and draws kept of the others at equal distances.
    on_step : callable (sweep, info) -> bool
        Told ``{"rows": ..., "noise_variance": ...}`` of every sweep; True stops, with at least one
        draw kept.

    Returns
    -------
    GibbsDraws
    """
    data, (_, prior_scale, _, noise_range) = problem.data, problem.model
    n_sweeps, generator = problem.max_iter, problem.generator("gibbs")
    mean, noise, n = start.mean.clone(), start.noise_variance, data.n_rows
    keep = set(torch.linspace(n_warmup, n_sweeps - 1, n_kept).round().long().tolist())
    kept, noises, n_made = list[Tensor](), list[float](), 0
    with Loop() as loop:
        for sweep in loop.steps(range(n_sweeps)):
            mean = mean.clone()
            for side in data.sides:
                _draw_side(side, mean, prior_scale, noise, generator)
            fitted = products(mean[:n], mean[n:], data.by_row) / mean.shape[1] ** 0.5
            squares = float((data.by_row.value - fitted).double().square().sum())
            if noise_range is not None:
                noise = _draw_noise(squares, data.n_observed, noise_range, generator)
            n_made = sweep + 1
            if sweep in keep:
                kept.append(mean)
                noises.append(noise)
            loop.stop_if("callback", on_step(n_made, {"rows": mean, "noise_variance": noise}))
    draws = torch.stack(kept or [mean])
    return GibbsDraws(draws, torch.tensor(noises or [noise]), n_made, loop.stopped)


def _draw_side(
    side: Side,
    values: Tensor,
    prior_scale: float,
    noise: float,
    generator: torch.Generator,
) -> None:
    """Draw the rows of one side given the other, in place."""
    others, k = values[side.other], values.shape[1]
    packed = packed_second_moments(others, others.new_zeros(1, 1, 1).expand(len(others), k, k))
    for begin in range(0, side.entries.n_rows, ROW_BLOCK):
        block = side.entries.block(begin, min(begin + ROW_BLOCK, side.entries.n_rows))
        sums = sums_over_entries(block, packed, others)
        factor, _, target = row_conditionals(sums, prior_scale, noise)
        normal = normal_like(target.shape, generator=generator, like=target)
        # With P = L L': mean L'^-1 (L^-1 target), noise L'^-1 z.
        half = torch.linalg.solve_triangular(factor, target.unsqueeze(-1), upper=False)
        drawn = torch.linalg.solve_triangular(factor.mT, half + normal.unsqueeze(-1), upper=True)
        values[side.own.start + begin : side.own.start + begin + len(drawn)] = drawn.squeeze(-1)


def _draw_noise(
    squares: float, n: int, noise_range: tuple[float, float], generator: torch.Generator
) -> float:
    """Inverse gamma with shape N / 2 and scale ``squares / 2``, kept within its range."""
    gamma = float(numpy_generator(generator).standard_gamma(max(0.5 * n, 0.5)))
    return min(max(0.5 * squares / gamma, noise_range[0]), noise_range[1])
