"""How a page of the API shows a class: an example first, parameters in groups, what is shared once.

Parameters, fitted attributes and methods that estimators have in common stand on ``api/shared``
alone; a class's own page names them and links there.
"""

import re
from collections.abc import Iterable
from inspect import getdoc
from typing import Any

from docutils import nodes

SHARED_PARAMETERS = ("activation", "n_jobs", "device", "random_state", "verbose")
SHARED_ATTRIBUTES = (
    "n_iter_", "stop_reason_", "network_", "symmetry_", "classes_", "x_mean_", "x_scale_",
    "y_mean_", "y_scale_", "device_", "dtype_", "n_features_in_", "feature_names_in_",
)  # fmt: skip
GROUPS = {
    "Model": "hidden_layer_sizes network last_layer image_shape invariances hidden_posterior "
    "n_components offsets likelihood prior noise_std standardize fit_intercept symmetry",
    "Prediction": "predictive n_predict_samples correction variance_scale",
}
N_ATTRIBUTES = 15  # that a page shows; the others are folded away

# Methods of these are described where one writes a class of one's own; of other parts there is
# nothing to call by hand.
OPEN = {
    "TargetLikelihood", "LabelLikelihood", "Likelihood", "Prior", "Network", "ParamLayout",
    "Augmentation", "SymmetryGroup", "Gap", "Kernel", "Solver", "PredictiveDistribution",
    "ClassPredictive", "EntryKFold", "Symmetrized",
}  # fmt: skip
_SCIKIT_LEARN = {
    "fit_transform", "get_metadata_routing", "get_params", "set_params", "set_callbacks",
    "set_output", "get_feature_names_out", "score",
}  # fmt: skip
_BASES = ("RowEstimator.", "BayesianRegressorMixin.", "BayesianClassifierMixin.")
_SECTION = re.compile(r"^-{3,}$")


def _entries(lines: list[str], section: str) -> tuple[int, int]:
    """First and last line of what stands in a section of a numpydoc docstring."""
    rules = [i for i, line in enumerate(lines) if _SECTION.match(line)]
    starts = [i for i in rules if lines[i - 1].strip() == section]
    if not starts:
        return 0, 0
    return starts[0] + 1, min([i - 1 for i in rules if i > starts[0]], default=len(lines))


def shown_methods(name: str, module: str, methods: Iterable[str]) -> list[str]:
    """Names of the methods that the page of a class describes."""
    is_part = module.split(".")[1:2] in (["models"], ["symmetry"], ["inference"])
    if name not in OPEN and (is_part or (module == "skbayes_sym" and not is_estimator(name))):
        return []
    public = [m for m in methods if not m.startswith(("_", "set_")) and m not in _SCIKIT_LEARN]
    return [m for m in public if m not in shared_methods(name)]


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
    return [n for n in (*SHARED_PARAMETERS, *SHARED_ATTRIBUTES) if n in described]


def shorten(what: str, name: str, lines: list[str]) -> None:
    """Leave out of a docstring what the page of shared things says."""
    if what == "class" and is_estimator(name.rpartition(".")[2]):
        shared = {"Attributes": SHARED_ATTRIBUTES, "Parameters": SHARED_PARAMETERS}
        for section, names in shared.items():
            start, end = _entries(lines, section)
            kept, keep = [], True
            for line in lines[start:end]:
                if line.strip() and not line.startswith(" "):
                    keep = not set(line.partition(" : ")[0].split(", ")) <= set(names)
                if keep:
                    kept.append(line)
            lines[start:end] = [*kept, ""]


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
        elif label == "Parameters" and len(items) > 7:
            by_group: dict[str, list[nodes.Node]] = {"Model": [], "Fit": [], "Prediction": []}
            for item in items:
                first = re.findall(r"\w+", item[0].astext())[0]
                groups = [g for g, names in GROUPS.items() if first in names.split()]
                by_group[groups[0] if groups else "Fit"].append(item)
            body.clear()
            for title, members in by_group.items():
                if members:
                    body += nodes.paragraph("", title, classes=["sk-group"])
                    body += nodes.definition_list("", *members)

