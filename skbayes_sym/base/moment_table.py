r"""Expectations of transformed normal variables, interpolated in their parameters.

The moments of ``g(Z)`` for a normal Z are functions of its mean :math:`\mu` and its standard
deviation :math:`\sigma`: ``g`` and its square, smoothed by a normal density of width
:math:`\sigma`. They are smooth on this scale, whatever kinks g has. The same holds for the mean
difference of two draws. Predictions for many rows, or
by mixtures of many components, therefore need few quadratures: those of a table, from which the
others are interpolated by cubic splines in the mean, whose coefficients are polynomials in the
logarithm of the standard deviation.
"""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.interpolate import CubicSpline

from skbayes_sym.base.rows import Array

Functionals = Callable[[Array, Array], Array]

_SPACING = 0.25  # of the means, in units of the smallest standard deviation
_LOG_ERROR = 11.0  # of polynomials in the logarithm of the standard deviation, nearly 1e-5
_REACH = 6.0  # ends of the table in standard deviations of the components' parameters
_MAX_RELATIVE_SIZE = 0.25  # of a table, relative to the number of components
_BLOCK_SIZE = 4096  # components that are interpolated at once


class _Axis(NamedTuple):
    """Range of a parameter for every target, (T,) each."""

    low: Array
    high: Array


def interpolate_functionals(functionals: Functionals, loc: Array, scale: Array) -> Array | None:
    r"""Interpolate functionals of the distributions of ``g(Z)`` for the components of a mixture.

    Parameters
    ----------
    functionals : callable
        Maps means and standard deviations of Z, (M, T) each, to Q functionals of ``g(Z)``, such as
        its mean and its variance, (Q, M, T).
    loc, scale : ndarray of shape (S, N, T)
        Means and standard deviations of Z for S components of N rows.

    Returns
    -------
    ndarray of shape (Q, S, N, T) or None
        Functionals of the components. None if the components are too few or too different for a
        table to be cheaper, or if a value in the table isn't finite.

    Notes
    -----
    The error of cubic splines is :math:`1.4 \cdot 10^{-3} h^4` times the fourth derivative. At a
    kink of g, this is :math:`1.4 \cdot 10^{-5} \sigma` times the change in slope for the spacing
    :math:`h = 0.4 \sigma`. Functions of :math:`e^{s}` are bounded in a strip of width
    :math:`\pi / 4` around the real axis of s, so that polynomials through n Chebyshev nodes in a
    range of length L have an error of about :math:`e^{-n \operatorname{arsinh}(\pi / 2 L)}`.
    """
    n_targets = loc.shape[-1]
    if not loc.size or not (
        np.isfinite(loc).all() and (scale > 0.0).all() and np.isfinite(scale).all()
    ):
        return None
    means = loc.reshape(-1, n_targets)
    log_scales = np.log(scale).reshape(-1, n_targets)
    mean_axis = _central_range(means)
    log_axis = _central_range(log_scales)
    steps = (mean_axis.high - mean_axis.low) / (_SPACING * np.exp(log_axis.low))
    length = float((log_axis.high - log_axis.low).max(initial=0.0))
    n_scales = max(1, ceil(_LOG_ERROR / np.arcsinh(0.5 * np.pi / max(length, 1e-12))))
    if not steps.max(initial=0.0) * n_scales < _MAX_RELATIVE_SIZE * len(means):
        return None
    n_means = max(4, ceil(steps.max(initial=0.0)) + 1)

    # The table: nodes (n_means, n_scales, T), and functionals (Q, n_means, n_scales, T) there.
    nodes = np.cos(np.pi * (np.arange(n_scales) + 0.5) / n_scales)
    centre = 0.5 * (log_axis.low + log_axis.high)
    half = np.maximum(0.5 * (log_axis.high - log_axis.low), 1e-12)
    fraction = np.linspace(0.0, 1.0, n_means)[:, None]
    width = np.maximum(mean_axis.high - mean_axis.low, np.exp(log_axis.low))
    mean_nodes = mean_axis.low + fraction * width
    shape = n_means, n_scales, n_targets
    table_loc = np.broadcast_to(mean_nodes[:, None], shape).reshape(-1, n_targets)
    table_scale = np.exp(centre + half * nodes[:, None])
    table_scale = np.broadcast_to(table_scale, shape).reshape(-1, n_targets)
    table = functionals(table_loc, table_scale)
    if not np.isfinite(table).all():
        return None
    table = table.reshape(-1, *shape)

    vandermonde = np.polynomial.chebyshev.chebvander(nodes, n_scales - 1)
    coefficients = np.einsum("ds,qkst->kqdt", np.linalg.inv(vandermonde), table)
    values = np.empty((len(table), *means.shape))
    for target in range(n_targets):
        position = ((log_scales[:, target] - centre[target]) / half[target]).clip(-1.0, 1.0)
        values[..., target] = _evaluate_splines(
            mean_nodes[:, target], coefficients[..., target], means[:, target], position
        )

    is_outside = _outside(means, mean_axis) | _outside(log_scales, log_axis)
    index = np.flatnonzero(is_outside.any(axis=1))
    if len(index):
        values[:, index] = functionals(means[index], scale.reshape(-1, n_targets)[index])
    return values.reshape(-1, *loc.shape)


def _evaluate_splines(knots: Array, coefficients: Array, x: Array, position: Array) -> Array:
    """Evaluate polynomials whose coefficients are splines.

    Parameters
    ----------
    knots : ndarray of shape (K,)
        Equidistant knots of the splines.
    coefficients : ndarray of shape (K, Q, D)
        Chebyshev coefficients of Q polynomials at the knots.
    x : ndarray of shape (M,)
        Arguments of the splines.
    position : ndarray of shape (M,)
        Arguments of the polynomials, from -1 to 1.

    Returns
    -------
    ndarray of shape (Q, M)
    """
    n_functionals, degree = coefficients.shape[1:]
    pieces = CubicSpline(knots, coefficients.reshape(len(knots), -1)).c
    values = np.empty((n_functionals, len(x)))
    for start in range(0, len(x), _BLOCK_SIZE):
        block = slice(start, start + _BLOCK_SIZE)
        # Arguments beyond the knots are replaced by the caller, and mustn't overflow here.
        inside = np.clip(x[block], knots[0], knots[-1])
        cell = ((inside - knots[0]) * (1.0 / (knots[1] - knots[0]))).astype(np.intp)
        np.minimum(cell, len(knots) - 2, out=cell)
        step = (inside - knots.take(cell))[:, None]
        local = pieces[0].take(cell, axis=0)
        for piece in pieces[1:]:
            local *= step
            local += piece.take(cell, axis=0)
        basis = np.polynomial.chebyshev.chebvander(position[block], degree - 1)
        local = local.reshape(-1, n_functionals, degree)
        values[:, block] = np.einsum("mqd,md->qm", local, basis)
    return values


def _central_range(values: Array) -> _Axis:
    """Return the range of each column of values (M, T) without far outliers."""
    mean = values.mean(axis=0)
    reach = _REACH * values.std(axis=0)
    return _Axis(
        np.maximum(values.min(axis=0), mean - reach), np.minimum(values.max(axis=0), mean + reach)
    )


def _outside(values: Array, axis: _Axis) -> npt.NDArray[np.bool_]:
    return np.asarray((values < axis.low) | (values > axis.high))
