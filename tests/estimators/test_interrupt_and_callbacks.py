"""A fit that ends early leaves a usable, marked model or the previous one."""

import numpy as np
import pytest
from habits import Watch
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.inference.mean_field.elbo import SymmetrizedElbo

FAST = {"hidden_layer_sizes": (3,), "max_iter": 200, "tol": None, "random_state": 0}
REG, CLF = SymmetrizedVIRegressor(**FAST), SymmetrizedVIClassifier(**FAST)
X = np.random.default_rng(0).standard_normal((30, 3))
Y, LABELS = X[:, 0], (X[:, 0] > 0).astype(int)

every_estimator = pytest.mark.parametrize(
    ("estimator", "y"), [(REG, Y), (CLF, LABELS)], ids=["regressor", "classifier"]
)


@pytest.fixture
def interrupt(monkeypatch):
    """Ctrl-C at a given step."""

    def at(step):
        original = SymmetrizedElbo.__call__

        def call(self, n):
            if n == step:
                raise KeyboardInterrupt
            return original(self, n)

        monkeypatch.setattr(SymmetrizedElbo, "__call__", call)

    return at


@every_estimator
def test_callback_stops_the_fit(estimator, y):
    stop = Watch(7)
    fitted = clone(estimator).set_callbacks(stop).fit(X, y)
    assert (fitted.stop_reason_, fitted.n_iter_) == ("callback", 14)  # blocks of 2 steps
    assert len(fitted.elbo_curve_) == 7
    assert stop.begun == stop.ended == 8
    assert stop.set_up == 0
    fitted.predict(X)


@every_estimator
def test_every_task_that_begins_ends(estimator, y):
    watch = Watch()
    fitted = clone(estimator).set_callbacks(watch).fit(X, y)
    assert fitted.stop_reason_ == "max_iter"
    assert watch.begun == watch.ended == 101


@pytest.mark.long
@pytest.mark.kept("regressor")
@every_estimator
def test_scoring_monitor_sees_the_model_of_the_moment(estimator, y):
    scoring = "accuracy" if hasattr(estimator, "predict_proba") else "r2"
    monitor = ScoringMonitor(scoring=scoring)
    fitted = clone(estimator).set_callbacks(monitor).fit(X, y)
    whole, *blocks = [row[scoring] for row in monitor.get_logs().data]
    assert len(blocks) == 100
    assert blocks[-1] == whole == pytest.approx(fitted.score(X, y))
    assert max(blocks[:5]) < blocks[-1]


def test_progress_bar_through_pipeline_and_grid_search(capsys):
    pipeline = make_pipeline(StandardScaler(), clone(REG).set_params(max_iter=20))
    search = GridSearchCV(pipeline, {"symmetrizedviregressor__symmetry":
                                     ["auto", None]}, cv=2)  # fmt: skip
    search.set_callbacks(ProgressBar(max_propagation_depth=None)).fit(X, Y)
    assert "SymmetrizedVIRegressor" in capsys.readouterr().out


@every_estimator
def test_interrupt_keeps_a_marked_usable_model_and_goes_on_up(estimator, y, interrupt):
    interrupt(33)
    model = clone(estimator)
    with (
        pytest.warns(ConvergenceWarning, match="interrupted after 33 steps") as caught,
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(X, y)
    assert {w.filename for w in caught} == {__file__}  # the line that called `fit`
    assert (model.stop_reason_, model.n_iter_) == ("interrupted", 33)
    assert np.isfinite(model.elbo_)
    assert model.predict(X).shape == y.shape


@every_estimator
def test_a_second_interrupt_while_finishing_keeps_what_was_trained(
    estimator, y, interrupt, monkeypatch
):
    model = clone(estimator)

    def again(*args, **kwargs):
        raise KeyboardInterrupt

    interrupt(33)
    monkeypatch.setattr("skbayes_sym.estimators.vi.method.expected_log_likelihood", again)
    with (
        pytest.warns(ConvergenceWarning, match="interrupted after 32 steps"),  # of whole blocks
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(X, y)
    assert (model.stop_reason_, model.n_iter_) == ("interrupted", 32)
    assert np.isnan(model.elbo_)
    assert model.predict(X).shape == y.shape


@every_estimator
def test_interrupt_before_the_first_fit_leaves_nothing(estimator, y, interrupt, monkeypatch):
    def again(*args, **kwargs):
        raise KeyboardInterrupt

    model = clone(estimator)
    interrupt(0)
    monkeypatch.setattr("skbayes_sym.estimators.vi.method.expected_log_likelihood", again)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert not [name for name in vars(model) if name.endswith("_")]


@every_estimator
def test_callbacks_are_torn_down_after_an_error(estimator, y, monkeypatch):
    watch = Watch()
    model = clone(estimator).set_callbacks(watch)
    monkeypatch.setattr("skbayes_sym.estimators._fit.run.minimise", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(X, y)
    assert watch.set_up == 0
