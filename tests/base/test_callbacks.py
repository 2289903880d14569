"""scikit-learn's callbacks on every estimator, alone and inside others; held-out rows stop fits."""

import time

import numpy as np
import pytest
from fits import FITS, assert_predicts_as, everything_predicted, fitted
from habits import Watch
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from thin import some

import skbayes_sym
from skbayes_sym import (
    BayesianLinearRegressor,
    DeepEnsembleRegressor,
    PredictiveStackingRegressor,
    SymmetrizedVIClassifier,
    SymmetrizedVIRegressor,
)
from skbayes_sym.base.public_names import ESTIMATOR_MODULES
from skbayes_sym.callbacks import HeldOut

# Too few steps to converge on purpose, and parts of a small matrix.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*have no observed entry:UserWarning"),
]

# One kind of each estimator is enough where scikit-learn does the work around it.
SEARCHED = [
    "vi-regressor", "vi-classifier", "ensemble-regressor", "ensemble-classifier",
    "mcmc-regressor", "mcmc-classifier", "laplace-kronecker", "laplace-full", "lila-regressor",
    "lila-table", "factors", "linear-gaussian", "linear-counts", "linear-labels",
]  # fmt: skip
# ... and one of each loop of steps where this package does: the others are options of the model.
LOOPS = [
    *SEARCHED, "vi-collapsed", "vi-inducing", "ensemble-refitted", "bayesian-mlp-growing-noise",
    "bayesian-mlp-two-classes", "mcmc-annealed", "laplace-modes", "lila-cnn",
    "factors-gibbs",
]  # fmt: skip
SAMPLERS = {"mcmc-regressor", "mcmc-classifier"}  # no model until the end


def scoring_of(estimator):
    """With a name: what `scoring=None` gives has none, and scikit-learn 1.9.1 fails on it."""
    if hasattr(estimator, "predict_entries"):
        return {"score": lambda model, X, y: model.score(X)}
    return {"score": "accuracy" if hasattr(estimator, "predict_proba") else "r2"}


def piped(estimator):
    same = StandardScaler(with_mean=False, with_std=False)
    return Pipeline([("same", same), ("model", estimator)])


def searched(estimator):
    """Two fits of a pipeline and no refit."""
    split = ShuffleSplit(1, train_size=0.8, random_state=0)
    grid = {"model__device": ["auto", "cpu"]}
    return GridSearchCV(piped(estimator), grid, cv=split, refit=False, error_score="raise")


@some("name", FITS, keep=LOOPS)
def test_three_callbacks_see_the_whole_fit_and_leave_it_the_same(name, capsys):
    """Every task that begins ends, a monitor scores the model of the moment, a bar names it."""
    case, watch = FITS[name], Watch()
    monitor = ScoringMonitor(scoring=scoring_of(case.estimator))
    model = clone(case.estimator).set_callbacks(watch, monitor, ProgressBar())
    model.fit(case.X, case.y)
    assert watch.begun == watch.ended > 1
    assert watch.set_up == 0
    whole, *blocks = [row["score"] for row in monitor.get_logs().data]
    assert len(blocks) <= 1 if name in SAMPLERS else blocks
    assert np.isfinite(blocks).all()
    if not getattr(model, "keep_best", False):  # else it goes back to the best point at the end
        assert whole == pytest.approx(model.score(case.X, case.y))
    shown = capsys.readouterr().out
    assert type(case.estimator).__name__ in shown
    assert "100%" in shown
    assert_predicts_as(name, model)


@some("name", FITS, keep=LOOPS)
def test_a_callback_stops_the_fit_early(name):
    case, watch = FITS[name], Watch(1)
    model = clone(case.estimator).set_callbacks(watch).fit(case.X, case.y)
    assert watch.begun == watch.ended == 2  # a block, and the fit
    whole = fitted(name)
    assert model.n_iter_ <= whole.n_iter_
    if whole.n_iter_ > 1:
        assert model.stop_reason_ == "callback"
        assert model.n_iter_ < whole.n_iter_
    everything_predicted(model, case.X)
    if hasattr(model, "log_predictive_density"):
        assert np.isfinite(model.log_predictive_density(case.X, case.y)).all()


@pytest.mark.kept("piped-*", "searched-vi-regressor", "searched-factors", "searched-linear-counts")
@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.parametrize("around", [piped, searched])
def test_inside_pipeline_and_search(name, around, capsys):
    """A bar on the outside; a monitor, and who stops, on the inside."""
    case, watch = FITS[name], Watch(1)
    monitor = ScoringMonitor(scoring=scoring_of(case.estimator))
    outer = around(clone(case.estimator).set_callbacks(monitor, watch))
    outer.set_callbacks(ProgressBar(max_propagation_depth=None)).fit(case.X, case.y)
    # Deep inside a search the bar crops names from the left.
    assert f"{type(case.estimator).__name__[-8:]} - fit" in capsys.readouterr().out
    n_fits = 2 if around is searched else 1
    assert watch.begun == watch.ended == 2 * n_fits
    if around is piped:
        assert outer["model"].stop_reason_ in {"callback", "tol"}
    scores = [row["score"] for row in monitor.get_logs().data]
    assert len(scores) == n_fits * (1 if name in SAMPLERS else 2)
    assert np.isfinite(scores).all()


