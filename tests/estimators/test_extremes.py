"""Extreme scales, rows far away and steps too large: numbers, or an error that says what to do."""

import re
import warnings

import numpy as np
import pytest
from fits import FITS, LABELS, NUMBERS, SMALL, THREE, X, fitted
from sklearn.base import clone

from skbayes_sym import (
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    LaplaceRegressor,
    SymmetrizedVIClassifier,
    SymmetrizedVIRegressor,
)
from skbayes_sym.estimators._fit.rows import column_scaling
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.optimise import DivergenceError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ROWS = [n for n, e in SMALL.items() if hasattr(e, "predict")]
QUICK = {"hidden_layer_sizes": (3,), "max_iter": 20, "tol": None, "random_state": 0}


@pytest.mark.parametrize("factor", [1e-300, 1e-200, 1e-100, 1e100, 1e200, 1e300])
def test_no_scale_over_or_underflows(factor):
    weight = np.ones(len(X))
    plain, scaled = (column_scaling(a, weight, enabled=True) for a in (X, factor * X))
    np.testing.assert_allclose(scaled.scale / factor, plain.scale, rtol=1e-12)
    np.testing.assert_allclose(scaled.apply(factor * X), plain.apply(X), rtol=1e-10, atol=1e-14)


def test_a_column_that_spans_no_number_is_refused():
    values = np.array([[0.0, 1e-315], [1.0, 0.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"column 1 spreads by less than 2\.2e-308"):
        column_scaling(values, np.ones(3), enabled=True)


def test_a_column_that_spans_all_numbers_is_refused():
    values = np.array([[-1.7e308], [1.7e308], [1.7e308]])
    with pytest.raises(ValueError, match="column 0 spans more than"):
        column_scaling(values, np.ones(3), enabled=True)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_predictions_dont_depend_on_the_scale_of_columns(factor):
    model = SymmetrizedVIRegressor(**QUICK)
    plain, scaled = clone(model).fit(X, NUMBERS), clone(model).fit(factor * X, NUMBERS)
    np.testing.assert_allclose(scaled.predict(factor * X), plain.predict(X), rtol=1e-6)


@pytest.mark.kept("1e+100")
@pytest.mark.parametrize("factor", [1e-100, 1e100])
def test_predictions_go_with_the_scale_of_targets(factor):
    model = LaplaceRegressor((3,), optimizer="adam", max_iter=20, tol=None, random_state=0)
    plain, scaled = clone(model).fit(X, NUMBERS), clone(model).fit(X, factor * NUMBERS)
    for a, b in zip(plain.predict(X, True), scaled.predict(X, True), strict=True):
        np.testing.assert_allclose(b / factor, a, rtol=1e-6)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ["linear-gaussian", "bayesian-mlp"])
def test_noise_goes_with_the_scale_of_targets_whose_squares_are_no_numbers(name):
    model = clone(FITS[name].estimator).set_params(normalize_y=True)
    plain, scaled = clone(model).fit(X, NUMBERS), clone(model).fit(X, 2.0**600 * NUMBERS)
    assert scaled.noise_std_ == pytest.approx(2.0**600 * plain.noise_std_)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_draws_and_covariances_beyond_numbers_are_announced():
    with pytest.warns(UserWarning, match=r"the prediction for row \d+ of X is infinite"):
        fitted("linear-counts").sample_y(1e5 * X, 2)
    with pytest.warns(UserWarning, match=r"the prediction for row \d+ of X is infinite"):
        fitted("linear-gaussian").predict(1e200 * X, return_cov=True)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_score_beyond_numbers_is_refused():
    with pytest.raises(ValueError, match=r"R\^2 is nan.*Rescale"):
        fitted("linear-gaussian").score(X, 1e200 * NUMBERS, np.full(len(X), 1e200))


@pytest.mark.parametrize("name", [n for n in FITS if hasattr(FITS[n].estimator, "predict")])
def test_rows_far_away_are_numbers_or_named(name):
    model, case = fitted(name), FITS[name]
    far = np.repeat(case.X[:2], 2, 0)
    far[2] *= 1e200
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _judge_far(model, far)
    assert not [w for w in caught if "row 2 of X is infinite: too far" not in str(w.message)]


def _judge_far(model, far):
    try:
        values = model.predict(far)
    except (ValueError, NotPositiveDefiniteError) as found:
        error = str(found)
        assert re.search("prediction for row 2 of X is not a number|in this arithmetic", error)
    else:
        assert values.dtype.kind != "f" or not np.isnan(values).any()


@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore:the prediction for row")
def test_scores_of_rows_at_the_end_of_numbers_end_in_words():
    """A sum of infinities of both signs is scikit-learn's way to look for one."""
    far = 1.7e308 * np.sign(X)
    with pytest.raises(ValueError, match="contains infinity"):
        fitted("linear-gaussian").score(far, NUMBERS)


@pytest.mark.parametrize("rate", [1e300, 1e308])
@pytest.mark.parametrize(
    "kind", [DeepEnsembleClassifier, SymmetrizedVIRegressor, SymmetrizedVIClassifier]
)
def test_the_last_step_is_checked(kind, rate):
    y = NUMBERS if kind is SymmetrizedVIRegressor else LABELS
    model = kind(**{**QUICK, "max_iter": 1, "learning_rate": rate})
    with pytest.raises((DivergenceError, NotPositiveDefiniteError, ValueError)):
        model.fit(X, y).predict(X)


def test_log_densities_of_classes_dont_underflow():
    model = clone(FITS["ensemble-classifier"].estimator).set_params(max_iter=300)
    model.fit(X, LABELS)
    far = 1e4 * X
    assert np.isfinite(model.log_predictive_density(far, LABELS)).all()
    near = model.log_predictive_density(X, LABELS)
    codes = (model.classes_[1] == LABELS).astype(int)
    expected = model.predict_log_proba(X)[np.arange(len(X)), codes]
    np.testing.assert_allclose(near, expected, rtol=1e-9)
    assert model.log_predictive_density(X[:1], ["another"])[0] == -np.inf


@pytest.mark.parametrize("n_weight_samples", [1, 2])
@pytest.mark.parametrize("n_predict_samples", [1, 20])
def test_networks_without_hidden_layers_predict(n_weight_samples, n_predict_samples):
    settings = {"n_weight_samples": n_weight_samples, "n_predict_samples": n_predict_samples}
    clf = SymmetrizedVIClassifier((), max_iter=5, tol=None, random_state=0, **settings)
    proba = clf.fit(X, THREE).predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1.0)
    assert np.isfinite(clf.log_predictive_density(X, THREE)).all()
    reg = SymmetrizedVIRegressor((), max_iter=5, tol=None, random_state=0, **settings)
    assert np.isfinite(reg.fit(X, NUMBERS).predict(X, return_std=True)).all()


def test_arguments_of_questions_are_checked():
    model = fitted("linear-gaussian")
    for question in (
        lambda: model.sample_y(X, True),
        lambda: model.predict_quantiles(X, []),
        lambda: model.predict_interval(X, None),
        lambda: model.sample_y(X, random_state=2**40),
    ):
        with pytest.raises((ValueError, TypeError), match=r"n_samples|quantiles|coverage|[Ss]eed"):
            question()


def test_more_than_there_is_is_said_in_words(monkeypatch):
    """Of a prediction, which asks for memory as it goes."""
    model = clone(FITS["ensemble-regressor"].estimator).fit(X, FITS["ensemble-regressor"].y)
    monkeypatch.setattr(
        DeepEnsembleRegressor, "_predictor",
        lambda self, like: (_ for _ in ()).throw(
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
        ),
    )  # fmt: skip
    with pytest.raises(MemoryError, match="Use fewer rows"):
        model.predict(X)
