"""Cross-validated comparison of several models on the same rows."""

import os
import re
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import norm
from sklearn import config_context, get_config
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from sklearn.utils import assert_all_finite, indexable

from skbayes_sym.base.classifier import label_array, refuse_missing_labels
from skbayes_sym.base.groups import encode_groups
from skbayes_sym.base.input_validation import numeric_conversion
from skbayes_sym.base.messages import collect_warnings, warn_user
from skbayes_sym.base.pipelines import unwrap
from skbayes_sym.base.predictive import is_regression_model, predictive, predicts_distribution
from skbayes_sym.base.rows import Array
from skbayes_sym.base.sample_weights import fit_with_groups
from skbayes_sym.base.scikit_learn import (
    check_classification_targets,
    check_cv,
    column_or_1d,
    num_samples,
    safe_split,
    split_rows,
)
from skbayes_sym.base.targets import read_numbers, require_targets
from skbayes_sym.metrics import expected_calibration_error, interval_calibration_error
from skbayes_sym.model_selection._scorers import power_of_two, read_evidence
from skbayes_sym.numerics.arguments import check_random_state, select_optional, short_repr
from skbayes_sym.numerics.diagnostics import mean_ess


class Task(NamedTuple):
    """Data that all fits share.

    Attributes
    ----------
    X : array-like of shape (n_samples, n_features)
        Rows.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Targets or classes.
    classes : ndarray of shape (n_classes,) or None
        All classes in order; None for regression.
    groups : ndarray of int of shape (n_samples,), optional
        Groups of rows that are left out together.
    """

    X: Any
    y: Any
    classes: Array | None
    groups: Array | None = None


class FoldReport(NamedTuple):
    """Predictions of a model for a test fold.

    Attributes
    ----------
    rows : ndarray of shape (n_test,)
        Indices of the test rows.
    predicted : ndarray of shape (n_test,) or (n_test, n_targets)
        Predicted targets or classes.
    seconds : tuple of float
        Wall clock time of `fit` and of `predict`.
    needs_full_fit : bool
        Whether a fit to all rows reports evidence or leave-one-out densities.
    log_density : ndarray of shape (n_test,), optional
        Log predictive densities in nats.
    probability : ndarray, optional
        Class probabilities (n_test, n_classes), or P(target <= y), (n_test, n_targets).
    """

    rows: Array
    predicted: Array
    seconds: tuple[float, float]
    needs_full_fit: bool
    log_density: Array | None = None
    probability: Array | None = None


class CheckedResult(NamedTuple):
    """Result of a fit, or its error, and its warnings.

    Attributes
    ----------
    value : object
        Result, or None after an error.
    error : str
        Class and message of the error; empty without an error.
    warnings : list of tuple
        Categories and messages of the warnings.
    """

    value: Any
    error: str
    warnings: list[tuple[type[Warning], str]]


