"""Pages of classes in the API reference: which methods they show, and the order of parameters.

The page of an estimator is complete: it documents all parameters, fitted attributes and public
methods under the estimator's own name, inherited ones included. The pages of smaller parts, such
as likelihoods and priors, leave methods that they inherit to the page of their base class.
"""

import re
from collections.abc import Iterable
from importlib import import_module

from docutils import nodes
from sphinx import addnodes

# Groups of parameters on the page of an estimator. All others belong to "Fit".
GROUPS = {
    "Model": "estimators hidden_layer_sizes network activation image_shape invariances "
    "hidden_posterior n_components offsets likelihood prior noise_std standardize fit_intercept "
    "symmetry",
    "Prediction": "predictive n_predict_samples correction variance_scale",
}
N_ATTRIBUTES = 15  # attributes that are shown at first; the others are folded

# Classes that users subclass or call. Their pages document their methods.
BASE_CLASSES = {
    "TargetLikelihood",
    "ClassLikelihood",
    "Likelihood",
    "Prior",
    "Network",
    "ParamLayout",
    "Augmentation",
    "SymmetryGroup",
    "Gap",
    "Kernel",
    "Solver",
    "PredictiveDistribution",
    "ClassPredictive",
    "EntryKFold",
    "Symmetrized",
}
SUBPACKAGES_OF_PARTS = ("models", "symmetry", "factorization", "mcmc", "base")
# Methods of scikit-learn that its own pages explain.
ROUTING_METHODS = {"get_metadata_routing", "set_callbacks", "set_output"}
# Interfaces between subpackages, which users don't call.
INTERNAL_METHODS = {
    "check_inputs",
    "column_encoding",
    "draw_positions",
    "evaluate_functional",
    "forget_training_range",
    "input_blocks",
    "mixture_components",
    "predictor",
}


def is_estimator(name: str) -> bool:
    """Whether a public name of the package is an estimator."""
    import skbayes_sym

    return name in skbayes_sym.__all__ and hasattr(getattr(skbayes_sym, name), "fit")


def shown_methods(name: str, module: str, methods: Iterable[str]) -> list[str]:
    """Return the names of the methods that the page of a class documents.

    Parameters
    ----------
    name : str
        Name of the class.
    module : str
        Module from which users import it.
    methods : iterable of str
        Names of its methods, as autosummary lists them.
    """
    public = [method for method in methods if not method.startswith("_")]
    if is_estimator(name):
        hidden = ROUTING_METHODS | INTERNAL_METHODS
        return [method for method in public if method not in hidden]

    is_part = module.split(".")[1:2] in [[folder] for folder in SUBPACKAGES_OF_PARTS]
    if name not in BASE_CLASSES and (is_part or module == "skbayes_sym"):
        return []
    kind = getattr(import_module(module), name)
    inherited = {
        method
        for base in kind.__mro__[1:]
        if base.__name__ in BASE_CLASSES
        for method in public
        if getattr(base, method, None) is getattr(kind, method)
    }
    return [method for method in public if method not in inherited]


def _is_of_estimator(field: nodes.Node) -> bool:
    """Whether a list of parameters belongs to an estimator, rather than to a method."""
    while not isinstance(field, addnodes.desc):
        if field.parent is None:
            return False
        field = field.parent
    return field["objtype"] == "class" and is_estimator(field[0].get("fullname", ""))


def _group_parameters(body: nodes.Node, items: list[nodes.Node]) -> None:
    """Arrange the parameters of an estimator under the headings of `GROUPS`."""
    by_group: dict[str, list[nodes.Node]] = {"Model": [], "Fit": [], "Prediction": []}
    for item in items:
        first_name = re.findall(r"\w+", item[0].astext())[0]
        groups = [group for group, names in GROUPS.items() if first_name in names.split()]
        by_group[groups[0] if groups else "Fit"].append(item)
    body.clear()
    for title, members in by_group.items():
        if members and len(members) < len(items):
            body += nodes.paragraph("", title, classes=["sk-group"])
        if members:
            body += nodes.definition_list("", *members)


def _fold_attributes(body: nodes.Node, items: list[nodes.Node]) -> None:
    """Show the first attributes and fold the others into a ``details`` element."""
    summary = f"<details><summary>{len(items) - N_ATTRIBUTES} more attributes</summary>"
    body.clear()
    body += [
        nodes.definition_list("", *items[:N_ATTRIBUTES]),
        nodes.raw("", summary, format="html"),
        nodes.definition_list("", *items[N_ATTRIBUTES:]),
        nodes.raw("", "</details>", format="html"),
    ]


def arrange(_app: object, doctree: nodes.document) -> None:
    """Group the parameters and fold the attributes of the classes on a page."""
    for field in doctree.findall(nodes.field):
        label = field[0].astext()
        body = field[1]
        items = [i for child in body if isinstance(child, nodes.definition_list) for i in child]
        if label == "Attributes" and len(items) > N_ATTRIBUTES + 2:
            _fold_attributes(body, items)
        elif label == "Parameters" and _is_of_estimator(field):
            _group_parameters(body, items)
