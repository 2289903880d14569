"""Bad input is refused by name, with what to do, in the same words by every estimator.

A mistake is a call and its words. Parameters that don't apply are in `test_refused`, and what no
table foresees is the fuzzer's (`fuzz.py`).
"""

import datetime
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fits import COUNTS, FITS, LABELS, NUMBERS, SMALL, X, assert_predicts_as, fitted, target
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

import skbayes_sym as sk
from skbayes_sym.models import Poisson
from skbayes_sym.models.priors import ARD

# Too few steps to converge on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

EVERY = list(SMALL)
PREDICTS = [name for name, e in SMALL.items() if hasattr(e, "predict")]
TABLES = [n for n in PREDICTS if get_tags(SMALL[n]).input_tags.allow_nan]  # as they are read
CLASSIFIERS = [name for name in PREDICTS if hasattr(SMALL[name], "predict_proba")]
NUMERIC = [name for name in PREDICTS if name not in CLASSIFIERS]
FIRST = {type(c.estimator).__name__: n for n, c in reversed(FITS.items())}


# What is done, by whom, to an unfitted clone and its target, and the words: {} is the name.
Mistake = tuple[str, list[str], Callable[[Any, Any], object], str]


def with_missing(y: Any) -> Any:
    y = y.astype(object)
    y[0] = np.nan
    return y


def with_value(value: float) -> Any:
    bad = X.copy()
    bad[3, 1] = value
    return bad


FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(c="red")
DATES = FRAME.assign(c=pd.Timestamp("2020-02-20"))
DAYS = np.datetime64("2020-02-20") + np.arange(X.size).reshape(X.shape)
OF_X = {
    "infinite": (with_value(np.inf), "^Input X contains infinity"),
    "1d": (X[:, 0], "^Expected 2D array, got 1D array instead"),
    "no rows": (X[:0], "^Found array with 0 sample"),
    "no columns": (X[:, :0], "^Found array with 0 feature"),
    "words": (FRAME, r"must hold numbers: could not convert.*'red' \(in 'c'\). Encode categor"),
    "dates": (DATES, r"must hold numbers, got columns .* such as dates \(in 'c'\)"),
    "dates in an array": (DAYS, r"must hold numbers, got columns .* such as dates \(in '0', "),
    "date objects": (DAYS.astype(object), r"not 'datetime.date'. Give numbers: days since a date"),
    "periods": (FRAME.assign(c=pd.Period("2020Q1")), "such as dates .* days since a date"),
    "durations": (FRAME.assign(c=pd.Timedelta("2h")), r"durations.* numpy.timedelta64\(1, 'D'\)"),
    "durations in an array": (DAYS - DAYS[0], r"durations.* Give numbers, such as days: column /"),
    "times": (FRAME.assign(c=datetime.time(8, 30)), r"time.*Give the hour, such as value.hour"),
    "times as text": (FRAME.assign(c="08:30"), "'08:30'.* Give the hour, such as value.hour"),
    "dates as text": (FRAME.assign(c="2020-02-30"), "'2020-02-30'.* days since a date"),
    "placeholders": (FRAME.assign(c="?"), r"'\?' means that a number is missing, give NaN"),
    "blanks": (FRAME.assign(c=" "), "' ' means that a number is missing, give NaN"),
    "prices": (FRAME.assign(c="$1,250.00"), "without units and signs of currency"),
    "decimal commas": (FRAME.assign(c="2,5"), "decimal of pandas.read_csv"),
    "complex": (X + 1j, "^Complex data not supported"),
}
# What estimators of tables read, with a warning or without.
READ_BY_TABLES = {
    "words", "dates", "dates in an array", "date objects", "periods", "times as text",
    "dates as text", "placeholders", "blanks", "prices", "decimal commas", "durations", "times",
}  # fmt: skip
# Tables that aren't read, and the call that reads them.
UNREAD = {
    "path": ("people.csv", r"^X must be a table, got str: read the file first.*read_csv"),
    "Path": (Path("people.csv"), r"^X must be a table, got PosixPath|WindowsPath: read the file"),
    "columns": (FRAME.to_dict("list"), r"^X must be a table, got dict: give pandas.DataFrame"),
    "records": (FRAME.to_dict("records"), "got a list of dictionaries: give pandas.DataFrame"),
    "lazy": (
        type("LazyFrame", (), {"columns": ["a"]})(),
        r"^X must be a table, got LazyFrame: give X.collect\(\)",
    ),
    "rows one by one": ((row for row in X), r"^X must be a table, got generator: give list\(X\)"),
}
BAD_VALUES = {
    "max_iter": "many", "n_chains": 0, "n_draws": "many", "tol": -1.0,
    "prior": -1.0, "noise_std": 0.0,
    "activation": "selu", "random_state": "today", "verbose": "loudly",
    "standardize": "yes", "warm_start": "yes", "n_jobs": 0,
    "hidden_layer_sizes": "wide", "n_predict_samples": 0, "sampler": "gibbs", "n_members": -1,
    "optimizer": "sgd", "fit_intercept": "maybe", "predictive": "mc", "n_components": 2.5,
}  # fmt: skip
BAD_SCALES = {
    "too many scales": ([1.0] * 7, r"^prior must be a number or one for .* shape \(7,\)"),
    "a negative scale": ([-1.0], r"^prior must be positive and finite, got \[-1.0\]"),
    "an infinite scale": ([np.inf], r"^prior must be positive and finite, got \[inf\]"),
    "a scale in words": (["wide"], r"^prior must hold numbers: could not convert .* 'wide'.$"),
}


