"""Expectations of entries and rows under q, and the mean-field bound that they make."""

from math import log, pi, sqrt

import torch

from skbayes_sym.inference.factorization.coordinates import free_part
from skbayes_sym.inference.factorization.covariance import row_entropy
from skbayes_sym.inference.factorization.entry_sites import SeenEntries, expected, is_normal
from skbayes_sym.inference.factorization.factor_model import FactorModel, FactorProblem, FactorState
from skbayes_sym.inference.factorization.hyperpriors import SideMoments
from skbayes_sym.inference.factorization.incidence import (
    Entries,
    Incidence,
    packed_multiplicity,
    packed_second_moments,
    packed_sums,
    products,
)
from skbayes_sym.numerics.linalg import matrix_blocks
from skbayes_sym.numerics.machine import positions


def seen_entries(data: Entries, posterior: FactorState, model: FactorModel) -> SeenEntries:
    """Moments of the outputs of all entries, in the order of ``data.by_row``; O(N k^2)."""
    n, (mean, cov), root_k = data.n_rows, posterior[:2], sqrt(model.n_components)
    packed, value = packed_second_moments(mean[n:], cov[n:]), data.by_row.value
    centre, variance = torch.empty_like(value), torch.empty_like(value)
    for begin, end in matrix_blocks(n, mean.shape[1]):
        rows = slice(begin, end)
        second = packed_second_moments(mean[rows], cov[rows]) * packed_multiplicity(mean)
        block = data.by_row.block(begin, end)
        where = slice(int(data.by_row.start[begin]), int(data.by_row.start[end]))
        centre[where] = products(mean[rows], mean[n:], block) / root_k
        square = products(second, packed, block) / root_k**2
        variance[where] = (square - centre[where].square()).clamp(min=0.0)
    return SeenEntries(value, data.by_row.weight, centre + model.shift, variance)


def expected_squares(data: Incidence, posterior: FactorState, model: FactorModel) -> float:
    """Weighted sum over entries of ``E_q (r - u . v / sqrt(k))^2``; ``data`` are those by row.

    By sums over the entries of each row: no number is kept for an entry.
    """
    n, (mean, cov), k = data.n_rows, posterior[:2], model.n_components
    packed, others = packed_second_moments(mean[n:], cov[n:]), mean[n:].contiguous()
    multiplicity, total = packed_multiplicity(mean), data.squares
    for begin, end in matrix_blocks(n, mean.shape[1]):
        rows = slice(begin, end)
        sums = packed_sums(data.block(begin, end), packed, others)
        second = packed_second_moments(mean[rows], cov[rows])
        total += float((second * sums.second @ multiplicity).sum()) / k
        total -= 2.0 * float((mean[rows] * sums.first).sum()) / sqrt(k)
    return max(total, 0.0)


def normal_log_density(squares: float, n: float, variance: float) -> float:
    """Log density of n entries whose squared errors have this sum, nats."""
    return -0.5 * (n * log(2.0 * pi * variance) + squares / variance)


def side_moments(problem: FactorProblem, posterior: FactorState, index: int) -> SideMoments:
    """Sums over the rows of one side, free coordinates, float64."""
    rows, side = problem.data.sides[index].own, problem.model.network.sides[index]
    mean, cov = posterior.mean[rows], posterior.cov[rows]
    total = torch.zeros(cov.shape[1:], dtype=torch.float64, device=cov.device)
    for begin, end in matrix_blocks(len(cov), cov.shape[1]):
        total += cov[begin:end].double().sum(0)
    free = positions(side.free, cov)
    return problem.priors[index].moments(mean[:, free], total[free][:, free])


def mean_field_elbo(data: Entries, posterior: FactorState, model: FactorModel) -> float:
    """ELBO of q itself, a lower bound on log p(R), nats; O(N k^2).

    What was learned of the noise and of the shrinkage of features is taken as given. Of ``data``
    only the entries by row are looked at.
    """
    problem = FactorProblem(data, data, model)
    if is_normal(posterior.likelihood):
        squares = expected_squares(data.by_row, posterior, model)
        total = normal_log_density(squares, data.by_row.total_weight, posterior.noise_variance)
    else:
        seen = seen_entries(data, posterior, model)
        total = seen.total(expected(posterior.likelihood, seen).value)
    laws, sides = problem.laws(posterior), zip(data.sides, model.network.sides, strict=True)
    for index, (rows, side) in enumerate(sides):
        moments = side_moments(problem, posterior, index)
        total += problem.priors[index].learned(moments, laws[index])[1]
        mean, cov = posterior.mean[rows.own], posterior.cov[rows.own]
        for begin, end in matrix_blocks(len(cov), cov.shape[1]):
            total += row_entropy(free_part(mean[begin:end], cov[begin:end], side)[1])
    return total
