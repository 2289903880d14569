"""A seeded fuzzer: any call gives finite numbers, an error in words, or a warning in words.

    python tests/fuzz.py [N_CALLS] [SEED]       prints each finding with what makes it again
    python tests/fuzz.py one NUMBER [SEED]      one call, with its traceback

A call is drawn by its number and the seed: an estimator's fit with valid, extreme or wrong
parameters and hostile data, a question to a fitted one, also after other parameters were set, more
entries of a stream, or a function or Display. Files are in `saving/test_damage.py`.
"""

import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from inspect import signature
from linecache import getline
from numbers import Integral
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from fits import FITS, MATRIX, SMALL
from matplotlib import pyplot
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.utils._param_validation import Interval, StrOptions

import skbayes_sym as sk
from skbayes_sym.inference.solvers import MAP, VI, Gibbs
from skbayes_sym.models import Gaussian, HalfNormal, Normal, Poisson, StudentT
from skbayes_sym.models.priors import ARD, LayerScales
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.optimise import DivergenceError

OURS = (ValueError, TypeError, MemoryError, NotFittedError, DivergenceError,
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
    "bayesian-mlp-two-classes",
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
    }  # fmt: skip
    return pick(rng, fitting.get(name) or [1, 2, 3, 5])


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
            sk.metrics.expected_calibration_error, sk.model_selection.EntryKFold,
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


def draw_call(seed: int, number: int) -> Call:
    """The call of that number."""
    rng = np.random.default_rng([seed, number])
    kinds = [fit_call, fit_call, question_call, question_call, function_call, changed_call]
    kind = stream_call if rng.random() < 0.1 else pick(rng, kinds)
    return kind(rng)


# Judgement ---------------------------------------------------------------------------------------

# Figures that are not numbers where they mean nothing, as their docstrings say.
MAY_BE_NAN = {
    "log_evidence_", "log_evidence_std_error_", "site_variance_", "site_location_", "diagnostics_",
    "elbo_upper_", "gap_upper_", "saturation_", "elbo_std_error_", "modes_", "symmetry_gap_upper_",
    "prior_scale_samples_", "elbo_curve_", "_blocks_", "invariance_correlation_", "standard_error",
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
    """Raised on purpose, by this package or by scikit-learn's checks of what it was given."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
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


def judge(call: Call) -> str | None:
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
            return f"raw {type(error).__name__}: {_short(str(error))}"
    raw = [w for w in caught if not _is_of_words(w)]
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


def findings(n_calls: int, seed: int = 0, slow: float = 20.0) -> list[Finding]:
    """Of that many calls."""
    found = []
    for number in range(n_calls):
        call, began = draw_call(seed, number), process_time()
        torch.manual_seed(0)
        problem = judge(call)
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
