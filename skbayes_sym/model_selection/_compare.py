"""Several models, the same rows, one table."""

import re
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import check_random_state, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import column_or_1d

from skbayes_sym.estimators._fit.rows import Array, numbers_due
from skbayes_sym.estimators._fit.scikit_learn import safe_split
from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.predictive import predictive, predicts_distribution, predicts_numbers
from skbayes_sym.inference.diagnostics import mean_ess
from skbayes_sym.metrics import expected_calibration_error, interval_calibration_error
from skbayes_sym.model_selection._scorers import ReportedEvidence, reported_evidence
from skbayes_sym.numerics.arguments import shown

_LARGEST_K = 0.7  # Vehtari et al. (2024): beyond it no feasible number of draws is enough


class LeaveOneOut(NamedTuple):
    """Densities of rows, each left out."""

    log_density: Array  # (n_samples,), nats
    n_unreliable: int  # rows whose Pareto shape is too large for their estimate


class Task(NamedTuple):
    """Data and settings that every fit shares."""

    X: Any
    y: Any
    classes: Array | None  # all of them, in order; None in regression
    raises: bool  # whether an error ends the comparison


class FoldReport(NamedTuple):
    """A model's judgement of a test fold."""

    rows: Array  # (n_test,)
    log_density: Array | None  # (n_test,) nats
    predicted: Array  # (n_test,) or (n_test, n_targets)
    probability: Array | None  # classes (n_test, n_classes), or P(target <= y) (n_test, n_targets)
    fit_seconds: float
    predict_seconds: float
    says_more: bool  # a fit to all rows would report evidence or leave-one-out densities


class Judged(NamedTuple):
    """An answer, or the error in words where it failed, and the warnings on the way."""

    answer: Any
    warned: list[tuple[type[Warning], str]]


def compare_models(
    models: Mapping[str, Any],
    X: Any,
    y: Any,
    *,
    cv: Any = 5,
    n_jobs: int | None = None,
    random_state: Any = 0,
    error_score: Any = np.nan,
) -> Any:
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
    error_score : nan or "raise", default=nan
        nan: a model that fails has nan in its row, and a `FitFailedWarning` gives the error.

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
    What a model doesn't say is nan. Models without ``log_predictive_density`` are read by
    ``predict_proba``, or by ``predict(X, return_std=True)`` as a normal distribution. An impossible
    observation makes a log density of -inf, and so its mean.

    A row that several folds test counts once, with its mean. That rows of a fold share one fit, and
    folds share training rows, adds variance of which no unbiased estimate exists (Bengio &
    Grandvalet 2004); the standard errors leave it out. So two standard errors are a hint and not
    yet proof. Keep rows that depend on each other (of one patient, one day) together: give ``cv``
    the pairs of a group splitter, and expect larger errors than stated.

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
    names, estimators = [str(name) for name in models], list(models.values())
    if y is None:
        raise ValueError("compare_models needs y, the targets or labels of the rows, got None.")
    X, y = indexable(X, y)
    raises = isinstance(error_score, str) and error_score == "raise"
    if not raises and not (isinstance(error_score, float) and np.isnan(error_score)):
        raise ValueError(f"error_score must be nan or 'raise', got {error_score!r}.")
    classes = _classes(estimators, y)
    task = Task(X, y, classes, raises)
    rng = check_random_state(random_state)
    if isinstance(cv, (int, np.integer)):
        kind = KFold if classes is None else StratifiedKFold
        splitter = kind(int(cv), shuffle=True, random_state=rng)
    else:
        splitter = check_cv(cv, y, classifier=classes is not None)
    splits = list(splitter.split(X, y))
    if not splits:
        raise ValueError(f"cv gives no split into training and test rows, got {shown(cv)}.")
    seeds = rng.randint(2**31 - 1, size=len(splits) + 1)
    judged = Parallel(n_jobs=n_jobs)(
        delayed(judge_fold)(model, task, train, test, int(seed))
        for model in estimators
        for (train, test), seed in zip(splits, seeds[:-1], strict=True)
    )
    by_model = [judged[i : i + len(splits)] for i in range(0, len(judged), len(splits))]
    folds = [[each.answer for each in fits] for fits in by_model]
    says_more = [
        i for i, reports in enumerate(folds)
        if any(isinstance(fold, FoldReport) and fold.says_more for fold in reports)
    ]  # fmt: skip
    answers = Parallel(n_jobs=n_jobs)(
        delayed(judge_whole)(estimators[i], task, int(seeds[-1])) for i in says_more
    )
    wholes: list[Any] = [None] * len(names)
    for i, answer in zip(says_more, answers, strict=True):
        wholes[i] = answer.answer
        by_model[i].append(answer)
    for name, fits, reports, whole in zip(names, by_model, folds, wholes, strict=True):
        _pass_on(name, fits)
        errors = [report for report in (*reports, whole) if isinstance(report, str)]
        if errors:
            n_fits = len(reports) + (whole is not None)
            warn_user(
                f"{name!r} failed in {len(errors)} of {n_fits} fits, so its row has nan. The "
                f"first error: {errors[0]}",
                FitFailedWarning,
            )
    columns = _columns(folds, wholes, task)
    try:
        import pandas as pd
    except ImportError:
        return {"model": names, **columns}
    return pd.DataFrame(columns, index=pd.Index(names, name="model"))


