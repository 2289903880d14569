"""Parts of a stack: anyone's fitted model as a `Predictor` of rows, in the stack's units."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import is_classifier
from torch import Tensor

from skbayes_sym.base.predictive import (
    ForeignTargets,
    as_targets,
    predictive,
    predicts_distribution,
)
from skbayes_sym.base.predictor import BasePredictor, NetworkComponents, Predictor
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples, safe_indexing
from skbayes_sym.base.stacking_weights import Calibration, ShapedPredictor
from skbayes_sym.models.predictive_mixtures import (
    CategoricalMixture,
    LinearPool,
    NormalMixture,
    RoundedTargets,
    TargetPredictive,
)


@dataclass(frozen=True, eq=False)
class Trees:
    """Nodes of all trees, one after the other; the children of a leaf are the leaf itself.

    ``column``, ``threshold``, ``below``, ``above`` (n_nodes,): a row goes to ``below`` where its
    column is at most the threshold; ``value`` (n_nodes, V): what leaves say; ``roots`` (n_trees,);
    ``depth``: of the deepest tree; ``rounds``: whether rows are compared in float32.
    """

    column: npt.NDArray[np.int64]
    threshold: Array
    below: npt.NDArray[np.int64]
    above: npt.NDArray[np.int64]
    value: Array
    roots: npt.NDArray[np.int64]
    depth: int
    rounds: bool

    def leaves(self, x: Tensor) -> Tensor:
        """Leaf of every row in every tree, (N, n_trees)."""
        column, threshold, below, above, roots = (
            torch.as_tensor(a).to(x.device)
            for a in (self.column, self.threshold, self.below, self.above, self.roots)
        )
        x = (x.float() if self.rounds else x).double()
        node = roots.expand(len(x), -1)
        for _ in range(self.depth):
            is_below = x.gather(1, column[node]) <= threshold[node]
            node = torch.where(is_below, below[node], above[node])
        return node

    def values(self, x: Tensor) -> Tensor:
        """Values of the leaves of every row, (N, n_trees, V), float64."""
        return torch.as_tensor(self.value).to(x.device)[self.leaves(x)]


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows as a stack's parts take them: encoded and scaled, ``x`` (N, D), and as given."""

    x: Tensor
    as_given: Any

    def __len__(self) -> int:
        return len(self.x)

    @property
    def device(self) -> torch.device:
        """Device of predictions."""
        return self.x.device

    def take(self, rows: Array) -> "RowBlock":
        """Some of the rows, by their places."""
        return RowBlock(self.x[torch.as_tensor(rows)], safe_indexing(self.as_given, rows))


def sample_components(
    distribution: NormalMixture, n: int, generator: torch.Generator
) -> NormalMixture:
    """Draws that each take one component of a mixture for all rows; its variance is noise."""
    which = torch.multinomial(
        distribution.weights.double().cpu(), n, replacement=True, generator=generator
    )
    total = (distribution.variance + distribution.noise_variance).expand_as(distribution.loc)
    loc = distribution.loc[which]
    return NormalMixture(loc, 0.0 * loc[:, :1], total[which])


LEAST = -30.0  # log probability of a label that no training row has


@dataclass(frozen=True, eq=False)
class EstimatorPredictor(BasePredictor):
    """A model of this package that was fitted to encoded rows and scaled targets."""

    estimator: Any

    def _inner(self, x: Tensor) -> tuple[Tensor, Predictor]:
        scaled = torch.cat(list(self.estimator.input_blocks(x.numpy())))
        return scaled, self.estimator.predictor(scaled)

    def _in_units(self, distribution: Any) -> Any:
        if is_classifier(self.estimator):
            return distribution
        units = self.estimator.y_mean_, self.estimator.y_scale_
        return distribution.rescale(*(torch.as_tensor(u).to(distribution.loc) for u in units))

    def distribution(self, x: Any) -> Any:
        x, inner = self._inner(x)
        return self._in_units(inner.distribution(x))

    def networks(self, x: Any) -> Iterator[NetworkComponents]:
        x, inner = self._inner(x)
        yield from inner.networks(x)

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        x, inner = self._inner(x)
        return self._in_units(inner.sample_conditionals(x, n, generator=generator))

    def log_density(self, x: Tensor, targets: Array) -> Tensor:
        """Log density (N,) of numbers in scaled units, or of labels; unseen ones are unlikely."""
        density = self.estimator.log_predictive_density(x.numpy(), targets)
        return torch.as_tensor(np.where(np.isneginf(density), LEAST, density))


