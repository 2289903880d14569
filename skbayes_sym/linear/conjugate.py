r"""Bayesian linear regression with normal noise from its sufficient statistics.

With n the sum of weights, A = X' W X = V diag(lambda) V', b = V' X' W y and c = y' W y (columns and
targets are centred if there is an intercept), the log evidence at prior variance v and noise
variance s^2 is, with :math:`\delta = s^2 / v`,

.. math:: -\tfrac n2 \log 2 \pi s^2 - \tfrac{1}{2 s^2} \Big(c - \sum_k
          \frac{b_k^2}{\lambda_k + \delta}\Big) - \tfrac12 \sum_k \log(1 + \lambda_k / \delta)

(MacKay 1992, "Bayesian interpolation", eqs. 2.10 and 4.5). One value costs O(r), whatever the
number of rows. If both variances are learned, the best :math:`s^2` has a closed form given
:math:`\delta`.

An intercept that maximises the evidence, instead of being integrated out, leaves the columns one
target less to explain. If the columns fit the other n - 1 targets without error, the evidence rises
without bound as the noise vanishes, even if the data hardly support it. Of several maxima we
therefore take the one that is highest under a proper prior of the fraction of noise
(`_maximize_log_posterior`).
"""

from collections.abc import Callable
from math import exp, log, pi, tanh
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.linear.hyperparameters import LearnedRanges, Range
from skbayes_sym.numerics.optimise import find_root, lbfgs

Floats = npt.NDArray[np.float64]

_TINY = 1e-300
_EPS = float(np.finfo(np.float64).eps)


