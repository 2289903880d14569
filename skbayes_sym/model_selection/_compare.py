"""Several models, the same rows, one table."""

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
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import indexable

from skbayes_sym.base.pipelines import unwrap
from skbayes_sym.base.predictive import is_regression_model, predictive, predicts_distribution
from skbayes_sym.base.rows import Array, numeric_conversion
from skbayes_sym.base.scikit_learn import (
    check_classification_targets,
    check_cv,
    column_or_1d,
    safe_split,
)
from skbayes_sym.base.warnings import collect_warnings, warn_user
from skbayes_sym.metrics import expected_calibration_error, interval_calibration_error
from skbayes_sym.model_selection._scorers import reported_evidence
from skbayes_sym.numerics.arguments import check_random_state, short_repr
from skbayes_sym.numerics.diagnostics import mean_ess
from skbayes_sym.numerics.runtime import filters_lock


class Task(NamedTuple):
    """Data that every fit shares."""

    X: Any
    y: Any
    classes: Array | None  # all of them, in order; None in regression


class FoldReport(NamedTuple):
    """A model's judgement of a test fold."""

    rows: Array  # (n_test,)
    predicted: Array  # (n_test,) or (n_test, n_targets)
    seconds: tuple[float, float]  # of `fit` and of `predict`
    says_more: bool  # a fit to all rows would report evidence or leave-one-out densities
    log_density: Array | None = None  # (n_test,) nats
    # Of classes (n_test, n_classes), or P(target <= y) (n_test, n_targets).
    probability: Array | None = None


class CheckedResult(NamedTuple):
    """An answer, or the error in words where it failed, and the warnings on the way."""

    answer: Any
    error: str
    warned: list[tuple[type[Warning], str]]


