"""Labels given logits, and sums over rows, against autograd and closed forms."""

from dataclasses import replace

import pytest
import torch
from laplace.classification_problems import class_data, class_problem, grid_log_evidence, repeated
from torch.nn.functional import logsigmoid

from skbayes_sym.laplace import evidence_problem
from skbayes_sym.laplace.gauss_newton import WeightCurvature
from skbayes_sym.models.networks import mlp_passes
from skbayes_sym.models.normal_logits import (
    SoftmaxExpectations,
    normal_points,
    points_for_prediction,
    symmetric_root,
)
from skbayes_sym.numerics.gaussian import gauss_hermite


def start(problem):
    return problem.network.init(1, generator=torch.Generator().manual_seed(0))


def matrix_of(curvature):
    """The curvature (P, P) of a batch of one, in whichever space it is."""
    if isinstance(curvature, WeightCurvature):
        return curvature.matrix[0]
    return curvature.root[0].mT @ curvature.root[0]


def numbers(expansion):
    return *expansion[:2], matrix_of(expansion.curvature)


@pytest.fixture(params=[False, True], ids=["weights", "rows"])
def few(request, monkeypatch):
    """Systems in the space of the weights, and in that of the rows."""
    monkeypatch.setattr(evidence_problem, "is_row_space_smaller", lambda *_: request.param)
    return request.param


@pytest.mark.parametrize(("n_outputs", "n_classes"), [(1, 2), (3, 3)], ids=["logistic", "softmax"])
@pytest.mark.parametrize("widths", [(), (3,), (2, 3)], ids=str)
def test_the_expansion_is_autograds_with_the_curvature_of_the_linearised_network(
    widths, n_outputs, n_classes, few
):
    data, _ = repeated(class_data(n=9, n_classes=n_classes))
    problem = class_problem(data, widths, n_outputs)
    theta = start(problem)

    def misfit(t):
        outputs = problem.network.forward(t, data.x)
        return data.weight @ SoftmaxExpectations(outputs).value(data.y)

    found = problem.expansion(theta)
    (value,) = problem.misfit(theta)
    theta = theta[0]
    torch.testing.assert_close(found.value[0], misfit(theta))
    torch.testing.assert_close(value, misfit(theta))
    slope = torch.autograd.functional.jacobian(misfit, theta)
    torch.testing.assert_close(found.gradient[0], slope)
    # Linearised, the network's Hessian is the Gauss-Newton matrix.
    mean, dense = (
        problem.network.forward(theta, data.x),
        torch.autograd.functional.jacobian(lambda t: problem.network.forward(t, data.x), theta),
    )

    def linearised(t):
        return data.weight @ SoftmaxExpectations(mean + dense @ (t - theta)).value(data.y)

    hessian = torch.autograd.functional.hessian(linearised, theta)
    torch.testing.assert_close(matrix_of(found.curvature), hessian)


def test_weights_are_repetitions(few):
    weighted, rows = repeated(class_data(n=7))
    one, other = class_problem(weighted, (3,)), class_problem(rows, (3,))
    found = (numbers(problem.expansion(start(one))) for problem in (one, other))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_blocks_of_rows_add_up(monkeypatch, few):
    problem = class_problem(class_data(n=7), (3,))
    theta = start(problem)
    covariance = torch.eye(theta.shape[1]).double()
    logits = problem.logits(theta[0], covariance)
    problem = replace(problem, root=symmetric_root(logits.covariance))
    whole = (*numbers(problem.expansion(theta)), problem.misfit(theta), *logits)
    monkeypatch.setattr(mlp_passes, "_BLOCK_ELEMENTS", 768)
    assert 1 < evidence_problem.jacobian_block_size(problem.network) < 7
    logits = problem.logits(theta[0], covariance)
    blocks = (*numbers(problem.expansion(theta)), problem.misfit(theta), *logits)
    for a, b in zip(whole, blocks, strict=True):
        torch.testing.assert_close(a, b)


def test_the_evidence_is_the_normal_integral_where_the_posterior_is_sharp():
    """Two weights, quadrature of the exact integrand against Laplace's estimate."""
    data = class_data(n=400, n_inputs=1, n_classes=2)
    problem = class_problem(data, n_outputs=1)
    theta, hyper = torch.zeros(1, 2).double(), problem.initialize(torch.tensor([False]))[1]
    for _ in range(20):
        expansion = problem.expansion(theta)
        system = problem.system(expansion.curvature, hyper)
        slope = expansion.gradient + hyper.log_precision.exp()[:, problem.prior.group] * theta
        theta = theta - system.solve(slope)
    (found,), _ = problem.evaluate(theta, problem.expansion(theta), hyper)
    exact = grid_log_evidence(problem, hyper.log_precision[0], theta[0], (1.5, 1.5))
    torch.testing.assert_close(found, exact, atol=0.03, rtol=0.0)


