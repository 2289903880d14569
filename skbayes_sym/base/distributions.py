"""Predictive distributions of targets and of classes, as one object each."""

from collections.abc import Callable, Sequence
from itertools import product
from operator import methodcaller
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy.special import ndtr
from scipy.stats import norm
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin, encode_classes
from skbayes_sym.base.regressor import BayesianRegressorMixin, check_quantile_levels
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples, safe_indexing
from skbayes_sym.base.target_transformation import (
    Branch,
    TargetTransformation,
    elementary_transformations,
)
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.models.predictive_mixtures import NormalMixture, TargetPredictive, crps
from skbayes_sym.numerics.arguments import (
    check_count,
    check_not_masked,
    check_random_state,
    draw_seed,
)
from skbayes_sym.numerics.memory import draws_allocation, require_memory

_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(8)
_REACH = np.arange(-12.0, 13.0)  # where integrals over a normal are divided, standard deviations
_N_PANELS = 32  # at most, of such an integral
_NEGLIGIBLE = 1e-6  # probability next to a pole of the inverse that moments neglect
_MOST_COUNTS = 4096  # values of a count that moments are summed over
_MANY_COMPONENTS = 16  # from which few nodes of each of them are enough


class PredictiveDistribution:
    """Distribution of a new target at every row, in the units of ``y``.

    `shape` is that of scikit-learn's predictions: ``(n_samples,)``, or ``(n_samples, n_targets)``
    where the model was fitted to a two-dimensional ``y``. Observed targets are broadcast to it by
    NumPy's rules: a number, one value per row, or a grid of G values, ``(G, 1)`` for the same
    values at every row or ``(G, n_samples)``. What is asked for several times (levels of quantiles,
    coverages, draws) comes last. ``len(distribution)`` is the number of rows, and
    ``distribution[rows]`` is the distribution of some of them.

    ``has_normal_components``: whether it is a mixture of the normals that `components` gives.
    ``is_discrete``: whether targets have probabilities and not densities.
    """

    has_normal_components: bool = False
    is_discrete: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_samples,)`` or ``(n_samples, n_targets)``."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Self:
        """Return the distribution of a slice, a mask or positions of rows; an int keeps one row."""
        return self._take(row_positions(rows, len(self)))

    def _take(self, rows: Array) -> Self:
        raise NotImplementedError

    def mean(self) -> Array:
        """Expected target."""
        raise NotImplementedError

    def std(self) -> Array:
        """Standard deviation, observation noise included."""
        raise NotImplementedError

    def var(self) -> Array:
        """Variances, the squares of `std`."""
        return np.asarray(self.std() ** 2)

    def quantile(self, q: Any) -> Array:
        """Quantiles at a level, or at Q levels: one axis more, ``(n_samples, Q)``."""
        levels = check_quantile_levels(q)
        values = self._quantiles(levels)
        return values if np.ndim(q) else values[..., 0]

    def interval(self, coverage: Any = 0.9) -> Array:
        """Ends of the central interval that holds a new target with probability ``coverage``.

        Parameters
        ----------
        coverage : float or sequence of C floats in (0, 1), default=0.9

        Returns
        -------
        ndarray of shape (n_samples, 2) or (n_samples, n_targets, 2)
            Lower and upper end; with one axis more, (..., 2, C), for several coverages.
        """
        coverages = check_quantile_levels(coverage, "coverage")
        levels = np.concatenate([0.5 * (1.0 - coverages), 0.5 * (1.0 + coverages)])
        values = self._quantiles(levels)
        ends = values.reshape(*values.shape[:-1], 2, len(coverages))
        return ends if np.ndim(coverage) else ends[..., 0]

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draws, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        raise NotImplementedError

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Noise-free draws, joint over rows: shaped as those of `sample`.

        The same functions for other rows and the same seed.
        """
        raise TypeError(
            f"{self!r} doesn't say how rows vary together: functions() takes models of this "
            "package."
        )

    def log_prob(self, y: Any) -> Array:
        """Log density of observed targets, nats, joint over a row's targets.

        Of counts and other discrete targets it is their log probability.

        Parameters
        ----------
        y : float or array-like that broadcasts to `shape`

        Returns
        -------
        ndarray of shape (n_samples,) or (G, n_samples)
        """
        values, leading = self._broadcast(y)
        infinite = np.isinf(values)
        log_density = np.asarray(self._log_prob(np.where(infinite, 0.0, values)), dtype=float)
        log_density = np.where(infinite.any(axis=-1), -np.inf, log_density)
        return log_density.reshape(*leading, len(self))

    def logpdf(self, y: Any) -> Array:
        """`log_prob`, by the name that scipy has for it."""
        return self.log_prob(y)

    def pdf(self, y: Any) -> Array:
        """Density of observed targets."""
        return np.asarray(np.exp(self.log_prob(y)))

    def ppf(self, q: Any) -> Array:
        """`quantile`, by the name that scipy has for it."""
        return self.quantile(q)

    def cdf(self, y: Any) -> Array:
        """Probability of a target at or below the observed one, each by itself."""
        values, leading = self._broadcast(y)
        infinite = np.isinf(values)
        below = self._cdf(np.where(infinite, 0.0, values))
        below = np.where(infinite, values > 0.0, below)
        return below.reshape(*leading, *self.shape)

    def sf(self, y: Any) -> Array:
        """Probability of a target above the observed one, ``1 - cdf(y)``."""
        return np.asarray(1.0 - self.cdf(y))

    def crps(self, y: Any) -> Array:
        """Continuous ranked probability score, in target units; less is better."""
        values, leading = self._broadcast(y)
        infinite = np.isinf(values)
        score = self._crps(np.where(infinite, 0.0, values))
        return np.where(infinite, np.inf, score).reshape(*leading, *self.shape)

    def uncertainty(self) -> Bunch:
        """Variance by its source: ``total``, ``epistemic``, ``aleatoric``."""
        raise TypeError(
            f"{self!r} doesn't say which part of its variance is the noise's: uncertainty() takes "
            "models of this package, and what is inside a transformation of the target."
        )

    def components(self) -> "Components":
        """Means and standard deviations of the mixture's components, and their weights."""
        raise TypeError(
            f"{self!r} has no components: components() takes normal mixtures, and what is inside a "
            "transformation of the target."
        )

    # What a concrete distribution defines: questions about a grid of targets, (G, N, T), with T = 1
    # where `shape` has one axis.

    def _quantiles(self, levels: Array) -> Array:
        """Quantiles at levels (Q,), (*shape, Q)."""
        raise NotImplementedError

    def _log_prob(self, y: Array) -> Array:
        """Log density, (G, N)."""
        raise NotImplementedError

    def _cdf(self, y: Array) -> Array:
        """P(target <= y), (G, N, T)."""
        raise NotImplementedError

    def _crps(self, y: Array) -> Array:
        r"""CRPS, (G, N, T), by quadrature.

        .. math:: 2 \int (1[x > y] - F(x)) (x - y) \, dF(x)
        """
        quadrature = Quadrature(self)
        scores = []
        for targets in y:
            values, weights, cdf = quadrature.nodes(targets)
            with np.errstate(invalid="ignore"):
                off = np.where(weights > 0.0, values - targets, 0.0)
                scores.append(2.0 * (weights * ((off > 0.0) - cdf) * off).sum(axis=0))
        return np.nan_to_num(np.stack(scores), nan=np.inf, posinf=np.inf)

    def evaluated(self) -> "PredictiveDistribution":
        """The same distribution, which questions don't run a model for."""
        return self

    def _chain(self) -> tuple["PredictiveDistribution", list[TargetTransformation]]:
        """The distribution inside all transformations of the target, and these, innermost first."""
        return self, []

    def _broadcast(self, y: Any) -> tuple[Array, tuple[int, ...]]:
        """Observed targets as a grid (G, N, T), and the axes of ``y`` that the G stand for."""
        values = observed_targets(y)
        shape = self.shape
        if len(shape) == 2 and shape[1] == 1 and values.shape == shape[:1]:
            values = values[:, None]  # the one column of targets, without its axis
        try:
            full = np.broadcast_shapes(values.shape, shape)
        except ValueError:
            full = ()
        if full[-len(shape) :] != shape:
            axes = ", ".join(str(size) for size in shape)
            tail = "1" if len(shape) == 1 else "1, 1"
            name = "(n_samples,)" if len(shape) == 1 else "(n_samples, n_targets)"
            comma = "," if len(shape) == 1 else ""
            raise ValueError(
                f"y has shape {values.shape}, which doesn't broadcast to the predictions' "
                f"{name} = ({axes}{comma}): give a number, an array of shape ({axes}{comma}), or a "
                f"grid of G values of shape (G, {tail}) or (G, {axes})."
            )
        grid = np.broadcast_to(values, full)
        n_targets = shape[1] if len(shape) == 2 else 1
        n_values = int(np.prod(full[: -len(shape)], dtype=int))
        return grid.reshape(n_values, shape[0], n_targets), full[: -len(shape)]


