"""A small network that predicts what a fitted model does."""

from typing import Any

import numpy as np
import torch
from scipy.special import ndtr, xlogy
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import get_tags

from skbayes_sym.base.device import one_thread
from skbayes_sym.base.predictive import predictive
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples, safe_indexing
from skbayes_sym.base.warnings import collect_warnings
from skbayes_sym.distillation.augmentation import rows_to_learn, teacher_columns
from skbayes_sym.distillation.student_training import (
    StudentConfig,
    classification_lesson,
    normal_levels,
    regression_lesson,
    train,
)
from skbayes_sym.distillation.teacher_features import network_units
from skbayes_sym.inspection._fitted import fitted_model
from skbayes_sym.numerics.arguments import draw_seed
from skbayes_sym.student import Student


def distill(model: BaseEstimator, X: Any = None, *, random_state: Any = 0) -> Student:
    r"""A small model that predicts what a fitted one does, by NumPy alone.

    A network with two hidden layers learns the predictive distribution of its teacher at rows of
    ``X`` and between neighbours of them,

    .. math:: \min_\phi\; E_x\, KL[\,p(y \mid x) \,\|\, q_\phi(y \mid x)\,],

    where the expectation over y is a sum over the teacher's quantiles at levels drawn anew for each
    step. It needs no targets. A student of networks that loses more than .002 nats per row takes
    over their hidden units, those of one layer, and learns what their mean and differences leave.

    Parameters
    ----------
    model : fitted estimator
        What `predictive` takes: of this package or another, a pipeline or a search whole. Of
        numbers that aren't counts, one target.
    X : array-like of shape (n_samples, n_features), optional
        Rows like those to predict, as the model takes them, some hundred at least. By default
        normal ones about the level of the training rows, which a bare model of numbers knows;
        rows themselves are better.
    random_state : int, RandomState instance or None, default=0

    Returns
    -------
    Student
        Small model; ``lost_`` says how many nats per row it is worse than its teacher.

    Raises
    ------
    ValueError
        If there are no rows to learn from, several targets or counts.

    Notes
    -----
    A quarter of a minute to a minute of one core. Rows unlike all of ``X`` get no wider answer.
    Source: Bishop (1994), mixture density networks.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianMLPRegressor, distill
    >>> X, y = load_diabetes(return_X_y=True)
    >>> student = distill(BayesianMLPRegressor().fit(X, y), X)  # doctest: +SKIP
    >>> mean, std = student.predict(X, return_std=True)  # doctest: +SKIP
    """
    inner = fitted_model(model).model
    seed = draw_seed(random_state)
    size = StudentConfig()
    if not is_classifier(inner) and get_tags(inner).target_tags.positive_only:
        raise ValueError("distill takes no counts: a student's targets are real numbers.")
    X = _normal_rows(model, inner, size.n_rows // 5, seed) if X is None else X
    if num_samples(X) < 10:
        raise ValueError(f"distill needs some hundred rows to learn from, got {num_samples(X)}.")
    teacher = teacher_columns(model, X)
    arrays, rows, n_held = rows_to_learn(X, size.n_rows, np.random.default_rng(seed), teacher)
    with collect_warnings():  # some of the rows have unknown levels on purpose
        distribution = predictive(model, rows)
        answers = (
            distribution.proba()
            if is_classifier(inner)
            else distribution.quantile(ndtr(normal_levels()))
        )
    held = safe_indexing(rows, np.arange(n_held))
    if answers.ndim > 2:
        raise ValueError("distill takes regressors of one target: distil one model for each.")
    of_held = predictive(model, held)

    def student(units: int, steps: int) -> Student:
        encoded = Student(arrays).encode(rows)
        said = encoded[:, len(arrays["units"])] if "units" in arrays else None
        if is_classifier(inner):
            start, loss, more = classification_lesson(answers[n_held:], distribution.classes)
        else:
            start, loss, more = regression_lesson(answers, n_held, seed, said)
        x = torch.as_tensor(encoded)[n_held:]
        with one_thread():
            more |= train(x, start, loss, (units, steps, size.batch), seed)
        lost = _lost(of_held, answers[:n_held], Student(arrays | more), held)
        return Student(arrays | more | {"lost": np.array(lost)})

    first = student(*size.first)
    if first.lost_ < size.enough:
        return first
    if not is_classifier(inner):
        with collect_warnings():
            arrays |= network_units(model, rows, arrays, size)
    second = student(*(size.with_networks if "units" in arrays else size.without))
    return min(first, second, key=lambda one: one.lost_)


def _lost(distribution: Any, p: Array, student: Student, rows: Any) -> float:
    """Nats per row that a student is worse, by its teacher's probabilities or quantiles ``p``."""
    if student.classes_ is not None:
        return float((xlogy(p, p) - xlogy(p, student.predict_proba(rows))).sum(axis=1).mean())
    off = [distribution.log_prob(y) - student.log_predictive_density(rows, y) for y in p.T]
    return float(np.average(np.mean(off, axis=1), weights=np.exp(-0.5 * normal_levels() ** 2)))


def _normal_rows(model: BaseEstimator, inner: BaseEstimator, n: int, seed: int) -> Array:
    """Rows about those that a bare model was fitted to."""
    known = vars(inner)
    if inner is not model or "x_mean_" not in known or known.get("columns_in_") is not None:
        raise ValueError(
            "distill needs X, rows like those to predict: this model doesn't know its columns."
        )
    draws = np.random.default_rng(seed).standard_normal((n, len(known["x_mean_"])))
    return np.asarray(known["x_mean_"] + known["x_scale_"] * draws)