def compare_models(
    models: Mapping[str, Any],
    X: Any,
    y: Any,
    *,
    cv: Any = 5,
    n_jobs: int | None = None,
    random_state: Any = 0,
    groups: Any = None,
) -> Any:
    r"""Cross-validate models on the same folds and tabulate their scores.

    Parameters
    ----------
    models : mapping of str to estimator
        Unfitted models, either all classifiers or all regressors, including pipelines, searches and
        scikit-learn's models. They are cloned.
    X : array-like of shape (n_samples, n_features)
        Rows in any form that the models accept, including data frames.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Targets or class labels.
    cv : int, splitter or iterable of (train, test), default=5
        Cross-validation scheme. An int is a number of folds of shuffled rows, stratified by class.
    n_jobs : int, optional
        Number of parallel fits (of models and folds) by joblib; inside
        ``joblib.parallel_config("dask")`` on a cluster. Only the seconds depend on it.
    random_state : int, RandomState instance or None, default=0
        Determines the folds and the seeds of all models whose ``random_state`` is None. Seeds
        differ between folds and are the same for all models.
    groups : array-like of shape (n_samples,), optional
        Groups of rows that are left out together. An int ``cv`` is then a number of folds of whole
        groups. Models whose ``fit`` takes groups, also in pipelines and searches, receive them.

    Returns
    -------
    pandas.DataFrame, or dict of columns without pandas
        One row per model in the given order. The index (without pandas the column ``model``) is the
        name of the model. The columns are

        log_density, log_density_se
            Mean log predictive density of held-out rows and its standard error, in nats per row and
            joint over targets. Larger is better. Choose between models by this column.
        difference, difference_se
            Difference of the mean from that of the best model, at most 0, and its standard error by
            the paired differences :math:`d_i` of rows, :math:`\mathrm{sd}(d) / \sqrt n`.
        detectable
            True difference that so many rows detect with a power of 80 % (two-sided test at 5 %),
            2.8 ``difference_se``. Smaller differences can remain undetected.
        rmse or accuracy
            Error over all held-out rows (and targets).
        calibration_error
            `interval_calibration_error` or `expected_calibration_error` of the held-out rows,
            pooled over folds and targets.
        evidence, evidence_se, evidence_source, evidence_side
            Log evidence log p(y | X) of a fit to all rows, in nats and summed over rows; its Monte
            Carlo standard error; the attribute that reports it (``log_evidence_`` or else
            ``elbo_``); and whether it is "exact", an "estimate" or a "lower" bound.
        loo, loo_se, loo_unreliable
            Leave-one-out log density of the same fit by Pareto-smoothed importance sampling (PSIS),
            in nats per row; its standard error; and the number of rows with an unreliable estimate.
            Only for models with draws of the posterior, if arviz-stats is installed.
        fit_seconds, predict_seconds
            Wall clock time of `fit` and of `predict` on the test rows, averaged over folds.

    Raises
    ------
    ValueError
        If ``models`` is empty or mixes classifiers and regressors.

    See Also
    --------
    cross_validate_entries : Cross-validation for matrices with missing entries.

    Notes
    -----
    Values that a model doesn't report are nan. Models that predict no distribution, such as random
    forests, cause a warning with a remedy. The row of a model that fails is nan, and a
    `FitFailedWarning` reports the error. Models without ``log_predictive_density`` are scored by
    ``predict_proba``, or by ``predict(X, return_std=True)`` as a normal distribution. An impossible
    observation has a log density of -inf, and so has the mean.

    A row that is tested by several folds counts once, with its mean. Folds share training rows. The
    additional variance, which has no unbiased estimate (Bengio & Grandvalet 2004), isn't part of
    the standard errors. Keep dependent rows (of one patient or one day) in the same fold by
    ``groups``. Rows that no fold tests, as in `~sklearn.model_selection.TimeSeriesSplit`, aren't
    scored.

    Evidences are comparable between models of the same ``y``. Laplace's estimates for networks are
    wrong by tens of nats, so they can't decide between widths, activations or methods
    (:ref:`comparing_models`). The comparison takes ``len(models) * (n_splits + 1)`` fits.

    References
    ----------
    Vehtari, Gelman & Gabry (2017). Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC, section 5.

    Bengio & Grandvalet (2004). No unbiased estimator of the variance of k-fold cross-validation.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.feature_selection import SelectKBest, f_regression
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.pipeline import make_pipeline
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.model_selection import compare_models
    >>> X, y = load_diabetes(return_X_y=True)
    >>> models = {
    ...     "one feature": make_pipeline(SelectKBest(f_regression, k=1), BayesianRidge()),
    ...     "linear": BayesianLinearRegressor(),
    ... }
    >>> table = compare_models(models, X, y)
    >>> for name in models:
    ...     row = table.loc[name]
    ...     print(f"{name:<11} {row.difference:6.2f} +- {row.difference_se:.2f}  {row.rmse:.1f}")
    one feature  -0.16 +- 0.03  63.8
    linear        0.00 +- 0.00  54.6
    """
    if not isinstance(models, Mapping) or not models:
        raise ValueError(f"models must map names to estimators, at least one; got {models!r}.")
    names = [str(name) for name in models]
    estimators = list(models.values())
    if y is None:
        raise ValueError("compare_models needs y, the targets or labels of the rows, got None.")
    require_targets(y)
    X, y = indexable(X, y)
    classes = _classes(estimators, y)
    if classes is None:
        y = read_numbers(y, "compare_models", "classifiers")
        with numeric_conversion("y", y=y):
            assert_all_finite(y, input_name="y")
    if groups is None:
        codes = None
    else:
        codes = encode_groups(groups, num_samples(X))
    task = Task(X, y, classes, codes)

    # All models get the same folds and the same seeds.
    rng = check_random_state(random_state)
    splits = _split_rows(task, cv, rng, groups)
    caller = _Caller()
    seeds = rng.randint(2**31 - 1, size=len(splits) + 1)
    fold_results = Parallel(n_jobs=n_jobs)(
        delayed(_run_checked)(caller, _report_fold, model, int(seed), task, train, test)
        for model in estimators
        for (train, test), seed in zip(splits, seeds[:-1], strict=True)
    )
    n_splits = len(splits)
    by_model = [fold_results[i : i + n_splits] for i in range(0, len(fold_results), n_splits)]

    # Evidence and leave-one-out densities are those of a fit to all rows.
    needs_full_fit = [
        any(fit.value.needs_full_fit for fit in fits if not fit.error) for fits in by_model
    ]
    full_results = iter(
        Parallel(n_jobs=n_jobs)(
            delayed(_run_checked)(caller, _report_full_fit, model, int(seeds[-1]), task)
            for model, is_needed in zip(estimators, needs_full_fit, strict=True)
            if is_needed
        )
    )
    full_fits = [next(full_results) if is_needed else None for is_needed in needs_full_fit]
    return _tabulate(names, by_model, full_fits, task)