def compare_models(
    models: Mapping[str, Any], X: Any, y: Any, *, cv: Any = 5, n_jobs: int | None = None,
    random_state: Any = 0,
) -> Any:  # fmt: skip
    r"""Cross-validate models on the same folds and lay out what is known of them.

    Parameters
    ----------
    models : mapping of str to estimator
        All classifiers or all regressors, unfitted; pipelines, searches and scikit-learn's own
        models too. They are cloned.
    X : array-like of shape (n_samples, n_features)
        Whatever the models take, data frames included.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Targets or class labels.
    cv : int, splitter or iterable of (train, test), default=5
        An int is that many folds of shuffled rows, stratified by class.
    n_jobs : int, optional
        Fits at once (models times folds), by joblib; inside ``joblib.parallel_config("dask")`` on a
        cluster. The numbers don't depend on it, except the seconds.
    random_state : int, RandomState instance or None, default=0
        Decides the folds, and the seed of every model whose own ``random_state`` is None: one for
        each fold, the same for all models.

    Returns
    -------
    pandas.DataFrame, or dict of columns without pandas
        A row a model, in the order given; the index (without pandas the column ``model``) is its
        name. The columns are

        log_density, log_density_se
            Mean log predictive density of held-out rows and its standard error; nats per row, joint
            over its targets. Larger is better; the one number to choose by.
        difference, difference_se
            Of the mean to the best model's, at most 0, and its standard error, of the rows' paired
            differences :math:`d_i`: :math:`\mathrm{sd}(d) / \sqrt n`.
        detectable
            True difference that these rows would show with a power of 80 % (two-sided test at 5 %):
            2.8 ``difference_se``. A smaller one may be there and not be seen.
        rmse or accuracy
            Over all held-out rows (and targets).
        calibration_error
            `interval_calibration_error` or `expected_calibration_error` of the held-out rows,
            pooled over folds and targets.
        evidence, evidence_se, evidence_source, evidence_side
            Of a fit to all rows: log p(y | X) in nats, summed over the rows; its Monte Carlo
            standard error; the attribute it was taken from (``log_evidence_`` or else ``elbo_``);
            and whether it is "exact", an "estimate" or a "lower" bound.
        loo, loo_se, loo_unreliable
            Of the same fit, if it has draws of the posterior and arviz-stats is installed:
            leave-one-out log density by Pareto-smoothed importance sampling (PSIS), nats per row,
            its standard error, and the number of rows whose estimate can't be relied on.
        fit_seconds, predict_seconds
            Of one fold, wall clock, averaged: `fit`, and `predict` on the test rows.

    Raises
    ------
    ValueError
        If ``models`` is empty or mixes classifiers and regressors.

    See Also
    --------
    cross_validate_entries : For matrices with missing entries.

    Notes
    -----
    What a model doesn't say is nan; one that fails has nan in its row, and a `FitFailedWarning`
    gives the error. Models without ``log_predictive_density`` are read by ``predict_proba``, or by
    ``predict(X, return_std=True)`` as a normal distribution. An impossible observation makes a log
    density of -inf, and so its mean.

    A row that several folds test counts once, with its mean. Folds share training rows, which adds
    variance of which no unbiased estimate exists (Bengio & Grandvalet 2004); the standard errors
    leave it out. Keep rows that depend on each other (of one patient, one day) together: give
    ``cv`` the pairs of a group splitter.

    Evidences compare between models of the same ``y``. Laplace's estimates of networks are wrong by
    tens of nats, so they don't settle a width, an activation or a method (:ref:`comparing_models`).
    Costs ``len(models) * (n_splits + 1)`` fits.

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
    X, y = indexable(X, y)
    classes = _classes(estimators, y)
    task = Task(X, y, classes)
    rng = check_random_state(random_state)
    if isinstance(cv, (int, np.integer)):
        kind = KFold if classes is None else StratifiedKFold
        splitter = kind(int(cv), shuffle=True, random_state=rng)
    else:
        splitter = check_cv(cv, y, classifier=classes is not None)
    with filters_lock:
        splits = list(splitter.split(X, y))
    caller = _Caller()
    if not splits:
        raise ValueError(f"cv gives no split into training and test rows, got {short_repr(cv)}.")
    seeds = rng.randint(2**31 - 1, size=len(splits) + 1)
    judged = Parallel(n_jobs=n_jobs)(
        delayed(_judged)(caller, _fold_report, model, int(seed), task, train, test)
        for model in estimators
        for (train, test), seed in zip(splits, seeds[:-1], strict=True)
    )
    by_model = [judged[i : i + len(splits)] for i in range(0, len(judged), len(splits))]
    chosen = [any(fit.answer.says_more for fit in fits if not fit.error) for fits in by_model]
    wholes = iter(Parallel(n_jobs=n_jobs)(
        delayed(_judged)(caller, _full_data_report, model, int(seeds[-1]), task)
        for model, says_more in zip(estimators, chosen, strict=True) if says_more
    ))  # fmt: skip
    densities = []
    rows = []
    for name, fits, says_more in zip(names, by_model, chosen, strict=True):
        whole = [next(wholes)] if says_more else []
        _pass_on(name, [*fits, *whole])
        folds = [] if any(fit.error for fit in fits) else [fit.answer for fit in fits]
        densities.append(_row_densities(folds, len(task.y)))
        rows.append(_row(folds, whole[0].answer if whole else None, task))
    columns = _density_columns(densities)
    columns |= {key: np.array([row[key] for row in rows]) for key in rows[0]}
    try:
        import pandas as pd
    except ImportError:
        return {"model": names, **columns}
    return pd.DataFrame(columns, index=pd.Index(names, name="model"))


def _pass_on(name: str, fits: Sequence[CheckedResult]) -> None:
    """Warn once of what fits of a model warned of, whatever their figures, and of errors."""
    texts: dict[Any, dict[int, str]] = defaultdict(dict)
    for i, fit in enumerate(fits):
        for category, text in fit.warned:
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


def _classes(estimators: Sequence[Any], y: Any) -> Any:
    """The classes, None in regression."""
    if all(is_regression_model(model) for model in estimators):
        return None
    if all(is_classifier(model) for model in estimators):
        with numeric_conversion("y"):
            check_classification_targets(y)
        return np.unique(column_or_1d(y))
    kinds = {
        type(model).__name__: "regressor" if is_regression_model(model) else "classifier"
        if is_classifier(model) else "neither" for model in estimators
    }  # fmt: skip
    raise ValueError(f"models must be all classifiers or all regressors, got {kinds}.")


def _row_densities(folds: Sequence[FoldReport], n_rows: int) -> Array:
    """Log density of every row (n_rows,), averaged over the folds that tested it.

    nan where none did; all nan if the model has no density.
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
    """Means over rows and their standard errors, then those of the differences to the best."""
    means, errors = np.array([_mean_and_error(d[~np.isnan(d)]) for d in densities]).T
    differences = np.full((len(densities), 2), np.nan)
    if np.isfinite(means).any():
        best = densities[int(np.nanargmax(np.where(np.isfinite(means), means, -np.inf)))]
        tested = ~np.isnan(best)
        for i, density in enumerate(densities):
            differences[i] = _mean_and_error((density - best)[tested])
    return {
        "log_density": means,
        "log_density_se": errors,
        "difference": differences[:, 0],
        "difference_se": differences[:, 1],
        "detectable": norm.ppf([0.975, 0.8]).sum() * differences[:, 1],
    }


