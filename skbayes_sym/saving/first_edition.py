"""Files of earlier days in today's words: the first edition's (format 1), and some of format 2.

Parameters and attributes that have another name or another form now are put into it, so that a
model saved by the first edition loads and predicts the same.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from skbayes_sym.inference.samplers import SMC, Evidence
from skbayes_sym.inference.solvers import VI, Gibbs
from skbayes_sym.models.augmentations.affine import Affine
from skbayes_sym.models.augmentations.invariances import Invariances
from skbayes_sym.models.augmentations.objectives import Augerino
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.student_t import StudentT
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


def complete(class_name: str, parameters: Values) -> None:
    """What changed since a file of format 2 was written, and what came; in place."""
    if "n_augmentations" in parameters:
        _one_object_of_invariances(parameters)
    for name, value in ADDED.get(class_name, {}).items():
        parameters.setdefault(name, value)
    if class_name.startswith("MCMC") and isinstance(parameters.get("sampler"), SMC):
        parameters.update(init="auto", n_warmup=None)  # which say nothing of particles


def complete_attributes(class_name: str, attributes: Values) -> None:
    """What fits have said since a file of format 2 was written; in place."""
    if class_name == "BayesianMLPRegressor" and "modes_share_" not in attributes:
        kinds = [len(attributes.get(f"noise_std_{kind}_", ())) for kind in ("modes", "samples")]
        linear = attributes.setdefault("linear_share_", 0.0)
        for name, n in zip(("modes_share_", "members_share_"), kinds, strict=True):
            attributes[name] = (1.0 - linear) * n / max(sum(kinds), 1)


def _one_object_of_invariances(parameters: Values) -> None:
    """How many transformations and how fast they grow were parameters beside ``invariances``."""
    default = Invariances()
    n = parameters.pop("n_augmentations")
    rate = parameters.pop("invariance_learning_rate", default.learning_rate)
    given = parameters.get("invariances", "auto")
    if given is not None and (n, rate) != (default.n_augmentations, default.learning_rate):
        parameters["invariances"] = Invariances(given, n, rate)


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


def _likelihood_of_numbers(parameters: Values, attributes: Values) -> None:
    """``df`` is the Student-t likelihood's own; counts have no noise to give."""
    df = parameters.pop("df")
    if parameters["likelihood"] == "student-t" and df != StudentT().df:
        parameters["likelihood"] = StudentT(df=df)
    if parameters["likelihood"] == "poisson":
        parameters["noise_std"] = "learn"


def _likelihood_of_labels(parameters: Values, attributes: Values) -> None:
    """``n_points`` is the softmax's own."""
    n_points = parameters.pop("n_points")
    n_outputs = len(attributes["posterior_"].loc)
    if n_outputs > 1 and n_points != Categorical().n_points:
        parameters["likelihood"] = Categorical(n_points)


def _samplers_are_objects(parameters: Values, attributes: Values) -> None:
    """``n_islands`` and ``n_particles`` were parameters beside ``sampler`` and ``mode_weights``."""
    n_replicates, n_particles = parameters.pop("n_islands"), parameters.pop("n_particles")
    weighs = parameters["mode_weights"] == "evidence" and parameters["remove_symmetries"]
    parameters["mode_weights"] = "uniform"
    if parameters["sampler"] == "smc":
        parameters["sampler"] = SMC(n_particles, n_replicates)
        parameters.update(n_warmup=None, warm_start=False)  # which didn't say anything
        parameters["mode_weights"] = "evidence" if weighs else "uniform"
    elif weighs:
        parameters["mode_weights"] = Evidence(n_replicates, n_particles)


def _laplace(parameters: Values, attributes: Values) -> None:
    """Laplace and LILA: ``prior_scale`` says whether it is learned, and ``tol`` only warned."""
    if parameters.pop("learn_prior", False):
        parameters["prior_scale"] = "learn"
    parameters["tol"] = None
    if parameters.get("network", "mlp") != "mlp":  # had no part in it
        parameters.pop("hidden_layer_sizes", None)
        parameters.pop("activation", None)
    attributes["log_evidence_curve_"] = attributes.pop("log_evidence_history_", np.empty(0))
    attributes["prior_scale_"] = attributes.pop("prior_precision_") ** -0.5
    for name in ("_n_last_", "_eta_history_"):
        attributes.pop(name, None)


