"""The classes that a file may name: this package's estimators, and steps of scikit-learn's.

A file is data: what it names is looked up here and nowhere else.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.columns import TakesTables
from skbayes_sym.estimators._fit.rows import Array
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
    "layerwise.layerwise_vi": "LayerwiseVIRegressor",
    "linear.linear_classifier": "BayesianLinearClassifier",
    "linear.linear_regressor": "BayesianLinearRegressor",
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
        _check_forms(estimator, attributes)
    estimator.__dict__.update(attributes)
    if is_fit:
        _check_predictions(estimator)
    return estimator


def is_ufunc_name(name: str) -> bool:
    """Whether NumPy has a function of this name that acts element by element."""
    return isinstance(vars(np).get(name), np.ufunc)


_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


def _are_numbers(value: Any, n: int | None = None) -> bool:
    is_array = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return is_array and value.ndim == 1 and len(value) > 0 and n in (None, len(value))


# Forms of attributes that broadcasting, or a device that computes nothing, would let predict.
_FORMS: dict[str, Callable[[Any, int], bool]] = {
    "n_features_in_": lambda value, n: type(value) is int and value > 0,
    "n_iter_": lambda value, n: type(value) is int and value >= 0,
    "stop_reason_": lambda value, n: isinstance(value, str),
    "dtype_": lambda value, n: value in ("float32", "float64"),
    "device_": lambda value, n: isinstance(value, str) and _DEVICE.fullmatch(value) is not None,
    "x_mean_": _are_numbers,
    "x_scale_": lambda value, n: _are_numbers(value, n) and bool((value > 0).all()),
    "y_mean_": lambda value, n: _are_numbers(value),
    "y_scale_": lambda value, n: _are_numbers(value) and bool((value > 0).all()),
    "feature_names_in_": lambda value, n: isinstance(value, np.ndarray) and value.shape == (n,),
    "classes_": lambda value, n: np.ndim(value) == 1 and len(value) > 1,
}
_PRESENT = ("n_features_in_", "n_iter_", "stop_reason_", "dtype_", "device_")


def _check_forms(estimator: BaseEstimator, attributes: dict[str, Any]) -> None:
    """Name the first parameter or attribute that no fit leaves like this."""
    try:
        estimator._validate_params()
    except ValueError as error:
        raise ValueError(f"an impossible parameter ({error})") from error
    of_rows = ("x_mean_", "x_scale_") if isinstance(estimator, RowEstimator) else ()
    missing = [name for name in (*_PRESENT, *of_rows) if name not in attributes]
    if missing:
        raise ValueError(f"no {missing[0]}")
    n_features, columns = attributes["n_features_in_"], attributes.get("columns_in_")
    for name, is_right in _FORMS.items():
        n = columns.n_outputs if columns is not None and name in of_rows else n_features
        if name in attributes and not is_right(attributes[name], n):
            raise ValueError(f"an impossible {name}")
    scales: list[Array] = [attributes[k] for k in ("y_mean_", "y_scale_") if k in attributes]
    if len({len(scale) for scale in scales}) > 1:
        raise ValueError("y_mean_ and y_scale_ of different lengths")


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
