"""Predictors of fitted members, in the units of the stack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
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
from skbayes_sym.base.stacking_weights import shift_draws
from skbayes_sym.models.predictive_mixtures import (
    CategoricalMixture,
    LinearPool,
    NormalMixture,
    RoundedTargets,
    TargetPredictive,
)

# Smallest log probability of a class, in nats: of classes that no training row has.
_MIN_LOG_PROBABILITY = -30.0


@dataclass(frozen=True, eq=False)
class Trees:
    """Nodes of all trees in one array. The children of a leaf are the leaf itself.

    Parameters
    ----------
    column : ndarray of shape (n_nodes,)
        Column that the node compares with its threshold.
    threshold : ndarray of shape (n_nodes,)
        Rows go to ``below`` if their column is at most the threshold, otherwise to ``above``.
    below, above : ndarray of shape (n_nodes,)
        Children.
    value : ndarray of shape (n_nodes, V)
        Predictions of the leaves.
    roots : ndarray of shape (n_trees,)
        Root of each tree.
    depth : int
        Depth of the deepest tree.
    rounds_to_float32 : bool
        Whether inputs are rounded to float32 before they are compared.
    """

    column: npt.NDArray[np.int64]
    threshold: Array
    below: npt.NDArray[np.int64]
    above: npt.NDArray[np.int64]
    value: Array
    roots: npt.NDArray[np.int64]
    depth: int
    rounds_to_float32: bool

    def leaves(self, x: Tensor) -> Tensor:
        """Leaf of each row in each tree, (N, n_trees)."""
        column, threshold, below, above, roots = (
            torch.as_tensor(array).to(x.device)
            for array in (self.column, self.threshold, self.below, self.above, self.roots)
        )
        if self.rounds_to_float32:
            x = x.float()
        x = x.double()
        node = roots.expand(len(x), -1)
        for _ in range(self.depth):
            is_below = x.gather(1, column[node]) <= threshold[node]
            node = torch.where(is_below, below[node], above[node])
        return node

    def values(self, x: Tensor) -> Tensor:
        """Values of the leaves of each row in float64, (N, n_trees, V)."""
        return torch.as_tensor(self.value).to(x.device)[self.leaves(x)]


def join_trees(
    nodes: Sequence[tuple[Array, ...]],
    values: Sequence[Array],
    depth: int,
    *,
    rounds_to_float32: bool,
) -> Trees:
    """Join the nodes of several trees.

    Parameters
    ----------
    nodes : sequence of tuple of ndarray
        Column, threshold, lower child and upper child of the nodes of each tree. Children of leaves
        are 0 or negative.
    values : sequence of ndarray of shape (n_nodes, V)
        Values of the nodes of each tree.
    depth : int
        Depth of the deepest tree.
    rounds_to_float32 : bool
        Whether inputs are rounded to float32 before they are compared.

    Returns
    -------
    Trees
        All nodes, in which leaves are their own children.
    """
    columns = []
    thresholds = []
    below = []
    above = []
    first_nodes = np.cumsum([0, *(len(value) for value in values)])
    for root, (column, threshold, lower, upper) in zip(first_nodes[:-1], nodes, strict=True):
        own_index = np.arange(len(column))
        is_leaf = np.asarray(lower) <= 0
        columns.append(np.where(is_leaf, 0, column).astype(np.int64))
        thresholds.append(np.asarray(threshold, dtype=np.float64))
        below.append((root + np.where(is_leaf, own_index, lower)).astype(np.int64))
        above.append((root + np.where(is_leaf, own_index, upper)).astype(np.int64))
    return Trees(
        np.concatenate(columns),
        np.concatenate(thresholds),
        np.concatenate(below),
        np.concatenate(above),
        np.concatenate(values),
        first_nodes[:-1],
        depth,
        rounds_to_float32,
    )


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


def merge_components(distribution: NormalMixture) -> NormalMixture:
    """Return a single normal with the mean and the variances of a mixture.

    The number of components can differ between folds.
    """
    if len(distribution.loc) == 1:
        return distribution
    weights = distribution.broadcast_weights
    mean = (weights * distribution.loc).sum(0, keepdim=True)
    spread = distribution.variance + (distribution.loc - mean).square()
    noise = distribution.noise_variance.expand_as(distribution.loc)
    return NormalMixture(
        mean, (weights * spread).sum(0, keepdim=True), (weights * noise).sum(0, keepdim=True)
    )


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
        self.estimator.training_range_in_ = None

    def _inner(self, x: Tensor) -> tuple[Tensor, Predictor]:
        """Inputs in the scaling of the estimator, and its predictor."""
        scaled = torch.cat(list(self.estimator.input_blocks(x.numpy())))
        return scaled, self.estimator.predictor(scaled)

    def _in_units(self, distribution: Any) -> Any:
        """Distribution in the units of the estimator's targets."""
        if is_classifier(self.estimator):
            return distribution
        units = self.estimator.y_mean_, self.estimator.y_scale_
        return distribution.rescale(*(torch.as_tensor(u).to(distribution.loc) for u in units))

    def distribution(self, x: Any) -> Any:
        """Predictive distribution of the rows, in the units of the stack."""
        x, inner = self._inner(x)
        return self._in_units(inner.distribution(x))

    def networks(self, x: Any) -> Iterator[NetworkComponents]:
        """Iterate over the networks of which predictions are averages."""
        x, inner = self._inner(x)
        yield from inner.networks(x)

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        """Sample n functions and return the distributions of the targets given each of them."""
        x, inner = self._inner(x)
        return self._in_units(inner.sample_conditionals(x, n, generator=generator))

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


