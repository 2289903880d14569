"""scikit-learn's own checks of the linear models, with no expected failure, and shared habits."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from skbayes_sym import InvarianceAbidingClassifier, InvarianceAbidingRegressor

ESTIMATORS = [
    InvarianceAbidingRegressor(),
    InvarianceAbidingRegressor("student-t"),
    InvarianceAbidingRegressor("poisson"),
    InvarianceAbidingClassifier(random_state=0, n_points=128),
    InvarianceAbidingClassifier("multinomial", random_state=0, n_points=128),
]

every_estimator = pytest.mark.parametrize(
    "estimator", ESTIMATORS, ids=lambda e: f"{type(e).__name__}-{e.likelihood}"
)


# Some checks fit noiseless targets or separable classes: those warn, as they should.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks={}.get, xfail_strict=True)
def test_sklearn_checks(estimator, check):
    check(estimator)


def data(estimator, n=60):
    """Rows without an exact fit, and as many classes as the estimator likes."""
    is_classifier = hasattr(estimator, "predict_proba")
    X, y = (load_iris if is_classifier else load_diabetes)(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))[:n]
    X, y = X[rows], y[rows]
    X = X[:, :2] if is_classifier else X  # the sepals alone don't separate the species
    if is_classifier and estimator.likelihood != "multinomial":
        y = np.minimum(y, 1) if estimator.likelihood == "bernoulli" else (y == 1).astype(int)
    return X, y


def assert_same_fit(a, b, X):
    assert np.array_equal(a.coef_, b.coef_)
    assert np.array_equal(a.predict(X), b.predict(X))
    assert (a.elbo_, a.symmetry_gap_) == (b.elbo_, b.symmetry_gap_)


@every_estimator
def test_fits_repeat_and_nothing_global_moves(estimator):
    X, y = data(estimator)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = clone(estimator).fit(X, y), clone(estimator).fit(X, y)
    assert_same_fit(first, second, X)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


@every_estimator
def test_weights_are_repetitions_bit_for_bit(estimator):
    X, y = data(estimator)
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 4, size=len(y))
    repeated = rng.permutation(np.repeat(np.arange(len(y)), weight))
    weighted = clone(estimator).fit(X, y, sample_weight=weight)
    again = clone(estimator).fit(X[repeated], y[repeated])
    assert_same_fit(weighted, again, X)
    kept = weight > 0
    first = [np.flatnonzero(repeated == i)[0] for i in np.flatnonzero(kept)]
    assert np.array_equal(weighted.site_location_[kept], again.site_location_[first])
    assert np.isnan(weighted.site_location_[~kept]).all()
    assert np.isinf(weighted.site_variance_[~kept]).all()


@every_estimator
def test_threads_are_left_alone_and_dont_matter(estimator):
    X, y = data(estimator)
    one = clone(estimator).fit(X, y)
    try:
        torch.set_num_threads(3)
        three = clone(estimator).fit(X, y)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert_same_fit(one, three, X)


@every_estimator
def test_pickle_carries_arrays_only(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    expected = fitted.predict(X)
    payload = pickle.dumps(fitted)
    assert b"_rebuild_tensor" not in payload
    assert np.array_equal(pickle.loads(payload).predict(X), expected)


@every_estimator
def test_a_model_fitted_on_a_gpu_predicts_without_one(estimator):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    expected = fitted.predict(X)
    fitted.device_ = "cuda:0"  # as unpickled from a GPU machine
    assert np.array_equal(fitted.predict(X), expected)


@every_estimator
def test_data_frames_keep_their_names(estimator):
    X, y = data(estimator)
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    fitted = clone(estimator).fit(frame, pd.Series(y))
    assert list(fitted.feature_names_in_) == list(frame.columns)
    assert np.array_equal(fitted.predict(frame), clone(estimator).fit(X, y).predict(X))


@every_estimator
def test_predictions_dont_depend_on_the_other_rows(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    total = fitted.predict_uncertainty(X).total
    np.testing.assert_allclose(fitted.predict_uncertainty(X[::7]).total, total[::7], rtol=1e-9)


@every_estimator
def test_float32_follows_the_data(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X.astype(np.float32), y)
    assert fitted.dtype_ == "float32"
    spread = fitted.predict_uncertainty(X.astype(np.float32)).total
    assert spread.dtype == np.float32
    rounded = clone(estimator).fit(X.astype(np.float32).astype(float), y)
    assert fitted.elbo_ == rounded.elbo_  # the fit itself is in float64
    assert clone(estimator).set_params(dtype="float64").fit(X.astype("f"), y).dtype_ == "float64"


@every_estimator
def test_inside_a_pipeline_and_a_search(estimator):
    X, y = data(estimator)
    name = type(estimator).__name__.lower()
    grid = {f"{name}__prior_scale": ["learn", 1.0]}
    search = GridSearchCV(make_pipeline(StandardScaler(), clone(estimator)), grid, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(X, y)
    assert search.predict(X).shape == y.shape


@every_estimator
def test_html_repr_and_doc_list_every_parameter_and_attribute(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    assert type(estimator).__name__ in fitted._repr_html_()
    doc = type(estimator).__doc__
    for name in fitted.get_params():
        assert f"    {name} : " in doc, name
    for name in vars(fitted):
        if name.endswith("_") and not name.startswith("_"):
            assert name in doc, name


class StopAt:
    """Ask to stop after so many updates; sees every task."""

    def __init__(self, n_blocks):
        self.n_blocks, self.begun, self.ended = n_blocks, 0, 0

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        self.begun += 1

    def on_fit_task_end(self, estimator, context):
        self.ended += 1
        return context.task_name == "block" and context.task_id + 1 >= self.n_blocks


@every_estimator
def test_callbacks_see_every_update_and_stop(estimator):
    X, y = data(estimator)
    stop = StopAt(2)
    fitted = clone(estimator).set_callbacks(stop).fit(X, y)
    assert (fitted.stop_reason_, fitted.n_iter_) == ("callback", 2)
    assert stop.begun == stop.ended == 3
    scoring = "accuracy" if hasattr(estimator, "predict_proba") else "r2"
    monitor = ScoringMonitor(scoring=scoring)
    fitted = clone(estimator).set_callbacks(monitor).fit(X, y)
    *_, last = [row[scoring] for row in monitor.get_logs().data]
    assert last == pytest.approx(fitted.score(X, y))


@every_estimator
def test_interrupt_keeps_a_marked_usable_model(estimator, monkeypatch):
    from skbayes_sym.inference import site_learning

    original, calls = site_learning.update, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(site_learning, "update", interrupted)
    X, y = data(estimator)
    model = clone(estimator)
    with (
        pytest.warns(ConvergenceWarning, match="interrupted after 1 steps"),
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(X, y)
    assert (model.stop_reason_, model.n_iter_) == ("interrupted", 1)
    assert np.isfinite(model.elbo_)
    assert model.predict(X).shape == y.shape


@every_estimator
def test_unfitted(estimator):
    with pytest.raises(NotFittedError):
        clone(estimator).predict(np.zeros((2, 3)))
    with pytest.raises(NotFittedError):
        _ = clone(estimator).coef_cov_
