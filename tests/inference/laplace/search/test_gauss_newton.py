"""Damped steps: exact on a quadratic, never upwards elsewhere, damped more where undefined."""

import torch

from skbayes_sym.inference.laplace.search.gauss_newton import Expansion, step
from skbayes_sym.inference.laplace.search.systems import WeightCurvature

A = torch.tensor([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 3.0]]], dtype=torch.float64)
B = torch.tensor([[1.0, -1.0], [0.5, 2.0]], dtype=torch.float64)
ZERO = torch.zeros(2, 2, dtype=torch.float64)
PRECISION = torch.ones(2, 2, dtype=torch.float64)


def quadratic(theta, which):
    return 0.5 * torch.einsum("rp,rpq,rq->r", theta, A[which], theta) - (theta * B[which]).sum(1)


def test_without_damping_a_quadratic_is_solved_in_one_step():
    expansion = Expansion(torch.zeros(2).double(), -B, WeightCurvature(A))
    found = step(quadratic, ZERO, expansion, PRECISION, torch.full((2,), 1e-12).double())
    eye = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(found.theta, torch.linalg.solve(A + eye, B), atol=1e-8, rtol=0.0)
    assert found.n_moved == 2


def test_a_step_that_would_go_up_is_damped_until_it_goes_down():
    def steep(theta, which):  # far more curved than the expansion says
        return quadratic(theta, which) + 100.0 * theta.square().sum(1)

    expansion = Expansion(torch.zeros(2).double(), -B, WeightCurvature(A))
    start = torch.full((2,), 1e-3).double()
    found = step(steep, ZERO, expansion, PRECISION, start)
    energy = steep(found.theta, torch.arange(2)) + 0.5 * found.theta.square().sum(1)
    assert found.n_moved == 2
    assert (energy < 0.0).all()
    assert (found.damping > start).all()


def test_a_wary_step_keeps_a_damping_that_had_to_be_raised():
    """And lowers one that was enough at once: the second restart's."""

    def steep(theta, which):
        return quadratic(theta, which) + torch.where(which == 0, 100.0, 0.0) * theta.square().sum(1)

    expansion = Expansion(torch.zeros(2).double(), -B, WeightCurvature(A))
    start = torch.full((2,), 1e-3).double()
    bold = step(steep, ZERO, expansion, PRECISION, start)
    wary = step(steep, ZERO, expansion, PRECISION, start, is_wary=True)
    assert torch.equal(wary.theta, bold.theta)
    assert wary.damping[0] == 4.0 * bold.damping[0] > start[0]
    assert wary.damping[1] == bold.damping[1] == start[1] / 4.0


def test_what_is_at_the_bottom_stays_there():
    bottom = torch.linalg.solve(A + torch.eye(2, dtype=torch.float64), B)
    slope = torch.einsum("rpq,rq->rp", A, bottom) - B
    expansion = Expansion(quadratic(bottom, torch.arange(2)), slope, WeightCurvature(A))
    found = step(quadratic, bottom, expansion, PRECISION, torch.full((2,), 1e-2).double())
    torch.testing.assert_close(found.theta, bottom)
    assert float(found.damping.max()) <= 1e-2  # not what eight failures would have made of it


def test_a_curvature_without_a_factor_is_damped_and_the_other_restart_moves():
    curvature = A.clone()
    curvature[0] = torch.tensor([[3.0, 0.0], [0.0, -1.0]])
    expansion = Expansion(torch.zeros(2).double(), -B, WeightCurvature(curvature))
    found = step(quadratic, ZERO, expansion, 1e-3 * PRECISION, torch.full((2,), 1e-6).double())
    assert found.n_moved == 2
    assert found.damping[0] > 0.1
