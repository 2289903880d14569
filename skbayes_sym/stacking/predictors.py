"""Predictors of fitted members, in the units of the stack."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from torch import Tensor

from skbayes_sym.base.calibration import Calibration
from skbayes_sym.base.noise_shape import ShapedPredictor
from skbayes_sym.base.predictive import (
    ForeignTargets,
    as_targets,
    predictive,
    predicts_distribution,
)
from skbayes_sym.base.predictor import BasePredictor, NetworkComponents, Predictor
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples
from skbayes_sym.base.stacking_weights import join_rows, shift_draws
from skbayes_sym.models.likelihoods.likelihood import TargetLikelihood
from skbayes_sym.models.log_targets import LogTargets
from skbayes_sym.models.predictive_mixtures import (
    CategoricalMixture,
    LinearPool,
    NormalMixture,
    TargetMixture,
    TargetPredictive,
)
from skbayes_sym.models.rounded_targets import RoundedTargets
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.stacking.tree_arrays import (
    TreeArrays,
    boosting_arrays,
    boosting_nodes,
    build_boosting,
    build_forest,
    forest_arrays,
    forest_nodes,
)
from skbayes_sym.stacking.tree_walk import (
    MAX_WALKED_NODES,
    MAX_WALKED_ROWS,
    TreeWalk,
    sum_in_order,
)

# Smallest log probability of a class, in nats: of classes that no training row has.
_MIN_LOG_PROBABILITY = -30.0


def sample_components(
    distribution: NormalMixture, n: int, generator: torch.Generator
) -> NormalMixture:
    """Sample n functions, each the mean of one component for all rows; its variance is noise."""
    index = torch.multinomial(
        distribution.weights.double().cpu(), n, replacement=True, generator=generator
    )
    total = (distribution.variance + distribution.noise_variance).expand_as(distribution.loc)
    loc = distribution.loc[index]
    return NormalMixture(loc, 0.0 * loc[:, :1], total[index])


@dataclass(frozen=True, eq=False)
class EstimatorPredictor(BasePredictor):
    """Predictions of an estimator of this package.

    Parameters
    ----------
    estimator : BayesianEstimator
        Estimator that was fitted to encoded rows and scaled targets.
    """

    estimator: Any

    def __post_init__(self) -> None:
        # The stack continues predictions beyond the range of its own columns.
        self.estimator.forget_training_range()

    def _blocks(self, x: Tensor) -> tuple[list[Tensor], Predictor]:
        """Inputs in the scaling of the estimator in blocks of rows, and its predictor."""
        blocks = list(self.estimator.input_blocks(x.numpy()))
        return blocks, self.estimator.predictor(blocks[0])

    def _in_units(self, distribution: Any) -> Any:
        """Distribution in the units of the estimator's targets."""
        if isinstance(distribution, CategoricalMixture):
            return distribution
        units = self.estimator.y_mean_, self.estimator.y_scale_
        return distribution.rescale(*(torch.as_tensor(u).to(distribution.loc) for u in units))

    def distribution(self, x: Any) -> Any:
        """Predictive distribution of the rows, in the units of the stack."""
        blocks, inner = self._blocks(x)
        return join_rows([self._in_units(inner.distribution(block)) for block in blocks])

    def mean(self, x: Any) -> Tensor:
        """Mean predictions (N, 1), or class probabilities (N, K)."""
        blocks, inner = self._blocks(x)
        mean = torch.cat([inner.mean(block) for block in blocks])
        if is_classifier(self.estimator):
            return mean
        units = self.estimator.y_mean_, self.estimator.y_scale_
        y_mean, y_scale = (torch.as_tensor(u).to(mean) for u in units)
        return y_mean + y_scale * mean

    def networks(self, x: Any) -> Iterator[NetworkComponents]:
        """Iterate over the networks of which predictions are averages."""
        blocks, inner = self._blocks(x)
        yield from inner.networks(torch.cat(blocks))

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        """Sample n functions and return the distributions of the targets given each of them."""
        # The same functions in all blocks.
        blocks, inner = self._blocks(x)
        state = generator.get_state()
        distributions = []
        for block in blocks:
            generator.set_state(state)
            conditionals = inner.sample_conditionals(block, n, generator=generator)
            distributions.append(self._in_units(conditionals))
        return join_rows(distributions)

    def log_density(self, x: Tensor, targets: Array) -> Tensor:
        """Log density of scaled targets, or log probability of labels, (N,).

        Classes that the estimator hasn't seen have the log probability -30.
        """
        density = self.estimator.log_predictive_density(x.numpy(), targets)
        return torch.as_tensor(np.where(np.isneginf(density), _MIN_LOG_PROBABILITY, density))


