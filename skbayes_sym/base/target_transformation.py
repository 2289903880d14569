r"""Inverse and derivative of the transformations that a `TransformedTargetRegressor` applies.

A model of :math:`z = f(y)` with the distribution function :math:`F` predicts
:math:`y = g(z)`, where :math:`g` is the transformer's ``inverse_transform``: the distribution of
:math:`y` follows from :math:`g` alone. On a branch where :math:`g` rises,

.. math:: P(y \le t) = F(\sup \{z : g(z) \le t\}), \quad p(y) = p(z) \, |dz / dy| .

`elementary_transformations` has both in closed form for scikit-learn's transformers and for NumPy's
and SciPy's functions. The inverse of any other monotone function is taken from the transformer and
verified, or else found by bisection, and its derivative is numerical.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log, pi
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from skbayes_sym.base.closed_forms import ClosedForm, ExponentialForm, SquareForm, TabulatedForm
from skbayes_sym.base.rows import Array

Function = Callable[[Array], Array]

# Cells of a QuantileTransformer's table, of levels and of normal scores, and points in each over
# which normal scores are averaged. Moments are within 0.01 standard deviations for predictions that
# are wider than 0.1 scores or 0.03 levels.
_MIN_CELLS = 125
_MAX_CELLS = 250
_N_SCORE_CELLS = 500
_CELL_POINTS = 8
_MIN_POLE_EXPONENT = 0.01  # poles of smaller exponents are out of reach, at 1 / exponent
_QUANTILE_BOUND = 1e-7  # probability from where a normal QuantileTransformer returns its ends


@dataclass(frozen=True, eq=False)
class Branch:
    """An interval of z on which y is monotone.

    Parameters
    ----------
    inward : callable
        The largest z with ``g(z) <= y`` if y rises with z, and the smallest if y falls. It is
        infinite if there is no such z or no bound.
    log_slope : callable
        ``log |dz / dy|`` at y; -inf where the branch doesn't reach y.
    low, high : float
        Ends of the interval.
    falls : bool
        Whether y falls as z rises.
    density_point : callable, optional
        z at which the inner density of y is evaluated, if it differs from ``inward``. At the ends
        of a bounded range ``inward`` is infinite, but the density has a limit from inside.
    """

    inward: Function
    log_slope: Function
    low: float = -np.inf
    high: float = np.inf
    falls: bool = False
    density_point: Function | None = None


@dataclass(frozen=True, eq=False)
class TargetTransformation:
    """Map from the inner model's targets to the user's, column by column.

    Parameters
    ----------
    outward : callable
        Maps z to y, arrays (..., n_targets). If z lies outside the domain of the inverse, y is the
        limit at the domain's end, which may be infinite.
    branches : tuple of Branch
        Monotone branches, from the lowest z to the highest.
    kinks : tuple of array-like
        Values of z, (n_targets,), at which y isn't smooth.
    smooth_kinks : tuple of array-like
        Those kinks at which the first two derivatives of y are continuous.
    singular_points : tuple of array-like, optional
        The other kinks except poles, if y is known to be analytic between the kinks. Moments then
        need only a few quadrature nodes.
    poles : tuple of ndarray of shape (n_targets,)
        Values of z, seen from 0, at and beyond which y is infinite with the sign of z.
    pole_order : float, default=1.0
        Largest p for which y is of the order ``|z - pole| ** -p`` next to a pole.
    is_even : bool, default=False
        Whether y is a rising function of the absolute value of z.
    affine : (Array, Array), optional
        Location and slope, (n_targets,), of an affine function of z.
    closed_form : ClosedForm, optional
        Moments and scores of the transformation of normals.
    table : TabulatedForm, optional
        The transformation as a table, and its moments.
    """

    outward: Function
    branches: tuple[Branch, ...]
    kinks: tuple[Any, ...] = ()
    smooth_kinks: tuple[Any, ...] = ()
    singular_points: tuple[Any, ...] | None = None
    poles: tuple[Array, ...] = ()
    pole_order: float = 1.0
    is_even: bool = False
    affine: tuple[Array, Array] | None = None
    closed_form: ClosedForm | None = None
    table: TabulatedForm | None = None

    @property
    def falls(self) -> bool:
        """Whether the first branch falls."""
        return self.branches[0].falls

    @property
    def is_monotone(self) -> bool:
        """Whether there is a single branch."""
        return len(self.branches) == 1


def elementary_transformations(transformer: Any, n_targets: int) -> list[TargetTransformation]:
    """Split a fitted transformer into elementary transformations.

    Parameters
    ----------
    transformer : fitted transformer
        Transformer of a `TransformedTargetRegressor`.
    n_targets : int
        Number of targets.

    Returns
    -------
    list of TargetTransformation
        In the order in which the transformer applies their inverses to y.

    Raises
    ------
    TypeError
        If an inverse has no closed form here and isn't monotone, or mixes the targets.
    """
    if isinstance(transformer, Pipeline):
        steps = [step for _, step in transformer.steps]
        return [
            elementary
            for step in steps
            if step is not None and step != "passthrough"
            for elementary in elementary_transformations(step, n_targets)
        ]
    kind = type(transformer)
    if kind is FunctionTransformer:
        inverse = transformer.inverse_func
        if inverse is None:
            return []
        if isinstance(inverse, np.ufunc):
            known = _FUNCTIONS.get(inverse)
        else:
            known = None
        if known is not None and not transformer.inv_kw_args:
            return [known()]
    elif kind in {StandardScaler, RobustScaler, MaxAbsScaler, MinMaxScaler}:
        return [_affine(*_scaler_units(transformer, n_targets))]
    elif kind is PowerTransformer:
        lambdas = np.asarray(transformer.lambdas_, dtype=float)
        is_positive = transformer.method == "box-cox"
        if is_positive:
            power = _box_cox(lambdas)
        else:
            power = _yeo_johnson(lambdas)
        if not transformer.standardize:
            return [power]
        scaler = transformer._scaler  # noqa: SLF001 (scikit-learn has no public name)
        return [power, _affine(*_scaler_units(scaler, n_targets))]
    elif kind is QuantileTransformer:
        return [_quantile_transformation(transformer)]
    return [_numerical(transformer, n_targets)]


def _scaler_units(scaler: Any, n_targets: int) -> tuple[Array, Array]:
    """Return location and scale (n_targets,) with ``y = location + scale * z``."""
    zero = np.zeros(n_targets)
    scale = zero + 1.0
    if isinstance(scaler, MinMaxScaler):
        scale = 1.0 / np.asarray(scaler.scale_, dtype=float)
        return -np.asarray(scaler.min_, dtype=float) * scale, scale
    if getattr(scaler, "scale_", None) is not None:
        scale = np.asarray(scaler.scale_, dtype=float)
    location = zero
    if isinstance(scaler, StandardScaler) and scaler.with_mean:
        location = np.asarray(scaler.mean_, dtype=float)
    if isinstance(scaler, RobustScaler) and scaler.center_ is not None:
        location = np.asarray(scaler.center_, dtype=float)
    return location, scale


def _affine(location: Array, scale: Array) -> TargetTransformation:
    log_slope = -np.log(np.abs(scale))
    branch = Branch(lambda y: (y - location) / scale, lambda y: log_slope + 0.0 * y)
    return TargetTransformation(
        lambda z: location + scale * z, (branch,), singular_points=(), affine=(location, scale)
    )


def _within(y: Array, low: float, high: float, function: Function) -> Array:
    """``function(y)`` where y lies strictly between the ends, -inf elsewhere.

    Parameters
    ----------
    y : ndarray
        Values of the target.
    low, high : float
        Ends of the interval.
    function : callable
        Function that is defined between the ends.
    """
    inside = (y > low) & (y < high)
    # The function isn't defined elsewhere: evaluate it at any value between the ends instead.
    placeholder = 1.0
    if np.isfinite(low) and np.isfinite(high):
        placeholder = 0.5 * (low + high)
    elif np.isfinite(low):
        placeholder = low + 1.0
    with np.errstate(all="ignore"):
        return np.where(inside, function(np.where(inside, y, placeholder)), -np.inf)


def _rising(
    outward: Function, inward: Function, log_slope: Function,
    image: tuple[float, float] = (-np.inf, np.inf),
    domain: tuple[float, float] = (-np.inf, np.inf), steep: tuple[float, ...] = (),
    closed_form: ClosedForm | None = None,
) -> Callable[[], TargetTransformation]:  # fmt: skip
    """Return a constructor of the transformation by a rising function.

    Parameters
    ----------
    outward, inward : callable
        The function from z to y, and its inverse.
    log_slope : callable
        Logarithm of the inverse's derivative.
    image : (float, float)
        Infimum and supremum of y. The infimum is attained if the domain has a finite left end.
    domain : (float, float)
        Ends of the interval of z on which the function is defined.
    steep : tuple of float
        Values of z at which the function's derivative is infinite or 0.
    closed_form : ClosedForm, optional
        Moments and scores of the transformation of normals.

    Returns
    -------
    callable
    """
    lowest, highest = image
    domain_low, domain_high = domain

    def invert(y: Array) -> Array:
        with np.errstate(all="ignore"):
            z = _within(y, lowest, highest, inward)
        z = np.where(y >= highest, np.inf, z)
        # Mass beyond the left end of the domain lies at the infimum.
        return np.where((y == lowest) & np.isfinite(domain_low), domain_low, z)

    def value(z: Array) -> Array:
        with np.errstate(all="ignore"):
            return outward(np.clip(z, domain_low, domain_high))

    branch = Branch(invert, lambda y: _within(y, lowest, highest, log_slope))
    kinks = (*(end for end in domain if np.isfinite(end)), *steep)
    return lambda: TargetTransformation(
        value, (branch,), kinks, singular_points=kinks, closed_form=closed_form
    )


def _even(
    outward: Function, inward: Function, log_slope: Function, *,
    singular_points: tuple[float, ...] = (), closed_form: ClosedForm | None = None,
) -> TargetTransformation:  # fmt: skip
    """Return the transformation by an even function that rises with |z| from 0.

    Parameters
    ----------
    outward, inward : callable
        The function from z to y, and its inverse on z >= 0.
    log_slope : callable
        Logarithm of the inverse's derivative.
    singular_points : tuple of float
        Values of z at which the function isn't analytic.
    closed_form : ClosedForm, optional
        Moments and scores of the transformation of normals.
    """
    falling = Branch(
        lambda y: np.where(y < 0.0, 0.0, -inward(np.maximum(y, 0.0))),
        lambda y: _within(y, 0.0, np.inf, log_slope), high=0.0, falls=True,
    )  # fmt: skip
    rising = Branch(
        lambda y: np.where(y < 0.0, 0.0, inward(np.maximum(y, 0.0))),
        lambda y: _within(y, 0.0, np.inf, log_slope), low=0.0,
    )  # fmt: skip
    return TargetTransformation(
        outward, (falling, rising), singular_points, singular_points=singular_points,
        is_even=True, closed_form=closed_form,
    )  # fmt: skip


def _reciprocal() -> TargetTransformation:
    def log_slope(y: Array) -> Array:
        return -2.0 * np.log(np.abs(y))

    def outward(z: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.reciprocal(z)

    def below(y: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.where(y < 0.0, 1.0 / np.where(y < 0.0, y, -1.0), -np.inf)

    def above(y: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.where(y > 0.0, 1.0 / np.where(y > 0.0, y, 1.0), np.inf)

    negative = Branch(below, lambda y: _within(y, -np.inf, 0.0, log_slope), high=0.0, falls=True)
    positive = Branch(above, lambda y: _within(y, 0.0, np.inf, log_slope), low=0.0, falls=True)
    return TargetTransformation(outward, (negative, positive), (0.0,))


def exponential_transformations(location: float, scale: float) -> list[TargetTransformation]:
    """Return the transformations of z whose composition is ``location + scale * exp(z)``."""
    return [_FUNCTIONS[np.exp](), _affine(np.array([location]), np.array([scale]))]


def _negative() -> TargetTransformation:
    branch = Branch(np.negative, np.zeros_like, falls=True)
    return TargetTransformation(
        np.negative, (branch,), singular_points=(), affine=(np.zeros(1), -np.ones(1))
    )


def _log_cosh(y: Array) -> Array:
    return np.logaddexp(y, -y) - log(2.0)


_LINE = (-np.inf, np.inf)
_HALF = (0.0, np.inf)
_UNIT = (0.0, 1.0)

# Closed forms by the function that maps z to y.
_FUNCTIONS: dict[Any, Callable[[], TargetTransformation]] = {
    np.positive: lambda: _affine(np.zeros(1), np.ones(1)),
    np.negative: _negative,
    np.reciprocal: _reciprocal,
    np.square: lambda: _even(
        np.square, np.sqrt, lambda y: -0.5 * np.log(y) - log(2.0),
        closed_form=SquareForm(),
    ),
    np.absolute: lambda: _even(
        np.absolute, lambda y: y, np.zeros_like, singular_points=(0.0,)
    ),
    np.fabs: lambda: _even(np.fabs, lambda y: y, np.zeros_like, singular_points=(0.0,)),
    np.sqrt: _rising(np.sqrt, np.square, lambda y: np.log(2.0 * y), _HALF, _HALF),
    np.cbrt: _rising(
        np.cbrt, lambda y: y**3, lambda y: log(3.0) + 2.0 * np.log(np.abs(y)), steep=(0.0,)
    ),
    np.exp: _rising(
        np.exp, np.log, lambda y: -np.log(y), _HALF,
        closed_form=ExponentialForm(),
    ),
    np.exp2: _rising(
        np.exp2, np.log2, lambda y: -np.log(y) - log(log(2.0)), _HALF,
        closed_form=ExponentialForm(log(2.0)),
    ),
    np.expm1: _rising(
        np.expm1, np.log1p, lambda y: -np.log1p(y), (-1.0, np.inf),
        closed_form=ExponentialForm(1.0, -1.0),
    ),
    special.exp10: _rising(
        special.exp10, np.log10, lambda y: -np.log(y) - log(log(10.0)), _HALF,
        closed_form=ExponentialForm(log(10.0)),
    ),
    special.exp2: _rising(
        special.exp2, np.log2, lambda y: -np.log(y) - log(log(2.0)), _HALF,
        closed_form=ExponentialForm(log(2.0)),
    ),
    special.expm1: _rising(
        special.expm1, np.log1p, lambda y: -np.log1p(y), (-1.0, np.inf),
        closed_form=ExponentialForm(1.0, -1.0),
    ),
    np.log: _rising(np.log, np.exp, lambda y: y, _LINE, _HALF),
    np.log2: _rising(np.log2, np.exp2, lambda y: y * log(2.0) + log(log(2.0)), _LINE, _HALF),
    np.log10: _rising(
        np.log10, special.exp10, lambda y: y * log(10.0) + log(log(10.0)), _LINE, _HALF
    ),
    np.log1p: _rising(np.log1p, np.expm1, lambda y: y, _LINE, (-1.0, np.inf)),
    special.log1p: _rising(np.log1p, np.expm1, lambda y: y, _LINE, (-1.0, np.inf)),
    np.sinh: _rising(
        np.sinh, np.arcsinh, lambda y: -np.log(np.hypot(1.0, y))
    ),
    np.arcsinh: _rising(np.arcsinh, np.sinh, _log_cosh),
    np.tanh: _rising(np.tanh, np.arctanh, lambda y: -np.log1p(-y * y), (-1.0, 1.0)),
    np.arctanh: _rising(np.arctanh, np.tanh, lambda y: -2.0 * _log_cosh(y), _LINE, (-1.0, 1.0)),
    np.arctan: _rising(
        np.arctan, np.tan, lambda y: -2.0 * np.log(np.cos(y)), (-0.5 * pi, 0.5 * pi)
    ),
    special.expit: _rising(
        special.expit, special.logit, lambda y: -np.log(y) - np.log1p(-y), _UNIT
    ),
    special.logit: _rising(
        special.logit, special.expit, lambda y: -np.logaddexp(0.0, y) - np.logaddexp(0.0, -y),
        _LINE, _UNIT,
    ),
    special.ndtr: _rising(
        special.ndtr, special.ndtri,
        lambda y: 0.5 * special.ndtri(y) ** 2 + 0.5 * log(2.0 * pi), _UNIT,
    ),
    special.ndtri: _rising(
        special.ndtri, special.ndtr, lambda y: -0.5 * y * y - 0.5 * log(2.0 * pi), _LINE, _UNIT
    ),
}  # fmt: skip


def _power(log_value: Array, exponent: Array) -> Array:
    """``(exp(log_value * exponent) - 1) / exponent``, and its limit at 0."""
    is_zero = np.abs(exponent) < np.spacing(1.0)
    safe = np.where(is_zero, 1.0, exponent)
    with np.errstate(all="ignore"):
        return np.where(is_zero, log_value, np.expm1(log_value * safe) / safe)


def _log_inverse_power(z: Array, exponent: Array) -> Array:
    """Inverse of `_power`; infinite beyond its range."""
    is_zero = np.abs(exponent) < np.spacing(1.0)
    safe = np.where(is_zero, 1.0, exponent)
    base = z * safe
    with np.errstate(all="ignore"):
        value = np.log1p(np.maximum(base, -1.0)) / safe
    return np.where(is_zero, z, value)


def _pole_order(exponents: Array) -> float:
    """Return the largest order of the poles of inverse power transformations."""
    orders = -1.0 / exponents[exponents < -_MIN_POLE_EXPONENT]
    return float(orders.max(initial=1.0))


def _box_cox(lambdas: Array) -> TargetTransformation:
    def outward(z: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.exp(_log_inverse_power(z, lambdas))

    def inward(y: Array) -> Array:
        with np.errstate(divide="ignore"):
            z = _power(np.log(np.maximum(y, 0.0)), lambdas)
        return np.where(y < 0.0, -np.inf, z)

    def log_slope(y: Array) -> Array:
        return _within(y, 0.0, np.inf, lambda y: (lambdas - 1.0) * np.log(y))

    edge = np.where(lambdas == 0.0, np.inf, -1.0 / np.where(lambdas == 0.0, 1.0, lambdas))
    pole = np.where(lambdas < 0.0, edge, np.inf)
    return TargetTransformation(
        outward, (Branch(inward, log_slope),), (edge,),
        singular_points=(np.where(lambdas < 0.0, np.inf, edge),), poles=(pole,),
        pole_order=_pole_order(lambdas),
    )  # fmt: skip


def _yeo_johnson(lambdas: Array) -> TargetTransformation:
    mirrored = 2.0 - lambdas
    # With such a small exponent, the function equals its limit at 0 in all digits.
    rate = np.where(np.abs(lambdas) < np.spacing(1.0), 1e-150, lambdas)
    mirrored_rate = np.where(np.abs(mirrored) < np.spacing(1.0), 1e-150, mirrored)

    def outward(z: Array) -> Array:
        # Both branches are one function of |z|, with another exponent.
        exponent = np.where(z >= 0.0, rate, mirrored_rate)
        value = np.abs(z)
        value *= exponent
        np.maximum(value, -1.0, out=value)
        # PyTorch's logarithms and exponential functions take half the time of NumPy's.
        power = torch.from_numpy(value).log1p_().div_(torch.from_numpy(exponent)).expm1_()
        return np.copysign(power.numpy(), z)

    def inward(y: Array) -> Array:
        above = _power(np.log1p(np.maximum(y, 0.0)), lambdas)
        below = -_power(np.log1p(np.maximum(-y, 0.0)), mirrored)
        return np.where(y >= 0.0, above, below)

    def log_slope(y: Array) -> Array:
        return np.where(y >= 0.0, lambdas - 1.0, 1.0 - lambdas) * np.log1p(np.abs(y))

    top = np.where(lambdas < 0.0, -1.0 / np.where(lambdas < 0.0, lambdas, -1.0), np.inf)
    bottom = np.where(mirrored < 0.0, 1.0 / np.where(mirrored < 0.0, mirrored, -1.0), -np.inf)
    return TargetTransformation(
        outward,
        (Branch(inward, log_slope),),
        (bottom, 0.0, top),
        smooth_kinks=(0.0,),
        singular_points=(),
        poles=(bottom, top),
        pole_order=_pole_order(np.minimum(lambdas, mirrored)),
    )


def _quantile_transformation(transformer: QuantileTransformer) -> TargetTransformation:
    """Piecewise linear distribution function of the training targets, of every column."""
    levels = np.asarray(transformer.references_, dtype=float)
    quantiles = np.asarray(transformer.quantiles_, dtype=float)
    is_normal = transformer.output_distribution == "normal"
    inverse = _QuantileInverse(levels, quantiles, is_normal)
    kinks = levels[:: max(1, len(levels) // 100)]
    kinks = np.unique(np.append(kinks, levels[-1]))
    if is_normal:
        kinks = special.ndtri(kinks.clip(_QUANTILE_BOUND, 1.0 - _QUANTILE_BOUND))
    branch = Branch(inverse.inward, inverse.log_slope, density_point=inverse.density_point)
    return TargetTransformation(
        inverse.outward,
        (branch,),
        tuple(kinks.tolist()),
        table=_quantile_table(levels, quantiles, is_normal=is_normal),
    )


class _QuantileInverse(NamedTuple):
    """Inverse of a `QuantileTransformer`, column by column.

    Parameters
    ----------
    levels : ndarray of shape (n,)
        Levels of the quantiles.
    quantiles : ndarray of shape (n, n_targets)
        Quantiles of the training targets.
    is_normal : bool
        Whether z is the normal quantile of the level, and not the level.
    """

    levels: Array
    quantiles: Array
    is_normal: bool

    def _by_column(self, values: Array, function: Callable[[Array, Array], Array]) -> Array:
        """Evaluate a function of values and quantiles for every column."""
        n_targets = self.quantiles.shape[1]
        answers = [function(values[..., k], self.quantiles[:, k]) for k in range(n_targets)]
        return np.stack(answers, axis=-1)

    def outward(self, z: Array) -> Array:
        """Return y of z."""
        u = special.ndtr(z) if self.is_normal else z
        if self.is_normal:
            u = np.where(u < _QUANTILE_BOUND, 0.0, np.where(1.0 - u < _QUANTILE_BOUND, 1.0, u))
        return self._by_column(u, lambda u, knots: np.interp(u, self.levels, knots))

    def density_point(self, y: Array) -> Array:
        """Return z of y, by the last segment that begins at or below y."""

        def level(y: Array, knots: Array) -> Array:
            index = (np.searchsorted(knots, y, side="right") - 1).clip(0, len(knots) - 2)
            width = knots[index + 1] - knots[index]
            rise = self.levels[index + 1] - self.levels[index]
            part = (y - knots[index]) / np.where(width > 0.0, width, 1.0)
            return self.levels[index] + part.clip(0.0, 1.0) * rise

        u = self._by_column(y, level)
        if self.is_normal:
            u = special.ndtri(u.clip(_QUANTILE_BOUND, 1.0 - _QUANTILE_BOUND))
        return u

    def inward(self, y: Array) -> Array:
        """Return z of y, infinite at and beyond the ends."""
        u = self.density_point(y)
        below = self._by_column(y, lambda y, knots: y < knots[0])
        beyond = self._by_column(y, lambda y, knots: y >= knots[-1])
        return np.where(below, -np.inf, np.where(beyond, np.inf, u))

    def log_slope(self, y: Array) -> Array:
        """Return ``log dz / dy`` at y, -inf outside the training targets."""

        def column_log_slope(y: Array, knots: Array) -> Array:
            index = np.searchsorted(knots, y, side="right") - 1
            # At the highest value, the slope to its left: the last segment that has a width.
            last = max(int(np.searchsorted(knots, knots[-1], side="left")) - 1, 0)
            index = index.clip(0, last)
            width = knots[index + 1] - knots[index]
            rise = self.levels[index + 1] - self.levels[index]
            inside = (y >= knots[0]) & (y <= knots[-1]) & (width > 0.0)
            slope = np.log(rise) - np.log(np.where(width > 0.0, width, 1.0))
            return np.where(inside, slope, -np.inf)

        slope = self._by_column(y, column_log_slope)
        if not self.is_normal:
            return slope
        z = self.density_point(y)
        return slope + 0.5 * z * z + 0.5 * log(2.0 * pi)


def _quantile_table(levels: Array, quantiles: Array, *, is_normal: bool) -> TabulatedForm:
    """Return averages of a `QuantileTransformer`'s inverse over cells of several quantiles.

    Parameters
    ----------
    levels : ndarray of shape (n_quantiles,)
        Levels, increasing from 0 to 1.
    quantiles : ndarray of shape (n_quantiles, n_targets)
        Quantiles of the training targets.
    is_normal : bool
        Whether z is the normal score of the level and not the level itself.
    """
    if is_normal:
        return _normal_quantile_table(_QuantileInverse(levels, quantiles, is_normal))
    # A prediction isn't uniform within wide cells, which are divided: between two quantiles the
    # function is a straight line.
    n_parts = -(-_MIN_CELLS // (len(levels) - 1))
    if n_parts > 1:
        fine = np.linspace(0.0, 1.0, n_parts * (len(levels) - 1) + 1)
        quantiles = np.stack([np.interp(fine, levels, column) for column in quantiles.T], axis=1)
        levels = fine
    rise = np.diff(levels)[:, None]
    low = quantiles[:-1]
    high = quantiles[1:]
    starts = np.arange(0, len(levels) - 1, max(1, len(levels) // _MAX_CELLS))
    total_rise = np.add.reduceat(rise, starts)
    mean = np.add.reduceat(rise * (low + high) / 2.0, starts) / total_rise
    square = (np.square(low) + low * high + np.square(high)) / 3.0
    mean_square = np.add.reduceat(rise * square, starts) / total_rise
    knots = np.append(starts, len(levels) - 1)
    return TabulatedForm(levels[knots], quantiles[knots], mean, mean_square)


def _normal_quantile_table(inverse: _QuantileInverse) -> TabulatedForm:
    """Return averages over cells of equal width in the normal scores.

    A prediction is narrow in the scores, and about uniform within a cell. Cells between the
    quantiles would be far too wide in the tails.
    """
    end = special.ndtri(1.0 - _QUANTILE_BOUND)
    edges = np.linspace(-end, end, _N_SCORE_CELLS + 1)
    offsets = (np.arange(_CELL_POINTS) + 0.5) / _CELL_POINTS
    points = edges[:-1, None] + np.diff(edges)[:, None] * offsets
    n_targets = inverse.quantiles.shape[1]

    def evaluate(scores: Array) -> Array:
        return inverse.outward(np.repeat(scores[..., None], n_targets, axis=-1))

    values = evaluate(points)
    return TabulatedForm(
        edges, evaluate(edges), values.mean(axis=1), np.square(values).mean(axis=1)
    )


_REACH = 690.0  # asinh of the largest z that is searched
_BISECTIONS = 64
# Step sizes of numerical slopes, relative or absolute. The extrapolated difference is exact to
# 1e-11 for smooth functions at 2**-9; larger and smaller steps serve curved and steep functions.
_STEPS = 2.0 ** -np.array([3.0, 6.0, 9.0, 12.0, 16.0, 21.0])
_MAX_SLOPE_ERROR = 0.01  # relative error of a numerical slope without a warning


def _numerical(transformer: Any, n_targets: int) -> TargetTransformation:
    """Return the transformation of any transformer with a monotone inverse.

    Parameters
    ----------
    transformer : fitted transformer
        With ``inverse_transform``, and with ``transform`` for a faster inversion.
    n_targets : int
        Number of targets.

    Raises
    ------
    TypeError
        If the inverse isn't monotone on a fixed grid of z (so that this doesn't depend on the
        rows), isn't defined on an interval, or mixes the targets.
    """
    name = type(transformer).__name__
    inverse = _NumericalInverse(transformer, n_targets)
    coarse = np.sinh(np.linspace(-14.0, 14.0, 1401))
    grid = np.unique(np.concatenate([coarse, np.linspace(-50.0, 50.0, 2001)]))
    on_grid = inverse.raw(np.repeat(grid[:, None], n_targets, axis=1))
    defined: Any = ~np.isnan(on_grid).any(axis=1)
    defined_index = np.flatnonzero(defined)
    if not len(defined_index) or not defined[defined_index[0] : defined_index[-1] + 1].all():
        raise TypeError(f"{name}: the inverse of the target's transformation isn't defined.")
    middle = grid[defined_index[len(defined_index) // 2]]
    _require_separate_columns(inverse.raw, n_targets, middle, name)
    inverse = replace(
        inverse,
        low=_domain_end(inverse.raw, n_targets, grid, defined_index[0], -1),
        high=_domain_end(inverse.raw, n_targets, grid, defined_index[-1], 1),
        falls=_falls(on_grid[defined_index], name),
    )
    kinks = tuple(end for end in (inverse.low, inverse.high) if np.isfinite(end))
    branch = Branch(inverse.inward, inverse.log_slope, falls=inverse.falls)
    return TargetTransformation(inverse.outward, (branch,), kinks)


def _falls(values: Array, name: str) -> bool:
    """Whether y falls as z rises; a TypeError if it neither rises nor falls everywhere.

    ``values`` (n, n_targets) are those of y at increasing z.
    """
    with np.errstate(invalid="ignore"):  # equal infinities
        steps = np.nan_to_num(np.diff(values, axis=0), posinf=np.inf, neginf=-np.inf)
    rounding = 1e-10 * np.where(np.isfinite(values), np.abs(values), 0.0)[1:]
    rises = bool(np.all(steps >= -rounding))
    falls = bool(np.all(steps <= rounding))
    if rises == falls:
        if rises:
            problem = "is constant"
        else:
            problem = "neither rises nor falls everywhere"
        raise TypeError(
            f"the inverse of the target's transformation, {name}, {problem}: the predictive "
            "distribution of the target isn't known. NumPy's functions, such as "
            "inverse_func=np.square in index of lambda z: z**2, have a closed form."
        )
    return falls


@dataclass(frozen=True, eq=False)
class _NumericalInverse:
    """Numerical inverse of a monotone ``inverse_transform``.

    Parameters
    ----------
    transformer : fitted transformer
        With ``inverse_transform``, and with ``transform`` for a faster inversion.
    n_targets : int
        Number of targets.
    low, high : float
        Interval of z on which the inverse is defined.
    falls : bool
        Whether y falls as z rises.
    """

    transformer: Any
    n_targets: int
    low: float = -np.inf
    high: float = np.inf
    falls: bool = False

    def raw(self, z: Array) -> Array:
        """Return y of z by the transformer, nan where it isn't defined."""
        rows = np.ascontiguousarray(z, dtype=float).reshape(-1, self.n_targets)
        with np.errstate(all="ignore"):
            y = np.asarray(self.transformer.inverse_transform(rows), dtype=float)
        return y.reshape(z.shape)

    def outward(self, z: Array) -> Array:
        """Return y of z, which is clipped to the interval."""
        return self.raw(np.clip(z, self.low, self.high))

    def _transform(self, y: Array) -> Array:
        """Return the transformer's own z of y, or nan if it has none."""
        rows = np.ascontiguousarray(y, dtype=float).reshape(-1, self.n_targets)
        try:
            with np.errstate(all="ignore"):
                z = np.asarray(self.transformer.transform(rows), dtype=float)
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            return np.full(y.shape, np.nan)
        return z.reshape(y.shape)

    def inward(self, y: Array) -> Array:
        """Return the transformer's own z if its inverse is y, and otherwise bisect."""
        z = self._transform(y)
        is_finite = np.isfinite(z)
        inverse = self.outward(np.where(is_finite, z, np.clip(1.0, self.low, self.high)))
        is_inverse = is_finite & (np.abs(inverse - y) <= 4.0 * np.finfo(float).eps * np.abs(y))
        is_inverse &= (y != 0.0) & (z > self.low) & (z < self.high)
        if is_inverse.all():
            return z
        return np.where(is_inverse, z, self._bisect(y))

    def _bisect(self, y: Array) -> Array:
        """Bisect asinh(z), which resolves z to rounding at any magnitude."""
        lower = np.full(y.shape, np.arcsinh(max(self.low, -np.sinh(_REACH))))
        upper = np.full(y.shape, np.arcsinh(min(self.high, np.sinh(_REACH))))
        is_below_lower = self.outward(np.sinh(lower)) <= y
        is_below_upper = self.outward(np.sinh(upper)) <= y
        for _ in range(_BISECTIONS):
            middle = 0.5 * (lower + upper)
            is_below = (self.outward(np.sinh(middle)) <= y) != self.falls
            lower = np.where(is_below, middle, lower)
            upper = np.where(is_below, upper, middle)
        z = np.sinh(upper if self.falls else lower)
        if self.falls:
            return np.where(is_below_lower, -np.inf, np.where(is_below_upper, z, np.inf))
        return np.where(is_below_upper, np.inf, np.where(is_below_lower, z, -np.inf))

    def log_slope(self, y: Array) -> Array:
        """Return ``log |dz / dy|`` at y, -inf where no z reaches it; warns if it isn't smooth."""
        z = self.inward(y)
        reached = np.isfinite(z)
        z = np.where(reached, z, np.clip(1.0, self.low, self.high))
        slope, error = _numerical_slope(self.outward, z)
        distance = np.abs(self.outward(z) - y)
        reached &= distance <= 1e-6 * np.abs(y) + 1e-6 * np.abs(slope) * (np.abs(z) + 1e-300)
        reached &= np.isfinite(slope) & (slope != 0.0)
        uncertain = np.asarray(reached & (error > _MAX_SLOPE_ERROR * np.abs(slope)))
        if uncertain.any():
            worst = float(np.max(error[uncertain] / np.abs(slope[uncertain])))
            warnings.warn(
                f"the numerical slope of {type(self.transformer).__name__}'s inverse is off by up "
                f"to {100 * worst:.0f} % in {uncertain.sum()} "
                "targets, and log densities by as much: the inverse isn't smooth there.",
                UserWarning,
                stacklevel=5,
            )
        return np.where(reached, -np.log(np.where(reached, np.abs(slope), 1.0)), -np.inf)


