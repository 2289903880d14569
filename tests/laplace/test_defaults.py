"""Units, restarts and priors by the number of rows, and what they are worth."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from habits import Watch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman3

from skbayes_sym import (
    BayesianMLPClassifier,
    EvidenceAdam,
    GaussNewton,
    LaplaceClassifier,
    LaplaceRegressor,
    Updates,
    predictive,
)
from skbayes_sym.laplace import gauss_newton_classification
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, gauss_newton_cost
from skbayes_sym.laplace.gauss_newton_classification import STRONG_HYPERPRIOR, WEAK_HYPERPRIOR
from skbayes_sym.laplace.gauss_newton_regression import select_width
from skbayes_sym.laplace.initialization import HeldOutPredictions
from skbayes_sym.laplace.mode_finding import EvidenceSearch
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.priors import LayerScales

DEFAULTS = GaussNewtonDefaults()


@pytest.mark.parametrize(
    ("n_inputs", "n_rows", "units"),
    [(5, 1000, None), (5, 1001, 20), (5, 1124, 40),  # 281 weights of forty units
     (16, 2883, 20), (16, 2884, 40), (20, 12_000, 20),  # forty would take a minute and more
     (5, 9000, 40), (5, 10**6, 40), (5, 10**8, None),
     (28, 1201, None), (28, 1202, 20)],  # 601 weights: a scale a column asks two rows each
)  # fmt: skip
def test_what_many_rows_are_given(n_inputs, n_rows, units):
    found = DEFAULTS.wider_network(n_rows, MLP(n_inputs, (20,), 1, TANH))
    assert (found and found.hidden_layer_sizes) == (units and (units,))
    plenty = n_rows > 10_000 and n_inputs < 16  # whatever the noise, twenty rows a weight
    assert DEFAULTS.has_ample_rows(n_rows, MLP(n_inputs, (40,), 1, TANH)) == plenty


@pytest.mark.parametrize(
    ("n_rows", "n_inputs", "width"),
    [(927, 8, 20), (1600, 100, 5), (1200, 90, 10), (200, 200, 10), (800, 200, 5), (4000, 60, 10),
     (90, 100, 20),  # few rows: their own space is small
     (90, 400, 5), (90, 3000, 20),  # not even five in time: Adam's
     (20_000, 80, 20), (10**6, 5, 20)],  # too many rows for five units
)  # fmt: skip
def test_where_columns_are_many_units_are_fewer(n_rows, n_inputs, width):
    assert DEFAULTS.choose_regression_width(n_rows, n_inputs, 1) == width


def test_few_rows_cost_what_their_own_space_costs():
    """As far as it is less than what the weights' space does."""
    assert gauss_newton_cost(2, 10, 50, 1000) == 2 * (
        10 * (4 * 50**2 * 1000 + 2 * 50**3) + 10 * 1000**3
    )
    assert gauss_newton_cost(2, 100, 100, 1000, 2) == gauss_newton_cost(2, 100, 200, 1000)
    assert gauss_newton_cost(2, 10, 700, 1000) == 2 * 10 * (700 * 1000**2 + 1000**3)
    assert gauss_newton_cost(2, 10, 751, 1000) == 2 * 10 * (751 * 1000**2 + 1000**3)


@pytest.mark.long
def test_few_rows_and_large_systems_make_fewer_steps():
    assert [DEFAULTS.regression_steps(n, MLP(8, (3,), 1, TANH)) for n in (500, 501)] == [50, 100]
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (250, 2))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 + 0.05 * rng.standard_normal(250)
    assert LaplaceRegressor(random_state=0).fit(X, y).n_iter_ == 100  # little is left unexplained
    network = MLP(12, (20,), 1, TANH)
    made = [DEFAULTS.regression_steps(n, network) for n in (900, 3500, 3700, 3900, 4000, 30_000)]
    assert made == sorted(made, reverse=True)
    assert (made[0], made[-1]) == (100, made[-2])  # rows beyond 4,000 come in at the end
    assert DEFAULTS.regression_steps(3900, MLP(20, (20,), 1, TANH)) == 50
    a_step = gauss_newton_cost(3, 1, 3900, network.layout.n_params)
    assert made[3] * a_step <= DEFAULTS.target_work < (made[3] + 1) * a_step


