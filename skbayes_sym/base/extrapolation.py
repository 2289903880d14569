r"""Predictions for rows beyond the range of the training data.

Beyond the last training date a model has no data. Trees repeat their last leaf, networks continue
in arbitrary directions, and none of them becomes uncertain enough. Here the function at the end of
the training range is continued by a random walk with drift (Hyndman & Athanasopoulos 2021, section
5.2). Let h be the distance from the range, in units of its length, and let f(x, t) be the mean
prediction for a row at time t. The range is from 0 to 1. At the time 1 + h

.. math:: y = f(x, 1) + h\,(f(x, 1) - f(x, 0)) + \sqrt{v(h)}\, z + \varepsilon, \qquad
          v(h) = c\, h\, (1 + h), \qquad z \sim N(0, 1),

where :math:`\varepsilon` is the noise, and the distribution of f(x, 1) is that of the fitted model.
The first term of v is that of the random walk, and the second one the uncertainty of its drift. All
rows share z, so that sampled functions are continuous.

The rate c is the variance of the increments of f along the range. Let D be the increment of the
average function over a lag :math:`\ell`, minus :math:`\ell` times the drift. With the smallest lag
:math:`\ell_0`, which subtracts the jumps of trees,

.. math:: c = \max_\ell \frac{E D_\ell^2 - E D_{\ell_0}^2}{(\ell - \ell_0) (1 - \ell)} .

The denominator corrects for the drift, which the same increments determine. A straight line has no
such variance, and its continuation is certain.

Numeric columns beyond their range by more than its length get the variance v with their own rate.
Their means are those of the model. Class probabilities beyond the range are averages of those at
points within the distance h from its end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.columns import Columns
from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.base.progress import PREDICT_ROWS
from skbayes_sym.base.rows import Array, Scaling
from skbayes_sym.base.stacking_weights import shift_draws
from skbayes_sym.models.log_targets import LogTargets
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, LinearPool, NormalMixture
from skbayes_sym.models.rounded_targets import RoundedTargets
from skbayes_sym.numerics.random import generator_from

# Number of rows that are kept to measure how much predictions change along a column.
MAX_ROWS = 64
# Number of points of the range at which they are predicted, 2^k + 1.
_N_POINTS = 65
# Distance, in units of the range, from which a number is far outside. In 4 % of 180 random splits
# of the tables any held-out row is; with 0.5 in 12 %, and with 0 in 68 %.
MAX_OVERSHOOT = 1.0
# Number of rows below which numbers have no range: new rows are often twice as far out.
_MIN_ROWS = 20
# Number of points over which class probabilities are averaged.
_N_AVERAGED = 8


@dataclass(frozen=True, eq=False)
class TrainingRange:
    """Range of the numeric and date columns in the training data.

    Parameters
    ----------
    low, high : ndarray of shape (J,)
        Smallest and largest value of J columns, encoded.
    position : ndarray of int of shape (J,)
        Positions of these columns among the encoded ones.
    is_date : ndarray of bool of shape (J,)
        Whether a column holds dates.
    names : tuple of str
        Names of the columns.
    rows : ndarray of shape (n_rows, n_outputs)
        Some encoded training rows.
    """

    low: Array
    high: Array
    position: Array
    is_date: Array
    names: tuple[str, ...]
    rows: Array

    @classmethod
    def from_rows(cls, rows: Array, columns: Columns) -> "TrainingRange | None":
        """Determine the range of the columns that measure something; None if there are none.

        Parameters
        ----------
        rows : ndarray of shape (n, n_outputs)
            Encoded training rows.
        columns : Columns
            Encoding of the columns.
        """
        outputs = columns.measured_outputs()
        names = [columns.columns[j].name for j in outputs]
        is_date = np.array([columns.columns[j].kind == "date" for j in outputs], dtype=bool)
        index = np.array(list(outputs.values()), dtype=int)
        if not len(index):
            return None
        values = rows[:, index].astype(np.float64)
        low = values.min(axis=0)
        high = values.max(axis=0)
        with np.errstate(over="ignore"):
            varies = np.isfinite(high - low) & (high > low)
        if len(rows) < _MIN_ROWS:
            varies &= is_date
        if not varies.any():
            return None
        subset = np.unique(np.linspace(0, len(rows) - 1, MAX_ROWS).round().astype(int))
        return cls(
            low[varies],
            high[varies],
            index[varies],
            is_date[varies],
            tuple(name for name, is_kept in zip(names, varies, strict=True) if is_kept),
            rows[subset],
        )

    def overshoot(self, values: Array) -> Array:
        """Return how far encoded rows are beyond each range, in units of its length, (n, J)."""
        measured = values[:, self.position].astype(np.float64)
        beyond = np.maximum(measured - self.high, self.low - measured)
        return np.maximum(beyond / (self.high - self.low), 0.0)

    def warn_beyond(self, values: Array) -> None:
        """Name columns of encoded rows (n, n_outputs) that are far outside the range."""
        is_far = self.overshoot(values) > np.where(self.is_date, 0.0, MAX_OVERSHOOT)
        for j in np.flatnonzero(is_far.any(axis=0)):
            n_far = int(is_far[:, j].sum())
            n_rows = "1 row" if n_far == 1 else f"{n_far} rows"
            if self.is_date[j]:
                place = "beyond the dates"
            else:
                place = "far outside the range"
            warn_user(
                f"column {self.names[j]!r} of X is {place} of the training data in {n_rows}: "
                "predictions for them are extrapolations, whose uncertainty grows with the "
                "distance.",
                UserWarning,
            )


@dataclass(frozen=True, eq=False)
class ScaledRange:
    """A `TrainingRange` in the units, and on the device, of a predictor.

    Parameters
    ----------
    low, high : Tensor of shape (J,)
        Range of J columns.
    position : Tensor of int of shape (J,)
        Positions of the columns.
    is_date : Tensor of bool of shape (J,)
        Whether a column holds dates.
    """

    low: Tensor
    high: Tensor
    position: Tensor
    is_date: Tensor

    @classmethod
    def from_range(
        cls, training_range: TrainingRange, mean: Array, scale: Array, like: Tensor
    ) -> "ScaledRange":
        """Scale the range of encoded columns.

        Parameters
        ----------
        training_range : TrainingRange
            Range in the units of the encoded columns.
        mean, scale : ndarray of shape (n_outputs,)
            Scaling of the encoded columns.
        like : Tensor
            Tensor whose device and precision the result has.
        """
        position = training_range.position
        scaling = Scaling(mean[position], scale[position])
        return cls(
            torch.as_tensor(scaling.apply(training_range.low)).to(like),
            torch.as_tensor(scaling.apply(training_range.high)).to(like),
            torch.as_tensor(position, device=like.device),
            torch.as_tensor(training_range.is_date, device=like.device),
        )

    def distances(self, x: Tensor) -> Tensor:
        """Return the distances of rows (N, D) from each range, in units of its length, (N, J).

        A number counts only if it is far outside, unless the row is beyond the dates. Numbers grow
        with time.
        """
        measured = x[:, self.position]
        beyond = torch.maximum(measured - self.high, self.low - measured)
        overshoot = (beyond / (self.high - self.low)).clamp_min(0.0)
        is_late = (overshoot[:, self.is_date] > 0.0).any(1, keepdim=True)
        slack = torch.where(self.is_date | is_late, 0.0, MAX_OVERSHOOT)
        return (overshoot - slack).clamp_min(0.0)

    def clamp_dates(self, x: Tensor) -> Tensor:
        """Move dates that are beyond the range to its nearest end."""
        position = self.position[self.is_date]
        clamped = x.clone()
        clamped[:, position] = torch.minimum(
            torch.maximum(x[:, position], self.low[self.is_date]), self.high[self.is_date]
        )
        return clamped

    def move_inside(self, x: Tensor, fraction: float) -> Tensor:
        """Move values beyond the range inside, by a fraction of their distance from the range.

        Parameters
        ----------
        x : Tensor of shape (N, D)
            Rows.
        fraction : float
            0 moves values to the point from which distances are measured. They are moved by at
            most the length of the range from there.
        """
        distance = self.distances(x)
        measured = x[:, self.position]
        length = self.high - self.low
        direction = torch.where(measured > self.high, 1.0, -1.0)
        shift = (distance + fraction * distance.clamp_max(1.0)) * length * direction
        moved = x.clone()
        moved[:, self.position] = torch.where(distance > 0.0, measured - shift, measured)
        return moved

    def mirror_dates(self, x: Tensor) -> Tensor:
        """Move dates that are beyond one end of the range to the other end."""
        mirrored = x.clone()
        for j in self.is_date.nonzero().flatten().tolist():
            position = int(self.position[j])
            column = x[:, position]
            low = self.low[j]
            high = self.high[j]
            column = torch.where(column > high, low, torch.where(column < low, high, column))
            mirrored[:, position] = column
        return mirrored


def drift_rate(path: Tensor) -> Tensor:
    """Return the rate c of the variance along a path of average predictions.

    Parameters
    ----------
    path : Tensor of shape (2^k + 1, T)
        Average predictions at equally spaced points of the range.

    Returns
    -------
    Tensor of shape (T,)
        Variance per length of the range, see the module.
    """
    n_steps = len(path) - 1
    drift = path[-1] - path[0]
    mean_squares = []
    lags = []
    step = 1
    while step < n_steps:
        lag = step / n_steps
        increment = path[step:] - path[:-step] - lag * drift
        mean_squares.append(increment.square().mean(0))
        lags.append(lag)
        step *= 2
    rates = [
        (square - mean_squares[0]) / ((lag - lags[0]) * (1.0 - lag))
        for square, lag in zip(mean_squares[1:], lags[1:], strict=True)
    ]
    return torch.stack(rates).amax(0).clamp_min(0.0)


def encoded_inputs(x: Any) -> Tensor:
    """Return the encoded columns (N, D) of rows, which may also hold the original ones."""
    return x if isinstance(x, Tensor) else x.x


def _replace_inputs(x: Any, encoded: Tensor) -> Any:
    """Return rows with other encoded columns."""
    if isinstance(x, Tensor):
        return encoded
    return replace(x, x=encoded)


def _take_rows(x: Any, index: Tensor) -> Any:
    """Return the rows with these indices."""
    if isinstance(x, Tensor):
        return x[index]
    return x.take(index.numpy())


def measure_rates(
    mean: Callable[[Tensor], Tensor], scaled_range: ScaledRange, rows: Tensor
) -> Tensor:
    """Measure the rate of the variance along each of J columns.

    Parameters
    ----------
    mean : callable
        Mean predictions (N, T) of rows (N, D).
    scaled_range : ScaledRange
        Range of the columns.
    rows : Tensor of shape (B, D)
        Rows over which predictions are averaged.

    Returns
    -------
    Tensor of shape (J, T)
    """
    fractions = torch.linspace(0.0, 1.0, _N_POINTS, dtype=torch.float64).to(rows)
    rates = []
    for j, position in enumerate(scaled_range.position.tolist()):
        low = scaled_range.low[j]
        points = low + fractions * (scaled_range.high[j] - low)
        grid = rows.repeat(_N_POINTS, 1)
        grid[:, position] = points.repeat_interleave(len(rows))
        means = torch.cat([mean(block) for block in grid.split(PREDICT_ROWS)])
        path = means.unflatten(0, (_N_POINTS, len(rows))).mean(1)
        rates.append(drift_rate(path))
    return torch.stack(rates)


@dataclass(frozen=True, eq=False)
class ExtrapolatingPredictor(BasePredictor):
    """Predictor for a block of which some rows are beyond the range of the training data.

    Rows inside the range have the predictions of the base.

    Parameters
    ----------
    base : Predictor
        Predictor of the fitted model.
    scaled_range : ScaledRange
        Range of the columns.
    rates : Tensor of shape (J, T), optional
        Rate of the variance along each column. None for classifiers.
    """

    base: Any
    scaled_range: ScaledRange
    rates: Tensor | None

    def _clamp(self, x: Any) -> Any:
        """Return the rows with dates inside the range."""
        return _replace_inputs(x, self.scaled_range.clamp_dates(encoded_inputs(x)))

    def _continuation(self, x: Any) -> tuple[Tensor, Tensor]:
        """Return the drift and the variance of every row, both (N, T) and 0 inside the range."""
        assert self.rates is not None
        encoded = encoded_inputs(x)
        distance = self.scaled_range.distances(encoded).double()
        rates = self.rates.to(distance)
        variance = (distance * (1.0 + distance)) @ rates
        drift = torch.zeros_like(variance)
        horizon = (distance * self.scaled_range.is_date).amax(1, keepdim=True)
        late = (horizon[:, 0] > 0.0).nonzero().flatten()
        if len(late):
            rows = _take_rows(x, late)
            start = _replace_inputs(rows, self.scaled_range.mirror_dates(encoded[late]))
            rise = self.base.mean(self._clamp(rows)) - self.base.mean(start)
            drift[late] = horizon[late] * rise.to(drift)
        return drift, variance

    def distribution(self, x: Any) -> Any:
        """Return the distribution of targets at rows (N, ...)."""
        if self.rates is None:
            return self._average(lambda rows: self.base.distribution(rows), x)
        drift, variance = self._continuation(x)
        return continue_distribution(self.base.distribution(self._clamp(x)), drift, variance)

    def mean(self, x: Any) -> Tensor:
        """Return the expected targets, (N, T)."""
        if self.rates is None:
            return self.base.mean(x)  # type: ignore[no-any-return]
        mean: Tensor = self.base.mean(self._clamp(x))
        distance = self.scaled_range.distances(encoded_inputs(x))
        beyond = (distance > 0.0).any(1).nonzero().flatten()
        mean = mean.clone()
        mean[beyond] = self.distribution(_take_rows(x, beyond)).mean().to(mean)
        return mean

    def networks(self, x: Any) -> Any:
        """Return the networks of the base."""
        return self.base.networks(x)

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        """Return the distribution of targets given each of ``n`` functions.

        The continuation of a function has its own random number, from a stream that doesn't depend
        on other rows.
        """
        if self.rates is None:
            state = generator.get_state()

            def sample(rows: Any) -> Any:
                generator.set_state(state)
                return self.base.sample_conditionals(rows, n, generator=generator)

            return self._average(sample, x)
        drift, variance = self._continuation(x)
        draws = self.base.sample_conditionals(self._clamp(x), n, generator=generator)
        stream = generator_from(generator.initial_seed())
        z = torch.randn(n, 1, variance.shape[1], generator=stream, dtype=torch.float64)
        return shift_draws(draws, drift + variance.sqrt() * z.to(variance.device))

    def _average(self, predict: Callable[[Any], Any], x: Any) -> CategoricalMixture:
        """Average class probabilities over points inside the range, for rows beyond it."""
        encoded = encoded_inputs(x)
        distribution = predict(x)
        beyond = (self.scaled_range.distances(encoded) > 0.0).any(1).nonzero().flatten()
        rows = _take_rows(x, beyond)
        log_probs = []
        for fraction in np.linspace(0.0, 1.0, _N_AVERAGED):
            moved = self.scaled_range.move_inside(encoded[beyond], float(fraction))
            log_probs.append(predict(_replace_inputs(rows, moved)).log_probs)
        averaged = distribution.log_probs.clone()
        averaged[:, beyond] = torch.stack(log_probs).logsumexp(0) - np.log(_N_AVERAGED)
        return replace(distribution, log_probs=averaged)


def continue_distribution(distribution: Any, drift: Tensor, variance: Tensor) -> Any:
    """Add a normal variable to the targets of every row.

    Distributions of users' estimators, which aren't mixtures of normals, are returned unchanged.

    Parameters
    ----------
    distribution : TargetPredictive
        Predictive distribution of N rows.
    drift, variance : Tensor of shape (N, T)
        Mean and variance of the variable.
    """
    if isinstance(distribution, LinearPool):
        components = [continue_distribution(p, drift, variance) for p in distribution.components]
        return replace(distribution, components=components)
    if isinstance(distribution, RoundedTargets):
        # The base has the unit of the counts.
        unit = distribution.scale
        base = continue_distribution(distribution.base, drift / unit, variance / unit**2)
        return replace(distribution, base=base)
    if isinstance(distribution, LogTargets):
        return distribution.add_normal(drift, variance)
    if not isinstance(distribution, NormalMixture):
        return distribution
    drift = drift.to(distribution.loc)
    variance = variance.to(distribution.loc)
    covariance = distribution.covariance
    if covariance is not None:
        covariance = covariance + torch.diag_embed(variance)
    return replace(
        distribution,
        loc=distribution.loc + drift,
        variance=distribution.variance + variance,
        covariance=covariance,
    )
