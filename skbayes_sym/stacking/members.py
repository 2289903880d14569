"""Kinds of models that a stack is made of, each with the rows that it leaves out.

A member is fitted to all rows and says of every row what it would say without it: in closed form,
by the trees that haven't seen the row, by its own approximation, or by folds. `StackTask` are the
rows, `Fit` is the answer.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import joblib
import numpy as np
import torch
from sklearn import config_context
from sklearn.base import clone
from torch import Tensor

from skbayes_sym.base.progress import fit_deadline
from skbayes_sym.base.rows import Array
from skbayes_sym.base.sample_weights import fit_with_weights, weight_support
from skbayes_sym.base.stacking_weights import leave_one_out
from skbayes_sym.base.warnings import collect_warnings
from skbayes_sym.bayesian_mlp.estimators import BayesianMLPClassifier, BayesianMLPRegressor
from skbayes_sym.laplace.defaults import GaussNewtonDefaults
from skbayes_sym.linear.estimators import BayesianLinearRegressor
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.stacking.gaussian_process import GaussianProcessDefaults, fit_process
from skbayes_sym.stacking.predictors import (
    CountsPredictor,
    EstimatorPredictor,
    RowBlock,
    Trees,
    TreesPredictor,
    UserPredictor,
)

LEAST_VARIANCE = 1e-12  # of noise before it has a level, scaled units


@dataclass(frozen=True)
class StackDefaults:
    """Numbers behind a stack."""

    folds: int = 5
    # A prior under which members count: the best is worth a row beforehand, one that is behind by
    # this many nats per row 1/e of one. If all are worth a row, tables of 30 rows lose .013 nats;
    # if none is, one of them loses 6.8.
    forgiven: float = 1.0
    # Rows that a process of numbers is worth: few points of a function have .96 of the error, and
    # tables of 12 rows don't mind.
    process_rows: float = 4.0
    least_weight: float = 1e-3  # of a member that is asked for predictions
    least_again: float = 0.05  # and of one that a warm start fits again
    growth: float = 1.5  # times the rows of the last full fit: the next full one
    # Networks that are this far behind the best other member after two modes, of three units or of
    # the usual width, add nothing (nats per row), in 12 tables of 22.
    race: float = 0.1
    n_probes: int = 2
    few_rows: int = 100  # up to which three units that are twice as far behind are enough to tell
    # Networks with more weights than this share of the rows are judged by a refit that leaves a
    # fold out, which labels begin with (1,261 weights, 1,000 rows: promised +.21, kept -4.63).
    most_weights_a_row: float = 0.5
    n_trees: int = 200
    leaf_share: float = 0.1  # of the out-of-bag mean square, added to the leaves' variance
    most_rounds: int = 150  # of boosting; as many as predict left-out rows best
    rounds_of_labels: int = 120
    trees_of_labels: int = 600  # of all classes together
    fewest_rounds: int = 30
    learning_rate: float = 0.1
    leaves: int = 15
    rows_a_leaf: int = 10
    bins: int = 8192  # of all columns, at most 255 each
    fewest_bins: int = 32


@dataclass(frozen=True, eq=False)
class StackTask:
    """Rows that members are fitted to: distinct ones, with their weights.

    ``y`` (N, 1) in scaled units, or codes (N,); ``targets`` (N,): numbers or labels as they were
    given; ``folds``: training and left-out rows; ``of_y``: mean and scale of the targets;
    ``classes``: of labels.
    """

    rows: RowBlock
    y: Tensor
    weight: Tensor
    targets: Array
    folds: Sequence[tuple[Array, Array]]
    seed: int
    of_y: tuple[float, float] = (0.0, 1.0)
    classes: Array | None = None
    device: str = "auto"  # of networks, like the next
    n_jobs: int | None = None
    deadline: float = float("inf")  # of time.monotonic()
    effort: StackDefaults = StackDefaults()
    n_searched: int = 0  # rows of the last full fit, if this one goes on from it
    is_counts: bool = False  # whether all members are scored by their probabilities of counts

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def data(self) -> Data:
        """Encoded rows, scaled targets or codes, weights."""
        return Data(self.rows.x, self.y, self.weight)

    @property
    def n_classes(self) -> int:
        """0 of numbers."""
        return 0 if self.classes is None else len(self.classes)

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """The same for scikit-learn: `data` in NumPy, targets with one axis."""
        x, y, weight = (t.numpy() for t in self.data)
        return x, y.reshape(-1), weight

    def take(self, places: Array) -> "StackTask":
        """Some of the rows."""
        chosen = torch.as_tensor(places)
        return replace(
            self, rows=self.rows.take(places), y=self.y[chosen], weight=self.weight[chosen],
            targets=self.targets[places], folds=(),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted member, in the stack's units.

    ``left_out``: a law of numbers (S, N, 1), scores of labels (N, K), or the log density (N,)
    itself, nan of rows that it doesn't know of; None asks for folds, ``is_by_folds`` says that they
    were made. ``is_final``: whether the part is to be taken as it is, without a noise shape or a
    calibration; ``is_point_prediction``: whether its noise is 1 for lack of another; ``optimism``:
    nats per row that left-out rows promise too much.
    """

    part: Any
    leave_one_out: NormalMixture | Tensor | None = None
    is_final: bool = False
    is_point_prediction: bool = False
    optimism: float = 0.0
    is_by_folds: bool = False


