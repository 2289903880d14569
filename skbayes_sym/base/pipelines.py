"""Fitted estimators of any package: their attributes, and the model in pipelines and searches."""

from collections.abc import Callable
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline


def fitted_attribute(model: Any, name: str, default: Any = None) -> Any:
    """Return an attribute that `fit` has set on any estimator.

    Parameters
    ----------
    model : object
        Estimator of any package, fitted or not, or another object.
    name : str
        Name of the attribute. Properties of the class don't count.
    default : object
        What to return if there is no such attribute.

    Returns
    -------
    object
    """
    if isinstance(model, BaseEstimator):
        return vars(model).get(name, default)
    return default


class UnwrappedModel(NamedTuple):
    """A model that was inside pipelines and searches.

    Parameters
    ----------
    model : BaseEstimator
        The innermost model.
    prepare : callable (X) -> inputs
        Transforms rows of the outermost estimator into inputs of the model.
    """

    model: Any
    prepare: Callable[[Any], Any]


def unwrap(estimator: BaseEstimator) -> UnwrappedModel:
    """Return the model inside fitted searches and pipelines.

    Parameters
    ----------
    estimator : BaseEstimator
        A `TransformedTargetRegressor` isn't unwrapped, because the targets of the model inside have
        other units.

    Returns
    -------
    UnwrappedModel
    """
    transforms: list[Callable[[Any], Any]] = []
    while True:
        best = fitted_attribute(estimator, "best_estimator_")
        if best is not None:
            estimator = best
        elif isinstance(estimator, Pipeline):
            if len(estimator) > 1:
                transforms.append(estimator[:-1].transform)
            estimator = estimator[-1]
        else:
            break

    def prepare(X: Any) -> Any:
        for transform in transforms:
            X = transform(X)
        return X

    return UnwrappedModel(estimator, prepare)
