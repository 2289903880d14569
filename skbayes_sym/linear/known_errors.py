r"""Bayesian linear regression with normal noise whose variance has a known part in every row.

Row i has the variance :math:`s^2 + e_i^2` of a learned noise level s and a known error
:math:`e_i`. At a given s this is weighted regression: with the mean precision
:math:`1 / r^2 = \sum_i w_i (s^2 + e_i^2)^{-1} / \sum_i w_i`, the rows have the noise variance
:math:`r^2` and the weights :math:`p_i = w_i r^2 / (s^2 + e_i^2)`, and

.. math:: \log p(y) = \log p(y \mid r, p) - \tfrac12 \sum_i w_i \log \frac{s^2 + e_i^2}{r^2},

whose first term is the evidence of `skbayes_sym.linear.conjugate` (generalised least squares).

If there is an intercept, columns and targets are centred by their means with the weights p. These
centred columns are orthogonal to the constant in the metric of the noise, so that the coefficients
have the same posterior as under a flat prior of the intercept, and a row whose error is infinite
has no influence.
"""

from math import exp, log
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from skbayes_sym.linear.conjugate import (
    Floats,
    Scales,
    SufficientStatistics,
    climb_grid,
    maximize_evidence,
)
from skbayes_sym.linear.hyperparameters import LearnedRanges

# Number of noise levels from which the search starts, about 0.8 apart on a log scale.
_N_LEVELS = 24


class WeightedRows(NamedTuple):
    """Rows as those of weighted regression, at one noise level.

    Parameters
    ----------
    precision : Tensor of shape (N,)
        Weights p, whose sum is that of the sample weights.
    log_reference : float
        Logarithm of the noise standard deviation r of a row of weight 1.
    log_factor : float
        Log evidence minus that of the weighted regression, nats.
    centre : Tensor of shape (r,)
        Weighted mean of the features; 0 without an intercept.
    intercept : float
        Weighted mean of the targets; 0 without an intercept.
    statistics : SufficientStatistics
        Statistics of the centred rows.
    """

    precision: Tensor
    log_reference: float
    log_factor: float
    centre: Tensor
    intercept: float
    statistics: SufficientStatistics

    def log_evidence(self, log_variance: float) -> float:
        """Return the log evidence at a prior variance, nats."""
        return self.statistics.log_evidence(log_variance, self.log_reference) + self.log_factor


class KnownErrorRows(NamedTuple):
    """Rows of one target with known errors.

    Parameters
    ----------
    features : Tensor of shape (N, r)
        Features.
    y : Tensor of shape (N,)
        Targets.
    weight : Tensor of shape (N,)
        Sample weights.
    known_variance : Tensor of shape (N,)
        Squares of the known errors.
    fit_intercept : bool
        Whether there is an intercept.
    """

    features: Tensor
    y: Tensor
    weight: Tensor
    known_variance: Tensor
    fit_intercept: bool

    def weighted(self, log_noise: float, inputs: Tensor | None = None) -> WeightedRows:
        """Return the rows as those of weighted regression; O(N r^2 + r^3).

        Parameters
        ----------
        log_noise : float
            Logarithm of the noise level s.
        inputs : Tensor of shape (N, K), optional
            All columns, if the features are coordinates in a subspace and the mean-field gap is
            needed.

        Returns
        -------
        WeightedRows
        """
        variance = self.known_variance + exp(2.0 * log_noise)
        inverse = self.weight / variance
        reference = float(self.weight.sum() / inverse.sum())
        precision = inverse * reference

        features = self.features
        y = self.y
        centre = torch.zeros_like(features[0])
        intercept = 0.0
        relative_precision = precision / precision.sum()
        if self.fit_intercept:
            centre = relative_precision @ features
            intercept = float(relative_precision @ y)
            features = features - centre
            y = y - intercept
        diagonal = None
        if inputs is not None:
            if self.fit_intercept:
                inputs = inputs - relative_precision @ inputs
            diagonal = precision @ inputs.square()
        return WeightedRows(
            precision=precision,
            log_reference=0.5 * log(reference),
            log_factor=-0.5 * float(self.weight @ (variance / reference).log()),
            centre=centre,
            intercept=intercept,
            statistics=SufficientStatistics.from_rows(features, y, precision, diagonal),
        )

    def squared_residuals(self, weighted: WeightedRows, loc: Floats) -> Tensor:
        """Return squared residuals (N,) at the posterior mean (r,) of the coefficients."""
        coefficients = torch.as_tensor(loc).to(self.features)
        fitted = weighted.intercept + (self.features - weighted.centre) @ coefficients
        return (self.y - fitted).square()


def maximize_known_error_evidence(
    rows: KnownErrorRows, initial: Scales, ranges: LearnedRanges, *, learns_noise: bool
) -> Scales:
    """Find the scales that maximise the evidence.

    Every noise level takes O(N r^2 + r^3), about 50 times in total. Of several maxima over the
    noise the one that is highest under the prior of `skbayes_sym.linear.conjugate` is taken: the
    fraction of noise, known errors included, is uniform.

    Parameters
    ----------
    rows : KnownErrorRows
        Rows of one target.
    initial : Scales
        Values of the scales that aren't learned.
    ranges : LearnedRanges
        Which scales are learned, and their ranges.
    learns_noise : bool
        Whether the noise level is learned.

    Returns
    -------
    Scales
    """

    def best_variance(weighted: WeightedRows) -> float:
        start = (initial.log_variance, weighted.log_reference)
        return maximize_evidence(
            weighted.statistics, start, ranges, learns_noise=False
        ).log_variance

    def log_evidence(log_noise: float) -> float:
        weighted = rows.weighted(log_noise)
        return weighted.log_evidence(best_variance(weighted))

    if not learns_noise:
        weighted = rows.weighted(initial.log_noise)
        return Scales(best_variance(weighted), initial.log_noise)

    # The best level of a grid, under the prior of the fraction of noise.
    grid = np.linspace(*ranges.noise, _N_LEVELS)
    values = np.empty(_N_LEVELS)
    scores = np.empty(_N_LEVELS)
    for k, log_noise in enumerate(grid):
        weighted = rows.weighted(log_noise)
        log_variance = best_variance(weighted)
        log_odds = log_variance + log(weighted.statistics.signal) - 2.0 * weighted.log_reference
        values[k] = weighted.log_evidence(log_variance)
        scores[k] = values[k] - np.logaddexp(0.0, log_odds) - np.logaddexp(0.0, -log_odds)

    # The maximum of the evidence next to it.
    peak = climb_grid(values, int(scores.argmax()))
    limits = (grid[max(peak - 1, 0)], grid[min(peak + 1, _N_LEVELS - 1)])
    optimum = minimize_scalar(
        lambda log_noise: -log_evidence(log_noise),
        bounds=limits,
        method="bounded",
        options={"xatol": 1e-8},
    )
    log_noise = float(optimum.x)
    return Scales(best_variance(rows.weighted(log_noise)), log_noise)
