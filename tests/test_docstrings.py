"""What several estimators have is described in the same words.

Up to its first stop a description is the shortest one of all, or goes on from there; what is
special to an estimator follows. Types of parameters agree but for their defaults.
"""

import re
from collections import defaultdict
from inspect import getdoc, signature

import pytest

import skbayes_sym

docscrape = pytest.importorskip("numpydoc.docscrape")

ESTIMATORS = [
    kind for name in skbayes_sym.__all__ if hasattr(kind := getattr(skbayes_sym, name), "fit")
]
NETWORKS = [kind for kind in ESTIMATORS if "hidden_layer_sizes" in signature(kind).parameters]

# One name, several meanings: in estimators of networks...
OF_NETWORKS = {
    "chain_weights_": "members aren't chains",
    "elbo_": "of a symmetrised posterior or not",
    "log_evidence_": "of one mode or of all",
    "log_evidence_curve_": "of one mode or of the best",
    "log_posterior_samples_": "members and draws, targets and labels",
    "n_members": "trained networks, or whatever completes an ensemble",
    "n_predict_samples": "of different things",
    "network_": "of one posterior or of its modes",
    "noise_std_": "of one posterior or of several",
    "noise_std_samples_": "members and draws",
    "optimizer": "what it says differs",
    "posterior_": "a family each",
    "prior_scale_": "of layers, groups or all coefficients",
    "samples_": "members and draws",
    "standardize": "of inputs, or of targets too",
    "tol": "what has to gain differs",
}
# ... and in the linear models and the factorisation besides.
OF_ALL = OF_NETWORKS | {
    "coef_": "labels have no units",
    "elbo_curve_": "after an update, a sweep or a block of steps",
    "elbo_mean_field_": "of the best mean-field posterior, or of the one that was averaged",
    "elbo_std_error_": "of the number that is estimated",
    "likelihood": "linear models have likelihoods by name",
    "max_iter": "updates, sweeps or steps",
    "n_features_in_": "columns of a matrix",
    "n_iter_": "updates, sweeps or steps",
    "noise_std": "of targets or of a matrix",
    "prior": "of weights or coefficients",
    "site_location_": "a row of several classes has several",
    "site_variance_": "a row of several classes has several",
    "stop_reason_": "steps, updates or sweeps",
    "symmetry_": "of units or of components",
    "symmetry_gap_": "in closed form, by permanents or a bound",
}
# Types of parameters that differ.
OF_TYPES = {
    "hidden_layer_sizes": "'auto' where nothing has to be chosen",
    "likelihood": "linear models have likelihoods by name",
    "max_iter": "'auto' where there are two optimisers",
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


def texts(kinds: list[type]) -> Descriptions:
    """First clauses of parameters and attributes."""
    found: Descriptions = defaultdict(lambda: defaultdict(list))
    for kind in kinds:
        doc = docscrape.NumpyDocString(getdoc(kind) or "")
        for entry in doc["Parameters"] + doc["Attributes"]:
            for name in entry.name.split(", "):
                found[name][first_clause(entry.desc)].append(kind.__name__)
    return found


def types(kinds: list[type]) -> Descriptions:
    found: Descriptions = defaultdict(lambda: defaultdict(list))
    for kind in kinds:
        for entry in docscrape.NumpyDocString(getdoc(kind) or "")["Parameters"]:
            for name in entry.name.split(", "):
                found[name][without_default(entry.type)].append(kind.__name__)
    return found


def differing(found: Descriptions) -> dict[str, dict[str, list[str]]]:
    """Entries of which one doesn't go on from the shortest."""
    return {
        name: dict(by_text)
        for name, by_text in found.items()
        if not all(text.startswith(min(by_text, key=len)) for text in by_text)
    }


@pytest.mark.parametrize(
    ("kinds", "allowed"), [(NETWORKS, OF_NETWORKS), (ESTIMATORS, OF_ALL)], ids=["networks", "all"]
)
def test_one_wording(kinds: list[type], allowed: dict[str, str]) -> None:
    found = differing(texts(kinds))
    assert {name: found[name] for name in found if name not in allowed} == {}


def test_one_type() -> None:
    found = {name: dict(kinds) for name, kinds in types(ESTIMATORS).items() if len(kinds) > 1}
    assert {name: found[name] for name in found if name not in OF_TYPES} == {}


def test_no_exception_has_become_idle() -> None:
    assert set(OF_ALL) - set(differing(texts(ESTIMATORS))) == set()
    assert {name for name in OF_TYPES if len(types(ESTIMATORS)[name]) < 2} == set()


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_every_parameter_is_described_in_order(kind: type) -> None:
    doc = docscrape.NumpyDocString(getdoc(kind) or "")
    names = [name for entry in doc["Parameters"] for name in entry.name.split(", ")]
    assert names == list(signature(kind).parameters)
