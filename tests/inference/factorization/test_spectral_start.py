"""Where sweeps over a complete matrix begin."""

from math import sqrt

import pytest
import torch
from analytic_mean_field import analytic_mean_field
from inference.factorization.factorization_problems import (
    FAMILIES,
    complete,
    incomplete,
    noisy_matrices,
    problem_of,
    swept,
)
from torch.testing import assert_close

from skbayes_sym.inference.factorization.factor_elbo import mean_field_elbo
from skbayes_sym.inference.factorization.incidence import entries
from skbayes_sym.inference.factorization.vi import sweeps_start


def test_means_are_the_best_product_of_their_rank_and_equally_large(generator):
    matrix, k = 5.0 * torch.randn(9, 6, generator=generator, dtype=torch.float64), 4
    start = sweeps_start(problem_of(complete(matrix), k))
    u, v = start.mean[:9], start.mean[9:]
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    best = (left[:, :k] * values[:k]) @ right[:k]
    assert_close(u @ v.mT / sqrt(k), best, rtol=0, atol=1e-10)
    assert_close(u.mT @ u, v.mT @ v, rtol=0, atol=1e-10)


def test_no_component_begins_at_zero(generator):
    """Nor beyond the rank of the matrix, where they are random."""
    start = sweeps_start(problem_of(complete(torch.zeros(5, 4, dtype=torch.float64)), 6))
    norms = start.mean.square().sum(0).sqrt()
    assert float(norms.min()) > 0.5


def test_other_problems_begin_at_random(generator):
    matrix = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    data = complete(matrix)
    weighted = data.with_values(data.by_row.value, torch.full((20,), 2.0, dtype=torch.float64))
    for problem in (
        problem_of(incomplete(generator), 2),
        problem_of(weighted, 2),
        problem_of(data, 2, prior="learn"),
        problem_of(complete(matrix.new_zeros(501, 501)), 1),
    ):
        assert_close(sweeps_start(problem).mean, problem.start.mean, rtol=0, atol=0)


@pytest.mark.kept("1")
@pytest.mark.parametrize("matrix", range(3))
def test_plain_sweeps_end_at_the_global_optimum(matrix):
    """In closed form for the diagonal family, which rotations of the start would keep them from."""
    data = complete(noisy_matrices()[matrix])
    problem = problem_of(data, 20, noise=4.0, max_iter=4000, tol=1e-6)
    found = swept(problem, FAMILIES["diag"], start=sweeps_start(problem)).posterior
    best = analytic_mean_field(noisy_matrices()[matrix], problem.model)
    bounds = [mean_field_elbo(data, q, problem.model) for q in (found, best)]
    assert abs(bounds[0] - bounds[1]) < 1e-3


def test_a_matrix_of_one_row_can_be_begun():
    data = entries(torch.tensor([0]), torch.tensor([0]), torch.tensor([1.5]).double(), (1, 1))
    assert_close(
        sweeps_start(problem_of(data, 1)).mean.abs(), torch.full((2, 1), 1.5**0.5).double()
    )
