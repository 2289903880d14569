"""Bayesian models that account for their own symmetries, with scikit-learn's interface.

The docstring of each subpackage lists its files. Each subpackage imports only from those before it:

* `numerics`, `symmetry`, `models`: mathematics in torch, without scikit-learn
* `metrics`, `datasets`: scores and example data
* `base`: classes and functions that all estimators share
* `laplace`, `linear`, `factorization`, `lila`, `variational`, `mcmc`, `ensemble`: one method each
* `bayesian_mlp`, `stacking`: combinations of methods, the defaults for tables
* `saving`, `callbacks`, `skpro`: files, progress bars, another package's interface
* `inspection`, `model_selection`, `acquisition`: displays, comparisons, next experiments
* `student`, `joint_student`, `distillation`: small models that imitate a fitted one

Public names are imported when they are first used (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from skbayes_sym.base.public_names import MODULES

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
    from skbayes_sym.model_selection import compare_models
    from skbayes_sym.saving.files import load, save
    from skbayes_sym.stacking.estimators import (
        PredictiveStackingClassifier,
        PredictiveStackingRegressor,
    )
    from skbayes_sym.symmetry import align_modules, merge_modules, symmetry_of
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
    "Updates", "VariationalAdam", "align_modules", "compare_models", "distill", "invariance_gap",
    "load", "loss_barrier", "merge_modules", "n_chains_required", "predictive", "remove_symmetries",
    "save", "symmetry_of",
]  # fmt: skip
__version__ = "0.1.0"

_SUBPACKAGES = (
    "acquisition", "base", "bayesian_mlp", "callbacks", "datasets", "distillation", "ensemble",
    "factorization", "inspection", "joint_student", "laplace", "lila", "linear", "mcmc", "metrics",
    "model_selection", "models", "numerics", "saving", "skpro", "stacking", "student", "symmetry",
    "variational",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name or a subpackage when it is first used."""
    if name in MODULES:
        value = getattr(import_module(f"skbayes_sym.{MODULES[name]}"), name)
    elif name in _SUBPACKAGES:
        value = import_module(f"skbayes_sym.{name}")
    else:
        raise AttributeError(f"module 'skbayes_sym' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*own, *__all__, *_SUBPACKAGES})
