"""Names that users import from the package, and the modules that define them.

The package's root imports a name when it is first used. Saved files refer to estimators, and to
the objects that are passed as their parameters, by these names.
"""

from importlib import import_module
from inspect import signature

ESTIMATOR_MODULES = {
    "bayesian_mlp.estimators": ("BayesianMLPClassifier", "BayesianMLPRegressor"),
    "ensemble.estimators": ("DeepEnsembleClassifier", "DeepEnsembleRegressor"),
    "factorization.estimators": ("SymVIMatrixFactorization",),
    "laplace.estimators": ("LaplaceClassifier", "LaplaceRegressor"),
    "lila.estimators": ("LILAClassifier", "LILARegressor"),
    "linear.estimators": ("BayesianLinearClassifier", "BayesianLinearRegressor"),
    "mcmc.estimators": ("MCMCClassifier", "MCMCRegressor"),
    "stacking.estimators": ("PredictiveStackingClassifier", "PredictiveStackingRegressor"),
    "variational.estimators": ("SymmetrizedVIClassifier", "SymmetrizedVIRegressor"),
    "variational.layerwise": ("LayerwiseVIRegressor",),
}
# Objects that are passed as parameters of estimators.
PARAMETER_MODULES = {
    "base.optimizers": ("Adam", "EvidenceAdam", "GaussNewton", "Updates", "VariationalAdam"),
    "mcmc.samplers": ("Chains", "ModeWeights"),
    "variational.gaps": ("Symmetrized",),
}
OTHER_MODULES = {
    "base.predictive": ("predictive",),
    "distillation": ("distill",),
    "inspection.invariance_gap": ("invariance_gap",),
    "inspection.loss_barrier": ("loss_barrier",),
    "inspection.symmetry_removal": ("remove_symmetries",),
    "mcmc.annealing": ("Annealing",),
    "mcmc.chain_count": ("n_chains_required",),
    "mcmc.kernels": ("HMC",),
    "model_selection": ("compare_models",),
    "saving.files": ("load", "save"),
    "symmetry": ("align_modules", "merge_modules", "symmetry_of"),
}
MODULES = {
    name: module
    for modules in (ESTIMATOR_MODULES, PARAMETER_MODULES, OTHER_MODULES)
    for module, names in modules.items()
    for name in names
}


def estimators_with_argument(method: str, argument: str) -> list[str]:
    """Names of the estimators whose method takes an argument; imports all of them."""
    accepting = []
    for module, names in ESTIMATOR_MODULES.items():
        classes = vars(import_module(f"skbayes_sym.{module}"))
        for name in names:
            function = getattr(classes[name], method)
            if argument in signature(function).parameters:
                accepting.append(name)
    return accepting
