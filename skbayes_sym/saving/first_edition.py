"""Files of the first edition (format 1), in the words of the second.

Parameters and attributes that have another name or another form now are put into it, so that a
model saved by the first edition loads and predicts the same.
"""

from collections.abc import Callable
from typing import Any

from skbayes_sym.inference.samplers import SMC, Evidence

Values = dict[str, Any]
Translation = Callable[[Values, Values], None]  # changes parameters and attributes in place


def translate(class_name: str, parameters: Values, attributes: Values) -> str:
    """Today's name of the class; ``parameters`` and ``attributes`` are changed in place."""
    for change in CHANGES.get(class_name, ()):
        change(parameters, attributes)
    return CLASS_NAMES.get(class_name, class_name)


def _tol_stops(parameters: Values, attributes: Values) -> None:
    """``tol`` stopped where ``early_stopping`` said so; now it does unless it is None."""
    if not parameters.pop("early_stopping", True):
        parameters["tol"] = None


def _samplers_are_objects(parameters: Values, attributes: Values) -> None:
    """``n_islands`` and ``n_particles`` were parameters beside ``sampler`` and ``mode_weights``."""
    n_replicates, n_particles = parameters.pop("n_islands"), parameters.pop("n_particles")
    weighs = parameters["mode_weights"] == "evidence" and parameters["remove_symmetries"]
    parameters["mode_weights"] = "uniform"
    if parameters["sampler"] == "smc":
        parameters["sampler"] = SMC(n_particles, n_replicates)
        parameters.update(n_warmup=1000, warm_start=False)  # which didn't say anything
        parameters["mode_weights"] = "evidence" if weighs else "uniform"
    elif weighs:
        parameters["mode_weights"] = Evidence(n_replicates, n_particles)


CLASS_NAMES: dict[str, str] = {
    "InvarianceAbidingRegressor": "BayesianLinearRegressor",
    "InvarianceAbidingClassifier": "BayesianLinearClassifier",
}

NOUN_NAMES: dict[str, str] = {
    "Translation": "ColumnShift",
    "InUnits": "InRescaledUnits",
    "NoAugmentation": "Identity",
}

CHANGES: dict[str, tuple[Translation, ...]] = {
    "DeepEnsembleRegressor": (_tol_stops,),
    "DeepEnsembleClassifier": (_tol_stops,),
    "MCMCRegressor": (_samplers_are_objects,),
    "MCMCClassifier": (_samplers_are_objects,),
}
