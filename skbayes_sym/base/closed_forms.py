"""Moments and scores of transformed mixtures of normals that need no quadrature.

A `ClosedForm` belongs to one transformation g. It has the mean and the variance of ``g(Z)`` for a
normal Z, and the continuous ranked probability score of a mixture of such variables.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import ndtr
from scipy.stats import norm

from skbayes_sym.base.rows import Array

_MAX_PAIRED_COMPONENTS = 64  # scores of pairs of components cost more than quadrature beyond
_TINY = np.finfo(float).tiny  # standard deviation in place of 0
# Tails of normals under a table: standard deviations to their ends, and nodes. Point masses have a
# width that is negligible next to that of the table.
_TAIL_REACH = 6.0
_TAIL_RULE = np.polynomial.legendre.leggauss(32)
_MIN_RELATIVE_SCALE = 1e-5
# Trapezoidal rule for functionals: scores, and weights of a second antiderivative for the mean and
# for half the mean difference of two draws.
_STEP = 0.25
_SCORES = _STEP * np.arange(-30, 31)
_DENSITY = norm.pdf(_SCORES)
_CURVATURE = (np.square(_SCORES) - 1.0) * _DENSITY
_SECOND_WEIGHTS = _STEP * np.stack([
    _CURVATURE, _CURVATURE * (2.0 * ndtr(_SCORES) - 1.0) - 6.0 * _SCORES * np.square(_DENSITY)
])  # fmt: skip


class ClosedForm(Protocol):
    """Moments and CRPS of ``g(Z)`` for normal components of Z."""

    def moments(self, weights: Array, loc: Array, scale: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of the mixture, (N, T).

        Parameters
        ----------
        weights : ndarray of shape (S,)
            Weights of the components, with sum 1.
        loc, scale : ndarray of shape (S, N, T)
            Means and standard deviations of Z.
        """

    def crps(self, weights: Array, loc: Array, scale: Array, y: Array) -> Array | None:
        """Return the continuous ranked probability score of the mixture.

        Parameters
        ----------
        weights : ndarray of shape (S,)
            Weights of the components, with sum 1.
        loc, scale : ndarray of shape (S, N, T)
            Means and standard deviations of Z.
        y : ndarray of shape (G, N, T)
            Targets in the units of ``g(Z)``.

        Returns
        -------
        ndarray of shape (G, N, T) or None
            None if there is no closed form, or if it overflows.
        """


