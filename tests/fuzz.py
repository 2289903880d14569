"""A seeded fuzzer: any call gives finite numbers, an error in words, or a warning in words.

    python tests/fuzz.py [N_CALLS] [SEED]       prints each finding with what makes it again
    python tests/fuzz.py one NUMBER [SEED]      one call, with its traceback

A call is drawn by its number and the seed: an estimator's fit with valid, extreme or wrong
parameters and hostile data, a question to a fitted one, also after other parameters were set, more
entries of a stream, or a function or Display. Two in five are of stacks, tables (dates, groups,
forward folds, gross errors, several targets; files, students and displays of the fitted model),
students, predictive distributions, acquisition, torch modules, rating lists, scorers and
constructors. Damaged files are in `saving/test_damage.py` and `saving/test_forged.py`.
"""

import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from inspect import signature
from io import BytesIO
from linecache import getline
from numbers import Integral
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from fits import FITS, MATRIX, SMALL
from matplotlib import pyplot
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    ShuffleSplit,
    TimeSeriesSplit,
)
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils._param_validation import Interval, StrOptions

import skbayes_sym as sk
from skbayes_sym import acquisition, symmetry
from skbayes_sym.factorization.solvers import MAP, VI, Gibbs
from skbayes_sym.models import Gaussian, HalfNormal, Normal, Poisson, StudentT
from skbayes_sym.models.priors import ARD, LayerScales
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.optimise import DivergenceError

OURS = (ValueError, TypeError, IndexError, MemoryError, NotFittedError, DivergenceError,
        NotPositiveDefiniteError, AttributeError, OSError)  # fmt: skip
HUGE = 10**12  # of sizes: refused before the first array is made

Draw = np.random.Generator


class Call(NamedTuple):
    """A call and its words."""

    what: str
    run: Callable[[], Any]
    must_warn: str = ""  # words that a warning must have where there is an answer
    is_log: bool = False  # of logarithms, which may be minus infinity


class Finding(NamedTuple):
    """What isn't as it should be."""

    number: int
    what: str
    problem: str


# Data --------------------------------------------------------------------------------------------

N = 12


def _rows(rng: Draw) -> np.ndarray:
    return rng.standard_normal((N, 3))


