"""Moments and scores of transformed mixtures of normals that need no quadrature.

A `ClosedForm` belongs to one transformation g. It has the mean and the variance of ``g(Z)`` for a
normal Z, and the continuous ranked probability score of a mixture of such variables.
"""

from typing import Protocol

import numpy as np
import torch
from scipy.special import ndtr
from scipy.stats import norm

from skbayes_sym.base.rows import Array

_MAX_PAIRED_COMPONENTS = 64  # scores of pairs of components cost more than quadrature beyond
_TINY = np.finfo(float).tiny  # standard deviation in place of 0
_BLOCK_SIZE = 1 << 17  # distribution function values that are held at once
# Tails of normals under a table: standard deviations to their ends, and nodes. Functionals that are
# interpolated have more, since they are few. Point masses have a width that is negligible next to
# that of the table.
_TAIL_REACH = 6.0
_TAIL_RULE = np.polynomial.legendre.leggauss(32)
_FINE_TAIL_RULE = np.polynomial.legendre.leggauss(64)
_MIN_RELATIVE_SCALE = 1e-6


class ClosedForm(Protocol):
    """Moments and CRPS of ``g(Z)`` for normal components of Z.

    Attributes
    ----------
    is_cheap : bool
        Whether moments of many components cost less than their interpolation.
    """

    is_cheap: bool

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
    """Return mean and variance (N, T) of a mixture from those of its components (S, N, T)."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.einsum("s,s...->...", weights, mean)
        spread = variance + np.square(mean - total)
        return total, np.einsum("s,s...->...", weights, spread)


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

    is_cheap = True

    def __init__(self, rate: float = 1.0, offset: float = 0.0) -> None:
        self.rate = rate
        self.offset = offset

    def moments(self, weights: Array, loc: Array, scale: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of the mixture, (N, T)."""
        variance = np.square(self.rate * scale)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.exp(self.rate * loc + 0.5 * variance)
            # A component without spread has none after the transformation, whatever its mean.
            spread = np.where(variance > 0.0, np.square(mean) * np.expm1(variance), 0.0)
        mean, spread = mixture_moments(weights, mean, spread)
        return mean + self.offset, spread

    def crps(self, weights: Array, loc: Array, scale: Array, y: Array) -> Array | None:
        """Return the CRPS of the mixture at targets (G, N, T), see `ClosedForm.crps`."""
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

    is_cheap = True

    def moments(self, weights: Array, loc: Array, scale: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of the mixture, (N, T)."""
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.square(scale)
            square = np.square(loc)
            return mixture_moments(
                weights, square + variance, 2.0 * variance * (variance + 2.0 * square)
            )

    def crps(self, weights: Array, loc: Array, scale: Array, y: Array) -> Array | None:
        """Return the CRPS of the mixture at targets (G, N, T), see `ClosedForm.crps`."""
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
    """Moments and antiderivative of a continuous rising function that is given by a table.

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
    The mean is the sum over cells of their probability times the average of the function. It is
    exact if all values of a cell are equally likely. The error falls with the square of the width
    of the cells.
    """

    is_cheap = False

    def __init__(self, edges: Array, values: Array, mean: Array, mean_square: Array) -> None:
        self._edges = edges
        self._values = values
        self._mean = mean
        self._mean_square = mean_square
        width = np.diff(edges)[:, None]
        # The antiderivative is exact at the edges, and quadratic between them.
        self._half_slope = (mean - values[:-1]) / width
        areas = np.cumsum(width * mean, axis=0)
        self._integral = np.concatenate([np.zeros_like(values[:1]), areas])

    @property
    def width(self) -> float:
        """Length of the interval of z on which the function isn't constant."""
        return float(self._edges[-1] - self._edges[0])

    def _cdf(self, weights: Array, loc: Array, scale: Array) -> Array:
        """Return the distribution function of z at the edges, (K + 1, N, T)."""
        total = np.zeros((len(self._edges), *loc.shape[1:]))
        for weight, mu, sigma in zip(weights, loc, scale, strict=True):
            scores = self._edges[:, None, None] - mu
            scores /= sigma
            total += weight * torch.special.ndtr(torch.from_numpy(scores)).numpy()
        return total

    def _row_blocks(self, n_rows: int) -> list[slice]:
        size = max(1, _BLOCK_SIZE // len(self._edges))
        return [slice(start, start + size) for start in range(0, n_rows, size)]

    def moments(self, weights: Array, loc: Array, scale: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of the mixture, (N, T)."""
        scale = np.maximum(scale, _TINY)
        # Deviations from the middle of the table: the difference of moments then keeps its digits.
        centre = self._values[len(self._values) // 2]
        square = self._mean_square - 2.0 * centre * self._mean + np.square(centre)
        first = self._values[0] - centre
        last = self._values[-1] - centre
        mean_steps = np.diff(self._mean - centre, axis=0, prepend=first[None], append=last[None])
        ends = np.square(first), np.square(last)
        square_steps = np.diff(square, axis=0, prepend=ends[0][None], append=ends[1][None])
        # Summation by parts: the values at the end minus the steps times the distribution function.
        means = []
        variances = []
        for rows in self._row_blocks(loc.shape[1]):
            cdf = self._cdf(weights, loc[:, rows], scale[:, rows])
            mean = last - np.einsum("knt,kt->nt", cdf, mean_steps)
            second = ends[1] - np.einsum("knt,kt->nt", cdf, square_steps)
            means.append(mean + centre)
            variances.append(np.maximum(second - np.square(mean), 0.0))
        return np.concatenate(means), np.concatenate(variances)

    def crps(self, weights: Array, loc: Array, scale: Array, y: Array) -> Array | None:  # noqa: ARG002
        """Return None: scores are integrated by `Quadrature`, with the methods below."""
        return None

    def mean(self, loc: Array, scale: Array) -> Array:
        """Return the mean for a normal z, (N, T), by integrals of the antiderivative.

        Parameters
        ----------
        loc, scale : ndarray of shape (N, T)
            Mean and standard deviation of z.
        """
        centre = self.value(loc)
        return centre + self.excess(loc, scale, centre, -1.0) - self.excess(loc, scale, centre, 1.0)

    def excess(self, loc: Array, scale: Array, y: Array, side: float) -> Array:
        """Return ``E[(y - Y)_+]`` for side 1 and ``E[(Y - y)_+]`` for side -1, (N, T).

        Parameters
        ----------
        loc, scale : ndarray of shape (N, T)
            Mean and standard deviation of z, of which the mean is on the given side of y.
        y : ndarray of shape (N, T)
            Targets.
        side : {1.0, -1.0}
            Side on which values of the target count.
        """
        return self._tail_excess(loc, scale, y, np.full(y.shape, side > 0.0), _FINE_TAIL_RULE)

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
        excess = self._tail_excess(loc, scale, y, is_below, _TAIL_RULE)
        return np.where(is_below, 1.0, -1.0), excess

    def _tail_excess(
        self, loc: Array, scale: Array, y: Array, is_below: Array, rule: tuple[Array, Array]
    ) -> Array:
        r"""Return the expected excess over a target of the values on one side, (N, T).

        Parameters
        ----------
        loc, scale : ndarray of shape (N, T)
            Mean and standard deviation of z.
        y : ndarray of shape (N, T)
            Targets.
        is_below : ndarray of shape (N, T)
            Whether values below y count, or those above. The mean of z isn't among them.
        rule : (ndarray, ndarray)
            Nodes and weights from -1 to 1.

        Notes
        -----
        With :math:`P(z) = \int_c^z (g - y) \, dz` and ``g(c) = y``, integration by parts moves
        the derivative of P, which jumps, to the density f:

        .. math:: \int_c^e |g - y| f \, dz = P(e) f(e) + \int_c^e P \, |f'| \, dz ,

        where e is the end of the table or six standard deviations. Beyond the end of the table g is
        constant.
        """
        scale = np.maximum(scale, _MIN_RELATIVE_SCALE * self.width)
        inside = self.clip(y)
        centre = self.invert(inside)
        start = (centre - loc) / scale
        first = (self._edges[0] - loc) / scale
        last = (self._edges[-1] - loc) / scale
        stop = np.where(is_below, np.maximum(first, -_TAIL_REACH), np.minimum(last, _TAIL_REACH))
        stop = np.where(is_below, np.minimum(stop, start), np.maximum(stop, start))

        half = 0.5 * (stop - start)
        nodes, weights = (values[:, None, None] for values in rule)
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

    def value(self, z: Array) -> Array:
        """Return the function at values of z, (..., T)."""
        y = [np.interp(z[..., k], self._edges, x) for k, x in enumerate(self._values.T)]
        return np.stack(y, axis=-1)

    def integrate(self, z: Array) -> Array:
        """Return an antiderivative of the function, which is linear in each cell, (..., T)."""
        first = self._edges[0]
        inside = np.minimum(np.maximum(z, first), self._edges[-1])
        cell = ((inside - first) * (1.0 / (self._edges[1] - first))).astype(np.intp)
        np.minimum(cell, len(self._edges) - 2, out=cell)
        distance = inside - self._edges.take(cell)
        integral = np.empty(z.shape)
        for k in range(z.shape[-1]):
            index = cell[..., k]
            step = distance[..., k]
            local = self._half_slope[:, k].take(index)
            local *= step
            local += self._values[:, k].take(index)
            local *= step
            local += self._integral[:, k].take(index)
            integral[..., k] = local
        beyond = z - inside
        integral += np.maximum(beyond, 0.0) * self._values[-1]
        integral += np.minimum(beyond, 0.0) * self._values[0]
        return integral
