"""Restarts begun in two ways, and cross-validated modes against fits of the other rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from laplace.classification_problems import class_data, class_problem
from scipy import stats

from skbayes_sym.laplace.evidence_problem import GaussianEvidence
from skbayes_sym.laplace.initialization import (
    SEPARATED_MISFIT,
    alternating_mask,
    assign_folds,
    cross_validate,
    is_better,
    misfit_per_row,
    search_classification,
    search_regression,
    unexplained_variance_fraction,
)
from skbayes_sym.laplace.mode_finding import EvidenceSearch, draw_initial_weights
from skbayes_sym.laplace.posterior import LinearisedModes
from skbayes_sym.laplace.predict import ModesPredictor
from skbayes_sym.models import MLP, TANH, Gaussian, LayerScales
from skbayes_sym.models.model import Data

HOW = EvidenceSearch(60)


def problem_of(x, y, width=8):
    y = (y - y.mean()) / y.std()
    data = Data(*(torch.as_tensor(a) for a in (x, y[:, None], np.ones(len(x)))))
    network = MLP(x.shape[1], (width,), 1, TANH)
    return GaussianEvidence(network, data, LayerScales().bind(network.layout))


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


def evidence(problem, theta, high_noise):
    high_noise = torch.full((len(theta),), high_noise)
    return HOW.search(problem, theta, high_noise).modes.log_evidence


@pytest.mark.long
@pytest.mark.parametrize(
    ("problem", "right"), [(a_line_in_noise(), True), (a_bend(), False)], ids=["noise", "bend"]
)
def test_every_mode_is_of_the_better_beginning(problem, right):
    theta = starts(problem, 8)
    found = search_regression(HOW, problem, lambda n: theta[:n], 4).modes.log_evidence
    assert found.shape == (4,)
    assert found.median() > evidence(problem, theta[:4], not right).max() + 5.0
    assert found.median() > evidence(problem, theta[:4], right).min() - 5.0


@pytest.mark.long
def test_where_both_beginnings_lead_alike_nothing_is_sought_anew():
    problem = a_bend()
    noise = torch.as_tensor(np.random.default_rng(9).standard_normal((80, 1)))
    problem.data.y[:] = problem.data.x[:, :1] + 0.1 * noise  # a line: one mode
    theta = starts(problem, 8)
    search = search_regression(HOW, problem, lambda n: theta[:n], 4)
    once = HOW.search(problem, theta[:4], alternating_mask(4, theta))
    torch.testing.assert_close(search.modes.theta, once.modes.theta)


@pytest.mark.long
def test_one_mode_is_the_better_of_two():
    problem = a_line_in_noise()
    theta = starts(problem, 2)
    found = search_regression(HOW, problem, lambda n: theta[:n], 1).modes.log_evidence
    both = [evidence(problem, theta[i : i + 1], b) for i, b in enumerate((False, True))]
    torch.testing.assert_close(found, torch.cat(both).max().unsqueeze(0))


def test_two_of_three_modes_show_the_better_start():
    problem = a_line_in_noise()
    theta = starts(problem, 4)
    n_restarts = []

    class Recorder(EvidenceSearch):
        def search(self, problem, theta, *arguments):
            n_restarts.append(len(theta))
            return super().search(problem, theta, *arguments)

    search = search_regression(Recorder(60), problem, lambda n: theta[:n], 3)
    assert n_restarts == [2, 2]
    best = evidence(problem, theta[1:], True)
    torch.testing.assert_close(search.modes.log_evidence, best)


@pytest.mark.parametrize("last", [20, 70])
def test_stopped_it_gives_the_first_restarts(last):
    problem = a_line_in_noise()
    told = []

    def stop(step, so_far):
        told.append(step)
        assert len(so_far().modes.theta) == 4 or step < 60
        return step == last

    how = EvidenceSearch(60, tol=None)
    search = search_regression(how, problem, lambda n: starts(problem, n), 4, stop)
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


def find_classification_modes(problem, n):
    return draw_initial_weights(problem.network, n, generator=torch.Generator().manual_seed(1))


class Searches:
    """`EvidenceSearch`, with a note of what was asked; ended by the n-th search."""

    def __init__(self, n_searches=None):
        self.asked, self.n_searches = [], n_searches

    def __call__(self, problem, start, high_noise):
        self.asked.append((problem.prior.names, high_noise))
        search = LABELS.search(problem, start.unsqueeze(0), torch.tensor([high_noise]))
        return search.with_stop_reason("callback") if len(self.asked) == self.n_searches else search


@pytest.mark.long
def test_each_mode_is_the_better_of_its_two_ways(problem):
    two = find_classification_modes(problem, 2)
    same, search = search_classification(Searches(), problem, two)
    assert same is problem
    ways = torch.stack([
        LABELS.search(problem, two, torch.tensor([high_noise] * 2)).modes.log_evidence
        for high_noise in (False, True)
    ])  # fmt: skip
    torch.testing.assert_close(search.modes.log_evidence, ways.max(0).values)
    assert float((ways[0] - ways[1]).abs().max()) > 1.0


@pytest.mark.long
def test_the_prior_of_the_higher_evidence_is_everyones(problem):
    flat = LayerScales(8.0, 4.0).bind(problem.network.layout)
    two = find_classification_modes(problem, 2)
    taken, search = search_classification(Searches(), problem, two, flat)
    assert taken.prior is flat
    value = search.modes.log_evidence
    alone = search_classification(Searches(), replace(problem, prior=flat), two)[1]
    torch.testing.assert_close(value, alone.modes.log_evidence)
    steep = search_classification(Searches(), problem, two)[1]
    assert value[0] > steep.modes.log_evidence[0]


def test_separated_classes_are_searched_once():
    data = class_data(n_classes=2)
    y = (data.x[:, 0] > 0.0).long()
    data = data._replace(x=data.x + 2.0 * (2 * y - 1).unsqueeze(1), y=y)
    problem = class_problem(data, (4,), 1, LayerScales(8.0, 64.0))
    flat, searches = LayerScales(8.0, 4.0).bind(problem.network.layout), Searches()
    taken, search = search_classification(
        searches, problem, find_classification_modes(problem, 3), flat
    )
    assert misfit_per_row(problem, search) < SEPARATED_MISFIT
    assert taken is problem
    assert [high_noise for _, high_noise in searches.asked] == [False] * 3


def test_noise_is_not_looked_for_when_told(problem):
    searches = Searches()
    search_classification(
        searches, problem, find_classification_modes(problem, 2), allow_label_noise=False
    )
    assert [high_noise for _, high_noise in searches.asked] == [False] * 2


@pytest.mark.long
@pytest.mark.kept("5", "1")
@pytest.mark.parametrize("n_searches", range(1, 6))
def test_an_end_ends_all(problem, n_searches):
    """Two ways of the first start, two of the other prior, two of the second start."""
    searches = Searches(n_searches)
    flat = LayerScales(8.0, 4.0).bind(problem.network.layout)
    search = search_classification(searches, problem, find_classification_modes(problem, 3), flat)[
        1
    ]
    assert len(searches.asked) == n_searches
    assert search.stopped[-1] == "callback"
    assert "callback" not in search.stopped[:-1]
    assert len(search.modes.theta) == (1 if n_searches < 5 else 2)


def data_of(n=23):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (n, 2))
    y = np.stack([np.sin(2.0 * x[:, 0]), x[:, 1]], 1) + 0.3 * rng.standard_normal((n, 2))
    return Data(*(torch.as_tensor(a) for a in (x, y, rng.integers(1, 3, n).astype(float))))


def test_folds_are_parts_of_nearly_equal_size_drawn_at_random():
    fold = assign_folds(23, 5, generator=torch.Generator().manual_seed(0))
    assert sorted(fold.bincount().tolist()) == [4, 4, 5, 5, 5]
    assert not torch.equal(fold, fold.sort().values)
    again = assign_folds(23, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(fold, again)


def test_rows_held_out_are_predicted_by_modes_of_the_others():
    data, network = data_of(), MLP(2, (4,), 2, TANH)
    problem = GaussianEvidence(network, data, LayerScales().bind(network.layout))
    fold = assign_folds(23, 3, generator=torch.Generator().manual_seed(1))
    start = network.init(6, generator=torch.Generator().manual_seed(2))
    how = EvidenceSearch(15, tol=None)
    _, found = cross_validate(how, problem, start, fold)
    # Where a fit begins depends on the spread of all targets: the same for one that sees some.
    for k in range(3):
        own = fold == k
        weight = torch.where(own, 0.0, data.weight)
        alone = GaussianEvidence(network, data._replace(weight=weight), problem.prior)
        two = start[2 * k : 2 * k + 2]
        modes = how.search(alone, two, alternating_mask(2, two)).modes
        networks = LinearisedModes(network, modes.theta, modes.factor, modes.weights)
        mean, covariance = networks.outputs(data.x[own])
        quick = networks.outputs(data.x[own], ModesPredictor(networks, Gaussian()).packed)
        torch.testing.assert_close(quick, (mean, covariance))
        variance = covariance.diagonal(dim1=-2, dim2=-1) + 1.0 / modes.noise_precision[:, None]
        density = stats.norm(mean, variance.sqrt()).pdf(data.y[own]).prod(-1).mean(0)
        np.testing.assert_allclose(found.log_density[own], np.log(density), rtol=1e-6)
        np.testing.assert_allclose(found.mean[own], mean.mean(0), rtol=1e-6, atol=1e-9)


def test_a_search_goes_on_from_modes_that_leave_out_a_fold():
    """Farther in ten steps than one of its own; the scales and the noise come along."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (120, 2))
    y = np.sin(2 * x[:, :1]) + 0.1 * rng.standard_normal((120, 1))
    data = Data(*(torch.as_tensor(a) for a in (x, y, np.ones(120))))
    network = MLP(2, (8,), 1, TANH)
    problem = GaussianEvidence(network, data, LayerScales().bind(network.layout))
    start = draw_initial_weights(network, 10, generator=torch.Generator().manual_seed(0))
    fold = assign_folds(120, 5, generator=torch.Generator().manual_seed(1))
    begun = cross_validate(EvidenceSearch(40, 1e-3), problem, start, fold)[0].modes
    cold = EvidenceSearch(10, None).search(problem, start).modes
    warm = EvidenceSearch(30, None).resume(problem, begun).modes  # twenty count as made
    assert warm.n_iter.tolist() == 10 * [10]
    assert warm.log_evidence.median() > cold.log_evidence.median() + 30.0
    whole = EvidenceSearch(60, None).search(problem, start).modes
    assert warm.log_evidence.median() > whole.log_evidence.median() - 10.0
    still = EvidenceSearch(1, None).resume(problem, begun).modes
    torch.testing.assert_close(still.noise_precision, begun.noise_precision, rtol=0.3, atol=0.0)