def _pass_on(name: str, fits: Sequence[Judged]) -> None:
    """Warn once of what fits of a model warned of, whatever their figures."""
    texts: dict[Any, dict[int, str]] = defaultdict(dict)
    for i, fit in enumerate(fits):
        for category, text in fit.warned:
            texts[category, re.sub(r"\d\S*", "", text)].setdefault(i, text)
    for (category, _), by_fit in texts.items():
        first = next(iter(by_fit.values()))
        warn_user(f"{name!r}, in {len(by_fit)} of {len(fits)} fits: {first}", category)


def _classes(estimators: Sequence[Any], y: Any) -> Any:
    """The classes, None in regression."""
    if all(predicts_numbers(model) for model in estimators):
        return None
    if all(is_classifier(model) for model in estimators):
        with numbers_due("y"):
            check_classification_targets(y)
        return np.unique(column_or_1d(y))
    kinds = {
        type(model).__name__: "regressor" if predicts_numbers(model) else "classifier"
        if is_classifier(model) else "neither" for model in estimators
    }  # fmt: skip
    raise ValueError(f"models must be all classifiers or all regressors, got {kinds}.")


def _columns(folds: Sequence[Sequence[Any]], wholes: Sequence[Any], task: Task) -> dict[str, Any]:
    densities = [_row_densities(reports, len(task.y)) for reports in folds]
    columns: dict[str, Any] = _density_columns(densities)
    predictions = [_prediction_columns(reports, task) for reports in folds]
    reports = [_whole_columns(whole) for whole in wholes]
    for name in ("rmse" if task.classes is None else "accuracy", "calibration_error"):
        columns[name] = np.array([row[name] for row in predictions])
    for name in reports[0]:
        columns[name] = np.array([row[name] for row in reports])
    for name in ("fit_seconds", "predict_seconds"):
        columns[name] = np.array([row[name] for row in predictions])
    return columns


def _row_densities(folds: Sequence[Any], n_rows: int) -> Array:
    """Log density of every row (n_rows,), averaged over the folds that tested it.

    nan where none did; all nan if the model has no density or a fold failed.
    """
    total, count = np.zeros(n_rows), np.zeros(n_rows)
    for fold in folds:
        if isinstance(fold, str) or fold.log_density is None:
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


def _prediction_columns(folds: Sequence[Any], task: Task) -> dict[str, float]:
    """Error and calibration over all tested rows, seconds a fold."""
    error = "rmse" if task.classes is None else "accuracy"
    names = (error, "calibration_error", "fit_seconds", "predict_seconds")
    if any(isinstance(fold, str) for fold in folds):
        return dict.fromkeys(names, np.nan)
    rows = np.concatenate([fold.rows for fold in folds])
    predicted = np.concatenate([fold.predicted for fold in folds])
    observed = np.asarray(task.y)[rows]
    probability = None
    if all(fold.probability is not None for fold in folds):
        probability = np.concatenate([fold.probability for fold in folds])
    calibration = np.nan
    if task.classes is None:
        value = float(np.sqrt(np.mean((observed.reshape(predicted.shape) - predicted) ** 2)))
        if probability is not None:
            calibration = interval_calibration_error(probability)
    else:
        labels = observed.ravel()
        value = float(np.mean(predicted == labels))
        if probability is not None:
            calibration = expected_calibration_error(labels, probability, labels=task.classes)
    seconds = np.mean([(fold.fit_seconds, fold.predict_seconds) for fold in folds], axis=0)
    return dict(zip(names, (value, calibration, *map(float, seconds)), strict=True))


