"""A small network that predicts what a fitted model does."""

from collections.abc import Callable
from math import cos, pi
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr, xlogy
from sklearn.base import BaseEstimator, is_classifier
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import get_tags
from torch import Tensor

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.scikit_learn import safe_indexing
from skbayes_sym.estimators.predictive import predictive
from skbayes_sym.inspection._fitted import fitted_model
from skbayes_sym.numerics.arguments import is_frame, seed_of
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.student import Student


class Schooling(NamedTuple):
    """Size of a student, and of what it learns."""

    n_rows: int = 20_000  # that the teacher is asked for
    # Units a layer and steps. The first that loses less than `enough` is kept, else the better.
    sizes: tuple[tuple[int, int], ...] = ((32, 2000), (96, 8000))
    batch: int = 256
    enough: float = 0.002  # nats per row


def distill(model: BaseEstimator, X: Any = None, *, random_state: Any = 0) -> Student:
    r"""A small model that predicts what a fitted one does, by NumPy alone.

    A network with two hidden layers learns the predictive distribution of its teacher at rows of
    ``X`` and between neighbours of them,

    .. math:: \min_\phi\; E_x\, KL[\,p(y \mid x) \,\|\, q_\phi(y \mid x)\,],

    where the expectation over y is a sum over the teacher's quantiles at levels drawn anew for each
    step. It needs no targets.

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
    A quarter of a minute to a minute of one core. Rows unlike all of ``X`` get an answer, and no
    wider one.

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
    inner, seed, size = fitted_model(model).model, seed_of(random_state), Schooling()
    if not is_classifier(inner) and get_tags(inner).target_tags.positive_only:
        raise ValueError("distill takes no counts: a student's targets are real numbers.")
    X = _normal_rows(model, inner, size.n_rows // 5, seed) if X is None else X
    arrays, rows, n_held = _rows_to_learn(X, size.n_rows, np.random.default_rng(seed))
    law = predictive(model, rows)
    learn = _of_labels if is_classifier(inner) else _of_numbers
    start, loss, more = learn(law, n_held, seed)
    arrays |= more
    x = torch.as_tensor(Student(arrays).encode(rows))[n_held:]
    held, students = safe_indexing(rows, np.arange(n_held)), []
    of_held = predictive(model, held)
    for units, steps in size.sizes:
        with one_thread():
            weights = _train(x, start, loss, (units, steps, size.batch), seed)
        lost = _lost(of_held, Student(arrays | weights), held, seed)
        students.append(Student(arrays | weights | {"lost": np.array(lost)}))
        if lost < size.enough:
            break
    return min(students, key=lambda student: student.lost_)


def _lost(law: Any, student: Student, rows: Any, seed: int) -> float:
    """Nats per row that a student is worse on labels or targets drawn from its teacher."""
    if student.classes_ is not None:
        p, q = law.proba(), student.predict_proba(rows)
        return float((xlogy(p, p) - xlogy(p, q)).sum(axis=1).mean())
    draws = law.sample(20, seed % 2**32).T
    off = [law.log_prob(y) - student.log_predictive_density(rows, y) for y in draws]
    return float(np.mean(off))


def _normal_rows(model: BaseEstimator, inner: BaseEstimator, n: int, seed: int) -> Array:
    """Rows about those that a bare model was fitted to."""
    known = vars(inner)
    if inner is not model or "x_mean_" not in known or known.get("columns_in_") is not None:
        raise ValueError(
            "distill needs X, rows like those to predict: this model doesn't know its columns."
        )
    draws = np.random.default_rng(seed).standard_normal((n, len(known["x_mean_"])))
    return np.asarray(known["x_mean_"] + known["x_scale_"] * draws)


def _rows_to_learn(
    X: Any, n_rows: int, rng: np.random.Generator
) -> tuple[dict[str, Array], Any, int]:
    """How a student reads the columns; rows held out, the others and rows between; how many held.

    A row between two neighbours has noise of a fifth of a standard deviation. Words, and numbers of
    at most ten values, are those of one of the two, one in ten times of any row.
    """
    columns = [np.asarray(X[name]) for name in X.columns] if is_frame(X) else [*np.asarray(X).T]
    has_words = [
        column.dtype.kind not in "iufb" and any(isinstance(value, str) for value in column)
        for column in columns
    ]
    numbers, words = np.flatnonzero(~np.array(has_words)), np.flatnonzero(has_words)
    values = np.array([columns[j].astype(np.float64) for j in numbers]).reshape(-1, len(columns[0]))
    scale = np.nanstd(values, axis=1)
    arrays = {
        "numbers": numbers, "mean": np.nanmean(values, axis=1), "places": words,
        "scale": np.where(scale > 0.0, scale, 1.0), "marked": np.isnan(values).any(axis=1),
    }  # fmt: skip
    for j in words.tolist():
        names, counts = np.unique(columns[j].astype(str), return_counts=True)
        arrays[f"words{j:05}"] = names[np.argsort(-counts, kind="stable")[:30]]
    n_held = min(500, len(columns[0]) // 5)
    held, kept = np.split(rng.permutation(len(columns[0])), [n_held])
    kept, encoded = kept[:n_rows], Student(arrays).encode(X)[kept[:n_rows]]
    n_near = min(len(kept), max(8, 4000 // len(kept)))
    near = NearestNeighbors(n_neighbors=n_near).fit(encoded).kneighbors(encoded)[1]
    first = rng.integers(len(kept), size=max(n_rows - len(kept), 0))
    second = kept[near[first, rng.integers(n_near, size=len(first))]]
    first, before = kept[first], np.concatenate([held, kept])
    share = rng.uniform(-0.2, 1.2, size=len(first))
    numeric = dict(zip(numbers.tolist(), zip(values, scale, strict=True), strict=True))
    for j, column in enumerate(columns):
        some = np.where(rng.random(len(first)) < share, second, first)
        some = np.where(rng.random(len(first)) < 0.1, rng.choice(kept, len(first)), some)
        new = column[some]
        if j in numeric and len(np.unique(value := numeric[j][0])) > 10:
            between = value[first] + share * (value[second] - value[first])
            between += 0.2 * numeric[j][1] * rng.standard_normal(len(first))
            new = np.where(np.isnan(between), value[some], between)
        columns[j] = np.concatenate([column[before], new])
    if not is_frame(X):
        return arrays, np.column_stack(columns), n_held
    return arrays, type(X)(dict(zip(X.columns, columns, strict=True))), n_held


# Outputs of some of the rows, and which, to their cross-entropies in nats, up to a constant.
Loss = Callable[[Tensor, Tensor], Tensor]


def _of_numbers(law: Any, n_held: int, seed: int) -> tuple[Tensor, Loss, dict[str, Array]]:
    """Learn three normals, from quantiles of every row's law at levels that move every step.

    Of levels that stay normals would become spikes.
    """
    levels, generator = np.linspace(-4.0, 4.0, 17), generator_from(seed)
    y = law.quantile(ndtr(levels))
    if y.ndim > 2:
        raise ValueError("distill takes regressors of one target: distil one model for each.")
    mean, scale = y.mean(), y.std() or 1.0
    scaled, below = (torch.as_tensor(a).float() for a in ((y[n_held:] - mean) / scale, levels[:-1]))

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        logits, loc, log_scale = outputs.unsqueeze(1).chunk(3, dim=2)
        share = torch.rand(1, generator=generator)
        weights = (-0.5 * (below + 0.5 * share).square()).softmax(0)
        target = scaled[rows]
        target = target[:, :-1] + share * target.diff(dim=1)
        z = (target.unsqueeze(2) - loc) * (-log_scale).exp()
        return -(logits.log_softmax(2) - 0.5 * z.square() - log_scale).logsumexp(2) @ weights

    start = torch.tensor([0.0, 0.0, 0.0, -0.1, 0.0, 0.1, -1.0, -1.0, -1.0])
    return start, loss, {"y_mean": np.array(mean), "y_scale": np.array(scale)}


def _of_labels(law: Any, n_held: int, seed: int) -> tuple[Tensor, Loss, dict[str, Array]]:
    """Learn class probabilities."""
    proba = torch.as_tensor(law.proba()[n_held:]).float()

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        return -(proba[rows] * outputs.log_softmax(1)).sum(1)

    return proba.mean(0).clamp_min(1e-6).log(), loss, {"classes": law.classes}


def _train(
    x: Tensor, start: Tensor, loss: Loss, size: tuple[int, int, int], seed: int
) -> dict[str, Array]:
    """Weights of a network; ``start`` (O,): outputs to begin with; units, steps and rows a step.

    The middle matrix moves by orthogonal steps (Muon; Jordan et al. 2024), which takes half the
    steps that Adam does; all else by Adam. Inputs are whitened, which columns that go together
    need; directions that hardly vary stay small.
    """
    generator, d, n_outputs = generator_from(seed), x.shape[1], len(start)
    h, n_steps, batch = size
    variance, axes = torch.linalg.eigh(x.T.double().cov(correction=0).reshape(d, d))
    whiten = (axes / (variance + 1e-3 * variance[-1].clamp_min(1e-12)).sqrt()).float()
    x = x @ whiten

    def normal(n: int, m: int, scale: float) -> Tensor:
        return torch.randn(n, m, generator=generator) * scale

    weights = {
        "weight0": normal(d, h, d**-0.5), "bias0": normal(1, h, 1.0)[0],
        "weight1": normal(h, h, h**-0.5), "bias1": torch.zeros(h),
        "weight2": normal(h, n_outputs, 0.1 * h**-0.5), "bias2": start.clone(),
        "weight3": torch.zeros(d, n_outputs),
    }  # fmt: skip

    def outputs(x: Tensor) -> Tensor:
        h = (x @ weights["weight0"] + weights["bias0"]).tanh()
        h = (h @ weights["weight1"] + weights["bias1"]).tanh()
        return h @ weights["weight2"] + weights["bias2"] + x @ weights["weight3"]

    for weight in weights.values():
        weight.requires_grad_()
    middle, speed = weights["weight1"], torch.zeros(h, h)
    adam = torch.optim.Adam([w for w in weights.values() if w is not middle], betas=(0.9, 0.99))
    for step in range(n_steps):
        pace = min(1.0, (step + 1) / 100) * 0.5 * (1.0 + cos(pi * step / n_steps))
        rows = torch.randint(len(x), (batch,), generator=generator)
        total = loss(outputs(x[rows]), rows).mean()
        for weight in weights.values():
            weight.grad = None
        total.backward()
        adam.param_groups[0]["lr"] = 0.01 * pace
        adam.step()
        with torch.no_grad():
            assert middle.grad is not None
            speed.mul_(0.95).add_(middle.grad)
            middle -= 1.6e-4 * h * pace * _orthogonal(middle.grad + 0.95 * speed)
    learned = {name: weight.detach() for name, weight in weights.items()}
    learned |= {name: whiten @ learned[name] for name in ("weight0", "weight3")}
    return {name: weight.numpy() for name, weight in learned.items()}


def _orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly: five steps of Newton and Schulz."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x
