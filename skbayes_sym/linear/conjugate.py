r"""Bayesian linear regression with normal noise from its sufficient statistics.

With n the sum of weights, A = X' W X = V diag(lambda) V', b = V' X' W y and c = y' W y (columns and
targets centred where there is an intercept), the log evidence at prior variance v and noise s^2 is,
with :math:`\delta = s^2 / v`,

.. math:: -\tfrac n2 \log 2 \pi s^2 - \tfrac{1}{2 s^2} \Big(c - \sum_k
          \frac{b_k^2}{\lambda_k + \delta}\Big) - \tfrac12 \sum_k \log(1 + \lambda_k / \delta)

(MacKay 1992, "Bayesian interpolation", eqs. 2.10 and 4.5): O(r) a value, whatever the number of
rows. Where both are learned :math:`s^2` has a closed form given :math:`\delta`.

An intercept that maximises the evidence, instead of being integrated out, leaves the columns one
target less to explain. Where they explain the n - 1 others without error the evidence rises without
end as the noise vanishes, however little the rows say so. So of several maxima the one is taken
that is highest under a proper prior of the noise's share (`_maximize_log_posterior`).
"""

from collections.abc import Callable
from math import exp, log, pi, tanh
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.linear.hyperparameters import Learning, Range
from skbayes_sym.numerics.optimise import find_root, lbfgs

Floats = npt.NDArray[np.float64]

_TINY = 1e-300
_EPS = float(np.finfo(np.float64).eps)


