"""The classes that a file may name: this package's estimators, and steps of scikit-learn's.

A file is data: what it names is looked up here and nowhere else.
"""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

from skbayes_sym.estimators.base import is_fitted_name
from skbayes_sym.estimators.bayesian_mlp.estimator import BayesianMLPRegressor
from skbayes_sym.estimators.ensemble.estimator import DeepEnsembleClassifier, DeepEnsembleRegressor
from skbayes_sym.estimators.factorization.estimator import SymVIMatrixFactorization
from skbayes_sym.estimators.laplace.estimator import LaplaceClassifier, LaplaceRegressor
from skbayes_sym.estimators.laplace.lila import LILAClassifier, LILARegressor
from skbayes_sym.estimators.layerwise.estimator import LayerwiseVIRegressor
from skbayes_sym.estimators.linear.classifier import BayesianLinearClassifier
from skbayes_sym.estimators.linear.regressor import BayesianLinearRegressor
from skbayes_sym.estimators.mcmc.estimator import MCMCClassifier, MCMCRegressor
from skbayes_sym.estimators.vi.estimator import SymmetrizedVIClassifier, SymmetrizedVIRegressor

ESTIMATORS: dict[str, type] = {
    estimator.__name__: estimator
    for estimator in (
        BayesianMLPRegressor,
        BayesianLinearClassifier, BayesianLinearRegressor, DeepEnsembleClassifier,
        DeepEnsembleRegressor, LaplaceClassifier, LaplaceRegressor, LILAClassifier,
        LILARegressor, LayerwiseVIRegressor, MCMCClassifier, MCMCRegressor, SymmetrizedVIClassifier,
        SymmetrizedVIRegressor, SymVIMatrixFactorization,
    )
}  # fmt: skip

# Steps whose fitted state is arrays, numbers, strings and one another.
STEPS: dict[str, type] = {
    step.__name__: step
    for step in (
        Pipeline, FeatureUnion, ColumnTransformer, TransformedTargetRegressor,
        StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, Normalizer, Binarizer,
        PowerTransformer, QuantileTransformer, PolynomialFeatures, SplineTransformer,
        KBinsDiscretizer, FunctionTransformer, OneHotEncoder, OrdinalEncoder, TargetEncoder,
        LabelEncoder, SimpleImputer, MissingIndicator, PCA, TruncatedSVD, VarianceThreshold,
    )
}  # fmt: skip

# Objects that are no estimators, with the attributes that make them.
PARTS: dict[str, type] = {"make_column_selector": make_column_selector}


def class_name(estimator: BaseEstimator) -> str | None:
    """The name by which a file knows the estimator's class; None if it doesn't."""
    kind = type(estimator)
    known = ESTIMATORS.get(kind.__name__) is kind or STEPS.get(kind.__name__) is kind
    return kind.__name__ if known else None


def state_of(estimator: BaseEstimator) -> dict[str, Any]:
    """What `fit` found, as attributes."""
    if type(estimator).__name__ in ESTIMATORS:
        return {k: v for k, v in estimator.__getstate__().items() if is_fitted_name(k)}
    parameters = estimator.get_params(deep=False)
    return {k: v for k, v in vars(estimator).items() if k not in parameters}


def rebuilt(name: str, parameters: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """An estimator with these parameters and this state.

    Raises
    ------
    LookupError
        If there is no such class.
    ValueError
        If it has no such parameters or attributes.
    """
    kind: Any = ESTIMATORS[name] if name in ESTIMATORS else STEPS[name]
    unknown = sorted(set(parameters) - set(kind._get_param_names()))
    if name in ESTIMATORS:
        unknown += [k for k in attributes if not is_fitted_name(k)]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} for {name}")
    estimator = kind(**parameters)
    estimator.__dict__.update(attributes)
    return estimator


def is_ufunc_name(name: str) -> bool:
    """Whether NumPy has a function of this name that acts element by element."""
    return isinstance(getattr(np, name, None), np.ufunc)
