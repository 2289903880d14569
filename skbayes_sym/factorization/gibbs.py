"""Gibbs sampling of the factors: the posterior itself, up to Monte Carlo error.

The sampler of Salakhutdinov & Mnih (2008): rows of U given V are independent Gaussians, and the
other way round; the priors of both, if they are learned, are drawn before them.
"""

from math import log

import torch
from torch import Tensor

from skbayes_sym.factorization.coordinate_ascent import Noise, compute_row_conditionals
from skbayes_sym.factorization.factor_model import FactorProblem, FactorState, OnSweep
from skbayes_sym.factorization.sparse_entries import (
    CSREntries,
    compute_packed_equations,
    compute_products,
    eliminate_fixed,
    pack_second_moments,
)
from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.optimise import Loop, StopReason
from skbayes_sym.numerics.random import normal_like, numpy_generator
from skbayes_sym.numerics.runtime import index_tensor
from skbayes_sym.symmetry.orthogonal import Orthogonal


def sample_factors(
    problem: FactorProblem, start: FactorState, *, n_warmup: int, n_kept: int, on_sweep: OnSweep
) -> tuple[Tensor, Tensor, int, StopReason]:
    """Alternate between the rows of U, of V and the noise.

    ``problem``: its noise variance, if it is learned, is sampled (prior uniform in its logarithm).
    ``start``: its means are the starting point. ``n_warmup``, ``n_kept``: sweeps thrown away, and
    draws kept of the others at equal distances. ``on_sweep``: told every draw, without spread; True
    stops, with at least one draw kept.

    Returns draws (S, n + m, D), those of U first, noise variances (S,), the number of sweeps, and
    why they ended.
    """
    data = problem.data
    model = problem.model
    n = problem.data.n_rows
    n_sweeps = problem.max_iter
    generator = problem.generator("gibbs")
    state = start._replace(cov=torch.zeros_like(start.cov))
    keep = set(
        torch.linspace(n_warmup, n_sweeps - 1, n_kept, dtype=torch.float64).round().long().tolist()
    )
    draws = state.mean.new_empty(n_kept, *state.mean.shape)
    noises = list[float]()
    n_made = 0
    with Loop() as loop:
        for sweep in loop.steps(range(n_sweeps)):
            state = state._replace(mean=state.mean.clone())
            for index in (0, 1):
                state = _draw_side(problem, index, state, generator)
            if state.likelihood.n_params:
                fitted = compute_products(state.mean[:n], state.mean[n:], data.by_row)
                residual = data.by_row.value - fitted / model.n_components**0.5
                off = data.by_row._replace(value=residual)
                log_noise = 0.5 * log(_draw_noise(off, model.noise_range, generator))
                drawn = state.likelihood.at(torch.tensor([log_noise], dtype=torch.float64))
                state = state._replace(likelihood=drawn)
            n_made = sweep + 1
            if sweep in keep:
                draws[len(noises)] = state.mean
                noises.append(state.noise_variance)
            loop.stop_if("callback", on_sweep(state, None))
    if not noises:
        draws[0] = state.mean
        noises = [state.noise_variance]
    return draws[: len(noises)], torch.tensor(noises, dtype=torch.float64), n_made, loop.stopped


def _draw_side(
    problem: FactorProblem, index: int, state: FactorState, generator: torch.Generator
) -> FactorState:
    """Draw the prior of one side and then its rows, given the other; rows in place."""
    side = problem.data.sides[index]
    free = problem.model.network.sides[index]
    values = state.mean
    prior = problem.priors[index]
    row_priors = list(problem.distributions(state))
    others = values[side.other]
    size = values.shape[1]
    none = others.new_zeros(1, 1, 1)
    if prior.is_learned:
        rows = values[side.own][:, index_tensor(free.free, values)]
        moments = prior.moments(rows, rows.new_zeros(rows.shape[1], rows.shape[1]))
        row_priors[index], _ = prior.learned(moments, row_priors[index], generator)
    packed = pack_second_moments(others, none.expand(len(others), size, size))
    means = prior.means(row_priors[index])
    noise = Noise(problem.model.n_components, state.noise_variance)
    for begin, end in matrix_blocks(side.entries.n_rows, size):
        sums, _ = eliminate_fixed(
            compute_packed_equations(side.entries.block(begin, end), packed, others), free
        )
        factor, _, target = compute_row_conditionals(
            sums, row_priors[index], means[begin:end], noise
        )
        normal = normal_like(target.shape, generator=generator, like=target)
        # With P = L L': mean L'^-1 (L^-1 target), noise L'^-1 z.
        half = torch.linalg.solve_triangular(factor, target.unsqueeze(-1), upper=False)
        drawn = torch.linalg.solve_triangular(factor.mT, half + normal.unsqueeze(-1), upper=True)
        place = slice(side.own.start + begin, side.own.start + end)
        values[place, index_tensor(free.free, values)] = drawn[..., 0]
    return state._replace(row_priors=(row_priors[0], row_priors[1]))


def _draw_noise(
    off: CSREntries, noise_range: tuple[float, float], generator: torch.Generator
) -> float:
    """Inverse gamma with shape N / 2 and half the squares as scale, kept within its range."""
    gamma = float(numpy_generator(generator).standard_gamma(max(0.5 * off.total_weight, 0.5)))
    return min(max(0.5 * off.squares / gamma, noise_range[0]), noise_range[1])


def align_draws(problem: FactorProblem, draws: Tensor) -> Tensor:
    r"""Factors of draws (S, n + m, D), in place: equally large on both sides, turned to the last.

    Entries tell of :math:`u_i^\top v_j` alone, so :math:`u_i \to A u_i, v_j \to A^{-\top} v_j`
    leaves their density as it is. Where scales are learned, every draw is moved along that orbit
    until both sides have one second moment: several draws are then of factors of one size.
    """
    n = problem.data.n_rows
    k = problem.model.n_components
    scale = problem.model.prior.scale
    n_rows = draws.shape[1]
    group = Orthogonal(torch.arange(n_rows * k, device=draws.device).view(n_rows, k))
    factors = draws[:, :, :k]
    for draw in factors if isinstance(scale, str) else ():
        first, second = (
            prior.scatter * torch.eye(k, dtype=torch.float64, device=x.device) + x.mT @ x
            for prior, x in zip(problem.priors, (draw[:n].double(), draw[n:].double()), strict=True)
        )
        first = first / (n + 1.0)
        second = second / (n_rows - n + 1.0)
        if scale == "ard":  # components can't be turned
            first = first.diagonal().diag()
            second = second.diagonal().diag()
        # A A is the geometric mean of the inverse of the first and the second.
        root = _power(first, 0.5)
        back = _power(first, -0.5)
        squared = back @ _power(root @ second @ root, 0.5) @ back
        draw[:n] = (draw[:n].double() @ _power(squared, 0.5)).to(draw)
        draw[n:] = (draw[n:].double() @ _power(squared, -0.5)).to(draw)
    last = factors[-1].double().flatten()
    for draw in factors:
        moved, _ = group.align(draw.double().flatten().unsqueeze(0), last)
        draw.copy_(moved.view(n_rows, k))
    return draws


def _power(matrix: Tensor, power: float) -> Tensor:
    """Power of a symmetric positive definite matrix."""
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    least = values[-1] * torch.finfo(values.dtype).eps
    return (vectors * values.clamp(min=least) ** power) @ vectors.mT
