"""The classes that a file may name: this package's estimators, and steps of scikit-learn's.

A file is data: what it names is looked up here and nowhere else.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.base import RowEstimator, is_fitted_name

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
    "vi.symmetrized_vi": "SymmetrizedVIClassifier SymmetrizedVIRegressor",
}

# Objects that constructors of these take, made of their own parameters.
_SETTINGS = {
    "optimizers": "Adam EvidenceAdam GaussNewton Updates VariationalAdam",
    "samplers": "Chains SMC ModeWeights",
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


@cache
def plain_parts() -> dict[str, type]:
    """Objects that are no estimators, made of their attributes."""
    return {"make_column_selector": import_module("sklearn.compose").make_column_selector}


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
    """An estimator with these parameters and this state.

    Raises LookupError if there is no such class. Raises ValueError if it has no such parameters or
    attributes, or no fit leaves them like this.
    """
    kind: Any = ours()[name] if name in ours() else steps()[name]
    unknown = sorted(set(parameters) - set(kind._get_param_names()))
    if name in estimators():
        unknown += [k for k in attributes if not is_fitted_name(k)]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} for {name}")
    estimator = kind(**parameters)
    if name in estimators() and attributes:  # what others fit copies of has none
        check_fitted(estimator, attributes)
    estimator.__dict__.update(attributes)
    return estimator


def is_ufunc_name(name: str) -> bool:
    """Whether NumPy has a function of this name that acts element by element."""
    return isinstance(vars(np).get(name), np.ufunc)


_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


def _is_numbers(value: Any, *shape: int) -> bool:
    is_array = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return is_array and (not shape or value.shape == shape)


def _is_per_target(value: Any, *_: int) -> bool:
    return _is_numbers(value) and value.ndim == 1 and len(value) > 0


def _is_noun(value: Any, *_: int) -> bool:
    return type(value).__module__.startswith("skbayes_sym.")


# What an attribute of this name is, wherever there is one.
_FORMS: dict[str, Callable[[Any, int], bool]] = {
    "dtype_": lambda value, n: value in ("float32", "float64"),
    "device_": lambda value, n: isinstance(value, str) and _DEVICE.fullmatch(value) is not None,
    "x_mean_": lambda value, n: _is_numbers(value, n),
    "x_scale_": lambda value, n: _is_numbers(value, n) and bool((value > 0).all()),
    "y_mean_": _is_per_target,
    "y_scale_": lambda value, n: _is_per_target(value) and bool((value > 0).all()),
    "feature_names_in_": lambda value, n: isinstance(value, np.ndarray) and value.shape == (n,),
    "n_features_in_": lambda value, n: type(value) is int and value > 0,
    "n_iter_": lambda value, n: type(value) is int and value >= 0,
    "stop_reason_": lambda value, n: isinstance(value, str),
    "classes_": lambda value, n: np.ndim(value) == 1 and len(value) > 1,
    "posterior_": _is_noun,
    "network_": _is_noun,
    "member_network_": _is_noun,
    "augmentation_": _is_noun,
    "samples_": lambda value, n: _is_numbers(value),
    "noise_std_samples_": lambda value, n: _is_numbers(value),
}
_PRESENT = ("n_features_in_", "device_", "dtype_", "n_iter_", "stop_reason_")
_OF_ROWS = ("x_mean_", "x_scale_")


def check_fitted(estimator: BaseEstimator, attributes: dict[str, Any]) -> None:
    """Check what an estimator would predict with; name the first that no fit leaves like this."""
    try:
        estimator._validate_params()
    except ValueError as error:
        raise ValueError(f"an impossible parameter ({error})") from error
    needed = [*_PRESENT, *(_OF_ROWS if isinstance(estimator, RowEstimator) else ())]
    missing = [name for name in needed if name not in attributes]
    if missing or not {"posterior_", "samples_"} & attributes.keys():
        raise ValueError(f"no {(missing or ['posterior_'])[0]}")
    for name, is_right in _FORMS.items():
        if name in attributes and not is_right(attributes[name], attributes["n_features_in_"]):
            raise ValueError(f"an impossible {name}")
    scales: list[Array] = [attributes[k] for k in ("y_mean_", "y_scale_") if k in attributes]
    if len({len(scale) for scale in scales}) > 1:
        raise ValueError("y_mean_ and y_scale_ of different lengths")
    if is_classifier(estimator) and "classes_" not in attributes:
        raise ValueError("no classes_")
