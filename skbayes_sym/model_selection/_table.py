"""From the reports of a comparison's fits to one row of numbers a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.metrics import expected_calibration_error, interval_calibration_error
from skbayes_sym.model_selection._fits import Failed, FoldReport, Task, WholeReport


def row_densities(folds: Sequence[Any], n_rows: int) -> Array:
    """Log density of every row (n_rows,), averaged over the folds that tested it.

    nan where none did; all nan if the model has no density or a fold failed.
    """
    total, count = np.zeros(n_rows), np.zeros(n_rows)
    for fold in folds:
        if isinstance(fold, Failed) or fold.log_density is None:
            return np.full(n_rows, np.nan)
        np.add.at(total, fold.rows, fold.log_density)
        np.add.at(count, fold.rows, 1)
    with np.errstate(invalid="ignore"):
        return total / np.where(count > 0, count, np.nan)


def density_columns(densities: Sequence[Array]) -> dict[str, Array]:
    """Means over rows and their standard errors, then those of the differences to the best."""
    means, errors = np.array([mean_and_error(d[~np.isnan(d)]) for d in densities]).T
    differences = np.full((len(densities), 2), np.nan)
    if np.isfinite(means).any():
        best = densities[int(np.nanargmax(np.where(np.isfinite(means), means, -np.inf)))]
        tested = ~np.isnan(best)
        for i, density in enumerate(densities):
            differences[i] = mean_and_error((density - best)[tested])
    return {
        "log_density": means,
        "log_density_se": errors,
        "difference": differences[:, 0],
        "difference_se": differences[:, 1],
    }


def mean_and_error(values: Array) -> tuple[float, float]:
    """Mean and its standard error, nan of nothing."""
    n = len(values)
    if n == 0 or not np.isfinite(values).all():
        return (float(values.mean()) if n else np.nan), np.nan
    return float(values.mean()), float(values.std(ddof=1) / n**0.5) if n > 1 else np.nan


def prediction_columns(folds: Sequence[Any], task: Task) -> dict[str, float]:
    """Error and calibration over all tested rows, seconds a fold."""
    error = "rmse" if task.classes is None else "accuracy"
    names = (error, "calibration_error", "fit_seconds", "predict_seconds")
    if any(isinstance(fold, Failed) for fold in folds):
        return dict.fromkeys(names, np.nan)
    rows = np.concatenate([fold.rows for fold in folds])
    predicted = np.concatenate([fold.predicted for fold in folds])
    observed = np.asarray(task.y)[rows]
    probability = None
    if all(fold.probability is not None for fold in folds):
        probability = np.concatenate([fold.probability for fold in folds])
    if task.classes is None:
        values = _regression(observed, predicted, probability)
    else:
        values = _classification(observed.ravel(), predicted, probability, task.classes)
    seconds = np.mean([(fold.fit_seconds, fold.predict_seconds) for fold in folds], axis=0)
    return dict(zip(names, (*values, *map(float, seconds)), strict=True))


def _regression(observed: Array, predicted: Array, cdf: Array | None) -> tuple[float, float]:
    rmse = np.sqrt(np.mean((observed.reshape(predicted.shape) - predicted) ** 2))
    return float(rmse), np.nan if cdf is None else interval_calibration_error(cdf)


def _classification(
    observed: Array, predicted: Array, proba: Array | None, classes: Array
) -> tuple[float, float]:
    accuracy = float(np.mean(predicted == observed))
    if proba is None:
        return accuracy, np.nan
    return accuracy, expected_calibration_error(observed, proba, labels=classes)


def whole_columns(whole: Any) -> dict[str, Any]:
    """Evidence and leave-one-out densities of the fit to all rows."""
    report = whole if isinstance(whole, WholeReport) else WholeReport(None, None)
    evidence, loo = report
    mean, error = (np.nan, np.nan) if loo is None else mean_and_error(loo.log_density)
    return {
        "evidence": np.nan if evidence is None else evidence.value,
        "evidence_se": np.nan if evidence is None else evidence.std_error,
        "evidence_source": "" if evidence is None else evidence.source,
        "evidence_side": "" if evidence is None else evidence.side,
        "loo": mean,
        "loo_se": error,
        "loo_unreliable": np.nan if loo is None else float(loo.n_unreliable),
    }


def says_more(folds: Sequence[Any]) -> bool:
    """Whether a fit to all rows is worth its time."""
    return any(isinstance(fold, FoldReport) and fold.says_more for fold in folds)