@dataclass(frozen=True, eq=False)
class UserPredictor(BasePredictor):
    """Predictions of an estimator of the user, which reads rows as the user passed them.

    Point predictions get unit noise, which the stack replaces by a `NoiseShape`.

    Parameters
    ----------
    estimator : estimator
        Fitted estimator.
    target_mean, target_scale : float
        Mean and standard deviation by which the stack standardised the targets.
    classes : ndarray of shape (n_classes,), optional
        Class labels. None for regression.
    """

    estimator: Any
    target_mean: float = 0.0
    target_scale: float = 1.0
    classes: Array | None = None

    @property
    def is_point_prediction(self) -> bool:
        """Whether it is a regressor that predicts points instead of distributions."""
        return self.classes is None and not predicts_distribution(self.estimator)

    def distribution(self, rows: Any) -> Any:
        """Predictive distribution of the rows, in the units of the stack."""
        if self.is_point_prediction:
            predicted = np.asarray(self.estimator.predict(rows), dtype=np.float64)
            if predicted.shape not in {(num_samples(rows),), (num_samples(rows), 1)}:
                raise ValueError(
                    f"it predicts an array of shape {predicted.shape} for {num_samples(rows)} rows "
                    "of one target."
                )
            scaled = (predicted - self.target_mean).reshape(1, -1, 1) / self.target_scale
            loc = torch.as_tensor(scaled)
            return NormalMixture(loc, loc.new_zeros(1, 1, 1), loc.new_ones(1, 1, 1))
        unit = torch.tensor([self.target_scale], dtype=torch.float64).reciprocal()
        distribution = as_targets(predictive(self.estimator, rows))
        return distribution.rescale(-self.target_mean * unit, unit)

    def mean(self, rows: Any) -> Tensor:
        """Expected targets (N, 1), or log probabilities (N, K) as scores."""
        if self.classes is None:
            return self.distribution(rows).mean()  # type: ignore[no-any-return]
        distribution = predictive(self.estimator, rows)
        scores = np.full((num_samples(rows), len(self.classes)), _MIN_LOG_PROBABILITY)
        probabilities = np.asarray(distribution.proba(), dtype=np.float64)
        # Rounding in single precision leaves sums up to 1e-5 away from one.
        sums_to_one = np.allclose(probabilities.sum(1), 1.0, atol=1e-5)
        if not sums_to_one or not (probabilities >= 0.0).all():
            raise ValueError(
                f"it predicts probabilities from {probabilities.min():.3g} to "
                f"{probabilities.max():.3g} that aren't all positive with sum one."
            )
        with np.errstate(divide="ignore"):
            log_probs = np.log(probabilities).clip(_MIN_LOG_PROBABILITY)
        scores[:, np.searchsorted(self.classes, distribution.classes)] = log_probs
        return torch.as_tensor(scores)

    def sample_conditionals(self, rows: Any, n: int, *, generator: torch.Generator) -> Any:
        """Sample n functions and return the distributions of the targets given each of them."""
        distribution = self.distribution(rows)
        if isinstance(distribution, NormalMixture):
            return sample_components(distribution, n, generator)
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        return SampledTargets(distribution, n, seed)