def mistakes_in_fit() -> Iterator[Mistake]:
    for what, (rows, words) in OF_X.items():
        taken = []
        if what in READ_BY_TABLES:
            # A frame with words is a list of entries to the factorisation.
            taken = [*TABLES, "SymVIMatrixFactorization"]
        whose = [n for n in EVERY if n not in taken]
        yield what, whose, lambda e, y, x=rows: e.fit(x, y if y is None else y[: len(x)]), words
    for what, (rows, words) in UNREAD.items():
        yield what, EVERY, lambda e, y, x=rows: e.fit(x, y), words
    for what, weight, words in [
        ("negative weights", -np.ones(24), "^Negative values in .*sample_weig"),
        ("no weight", np.zeros(24), "^Sample weights must contain at"),
        ("too few weights", np.ones(23), r"^sample_weight.shape == \(23,\)"),
        ("missing weights", np.full(24, np.nan), "^Input sample_weight contains NaN"),
    ]:
        yield what, PREDICTS, lambda e, y, w=weight: e.fit(X, y, sample_weight=w), words
    for what, whose, y, words in [
        ("words for y", NUMERIC, LABELS,
         "^y holds labels such as 'high', but {} predicts numbers. Use "),
        ("missing y", NUMERIC, np.where(NUMBERS > 0, np.nan, 1.0), "^Input y contains NaN"),
        ("numbers for y", CLASSIFIERS, NUMBERS, "continuous"),
        ("no y", PREDICTS, None, "requires y to be passed, but"),
        ("sparse y", PREDICTS, csr_array(COUNTS[:, None]), "^Sparse data was passed for y"),
        *((f"one class {label}", CLASSIFIERS, np.full(24, label),
           f"^{{}} needs at least 2 .* 1 class: {label!r}.$") for label in ("only", 1, 2.0, True)),
    ]:  # fmt: skip
        yield what, whose, lambda e, _, y=y: e.fit(X, y), words
    whose = [n for n in PREDICTS if n not in TABLES]
    yield "missing", whose, lambda e, y: e.fit(with_value(np.nan), y), "^Input X contains NaN"
    words = r"^Sparse data was passed for X.*X.sparse.to_dense\(\).*OneHotEncoder\(sparse_out"
    sparse_frame = pd.DataFrame(X).astype("Sparse[float]")
    for what, rows in [("sparse X", csr_array(X)), ("sparse frame", sparse_frame)]:
        yield what, PREDICTS, lambda e, y, rows=rows: e.fit(rows, y), words
    words = r"inconsistent numbers of samples: \[24, 23\]"
    yield "short y", PREDICTS, lambda e, y: e.fit(X, y[:-1]), words


def mistakes_in_parameters() -> Iterator[Mistake]:
    def fit_with(parameter: str, value: Any) -> Callable[[Any, Any], object]:
        return lambda e, y: e.set_params(**{parameter: value}).fit(X, y)

    for parameter, value in BAD_VALUES.items():
        whose = [name for name in EVERY if parameter in SMALL[name].get_params()]
        words = f"^The {parameter!r} parameter of {{}} must be .* Got {value!r} instead"
        yield parameter, whose, fit_with(parameter, value), words
    several = [n for n in EVERY if "array-like" in SMALL[n]._parameter_constraints.get("prior", [])]
    for what, (scales, words) in BAD_SCALES.items():
        yield what, several, fit_with("prior", scales), words
    for parameter, kind in {"prior": ARD, "optimizer": sk.Adam, "sampler": sk.Chains}.items():
        whose = [name for name in EVERY if parameter in SMALL[name].get_params()]
        words = f"^{parameter}=.* has the class {kind.__name__} where .* give {kind.__name__}"
        yield f"a class for {parameter}", whose, fit_with(parameter, kind), words
    whose = ["MCMCRegressor", "MCMCClassifier"]
    words = "^sampler__kernel=.* has the class HMC"
    yield "a class inside", whose, fit_with("sampler", sk.Chains(sk.HMC)), words
    for device in ("gpu", "mps", "meta"):
        words = f"^device='{device}' is not a device: use 'auto'"
        yield device, EVERY, fit_with("device", device), words
    words = "^device='cuda' was asked for, but torch sees 0 CUDA"
    yield "no cuda", EVERY, fit_with("device", "cuda"), words


