"""Bayesian models that know their own symmetries, with scikit-learn's interface.

Every folder's ``__init__`` is its map. From the bottom: `numerics`, `symmetry`, `models`,
`inference`, then `metrics` and `datasets`, `estimators`, `saving`, `inspection`,
`model_selection` and `acquisition`; each imports only what stands before it.

Names are imported when they are first used (PEP 562): a linear model loads no sampler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skbayes_sym.base.optimizers import (
        Adam,
        EvidenceAdam,
        GaussNewton,
        Updates,
        VariationalAdam,
    )
    from skbayes_sym.base.predictive import predictive
    from skbayes_sym.bayesian_mlp.estimators import (
        BayesianMLPClassifier,
        BayesianMLPRegressor,
    )
    from skbayes_sym.distillation import distill
    from skbayes_sym.ensemble.estimators import (
        DeepEnsembleClassifier,
        DeepEnsembleRegressor,
    )
    from skbayes_sym.factorization.estimators import SymVIMatrixFactorization
    from skbayes_sym.inspection.invariance_gap import invariance_gap
    from skbayes_sym.inspection.loss_barrier import loss_barrier
    from skbayes_sym.inspection.symmetry_removal import remove_symmetries
    from skbayes_sym.laplace.estimators import LaplaceClassifier, LaplaceRegressor
    from skbayes_sym.lila.estimators import LILAClassifier, LILARegressor
    from skbayes_sym.linear.estimators import (
        BayesianLinearClassifier,
        BayesianLinearRegressor,
    )
    from skbayes_sym.mcmc.annealing import Annealing
    from skbayes_sym.mcmc.chain_count import n_chains_required
    from skbayes_sym.mcmc.estimators import MCMCClassifier, MCMCRegressor
    from skbayes_sym.mcmc.kernels import HMC
    from skbayes_sym.mcmc.samplers import Chains, ModeWeights
    from skbayes_sym.saving.files import load, save
    from skbayes_sym.stacking.estimators import (
        PredictiveStackingClassifier,
        PredictiveStackingRegressor,
    )
    from skbayes_sym.variational.estimators import (
        SymmetrizedVIClassifier,
        SymmetrizedVIRegressor,
    )
    from skbayes_sym.variational.gaps import Symmetrized
    from skbayes_sym.variational.layerwise import LayerwiseVIRegressor

__all__ = [
    "HMC", "Adam", "Annealing", "BayesianLinearClassifier", "BayesianLinearRegressor",
    "BayesianMLPClassifier", "BayesianMLPRegressor", "Chains", "DeepEnsembleClassifier",
    "DeepEnsembleRegressor", "EvidenceAdam", "GaussNewton", "LILAClassifier", "LILARegressor",
    "LaplaceClassifier", "LaplaceRegressor", "LayerwiseVIRegressor", "MCMCClassifier",
    "MCMCRegressor", "ModeWeights", "PredictiveStackingClassifier", "PredictiveStackingRegressor",
    "SymVIMatrixFactorization", "Symmetrized", "SymmetrizedVIClassifier", "SymmetrizedVIRegressor",
    "Updates", "VariationalAdam", "distill", "invariance_gap", "load", "loss_barrier",
    "n_chains_required", "predictive", "remove_symmetries", "save",
]  # fmt: skip
__version__ = "0.1.0"

_ROOMS = (
    "acquisition", "datasets", "estimators", "inference", "inspection", "metrics",
    "model_selection", "models", "numerics", "saving", "symmetry",
)  # fmt: skip
_PLACES = {
    "distillation": ("distill",),
    "bayesian_mlp.estimators": ("BayesianMLPClassifier", "BayesianMLPRegressor"),
    "ensemble.estimators": ("DeepEnsembleClassifier", "DeepEnsembleRegressor"),
    "factorization.estimators": ("SymVIMatrixFactorization",),
    "laplace.estimators": ("LaplaceClassifier", "LaplaceRegressor"),
    "lila.estimators": ("LILAClassifier", "LILARegressor"),
    "variational.layerwise": ("LayerwiseVIRegressor",),
    "linear.estimators": ("BayesianLinearClassifier", "BayesianLinearRegressor"),
    "mcmc.estimators": ("MCMCClassifier", "MCMCRegressor"),
    "base.optimizers": (
        "Adam", "EvidenceAdam", "GaussNewton", "Updates", "VariationalAdam",
    ),
    "base.predictive": ("predictive",),
    "mcmc.samplers": ("Chains", "ModeWeights"),
    "stacking.estimators": (
        "PredictiveStackingClassifier", "PredictiveStackingRegressor",
    ),
    "variational.estimators": ("SymmetrizedVIClassifier", "SymmetrizedVIRegressor"),
    "variational.gaps": ("Symmetrized",),
    "mcmc.annealing": ("Annealing",),
    "mcmc.chain_count": ("n_chains_required",),
    "mcmc.kernels": ("HMC",),
    "inspection.invariance_gap": ("invariance_gap",),
    "inspection.loss_barrier": ("loss_barrier",),
    "inspection.symmetry_removal": ("remove_symmetries",),
    "saving.files": ("load", "save"),
}  # fmt: skip
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name, or a folder, at its first use."""
    if name in _MODULES:
        value = vars(import_module(f"skbayes_sym.{_MODULES[name]}"))[name]
    elif name in _ROOMS:
        value = import_module(f"skbayes_sym.{name}")
    else:
        raise AttributeError(f"module 'skbayes_sym' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*own, *__all__, *_ROOMS})
