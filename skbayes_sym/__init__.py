"""Bayesian models that know their own symmetries, with scikit-learn's interface."""

from skbayes_sym.estimators.ensemble import DeepEnsembleClassifier, DeepEnsembleRegressor
from skbayes_sym.estimators.invariance_gap import invariance_gap
from skbayes_sym.estimators.laplace import LaplaceClassifier, LaplaceRegressor
from skbayes_sym.estimators.lila import LILAClassifier, LILARegressor
from skbayes_sym.estimators.linear_classifier import InvarianceAbidingClassifier
from skbayes_sym.estimators.linear_regressor import InvarianceAbidingRegressor
from skbayes_sym.estimators.matrix_factorization import SymVIMatrixFactorization
from skbayes_sym.estimators.mcmc import MCMCClassifier, MCMCRegressor
from skbayes_sym.estimators.saving import load
from skbayes_sym.estimators.symmetry_removal import remove_symmetries
from skbayes_sym.estimators.vi import SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.inference.chain_bound import n_chains_required

__all__ = [
    "DeepEnsembleClassifier",
    "DeepEnsembleRegressor",
    "InvarianceAbidingClassifier",
    "InvarianceAbidingRegressor",
    "LILAClassifier",
    "LILARegressor",
    "LaplaceClassifier",
    "LaplaceRegressor",
    "MCMCClassifier",
    "MCMCRegressor",
    "SymVIMatrixFactorization",
    "SymmetrizedVIClassifier",
    "SymmetrizedVIRegressor",
    "invariance_gap",
    "load",
    "n_chains_required",
    "remove_symmetries",
]
__version__ = "0.1.0"
