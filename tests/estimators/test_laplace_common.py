"""scikit-learn's checks and the package's habits, for the Laplace and LILA estimators."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from skbayes_sym import LaplaceClassifier, LaplaceRegressor, LILAClassifier, LILARegressor
from skbayes_sym.models.augmentations import Translation

FAST = {"hidden_layer_sizes": (5,), "max_iter": 100, "n_hyper_updates": 20, "random_state": 0}
PLAIN = [LaplaceRegressor(**FAST), LaplaceClassifier(**FAST), LILAClassifier(**FAST)]
INVARIANT = [
    LILARegressor(invariances=[Translation()], n_augmentations=3, **FAST),
    LILAClassifier(invariances=[Translation()], n_augmentations=3, hyper="exact", **FAST),
]
ESTIMATORS = PLAIN + INVARIANT

# Too few steps to converge on purpose: the checks fit each estimator some 50 times.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


@parametrize_with_checks(ESTIMATORS, expected_failed_checks={}.get, xfail_strict=True)
def test_sklearn_checks(estimator, check):
    check(estimator)


def data(estimator, n=60):
    load = load_iris if hasattr(estimator, "predict_proba") else load_diabetes
    X, y = load(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))[:n]
    return X[rows], y[rows]


def assert_same_fit(a, b, X):
    assert np.array_equal(a.posterior_.loc, b.posterior_.loc)
    assert np.array_equal(a.predict(X), b.predict(X))
    assert a.log_evidence_ == b.log_evidence_


@every_estimator
def test_random_state_decides_everything_and_nothing_global_moves(estimator):
    X, y = data(estimator)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = clone(estimator).fit(X, y), clone(estimator).fit(X, y)
    assert_same_fit(first, second, X)
    other = clone(estimator).set_params(random_state=1).fit(X, y)
    assert not np.array_equal(first.posterior_.loc, other.posterior_.loc)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


@every_estimator
@pytest.mark.parametrize("batch_size", ["auto", 16], ids=["full", "minibatch"])
def test_weights_are_repetitions_bit_for_bit(estimator, batch_size):
    X, y = data(estimator)
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 4, size=len(y))
    repeated = rng.permutation(np.repeat(np.arange(len(y)), weight))
    estimator = clone(estimator).set_params(batch_size=batch_size)
    weighted = clone(estimator).fit(X, y, sample_weight=weight)
    assert_same_fit(weighted, clone(estimator).fit(X[repeated], y[repeated]), X)


@every_estimator
def test_threads_are_left_alone_and_dont_matter(estimator):
    X, y = data(estimator)
    one = clone(estimator).fit(X, y)
    try:
        torch.set_num_threads(3)
        fits = Parallel(n_jobs=2, backend="threading")(
            delayed(clone(estimator).set_params(max_iter=max_iter).fit)(X, y)
            for max_iter in (20, 100, 100)
        )
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert_same_fit(one, fits[1], X)
    assert_same_fit(one, fits[2], X)


@every_estimator
def test_grid_search_through_a_pipeline_in_two_processes(estimator):
    X, y = data(estimator)
    name = type(estimator).__name__.lower()
    grid = {f"{name}__prior_scale": [1.0, 3.0]}
    searches = [
        GridSearchCV(
            make_pipeline(StandardScaler(), clone(estimator)), grid, cv=2, n_jobs=n_jobs
        ).fit(X, y)
        for n_jobs in (None, 2)
    ]  # fmt: skip
    assert np.array_equal(*(s.cv_results_["mean_test_score"] for s in searches))


@every_estimator
def test_pickle_carries_arrays_only(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    expected = fitted.predict(X)
    payload = pickle.dumps(fitted)
    assert b"_rebuild_tensor" not in payload
    restored = pickle.loads(payload)
    assert np.array_equal(restored.predict(X), expected)
    theta = restored.posterior_.sample(2, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(restored.posterior_.log_prob(theta)).all()


@every_estimator
def test_a_model_fitted_on_a_gpu_predicts_without_one(estimator):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    expected = fitted.predict(X)
    fitted.device_, fitted._cache = "cuda:0", {}  # as unpickled from a GPU machine
    assert np.array_equal(fitted.predict(X), expected)


@every_estimator
def test_float32_follows_the_data(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X.astype(np.float32), y)
    assert fitted.dtype_ == "float32"
    assert fitted.posterior_.loc.dtype == np.float32
    double = clone(estimator).fit(X, y)
    # 100 Adam steps in two precisions: the same model up to the noise of rounding.
    assert fitted.log_evidence_ == pytest.approx(double.log_evidence_, abs=0.02 * len(X))


@every_estimator
def test_html_repr_and_doc_list_every_parameter_and_attribute(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(pd.DataFrame(X).rename(columns=str), y)
    assert type(estimator).__name__ in fitted._repr_html_()
    doc = type(estimator).__doc__
    for name in fitted.get_params():
        assert f"    {name} : " in doc, name
    for name in vars(fitted):
        if name.endswith("_") and not name.startswith("_"):
            assert name in doc, name


@every_estimator
def test_scoring_monitor_sees_the_model_of_the_moment(estimator):
    X, y = data(estimator)
    scoring = "accuracy" if hasattr(estimator, "predict_proba") else "r2"
    monitor = ScoringMonitor(scoring=scoring)
    fitted = clone(estimator).set_params(keep_best=False).set_callbacks(monitor).fit(X, y)
    whole, *blocks = [row[scoring] for row in monitor.get_logs().data]
    assert len(blocks) == 20
    assert blocks[-1] == whole == pytest.approx(fitted.score(X, y))


class StopAt:
    """Ask to stop after so many blocks."""

    def __init__(self, n_blocks):
        self.n_blocks = n_blocks

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        return context.task_name == "block" and context.task_id + 1 >= self.n_blocks


@every_estimator
def test_callback_stops_the_fit(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).set_callbacks(StopAt(7)).fit(X, y)
    assert (fitted.stop_reason_, fitted.n_iter_) == ("callback", 35)
    assert len(fitted.log_evidence_history_) in {0, 5}  # after a burn-in of 2 blocks
    assert np.isfinite(fitted.log_evidence_)


@every_estimator
def test_interrupt_keeps_a_marked_usable_model(estimator, monkeypatch):
    from skbayes_sym.inference.evidence_ascent import ModeObjective

    original = ModeObjective.__call__

    def call(self, n):
        if n == 33:
            raise KeyboardInterrupt
        return original(self, n)

    monkeypatch.setattr(ModeObjective, "__call__", call)
    X, y = data(estimator)
    model = clone(estimator)
    with (
        pytest.warns(ConvergenceWarning, match="interrupted after 33 steps"),
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(X, y)
    assert (model.stop_reason_, model.n_iter_) == ("interrupted", 33)
    assert np.isfinite(model.log_evidence_)
    assert model.predict(X).shape == y.shape
