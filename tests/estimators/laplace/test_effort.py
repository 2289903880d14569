"""Units and restarts by the number of rows."""

import numpy as np
import pytest
from habits import Watch
from sklearn.base import clone

from skbayes_sym import EvidenceAdam, GaussNewton, LaplaceClassifier, LaplaceRegressor, Updates
from skbayes_sym.estimators.laplace.effort import ModesEffort, work
from skbayes_sym.inference.laplace.search.mode_search import EvidenceSearch
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.priors import LayerScales

EFFORT = ModesEffort()


@pytest.mark.parametrize(
    ("n_inputs", "n_rows", "units"),
    [
        (5, 1000, None),
        (5, 1001, 20),  # 281 weights of forty units
        (5, 1124, 40),
        (16, 2883, 20),
        (16, 2884, 40),
        (16, 12_000, 20),  # would take a minute and more
        (5, 10**6, None),
        (28, 1201, None),  # 601 weights: fewer than two rows each, no scale a column
        (28, 1202, 20),
    ],
)
def test_what_many_rows_are_given(n_inputs, n_rows, units):
    found = EFFORT.richer(n_rows, MLP(n_inputs, (20,), 1, TANH))
    assert (found and found.hidden_layer_sizes) == (units and (units,))


@pytest.mark.parametrize(
    ("n_rows", "n_inputs", "width"),
    [
        (927, 8, 20),
        (1600, 100, 5),
        (1200, 90, 10),
        (200, 200, 10),
        (800, 200, 5),
        (4000, 60, 10),
        (90, 100, 20),  # few rows: their own space is small
        (90, 400, 5),
        (90, 3000, 20),  # not even five in time: Adam's
        (20_000, 80, 20),  # too many rows for five units
        (10**6, 5, 20),
    ],
)
def test_where_columns_are_many_units_are_fewer(n_rows, n_inputs, width):
    assert EFFORT.units_of_numbers(n_rows, n_inputs, 1) == width


def test_few_rows_cost_what_their_own_space_costs():
    """Up to half as many as there are weights; beyond it is the weights' space."""
    assert work(2, 10, 50, 1000) == 2 * (10 * (4 * 50**2 * 1000 + 2 * 50**3) + 10 * 1000**3)
    assert work(2, 10, 250, 1000, 2) == work(2, 10, 500, 1000)
    assert work(2, 10, 501, 1000) == 2 * 10 * (501 * 1000**2 + 1000**3)


def test_few_rows_and_large_systems_make_fewer_steps():
    assert [EFFORT.steps_of_mode(n, MLP(8, (3,), 1, TANH)) for n in (500, 501)] == [50, 100]
    network = MLP(8, (20,), 1, TANH)
    made = [EFFORT.steps_of_mode(n, network) for n in (900, 5000, 7000, 9000, 30_000)]
    assert made == sorted(made, reverse=True)
    assert (made[0], made[-1]) == (100, 50)
    a_step = work(3, 1, 9000, network.layout.n_params)
    assert made[3] * a_step <= EFFORT.usual_work < (made[3] + 1) * a_step


@pytest.mark.parametrize("n_rows", [100, 3000, 30_000, 10**6])
def test_modes_take_seconds_or_are_left_out(n_rows):
    network = MLP(5, (20,), 1, TANH)
    n_modes = EFFORT.affordable_modes(10, n_rows, network)
    each = work(1, EFFORT.steps_of_mode(n_rows, network), n_rows, network.layout.n_params)
    if n_modes == 0:
        assert 3 * each > EFFORT.most_work
    else:
        assert 3 <= n_modes <= 10
        assert n_modes * each <= max(EFFORT.usual_work, 3 * each)
        assert n_modes == 10 or (n_modes + 1) * each > EFFORT.usual_work
    assert EFFORT.affordable_modes(2, 100, network) == 2


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def rows(n, noise=0.1):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2))
    return X, np.sin(2.0 * X[:, 0]) + noise * rng.standard_normal(n)


AUTO = LaplaceRegressor(optimizer=GaussNewton(1), max_iter=20, tol=None, random_state=0)


@pytest.mark.long
def test_more_rows_take_forty_units_and_a_scale_a_column():
    small, large = clone(AUTO).fit(*rows(100)), clone(AUTO).fit(*rows(1001))
    assert small.network_.hidden_layer_sizes == (20,)
    assert not hasattr(small, "relevance_")
    assert large.network_.hidden_layer_sizes == (40,)
    assert large.relevance_.shape == (1, 2)
    assert large.predict(rows(3)[0]).shape == (3,)