class Member(Protocol):
    """A kind of model."""

    def fit(self, task: StackTask) -> Fit:
        """Fit to all rows of the task."""


class Linear:
    """The Bayesian linear model, with left-out rows in closed form; of labels approximately."""

    def fit(self, task: StackTask) -> Fit:
        x, y, weight = task.arrays
        if task.n_classes:
            seed = task.seed % 2**32
            labels = BayesianMLPClassifier((), n_modes=1, device="cpu", random_state=seed)
            with config_context(skip_parameter_validation=True):
                labels.set_params(n_members=0).fit(x, task.targets, weight).set_params(n_members=1)
            density = labels.leave_one_out_log_density
            known = None if density is None else torch.as_tensor(density)
            return Fit(EstimatorPredictor(labels), known, is_final=True)
        seed = task.seed % 2**32
        linear = BayesianLinearRegressor(device="cpu", random_state=seed).fit(x, y, weight)
        linear._noise_levels_ = None  # left-out rows determine the level instead
        part = EstimatorPredictor(linear)
        distribution = part.distribution(task.rows.x)
        # The intercept has seen the rows, too; the posterior holds the coefficients alone.
        distribution = replace(
            distribution,
            variance=distribution.variance + distribution.noise_variance / weight.sum(),
        )
        return Fit(part, leave_one_out(distribution, task.y, task.weight))


class Process:
    """A Gaussian process, of labels by a regression of their one-hot codes."""

    def fit(self, task: StackTask) -> Fit:
        effort = GaussianProcessDefaults()
        data = task.data
        if task.n_classes:
            one_hot = torch.nn.functional.one_hot(data.y, task.n_classes).to(data.x)
            data = data._replace(y=one_hot)
        std = effort.scale_std_of_labels if task.n_classes else effort.scale_std
        process, distribution = fit_process(data, task.seed, std, effort)
        if task.n_classes:
            return Fit(process, distribution.loc[0])
        # Every scale that was fitted has seen the rows (Akaike's criterion).
        return Fit(process, distribution, optimism=len(process.position) / len(task))


class Forest:
    """Extremely randomised trees (Geurts et al. 2006) with out-of-bag rows."""

    def fit(self, task: StackTask) -> Fit:
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        (x, y, weight) = task.arrays
        effort = task.effort
        kind = ExtraTreesClassifier if task.n_classes else ExtraTreesRegressor
        forest = kind(effort.n_trees, bootstrap=True, random_state=task.seed % 2**32)
        with filters_lock:
            forest.fit(x, y, weight)
        parts = []
        values = []
        for one in forest.estimators_:
            tree = one.tree_
            value = one.tree_.value[:, 0]
            parts.append((tree.feature, tree.threshold, tree.children_left, tree.children_right))
            if task.n_classes:  # class frequencies of every node
                full = np.zeros((len(value), task.n_classes))
                full[:, one.classes_.astype(int)] = value / value.sum(axis=1, keepdims=True)
            else:  # the mean and mean square of its targets
                full = np.column_stack([value[:, 0], tree.impurity + value[:, 0] ** 2])
            values.append(full)
        depth = max(one.tree_.max_depth for one in forest.estimators_)
        trees = _joined(parts, values, depth, rounds=True)
        bagged = np.stack([np.bincount(s, minlength=len(y)) for s in forest.estimators_samples_], 1)
        out = torch.as_tensor(bagged == 0)
        average = torch.cat([
            _average(trees.values(task.rows.x[rows]), out[rows])
            for rows in torch.arange(len(y)).split(1000)
        ]).unsqueeze(1)  # fmt: skip
        if task.n_classes:
            counts = np.bincount(y, weight, task.n_classes) + 0.5
            part = TreesPredictor(trees, 0.0, counts / counts.sum(), 0.5 / effort.n_trees)
            return Fit(part, part.from_values(average))
        off = (task.y - average[:, 0, :1]).square()[:, 0]
        spread = effort.leaf_share * float(task.weight @ off / task.weight.sum())
        spread = max(spread, LEAST_VARIANCE)
        part = TreesPredictor(trees, spread, np.zeros(1), 0.0)
        return Fit(part, part.from_averages(average))