def _require_separate_columns(raw: Function, n_targets: int, middle: float, name: str) -> None:
    """Raise a TypeError if a column of y depends on another column of z.

    Parameters
    ----------
    raw : callable
        Inverse of the transformation.
    n_targets : int
        Number of targets.
    middle : float
        Value of z at which the columns are compared.
    name : str
        Name of the transformer, for the error message.
    """
    if n_targets == 1:
        return
    start = np.full((1, n_targets), middle)
    before = raw(start)
    for column in range(n_targets):
        moved = start.copy()
        moved[0, column] += 0.1 + 0.1 * abs(middle)
        others = np.arange(n_targets) != column
        if not np.allclose(raw(moved)[0, others], before[0, others], rtol=1e-9, atol=0.0):
            raise TypeError(
                f"the inverse of the target's transformation, {name}, mixes the targets: their "
                "predictive distribution isn't known."
            )


def _domain_end(raw: Function, n_targets: int, grid: Array, index: int, side: int) -> float:
    """Return the last z on one side at which the inverse is defined.

    Parameters
    ----------
    raw : callable
        Inverse of the transformation.
    n_targets : int
        Number of targets.
    grid : ndarray
        Values of z.
    index : int
        Position of the last value of the grid at which the inverse is defined.
    side : {-1, 1}
        Direction.

    Returns
    -------
    float
        Infinite if the inverse is defined at the end of the grid.
    """
    beyond = index + side
    if not 0 <= beyond < len(grid):
        return side * np.inf
    inside = grid[index]
    outside = grid[beyond]
    for _ in range(_BISECTIONS):
        middle = 0.5 * (inside + outside)
        if np.isnan(raw(np.full((1, n_targets), middle))).any():
            outside = middle
        else:
            inside = middle
    return float(inside)


def _numerical_slope(function: Function, z: Array) -> tuple[Array, Array]:
    """Return the derivative by extrapolated central differences, and an estimate of its error.

    The error of a step size is estimated by the change through one Richardson extrapolation plus
    rounding errors. The step size with the smallest error is used.
    """
    best = np.full(z.shape, np.nan)
    min_error = np.full(z.shape, np.inf)
    scales = [np.abs(z) + 1e-12, np.maximum(1.0, np.abs(z))]
    for scale in scales:
        for relative in _STEPS:
            step = relative * scale
            step = (z + step) - z  # a number that the difference represents exactly
            with np.errstate(all="ignore"):
                values = [function(z + k * step) for k in (-2.0, -1.0, 1.0, 2.0)]
                narrow = (values[2] - values[1]) / (2.0 * step)
                wide = (values[3] - values[0]) / (4.0 * step)
                slope = (4.0 * narrow - wide) / 3.0
                largest = np.max(np.abs(values), axis=0)
                rounding = np.finfo(float).eps * largest / step
                error = np.abs(slope - narrow) * 0.1 + 2.0 * rounding
            better = error < min_error
            best = np.where(better, slope, best)
            min_error = np.where(better, error, min_error)
    return best, min_error