def _tabulate(
    names: Sequence[str],
    by_model: Sequence[Sequence[CheckedResult]],
    full_fits: Sequence[CheckedResult | None],
    task: Task,
) -> Any:
    """Warn of problems of the fits, and make the table of `compare_models`.

    Parameters
    ----------
    names : sequence of str
        Names of the models.
    by_model : sequence of sequence of CheckedResult
        Results of the folds of each model.
    full_fits : sequence of CheckedResult or None
        Result of the fit of each model to all rows; None if it wasn't needed.
    task : Task
        Data that all fits share.

    Returns
    -------
    pandas.DataFrame, or dict of columns without pandas
    """
    densities = []
    rows = []
    for name, fits, full_fit in zip(names, by_model, full_fits, strict=True):
        full_report = None
        if full_fit is None:
            _report_problems(name, fits)
        else:
            _report_problems(name, [*fits, full_fit])
            full_report = full_fit.value
        # A model that fails in a fold has no scores.
        folds = [fit.value for fit in fits]
        if any(fit.error for fit in fits):
            folds = []
        _warn_point_predictions(name, folds, task)
        densities.append(_row_densities(folds, len(task.y)))
        rows.append(_table_row(folds, full_report, task))
    columns = _density_columns(densities)
    columns |= {key: np.array([row[key] for row in rows]) for key in rows[0]}
    try:
        import pandas as pd
    except ImportError:
        return {"model": names, **columns}
    return pd.DataFrame(columns, index=pd.Index(names, name="model"))


def _split_rows(
    task: Task, cv: Any, rng: np.random.RandomState, groups: Any
) -> list[tuple[Array, Array]]:
    """Return training and test rows of every fold.

    Parameters
    ----------
    task : Task
        Data that all fits share.
    cv : int, splitter or iterable of (train, test)
        An int is a number of folds, of whole groups or of shuffled rows.
    rng : RandomState
        Shuffles the rows.
    groups : array-like of shape (n_samples,), optional
        Groups of rows that are left out together.

    Returns
    -------
    list of (ndarray, ndarray)
    """
    is_number = isinstance(cv, (int, np.integer))
    if is_number and groups is not None:
        if task.classes is None:
            splitter = GroupKFold(int(cv))
        else:
            splitter = StratifiedGroupKFold(int(cv))
    elif is_number:
        if task.classes is None:
            fold_class = KFold
        else:
            fold_class = StratifiedKFold
        splitter = fold_class(int(cv), shuffle=True, random_state=rng)
    else:
        splitter = check_cv(cv, task.y, classifier=task.classes is not None)
    splits: list[tuple[Array, Array]] = split_rows(splitter, task.X, task.y, groups)
    if not splits:
        raise ValueError(f"cv gives no split into training and test rows, got {short_repr(cv)}.")
    return splits


