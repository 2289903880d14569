"""Sums of classification networks against autograd; weights are repetitions; blocks add up."""

from dataclasses import replace

import pytest
import torch
from inference.laplace.labels_problems import class_data, class_problem, grid_log_evidence, repeated

from skbayes_sym.inference.laplace.search import labels
from skbayes_sym.inference.laplace.search import problem as problem_module
from skbayes_sym.inference.laplace.search.label_terms import LabelTerms, symmetric_root
from skbayes_sym.inference.laplace.search.systems import WeightCurvature


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
    monkeypatch.setattr(problem_module, "are_few", lambda *_: request.param)
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
        return data.weight @ LabelTerms(outputs).value(data.y)

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
        return data.weight @ LabelTerms(mean + dense @ (t - theta)).value(data.y)

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
    monkeypatch.setattr(labels, "_NUMBERS", 600)
    assert 1 < labels.rows_per_block(problem.network) < 7
    logits = problem.logits(theta[0], covariance)
    blocks = (*numbers(problem.expansion(theta)), problem.misfit(theta), *logits)
    for a, b in zip(whole, blocks, strict=True):
        torch.testing.assert_close(a, b)


def test_the_evidence_is_the_normal_integral_where_the_posterior_is_sharp():
    """Two weights, quadrature of the exact integrand against Laplace's estimate."""
    data = class_data(n=400, n_inputs=1, n_classes=2)
    problem = class_problem(data, n_outputs=1)
    theta, hyper = torch.zeros(1, 2).double(), problem.begin(torch.tensor([False])).hyper
    for _ in range(20):
        expansion = problem.expansion(theta)
        system = problem.system(expansion.curvature, hyper)
        slope = expansion.gradient + hyper.log_precision.exp()[:, problem.prior.group] * theta
        theta = theta - system.solve(slope)
    (found,) = problem.log_evidence(theta, problem.misfit(theta), hyper, system)
    exact = grid_log_evidence(problem, hyper.log_precision[0], theta[0], (1.5, 1.5))
    torch.testing.assert_close(found, exact, atol=0.03, rtol=0.0)