@pytest.mark.long
def test_in_much_noise_more_rows_are_no_reason():
    noisy = clone(AUTO).fit(*rows(1700, noise=1.0))
    assert noisy.network_.hidden_layer_sizes == (20,)
    given = clone(AUTO).set_params(hidden_layer_sizes=(20,)).fit(*rows(1700, noise=1.0))
    np.testing.assert_array_equal(noisy.posterior_.loc, given.posterior_.loc)


@pytest.mark.long
def test_what_is_given_stays():
    found = clone(AUTO).set_params(hidden_layer_sizes=(20,)).fit(*rows(1001))
    assert found.network_.hidden_layer_sizes == (20,)
    assert not hasattr(found, "relevance_")
    of_layers = clone(AUTO).set_params(prior=LayerScales()).fit(*rows(1001))
    assert of_layers.network_.hidden_layer_sizes == (40,)
    assert not hasattr(of_layers, "relevance_")
    fixed = clone(AUTO).set_params(prior=1.0).fit(*rows(1001))
    assert fixed.network_.hidden_layer_sizes == (20,)
    adam = LaplaceRegressor(
        optimizer=EvidenceAdam(updates=Updates(n=1)), max_iter=2, random_state=0
    )
    assert adam.fit(*rows(1001)).network_.hidden_layer_sizes == (20,)


def test_the_noise_is_judged_by_some_of_the_rows(monkeypatch):
    seen, search = [], EvidenceSearch.search
    monkeypatch.setattr(
        EvidenceSearch, "search",
        lambda how, problem, *rest: seen.append(len(problem.data.x)) or search(how, problem, *rest),
    )  # fmt: skip
    monkeypatch.setattr(LaplaceRegressor, "_effort", ModesEffort(pilot_rows=500))
    clone(AUTO).set_params(max_iter=2).fit(*rows(1700))
    assert seen == [500, 1700]


def test_an_end_during_the_pilot_leaves_its_modes():
    found = clone(AUTO).set_callbacks(Watch(2)).fit(*rows(1700))
    assert found.stop_reason_ == "callback"
    assert found.network_.hidden_layer_sizes == (20,)
    assert np.isfinite(found.predict(rows(3)[0])).all()


def test_restarts_by_rows(monkeypatch):
    reg = LaplaceRegressor((3,), max_iter=1, random_state=0)
    assert clone(reg).fit(*rows(30)).multiplicity_modes_.sum() == 10
    monkeypatch.setattr(LaplaceRegressor, "_effort", ModesEffort(usual_work=1.0))
    assert clone(reg).fit(*rows(30)).multiplicity_modes_.sum() == 3


def test_classes_of_many_columns_take_fewer_units(monkeypatch):
    little = ModesEffort(most_work=2e10, other_work=2e10)
    monkeypatch.setattr(LaplaceClassifier, "_effort", little)
    X = np.random.default_rng(0).standard_normal((30, 150))
    found = LaplaceClassifier(optimizer=GaussNewton(1), max_iter=3, random_state=0).fit(
        X, X[:, 0] > 0.0
    )
    assert found.optimizer_ == "gauss-newton"
    assert found.network_.hidden_layer_sizes == (5,)
    adam = LaplaceClassifier(
        optimizer=EvidenceAdam(updates=Updates(n=1)), max_iter=2, random_state=0
    )
    assert adam.fit(X, X[:, 0] > 0.0).network_.hidden_layer_sizes == (20,)


def test_of_classes_tries_come_before_modes_where_rows_outnumber_weights():
    network, wide = MLP(20, (20,), 1, TANH), MLP(64, (20,), 10, TANH)
    found = [EFFORT.affordable_labels(4, n, network) for n in (500, 2_900, 3_100, 10_000, 14_000)]
    assert found == [(4, True), (4, True), (3, True), (1, True), (2, False)]
    assert EFFORT.affordable_labels(4, 500, wide) == (2, False)  # fewer rows than its 1,510 weights
    assert EFFORT.affordable_labels(4, 10**6, network)[0] == 0


def test_more_rows_never_get_more_modes():
    """Each is searched for in two ways, whatever the time."""
    network, wide = MLP(20, (20,), 1, TANH), MLP(64, (20,), 10, TANH)
    sizes = (500, 2_900, 3_100, 10_000, 14_000, 10**6)
    found = [EFFORT.restarts_of_labels(n, network) for n in sizes]
    assert found == [4, 4, 3, 1, 1, 1]
    assert EFFORT.restarts_of_labels(500, wide) == 2


def test_restarts_of_classes_by_rows(monkeypatch):
    clf = LaplaceClassifier((3,), max_iter=1, tol=None, random_state=0)
    X, y = rows(30)
    assert clone(clf).fit(X, y > 0.0).multiplicity_modes_.sum() == 4
    monkeypatch.setattr(LaplaceClassifier, "_effort", ModesEffort(labels_work=1.0))
    assert clone(clf).fit(X, y > 0.0).multiplicity_modes_.sum() == 1