INPUTS: dict[str, Callable[[Draw], Any]] = {
    "rows": _rows, "float32": lambda r: _rows(r).astype(np.float32),
    "fortran": lambda r: np.asfortranarray(_rows(r)), "list": lambda r: _rows(r).tolist(),
    "ints": lambda r: r.integers(-3, 4, (N, 3)), "bools": lambda r: _rows(r) > 0,
    "objects": lambda r: _rows(r).astype(object),
    "repeated": lambda r: np.repeat(_rows(r)[:2], N // 2, 0),
    "constant column": lambda r: _rows(r) * [1.0, 0.0, 1.0],
    "all equal": lambda r: np.full((N, 3), 2.5), "zeros": lambda r: np.zeros((N, 3)),
    "one row": lambda r: _rows(r)[:1], "two rows": lambda r: _rows(r)[:2],
    "tiny": lambda r: 1e-200 * _rows(r), "huge": lambda r: 1e200 * _rows(r),
    "largest": lambda r: 1.7e308 * np.sign(_rows(r)),
    "subnormal": lambda r: 5e-324 * r.integers(-3, 4, (N, 3)), "far off": lambda r: 1e12 + _rows(r),
    "of many sizes": lambda r: _rows(r) * [1e-150, 1.0, 1e150],
    "an outlier": lambda r: _rows(r) + np.eye(N, 3) * 1e9,
    "wide": lambda r: r.standard_normal((N, 40)),
    "nan": lambda r: np.where(r.random((N, 3)) < 0.1, np.nan, _rows(r)),
    "all nan": lambda r: np.full((N, 3), np.nan),
    "inf": lambda r: np.where(r.random((N, 3)) < 0.1, np.inf, _rows(r)),
    "1d": lambda r: _rows(r)[:, 0], "3d": lambda r: _rows(r)[None],
    "no rows": lambda r: np.zeros((0, 3)), "no columns": lambda r: np.zeros((N, 0)),
    "words": lambda r: np.array([["a", "b", "c"]] * N), "complex": lambda r: _rows(r) + 1j,
    "sparse": lambda r: sp.csr_array(_rows(r)), "None": lambda r: None, "a number": lambda r: 3.0,
    "tensor": lambda r: torch.as_tensor(_rows(r)),
    "tensor with gradient": lambda r: torch.as_tensor(_rows(r)).requires_grad_(),
}  # fmt: skip

TARGETS: dict[str, Callable[[Draw], Any]] = {
    "numbers": lambda r: r.standard_normal(N), "two columns": lambda r: r.standard_normal((N, 2)),
    "column": lambda r: r.standard_normal((N, 1)), "ints": lambda r: r.integers(-5, 6, N),
    "counts": lambda r: r.integers(0, 6, N), "bools": lambda r: r.random(N) < 0.5,
    "labels": lambda r: np.array(["low", "high"])[r.integers(0, 2, N)],
    "three labels": lambda r: np.arange(N) % 3, "one label": lambda r: np.zeros(N, dtype=int),
    "all labels differ": lambda r: np.array([f"label {i}" for i in range(N)]),
    "mixed labels": lambda r: np.array([1, "a", 2.5] * (N // 3), dtype=object),
    "constant": lambda r: np.full(N, 3.0),
    "nearly constant": lambda r: 3.0 + 1e-15 * r.integers(0, 3, N),
    "tiny": lambda r: 1e-200 * r.standard_normal(N), "huge": lambda r: 1e200 * r.standard_normal(N),
    "largest": lambda r: 1.7e308 * np.sign(r.standard_normal(N)),
    "far off": lambda r: 1e12 + r.standard_normal(N),
    "an outlier": lambda r: r.standard_normal(N) + 1e12 * (np.arange(N) == 0),
    "nan": lambda r: np.where(np.arange(N) == 2, np.nan, r.standard_normal(N)),
    "inf": lambda r: np.where(np.arange(N) == 2, np.inf, r.standard_normal(N)),
    "short": lambda r: r.standard_normal(N - 1), "3d": lambda r: r.standard_normal((N, 1, 1)),
    "complex": lambda r: r.standard_normal(N) + 1j, "None": lambda r: None,
    "a number": lambda r: 3.0, "empty": lambda r: np.zeros(0),
}  # fmt: skip
ORDINARY_X = ["rows", "float32", "list", "ints", "constant column"]
ORDINARY_NUMBERS = ["numbers", "two columns", "ints", "counts", "column"]
ORDINARY_LABELS = ["labels", "three labels", "bools"]

WEIGHTS: dict[str, Callable[[Draw], Any]] = {
    "none": lambda r: None, "ones": lambda r: np.ones(N),
    "some zero": lambda r: (np.arange(N) % 2).astype(float),
    "integers": lambda r: r.integers(1, 4, N), "all zero": lambda r: np.zeros(N),
    "negative": lambda r: -np.ones(N), "tiny": lambda r: np.full(N, 1e-300),
    "huge": lambda r: np.full(N, 1e300), "of many sizes": lambda r: np.logspace(-200, 200, N),
    "nan": lambda r: np.where(np.arange(N) == 1, np.nan, 1.0),
    "inf": lambda r: np.where(np.arange(N) == 1, np.inf, 1.0), "short": lambda r: np.ones(N - 1),
    "words": lambda r: np.array(["a"] * N), "a number": lambda r: 2.0,
}  # fmt: skip

# Parameters --------------------------------------------------------------------------------------

WRONG = [None, -1, 0, 2.5, "nonsense", [], np.nan, np.inf, -np.inf, object(), True, [1.0, 2.0, 3.0],
         {}, "1", (0,), np.array([[1.0]]), -0.5, b"x", 1 + 2j,
         ARD, Poisson, Normal, Gaussian, VI, sk.Chains, sk.Adam, sk.LaplaceRegressor]  # fmt: skip
SCALES = [1e-300, 1e-30, 1e-8, 1e-3, 0.5, 2.0, 1e3, 1e8, 1e30, 1e300]
BY_NAME: dict[str, list[Any]] = {
    "hidden_layer_sizes": [(), 1, (1,), [3], (2, 2), np.array([2]), (HUGE,), (HUGE, HUGE)],
    "noise_std": [*SCALES, "learn", HalfNormal(1e-30), [0.5, 0.5], np.array([1.0]), [-1.0]],
    "prior": [None, *SCALES, "learn", [1.0, 2.0], np.full(3, 0.5), [1.0, np.inf], [0.0, 1.0],
              Normal(1.0), Normal(1e-200), ARD(), LayerScales()],
    "likelihood": ["auto", Gaussian(), StudentT(), StudentT(df=2.1), Poisson(), "gaussian",
                   "heteroscedastic", "ordinal"],
    "tol": [None, 0.0, 1e-12, 1e3, 1e300],
    "n_members": [1, 2, HUGE], "n_chains": [1, 2, HUGE],
    "n_predict_samples": [1, 3, HUGE], "n_draws": [1, 2, HUGE], "n_modes": [0, 1],
    "hidden_posterior": ["mean_field", "global_inducing", 1, 2, 500],
    "optimizer": ["auto", "adam", "gauss-newton", sk.GaussNewton(1), sk.GaussNewton(HUGE),
                  sk.Adam(1e-300), sk.Adam(1e10), sk.Adam(batch_size=1),
                  sk.VariationalAdam(1e300, 5, 3, 1e10),
                  sk.VariationalAdam(n_weight_samples=HUGE, init="laplace"),
                  sk.EvidenceAdam(updates=sk.Updates(2, 0.5)),
                  sk.EvidenceAdam(curvature="full", updates=sk.Updates(1, 0.99, 1e10))],
    "n_components": [1, 2, 3, 50, "auto"],
    "sampler": [*(
        sk.Chains(kernel, init="prior", n_warmup=n, thinning=t, warm_start=w)
        for kernel in ("hmc", sk.HMC()) for n in (0, 1, 4) for t in (1, 2)
        for w in (False, True)
    )],
    "solver": ["vi", "map", "gibbs", MAP(), VI("diag"), Gibbs(2),
               Gibbs(HUGE)],
    "variance_scale": ["loo", 0.0, 1.0, 1e30],
    "remove_symmetries": [
        True, False, sk.ModeWeights("uniform"), sk.ModeWeights("evidence", 0.5), "votes"],
    "verbose": [0], "n_jobs": [None, 1], "device": ["auto", "cpu", "cuda:7", "tpu"],
    "random_state": [0, None, np.random.RandomState(0), 2**40, -1, "today"],
}  # fmt: skip
SHORT = {"max_iter": [1, 2, 3]}
FAST: dict[str, dict[str, Any]] = {
    name: {k: v[0] for k, v in SHORT.items() if k in e.get_params()} for name, e in SMALL.items()
}
for _name in ("MCMCRegressor", "MCMCClassifier"):
    FAST[_name] |= {"sampler": sk.Chains(init="prior", n_warmup=4), "n_chains": 2, "n_draws": 2}
    FAST[_name] |= {"hidden_layer_sizes": (2,)}
for _name in ("BayesianMLPRegressor", "BayesianMLPClassifier"):
    FAST[_name] |= {"n_modes": 1, "n_members": 1, "hidden_layer_sizes": (1,)}
for _name in ("LaplaceRegressor", "LaplaceClassifier"):
    FAST[_name] |= {"optimizer": "adam"}
SLOW = {"BayesianMLPRegressor", "BayesianMLPClassifier", "MCMCRegressor", "MCMCClassifier"}


def pick(rng: Draw, values: Any) -> Any:
    """One of them."""
    values = list(values)
    return values[int(rng.integers(len(values)))]


def _value(rng: Draw, estimator: Any, name: str) -> Any:
    """Of a parameter: a valid one, an extreme one or a wrong one."""
    if rng.random() < 0.25:
        return pick(rng, WRONG)
    if name in SHORT:
        return pick(rng, SHORT[name])
    if name == "init":
        return "prior"  # the others look for modes first, for seconds
    rules = estimator._parameter_constraints.get(name, [])
    valid = list(BY_NAME.get(name, []))
    for rule in rules:
        if isinstance(rule, StrOptions):
            valid += sorted(rule.options)
        elif isinstance(rule, Interval) and not BY_NAME.get(name):
            low = 0 if rule.left is None else rule.left
            valid += [low, low + 1, low + 2] if rule.type is Integral else [low + 0.3, low + 0.9]
        elif isinstance(rule, str) and rule == "boolean":
            valid += [True, False]
    return pick(rng, valid or [getattr(estimator, name)])


def _parameters(rng: Draw, name: str) -> dict[str, Any]:
    estimator, chosen = SMALL[name], dict(FAST[name])
    names = sorted(estimator.get_params(deep=False))
    for _ in range(int(rng.integers(0, 4))):
        parameter = pick(rng, names)
        chosen[parameter] = _value(rng, estimator, parameter)
    return chosen


def _short(value: Any) -> str:
    return " ".join(repr(value).split())[:60]


# Calls -------------------------------------------------------------------------------------------


def fit_call(rng: Draw) -> Call:
    """A fit, or a fit and a prediction."""
    name = pick(rng, SMALL)
    if name in SLOW and rng.random() < 0.7:
        name = pick(rng, [n for n in SMALL if n not in SLOW])
    given, ordinary = _parameters(rng, name), rng.random() < 0.4
    labels = is_classifier(SMALL[name])
    x_name = pick(rng, ORDINARY_X if ordinary else INPUTS)
    usual = ORDINARY_LABELS if labels else ORDINARY_NUMBERS
    y_name = pick(rng, usual if ordinary or rng.random() < 0.5 else TARGETS)
    w_name = pick(rng, WEIGHTS) if rng.random() < 0.25 else "none"
    X, y, w = INPUTS[x_name](rng), TARGETS[y_name](rng), WEIGHTS[w_name](rng)
    if x_name in ("one row", "two rows") and np.ndim(y) and len(y) == N:
        y, w = y[: len(X)], None if w is None or np.ndim(w) == 0 else w[: len(X)]
    words = ", ".join(f"{k}={_short(v)}" for k, v in given.items())
    if not hasattr(SMALL[name], "predict"):
        X = pick(rng, [X, X, MATRIX[:N, :4], (np.arange(4), np.arange(4), np.ones(4))])

        def run() -> Any:
            return clone(SMALL[name]).set_params(**given).fit(X)

        return Call(f"{name}({words}).fit({x_name})", run)

    def run_rows() -> Any:
        model = clone(SMALL[name]).set_params(**given).fit(X, y, sample_weight=w)
        return model, model.predict(X)

    must = "one distinct row" if x_name == "one row" else ""
    counts = str(given.get("likelihood")).lower().startswith(("poisson", "negative"))
    if y_name == "constant" and not labels and not counts:
        must = must or "constant"
    return Call(f"{name}({words}).fit({x_name}, {y_name}, {w_name})", run_rows, must)


@cache
def fitted(name: str) -> Any:
    """Read only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = FITS[name]
        return clone(case.estimator).fit(case.X, case.y)


FITTED = [
    "vi-regressor", "vi-classifier", "vi-collapsed", "ensemble-regressor", "ensemble-classifier",
    "ensemble-refitted", "mcmc-regressor", "mcmc-classifier", "laplace-full",
    "laplace-diagonal-last", "laplace-modes", "laplace-two-classes", "lila-table",
    "linear-gaussian", "linear-counts", "linear-labels", "linear-three", "factors",
    "factors-ordinal", "factors-gibbs",
    "bayesian-mlp-two-classes", "stack-numbers", "stack-labels", "stack-table",
]  # fmt: skip
COUNTS = [1, 2, np.int64(2), 0, -1, 2.5, True, None, "many", HUGE, 10**400]
LEVELS = [0.5, [0.1, 0.9], [], [0.0], [1.0, 2.0], None, "half", [np.nan], [[0.5]], 1e-300,
          1 - 1e-16]  # fmt: skip
PLACES = [[0, 1], 0, [-1], [10**9], [0.5], [], None, "a", [[0, 1]], [True, False], np.array([2, 1])]
SEEDS = [0, None, np.random.RandomState(0), 2**40, -1, "x", 0.5]
ARGUMENTS: dict[str, list[Any]] = {
    "n_samples": COUNTS, "n_draws": COUNTS, "quantiles": LEVELS, "coverage": LEVELS,
    "random_state": SEEDS, "rows": PLACES, "columns": PLACES, "entries": PLACES,
    "values": [[0.0, 1.0], [np.nan, 0.0], 1e300, None, "a"], "return_std": [True, False],
    "return_cov": [True, False],
    "input_features": [None, ["a"]],
}  # fmt: skip
QUESTIONS = (
    "predict", "predict_proba", "predict_log_proba", "predict_quantiles", "predict_interval",
    "predict_uncertainty", "log_predictive_density",
    "sample_y",
    "score", "log_likelihood_samples", "transform", "inverse_transform", "predict_entries",
    "with_new_rows", "with_new_columns", "recommend", "similar_columns", "get_feature_names_out",
    "reconstruct",
)  # fmt: skip


def question_call(rng: Draw) -> Call:
    """A question to a fitted model: far rows, wrong shapes, wrong arguments."""
    name = pick(rng, FITTED)
    return _question(rng, name, fitted(name))


def changed_call(rng: Draw) -> Call:
    """A question to a fitted model whose parameters were set to others since."""
    name = pick(rng, FITTED)
    model = deepcopy(fitted(name))
    parameter = pick(rng, sorted(model.get_params(deep=False)))
    value = _value(rng, model, parameter)
    model.set_params(**{parameter: value})
    return _question(rng, f"{name}.set_params({parameter}={_short(value)})", model)


STREAMED = "SymVIMatrixFactorization"
LISTS: dict[str, Callable[[Draw], Any]] = {
    "a list": lambda r: (r.integers(0, 6, 9), r.integers(0, 5, 9), r.standard_normal(9)),
    "new rows": lambda r: (r.integers(4, 9, 5), r.integers(0, 5, 5), r.standard_normal(5)),
    "one entry": lambda r: ([1], [2], [0.5]),
    "entries of words": lambda r: (["a", "b"], ["x", "y"], [1.0, 2.0]),
    "an empty list": lambda r: ([], [], []),
    "nan in a list": lambda r: ([0, 1], [1, 2], [np.nan, 1.0]),
    "a huge entry": lambda r: ([0, 1], [1, 2], [1e300, 1.0]),
    "weights": lambda r: ([0, 1], [1, 2], [2.0, 1.0], [0.0, 1e200]),
    "negative places": lambda r: ([-1, 1], [1, 2], [2.0, 1.0]),
    "a matrix": lambda r: r.standard_normal((6, 5)),
    "a sparse matrix": lambda r: sp.random_array((6, 5), density=0.5, rng=r),
}


def stream_call(rng: Draw) -> Call:
    """Entries in two or three parts, and settings that change on the way."""
    parameters = _parameters(rng, STREAMED)
    n_parts = int(rng.integers(2, 4))
    kinds = [pick(rng, LISTS if rng.random() < 0.8 else INPUTS) for _ in range(n_parts)]
    parts = [{**INPUTS, **LISTS}[kind](rng) for kind in kinds]
    change = {}
    if rng.random() < 0.5:
        parameter = pick(rng, sorted(SMALL[STREAMED].get_params(deep=False)))
        change[parameter] = _value(rng, SMALL[STREAMED], parameter)

    def run() -> Any:
        model = clone(SMALL[STREAMED]).set_params(**parameters).partial_fit(parts[0])
        model.set_params(**change)
        for part in parts[1:]:
            model.partial_fit(part)
        return model, model.reconstruct()

    words = ", ".join(f"{k}={_short(v)}" for k, v in [*parameters.items(), ("then", change)])
    return Call(f"{STREAMED}({words}).partial_fit({'; '.join(kinds)})", run)


def _question(rng: Draw, name: str, model: Any) -> Call:
    method = getattr(model, pick(rng, [q for q in QUESTIONS if hasattr(model, q)]))
    labels = hasattr(model, "predict_proba")
    given, words = {}, []
    for argument in signature(method).parameters:
        if argument == "X":
            kind = pick(rng, ORDINARY_X if rng.random() < 0.4 else INPUTS)
            given["X"] = INPUTS[kind](rng)
            if not hasattr(model, "predict") and rng.random() < 0.5:
                kind, given["X"] = "matrix", MATRIX[:N]
        elif argument == "y":
            kind = pick(rng, TARGETS if rng.random() < 0.5 else
                        ORDINARY_LABELS if labels else ORDINARY_NUMBERS)  # fmt: skip
            if method.__name__ == "score" and kind == "largest":
                kind = "huge"  # scikit-learn's own scores overflow
            given["y"] = TARGETS[kind](rng)
        elif argument == "sample_weight":
            kind = pick(rng, [k for k in WEIGHTS if k != "words"])  # scikit-learn's own scores
            given[argument] = WEIGHTS[kind](rng)
        else:
            given[argument] = pick(rng, ARGUMENTS.get(argument, [None]))
            kind = f"{argument}={_short(given[argument])}"
        words.append(kind)
    return Call(
        f"{name}.{method.__name__}({', '.join(words)})", lambda: method(**given),
        is_log="log" in method.__name__,
    )  # fmt: skip


ANYTHING = [
    *WRONG, 1, 3, 0.3, 1e300, "label", [1, 2], np.arange(4.0), np.eye(3), np.full(4, np.nan),
    (1, 2), np.zeros(0), {"a": 1}, ["a", "b"], lambda: 0, HUGE,
]  # fmt: skip
DATASETS = [
    sk.datasets.make_sinusoidal, sk.datasets.make_absolute_value,
]  # fmt: skip
DISPLAYS = [getattr(sk.inspection, name) for name in sk.inspection.__all__]
DISPLAYS = [d for d in DISPLAYS if isinstance(d, type)]


def _model(rng: Draw) -> Any:
    """A fitted one, an unfitted one or none at all."""
    if rng.random() < 0.75:
        return fitted(pick(rng, FITTED))
    return pick(rng, [SMALL[pick(rng, SMALL)], *ANYTHING])


def _argument(rng: Draw, name: str, owner: str) -> Any:
    """For a parameter of a function, by its name: often one that fits it."""
    if name in ("estimator", "model"):
        return _model(rng)
    if rng.random() < 0.4:
        return pick(rng, ANYTHING)
    if name == "X":
        return INPUTS[pick(rng, INPUTS)](rng)
    if name in ("y", "y_true"):
        return TARGETS[pick(rng, TARGETS)](rng)
    fitting: dict[str, list[Any]] = {
        "estimators": [{"a": _model(rng)}, [_model(rng)]],
        "models": [{"a": _model(rng)}, {}],
        "draws": [rng.standard_normal((4, 10)), rng.standard_normal((2, 4, 10))],
        "cdf": [rng.random(5), rng.random((5, 2)), [2.0], [0.5, np.nan]],
        "y_proba": [rng.dirichlet([1, 1], N), rng.random((N, 2))],
        "quantiles": [np.sort(rng.random((N, 3)))], "levels": [[0.1, 0.5, 0.9]],
        "random_state": SEEDS, "cv": [2, 0, None, [], "a"], "n_jobs": [None, 1],
        "hidden_layer_sizes": [(2,), 2, ()], "activation": ["tanh", "relu"],
        "n_features_in": [3, 1],
        "method": ["assignment", "exact", "nonsense"], "n_splits": [2, 5, 1],
        "mode_probabilities": [[0.5, 0.5], [0.9], [], [0.0, 1.0], [-1, 2]],
        "probability": [0.5, 0.99, 0.0, 1.0], "grid": [5, np.linspace(0, 1, 4)],
        "coverages": [[0.5, 0.9], [2.0]], "a": [(0, 0), (9, 9)], "b": [(0, 1)], "n_points": [3, 0],
        "noise": [0.0, 0.1, -1.0], "angle": [0.0, 90.0, 1e300], "alpha": [0.5, 0.0, 1e300],
        "name": ["yacht", "diabetes", "m"], "ax": [None], "estimator": [],
        "table": [comparison(), comparison().iloc[:0], comparison()[["log_density"]],
                  comparison().rename(index={"line": "ridge"}), comparison().to_dict("list")],
        "names": [["a", "b"], ["a", "a"]], "weights": [np.array([0.3, 0.7]), np.array([2.0, -1.0])],
        "log_density": [np.array([-1.0, -2.0]), np.array([np.nan, -np.inf])],
        "standard_error": [np.array([0.1, 0.2]), np.array([np.nan, 0.1])],
        "n_events": [np.array([1, 2]), np.array([0, 0])], "n_rows": [np.array([4, 5]), 12, 0],
        "y_prob": [rng.random(N), 2.0 * rng.random(N)], "n_bins": [1, 4, 0, HUGE],
        "pos_label": [None, "high", 1, "none of them"], "feature": [None, 0, 9, "x"],
        "kind": ["fan", "x"], "average": [True, False],
    }  # fmt: skip
    return pick(rng, fitting.get(name) or [1, 2, 3, 5])


@cache
def comparison() -> Any:
    """The table of two models that are compared, for its Display."""
    models = {"line": sk.BayesianLinearRegressor(), "ridge": BayesianRidge()}
    X, y = FITS["linear-gaussian"].X, FITS["linear-gaussian"].y
    return sk.model_selection.compare_models(models, X, y, cv=2)


_SKIP = {"kwargs", "self", "cls", "callbacks"}


def _given(rng: Draw, function: Any, owner: str) -> dict[str, Any]:
    given = {}
    for name, parameter in signature(function).parameters.items():
        needed = parameter.default is parameter.empty
        if name not in _SKIP and (needed or rng.random() < 0.3):
            given[name] = _argument(rng, name, owner)
    return given


def _no_giants(given: Mapping[str, Any]) -> dict[str, Any]:
    """Toy data of any size that is asked for would be made: sizes stay small."""
    return {k: 7 if v is HUGE else v for k, v in given.items()}


def function_call(rng: Draw) -> Call:
    """A function or a Display."""
    kind = pick(rng, ["dataset", "display", "display", "function"])
    if kind == "dataset":
        function = pick(rng, DATASETS)
        given = _no_giants(_given(rng, function, "dataset"))
    elif kind == "display":
        display = pick(rng, DISPLAYS)
        makers = [getattr(display, n) for n in dir(display) if n.startswith("from_")]
        function = pick(rng, [*makers, *makers, display])
        given = _no_giants(_given(rng, function, "display"))
        if function is display:
            text = ", ".join(f"{k}={_short(v)}" for k, v in given.items())
            return Call(f"{display.__name__}({text}).plot()", lambda: _drawn(display, given))
    else:
        function = pick(rng, [
            sk.invariance_gap, sk.loss_barrier, sk.n_chains_required, sk.remove_symmetries,
            sk.predictive, sk.metrics.interval_calibration_error,
            sk.metrics.expected_calibration_error, sk.metrics.uncertainty_error_measures,
            sk.model_selection.EntryKFold,
            sk.model_selection.cross_validate_entries,
            sk.model_selection.compare_models, sk.model_selection.get_scorer,
        ])  # fmt: skip
        given = _no_giants(_given(rng, function, "function"))
        if "n_jobs" in given:
            given["n_jobs"] = None
    text = ", ".join(f"{k}={_short(v)}" for k, v in given.items())
    label = getattr(function, "__qualname__", str(function))
    return Call(f"{label}({text})", lambda: function(**given), is_log="density" in label)


def _drawn(display: Any, given: Mapping[str, Any]) -> Any:
    return display(**given).plot()


# Entry points beside the estimators ---------------------------------------------------------------


class SmallNetwork(torch.nn.Module):
    """A network of one's own, with a choice of widths."""

    def __init__(self, n_inputs: int = 3, n_hidden: int = 4, n_outputs: int = 1) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            self.hidden = torch.nn.Linear(n_inputs, n_hidden)
            self.outputs = torch.nn.Linear(n_hidden, n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outputs(torch.tanh(self.hidden(x)))


class TwoColumns(RegressorMixin, BaseEstimator):
    """Predicts two columns, whatever it was fitted to."""

    def fit(self, X: Any, y: Any) -> "TwoColumns":
        self.n_features_in_ = np.shape(X)[1]
        return self

    def predict(self, X: Any) -> np.ndarray:
        return np.zeros((len(X), 2))


class NegativeProbabilities(ClassifierMixin, BaseEstimator):
    """Predicts probabilities that are none."""

    def fit(self, X: Any, y: Any) -> "NegativeProbabilities":
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[np.zeros(len(X), dtype=int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        proba = np.full((len(X), len(self.classes_)), -0.5)
        proba[:, 0] = 1.0 + 0.5 * (len(self.classes_) - 1)
        return proba


MEMBERS: dict[str, Callable[[], Any]] = {
    "linear": lambda: "linear", "trees": lambda: "trees", "boosting": lambda: "boosting",
    "gaussian_process": lambda: "gaussian_process", "Ridge": Ridge, "tree": DecisionTreeRegressor,
    "LogisticRegression": LogisticRegression, "tree of classes": DecisionTreeClassifier,
    "TwoColumns": TwoColumns, "NegativeProbabilities": NegativeProbabilities,
    "linear model": sk.BayesianLinearRegressor, "linear classifier": sk.BayesianLinearClassifier,
    "counts": lambda: sk.BayesianLinearRegressor("poisson"),
    "pipeline": lambda: make_pipeline(StandardScaler(), Ridge()),
    "a class": lambda: Ridge, "no member": lambda: "nonsense", "a number": lambda: 3.0,
    "drop": lambda: "drop", "nothing": lambda: None,
}  # fmt: skip
STACK_SETTINGS: dict[str, list[Any]] = {
    "cv": [2, 3, 0, 1, 10**6, "x", [], KFold(3), [(np.arange(6), np.arange(6, 12))], 2.5],
    "max_seconds": [1e-9, 10**400, np.inf, -1.0, "x"], "warm_start": [True, False, "x"],
    "n_jobs": [None, 1, 0], "random_state": [0, None, -1, "today"], "device": ["cpu", "tpu"],
}  # fmt: skip


def stack_call(rng: Draw) -> Call:
    """A stack's fit, its predictions, and perhaps another fit with other members."""
    kind = pick(rng, [sk.PredictiveStackingRegressor, sk.PredictiveStackingClassifier])
    is_labels = kind is sk.PredictiveStackingClassifier
    names = [pick(rng, MEMBERS) for _ in range(int(rng.integers(1, 4)))]
    more = [pick(rng, MEMBERS) for _ in range(int(rng.integers(1, 3)))]
    settings = {k: pick(rng, v) for k, v in STACK_SETTINGS.items() if rng.random() < 0.2}
    ordinary = rng.random() < 0.5
    x_name = pick(rng, ORDINARY_X if ordinary else INPUTS)
    usual = ORDINARY_LABELS if is_labels else ["numbers", "counts", "ints", "constant"]
    y_name = pick(rng, usual if ordinary or rng.random() < 0.6 else TARGETS)
    w_name = pick(rng, WEIGHTS) if rng.random() < 0.25 else "none"
    method = pick(rng, ["predict", "predict_uncertainty", "score", "predict_interval"])
    if x_name in ("huge", "largest", "of many sizes"):
        x_name = "rows"  # scikit-learn's trees and lines overflow
    X, y, w = INPUTS[x_name](rng), TARGETS[y_name](rng), WEIGHTS[w_name](rng)
    if x_name in ("one row", "two rows") and np.ndim(y) and len(y) == N:
        y, w = y[: len(X)], None if w is None or np.ndim(w) == 0 else w[: len(X)]

    def members(chosen: list[str]) -> list[tuple[str, Any]]:
        return [(f"m{i}", MEMBERS[name]()) for i, name in enumerate(chosen)]

    def run() -> Any:
        stack = kind(members(names), **settings).fit(X, y, w)
        if stack.warm_start:
            stack.set_params(estimators=members(more)).fit(X, y, w)
        if method == "score":
            return stack.score(X, y)
        question = getattr(stack, method, stack.predict)
        return question(X)

    text = ", ".join(f"{k}={_short(v)}" for k, v in settings.items())
    return Call(f"{kind.__name__}({names}, {text}).fit({x_name}, {y_name}, {w_name}).{method}", run)


DAYS = pd.date_range("2021-12-28", periods=N)
HOURS = pd.date_range("2022-03-26 21:00", periods=N, freq="h")  # the clock changes on the way
COLUMNS: dict[str, Callable[[Draw], Any]] = {
    "days": lambda r: DAYS, "shuffled days": lambda r: r.permutation(DAYS),
    "hours": lambda r: HOURS, "hours of Berlin": lambda r: HOURS.tz_localize("UTC")
    .tz_convert("Europe/Berlin"), "hours of UTC": lambda r: HOURS.tz_localize("UTC"),
    "two time zones": lambda r: [h.tz_localize("UTC" if i % 2 else "Asia/Tokyo")
                                 for i, h in enumerate(HOURS)],
    "hours with and without a zone": lambda r: [h.tz_localize("UTC") if i % 2 else h
                                                for i, h in enumerate(HOURS)],
    "days as text": lambda r: DAYS.strftime("%Y-%m-%d"),
    "days first as text": lambda r: DAYS.strftime("%d.%m.%Y"),
    "months first as text": lambda r: DAYS.strftime("%m/%d/%Y"),
    "hours as text": lambda r: HOURS.strftime("%Y-%m-%d %H:%M:%S"),
    "hours of zones as text": lambda r: HOURS.strftime("%Y-%m-%dT%H:%M:%S+02:00"),
    "two forms as text": lambda r: [*DAYS[:6].strftime("%Y-%m-%d"), *DAYS[6:].strftime("%d.%m.%Y")],
    "days and words as text": lambda r: [*DAYS[:10].strftime("%Y-%m-%d"), "unknown", "n/a"],
    "impossible days as text": lambda r: ["2021-02-30", *DAYS[1:].strftime("%Y-%m-%d")],
    "days with gaps": lambda r: DAYS.where(r.random(N) < 0.7),
    "days as text with gaps": lambda r: DAYS.where(r.random(N) < 0.7).strftime("%Y-%m-%d"),
    "no day known": lambda r: np.full(N, np.datetime64("NaT"), "datetime64[ns]"),
    "one day": lambda r: np.full(N, np.datetime64("2022-01-01"), "datetime64[ns]"),
    "days of Python": lambda r: DAYS.date, "hours of Python": lambda r: HOURS.to_pydatetime(),
    "times of day": lambda r: HOURS.time, "months": lambda r: pd.period_range("2022-01", periods=N),
    "durations": lambda r: HOURS - HOURS[0], "days as a category": lambda r: pd.Categorical(DAYS),
    "days of arrow": lambda r: pd.Series(DAYS).astype("timestamp[ns][pyarrow]"),
    "far days": lambda r: np.array(["-9999-01-01", "9999-12-31"] * 6, "datetime64[s]"),
    "seconds since 1970": lambda r: DAYS.astype(np.int64) // 10**9,
    "words": lambda r: r.choice(["red", "green", "blue"], N),
    "a category": lambda r: pd.Categorical(r.choice(["red", "green"], N), ["red", "green", "blue"]),
    "an ordered category": lambda r: pd.Categorical(r.choice(["s", "m", "l"], N), ["s", "m", "l"],
                                                    ordered=True),
    "numbers as text": lambda r: [str(round(v, 2)) for v in r.standard_normal(N)],
    "nullable ints": lambda r: pd.array([1, None, 3] * 4, "Int64"),
    "booleans with gaps": lambda r: pd.array([True, None, False] * 4, "boolean"),
    "numbers": lambda r: r.standard_normal(N), "all missing": lambda r: [None] * N,
    "lists": lambda r: [[1, 2]] * N,
}  # fmt: skip
ORDINARY_COLUMNS = ["days", "shuffled days", "hours", "hours of Berlin", "hours of UTC",
                    "days as text", "hours as text", "days with gaps", "days as text with gaps",
                    "days of Python", "days of arrow", "words", "a category", "numbers",
                    "nullable ints", "booleans with gaps"]  # fmt: skip
TABLE_TARGETS: dict[str, Callable[[Draw], Any]] = {
    "numbers": lambda r: r.standard_normal(N), "positive": lambda r: np.exp(r.standard_normal(N)),
    "of many sizes": lambda r: np.exp(8.0 * r.standard_normal(N)),
    "positive or zero": lambda r: np.maximum(0.0, r.standard_normal(N)),
    "tiny and positive": lambda r: 1e-250 * np.exp(r.standard_normal(N)),
    "counts": lambda r: r.poisson(2.0, N), "mostly zeros": lambda r: r.poisson(0.1, N),
    "large counts": lambda r: r.poisson(np.logspace(0, 9, N)),
    "negative ints": lambda r: -r.poisson(2.0, N),
    "a gross error": lambda r: np.where(np.arange(N) == 3, 1e6, r.standard_normal(N)),
    "a gross error of a factor": lambda r: np.exp(r.standard_normal(N) + 14 * (np.arange(N) == 3)),
    "half are gross errors": lambda r: r.standard_normal(N) * np.where(np.arange(N) % 2, 1e9, 1.0),
    "two targets": lambda r: r.standard_normal((N, 2)),
    "two positive targets": lambda r: np.exp(r.standard_normal((N, 2))),
    "a number and a count": lambda r: np.column_stack([r.standard_normal(N), r.poisson(2.0, N)]),
    "two equal targets": lambda r: np.repeat(r.standard_normal((N, 1)), 2, 1),
    "a constant target of two": lambda r: r.standard_normal((N, 2)) * [1.0, 0.0],
    "a frame of targets": lambda r: pd.DataFrame(r.standard_normal((N, 3)), columns=list("uvw")),
    "a frame of one target": lambda r: pd.DataFrame({"u": r.standard_normal(N)}),
    "a Series": lambda r: pd.Series(r.standard_normal(N), r.permutation(N), name="u"),
    "nullable numbers": lambda r: pd.Series([1.0, None, 2.0] * 4, dtype="Float64"),
    "a gap in one of two": lambda r: np.where(np.eye(N, 2) > 0, np.nan, r.standard_normal((N, 2))),
    "days": lambda r: DAYS, "no targets": lambda r: np.zeros((N, 0)),
    "labels": lambda r: r.choice(["low", "high"], N), "three labels": lambda r: np.arange(N) % 3,
    "a category": lambda r: pd.Series(pd.Categorical(r.choice(["a", "b"], N), ["c", "b", "a"])),
    "booleans": lambda r: r.random(N) < 0.5, "one label once": lambda r: np.arange(N) == 0,
    "two columns of labels": lambda r: r.choice(["low", "high"], (N, 2)),
}  # fmt: skip
NUMERIC_TARGETS = list(TABLE_TARGETS)[:21]
CLASS_TARGETS = ["labels", "three labels", "a category", "booleans", "one label once"]
GROUPS: dict[str, Callable[[Draw], Any]] = {
    "pairs": lambda r: np.arange(N) // 2, "thirds": lambda r: np.arange(N) // 4,
    "shuffled": lambda r: r.integers(0, 4, N), "one group": lambda r: np.zeros(N, int),
    "single rows": lambda r: np.arange(N), "words": lambda r: list("aaabbbcccddd"),
    "days": lambda r: DAYS.repeat(2)[:N], "a Series": lambda r: pd.Series(list("xyz") * 4, DAYS),
    "gaps": lambda r: [None, "a", "b"] * 4, "nan": lambda r: np.array([np.nan, 1.0, 2.0] * 4),
    "words and ints": lambda r: np.array([1, "a", 2.5] * 4, object),
    "short": lambda r: np.arange(N - 1), "two columns": lambda r: np.zeros((N, 2)),
    "a number": lambda r: 3, "a word": lambda r: "abcdefghijkl", "empty": lambda r: [],
}  # fmt: skip
FOLDS: dict[str, Callable[[], Any]] = {
    "forward": lambda: TimeSeriesSplit(3), "forward with a gap": lambda: TimeSeriesSplit(2, gap=2),
    "too many forward": lambda: TimeSeriesSplit(N), "of groups": lambda: GroupKFold(3),
    "each group": LeaveOneGroupOut, "random": lambda: ShuffleSplit(2, test_size=3, random_state=0),
    "in order": lambda: KFold(3), "2": lambda: 2, "more than rows": lambda: N + 1,
    "a list": lambda: [(np.arange(6), np.arange(6, N)), (np.arange(6, N), np.arange(6))],
    "a forward list": lambda: [(np.arange(k), np.arange(k, k + 2)) for k in (4, 6, 8)],
    "a list of lists": lambda: [([0, 1, 2, 3, 4, 5], [6, 7]), ([0, 1, 2, 3], [8, 9, 10, 11])],
    "a generator": lambda: KFold(2).split(np.zeros((N, 1))),
    "masks": lambda: [(np.arange(N) < 6, np.arange(N) >= 6)],
    "a test row that is trained on": lambda: [(np.arange(N), np.arange(4))],
    "an empty test": lambda: [(np.arange(N), np.array([], int))],
    "an empty training": lambda: [(np.array([], int), np.arange(N))],
    "no such rows": lambda: [(np.arange(6), np.array([6, 99]))],
    "negative rows": lambda: [(np.arange(6), np.array([-1, -2]))],
    "triples": lambda: [(np.arange(4), np.arange(4, 8), np.arange(8, N))],
    "indices that are no ints": lambda: [(np.arange(6) + 0.5, np.arange(6, N))],
}  # fmt: skip
TABLE_MODELS = (
    *[sk.PredictiveStackingRegressor] * 5, *[sk.PredictiveStackingClassifier] * 2,
    sk.BayesianMLPRegressor, sk.BayesianMLPClassifier,
)  # fmt: skip
TABLE_QUESTIONS = ["predict", "predict_uncertainty", "score", "log_predictive_density",
                   "predictive", "file", "weights", "bands", "comparison"]  # fmt: skip


def table_call(rng: Draw) -> Call:
    """A fit to a table with dates, groups, folds or hard targets, and a use of the fitted model."""
    kind = pick(rng, TABLE_MODELS)
    is_stack = kind.__name__.startswith("PredictiveStacking")
    if is_stack:
        names = [pick(rng, ["linear", "linear", "trees", "boosting"]) for _ in range(2)]
        model = kind([(f"m{i}", name) for i, name in enumerate(names)], random_state=0)
    else:
        model = kind(**FAST[kind.__name__], random_state=0)
    settings: dict[str, Any] = {}
    fold_name = pick(rng, FOLDS) if rng.random() < 0.4 else ""
    if fold_name and is_stack:
        settings["cv"] = FOLDS[fold_name]()
    if "outliers" in model.get_params() and rng.random() < 0.3:
        settings["outliers"] = pick(rng, ["exclude", "keep", "keep", "x"])

    is_ordinary = rng.random() < 0.6
    columns, X = _table(rng, ORDINARY_COLUMNS if is_ordinary else COLUMNS, is_stack)
    asked_columns, asked = columns, X
    if rng.random() < 0.3:
        asked_columns, asked = _table(rng, COLUMNS, is_stack)
    usual = CLASS_TARGETS if is_classifier(model) else NUMERIC_TARGETS
    y_name = pick(rng, usual if is_ordinary or rng.random() < 0.7 else TABLE_TARGETS)
    y = TABLE_TARGETS[y_name](rng)
    given: dict[str, Any] = {}
    group_name = pick(rng, GROUPS) if rng.random() < 0.35 else ""
    if group_name:
        given["groups"] = GROUPS[group_name](rng)
    if rng.random() < 0.15:
        given["sample_weight"] = WEIGHTS[pick(rng, WEIGHTS)](rng)
    own = ["predict_proba", "classes"] if is_classifier(model) else [
        "predict_interval", "predict_quantiles", "sample_y", "calibration"]  # fmt: skip
    question = pick(rng, [*TABLE_QUESTIONS, *own])

    def run() -> Any:
        model.set_params(**settings)
        if question == "comparison":
            folds = FOLDS[fold_name]() if fold_name else 2
            table = sk.model_selection.compare_models(
                {"one": model}, X, y, cv=folds, groups=given.get("groups")
            )
            return sk.inspection.ModelComparisonDisplay.from_table(table)
        model.fit(X, y, **given)
        return model, _use(model, question, asked, y)

    text = ", ".join(f"{k}={_short(v)}" for k, v in {**settings, **given}.items())
    return Call(
        f"{kind.__name__}({text}).fit({columns}, {y_name}, groups {group_name or 'none'}, folds "
        f"{fold_name or 'none'}).{question}({asked_columns})",
        run, is_log="log" in question,
    )  # fmt: skip


def _table(rng: Draw, kinds: Any, is_mixed: bool) -> tuple[list[str], Any]:
    """Names of one or two kinds of columns, and a table with them and a column of numbers."""
    names = [pick(rng, kinds) for _ in range(int(rng.integers(1, 3)))]
    if not is_mixed:
        return ["rows"], _rows(rng)
    columns = {f"c{i}": COLUMNS[name](rng) for i, name in enumerate(names)}
    return names, pd.DataFrame({"size": rng.standard_normal(N), **columns})


def _use(model: Any, question: str, X: Any, y: Any) -> Any:
    """Predictions, a file or a Display of a fitted model."""
    if question == "predictive":
        distribution = sk.predictive(model, X)
        return repr(distribution), distribution.uncertainty()
    if question == "file":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            sk.save(model, path)
            loaded = sk.load(path)
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
        return loaded
    display = {
        "weights": lambda: sk.inspection.StackWeightsDisplay.from_estimator(model),
        "bands": lambda: sk.inspection.PredictiveDisplay.from_estimator(model, X, y),
        "calibration": lambda: sk.inspection.IntervalCalibrationDisplay.from_estimator(model, X, y),
        "classes": lambda: sk.inspection.ClassCalibrationDisplay.from_estimator(model, X, y),
    }.get(question)  # fmt: skip
    if display is not None:
        return display()
    function = getattr(model, question, model.predict)
    return function(X, y) if "y" in signature(function).parameters else function(X)


@cache
def distributions() -> dict[str, Any]:
    """Everything that `predictive` returns, of twelve rows."""
    rng = np.random.default_rng(0)
    X, y = _rows(rng), rng.standard_normal(N)
    transformed = TransformedTargetRegressor(
        sk.BayesianLinearRegressor(), func=np.log, inverse_func=np.exp, check_inverse=False
    )
    scaled = TransformedTargetRegressor(sk.BayesianLinearRegressor(), transformer=StandardScaler())
    models = {name: fitted(name) for name in FITTED if not name.startswith("factors")}
    models |= {
        "a transformed target": transformed.fit(X, np.exp(y)),
        "a scaled target": scaled.fit(X, y),
        "a pipeline": make_pipeline(StandardScaler(), sk.BayesianLinearRegressor()).fit(X, y),
        "a normal": BayesianRidge().fit(X, y),
        "a process": GaussianProcessRegressor().fit(X, y),
        "classes of scikit-learn": LogisticRegression().fit(X, y > 0),
        "a stack": sk.PredictiveStackingRegressor(
            [("line", "linear"), ("ridge", Ridge())], random_state=0
        ).fit(X, y),
        "several targets": MultiOutputRegressor(BayesianRidge()).fit(X, np.column_stack([y, -y])),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {}
        for name, model in models.items():
            rows = FITS[name].X[:N] if name in FITS else X
            try:
                found[name] = sk.predictive(model, rows)
            except TypeError:  # no distribution: said in words, and tested elsewhere
                continue
    return found


VALUES: list[Callable[[Draw], Any]] = [
    lambda r: r.standard_normal(N), lambda r: r.standard_normal((N, 2)), lambda r: 0.5,
    lambda r: r.standard_normal((5, N)), lambda r: r.standard_normal((5, 1)), lambda r: np.nan,
    lambda r: np.full(N, np.inf), lambda r: np.full(N, 1e300), lambda r: np.full(N, -1e300),
    lambda r: r.integers(0, 3, N), lambda r: ["low"] * N, lambda r: "low", lambda r: None,
    lambda r: [], lambda r: r.standard_normal(N - 1), lambda r: r.standard_normal((N, 1)),
    lambda r: np.zeros(N), lambda r: r.standard_normal(N).astype(object), lambda r: 1 + 2j,
    lambda r: torch.zeros(N),
]  # fmt: skip
DISTRIBUTION_METHODS = (
    "mean", "std", "var", "quantile", "ppf", "interval", "sample", "functions", "log_prob",
    "logpdf", "pdf", "cdf", "sf", "crps", "uncertainty", "proba", "components", "__len__",
    "__getitem__", "__repr__",
)  # fmt: skip


def distribution_call(rng: Draw) -> Call:
    """A question to a predictive distribution."""
    name = pick(rng, distributions())
    distribution = distributions()[name]
    method = pick(rng, [m for m in DISTRIBUTION_METHODS if hasattr(distribution, m)])
    function = getattr(distribution, method)
    given: dict[str, Any] = {}
    if method == "__getitem__":
        index = pick(rng, [0, -1, slice(0, 3), [0, 1], N, "a", 2.5, None, np.arange(N) > 3])
        return Call(f"{name}: predictive[{_short(index)}]", lambda: repr(distribution[index]))
    for argument, parameter in signature(function).parameters.items():
        if parameter.default is not parameter.empty and rng.random() < 0.5:
            continue
        if argument == "y":
            given[argument] = pick(rng, VALUES)(rng)
        elif argument in ("q", "coverage"):
            given[argument] = pick(rng, [*LEVELS, 0.9, [[0.1], [0.9]], 2.0, "a", 0.0, 1.0])
        elif argument == "n":
            given[argument] = pick(rng, COUNTS)
        elif argument == "random_state":
            given[argument] = pick(rng, SEEDS)
    text = ", ".join(f"{k}={_short(v)}" for k, v in given.items())
    # Quantiles and densities at the ends of the line are infinite.
    is_log = method in ("log_prob", "logpdf")
    is_extreme = method in ("quantile", "ppf", "interval", "pdf", "crps", "cdf", "sf")

    def run() -> Any:
        answer = function(**given)
        return None if is_extreme and not np.isnan(np.asarray(answer)).any() else answer

    return Call(f"{name}: predictive.{method}({text})", run, is_log=is_log)


def acquisition_call(rng: Draw) -> Call:
    """Which row to measure next: functions of a predictive distribution."""
    function = pick(rng, [
        acquisition.expected_improvement, acquisition.upper_confidence_bound,
        acquisition.expected_information_gain, acquisition.thompson_sampling,
        acquisition.select_batch,
    ])  # fmt: skip
    distribution = pick(rng, list(distributions().values()))
    if rng.random() < 0.15:
        distribution = pick(rng, [fitted(pick(rng, FITTED)), *ANYTHING])
    given: dict[str, Any] = {}
    for name, parameter in list(signature(function).parameters.items())[1:]:
        is_needed = parameter.default is parameter.empty
        if not is_needed and rng.random() < 0.5:
            continue
        choices: dict[str, list[Any]] = {
            "best": [0.0, None, np.nan, np.inf, "x", 10**400, [1.0], 1e300],
            "width": [0.0, 2.0, -1.0, None, "x", np.inf, 10**400, 1e300],
            "n": [1, 2, N, *COUNTS], "n_draws": [2, 8, *COUNTS],
            "maximize": [True, False, None, "x"], "random_state": SEEDS,
        }  # fmt: skip
        given[name] = pick(rng, choices[name])
    text = ", ".join(f"{k}={_short(v)}" for k, v in given.items())

    def run() -> Any:
        answer = function(distribution, **given)
        return None if np.ndim(answer) and np.isposinf(answer).any() else answer

    return Call(f"{function.__name__}({_short(distribution)}, {text})", lambda: run(), is_log=True)


@cache
def students() -> dict[str, Any]:
    """Students of a regressor, of a classifier and of a stack of a table with dates."""
    rng = np.random.default_rng(0)
    columns = {name: COLUMNS[name](rng) for name in ("hours as text", "a category")}
    table = pd.DataFrame({"size": rng.standard_normal(N), **columns})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack = sk.PredictiveStackingRegressor([("line", "linear")], random_state=0)
        stack.fit(table, np.exp(table["size"]), groups=np.arange(N) // 2)
        made = {
            name: sk.distill(fitted(name), FITS[name].X, random_state=0)
            for name in ("linear-gaussian", "linear-labels")
        }
        return made | {"a table": sk.distill(stack, table, random_state=0)}


def student_call(rng: Draw) -> Call:
    """A question to a student, or a file that may be none."""
    name = pick(rng, students())
    student = students()[name]
    methods = ["predict", "predict_proba", "predict_quantiles", "log_predictive_density", "load",
               "file"]  # fmt: skip
    method = pick(rng, methods)
    if method == "load":
        content = pick(rng, [b"", b"PK\x03\x04", b"x" * 100, rng.bytes(300)])
        return Call(
            f"Student.load({_short(content)})", lambda: type(student).load(BytesIO(content))
        )
    kind = pick(rng, ORDINARY_X if rng.random() < 0.3 else INPUTS)
    given: dict[str, Any] = {"X": INPUTS[kind](rng)}
    if name == "a table" and rng.random() < 0.8:
        kinds = [pick(rng, ["hours as text", *COLUMNS]), pick(rng, ["a category", *COLUMNS])]
        values = [COLUMNS[name](rng) for name in kinds]
        columns = dict(zip(("hours as text", "a category"), values, strict=True))
        kind = f"{kinds}"
        given["X"] = pd.DataFrame({"size": rng.standard_normal(N), **columns})
    if method == "file":

        def reload() -> Any:
            file = BytesIO()
            student.save(file)
            file.seek(0)
            predicted = student.predict(given["X"])
            np.testing.assert_array_equal(type(student).load(file).predict(given["X"]), predicted)
            return predicted

        return Call(f"student of {name}: file, predict({kind})", reload)
    if method == "predict_quantiles":
        given["quantiles"] = pick(rng, [*LEVELS, 2.0, [-1.0]])
    if method == "log_predictive_density":
        given["y"] = TARGETS[pick(rng, TARGETS)](rng)
    text = ", ".join([kind, *(_short(v) for k, v in given.items() if k != "X")])
    question = getattr(student, method)
    return Call(
        f"student of {name}: {method}({text})", lambda: question(**given), is_log="log" in method
    )


MODULES: list[Callable[[], Any]] = [
    SmallNetwork, lambda: SmallNetwork(1, 1, 1), lambda: SmallNetwork(3, 0, 1),
    lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)),
    lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4),
                                torch.nn.Tanh(), torch.nn.Linear(4, 1)),
    lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4),
                                torch.nn.Linear(4, 1)),
    lambda: SmallNetwork().double(), lambda: torch.nn.Tanh(), lambda: torch.nn.LazyLinear(3),
    lambda: torch.nn.Sequential(), lambda: torch.nn.Linear(3, 2), lambda: None, lambda: 3.0,
    lambda: SmallNetwork().requires_grad_(False), lambda: torch.nn.Dropout(0.5),
    lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5),
                                torch.nn.Linear(4, 1)),
]  # fmt: skip
EXAMPLES: list[Callable[[Draw], Any]] = [
    lambda r: torch.zeros(2, 3), lambda r: torch.zeros(2, 3, dtype=torch.float64),
    lambda r: torch.zeros(2, 1), lambda r: torch.zeros(3), lambda r: torch.zeros(0, 3),
    lambda r: None, lambda r: _rows(r), lambda r: [torch.zeros(2, 3)], lambda r: "x",
    lambda r: torch.full((2, 3), torch.nan), lambda r: torch.zeros(2, 3, dtype=torch.int64),
]  # fmt: skip