def _whole_columns(whole: Any) -> dict[str, Any]:
    """Evidence and leave-one-out densities of the fit to all rows."""
    evidence, loo = whole if isinstance(whole, tuple) else (None, None)
    names = ("evidence", "evidence_se", "evidence_source", "evidence_side")
    mean, error = (np.nan, np.nan) if loo is None else _mean_and_error(loo.log_density)
    return {
        **dict(zip(names, evidence or (np.nan, np.nan, "", ""), strict=True)),
        "loo": mean,
        "loo_se": error,
        "loo_unreliable": np.nan if loo is None else float(loo.n_unreliable),
    }


def judge_fold(model: Any, task: Task, train: Array, test: Array, seed: int) -> Judged:
    """Fit a clone to ``train`` and ask it about ``test``: a `FoldReport`."""
    return _or_error(task, lambda: _judge_fold(seeded_clone(model, seed), task, train, test))


def judge_whole(model: Any, task: Task, seed: int) -> Judged:
    """Evidence and left-out densities of a clone's fit to all rows."""

    def judged() -> tuple[ReportedEvidence | None, LeaveOneOut | None]:
        fitted = seeded_clone(model, seed).fit(task.X, task.y)
        return reported_evidence(fitted), leave_one_out(fitted, task.X, task.y)

    return _or_error(task, judged)


def _or_error(task: Task, judge: Callable[[], Any]) -> Judged:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer = judge()
        except Exception as error:
            if task.raises:
                raise
            answer = f"{type(error).__name__}: {error}"
    return Judged(answer, [(each.category, str(each.message)) for each in caught])


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
    tagged = model if isinstance(model, BaseEstimator) else BaseEstimator()  # skpro's has no tags
    X_train, y_train = safe_split(tagged, task.X, task.y, train)
    X_test, y_test = safe_split(tagged, task.X, task.y, test, train)
    start = time.perf_counter()
    model.fit(X_train, y_train)
    fitted = time.perf_counter()
    predicted = np.asarray(model.predict(X_test))
    end = time.perf_counter()
    density, probability = None, None
    if predicts_distribution(model):
        law: Any = predictive(model, X_test)
        density = np.asarray(law.log_prob(y_test), dtype=float)
        if task.classes is None:
            probability = np.asarray(law.cdf(y_test), dtype=float).reshape(len(test), -1)
        else:  # a column for every class, 0 for those missing from the training fold
            probability = np.zeros((len(test), len(task.classes)))
            probability[:, np.searchsorted(task.classes, law.classes)] = law.proba()
    inside = innermost(model).model
    return FoldReport(
        rows=test,
        log_density=density,
        predicted=predicted,
        probability=probability,
        fit_seconds=fitted - start,
        predict_seconds=end - fitted,
        says_more=bool({"log_evidence_", "elbo_"} & vars(inside).keys())
        or has_posterior_draws(inside),
    )


def leave_one_out(estimator: BaseEstimator, X: Any, y: Any) -> LeaveOneOut | None:
    """PSIS-LOO of a sampled posterior on the rows it was fitted to.

    With draws theta_s of weight w_s of the posterior given all rows,

        p(y_i | y_-i) = sum_s r_is p(y_i | theta_s) / sum_s r_is,   r_is = w_s / p(y_i | theta_s),

    the largest ratios replaced by quantiles of a generalised Pareto distribution.

    Returns: none if the model has no draws of its posterior, or arviz-stats isn't installed.

    Vehtari, Gelman & Gabry (2017). Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC.

    Vehtari, Simpson, Gelman, Yao & Gabry (2024). Pareto smoothed importance sampling.
    """
    model, prepare = innermost(estimator)
    X = prepare(X)
    if not has_posterior_draws(model):
        return None
    try:
        from arviz_stats.base import array_stats
    except ImportError:
        return None
    values, weights = model.log_likelihood_samples(X, y), model.chain_weights_
    used = weights > 0
    values, weights = values[used], weights[used]
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
    largest = min(1.0 - 1.0 / np.log10(flat.shape[1]), _LARGEST_K)
    return LeaveOneOut(log_density, int(np.sum(~(shapes <= largest))))


def has_posterior_draws(model: Any) -> bool:
    """Whether there is what `leave_one_out` starts from; the modes of an ensemble aren't."""
    has_draws = hasattr(model, "log_likelihood_samples")
    return has_draws and bool(getattr(model, "draws_the_posterior", True))