def _report_problems(name: str, fits: Sequence[CheckedResult]) -> None:
    """Repeat each kind of warning of a model's fits once, and warn of errors.

    Warnings that differ only in their numbers are of one kind.
    """
    texts: dict[Any, dict[int, str]] = defaultdict(dict)
    for i, fit in enumerate(fits):
        for category, text in fit.warnings:
            texts[category, re.sub(r"\d\S*", "", text)].setdefault(i, text)
    for (category, _), by_fit in texts.items():
        first = next(iter(by_fit.values()))
        warn_user(f"{name!r}, in {len(by_fit)} of {len(fits)} fits: {first}", category)
    if errors := [fit.error for fit in fits if fit.error]:
        warn_user(
            f"{name!r} failed in {len(errors)} of {len(fits)} fits, so its row has nan. The first "
            f"error: {errors[0]}",
            FitFailedWarning,
        )


def _warn_point_predictions(name: str, folds: Sequence[FoldReport], task: Task) -> None:
    """Warn of a model without a predictive distribution, and name a remedy."""
    if not folds or any(fold.log_density is not None for fold in folds):
        return
    if task.classes is None:
        remedy = (
            f"PredictiveStackingRegressor([({name!r}, model)]) is the same model with noise that "
            "is fitted to its held-out residuals."
        )
    else:
        remedy = "It needs predict_proba, which CalibratedClassifierCV adds."
    warn_user(f"{name!r} predicts no distribution, so it has no log density. {remedy}", UserWarning)


def _classes(estimators: Sequence[Any], y: Any) -> Any:
    """Classes in order; None for regression."""
    if all(is_regression_model(model) for model in estimators):
        return None
    if all(is_classifier(model) for model in estimators):
        refuse_missing_labels(label_array(y).ravel())
        with numeric_conversion("y"):
            check_classification_targets(y)
        return np.unique(column_or_1d(y))
    kinds = {}
    for model in estimators:
        kind = "neither"
        if is_regression_model(model):
            kind = "regressor"
        elif is_classifier(model):
            kind = "classifier"
        kinds[type(model).__name__] = kind
    raise ValueError(f"models must be all classifiers or all regressors, got {kinds}.")


def _row_densities(folds: Sequence[FoldReport], n_rows: int) -> Array:
    """Log density of every row (n_rows,), averaged over the folds that tested it.

    nan for rows that no fold tested; all nan if the model has no density.
    """
    total = np.zeros(n_rows)
    count = np.zeros(n_rows)
    for fold in folds:
        if fold.log_density is None:
            return np.full(n_rows, np.nan)
        np.add.at(total, fold.rows, fold.log_density)
        np.add.at(count, fold.rows, 1)
    with np.errstate(invalid="ignore"):
        return total / np.where(count > 0, count, np.nan)


def _density_columns(densities: Sequence[Array]) -> dict[str, Array]:
    """Columns of mean log densities, differences from the best model, and standard errors."""
    means, errors = np.array([_mean_and_error(d[~np.isnan(d)]) for d in densities]).T
    differences = np.full((len(densities), 2), np.nan)
    if np.isfinite(means).any():
        best = densities[int(np.nanargmax(np.where(np.isfinite(means), means, -np.inf)))]
        is_tested = ~np.isnan(best)
        for i, density in enumerate(densities):
            differences[i] = _mean_and_error((density - best)[is_tested])
    return {
        "log_density": means,
        "log_density_se": errors,
        "difference": differences[:, 0],
        "difference_se": differences[:, 1],
        "detectable": norm.ppf([0.975, 0.8]).sum() * differences[:, 1],
    }


def _mean_and_error(values: Array) -> tuple[float, float]:
    """Mean and its standard error; nan if they aren't defined."""
    n = len(values)
    if n == 0:
        return np.nan, np.nan
    mean = float(values.mean())
    if n == 1 or not np.isfinite(values).all():
        return mean, np.nan
    return mean, float(values.std(ddof=1) / n**0.5)


def _root_mean_square_error(observed: Array, predicted: Array) -> float:
    """Root mean square of the errors of all rows and targets, also near the largest numbers."""
    unit = power_of_two(observed, predicted)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(unit * np.sqrt(np.mean((observed / unit - predicted / unit) ** 2)))


