"""How a page of the API shows a class: an example first, parameters in groups, what is shared once.

Parameters, fitted attributes and methods that estimators have in common stand on ``api/shared``
alone, and what a classifier has from its regressor on the regressor's page; a class's own page
names them and links there. So does a class for the methods that its public base describes.
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from inspect import getdoc
from typing import Any

from docutils import nodes
from sphinx import addnodes

SHARED_PARAMETERS = ("activation", "n_jobs", "device", "random_state", "verbose")
SHARED_ATTRIBUTES = (
    "n_iter_", "stop_reason_", "network_", "symmetry_", "classes_", "x_mean_", "x_scale_",
    "y_mean_", "y_scale_", "device_", "dtype_", "n_features_in_", "feature_names_in_",
)  # fmt: skip
# Left to that page only where an estimator says of them what most do.
USUAL = ("network", "standardize", "prior_groups_", "feature_importances_", "likelihood_")
LIKE = {"LILARegressor": "LaplaceRegressor"}  # besides a classifier and its regressor
GROUPS = {
    "Model": "hidden_layer_sizes network image_shape invariances hidden_posterior "
    "n_components offsets likelihood prior noise_std standardize fit_intercept symmetry",
    "Prediction": "predictive n_predict_samples correction variance_scale",
}
N_ATTRIBUTES = 15  # that a page shows; the others are folded away

# Methods of these are described where one writes a class of one's own; of other parts there is
# nothing to call by hand.
OPEN = {
    "TargetLikelihood", "ClassLikelihood", "Likelihood", "Prior", "Network", "ParamLayout",
    "Augmentation", "SymmetryGroup", "Gap", "Kernel", "Solver", "PredictiveDistribution",
    "ClassPredictive", "EntryKFold", "Symmetrized",
}  # fmt: skip
SUBPACKAGES_OF_PARTS = ("models", "symmetry", "factorization", "mcmc", "base")
_SCIKIT_LEARN = {
    "fit_transform", "get_metadata_routing", "get_params", "set_params", "set_callbacks",
    "set_output", "get_feature_names_out", "score",
}  # fmt: skip
_BASES = ("RowEstimator.", "BayesianRegressorMixin.", "BayesianClassifierMixin.")
_SECTION = re.compile(r"^-{3,}$")
_REPEATED = ("Parameters", "Attributes")  # sections that twins have alike


def _entries(lines: list[str], section: str) -> tuple[int, int]:
    """First and last line of what stands in a section of a numpydoc docstring."""
    rules = [i for i, line in enumerate(lines) if _SECTION.match(line)]
    starts = [i for i in rules if lines[i - 1].strip() == section]
    if not starts:
        return 0, 0
    return starts[0] + 1, min([i - 1 for i in rules if i > starts[0]], default=len(lines))


def shown_methods(name: str, module: str, methods: Iterable[str]) -> list[str]:
    """Names of the methods that the page of a class describes."""
    is_part = module.split(".")[1:2] in [[name] for name in SUBPACKAGES_OF_PARTS]
    if name not in OPEN and (is_part or (module == "skbayes_sym" and not is_estimator(name))):
        return []
    public = [m for m in methods if not m.startswith(("_", "set_")) and m not in _SCIKIT_LEARN]
    elsewhere = {*shared_methods(name), *repeated(name)}
    kind = getattr(import_module(module), name)
    for base in kind.__mro__[1:]:
        if base.__name__ in OPEN:
            elsewhere |= {m for m in public if getattr(base, m, None) is getattr(kind, m)}
    return [m for m in public if m not in elsewhere]


def shared_methods(name: str) -> list[str]:
    """Names of an estimator's methods that stand on the page of what is shared."""
    import skbayes_sym

    if not is_estimator(name):
        return []
    kind = getattr(skbayes_sym, name)
    bases = {m: getattr(getattr(kind, m), "__qualname__", "") for m in dir(kind) if m[0] != "_"}
    return [m for m, base in bases.items() if base.startswith(_BASES) and m != "score"]


def is_estimator(name: str) -> bool:
    """Whether a public name of the package is an estimator's."""
    import skbayes_sym

    return name in skbayes_sym.__all__ and hasattr(getattr(skbayes_sym, name), "fit")


def shared_names(name: str) -> list[str]:
    """Parameters and attributes of an estimator that stand on the page of what is shared."""
    import skbayes_sym

    if not is_estimator(name):
        return []
    words = set(re.findall(r"(?m)^[\w, ]+(?= : )", getdoc(getattr(skbayes_sym, name)) or ""))
    described = {word for entry in words for word in entry.split(", ")}
    shared = [n for n in (*SHARED_PARAMETERS, *SHARED_ATTRIBUTES) if n in described]
    return shared + [n for n in USUAL if _text(name, n) in _usual_texts(n)]


