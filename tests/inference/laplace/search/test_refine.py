"""Refined laws bound the evidence from below and are stationary points of the bound."""

import pytest
import torch
from inference.laplace.labels_problems import class_data, class_problem, grid_log_evidence, held

from skbayes_sym.inference.laplace.labels_predictive import (
    Posteriors,
    gaussian_bound,
    labels_mixture,
    refine,
)
from skbayes_sym.inference.laplace.search.mode_search import EvidenceSearch, starting_points
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import LayerScales


def modes_of(problem, n=1, max_iter=60, tol="auto"):
    start = starting_points(problem.network, n, generator=torch.Generator().manual_seed(0))
    return EvidenceSearch(max_iter, tol).search(problem, start).modes


def separated(n=12):
    x = torch.linspace(-2.0, 2.0, n, dtype=torch.float64)
    return Data(x[:, None], (x > 0.0).long(), torch.ones(n, dtype=torch.float64))


@pytest.mark.parametrize("separate", [False, True], ids=["overlapping", "separated"])
def test_the_bound_is_below_the_evidence_and_close(separate):
    data = separated() if separate else class_data(n=15, n_inputs=1, n_classes=2)
    problem = held(class_problem(data, n_outputs=1))
    modes = modes_of(problem)
    reach = 6.0 * (-0.5 * modes.hyper[0]).exp()
    exact = grid_log_evidence(problem, modes.hyper[0], (0.0, 0.0), reach, n=301)
    refined = refine(problem, modes, n_steps=20)
    assert refined.bound[0] < exact
    assert refined.bound[0] > exact - 0.15
    laplace = gaussian_bound(problem, modes.theta[0], modes.hyper[0], modes.factor[0])
    assert laplace < refined.bound[0]  # Laplace's law is a normal law too, and a worse one
    for shift in (-0.3, 0.3):
        moved = gaussian_bound(problem, refined.theta[0] + shift, modes.hyper[0], refined.factor[0])
        wider = gaussian_bound(
            problem, refined.theta[0], modes.hyper[0], (1.0 + shift) * refined.factor[0]
        )
        assert max(moved, wider) < refined.bound[0]


@pytest.mark.parametrize(("n_outputs", "n_classes"), [(1, 2), (3, 3)], ids=["logistic", "softmax"])
def test_of_a_linear_model_the_law_is_a_fixed_point(n_outputs, n_classes):
    problem = held(class_problem(class_data(n_classes=n_classes), n_outputs=n_outputs))
    modes = modes_of(problem)
    refined = refine(problem, modes, n_steps=25)
    again = refine(problem, modes, n_steps=26)
    torch.testing.assert_close(again.theta, refined.theta, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(again.covariance, refined.covariance, atol=1e-5, rtol=1e-4)


def test_separated_classes_become_confident_again():
    """Where the softmax is flat Laplace leaves logits the prior's variance."""
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Data(x, x[:, :3].argmax(1), torch.ones(30, dtype=torch.float64))
    problem = held(class_problem(data, (4,), prior=LayerScales(8.0, 64.0)))
    modes = modes_of(problem, n=2)
    laws = zip(modes.theta, modes.hyper, modes.factor, strict=True)
    laplace = torch.stack([gaussian_bound(problem, *law) for law in laws])
    refined = refine(problem, modes)
    assert torch.all(refined.bound > laplace)
    losses = []
    for law in (modes, refined):
        mixture = labels_mixture(problem.network, Posteriors(law.theta, law.covariance), x, 1.0)
        losses.append(-mixture.mean()[torch.arange(30), data.y].log().mean())
    assert losses[1] < 0.5 * losses[0]
