"""Gibbs sampling of the factors, exact up to Monte Carlo error.

In the sampler of Salakhutdinov & Mnih (2008) the rows of U given V are independent Gaussians, and
so are the rows of V given U. If the priors of the rows are learned, they are drawn before the rows.
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
    problem: FactorProblem, start: FactorState, *, n_warmup: int, n_draws: int, on_sweep: OnSweep
) -> tuple[Tensor, Tensor, int, StopReason]:
    """Draw the rows of U, the rows of V and the noise in turn.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation to sample. If the noise variance is learned, it is drawn too, under a prior
        that is uniform in its logarithm.
    start : FactorState
        Initial state, of which the means are used.
    n_warmup : int
        Number of sweeps that are discarded.
    n_draws : int
        Number of draws to keep, at equal distances in the other sweeps.
    on_sweep : callable
        Called after every sweep with the draw, whose covariances are zero. True stops, after at
        least one draw was kept.

    Returns
    -------
    draws : Tensor of shape (S, n + m, D)
        Draws of the rows of U, then of those of V.
    noise_variances : Tensor of shape (S,)
        Noise variances, float64.
    n_sweeps : int
        Number of sweeps.
    stop_reason : str
        Reason why they ended.
    """
    data = problem.data
    model = problem.model
    n = problem.data.n_rows
    generator = problem.generator("gibbs")
    state = start._replace(cov=torch.zeros_like(start.cov))
    last_sweep = problem.max_iter - 1
    kept_sweeps = torch.linspace(n_warmup, last_sweep, n_draws, dtype=torch.float64).round()
    is_kept = set(kept_sweeps.long().tolist())
    draws = state.mean.new_empty(n_draws, *state.mean.shape)
    noise_variances = list[float]()
    n_sweeps = 0
    with Loop() as loop:
        for sweep in loop.steps(range(problem.max_iter)):
            # The draw of the previous sweep was handed to the callback, so it isn't overwritten.
            state = state._replace(mean=state.mean.clone())
            for index in (0, 1):
                state = _sample_factor(problem, index, state, generator)
            if state.likelihood.n_params:
                fitted = compute_products(state.mean[:n], state.mean[n:], data.by_row)
                residual = data.by_row.value - fitted / model.n_components**0.5
                residuals = data.by_row._replace(value=residual)
                variance = _sample_noise_variance(residuals, model.noise_range, generator)
                log_noise = torch.tensor([0.5 * log(variance)], dtype=torch.float64)
                state = state._replace(likelihood=state.likelihood.at(log_noise))
            n_sweeps = sweep + 1
            if sweep in is_kept:
                draws[len(noise_variances)] = state.mean
                noise_variances.append(state.noise_variance)
            loop.stop_if("callback", on_sweep(state, None))
    if not noise_variances:
        draws[0] = state.mean
        noise_variances = [state.noise_variance]
    n_kept = len(noise_variances)
    variances = torch.tensor(noise_variances, dtype=torch.float64)
    return draws[:n_kept], variances, n_sweeps, loop.stopped


def _sample_factor(
    problem: FactorProblem, index: int, state: FactorState, generator: torch.Generator
) -> FactorState:
    """Draw the prior of one factor's rows, and then the rows given the other factor.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation to sample.
    index : {0, 1}
        0 for U, 1 for V.
    state : FactorState
        State, whose means are overwritten by the draw.
    generator : torch.Generator
        Source of the draws.

    Returns
    -------
    FactorState
        State with the drawn prior.
    """
    factor_entries = problem.data.by_factor[index]
    own_rows = factor_entries.own_rows
    split = problem.model.coordinates.splits[index]
    values = state.mean
    n_coordinates = values.shape[1]
    free = index_tensor(split.free, values)

    # The prior given the rows.
    hyperprior = problem.hyperpriors[index]
    row_priors = list(problem.row_priors(state))
    if hyperprior.is_learned:
        rows = values[own_rows][:, free]
        zero = rows.new_zeros(rows.shape[1], rows.shape[1])
        statistics = hyperprior.row_statistics(rows, zero)
        row_priors[index] = hyperprior.sample(statistics, row_priors[index], generator)
    prior_means = hyperprior.means(row_priors[index])

    # The rows given the prior and the other factor, whose covariance is zero.
    others = values[factor_entries.other_rows]
    no_cov = others.new_zeros(1, 1, 1).expand(len(others), n_coordinates, n_coordinates)
    packed = pack_second_moments(others, no_cov)
    noise = Noise(problem.model.n_components, state.noise_variance)
    for begin, end in matrix_blocks(factor_entries.entries.n_rows, n_coordinates):
        block = factor_entries.entries.slice_rows(begin, end)
        packed_equations = compute_packed_equations(block, packed, others)
        equations, _ = eliminate_fixed(packed_equations, split)
        factor, _, target = compute_row_conditionals(
            equations, row_priors[index], prior_means[begin:end], noise
        )
        normal = normal_like(target.shape, generator=generator, like=target)
        # With P = L L', the mean is L'^-1 (L^-1 target) and the noise is L'^-1 z.
        half = torch.linalg.solve_triangular(factor, target.unsqueeze(-1), upper=False)
        draw = torch.linalg.solve_triangular(factor.mT, half + normal.unsqueeze(-1), upper=True)
        block_rows = slice(own_rows.start + begin, own_rows.start + end)
        values[block_rows, free] = draw[..., 0]
    return state._replace(row_priors=(row_priors[0], row_priors[1]))


def _sample_noise_variance(
    residuals: CSREntries, noise_range: tuple[float, float], generator: torch.Generator
) -> float:
    """Draw from the inverse gamma of shape N / 2 and scale half the squares, within a range."""
    shape = max(0.5 * residuals.total_weight, 0.5)
    gamma = float(numpy_generator(generator).standard_gamma(shape))
    variance = 0.5 * residuals.sum_of_squares / gamma
    return min(max(variance, noise_range[0]), noise_range[1])


def align_draws(problem: FactorProblem, draws: Tensor) -> Tensor:
    r"""Scale and rotate draws of the factors in place, so that they can be averaged.

    Entries depend on :math:`u_i^\top v_j` alone, so :math:`u_i \to A u_i, v_j \to A^{-\top} v_j`
    leaves their density unchanged. If scales are learned, every draw is moved along that orbit
    until the rows of both factors have the same second moments. All draws then have factors of the
    same scale. In any case they are rotated to the last draw.

    Parameters
    ----------
    problem : FactorProblem
        Factorisation that was sampled.
    draws : Tensor of shape (S, n + m, D)
        Draws, whose components are overwritten.

    Returns
    -------
    Tensor of shape (S, n + m, D)
        The same tensor.
    """
    n = problem.data.n_rows
    k = problem.model.n_components
    n_rows = draws.shape[1]
    factors = draws[:, :, :k]
    if isinstance(problem.model.prior.scale, str):
        for draw in factors:
            _balance_scales(problem, draw, n)
    group = Orthogonal(torch.arange(n_rows * k, device=draws.device).view(n_rows, k))
    last = factors[-1].double().flatten()
    for draw in factors:
        aligned, _ = group.align(draw.double().flatten().unsqueeze(0), last)
        draw.copy_(aligned.view(n_rows, k))
    return draws


def _balance_scales(problem: FactorProblem, draw: Tensor, n: int) -> None:
    """Transform a draw (n + m, k) in place until both factors have the same second moments."""
    u_moment = _posterior_second_moment(draw[:n], problem.hyperpriors[0].scatter)
    v_moment = _posterior_second_moment(draw[n:], problem.hyperpriors[1].scatter)
    if problem.model.prior.scale == "ard":
        # Components can't be rotated.
        u_moment = u_moment.diagonal().diag()
        v_moment = v_moment.diagonal().diag()
    # A A is the geometric mean of the inverse of the first moment and the second moment.
    root = _matrix_power(u_moment, 0.5)
    inverse_root = _matrix_power(u_moment, -0.5)
    square = inverse_root @ _matrix_power(root @ v_moment @ root, 0.5) @ inverse_root
    draw[:n] = (draw[:n].double() @ _matrix_power(square, 0.5)).to(draw)
    draw[n:] = (draw[n:].double() @ _matrix_power(square, -0.5)).to(draw)


def _posterior_second_moment(rows: Tensor, scatter: float) -> Tensor:
    """Mean second moment of rows (n, k) and of one row of the prior, (k, k), float64."""
    rows = rows.double()
    identity = torch.eye(rows.shape[1], dtype=torch.float64, device=rows.device)
    return (scatter * identity + rows.mT @ rows) / (len(rows) + 1.0)


def _matrix_power(matrix: Tensor, power: float) -> Tensor:
    """Power of a symmetric positive definite matrix."""
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    smallest = values[-1] * torch.finfo(values.dtype).eps
    return (vectors * values.clamp(min=smallest) ** power) @ vectors.mT
