"""Predictive distributions of targets and of classes."""

from collections.abc import Callable, Sequence
from math import prod
from operator import methodcaller
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy.special import ndtr
from scipy.stats import norm
from sklearn.utils import Bunch
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin, encode_classes, label_array
from skbayes_sym.base.estimator import warn_infinite_rows
from skbayes_sym.base.input_validation import warn_reordered_labels
from skbayes_sym.base.messages import CollectedWarning, warn_once
from skbayes_sym.base.quadrature import Quadrature
from skbayes_sym.base.regressor import BayesianRegressorMixin, check_quantile_levels
from skbayes_sym.base.row_parameters import check_exposure, check_noise_std
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples, safe_indexing
from skbayes_sym.base.target_transformation import TargetTransformation
from skbayes_sym.models.crps import crps
from skbayes_sym.models.predictive_mixtures import NormalMixture, TargetPredictive
from skbayes_sym.numerics.arguments import (
    check_count,
    check_not_masked,
    check_random_state,
    draw_seed,
    is_frame,
)
from skbayes_sym.numerics.memory import draws_allocation, require_memory


class PredictiveDistribution:
    """Distribution of a new target at every row, in the units of ``y``.

    `shape` is that of scikit-learn's predictions: ``(n_samples,)``, or ``(n_samples, n_targets)``
    if the model was fitted to a two-dimensional ``y``. Observed targets broadcast to it by NumPy's
    rules. They can be a number, one value per row, or a grid of G values: ``(G, 1)`` for the same
    values at every row, or ``(G, n_samples)``. Results for several levels, coverages or draws have
    one more axis, the last one. ``len(distribution)`` is the number of rows, and
    ``distribution[rows]`` is the distribution at a subset of the rows.

    Attributes
    ----------
    has_normal_components : bool
        Whether the distribution is a mixture of the normals that `components` returns.
    is_discrete : bool
        Whether targets have probabilities instead of densities.
    row_labels : Index or None
        Row labels of the frame of inputs, which those of observed targets are compared with.
    """

    has_normal_components: bool = False
    is_discrete: bool = False
    row_labels: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_samples,)`` or ``(n_samples, n_targets)``."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Self:
        """Return the distribution of a slice, a mask or positions of rows; an int keeps one row."""
        positions = row_positions(rows, len(self))
        selected = self.take_rows(positions)
        if self.row_labels is not None:
            selected.row_labels = self.row_labels[positions]
        return selected

    def take_rows(self, rows: Array) -> Self:
        """Return the distribution at positions of rows."""
        raise NotImplementedError

    def mean(self) -> Array:
        """Return the expected target."""
        raise NotImplementedError

    def std(self) -> Array:
        """Return the standard deviation, observation noise included."""
        raise NotImplementedError

    def var(self) -> Array:
        """Return the variance, the square of `std`."""
        return np.asarray(self.std() ** 2)

    def quantile(self, q: Any) -> Array:
        """Return quantiles.

        Parameters
        ----------
        q : float or sequence of Q floats in (0, 1)
            Levels.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets)
            With one more axis of length Q, the last one, for a sequence of levels.
        """
        levels = check_quantile_levels(q)
        values = self.quantile_grid(levels)
        return values if np.ndim(q) else values[..., 0]

    def interval(self, coverage: Any = 0.9) -> Array:
        """Return the central interval that contains a new target with probability ``coverage``.

        Parameters
        ----------
        coverage : float or sequence of C floats in (0, 1), default=0.9
            Probability of the interval.

        Returns
        -------
        ndarray of shape (n_samples, 2) or (n_samples, n_targets, 2)
            Lower and upper end. For several coverages with one more axis, (..., 2, C).
        """
        coverages = check_quantile_levels(coverage, "coverage")
        levels = np.concatenate([0.5 * (1.0 - coverages), 0.5 * (1.0 + coverages)])
        values = self.quantile_grid(levels)
        ends = values.reshape(*values.shape[:-1], 2, len(coverages))
        return ends if np.ndim(coverage) else ends[..., 0]

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw targets.

        Parameters
        ----------
        n : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed. None uses fresh entropy.

        Returns
        -------
        ndarray of shape (n_samples, n) or (n_samples, n_targets, n)
        """
        raise NotImplementedError

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:  # noqa: ARG002 (an interface)
        """Draw noise-free functions, joint over rows and shaped as the draws of `sample`.

        The same seed gives the same functions at other rows.

        Raises
        ------
        TypeError
            If the distribution has no joint distribution over rows.
        """
        raise TypeError(
            f"{self!r} has no joint distribution over rows: functions() needs a model of this "
            "package."
        )

    def log_prob(self, y: Any) -> Array:
        """Return the log density of observed targets in nats, joint over the targets of a row.

        For counts and other discrete targets this is the log probability.

        Parameters
        ----------
        y : float or array-like that broadcasts to `shape`
            Observed targets.

        Returns
        -------
        ndarray of shape (n_samples,) or (G, n_samples)
        """
        values, leading = self._broadcast(y)
        infinite = np.isinf(values)
        log_density = np.asarray(self.log_prob_grid(np.where(infinite, 0.0, values)), dtype=float)
        log_density = np.where(infinite.any(axis=-1), -np.inf, log_density)
        return log_density.reshape(*leading, len(self))

    def logpdf(self, y: Any) -> Array:
        """Return `log_prob`. This is SciPy's name for it."""
        return self.log_prob(y)

    def pdf(self, y: Any) -> Array:
        """Return the density of observed targets, the exponential of `log_prob`."""
        return np.asarray(np.exp(self.log_prob(y)))

    def ppf(self, q: Any) -> Array:
        """Return `quantile`. This is SciPy's name for it."""
        return self.quantile(q)

    def cdf(self, y: Any) -> Array:
        """Return the probability of a target at or below ``y``, for each target separately."""
        values, leading = self._broadcast(y)
        infinite = np.isinf(values)
        below = self.cdf_grid(np.where(infinite, 0.0, values))
        below = np.where(infinite, values > 0.0, below)
        return below.reshape(*leading, *self.shape)

    def sf(self, y: Any) -> Array:
        """Return the probability of a target above ``y``, ``1 - cdf(y)``."""
        return np.asarray(1.0 - self.cdf(y))

    def crps(self, y: Any) -> Array:
        """Return the continuous ranked probability score in target units. Lower is better."""
        values, leading = self._broadcast(y)
        infinite = np.isinf(values)
        score = self.crps_grid(np.where(infinite, 0.0, values))
        return np.where(infinite, np.inf, score).reshape(*leading, *self.shape)

    def uncertainty(self) -> Bunch:
        """Return the variance by its source: ``total``, ``epistemic`` and ``aleatoric``.

        Raises
        ------
        TypeError
            If the distribution doesn't separate observation noise from model uncertainty.
        """
        raise TypeError(
            f"{self!r} doesn't separate observation noise from model uncertainty: uncertainty() "
            "needs a model of this package. For a transformed target, use the inner model's."
        )

    def components(self) -> "Components":
        """Return weights, means and standard deviations of the mixture's components.

        Raises
        ------
        TypeError
            If the distribution is no mixture.
        """
        raise TypeError(
            f"{self!r} has no components: components() needs a mixture of normals. For a "
            "transformed target, use the inner model's."
        )

    # Methods that concrete distributions define. Grids of targets are (G, N, T), with T = 1 if
    # `shape` has one axis.

    def quantile_grid(self, levels: Array) -> Array:
        """Return the quantiles at levels (Q,), (*shape, Q)."""
        raise NotImplementedError

    def log_prob_grid(self, y: Array) -> Array:
        """Return the log density of a grid, (G, N)."""
        raise NotImplementedError

    def cdf_grid(self, y: Array) -> Array:
        """Return the distribution function on a grid, (G, N, T)."""
        raise NotImplementedError

    def crps_grid(self, y: Array) -> Array:
        """Return the CRPS on a grid, (G, N, T), by quadrature."""
        return Quadrature(self).crps(y)

    def evaluated(self) -> "PredictiveDistribution":
        """Return the same distribution without the model, which has been evaluated once."""
        return self

    def add_known_errors(self, noise_std: Any) -> "PredictiveDistribution":  # noqa: ARG002
        """Return the distribution of targets with further errors of known standard deviations.

        Parameters
        ----------
        noise_std : array-like of shape (n_samples,) or (n_samples, n_targets)
            Standard deviations in the units of ``y``.

        Raises
        ------
        TypeError
            If the distribution is no mixture of normals.
        """
        raise TypeError(
            f"noise_std is added to mixtures of normal distributions, which {self!r} isn't. For a "
            "transformed target, add it to the predictions of the inner model."
        )

    def multiply_rate(self, exposure: Any) -> "PredictiveDistribution":  # noqa: ARG002
        """Return the distribution of counts whose mean is ``exposure`` times as large.

        Parameters
        ----------
        exposure : array-like of shape (n_samples,) or (n_samples, n_targets)
            Exposures of the counts.

        Raises
        ------
        TypeError
            If the distribution isn't one of Poisson or negative binomial counts.
        """
        raise TypeError(
            "exposure multiplies the mean of Poisson and negative binomial counts, which "
            f"{self!r} doesn't hold."
        )

    @property
    def tensor_blocks(self) -> Sequence[TargetPredictive]:
        """Distributions of blocks of rows as tensors, if the distribution holds them."""
        return ()

    @property
    def density_jumps(self) -> list[float]:
        """Values at which the density jumps, of any row."""
        jumps = {jump for block in self.tensor_blocks for jump in block.density_jumps}
        return sorted(jumps)

    def unwrap_transformations(self) -> tuple["PredictiveDistribution", list[TargetTransformation]]:
        """Return the distribution inside all transformations, and these, the innermost first."""
        return self, []

    def _broadcast(self, y: Any) -> tuple[Array, tuple[int, ...]]:
        """Return observed targets as a grid (G, N, T), and the axes of ``y`` that G combines."""
        warn_reordered_labels(self.row_labels, y=y)
        values = observed_targets(y)
        shape = self.shape
        if len(shape) == 2 and shape[1] == 1 and values.shape == shape[:1]:
            values = values[:, None]  # a single target may be given without its axis
        if is_frame(y) and values.shape == (*shape, 1):
            values = values[:, 0]  # a column of a frame is no grid
        try:
            full = np.broadcast_shapes(values.shape, shape)
        except ValueError:
            full = ()
        if full[-len(shape) :] != shape:
            axes = ", ".join(str(size) for size in shape)
            if len(shape) == 1:
                tail = "1"
                name = "(n_samples,)"
            else:
                tail = "1, 1"
                name = "(n_samples, n_targets)"
            raise ValueError(
                f"y has shape {values.shape}, which doesn't broadcast to the predictions' "
                f"{name} = {shape}: give a number, an array of shape {shape}, or a "
                f"grid of G values of shape (G, {tail}) or (G, {axes})."
            )
        grid = np.broadcast_to(values, full)
        n_targets = prod(shape[1:])
        n_values = int(np.prod(full[: -len(shape)], dtype=int))
        return grid.reshape(n_values, shape[0], n_targets), full[: -len(shape)]


