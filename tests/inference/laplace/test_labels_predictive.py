"""Predictions of classes: probabilities, exchanges of classes, and rows truly left out."""

import pytest
import torch
from inference.laplace.labels_problems import class_data, class_problem, held, repeated

from skbayes_sym.inference.laplace import labels_predictive
from skbayes_sym.inference.laplace.labels_predictive import (
    VARIANCE_SCALES,
    LeftOut,
    Posteriors,
    choose_variance_scale,
    labels_mixture,
    leave_one_out,
    refine,
)
from skbayes_sym.inference.laplace.search.labels import LabelTerms
from skbayes_sym.inference.laplace.search.mode_search import EvidenceSearch, starting_points
from skbayes_sym.models.model import Data

KINDS = pytest.mark.parametrize(
    ("n_outputs", "n_classes"), [(1, 2), (3, 3)], ids=["logistic", "softmax"]
)


def modes_of(problem, n=1, max_iter=60):
    start = starting_points(problem.network, n, generator=torch.Generator().manual_seed(0))
    return EvidenceSearch(max_iter).search(problem, start).modes


def posteriors(modes):
    return Posteriors(modes.theta, modes.covariance)


@KINDS
@pytest.mark.parametrize("variance_scale", VARIANCE_SCALES)
def test_probabilities_and_weights_sum_to_one(n_outputs, n_classes, variance_scale):
    problem = class_problem(class_data(n_classes=n_classes), (3,), n_outputs)
    laws = posteriors(modes_of(problem, n=2, max_iter=10))
    mixture = labels_mixture(problem.network, laws, problem.data.x, variance_scale)
    total = mixture.log_probs.logsumexp(-1)
    torch.testing.assert_close(total, torch.zeros_like(total))
    one = torch.ones((), dtype=torch.float64)
    torch.testing.assert_close(mixture.log_weights.exp().sum(), one)
    assert mixture.mean().shape == (40, n_classes)


def test_without_variance_it_is_the_mean_of_the_modes():
    problem = class_problem(class_data(), (3,))
    laws = posteriors(modes_of(problem, n=2, max_iter=10))
    mixture = labels_mixture(problem.network, laws, problem.data.x, 0.0)
    outputs = problem.network.forward(laws.theta, problem.data.x)
    torch.testing.assert_close(mixture.mean(), outputs.softmax(-1).mean(0))


@pytest.mark.parametrize(("variance_scale", "atol"), [(0.0, 1e-12), (1.0, 0.02)])
def test_exchanging_classes_exchanges_probabilities(variance_scale, atol):
    """Exactly but for the points, which treat the classes alike to quasi-Monte Carlo error."""
    problem, order = class_problem(class_data(), (3,)), torch.tensor([2, 0, 1])
    laws, layout = posteriors(modes_of(problem, max_iter=10)), problem.network.layout
    places = layout.unflatten(torch.arange(layout.n_params))
    moved = {**places, "W2": places["W2"][order], "b2": places["b2"][order]}
    index = layout.flatten(moved)
    exchanged = Posteriors(laws.theta[:, index], laws.covariance[:, index][:, :, index])
    found = [
        labels_mixture(problem.network, these, problem.data.x, variance_scale).mean()
        for these in (laws, exchanged)
    ]
    torch.testing.assert_close(found[0][:, order], found[1], atol=atol, rtol=0.0)


@pytest.mark.long
@pytest.mark.kept("refined-softmax", "mode-logistic")
@KINDS
@pytest.mark.parametrize("averaged", [False, True], ids=["mode", "refined"])
def test_leaving_out_is_near_to_fitting_without_the_row(n_outputs, n_classes, averaged):
    data = class_data(n=15, n_classes=n_classes)

    def law(rows):
        problem = class_problem(rows, n_outputs=n_outputs)
        modes = modes_of(held(problem), max_iter=12)
        return problem, refine(problem, modes, 15) if averaged else modes

    problem, laws = law(data)
    theta, (approximate,) = laws.theta[0], leave_one_out(problem, laws)
    log_p = LabelTerms(*approximate).log_likelihood(data.y)
    within = LabelTerms(problem.network.forward(theta, data.x)).log_likelihood(data.y)
    exact = []
    for row in range(15):
        kept = torch.arange(15) != row
        _, found = law(Data(*(t[kept] for t in data)))
        mixture = labels_mixture(problem.network, posteriors(found), data.x, 1.0)
        probabilities = mixture.mean()
        exact.append(probabilities[row, data.y[row]].log())
    exact = torch.stack(exact)
    assert (log_p - exact).abs().mean() < 0.1
    assert (log_p - exact).abs().mean() < 0.25 * (within - exact).abs().mean()


def test_the_scale_with_the_least_loss_is_chosen_and_weights_are_repetitions():
    weighted, rows = repeated(class_data(n=12))
    found = []
    for data in (weighted, rows):
        problem = class_problem(data, (3,))
        found.append(choose_variance_scale(problem, modes_of(problem, n=2, max_iter=8)))
    torch.testing.assert_close(found[0].log_losses, found[1].log_losses)
    assert found[0].chosen == VARIANCE_SCALES[int(found[0].log_losses.argmin())]


def test_a_row_thrown_far_away_does_not_decide(monkeypatch):
    problem = class_problem(class_data())
    far = torch.zeros(40, 3, dtype=torch.float64)
    far[torch.arange(40), problem.data.y] = 8.0
    far[0] *= -1e6
    law = LeftOut(far, torch.eye(3, dtype=torch.float64).expand(40, 3, 3))
    monkeypatch.setattr(labels_predictive, "leave_one_out", lambda *_: [law])
    found = choose_variance_scale(problem, modes_of(problem, max_iter=1))
    assert found.chosen == 0.0  # as 39 of 40 rows say
    assert found.log_losses.max() < 1.0


def test_labels_at_random_keep_the_variance_and_a_clear_rule_does_not():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    weight = torch.ones(60, dtype=torch.float64)
    chosen = []
    for y in (torch.randint(0, 2, (60,), generator=generator), (x[:, 0] > 0.0).long()):
        problem = class_problem(Data(x, y, weight), (10,), n_outputs=1)
        modes = modes_of(held(problem))
        chosen.append(choose_variance_scale(problem, modes).chosen)
    assert chosen[0] >= 1.0
    assert chosen[1] < 1.0
