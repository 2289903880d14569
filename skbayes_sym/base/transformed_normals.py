"""Moments and one-sided expectations of transformed normal variables.

`TransformedNormals` integrates over single normals. Those of a mixture follow from its components.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri

from skbayes_sym.base.closed_forms import ClosedForm, TabulatedForm
from skbayes_sym.base.rows import Array
from skbayes_sym.base.target_transformation import TargetTransformation

Functional = Literal["mean", "variance", "difference"]

NEGLIGIBLE_PROBABILITY = 1e-6  # next to a pole of the inverse; moments leave it out
TINY = np.finfo(float).tiny  # standard deviation in place of 0
_REACH = 6.0  # standard deviations from a mean that count
_BLOCK_NODES = 1 << 15  # values that fit into a cache

# The trapezoidal rule with equidistant nodes converges exponentially for smooth functions. The rule
# with every second node estimates the error, which is about its square, or 16 times smaller next to
# a jump of the third derivative.
_STEP = 0.5
_SCORES = np.arange(-7.0, 7.0 + _STEP, _STEP)
_DENSITY = np.exp(-0.5 * np.square(_SCORES))
_WEIGHTS = _DENSITY / _DENSITY.sum()
_COARSE_WEIGHTS = np.where(np.arange(len(_SCORES)) % 2 == 0, _DENSITY, 0.0)
_COARSE_WEIGHTS /= _COARSE_WEIGHTS.sum()
# Half the mean difference of two draws is the covariance of Y with 2 F(Y) - 1.
_DIFFERENCE_WEIGHTS = _WEIGHTS * (2.0 * ndtr(_SCORES) - 1.0)
_MAX_ERROR = 1e-3  # of the coarser rule, in standard deviations
_MAX_TAIL = 1e-5  # of the variance, at an outermost node

# Panels whose ends depend on the normal variable, and nodes of each.
_LEGENDRE_RULE = np.polynomial.legendre.leggauss(14)
_KINK_REACH = 2.5  # standard deviations to the farthest kink at which panels meet
# Standard deviations from a mean to the end of integration next to a pole, and from this end to
# poles at which it begins to move outwards. Panels next to a pole begin at the gaps from the end.
_POLE_REACH = -float(ndtri(NEGLIGIBLE_PROBABILITY))
_POLE_MARGIN = 4.0
_STEP_GAP = 0.3  # width of the panel above a step of the density
_POLE_GAPS = (2.2, 1.0, 0.5, 0.15, 0.05, 0.015)
# Eight nodes in a panel of two standard deviations integrate a normal density to 1e-10. Wider
# panels suffice in the tails, which matter for functions that grow exponentially.
_WIDE_EDGES = np.array([-12.0, -9.0, -6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 9.0, 12.0])
_WIDE_RULE = np.polynomial.legendre.leggauss(8)


class NormalComponents(NamedTuple):
    """Components of a mixture of normals.

    Attributes
    ----------
    weights : ndarray of shape (S,)
        Weights, which add up to 1.
    loc, scale : ndarray of shape (S, N, T)
        Means and standard deviations.
    """

    weights: Array
    loc: Array
    scale: Array

    def take_rows(self, index: Array) -> "NormalComponents":
        """Return the components of rows with an index."""
        return NormalComponents(self.weights, self.loc[:, index], self.scale[:, index])


class DensityStep(NamedTuple):
    """Factors on the density of a variable on both sides of a point.

    Attributes
    ----------
    point : ndarray that broadcasts to (M, T)
        Point at which the factor changes.
    below, above : ndarray of shape (M, T)
        Factors up to the point and beyond it.
    """

    point: Array
    below: Array
    above: Array

    def move(self, chain: "TransformationChain") -> "DensityStep":
        """Return the step for a variable that a rising transformation maps to this one."""
        (point,) = chain.invert(self.point)
        return self._replace(point=point)

    def take(self, index: Any) -> "DensityStep":
        """Return the step of variables with an index."""
        point = np.broadcast_to(self.point, self.below.shape)
        return DensityStep(point[index], self.below[index], self.above[index])


class TransformationChain:
    """Composition of transformations of targets, the innermost first.

    Parameters
    ----------
    steps : sequence of TargetTransformation
        TransformationChain in the order in which they are applied.
    n_targets : int
        Number of targets T.
    """

    def __init__(self, steps: Sequence[TargetTransformation], n_targets: int) -> None:
        self.steps = steps
        self._n_targets = n_targets
        # An even number of decreasing transformations increases.
        self.falls = sum(step.falls for step in steps) % 2 == 1
        self.is_monotone = all(step.is_monotone for step in steps)
        self.is_smooth = all(step.singular_points is not None for step in steps)

    def outward(self, values: Array) -> Array:
        """Return the targets of values of the innermost target."""
        for step in self.steps:
            values = step.outward(values)
        return values

    def invert(self, values: Array, n_steps: int | None = None) -> list[Array]:
        """Return the innermost values that the first steps, by default all, turn to ``values``."""
        points = [values]
        for step in reversed(self.steps[:n_steps]):
            points = [branch.inward(v) for v in points for branch in step.branches]
        return points

    def _positions(self, name: str) -> list[Array]:
        """Return the innermost values, (T,) each, of the positions that an attribute lists."""
        inverted = []
        for k, step in enumerate(self.steps):
            for value in getattr(step, name) or ():
                if np.isfinite(value).any():
                    inverted += self.invert(np.broadcast_to(value, (self._n_targets,)), k)
        return inverted

    @cached_property
    def kinks(self) -> list[Array]:
        """Values of the innermost target at which the target isn't smooth, (T,) each."""
        return self._positions("kinks")

    @cached_property
    def smooth_kinks(self) -> list[Array]:
        """Kinks at which two derivatives are continuous, (T,) each."""
        return self._positions("smooth_kinks")

    @cached_property
    def singular_points(self) -> list[Array]:
        """Other kinks, (T,) each."""
        return self._positions("singular_points")

    @cached_property
    def poles(self) -> list[Array]:
        """Values of the innermost target at which the target is infinite, (T,) each."""
        return self._positions("poles")

    @cached_property
    def pole_order(self) -> float:
        """Largest order of a pole."""
        return max([1.0, *(step.pole_order for step in self.steps)])

    @property
    def is_last_argument_affine(self) -> bool:
        """Whether all transformations before the last one are affine."""
        return all(step.affine is not None for step in self.steps[:-1])

    @property
    def argument_units(self) -> tuple[Any, Any]:
        """Location and slope of the argument of the last transformation, which is affine."""
        location: Any = 0.0
        slope: Any = 1.0
        for step in self.steps[:-1]:
            step_location, step_slope = step.affine  # type: ignore[misc]
            location = step_location + step_slope * location
            slope = step_slope * slope
        return location, slope

    def last_argument(self, loc: Array, scale: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the argument of the last transformation."""
        location, slope = self.argument_units
        return location + slope * loc, np.abs(slope) * scale

    @property
    def closed_form(self) -> ClosedForm | None:
        """Closed form of the last transformation if all before it are affine."""
        if self.steps and self.is_last_argument_affine:
            return self.steps[-1].closed_form
        return None

    @property
    def table(self) -> TabulatedForm | None:
        """Table of the last transformation if all before it are affine."""
        if self.steps and self.is_last_argument_affine:
            return self.steps[-1].table
        return None


class TransformedNormals:
    """TransformationChain of M normal variables of T targets.

    Parameters
    ----------
    transformations : TransformationChain
        TransformationChain.
    loc, scale : ndarray of shape (M, T)
        Means and standard deviations.
    """

    def __init__(self, transformations: TransformationChain, loc: Array, scale: Array) -> None:
        self._transformations = transformations
        self._loc = loc
        self._scale = np.maximum(scale, TINY)

    def _take(self, index: Any) -> "TransformedNormals":
        return TransformedNormals(self._transformations, self._loc[index], self._scale[index])

    def functionals(self, names: tuple[Functional, ...]) -> Array:
        """Return functionals, (Q, M, T).

        Parameters
        ----------
        names : tuple of {"mean", "variance", "difference"}
            The mean, the variance, and half the mean absolute difference of two draws.
        """
        values = np.full((len(names), *self._loc.shape), np.nan)
        block = max(1, _BLOCK_NODES // len(_SCORES))
        for start in range(0, len(self._loc), block):
            part = slice(start, start + block)
            values[:, part] = self._take(part)._block_functionals(names)  # noqa: SLF001 (same class)
        return values

    def _block_functionals(self, names: tuple[Functional, ...]) -> Array:
        transformations = self._transformations
        table = transformations.table
        if table is not None:
            return table.functionals(names, *transformations.last_argument(self._loc, self._scale))

        values = np.full((len(names), *self._loc.shape), np.nan)
        if not transformations.is_smooth:
            return self._sums(names, *self._wide_nodes())
        # Panels resolve what equidistant nodes don't.
        is_near = self._is_near(transformations.poles, _REACH + _POLE_MARGIN)
        is_near |= self._is_near(transformations.singular_points, _REACH)
        regular = np.flatnonzero(~is_near)
        is_accurate = np.zeros(len(self._loc), dtype=bool)
        if len(regular):
            subset = self if len(regular) == len(is_near) else self._take(regular)
            values[:, regular], is_accurate[regular] = subset._trapezoidal_functionals(names)  # noqa: SLF001 (same class)
        is_graded = self._is_near(transformations.poles, self._panel_distance)
        for selected, gaps in ((is_near & ~is_graded, ()), (is_graded, _POLE_GAPS)):
            index = np.flatnonzero(selected)
            if len(index):
                subset = self._take(index)
                nodes = subset._split_nodes(gaps)  # noqa: SLF001 (same class)
                values[:, index] = subset._sums(names, *nodes)  # noqa: SLF001 (same class)
        heavy = np.flatnonzero(~is_near & ~is_accurate)
        if len(heavy):
            subset = self._take(heavy)
            values[:, heavy] = subset._sums(names, *subset._wide_nodes())  # noqa: SLF001 (same class)
        return values

    def _trapezoidal_functionals(
        self, names: tuple[Functional, ...]
    ) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Return functionals (Q, M, T) by the trapezoidal rule, and where they are accurate (M,).

        Parameters
        ----------
        names : tuple of str
            Functionals, see `functionals`.
        """
        shape = self._loc.shape
        with np.errstate(all="ignore"):
            z = self._loc + self._scale * _SCORES[:, None, None]
            values = self._transformations.outward(z)
            centre = values[len(_SCORES) // 2].copy()
            deviation = (values - centre).reshape(len(_SCORES), -1)
            rules = np.stack([_WEIGHTS, _COARSE_WEIGHTS, _DIFFERENCE_WEIGHTS])
            mean, coarse_mean, difference = (rules @ deviation).reshape(3, *shape)
            deviation *= deviation
            square, coarse_square = (rules[:2] @ deviation).reshape(2, *shape)
            variance = np.maximum(square - mean * mean, 0.0)
            # Rounding errors of the values themselves are no errors of the rule.
            size = variance + np.square(np.finfo(float).eps * centre)
            is_known = np.square(mean - coarse_mean) <= _MAX_ERROR**2 * size
            if "variance" in names:
                is_known &= np.abs(square - coarse_square) <= 2.0 * _MAX_ERROR * size
            tail = np.maximum(_WEIGHTS[0] * deviation[0], _WEIGHTS[-1] * deviation[-1])
            is_known &= tail.reshape(shape) <= _MAX_TAIL * size
        functionals = {
            "mean": centre + mean, "variance": variance, "difference": np.abs(difference)
        }  # fmt: skip
        return np.stack([functionals[name] for name in names]), is_known.all(axis=1)

    def weighted_moments(self, step: DensityStep | None) -> tuple[Array, Array, Array]:
        """Return probability, mean and variance, (M, T) each, under densities with a step.

        Parameters
        ----------
        step : DensityStep or None
            Step of the density. Without, all probabilities are 1.
        """
        if step is None:
            mean, variance = self.functionals(("mean", "variance"))
            return np.ones_like(mean), mean, variance
        values = np.empty((3, *self._loc.shape))
        block = max(1, _BLOCK_NODES // len(_SCORES))
        for start in range(0, len(self._loc), block):
            part = slice(start, start + block)
            subset = self._take(part)
            values[:, part] = subset._block_weighted_moments(step.take(part))  # noqa: SLF001 (same class)
        return values[0], values[1], values[2]

    def _block_weighted_moments(self, step: DensityStep) -> Array:
        """Return the moments of few variables, (3, M, T), see `weighted_moments`."""
        if not self._transformations.is_smooth:
            return self._weighted_sums(step, *self._wide_nodes([step.point]))[0]
        # Functions that aren't analytic at the step, such as roots, need a narrow panel beside it.
        nodes = self._split_nodes((), [step.point, step.point + _STEP_GAP * self._scale])
        values, is_heavy = self._weighted_sums(step, *nodes)
        heavy = np.flatnonzero(is_heavy)
        if len(heavy):
            subset = self._take(heavy)
            step = step.take(heavy)
            nodes = subset._wide_nodes([step.point])  # noqa: SLF001 (same class)
            values[:, heavy] = subset._weighted_sums(step, *nodes)[0]  # noqa: SLF001 (same class)
        return values

    def _weighted_sums(
        self, step: DensityStep, u: Array, weights: Array
    ) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Return moments, (3, M, T), and whether the tails count, (M,).

        Parameters
        ----------
        step : DensityStep
            Step of the density.
        u, weights : ndarray of shape (K, M, T)
            Scores and their weights without the step.
        """
        z = self._loc + self._scale * u
        weights = weights * np.where(z > step.point, step.above, step.below)
        values = self._transformations.outward(z)
        mass = weights.sum(axis=0)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = np.einsum("k...,k...->...", weights, values) / np.maximum(mass, TINY)
            deviation = values - mean
            weights *= np.square(deviation, out=deviation)
            total = weights.sum(axis=0)
            is_heavy = np.maximum(weights[0], weights[-1]) > _MAX_TAIL * total
            variance = total / np.maximum(mass, TINY)
        return np.stack([mass, mean, variance]), is_heavy.any(axis=1)

    def is_singular(self) -> npt.NDArray[np.bool_]:
        """Whether a variable reaches a point where the transformation isn't analytic, (M,)."""
        is_near_pole = self._is_near(self._transformations.poles, _POLE_REACH)
        return is_near_pole | self._is_near(self._transformations.singular_points, _REACH)

    def _is_near(self, points: Sequence[Array], distance: float) -> npt.NDArray[np.bool_]:
        """Whether a point is within a distance in standard deviations, for any target, (M,)."""
        is_near = np.zeros(self._loc.shape, dtype=bool)
        for point in points:
            is_near |= np.abs(point - self._loc) < distance * self._scale
        return np.asarray(is_near.any(axis=1))

    def _pole_distances(self) -> list[Array]:
        """Return the positions of poles in standard deviations from the means, (M, T) each."""
        with np.errstate(over="ignore"):
            return [(pole - self._loc) / self._scale for pole in self._transformations.poles]

    @property
    def _panel_distance(self) -> float:
        """Distance of poles for which panels of usual width suffice, in standard deviations."""
        return _POLE_REACH + 0.5 + 0.2 * (self._transformations.pole_order - 1.0)

    def _reach(self) -> tuple[Array, Array]:
        """Return how far values count below and above the mean, in standard deviations, (M, T).

        Next to a pole this leaves out the outermost 1e-6 of the probability, and less with a
        growing distance from the pole.
        """
        below = np.full(self._loc.shape, _REACH)
        above = below.copy()
        for distance in self._pole_distances():
            size = np.abs(distance)
            reach = np.clip(size - _POLE_MARGIN, _POLE_REACH, _REACH)
            # A component of small weight can have more probability beyond the pole.
            reach = np.where(size < _POLE_REACH, np.maximum(size - 0.5, 0.0), reach)
            np.minimum(above, np.where(distance > 0.0, reach, _REACH), out=above)
            np.minimum(below, np.where(distance > 0.0, _REACH, reach), out=below)
        return below, above

    def _split_nodes(
        self, gaps: tuple[float, ...], breaks: Sequence[Array] = ()
    ) -> tuple[Array, Array]:
        """Return scores and weights, (K, M, T), of panels that meet at a kink.

        Parameters
        ----------
        gaps : tuple of float
            Distances from the outer ends, in standard deviations, at which further panels begin.
        breaks : sequence of ndarray that broadcast to (M, T)
            Further values at which panels meet.
        """
        transformations = self._transformations
        below, above = self._reach()
        lower = [gap - below for gap in reversed(gaps)]
        upper = [above - gap for gap in gaps]
        if gaps == _POLE_GAPS:
            # Without a pole on a side, a single panel suffices.
            lower = lower if (below < _REACH).any() else []
            upper = upper if (above < _REACH).any() else []
        # A smooth kink in the tail has no effect, and the panels may meet before it.
        meeting = [self._clip_scores(point, _KINK_REACH) for point in transformations.smooth_kinks]
        meeting = meeting or [np.zeros_like(below)]
        meeting += [
            self._clip_scores(point, _REACH)
            for point in (*transformations.singular_points, *breaks)
        ]
        edges = np.sort(np.stack([-below, *lower, *meeting, *upper, above]), axis=0)
        return _panel_nodes(edges, _LEGENDRE_RULE)

    def _clip_scores(self, point: Array, reach: float) -> Array:
        """Return the score (M, T) of a point, not beyond a reach."""
        return np.clip((point - self._loc) / self._scale, -reach, reach)

    def _wide_nodes(self, breaks: Sequence[Array] = ()) -> tuple[Array, Array]:
        """Return scores and weights, (K, M, T), of panels that end at kinks.

        Parameters
        ----------
        breaks : sequence of ndarray that broadcast to (M, T)
            Further values at which panels end.
        """
        low = _WIDE_EDGES[0]
        high = _WIDE_EDGES[-1]
        edges = [np.broadcast_to(edge, self._loc.shape) for edge in _WIDE_EDGES]
        for kink in (*self._transformations.kinks, *breaks):
            edge = (kink - self._loc) / self._scale
            if ((edge > low) & (edge < high)).any():
                edges.append(np.clip(edge, low, high))
        return _panel_nodes(np.sort(np.stack(edges), axis=0), _WIDE_RULE)

    def _sums(self, names: tuple[Functional, ...], u: Array, weights: Array) -> Array:
        """Return functionals (Q, M, T) by scores and weights (K, M, T), see `functionals`."""
        values = self._transformations.outward(self._loc + self._scale * u)
        is_infinite = np.isinf(values).any()
        if is_infinite or "difference" in names:
            below = normal_cdf(u)
        if is_infinite:
            rank = 1.0 - below if self._transformations.falls else below
            values, weights = drop_poles(values, weights, rank)
        with np.errstate(invalid="ignore", over="ignore"):
            functionals = {"mean": np.einsum("k...,k...->...", weights, values)}
            deviation = values
            deviation -= functionals["mean"]
            weighted = deviation * weights
            if "variance" in names:
                variance = np.einsum("k...,k...->...", weighted, deviation)
                functionals["variance"] = np.where(np.isnan(variance), np.inf, variance)
            if "difference" in names:
                below -= 0.5
                functionals["difference"] = 2.0 * np.abs(
                    np.einsum("k...,k...->...", weighted, below)
                )
        return np.stack([functionals[name] for name in names])

    def tail_excess(self, targets: Array) -> tuple[Array, Array]:
        """Integrate over the tail of a normal distribution on the far side of a target.

        Parameters
        ----------
        targets : ndarray of shape (M, T)
            Targets y.

        Returns
        -------
        side : ndarray of shape (M, T)
            1 if the tail holds the values of the target below y, and -1 if it holds those above.
        excess : ndarray of shape (M, T)
            ``E[(y - Y)_+]`` or ``E[(Y - y)_+]``, NaN if it is unknown because the tail is heavy.
        """
        transformations = self._transformations
        if transformations.table is not None:
            argument = transformations.last_argument(self._loc, self._scale)
            return transformations.table.tail_excess(*argument, targets)
        (point,) = transformations.invert(targets)
        below, above = self._reach()
        inner = np.clip((point - self._loc) / self._scale, -below, above)
        is_below = inner < 0.0
        end = np.where(is_below, -below, above)
        half = 0.5 * (end - inner)
        nodes, weights = (rule[:, None, None] for rule in _LEGENDRE_RULE)
        u = inner + half * (1.0 + nodes)
        values = transformations.outward(self._loc + self._scale * u)
        density = normal_kernel(u)
        density *= weights
        values -= targets
        density *= np.abs(values, out=values)
        total = density.sum(axis=0)
        is_open = (np.abs(end) >= _REACH) & (half != 0.0)
        excess = np.where(is_open & (density[-1] > _MAX_TAIL * total), np.nan, total)
        excess *= np.abs(half) / np.sqrt(2.0 * np.pi)
        return np.where(is_below != transformations.falls, 1.0, -1.0), excess


def _panel_nodes(edges: Array, rule: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return scores and weights (K, M, T) of a normal density on panels with edges (E, M, T)."""
    nodes, weights = (values[:, None, None] for values in rule)
    half = 0.5 * (edges[1:] - edges[:-1])[:, None]
    u = half * nodes
    u += 0.5 * (edges[1:] + edges[:-1])[:, None]
    density = normal_kernel(u)
    density *= half
    density *= weights
    density /= density.sum(axis=(0, 1))
    shape = (-1, *edges.shape[1:])
    return u.reshape(shape), density.reshape(shape)


def normal_kernel(u: Array) -> Array:
    """Return ``exp(-u**2 / 2)``, faster than NumPy."""
    return np.asarray(torch.from_numpy(u).square().mul_(-0.5).exp_().numpy())


def normal_cdf(u: Array) -> Array:
    """Return the distribution function of a standard normal variable to 1e-7."""
    below = torch.from_numpy(u).float().mul_(0.5**0.5).erf_().double()
    return np.asarray(below.mul_(0.5).add_(0.5).numpy())


def node_moments(values: Array, weights: Array) -> tuple[Array, Array]:
    """Return mean and variance (N, T) of values and weights (K, N, T)."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.einsum("k...,k...->...", weights, values)
        deviation = np.where(weights > 0.0, values - mean, 0.0)
        variance = np.einsum("k...,k...,k...->...", weights, deviation, deviation)
    return mean, np.where(np.isfinite(mean), variance, np.inf)


def drop_poles(values: Array, weights: Array, below: Array) -> tuple[Array, Array]:
    """Leave out infinite values on a side if their probability is negligible.

    The inverse of a transformation can have a pole. Next to it no sum of nodes converges.

    Parameters
    ----------
    values, weights, below : ndarray of shape (K, N, T)
        Values of the target, their weights and the distribution function.

    Returns
    -------
    values, weights : ndarray of shape (K, N, T)
        Values are 0 where the weight is 0.
    """
    for pole, outside in ((np.inf, 1.0 - below), (-np.inf, below)):
        infinite = values == pole
        if not infinite.any():
            continue
        is_small = (weights * infinite).sum(axis=0) < NEGLIGIBLE_PROBABILITY
        dropped = infinite.any(axis=0) & is_small & (outside < NEGLIGIBLE_PROBABILITY)
        weights = np.where(dropped, 0.0, weights)
        weights = weights / weights.sum(axis=0)
    return np.where(weights > 0.0, values, 0.0), weights
