"""The public estimators side by side: one name, one meaning, and a place in the docstring."""

import inspect
import os
import re
import subprocess
import sys
from collections import defaultdict
from email.message import Message
from typing import Any

import pandas as pd
import pytest
from fits import FITS, SMALL, X, fitted, target
from sklearn.base import clone

import skbayes_sym

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
    "max_iter": {"auto", 2000, 1000, 500, 300},
    "n_modes": {10, 4},
    "noise_std": {"learn", "effective"},  # of members whose weights take freedoms from it
    "prior": {1.0, "learn", "auto"},  # learned where there is an evidence; "auto" of chains
    "optimizer": {"auto", "adam"},  # Gauss-Newton where it can be
    # Of either optimiser; nats per row; nats per entry; posterior standard deviations.
    "tol": {"auto", 1e-3, 1e-4, 1e-6},
}

# Of frames, labels, objects and learned scales, which no case of a class may have.
OF_SOME_FITS = {
    "feature_names_in_", "row_labels_", "column_labels_", "likelihood_", "prior_scale_",
    "prior_groups_", "relevance_", "feature_importances_", "widths_", "width_scores_",
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
            found = [str(c) for c in constraints if " in the range " in str(c)]
            bounds[name].update(found)
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
    estimator = clone(SMALL[name])
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert estimator.fit(frame, target(estimator)) is estimator
    assert estimator.n_features_in_ == 3
    assert estimator.feature_names_in_.tolist() == ["a", "b", "c"]


def import_of_its_own() -> list[str]:
    """Processor seconds of the import alone, and of what it needs; whether a GPU is awake after a
    fit, and what came."""
    code = (
        "import time, sys; import torch, sklearn.base; before = set(sys.modules);"
        "start = time.process_time(); import skbayes_sym; seconds = time.process_time() - start;"
        "from skbayes_sym import SymmetrizedVIRegressor; import numpy as np;"
        "SymmetrizedVIRegressor((2,), max_iter=2, tol=None).fit(np.eye(3), np.arange(3.0));"
        "assert 'torch._dynamo' not in sys.modules;"  # torch.optim brings it: more than a second
        "print(seconds, start, torch.cuda.is_initialized(),"
        "*{m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    # With compiled files, as anybody's second import has them.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    return run.stdout.split()


HEAVY = {"matplotlib", "pandas", "arviz", "arviz_base", "arviz_stats", "dask", "distributed",
         "safetensors", "torchvision", "IPython"}  # fmt: skip


@pytest.mark.long
def test_the_import_is_light_and_wakes_no_gpu():
    for _ in range(3):  # the first may have files to read
        seconds, needed, awake, *others = import_of_its_own()
        assert awake == "False"
        assert HEAVY.isdisjoint(others)
        # 0.22 on one machine, a tenth of the rest; where others compute, both take longer.
        if float(seconds) < max(0.5, 0.2 * float(needed)):
            return
    pytest.fail(f"import skbayes_sym takes {seconds} s beyond torch and scikit-learn: {needed} s")


def test_a_class_links_to_its_page_once_there_is_a_site(monkeypatch):
    estimator = skbayes_sym.BayesianLinearRegressor()
    assert estimator._get_doc_link() == ""  # the address is a placeholder
    site = Message()
    site["Project-URL"] = "Documentation, https://docs.example"
    monkeypatch.setattr("skbayes_sym.estimators._fit.scikit_learn.metadata", lambda _: site)
    page = "https://docs.example/api/generated/skbayes_sym.BayesianLinearRegressor.html"
    assert page in estimator._repr_html_()
