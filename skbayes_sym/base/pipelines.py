"""The model at the heart of searches and pipelines, and how rows get there."""

from collections.abc import Callable
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline


def fitted_attribute(model: Any, name: str, default: Any = None) -> Any:
    """Value that `fit` has set on an estimator; the default where it has none."""
    return vars(model).get(name, default) if isinstance(model, BaseEstimator) else default


class UnwrappedModel(NamedTuple):
    """A model that others are wrapped around."""

    model: Any
    prepare: Callable[[Any], Any]  # rows as the user has them -> inputs of the model


def unwrap(estimator: BaseEstimator) -> UnwrappedModel:
    """Unwrap fitted searches and pipelines.

    A `TransformedTargetRegressor` stays closed: what is inside has other units.
    """
    transforms: list[Callable[[Any], Any]] = []
    while True:
        if (best := fitted_attribute(estimator, "best_estimator_")) is not None:
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
