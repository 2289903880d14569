"""scikit-learn's own checks, with no expected failure, and habits every estimator shares."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from skbayes_sym import (
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    MCMCClassifier,
    MCMCRegressor,
    SymmetrizedVIClassifier,
    SymmetrizedVIRegressor,
)

FAST = {"hidden_layer_sizes": (5,), "max_iter": 150, "n_predict_samples": 50, "random_state": 0}
ESTIMATORS = [SymmetrizedVIRegressor(**FAST), SymmetrizedVIClassifier(**FAST)]
FAST_ENSEMBLE = {"hidden_layer_sizes": (5,), "n_members": 3, "max_iter": 150, "random_state": 0}
ENSEMBLES = [DeepEnsembleRegressor(**FAST_ENSEMBLE), DeepEnsembleClassifier(**FAST_ENSEMBLE)]
FAST_CHAINS = {
    "hidden_layer_sizes": (2,), "n_chains": 4, "n_warmup": 20, "n_draws": 5, "random_state": 0,
    "mode_weights": "chains",
}  # fmt: skip
SAMPLERS = [MCMCRegressor(**FAST_CHAINS), MCMCClassifier(**FAST_CHAINS)]

# Too few steps to converge on purpose: the checks fit each estimator some 50 times.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


@parametrize_with_checks(
    ESTIMATORS + ENSEMBLES + SAMPLERS, expected_failed_checks={}.get, xfail_strict=True
)
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
    assert (a.elbo_, a.symmetry_gap_) == (b.elbo_, b.symmetry_gap_)


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
        three = clone(estimator).fit(X, y)
        three.predict(X)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert_same_fit(one, three, X)


@every_estimator
def test_fits_in_several_threads_are_the_same_and_restore_the_setting(estimator):
    X, y = data(estimator)
    one = clone(estimator).fit(X, y)
    try:
        torch.set_num_threads(3)
        fits = Parallel(n_jobs=3, backend="threading")(
            delayed(clone(estimator).set_params(max_iter=max_iter).fit)(X, y)
            for max_iter in (20, 150, 400, 150)
        )
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert_same_fit(one, fits[1], X)
    assert_same_fit(one, fits[3], X)


@every_estimator
def test_grid_search_is_the_same_in_two_processes(estimator):
    X, y = data(estimator)
    name = type(estimator).__name__.lower()
    searches = [
        GridSearchCV(
            make_pipeline(StandardScaler(), clone(estimator)),
            {f"{name}__symmetry": ["auto", None]}, cv=3, n_jobs=n_jobs,
        ).fit(X, y)
        for n_jobs in (None, 2)
    ]  # fmt: skip
    scores = [s.cv_results_["mean_test_score"] for s in searches]
    assert np.array_equal(*scores)
    best = searches[0].best_estimator_
    if not hasattr(estimator, "predict_proba"):
        mean, std = best.predict(X, return_std=True)  # through the pipeline
        assert mean.shape == std.shape == (len(X),)


@every_estimator
def test_pickle_carries_arrays_only(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    expected = fitted.predict(X)
    assert "_cache" in vars(fitted)
    payload = pickle.dumps(fitted)
    assert b"_rebuild_tensor" not in payload
    restored = pickle.loads(payload)
    assert np.array_equal(restored.predict(X), expected)


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
def test_data_frames_keep_their_names(estimator):
    X, y = data(estimator)
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    fitted = clone(estimator).fit(frame, pd.Series(y))
    assert list(fitted.feature_names_in_) == list(frame.columns)
    assert np.array_equal(fitted.predict(frame), clone(estimator).fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame.rename(columns={"f0": "other"}))


@every_estimator
def test_float32_follows_the_data(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X.astype(np.float32), y)
    assert fitted.dtype_ == "float32"
    assert fitted.posterior_.loc.dtype == np.float32
    double = clone(estimator).fit(X, y)
    # 150 Adam steps in two precisions: the same model up to the noise of rounding.
    assert fitted.elbo_ == pytest.approx(double.elbo_, abs=0.02 * len(X))
    forced = clone(estimator).set_params(dtype="float64").fit(X.astype(np.float32), y)
    assert forced.dtype_ == "float64"


@every_estimator
def test_predictions_dont_depend_on_the_other_rows(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    np.testing.assert_allclose(
        fitted.predict_uncertainty(X[::7]).total,
        fitted.predict_uncertainty(X).total[::7],
        rtol=1e-9,
    )


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
