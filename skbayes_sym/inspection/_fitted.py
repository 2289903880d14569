"""What the displays need from a fitted estimator, alone or in a pipeline or a search."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.base.classifier import encode_classes, label_array
from skbayes_sym.base.columns import Columns
from skbayes_sym.base.input_validation import numeric_conversion
from skbayes_sym.base.pipelines import UnwrappedModel, fitted_attribute, unwrap
from skbayes_sym.base.predictive import predictive, predicts_distribution
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import check_array
from skbayes_sym.numerics.arguments import is_frame, short_repr
from skbayes_sym.numerics.tables import Table, days_since_reference


def unwrap_fitted(estimator: BaseEstimator) -> UnwrappedModel:
    """Fitted estimator inside a search or a pipeline."""
    check_is_fitted(estimator)
    unwrapped = unwrap(estimator)
    check_is_fitted(unwrapped.model)
    return unwrapped


def predict_regression(estimator: BaseEstimator, X: Any, display: str) -> tuple[Any, Any]:
    """Predict the distribution of a regression target.

    Parameters
    ----------
    estimator : estimator
        Fitted regressor, alone or in a pipeline or a search.
    X : array-like of shape (n_samples, n_features)
        Rows to predict.
    display : str
        Name of the display for the error message.

    Returns
    -------
    model : estimator
        The regressor without wrappers.
    distribution : object
        Predictive distribution at ``X``.

    Raises
    ------
    TypeError
        If the estimator doesn't predict a distribution of a regression target.
    """
    model = unwrap_fitted(estimator).model
    if is_classifier(model) or not predicts_distribution(estimator):
        raise TypeError(
            f"{display} needs a regressor that predicts a distribution (of classifiers see "
            f"sklearn.calibration); {type(model).__name__} doesn't."
        )
    return model, predictive(estimator, X)


def require_attributes(
    model: Any, attributes: Sequence[str], display: str, description: str
) -> None:
    """Raise if a fitted estimator lacks what a display shows.

    Parameters
    ----------
    model : estimator
        Fitted estimator.
    attributes : sequence of str
        Names of the required attributes.
    display : str
        Name of the display for the error message.
    description : str
        Description of the required estimator for the error message.

    Raises
    ------
    TypeError
        If an attribute is missing.
    """
    missing = [name for name in attributes if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"{display} needs {description}; {type(model).__name__} has no `{missing[0]}`."
        )


def list_feature_names(estimator: BaseEstimator, X: Any) -> list[str]:
    """Names of the columns of ``X``, "x0", "x1" and so on if they have none."""
    if is_frame(X):
        return [str(name) for name in X.columns]
    if np.ndim(X) != 2:
        raise ValueError(f"X must have two axes, rows and features, got shape {np.shape(X)}.")
    names = fitted_attribute(estimator, "feature_names_in_")
    if names is not None:
        return [str(name) for name in names]
    return [f"x{j}" for j in range(np.shape(X)[1])]


def select_target(values: Array, target: int, ndim: int) -> Array:
    """Select the values of one target.

    Parameters
    ----------
    values : ndarray
        Array of ``ndim`` axes for one target. For several targets it has one more, the second.
    target : int
        Index of the target.
    ndim : int
        Number of axes for one target.

    Returns
    -------
    ndarray with ``ndim`` axes

    Raises
    ------
    ValueError
        If there is no such target.
    """
    has_several_targets = values.ndim > ndim
    if has_several_targets:
        n_targets = values.shape[1]
    else:
        n_targets = 1
    if not isinstance(target, Integral) or target not in range(n_targets):
        raise ValueError(
            f"target must lie between 0 and {n_targets - 1}, got {short_repr(target)}."
        )
    if has_several_targets:
        return values[:, target]
    return values


def check_observations(y: Any, target: int) -> Array:
    """Observed values of one target, (n,)."""
    with numeric_conversion("y"):
        values = check_array(y, dtype=float, ensure_2d=False, input_name="y")
    return select_target(values, target, ndim=1)


def check_observed_classes(classifier: Any, y: Any) -> Array:
    """Return the positions of observed labels among the classes, (n,).

    Parameters
    ----------
    classifier : estimator
        Fitted classifier.
    y : array-like of shape (n,) or (n, 1)
        Observed labels.

    Returns
    -------
    ndarray of int of shape (n,)
        Positions, -1 for labels that aren't classes.

    Raises
    ------
    ValueError
        If labels are missing or have several axes.
    """
    labels = label_array(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"y must hold one label for each row, got shape {labels.shape}.")
    codes, is_known = encode_classes(np.asarray(classifier.classes_), labels)
    return np.where(is_known, codes, -1)


def read_dates(column: Any) -> Array:
    """Return days since 1970-01-01, as matplotlib counts dates; nan if missing."""
    table = Table(["feature"], [np.asarray(column)], [False])
    encoding = Columns.from_table(table).columns[0].date
    assert encoding is not None
    return days_since_reference("feature", table.columns[0], encoding) + encoding.reference
