"""Beginnings and priors where labels are noisy: the evidence chooses, and an end ends all."""

from dataclasses import replace

import pytest
import torch
from inference.laplace.labels_problems import class_data, class_problem

from skbayes_sym.inference.laplace.search.labels_beginnings import (
    SEPARATED,
    search_labels,
    unexplained,
)
from skbayes_sym.inference.laplace.search.modes import ClassModeSearch, starting_points
from skbayes_sym.models.data import Data
from skbayes_sym.models.learned_scales import LayerScales

HOW = ClassModeSearch(max_iter=30)


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


class Searches:
    """`ClassModeSearch`, with a note of what was asked; ended by the n-th search."""

    def __init__(self, ended_by=None):
        self.asked, self.ended_by = [], ended_by

    def __call__(self, problem, start, doubted):
        self.asked.append((problem.prior.names, doubted))
        found = replace(HOW, doubts_labels=doubted).search(problem, start.unsqueeze(0))
        self.found = (
            found if len(self.asked) != self.ended_by else found._replace(stopped=["callback"])
        )
        return self.found


def starts(problem, n):
    return starting_points(problem.network, n, generator=torch.Generator().manual_seed(1))


@pytest.mark.long
def test_each_mode_is_the_better_of_its_two_ways(problem):
    two = starts(problem, 2)
    same, modes = search_labels(Searches(), problem, two)
    assert same is problem
    ways = torch.stack([
        replace(HOW, doubts_labels=doubted).search(problem, two).log_evidence
        for doubted in (False, True)
    ])  # fmt: skip
    torch.testing.assert_close(modes.log_evidence, ways.max(0).values)
    assert float((ways[0] - ways[1]).abs().max()) > 1.0


@pytest.mark.long
def test_doubt_keeps_weights_from_following_noise(problem):
    """At so many weights for a line, believed labels end in modes of lower evidence."""
    five = starts(problem, 5)
    believed, doubted = (
        replace(HOW, doubts_labels=doubted).search(problem, five).log_evidence.median()
        for doubted in (False, True)
    )
    assert doubted > believed + 2.0


@pytest.mark.long
def test_the_prior_of_the_higher_evidence_is_everyones(problem):
    flat = LayerScales(8.0, 4.0).bind(problem.network.layout)
    two = starts(problem, 2)
    taken, modes = search_labels(Searches(), problem, two, flat)
    assert taken.prior is flat
    own = search_labels(Searches(), replace(problem, prior=flat), two)[1]
    torch.testing.assert_close(modes.log_evidence, own.log_evidence)
    assert modes.log_evidence[0] > search_labels(Searches(), problem, two)[1].log_evidence[0]


def test_separated_classes_are_searched_once():
    data = class_data(n_classes=2)
    y = (data.x[:, 0] > 0.0).long()
    data = data._replace(x=data.x + 2.0 * (2 * y - 1).unsqueeze(1), y=y)
    problem = class_problem(data, (4,), 1, LayerScales(8.0, 64.0))
    flat, searches = LayerScales(8.0, 4.0).bind(problem.network.layout), Searches()
    taken, modes = search_labels(searches, problem, starts(problem, 3), flat)
    assert unexplained(problem, modes) < SEPARATED
    assert taken is problem
    assert [doubted for _, doubted in searches.asked] == [False] * 3


def test_noise_is_not_looked_for_when_told(problem):
    searches = Searches()
    search_labels(searches, problem, starts(problem, 2), tries=False)
    assert [doubted for _, doubted in searches.asked] == [False] * 2


@pytest.mark.long
@pytest.mark.kept("5", "1")
@pytest.mark.parametrize("ended_by", range(1, 6))
def test_an_end_ends_all(problem, ended_by):
    """Two ways of the first start, two of the other prior, two of the second start."""
    searches = Searches(ended_by)
    flat = LayerScales(8.0, 4.0).bind(problem.network.layout)
    modes = search_labels(searches, problem, starts(problem, 3), flat)[1]
    assert len(searches.asked) == ended_by
    assert modes.stopped[-1] == "callback"
    assert "callback" not in modes.stopped[:-1]
    assert len(modes.theta) == (1 if ended_by < 5 else 2)
