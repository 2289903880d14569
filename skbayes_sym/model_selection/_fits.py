"""The fits behind a comparison: one to each training fold, and one to all rows."""

import time
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.scikit_learn import safe_split
from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.model_selection._loo import LeaveOneOut, has_posterior_draws, leave_one_out
from skbayes_sym.model_selection._predictions import (
    cdf_values,
    class_probabilities,
    log_densities,
)
from skbayes_sym.model_selection._scorers import Evidence, reported_evidence


class Task(NamedTuple):
    """What every fit shares."""

    X: Any
    y: Any
    classes: Array | None  # all of them, in order; None in regression
    raises: bool  # whether an error ends the comparison


class Failed(NamedTuple):
    """An error instead of a result."""

    error: str


class FoldReport(NamedTuple):
    """A model's judgement of a test fold."""

    rows: Array  # (n_test,)
    log_density: Array | None  # (n_test,) nats
    predicted: Array  # (n_test,) or (n_test, n_targets)
    probability: Array | None  # classes (n_test, n_classes), or P(target <= y) (n_test, n_targets)
    fit_seconds: float
    predict_seconds: float
    says_more: bool  # a fit to all rows would report evidence or leave-one-out densities


class WholeReport(NamedTuple):
    """What a model fitted to all rows says of itself."""

    evidence: Evidence | None
    loo: LeaveOneOut | None


def judge_fold(model: Any, task: Task, train: Array, test: Array, seed: int) -> Any:
    """Fit a clone to ``train`` and ask it about ``test``: FoldReport or Failed."""
    try:
        return _judge_fold(seeded_clone(model, seed), task, train, test)
    except Exception as error:
        if task.raises:
            raise
        return Failed(f"{type(error).__name__}: {error}")


def judge_whole(model: Any, task: Task, seed: int) -> Any:
    """Fit a clone to all rows: WholeReport or Failed."""
    try:
        fitted = seeded_clone(model, seed).fit(task.X, task.y)
        return WholeReport(reported_evidence(fitted), leave_one_out(fitted, task.X, task.y))
    except Exception as error:
        if task.raises:
            raise
        return Failed(f"{type(error).__name__}: {error}")


def seeded_clone(model: Any, seed: int) -> Any:
    """A clone in which every ``random_state`` that is None, nested ones too, is ``seed``."""
    copy = clone(model)
    unset = {
        name: seed
        for name, value in copy.get_params(deep=True).items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    return copy.set_params(**unset)


def _judge_fold(model: Any, task: Task, train: Array, test: Array) -> FoldReport:
    X_train, y_train = safe_split(model, task.X, task.y, train)
    X_test, y_test = safe_split(model, task.X, task.y, test, train)
    start = time.perf_counter()
    model.fit(X_train, y_train)
    fitted = time.perf_counter()
    predicted = np.asarray(model.predict(X_test))
    end = time.perf_counter()
    if task.classes is None:
        probability = cdf_values(model, X_test, y_test)
    else:
        probability = _probability_of_all(model, X_test, task.classes)
    inside = innermost(model).model
    return FoldReport(
        rows=test,
        log_density=log_densities(model, X_test, y_test),
        predicted=predicted,
        probability=probability,
        fit_seconds=fitted - start,
        predict_seconds=end - fitted,
        says_more=any(hasattr(inside, name) for name in _EVIDENCES) or has_posterior_draws(inside),
    )


_EVIDENCES = ("log_evidence_", "elbo_")


def _probability_of_all(model: Any, X: Any, classes: Array) -> Array | None:
    """A column for every class, 0 for those missing from the training fold."""
    if not hasattr(innermost(model).model, "predict_proba"):
        return None
    proba, seen = class_probabilities(model, X)
    full = np.zeros((len(proba), len(classes)))
    full[:, np.searchsorted(classes, seen)] = proba
    return full