def check_draws(n: Any, shape: tuple[int, ...]) -> int:
    """Check the number of draws of predictions of ``shape``, and that they fit into memory."""
    n = check_count("n", n)
    n_rows, n_targets = (*shape, 1)[:2]
    require_memory([draws_allocation(n, n_rows, n_targets)], torch.device("cpu"), task="sample")
    return n


def observed_targets(y: Any) -> Array:
    """Observed targets as numbers of any shape; ValueError of what is none, or missing."""
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
        place = tuple(int(i) for i in np.argwhere(missing)[0])
        where = f" at position {place[0] if len(place) == 1 else place}" if place else ""
        raise ValueError(f"y contains NaN{where}: leave out the rows whose target is missing.")
    return values


def row_positions(rows: Any, n_rows: int) -> Array:
    """Positions of rows that an index stands for: a slice, a mask, positions, or one position."""
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
        raise IndexError(f"row {index[is_outside].flat[0]} is none of {n_rows} rows.")
    return np.atleast_1d(np.arange(n_rows)[index])


class Components(NamedTuple):
    """A predictive distribution as a mixture; normal where the noise is."""

    weights: Array  # (n_components,), adding up to one
    loc: Array  # (n_components, n_samples) or (n_components, n_samples, n_targets)
    scale: Array  # the same; standard deviations, observation noise included