def test_a_stopped_validation_says_nothing():
    data, network = data_of(), MLP(2, (3,), 2, TANH)
    problem = GaussianEvidence(network, data, LayerScales().bind(network.layout))
    fold = assign_folds(23, 2, generator=torch.Generator().manual_seed(1))
    start = network.init(4, generator=torch.Generator().manual_seed(2))
    search, rows = cross_validate(EvidenceSearch(), problem, start, fold, lambda step, _: step == 3)
    assert rows is None
    assert search.modes.n_iter.tolist() == [3] * 4


def test_better_is_by_half_a_standard_error():
    rng = np.random.default_rng(3)
    gain = rng.standard_normal(400)
    gain -= gain.mean()
    error = gain.std() / 20.0
    other, weight = torch.zeros(400).double(), torch.ones(400).double()
    for share, expected in ((0.4, False), (0.6, True), (-3.0, False)):
        assert is_better(torch.as_tensor(gain + share * error), other, weight) is expected
    # Weights are repetitions.
    values = torch.as_tensor(gain[:50])
    counts = torch.as_tensor(rng.integers(1, 4, 50))
    for shift in np.linspace(-0.2, 0.3, 11):
        moved = values + shift
        apart = is_better(moved, other[:50], counts.double())
        repeated = moved.repeat_interleave(counts)
        assert apart is is_better(repeated, torch.zeros_like(repeated), torch.ones_like(repeated))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (1.0, 0.0), (0.5, 0.25)])
def test_what_predictions_leave_unexplained(share, expected):
    y = torch.tensor([[1.0, 5.0], [3.0, 1.0], [2.0, 9.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    middle = weight @ y / weight.sum()
    np.testing.assert_allclose(
        unexplained_variance_fraction(middle + share * (y - middle), y, weight), expected
    )
