"""A small network that predicts what a fitted model does."""

from dataclasses import dataclass
from math import cos, pi
from typing import Any, NamedTuple, Protocol

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


@dataclass(frozen=True)
class DistillEffort:
    """Numbers behind a student."""

    n_rows: int = 20_000  # that the teacher is asked for
    held_out: int = 500  # at most, of those given, and a fifth of them
    width: int = 96
    n_components: int = 3
    nodes: int = 7  # of Gauss and Hermite, over the teacher's quantiles
    steps: int = 4000
    batch: int = 256
    rate: float = 0.01  # Adam's
    turn: float = 0.02  # of the middle matrix, whose steps are orthogonal
    neighbours: int = 8  # between which rows are made
    jitter: float = 0.2  # standard deviations of a column
    most_words: int = 30  # of a column


def distill(model: BaseEstimator, X: Any = None, *, random_state: Any = 0) -> Student:
    r"""A small model that predicts what a fitted one does, by NumPy alone.

    A network with two hidden layers learns the predictive distribution of its teacher at rows of
    ``X`` and between neighbours of them,

    .. math:: \min_\phi\; E_x\, KL[\,p(y \mid x) \,\|\, q_\phi(y \mid x)\,],

    where the expectation over y is a Gauss-Hermite sum over the teacher's quantiles. It needs no
    targets.

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
    Some ten seconds of one core. Rows unlike all of ``X`` get an answer, and no wider one.

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
    inner, seed, effort = fitted_model(model).model, seed_of(random_state), DistillEffort()
    if not is_classifier(inner) and get_tags(inner).target_tags.positive_only:
        raise ValueError("distill takes no counts: a student's targets are real numbers.")
    table = Table.of(_normal_rows(model, inner, effort.n_rows // 5, seed) if X is None else X)
    rows, n_held = table.between(effort, np.random.default_rng(seed))
    arrays, law = table.encoding(effort), predictive(model, rows)
    if is_classifier(inner):
        lessons: Lessons = Labels(torch.as_tensor(law.proba()).float())
        arrays["classes"] = law.classes
    else:
        lessons = _numbers(law, effort)
        arrays |= {"y_mean": np.array(lessons.mean), "y_scale": np.array(lessons.scale)}
    x = torch.as_tensor(Student(arrays).encode(rows))
    with one_thread():
        arrays |= _train(x[n_held:], lessons, n_held, effort, seed)
    held = safe_indexing(rows, np.arange(n_held))
    arrays["lost"] = np.array(_lost(predictive(model, held), Student(arrays), held, seed))
    return Student(arrays)


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


class Table(NamedTuple):
    """Rows as they were given, and what their columns hold."""

    X: Any
    columns: list[Array]
    numbers: list[int]  # positions of columns of numbers
    words: list[int]  # of the others

    @classmethod
    def of(cls, X: Any) -> "Table":
        """Columns of a frame, or of an array of numbers or objects."""
        columns = [np.asarray(X[name]) for name in X.columns] if is_frame(X) else [*np.asarray(X).T]
        columns = [
            column.astype(np.float64)
            if column.dtype == object and not any(isinstance(value, str) for value in column)
            else column
            for column in columns
        ]
        numbers = [j for j, column in enumerate(columns) if column.dtype.kind in "iufb"]
        return cls(X, columns, numbers, sorted({*range(len(columns))} - {*numbers}))

    @property
    def values(self) -> Array:
        """Numbers (N, d)."""
        columns = [self.columns[j].astype(np.float64) for j in self.numbers]
        return np.stack(columns, axis=1) if columns else np.empty((len(self.columns[0]), 0))

    def encoding(self, effort: DistillEffort) -> dict[str, Array]:
        """How a student reads the columns."""
        values = self.values
        scale = np.nanstd(values, axis=0)
        arrays = {
            "numbers": np.array(self.numbers, dtype=int), "mean": np.nanmean(values, axis=0),
            "scale": np.where(scale > 0.0, scale, 1.0), "marked": np.isnan(values).any(axis=0),
            "places": np.array(self.words, dtype=int),
        }  # fmt: skip
        for j in self.words:
            names, counts = np.unique(self.columns[j].astype(str), return_counts=True)
            arrays[f"words{j:05}"] = names[np.argsort(-counts, kind="stable")[: effort.most_words]]
        return arrays

    def between(self, effort: DistillEffort, rng: np.random.Generator) -> tuple[Any, int]:
        """Rows held out, the others, and rows between neighbours of these; how many are held out.

        Columns of at most ten values, and words, take those of one of the two neighbours.
        """
        n, values = len(self.columns[0]), self.values
        n_held = min(effort.held_out, n // 5)
        held, kept = np.split(rng.permutation(n), [n_held])
        kept = kept[: effort.n_rows]
        encoded = Student(self.encoding(effort)).encode(self.X)[kept]
        k, n_more = min(effort.neighbours, len(kept)), max(effort.n_rows - len(kept), 0)
        near = NearestNeighbors(n_neighbors=k).fit(encoded).kneighbors(encoded)[1]
        first, among = rng.integers(len(kept), size=n_more), rng.integers(k, size=n_more)
        one = np.concatenate([held, kept, kept[first]])
        two = np.concatenate([held, kept, kept[near[first, among]]])
        share = rng.uniform(-0.2, 1.2, size=len(one))
        taken = np.where(share < 0.5, one, two)
        columns = [column[taken] for column in self.columns]
        noise = effort.jitter * (np.arange(len(one)) >= n_held + len(kept))
        for j, value in zip(self.numbers, values.T, strict=True):
            mixed = value[one] + share * (value[two] - value[one])
            if len(np.unique(value)) > 10:
                mixed += noise * np.nanstd(value) * rng.standard_normal(len(mixed))
                columns[j] = np.where(np.isnan(mixed), value[taken], mixed)
        if not is_frame(self.X):
            return np.column_stack(columns), n_held
        return type(self.X)(dict(zip(self.X.columns, columns, strict=True))), n_held


class Lessons(Protocol):
    """What a teacher says of M rows."""

    @property
    def start(self) -> Tensor:
        """Outputs to begin with, (O,)."""

    def loss(self, outputs: Tensor, rows: Any) -> Tensor:
        """Cross-entropies of the rows, nats, up to a constant."""


class Numbers(NamedTuple):
    """Quantiles of targets."""

    y: Tensor  # (M, Q), scaled
    weight: Tensor  # (Q,)
    mean: float
    scale: float
    n_components: int

    @property
    def start(self) -> Tensor:
        apart = torch.linspace(-0.1, 0.1, self.n_components)
        return torch.cat([torch.zeros_like(apart), apart, torch.full_like(apart, -1.0)])

    def loss(self, outputs: Tensor, rows: Any) -> Tensor:
        logits, loc, log_scale = outputs.unsqueeze(1).chunk(3, dim=2)
        z = (self.y[rows].unsqueeze(2) - loc) * (-log_scale).exp()
        logs = logits.log_softmax(2) - 0.5 * z.square() - log_scale
        return -logs.logsumexp(2) @ self.weight


def _numbers(law: Any, effort: DistillEffort) -> Numbers:
    """Gauss-Hermite nodes of every row's law."""
    nodes, weight = np.polynomial.hermite.hermgauss(effort.nodes)
    y = law.quantile(ndtr(2.0**0.5 * nodes))
    if y.ndim > 2:
        raise ValueError("distill takes regressors of one target: distil one model for each.")
    mean, scale = float(y.mean()), float(y.std()) or 1.0
    weights = torch.as_tensor(weight / weight.sum()).float()
    scaled = torch.as_tensor((y - mean) / scale).float()
    return Numbers(scaled, weights, mean, scale, effort.n_components)


