"""Bayesian models that know their own symmetries, with scikit-learn's interface.

Every folder's ``__init__`` is its map. From the bottom: `numerics`, `symmetry`, `models`,
`inference`, then `metrics` and `datasets`, `estimators`, `saving`, `inspection` and
`model_selection`; each imports only what stands before it.
"""

from skbayes_sym.estimators.bayesian_mlp.classifier import BayesianMLPClassifier
from skbayes_sym.estimators.bayesian_mlp.estimator import BayesianMLPRegressor
from skbayes_sym.estimators.ensemble.estimator import DeepEnsembleClassifier, DeepEnsembleRegressor
from skbayes_sym.estimators.factorization.estimator import SymVIMatrixFactorization
from skbayes_sym.estimators.laplace.estimator import LaplaceClassifier, LaplaceRegressor
from skbayes_sym.estimators.laplace.lila import LILAClassifier, LILARegressor
from skbayes_sym.estimators.layerwise.estimator import LayerwiseVIRegressor
from skbayes_sym.estimators.linear.classifier import BayesianLinearClassifier
from skbayes_sym.estimators.linear.regressor import BayesianLinearRegressor
from skbayes_sym.estimators.mcmc.estimator import MCMCClassifier, MCMCRegressor
from skbayes_sym.estimators.predictive import predictive
from skbayes_sym.estimators.vi.estimator import SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.inference.sampling.chain_count import n_chains_required
from skbayes_sym.inspection.invariance_gap import invariance_gap
from skbayes_sym.inspection.loss_barrier import loss_barrier
from skbayes_sym.inspection.symmetry_removal import remove_symmetries
from skbayes_sym.saving.load import load
from skbayes_sym.saving.save import save

__all__ = [
    "BayesianLinearClassifier",
    "BayesianLinearRegressor",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "DeepEnsembleClassifier",
    "DeepEnsembleRegressor",
    "LILAClassifier",
    "LILARegressor",
    "LaplaceClassifier",
    "LaplaceRegressor",
    "LayerwiseVIRegressor",
    "MCMCClassifier",
    "MCMCRegressor",
    "SymVIMatrixFactorization",
    "SymmetrizedVIClassifier",
    "SymmetrizedVIRegressor",
    "invariance_gap",
    "load",
    "loss_barrier",
    "n_chains_required",
    "predictive",
    "remove_symmetries",
    "save",
]
__version__ = "0.1.0"