@dataclass(frozen=True, eq=False)
class UserPredictor(BasePredictor):
    """Anyone's model, fitted to rows as they were given.

    ``mean_of_y``, ``scale_of_y``: of the stack's targets, in the model's; ``classes``: those of
    labels. A model of points has noise of width 1, for a `NoiseShape` to replace.
    """

    estimator: Any
    mean_of_y: float = 0.0
    scale_of_y: float = 1.0
    classes: Array | None = None

    @property
    def is_point_prediction(self) -> bool:
        """Whether it predicts numbers without a distribution."""
        return self.classes is None and not predicts_distribution(self.estimator)

    def distribution(self, rows: Any) -> Any:
        if self.is_point_prediction:
            predicted = np.asarray(self.estimator.predict(rows), dtype=np.float64)
            if predicted.shape not in {(num_samples(rows),), (num_samples(rows), 1)}:
                raise ValueError(
                    f"it predicts an array of shape {predicted.shape} for {num_samples(rows)} rows "
                    "of one target."
                )
            scaled = (predicted - self.mean_of_y).reshape(1, -1, 1) / self.scale_of_y
            loc = torch.as_tensor(scaled)
            return NormalMixture(loc, loc.new_zeros(1, 1, 1), loc.new_ones(1, 1, 1))
        unit = torch.tensor([self.scale_of_y], dtype=torch.float64).reciprocal()
        distribution = as_targets(predictive(self.estimator, rows))
        return distribution.rescale(-self.mean_of_y * unit, unit)

    def mean(self, rows: Any) -> Tensor:
        """Expected targets (N, 1), or logarithms of probabilities (N, K), as scores."""
        if self.classes is None:
            return self.distribution(rows).mean()  # type: ignore[no-any-return]
        distribution = predictive(self.estimator, rows)
        scores = np.full((num_samples(rows), len(self.classes)), LEAST)
        probabilities = np.asarray(distribution.proba(), dtype=np.float64)
        # Rounding in single precision leaves sums up to 1e-5 away from one.
        sums_to_one = np.allclose(probabilities.sum(1), 1.0, atol=1e-5)
        if not sums_to_one or not (probabilities >= 0.0).all():
            raise ValueError(
                f"it predicts probabilities from {probabilities.min():.3g} to "
                f"{probabilities.max():.3g} that aren't all positive with sum one."
            )
        with np.errstate(divide="ignore"):
            log_probs = np.log(probabilities).clip(LEAST)
        scores[:, np.searchsorted(self.classes, distribution.classes)] = log_probs
        return torch.as_tensor(scores)

    def sample_conditionals(self, rows: Any, n: int, *, generator: torch.Generator) -> Any:
        distribution = self.distribution(rows)
        if isinstance(distribution, NormalMixture):
            return sample_components(distribution, n, generator)
        return SampledTargets(
            distribution, n, int(torch.randint(2**31 - 1, (), generator=generator))
        )


