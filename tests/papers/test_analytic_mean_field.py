"""The closed form against coordinate ascent, and its noise."""

from math import sqrt

import pytest
from analytic_mean_field import analytic_mean_field
from inference.factorization.factorization_problems import (
    complete,
    model_of,
    noisy_matrices,
    problem_of,
    swept,
)

from skbayes_sym.inference.factorization.sides import CovarianceFamily, mean_field_elbo


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "prior_scale"), [((40, 40), 1.0), ((25, 40), 0.8), ((40, 25), 0.8)]
)
def test_analytic_solution_is_the_end_of_coordinate_ascent(shape, prior_scale):
    """For a complete matrix, in value; all random starts lie below."""
    matrix, k = noisy_matrices()[0, : shape[0], : shape[1]].contiguous(), 10
    data = complete(matrix)
    problem = problem_of(data, k, noise=1.0, prior=prior_scale, max_iter=600, tol=1e-6)
    exact = analytic_mean_field(matrix, problem.model)
    bound = mean_field_elbo(data, exact, problem.model)
    fitted = swept(problem, CovarianceFamily("full"))
    assert bound - 0.01 < fitted.curve[-1] < bound + 1e-6


def test_analytic_noise_is_a_maximum():
    matrix, data = noisy_matrices()[1], complete(noisy_matrices()[1])
    best = analytic_mean_field(matrix, model_of(20, noise_range=(0.01, 100.0)))
    assert sqrt(best.noise_variance) == pytest.approx(2.336, abs=2e-3)
    model = model_of(20)
    bound = mean_field_elbo(data, best, model)
    for factor in (0.98, 1.02):
        other = model_of(20, noise=factor * best.noise_variance)
        beside = analytic_mean_field(matrix, other)
        assert mean_field_elbo(data, beside, model) < bound
