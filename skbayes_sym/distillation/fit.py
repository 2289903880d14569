"""Train a small network to predict like a fitted model."""

from typing import Any

import numpy as np
import torch
from scipy.special import ndtr, xlogy
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import Pipeline

from skbayes_sym.base.messages import collect_warnings
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.predictive import predictive
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples, safe_indexing
from skbayes_sym.distillation.augmentation import augment_rows, inspect_columns
from skbayes_sym.distillation.student_training import (
    NetworkSize,
    StudentConfig,
    choose_target_kind,
    make_classification_problem,
    make_regression_problem,
    normal_levels,
    raise_to_positive,
    train_network,
)
from skbayes_sym.distillation.teacher_features import extract_features
from skbayes_sym.inspection._fitted import unwrap_fitted
from skbayes_sym.joint_student import JointStudent
from skbayes_sym.numerics.arguments import draw_seed
from skbayes_sym.numerics.runtime import one_thread
from skbayes_sym.student import Student


def distill(
    model: BaseEstimator, X: Any = None, *, random_state: Any = 0
) -> Student | JointStudent:
    r"""Distil a fitted model into a small network that is evaluated by NumPy.

    A network with two hidden layers learns the predictive distribution of its teacher at rows of
    ``X`` and between neighbours of them,

    .. math:: \min_\phi\; E_x\, KL[\,p(y \mid x) \,\|\, q_\phi(y \mid x)\,],

    where the expectation over y is a sum over quantiles of the teacher, at levels that are redrawn
    at every step, or over draws of counts. No targets are needed. The student's distribution is a
    mixture of normals of the targets, of their logarithms if the teacher predicts skewed positive
    targets, or of nearly the square roots of counts. If the student of a teacher with networks is
    worse by more than 0.002 nats per row, a second student is trained. Its features include the
    hidden units of those networks that have one hidden layer, so that it only learns the difference
    from their mean.

    Parameters
    ----------
    model : fitted estimator
        Teacher: any model that `predictive` accepts, of this package or another, including
        pipelines and searches. Several targets have to be those of a `PredictiveStackingRegressor`.
    X : array-like of shape (n_samples, n_features), optional
        Rows like those to predict, as the model takes them, at least a few hundred. By default rows
        are drawn from normal distributions with the mean and scale of the training data, which only
        models of numeric columns outside pipelines provide. Observed rows are better.
    random_state : int, RandomState instance or None, default=0
        Seed or generator of all random numbers.

    Returns
    -------
    Student or JointStudent
        Small model. Its attribute ``kl_to_teacher_`` estimates how many nats per row it is worse
        than its teacher. That of several targets has a student of each, and the normal copula of
        the stack.

    Raises
    ------
    ValueError
        If there are no rows to learn from, several targets of another model than a stack, or counts
        in other units than 1.

    Notes
    -----
    Distillation takes 15 to 60 seconds per target on one core. The student's predictions don't
    become wider far from the rows of ``X``. Students of counts predict those of exposure 1.

    References
    ----------
    Bishop (1994). Mixture density networks.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianMLPRegressor, distill
    >>> X, y = load_diabetes(return_X_y=True)
    >>> student = distill(BayesianMLPRegressor().fit(X, y), X)  # doctest: +SKIP
    >>> mean, std = student.predict(X, return_std=True)  # doctest: +SKIP
    """
    correlation = fitted_attribute(unwrap_fitted(model).model, "target_correlation_")
    if correlation is None:
        return _distill_target(model, X, draw_seed(random_state))
    models = _split_targets(model)
    seeds = np.random.SeedSequence(draw_seed(random_state)).generate_state(len(models))
    students = {
        name: _distill_target(part, X, int(seed))
        for (name, part), seed in zip(models.items(), seeds, strict=True)
    }
    return JointStudent(students, np.asarray(correlation))


def _split_targets(model: Any) -> dict[str, Any]:
    """Models of single targets, by name, of a stack in searches and pipelines."""
    if hasattr(model, "best_estimator_"):
        return _split_targets(model.best_estimator_)
    if not isinstance(model, Pipeline):
        return dict(model.estimators_)
    *steps, (name, last) = model.steps
    return {
        target: Pipeline([*steps, (name, part)]) for target, part in _split_targets(last).items()
    }