@pytest.mark.parametrize("n_rows", [100, 3000, 30_000, 10**6, 10**8])
def test_modes_take_seconds_or_are_left_out(n_rows):
    network = MLP(5, (20,), 1, TANH)
    n_modes = DEFAULTS.affordable_modes(10, n_rows, network)
    each = DEFAULTS.mode_cost(n_rows, network)
    if n_modes == 0:
        assert 3 * each > DEFAULTS.max_work
    else:
        assert 3 <= n_modes <= 10
        assert n_modes * each <= max(DEFAULTS.target_work, 3 * each)
        assert n_modes == 10 or (n_modes + 1) * each > DEFAULTS.target_work
    assert DEFAULTS.affordable_modes(2, 100, network) == 2


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def rows(n, noise=0.1):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2))
    return X, np.sin(2.0 * X[:, 0]) + noise * rng.standard_normal(n)


AUTO = LaplaceRegressor(optimizer=GaussNewton(1), max_iter=20, tol=None, random_state=0)


@pytest.mark.long
def test_more_rows_take_forty_units_and_a_scale_a_column():
    small, large = clone(AUTO).fit(*rows(100)), clone(AUTO).fit(*rows(1001))
    assert small.network_.hidden_layer_sizes == (20,)  # its scales are what held-out rows say
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
    layer_scales = clone(AUTO).set_params(prior=LayerScales()).fit(*rows(1001))
    assert layer_scales.network_.hidden_layer_sizes == (40,)
    assert not hasattr(layer_scales, "relevance_")
    fixed = clone(AUTO).set_params(prior=1.0).fit(*rows(1001))
    assert fixed.network_.hidden_layer_sizes == (20,)
    adam = LaplaceRegressor(
        optimizer=EvidenceAdam(updates=Updates(n=1)), max_iter=2, random_state=0
    )
    assert adam.fit(*rows(1001)).network_.hidden_layer_sizes == (20,)


@pytest.mark.long
def test_the_noise_is_judged_by_some_of_the_rows(monkeypatch):
    seen, search = [], EvidenceSearch.search
    monkeypatch.setattr(
        EvidenceSearch, "search",
        lambda how, problem, *rest: seen.append(len(problem.data.x)) or search(how, problem, *rest),
    )  # fmt: skip
    monkeypatch.setattr(LaplaceRegressor, "_defaults", GaussNewtonDefaults(pilot_rows=500))
    clone(AUTO).set_params(max_iter=2).fit(*rows(1700))
    assert seen == [500, 1700]


@pytest.mark.long
def test_the_pilot_ends_early_unless_its_evidence_rises(monkeypatch):
    seen = []
    search = EvidenceSearch.search

    def record(config, *arguments):
        seen.append((config.max_iter, config.max_extra_steps))
        return search(config, *arguments)

    monkeypatch.setattr(EvidenceSearch, "search", record)
    monkeypatch.setattr(LaplaceRegressor, "_defaults", GaussNewtonDefaults(pilot_steps=2))
    clone(AUTO).set_params(max_iter=3).fit(*rows(1700))
    assert seen[0] == (2, 1)


def test_many_rows_are_searched_by_some_and_all_come_in_at_the_end(monkeypatch):
    reg, (X, y) = LaplaceRegressor((3,), random_state=0), rows(600)
    whole = clone(reg).fit(X, y)
    monkeypatch.setattr(LaplaceRegressor, "_defaults", GaussNewtonDefaults(subsample_rows=200))
    found = clone(reg).fit(X, y)
    assert found.n_iter_ == 8 < whole.n_iter_
    best = [reg.log_evidence_modes_.max() for reg in (found, whole)]
    assert abs(best[0] - best[1]) < 0.6  # .001 a row
    early = clone(reg).set_callbacks(Watch(2)).fit(X, y)
    assert early.stop_reason_ == "callback"
    assert np.isfinite(early.predict(X)).all()


@pytest.mark.long
def test_an_end_during_the_pilot_leaves_its_modes():
    found = clone(AUTO).set_callbacks(Watch(2)).fit(*rows(1700))
    assert found.stop_reason_ == "callback"
    assert found.network_.hidden_layer_sizes == (20,)
    assert np.isfinite(found.predict(rows(3)[0])).all()


def test_restarts_by_rows(monkeypatch):
    reg = LaplaceRegressor((3,), max_iter=1, random_state=0)
    assert clone(reg).fit(*rows(30)).multiplicity_modes_.sum() == 10
    monkeypatch.setattr(LaplaceRegressor, "_defaults", GaussNewtonDefaults(target_work=1.0))
    assert clone(reg).fit(*rows(30)).multiplicity_modes_.sum() == 3