class SufficientStatistics(NamedTuple):
    """Sufficient statistics of one target, in the eigenvectors of A.

    Parameters
    ----------
    weight : float
        Sum n of the weights.
    residual : float
        Part of c that no coefficients explain.
    eigenvalues : ndarray of shape (r,)
        Eigenvalues lambda of A, at least 0.
    eigenvectors : ndarray of shape (r, r)
        Eigenvectors V of A.
    projection : ndarray of shape (r,)
        Projection b of the targets.
    explained : ndarray of shape (r,)
        Part ``b^2 / lambda`` of c that every coordinate can explain.
    diagonal : ndarray of shape (K,)
        Diagonal of A in the coordinates of all K weights.
    """

    weight: float
    residual: float
    eigenvalues: Floats
    eigenvectors: Floats
    projection: Floats
    explained: Floats
    diagonal: Floats

    @classmethod
    def from_rows(
        cls, features: Tensor, y: Tensor, weight: Tensor | None, diagonal: Tensor | None
    ) -> Self:
        """Compute the statistics of centred rows; O(N r^2 + r^3).

        Parameters
        ----------
        features : Tensor of shape (N, r)
            Features.
        y : Tensor of shape (N,)
            Targets.
        weight : Tensor of shape (N,) or None
            Weights; None if all are 1.
        diagonal : Tensor of shape (K,) or None
            Diagonal of A in all weights, if the features are coordinates in a subspace.

        Returns
        -------
        SufficientStatistics
        """
        if weight is None:
            weighted = features
        else:
            weighted = features * weight[:, None]
        product = weighted.T @ features
        eigenvalues, axes = torch.linalg.eigh(product)
        # Eigenvalues of a product have seven correct digits down to this fraction of the largest.
        if len(features) >= len(product) and eigenvalues[0] < 1e-8 * eigenvalues[-1]:
            eigenvalues, axes, projection = _decompose_by_qr(features, y, weight)
            smallest = 0.0
        else:
            projection = axes.T @ (weighted.T @ y)
            smallest = float(eigenvalues.abs().max()) * len(product) * _EPS
        values, vectors, b = (t.cpu().numpy() for t in (eigenvalues, axes, projection))

        # The residuals are computed themselves: c minus what is explained would cancel for few
        # rows.
        inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > smallest)
        coefficients = axes @ torch.as_tensor(inverse * b, device=y.device)
        residual = torch.addmv(y, features, coefficients, alpha=-1.0)
        if diagonal is None:
            diagonal = product.diagonal()
        if weight is None:
            total_weight = float(len(y))
            weighted_residual = residual
        else:
            total_weight = float(weight.sum())
            weighted_residual = weight * residual
        return cls(
            weight=total_weight,
            residual=float(weighted_residual @ residual),
            eigenvalues=np.maximum(values, 0.0),
            eigenvectors=vectors,
            projection=b,
            # In this order of the factors nothing overflows.
            explained=inverse * b * b,
            diagonal=diagonal.cpu().numpy(),
        )

    def log_evidence(self, log_variance: float, log_noise: float) -> float:
        """Return the log evidence at a prior variance and a noise standard deviation, nats."""
        s2 = exp(2.0 * log_noise)
        ratio = exp(2.0 * log_noise - log_variance)
        misfit, _ = self._misfit(ratio)
        volume = float(np.log1p(self.eigenvalues / ratio).sum())
        return -0.5 * (self.weight * log(2.0 * pi * s2) + misfit / s2 + volume)

    def gradient(self, log_variance: float, log_noise: float) -> tuple[float, float]:
        """Return the derivatives of `log_evidence` by its two arguments."""
        s2 = exp(2.0 * log_noise)
        ratio = exp(2.0 * log_noise - log_variance)
        misfit, slope = self._misfit(ratio)
        n_effective = float((self.eigenvalues / (self.eigenvalues + ratio)).sum())
        by_log_ratio = 0.5 * (n_effective - slope / s2)
        return -by_log_ratio, misfit / s2 - self.weight + 2.0 * by_log_ratio

    def profile_gradient(self, log_ratio: float) -> float:
        """Return the derivative by log delta of the evidence at the best noise given delta."""
        ratio = exp(log_ratio)
        misfit, slope = self._misfit(ratio)
        n_effective = float((self.eigenvalues / (self.eigenvalues + ratio)).sum())
        return 0.5 * (n_effective - self.weight * slope / misfit)

    def residuals(self, log_variance: float, log_noise: float) -> tuple[float, float]:
        """Return the residual sum of squares and the effective number of coefficients."""
        shrinkage = 1.0 / (1.0 + self.eigenvalues * exp(log_variance - 2.0 * log_noise))
        squares = self.residual + float((self.explained * shrinkage * shrinkage).sum())
        return squares, float((1.0 - shrinkage).sum())

    @property
    def signal(self) -> float:
        """Mean squared length of the features, tr A / n."""
        return max(float(self.eigenvalues.sum()) / self.weight, _TINY)

    def best_log_noise(self, log_ratio: float) -> float:
        """Return the logarithm of the best noise standard deviation given delta."""
        return 0.5 * (log(self._misfit(exp(log_ratio))[0]) - log(self.weight))

    def posterior(self, log_variance: float, log_noise: float) -> tuple[Floats, Floats]:
        """Return mean (r,) and covariance (r, r) of the coordinates; O(r^3)."""
        s2 = exp(2.0 * log_noise)
        variance = s2 / (self.eigenvalues + s2 / exp(log_variance))
        root = self.eigenvectors * np.sqrt(variance)
        return self.eigenvectors @ (variance * self.projection / s2), root @ root.T

    def mean_field_gap(self, log_variance: float, log_noise: float) -> float:
        r"""Return what the bound loses if the K weights are independent, nats, at least 0.

        The best mean-field posterior has the same mean and the inverse diagonal of the precision P:
        :math:`\tfrac12 (\sum_k \log P_{kk} - \log |P|)`.
        """
        ratio = exp(log_variance - 2.0 * log_noise)
        log_det = float(np.log1p(self.eigenvalues * ratio).sum())
        return max(0.0, 0.5 * (float(np.log1p(self.diagonal * ratio).sum()) - log_det))

    def _misfit(self, ratio: float) -> tuple[float, float]:
        """Return ``c - sum b^2 / (lambda + delta)`` and its derivative by log delta."""
        shrinkage = ratio / (self.eigenvalues + ratio)
        unexplained = self.explained * shrinkage
        slope = float(unexplained @ (1.0 - shrinkage))
        return max(self.residual + float(unexplained.sum()), _TINY), slope

    def evaluate_grid(self, log_variance: Floats, log_noise: Floats | None) -> Floats:
        """Evaluate the log evidence at many points, up to a constant.

        Parameters
        ----------
        log_variance : ndarray of shape (G,)
            Log variances of the prior; in units of the noise variance if ``log_noise`` is None.
        log_noise : ndarray of shape (G,) or None
            Log standard deviations of the noise; None for the best one at every point.

        Returns
        -------
        ndarray of shape (G,)
        """
        if log_noise is None:
            noise = np.zeros_like(log_variance)
        else:
            noise = 2.0 * log_noise
        ratio = np.exp(noise - log_variance)[:, None]
        misfit = self.residual + (self.explained * ratio / (self.eigenvalues + ratio)).sum(1)
        volume = np.log1p(self.eigenvalues / ratio).sum(1)
        if log_noise is None:
            return -0.5 * (self.weight * np.log(np.maximum(misfit, _TINY)) + volume)
        with np.errstate(over="ignore"):
            # Overflow to minus infinity is the right limit.
            return -0.5 * (self.weight * noise + misfit * np.exp(-noise) + volume)


