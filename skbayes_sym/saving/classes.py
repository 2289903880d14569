"""The classes that a file may name: this package's estimators, and steps of scikit-learn's.

A file is data: what it names is looked up here and nowhere else.
"""

import warnings
from collections.abc import Mapping
from copy import copy
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.columns import TakesTables
from skbayes_sym.estimators.base import RowEstimator, is_fitted_name
from skbayes_sym.estimators.regressor import BayesianRegressorMixin
from skbayes_sym.numerics.arguments import shown

# This package's estimators, by module; imported when a file is written or read.
ESTIMATORS = {
    "bayesian_mlp.pools": "BayesianMLPClassifier BayesianMLPRegressor",
    "ensemble.ensembles": "DeepEnsembleClassifier DeepEnsembleRegressor",
    "factorization.matrix_factorization": "SymVIMatrixFactorization",
    "laplace.laplace": "LaplaceClassifier LaplaceRegressor",
    "laplace.lila": "LILAClassifier LILARegressor",
    "layerwise_vi": "LayerwiseVIRegressor",
    "linear.linear_models": "BayesianLinearClassifier BayesianLinearRegressor",
    "mcmc.mcmc": "MCMCClassifier MCMCRegressor",
    "stacking.stacks": "PredictiveStackingClassifier PredictiveStackingRegressor",
    "vi.symmetrized_vi": "SymmetrizedVIClassifier SymmetrizedVIRegressor",
}

# Objects that constructors of these take, made of their own parameters.
_SETTINGS = {
    "optimizers": "Adam EvidenceAdam GaussNewton Updates VariationalAdam",
    "samplers": "Chains ModeWeights",
    "vi.gaps": "Symmetrized",
}

# Modules of scikit-learn, and in them the steps whose fitted state is arrays, numbers, strings and
# one another. Imported when a file names one: most people's don't.
_STEPS = {
    "pipeline": "Pipeline FeatureUnion",
    "compose": "ColumnTransformer TransformedTargetRegressor",
    "preprocessing": (
        "StandardScaler MinMaxScaler MaxAbsScaler RobustScaler Normalizer Binarizer "
        "PowerTransformer QuantileTransformer PolynomialFeatures SplineTransformer "
        "KBinsDiscretizer FunctionTransformer OneHotEncoder OrdinalEncoder TargetEncoder "
        "LabelEncoder"
    ),
    "impute": "SimpleImputer MissingIndicator",
    "decomposition": "PCA TruncatedSVD",
    "feature_selection": "VarianceThreshold",
}


def named(modules: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Objects by name, of a table of modules and the names in each."""
    return {
        name: vars(import_module(f"{prefix}.{module}"))[name]
        for module, names in modules.items()
        for name in names.split()
    }


@cache
def estimators() -> dict[str, type]:
    """This package's estimators by name."""
    return named(ESTIMATORS, "skbayes_sym.estimators")


@cache
def ours() -> dict[str, type]:
    """Estimators, and the objects with parameters that they take, by name."""
    return estimators() | named(_SETTINGS, "skbayes_sym.estimators")


@cache
def steps() -> dict[str, type]:
    """scikit-learn's steps by name."""
    return named(_STEPS, "sklearn")


def is_foreign(name: str) -> bool:
    """Whether a name is that of a step of scikit-learn's."""
    return any(name in names.split() for names in _STEPS.values())


def class_name(estimator: BaseEstimator) -> str | None:
    """The name by which a file knows the estimator's class; None if it doesn't."""
    kind = type(estimator)
    known = ours().get(kind.__name__) is kind or (
        is_foreign(kind.__name__) and steps()[kind.__name__] is kind
    )
    return kind.__name__ if known else None


def state_of(estimator: BaseEstimator) -> dict[str, Any]:
    """Attributes that `fit` has set."""
    if type(estimator).__name__ in estimators():
        return {k: v for k, v in estimator.__getstate__().items() if is_fitted_name(k)}
    parameters = estimator.get_params(deep=False)
    return {k: v for k, v in vars(estimator).items() if k not in parameters}


def rebuilt(name: str, parameters: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """An estimator with these parameters and this state, which can predict.

    A pipeline's ``memory`` is left out: it is a place on the disk of whoever wrote the file.

    Raises LookupError if there is no such class. Raises ValueError if it has no such parameters or
    attributes, or no fit leaves them like this.
    """
    kind: Any = ours()[name] if name in ours() else steps()[name]
    unknown = sorted(set(parameters) - set(kind._get_param_names()))
    if name in estimators():
        unknown += [k for k in attributes if not is_fitted_name(k)]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} for {name}")
    estimator = kind(**{**parameters, **({"memory": None} if "memory" in parameters else {})})
    is_fit = name in estimators() and bool(attributes)  # what others fit copies of has none
    if is_fit:
        try:
            estimator._validate_params()
        except ValueError as error:
            raise ValueError(f"an impossible parameter ({error})") from error
        for needed in ("n_features_in_", "n_iter_", "stop_reason_", "dtype_", "device_"):
            if needed not in attributes:
                raise ValueError(f"no {needed}")
    estimator.__dict__.update(attributes)
    if is_fit:
        _check_predictions(estimator)
    return estimator


def is_ufunc_name(name: str) -> bool:
    """Whether NumPy has a function of this name that acts element by element."""
    return isinstance(vars(np).get(name), np.ufunc)


def _check_predictions(estimator: BaseEstimator) -> None:
    """Ask a copy, of few draws, for all that it says of one row: the mean of the training rows."""
    trial: Any = copy(estimator)
    if "n_predict_samples" in trial.get_params(deep=False):
        trial.n_predict_samples = 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not isinstance(trial, RowEstimator):
                trial.predict_entries([0], [0], return_std=True)
                return
            is_table = isinstance(trial, TakesTables)
            row = trial._example() if is_table else trial.x_mean_[None].astype(trial.dtype_)
            trial.predict_uncertainty(row)
            if isinstance(trial, BayesianRegressorMixin):
                trial.sample_y(row)
            else:
                trial.predict(row)
    except Exception as error:  # whatever a state that is none makes of it
        raise ValueError(
            f"a state that predicts nothing ({type(error).__name__}: {shown(str(error))})"
        ) from error