class SampledTargets:
    """Samples of a distribution that isn't a mixture of normals.

    Parameters
    ----------
    distribution : TargetPredictive
        Predictive distribution of N rows.
    n : int
        Number of samples.
    seed : int
        Seed of the sampled functions.
    """

    def __init__(self, distribution: TargetPredictive, n: int, seed: int) -> None:
        self._distribution = distribution
        self._n = n
        self._seed = seed

    def shift(self, _amount: Tensor) -> "SampledTargets":
        """Return the samples unchanged, as `continue_distribution` leaves their distribution."""
        return self

    @property
    def means(self) -> Tensor:
        """Noise-free functions (n, N, 1), or the mean if the distribution can't sample them."""
        if isinstance(self._distribution, ForeignTargets):
            return self._distribution.functions(self._n, self._seed)
        return self._distribution.mean().expand(self._n, -1, -1)

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Sample targets, (n, N, 1)."""
        return self._distribution.sample(self._n, rng)


class TreesPredictor(BasePredictor):
    """Predictions of trees of scikit-learn, which pickles and files hold as few arrays."""

    def __getstate__(self) -> dict[str, Any]:
        return self.file_fields()

    def file_fields(self) -> dict[str, Any]:
        """Fields for pickles and files, with the trees as arrays: a tenth of the memory."""
        raise NotImplementedError

    def distribution(self, x: Tensor) -> NormalMixture:
        """Predictive distribution of the rows, in the units of the stack."""
        raise NotImplementedError

    def sample_conditionals(
        self, x: Tensor, n: int, *, generator: torch.Generator
    ) -> NormalMixture:
        """Sample n functions and return the distributions of the targets given each of them."""
        return sample_components(self.distribution(x), n, generator)


@dataclass(frozen=True, eq=False)
class ForestPredictor(TreesPredictor):
    """Predictions of a forest of scikit-learn that reads encoded rows.

    Parameters
    ----------
    model : ExtraTreesRegressor, ExtraTreesClassifier or TreeArrays
        Fitted forest, or its trees, from which it is built when it is first needed.
    n_columns : int
        Number of columns.
    n_classes : int
        Number of classes; 0 for regression.
    variance : float
        Variance that is added to the variance of the targets in the leaves, for regression.
    smoothing : float
        Weight of the class frequencies that are added to the average over the leaves.
    frequency : ndarray of shape (n_classes,), optional
        Class frequencies. None for regression.
    """

    model: Any
    n_columns: int
    n_classes: int
    variance: float = 0.0
    smoothing: float = 0.0
    frequency: Array | None = None

    def file_fields(self) -> dict[str, Any]:
        """Fields for pickles and files."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        if not isinstance(self.model, TreeArrays):
            state["model"] = forest_arrays(self.model)
        return state

    @cached_property
    def estimator(self) -> Any:
        """Fitted forest of scikit-learn."""
        if isinstance(self.model, TreeArrays):
            return build_forest(self.model, self.n_columns, self.n_classes)
        return self.model

    @cached_property
    def _leaf_tables(self) -> list[tuple[Callable[[Array], Array], Array]]:
        """Function that finds leaves, and a table of all nodes, by tree.

        The columns of the tables are predictions, in regression followed by mean squares.
        """
        tables = []
        for estimator in self.estimator.estimators_:
            tree = estimator.tree_
            table = self._complete(tree.value[:, 0])
            if not self.n_classes:
                table = np.column_stack([table, tree.impurity + table[:, 0] ** 2])
            tables.append((tree.apply, table))
        return tables

    @cached_property
    def _walk(self) -> TreeWalk | None:
        """Walk through all trees for few rows, or None if they have too many nodes."""
        trees = forest_nodes(self.estimator)
        if sum(len(tree.column) for tree in trees) > MAX_WALKED_NODES:
            return None
        return TreeWalk(trees, [table for _, table in self._leaf_tables])

    def _complete(self, values: Array) -> Array:
        """Return leaf values (n_nodes, n_classes), with zeros for classes that a fold lacks."""
        if values.shape[1] >= self.n_classes:
            return values
        complete = np.zeros((len(values), self.n_classes))
        complete[:, self.estimator.classes_.astype(int)] = values
        return complete

    def average_leaves(self, x: Tensor, weight: Array | None = None) -> tuple[Tensor, Tensor]:
        """Average predictions of leaves over the trees.

        Parameters
        ----------
        x : Tensor of shape (N, D)
            Encoded rows.
        weight : ndarray of shape (N, n_trees), optional
            Weights of the trees for each row, with sum 1. Equal by default.

        Returns
        -------
        average : Tensor of shape (N, V)
            Mean targets, or class frequencies.
        mean_square : Tensor of shape (N,)
            Mean squares of the targets, for regression. Zero for classes.
        """
        if weight is None and len(x) <= MAX_WALKED_ROWS and self._walk is not None:
            # scikit-learn compares in single precision.
            total = sum_in_order(self._walk.leaf_values(x.float().numpy()))
            return self._split_total(total / len(self._leaf_tables))

        # scikit-learn compares in single precision. Rows that share a leaf of the first tree often
        # share long paths in the others as well, whose nodes are then in the cache.
        rows = x.float().numpy()
        order = np.argsort(self._leaf_tables[0][0](rows), kind="stable")
        rows = rows[order]
        total = np.zeros((len(rows), self._leaf_tables[0][1].shape[1]))
        for k, (find_leaves, table) in enumerate(self._leaf_tables):
            values = table.take(find_leaves(rows), axis=0)
            if weight is not None:
                values *= weight[order, k, None]
            total += values
        if weight is None:
            total /= len(self._leaf_tables)
        return self._split_total(total[np.argsort(order)])

    def _split_total(self, averages: Array) -> tuple[Tensor, Tensor]:
        """Split averages of the tables into predictions and mean squares."""
        values = torch.as_tensor(averages)
        if self.n_classes:
            return values, values.new_zeros(len(values))
        return values[:, :1], values[:, 1]

    def mean(self, x: Tensor) -> Tensor:
        """Mean predictions (N, 1), or class scores (N, K)."""
        average, _ = self.average_leaves(x)
        return self.scores(average)

    def scores(self, average: Tensor) -> Tensor:
        """Means (N, 1) or class scores (N, K) from averages over the trees."""
        if self.frequency is None:
            return average
        return (average + self.smoothing * torch.as_tensor(self.frequency)).log()

    def distribution(self, x: Tensor) -> NormalMixture:
        """Predictive distribution of the rows, in the units of the stack."""
        return self.add_noise(*self.average_leaves(x))

    def add_noise(self, average: Tensor, mean_square: Tensor) -> NormalMixture:
        """Normal distributions from averages over the trees (N, 1) and mean squares (N,)."""
        loc = average.unsqueeze(0)
        within = mean_square.reshape(1, -1, 1) - loc.square()
        return NormalMixture(loc, 0.0 * loc[:, :1], within.clamp_min(0.0) + self.variance)