def check_draws(n: Any, shape: tuple[int, ...]) -> int:
    """Check the number of draws of predictions of ``shape``, and that they fit into memory."""
    n = check_count("n", n)
    n_rows, n_targets = (*shape, 1)[:2]
    require_memory([draws_allocation(n, n_rows, n_targets)], torch.device("cpu"), task="sample")
    return n


def observed_targets(y: Any) -> Array:
    """Convert observed targets to floats of any shape.

    Raises
    ------
    ValueError
        If a value isn't a real number, or is masked or missing.
    """
    check_not_masked("y", y)
    try:
        raw = np.asarray(y)
        if raw.dtype.kind in "cM":
            raise ValueError(f"got dtype {raw.dtype}")
        values = raw.astype(float)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"y must hold real numbers: {error}.") from error
    missing = np.isnan(values)
    if missing.any():
        position = [int(i) for i in np.argwhere(missing)[0]]
        location = ""
        if position:
            location = f" at position {position[0] if len(position) == 1 else tuple(position)}"
        raise ValueError(f"y contains NaN{location}: leave out the rows whose target is missing.")
    return values


def row_positions(rows: Any, n_rows: int) -> Array:
    """Return the positions of rows that an index selects.

    Parameters
    ----------
    rows : slice, mask of N bools, positions, or int
        Index of rows.
    n_rows : int
        Number of rows N.

    Returns
    -------
    ndarray of shape (n_selected,)

    Raises
    ------
    TypeError
        If the index has another type.
    IndexError
        If a position or the length of a mask is out of range.
    """
    if isinstance(rows, slice):
        return np.arange(n_rows)[rows]
    index = np.asarray(rows)
    if index.ndim > 1 or (index.dtype.kind not in "biu" and index.size):
        raise TypeError(
            "a predictive distribution is indexed by rows: give a slice, a mask of "
            f"{n_rows} booleans, or positions, got {type(rows).__name__}."
        )
    if index.dtype.kind == "b" and index.shape != (n_rows,):
        raise IndexError(f"the mask has shape {index.shape}, but there are {n_rows} rows.")
    index = index if index.size else index.astype(int)
    is_outside = (index < -n_rows) | (index >= n_rows)
    if index.dtype.kind != "b" and is_outside.any():
        raise IndexError(
            f"row {index[is_outside].flat[0]} is out of bounds: there are {n_rows} rows."
        )
    return np.atleast_1d(np.arange(n_rows)[index])