@pytest.mark.long
def test_classes_of_many_columns_take_fewer_units(monkeypatch):
    little = GaussNewtonDefaults(max_work=2e10, alternative_work=2e10)
    monkeypatch.setattr(LaplaceClassifier, "_defaults", little)
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
    found = [
        DEFAULTS.affordable_classification_modes(4, n, network)
        for n in (500, 2_900, 3_100, 10_000, 14_000)
    ]
    assert found == [(4, True), (4, True), (3, True), (1, True), (2, False)]
    # fewer rows than its 1,510 weights
    assert DEFAULTS.affordable_classification_modes(4, 500, wide) == (2, False)
    assert DEFAULTS.affordable_classification_modes(4, 10**6, network)[0] == 0


def test_more_rows_never_get_more_modes():
    """Each is searched for in two ways, whatever the time."""
    network, wide = MLP(20, (20,), 1, TANH), MLP(64, (20,), 10, TANH)
    sizes = (500, 2_900, 3_100, 10_000, 14_000, 10**6)
    found = [DEFAULTS.classification_restarts(n, network) for n in sizes]
    assert found == [4, 4, 3, 1, 1, 1]
    assert DEFAULTS.classification_restarts(500, wide) == 2


def test_restarts_of_classes_by_rows(monkeypatch):
    clf = LaplaceClassifier((3,), max_iter=1, tol=None, random_state=0)
    X, y = rows(30)
    assert clone(clf).fit(X, y > 0.0).multiplicity_modes_.sum() == 4
    monkeypatch.setattr(
        LaplaceClassifier, "_defaults", GaussNewtonDefaults(classification_work=1.0)
    )
    assert clone(clf).fit(X, y > 0.0).multiplicity_modes_.sum() == 1


NETWORK = MLP(5, (20,), 1, TANH)


def told(nats, unexplained, priors=("layers",), network=NETWORK, widens=lambda: False):
    """What validations say: mean log densities by width, and how far off predictions are.

    A number of nats is any prior's, two are those of ``priors``.
    """
    y = torch.linspace(-1.0, 1.0, 101, dtype=torch.float64).unsqueeze(1)
    noise = torch.as_tensor(np.random.default_rng(0).standard_normal(101))
    noise = noise - noise.mean()
    asked = []

    def validate(width, prior):
        asked.append(width)
        if nats[width] is None:
            return "as it was", None
        mean, value = y * (1.0 - unexplained**0.5), nats[width]
        value = value[priors.index(prior)] if isinstance(value, tuple) else value
        return prior, HeldOutPredictions(value + (width == 8) * 0.1 * noise, mean, None)

    weight = torch.ones(101).double()
    return select_width(validate, priors, network, y, weight, DEFAULTS, widens), asked


@pytest.mark.parametrize(
    ("nats", "unexplained", "chosen", "asked"),
    [
        ({3: -1.0, 8: -1.2}, 0.5, 3, [3, 8]),  # not asked: eight are no better than three
        ({3: -1.0, 8: -0.998}, 0.05, 3, [3, 8]),  # within half a standard error
        ({3: -1.0, 8: -0.9}, 0.05, 20, [3, 8]),  # hardly any noise: not asked
        ({3: -1.0, 8: -0.9, 20: -0.95}, 0.5, 8, [3, 8, 20]),
        ({3: -1.0, 8: -0.9, 20: -0.7}, 0.5, 20, [3, 8, 20]),
    ],
)
def test_more_units_only_where_rows_held_out_say_so(nats, unexplained, chosen, asked):
    widths, in_order = told(nats, unexplained)
    assert widths.width == chosen
    assert in_order == asked == list(widths.scores)
    np.testing.assert_allclose(list(widths.scores.values()), [nats[w] for w in asked])
    assert widths.stopped_fit is None