def _distill_target(model: BaseEstimator, X: Any, seed: int) -> Student:
    """Distil a classifier or a regressor of one target, see `distill`."""
    inner = unwrap_fitted(model).model
    config = StudentConfig()
    if X is None:
        X = _draw_rows(model, inner, config.n_rows // 5, seed)
    if num_samples(X) < 10:
        raise ValueError(f"distill needs some hundred rows to learn from, got {num_samples(X)}.")

    # Predictions of the teacher. Some of the rows have unknown levels on purpose.
    arrays, rows, n_held_out = augment_rows(
        X, config.n_rows, np.random.default_rng(seed), inspect_columns(model, X)
    )
    with collect_warnings():
        distribution = predictive(model, rows)
        if is_classifier(inner):
            teacher_values = distribution.proba()
        elif distribution.is_discrete:
            teacher_values = np.sort(distribution.sample(config.n_draws, random_state=seed), axis=1)
        else:
            teacher_values = distribution.quantile(ndtr(normal_levels()))
    if teacher_values.ndim > 2:
        raise ValueError(
            "distill takes several targets from a PredictiveStackingRegressor only. Fit and distil "
            "one model for each target."
        )
    target_kind = "real"
    if not is_classifier(inner):
        target_kind = "count" if distribution.is_discrete else choose_target_kind(teacher_values)
    if target_kind == "count" and not _are_counts(teacher_values):
        raise ValueError(
            "distill takes counts 0, 1, 2, ..., but the teacher rescales its counts: distil the "
            "model inside TransformedTargetRegressor."
        )
    held_out_rows = safe_indexing(rows, np.arange(n_held_out))
    held_out = predictive(model, held_out_rows)

    def train_student(size: NetworkSize) -> Student:
        encoded = Student(arrays).encode(rows)
        if is_classifier(inner):
            problem = make_classification_problem(teacher_values[n_held_out:], distribution.classes)
        else:
            network_mean = None
            if "units" in arrays:
                network_mean = encoded[:, len(arrays["units"])]
            problem = make_regression_problem(
                teacher_values, n_held_out, seed, network_mean, target_kind
            )
        x = torch.as_tensor(encoded)[n_held_out:]
        with one_thread():
            network = train_network(x, problem, size, config.batch_size, seed)
        learned = arrays | problem.arrays | network
        student = Student(learned)
        kl = _estimate_kl(held_out, teacher_values[:n_held_out], student, held_out_rows)
        return Student(learned | {"kl_to_teacher": np.array(kl)})

    # Most teachers are simple enough for a small student.
    first = train_student(NetworkSize(*config.first))
    if first.kl_to_teacher_ < config.tolerance:
        return first
    if not is_classifier(inner):
        with collect_warnings():
            arrays |= extract_features(model, rows, arrays, config)
    if "units" in arrays:
        second_size = config.with_networks
    else:
        second_size = config.without_networks
    second = train_student(NetworkSize(*second_size))
    return min(first, second, key=lambda student: student.kl_to_teacher_)


def _are_counts(values: Array) -> bool:
    """Whether all values are non-negative integers."""
    return bool((values >= 0.0).all() and (values == np.rint(values)).all())


def _estimate_kl(distribution: Any, values: Array, student: Student, rows: Any) -> float:
    """Estimate KL[teacher || student] of the predictive distributions.

    Parameters
    ----------
    distribution : predictive distribution
        Predictive distribution of the teacher at ``rows``.
    values : ndarray of shape (N, K)
        Class probabilities of the teacher, its quantiles at `normal_levels`, or draws of counts in
        ascending order.
    student : Student
        Student.
    rows : array or frame
        Held-out rows.

    Returns
    -------
    float
        Mean over rows in nats.
    """
    if student.classes_ is not None:
        p = values
        return float((xlogy(p, p) - xlogy(p, student.predict_proba(rows))).sum(axis=1).mean())
    if student.target_kind_ == "count":
        values = values[:, 3::8]
        level_weights = np.ones(values.shape[1])
    else:
        level_weights = np.exp(-0.5 * normal_levels() ** 2)
        if student.target_kind_ == "positive":
            values = raise_to_positive(values)
    differences = [
        distribution.log_prob(y) - student.log_predictive_density(rows, y) for y in values.T
    ]
    return float(np.average(np.mean(differences, axis=1), weights=level_weights))


def _draw_rows(model: BaseEstimator, inner: BaseEstimator, n: int, seed: int) -> Array:
    """Draw rows with the mean and scale of a model's training data.

    Parameters
    ----------
    model : fitted estimator
        Teacher.
    inner : fitted estimator
        The teacher without pipelines and searches around it.
    n : int
        Number of rows.
    seed : int
        Seed of the draws.

    Returns
    -------
    ndarray of shape (n, n_features)
        Rows.

    Raises
    ------
    ValueError
        If the model doesn't know the mean and scale of its columns.
    """
    mean = fitted_attribute(inner, "x_mean_")
    scale = fitted_attribute(inner, "x_scale_")
    is_table = fitted_attribute(inner, "columns_in_") is not None
    if inner is not model or mean is None or is_table:
        raise ValueError(
            "distill needs X for this model, which doesn't record the columns of its training "
            "data. Pass rows that resemble the rows to predict."
        )
    draws = np.random.default_rng(seed).standard_normal((n, len(mean)))
    return np.asarray(mean + scale * draws)
