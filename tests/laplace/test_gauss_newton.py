"""Damped steps, and systems in the smaller of two spaces against dense matrices."""

import pytest
import torch

from skbayes_sym.laplace.gauss_newton import (
    Expansion,
    RowCurvature,
    WeightCurvature,
    is_row_space_smaller,
    require_factor,
    step,
)
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError

A = torch.tensor([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 3.0]]], dtype=torch.float64)
B = torch.tensor([[1.0, -1.0], [0.5, 2.0]], dtype=torch.float64)
ZERO = torch.zeros(2, 2, dtype=torch.float64)
PRECISION = torch.ones(2, 2, dtype=torch.float64)
ONE = torch.ones(2, dtype=torch.float64)


def quadratic(theta, which):
    return 0.5 * torch.einsum("rp,rpq,rq->r", theta, A[which], theta) - (theta * B[which]).sum(1)


def test_without_damping_a_quadratic_is_solved_in_one_step():
    expansion = Expansion(torch.zeros(2).double(), -B, WeightCurvature(A, ONE))
    moved, _, n_moved = step(
        quadratic, ZERO, expansion, PRECISION, torch.full((2,), 1e-12).double()
    )
    eye = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(moved, torch.linalg.solve(A + eye, B), atol=1e-8, rtol=0.0)
    assert n_moved == 2


def test_a_step_that_would_go_up_is_damped_until_it_goes_down():
    def steep(theta, which):  # far more curved than the expansion says
        return quadratic(theta, which) + 100.0 * theta.square().sum(1)

    expansion = Expansion(torch.zeros(2).double(), -B, WeightCurvature(A, ONE))
    start = torch.full((2,), 1e-3).double()
    moved, damping, n_moved = step(steep, ZERO, expansion, PRECISION, start)
    energy = steep(moved, torch.arange(2)) + 0.5 * moved.square().sum(1)
    assert n_moved == 2
    assert (energy < 0.0).all()
    assert (damping > start).all()


def test_a_wary_step_keeps_a_damping_that_had_to_be_raised():
    """And lowers one that was enough at once: the second restart's."""

    def steep(theta, which):
        return quadratic(theta, which) + torch.where(which == 0, 100.0, 0.0) * theta.square().sum(1)

    expansion = Expansion(torch.zeros(2).double(), -B, WeightCurvature(A, ONE))
    start = torch.full((2,), 1e-3).double()
    bold, bold_damping, _ = step(steep, ZERO, expansion, PRECISION, start)
    wary, wary_damping, _ = step(steep, ZERO, expansion, PRECISION, start, conservative=True)
    assert torch.equal(wary, bold)
    assert wary_damping[0] > bold_damping[0] > start[0]
    assert wary_damping[1] == bold_damping[1] == pytest.approx(float(start[1]) / 9.0)


@pytest.mark.parametrize("short", [0.0, 0.05, 0.2, 0.5, 0.95])
def test_damping_falls_to_what_a_step_fell_short_by(short):
    """Of what the quadratic model promised; to a ninth at least."""

    def misfit(theta, which):  # slope -1 and curvature 1 at zero; the model ends at 1 / 2
        return -theta[:, 0] + (0.5 + short) * theta[:, 0].square()

    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    curvature = WeightCurvature(one.unsqueeze(0), one[0])
    start = torch.full((1,), 1e-6, dtype=torch.float64)
    moved, damping, _ = step(misfit, zero, Expansion(zero[0], -one, curvature), one, start)
    assert float(moved) == pytest.approx(0.5, abs=1e-5)
    assert float(damping / start) == pytest.approx(max(1.0 / 9.0, short), rel=1e-4)


def test_what_is_at_the_bottom_stays_there():
    bottom = torch.linalg.solve(A + torch.eye(2, dtype=torch.float64), B)
    slope = torch.einsum("rpq,rq->rp", A, bottom) - B
    expansion = Expansion(quadratic(bottom, torch.arange(2)), slope, WeightCurvature(A, ONE))
    moved, damping, _ = step(
        quadratic, bottom, expansion, PRECISION, torch.full((2,), 1e-2).double()
    )
    torch.testing.assert_close(moved, bottom)
    assert float(damping.max()) <= 1e-2  # not what eight failures would have made of it


def test_steps_whose_gain_is_below_rounding_are_made():
    """An energy is known to 1e-16: by it alone weights would be to 1e-8."""
    bottom = torch.linalg.solve(A + torch.eye(2, dtype=torch.float64), B)
    theta = bottom + 1e-9
    slope = torch.einsum("rpq,rq->rp", A, theta) - B
    expansion = Expansion(quadratic(theta, torch.arange(2)), slope, WeightCurvature(A, ONE))
    moved, _, _ = step(quadratic, theta, expansion, PRECISION, torch.full((2,), 1e-9).double())
    torch.testing.assert_close(moved, bottom, atol=1e-14, rtol=0.0)


def test_a_curvature_without_a_factor_is_damped_and_the_other_restart_moves():
    curvature = A.clone()
    curvature[0] = torch.tensor([[3.0, 0.0], [0.0, -1.0]])
    expansion = Expansion(torch.zeros(2).double(), -B, WeightCurvature(curvature, ONE))
    _, damping, n_moved = step(
        quadratic, ZERO, expansion, 1e-3 * PRECISION, torch.full((2,), 1e-6).double()
    )
    assert n_moved == 2
    assert damping[0] > 0.1


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
    unit = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    of_weights = WeightCurvature(root.mT @ root / unit[:, None, None], unit)
    curvature = RowCurvature(root) if by_rows else of_weights
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
        curvature.select(some).system(diagonal[some]).covariance, inverse[some], **close
    )


def test_what_rows_determine_adds_up_to_what_weights_are_determined(problem):
    """tr B A^{-1} B' = P - tr D A^{-1}, and each share is between 0 and 1."""
    root, diagonal, matrix = problem
    system = RowCurvature(root).system(diagonal)
    inverse = torch.linalg.inv(matrix)
    each = (root @ inverse @ root.mT).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(system.leverages, each, rtol=1e-6, atol=1e-9)
    assert float(system.leverages.min()) >= 0.0
    assert float(system.leverages.max()) <= 1.0
    of_weights = P - (diagonal * system.variance).sum(1)
    torch.testing.assert_close(system.leverages.sum(1), of_weights, rtol=1e-6, atol=1e-6)


def test_rows_are_taken_where_they_are_the_smaller_space():
    assert is_row_space_smaller(75, 100)
    assert not is_row_space_smaller(76, 100)


def test_a_matrix_without_a_factor_is_said_in_words():
    system = WeightCurvature(-torch.eye(2).unsqueeze(0), torch.ones(1)).system(torch.zeros(1, 2))
    with pytest.raises(NotPositiveDefiniteError, match=r"precision isn't positive .* fewer units"):
        require_factor(system, "Take fewer units.")