class PosteriorPredictive(PredictiveDistribution):
    """The predictive distribution of a regressor of this package; the model runs when asked."""

    def __init__(self, model: BayesianRegressorMixin, X: Any) -> None:
        self._model = model
        self._X = X

    @property
    def shape(self) -> tuple[int, ...]:
        n_rows = num_samples(self._X)
        return (n_rows,) if self._model._y_ndim_ == 1 else (n_rows, len(self._model.y_scale_))

    def _take(self, rows: Array) -> "PosteriorPredictive":
        return PosteriorPredictive(self._model, safe_indexing(self._X, rows))

    @property
    def has_normal_components(self) -> bool:  # type: ignore[override]
        return self._model.has_normal_components

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return self._model.predicts_counts

    def __repr__(self) -> str:
        n_components = len(self._model.mixture_components(self._X[:1])[0])
        kind = f"{self._model.fitted_likelihood.kind} "
        if self._model.fitted_likelihood.kind == "normal" and not self.has_normal_components:
            kind = "count " if self.is_discrete else ""  # of a stack's members
        parts = f"mixture of {n_components:,} {kind}components"
        return f"<{parts}, by {type(self._model).__name__}, at {num_samples(self._X):,} rows>"

    def components(self) -> Components:
        return Components(*self._model.mixture_components(self._X))

    def mean(self) -> Array:
        return np.asarray(self._model.predict(self._X))

    def std(self) -> Array:
        return np.asarray(self._model.predict(self._X, return_std=True)[1])

    def _quantiles(self, levels: Array) -> Array:
        return self._model.predict_quantiles(self._X, levels.tolist())

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        return self._model.sample_y(self._X, n, random_state)

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        return self._model.sample_f(self._X, n, random_state)

    def _log_prob(self, y: Array) -> Array:
        return self._of_grid(y, lambda distribution, y: distribution.log_prob(y))

    def _cdf(self, y: Array) -> Array:
        return self._of_grid(y, lambda distribution, y: distribution.cdf(y))

    def _crps(self, y: Array) -> Array:
        return self._of_grid(y, crps)

    def _of_grid(self, y: Array, ask: Callable[[TargetPredictive, Tensor], Tensor]) -> Array:
        """Answers of the distribution for a grid of targets (G, N, T), G first."""

        def of_rows(distribution: TargetPredictive, grid: Tensor) -> list[Tensor]:
            return [torch.stack([ask(distribution, targets) for targets in grid.unbind(-1)], -1)]

        by_row = np.array(np.moveaxis(y, 0, -1), order="C")
        (answers,) = self._model.evaluate_functional(self._X, of_rows, by_row)
        return np.moveaxis(answers, -1, 0)

    def uncertainty(self) -> Bunch:
        return self._model.predict_uncertainty(self._X)

    def evaluated(self) -> "LawPredictive":
        """The same distribution, for which the model doesn't run any more."""
        distributions: list[TargetPredictive] = []

        def keep(distribution: TargetPredictive) -> list[Tensor]:
            distributions.append(distribution)
            return [distribution.mean()]

        self._model.evaluate_functional(self._X, keep)
        return LawPredictive(distributions, is_flat=len(self.shape) == 1)


def _component_means(distribution: TargetPredictive) -> Tensor:
    return distribution.means.movedim(0, -1)


def _component_scales(distribution: TargetPredictive) -> Tensor:
    return distribution.scales.expand_as(distribution.means).movedim(0, -1)