def mistakes_in_questions() -> Iterator[Mistake]:
    for question in ("predict", "predict_proba", "predict_quantiles", "predict_interval",
                     "predict_uncertainty", "sample_y"):  # fmt: skip
        whose = [name for name in EVERY if hasattr(SMALL[name], question)]
        words = "^This {} instance is not fitted yet."
        yield f"unfitted {question}", whose, lambda e, y, q=question: getattr(e, q)(X), words

    def asked(ask: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
        def call(estimator: Any, _: Any) -> object:
            name = FIRST[type(estimator).__name__]
            return ask(fitted(name), FITS[name].y)

        return call

    for what, whose, ask, words in [
        ("few columns", PREDICTS, lambda m, y: m.predict(X[:, :2]),
         "^X has 2 features, but {} is expecting 3 features"),
        ("one row", PREDICTS, lambda m, y: m.predict(X[0]), "^Expected 2D array, got 1D array"),
        ("words", PREDICTS, lambda m, y: m.predict(FRAME.to_numpy()),
         "^X must hold numbers(: could not convert| in column .* in row 0)"),
        *((what, [n for n in PREDICTS if n not in TABLES],
           lambda m, y, rows=OF_X[what][0]: m.predict(rows), OF_X[what][1])
          for what in ("dates in an array", "durations in an array", "date objects")),
        ("short y", PREDICTS, lambda m, y: m.log_predictive_density(X, y[:-1]),
         "^X has 24 rows and y 23: they must match"),
        ("missing y", PREDICTS,
         lambda m, y: m.log_predictive_density(X, with_missing(y)), "contains NaN"),
        ("quantiles", NUMERIC, lambda m, y: m.predict_quantiles(X, [0.5, 1.0]),
         "quantiles must lie strictly"),
        ("no quantiles", NUMERIC, lambda m, y: m.predict_quantiles(X, []), "quantiles"),
        ("coverage", NUMERIC, lambda m, y: m.predict_interval(X, 1.5),
         "coverage must lie strictly"),
        *((what, PREDICTS, lambda m, y, rows=rows: m.predict(rows), words)
          for what, (rows, words) in UNREAD.items()),
        *((f"{n!r} samples", NUMERIC, lambda m, y, n=n: m.sample_y(X, n),
           f"^n_samples must be .* got {n!r}") for n in (0, -1, 2.5, "many", True)),
    ]:  # fmt: skip
        yield f"{what} in a question", whose, asked(ask), words


MISTAKES = {
    f"{what}-{name}": (name, call, words.format(name))
    for what, whose, call, words in
    [*mistakes_in_fit(), *mistakes_in_parameters(), *mistakes_in_questions()]
    for name in whose
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_the_same_words_from_everybody(mistake: str, monkeypatch: Any) -> None:
    name, call, words = MISTAKES[mistake]
    if mistake.startswith("no cuda"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises((ValueError, TypeError), match=words):
        call(clone(SMALL[name]), target(SMALL[name]))


@pytest.mark.kept(
    "alone-BayesianLinearClassifier",
    "alone-SymVIMatrix*",
    "pipeline-SymmetrizedVI*",
    "pipeline-Deep*",
)
@pytest.mark.parametrize("name", [
    "SymmetrizedVIClassifier", "DeepEnsembleRegressor", "BayesianLinearClassifier",
    "SymVIMatrixFactorization",
])  # fmt: skip
@pytest.mark.parametrize("around", [lambda e: e, make_pipeline], ids=["alone", "pipeline"])
def test_warnings_say_whose_they_are_and_point_to_the_caller_s_line(name: str, around: Any) -> None:
    estimator = clone(SMALL[name]).set_params(max_iter=3, tol=0.0)
    with pytest.warns(ConvergenceWarning, match=f"^{name}: .*not converged") as caught:
        around(estimator).fit(X, target(estimator))
    assert {warning.filename for warning in caught} == {__file__}


SPOILT = ["vi-regressor", "laplace-modes", "linear-labels", "linear-gaussian", "lila-table"]


@pytest.mark.parametrize("name", SPOILT)
def test_a_fitted_model_predicts_by_the_likelihood_of_its_fit(name: str) -> None:
    """Until it is fitted again; parameters that no fit takes are named."""
    model = deepcopy(fitted(name)).set_params(likelihood=Poisson())
    assert_predicts_as(name, model)
    model.set_params(likelihood=None)
    with pytest.raises(ValueError, match=r"^The 'likelihood' parameter of .* Got None"):
        model.predict(X)
    assert_predicts_as(name, model.set_params(likelihood=FITS[name].estimator.likelihood))
    with pytest.raises(ValueError, match="likelihood"):
        model.set_params(likelihood="nonsense").fit(X, FITS[name].y)
    # scikit-learn reads the tags before `fit` can refuse the parameter.
    assert get_tags(model).target_tags.required


def test_a_factorisation_predicts_by_the_likelihood_of_its_fit() -> None:
    model = deepcopy(fitted("factors-gibbs")).set_params(likelihood="bernoulli")
    assert_predicts_as("factors-gibbs", model)
    assert model.with_new_rows(FITS["factors-gibbs"].X[:2]).components_ is not None