def _table_row(folds: Sequence[FoldReport], full_report: Any, task: Task) -> dict[str, Any]:
    """Error and calibration over all tested rows, evidence of the full fit, and seconds."""
    error = np.nan
    calibration = np.nan
    seconds = np.full(2, np.nan)
    if folds:
        predicted = np.concatenate([fold.predicted for fold in folds])
        observed = np.asarray(task.y)[np.concatenate([fold.rows for fold in folds])]
        probabilities = [fold.probability for fold in folds if fold.probability is not None]
        probability = None
        if len(probabilities) == len(folds):
            probability = np.concatenate(probabilities)
        seconds = np.mean([fold.seconds for fold in folds], axis=0)
        if task.classes is None:
            error = _root_mean_square_error(observed.reshape(predicted.shape), predicted)
            if probability is not None:
                calibration = interval_calibration_error(probability)
        else:
            labels = observed.ravel()
            error = float(np.mean(predicted == labels))
            if probability is not None:
                calibration = expected_calibration_error(labels, probability, labels=task.classes)
    row = {
        "rmse" if task.classes is None else "accuracy": error,
        "calibration_error": calibration,
        "evidence": np.nan,
        "evidence_se": np.nan,
        "evidence_source": "",
        "evidence_side": "",
        "loo": np.nan,
        "loo_se": np.nan,
        "loo_unreliable": np.nan,
    }
    row |= full_report or {}
    row["fit_seconds"] = float(seconds[0])
    row["predict_seconds"] = float(seconds[1])
    return row


@dataclass(frozen=True)
class _Caller:
    """Process in which `compare_models` was called, and its configuration of scikit-learn."""

    process: int = field(default_factory=os.getpid)
    config: dict[str, Any] = field(default_factory=get_config)


def _run_checked(
    caller: _Caller, report: Callable[..., Any], model: Any, seed: int, *arguments: Any
) -> CheckedResult:
    """Call ``report`` with a clone of the model, and record warnings and errors.

    Parameters
    ----------
    caller : _Caller
        Process that called `compare_models`.
    report : callable
        ``report(model, *arguments)`` fits the model and returns the result.
    model : estimator
        Model, which is cloned.
    seed : int
        Seed of the model.
    *arguments : object
        Further arguments of ``report``.

    Returns
    -------
    CheckedResult
        Result, error and warnings.

    Notes
    -----
    Warnings of other packages can be recorded only by replacing the filters of the process, which
    is only done in worker processes. In the caller's process these warnings are shown as they
    occur.
    """
    value = None
    error_text = ""
    recorded: list[warnings.WarningMessage] = []
    is_main_thread = threading.current_thread() is threading.main_thread()
    with ExitStack() as stack:
        stack.enter_context(config_context(**caller.config))
        if os.getpid() != caller.process and is_main_thread:
            recorded = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
        package_warnings = stack.enter_context(collect_warnings())
        try:
            value = report(seeded_clone(model, seed), *arguments)
        except Exception as error:
            error_text = f"{type(error).__name__}: {error}"
    other_warnings = [(warning.category, str(warning.message)) for warning in recorded]
    return CheckedResult(value, error_text, [*package_warnings, *other_warnings])