def _average(values: Tensor, out: Tensor) -> Tensor:
    """Average (N, V) over the trees that haven't seen a row, over all where every one has."""
    share = torch.where(out.any(1, keepdim=True), out, True).to(values)
    return torch.einsum("nt,ntv->nv", share / share.sum(1, keepdim=True), values)


def _joined(
    parts: Sequence[tuple[Array, ...]], values: Sequence[Array], depth: int, *, rounds: bool
) -> Trees:
    """Nodes one after the other; children of leaves, which are negative or 0, are themselves."""
    roots = np.cumsum([0, *(len(v) for v in values)])
    arrays: list[list[Array]] = [[], [], [], []]
    for root, (column, threshold, below, above) in zip(roots[:-1], parts, strict=True):
        itself = np.arange(len(column))
        is_leaf = np.asarray(below) <= 0
        arrays[0].append(np.where(is_leaf, 0, column).astype(np.int64))
        arrays[1].append(np.asarray(threshold, dtype=np.float64))
        for place, child in ((2, below), (3, above)):
            arrays[place].append((root + np.where(is_leaf, itself, child)).astype(np.int64))
    column, threshold, below, above = (np.concatenate(a) for a in arrays)
    return Trees(column, threshold, below, above, np.concatenate(values), roots[:-1], depth, rounds)


