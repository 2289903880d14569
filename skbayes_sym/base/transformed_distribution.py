"""Predictive distribution of a target that a `TransformedTargetRegressor` transforms."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from skbayes_sym.base.distributions import PredictiveDistribution
from skbayes_sym.base.quadrature import Quadrature
from skbayes_sym.base.rows import Array
from skbayes_sym.base.target_transformation import (
    Branch,
    TargetTransformation,
    elementary_transformations,
)

_FIRST_WIDTH = 1e-3  # of brackets of quantiles, relative to their centre
_MAX_JOINT_TARGETS = 6  # the density sums over branches**targets combinations


class TransformedPredictive(PredictiveDistribution):
    """Distribution of ``y = g(z)`` for a predictive distribution of z.

    Quantiles, draws, the distribution function and the density evaluate the inner distribution once
    per branch of g, with the closed forms of `target_transformation`. Mean, standard deviation and
    CRPS are integrals by quadrature. Where g has a pole, as the inverse of a Yeo-Johnson
    transformation has, the outermost 1e-6 of the probability is left out of them. If more than that
    lies beyond the pole, they are infinite.

    Parameters
    ----------
    inner : PredictiveDistribution
        Distribution of the transformed target z.
    transformation : TargetTransformation
        One elementary transformation g.
    transformer : transformer
        The scikit-learn transformer that g is a part of, for `repr`.
    is_flat : bool
        Whether `shape` has no axis of targets.
    """

    def __init__(
        self, inner: Any, transformation: TargetTransformation, transformer: Any, *, is_flat: bool
    ) -> None:
        self.inner = inner
        self._transformation = transformation
        self.transformer = transformer
        self._is_flat = is_flat

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the transformation, whose functions can't be pickled."""
        return {name: value for name, value in vars(self).items() if name != "_transformation"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the transformation from the transformer."""
        vars(self).update(state)
        n_targets = (*self.inner.shape, 1)[1]
        transformations = elementary_transformations(self.transformer, n_targets)
        if not transformations:
            transformations = [_identity(n_targets)]
        # The innermost distribution has the last transformation.
        self._transformation = transformations[-len(self._steps())]

    def __repr__(self) -> str:
        return f"<{self.transformer} of {self._steps()[-1].inner!r}>"

    def _steps(self) -> list["TransformedPredictive"]:
        """Return this and the inner distributions that belong to the same transformer."""
        steps = [self]
        inner = self.inner
        while isinstance(inner, TransformedPredictive) and inner.transformer is self.transformer:
            steps.append(inner)
            inner = inner.inner
        return steps

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_samples,)`` or ``(n_samples, n_targets)``."""
        inner = self.inner.shape
        return inner[:1] if self._is_flat else (*inner, 1)[:2]

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether the inner target is discrete."""
        return bool(self.inner.is_discrete)

    def _replace_inner(self, inner: Any) -> "TransformedPredictive":
        return TransformedPredictive(
            inner, self._transformation, self.transformer, is_flat=self._is_flat
        )

    def take_rows(self, rows: Array) -> "TransformedPredictive":
        """Return the distribution at positions of rows."""
        return self._replace_inner(self.inner.take_rows(rows))

    def evaluated(self) -> "TransformedPredictive":
        """Return the same distribution, with the inner model evaluated."""
        return self._replace_inner(self.inner.evaluated())

    def unwrap_transformations(self) -> tuple[PredictiveDistribution, list[TargetTransformation]]:
        """Return the innermost distribution and the transformations, innermost first."""
        root, transformations = self.inner.unwrap_transformations()
        return root, [*transformations, self._transformation]

    def _transform(self, values: Array) -> Array:
        """Return g of values of the inner target, (*inner shape, n)."""
        by_target = values.reshape(len(self), -1, values.shape[-1])
        transformed = self._transformation.outward(np.moveaxis(by_target, 1, -1))
        return np.moveaxis(transformed, -1, 1).reshape(*self.shape, values.shape[-1])

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw targets, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        return self._transform(self.inner.sample(n, random_state))

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw noise-free functions, shaped as `sample`."""
        return self._transform(self.inner.functions(n, random_state))

    def quantile_grid(self, levels: Array) -> Array:
        """Return the quantiles at levels (Q,), (*shape, Q)."""
        if self._transformation.is_monotone:
            if self._transformation.falls:
                inner_levels = 1.0 - levels
            else:
                inner_levels = levels
            return self._transform(self.inner.quantile_grid(inner_levels))
        if self._transformation.is_even:
            absolute = Quadrature(self).absolute_argument()
            if absolute is not None:
                upper = (0.5 + 0.5 * levels).tolist()
                quantiles = [absolute.quantile(level).numpy() for level in upper]
                outward = self._transformation.outward(np.stack(quantiles))
                return np.moveaxis(outward, 0, -1).reshape(*self.shape, len(levels))
        return self._solve_quantiles(levels)

    def _solve_quantiles(self, levels: Array) -> Array:
        """Invert the distribution function at levels (Q,), (*shape, Q)."""
        evaluated = self.evaluated()
        inner = evaluated.inner.quantile_grid(levels).reshape(len(self), -1, len(levels))
        start = np.moveaxis(inner, -1, 0)
        grid = np.broadcast_to(levels[:, None, None], start.shape)
        outward = self._transformation.outward
        cdf = evaluated.cdf_grid
        if self._transformation.is_even:
            # As a function of the absolute value, the probability is smooth at zero.
            absolute = invert_cdf_grid(
                lambda z: np.where(z < 0.0, 0.0, cdf(outward(z))), grid, np.abs(start),
                has_jumps=self.is_discrete,
            )  # fmt: skip
            values = outward(absolute)
        else:
            values = invert_cdf_grid(cdf, grid, outward(start), has_jumps=self.is_discrete)
        return np.moveaxis(values, 0, -1).reshape(*self.shape, len(levels))

    def _round_counts(self, z: Array) -> Array:
        """Round values of a discrete inner target that differ from a count by rounding errors."""
        if not self.inner.is_discrete:
            return z
        finite = np.where(np.isfinite(z), z, 0.0)
        count = np.rint(finite)
        is_close = np.abs(finite - count) < 1e-7 * (1.0 + np.abs(count))
        return np.where(np.isfinite(z) & is_close, count, z)

    def _inner_cdf(self, z: Array) -> Array:
        """Return the inner distribution function, also at infinite values."""
        finite = np.isfinite(z)
        if not finite.any():
            return (z > 0.0).astype(float)
        return np.where(finite, self.inner.cdf_grid(np.where(finite, z, 0.0)), z > 0.0)

    def cdf_grid(self, y: Array) -> Array:
        """Return the distribution function on a grid, (G, N, T)."""
        points: list[Array] = []
        signs: list[float] = []
        ends: dict[float, float] = {}  # of branches, with the sign of their probability
        for branch in self._transformation.branches:
            z = self._round_counts(branch.inward(y))
            if branch.falls and self.inner.is_discrete:
                z = z - 1e-6 * (1.0 + np.abs(z))  # the event is Z >= z, which includes a count z
            points.append(z)
            signs.append(-1.0 if branch.falls else 1.0)
            end = branch.high if branch.falls else branch.low
            ends[end] = ends.get(end, 0.0) - signs[-1]
        # A falling branch often ends where a rising one begins.
        for end, sign in ends.items():
            if sign != 0.0 and end != -np.inf:
                points.append(np.full((1, *y.shape[1:]), end))
                signs.append(sign)

        # One evaluation of the inner distribution, which may be that of a model.
        sizes = np.cumsum([len(z) for z in points])[:-1]
        below = np.zeros(y.shape)
        terms = np.split(self._inner_cdf(np.concatenate(points)), sizes)
        for sign, probability in zip(signs, terms, strict=True):
            below += sign * probability
        return below.clip(0.0, 1.0)

    def log_prob_grid(self, y: Array) -> Array:
        """Return the log of the sum over branches of ``p(z) |dz / dy|``, joint over targets."""
        n_targets = y.shape[-1]
        is_monotone = self._transformation.is_monotone
        if not is_monotone and n_targets > _MAX_JOINT_TARGETS:
            raise TypeError(
                f"{self!r}: the inverse has several branches, which are summed over for 6 targets "
                f"at most, got {n_targets}."
            )
        points: list[Array] = []
        slopes: list[Array] = []
        for branch in self._transformation.branches:
            z = self._round_counts((branch.density_point or branch.inward)(y))
            slope = self._log_slope(branch, z, y)
            if points and self.is_discrete:
                # A count at the common end of two branches has its probability once.
                slope = np.where(z == points[-1], -np.inf, slope)
            points.append(z)
            slopes.append(slope)

        # With one branch, all targets are on it. With several, each target has its own branch.
        n_free = 1 if is_monotone else n_targets
        inner_points: list[Array] = []
        log_slopes: list[Array] = []
        for choice in product(range(len(points)), repeat=n_free):
            branches = choice * n_targets if is_monotone else choice
            z = np.stack([points[k][..., t] for t, k in enumerate(branches)], axis=-1)
            slope = np.stack([slopes[k][..., t] for t, k in enumerate(branches)], axis=-1)
            slope = slope.sum(axis=-1)
            is_reached = np.isfinite(z).all(axis=-1) & (slope > -np.inf)
            # One evaluation of the inner distribution, which may be that of a model.
            inner_points.append(np.where(is_reached[..., None], z, 0.0))
            log_slopes.append(np.where(is_reached, slope, -np.inf))
        inner = self.inner.log_prob_grid(np.concatenate(inner_points))
        total = np.full(y.shape[:2], -np.inf)
        for log_density, slope in zip(np.split(inner, len(inner_points)), log_slopes, strict=True):
            is_reached = slope > -np.inf
            log_density = log_density + np.where(is_reached, slope, 0.0)
            total = np.logaddexp(total, np.where(is_reached, log_density, -np.inf))
        return total

    def _log_slope(self, branch: Branch, z: Array, y: Array) -> Array:
        """Return ``log |dz / dy|``; for a discrete target, 0 if g(z) is y and -inf otherwise."""
        if not self.is_discrete:
            return branch.log_slope(y)
        transformed = self._transformation.outward(np.where(np.isfinite(z), z, 0.0))
        is_reached = np.isfinite(z) & np.isclose(transformed, y, rtol=1e-9, atol=1e-12)
        return np.where(is_reached, 0.0, -np.inf)

    def crps_grid(self, y: Array) -> Array:
        """Return the CRPS on a grid, (G, N, T), in closed form where there is one."""
        if self._transformation.affine is not None:
            location, slope = self._transformation.affine
            return np.asarray(np.abs(slope) * self.inner.crps_grid((y - location) / slope))
        quadrature = Quadrature(self)
        score = quadrature.closed_form_crps(y)
        if score is None:
            return quadrature.crps(y)
        return score

    def mean(self) -> Array:
        """Return the expected target."""
        if self._transformation.affine is not None:
            location, slope = self._transformation.affine
            return (location + slope * self._by_target(self.inner.mean())).reshape(self.shape)
        return Quadrature(self).mean().reshape(self.shape)

    def std(self) -> Array:
        """Return the standard deviation, observation noise included."""
        if self._transformation.affine is not None:
            _, slope = self._transformation.affine
            return (np.abs(slope) * self._by_target(self.inner.std())).reshape(self.shape)
        return Quadrature(self).std().reshape(self.shape)

    def _by_target(self, values: Array) -> Array:
        """Return values of the inner distribution with an axis of targets, (N, T)."""
        return values.reshape(len(values), -1)


def transformed_predictive(
    inner: PredictiveDistribution, transformer: Any, n_targets: int, *, is_flat: bool
) -> PredictiveDistribution:
    """Return the distribution of a target from that of its transformation.

    Parameters
    ----------
    inner : PredictiveDistribution
        Distribution of the transformed target.
    transformer : fitted transformer
        Transformer from the target to the inner target.
    n_targets : int
        Number of targets.
    is_flat : bool
        Whether predictions have no axis of targets.

    Returns
    -------
    PredictiveDistribution

    Raises
    ------
    TypeError
        If the transformer's inverse isn't monotone and has no closed form.
    """
    transformations = elementary_transformations(transformer, n_targets)
    if not transformations and is_flat != (len(inner.shape) == 1):
        transformations = [_identity(n_targets)]
    for transformation in reversed(transformations):
        inner = TransformedPredictive(inner, transformation, transformer, is_flat=is_flat)
    return inner


def _identity(n_targets: int) -> TargetTransformation:
    """Return the transformation that changes nothing."""
    (identity,) = elementary_transformations(
        StandardScaler(with_mean=False, with_std=False), n_targets
    )
    return identity


def invert_cdf_grid(
    cdf: Callable[[Array], Array], levels: Array, start: Array, *, has_jumps: bool
) -> Array:
    """Find the quantiles of a grid of distributions, to rounding.

    Parameters
    ----------
    cdf : callable
        Maps values (G, N, T) to probabilities.
    levels : ndarray of shape (G, N, T)
        Levels of the quantiles.
    start : ndarray of shape (G, N, T)
        Centre of the first bracket.
    has_jumps : bool
        Whether the distribution functions jump, so that no value may reach a level.

    Returns
    -------
    ndarray of shape (G, N, T)

    Notes
    -----
    A bracket is halved, or shortened to the value at which the inverse quadratic polynomial through
    the last three points reaches the level if that is known to be closer (Chandrupatla 1997).
    """
    start = np.where(np.isfinite(start), start, 0.0)
    width = _FIRST_WIDTH * (np.abs(start) + _FIRST_WIDTH)
    lower = start - width
    upper = start + width
    for _ in range(400):  # steps that exceed the range of floating-point numbers
        is_too_high = cdf(lower) >= levels
        is_too_low = cdf(upper) < levels
        if not (is_too_high.any() or is_too_low.any()):
            break
        width = 8.0 * width
        lower = np.where(is_too_high, start - width, lower)
        upper = np.where(is_too_low, start + width, upper)

    # Without jumps, probabilities that agree up to rounding errors are equal.
    resolution = 0.0 if has_jumps else 1e-12 * levels + np.finfo(float).eps
    # ``best`` and ``other`` enclose the quantile, and ``previous`` is the last point outside.
    best, error = lower, cdf(lower) - levels
    other, other_error = upper, cdf(upper) - levels
    fraction = np.full(levels.shape, 0.5)
    for _ in range(100):
        x = best + fraction * (other - best)
        x_error = cdf(x) - levels
        is_same_side = (x_error < 0.0) == (error < 0.0)
        previous = np.where(is_same_side, best, other)
        previous_error = np.where(is_same_side, error, other_error)
        other = np.where(is_same_side, other, best)
        other_error = np.where(is_same_side, other_error, error)
        best, error = x, x_error
        tolerance = 2.0 * np.finfo(float).eps * np.abs(best) + np.finfo(float).tiny
        gap = np.abs(other - best)
        if ((gap <= 2.0 * tolerance) | (np.abs(error) <= resolution)).all():
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            place = (best - other) / (previous - other)
            height = (error - other_error) / (previous_error - other_error)
            step = error / (other_error - error) * previous_error / (other_error - previous_error)
            step += (
                (previous - best) / (other - best)
                * error / (previous_error - error)
                * other_error / (previous_error - other_error)
            )  # fmt: skip
            is_safe = (height * height < place) & ((1.0 - height) ** 2 < 1.0 - place)
            min_step = np.minimum(tolerance / gap, 0.5)
        fraction = np.where(is_safe, step, 0.5).clip(min_step, 1.0 - min_step)
    is_solved = (error >= 0.0) | (np.abs(error) <= resolution)
    return np.where(is_solved, best, other)