def _text(name: str, entry: str) -> str:
    """What an estimator's docstring says of a parameter or an attribute."""
    import skbayes_sym

    doc = getdoc(getattr(skbayes_sym, name)) or ""
    found = re.search(rf"^{entry} : .*((?:\n +.*)*)", doc, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


@cache
def _usual_texts(entry: str) -> set[str]:
    """What the estimators that say the same of it say, for numbers and for labels."""
    import skbayes_sym

    texts = Counter(_text(n, entry) for n in skbayes_sym.__all__ if is_estimator(n))
    return {text for text, n in texts.items() if text and n > 2}


def _parted(lines: list[str], section: str) -> dict[str, list[str]]:
    """The entries of a section: names and their lines, with blank lines only inside an entry."""
    start, end = _entries(lines, section)
    found: dict[str, list[str]] = {}
    names = ""
    n_blank = 0
    for line in lines[start:end]:
        if not line.strip():
            n_blank += 1
            continue
        if line.startswith(" "):
            found[names] += [""] * n_blank  # before a list, for example
        else:
            names = line.partition(" : ")[0]
            found[names] = []
        n_blank = 0
        found[names].append(line)
    return found


def regressor_of(name: str) -> str:
    """The estimator whose page describes what a classifier or a variant shares with it, or ""."""
    twin = LIKE.get(name, name.replace("Classifier", "Regressor"))
    return twin if twin != name and is_estimator(name) and is_estimator(twin) else ""


@cache
def repeated(name: str) -> tuple[str, ...]:
    """Parameters, attributes and methods that a classifier's page leaves to its regressor's."""
    import skbayes_sym

    if not regressor_of(name):
        return ()
    kinds = [getattr(skbayes_sym, n) for n in (name, regressor_of(name))]
    docs = [(getdoc(kind) or "").splitlines() for kind in kinds]
    shared = set(shared_names(name))
    names: list[str] = []
    for section in _REPEATED:
        own, others = (_parted(doc, section) for doc in docs)
        alike = [entry for entry, lines in own.items() if others.get(entry) == lines]
        names += [n for entry in alike for n in entry.split(", ") if n not in shared]
    own, others = ({m: getattr(k, m) for m in dir(k) if m[0] != "_"} for k in kinds)
    public = [m for m, what in own.items() if callable(what)]
    shared = {m for m in public if m.startswith("set_")} | {*_SCIKIT_LEARN, *shared_methods(name)}
    texts = {m: getdoc(what) for m, what in others.items()}
    return (*names, *(m for m in public if m not in shared and getdoc(own[m]) == texts.get(m)))


def shorten(what: str, name: str, lines: list[str]) -> None:
    """Leave out of a docstring what another page says."""
    import skbayes_sym

    name = name.rpartition(".")[2]
    if what != "class" or not is_estimator(name):
        return
    elsewhere = {*shared_names(name), *repeated(name)}
    for section in _REPEATED:
        start, end = _entries(lines, section)
        kept = [
            line
            for names, entry in _parted(lines, section).items()
            if not set(names.split(", ")) <= elsewhere
            for line in entry
        ]
        lines[start:end] = [*kept, ""]
    if not regressor_of(name):
        return
    start, end = _entries(lines, "References")
    others = (getdoc(getattr(skbayes_sym, regressor_of(name))) or "").splitlines()
    first, last = _entries(others, "References")
    if start and [x for x in lines[start:end] if x] == [x for x in others[first:last] if x]:
        del lines[start - 2 : end]
    if names := ", ".join(f"``{name}``" for name in repeated(name)):
        place = next(i for i, line in enumerate(lines) if _SECTION.match(line)) - 1
        lines[place:place] = [f"As in `{regressor_of(name)}`: {names}.", ""]


def _describes_an_estimator(field: nodes.Node) -> bool:
    """Whether a list of parameters is a class's, and that class an estimator."""
    while not isinstance(field, addnodes.desc):
        if field.parent is None:
            return False
        field = field.parent
    return field["objtype"] == "class" and is_estimator(field[0].get("fullname", ""))


def arrange(app: Any, doctree: nodes.document) -> None:
    """Group parameters and fold attributes of the classes on a page."""
    for field in doctree.findall(nodes.field):
        label, body = field[0].astext(), field[1]
        items = [i for child in body if isinstance(child, nodes.definition_list) for i in child]
        if label == "Attributes" and len(items) > N_ATTRIBUTES + 2:
            more = f"<details><summary>{len(items) - N_ATTRIBUTES} more attributes</summary>"
            body.clear()
            body += [
                nodes.definition_list("", *items[:N_ATTRIBUTES]),
                nodes.raw("", more, format="html"),
                nodes.definition_list("", *items[N_ATTRIBUTES:]),
                nodes.raw("", "</details>", format="html"),
            ]
        elif label == "Parameters" and _describes_an_estimator(field):
            by_group: dict[str, list[nodes.Node]] = {"Model": [], "Fit": [], "Prediction": []}
            for item in items:
                first = re.findall(r"\w+", item[0].astext())[0]
                groups = [g for g, names in GROUPS.items() if first in names.split()]
                by_group[groups[0] if groups else "Fit"].append(item)
            body.clear()
            for title, members in by_group.items():
                if members and len(members) < len(items):
                    body += nodes.paragraph("", title, classes=["sk-group"])
                if members:
                    body += nodes.definition_list("", *members)
