"""Bayesian models that know their own symmetries, with scikit-learn's interface."""

from skbayes_sym.estimators.vi import SymmetrizedVIClassifier, SymmetrizedVIRegressor

__all__ = ["SymmetrizedVIClassifier", "SymmetrizedVIRegressor"]
__version__ = "0.1.0"
