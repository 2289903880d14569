"""Modes of classifiers against scikit-learn; scales at the evidence's maximum; endings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from inference.laplace.labels_problems import class_data, class_problem, repeated
from sklearn.linear_model import LogisticRegression

from skbayes_sym.inference.laplace.search import modes as modes_module
from skbayes_sym.inference.laplace.search.gauss_newton import INITIAL_DAMPING
from skbayes_sym.inference.laplace.search.modes import ClassModeSearch, starting_points
from skbayes_sym.models import MLP, TANH


def starts(problem, n=2):
    return starting_points(problem.network, n, generator=torch.Generator().manual_seed(0))


@pytest.mark.long
@pytest.mark.parametrize(("n_outputs", "n_classes"), [(1, 2), (3, 3)], ids=["logistic", "softmax"])
def test_a_linear_mode_is_logistic_regressions(n_outputs, n_classes):
    data, _ = repeated(class_data(n_classes=n_classes))
    problem = class_problem(data, n_outputs=n_outputs)
    # scikit-learn leaves intercepts alone; so does a prior this wide.
    hyper = torch.tensor([2.0, 1e-7], dtype=torch.float64).log()
    problem = replace(problem, prior=replace(problem.prior, hyper=hyper))
    modes = ClassModeSearch(learn_scales=False, tol=None).search(problem, starts(problem))
    reference = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000)
    reference.fit(data.x.numpy(), data.y.numpy(), sample_weight=data.weight.numpy())
    for theta in modes.theta:
        weight, bias = problem.network.layers(theta)[0]
        np.testing.assert_allclose(weight, reference.coef_, atol=1e-4)
        shift = 0.0 if n_outputs == 1 else bias.mean()
        np.testing.assert_allclose(bias - shift, reference.intercept_, atol=1e-4)
    assert torch.equal(modes.hyper, hyper.expand(2, -1))


@pytest.mark.long
def test_learned_scales_are_where_mackays_step_stands_still():
    problem = class_problem(class_data())
    modes = ClassModeSearch(max_iter=80, tol=None).search(problem, starts(problem))
    torch.testing.assert_close(modes.theta, modes.theta[:1].expand(2, -1), atol=1e-5, rtol=0.0)
    variance = modes.covariance.diagonal(dim1=1, dim2=2)
    again = problem.prior.evidence_step(modes.theta, variance, modes.hyper, 1.0)
    torch.testing.assert_close(again, modes.hyper, atol=1e-4, rtol=0.0)


def test_searches_end_early_and_keep_the_best():
    problem = class_problem(class_data(), (4,))
    modes = ClassModeSearch(tol=1e-3).search(problem, starts(problem))
    assert int(modes.n_iter.max()) < 60
    for value, curve in zip(modes.log_evidence, modes.curves, strict=True):
        torch.testing.assert_close(value, curve[8:].max())


def test_weights_are_repetitions():
    weighted, rows = repeated(class_data(n=20))
    found = []
    for data in (weighted, rows):
        problem = class_problem(data, (3,))
        found.append(ClassModeSearch(max_iter=12).search(problem, starts(problem)))
    torch.testing.assert_close(found[0].log_evidence, found[1].log_evidence)
    torch.testing.assert_close(found[0].theta, found[1].theta, atol=1e-6, rtol=1e-6)


def test_exchanging_classes_exchanges_outputs():
    data, order = class_data(n=20), torch.tensor([2, 0, 1])
    exchanged = data._replace(y=order.argsort()[data.y])
    problem, other = class_problem(data, (3,)), class_problem(exchanged, (3,))
    start = starts(problem, 1)
    params = problem.network.layout.unflatten(start)
    moved = {**params, "W2": params["W2"][:, order], "b2": params["b2"][:, order]}
    search = ClassModeSearch(max_iter=12)
    found = search.search(problem, start)
    mirror = search.search(other, problem.network.layout.flatten(moved))
    torch.testing.assert_close(found.log_evidence, mirror.log_evidence)
    logits = problem.network.forward(found.theta[0], data.x)[:, order]
    torch.testing.assert_close(other.network.forward(mirror.theta[0], data.x), logits)


def test_damping_begins_anew_where_doubt_ends(monkeypatch):
    """What labels that hardly count allow is far too little for labels that do."""
    dampings, original = [], modes_module.step

    def spy(misfit, theta, expansion, precision, damping, **how):
        dampings.append(float(damping))
        return original(misfit, theta, expansion, precision, damping, **how)

    monkeypatch.setattr(modes_module, "step", spy)
    problem = class_problem(class_data(), (4,))
    ClassModeSearch(max_iter=12, tol=None, doubts_labels=True).search(problem, starts(problem, 1))
    n_first = modes_module._HYPER_START
    assert dampings[0] == dampings[n_first] == INITIAL_DAMPING
    assert dampings[n_first - 1] < INITIAL_DAMPING


def test_many_weights_update_scales_in_one_step_of_three(monkeypatch):
    monkeypatch.setattr(modes_module, "_MANY_PARAMS", 20)
    problem = class_problem(class_data(n=10), (4,))
    modes = ClassModeSearch(max_iter=12, tol=None).search(problem, starts(problem, 1))
    assert len(modes.curves[0]) == 2
    every = ClassModeSearch(max_iter=12, tol=None, update_every=1)
    assert len(every.search(problem, starts(problem, 1)).curves[0]) == 4


def test_a_callback_ends_the_search_after_the_mode_it_is_at():
    problem, seen = class_problem(class_data(), (3,)), []

    def on_step(step, info):
        seen.append((step, info["loss"]))
        return step == 30

    search = ClassModeSearch(max_iter=20, tol=None)
    modes = search.search(problem, starts(problem, 4), on_step)
    assert [step for step, _ in seen] == list(range(1, 31))
    assert modes.n_iter.tolist() == [20, 10]


def test_starting_points_give_logits_of_order_one():
    network = MLP(50, (30, 40), 3, TANH)
    theta = starting_points(network, 100, generator=torch.Generator().manual_seed(0))
    x = torch.randn(20, 50, generator=torch.Generator().manual_seed(1)).double()
    assert 0.3 < network.forward(theta, x).std() < 1.0
    assert not network.layers(theta)[-1][1].any()