def test_callbacks_are_torn_down_after_an_error(monkeypatch):
    case, watch = FITS["vi-regressor"], Watch()
    monkeypatch.setattr("skbayes_sym.base.progress.minimise", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clone(case.estimator).set_callbacks(watch).fit(case.X, case.y)
    assert watch.set_up == 0


X, Y = load_diabetes(return_X_y=True)
TRAIN, TEST = slice(0, 60), slice(60, 160)
# Without a prior to hold it this one fits its 60 rows and forgets the others.
GREEDY = DeepEnsembleRegressor(
    (50,), n_members=1, max_iter=400, tol=None, prior=100.0, noise_std=20.0, random_state=0
)


def watched(model, **settings):
    watch = HeldOut(X[TEST], Y[TEST], **settings)
    return watch, clone(model).set_callbacks(watch).fit(X[TRAIN], Y[TRAIN])


def density(model):
    return model.log_predictive_density(X[TEST], Y[TEST]).mean()


def test_the_best_block_comes_back():
    watch, best = watched(GREEDY, patience=5)
    assert best.stop_reason_ == "callback"
    assert len(watch.scores_) < 100
    assert int(np.argmax(watch.scores_)) == len(watch.scores_) - 1 - 5
    assert density(best) == pytest.approx(watch.best_score_)
    whole = clone(GREEDY).fit(X[TRAIN], Y[TRAIN])
    assert density(best) > density(whole)


def test_a_fit_that_keeps_improving_is_left_alone():
    slow = SymmetrizedVIRegressor((3,), max_iter=30, tol=None, random_state=0)
    watch, found = watched(slow, patience=100)
    alone = clone(slow).fit(X[TRAIN], Y[TRAIN])
    assert found.stop_reason_ == "max_iter"
    assert watch.best_score_ == max(watch.scores_) == watch.scores_[-1]
    np.testing.assert_array_equal(found.predict(X[TEST]), alone.predict(X[TEST]))


def test_classes_too():
    labels = Y > 140
    watch = HeldOut(X[TEST], labels[TEST], patience=2)
    model = SymmetrizedVIClassifier((3,), tol=None, random_state=0).set_callbacks(watch)
    model.fit(X[TRAIN], labels[TRAIN])
    found = model.log_predictive_density(X[TEST], labels[TEST]).mean()
    assert found == pytest.approx(watch.best_score_, abs=1e-6)


def test_patience_is_checked():
    with pytest.raises(ValueError, match="patience must be an int of at least 1, got 0"):
        HeldOut(X, Y, patience=0)


class Events:
    """CPU times of all events, and the fraction of the fit that is done at each."""

    def setup(self, estimator, context):
        self.seconds, self.done, self.models = [time.process_time()], [0.0], 0

    def on_fit_task_begin(self, estimator, context):
        self._add(context, 0)

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.models += context.task_name == "block" and fitted_estimator is not None
        self._add(context, 1)

    def teardown(self, estimator, context):
        self.seconds.append(time.process_time())

    def _add(self, context, n_ended):
        self.seconds.append(time.process_time())
        if context.task_name == "block":
            self.done.append((context.task_id + n_ended) / context.parent.max_subtasks)


STACK = PredictiveStackingRegressor(
    [("line", "linear"), ("boosted", "boosting"), ("smooth", "gaussian_process")], random_state=0
)


def test_members_of_a_stack_report_within_their_fits():
    """Blocks of the three members, and models of the stack after each of them and at the end."""
    events = Events()
    clone(STACK).set_callbacks(events).fit(X[TRAIN], Y[TRAIN])
    assert events.done == sorted(events.done)
    assert len(events.done) > 20
    assert max(events.done) <= 1.0
    assert events.models == 3 + 1


def test_stacks_of_several_targets_report_too():
    events = Events()
    targets = np.column_stack([Y, X[:, 0]])[TRAIN]
    model = clone(STACK).set_callbacks(events).fit(X[TRAIN], targets)
    assert events.done == sorted(events.done)
    assert sum(done > 0.5 for done in events.done) > 20
    assert len(model.estimators_) == 2


def test_a_callback_stops_a_stack_within_its_first_member():
    """The member ends early, and is the whole stack."""
    watch = Watch(1)
    stack = PredictiveStackingRegressor(
        [("points", BayesianLinearRegressor()), ("line", "linear")], cv=3, random_state=0
    )
    stack.set_callbacks(watch).fit(X[TRAIN], Y[TRAIN])
    assert watch.begun == watch.ended == 2
    assert stack.stop_reason_ == "callback"
    assert list(stack.weights_) == ["points"]


def test_an_interrupt_within_the_first_member_leaves_no_stack():
    class Interrupt(Watch):
        def on_fit_task_end(self, estimator, context):
            raise KeyboardInterrupt

    stack = clone(STACK).set_callbacks(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        stack.fit(X[TRAIN], Y[TRAIN])
    assert not hasattr(stack, "stop_reason_")


DEFAULTS = [name for names in ESTIMATOR_MODULES.values() for name in names]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", DEFAULTS)
def test_no_default_fit_is_silent_for_long(name):
    """At most about one CPU second; a tenth of long fits, on slow machines."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 8))
    score = np.sin(2.0 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    if name.endswith("Classifier"):
        data = x, np.digitize(score + 0.3 * random.normal(size=1000), [-0.7, 0.7])
    elif name == "SymVIMatrixFactorization":
        data = (np.where(random.random((1000, 30)) < 0.5, x @ random.normal(size=(8, 30)), np.nan),)
    else:
        # Networks predict a smooth function with little noise best, so that the stack fits them.
        data = x, score + 0.02 * random.normal(size=1000)
    events = Events()
    getattr(skbayes_sym, name)(random_state=0).set_callbacks(events).fit(*data)
    assert events.done == sorted(events.done)
    silences = np.diff(events.seconds)
    assert silences.max() < max(1.5, 0.1 * silences.sum())