@dataclass(frozen=True, eq=False)
class BoostingPredictor(TreesPredictor):
    """Predictions of histogram gradient boosting of scikit-learn that reads encoded rows.

    Parameters
    ----------
    model : HistGradientBoostingRegressor, HistGradientBoostingClassifier or TreeArrays
        Fitted model, or its trees, from which it is built when it is first needed.
    n_columns : int
        Number of columns.
    n_classes : int
        Number of classes; 0 for regression.
    baseline : ndarray, optional
        Prediction without trees, if ``model`` holds trees only.
    """

    model: Any
    n_columns: int
    n_classes: int
    baseline: Array | None = None

    @classmethod
    def from_poisson(cls, model: Any, n_columns: int) -> "BoostingPredictor":
        """Return a predictor of the logarithm of the rates of boosting with Poisson loss."""
        trees, baseline = boosting_arrays(model)
        return cls(trees, n_columns, 0, baseline)

    def file_fields(self) -> dict[str, Any]:
        """Fields for pickles and files."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        if not isinstance(self.model, TreeArrays):
            state["model"], state["baseline"] = boosting_arrays(self.model)
        return state

    @cached_property
    def estimator(self) -> Any:
        """Fitted boosting of scikit-learn."""
        if isinstance(self.model, TreeArrays):
            assert self.baseline is not None
            return build_boosting(self.model, self.baseline, self.n_columns, self.n_classes)
        return self.model

    @cached_property
    def _walk(self) -> tuple[TreeWalk, Array] | None:
        """Walk through all trees for few rows, and the baseline; None if there are many nodes."""
        trees, baseline = boosting_nodes(self.estimator)
        if not trees or sum(len(tree.column) for tree in trees) > MAX_WALKED_NODES:
            return None
        return TreeWalk(trees, [tree.values[:, 1:] for tree in trees]), baseline

    def mean(self, x: Tensor) -> Tensor:
        """Mean predictions (N, 1), or class scores (N, K)."""
        if len(x) <= MAX_WALKED_ROWS and self._walk is not None:
            walk, baseline = self._walk
            rounds = walk.leaf_values(x.numpy()).reshape(len(x), -1, len(baseline))
            first = np.broadcast_to(baseline, (len(x), 1, len(baseline)))
            scores = torch.as_tensor(sum_in_order(np.concatenate([first, rounds], axis=1)))
        else:
            with filters_lock:
                if self.n_classes:
                    raw = self.estimator.decision_function(x.numpy())
                else:
                    raw = self.estimator.predict(x.numpy())
            scores = torch.as_tensor(raw).reshape(len(x), -1)
        if self.n_classes == 2:
            return torch.cat([torch.zeros_like(scores), scores], 1)
        return scores

    def distribution(self, x: Tensor) -> NormalMixture:
        """Predictive distribution with unit noise, which the stack replaces."""
        loc = self.mean(x).unsqueeze(0)
        return NormalMixture(loc, 0.0 * loc[:, :1], torch.ones_like(loc))


@dataclass(frozen=True, eq=False)
class CalibratedPredictor(BasePredictor):
    """Calibrated class probabilities of a predictor of scores.

    Parameters
    ----------
    base : Predictor
        Predictor whose means are scores (N, K).
    calibration : Calibration
        Temperature and share of the class frequencies.
    """

    base: Predictor
    calibration: Calibration

    def distribution(self, x: Any) -> CategoricalMixture:
        """Predictive distribution of the rows, in the units of the stack."""
        return CategoricalMixture(self.calibration.log_probs(self.base.mean(x)).unsqueeze(0))

    def sample_conditionals(
        self,
        x: Any,
        n: int,
        *,
        generator: torch.Generator,  # noqa: ARG002  # the probabilities aren't random
    ) -> CategoricalMixture:
        """Return the same probabilities n times: a score belongs to a single function."""
        return CategoricalMixture(self.distribution(x).log_probs.expand(n, -1, -1))


@dataclass(frozen=True, eq=False)
class CountsPredictor(BasePredictor):
    """Predictions of counts: distributions with densities are rounded to the nearest count.

    Parameters
    ----------
    base : Predictor
        Predictor in the units of the stack.
    target_mean, target_scale : float
        Mean and standard deviation by which the counts were standardised.
    """

    base: Any
    target_mean: float
    target_scale: float

    def distribution(self, x: Any) -> Any:
        """Predictive distribution of the rows, in the units of the stack."""
        return self.round_distribution(self.base.distribution(x))

    def round_distribution(self, distribution: TargetPredictive) -> TargetPredictive:
        """Round a distribution of the base to counts, unless it is discrete already."""
        if distribution.is_discrete:
            return distribution
        if isinstance(distribution, LinearPool):
            return LinearPool(
                [self.round_distribution(part) for part in distribution.components],
                distribution.component_weights,
            )
        mean, scale = torch.tensor([[self.target_mean], [self.target_scale]], dtype=torch.float64)
        base = distribution.rescale(mean, scale)
        return RoundedTargets(base, -self.target_mean / self.target_scale, 1.0 / self.target_scale)

    def networks(self, x: Any) -> Iterator[NetworkComponents]:
        """Iterate over the networks of which predictions are averages."""
        return self.base.networks(x)  # type: ignore[no-any-return]

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        """Sample n functions and return the distributions of the targets given each of them."""
        draws = self.base.sample_conditionals(x, n, generator=generator)
        return RoundedDraws(draws, self.target_mean, self.target_scale)


class RoundedDraws:
    """Functions sampled from a `CountsPredictor`, whose targets are rounded to counts.

    Parameters
    ----------
    draws : object
        Functions sampled from the predictor that isn't rounded.
    target_mean, target_scale : float
        Mean and standard deviation by which the counts were standardised.
    """

    def __init__(self, draws: Any, target_mean: float, target_scale: float) -> None:
        self._draws = draws
        self._mean = target_mean
        self._scale = target_scale

    @property
    def means(self) -> Tensor:
        """Noise-free functions, (n, N, 1)."""
        return self._draws.means  # type: ignore[no-any-return]

    def shift(self, amount: Tensor) -> "RoundedDraws":
        """Add a number (n, N, 1) to the targets of every draw and row before they are rounded."""
        return RoundedDraws(shift_draws(self._draws, amount), self._mean, self._scale)

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Sample targets, (n, N, 1)."""
        counts = self._draws.sample_per_draw(rng) * self._scale + self._mean
        return (counts.round().clamp_min(0.0) - self._mean) / self._scale