@pytest.mark.parametrize(
    ("nats", "unexplained", "chosen", "prior"),
    [
        ({3: -1.0, 8: (-0.9, -0.5), 20: -0.9}, 0.5, 8, "columns"),
        ({3: -1.0, 8: (-0.9, -0.5)}, 0.05, 20, "columns"),  # not much noise
        ({3: -1.0, 8: (-0.9, -0.5)}, 0.005, 20, "columns"),  # hardly any
        ({3: -1.0, 8: (-0.5, -0.9), 20: -0.9}, 0.5, 8, "layers"),
        ({3: -1.0, 8: (-1.2, -1.1)}, 0.5, 3, "layers"),  # few units are the better still
    ],
)
def test_some_units_decide_between_a_scale_a_layer_and_a_scale_a_column(
    nats, unexplained, chosen, prior
):
    widths, asked = told(nats, unexplained, ("layers", "columns"))
    assert widths.has_low_noise == (unexplained < 0.01)
    assert (widths.width, widths.prior) == (chosen, prior)
    assert asked == [3, 8, 8, 20][: len(nats) + 1]
    assert widths.scores[8] == pytest.approx(max(nats[8]))
    assert widths.fold_modes == (None if unexplained < 0.1 else prior)


@pytest.mark.parametrize(("of_eight", "chosen"), [(-1.2, 3), (-0.9, 20)])
def test_twenty_units_that_a_wider_network_replaces_arent_validated(of_eight, chosen):
    widths, validated = told({3: -1.0, 8: of_eight}, 0.5, widens=lambda: True)
    assert (widths.width, validated) == (chosen, [3, 8])
    assert widths.fold_modes == (None if chosen == 20 else "layers")


def test_stopped_it_hands_back_what_there_was():
    widths, _ = told({3: -1.0, 8: None}, 0.5)
    assert widths.stopped_fit == "as it was"
    assert list(widths.scores) == [3]


def test_only_tables_of_some_rows_are_asked():
    assert DEFAULTS.cross_validates_width(200, NETWORK)
    assert not DEFAULTS.cross_validates_width(9, NETWORK)
    assert not DEFAULTS.cross_validates_width(2_900, NETWORK)
    assert not DEFAULTS.cross_validates_width(2_000, MLP(200, (20,), 1, TANH))  # it would take long
    assert not DEFAULTS.cross_validates_width(200, MLP(5, (10,), 1, TANH))


@pytest.mark.parametrize(("of_eight", "chosen"), [(-1.2, 3), (-0.9, 20)])
def test_twenty_units_are_asked_if_eight_are_better_than_three(of_eight, chosen):
    widths, asked = told({3: -1.0, 8: of_eight, 20: -0.5}, 0.5, network=MLP(30, (20,), 1, TANH))
    assert (widths.width, asked) == (chosen, [3, 8, 20][: 2 + (chosen == 20)])


@pytest.mark.long
def test_folds_go_on_while_the_evidence_rises_steeply():
    X = np.random.default_rng(1).normal(size=(900, 12))
    y = np.sin(3.0 * X[:, 0]) * X[:, 1]
    model = LaplaceRegressor(random_state=0).fit(X[:600], y[:600])
    assert model.width_scores_[-1] > 0.0  # -.8 after 24 steps
    assert np.std(model.predict(X[600:]) - y[600:]) < 0.2 * y.std()


@pytest.mark.long
def test_noisy_tables_are_given_few_units_and_predicted_better():
    gains, n_few = [], 0
    for seed in range(6):
        X, y = make_friedman3(1_150, noise=0.1, random_state=seed)
        few, usual = (
            LaplaceRegressor(n, random_state=0).fit(X[:150], y[:150]) for n in ("auto", 20)
        )
        density = predictive(few, X[150:]).log_prob(y[150:]).mean()
        gains.append(density - predictive(usual, X[150:]).log_prob(y[150:]).mean())
        n_few += few.network_.hidden_layer_sizes == (3,)
        promised = dict(zip(few.widths_.tolist(), few.width_scores_, strict=True))
        assert list(promised) == [3, 8, 20][: len(promised)]
        # Twenty are taken unasked where eight leave little. Half a standard error of a mean over
        # 150 rows whose log densities scatter by 1.
        chosen = promised.get(few.network_.hidden_layer_sizes[0], promised[8])
        assert max(promised.values()) < chosen + 0.5 / 150**0.5
        assert abs(chosen - density) < 0.3  # what it promises comes
        assert not hasattr(usual, "width_scores_")
    assert n_few >= 4
    assert np.mean(gains) > 0.03


