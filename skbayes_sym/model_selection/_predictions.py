"""What any fitted scikit-learn model says about rows it hasn't seen, as far as it says it."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.estimators.predictive import predictive, predicts_distribution


def log_densities(estimator: BaseEstimator, X: Any, y: Any) -> Array | None:
    """Log predictive density of every row, (n_samples,) nats; None if the model has none."""
    if not predicts_distribution(estimator):
        return None
    return np.asarray(predictive(estimator, X).log_prob(y), dtype=float)


def cdf_values(estimator: BaseEstimator, X: Any, y: Any) -> Array | None:
    """P(target <= y) of every row and target, (n_samples, n_targets); None if there is none."""
    if not predicts_distribution(estimator) or is_classifier(innermost(estimator).model):
        return None
    cdf = np.asarray(predictive(estimator, X).cdf(y), dtype=float)
    return cdf.reshape(len(cdf), -1)


def class_probabilities(estimator: BaseEstimator, X: Any) -> tuple[Array, Array]:
    """Probabilities (n_samples, n_classes) and the classes of the columns."""
    law = predictive(estimator, X)
    return law.proba(), law.classes
