"""scikit-learn's callbacks on every estimator, alone and inside others; held-out rows stop fits."""

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

from skbayes_sym import DeepEnsembleRegressor, SymmetrizedVIClassifier, SymmetrizedVIRegressor
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