class Boosting:
    """Histogram gradient boosting, of as many rounds as predict left-out rows best."""

    def fit(self, task: StackTask) -> Fit:
        (x, y, weight) = task.arrays
        n_classes = task.n_classes
        effort = task.effort
        most = effort.most_rounds
        if n_classes:
            few = effort.trees_of_labels // (n_classes if n_classes > 2 else 1)
            most = max(effort.fewest_rounds, min(effort.rounds_of_labels, few))
        if max(len(y), weight.sum()) < 2 * effort.rows_a_leaf:
            most = 1  # no leaf is ever divided, of which rows count, not their weight
        staged = np.zeros((most, len(y), max(n_classes, 1)))
        for train, test in task.folds:
            model = self._fitted(task, most, train)
            stages = model.staged_predict_proba if n_classes else model.staged_predict
            with filters_lock:
                staged_predictions = list(stages(x[test]))
            for k, stage in enumerate(staged_predictions):
                if not n_classes:
                    staged[k, test] = stage[:, None]
                    continue
                # Classes that the training rows haven't are hardly possible; a model of one class
                # has a column for another all the same.
                full = np.full((len(stage), n_classes), 1e-9)
                is_one = len(model.classes_) == 1
                full[:, model.classes_.astype(int)] = 1.0 if is_one else stage.clip(1e-9)
                staged[k, test] = full
        if n_classes:
            loss = -np.log(staged[:, np.arange(len(y)), y]) @ weight
            staged = np.log(staged)
        else:
            loss = (staged[..., 0] - y) ** 2 @ weight
        best = int(loss.argmin())
        model = self._fitted(task, best + 1, slice(None))
        without = torch.as_tensor(staged[best])
        first = model._baseline_prediction
        offset = np.asarray(first, dtype=np.float64).reshape(-1)
        if n_classes == 2:
            offset = np.array([0.0, *offset])
        part = TreesPredictor(_boosting_trees(model, n_classes), 0.0, offset, 0.0)
        if n_classes:
            return Fit(part, without, is_by_folds=True)
        ones = without.new_ones(1, 1, 1)
        distribution = NormalMixture(without.unsqueeze(0), 0.0 * ones, ones)
        return Fit(part, distribution, is_point_prediction=True, is_by_folds=True)

    def _fitted(self, task: StackTask, rounds: int, rows: Any) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingClassifier if task.n_classes else HistGradientBoostingRegressor
        effort = task.effort
        bins = max(effort.fewest_bins, min(255, effort.bins // task.rows.x.shape[1]))
        model = kind(
            max_iter=rounds, learning_rate=effort.learning_rate, max_leaf_nodes=effort.leaves,
            min_samples_leaf=effort.rows_a_leaf, max_bins=bins, early_stopping=False,
            random_state=task.seed % 2**32,
        )  # fmt: skip
        x, y, weight = (array[rows] for array in task.arrays)
        if (weight == weight.round()).all() and weight.sum() <= 2 * len(weight):
            # Quantiles of weighted rows take longer than the trees: repeat the rows instead.
            places = np.repeat(np.arange(len(weight)), weight.astype(int))
            x = x[places]
            y = y[places]
            weight = None
        with filters_lock:
            return model.fit(x, y, weight)


def _boosting_trees(model: Any, n_classes: int) -> Trees:
    """Trees of all rounds; of two classes their values are the second's score."""
    parts = []
    values = []
    depth = 1
    for of_round in model._predictors:
        for k, tree in enumerate(of_round):
            nodes = tree.nodes
            parts.append(
                (nodes["feature_idx"], nodes["num_threshold"], nodes["left"], nodes["right"])
            )
            value = np.zeros((len(nodes), max(n_classes, 1)))
            value[:, 1 if n_classes == 2 else k] = nodes["value"]
            values.append(value)
            depth = max(depth, int(nodes["depth"].max()))
    return _joined(parts, values, depth, rounds=False)


@dataclass(eq=False)
class Networks:
    """The pool of networks, with its approximate left-out rows."""

    last: Any = None  # a pool of numbers that was fitted to nearly the same rows, to go on from
    _begun: tuple[Array, Array] | None = None  # `_refit` of labels, before the fit

    def fit(self, task: StackTask) -> Fit:
        model = self._fitted(task, {}, self.last)
        part = EstimatorPredictor(model)
        density = model.leave_one_out_log_density
        if not task.folds:
            return Fit(part, is_final=True)
        if density is None or task.is_counts:
            density = np.full(len(task), np.nan)
            test, refit = self._begun or self._refit(task, self._found(task, model))
            density[test] = refit
        optimism = 0.0
        n_weights = model.network_.layout.n_params
        if n_weights > task.effort.most_weights_a_row * len(task) and np.isfinite(density).all():
            test, refit = self._begun or self._refit(task, self._found(task, model))
            optimism = max(0.0, float(np.average(density[test] - refit)))
        return Fit(part, torch.as_tensor(density), is_final=True, optimism=optimism)

    def probe(self, task: StackTask, enough: float) -> float:
        """Score of two modes by their left-out rows, nats per row: of few units, or of many.

        Many are tried where few score less than ``enough``, but not where rows are few and few
        units are far behind.
        """
        effort = GaussNewtonDefaults()
        most = -np.inf
        usual = effort.choose_regression_width(len(task), task.rows.x.shape[1], 1)
        for width in (effort.widths[0], usual):
            few: dict[str, Any] = {"hidden_layer_sizes": width, "n_modes": task.effort.n_probes}
            density = self._fitted(task, {**few, "n_members": 0}).leave_one_out_log_density
            if density is None:
                return np.inf  # so many rows that none was left out
            most = max(most, float(np.average(density, weights=task.weight.numpy())))
            is_far = len(task) <= task.effort.few_rows and most < enough - task.effort.race
            if most >= enough or is_far:
                break
        return most

    def begin(self, task: StackTask) -> tuple[Array, Array] | None:
        """Refit networks of labels that are going to need it, before they are fitted themselves."""
        x = task.rows.x
        n_classes = task.n_classes
        effort = GaussNewtonDefaults()
        n_modes = BayesianMLPClassifier().n_modes
        size = x.shape[1], n_classes if n_classes > 2 else 1
        network = MLP(
            size[0], (effort.choose_classification_width(len(x), *size, n_modes),), size[1], TANH
        )
        n_found = effort.affordable_classification_modes(n_modes, len(x), network)[0]
        if n_found and network.layout.n_params > task.effort.most_weights_a_row * len(x):
            self._begun = self._refit(task, self._few(task, network, n_found))
        return self._begun

    def _few(self, task: StackTask, network: MLP, n_modes: int) -> dict[str, Any]:
        few = {"n_modes": min(task.effort.n_probes, n_modes), "n_members": 0}
        return few | {"hidden_layer_sizes": network.hidden_layer_sizes}

    def _found(self, task: StackTask, model: Any) -> dict[str, Any]:
        """No more modes than there was time for."""
        n_restarts = model.multiplicity_modes_
        return {} if n_restarts is None else self._few(task, model.network_, int(n_restarts.sum()))

    def _refit(self, task: StackTask, settings: dict[str, Any]) -> tuple[Array, Array]:
        """Places of a fold, and log densities of its rows by networks that were fitted without."""
        train, test = task.folds[0]
        refit = self._fitted(task.take(train), settings)
        if task.is_counts:
            distribution = CountsPredictor(EstimatorPredictor(refit), *task.of_y).distribution(
                task.rows.x[test]
            )
            return test, distribution.log_prob(task.y[test]).numpy()
        y = task.targets[test] if task.n_classes else task.y[test].numpy()
        return test, EstimatorPredictor(refit).log_density(task.rows.x[test], y).numpy()

    def _fitted(self, task: StackTask, settings: dict[str, Any], last: Any = None) -> Any:
        kind: Any = BayesianMLPClassifier if task.n_classes else BayesianMLPRegressor
        model = kind() if last is None else copy(last)
        model.set_params(**settings, random_state=task.seed % 2**32, device=task.device)
        model.warm_start = last is not None
        is_free = task.deadline == float("inf")  # other processes wouldn't hear of it
        model.set_params(n_jobs=task.n_jobs if is_free else None)
        x, y, weight = task.arrays
        # Users can't reach the networks, so warnings about them would be of no use.
        with (
            collect_warnings(), fit_deadline(task.deadline),
            config_context(skip_parameter_validation=True),
        ):  # fmt: skip
            model.fit(x, task.targets if task.n_classes else y, weight)
        model.device_ = "cpu"  # where the other members predict
        return model


@dataclass(frozen=True, eq=False)
class UserEstimator:
    """Anyone's estimator, cloned and fitted to rows as they were given; folds leave rows out."""

    estimator: Any

    def fit(self, task: StackTask) -> Fit:
        unset = {
            name: task.seed % 2**32
            for name, value in self.estimator.get_params(deep=True).items()
            if value is None and name.rpartition("__")[2] == "random_state"
        }
        model = clone(self.estimator).set_params(**unset)
        weight = task.weight.numpy()
        X = task.rows.as_given
        y = task.targets
        is_whole = bool((weight == weight.round()).all())
        support = weight_support(model)
        if (weight == 1.0).all():
            model.fit(X, y)
        elif support == "all" or (support == "some" and not is_whole):
            fit_with_weights(model, X, y, weight)
        elif is_whole:
            places = np.repeat(np.arange(len(weight)), weight.astype(int))
            model.fit(task.rows.take(places).as_given, y[places])
        else:
            raise TypeError(
                "its fit, or that of a model in it, takes no sample_weight, and those given "
                "aren't whole numbers."
            )
        part = UserPredictor(model, *task.of_y, task.classes)
        is_point_prediction = part.is_point_prediction
        is_final = not task.n_classes and not is_point_prediction
        return Fit(part, is_final=is_final, is_point_prediction=is_point_prediction)


def member_settings(members: Mapping[str, Member]) -> dict[str, str]:
    """Describe every member by its class and parameters, so that two fits can be compared.

    Parameters
    ----------
    members : mapping of str to Member
        Members by name.

    Returns
    -------
    dict of str to str
        Equal strings mean members that `sklearn.base.clone` makes equal.
    """
    settings = {}
    for name, member in members.items():
        settings[name] = type(member).__name__
        if isinstance(member, UserEstimator):
            estimator = clone(member.estimator)
            kind = type(estimator)
            try:
                parameters = joblib.hash(estimator.get_params(deep=True))
            except (pickle.PicklingError, AttributeError, TypeError):  # a lambda, for example
                parameters = repr(estimator)
            settings[name] = f"{kind.__module__}.{kind.__qualname__} {parameters}"
    return settings


# Cheap ones first; the networks begin when the others are judged.
KINDS: dict[str, Callable[[], Member]] = {
    "linear": Linear,
    "forest": Forest,
    "boosting": Boosting,
    "process": Process,
    "networks": Networks,
}