def rows(n=5, n_outputs=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    outputs = 2.0 * torch.randn(n, n_outputs, generator=generator, dtype=torch.float64)
    root = torch.randn(n, n_outputs, n_outputs, generator=generator, dtype=torch.float64)
    y = torch.randint(max(2, n_outputs), (n,), generator=generator)
    return outputs, symmetric_root(root @ root.mT), y


@pytest.mark.parametrize("spread", [False, True], ids=["at a point", "averaged"])
@pytest.mark.parametrize("n_outputs", [1, 2, 4])
def test_slope_and_curvature_are_autograds(n_outputs, spread):
    outputs, root, y = rows(n_outputs=n_outputs)
    root = root if spread else None

    def value(outputs):
        return SoftmaxExpectations(outputs, root).value(y).sum()

    terms = SoftmaxExpectations(outputs, root).derivatives(y)
    torch.testing.assert_close(terms.value.sum(), value(outputs))
    slope = torch.autograd.functional.jacobian(value, outputs)
    torch.testing.assert_close(terms.slope, slope)
    hessian = torch.autograd.functional.hessian(value, outputs)
    torch.testing.assert_close(terms.curvature, torch.einsum("nknl->nkl", hessian))


def test_a_logistic_is_a_softmax_whose_first_logit_is_zero():
    outputs, _, y = rows(n_outputs=1)
    expected = -logsigmoid(outputs[:, 0] * (2.0 * y - 1.0))
    torch.testing.assert_close(SoftmaxExpectations(outputs).value(y), expected)
    both = torch.cat([torch.zeros_like(outputs), outputs], 1)
    torch.testing.assert_close(SoftmaxExpectations(both).value(y), expected)


def test_of_one_logit_expectations_are_exact():
    outputs, root, y = rows(n_outputs=1)
    nodes, weights = gauss_hermite(120)
    sign = 2.0 * y[:, None] - 1.0
    log_p = logsigmoid(sign * (outputs + root[:, 0] * nodes))
    terms = SoftmaxExpectations(outputs, root)
    torch.testing.assert_close(terms.value(y), -log_p @ weights, atol=1e-5, rtol=0.0)
    exact = (log_p.exp() @ weights).log()
    torch.testing.assert_close(terms.log_likelihood(y), exact, atol=1e-5, rtol=0.0)


def test_of_several_logits_expectations_are_near():
    outputs, root, y = rows()
    noise = torch.randn(200_000, 3, generator=torch.Generator().manual_seed(2)).double()
    log_p = (outputs + torch.einsum("nkj,sj->snk", root, noise)).log_softmax(-1)
    chosen = log_p[:, torch.arange(5), y]
    few = SoftmaxExpectations(outputs, root).value(y)
    torch.testing.assert_close(few, -chosen.mean(0), atol=0.1, rtol=0.0)
    many = SoftmaxExpectations(outputs, root, points_for_prediction(3)).log_likelihood(y)
    torch.testing.assert_close(many, chosen.exp().mean(0).log(), atol=0.1, rtol=0.0)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_points_are_a_rule_of_the_standard_normal(n_outputs):
    for rule in (normal_points(n_outputs), points_for_prediction(n_outputs)):
        torch.testing.assert_close(rule.weights.sum(), torch.tensor(1.0).double())
        zero = torch.zeros(n_outputs, dtype=torch.float64)
        torch.testing.assert_close(rule.weights @ rule.points, zero, atol=1e-12, rtol=0.0)
        second = (rule.points.T * rule.weights) @ rule.points
        torch.testing.assert_close(second, torch.eye(n_outputs).double(), atol=0.2, rtol=0.0)


def test_the_symmetric_root_squares_and_follows_exchanges():
    matrix = rows()[1] @ rows()[1]
    root, order = symmetric_root(matrix), [2, 0, 1]
    torch.testing.assert_close(root @ root, matrix)
    exchanged = symmetric_root(matrix[:, order][:, :, order])
    torch.testing.assert_close(exchanged, root[:, order][:, :, order])
