"""The two forms of a system agree with the matrix itself, however wide the prior is."""

import pytest
import torch

from skbayes_sym.inference.laplace.search.systems import (
    RowCurvature,
    WeightCurvature,
    are_few,
    require_factor,
)
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError

R, M, P = 3, 4, 11


@pytest.fixture(params=[1e-3, 1.0, 1e4])
def problem(request, generator):
    """Rows B, diagonals d and the matrices B'B + diag d."""
    root = 30.0 * torch.randn(R, M, P, generator=generator, dtype=torch.float64)
    diagonal = request.param * torch.rand(R, P, generator=generator, dtype=torch.float64) + 1e-3
    return root, diagonal, root.mT @ root + torch.diag_embed(diagonal)


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_system_is_the_matrix_it_stands_for(problem, by_rows, generator):
    root, diagonal, matrix = problem
    curvature = RowCurvature(root) if by_rows else WeightCurvature(root.mT @ root)
    system = curvature.system(diagonal)
    inverse = torch.linalg.inv(matrix)
    assert not system.failed.any()
    close = {"rtol": 1e-7, "atol": 1e-9 * float(inverse.abs().max())}
    torch.testing.assert_close(system.covariance, inverse, **close)
    torch.testing.assert_close(system.variance, inverse.diagonal(dim1=1, dim2=2), **close)
    torch.testing.assert_close(system.log_det, torch.logdet(matrix), rtol=1e-10, atol=1e-8)
    v = torch.randn(R, P, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(system.solve(v), (inverse @ v.unsqueeze(2)).squeeze(2), **close)
    factor = system.cholesky()
    torch.testing.assert_close(factor @ factor.mT, matrix)
    assert float(factor.triu(1).abs().max()) == 0.0
    mean = (root.mT @ root).diagonal(dim1=1, dim2=2).mean(1)
    torch.testing.assert_close(curvature.mean_diagonal(), mean)
    some = torch.tensor([2, 0])
    torch.testing.assert_close(
        curvature.of(some).system(diagonal[some]).covariance, inverse[some], **close
    )


def test_what_rows_determine_adds_up_to_what_weights_are_determined(problem):
    """tr B A^{-1} B' = P - tr D A^{-1}, and each share is between 0 and 1."""
    root, diagonal, matrix = problem
    system = RowCurvature(root).system(diagonal)
    inverse = torch.linalg.inv(matrix)
    each = (root @ inverse @ root.mT).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(system.determined, each, rtol=1e-6, atol=1e-9)
    assert float(system.determined.min()) >= 0.0
    assert float(system.determined.max()) <= 1.0
    of_weights = P - (diagonal * system.variance).sum(1)
    torch.testing.assert_close(system.determined.sum(1), of_weights, rtol=1e-6, atol=1e-6)


def test_rows_are_taken_where_they_are_the_smaller_space():
    assert are_few(50, 100)
    assert not are_few(51, 100)


def test_a_matrix_without_a_factor_is_said_in_words():
    system = WeightCurvature(-torch.eye(2).unsqueeze(0)).system(torch.zeros(1, 2))
    with pytest.raises(NotPositiveDefiniteError, match=r"precision isn't positive .* fewer units"):
        require_factor(system, "Take fewer units.")
