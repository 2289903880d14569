"""Questions of the Displays to an estimator, alone or in a pipeline or a search."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.base.pipelines import UnwrappedModel, fitted_attribute, unwrap
from skbayes_sym.base.predictive import predictive, predicts_distribution
from skbayes_sym.base.rows import Array, numeric_conversion
from skbayes_sym.base.scikit_learn import check_array
from skbayes_sym.numerics.arguments import is_frame, short_repr


def fitted_model(estimator: BaseEstimator) -> UnwrappedModel:
    """The fitted estimator inside a search or a pipeline."""
    check_is_fitted(estimator)
    inside = unwrap(estimator)
    check_is_fitted(inside.model)
    return inside


def regression_distribution(estimator: BaseEstimator, X: Any, display: str) -> tuple[Any, Any]:
    """The regressor inside, and its predictive distribution at ``X``.

    Raises TypeError that names it and what is needed.
    """
    model = fitted_model(estimator).model
    if is_classifier(model) or not predicts_distribution(estimator):
        raise TypeError(
            f"{display} needs a regressor that predicts a distribution (of classifiers see "
            f"sklearn.calibration); {type(model).__name__} doesn't."
        )
    return model, predictive(estimator, X)


def require(model: Any, attributes: Sequence[str], display: str, need: str) -> None:
    """Check that a fitted estimator has what a picture shows."""
    missing = [name for name in attributes if not hasattr(model, name)]
    if missing:
        raise TypeError(f"{display} needs {need}; {type(model).__name__} has no `{missing[0]}`.")


def feature_names(estimator: BaseEstimator, X: Any) -> list[str]:
    """Names of the columns of ``X``."""
    if is_frame(X):
        return [str(name) for name in X.columns]
    if np.ndim(X) != 2:
        raise ValueError(f"X must have two axes, rows and features, got shape {np.shape(X)}.")
    names = fitted_attribute(estimator, "feature_names_in_")
    n = np.shape(X)[1]
    return [f"x{j}" for j in range(n)] if names is None else [str(name) for name in names]


def select_target(values: Array, target: int, ndim: int) -> Array:
    """Values of one target; ``ndim`` is the number of axes they have where there is only one."""
    several = values.ndim > ndim
    n_targets = values.shape[1] if several else 1
    if not isinstance(target, Integral) or target not in range(n_targets):
        raise ValueError(
            f"target must lie between 0 and {n_targets - 1}, got {short_repr(target)}."
        )
    return values[:, target] if several else values


def observations(y: Any, target: int) -> Array:
    """Observed values of one target, (n,)."""
    with numeric_conversion("y"):
        values = check_array(y, dtype=float, ensure_2d=False, input_name="y")
    return select_target(values, target, ndim=1)