class Components(NamedTuple):
    """Components of a predictive mixture.

    Attributes
    ----------
    weights : ndarray of shape (n_components,)
        Weights, which add up to 1.
    loc : ndarray of shape (n_components, n_samples) or (n_components, n_samples, n_targets)
        Means.
    scale : ndarray of the shape of ``loc``
        Standard deviations, observation noise included.
    """

    weights: Array
    loc: Array
    scale: Array


class _GridPredictive(PredictiveDistribution):
    """Base class of distributions whose grids are evaluated by tensors."""

    def _evaluate_grid(
        self, y: Array, function: Callable[[TargetPredictive, Tensor], Tensor]
    ) -> Array:
        """Evaluate a function of distribution and targets (N, T) for each element of a grid."""
        raise NotImplementedError

    def log_prob_grid(self, y: Array) -> Array:
        """Return the log density of a grid, (G, N)."""
        return self._evaluate_grid(y, lambda distribution, targets: distribution.log_prob(targets))

    def cdf_grid(self, y: Array) -> Array:
        """Return the distribution function on a grid, (G, N, T)."""
        return self._evaluate_grid(y, lambda distribution, targets: distribution.cdf(targets))

    def crps_grid(self, y: Array) -> Array:
        """Return the CRPS on a grid, (G, N, T)."""
        return self._evaluate_grid(y, crps)