class Statistics(NamedTuple):
    """Sufficient statistics of the rows."""

    weight: float  # n
    rest: float  # of c, what no coefficients explain
    values: Floats  # (r,), eigenvalues of A, at least 0
    vectors: Floats  # (r, r)
    projection: Floats  # (r,), b
    explained: Floats  # (r,), b^2 / lambda: of c, what the coordinates explain
    diagonal: Floats  # (K,), of A in all coordinates

    @classmethod
    def of(
        cls, features: Tensor, y: Tensor, weight: Tensor | None, diagonal: Tensor | None
    ) -> Self:
        """Statistics of rows (N, r), targets (N,) and weights (N,), centred; O(N r^2 + r^3).

        Without ``weight`` all are 1. ``diagonal`` (K,) where the features are coordinates in a
        subspace.
        """
        weighted = features if weight is None else features * weight[:, None]
        product = weighted.T @ features
        eigenvalues, axes = torch.linalg.eigh(product)
        # Of a product they have seven digits down to this share of the largest.
        if len(features) >= len(product) and eigenvalues[0] < 1e-8 * eigenvalues[-1]:
            eigenvalues, axes, along = _by_triangle(features, y, weight)
            lowest = 0.0
        else:
            along = axes.T @ (weighted.T @ y)
            lowest = float(eigenvalues.abs().max()) * len(product) * _EPS
        values, vectors, projection = (a.cpu().numpy() for a in (eigenvalues, axes, along))
        # Residuals, and not c less what is explained: that would cancel where rows are few.
        inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > lowest)
        coefficients = axes @ torch.as_tensor(inverse * projection, device=y.device)
        residual = torch.addmv(y, features, coefficients, alpha=-1.0)
        rest = float((residual if weight is None else weight * residual) @ residual)
        total = float(len(y) if weight is None else weight.sum())
        sums = product.diagonal() if diagonal is None else diagonal
        return cls(
            total, rest, np.maximum(values, 0.0), vectors, projection,
            inverse * projection * projection,  # in this order nothing overflows
            sums.cpu().numpy(),
        )  # fmt: skip

    def log_evidence(self, log_variance: float, log_noise: float) -> float:
        """At a prior variance and a noise standard deviation, nats."""
        s2 = exp(2.0 * log_noise)
        ratio = exp(2.0 * log_noise - log_variance)
        misfit, _ = self._misfit(ratio)
        volume = float(np.log1p(self.values / ratio).sum())
        return -0.5 * (self.weight * log(2.0 * pi * s2) + misfit / s2 + volume)

    def slopes(self, log_variance: float, log_noise: float) -> tuple[float, float]:
        """Derivatives of `log_evidence`."""
        s2 = exp(2.0 * log_noise)
        ratio = exp(2.0 * log_noise - log_variance)
        misfit, slope = self._misfit(ratio)
        determined = float((self.values / (self.values + ratio)).sum())
        by_ratio = 0.5 * (determined - slope / s2)
        return -by_ratio, misfit / s2 - self.weight + 2.0 * by_ratio

    def profile_slope(self, log_ratio: float) -> float:
        """Derivative by log delta of the evidence at the best noise given delta."""
        ratio = exp(log_ratio)
        misfit, slope = self._misfit(ratio)
        determined = float((self.values / (self.values + ratio)).sum())
        return 0.5 * (determined - self.weight * slope / misfit)

    def residuals(self, log_variance: float, log_noise: float) -> tuple[float, float]:
        """Return the residual sum of squares and the effective number of coefficients."""
        share = 1.0 / (1.0 + self.values * exp(log_variance - 2.0 * log_noise))
        squares = self.rest + float((self.explained * share * share).sum())
        return squares, float((1.0 - share).sum())

    @property
    def signal(self) -> float:
        """Mean squared length of the features, tr A / n."""
        return max(float(self.values.sum()) / self.weight, _TINY)

    def best_log_noise(self, log_ratio: float) -> float:
        """The best noise standard deviation given delta, by its logarithm."""
        return 0.5 * (log(self._misfit(exp(log_ratio))[0]) - log(self.weight))

    def posterior(self, log_variance: float, log_noise: float) -> tuple[Floats, Floats]:
        """Mean (r,) and covariance (r, r) of the coordinates; O(r^3)."""
        s2 = exp(2.0 * log_noise)
        variance = s2 / (self.values + s2 / exp(log_variance))
        half = self.vectors * np.sqrt(variance)
        return self.vectors @ (variance * self.projection / s2), half @ half.T

    def gap(self, log_variance: float, log_noise: float) -> float:
        """Loss of the bound by independence of the K weights, nats, at least 0.

        The best mean-field posterior has the same mean and the inverse diagonal of the precision P:
        :math:`\tfrac12 (\\sum_k \\log P_{kk} - \\log |P|)`.
        """
        ratio = exp(log_variance - 2.0 * log_noise)
        whole = float(np.log1p(self.values * ratio).sum())
        return max(0.0, 0.5 * (float(np.log1p(self.diagonal * ratio).sum()) - whole))

    def _misfit(self, ratio: float) -> tuple[float, float]:
        """``c - sum b^2 / (lambda + delta)`` and its derivative by log delta."""
        share = ratio / (self.values + ratio)
        unexplained = self.explained * share
        slope = float(unexplained @ (1.0 - share))
        return max(self.rest + float(unexplained.sum()), _TINY), slope

    def grid(self, log_variance: Floats, log_noise: Floats | None) -> Floats:
        """`log_evidence` at many places (G,), up to a constant; at the best noise if it is None.

        Without noise ``log_variance`` is that of the prior in units of the noise's.
        """
        noise = np.zeros_like(log_variance) if log_noise is None else 2.0 * log_noise
        ratio = np.exp(noise - log_variance)[:, None]
        misfit = self.rest + (self.explained * ratio / (self.values + ratio)).sum(1)
        volume = np.log1p(self.values / ratio).sum(1)
        if log_noise is None:
            return -0.5 * (self.weight * np.log(np.maximum(misfit, _TINY)) + volume)
        with np.errstate(over="ignore"):  # minus infinity is right there
            return -0.5 * (self.weight * noise + misfit * np.exp(-noise) + volume)