def mixture_moments(weights: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return mean and variance (N, T) of a mixture from those of its components (S, N, T).

    Parameters
    ----------
    weights : ndarray of shape (S,) or (S, N, T)
        Weights of the components, with sum 1.
    mean, variance : ndarray of shape (S, N, T)
        Moments of the components.
    """
    subscripts = "s,s...->..." if weights.ndim == 1 else "s...,s...->..."
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.einsum(subscripts, weights, mean)
        spread = variance + np.square(mean - total)
        return total, np.einsum(subscripts, weights, spread)


class ExponentialForm:
    r"""Closed form of :math:`g(z) = e^{r z} + c`.

    Parameters
    ----------
    rate : float
        Factor r of the exponent.
    offset : float
        Constant c.

    Notes
    -----
    With :math:`m_s = e^{\mu_s + \sigma_s^2 / 2}` for log-normal components s,

    .. math::
        E|Y_s - y| &= y (2 \Phi(u) - 1) + m_s (1 - 2 \Phi(u - \sigma_s)),
        \quad u = (\log y - \mu_s) / \sigma_s, \\
        E|Y_s - Y_t| &= m_s (2 \Phi(a_{st}) - 1) + m_t (2 \Phi(a_{ts}) - 1),
        \quad a_{st} = (\mu_s - \mu_t + \sigma_s^2) / \sqrt{\sigma_s^2 + \sigma_t^2},

    and the score is :math:`E|Y - y| - E|Y - Y'| / 2`.
    """

    def __init__(self, rate: float = 1.0, offset: float = 0.0) -> None:
        self.rate = rate
        self.offset = offset

    def moments(self, weights: Array, loc: Array, scale: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of the mixture, (N, T).

        Parameters
        ----------
        weights : ndarray of shape (S,)
            Weights of the components.
        loc : ndarray of shape (S, N, T)
            Means of the components before the transformation.
        scale : ndarray of shape (S, N, T)
            Their standard deviations.
        """
        variance = np.square(self.rate * scale)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.exp(self.rate * loc + 0.5 * variance)
            # A component without spread has none after the transformation, whatever its mean.
            spread = np.where(variance > 0.0, np.square(mean) * np.expm1(variance), 0.0)
        mean, spread = mixture_moments(weights, mean, spread)
        return mean + self.offset, spread

    def crps(self, weights: Array, loc: Array, scale: Array, y: Array) -> Array | None:
        """Return the CRPS of the mixture at targets (G, N, T), see `ClosedForm.crps`.

        Parameters
        ----------
        weights : ndarray of shape (S,)
            Weights of the components.
        loc : ndarray of shape (S, N, T)
            Means of the components before the transformation.
        scale : ndarray of shape (S, N, T)
            Their standard deviations.
        y : ndarray of shape (G, N, T)
            Targets.
        """
        if len(weights) > _MAX_PAIRED_COMPONENTS:
            return None
        loc = self.rate * loc
        scale = np.maximum(self.rate * scale, _TINY)
        variance = np.square(scale)
        targets = y - self.offset
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.exp(loc + 0.5 * variance)
            log_target = np.log(np.where(targets > 0.0, targets, 1.0))
            distance = np.zeros(np.broadcast_shapes(targets.shape, loc.shape[1:]))
            for weight, m, mu, sigma in zip(weights, mean, loc, scale, strict=True):
                u = (log_target - mu) / sigma
                inside = targets * (2.0 * ndtr(u) - 1.0) + m * (1.0 - 2.0 * ndtr(u - sigma))
                distance += weight * np.where(targets > 0.0, inside, m - targets)
            # The spread counts every ordered pair, of which the two terms are equal in the sum.
            spread = np.zeros(loc.shape[1:])
            for s, weight in enumerate(weights):
                deviation = np.maximum(np.sqrt(variance[s] + variance), _TINY)
                probability = ndtr((loc[s] - loc + variance[s]) / deviation)
                pairs = np.einsum("t,t...->...", weights, 2.0 * probability - 1.0)
                spread += weight * mean[s] * pairs
            score = distance - spread
        return score if np.isfinite(score).all() else None


class SquareForm:
    r"""Closed form of :math:`g(z) = z^2`.

    Notes
    -----
    For two draws Z and Z' of one normal component, the difference and the sum are independent, so
    :math:`E|Z^2 - Z'^2| = E|Z - Z'| \, E|Z + Z'|`. Mixtures of several components have no such
    form.
    """

    def moments(self, weights: Array, loc: Array, scale: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of the mixture, (N, T).

        Parameters
        ----------
        weights : ndarray of shape (S,)
            Weights of the components.
        loc : ndarray of shape (S, N, T)
            Means of the components before the transformation.
        scale : ndarray of shape (S, N, T)
            Their standard deviations.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.square(scale)
            square = np.square(loc)
            return mixture_moments(
                weights, square + variance, 2.0 * variance * (variance + 2.0 * square)
            )

    def crps(self, weights: Array, loc: Array, scale: Array, y: Array) -> Array | None:
        """Return the CRPS of the mixture at targets (G, N, T), see `ClosedForm.crps`.

        Parameters
        ----------
        weights : ndarray of shape (S,)
            Weights of the components.
        loc : ndarray of shape (S, N, T)
            Means of the components before the transformation.
        scale : ndarray of shape (S, N, T)
            Their standard deviations.
        y : ndarray of shape (G, N, T)
            Targets.
        """
        if len(weights) > 1:
            return None
        mu = loc[0]
        sigma = np.maximum(scale[0], _TINY)
        root = np.sqrt(np.maximum(y, 0.0))
        with np.errstate(over="ignore", invalid="ignore"):
            upper = (root - mu) / sigma
            lower = (-root - mu) / sigma
            probability = ndtr(upper) - ndtr(lower)
            mean = np.square(mu) + np.square(sigma)
            # Integral of z**2 over |z| <= sqrt(y).
            partial = mean * probability - sigma * (
                (root + mu) * norm.pdf(upper) + (root - mu) * norm.pdf(lower)
            )
            distance = mean - y + 2.0 * (y * probability - partial)
            difference = 2.0 * sigma / np.sqrt(np.pi)
            total_std = np.sqrt(2.0) * sigma
            total = 2.0 * mu * (2.0 * ndtr(2.0 * mu / total_std) - 1.0)
            total = total + 2.0 * total_std * norm.pdf(2.0 * mu / total_std)
            score = distance - 0.5 * difference * total
        return score if np.isfinite(score).all() else None


class TabulatedForm:
    """Moments and antiderivatives of a continuous rising function that is given by a table.

    Parameters
    ----------
    edges : ndarray of shape (K + 1,)
        Values of z, increasing in equal steps, of which the last may be shorter or longer. The
        function is constant beyond the first and the last.
    values : ndarray of shape (K + 1, T)
        The function at the edges.
    mean, mean_square : ndarray of shape (K, T)
        Average of the function and of its square within each cell.

    Notes
    -----
    The function is replaced by straight lines with the same averages over cells. The error falls
    with the square of the width of the cells.
    """

    def __init__(self, edges: Array, values: Array, mean: Array, mean_square: Array) -> None:
        self._edges = edges
        self._values = values
        width = np.diff(edges)[:, None]
        self._function = _CellFunction.from_cells(values, mean, width)
        # Squares of deviations from the middle keep their digits in differences of moments.
        self._centre = values[len(values) // 2]
        centre = self._centre
        square = mean_square - 2.0 * centre * mean + np.square(centre)
        self._square = _CellFunction.from_cells(np.square(values - centre), square, width)

    @property
    def min_scale(self) -> float:
        """Standard deviation of point masses, which is negligible next to the table."""
        return float(_MIN_RELATIVE_SCALE * (self._edges[-1] - self._edges[0]))

    def functionals(self, names: tuple[str, ...], loc: Array, scale: Array) -> Array:
        r"""Return functionals of normals, (Q, M, T).

        Parameters
        ----------
        names : tuple of {"mean", "variance", "difference"}
            The mean, the variance, and half the mean absolute difference of two draws.
        loc, scale : ndarray of shape (M, T)
            Means and standard deviations of z.

        Notes
        -----
        The second antiderivative H of g is smooth enough for equidistant nodes. Integration by
        parts moves the derivatives to a function k of the score u,

        .. math:: \int g(\mu + \sigma u) \, k(u) \, du
                  = \frac1{\sigma^2} \int H(\mu + \sigma u) \, k''(u) \, du ,

        where k is the density :math:`\phi` for the mean and :math:`(2 \Phi - 1) \phi` for the
        difference.
        """
        scale = np.maximum(scale, self.min_scale)
        nodes = self._locate(loc + scale * _SCORES[:, None, None])
        integral = self._function.second_antiderivative(*nodes)
        # The weights of constants add up to 0: their rounding errors needn't be added.
        integral -= integral[len(_SCORES) // 2].copy()
        mean, difference = np.tensordot(_SECOND_WEIGHTS, integral, axes=1) / np.square(scale)
        functionals = {"mean": mean, "difference": difference}
        if "variance" in names:
            integral = self._square.second_antiderivative(*nodes)
            integral -= integral[len(_SCORES) // 2].copy()
            square = np.tensordot(_SECOND_WEIGHTS[0], integral, axes=1) / np.square(scale)
            functionals["variance"] = np.maximum(square - np.square(mean - self._centre), 0.0)
        return np.stack([functionals[name] for name in names])

    def tail_excess(self, loc: Array, scale: Array, y: Array) -> tuple[Array, Array]:
        """Integrate over the tail of a normal distribution of z on the far side of a target.

        Parameters
        ----------
        loc, scale : ndarray of shape (N, T)
            Mean and standard deviation of z.
        y : ndarray of shape (N, T)
            Targets.

        Returns
        -------
        side : ndarray of shape (N, T)
            1 if the tail holds the values of the target below y, and -1 if it holds those above.
        excess : ndarray of shape (N, T)
            ``E[(y - Y)_+]`` or ``E[(Y - y)_+]``.
        """
        is_below = self.invert(self.clip(y)) < loc
        excess = self._tail_excess(loc, scale, y, is_below)
        return np.where(is_below, 1.0, -1.0), excess

    def _tail_excess(self, loc: Array, scale: Array, y: Array, is_below: Array) -> Array:
        r"""Return the expected excess over a target of the values on one side, (N, T).

        Parameters
        ----------
        loc, scale : ndarray of shape (N, T)
            Mean and standard deviation of z.
        y : ndarray of shape (N, T)
            Targets.
        is_below : ndarray of shape (N, T)
            Whether values below y count, or those above. The mean of z isn't among them.

        Notes
        -----
        With :math:`P(z) = \int_c^z (g - y) \, dz` and ``g(c) = y``, integration by parts moves
        the derivative of P, which jumps, to the density f:

        .. math:: \int_c^e |g - y| f \, dz = P(e) f(e) + \int_c^e P \, |f'| \, dz ,

        where e is the end of the table or six standard deviations. Beyond the end of the table g is
        constant.
        """
        scale = np.maximum(scale, self.min_scale)
        inside = self.clip(y)
        centre = self.invert(inside)
        start = (centre - loc) / scale
        first = (self._edges[0] - loc) / scale
        last = (self._edges[-1] - loc) / scale
        stop = np.where(is_below, np.maximum(first, -_TAIL_REACH), np.minimum(last, _TAIL_REACH))
        stop = np.where(is_below, np.minimum(stop, start), np.maximum(stop, start))

        half = 0.5 * (stop - start)
        nodes, weights = (values[:, None, None] for values in _TAIL_RULE)
        u = np.concatenate([start + half * (1.0 + nodes), stop[None]])
        z = loc + scale * u
        areas = self.integrate(z)
        areas -= self.integrate(centre)
        areas -= inside * (z - centre)
        areas *= np.exp(-0.5 * u * u)
        slopes = areas[:-1] * np.abs(u[:-1])
        slopes *= weights
        excess = np.abs(half) * slopes.sum(axis=0) + areas[-1]
        excess = excess / (np.sqrt(2.0 * np.pi) * scale)

        # Beyond the end of the table.
        end = np.where(is_below, self._values[0], self._values[-1])
        beyond = ndtr(np.where(is_below, first, -last))
        excess += np.abs(end - inside) * beyond
        outside = np.where(is_below, y - inside, inside - y)
        return np.asarray(excess + np.maximum(outside, 0.0))

    @property
    def ends(self) -> Array:
        """The ends of this interval, (2, 1, 1)."""
        return self._edges[[0, -1], None, None]

    def clip(self, y: Array) -> Array:
        """Return targets (..., T) that are clipped to the range of the table."""
        return np.clip(y, self._values[0], self._values[-1])

    def invert(self, y: Array) -> Array:
        """Return the values of z, (..., T), at which the function has values in its range."""
        z = [np.interp(y[..., k], x, self._edges) for k, x in enumerate(self._values.T)]
        return np.stack(z, axis=-1)

    def integrate(self, z: Array) -> Array:
        """Return the antiderivative of the function, which is linear in each cell, (..., T)."""
        index, distance, beyond = self._locate(z)
        return self._function.antiderivative(index, distance, beyond)

    def _locate(self, z: Array) -> tuple[Array, Array, Array]:
        """Return cells of z (..., T), distances from their left edges, and from the table."""
        first = self._edges[0]
        inside = np.minimum(np.maximum(z, first), self._edges[-1])
        cell = ((inside - first) * (1.0 / (self._edges[1] - first))).astype(np.intp)
        np.minimum(cell, len(self._edges) - 2, out=cell)
        return cell, inside - self._edges.take(cell), z - inside


class _CellFunction(NamedTuple):
    """Function that is linear in each of K cells, and its first two antiderivatives.

    Antiderivatives are exact at the edges. Beyond the outermost edges the function is constant.

    Attributes
    ----------
    values : ndarray of shape (K + 1, T)
        The function at the edges.
    half_slope : ndarray of shape (K, T)
        Half the slope of the function within each cell.
    first, second : ndarray of shape (K + 1, T)
        Antiderivatives at the edges.
    """

    values: Array
    half_slope: Array
    first: Array
    second: Array

    @classmethod
    def from_cells(cls, values: Array, mean: Array, width: Array) -> "_CellFunction":
        """Return the function with averages (K, T) on cells of widths (K, 1)."""
        half_slope = (mean - values[:-1]) / width
        first = np.cumsum(width * mean, axis=0)
        first = np.concatenate([np.zeros_like(values[:1]), first])
        step = first[:-1] + width * (0.5 * values[:-1] + width * half_slope / 3.0)
        second = np.cumsum(width * step, axis=0)
        return cls(values, half_slope, first, np.concatenate([np.zeros_like(values[:1]), second]))

    def antiderivative(self, cell: Array, distance: Array, beyond: Array) -> Array:
        """Evaluate the first antiderivative.

        Parameters
        ----------
        cell : ndarray of int of shape (..., T)
            Cells.
        distance, beyond : ndarray of shape (..., T)
            Distances from their left edges, and from the nearest end of the table.
        """
        coefficients = self.half_slope, self.values, self.first
        integral = _evaluate_cells(coefficients, cell, distance)
        integral += np.maximum(beyond, 0.0) * self.values[-1]
        integral += np.minimum(beyond, 0.0) * self.values[0]
        return integral

    def second_antiderivative(self, cell: Array, distance: Array, beyond: Array) -> Array:
        """Evaluate the second antiderivative, see `antiderivative`."""
        coefficients = self.half_slope / 3.0, 0.5 * self.values, self.first, self.second
        integral = _evaluate_cells(coefficients, cell, distance)
        above = np.maximum(beyond, 0.0)
        integral += above * (self.first[-1] + 0.5 * above * self.values[-1])
        integral += 0.5 * np.square(np.minimum(beyond, 0.0)) * self.values[0]
        return integral


def _evaluate_cells(coefficients: Sequence[Array], cell: Array, distance: Array) -> Array:
    """Evaluate polynomials in the distance from the left edges of cells.

    Parameters
    ----------
    coefficients : sequence of ndarray of shape (K, T)
        Coefficients of each cell, that of the highest power first.
    cell : ndarray of int of shape (..., T)
        Cells.
    distance : ndarray of shape (..., T)
        Distances.
    """
    values = np.empty(distance.shape)
    for k in range(distance.shape[-1]):
        index = cell[..., k]
        step = distance[..., k]
        local = coefficients[0][:, k].take(index)
        for coefficient in coefficients[1:]:
            local *= step
            local += coefficient[:, k].take(index)
        values[..., k] = local
    return values
