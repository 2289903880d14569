r"""Moments of transformed normal variables, interpolated in their parameters.

The moments of ``g(Z)`` for a normal Z are functions of its mean :math:`\mu` and its standard
deviation :math:`\sigma`: ``g`` and its square, smoothed by a normal density of width
:math:`\sigma`. They are smooth on this scale, whatever kinks g has. Predictions for many rows, or
by mixtures of many components, therefore need few quadratures: those of a table, from which the
others are interpolated by cubic splines in the mean, whose coefficients are polynomials in the
logarithm of the standard deviation.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.interpolate import CubicSpline

from skbayes_sym.base.rows import Array

Moments = Callable[[Array, Array], tuple[Array, Array]]

_SPACING = 0.25  # of the means, in units of the smallest standard deviation
_LOG_ERROR = 11.0  # of polynomials in the logarithm of the standard deviation, nearly 1e-5
_REACH = 6.0  # ends of the table in standard deviations of the components' parameters
_POLE_DISTANCE = 12.5  # of means from a pole, in standard deviations; quadrature ends at 12
_MAX_RELATIVE_SIZE = 0.25  # of a table, relative to the number of components
_BLOCK_SIZE = 4096  # components that are interpolated at once


class _Axis(NamedTuple):
    """Range of a parameter for every target, (T,) each."""

    low: Array
    high: Array


def interpolate_moments(
    moments: Moments, loc: Array, scale: Array, poles: Sequence[Array] = ()
) -> tuple[Array, Array] | None:
    r"""Interpolate the moments of the components of a mixture.

    Parameters
    ----------
    moments : callable
        Maps means and standard deviations of Z, (M, T) each, to means and variances of ``g(Z)``.
    loc, scale : ndarray of shape (S, N, T)
        Means and standard deviations of Z for S components of N rows.
    poles : sequence of ndarray of shape (T,)
        Values of Z at which g is infinite. Components near them aren't interpolated.

    Returns
    -------
    mean, variance : ndarray of shape (S, N, T)
        Moments of the components. None if the components are too few or too different for a table
        to be cheaper, or if a moment in the table isn't finite.

    Notes
    -----
    The error of cubic splines is :math:`1.4 \cdot 10^{-3} h^4` times the fourth derivative. At a
    kink of g, this is :math:`1.4 \cdot 10^{-5} \sigma` times the change in slope for the spacing
    :math:`h = 0.4 \sigma`. Functions of :math:`e^{s}` are bounded in a strip of width
    :math:`\pi / 4` around the real axis of s, so that polynomials through n Chebyshev nodes in a
    range of length L have an error of about :math:`e^{-n \operatorname{arsinh}(\pi / 2 L)}`.
    """
    n_targets = loc.shape[-1]
    if not (np.isfinite(loc).all() and (scale > 0.0).all() and np.isfinite(scale).all()):
        return None
    means = loc.reshape(-1, n_targets)
    log_scales = np.log(scale).reshape(-1, n_targets)
    mean_axis = _central_range(means)
    log_axis = _central_range(log_scales)
    for pole in poles:
        mean_axis = _avoid_pole(mean_axis, pole, np.exp(log_axis.high))
    steps = (mean_axis.high - mean_axis.low) / (_SPACING * np.exp(log_axis.low))
    length = float((log_axis.high - log_axis.low).max(initial=0.0))
    n_scales = max(1, ceil(_LOG_ERROR / np.arcsinh(0.5 * np.pi / max(length, 1e-12))))
    if not steps.max(initial=0.0) * n_scales < _MAX_RELATIVE_SIZE * len(means):
        return None
    n_means = max(4, ceil(steps.max(initial=0.0)) + 1)

    # The table: nodes (n_means, n_scales, T), and moments (n_means, n_scales, 2, T) there.
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
    table = np.stack(moments(table_loc, table_scale), axis=1)
    if not np.isfinite(table).all():
        return None
    table = table.reshape(n_means, n_scales, 2, n_targets)

    vandermonde = np.polynomial.chebyshev.chebvander(nodes, n_scales - 1)
    coefficients = np.einsum("ds,ksqt->kqdt", np.linalg.inv(vandermonde), table)
    values = np.empty((len(means), 2, n_targets))
    for target in range(n_targets):
        spline = CubicSpline(mean_nodes[:, target], coefficients[..., target])
        for start in range(0, len(means), _BLOCK_SIZE):
            rows = slice(start, start + _BLOCK_SIZE)
            position = (log_scales[rows, target] - centre[target]) / half[target]
            basis = np.polynomial.chebyshev.chebvander(position, n_scales - 1)
            local = spline(means[rows, target])
            values[rows, :, target] = np.einsum("mqd,md->mq", local, basis)

    is_outside = _outside(means, mean_axis) | _outside(log_scales, log_axis)
    index = np.flatnonzero(is_outside.any(axis=1))
    if len(index):
        outside = moments(means[index], scale.reshape(-1, n_targets)[index])
        values[index] = np.stack(outside, axis=1)
    mean, variance = np.moveaxis(values.reshape(*loc.shape[:2], 2, n_targets), 2, 0)
    return mean, np.maximum(variance, 0.0)


def _central_range(values: Array) -> _Axis:
    """Return the range of each column of values (M, T) without far outliers."""
    mean = values.mean(axis=0)
    reach = _REACH * values.std(axis=0)
    return _Axis(
        np.maximum(values.min(axis=0), mean - reach), np.minimum(values.max(axis=0), mean + reach)
    )


def _avoid_pole(axis: _Axis, pole: Array, scale: Array) -> _Axis:
    """Leave out means at which normals of a standard deviation (T,) reach a pole (T,)."""
    is_above = pole > 0.5 * (axis.low + axis.high)
    high = np.where(is_above, np.minimum(axis.high, pole - _POLE_DISTANCE * scale), axis.high)
    low = np.where(is_above, axis.low, np.maximum(axis.low, pole + _POLE_DISTANCE * scale))
    return _Axis(np.minimum(low, high), high)


def _outside(values: Array, axis: _Axis) -> npt.NDArray[np.bool_]:
    return np.asarray((values < axis.low) | (values > axis.high))