class PosteriorPredictive(_GridPredictive):
    """Predictive distribution of a regressor of this package, which every method evaluates.

    Parameters
    ----------
    model : regressor
        Fitted estimator of this package.
    X : array-like of shape (n_samples, n_features)
        Rows.
    """

    def __init__(self, model: BayesianRegressorMixin, X: Any) -> None:
        self._model = model
        self._X = X
        self._shown: set[CollectedWarning] = set()

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_samples,)`` or ``(n_samples, n_targets)``."""
        n_rows = num_samples(self._X)
        if self._model._y_ndim_ == 1:
            return (n_rows,)
        return (n_rows, len(self._model.y_scale_))

    def take_rows(self, rows: Array) -> "PosteriorPredictive":
        """Return the distribution at positions of rows."""
        return PosteriorPredictive(self._model, safe_indexing(self._X, rows))

    @property
    def has_normal_components(self) -> bool:  # type: ignore[override]
        """Whether the distribution is a mixture of normals."""
        return self._model.has_normal_components

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether targets have probabilities instead of densities."""
        return self._model.predicts_counts

    def __repr__(self) -> str:
        n_components = len(self._model.mixture_components(self._X[:1])[0])
        kind = f"{self._model.fitted_likelihood.kind} "
        if self._model.fitted_likelihood.kind == "normal" and not self.has_normal_components:
            # The members of a stack have other distributions than its likelihood.
            kind = ""
            if self.is_discrete:
                kind = "count "
        parts = f"mixture of {n_components:,} {kind}components"
        return f"<{parts}, by {type(self._model).__name__}, at {num_samples(self._X):,} rows>"

    @warn_once
    def components(self) -> Components:
        """Return weights, means and standard deviations of the components."""
        return Components(*self._model.mixture_components(self._X))

    @warn_once
    def mean(self) -> Array:
        """Return the expected target."""
        return np.asarray(self._model.predict(self._X))

    @warn_once
    def std(self) -> Array:
        """Return the standard deviation, observation noise included."""
        return np.asarray(self._model.predict(self._X, return_std=True)[1])

    @warn_once
    def quantile_grid(self, levels: Array) -> Array:
        """Return the quantiles at levels (Q,), (*shape, Q)."""
        return self._model.predict_quantiles(self._X, levels.tolist())

    @warn_once
    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw targets, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        return self._model.sample_y(self._X, n, random_state)

    @warn_once
    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw noise-free functions, joint over rows."""
        return self._model.sample_f(self._X, n, random_state)

    @warn_once
    def _evaluate_grid(
        self, y: Array, function: Callable[[TargetPredictive, Tensor], Tensor]
    ) -> Array:
        def evaluate_rows(distribution: TargetPredictive, grid: Tensor) -> list[Tensor]:
            values = [function(distribution, targets) for targets in grid.unbind(-1)]
            return [torch.stack(values, -1)]

        by_row = np.array(np.moveaxis(y, 0, -1), order="C")
        (values,) = self._model.evaluate_functional(self._X, evaluate_rows, by_row)
        return np.moveaxis(values, -1, 0)

    def add_known_errors(self, noise_std: Any) -> "TensorPredictive":
        """Return the distribution of targets with further errors of known standard deviations."""
        return self.evaluated().add_known_errors(noise_std)

    def multiply_rate(self, exposure: Any) -> "TensorPredictive":
        """Return the distribution of counts whose mean is ``exposure`` times as large."""
        return self.evaluated().multiply_rate(exposure)

    @warn_once
    def uncertainty(self) -> Bunch:
        """Return the variance by its source."""
        return self._model.predict_uncertainty(self._X)

    @warn_once
    def evaluated(self) -> "TensorPredictive":
        """Return the same distribution without the model, which has been evaluated once."""
        distributions: list[TargetPredictive] = []
        positions: list[Array] = []

        def keep(distribution: TargetPredictive, rows: Tensor) -> list[Tensor]:
            distributions.append(distribution)
            positions.append(rows[:, 0].long().cpu().numpy())
            return [distribution.mean()]

        index = np.arange(num_samples(self._X), dtype=float)[:, None]
        (mean,) = self._model.evaluate_functional(self._X, keep, index)
        warn_infinite_rows(mean)
        is_flat = len(self.shape) == 1
        evaluated = TensorPredictive(distributions, is_flat=is_flat, separates_noise=True)
        # Rows with unknown levels come first.
        order = np.argsort(np.concatenate(positions))
        if (np.diff(order) > 0).all():
            return evaluated
        return evaluated.take_rows(order)


def _component_means(distribution: TargetPredictive) -> Tensor:
    return distribution.means.movedim(0, -1)


def _component_scales(distribution: TargetPredictive) -> Tensor:
    return distribution.scales.expand_as(distribution.means).movedim(0, -1)


class TensorPredictive(_GridPredictive):
    """Predictive distributions of blocks of rows as tensors.

    Parameters
    ----------
    distributions : sequence of TargetPredictive
        One distribution per block of rows.
    is_flat : bool, default=True
        Whether `shape` has no axis of targets.
    separates_noise : bool, default=False
        Whether the distributions separate observation noise from model uncertainty, as those of
        this package do.
    """

    def __init__(
        self,
        distributions: Sequence[TargetPredictive],
        *,
        is_flat: bool = True,
        separates_noise: bool = False,
    ) -> None:
        self._blocks = list(distributions)
        self._is_flat = is_flat
        self._separates_noise = separates_noise

    def __repr__(self) -> str:
        n_components = len(self._blocks[0].weights)
        if self.has_normal_components:
            kind = "normal components"
        else:
            kind = "components"
        return f"<mixture of {n_components:,} {kind} at {len(self):,} rows>"

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_samples,)`` or ``(n_samples, n_targets)``."""
        n_rows = sum(distribution.n_rows for distribution in self._blocks)
        n_targets = self._blocks[0].n_targets
        if self._is_flat:
            return (n_rows,)
        return (n_rows, n_targets)

    @property
    def tensor_blocks(self) -> Sequence[TargetPredictive]:
        """Distributions of blocks of rows."""
        return self._blocks

    def take_rows(self, rows: Array) -> "TensorPredictive":
        """Return the distribution at positions of rows."""
        blocks = []
        start = 0
        edges = np.cumsum([0, *(distribution.n_rows for distribution in self._blocks)])
        which = np.searchsorted(edges, rows, side="right") - 1
        ends = [*(1 + np.flatnonzero(np.diff(which))), len(rows)]
        for end in ends:  # consecutive rows of one block, in the order of the index
            block = int(which[start]) if len(rows) else 0
            blocks.append(self._blocks[block].take(rows[start:end] - edges[block]))
            start = end
        return self._with_blocks(blocks)

    def _with_blocks(self, blocks: Sequence[TargetPredictive]) -> "TensorPredictive":
        """Return the same kind of distribution with other blocks."""
        return TensorPredictive(
            blocks, is_flat=self._is_flat, separates_noise=self._separates_noise
        )

    @property
    def has_normal_components(self) -> bool:  # type: ignore[override]
        """Whether the distribution is a mixture of normals."""
        return all(isinstance(distribution, NormalMixture) for distribution in self._blocks)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether targets have probabilities instead of densities."""
        return self._blocks[0].is_discrete

    def add_known_errors(self, noise_std: Any) -> "TensorPredictive":
        """Return the distribution of targets with further errors of known standard deviations."""
        errors = check_noise_std(noise_std, (len(self), self._blocks[0].n_targets))
        return self._replace_blocks(errors, lambda block, rows: block.add_known_errors(rows))

    def multiply_rate(self, exposure: Any) -> "TensorPredictive":
        """Return the distribution of counts whose mean is ``exposure`` times as large."""
        factors = check_exposure(exposure, (len(self), self._blocks[0].n_targets))
        return self._replace_blocks(factors, lambda block, rows: block.multiply_rate(rows))

    def _replace_blocks(
        self, values: Array, function: Callable[[TargetPredictive, Tensor], TargetPredictive]
    ) -> "TensorPredictive":
        """Apply a function of a block's distribution and of its rows of ``values`` (N, T)."""
        rows = torch.tensor(values).split([block.n_rows for block in self._blocks])
        pairs = zip(self._blocks, rows, strict=True)
        return self._with_blocks([function(*pair) for pair in pairs])

    def uncertainty(self) -> Bunch:
        """Return the variance by its source; known errors are aleatoric."""
        if not self._separates_noise:
            return super().uncertainty()
        values = self._concatenate(lambda block: torch.stack(block.uncertainty(), -1))
        total, epistemic, aleatoric = np.moveaxis(values, -1, 0)
        return Bunch(total=total, epistemic=epistemic, aleatoric=aleatoric)

    def _concatenate(self, function: Callable[[TargetPredictive], Tensor]) -> Array:
        """Evaluate a function of all blocks, without the axis of targets if `shape` has none."""
        with torch.no_grad():
            values = torch.cat([function(distribution) for distribution in self._blocks])
        array = values.double().cpu().numpy()
        if self._is_flat:
            return array.squeeze(axis=1)
        return array

    def _evaluate_grid(
        self, y: Array, function: Callable[[TargetPredictive, Tensor], Tensor]
    ) -> Array:
        sizes = [distribution.n_rows for distribution in self._blocks]
        grid = []
        for targets in torch.tensor(y):
            pairs = zip(self._blocks, targets.split(sizes), strict=True)
            values = torch.cat([function(distribution, rows) for distribution, rows in pairs])
            grid.append(values.double().cpu().numpy())
        if grid:
            return np.stack(grid)
        return np.zeros((0, *y.shape[1:]))

    def components(self) -> Components:
        """Return weights, means and standard deviations of the components."""
        weights = self._blocks[0].weights.double().cpu().numpy()
        loc = np.moveaxis(self._concatenate(_component_means), -1, 0)
        scale = np.moveaxis(self._concatenate(_component_scales), -1, 0)
        return Components(weights, loc, scale)

    def mean(self) -> Array:
        """Return the expected target."""
        return self._concatenate(lambda distribution: distribution.mean())

    def std(self) -> Array:
        """Return the standard deviation, observation noise included."""
        return self._concatenate(lambda distribution: distribution.std())

    def quantile_grid(self, levels: Array) -> Array:
        """Return the quantiles at levels (Q,), (*shape, Q)."""
        values = [self._concatenate(methodcaller("quantile", q)) for q in levels.tolist()]
        return np.stack(values, axis=-1)

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw targets, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        n = check_draws(n, self.shape)
        rng = np.random.default_rng(draw_seed(random_state))
        return self._concatenate(lambda distribution: distribution.sample(n, rng).movedim(0, -1))