def _by_triangle(
    features: Tensor, y: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues and vectors of ``X' W X``, and ``V' X' W y``, without that product.

    It has the square of the condition number of X: of small eigenvalues only noise is left.
    """
    r = features.shape[1]
    rows = torch.cat([features, y[:, None]], 1)
    rows = rows if weight is None else rows * weight.sqrt()[:, None]
    triangle = torch.linalg.qr(rows, mode="r")[1]
    left_vectors, sizes, right_vectors = torch.linalg.svd(triangle[:r, :r])
    sizes = torch.where(sizes > sizes[0] * r * _EPS, sizes, 0.0)
    return sizes.square(), right_vectors.mT, sizes * (left_vectors.mT @ triangle[:r, r])


class Scales(NamedTuple):
    """Logarithms of the prior's variance and of the noise's standard deviation."""

    log_variance: float
    log_noise: float


def learn(
    statistics: Statistics, start: tuple[float, float], learning: Learning, *, learns_noise: bool
) -> Scales:
    """The scales that maximise the evidence; ``start`` where they aren't learned.

    The best of a grid between the ends, then to 1e-10; O(r) a step. Of several maxima over
    the noise that of `_maximize_log_posterior`.
    """
    log_variance, log_noise = start
    prior = learning.prior
    noise = learning.noise
    if prior is not None and learns_noise:
        return _learn_noise_and_scale(statistics, prior, noise)
    if prior is not None:
        places = _places(prior)
        values = statistics.grid(places, np.full_like(places, log_noise))
        peak = _maximum(places, int(values.argmax()), lambda t: statistics.slopes(t, log_noise)[0])
        return Scales(peak, log_noise)
    if learns_noise:
        places = _places(noise)
        values = statistics.grid(np.full_like(places, log_variance), places)
        minus_log_ratio = _maximize_log_posterior(
            log_variance - 2.0 * places[::-1],
            values[::-1],
            lambda t: -0.5 * statistics.slopes(log_variance, 0.5 * (log_variance - t))[1],
            statistics.signal,
        )
        return Scales(log_variance, 0.5 * (log_variance - minus_log_ratio))
    return Scales(*start)


def _learn_noise_and_scale(statistics: Statistics, prior: Range, noise: Range) -> Scales:
    """Along the best noise given delta; by L-BFGS in the ranges where that leads out of them."""
    places = _places(Range(prior.low - 2.0 * noise.high, prior.high - 2.0 * noise.low))
    values = statistics.grid(places, None)
    share = -_maximize_log_posterior(
        places, values, lambda t: -statistics.profile_slope(-t), statistics.signal
    )
    log_noise = statistics.best_log_noise(share)
    log_variance = 2.0 * log_noise - share
    inside = prior.low < log_variance < prior.high and noise.low < log_noise < noise.high
    if inside:
        return Scales(log_variance, log_noise)

    def loss(scales: Tensor) -> tuple[Tensor, Tensor]:
        point = float(scales[0]), float(scales[1])
        slopes = scales.new_tensor(statistics.slopes(*point))
        return scales.new_tensor(-statistics.log_evidence(*point)), -slopes

    begin = torch.tensor(
        [np.clip(log_variance, *prior), np.clip(log_noise, *noise)], dtype=torch.float64
    )
    ended = lbfgs(loss, begin, max_iter=200, bounds=[prior, noise], ftol=1e-15, gtol=1e-9)
    return Scales(float(ended[0]), float(ended[1]))


def _places(ends: Range) -> Floats:
    """Grid on which an optimum is looked for before it is found to 1e-10."""
    low, high = ends
    places: Floats = low + (high - low) / 63 * np.arange(64, dtype=np.float64)
    places[-1] = high  # to the last bit; np.linspace takes four times as long
    return places


def _maximize_log_posterior(
    places: Floats, values: Floats, slope: Callable[[float], float], signal: float
) -> float:
    """Maximum over ``-log delta`` to which the evidence rises from the best under a prior.

    The prior is uniform over the noise's share ``delta / (delta + signal)``: neither no noise nor
    no signal. It doesn't move the maximum, unless the evidence rises until there is no noise.
    """
    odds = places + log(signal)
    best = peak = int((values - np.logaddexp(0.0, odds) - np.logaddexp(0.0, -odds)).argmax())
    while values[peak] < (highest := values[max(peak - 1, 0) : peak + 2].max()):
        peak += 1 if values[min(peak + 1, len(values) - 1)] == highest else -1
    # From a signal of 1e12 noises on eigenvalues that should be 0 count.
    if odds[peak] > log(1e12) > odds[best]:
        return _maximum(places, best, lambda t: slope(t) - tanh(0.5 * (t + log(signal))))
    return _maximum(places, peak, slope)


def _maximum(places: Floats, best: int, slope: Callable[[float], float]) -> float:
    """The maximum next to the best place of a grid: where the slope changes sign, or an end."""
    low = places[max(best - 1, 0)]
    high = places[min(best + 1, len(places) - 1)]
    if slope(low) <= 0.0:
        return float(low)
    return float(high) if slope(high) >= 0.0 else find_root(slope, float(low), float(high))