def _mean_and_error(values: Array) -> tuple[float, float]:
    """Mean and its standard error, nan of nothing."""
    n = len(values)
    if n == 0 or not np.isfinite(values).all():
        return (float(values.mean()) if n else np.nan), np.nan
    return float(values.mean()), float(values.std(ddof=1) / n**0.5) if n > 1 else np.nan


def _row(folds: Sequence[FoldReport], whole: Any, task: Task) -> dict[str, Any]:
    """Error and calibration over all tested rows, what a fit to all rows said, seconds a fold."""
    error = np.nan
    calibration = np.nan
    seconds = np.full(2, np.nan)
    if folds:
        predicted = np.concatenate([fold.predicted for fold in folds])
        observed = np.asarray(task.y)[np.concatenate([fold.rows for fold in folds])]
        known = [fold.probability for fold in folds if fold.probability is not None]
        probability = np.concatenate(known) if len(known) == len(folds) else None
        seconds = np.mean([fold.seconds for fold in folds], axis=0)
        if task.classes is None:
            error = float(np.sqrt(np.mean((observed.reshape(predicted.shape) - predicted) ** 2)))
            if probability is not None:
                calibration = interval_calibration_error(probability)
        else:
            labels = observed.ravel()
            error = float(np.mean(predicted == labels))
            if probability is not None:
                calibration = expected_calibration_error(labels, probability, labels=task.classes)
    return {
        "rmse" if task.classes is None else "accuracy": error,
        "calibration_error": calibration,
        **dict.fromkeys(("evidence", "evidence_se"), np.nan),
        **dict.fromkeys(("evidence_source", "evidence_side"), ""),
        **dict.fromkeys(("loo", "loo_se", "loo_unreliable"), np.nan),
        **(whole or {}),
        "fit_seconds": float(seconds[0]),
        "predict_seconds": float(seconds[1]),
    }


@dataclass(frozen=True)
class _Caller:
    """What jobs need to know of the process that `compare_models` was called in."""

    process: int = field(default_factory=os.getpid)
    config: dict[str, Any] = field(default_factory=get_config)  # scikit-learn's


def _judged(
    caller: _Caller, score_member: Callable[..., Any], model: Any, seed: int, *arguments: Any
) -> CheckedResult:
    """Call ``judge`` with a clone of the model, and keep its warnings and its error.

    Warnings of other packages can be recorded only by replacing the filters of the process, so this
    is done in worker processes alone. In the caller's process they are shown as they occur.
    """
    answer = None
    failure = ""
    recorded: list[warnings.WarningMessage] = []
    is_main_thread = threading.current_thread() is threading.main_thread()
    with ExitStack() as stack:
        stack.enter_context(config_context(**caller.config))
        if os.getpid() != caller.process and is_main_thread:
            recorded = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
        own = stack.enter_context(collect_warnings())
        try:
            answer = score_member(seeded_clone(model, seed), *arguments)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
    others = [(each.category, str(each.message)) for each in recorded]
    return CheckedResult(answer, failure, [*own, *others])


