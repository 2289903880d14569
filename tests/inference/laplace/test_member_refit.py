"""Refitted members are stationary points of the Gaussian bound of their linearised network."""

import pytest
import torch
from inference.laplace.labels_problems import class_data, class_problem, held, repeated

from skbayes_sym.inference.laplace import member_refit
from skbayes_sym.inference.laplace.labels_predictive import refine
from skbayes_sym.inference.laplace.member_refit import (
    LinearisedMember,
    RefittedMembers,
    refit,
    refitted_logits,
    refitted_mixture,
)
from skbayes_sym.inference.laplace.search.labels import LabelTerms, symmetric_root
from skbayes_sym.inference.laplace.search.mode_search import EvidenceSearch, starting_points
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.priors import ScalesByGroup


@pytest.fixture
def to_the_end(monkeypatch):
    """Until nothing moves, along every direction."""
    monkeypatch.setattr(member_refit, "_SETTLED", 1e-12)
    monkeypatch.setattr(member_refit, "_MOST_STEPS", 200)
    monkeypatch.setattr(member_refit, "_LEAST_SQUARE", 1e-9)


def member_of(network, data, scale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(network.layout.n_params, generator=generator, dtype=torch.float64)
    return LinearisedMember.at(network, theta, scale, data.x)


def contrasts(values):
    return values[:, 1:] - values[:, :1] if values.shape[1] == 2 else values - values.mean(1, True)


@pytest.mark.parametrize("n", [6, 40], ids=["more weights", "more rows"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_mean_and_covariance_are_stationary(to_the_end, n, n_classes):
    data = class_data(n=n, n_classes=n_classes)
    network = MLP(2, (4,), n_classes, TANH)
    scale = torch.linspace(0.5, 1.5, network.layout.n_params, dtype=torch.float64)
    member = member_of(network, data, scale)
    found = refit(member, data).member
    theta, loc, root = found
    jacobian = contrasts(torch.func.jacrev(lambda t: network.forward(t, data.x))(theta))
    mean = contrasts(network.forward(theta, data.x)) + jacobian @ (loc - theta)
    covariance = (scale**2).diag() - root @ root.T
    spread = torch.einsum("nkp,pq,njq->nkj", jacobian, covariance, jacobian)
    terms = LabelTerms(mean, symmetric_root(spread)).terms(data.y)
    slope = torch.einsum("nkp,nk->p", jacobian, terms.slope) + loc / scale**2
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-6, rtol=0.0)
    system = torch.einsum("nkp,nkj,njq->pq", jacobian, terms.curvature, jacobian)
    precision = system + (scale**-2).diag()
    torch.testing.assert_close(precision @ covariance, torch.eye(len(theta)).double(), atol=1e-6,
                               rtol=0.0)  # fmt: skip


def test_of_a_linear_model_it_is_the_refined_mode(to_the_end):
    """Two outputs of scale s differ by one of scale s sqrt(2)."""
    data = class_data(n=25, n_classes=2)
    two, one = MLP(2, (), 2, TANH), MLP(2, (), 1, TANH)
    scale = torch.full((two.layout.n_params,), 0.7, dtype=torch.float64)
    found = refit(member_of(two, data, scale), data).logits
    prior = ScalesByGroup.given(0.7 * 2**0.5 * torch.ones(one.layout.n_params).double())
    problem = class_problem(data, n_outputs=1, prior=prior)
    start = starting_points(one, 1, generator=torch.Generator().manual_seed(0))
    modes = EvidenceSearch(60).search(held(problem), start).modes
    refined = refine(problem, modes, 30)
    expected = problem.logits(refined.theta[0], refined.covariance[0])
    torch.testing.assert_close(found.mean, expected.mean, atol=1e-6, rtol=0.0)
    torch.testing.assert_close(found.covariance, expected.covariance, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logits_of_the_rows_it_was_fitted_to(n_classes):
    data = class_data(n=30, n_classes=n_classes)
    network = MLP(2, (5,), n_classes, TANH)
    scale = torch.ones(network.layout.n_params, dtype=torch.float64)
    found = refit(member_of(network, data, scale), data)
    logits = refitted_logits(network, found.member, scale, data.x)
    # But for directions that are left out, of little variance.
    torch.testing.assert_close(logits.mean, found.logits.mean, atol=0.02, rtol=0.0)
    torch.testing.assert_close(logits.covariance, found.logits.covariance, atol=0.02, rtol=0.0)


def test_early_stop_and_fewer_directions_change_little(monkeypatch):
    data = class_data(n=30)
    network = MLP(2, (20,), 3, TANH)
    scale = torch.ones(network.layout.n_params, dtype=torch.float64)
    x = 2.0 * class_data(n=50, seed=1).x
    found = []
    for constants in ({}, {"_SETTLED": 1e-12, "_MOST_STEPS": 200, "_LEAST_SQUARE": 1e-9}):
        for name, value in constants.items():
            monkeypatch.setattr(member_refit, name, value)
        member = refit(member_of(network, data, scale), data).member
        laws = RefittedMembers.of([member], scale).tensors(x.device)
        found.append(refitted_mixture(network, laws, x, 1.0).mean())
    assert (found[0] - found[1]).abs().max() < 0.01


def test_weights_are_repetitions(to_the_end):
    weighted, rows = repeated(class_data(n=12))
    network = MLP(2, (3,), 3, TANH)
    scale = torch.ones(network.layout.n_params, dtype=torch.float64)
    one, two = (refit(member_of(network, d, scale), d).member for d in (weighted, rows))
    torch.testing.assert_close(one.loc, two.loc, atol=1e-6, rtol=0.0)
