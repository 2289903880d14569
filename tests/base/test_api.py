"""The public estimators side by side: one name, one meaning, one wording, imported when used."""

import inspect
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from email.message import Message
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fits import FITS, SMALL, X, fitted, target
from sklearn.base import clone

import skbayes_sym
from skbayes_sym.base.public_names import MODULES

ESTIMATORS = {
    name: public
    for name in skbayes_sym.__all__
    if inspect.isclass(public := getattr(skbayes_sym, name)) and hasattr(public, "fit")
}

# A default that differs does so for a reason that the class' documentation gives.
SEVERAL_DEFAULTS = {
    "activation": {"relu", "tanh"},  # curvature and chains want a smooth one
    "hidden_layer_sizes": {"auto", (50,), (20,)},  # 20 where curvatures or chains are to be had
    "likelihood": {"auto", "gaussian"},  # of labels, of numbers
    # Steps of either optimiser, of Adam, of a finetuned one, updates, sweeps.
    "max_iter": {"auto", 2000, 500, 300},
    "n_modes": {10, 4},
    "noise_std": {"learn", "effective"},  # of members whose weights take freedoms from it
    # Learned where there is an evidence; "auto" of chains, and of images and tables of classes.
    "prior": {1.0, "learn", "auto"},
    "predictive": {"sampling", "plugin"},
    "optimizer": {"auto", "adam"},  # Gauss-Newton where it can be
    # Of either optimiser; nats per row; nats per entry; posterior standard deviations.
    "tol": {"auto", 1e-3, 1e-4, 1e-6},
}

# Of frames, labels, objects and learned scales, which no case of a class may have.
OF_SOME_FITS = {
    "feature_names_in_", "row_labels_", "column_labels_", "likelihood_", "prior_scale_",
    "prior_groups_", "context_coef_", "context_coef_cov_", "relevance_", "feature_importances_",
    "widths_", "width_scores_", "target_correlation_",
}  # fmt: skip

# Too few steps to converge on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

every = pytest.mark.parametrize("name", ESTIMATORS)


def documented(kind: type, section: str) -> list[str]:
    """Names that a section of the class' docstring lists, in order."""
    parts = re.split(r"\n([A-Z][A-Za-z ]+)\n-{3,}\n", inspect.getdoc(kind) or "")
    text = dict(zip(parts[1::2], parts[2::2], strict=True))[section]
    entries = re.findall(r"^(\w[\w, ]*) : ", text, flags=re.MULTILINE)
    return [name for entry in entries for name in entry.split(", ")]


def test_one_name_has_one_default_unless_a_reason_is_given_here():
    defaults = defaultdict(set)
    for kind in ESTIMATORS.values():
        for name, parameter in inspect.signature(kind).parameters.items():
            defaults[name].add(parameter.default)
    several = {name: found for name, found in defaults.items() if len(found) > 1}
    assert several == SEVERAL_DEFAULTS


def test_one_name_is_checked_alike():
    """Kinds of value aside, which `"learn"` and arrays per layer add to, bounds are the same."""
    bounds = defaultdict(set)
    for kind in ESTIMATORS.values():
        for name, constraints in kind._parameter_constraints.items():
            found = frozenset(str(c) for c in constraints if " in the range " in str(c))
            bounds[name] |= {found} - {frozenset()}
    del bounds["n_members"]  # mixtures of networks can have none
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


@every
def test_every_parameter_has_a_constraint_and_a_place_in_the_docstring(name):
    parameters = list(inspect.signature(ESTIMATORS[name]).parameters)
    assert documented(ESTIMATORS[name], "Parameters") == parameters
    assert set(ESTIMATORS[name]._parameter_constraints) == set(parameters)


def public_attributes(model: Any) -> set[str]:
    """What `fit` sets, and properties that go by such a name."""
    properties = {
        name
        for name, _ in inspect.getmembers(type(model), lambda m: isinstance(m, property))
        if hasattr(model, name)
    }
    return {n for n in {*vars(model), *properties} if n.endswith("_") and not n.startswith("_")}


@every
def test_attributes_are_those_of_the_docstring(name):
    kind = ESTIMATORS[name]
    fits = [fitted(key) for key, case in FITS.items() if type(case.estimator) is kind]
    listed = documented(kind, "Attributes")
    assert len(listed) == len(set(listed))
    found = set().union(*map(public_attributes, fits))
    assert found <= set(listed)
    assert set(listed) - found <= OF_SOME_FITS
    assert "feature_names_in_" in listed


