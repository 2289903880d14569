"""Restarts begun in two ways: in noise doubt is right, at a bend belief."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from inference.laplace.labels_problems import class_data, class_problem

from skbayes_sym.inference.laplace.search.beginnings import (
    SEPARATED,
    alternating,
    search_both_ways,
    search_labels,
    unexplained,
)
from skbayes_sym.inference.laplace.search.evidence_problem import NumbersEvidence
from skbayes_sym.inference.laplace.search.mode_search import EvidenceSearch, starting_points
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import LayerScales

HOW = EvidenceSearch(60)


def problem_of(x, y, width=8):
    y = (y - y.mean()) / y.std()
    data = Data(*(torch.as_tensor(a) for a in (x, y[:, None], np.ones(len(x)))))
    network = MLP(x.shape[1], (width,), 1, TANH)
    return NumbersEvidence(network, data, LayerScales().bind(network.layout))


def a_line_in_noise():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((120, 6))
    return problem_of(x, x[:, 0] - x[:, 1] + 2.5 * rng.standard_normal(120))


def a_bend():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((80, 2))
    return problem_of(x, np.sin(3.0 * x[:, 0]) + 0.05 * rng.standard_normal(80))


def starts(problem, n):
    generator = torch.Generator().manual_seed(0)
    return LayerScales().bind(problem.network.layout).sample(n, generator=generator)


def evidence(problem, theta, doubted):
    doubted = torch.full((len(theta),), doubted)
    return HOW.search(problem, theta, doubted).modes.log_evidence


@pytest.mark.long
@pytest.mark.parametrize(
    ("problem", "right"), [(a_line_in_noise(), True), (a_bend(), False)], ids=["noise", "bend"]
)
def test_every_mode_is_of_the_better_beginning(problem, right):
    theta = starts(problem, 8)
    found = search_both_ways(HOW, problem, theta).modes.log_evidence
    assert found.shape == (4,)
    assert found.median() > evidence(problem, theta[:4], not right).max() + 5.0
    assert found.median() > evidence(problem, theta[:4], right).min() - 5.0


@pytest.mark.long
def test_where_both_beginnings_lead_alike_nothing_is_sought_anew():
    problem = a_bend()
    problem.data.y[:] = problem.data.x[:, :1]  # a line without noise
    theta = starts(problem, 8)
    search = search_both_ways(HOW, problem, theta)
    once = HOW.search(problem, theta[:4], alternating(4, theta))
    torch.testing.assert_close(search.modes.theta, once.modes.theta)


@pytest.mark.long
def test_one_mode_is_the_better_of_two():
    problem = a_line_in_noise()
    theta = starts(problem, 2)
    found = search_both_ways(HOW, problem, theta).modes.log_evidence
    both = [evidence(problem, theta[i : i + 1], b) for i, b in enumerate((False, True))]
    torch.testing.assert_close(found, torch.cat(both).max().unsqueeze(0))


@pytest.mark.parametrize("last", [20, 70])
def test_stopped_it_gives_the_first_restarts(last):
    problem = a_line_in_noise()
    told = []

    def stop(step, so_far):
        told.append(step)
        assert len(so_far().modes.theta) == 4 or step < 60
        return step == last

    search = search_both_ways(EvidenceSearch(60, tol=None), problem, starts(problem, 8), stop)
    assert told == list(range(1, last + 1))
    assert search.stopped == ["callback"] * 4
    assert len(search.modes.theta) == len(search.curves) == 4


LABELS = EvidenceSearch(30)


def noisy(n=250, n_inputs=8):
    """A line in one column, and labels that hardly follow it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, n_inputs, generator=generator, dtype=torch.float64)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    y = (uniform < torch.sigmoid(x[:, 0])).long()
    return Data(x, y, torch.ones(n, dtype=torch.float64))


@pytest.fixture(scope="module")
def problem():
    return class_problem(noisy(), (10,), 1, LayerScales(8.0, 64.0))


def labels_starts(problem, n):
    return starting_points(problem.network, n, generator=torch.Generator().manual_seed(1))


class Searches:
    """`EvidenceSearch`, with a note of what was asked; ended by the n-th search."""

    def __init__(self, ended_by=None):
        self.asked, self.ended_by = [], ended_by

    def __call__(self, problem, start, doubted):
        self.asked.append((problem.prior.names, doubted))
        search = LABELS.search(problem, start.unsqueeze(0), torch.tensor([doubted]))
        return search.ended_by("callback") if len(self.asked) == self.ended_by else search


@pytest.mark.long
def test_each_mode_is_the_better_of_its_two_ways(problem):
    two = labels_starts(problem, 2)
    same, search = search_labels(Searches(), problem, two)
    assert same is problem
    ways = torch.stack([
        LABELS.search(problem, two, torch.tensor([doubted] * 2)).modes.log_evidence
        for doubted in (False, True)
    ])  # fmt: skip
    torch.testing.assert_close(search.modes.log_evidence, ways.max(0).values)
    assert float((ways[0] - ways[1]).abs().max()) > 1.0


@pytest.mark.long
def test_doubt_keeps_weights_from_following_noise(problem):
    """At so many weights for a line, believed labels end in modes of lower evidence."""
    five = labels_starts(problem, 5)
    believed, doubted = (
        LABELS.search(problem, five, torch.tensor([doubted] * 5)).modes.log_evidence.median()
        for doubted in (False, True)
    )
    assert doubted > believed + 2.0


@pytest.mark.long
def test_the_prior_of_the_higher_evidence_is_everyones(problem):
    flat = LayerScales(8.0, 4.0).bind(problem.network.layout)
    two = labels_starts(problem, 2)
    taken, search = search_labels(Searches(), problem, two, flat)
    assert taken.prior is flat
    value = search.modes.log_evidence
    alone = search_labels(Searches(), replace(problem, prior=flat), two)[1]
    torch.testing.assert_close(value, alone.modes.log_evidence)
    steep = search_labels(Searches(), problem, two)[1]
    assert value[0] > steep.modes.log_evidence[0]


def test_separated_classes_are_searched_once():
    data = class_data(n_classes=2)
    y = (data.x[:, 0] > 0.0).long()
    data = data._replace(x=data.x + 2.0 * (2 * y - 1).unsqueeze(1), y=y)
    problem = class_problem(data, (4,), 1, LayerScales(8.0, 64.0))
    flat, searches = LayerScales(8.0, 4.0).bind(problem.network.layout), Searches()
    taken, search = search_labels(searches, problem, labels_starts(problem, 3), flat)
    assert unexplained(problem, search) < SEPARATED
    assert taken is problem
    assert [doubted for _, doubted in searches.asked] == [False] * 3


def test_noise_is_not_looked_for_when_told(problem):
    searches = Searches()
    search_labels(searches, problem, labels_starts(problem, 2), tries=False)
    assert [doubted for _, doubted in searches.asked] == [False] * 2


@pytest.mark.long
@pytest.mark.kept("5", "1")
@pytest.mark.parametrize("ended_by", range(1, 6))
def test_an_end_ends_all(problem, ended_by):
    """Two ways of the first start, two of the other prior, two of the second start."""
    searches = Searches(ended_by)
    flat = LayerScales(8.0, 4.0).bind(problem.network.layout)
    search = search_labels(searches, problem, labels_starts(problem, 3), flat)[1]
    assert len(searches.asked) == ended_by
    assert search.stopped[-1] == "callback"
    assert "callback" not in search.stopped[:-1]
    assert len(search.modes.theta) == (1 if ended_by < 5 else 2)