def _trained_by_adam(parameters: Values, attributes: Values) -> None:
    """There was no other optimiser."""
    parameters["optimizer"] = "adam"
    attributes["optimizer_"] = "adam"


def _no_transformations(parameters: Values, attributes: Values) -> None:
    del attributes["_augmentation_"], attributes["_eta_"]


def _invariances(parameters: Values, attributes: Values) -> None:
    """Satellites of ``invariances`` and ``objective`` are parts of these objects."""
    affine = Affine(parameters.pop("basis", "similarity"), parameters.pop("correlated", False))
    given, is_image = parameters.get("invariances", "auto"), parameters.get("image_shape")
    if isinstance(given, str) and is_image is not None:
        parameters["invariances"] = affine
    reward = parameters.pop("augerino_reward", Augerino().reward)
    if parameters.get("objective") == "augerino":
        parameters["objective"] = Augerino(reward)
    for old, new in {
        "_augmentation_": "augmentation_",
        "_eta_": "eta_",
        "invariance_history_": "invariance_curve_",
    }.items():
        attributes[new] = attributes.pop(old)


def translate_noun(name: str, fields: Values) -> tuple[str, Values]:
    """Today's name of a noun inside a file, and its fields by today's names."""
    renamed = FIELD_NAMES.get(name, {})
    return NOUN_NAMES.get(name, name), {renamed.get(f, f): value for f, value in fields.items()}


def _solvers_are_objects(parameters: Values, attributes: Values) -> None:
    """``n_draws``, ``covariance`` and ``symmetry`` said nothing to most solvers."""
    n_draws, covariance = parameters.pop("n_draws"), parameters.pop("covariance")
    solver = parameters["solver"]
    if solver == "vi" and covariance != VI().covariance:
        parameters["solver"] = VI(covariance)
    elif solver == "gibbs" and n_draws != Gibbs().n_draws:
        parameters["solver"] = Gibbs(n_draws)
    elif solver == "mfvi_analytic":
        parameters["solver"] = "mean_field"
    if solver != "vi":
        parameters["symmetry"] = "auto"
    elif parameters["symmetry"] == "signflip":
        parameters["symmetry"] = "sign_flip"


CLASS_NAMES: dict[str, str] = {
    "InvarianceAbidingRegressor": "BayesianLinearRegressor",
    "InvarianceAbidingClassifier": "BayesianLinearClassifier",
}

# Nouns and fields that were renamed; no old name means anything else today.
NOUN_NAMES: dict[str, str] = {
    "DiagonalWhitening": "DiagonalPreconditioner",
    "Translation": "ColumnShift",
    "InUnits": "InRescaledUnits",
    "NoAugmentation": "Identity",
}
FIELD_NAMES: dict[str, dict[str, str]] = {"Block": {"whitening": "preconditioner"}}

# Parameters that came later, and what files without them mean.
ADDED: dict[str, Values] = {
    "MCMCRegressor": {"init": "prior", "prior_scale": 1.0},
    "MCMCClassifier": {"init": "prior", "prior_scale": 1.0},
    "SymVIMatrixFactorization": {"offsets": False},
}

CHANGES: dict[str, tuple[Translation, ...]] = {
    "DeepEnsembleRegressor": (_tol_stops,),
    "DeepEnsembleClassifier": (_tol_stops,),
    "LaplaceRegressor": (_laplace, _no_transformations, _trained_by_adam),
    "LaplaceClassifier": (_laplace, _no_transformations, _trained_by_adam),
    "LILARegressor": (_laplace, _invariances),
    "LILAClassifier": (_laplace, _invariances),
    "SymmetrizedVIRegressor": (_tol_stops, _gap_is_an_object),
    "SymmetrizedVIClassifier": (_tol_stops, _gap_is_an_object),
    "LayerwiseVIRegressor": (_tol_stops, _layerwise_has_a_class),
    "MCMCRegressor": (_samplers_are_objects,),
    "MCMCClassifier": (_samplers_are_objects,),
    "InvarianceAbidingRegressor": (_likelihood_of_numbers,),
    "InvarianceAbidingClassifier": (_likelihood_of_labels,),
    "SymVIMatrixFactorization": (_solvers_are_objects,),
}