class Labels(NamedTuple):
    """Class probabilities (M, C)."""

    proba: Tensor

    @property
    def start(self) -> Tensor:
        return self.proba.mean(0).clamp_min(1e-6).log()

    def loss(self, outputs: Tensor, rows: Any) -> Tensor:
        return -(self.proba[rows] * outputs.log_softmax(1)).sum(1)


def _train(
    x: Tensor, lessons: Lessons, first: int, effort: DistillEffort, seed: int
) -> dict[str, Array]:
    """Weights of the network, from inputs of the teacher's rows from the ``first`` on.

    The middle matrix moves by orthogonal steps (Muon; Jordan et al. 2024), which halve the steps
    that Adam needs; all else by Adam.
    """
    generator, start = generator_from(seed), lessons.start
    sizes = (x.shape[1], effort.width, effort.width, len(start))

    def normal(n: int, m: int, scale: float = 1.0) -> Tensor:
        return torch.randn(n, m, generator=generator) * (scale / n**0.5)

    weights = {
        "weight0": normal(sizes[0], sizes[1]), "bias0": normal(1, sizes[1])[0],
        "weight1": normal(sizes[1], sizes[2]), "bias1": torch.zeros(sizes[2]),
        "weight2": normal(sizes[2], sizes[3], 0.1), "bias2": start.clone(),
        "weight3": torch.zeros(sizes[0], sizes[3]),
    }  # fmt: skip

    def outputs(x: Tensor) -> Tensor:
        h = (x @ weights["weight0"] + weights["bias0"]).tanh()
        h = (h @ weights["weight1"] + weights["bias1"]).tanh()
        return h @ weights["weight2"] + weights["bias2"] + x @ weights["weight3"]

    for weight in weights.values():
        weight.requires_grad_()
    middle, speed = weights["weight1"], torch.zeros(sizes[1], sizes[2])
    others = [weight for weight in weights.values() if weight is not middle]
    adam = torch.optim.Adam(others, lr=effort.rate, betas=(0.9, 0.99))
    for step in range(effort.steps):
        pace = min(1.0, (step + 1) / 100) * 0.5 * (1.0 + cos(pi * step / effort.steps))
        rows = torch.randint(len(x), (effort.batch,), generator=generator)
        loss = lessons.loss(outputs(x[rows]), first + rows).mean()
        for weight in weights.values():
            weight.grad = None
        loss.backward()
        adam.param_groups[0]["lr"] = effort.rate * pace
        adam.step()
        with torch.no_grad():
            assert middle.grad is not None
            speed.mul_(0.95).add_(middle.grad)
            middle -= effort.turn * pace * _orthogonal(middle.grad + 0.95 * speed)
    return {name: weight.detach().numpy() for name, weight in weights.items()}


def _orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly: five steps of Newton and Schulz."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x