class LawPredictive(PredictiveDistribution):
    """Predictive distributions of blocks of rows as tensors.

    Parameters
    ----------
    laws : sequence of TargetPredictive
        One for every block of rows.
    is_flat : bool
        Whether `shape` has no axis of targets.
    """

    def __init__(self, distributions: Sequence[TargetPredictive], *, is_flat: bool = True) -> None:
        self._laws = list(distributions)
        self._is_flat = is_flat

    def __repr__(self) -> str:
        n_components = len(self._laws[0].weights)
        kind = "normal components" if self.has_normal_components else "components"
        return f"<mixture of {n_components:,} {kind} at {len(self):,} rows>"

    @property
    def shape(self) -> tuple[int, ...]:
        n_rows = sum(distribution.n_rows for distribution in self._laws)
        n_targets = self._laws[0].n_targets
        return (n_rows,) if self._is_flat else (n_rows, n_targets)

    def _take(self, rows: Array) -> "LawPredictive":
        blocks = []
        start = 0
        edges = np.cumsum([0, *(distribution.n_rows for distribution in self._laws)])
        which = np.searchsorted(edges, rows, side="right") - 1
        ends = [*(1 + np.flatnonzero(np.diff(which))), len(rows)]
        for end in ends:  # runs of rows of one block, in the order that was asked for
            block = int(which[start]) if len(rows) else 0
            blocks.append(self._laws[block].take(rows[start:end] - edges[block]))
            start = end
        return LawPredictive(blocks, is_flat=self._is_flat)

    @property
    def has_normal_components(self) -> bool:  # type: ignore[override]
        return all(isinstance(distribution, NormalMixture) for distribution in self._laws)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return self._laws[0].is_discrete

    def _joined(self, ask: Callable[[TargetPredictive], Tensor], extra: int = 0) -> Array:
        """Answers for all rows, without the axis of targets if `shape` has none."""
        with torch.no_grad():
            values = (
                torch.cat([ask(distribution) for distribution in self._laws]).double().cpu().numpy()
            )
        return values.squeeze(axis=1) if self._is_flat else values

    def _of_grid(self, y: Array, ask: Callable[[TargetPredictive, Tensor], Tensor]) -> Array:
        answers = []
        for targets in torch.tensor(y):
            blocks = targets.split([distribution.n_rows for distribution in self._laws])
            parts = [
                ask(distribution, rows)
                for distribution, rows in zip(self._laws, blocks, strict=True)
            ]
            answers.append(torch.cat(parts).double().cpu().numpy())
        return np.stack(answers) if answers else np.zeros((0, *y.shape[1:]))

    def components(self) -> Components:
        loc, scale = (
            np.moveaxis(self._joined(ask), -1, 0) for ask in (_component_means, _component_scales)
        )
        return Components(self._laws[0].weights.double().cpu().numpy(), loc, scale)

    def mean(self) -> Array:
        return self._joined(lambda distribution: distribution.mean())

    def std(self) -> Array:
        return self._joined(lambda distribution: distribution.std())

    def _quantiles(self, levels: Array) -> Array:
        values = [self._joined(methodcaller("quantile", q)) for q in levels.tolist()]
        return np.stack(values, axis=-1)

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        n = check_draws(n, self.shape)
        rng = np.random.default_rng(draw_seed(random_state))
        return self._joined(lambda distribution: distribution.sample(n, rng).movedim(0, -1))

    def _log_prob(self, y: Array) -> Array:
        return self._of_grid(y, lambda distribution, y: distribution.log_prob(y))

    def _cdf(self, y: Array) -> Array:
        return self._of_grid(y, lambda distribution, y: distribution.cdf(y))

    def _crps(self, y: Array) -> Array:
        return self._of_grid(y, crps)


class NormalPredictive(PredictiveDistribution):
    """Predictions of a regressor that returns mean and standard deviation: independent normals."""

    has_normal_components = True

    def __init__(self, mean: Array, std: Array) -> None:
        self._mean, self._std = np.asarray(mean, dtype=float), np.asarray(std, dtype=float)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._mean.shape

    def _take(self, rows: Array) -> "NormalPredictive":
        return NormalPredictive(self._mean[rows], self._std[rows])

    def __repr__(self) -> str:
        return f"<independent normals at {len(self._mean):,} rows>"

    def components(self) -> Components:
        return Components(np.ones(1), self._mean[None], self._std[None])

    def mean(self) -> Array:
        return self._mean

    def std(self) -> Array:
        return self._std

    def _quantiles(self, levels: Array) -> Array:
        return np.asarray(self._mean[..., None] + self._std[..., None] * norm.ppf(levels))

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        n = check_draws(n, self.shape)
        noise = check_random_state(random_state).standard_normal((*self._mean.shape, n))
        return np.asarray(self._mean[..., None] + self._std[..., None] * noise)

    def _columns(self, y: Array) -> tuple[Array, Array]:
        """Distances of a grid (G, N, T) from the means, and the standard deviations (N, T)."""
        by_column = len(self), y.shape[2]
        return y - self._mean.reshape(by_column), self._std.reshape(by_column)

    def _log_prob(self, y: Array) -> Array:
        off, std = self._columns(y)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = -0.5 * (off / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)
        values = np.where(std > 0, values, -np.inf)  # a point mass has no density
        return np.asarray(values.sum(axis=-1))

    def _cdf(self, y: Array) -> Array:
        off, std = self._columns(y)
        with np.errstate(divide="ignore", invalid="ignore"):
            # At a point mass itself P(target <= y) is 1.
            return np.asarray(ndtr(np.where((std > 0) | (off != 0), off / std, np.inf)))

    def _crps(self, y: Array) -> Array:
        """Closed form (Gneiting & Raftery 2007, eq. 21)."""
        off, std = self._columns(y)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = off / std
            values = std * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * norm.pdf(z) - np.pi**-0.5)
        return np.where(std > 0, values, np.abs(off))