@dataclass(frozen=True, eq=False)
class RatePredictor(BasePredictor):
    """Counts whose means are predicted rates per unit of exposure.

    Parameters
    ----------
    base : Predictor
        Predictor whose means are rates, or their logarithms.
    likelihood : TargetLikelihood
        Distribution of the counts given the logarithm of their mean.
    target_mean, target_scale : float
        Mean and standard deviation by which the counts were standardised.
    predicts_logarithm : bool, default=False
        Whether ``base`` predicts the logarithm of rates.
    """

    base: Predictor
    likelihood: TargetLikelihood
    target_mean: float
    target_scale: float
    predicts_logarithm: bool = False

    def distribution(self, x: Any) -> TargetMixture:
        """Predictive distribution of the rows, in the units of the stack."""
        outputs = self.base.mean(x)
        if not self.predicts_logarithm:
            outputs = outputs.log()
        unit = torch.tensor([1.0 / self.target_scale], dtype=torch.float64)
        return TargetMixture(
            self.likelihood, outputs.unsqueeze(0), location=-self.target_mean * unit, scale=unit
        )

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        """Return the same distribution n times: the rate isn't random."""
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        return SampledTargets(self.distribution(x), n, seed)


@dataclass(frozen=True, eq=False)
class LogPredictor(BasePredictor):
    """Predictions of a member that models the logarithm of the targets.

    Parameters
    ----------
    base : Predictor
        Predictor of the standardised logarithm.
    log_mean, log_scale : float
        Mean and standard deviation by which the logarithm was standardised.
    max_log : float
        Largest logarithm that counts in means and variances.
    target_mean, target_scale : float
        Mean and standard deviation by which the targets were standardised.
    """

    base: Predictor
    log_mean: float
    log_scale: float
    max_log: float
    target_mean: float
    target_scale: float

    def _to_target(self, distribution: Any) -> LogTargets:
        """Distribution of the target in the units of the stack."""
        units = torch.tensor([[self.log_mean], [self.log_scale]], dtype=torch.float64)
        logarithm = distribution.rescale(*units)
        location = -self.target_mean / self.target_scale
        return LogTargets(logarithm, self.max_log, location, 1.0 / self.target_scale)

    def distribution(self, x: Any) -> LogTargets:
        """Predictive distribution of the rows, in the units of the stack."""
        return self._to_target(self.base.distribution(x))

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> LogTargets:
        """Sample n functions and return the distributions of the targets given each of them."""
        return self._to_target(self.base.sample_conditionals(x, n, generator=generator))


