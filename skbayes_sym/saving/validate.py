"""Whether parameters and fitted state of a file belong together, before a model is made of them."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.rows import Array

_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


def _is_numbers(value: Any, *shape: int) -> bool:
    is_array = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return is_array and (not shape or value.shape == shape)


def _is_per_target(value: Any, n_features: int) -> bool:
    return _is_numbers(value) and value.ndim == 1 and len(value) > 0


def _is_count(value: Any, n_features: int) -> bool:
    return type(value) is int and value >= 0


def _is_vector(value: Any, n_features: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1


def _is_noun(value: Any, n_features: int) -> bool:
    return type(value).__module__.startswith("skbayes_sym.")


# What an attribute of this name is, wherever there is one.
_FORMS: dict[str, Callable[[Any, int], bool]] = {
    "dtype_": lambda value, n: value in ("float32", "float64"),
    "device_": lambda value, n: isinstance(value, str) and _DEVICE.fullmatch(value) is not None,
    "x_mean_": lambda value, n: _is_numbers(value, n),
    "x_scale_": lambda value, n: _is_numbers(value, n) and bool((value > 0).all()),
    "y_mean_": _is_per_target,
    "y_scale_": lambda value, n: _is_per_target(value, n) and bool((value > 0).all()),
    "feature_names_in_": lambda value, n: isinstance(value, np.ndarray) and value.shape == (n,),
    "n_features_in_": lambda value, n: _is_count(value, n) and value > 0,
    "n_iter_": _is_count,
    "stop_reason_": lambda value, n: isinstance(value, str),
    "classes_": lambda value, n: _is_vector(value, n) and len(value) > 1,
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
    """Check what an estimator of this package would predict with.

    Raises
    ------
    ValueError
        Naming the first parameter or attribute that no fit leaves like this.
    """
    try:
        estimator._validate_params()
    except ValueError as error:
        raise ValueError(f"an impossible parameter ({error})") from error
    needed = [*_PRESENT, *(_OF_ROWS if hasattr(estimator, "_input_blocks") else ())]
    missing = [name for name in needed if name not in attributes]
    if missing or not {"posterior_", "samples_"} & attributes.keys():
        raise ValueError(f"no {(missing or ['posterior_'])[0]}")
    for name, is_right in _FORMS.items():
        if name in attributes and not is_right(attributes[name], attributes["n_features_in_"]):
            raise ValueError(f"an impossible {name}")
    _check_targets(estimator, attributes)


def _check_targets(estimator: BaseEstimator, attributes: dict[str, Any]) -> None:
    scales: list[Array] = [attributes[k] for k in ("y_mean_", "y_scale_") if k in attributes]
    if len({len(scale) for scale in scales}) > 1:
        raise ValueError("y_mean_ and y_scale_ of different lengths")
    if hasattr(estimator, "predict_proba") and "classes_" not in attributes:
        raise ValueError("no classes_")
