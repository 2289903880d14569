"""Files of the first edition (format 1), in the words of the second.

Parameters and attributes that have another name or another form now are put into it, so that a
model saved by the first edition loads and predicts the same.
"""

from collections.abc import Callable
from typing import Any

from skbayes_sym.symmetry.gaps.permanent_estimates import ExactUpTo, Importance, InfoNCE

Values = dict[str, Any]
Translation = Callable[[Values, Values], None]  # changes parameters and attributes in place


def translate(class_name: str, parameters: Values, attributes: Values) -> str:
    """Today's name of the class; ``parameters`` and ``attributes`` are changed in place."""
    if class_name == "SymmetrizedVIRegressor" and _is_layerwise(parameters):
        class_name = "LayerwiseVIRegressor"
    for change in CHANGES.get(class_name, ()):
        change(parameters, attributes)
    return CLASS_NAMES.get(class_name, class_name)


def _tol_stops(parameters: Values, attributes: Values) -> None:
    """``tol`` stopped where ``early_stopping`` said so; now it does unless it is None."""
    if not parameters.pop("early_stopping", True):
        parameters["tol"] = None


def _is_layerwise(parameters: Values) -> bool:
    """One class did both; a file of this edition's class has neither parameter."""
    own = parameters.get("last_layer"), parameters.get("hidden_posterior")
    return own not in ((None, None), ("variational", "mean_field"))


def _layerwise_has_a_class(parameters: Values, attributes: Values) -> None:
    """What layers that know each other had no use for is gone, and what they hid is said."""
    for name in ("symmetry", "gap_estimator", "n_permutations", "exact_max_width", "warm_start"):
        parameters.pop(name, None)
    parameters.pop("log_variance_rate", None)
    for name in ("elbo_mean_field_", "elbo_upper_", "symmetry_gap_", "saturation_"):
        attributes.pop(name, None)
    parameters["n_weight_samples"] = max(2, parameters.get("n_weight_samples", 1))
    if parameters["hidden_posterior"] != "global_inducing":
        parameters["n_inducing"] = "auto"


def _gap_is_an_object(parameters: Values, attributes: Values) -> None:
    """Name, number of permutations and widest exact layer of the gap became one parameter."""
    for name in ("last_layer", "hidden_posterior", "n_inducing"):
        parameters.pop(name, None)
    name = parameters.pop("gap_estimator", "auto")
    n, width = parameters.pop("n_permutations", 16), parameters.pop("exact_max_width", 10)
    gaps = {
        "auto": "auto" if (n, width) == (16, 10) else ExactUpTo(width, Importance(n)),
        "importance": Importance(n),
        "infonce": InfoNCE(n),
        "infonce-iid": InfoNCE(n, replacement=True),
    }
    parameters["gap"] = gaps.get(name, name)


CLASS_NAMES: dict[str, str] = {
    "InvarianceAbidingRegressor": "BayesianLinearRegressor",
    "InvarianceAbidingClassifier": "BayesianLinearClassifier",
}

CHANGES: dict[str, tuple[Translation, ...]] = {
    "DeepEnsembleRegressor": (_tol_stops,),
    "DeepEnsembleClassifier": (_tol_stops,),
    "SymmetrizedVIRegressor": (_tol_stops, _gap_is_an_object),
    "SymmetrizedVIClassifier": (_tol_stops, _gap_is_an_object),
    "LayerwiseVIRegressor": (_tol_stops, _layerwise_has_a_class),
}