class TransformedPredictive(PredictiveDistribution):
    """Predictions of a `TransformedTargetRegressor`: the distribution of a function of a target.

    Quantiles, draws, cdf and density are those of the inner distribution at one place per target,
    with the closed forms of `target_transformation`. Mean, standard deviation and CRPS are
    integrals over the inner distribution by quadrature. Where the inverse has a pole, as that of a
    Yeo-Johnson transformation, the outermost 1e-6 of the probability is left out of them; if more
    than that lies beyond the pole, they are infinite.

    Parameters
    ----------
    inner : PredictiveDistribution
        Of the transformed target.
    transformation : TargetTransformation
        One elementary map.
    transformer : transformer
        That the map is a part of, for `repr`.
    is_flat : bool
        Whether `shape` has no axis of targets.
    """

    def __init__(
        self, inner: Any, transformation: TargetTransformation, transformer: Any, *, is_flat: bool
    ) -> None:
        self._inner = inner
        self._map = transformation
        self._transformer = transformer
        self._is_flat = is_flat

    def __repr__(self) -> str:
        inner = self._inner
        while isinstance(inner, TransformedPredictive) and inner._transformer is self._transformer:
            inner = inner._inner
        return f"<{self._transformer} of {inner!r}>"

    @property
    def shape(self) -> tuple[int, ...]:
        inner = self._inner.shape
        return inner[:1] if self._is_flat else (*inner, 1)[:2]

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return bool(self._inner.is_discrete)

    def _around(self, inner: Any) -> "TransformedPredictive":
        return TransformedPredictive(inner, self._map, self._transformer, is_flat=self._is_flat)

    def _take(self, rows: Array) -> "TransformedPredictive":
        return self._around(self._inner._take(rows))

    def evaluated(self) -> "TransformedPredictive":
        return self._around(self._inner.evaluated())

    def _outward(self, values: Array) -> Array:
        """Turn values of the inner target, (*inner shape, n), into those of the target."""
        by_target = values.reshape(len(self), -1, values.shape[-1])
        out = np.moveaxis(self._map.outward(np.moveaxis(by_target, 1, -1)), -1, 1)
        return out.reshape(*self.shape, values.shape[-1])

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        return self._outward(self._inner.sample(n, random_state))

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        return self._outward(self._inner.functions(n, random_state))

    def _quantiles(self, levels: Array) -> Array:
        if self._map.is_monotone:
            inner = self._inner._quantiles(1.0 - levels if self._map.falls else levels)
            return self._outward(inner)
        middle = self._outward(self._inner._quantiles(np.array([0.5])))
        middle = middle.reshape(1, len(self), -1)
        levels_of_grid = np.broadcast_to(levels[:, None, None], (len(levels), *middle.shape[1:]))
        values = invert_cdf_of_grid(self.evaluated()._cdf, levels_of_grid, middle)
        return np.moveaxis(values, 0, -1).reshape(*self.shape, len(levels))

    def _snapped(self, z: Array) -> Array:
        """Values of a count that are off by rounding, at the count."""
        if not self._inner.is_discrete:
            return z
        finite = np.where(np.isfinite(z), z, 0.0)
        whole = np.rint(finite)
        return np.where(
            np.isfinite(z) & (np.abs(finite - whole) < 1e-7 * (1.0 + np.abs(whole))), whole, z
        )

    def _inner_cdf(self, z: Array) -> Array:
        finite = np.isfinite(z)
        if not finite.any():
            return (z > 0.0).astype(float)
        return np.where(finite, self._inner._cdf(np.where(finite, z, 0.0)), z > 0.0)

    def _cdf(self, y: Array) -> Array:
        below = np.zeros(y.shape)
        for branch in self._map.branches:
            z = self._snapped(branch.inward(y))
            if branch.falls:
                # P(Z >= z): of a count z itself belongs to it.
                just_below = z - 1e-6 * (1.0 + np.abs(z)) if self._inner.is_discrete else z
                below += self._inner_cdf(np.full(y.shape, branch.high))
                below -= self._inner_cdf(just_below)
            else:
                below += self._inner_cdf(z) - self._inner_cdf(np.full(y.shape, branch.low))
        return below.clip(0.0, 1.0)

    def _log_prob(self, y: Array) -> Array:
        n_targets = y.shape[-1]
        if not self._map.is_monotone and n_targets > 6:
            raise TypeError(
                f"{self!r}: the inverse has several branches, which are summed over for 6 targets "
                f"at most, got {n_targets}."
            )
        places = [
            self._snapped((branch.density_point or branch.inward)(y))
            for branch in self._map.branches
        ]
        slopes = [
            self._log_slope(branch, z, y)
            for branch, z in zip(self._map.branches, places, strict=True)
        ]
        if self.is_discrete:
            for k in range(1, len(places)):  # a value at the ends of two branches counts once
                slopes[k] = np.where(places[k] == places[k - 1], -np.inf, slopes[k])
        total = np.full(y.shape[:2], -np.inf)
        for choice in product(range(len(places)), repeat=1 if self._map.is_monotone else n_targets):
            which = choice * n_targets if self._map.is_monotone else choice
            z = np.stack([places[k][..., t] for t, k in enumerate(which)], axis=-1)
            slope = np.stack([slopes[k][..., t] for t, k in enumerate(which)], axis=-1).sum(axis=-1)
            reached = np.isfinite(z).all(axis=-1) & (slope > -np.inf)
            inside = self._inner._log_prob(np.where(reached[..., None], z, 0.0))
            total = np.logaddexp(
                total, np.where(reached, inside + np.where(reached, slope, 0.0), -np.inf)
            )
        return total

    def _log_slope(self, branch: Branch, z: Array, y: Array) -> Array:
        """Log derivative of z by y; of a discrete target whether z leads to y at all."""
        if not self.is_discrete:
            return branch.log_slope(y)
        again = self._map.outward(np.where(np.isfinite(z), z, 0.0))
        reached = np.isfinite(z) & np.isclose(again, y, rtol=1e-9, atol=1e-12)
        return np.where(reached, 0.0, -np.inf)

    def mean(self) -> Array:
        return self._moments()[0]

    def std(self) -> Array:
        return self._moments()[1]

    def _moments(self) -> tuple[Array, Array]:
        values, weights = Quadrature(self).moment_nodes()
        with np.errstate(invalid="ignore", over="ignore"):
            mean = (weights * values).sum(axis=0)
            off = np.where(weights > 0.0, values - mean, 0.0)
            std = np.sqrt((weights * off**2).sum(axis=0))
        std = np.where(np.isfinite(mean), std, np.inf)
        return mean.reshape(self.shape), std.reshape(self.shape)

    def _chain(self) -> tuple[PredictiveDistribution, list[TargetTransformation]]:
        root, maps = self._inner._chain()
        return root, [*maps, self._map]


