"""Several targets: one stack for each, and a normal copula of their leave-one-out ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import Bunch
from torch import Tensor

from skbayes_sym.base.distributions import Components, PosteriorPredictive
from skbayes_sym.base.input_validation import numeric_conversion
from skbayes_sym.base.messages import collect_warnings
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples, safe_indexing
from skbayes_sym.models.copula import CopulaTargets, middle_cdf
from skbayes_sym.models.predictive_mixtures import TargetPredictive
from skbayes_sym.numerics.arguments import check_not_masked


def read_targets(y: Any) -> tuple[Array, list[str]] | None:
    """Read several targets and their names.

    Parameters
    ----------
    y : array-like of shape (n_samples, n_targets)
        Targets, or a data frame whose columns are named.

    Returns
    -------
    (ndarray of shape (n_samples, n_targets), list of str) or None
        Targets as floats, and the names of the columns; "0", "1" and so on if they have none. None
        if there aren't at least two columns.

    Raises
    ------
    ValueError
        If a column isn't numeric or has missing values. The message names it.
    """
    is_nested = isinstance(y, list | tuple) and len(y) > 0 and np.ndim(y[0]) == 1
    shape: tuple[int, ...]
    if is_nested:
        shape = np.shape(y)
    else:
        shape = getattr(y, "shape", ())
    if len(shape) != 2 or shape[1] < 2:
        return None
    check_not_masked("y", y)
    columns = getattr(y, "columns", None)
    names = [str(name) for name in (range(shape[1]) if columns is None else columns)]
    if len(set(names)) < len(names):
        raise ValueError(f"y has two columns of the same name: {', '.join(names)}. Rename one.")
    remedy = " Fit a PredictiveStackingClassifier to targets that are labels."
    with numeric_conversion("y", remedy, y):
        if hasattr(y, "toarray"):
            array = y.toarray()
        else:
            array = np.asarray(y)
        values = np.array(array, dtype=np.float64)
    is_invalid = ~np.isfinite(values)
    if is_invalid.any():
        row, column = (int(i) for i in np.argwhere(is_invalid)[0])
        raise ValueError(
            f"column {names[column]!r} of y contains {values[row, column]} at row {row}. Leave out "
            "rows whose targets are missing, or fit a model of this column to the other rows."
        )
    return values, names


def left_out_cdf(model: Any, X: Any, y: Array) -> Array:
    """Return the leave-one-out distribution function of a fitted stack at its targets.

    If all members with weight are networks, which only have leave-one-out densities, it is that of
    their predictions. These have seen the rows, but the order of their residuals is nearly that of
    leave-one-out residuals, and the copula depends on the order alone.

    Parameters
    ----------
    model : PredictiveStackingRegressor
        Fitted stack of one target.
    X : array-like of shape (n_samples, n_features)
        Its training rows.
    y : ndarray of shape (n_samples,)
        Their targets.
    """
    cdf: Array = model.leave_one_out_cdf_
    if np.isfinite(cdf).any():
        return cdf
    with collect_warnings():
        (values,) = model.evaluate_functional(
            X, lambda distribution, targets: [middle_cdf(distribution, targets)], y[:, None]
        )
    return np.asarray(values[:, 0])


def describe_correlation(correlation: Array, names: Sequence[str]) -> str:
    """Describe the strongest correlations of normal scores in a line of a summary."""
    first, second = np.triu_indices(len(names), 1)
    strongest = np.argsort(-np.abs(correlation[first, second]), kind="stable")[:5]
    pairs = [
        f"{correlation[first[k], second[k]]:.2f} ({names[first[k]]}, {names[second[k]]})"
        for k in strongest
    ]
    ellipsis = ", ..." if len(first) > len(pairs) else ""
    return f"correlations of leave-one-out normal scores: {', '.join(pairs)}{ellipsis}"


@dataclass(frozen=True, eq=False)
class TargetStacks:
    """Fitted models of one target each, and the correlation of their normal scores.

    Parameters
    ----------
    models : sequence of BayesianRegressorMixin
        Models of one target each that were fitted to the same rows of ``X``.
    correlation : ndarray of shape (n_targets, n_targets)
        Correlation matrix of the copula.
    """

    models: Sequence[Any]
    correlation: Array

    def _map(self, function: Callable[[Any], Any]) -> list[Any]:
        """Evaluate a function of each model. Warnings of the first one are those about ``X``."""
        first = function(self.models[0])
        with collect_warnings():
            return [first, *(function(model) for model in self.models[1:])]

    def mean(self, X: Any) -> Array:
        """Return expected targets, (n_samples, n_targets)."""
        return np.stack(self._map(lambda model: model.predict(X)), axis=1)

    def sample_functions(self, X: Any, n_samples: int, seeds: Sequence[int]) -> Array:
        """Draw noise-free functions, (n_samples_X, n_targets, n_samples), independent by target.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int
            Number of functions.
        seeds : sequence of int
            Seed of each target.

        Returns
        -------
        ndarray
        """
        stream = iter(seeds)
        draws = self._map(lambda model: model.sample_f(X, n_samples, next(stream)))
        return np.stack(draws, axis=1)

    def sample(self, X: Any, n_samples: int, seeds: Sequence[int]) -> Array:
        """Draw targets, (n_samples_X, n_targets, n_samples), dependent over targets and rows.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int
            Number of draws.
        seeds : sequence of int
            Seed of each target.

        Returns
        -------
        ndarray
        """
        stream = iter(seeds)
        draws = np.stack(self._map(lambda model: model.sample_y(X, n_samples, next(stream))))
        rng = np.random.default_rng(seeds[0])

        def couple(distribution: CopulaTargets, block: Tensor) -> list[Tensor]:
            coupled = distribution.couple(block.permute(2, 0, 1), rng)
            return [coupled.permute(1, 2, 0)]

        (coupled,) = self.evaluate(X, couple, np.moveaxis(draws, 0, 1))
        return coupled

    def evaluate(
        self, X: Any, functional: Callable[..., list[Tensor]], y: Array | None = None
    ) -> list[Array]:
        """Evaluate a functional of the joint distribution, in blocks of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        functional : callable
            Takes the distribution of a block of rows, and if ``y`` is given the entries of ``y`` at
            these rows. Returns tensors with the rows as their first axis.
        y : ndarray of shape (n_samples, ...), optional
            Values of each row.

        Returns
        -------
        list of ndarray
            Results of the functional, joined over blocks.
        """
        n_rows = num_samples(X)
        if y is not None and len(y) != n_rows:
            raise ValueError(f"X has {n_rows} rows and y {len(y)}: they must match.")
        blocks = [zip(*block, strict=True) for block in zip(*self._blocks(X), strict=True)]
        correlation = torch.as_tensor(self.correlation)
        results = []
        positions = []
        for marginals, rows in blocks:
            distribution = CopulaTargets(marginals, correlation)
            if y is None:
                arguments = []
            else:
                arguments = [torch.as_tensor(np.ascontiguousarray(y[rows[0]]))]
            results.append([value.cpu().numpy() for value in functional(distribution, *arguments)])
            positions.append(rows[0])
        order = np.argsort(np.concatenate(positions))
        return [np.concatenate(column)[order] for column in zip(*results, strict=True)]

    def _blocks(self, X: Any) -> list[list[tuple[TargetPredictive, Array]]]:
        """Return the distributions of blocks of rows, and their positions, for each model."""
        index = np.arange(num_samples(X), dtype=float)[:, None]

        def collect(model: Any) -> list[tuple[TargetPredictive, Array]]:
            blocks: list[tuple[TargetPredictive, Array]] = []

            def keep(distribution: TargetPredictive, rows: Tensor) -> list[Tensor]:
                blocks.append((distribution, rows[:, 0].long().cpu().numpy()))
                return [rows]

            model.evaluate_functional(X, keep, index)
            return blocks

        return self._map(collect)


class CopulaPredictive(PosteriorPredictive):
    """Joint predictive distribution of several targets, which every method evaluates.

    `log_prob` is joint, and so are the draws of `sample`: their sums or differences over targets
    have the right width. All other methods are of each target on its own. ``marginals`` are the
    distributions of single targets by name.

    Parameters
    ----------
    model : regressor
        Fitted estimator of several targets.
    X : array-like of shape (n_samples, n_features)
        Rows.
    stacks : mapping of str to regressor
        Fitted estimator of each target.
    correlation : ndarray of shape (n_targets, n_targets)
        Correlation matrix of the normal scores of the targets.
    """

    def __init__(
        self, model: BayesianRegressorMixin, X: Any, stacks: Mapping[str, Any], correlation: Array
    ) -> None:
        super().__init__(model, X)
        self._stacks = stacks
        self.correlation = correlation

    def __repr__(self) -> str:
        names = ", ".join(list(self._stacks)[:4])
        ellipsis = ", ..." if len(self._stacks) > 4 else ""
        return (
            f"<normal copula of {len(self._stacks)} targets ({names}{ellipsis}) at "
            f"{num_samples(self._X):,} rows>"
        )

    @property
    def marginals(self) -> Bunch:
        """Predictive distribution of each target by name."""
        return Bunch(
            **{name: PosteriorPredictive(stack, self._X) for name, stack in self._stacks.items()}
        )

    def take_rows(self, rows: Array) -> "CopulaPredictive":
        """Return the distribution at positions of rows."""
        X = safe_indexing(self._X, rows)
        return CopulaPredictive(self._model, X, self._stacks, self.correlation)

    def components(self) -> Components:
        """Raise a TypeError: the joint distribution isn't a mixture."""
        raise TypeError(
            "the joint distribution of several targets has no components: use those of one target, "
            "marginals[name].components()."
        )

    def crps_grid(self, y: Array) -> Array:
        """Return the CRPS of each target on a grid, (G, N, T)."""
        scores = [
            marginal.crps_grid(y[..., t : t + 1])
            for t, marginal in enumerate(self.marginals.values())
        ]
        return np.concatenate(scores, axis=-1)