def seeded_clone(model: Any, seed: int) -> Any:
    """Clone a model and replace every ``random_state`` of None, also nested ones, by ``seed``."""
    copy = clone(model)
    unset = {
        name: seed
        for name, value in copy.get_params(deep=True).items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    return copy.set_params(**unset)


def _report_fold(model: Any, task: Task, train: Array, test: Array) -> FoldReport:
    """Fit a model to the training rows and predict the test rows.

    Parameters
    ----------
    model : estimator
        Unfitted model.
    task : Task
        Data.
    train, test : ndarray of int
        Indices of the training and test rows.

    Returns
    -------
    FoldReport
        Predictions of the test rows.
    """
    # Regressors of skpro have no tags of scikit-learn.
    if isinstance(model, BaseEstimator):
        tagged = model
    else:
        tagged = BaseEstimator()
    X_train, y_train = safe_split(tagged, task.X, task.y, train)
    X_test, y_test = safe_split(tagged, task.X, task.y, test, train)
    start = time.perf_counter()
    fit_with_groups(model, X_train, y_train, select_optional(task.groups, train))
    fit_end = time.perf_counter()
    predicted = np.asarray(model.predict(X_test))
    seconds = (fit_end - start, time.perf_counter() - fit_end)
    inner = unwrap(model).model
    has_evidence = bool({"log_evidence_", "elbo_"} & vars(inner).keys())
    report = FoldReport(test, predicted, seconds, has_evidence or has_posterior_draws(inner))
    if not predicts_distribution(model):
        return report
    distribution: Any = predictive(model, X_test)
    if task.classes is None:
        probability = np.asarray(distribution.cdf(y_test), dtype=float).reshape(len(test), -1)
    else:  # a column for every class, 0 for classes that are missing in the training fold
        probability = np.zeros((len(test), len(task.classes)))
        probability[:, np.searchsorted(task.classes, distribution.classes)] = distribution.proba()
    density = np.asarray(distribution.log_prob(y_test), dtype=float)
    return report._replace(log_density=density, probability=probability)


def _report_full_fit(model: Any, task: Task) -> dict[str, Any]:
    """Evidence and leave-one-out densities of a fit to all rows."""
    fit_with_groups(model, task.X, task.y, task.groups)
    names = ("evidence", "evidence_se", "evidence_source", "evidence_side")
    columns = dict(zip(names, read_evidence(model) or (), strict=False))
    return columns | estimate_leave_one_out(model, task.X, task.y)


def estimate_leave_one_out(estimator: BaseEstimator, X: Any, y: Any) -> dict[str, float]:
    """Estimate leave-one-out log densities by Pareto-smoothed importance sampling (PSIS-LOO).

    Parameters
    ----------
    estimator : estimator
        Fitted model.
    X, y : array-like
        Training data.

    Returns
    -------
    dict of str to float
        Mean in nats per row, standard error and number of unreliable rows. Empty if the model has
        no draws of its posterior, or if arviz-stats isn't installed.

    Notes
    -----
    With draws theta_s of weight w_s from the posterior given all rows,

        p(y_i | y_-i) = sum_s r_is p(y_i | theta_s) / sum_s r_is,   r_is = w_s / p(y_i | theta_s),

    where the largest ratios are replaced by quantiles of a generalised Pareto distribution.

    References
    ----------
    Vehtari, Gelman & Gabry (2017). Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC.

    Vehtari, Simpson, Gelman, Yao & Gabry (2024). Pareto smoothed importance sampling.
    """
    model, prepare = unwrap(estimator)
    X = prepare(X)
    if not has_posterior_draws(model):
        return {}
    try:
        from arviz_stats.base import array_stats
    except ImportError:
        return {}
    values = model.log_likelihood_samples(X, y)
    weights = model.chain_weights_
    has_weight = weights > 0
    values = values[has_weight]
    weights = weights[has_weight]
    # Effective sample size of the mean likelihood, relative to the number of draws and averaged
    # over rows. It determines the size of the tail.
    likelihood = np.exp(values - values.max(axis=(0, 1)))
    efficiency = mean_ess(likelihood, weights) / values[..., 0].size
    efficiency = efficiency[np.isfinite(efficiency)]
    if efficiency.size:
        r_eff = float(np.mean(efficiency))
    else:
        r_eff = 1.0
    # arviz takes log likelihoods of equally weighted draws and smooths their negatives.
    weighted = (values - np.log(weights)[:, None, None]).reshape(-1, values.shape[-1]).T
    log_ratios, shapes = array_stats.psislw(weighted, r_eff=r_eff)
    flat = values.reshape(-1, values.shape[-1]).T
    log_density = np.logaddexp.reduce(log_ratios + flat, axis=1)
    log_density -= np.logaddexp.reduce(log_ratios, axis=1)
    # Vehtari et al. (2024): above 0.7 no feasible number of draws is sufficient.
    max_shape = min(1.0 - 1.0 / np.log10(flat.shape[1]), 0.7)
    n_unreliable = float(np.sum(~(shapes <= max_shape)))
    mean, error = _mean_and_error(log_density)
    return {"loo": mean, "loo_se": error, "loo_unreliable": n_unreliable}


def has_posterior_draws(model: Any) -> bool:
    """Whether a model has draws of its posterior; the modes of an ensemble aren't draws."""
    has_draws = hasattr(model, "log_likelihood_samples")
    return has_draws and bool(getattr(model, "draws_the_posterior", True))
