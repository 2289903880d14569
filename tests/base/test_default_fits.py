"""Every public estimator at its defaults, fitted to small data and queried in every public way.

`.ci/run` runs this file on the oldest supported scikit-learn, on one in between and on the newest.
"""

import pickle
from functools import cache

import joblib
import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skbayes_sym

_rng = np.random.default_rng(0)
X = _rng.standard_normal((24, 2))
TARGETS = X[:, 0] + 0.3 * _rng.standard_normal(24)
CLASSES = np.array(["a", "b"])[(TARGETS > 0).astype(int)]
MATRIX = np.where(_rng.random((12, 5)) < 0.8, _rng.standard_normal((12, 5)), np.nan)

NAMES = [
    name
    for name in skbayes_sym.__all__
    if isinstance(getattr(skbayes_sym, name), type) and hasattr(getattr(skbayes_sym, name), "fit")
]
FAST = {"BayesianLinearRegressor", "BayesianLinearClassifier"}
ROW_NAMES = [name for name in NAMES if name != "SymVIMatrixFactorization"]

pytestmark = [
    # At 24 rows some defaults warn that they haven't converged.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*there is nothing to learn"),  # LILA on a table
]


def all_names(names=NAMES, fast=FAST):
    """Parametrize over estimators; those that take half a second or more are marked long."""
    rows = [pytest.param(name, marks=[] if name in fast else pytest.mark.long) for name in names]
    return pytest.mark.parametrize("name", rows)


def make(name):
    """Make the estimator with a seed, otherwise at its defaults."""
    return getattr(skbayes_sym, name)().set_params(random_state=0)


def training_data(estimator):
    """Return the arguments of `fit`."""
    if type(estimator).__name__ == "SymVIMatrixFactorization":
        return (MATRIX,)
    return X, CLASSES if is_classifier(estimator) else TARGETS


@cache
def fitted(name):
    """Fit once for all tests of an estimator."""
    estimator = make(name)
    return estimator.fit(*training_data(estimator))


def predictions(model):
    """Return predictions of the fitted model."""
    if hasattr(model, "predict_entries"):
        return np.asarray(model.predict_entries([0, 1], [2, 3]))
    return model.predict(X)


def check_distribution(distribution, model):
    """Query a predictive distribution in every public way."""
    log_prob = distribution.log_prob(training_data(model)[1])
    assert np.isfinite(log_prob).all()
    if is_classifier(model):
        np.testing.assert_allclose(distribution.proba().sum(axis=1), 1.0)
        return
    assert distribution.mean().shape == distribution.std().shape == TARGETS.shape
    assert (np.diff(distribution.interval(0.9)) > 0.0).all()
    assert (np.diff(distribution.quantile([0.1, 0.5, 0.9])) >= 0.0).all()
    assert distribution.sample(3).shape == (24, 3)
    assert np.isfinite(distribution.crps(TARGETS)).all()
    assert ((distribution.cdf(TARGETS) >= 0.0) & (distribution.cdf(TARGETS) <= 1.0)).all()


def check_regressor(model):
    """Query a fitted regressor in every public way."""
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == TARGETS.shape
    assert (std > 0.0).all()
    assert model.predict_interval(X).shape == (24, 2)
    assert model.predict_quantiles(X).shape == (24, 3)
    assert model.predict_uncertainty(X).total.shape == (24,)
    assert np.isfinite(model.log_predictive_density(X, TARGETS)).all()
    assert model.sample_y(X, 3).shape == (24, 3)
    assert model.score(X, TARGETS) > 0.0


def check_classifier(model):
    """Query a fitted classifier in every public way."""
    assert set(model.predict(X)) <= set(CLASSES)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)).sum(axis=1), 1.0)
    assert model.predict_uncertainty(X).total.shape == (24,)
    assert np.isfinite(model.log_predictive_density(X, CLASSES)).all()
    assert model.score(X, CLASSES) > 0.5


def check_factorization(model):
    """Query a fitted matrix factorization in every public way."""
    mean, std = model.predict_entries([0, 1], [2, 3], return_std=True)
    assert mean.shape == std.shape == (2,)
    assert model.transform(MATRIX).shape[0] == len(MATRIX)
    assert model.reconstruct().shape == MATRIX.shape
    assert np.isfinite(model.score(MATRIX))
    model.recommend([0, 1], 2)
    model.similar_columns(0, 2)


@all_names()
def test_fit_and_every_query(name):
    model = fitted(name)
    assert np.isfinite(np.asarray(model.n_iter_)).all()
    repr(model)
    if name == "SymVIMatrixFactorization":
        check_factorization(model)
        return
    check_distribution(skbayes_sym.predictive(model, X), model)
    check_classifier(model) if is_classifier(model) else check_regressor(model)
    assert is_classifier(model) != is_regressor(model)


@all_names()
def test_pickles_files_and_clones(name, tmp_path):
    model = fitted(name)
    expected = predictions(model)
    assert np.array_equal(predictions(pickle.loads(pickle.dumps(model))), expected)
    joblib.dump(model, tmp_path / "model.joblib")
    assert np.array_equal(predictions(joblib.load(tmp_path / "model.joblib")), expected)
    copy = clone(model)
    assert repr(copy.get_params()) == repr(make(name).get_params())
    assert not hasattr(copy, "n_iter_")


@pytest.mark.processes
@all_names(ROW_NAMES, fast=())
def test_search_over_a_pipeline_in_two_processes(name):
    estimator = make(name)
    pipeline = make_pipeline(StandardScaler(), estimator)
    parameter = f"{name.lower()}__random_state"
    search = GridSearchCV(pipeline, {parameter: [1]}, cv=2, n_jobs=2, error_score="raise")
    search.fit(*training_data(estimator))
    assert np.isfinite(search.best_score_)
    assert search.predict(X).shape == (24,)


HAS_JOBS = [name for name in NAMES if "n_jobs" in make(name).get_params()]


@pytest.mark.processes
@all_names(HAS_JOBS, fast=())
def test_two_jobs_give_the_same_fit(name):
    estimator = make(name)
    parallel = estimator.set_params(n_jobs=2).fit(*training_data(estimator))
    assert np.array_equal(predictions(parallel), predictions(fitted(name)))