@pytest.mark.long
@pytest.mark.parametrize("step", [1, 30])
def test_an_end_while_widths_are_compared_leaves_what_there_is(step):
    X, y = make_friedman3(60, noise=0.1, random_state=0)
    reg = LaplaceRegressor(max_iter=20, tol=None, random_state=0).set_callbacks(Watch(step))
    found = reg.fit(X, y)
    assert found.stop_reason_ == "callback"
    assert found.network_.hidden_layer_sizes == ((3,) if step == 1 else (8,))
    assert len(found.widths_) == (0 if step == 1 else 1)
    assert np.isfinite(found.predict(X)).all()


@pytest.mark.long
def test_scores_are_in_the_units_of_y():
    X, y = make_friedman3(40, noise=0.1, random_state=0)
    weight = np.tile([1.0, 2.0], 20)
    settings = {"optimizer": GaussNewton(2), "max_iter": 15, "tol": None, "random_state": 0}
    weighted = LaplaceRegressor(**settings).fit(X, y, sample_weight=weight)
    scaled = LaplaceRegressor(**settings).fit(X, 1000.0 * y, sample_weight=weight)
    np.testing.assert_allclose(
        scaled.width_scores_, weighted.width_scores_ - np.log(1000.0), rtol=1e-6
    )


@pytest.mark.long
def test_a_clear_table_keeps_twenty_units_and_so_does_a_given_scale():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 3))
    y = np.sin(1.5 * X[:, 0]) + np.cos(2.0 * X[:, 1])
    found = LaplaceRegressor(optimizer=GaussNewton(1), tol=None, max_iter=25, random_state=0).fit(
        X, y
    )
    assert found.network_.hidden_layer_sizes == (20,)
    np.testing.assert_array_equal(found.widths_, [3, 8])
    settings = {"prior": 1.0, "optimizer": GaussNewton(1), "tol": None, "max_iter": 5}
    given = LaplaceRegressor(**settings, random_state=0).fit(X, y)
    assert given.network_.hidden_layer_sizes == (20,)
    assert not hasattr(given, "widths_")


def noisy_labels(n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 8))
    return X, 0.6 * (X[:, 0] - X[:, 1]) + rng.logistic(size=n) > 0


@pytest.fixture(scope="module")
def fits():
    X, y = noisy_labels()
    return {
        prior: LaplaceClassifier(10, optimizer=GaussNewton(2), prior=prior, random_state=0).fit(
            X, y
        )
        for prior in ("learn", STRONG_HYPERPRIOR, WEAK_HYPERPRIOR)
    }


@pytest.mark.long
def test_noisy_labels_take_the_flat_prior(fits):
    np.testing.assert_array_equal(
        fits["learn"].posterior_.loc, fits[WEAK_HYPERPRIOR].posterior_.loc
    )
    error = np.hypot(
        *(fits[prior].log_evidence_std_error_ for prior in ("learn", STRONG_HYPERPRIOR))
    )
    assert fits["learn"].log_evidence_ > fits[STRONG_HYPERPRIOR].log_evidence_ + 3.0 * error


@pytest.mark.long
def test_what_leaves_noise_alone_predicts_better(fits, monkeypatch):
    """Than modes of the steep prior that believe all labels."""
    believing = partial(gauss_newton_classification.search_classification, allow_label_noise=False)
    monkeypatch.setattr(
        gauss_newton_classification, "search_classification", lambda *args, **_: believing(*args)
    )
    plain = LaplaceClassifier(
        10, optimizer=GaussNewton(2), prior=STRONG_HYPERPRIOR, random_state=0
    ).fit(*noisy_labels())
    X, y = noisy_labels(1000, seed=1)
    loss = [-fit.log_predictive_density(X, y).mean() for fit in (fits["learn"], plain)]
    assert loss[0] < loss[1] - 0.005


@cache
def steep_iris():
    steep = LaplaceClassifier(10, optimizer=GaussNewton(2), prior=STRONG_HYPERPRIOR, random_state=0)
    return steep.fit(*load_iris(return_X_y=True)).log_evidence_


@pytest.mark.long
@pytest.mark.kept("own0")
@pytest.mark.parametrize(
    "own",
    [
        LaplaceClassifier(10, optimizer=GaussNewton(2)),
        BayesianMLPClassifier(10, n_modes=2, n_members=1),
    ],
)
def test_separated_classes_keep_the_steep_one(own):
    own.set_params(random_state=0).fit(*load_iris(return_X_y=True))
    np.testing.assert_allclose(own.log_evidence_, steep_iris(), atol=1.0)