@every
def test_fit_returns_self_and_knows_its_columns(name):
    estimator, plain = clone(SMALL[name]), clone(SMALL[name])
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert estimator.fit(frame, pd.Series(target(estimator))) is estimator
    assert estimator.n_features_in_ == 3
    assert estimator.feature_names_in_.tolist() == ["a", "b", "c"]
    ask = "predict" if hasattr(estimator, "predict") else "transform"
    expected = getattr(plain.fit(X, target(plain)), ask)(X)
    np.testing.assert_array_equal(getattr(estimator, ask)(frame), expected)
    with pytest.raises(ValueError, match="feature names"):
        getattr(estimator, ask)(frame.rename(columns={"a": "other"}))


def import_of_its_own() -> list[str]:
    """CPU seconds of importing the stack, and of torch and scikit-learn before it; whether a GPU
    is awake after a fit, and the modules that the stack imported and the packages of all."""
    code = (
        "import time, sys; import torch, sklearn; before = set(sys.modules);"
        "start = time.process_time(); from skbayes_sym import PredictiveStackingRegressor;"
        "seconds = time.process_time() - start; stack = set(sys.modules) - before;"
        "from skbayes_sym import SymmetrizedVIRegressor; import numpy as np;"
        "SymmetrizedVIRegressor((2,), max_iter=2, tol=None).fit(np.eye(3), np.arange(3.0));"
        "assert 'torch._dynamo' not in sys.modules;"  # torch.optim brings it: more than a second
        "print(seconds, start, torch.cuda.is_initialized(),"
        "*stack, *{m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    # With compiled files, as anybody's second import has them.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    return run.stdout.split()


HEAVY = {"matplotlib", "pandas", "arviz", "arviz_base", "arviz_stats", "dask", "distributed",
         "safetensors", "torchvision", "IPython", "sympy", "sklearn.ensemble", "scipy.stats",
         "torch._dynamo"}  # fmt: skip


@pytest.mark.long
def test_the_import_is_light_and_wakes_no_gpu():
    for _ in range(3):  # the first may have files to read
        seconds, needed, awake, *others = import_of_its_own()
        assert awake == "False"
        assert HEAVY.isdisjoint(others)
        # 0.3 on one machine, a sixth of the rest; where others compute, both take longer.
        if float(seconds) < max(0.5, 0.25 * float(needed)):
            return
    pytest.fail(f"importing the stack takes {seconds} s beyond torch and scikit-learn: {needed} s")


def test_a_class_links_to_its_page_once_there_is_a_site(monkeypatch):
    estimator = skbayes_sym.BayesianLinearRegressor()
    assert estimator._get_doc_link() == ""  # the address is a placeholder
    site = Message()
    site["Project-URL"] = "Documentation, https://docs.example"
    monkeypatch.setattr("skbayes_sym.base.scikit_learn.metadata", lambda _: site)
    page = "https://docs.example/api/generated/skbayes_sym.BayesianLinearRegressor.html"
    assert page in estimator._repr_html_()


KINDS = [*ESTIMATORS.values()]
NETWORKS = [kind for kind in KINDS if "hidden_layer_sizes" in inspect.signature(kind).parameters]

# One name, several meanings: in estimators of networks...
OF_NETWORKS = {
    "likelihood": "of targets or of classes",
    "chain_weights_": "members aren't chains", "elbo_": "of a symmetrised posterior or not",
    "log_evidence_": "of one mode or of all", "log_evidence_curve_": "of one mode or of the best",
    "log_evidence_side_": "of a sum over copies, or of the evidence",
    "log_evidence_std_error_": "of a sum over copies, or of chains",
    "log_posterior_samples_": "members and draws, targets and labels",
    "n_members": "trained networks, or whatever completes an ensemble",
    "n_predict_samples": "of different things", "network_": "of one posterior or of its modes",
    "noise_std_": "of one posterior or of several", "noise_std_samples_": "members and draws",
    "optimizer": "what it says differs", "posterior_": "a family each",
    "prior_scale_": "of layers, groups or all coefficients", "samples_": "members and draws",
    "standardize": "of inputs, or of targets too", "tol": "what has to gain differs",
}  # fmt: skip
# ... and in the linear models and the factorisation besides.
OF_ALL = OF_NETWORKS | {
    "coef_": "labels have no units", "elbo_curve_": "after an update, a sweep or a block of steps",
    "elbo_mean_field_": "of the best mean-field posterior, or of the one that was averaged",
    "elbo_std_error_": "of the number that is estimated",
    "estimators_": "classes have no units and calibrated probabilities",
    "likelihood": "linear models have likelihoods by name", "max_iter": "updates, sweeps or steps",
    "n_iter_": "updates, sweeps or steps", "noise_std": "of targets or of a matrix",
    "prior": "of weights or coefficients", "site_location_": "a row of several classes has several",
    "site_variance_": "a row of several classes has several",
    "stop_reason_": "steps, updates or sweeps", "symmetry_": "of units or of components",
    "symmetry_gap_": "in closed form, by permanents or a bound",
}  # fmt: skip
# Types of parameters that differ.
OF_TYPES = {
    "hidden_layer_sizes": "'auto' where nothing has to be chosen",
    "likelihood": "linear models have likelihoods by name",
    "max_iter": "'auto' where the method or the rows choose",
    "network": "images have networks by name",
    "noise_std": "one target, or several",
    "optimizer": "Gauss-Newton where it can be",
    "prior": "'learn' where the evidence is known",
    "standardize": "'X' or 'y' where targets are numbers, one of two steps of a matrix",
    "tol": "'auto' where there are two optimisers",
}


Descriptions = dict[str, dict[str, list[str]]]  # name -> text -> estimators


def first_clause(lines: list[str]) -> str:
    return re.split(r"[.;:](?:\s|$)", " ".join(" ".join(lines).split()))[0]


def without_default(kind: str) -> str:
    return re.sub(r",? *(default=.*|optional)$", "", " ".join(kind.split()))


def described(kinds: list[type], sections: list[str], words: Callable[[Any], str]) -> Descriptions:
    """What ``words`` takes from every entry of these sections, and whose it is."""
    docscrape = pytest.importorskip("numpydoc.docscrape")
    found: Descriptions = defaultdict(lambda: defaultdict(list))
    for kind in kinds:
        doc = docscrape.NumpyDocString(inspect.getdoc(kind) or "")
        for entry in (entry for section in sections for entry in doc[section]):
            for name in entry.name.split(", "):
                found[name][words(entry)].append(kind.__name__)
    return found


def texts(kinds: list[type]) -> Descriptions:
    """First clauses of parameters and attributes."""
    return described(kinds, ["Parameters", "Attributes"], lambda e: first_clause(e.desc))


def types() -> Descriptions:
    return described(KINDS, ["Parameters"], lambda e: without_default(e.type))


def differing(found: Descriptions) -> dict[str, dict[str, list[str]]]:
    """Entries of which one doesn't go on from the shortest."""
    return {
        name: dict(by_text)
        for name, by_text in found.items()
        if not all(text.startswith(min(by_text, key=len)) for text in by_text)
    }


@pytest.mark.parametrize(
    ("kinds", "allowed"), [(NETWORKS, OF_NETWORKS), (KINDS, OF_ALL)], ids=["networks", "all"]
)
def test_one_wording(kinds: list[type], allowed: dict[str, str]) -> None:
    found = differing(texts(kinds))
    assert {name: found[name] for name in found if name not in allowed} == {}


def test_one_type() -> None:
    found = {name: dict(kinds) for name, kinds in types().items() if len(kinds) > 1}
    assert {name: found[name] for name in found if name not in OF_TYPES} == {}


def test_no_exception_has_become_idle() -> None:
    assert set(OF_ALL) - set(differing(texts(KINDS))) == set()
    assert {name for name in OF_TYPES if len(types()[name]) < 2} == set()


MOST_MODULES = 106  # a third of the 318 that `import skbayes_sym` loaded before names were lazy


def test_every_name_is_there_and_listed():
    assert set(MODULES) == set(skbayes_sym.__all__) <= set(dir(skbayes_sym))
    for name in skbayes_sym.__all__:
        assert getattr(skbayes_sym, name).__name__ == name
    for name in skbayes_sym._SUBPACKAGES:
        assert getattr(skbayes_sym, name).__name__ == f"skbayes_sym.{name}"
    with pytest.raises(AttributeError, match="no attribute 'BayesianForest'"):
        skbayes_sym.BayesianForest  # noqa: B018


@pytest.mark.long
def test_a_linear_model_loads_no_sampler_and_no_inspection():
    code = (
        "import sys\nfrom skbayes_sym import BayesianLinearRegressor\n"
        "print(*(m for m in sys.modules if m.startswith('skbayes_sym')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = run.stdout.split()
    assert 10 < len(modules) <= MOST_MODULES
    for room in ("inspection", "model_selection", "saving", "mcmc"):
        assert not any(m.startswith(f"skbayes_sym.{room}") for m in modules), room
