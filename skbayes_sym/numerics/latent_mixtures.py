r"""Distributions of real numbers, positive numbers and counts by mixtures of normals, in NumPy.

A latent variable has the density :math:`p(z) = \sum_k \pi_k N(z \mid \mu_k, \sigma_k^2)`, and the
target y follows from it:

* real numbers: :math:`y = z`,
* positive numbers: :math:`y = e^z`,
* counts: :math:`y \le k` if and only if :math:`z \le \sqrt{k + 1/2}`. The square root makes the
  standard deviation of Poisson counts nearly constant (Anscombe 1948), and gives counts the
  exponential tails of a negative binomial distribution.

References
----------
Anscombe (1948). The transformation of Poisson, binomial and negative-binomial data.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp, ndtr

Array = npt.NDArray[Any]

_LOG_ROOT_2_PI = 0.5 * np.log(2.0 * np.pi)
# Steps of the bisection for quantiles.
_N_BISECTIONS = 60
# Weight of a component whose scale the moments of positive targets ignore.
_NEGLIGIBLE_WEIGHT = 0.01
# Counts that the moments sum one by one.
_MAX_SINGLE_COUNT = 64


class LatentMixture:
    """Mixture of normals of a latent variable, one mixture for each of N rows.

    Parameters
    ----------
    weights, loc, scale : ndarray of shape (K, N)
        Weights with sum 1, means and standard deviations of the components.
    """

    def __init__(self, weights: Array, loc: Array, scale: Array) -> None:
        self.weights = weights
        self.loc = loc
        self.scale = scale

    def latent_cdf(self, z: Array) -> Array:
        """Probability that the latent variable is at most ``z``, (..., N)."""
        z = np.asarray(z)[..., None, :]
        return np.asarray((self.weights * ndtr((z - self.loc) / self.scale)).sum(axis=-2))

    def latent_log_prob(self, z: Array) -> Array:
        """Log density of the latent variable at ``z``, (..., N), in nats."""
        with np.errstate(over="ignore"):  # the density of very distant values is 0
            z = (np.asarray(z)[..., None, :] - self.loc) / self.scale
            log_density = -0.5 * z**2 - np.log(self.scale) - _LOG_ROOT_2_PI
        return np.asarray(logsumexp(log_density, axis=-2, b=self.weights))

    def latent_quantile(self, levels: Array) -> Array:
        """Quantiles of the latent variable at levels (Q, 1) or (Q, N), by bisection, (Q, N)."""
        zero = np.zeros(np.broadcast_shapes(np.shape(levels), (1, self.loc.shape[1])))
        low = zero + (self.loc - 40.0 * self.scale).min(axis=0)
        high = zero + (self.loc + 40.0 * self.scale).max(axis=0)
        for _ in range(_N_BISECTIONS):
            middle = 0.5 * (low + high)
            is_below = self.latent_cdf(middle) < levels
            low = np.where(is_below, middle, low)
            high = np.where(is_below, high, middle)
        return 0.5 * (low + high)

    def latent_sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draws of the latent variable, (n, N)."""
        n_rows = self.loc.shape[1]
        ends = np.cumsum(self.weights, axis=0)[:-1]
        component = (rng.random((n, 1, n_rows)) > ends).sum(axis=1)
        rows = np.arange(n_rows)
        noise = rng.standard_normal((n, n_rows))
        return np.asarray(self.loc[component, rows] + self.scale[component, rows] * noise)

    def mean(self) -> Array:
        """Expected targets, (N,)."""
        return self.moments()[0]

    def moments(self) -> tuple[Array, Array]:
        """Means and standard deviations of the targets, (N,) each."""
        raise NotImplementedError

    def from_latent(self, z: Array) -> Array:
        """Targets that belong to latent values (..., N)."""
        raise NotImplementedError

    def cdf(self, y: Array) -> Array:
        """Probability that the target is at most ``y``, (..., N)."""
        raise NotImplementedError

    def cdf_below(self, y: Array) -> Array:
        """Probability that the target is smaller than ``y``, (..., N)."""
        return self.cdf(y)

    def log_prob(self, y: Array) -> Array:
        """Log density, or log probability of counts, at ``y`` (..., N), in nats."""
        raise NotImplementedError


class RealMixture(LatentMixture):
    """Real numbers, which are the latent variable itself."""

    def mean(self) -> Array:
        """Expected targets, (N,)."""
        return np.asarray((self.weights * self.loc).sum(axis=0))

    def moments(self) -> tuple[Array, Array]:
        """Means and standard deviations of the targets, (N,) each."""
        mean = self.mean()
        variance = (self.weights * (self.scale**2 + (self.loc - mean) ** 2)).sum(axis=0)
        return mean, np.sqrt(variance)

    def from_latent(self, z: Array) -> Array:
        """Targets that belong to latent values (..., N)."""
        return z

    def cdf(self, y: Array) -> Array:
        """Probability that the target is at most ``y``, (..., N)."""
        return self.latent_cdf(y)

    def log_prob(self, y: Array) -> Array:
        """Log density at ``y`` (..., N), in nats."""
        return self.latent_log_prob(y)


