"""The same mistake gets the same message from every public estimator."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fits import LABELS, NUMBERS, SMALL, X, target
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline

# Too few steps to converge on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PREDICTS = [name for name, e in SMALL.items() if hasattr(e, "predict")]
CLASSIFIERS = [name for name in PREDICTS if hasattr(SMALL[name], "predict_proba")]
REGRESSORS = [name for name in PREDICTS if name not in CLASSIFIERS]

every = pytest.mark.parametrize("name", SMALL)
every_predictor = pytest.mark.parametrize("name", PREDICTS)


def with_value(value: float) -> Any:
    bad = X.copy()
    bad[3, 1] = value
    return bad


WORDS = pd.DataFrame(X, columns=["a", "b", "c"]).assign(c="red")
DATES = WORDS.assign(c=pd.Timestamp("2020-02-20"))


@every
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (with_value(np.inf), "^Input X contains infinity"),
        (X[:, 0], "^Expected 2D array, got 1D array instead"),
        (X[:0], "^Found array with 0 sample"),
        (X[:, :0], "^Found array with 0 feature"),
        (WORDS, "must hold numbers: could not convert.*'red'. Encode categories first"),
        (DATES, "must hold numbers, got columns .* such as dates"),
        (X + 1j, "^Complex data not supported"),
    ],
    ids=["infinite", "1d", "no-rows", "no-columns", "words", "dates", "complex"],
)
def test_mistakes_in_X(name, rows, message):
    y = target(SMALL[name])
    with pytest.raises(ValueError, match=message):
        clone(SMALL[name]).fit(rows, y if y is None else y[: len(rows)])


@every_predictor
@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda e, y: e.fit(with_value(np.nan), y), "^Input X contains NaN"),
        (lambda e, y: e.fit(X, y[:-1]), r"inconsistent numbers of samples: \[24, 23\]"),
        (lambda e, y: e.fit(X, None), "requires y to be passed, but the target y is None"),
        (lambda e, y: e.fit(X, y, sample_weight=-np.ones(24)), "^Negative values in .*sample_weig"),
        (lambda e, y: e.fit(X, y, sample_weight=np.zeros(24)), "^Sample weights must contain at"),
        (lambda e, y: e.fit(X, y, sample_weight=np.ones(23)), r"^sample_weight.shape == \(23,\)"),
        (lambda e, y: e.fit(X, y, np.full(24, np.nan)), "^Input sample_weight contains NaN"),
    ],
    ids=["nan", "short-y", "no-y", "negative", "all-zero", "short-weight", "nan-weight"],
)
def test_mistakes_in_fit(name, fit, message):
    with pytest.raises(ValueError, match=message):
        fit(clone(SMALL[name]), target(SMALL[name]))


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("label", ["only", 1, 2.0, True])
def test_one_class(name, label):
    with pytest.raises(ValueError, match=f"^{name} needs at least 2 .* 1 class: {label!r}.$"):
        clone(SMALL[name]).fit(X, np.full(24, label))


@pytest.mark.kept("[!B]*", "BayesianL*")
@pytest.mark.parametrize("name", REGRESSORS)
def test_mistakes_in_targets_and_draws_of_numbers(name):
    with pytest.raises(ValueError, match=r"^X and y must hold numbers: could not convert"):
        clone(SMALL[name]).fit(X, LABELS)
    with pytest.raises(ValueError, match=r"^Input y contains NaN"):
        clone(SMALL[name]).fit(X, np.where(NUMBERS > 0, np.nan, NUMBERS))
    model = clone(SMALL[name]).fit(X, NUMBERS)
    for n_samples in (0, -1, 2.5, "many"):
        with pytest.raises(ValueError, match=f"^n_samples must be .* got {n_samples!r}"):
            model.sample_y(X, n_samples)


BAD_VALUES = {
    "max_iter": "many", "n_chains": 0, "n_draws": "many", "tol": -1.0, "batch_size": "all",
    "prior": -1.0, "noise_std": 0.0, "noise_prior_scale": 0.0, "learning_rate": 0.0,
    "activation": "selu", "random_state": "today", "verbose": "loudly",
    "standardize": "yes", "warm_start": "yes", "n_jobs": "all",
    "hidden_layer_sizes": "wide", "n_predict_samples": 0, "early_stopping": "yes",
}  # fmt: skip


@every
def test_mistakes_in_parameters(name):
    given = SMALL[name].get_params().keys() & BAD_VALUES.keys()
    assert len(given) > 4
    for parameter in given:
        value = BAD_VALUES[parameter]
        message = f"^The {parameter!r} parameter of {name} must be .* Got {value!r} instead"
        with pytest.raises(ValueError, match=message):
            clone(SMALL[name]).set_params(**{parameter: value}).fit(X, target(SMALL[name]))


@every
def test_prior_scales_that_do_not_fit(name):
    if "array-like" not in SMALL[name]._parameter_constraints.get("prior", []):
        pytest.skip("takes one number")
    for scales, message in [
        ([1.0] * 7, r"^prior must be a number or one for each of the .* shape \(7,\)"),
        ([-1.0], r"^prior must be positive and finite, got \[-1.0\]"),
        ([np.inf], r"^prior must be positive and finite, got \[inf\]"),
        (["wide"], r"^prior must hold numbers: could not convert .* 'wide'.$"),
    ]:
        with pytest.raises(ValueError, match=message):
            clone(SMALL[name]).set_params(prior=scales).fit(X, target(SMALL[name]))


@every
@pytest.mark.parametrize("device", ["gpu", "mps", "meta"])
def test_devices_that_fits_do_not_run_on(name, device):
    with pytest.raises(ValueError, match=f"^device='{device}' is not a device: use 'auto'"):
        clone(SMALL[name]).set_params(device=device).fit(X, target(SMALL[name]))


@every
def test_cuda_where_there_is_none(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^device='cuda' was asked for, but torch sees 0 CUDA"):
        clone(SMALL[name]).set_params(device="cuda").fit(X, target(SMALL[name]))


QUESTIONS = ["predict", "predict_proba", "predict_quantiles", "predict_interval",
             "predict_uncertainty", "sample_y", "save"]  # fmt: skip


@every_predictor
def test_mistakes_in_questions(name):
    model, y = clone(SMALL[name]), target(SMALL[name])
    for question in QUESTIONS:
        if hasattr(model, question):
            with pytest.raises(ValueError, match=f"^This {name} instance is not fitted yet."):
                getattr(model, question)(X)
    model.fit(X, y)
    with pytest.raises(ValueError, match=f"^X has 2 features, but {name} is expecting 3 features"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match=r"^Expected 2D array, got 1D array instead"):
        model.predict(X[0])
    with pytest.raises(ValueError, match=r"^X must hold numbers: could not convert"):
        model.predict(WORDS.to_numpy())
    with pytest.raises(ValueError, match=r"^X has 24 rows and y 23: they must match"):
        model.log_predictive_density(X, y[:-1])
    missing = y.astype(object)
    missing[0] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        model.log_predictive_density(X, missing)
    assert len(model.predict(X[:1])) == 1


@pytest.mark.kept("alone-BayesianLinearClassifier", "pipeline-Symm*", "pipeline-Deep*")
@pytest.mark.parametrize(
    "name", ["SymmetrizedVIClassifier", "DeepEnsembleRegressor", "BayesianLinearClassifier"]
)
@pytest.mark.parametrize("around", [lambda e: e, make_pipeline], ids=["alone", "pipeline"])
def test_warnings_point_to_the_line_that_called(name, around):
    estimator = clone(SMALL[name]).set_params(max_iter=3, tol=0.0)
    with pytest.warns(ConvergenceWarning, match="not converged") as caught:
        around(estimator).fit(X, target(estimator))
    assert {warning.filename for warning in caught} == {__file__}