@dataclass(frozen=True, eq=False)
class TreesPredictor(BasePredictor):
    """Predictions of trees that read encoded rows.

    Three kinds of trees are told apart by their constants. With ``variance`` > 0, leaves hold the
    mean and the mean square of their targets. With ``smoothing`` > 0, leaves hold class
    frequencies. Otherwise the values of all leaves are added to ``offset``.

    Parameters
    ----------
    trees : Trees
        Nodes of all trees.
    variance : float
        Variance that is added to the variance of the targets in the leaves.
    offset : ndarray of shape (V,)
        Initial scores of boosting, or class frequencies.
    smoothing : float
        Weight of the class frequencies that are added to the average over the leaves.
    """

    trees: Trees
    variance: float
    offset: Array
    smoothing: float

    def mean(self, x: Tensor) -> Tensor:
        """Mean predictions (N, 1), or class scores (N, K)."""
        return self.combine(self.trees.values(x))

    def combine(self, values: Tensor) -> Tensor:
        """Means (N, 1) or scores (N, K) from the values of the leaves, (N, n_trees, V)."""
        offset = torch.as_tensor(self.offset).to(values)
        if self.smoothing:
            return (values.mean(1) + self.smoothing * offset).log()
        if self.variance:
            return values.mean(1)[:, :1]
        return values.sum(1) + offset

    def distribution(self, x: Tensor) -> NormalMixture:
        """Predictive distribution of the rows, in the units of the stack."""
        return self.combine_distributions(self.trees.values(x))

    def combine_distributions(self, values: Tensor) -> NormalMixture:
        """Normal distributions from the values of the leaves, (N, n_trees, V)."""
        loc = self.combine(values).unsqueeze(0)
        noise = torch.ones_like(loc)
        if self.variance:
            mean_square = values[..., 1].mean(1).reshape(1, -1, 1)
            noise = (mean_square - loc.square()).clamp_min(0.0) + self.variance
        return NormalMixture(loc, 0.0 * loc[:, :1], noise)

    def sample_conditionals(
        self, x: Tensor, n: int, *, generator: torch.Generator
    ) -> NormalMixture:
        """Sample n functions and return the distributions of the targets given each of them."""
        return sample_components(self.distribution(x), n, generator)


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
        if isinstance(base, EstimatorPredictor | UserPredictor):
            return base.estimator
        return base