def seeded_clone(model: Any, seed: int) -> Any:
    """A clone in which every ``random_state`` that is None, nested ones too, is ``seed``."""
    copy = clone(model)
    unset = {
        name: seed
        for name, value in copy.get_params(deep=True).items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    return copy.set_params(**unset)


def _fold_report(model: Any, task: Task, train: Array, test: Array) -> FoldReport:
    """Fit to ``train``, predict ``test``."""
    tagged = model if isinstance(model, BaseEstimator) else BaseEstimator()  # skpro's has no tags
    X_train, y_train = safe_split(tagged, task.X, task.y, train)
    X_test, y_test = safe_split(tagged, task.X, task.y, test, train)
    start = time.perf_counter()
    model.fit(X_train, y_train)
    fitted = time.perf_counter()
    predicted = np.asarray(model.predict(X_test))
    seconds = (fitted - start, time.perf_counter() - fitted)
    inside = unwrap(model).model
    has_evidence = bool({"log_evidence_", "elbo_"} & vars(inside).keys())
    report = FoldReport(test, predicted, seconds, has_evidence or has_posterior_draws(inside))
    if not predicts_distribution(model):
        return report
    distribution: Any = predictive(model, X_test)
    if task.classes is None:
        probability = np.asarray(distribution.cdf(y_test), dtype=float).reshape(len(test), -1)
    else:  # a column for every class, 0 for those missing from the training fold
        probability = np.zeros((len(test), len(task.classes)))
        probability[:, np.searchsorted(task.classes, distribution.classes)] = distribution.proba()
    density = np.asarray(distribution.log_prob(y_test), dtype=float)
    return report._replace(log_density=density, probability=probability)


def _full_data_report(model: Any, task: Task) -> dict[str, Any]:
    """Evidence and left-out densities of a fit to all rows."""
    model.fit(task.X, task.y)
    names = ("evidence", "evidence_se", "evidence_source", "evidence_side")
    columns = dict(zip(names, reported_evidence(model) or (), strict=False))
    return columns | leave_one_out(model, task.X, task.y)


def leave_one_out(estimator: BaseEstimator, X: Any, y: Any) -> dict[str, float]:
    """PSIS-LOO of a sampled posterior on the rows it was fitted to, nats per row.

    With draws theta_s of weight w_s of the posterior given all rows,

        p(y_i | y_-i) = sum_s r_is p(y_i | theta_s) / sum_s r_is,   r_is = w_s / p(y_i | theta_s),

    the largest ratios replaced by quantiles of a generalised Pareto distribution.

    Nothing if the model has no draws of its posterior, or arviz-stats isn't installed.

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
    used = weights > 0
    values = values[used]
    weights = weights[used]
    # Effective draws a draw for the mean likelihood, averaged over rows; sets the tail's size.
    likelihood = np.exp(values - values.max(axis=(0, 1)))
    efficiency = mean_ess(likelihood, weights) / values[..., 0].size
    efficiency = efficiency[np.isfinite(efficiency)]
    # arviz takes log likelihoods for equally weighted draws and smooths their negatives.
    weighted = (values - np.log(weights)[:, None, None]).reshape(-1, values.shape[-1]).T
    log_ratios, shapes = array_stats.psislw(
        weighted, r_eff=float(np.mean(efficiency)) if efficiency.size else 1.0
    )
    flat = values.reshape(-1, values.shape[-1]).T
    log_density = np.logaddexp.reduce(log_ratios + flat, axis=1)
    log_density -= np.logaddexp.reduce(log_ratios, axis=1)
    # Vehtari et al. (2024): beyond 0.7 no feasible number of draws is enough.
    largest = min(1.0 - 1.0 / np.log10(flat.shape[1]), 0.7)
    mean, error = _mean_and_error(log_density)
    return {"loo": mean, "loo_se": error, "loo_unreliable": float(np.sum(~(shapes <= largest)))}


def has_posterior_draws(model: Any) -> bool:
    """Whether there is what `leave_one_out` starts from; the modes of an ensemble aren't."""
    has_draws = hasattr(model, "log_likelihood_samples")
    return has_draws and bool(getattr(model, "draws_the_posterior", True))