def _decompose_by_qr(
    features: Tensor, y: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return eigenvalues, eigenvectors and projection without forming the product X' W X.

    The product has the square of the condition number of X, so that its small eigenvalues would be
    noise only. The triangle of a QR factorisation has the singular values of X itself.

    Parameters
    ----------
    features : Tensor of shape (N, r)
        Features, N at least r.
    y : Tensor of shape (N,)
        Targets.
    weight : Tensor of shape (N,) or None
        Weights; None if all are 1.

    Returns
    -------
    eigenvalues : Tensor of shape (r,)
    eigenvectors : Tensor of shape (r, r)
    projection : Tensor of shape (r,)
    """
    r = features.shape[1]
    rows = torch.cat([features, y[:, None]], 1)
    if weight is not None:
        rows = rows * weight.sqrt()[:, None]
    triangle = torch.linalg.qr(rows, mode="r")[1]
    left_vectors, sizes, right_vectors = torch.linalg.svd(triangle[:r, :r])
    sizes = torch.where(sizes > sizes[0] * r * _EPS, sizes, 0.0)
    return sizes.square(), right_vectors.mT, sizes * (left_vectors.mT @ triangle[:r, r])


class Scales(NamedTuple):
    """Logarithms of the prior's variance and of the noise's standard deviation."""

    log_variance: float
    log_noise: float


def maximize_evidence(
    statistics: SufficientStatistics,
    initial: tuple[float, float],
    ranges: LearnedRanges,
    *,
    learns_noise: bool,
) -> Scales:
    """Find the scales that maximise the evidence.

    The best point of a grid is refined until the logarithms are accurate to 1e-10; O(r) per value.
    Of several maxima over the noise `_maximize_log_posterior` selects one.

    Parameters
    ----------
    statistics : SufficientStatistics
        Statistics of one target.
    initial : tuple of float
        Log prior variance and log noise, for scales that aren't learned.
    ranges : LearnedRanges
        Which scales are learned, and their ranges.
    learns_noise : bool
        Whether the noise level is learned.

    Returns
    -------
    Scales
    """
    log_variance, log_noise = initial
    prior = ranges.prior
    noise = ranges.noise
    if prior is not None and learns_noise:
        return _learn_noise_and_scale(statistics, prior, noise)
    if prior is not None:
        grid = _make_grid(prior)
        values = statistics.evaluate_grid(grid, np.full_like(grid, log_noise))
        maximum = _refine_maximum(
            grid, int(values.argmax()), lambda t: statistics.gradient(t, log_noise)[0]
        )
        return Scales(maximum, log_noise)
    if learns_noise:
        grid = _make_grid(noise)
        values = statistics.evaluate_grid(np.full_like(grid, log_variance), grid)
        minus_log_ratio = _maximize_log_posterior(
            log_variance - 2.0 * grid[::-1],
            values[::-1],
            lambda t: -0.5 * statistics.gradient(log_variance, 0.5 * (log_variance - t))[1],
            statistics.signal,
        )
        return Scales(log_variance, 0.5 * (log_variance - minus_log_ratio))
    return Scales(*initial)


def _learn_noise_and_scale(statistics: SufficientStatistics, prior: Range, noise: Range) -> Scales:
    """Maximise over delta at the best noise, or by L-BFGS if that leaves the ranges."""
    grid = _make_grid(Range(prior.low - 2.0 * noise.high, prior.high - 2.0 * noise.low))
    values = statistics.evaluate_grid(grid, None)
    log_ratio = -_maximize_log_posterior(
        grid, values, lambda t: -statistics.profile_gradient(-t), statistics.signal
    )
    log_noise = statistics.best_log_noise(log_ratio)
    log_variance = 2.0 * log_noise - log_ratio
    is_inside = prior.low < log_variance < prior.high and noise.low < log_noise < noise.high
    if is_inside:
        return Scales(log_variance, log_noise)

    def loss(scales: Tensor) -> tuple[Tensor, Tensor]:
        point = float(scales[0]), float(scales[1])
        gradient = scales.new_tensor(statistics.gradient(*point))
        return scales.new_tensor(-statistics.log_evidence(*point)), -gradient

    initial = torch.tensor(
        [np.clip(log_variance, *prior), np.clip(log_noise, *noise)], dtype=torch.float64
    )
    optimum = lbfgs(loss, initial, max_iter=200, bounds=[prior, noise], ftol=1e-15, gtol=1e-9)
    return Scales(float(optimum[0]), float(optimum[1]))


def _make_grid(limits: Range) -> Floats:
    """Return 64 equidistant points between two limits, (64,)."""
    low, high = limits
    grid: Floats = low + (high - low) / 63 * np.arange(64, dtype=np.float64)
    # The last point is exact. np.linspace, which does the same, takes four times as long.
    grid[-1] = high
    return grid


def _maximize_log_posterior(
    grid: Floats, values: Floats, slope: Callable[[float], float], signal: float
) -> float:
    """Return the maximum of the evidence that is best under a prior of the fraction of noise.

    The prior is uniform over the fraction ``delta / (delta + signal)``, so that neither no noise
    nor no signal is likely. It selects a maximum of the evidence and doesn't move it, unless the
    evidence rises until there is no noise.

    Parameters
    ----------
    grid : ndarray of shape (G,)
        Increasing values of ``-log delta``.
    values : ndarray of shape (G,)
        Log evidence at these values.
    slope : callable (float) -> float
        Derivative of the log evidence by ``-log delta``.
    signal : float
        Mean squared length of the features.

    Returns
    -------
    float
        Value of ``-log delta``.
    """
    log_odds = grid + log(signal)
    scores = values - np.logaddexp(0.0, log_odds) - np.logaddexp(0.0, -log_odds)
    best = int(scores.argmax())
    peak = climb_grid(values, best)
    # From a signal of 1e12 noise variances on, eigenvalues that should be 0 matter.
    if log_odds[peak] > log(1e12) > log_odds[best]:
        return _refine_maximum(grid, best, lambda t: slope(t) - tanh(0.5 * (t + log(signal))))
    return _refine_maximum(grid, peak, slope)


def climb_grid(values: Floats, start: int) -> int:
    """Return the index of the maximum on a grid (G,) to which steps upwards from ``start`` lead."""
    peak = start
    while values[peak] < (highest := values[max(peak - 1, 0) : peak + 2].max()):
        peak += 1 if values[min(peak + 1, len(values) - 1)] == highest else -1
    return peak


def _refine_maximum(grid: Floats, index: int, slope: Callable[[float], float]) -> float:
    """Return the maximum next to a point of a grid: a root of the slope, or an end."""
    low = grid[max(index - 1, 0)]
    high = grid[min(index + 1, len(grid) - 1)]
    if slope(low) <= 0.0:
        return float(low)
    if slope(high) >= 0.0:
        return float(high)
    return find_root(slope, float(low), float(high))