def _weights(rng: Draw, n: int) -> Any:
    """Flat weights of a module: right, too few, too many, of another kind."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.as_tensor(rng.standard_normal(shape))

    return pick(rng, [
        draw(n), draw(n), draw(n), draw(2, n), draw(n).float(), draw(n + 1), draw(max(0, n - 1)),
        draw(2 * n), draw(n).requires_grad_(), draw(n, 1),
        torch.zeros(n, dtype=torch.int64), draw(n).numpy(), None, "x", draw(0), draw(2 * n)[::2],
    ])  # fmt: skip


def module_call(rng: Draw) -> Call:
    """The symmetry of a torch module, and what is done with it."""
    torch.manual_seed(0)
    module = pick(rng, MODULES)()
    other = pick(rng, [pick(rng, MODULES)(), deepcopy(module)])
    example = torch.zeros(2, 3) if rng.random() < 0.6 else pick(rng, EXAMPLES)(rng)
    buffers = pick(rng, [True, False, False, None])
    what = pick(rng, ["symmetry_of", "act", "act_", "align", "sample", "report", "merge_modules",
                      "loss_barrier", "remove_symmetries"])  # fmt: skip
    n = sum(p.numel() for p in module.parameters()) if _has_weights(module) else 5
    theta, reference = _weights(rng, n), _weights(rng, n)
    seed = pick(rng, [0, 1])
    modules = pick(rng, [[module, other], [module], [], [module, None], module, None])

    def run() -> Any:
        if what == "merge_modules":
            return symmetry.merge_modules(modules, example)
        if what == "loss_barrier":
            return sk.loss_barrier(_mean_square, module, other, n_points=3, example_input=example)
        if what == "remove_symmetries":
            return sk.remove_symmetries(theta, module=module, example_input=example)
        if isinstance(module, torch.nn.Module):
            module.eval()
        group = symmetry.symmetry_of(module, example, buffers=buffers)
        if what == "symmetry_of":
            return group.log_order, repr(group)
        if what == "report":
            return group.report()
        if what == "align":
            return group.align(theta, reference)[0]
        generator = torch.Generator().manual_seed(seed)
        element = group.sample((), generator=generator)
        return getattr(group, "act" if what == "sample" else what)(element, theta)

    kind = module.__class__.__name__
    text = f"{what}: {kind}, {_short(example)}, theta {_short(theta)}"
    return Call(text, run)


def _mean_square(module: Any) -> float:
    with torch.no_grad():
        return float(module(torch.ones(2, 3)).square().mean())


def _has_weights(module: Any) -> bool:
    return isinstance(module, torch.nn.Module) and not any(
        isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()
    )


RATINGS: dict[str, Callable[[Draw], Any]] = {
    **LISTS,
    "a frame": lambda r: pd.DataFrame({"user": r.integers(0, 4, 12), "item": r.integers(0, 5, 12),
                                       "rating": r.standard_normal(12)}),
    "a frame of words": lambda r: pd.DataFrame({"user": list("aabbccddaabb"),
                                                "item": list("xyzxyzxyzzyx"),
                                                "rating": r.integers(1, 6, 12)}),
    "a frame with time": lambda r: pd.DataFrame({"user": r.integers(0, 4, 12),
                                                 "item": r.integers(0, 5, 12),
                                                 "rating": r.standard_normal(12),
                                                 "timestamp": np.arange(12)}),
    "a frame without values": lambda r: pd.DataFrame({"user_id": r.integers(0, 4, 12),
                                                      "book_id": r.integers(0, 5, 12)}),
    "an empty frame": lambda r: pd.DataFrame({"user": [], "item": [], "rating": []}),
    "None": lambda r: None, "a number": lambda r: 3.0, "words": lambda r: np.array([["a", "b"]]),
    "a tuple of two": lambda r: ([0, 1], [1, 0]),
}  # fmt: skip


def rating_call(rng: Draw) -> Call:
    """Splitters, cross-validation, recommendations and scorers of rating lists."""
    kind = pick(rng, RATINGS)
    X = RATINGS[kind](rng)
    what = pick(rng, ["split", "cross_validate", "recommend", "scorer", "fit"])
    splitter = {
        k: pick(rng, v) for k, v in {
            "n_splits": [2, 3, 1, 0, 100, None, "x", 2.5],
            "by": ["entries", "rows", "time", "x", None],
            "random_state": SEEDS, "shuffle": [True, False, "x"], "columns": [None, "x", ["user"]],
        }.items() if k in signature(sk.model_selection.EntryKFold).parameters
        and rng.random() < 0.4
    }  # fmt: skip
    recommend = {
        k: pick(rng, v) for k, v in {
            "rows": PLACES, "n": COUNTS, "exclude_seen": [True, None, "x"],
            "by": ["mean", "ucb", "x", None], "n_draws": COUNTS, "random_state": SEEDS,
        }.items() if rng.random() < 0.5
    }  # fmt: skip
    metric = pick(rng, ["ndcg", "precision", "recall", "map", "hit_rate", "x", None, 3, ["ndcg"]])
    length = pick(rng, [10, 1, *COUNTS])
    relevant = pick(rng, [None, 0.0, np.nan, "x", 1e300])
    scoring = pick(rng, ["r2", "log_density", "x", None, 3, ["r2"]])
    model = fitted(pick(rng, [n for n in FITTED if n.startswith("factors")]))

    def run() -> Any:
        if what == "split":
            folds = list(sk.model_selection.EntryKFold(**splitter).split(X))
            return [len(train) + len(test) for train, test in folds]
        if what == "cross_validate":
            short = clone(SMALL[STREAMED]).set_params(**FAST[STREAMED])
            return sk.model_selection.cross_validate_entries(short, X, cv=2, scoring=scoring)
        if what == "recommend":
            return repr(model.recommend(**recommend))  # lists are padded with NaN
        if what == "scorer":
            return sk.model_selection.RankingScorer(metric, length, relevant)(model, X)
        return clone(SMALL[STREAMED]).set_params(**FAST[STREAMED]).fit(X).reconstruct()

    words = {
        "split": splitter, "recommend": recommend, "scorer": (metric, length, relevant),
    }.get(what, scoring)  # fmt: skip
    return Call(f"ratings {what}({kind}, {_short(words)})", run, is_log=True)


SCORED = ("linear-gaussian", "linear-labels", "vi-regressor", "ensemble-classifier")


def scorer_call(rng: Draw) -> Call:
    """A scorer of a fitted model, or a comparison of models."""
    name = pick(rng, SCORED)
    scoring = pick(rng, ["log_density", "neg_crps", "neg_pinball", "evidence", "x", None, 3])
    quantile = pick(rng, [None, None, 0.5, "a", 2.0, np.nan, [0.5]])
    x_kind, y_kind = pick(rng, INPUTS), pick(rng, TARGETS)
    X, y = INPUTS[x_kind](rng), TARGETS[y_kind](rng)
    what = pick(rng, ["scorer", "QuantilePredictor", "compare_models"])
    wrapped = pick(rng, [sk.BayesianLinearRegressor(), None, 3.0, Ridge(), sk.Adam])
    unfitted = SMALL["BayesianLinearRegressor"]
    models = pick(
        rng, [[fitted(name)], {"a": fitted(name)}, {"a": unfitted}, {}, None, {"a": None}]
    )

    def run() -> Any:
        if what == "scorer":
            return sk.model_selection.get_scorer(scoring, quantile=quantile)(fitted(name), X, y)
        if what == "QuantilePredictor":
            chosen = 0.5 if quantile is None else quantile
            return sk.model_selection.QuantilePredictor(wrapped, chosen).fit(X, y).predict(X)
        return sk.model_selection.compare_models(models, X, y, cv=2)

    text = f"{what}({scoring}, {_short(quantile)}, {_short(wrapped)})({name}, {x_kind}, {y_kind})"
    return Call(text, run, is_log=True)


OBJECTS = [
    *(getattr(sk, name) for name in (
        "HMC", "Adam", "Annealing", "Chains", "EvidenceAdam", "GaussNewton", "ModeWeights",
        "Symmetrized", "Updates", "VariationalAdam",
    )),
    *(value for name, value in ((n, getattr(sk.models, n)) for n in sk.models.__all__)
      if isinstance(value, type)),
    VI, Gibbs, MAP, sk.model_selection.EntryKFold, sk.model_selection.QuantilePredictor,
]  # fmt: skip
# Protocols and bases of one's own classes aren't made.
OBJECTS = [
    kind for kind in OBJECTS
    if not getattr(kind, "_is_protocol", False)
    and kind.__name__ not in ("Likelihood", "TargetLikelihood", "ClassLikelihood", "Prior")
]  # fmt: skip


def object_call(rng: Draw) -> Call:
    """A constructor of an object that estimators take, and a fit with it."""
    kind = pick(rng, OBJECTS)
    try:
        parameters = signature(kind).parameters
    except (TypeError, ValueError):
        parameters = {}
    given = {
        name: pick(rng, ANYTHING) for name, p in parameters.items()
        if name not in _SKIP and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and (p.default is p.empty or rng.random() < 0.4)
    }  # fmt: skip
    target = pick(rng, ["LaplaceRegressor", "SymmetrizedVIRegressor", "BayesianLinearRegressor",
                        "DeepEnsembleRegressor", "SymVIMatrixFactorization"])  # fmt: skip
    slots = [s for s in ("likelihood", "prior", "optimizer", "solver", "noise_std")
             if s in SMALL[target].get_params()]  # fmt: skip
    slot = pick(rng, slots)

    def run() -> Any:
        value = kind(**given)
        repr(value)
        model = clone(SMALL[target]).set_params(**{**FAST[target], slot: value})
        if not hasattr(model, "predict"):
            return model.fit(MATRIX[:N, :4])
        X = _rows(np.random.default_rng(0))
        return model.fit(X, X[:, 0]).predict(X)

    text = ", ".join(f"{k}={_short(v)}" for k, v in given.items())
    return Call(f"{target}({slot}={kind.__name__}({text}))", run)


ENTRY_POINTS = (
    stack_call, table_call, table_call, distribution_call, distribution_call, acquisition_call,
    student_call, module_call, rating_call, scorer_call, object_call,
)  # fmt: skip


def draw_call(seed: int, number: int, entry_points: float = 0.4) -> Call:
    """The call of that number; ``entry_points``: fraction beside the estimators' own."""
    rng = np.random.default_rng([seed, number])
    if rng.random() < entry_points:
        return pick(rng, ENTRY_POINTS)(rng)
    kinds = [fit_call, fit_call, question_call, question_call, function_call, changed_call]
    kind = stream_call if rng.random() < 0.1 else pick(rng, kinds)
    return kind(rng)