def transformed_predictive(
    inner: PredictiveDistribution, transformer: Any, n_targets: int, *, is_flat: bool
) -> PredictiveDistribution:
    """The distribution of a target whose transformation has the distribution ``inner``."""
    maps = elementary_transformations(transformer, n_targets)
    if not maps and is_flat != (len(inner.shape) == 1):
        maps = elementary_transformations(
            StandardScaler(with_mean=False, with_std=False), n_targets
        )
    for elementary in reversed(maps):
        inner = TransformedPredictive(inner, elementary, transformer, is_flat=is_flat)
    return inner


def invert_cdf_of_grid(cdf: Callable[[Array], Array], levels: Array, middle: Array) -> Array:
    """Find where a cdf of a grid (G, N, T) reaches its levels, to rounding."""
    width = np.ones(levels.shape)
    lower = middle - width
    upper = middle + width
    for _ in range(1100):  # doublings that lead beyond all numbers
        too_high = cdf(lower) >= levels
        too_low = cdf(upper) < levels
        if not (too_high.any() or too_low.any()):
            break
        width = 2.0 * width
        lower = np.where(too_high, middle - width, lower)
        upper = np.where(too_low, middle + width, upper)
    for _ in range(70):
        between = 0.5 * (lower + upper)
        is_below = cdf(between) < levels
        lower = np.where(is_below, between, lower)
        upper = np.where(is_below, upper, between)
    return 0.5 * (lower + upper)


# Quadrature ------------------------------------------------------------------------------------


def _columns_of(values: Array) -> Array:
    """Values (S, N) or (S, N, T) with an axis of targets."""
    return values if values.ndim == 3 else values[..., None]


def _applied(maps: Sequence[TargetTransformation], values: Array) -> Array:
    for elementary in maps:
        values = elementary.outward(values)
    return values


def _finite(values: Array, weights: Array, below: Array) -> tuple[Array, Array]:
    """Leave out the outermost probability on a side where values are infinite, if it is small.

    There the inverse of a transformation has a pole, and next to it no sum of nodes converges.
    """
    for pole, outside in ((np.inf, 1.0 - below), (-np.inf, below)):
        infinite = values == pole
        if not infinite.any():
            continue
        is_small = (weights * infinite).sum(axis=0) < _NEGLIGIBLE
        leave_one_out = infinite.any(axis=0) & is_small & (outside < _NEGLIGIBLE)
        weights = np.where(leave_one_out, 0.0, weights)
        weights = weights / weights.sum(axis=0)
    # A value that doesn't count must not turn the sum into NaN.
    return np.where(weights > 0.0, values, 0.0), weights


def _hermite_nodes(root: PredictiveDistribution) -> tuple[Array, Array] | None:
    """Gauss-Hermite nodes of every normal, (S K, N, T), where these are many."""
    mixture_weights, loc, scale = root.components()
    if len(mixture_weights) < _MANY_COMPONENTS:
        return None
    loc = _columns_of(loc)
    scale = _columns_of(scale)
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(15)
    values = (loc[None] + nodes[:, None, None, None] * scale[None]).reshape(-1, *loc.shape[1:])
    weights = node_weights[:, None] / node_weights.sum() * mixture_weights
    return values, np.broadcast_to(weights.reshape(-1, 1, 1), values.shape)


