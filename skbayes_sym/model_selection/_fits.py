"""The fits behind a comparison: one to each training fold, and one to all rows.

Leave-one-out densities of the latter are by Pareto-smoothed importance sampling.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, clone

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.scikit_learn import safe_split
from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.estimators.predictive import predictive, predicts_distribution
from skbayes_sym.inference.diagnostics import mean_ess
from skbayes_sym.model_selection._scorers import ReportedEvidence, reported_evidence

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