class NormalPredictive(PredictiveDistribution):
    """Predictions of a regressor that returns mean and standard deviation: independent normals."""

    has_normal_components = True

    def __init__(self, mean: Array, std: Array) -> None:
        self._mean = np.asarray(mean, dtype=float)
        self._std = np.asarray(std, dtype=float)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_samples,)`` or ``(n_samples, n_targets)``."""
        return self._mean.shape

    def take_rows(self, rows: Array) -> "NormalPredictive":
        """Return the distribution at positions of rows."""
        return NormalPredictive(self._mean[rows], self._std[rows])

    def __repr__(self) -> str:
        return f"<independent normals at {len(self._mean):,} rows>"

    def components(self) -> Components:
        """Return weights, means and standard deviations of the components."""
        return Components(np.ones(1), self._mean[None], self._std[None])

    def mean(self) -> Array:
        """Return the expected target."""
        return self._mean

    def std(self) -> Array:
        """Return the standard deviation, observation noise included."""
        return self._std

    def quantile_grid(self, levels: Array) -> Array:
        """Return the quantiles at levels (Q,), (*shape, Q)."""
        return np.asarray(self._mean[..., None] + self._std[..., None] * norm.ppf(levels))

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw targets, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        n = check_draws(n, self.shape)
        noise = check_random_state(random_state).standard_normal((*self._mean.shape, n))
        return np.asarray(self._mean[..., None] + self._std[..., None] * noise)

    def add_known_errors(self, noise_std: Any) -> "NormalPredictive":
        """Return the distribution of targets with further errors of known standard deviations."""
        n_targets = self._mean.size // max(len(self), 1)
        errors = check_noise_std(noise_std, (len(self), n_targets))
        return NormalPredictive(self._mean, np.hypot(self._std, errors.reshape(self.shape)))

    def _residuals(self, y: Array) -> tuple[Array, Array]:
        """Return the residuals of a grid (G, N, T), and the standard deviations (N, T)."""
        shape = (len(self), y.shape[2])
        return y - self._mean.reshape(shape), self._std.reshape(shape)

    def log_prob_grid(self, y: Array) -> Array:
        """Return the log density of a grid, (G, N)."""
        residual, std = self._residuals(y)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            values = -0.5 * (residual / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)
        values = np.where(std > 0, values, -np.inf)  # a point mass has no density
        return np.asarray(values.sum(axis=-1))

    def cdf_grid(self, y: Array) -> Array:
        """Return the distribution function on a grid, (G, N, T)."""
        residual, std = self._residuals(y)
        with np.errstate(divide="ignore", invalid="ignore"):
            # At a point mass itself, the probability of a target at or below y is 1.
            z = np.where((std > 0) | (residual != 0), residual / std, np.inf)
            return np.asarray(ndtr(z))

    def crps_grid(self, y: Array) -> Array:
        """Compute the closed form (Gneiting & Raftery 2007, eq. 21)."""
        residual, std = self._residuals(y)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            z = residual / std
            values = std * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * norm.pdf(z) - np.pi**-0.5)
        return np.where(std > 0, values, np.abs(residual))


class ClassPredictive:
    """Class probabilities of every row.

    Parameters
    ----------
    model : classifier
        Fitted classifier with ``predict_proba``.
    X : array-like of shape (n_samples, n_features)
        Rows.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Labels of the columns of `proba`.
    row_labels : Index or None
        Row labels of the frame of inputs, which those of observed labels are compared with.
    """

    row_labels: Any = None

    def __init__(self, model: Any, X: Any) -> None:
        self._model = model
        self._X = X
        self._shown: set[CollectedWarning] = set()
        self.classes = np.asarray(model.classes_)

    def __repr__(self) -> str:
        name = type(self._model).__name__
        n_rows = num_samples(self._X)
        return f"<probabilities of {len(self.classes)} classes, by {name}, at {n_rows:,} rows>"

    @warn_once
    def proba(self) -> Array:
        """Return the class probabilities, (n_samples, n_classes)."""
        return np.asarray(self._model.predict_proba(self._X), dtype=float)

    @warn_once
    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw class probabilities, (n_samples, n_classes, n), jointly over rows."""
        return self._require_bayesian_model("functions").sample_f(self._X, n, random_state)

    def __len__(self) -> int:
        return num_samples(self._X)

    def __getitem__(self, rows: Any) -> "ClassPredictive":
        """Return the probabilities of a slice, a mask or positions of rows."""
        positions = row_positions(rows, len(self))
        selected = type(self)(self._model, safe_indexing(self._X, positions))
        if self.row_labels is not None:
            selected.row_labels = self.row_labels[positions]
        return selected

    def log_prob(self, y: Any) -> Array:
        """Return the log probability of observed labels in nats.

        It is -inf for labels that weren't among the training labels.

        Parameters
        ----------
        y : label or array-like of labels
            Broadcasts to ``(n_samples,)``: a label, one label per row, or a grid (G, 1) or
            (G, n_samples).

        Returns
        -------
        ndarray of shape (n_samples,) or (G, n_samples)
        """
        check_not_masked("y", y)
        warn_reordered_labels(self.row_labels, y=y)
        labels = label_array(y)
        n_rows = len(self)
        if labels.shape[-1:] not in {(), (1,), (n_rows,)}:
            raise ValueError(
                f"y has shape {labels.shape}, which doesn't broadcast to the predictions' "
                f"(n_samples,) = ({n_rows},): give a label, an array of shape ({n_rows},), or a "
                f"grid of G labels of shape (G, 1) or (G, {n_rows})."
            )
        codes, known = encode_classes(self.classes, labels)
        shape = np.broadcast_shapes(labels.shape, (n_rows,))
        codes = np.broadcast_to(codes, shape).reshape(-1, n_rows)
        log_prob = self._code_log_prob(codes).reshape(shape)
        return np.where(known, log_prob, -np.inf)

    @warn_once
    def _code_log_prob(self, codes: Array) -> Array:
        """Return the log probabilities (G, N) of class indices (G, N)."""
        if not isinstance(self._model, BayesianClassifierMixin):
            with np.errstate(divide="ignore"):
                log_proba = np.log(self.proba())
            return np.asarray(log_proba[np.arange(len(log_proba)), codes])

        def evaluate_rows(distribution: Any, codes: Tensor) -> list[Tensor]:
            # In logarithms, because small probabilities underflow.
            return [torch.stack([distribution.log_prob(column) for column in codes.unbind(1)], 1)]

        (values,) = self._model.evaluate_functional(
            self._X, evaluate_rows, np.array(codes.T, order="C")
        )
        return np.asarray(values.T, dtype=float)

    @warn_once
    def uncertainty(self) -> Bunch:
        """Return the entropy by its source, in nats: ``total``, ``epistemic``, ``aleatoric``."""
        return self._require_bayesian_model("uncertainty").predict_uncertainty(self._X)

    def _require_bayesian_model(self, method: str) -> BayesianClassifierMixin:
        if not isinstance(self._model, BayesianClassifierMixin):
            raise TypeError(f"{self!r} has no {method}(): it needs a model of this package.")
        return self._model