@dataclass(frozen=True, eq=False)
class MemberPredictor(BasePredictor):
    """Predictions of a member for rows in both forms.

    Parameters
    ----------
    base : Predictor
        Predictor of the member.
    reads_original_rows : bool, default=False
        Whether the predictor reads rows as the user passed them instead of encoded rows.
    is_normal : bool, default=True
        Whether its distributions are mixtures of normals.
    is_discrete : bool, default=False
        Whether its distributions are distributions of counts.
    """

    base: Any
    reads_original_rows: bool = False
    is_normal: bool = True
    is_discrete: bool = False

    def _select(self, rows: Any) -> Any:
        """Rows in the form that the predictor reads."""
        if self.reads_original_rows:
            return rows.original
        return rows.x

    def distribution(self, rows: Any) -> Any:
        """Predictive distribution of the rows, in the units of the stack."""
        return self.base.distribution(self._select(rows))

    def mean(self, rows: Any) -> Tensor:
        """Mean predictions (N, 1), or class scores (N, K)."""
        return self.base.mean(self._select(rows))  # type: ignore[no-any-return]

    def networks(self, rows: Any) -> Iterator[NetworkComponents]:
        """Iterate over the networks of which predictions are averages."""
        return self.base.networks(self._select(rows))  # type: ignore[no-any-return]

    def sample_conditionals(self, rows: Any, n: int, *, generator: torch.Generator) -> Any:
        """Sample n functions and return the distributions of the targets given each of them."""
        return self.base.sample_conditionals(self._select(rows), n, generator=generator)

    @property
    def inner(self) -> Any:
        """Fitted estimator, or the predictor of a member that isn't an estimator."""
        base: Any = self.base
        while isinstance(base, ShapedPredictor | CalibratedPredictor | CountsPredictor):
            base = base.base
        with_estimator = EstimatorPredictor | UserPredictor | ForestPredictor | BoostingPredictor
        if isinstance(base, with_estimator):
            return base.estimator
        return base