class SampledTargets:
    """Draws of a distribution that isn't made of normals, as a predictor's ``drawn`` returns them.

    Parameters
    ----------
    law : TargetPredictive
    n : int
        Number of draws.
    seed : int
        Of functions.
    """

    def __init__(self, distribution: TargetPredictive, n: int, seed: int) -> None:
        self._law = distribution
        self._n = n
        self._seed = seed

    @property
    def means(self) -> Tensor:
        """Noise-free functions, (n, N, 1); the mean where the distribution has none."""
        if isinstance(self._law, ForeignTargets):
            return self._law.functions(self._n, self._seed)
        return self._law.mean().expand(self._n, -1, -1)

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Targets, (n, N, 1)."""
        return self._law.sample(self._n, rng)


@dataclass(frozen=True, eq=False)
class TreesPredictor(BasePredictor):
    """Trees of encoded rows.

    ``spread``: variance that is added to that of the leaves, where these hold means and mean
    squares of targets; 0 of trees whose values add up, to numbers of noise 1 or to scores.
    ``offset`` (V,): what values are added to; ``least``: probability that is added to averages of
    frequencies, whose logarithms are scores; 0 of sums.
    """

    trees: Trees
    spread: float
    offset: Array
    least: float

    def mean(self, x: Tensor) -> Tensor:
        return self.from_values(self.trees.values(x))

    def from_values(self, values: Tensor) -> Tensor:
        """Means (N, 1) or scores (N, K) of what trees say, (N, n_trees, V)."""
        offset = torch.as_tensor(self.offset).to(values)
        if self.least:
            return (values.mean(1) + self.least * offset).log()
        return values.mean(1)[:, :1] if self.spread else values.sum(1) + offset

    def distribution(self, x: Tensor) -> NormalMixture:
        return self.from_averages(self.trees.values(x))

    def from_averages(self, values: Tensor) -> NormalMixture:
        """The distribution of a row by what trees say of it."""
        loc = self.from_values(values).unsqueeze(0)
        noise = torch.ones_like(loc)
        if self.spread:
            square = values[..., 1].mean(1).reshape(1, -1, 1)
            noise = (square - loc.square()).clamp_min(0.0) + self.spread
        return NormalMixture(loc, 0.0 * loc[:, :1], noise)

    def sample_conditionals(
        self, x: Tensor, n: int, *, generator: torch.Generator
    ) -> NormalMixture:
        return sample_components(self.distribution(x), n, generator)


@dataclass(frozen=True, eq=False)
class CalibratedPredictor(BasePredictor):
    """Probabilities of the scores that a base has for labels."""

    base: Predictor
    calibration: Calibration

    def distribution(self, x: Any) -> CategoricalMixture:
        return CategoricalMixture(self.calibration.log_probs(self.base.mean(x)).unsqueeze(0))

    def sample_conditionals(
        self, x: Any, n: int, *, generator: torch.Generator
    ) -> CategoricalMixture:
        """The same probabilities every time: a calibrated score knows of one function."""
        return CategoricalMixture(self.distribution(x).log_probs.expand(n, -1, -1))


@dataclass(frozen=True, eq=False)
class CountsPredictor(BasePredictor):
    """Predictions of counts: those of a base that has densities, rounded to the nearest count.

    Parameters
    ----------
    base : Predictor
    mean_of_y, scale_of_y : float
        Of the stack's targets, in counts.
    """

    base: Any
    mean_of_y: float
    scale_of_y: float

    def distribution(self, x: Any) -> Any:
        return self.counted(self.base.distribution(x))

    def counted(self, distribution: TargetPredictive) -> TargetPredictive:
        """A distribution of the base, rounded unless it is of counts."""
        if distribution.is_discrete:
            return distribution
        if isinstance(distribution, LinearPool):
            return LinearPool(
                [self.counted(part) for part in distribution.parts], distribution.shares
            )
        mean, scale = torch.tensor([[self.mean_of_y], [self.scale_of_y]], dtype=torch.float64)
        base = distribution.rescale(mean, scale)
        return RoundedTargets(base, -self.mean_of_y / self.scale_of_y, 1.0 / self.scale_of_y)

    def networks(self, x: Any) -> Iterator[NetworkComponents]:
        return self.base.networks(x)  # type: ignore[no-any-return]

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        draws = self.base.sample_conditionals(x, n, generator=generator)
        return RoundedDraws(draws, self.mean_of_y, self.scale_of_y)


class RoundedDraws:
    """Draws of a `CountsPredictor`: functions of the base, and targets rounded to counts."""

    def __init__(self, draws: Any, mean_of_y: float, scale_of_y: float) -> None:
        self._draws = draws
        self._mean = mean_of_y
        self._scale = scale_of_y

    @property
    def means(self) -> Tensor:
        """Noise-free functions, (n, N, 1)."""
        return self._draws.means  # type: ignore[no-any-return]

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Targets, (n, N, 1)."""
        counts = self._draws.sample_per_draw(rng) * self._scale + self._mean
        return (counts.round().clamp_min(0.0) - self._mean) / self._scale


@dataclass(frozen=True, eq=False)
class StackPart(BasePredictor):
    """A member's predictor as the stack asks it.

    Parameters
    ----------
    base : Predictor
    reads_given : bool
        Whether it reads rows as they were given, and not encoded.
    is_normal, is_discrete : bool
        Whether its distributions are mixtures of normals, and whether they are of counts.
    """

    base: Any
    reads_given: bool = False
    is_normal: bool = True
    is_discrete: bool = False

    def _read(self, rows: Any) -> Any:
        return rows.as_given if self.reads_given else rows.x

    def distribution(self, rows: Any) -> Any:
        return self.base.distribution(self._read(rows))

    def mean(self, rows: Any) -> Tensor:
        return self.base.mean(self._read(rows))  # type: ignore[no-any-return]

    def networks(self, rows: Any) -> Iterator[NetworkComponents]:
        return self.base.networks(self._read(rows))  # type: ignore[no-any-return]

    def sample_conditionals(self, rows: Any, n: int, *, generator: torch.Generator) -> Any:
        return self.base.sample_conditionals(self._read(rows), n, generator=generator)

    @property
    def inner(self) -> Any:
        """The fitted estimator, or what predicts where there is none."""
        base: Any = self.base
        while isinstance(base, ShapedPredictor | CalibratedPredictor | CountsPredictor):
            base = base.base
        return base.estimator if isinstance(base, EstimatorPredictor | UserPredictor) else base
