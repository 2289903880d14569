"""A small network that predicts what a fitted model does."""

from collections.abc import Callable
from math import cos, pi
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import block_diag
from scipy.special import ndtr, xlogy
from sklearn.base import BaseEstimator, is_classifier
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import get_tags
from torch import Tensor

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.scikit_learn import num_samples, safe_indexing
from skbayes_sym.estimators.base import RowEstimator
from skbayes_sym.estimators.predictive import predictive
from skbayes_sym.inspection._fitted import fitted_model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.arguments import is_frame, seed_of
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.student import KINDS, Student, hidden


class Schooling(NamedTuple):
    """Size of a student, and of what it learns."""

    n_rows: int = 20_000  # that the teacher is asked for
    n_probed: int = 2_000  # that show what its networks read, and say
    most_networks: int = 50
    most_numbers: int = 15_000  # for their hidden units, 60 kB
    n_differences: int = 8  # between networks, that a student sees
    # Units a layer and steps. If the first loses `enough`, the better of two is kept: the second
    # has the teacher's networks, too, where it has any.
    first: tuple[int, int] = (32, 2000)
    with_networks: tuple[int, int] = (64, 6000)
    without: tuple[int, int] = (96, 8000)
    batch: int = 256
    enough: float = 0.002  # nats per row


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
    inner, seed, size = fitted_model(model).model, seed_of(random_state), Schooling()
    if not is_classifier(inner) and get_tags(inner).target_tags.positive_only:
        raise ValueError("distill takes no counts: a student's targets are real numbers.")
    X = _normal_rows(model, inner, size.n_rows // 5, seed) if X is None else X
    arrays, rows, n_held = _rows_to_learn(X, size.n_rows, np.random.default_rng(seed))
    law, held = predictive(model, rows), safe_indexing(rows, np.arange(n_held))
    answers = law.proba() if is_classifier(inner) else law.quantile(ndtr(normal_levels()))
    if answers.ndim > 2:
        raise ValueError("distill takes regressors of one target: distil one model for each.")
    of_held = predictive(model, held)

    def student(units: int, steps: int) -> Student:
        encoded = Student(arrays).encode(rows)
        said = encoded[:, len(arrays["units"])] if "units" in arrays else None
        if is_classifier(inner):
            start, loss, more = _of_labels(answers[n_held:], law.classes)
        else:
            start, loss, more = _of_numbers(answers, n_held, seed, said)
        x = torch.as_tensor(encoded)[n_held:]
        with one_thread():
            more |= _train(x, start, loss, (units, steps, size.batch), seed)
        lost = _lost(of_held, answers[:n_held], Student(arrays | more), held)
        return Student(arrays | more | {"lost": np.array(lost)})

    first = student(*size.first)
    if first.lost_ < size.enough:
        return first
    if not is_classifier(inner):
        arrays |= _of_networks(model, rows, arrays, size)
    second = student(*(size.with_networks if "units" in arrays else size.without))
    return min(first, second, key=lambda one: one.lost_)


def _lost(law: Any, p: Array, student: Student, rows: Any) -> float:
    """Nats per row that a student is worse, by its teacher's probabilities or quantiles ``p``."""
    if student.classes_ is not None:
        return float((xlogy(p, p) - xlogy(p, student.predict_proba(rows))).sum(axis=1).mean())
    off = [law.log_prob(y) - student.log_predictive_density(rows, y) for y in p.T]
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


def _rows_to_learn(
    X: Any, n_rows: int, rng: np.random.Generator
) -> tuple[dict[str, Array], Any, int]:
    """How a student reads the columns; rows held out, the others and rows between; how many held.

    A row between two neighbours has noise of up to a fifth of a standard deviation. Words, and
    numbers of at most ten values, are those of one of the two, one in ten times of any row.
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
    share, noise = rng.uniform(-0.2, 1.2, size=len(first)), 0.2 * rng.random(len(first)) ** 2
    numeric = dict(zip(numbers.tolist(), zip(values, scale, strict=True), strict=True))
    for j, column in enumerate(columns):
        some = np.where(rng.random(len(first)) < share, second, first)
        some = np.where(rng.random(len(first)) < 0.1, rng.choice(kept, len(first)), some)
        new = column[some]
        if j in numeric and len(np.unique(value := numeric[j][0])) > 10:
            between = value[first] + share * (value[second] - value[first])
            between += noise * numeric[j][1] * rng.standard_normal(len(first))
            new = np.where(np.isnan(between), value[some], between)
        columns[j] = np.concatenate([column[before], new])
    if not is_frame(X):
        return arrays, np.column_stack(columns), n_held
    return arrays, type(X)(dict(zip(X.columns, columns, strict=True))), n_held


def _of_networks(
    model: BaseEstimator, rows: Any, arrays: dict[str, Array], size: Schooling
) -> dict[str, Array]:
    """Hidden units of the teacher's networks, as a student's columns enter them.

    Their outputs are the networks' mean and the directions in which they differ most, each with
    spread 1. Units that move none of these go. Nothing where there are no networks of at most one
    hidden layer, or what they read is no linear map of the columns.
    """
    inner, prepare = fitted_model(model)
    if not isinstance(inner, RowEstimator):
        return {}
    some = safe_indexing(rows, np.arange(min(size.n_probed, num_samples(rows))))
    columns = Student(arrays).columns(some)
    columns = np.hstack([columns, np.ones((len(columns), 1))])
    blocks = [*inner._input_blocks(inner._check_inputs(prepare(some)))]
    by_block = [inner._predictor(block).networks(block) for block in blocks]
    into, out, names, shares = [], [], [], []
    for alike in zip(*by_block, strict=True):
        _, network, theta, weight = alike[0]
        if not (isinstance(network, MLP) and network.n_layers < 3 and network.n_outputs == 1):
            continue
        inputs = torch.cat([each.x for each in alike]).double().cpu().numpy()
        kind = network.activation.name
        read = np.linalg.lstsq(columns, inputs, rcond=None)[0]
        is_linear = len(columns) > 2 * len(read) and np.abs(columns @ read - inputs).max() < 1e-5
        if kind not in KINDS or not is_linear:
            continue
        (w, b), *last = network.layers(theta.double().cpu())
        enters = np.tensordot(read, w.numpy(), (1, 2))
        enters[-1] += b.numpy()
        into.append(enters.reshape(len(read), -1))
        out += [*last[0][0].mT.numpy()] if last else [np.ones((1, 1))] * len(w)
        names += [kind] * into[-1].shape[1]
        shares += weight.tolist()
    if not 0 < len(shares) <= size.most_networks:
        return {}
    kinds, p = np.array([KINDS.index(name) for name in names]), np.array(shares) / np.sum(shares)
    order = np.argsort(kinds, kind="stable")
    kinds, entering, outputs = kinds[order], np.hstack(into)[:, order], block_diag(*out)[order]
    units = hidden(columns @ entering, np.searchsorted(kinds, [1, 2]))
    # From outputs to what sets each apart from their mean, where shares are their variances.
    apart = (np.eye(len(p)) - p[:, None]) * np.sqrt(p)
    away, least = units @ outputs @ apart, 1e-6 * (units @ outputs).std()
    _, spread, axes = np.linalg.svd(away - away.mean(axis=0), full_matrices=False)
    n = int((spread[: size.n_differences] > max(0.01 * spread[0], least)).sum())
    outputs = outputs @ np.hstack([p[:, None], apart @ axes[:n].T])
    moved = (units @ outputs).std(axis=0)
    if not moved.all():  # a constant
        return {}
    outputs = outputs / moved
    kept = (units.std(axis=0)[:, None] * np.abs(outputs)).max(axis=1) > 1e-5
    entering, outputs, units = entering[:, kept], outputs[kept], units[:, kept]
    if entering.size + outputs.size > size.most_numbers:
        return {}
    learned = {
        "units": entering[:-1], "unit_bias": entering[-1],
        "features": outputs, "feature_bias": -(units @ outputs).mean(axis=0),
    }  # fmt: skip
    learned = {name: array.astype(np.float32) for name, array in learned.items()}
    return learned | {"ends": np.searchsorted(kinds[kept], [1, 2])}


# Outputs of some of the rows, and which, to their cross-entropies in nats, up to a constant.
Loss = Callable[[Tensor, Tensor], Tensor]


def normal_levels(n: int = 17) -> Array:
    """Levels of quantiles, as quantiles of a standard normal."""
    return np.linspace(-4.0, 4.0, n)


def _of_numbers(
    y: Array, n_held: int, seed: int, said: Array | None = None
) -> tuple[Tensor, Loss, dict[str, Array]]:
    """Learn three normals, from quantiles of every row at levels that move every step.

    Of levels that stay normals would become spikes. ``y`` (N, 17): quantiles at `normal_levels`;
    ``said`` (N,): mean of the teacher's networks, from which locations are counted.
    """
    generator, levels, line = generator_from(seed), normal_levels(), np.zeros(2)
    if said is not None:
        density = np.exp(-0.5 * levels**2)
        line = np.polyfit(said, y @ density / density.sum(), 1)
        y = y - np.polyval(line, said)[:, None]
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
    units = {"y_mean": mean + line[1], "y_scale": scale, "slope": line[0]}
    return start, loss, {name: np.array(unit) for name, unit in units.items()}


def _of_labels(proba: Array, classes: Array) -> tuple[Tensor, Loss, dict[str, Array]]:
    """Learn class probabilities (N, K)."""
    target = torch.as_tensor(proba).float()

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        return -(target[rows] * outputs.log_softmax(1)).sum(1)

    return target.mean(0).clamp_min(1e-6).log(), loss, {"classes": classes}


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