# Judgement ---------------------------------------------------------------------------------------

# Figures that are not numbers where they mean nothing, as their docstrings say.
MAY_BE_NAN = {
    "log_evidence_", "log_evidence_std_error_", "site_variance_", "site_location_", "diagnostics_",
    "elbo_upper_", "gap_upper_", "saturation_", "elbo_std_error_", "modes_", "symmetry_gap_upper_",
    "prior_scale_samples_", "elbo_curve_", "_blocks_", "invariance_correlation_", "standard_error",
    "margin",  # infinite without interchangeable units
    "leave_one_out_cdf_",  # of rows that no fold leaves out
}  # fmt: skip


def numbers(found: Any, name: str = "result", depth: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """All floating-point numbers of an answer, or of a fitted estimator."""
    if name in MAY_BE_NAN or depth > 4:
        return
    if isinstance(found, torch.Tensor):
        found = found.detach().numpy()
    if isinstance(found, float | np.floating | np.ndarray):
        array = np.asarray(found)
        if array.dtype.kind == "f":
            yield name, array
    elif isinstance(found, Mapping):
        for key, value in found.items():
            yield from numbers(value, str(key), depth + 1)
    elif isinstance(found, tuple | list):
        for value in found[:20]:
            yield from numbers(value, name, depth + 1)
    elif hasattr(found, "get_params"):
        for key, value in vars(found).items():
            if key.endswith("_") and not key.startswith("_"):
                yield from numbers(value, key, depth + 1)


def _is_in_words(error: BaseException) -> bool:
    """Raised on purpose: by this package, by scikit-learn's checks, or by a user's estimator."""
    frames = list(traceback.walk_tb(error.__traceback__))
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    if any(name.startswith("sklearn.linear_model") for name in names):
        return True
    deepest = max((i for i, name in enumerate(names) if name.startswith("skbayes_sym")), default=0)
    if __name__ in names[deepest:]:  # a module or a loss that the call passed in
        return True
    frame, line = frames[-1]
    module = names[-1].partition(".")[0]
    stated = getline(frame.f_code.co_filename, line).strip().startswith("raise")
    # A missing argument is Python's own word, and a good one.
    is_signature = isinstance(error, TypeError) and "argument" in str(error)
    return (module == "skbayes_sym" and stated) or module == "sklearn" or is_signature


def _is_of_words(caught: warnings.WarningMessage) -> bool:
    """Not NumPy's of arithmetic, unless in a metric of scikit-learn's."""
    is_raw = issubclass(caught.category, RuntimeWarning)
    return (
        not is_raw or issubclass(caught.category, FitFailedWarning) or "sklearn" in caught.filename
    )


def score_member(call: Call) -> str | None:
    """What is wrong with the call, or None."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pyplot.close("all")  # or matplotlib warns of how many there are
        try:
            answer = call.run()
        except OURS as error:
            if _is_in_words(error) or isinstance(error, FileNotFoundError):
                answer = None
            else:
                return f"{type(error).__name__} of another's: {_short(str(error))}"
        except Exception as error:
            if _is_in_words(error):
                return None
            return f"raw {type(error).__name__}: {_short(str(error))}"
    raw = [w for w in caught if not _is_of_words(w)]
    if "Ridge()" in call.what or "'pipeline'" in call.what:
        raw = [w for w in raw if "skbayes_sym" in w.filename]  # others are the user's estimator's
    if raw:
        place = f"{raw[0].filename[-50:]}:{raw[0].lineno}"
        return f"raw RuntimeWarning: {_short(str(raw[0].message))} at {place}"
    if answer is None:
        return None
    said = " ".join(str(w.message) for w in caught)
    if call.must_warn not in said:
        return f"answers without a word of: {call.must_warn}"
    if said:
        return None
    for name, values in numbers(answer):
        # Of a class never seen, or a target farther away than numbers go, that is the answer.
        if call.is_log and not np.isnan(values).any() and (values < np.inf).all():
            continue
        if not np.isfinite(values).all():
            return f"silent {'nan' if np.isnan(values).any() else 'inf'} in {name}"
    return None


def findings(
    n_calls: int, seed: int = 0, slow: float = 20.0, entry_points: float = 0.4
) -> list[Finding]:
    """Of that many calls; ``entry_points`` as of `draw_call`."""
    found = []
    for number in range(n_calls):
        call, began = draw_call(seed, number, entry_points), process_time()
        torch.manual_seed(0)
        problem = score_member(call)
        if problem is None and process_time() - began > slow:
            problem = f"took {process_time() - began:.0f} CPU seconds"
        if problem is not None:
            found.append(Finding(number, call.what, problem))
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        drawn = draw_call(int(sys.argv[3]) if len(sys.argv) > 3 else 0, int(sys.argv[2]))
        print(drawn.what)
        print(drawn.run())
    else:
        n, seed = map(int, [*sys.argv[1:], *["1000", "0"][len(sys.argv) - 1 :]])
        began, all_found = process_time(), findings(n, seed)
        for finding in all_found:
            print(f"{finding.number}: {finding.what}\n    {finding.problem}")
        print(f"{n} calls, {len(all_found)} findings, {process_time() - began:.0f} CPU seconds")