class PositiveMixture(LatentMixture):
    """Positive numbers, whose logarithm is the latent variable."""

    def moments(self) -> tuple[Array, Array]:
        """Means and standard deviations of the targets, (N,) each.

        They exclude targets beyond the reach of the components that aren't negligible. A component
        of tiny weight and large scale, which hardly affects the density, could otherwise have all
        of the mean.
        """
        variance = self.scale**2
        is_negligible = self.weights < _NEGLIGIBLE_WEIGHT
        reach = self.loc + 4.0 * self.scale
        largest = np.where(is_negligible, -np.inf, reach).max(axis=0)
        with np.errstate(over="ignore"):
            # Truncated moments of log-normal distributions.
            moments = []
            for power in (1, 2):
                log_moment = power * self.loc + 0.5 * power**2 * variance
                log_inside = log_ndtr((largest - self.loc - power * variance) / self.scale)
                moments.append((self.weights * np.exp(log_moment + log_inside)).sum(axis=0))
            mean, square = moments
            return mean, np.sqrt(np.maximum(square - mean**2, 0.0))

    def from_latent(self, z: Array) -> Array:
        """Targets that belong to latent values (..., N)."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(z))

    def cdf(self, y: Array) -> Array:
        """Probability that the target is at most ``y``, (..., N)."""
        return self.latent_cdf(self._log(y))

    def log_prob(self, y: Array) -> Array:
        """Log density at ``y`` (..., N), in nats; -inf unless ``y`` is positive."""
        log_y = self._log(y)
        is_positive = np.isfinite(log_y)
        log_y = np.where(is_positive, log_y, 0.0)
        return np.where(is_positive, self.latent_log_prob(log_y) - log_y, -np.inf)

    @staticmethod
    def _log(y: Array) -> Array:
        """Logarithm of ``y``, -inf unless it is positive."""
        y = np.asarray(y, dtype=np.float64)
        return np.log(y, out=np.full(y.shape, -np.inf), where=y > 0.0)


class CountMixture(LatentMixture):
    """Counts 0, 1, 2, ..., which are rounded squares of the latent variable."""

    @staticmethod
    def edge(y: Array) -> Array:
        """Largest latent value of the count ``y``; -inf if it is negative."""
        y = np.floor(np.asarray(y, dtype=np.float64))
        return np.sqrt(y + 0.5, out=np.full(y.shape, -np.inf), where=y >= 0.0)

    def moments(self) -> tuple[Array, Array]:
        """Means and standard deviations of the targets, (N,) each.

        Small counts are summed. Larger ones are nearly squares of the latent variable, whose
        moments are those of truncated normal distributions.
        """
        count = np.arange(_MAX_SINGLE_COUNT + 1.0)
        mass = np.diff(self.cdf(count[:, None]), axis=0, prepend=0.0)
        mean = count @ mass
        square = count**2 @ mass

        # Moments of t, z = loc + scale t, above the latent value of the largest summed count.
        edge = (self.edge(count[-1:]) - self.loc) / self.scale
        above = ndtr(-edge)
        density = np.exp(-0.5 * edge**2 - _LOG_ROOT_2_PI)
        moment2 = above + edge * density
        moment3 = (edge**2 + 2.0) * density
        moment4 = 3.0 * above + (edge**3 + 3.0 * edge) * density

        # Second and fourth moments of z. Rounding to counts adds 1 / 12 to the variance.
        loc = self.loc
        scale = self.scale
        power2 = loc**2 * above + 2.0 * loc * scale * density + scale**2 * moment2
        power4 = (
            loc**4 * above
            + 4.0 * loc**3 * scale * density
            + 6.0 * loc**2 * scale**2 * moment2
            + 4.0 * loc * scale**3 * moment3
            + scale**4 * moment4
        )
        mean += (self.weights * power2).sum(axis=0)
        square += (self.weights * (power4 + above / 12.0)).sum(axis=0)
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0))

    def from_latent(self, z: Array) -> Array:
        """Targets that belong to latent values (..., N)."""
        # The rounding error of a square must not become a count.
        return np.maximum(np.ceil(np.square(np.maximum(z, 0.0)) - 0.5 - 1e-9), 0.0)

    def cdf(self, y: Array) -> Array:
        """Probability that the target is at most ``y``, (..., N)."""
        return self.latent_cdf(self.edge(y))

    def cdf_below(self, y: Array) -> Array:
        """Probability that the target is smaller than ``y``, (..., N)."""
        return self.latent_cdf(self.edge(np.ceil(y) - 1.0))

    def log_prob(self, y: Array) -> Array:
        """Log probability of ``y`` (..., N), in nats; -inf unless it is a count."""
        y = np.asarray(y, dtype=np.float64)
        is_count = (y >= 0.0) & (y == np.floor(y))
        count = np.where(is_count, y, 0.0)
        upper, lower = (
            (self.edge(k)[..., None, :] - self.loc) / self.scale for k in (count, count - 1.0)
        )
        # Above the mean the upper tail is the accurate one.
        is_above = lower + upper > 0.0
        upper, lower = np.where(is_above, -lower, upper), np.where(is_above, -upper, lower)
        log_upper = log_ndtr(upper)
        with np.errstate(divide="ignore"):  # a mass of 0
            log_mass = log_upper + np.log(-np.expm1(np.minimum(log_ndtr(lower) - log_upper, 0.0)))
        log_prob = logsumexp(log_mass, axis=-2, b=self.weights)
        return np.where(is_count, log_prob, -np.inf)


# Distributions by the kind of their targets.
LATENT_MIXTURES = {"real": RealMixture, "positive": PositiveMixture, "count": CountMixture}
