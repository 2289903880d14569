"""What any fitted scikit-learn model says about rows it hasn't seen, as far as it says it.

Models of this package bring densities of their own. Of others, classifiers have those of
`predict_proba`, and regressors that return a standard deviation are taken for normal.
"""

from inspect import signature
from typing import Any

import numpy as np
from scipy.special import ndtr

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.unwrap import innermost

_LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)


def log_densities(estimator: Any, X: Any, y: Any) -> Array | None:
    """Log predictive density of every row, (n_samples,) nats; None if the model has none."""
    model, prepare = innermost(estimator)
    X = prepare(X)
    if hasattr(model, "log_predictive_density"):
        return np.asarray(model.log_predictive_density(X, y), dtype=float)
    if hasattr(model, "predict_proba"):
        return _log_proba_of(y, *class_probabilities(model, X))
    if not _returns_std(model):
        return None
    z, std = _standardised(model, X, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = -0.5 * z**2 - np.log(std) - _LOG_SQRT_2PI
    return np.where(std > 0, values, -np.inf).sum(axis=1)  # a point mass has no density


def cdf_values(estimator: Any, X: Any, y: Any) -> Array | None:
    """P(target <= y) of every row and target, (n_samples, n_targets); None if there is none."""
    model, prepare = innermost(estimator)
    X = prepare(X)
    if hasattr(model, "predictive_cdf"):
        cdf = np.asarray(model.predictive_cdf(X, y), dtype=float)
        return cdf.reshape(len(cdf), -1)
    return ndtr(_standardised(model, X, y)[0]) if _returns_std(model) else None


def class_probabilities(estimator: Any, X: Any) -> tuple[Array, Array]:
    """Probabilities (n_samples, n_classes) and the classes of the columns."""
    model, prepare = innermost(estimator)
    X = prepare(X)
    return np.asarray(model.predict_proba(X), dtype=float), np.asarray(model.classes_)


def _log_proba_of(y: Any, proba: Array, classes: Array) -> Array:
    """Of the observed classes; -inf of one that the model has never seen."""
    labels = np.asarray(y).ravel()
    columns = np.searchsorted(classes, labels).clip(0, len(classes) - 1)
    chosen = np.where(classes[columns] == labels, proba[np.arange(len(labels)), columns], 0.0)
    with np.errstate(divide="ignore"):
        return np.log(chosen)


def _returns_std(model: Any) -> bool:
    return hasattr(model, "predict") and "return_std" in signature(model.predict).parameters


def _standardised(model: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """(y - mean) / std and std of a model that returns both, each (n_samples, n_targets)."""
    mean, std = (np.asarray(a, dtype=float) for a in model.predict(X, return_std=True))
    observed = np.asarray(y, dtype=float).reshape(mean.shape)
    off = observed - mean
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where((std > 0) | (off != 0), off / std, np.inf)  # at a point mass itself: P = 1
    return z.reshape(len(mean), -1), std.reshape(len(mean), -1)