class _Panels:
    """Composite Gauss-Legendre quadrature over a distribution, in its own units.

    Panels of a normal mixture end at quantiles of the components' centres and multiples of their
    widths, those of other densities in steps that grow with the distance from the median.
    """

    def __init__(self, root: PredictiveDistribution) -> None:
        self._root = root
        if root.has_normal_components:
            weights, loc, scale = root.components()
            self._weights = np.asarray(weights)
            self._loc, scale = _columns_of(loc), _columns_of(scale)
            self._scale = np.maximum(scale, np.finfo(float).tiny)
            ends = (self._loc + _REACH[:, None, None, None] * scale).reshape(
                -1, *self._loc.shape[1:]
            )
            ends = np.sort(ends, axis=0)
            places = np.linspace(0, len(ends) - 1, min(len(ends), _N_PANELS + 1)).round()
            self.ends = ends[places.astype(int)]
        else:
            quartiles = np.moveaxis(root._quantiles(np.array([0.25, 0.5, 0.75])), -1, 0)
            low, median, high = _columns_of(quartiles)
            steps = np.sinh(np.linspace(-10.0, 10.0, 2 * _N_PANELS + 1))[:, None, None]
            self.ends = median + steps * np.maximum(high - low, np.finfo(float).tiny)

    def nodes(self, kinks: Sequence[Array]) -> tuple[Array, Array, Array]:
        """Nodes, weights and probabilities below them, with panels that end at kinks (N, T) too."""
        lowest = self.ends[0]
        highest = self.ends[-1]
        inside = [np.clip(kink, lowest, highest)[None] for kink in kinks]
        ends = np.sort(np.concatenate([self.ends, *inside]), axis=0)
        half = 0.5 * np.diff(ends, axis=0)
        z = ends[:-1, None] + half[:, None] * (1.0 + _GAUSS_NODES[:, None, None])
        step = half[:, None] * _GAUSS_WEIGHTS[:, None, None]
        z, step = (a.reshape(-1, *ends.shape[1:]) for a in (z, step))
        density, cdf = self._density_and_cdf(z)
        weights = step * density
        total = weights.sum(axis=0)
        # A point mass has no density: its panels have no width.
        weights = np.where(total > 0.5, weights / np.where(total > 0.5, total, 1.0), 1.0 / len(z))
        return z, weights, cdf

    def _density_and_cdf(self, z: Array) -> tuple[Array, Array]:
        if not self._root.has_normal_components:
            return np.exp(self._root._log_prob(z))[..., None], self._root._cdf(z)
        density = np.empty(z.shape)
        cdf = np.empty(z.shape)
        block = max(1, (1 << 20) // max(1, self._loc.size))
        for start in range(0, len(z), block):
            rows = slice(start, start + block)
            u = (z[rows, None] - self._loc) / self._scale
            with np.errstate(over="ignore", under="ignore"):
                normal = np.exp(-0.5 * u * u) / (self._scale * np.sqrt(2.0 * np.pi))
            density[rows] = np.einsum("s,ks...->k...", self._weights, normal)
            cdf[rows] = np.einsum("s,ks...->k...", self._weights, ndtr(u))
        return density, cdf


def _count_nodes(root: PredictiveDistribution) -> tuple[Array, Array, Array] | None:
    """All counts that matter with their probabilities; None if they are too many."""
    ends = root._quantiles(np.array([1e-10, 1.0 - 1e-10]))
    low, high = (_columns_of(ends[None, ..., k])[0] for k in (0, 1))
    n_values = int((high - low).max(initial=0.0)) + 1
    if n_values > _MOST_COUNTS:
        return None
    counts = low + np.arange(n_values)[:, None, None]
    cdf = root._cdf(counts)
    mass = np.diff(cdf, axis=0, prepend=0.0)
    return counts, mass / mass.sum(axis=0), cdf - 0.5 * mass


def _level_nodes(root: PredictiveDistribution) -> tuple[Array, Array, Array]:
    """Quantiles at Gauss-Legendre nodes of the normal score of their level."""
    ends = np.linspace(-8.0, 8.0, 17)
    u = (ends[:-1, None] + 0.5 * (1.0 + _GAUSS_NODES)).ravel()
    weights = np.tile(0.5 * _GAUSS_WEIGHTS, 16) * norm.pdf(u)
    values = _columns_of(np.moveaxis(root._quantiles(ndtr(u)), -1, 0))
    shaped = [np.broadcast_to(a[:, None, None], values.shape) for a in (weights, ndtr(u))]
    return values, shaped[0] / weights.sum(), shaped[1]


class Quadrature:
    """Nodes over a distribution that may be the transformation of another one."""

    def __init__(self, distribution: PredictiveDistribution) -> None:
        root, maps = distribution._chain()
        if not root.has_normal_components:  # which are evaluated once anyway
            root = root.evaluated()
        self._distribution = distribution
        self._root = root
        self._maps = maps
        self._is_joint = len(root.shape) == 2 and root.shape[1] > 1
        n_falling = sum(elementary.falls for elementary in maps)
        self._is_monotone = all(elementary.is_monotone for elementary in maps)
        self._falls = n_falling % 2 == 1
        self._fixed: tuple[Array, Array, Array] | None = None
        if root.is_discrete:
            self._fixed = _count_nodes(root) or _level_nodes(root)
        elif self._is_joint and not root.has_normal_components:
            self._fixed = _level_nodes(root)
        else:
            self._panels = _Panels(root)
            self._kinks = self._kink_positions()

    def _before(self, values: Array, maps: Sequence[TargetTransformation]) -> list[Array]:
        """Places of the root's targets that maps take to ``values``."""
        places = [values]
        for elementary in reversed(maps):
            places = [branch.inward(v) for v in places for branch in elementary.branches]
        return places

    def _kink_positions(self) -> list[Array]:
        shape = self._panels.ends.shape[1:]
        positions = []
        for k, elementary in enumerate(self._maps):
            for kink in elementary.kinks:
                positions += self._before(np.broadcast_to(kink, shape), self._maps[:k])
        return positions

    def nodes(self, targets: Array) -> tuple[Array, Array, Array]:
        """Values, weights and cdf, (K, N, T); panels end where targets (N, T) lie."""
        if self._fixed is not None:
            z, weights, below = self._fixed
        else:
            z, weights, below = self._panels.nodes(
                [*self._kinks, *self._before(targets, self._maps)]
            )
        values = _applied(self._maps, z)
        if self._falls:
            below = 1.0 - below
        if not self._is_monotone:
            below = self._distribution._cdf(np.nan_to_num(values))
        values, weights = _finite(values, weights, below)
        self._warn_of_poles(values)
        return values, weights, below

    def moment_nodes(self) -> tuple[Array, Array]:
        """Values and weights, (K, N, T), that means are sums of."""
        if self._root.has_normal_components:
            few = _hermite_nodes(self._root)
            if few is not None:
                values = _applied(self._maps, few[0])
                if np.isfinite(values).all():
                    return values, few[1]
        if self._fixed is None:
            z, weights, below = self._panels.nodes(self._kinks)
        else:
            z, weights, below = self._fixed
        values, weights = _finite(
            _applied(self._maps, z), weights, 1.0 - below if self._falls else below
        )
        self._warn_of_poles(values)
        return values, weights

    def _warn_of_poles(self, values: Array) -> None:
        rows = np.isinf(values).any(axis=(0, 2))
        if rows.any():
            warn_user(
                f"the mean, standard deviation and CRPS of {rows.sum()} rows, the first is row "
                f"{int(rows.argmax())}, are infinite: {self._distribution!r} has a probability "
                f"above {_NEGLIGIBLE:g} of values for which the inverse of the transformation is "
                "infinite. Quantiles, cdf and log_prob hold; another transformation of y, such as "
                "a logarithm, has an inverse everywhere.",
                UserWarning,
            )


class ClassPredictive:
    """Class probabilities of every row.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Labels of the columns of `proba`.
    """

    def __init__(self, model: Any, X: Any) -> None:
        self._model = model
        self._X = X
        self.classes = np.asarray(model.classes_)

    def __repr__(self) -> str:
        what = f"{len(self.classes)} classes, by {type(self._model).__name__}"
        return f"<probabilities of {what}, at {num_samples(self._X):,} rows>"

    def proba(self) -> Array:
        """(n_samples, n_classes)."""
        return np.asarray(self._model.predict_proba(self._X), dtype=float)

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Probabilities given draws of functions, (n_samples, n_classes, n), joint over rows."""
        return self._ours("functions").sample_f(self._X, n, random_state)

    def __len__(self) -> int:
        return num_samples(self._X)

    def __getitem__(self, rows: Any) -> "ClassPredictive":
        """Return the probabilities of a slice, a mask or positions of rows."""
        return type(self)(self._model, safe_indexing(self._X, row_positions(rows, len(self))))

    def log_prob(self, y: Any) -> Array:
        """Log probability of observed labels, nats; -inf of a label that was not there in fit.

        Parameters
        ----------
        y : label or array-like of labels
            Broadcast to ``(n_samples,)``: a label, one for every row, or a grid (G, 1) or (G,
            n_samples).

        Returns
        -------
        ndarray of shape (n_samples,) or (G, n_samples)
        """
        check_not_masked("y", y)
        labels = np.asarray(y)
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
        log_prob = self._log_prob_of_codes(codes).reshape(shape)
        return np.where(known, log_prob, -np.inf)

    def _log_prob_of_codes(self, codes: Array) -> Array:
        """Log probabilities of columns of `proba`, both (G, N)."""
        if not isinstance(self._model, BayesianClassifierMixin):
            with np.errstate(divide="ignore"):
                log_proba = np.log(self.proba())
            return np.asarray(log_proba[np.arange(len(log_proba)), codes])

        def of_rows(distribution: Any, codes: Tensor) -> list[Tensor]:
            # By way of logarithms: probabilities underflow where these are numbers.
            return [torch.stack([distribution.log_prob(column) for column in codes.unbind(1)], 1)]

        (values,) = self._model.evaluate_functional(self._X, of_rows, np.array(codes.T, order="C"))
        return np.asarray(values.T, dtype=float)

    def uncertainty(self) -> Bunch:
        """Entropy by its source, nats: ``total``, ``epistemic``, ``aleatoric``."""
        return self._ours("uncertainty").predict_uncertainty(self._X)

    def _ours(self, question: str) -> BayesianClassifierMixin:
        if not isinstance(self._model, BayesianClassifierMixin):
            raise TypeError(f"{self!r} has no {question}(): that takes models of this package.")
        return self._model
