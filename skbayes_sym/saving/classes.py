"""The classes that a file may name: this package's estimators, and steps of scikit-learn's.

A file is data: what it names is looked up here and nowhere else.
"""

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators.base import is_fitted_name
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
from skbayes_sym.estimators.samplers import SMC, Chains, Evidence
from skbayes_sym.estimators.vi.estimator import SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.saving.validate import check_fitted

ESTIMATORS: dict[str, type] = {
    estimator.__name__: estimator
    for estimator in (
        BayesianMLPClassifier, BayesianMLPRegressor,
        BayesianLinearClassifier, BayesianLinearRegressor, DeepEnsembleClassifier,
        DeepEnsembleRegressor, LaplaceClassifier, LaplaceRegressor, LILAClassifier,
        LILARegressor, LayerwiseVIRegressor, MCMCClassifier, MCMCRegressor, SymmetrizedVIClassifier,
        SymmetrizedVIRegressor, SymVIMatrixFactorization,
    )
}  # fmt: skip

# Objects that constructors of these take, made of their parameters.
SETTINGS: dict[str, type] = {kind.__name__: kind for kind in (Chains, SMC, Evidence)}
_OURS = {**ESTIMATORS, **SETTINGS}

# Modules of scikit-learn, and in them the steps whose fitted state is arrays, numbers, strings and
# one another. Imported when a file names one: most people's don't.
_STEPS = {
    "pipeline": ("Pipeline", "FeatureUnion"),
    "compose": ("ColumnTransformer", "TransformedTargetRegressor"),
    "preprocessing": (
        "StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "Normalizer",
        "Binarizer", "PowerTransformer", "QuantileTransformer", "PolynomialFeatures",
        "SplineTransformer", "KBinsDiscretizer", "FunctionTransformer", "OneHotEncoder",
        "OrdinalEncoder", "TargetEncoder", "LabelEncoder",
    ),
    "impute": ("SimpleImputer", "MissingIndicator"),
    "decomposition": ("PCA", "TruncatedSVD"),
    "feature_selection": ("VarianceThreshold",),
}  # fmt: skip


@cache
def steps() -> dict[str, type]:
    """scikit-learn's steps by name."""
    modules = {name: import_module(f"sklearn.{name}") for name in _STEPS}
    return {
        name: getattr(modules[module], name) for module, names in _STEPS.items() for name in names
    }


@cache
def plain_parts() -> dict[str, type]:
    """Objects that are no estimators, made of their attributes."""
    return {"make_column_selector": import_module("sklearn.compose").make_column_selector}


def is_foreign(name: str) -> bool:
    """Whether a name is that of a step of scikit-learn's."""
    return any(name in names for names in _STEPS.values())


def class_name(estimator: BaseEstimator) -> str | None:
    """The name by which a file knows the estimator's class; None if it doesn't."""
    kind = type(estimator)
    known = _OURS.get(kind.__name__) is kind or (
        is_foreign(kind.__name__) and steps()[kind.__name__] is kind
    )
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
        If it has no such parameters or attributes, or no fit leaves them like this.
    """
    kind: Any = _OURS[name] if name in _OURS else steps()[name]
    unknown = sorted(set(parameters) - set(kind._get_param_names()))
    if name in ESTIMATORS:
        unknown += [k for k in attributes if not is_fitted_name(k)]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} for {name}")
    estimator = kind(**parameters)
    if name in ESTIMATORS and attributes:  # what others fit copies of has none
        check_fitted(estimator, attributes)
    estimator.__dict__.update(attributes)
    return estimator


def is_ufunc_name(name: str) -> bool:
    """Whether NumPy has a function of this name that acts element by element."""
    return isinstance(getattr(np, name, None), np.ufunc)
