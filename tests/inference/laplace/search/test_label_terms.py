"""Class terms against autograd, dense quadrature and each other."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from skbayes_sym.inference.laplace.search.label_terms import (
    LabelTerms,
    points_for_fit,
    points_for_prediction,
    symmetric_root,
)
from skbayes_sym.numerics.gaussian import gauss_hermite


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
        return LabelTerms(outputs, root).value(y).sum()

    terms = LabelTerms(outputs, root).terms(y)
    torch.testing.assert_close(terms.value.sum(), value(outputs))
    slope = torch.autograd.functional.jacobian(value, outputs)
    torch.testing.assert_close(terms.slope, slope)
    hessian = torch.autograd.functional.hessian(value, outputs)
    torch.testing.assert_close(terms.curvature, torch.einsum("nknl->nkl", hessian))


def test_a_logistic_is_a_softmax_whose_first_logit_is_zero():
    outputs, _, y = rows(n_outputs=1)
    expected = -logsigmoid(outputs[:, 0] * (2.0 * y - 1.0))
    torch.testing.assert_close(LabelTerms(outputs).value(y), expected)
    both = torch.cat([torch.zeros_like(outputs), outputs], 1)
    torch.testing.assert_close(LabelTerms(both).value(y), expected)


def test_of_one_logit_expectations_are_exact():
    outputs, root, y = rows(n_outputs=1)
    nodes, weights = gauss_hermite(120)
    sign = 2.0 * y[:, None] - 1.0
    log_p = logsigmoid(sign * (outputs + root[:, 0] * nodes))
    terms = LabelTerms(outputs, root)
    torch.testing.assert_close(terms.value(y), -log_p @ weights, atol=1e-5, rtol=0.0)
    exact = (log_p.exp() @ weights).log()
    torch.testing.assert_close(terms.log_likelihood(y), exact, atol=1e-5, rtol=0.0)


def test_of_several_logits_expectations_are_near():
    outputs, root, y = rows()
    noise = torch.randn(200_000, 3, generator=torch.Generator().manual_seed(2)).double()
    log_p = (outputs + torch.einsum("nkj,sj->snk", root, noise)).log_softmax(-1)
    chosen = log_p[:, torch.arange(5), y]
    few = LabelTerms(outputs, root).value(y)
    torch.testing.assert_close(few, -chosen.mean(0), atol=0.1, rtol=0.0)
    many = LabelTerms(outputs, root, points_for_prediction(3)).log_likelihood(y)
    torch.testing.assert_close(many, chosen.exp().mean(0).log(), atol=0.1, rtol=0.0)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_points_are_a_rule_of_the_standard_normal(n_outputs):
    for rule in (points_for_fit(n_outputs), points_for_prediction(n_outputs)):
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
