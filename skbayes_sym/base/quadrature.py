"""Integrals over predictive distributions by Gaussian quadrature.

`Quadrature` returns nodes and weights for the mean, the standard deviation and the continuous
ranked probability score of a distribution, or of a transformation of a distribution.
"""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from skbayes_sym.base.closed_forms import ClosedForm, TabulatedForm, mixture_moments
from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.moment_table import interpolate_functionals
from skbayes_sym.base.rows import Array
from skbayes_sym.base.target_transformation import TargetTransformation
from skbayes_sym.models.predictive_mixtures import NormalMixture

Functional = Literal["mean", "variance", "difference"]


class PanelRule(NamedTuple):
    """Composite Gauss-Legendre rule.

    Attributes
    ----------
    edges : ndarray
        Edges of the panels of a single normal distribution, in standard deviations.
    nodes, weights : ndarray
        Nodes and weights of a panel from -1 to 1.
    """

    edges: Array
    nodes: Array
    weights: Array


# Moments: eight nodes in a panel of two standard deviations integrate a normal density to 1e-10.
# Wider panels suffice in the tails, which matter for functions that grow exponentially.
_MOMENT_EDGES = np.array([-12.0, -9.0, -6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 9.0, 12.0])
_MOMENT_RULE = PanelRule(_MOMENT_EDGES, *np.polynomial.legendre.leggauss(8))
# Scores: the distribution function is smoother than the density, and its tails matter less. The
# error is below 1e-4 standard deviations of the target (tests/base/test_closed_forms.py).
_SCORE_RULE = PanelRule(np.array([-7.0, 0.0, 7.0]), *np.polynomial.legendre.leggauss(10))
# Scores by tables, whose slope jumps.
_TABLE_RULE = PanelRule(np.array([-6.0, -3.0, 0.0, 3.0, 6.0]), *np.polynomial.legendre.leggauss(8))
_MAX_PANELS = 32
_NEGLIGIBLE_PROBABILITY = 1e-6  # next to a pole of the inverse; moments leave it out
_TINY = np.finfo(float).tiny  # standard deviation in place of 0
_MAX_COUNTS = 4096  # counts that are summed one by one
# Gauss-Hermite nodes per normal component: of mixtures with many components, of others.
_MIN_LARGE_MIXTURE = 16
_N_NODES_LARGE = 15
_N_NODES_SMALL = 32
# Two panels per normal component that meet at a kink: nodes of each, and standard deviations from
# the mean to their outer ends and to the farthest kink that counts.
_N_NODES_SIDE = 12
_SIDE_REACH = 6.0
_KINK_REACH = 2.5
# Distances from the outer ends of the panels at which further ones begin for scores.
_SCORE_GAPS = (2.2,)
_HERMITE_REACH = 12.0  # of all nodes of Gauss-Hermite rules
# Standard deviations from a mean to the end of integration next to a pole, and from this end to
# poles at which it begins to move outwards. Panels next to a pole begin at the gaps from the end.
_POLE_REACH = -float(ndtri(_NEGLIGIBLE_PROBABILITY))
_POLE_MARGIN = 4.0
_POLE_GAPS = (2.2, 1.0, 0.5, 0.15, 0.05, 0.015)
_BLOCK_COMPONENTS = 2048  # normals whose nodes fit into a cache
_BLOCK_SCORES = 1024  # normals whose nodes fit into a cache
_BLOCK_SIDES = 2048  # normals whose nodes on one side fit into a cache
_BLOCK_PANELS = 512  # rows whose panels fit into a cache
_MAX_TAIL = 1e-5  # of the variance, at an outermost node


def with_target_axis(values: Array) -> Array:
    """Return values (S, N) or (S, N, T) with an axis of targets."""
    return values if values.ndim == 3 else values[..., None]


class Quadrature:
    """Nodes and weights over a distribution, which may be a transformation of another one.

    Parameters
    ----------
    distribution : PredictiveDistribution
        Distribution of N rows and T targets.
    components : NormalComponents, optional
        Components that replace those of the innermost distribution, which is a mixture of normals.

    Notes
    -----
    Mixtures of normals are integrated by composite Gauss-Legendre quadrature in the units of the
    innermost distribution, counts by a sum over their values, and joint distributions of several
    targets over their quantiles. Moments of a mixture under transformations that are analytic
    everywhere are integrated by Gauss-Hermite quadrature instead, and those under a Yeo-Johnson
    transformation by two panels per component that meet at zero. Their error, and that of scores,
    is below 1e-4 standard deviations, also if moments of many components are interpolated by
    `interpolate_moments`, unless a branch point, such as the end of the range of a
    Box-Cox transformation, lies within the distribution.
    """

    def __init__(self, distribution: Any, components: "NormalComponents | None" = None) -> None:
        # Targets are transformations of those of the innermost distribution, the root.
        root, transformations = distribution.unwrap_transformations()
        self._is_normal = components is not None or root.has_normal_components
        if not self._is_normal:
            root = root.evaluated()  # otherwise every evaluation would run the model
        self._distribution = distribution
        self._root = root
        self._transformations = transformations
        self._given_components = components
        # An even number of decreasing transformations increases.
        n_falling = sum(transformation.falls for transformation in transformations)
        self._falls = n_falling % 2 == 1
        self._is_monotone = all(t.is_monotone for t in transformations)

        # Nodes of counts and of joint distributions are the same for every integrand.
        self._fixed: tuple[Array, Array, Array] | None = None
        if not self._is_normal:
            is_joint = len(root.shape) == 2 and root.shape[1] > 1
            if root.is_discrete:
                self._fixed = _count_nodes(root) or _quantile_nodes(root)
            elif is_joint:
                self._fixed = _quantile_nodes(root)

    @cached_property
    def _components(self) -> "NormalComponents":
        """Components of the innermost distribution, which is a mixture of normals."""
        if self._given_components is not None:
            return self._given_components
        weights, loc, scale = self._root.components()
        return NormalComponents(np.asarray(weights), with_target_axis(loc), with_target_axis(scale))

    def _make_panels(self, rule: PanelRule, index: Array | None = None) -> "_Panels":
        """Return panels of all rows, or of those with an index if components are normal."""
        if not self._is_normal:
            return _Panels(self._root, None, rule)
        components = self._components
        if index is not None and len(index) < self._shape[0]:
            components = components.take_rows(index)
        return _Panels(self._root, components, rule)

    @cached_property
    def _absolute(self) -> "NormalComponents | None":
        """Components of Z and -Z if the target is a function of ``|Z|`` for a normal mixture Z."""
        if not self._transformations or not self._transformations[-1].is_even:
            return None
        argument = self._affine_argument()
        if argument is None or not (argument.scale > 0.0).all():
            return None
        weights = 0.5 * np.concatenate([argument.weights, argument.weights])
        loc = np.concatenate([argument.loc, -argument.loc])
        return NormalComponents(weights, loc, np.concatenate([argument.scale, argument.scale]))

    @cached_property
    def _score_panels(self) -> "_Panels":
        """Panels for scores, whose integrands have a kink at the target."""
        if self._absolute is not None:
            return _Panels(self._root, self._absolute, _SCORE_RULE, lowest=0.0)
        return self._make_panels(_SCORE_RULE)

    @cached_property
    def _kinks(self) -> list[Array]:
        """Kinks of the transformations, in units of the innermost distribution."""
        return self._invert_all([t.kinks for t in self._transformations])

    def nodes(self, targets: Array) -> tuple[Array, Array, Array]:
        """Return nodes for integrals whose integrand has a kink at given targets.

        Parameters
        ----------
        targets : ndarray of shape (N, T)
            Values at which panels end.

        Returns
        -------
        values, weights, cdf : ndarray of shape (K, N, T)
            Values of the target, their weights, which add up to 1, and the distribution function.
        """
        if self._fixed is not None:
            z, weights, below = self._fixed
            values = _transform(self._transformations, z)
        elif self._absolute is not None:
            transformation = self._transformations[-1]
            z, weights, below = self._score_panels.nodes(
                [transformation.branches[-1].inward(targets)]
            )
            values = transformation.outward(z)
            below = (2.0 * below - 1.0).clip(0.0, 1.0)
        else:
            edges = [*self._kinks, *self._invert(targets, self._transformations)]
            z, weights, below = self._score_panels.nodes(edges)
            values = _transform(self._transformations, z)
        if self._absolute is None:
            if self._falls:
                below = 1.0 - below
            if not self._is_monotone:
                below = self._distribution.cdf_grid(np.nan_to_num(values))
        values, weights = _drop_poles(values, weights, below)
        return values, weights, below

    def crps(self, y: Array) -> Array:
        r"""Return the continuous ranked probability score at targets (G, N, T).

        .. math:: 2 \int (1[x > y] - F(x)) (x - y) \, dF(x)
        """
        score = self._one_sided_scores(y)
        unknown = np.flatnonzero(np.isnan(score).any(axis=(0, 2)))
        is_split = self._is_normal and (self._is_monotone or self._absolute is not None)
        if not is_split:
            score = np.stack([self.score(targets) for targets in y])
        elif len(unknown):
            # Blocks of rows that need about as many panels.
            weights, loc, scale = self._components
            loc = loc[:, unknown]
            scale = scale[:, unknown]
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                width = (loc.max(axis=0) - loc.min(axis=0) + scale.max(axis=0)) / scale.min(axis=0)
            order = np.argsort(width.max(axis=1))
            block = max(1, _BLOCK_SCORES // len(weights))
            for start in range(0, len(unknown), block):
                rows = order[start : start + block]
                subset = self._components.take_rows(unknown[rows])
                quadrature = Quadrature(self._distribution, subset)
                for k, targets in enumerate(y):
                    score[k, unknown[rows]] = quadrature.score(targets[unknown[rows]])
        self._warn_infinite(np.asarray(~np.isfinite(score).all(axis=(0, 2))))
        return np.nan_to_num(score, nan=np.inf, posinf=np.inf)

    def _one_sided_scores(self, y: Array) -> Array:
        r"""Return scores of transformed normals at targets (G, N, T), NaN for other rows.

        .. math:: E|Y - y| - \tfrac12 E|Y - Y'|, \qquad
                  E|Y - y| = E[Y] - y + 2 E[(y - Y)_+] = y - E[Y] + 2 E[(Y - y)_+]

        The functionals that don't depend on y can be interpolated. Of the two expectations, that of
        the tail on the other side of y than the mean is integrated.
        """
        score = np.full(y.shape, np.nan)
        if not (self._is_normal and self._transformations and self._is_monotone):
            return score
        if len(self._components.weights) > 1:
            return score
        closed = self._closed_form()
        is_table = closed is not None and closed.table is not None
        if closed is not None and not is_table:
            return score
        if not (is_table or all(t.is_smooth for t in self._transformations)):
            return score
        is_usable = np.ones(self._shape, dtype=bool)
        if not is_table:
            is_usable = ~self._is_singular(_POLE_REACH)
        infinite = self._infinite_means() != 0.0
        score[:, infinite] = np.inf
        index = np.flatnonzero((is_usable & ~infinite).all(axis=1))
        if not len(index):
            return score

        mean, difference = self._functionals(("mean", "difference"), index)
        for start in range(0, len(index), _BLOCK_SIDES):
            block = slice(start, start + _BLOCK_SIDES)
            rows = index[block]
            quadrature = Quadrature(self._distribution, self._components.take_rows(rows))
            for k, targets in enumerate(y[:, rows]):
                side, excess = quadrature.tail_excess(targets)
                with np.errstate(invalid="ignore"):
                    distance = side * (mean[block] - targets) + 2.0 * excess
                    values = np.maximum(distance - difference[block], 0.0)
                score[k, rows] = values
        return score

    def tail_excess(self, targets: Array) -> tuple[Array, Array]:
        """Integrate over the tail of a normal distribution on the far side of a target.

        Parameters
        ----------
        targets : ndarray of shape (N, T)
            Targets y.

        Returns
        -------
        side : ndarray of shape (N, T)
            1 if the tail holds the values of the target below y, and -1 if it holds those above.
        excess : ndarray of shape (N, T)
            ``E[(y - Y)_+]`` or ``E[(Y - y)_+]``, NaN if it is unknown because the tail is heavy.
        """
        closed = self._closed_form()
        if closed is not None and closed.table is not None:
            normal = closed.components
            return closed.table.tail_excess(normal.loc[0], normal.scale[0], targets)
        components = self._components
        loc = components.loc[0]
        scale = np.maximum(components.scale[0], _TINY)
        (point,) = self._invert(targets, self._transformations)
        below, above = (reach[0] for reach in self._reach())
        inner = np.clip((point - loc) / scale, -below, above)
        is_below = inner < 0.0
        end = np.where(is_below, -below, above)
        half = 0.5 * (end - inner)
        nodes, weights = (rule[:, None, None] for rule in _legendre_rule(_N_NODES_SIDE))
        u = inner + half * (1.0 + nodes)
        values = _transform(self._transformations, loc + scale * u)
        density = np.exp(-0.5 * u * u)
        density *= weights
        density *= np.abs(values - targets)
        total = density.sum(axis=0)
        is_open = (np.abs(end) >= _SIDE_REACH) & (half != 0.0)
        excess = np.where(is_open & (density[-1] > _MAX_TAIL * total), np.nan, total)
        excess *= np.abs(half) / np.sqrt(2.0 * np.pi)
        return np.where(is_below != self._falls, 1.0, -1.0), excess

    def score(self, targets: Array) -> Array:
        """Return the score at targets (N, T)."""
        closed = self._closed_form()
        if closed is not None and closed.table is not None:
            return self._tabulated_score(closed.table, closed.components, targets)
        values, weights, cdf = self.nodes(targets)
        with np.errstate(invalid="ignore"):
            difference = np.where(weights > 0.0, values - targets, 0.0)
            integrand = ((difference > 0.0) - cdf) * difference
            return np.asarray(2.0 * np.einsum("k...,k...->...", weights, integrand))

    def _tabulated_score(
        self, form: TabulatedForm, argument: "NormalComponents", targets: Array
    ) -> Array:
        r"""Return the score at targets (N, T) by integrals of a table's antiderivative.

        With the antiderivative G of the transformation g and ``g(c) = y``, integration by parts
        moves the derivatives of g, which jumps, to the density f and the distribution function F,

        .. math:: \int 2 \, (f^2 + (F - 1[z > c]) f') \, (G(z) - G(c) - y (z - c)) \, dz .
        """
        inside = form.clip(targets)
        centre = form.invert(inside)
        # Point masses have a negligible width.
        scale = np.maximum(argument.scale, 1e-6 * form.width)
        near = 0.7 * scale.min(axis=0)
        panels = _Panels(self._root, argument._replace(scale=scale), _TABLE_RULE)
        z, step = panels.plain_nodes([centre, centre - near, centre + near, *form.ends])
        excess = np.where(z > centre, -1.0, 0.0)
        density = np.zeros(z.shape)
        slope = np.zeros(z.shape)
        for weight, mu, sigma in zip(argument.weights, argument.loc, scale, strict=True):
            u = (z - mu) / sigma
            excess += weight * _normal_cdf(u, sigma)
            component_density = weight * _normal_density(u, sigma)
            density += component_density
            component_density *= u
            component_density /= sigma
            slope -= component_density
        kernel = np.square(density) + excess * slope
        integral = form.integrate(z) - form.integrate(centre) - inside * (z - centre)
        score = 2.0 * np.einsum("k...,k...,k...->...", step, kernel, integral)
        return np.asarray(score + np.abs(targets - inside))

    def mean(self) -> Array:
        """Return the mean of every row and target, (N, T)."""
        (mean,) = self._moments(("mean",))
        self._warn_infinite(np.asarray(~np.isfinite(mean).all(axis=1)))
        return mean

    def std(self) -> Array:
        """Return the standard deviation of every row and target, (N, T)."""
        mean, variance = self._moments(("mean", "variance"))
        self._warn_infinite(np.asarray(~np.isfinite(mean).all(axis=1)))
        return np.sqrt(variance)

    def _moments(self, names: tuple[Functional, ...]) -> Sequence[Array]:
        """Return the mean, and the variance if it is named, of every row and target, (N, T)."""
        if not self._is_normal:
            _, values, weights = self._moment_nodes(np.arange(self._shape[0]))
            return _node_moments(values, weights)[: len(names)]
        closed = self._closed_form()
        if closed is not None and closed.form.is_cheap:
            mean, variance = closed.form.moments(*closed.components)
            if np.isfinite(variance).all():
                return (mean, variance)[: len(names)]
        return self._functionals(names, np.arange(self._shape[0]))

    def _functionals(self, names: tuple[Functional, ...], rows: Array) -> list[Array]:
        """Return functionals of the distributions of rows with an index, (n_rows, T) each.

        Parameters
        ----------
        names : tuple of {"mean", "variance", "difference"}
            The mean, the variance next to the mean, or, for a single component, half the mean
            absolute difference of two draws.
        rows : ndarray of shape (n_rows,)
            Index of the rows.
        """
        weights, loc, scale = self._components
        infinite = self._infinite_means()[rows]
        values = _infinite_values(names, infinite)
        index = np.flatnonzero((infinite == 0.0).all(axis=1))
        if len(rows) < loc.shape[1] or len(index) < len(rows):
            loc = loc[:, rows[index]]
            scale = scale[:, rows[index]]
        poles = [pole[0] for pole in self._poles]
        interpolated = interpolate_functionals(
            lambda loc, scale: self._normal_functionals(names, loc, scale),
            loc,
            scale,
            poles,
            self._table_distance,
        )
        if interpolated is not None and len(index):
            if "variance" in names:
                combined: Sequence[Array] = mixture_moments(weights, *interpolated)
            else:
                combined = [np.einsum("s,s...->...", weights, value) for value in interpolated]
            for value, known in zip(values, combined, strict=True):
                value[index] = known

        unknown = np.flatnonzero(np.isnan(sum(values)).any(axis=1))
        block = max(1, _BLOCK_COMPONENTS // len(weights))
        for start in range(0, len(unknown), block):
            part = unknown[start : start + block]
            subset = Quadrature(self._distribution, self._components.take_rows(rows[part]))
            direct = subset.direct_functionals(names)
            for value, known in zip(values, direct, strict=True):
                value[part] = known
        return values

    def _normal_functionals(self, names: tuple[Functional, ...], loc: Array, scale: Array) -> Array:
        """Return functionals (Q, M, T) if the innermost target is normal."""
        normals = NormalComponents(np.ones(1), loc[None], scale[None])
        return np.stack(Quadrature(self._distribution, normals).direct_functionals(names))

    def direct_functionals(self, names: tuple[Functional, ...]) -> list[Array]:
        """Return functionals (N, T) by quadrature of every row, see `_functionals`."""
        closed = self._closed_form()
        if closed is not None:
            known = self._closed_functionals(names, closed)
            if known is not None:
                return known

        # Nodes of each component are cheaper than panels, which only rows with a singularity or
        # heavy tails need. Rows with probability beyond a pole need neither.
        values = [np.full(self._shape, np.nan) for _ in names]
        # The product of density and distribution function is steeper than the density.
        gaps = _SCORE_GAPS if "difference" in names else ()
        nodes = self._component_nodes(gaps)
        if nodes is not None:
            values = self._node_functionals(names, *nodes)
        infinite = self._infinite_means()
        values = [
            np.where(infinite == 0.0, value, limit)
            for value, limit in zip(values, _infinite_values(names, infinite), strict=True)
        ]

        is_unknown = ~np.isfinite(sum(values)) & (infinite == 0.0)
        unknown = np.flatnonzero(is_unknown.any(axis=1))
        distances = self._pole_distances()
        if distances:
            # Blocks of rows that need the same panels.
            nearest = np.min(np.abs(distances)[..., unknown, :], axis=(0, 1, 3))
            unknown = unknown[np.argsort(nearest)]
        for start in range(0, len(unknown), _BLOCK_PANELS):
            index = unknown[start : start + _BLOCK_PANELS]
            quadrature = Quadrature(self._distribution, self._components.take_rows(index))
            fine = quadrature.panel_functionals(names)
            for value, integral in zip(values, fine, strict=True):
                value[index] = np.where(is_unknown[index], integral, value[index])
        return values

    def panel_functionals(self, names: tuple[Functional, ...]) -> list[Array]:
        """Return functionals (N, T) by panels, which are finer next to a kink or a pole."""
        distances = [np.abs(distance).min(axis=0) for distance in self._pole_distances()]
        is_graded = np.zeros(self._shape, dtype=bool)
        if distances:
            nearest = np.min(distances, axis=0)
            is_graded = (nearest >= _POLE_REACH) & (nearest < self._panel_distance)
        functionals = [np.full(self._shape, np.nan) for _ in names]
        if is_graded.any():
            z, weights = self._split_nodes(_POLE_GAPS)
            values = _transform(self._transformations, z)
            functionals = self._summarise(names, z, values, weights)
        if not is_graded.all():
            coarse = self._summarise(names, *self._moment_nodes(np.arange(self._shape[0])))
            functionals = [
                np.where(is_graded, fine, value)
                for fine, value in zip(functionals, coarse, strict=True)
            ]
        return functionals

    def _closed_functionals(
        self, names: tuple[Functional, ...], closed: "_ClosedForm"
    ) -> list[Array] | None:
        """Return functionals (N, T) by a closed form, or None if it overflows or has none."""
        if closed.table is not None:
            return self._tabulated_functionals(names, closed.table, closed.components)
        if "difference" in names:
            return None
        moments = closed.form.moments(*closed.components)
        if not np.isfinite(moments[1]).all():
            return None
        return list(moments[: len(names)])

    def _tabulated_functionals(
        self, names: tuple[Functional, ...], table: TabulatedForm, components: "NormalComponents"
    ) -> list[Array]:
        """Return functionals (N, T) of a table's value at a mixture of normals.

        Parameters
        ----------
        names : tuple of str
            Names of the functionals, of which the first is the mean. A difference is computed for
            single normals only.
        table : TabulatedForm
            Transformation.
        components : NormalComponents
            Normals (S, N, T).
        """
        shape = components.loc.shape
        loc = components.loc.reshape(-1, self._shape[1])  # (S N, T)
        scale = components.scale.reshape(-1, self._shape[1])
        means = table.mean(loc, scale).reshape(shape)
        if "variance" in names:
            _, variances = table.moments(np.ones(1), loc[None], scale[None])
            return list(mixture_moments(components.weights, means, variances.reshape(shape)))
        mean = np.einsum("s,s...->...", components.weights, means)
        if "difference" not in names:
            return [mean]

        # E|Y - Y'| / 2 = E|Y - y| - score(y) for any y. Take the value of the table at the mean.
        centre = table.value(loc)
        above = table.excess(loc, scale, centre, 1.0)
        below = table.excess(loc, scale, centre, -1.0)
        return [mean, above + below - self._tabulated_score(table, components, centre)]

    def _node_functionals(
        self, names: tuple[Functional, ...], z: Array, weights: Array
    ) -> list[Array]:
        """Return functionals (N, T) by nodes and their weights, both (K, N, T).

        They are NaN if the outermost nodes of a component have too much weight.
        """
        values = _transform(self._transformations, z)
        functionals = self._summarise(names, z, values, weights)
        if self._kinks:
            is_heavy = self._has_heavy_tails(values, weights)
            functionals[0] = np.where(is_heavy, np.nan, functionals[0])
        return functionals

    def _summarise(
        self, names: tuple[Functional, ...], z: Array, values: Array, weights: Array
    ) -> list[Array]:
        """Return functionals (N, T) by nodes.

        Parameters
        ----------
        names : tuple of {"mean", "variance", "difference"}
            Functionals, see `_functionals`.
        z, values : ndarray of shape (K, N, T)
            Nodes, and values of the target there.
        weights : ndarray of shape (K, N, T)
            Weights with sum 1.
        """
        mean, variance = _node_moments(values, weights)
        functionals = {"mean": mean, "variance": variance}
        if "difference" in names:
            # Half the mean difference is the covariance of Y with 2 F(Y) - 1.
            scale = np.maximum(self._components.scale[0], _TINY)
            excess = 2.0 * _normal_cdf((z - self._components.loc[0]) / scale, scale) - 1.0
            with np.errstate(invalid="ignore", over="ignore"):
                deviation = np.where(weights > 0.0, values - mean, 0.0)
                covariance = np.einsum("k...,k...,k...->...", weights, excess, deviation)
            functionals["difference"] = np.abs(covariance)
        return [functionals[name] for name in names]

    def _has_heavy_tails(self, values: Array, weights: Array) -> npt.NDArray[np.bool_]:
        """Whether the outermost nodes of a component matter for the variance, (N, T).

        On the side of a pole they don't count: panels would come closer to it.
        """
        mean, variance = _node_moments(values, weights)
        shape = (-1, len(self._components.weights), *values.shape[1:])
        ends = values.reshape(shape)[[0, -1]]
        with np.errstate(invalid="ignore", over="ignore"):
            tail = weights.reshape(shape)[[0, -1]] * np.square(ends - mean)
        is_open = np.ones(tail.shape, dtype=bool)
        for distance in self._pole_distances():
            is_open[0] &= (distance > 0.0) | (distance < -_HERMITE_REACH)
            is_open[1] &= (distance < 0.0) | (distance > _HERMITE_REACH)
        return np.asarray((is_open & (tail > _MAX_TAIL * variance)).any(axis=(0, 1)))

    def _moment_nodes(self, index: Array) -> tuple[Array, Array, Array]:
        """Return z, values and weights, (K, n_index, T), whose sums are moments of rows."""
        if self._fixed is None:
            panels = self._make_panels(_MOMENT_RULE, index)
            z, weights = panels.weighted_nodes([kink[index] for kink in self._kinks])
        else:
            z, weights, below = (values[:, index] for values in self._fixed)
        values = _transform(self._transformations, z)
        is_infinite = np.isinf(values)
        if is_infinite.any():
            if self._fixed is None:
                below = panels.cdf(z, is_infinite)
            values, weights = _drop_poles(values, weights, 1.0 - below if self._falls else below)
        return z, values, weights

    def _infinite_means(self) -> Array:
        """Return infinity of the sign of a pole that has probability beyond it, else 0, (N, T)."""
        infinite = np.zeros(self._shape)
        argument = self._affine_argument()
        if argument is None:
            return infinite
        for pole in self._transformations[-1].poles:
            sign = np.sign(pole)
            with np.errstate(divide="ignore", invalid="ignore"):
                score = sign * (argument.loc - pole) / argument.scale
            outside = np.einsum("s,s...->...", argument.weights, ndtr(score))
            infinite = np.where(outside > _NEGLIGIBLE_PROBABILITY, sign * np.inf, infinite)
        return infinite

    def closed_form_crps(self, y: Array) -> Array | None:
        """Return the CRPS at targets (G, N, T), or None without a closed form."""
        closed = self._closed_form()
        if closed is None:
            return None
        return closed.form.crps(*closed.components, y)

    def _closed_form(self) -> "_ClosedForm | None":
        """Return the closed form of the last transformation if all before it are affine."""
        if not self._transformations:
            return None
        form = self._transformations[-1].closed_form
        if form is None:
            return None
        argument = self._affine_argument()
        if argument is None:
            return None
        return _ClosedForm(form, argument)

    def _affine_argument(self) -> "NormalComponents | None":
        """Return the argument of the last transformation if all before it are affine."""
        before = self._transformations[:-1]
        is_affine = all(transformation.affine is not None for transformation in before)
        if not is_affine or not self._is_normal:
            return None
        weights, loc, scale = self._components
        for transformation in before:
            location, slope = transformation.affine  # type: ignore[misc]
            loc = location + slope * loc
            scale = np.abs(slope) * scale
        return NormalComponents(weights, loc, scale)

    def absolute_argument(self) -> NormalMixture | None:
        """Return a mixture of which quantiles above the median are those of an absolute value.

        It is the argument Z of the last transformation, which is even, and its negative, with equal
        weights. The quantile of ``|Z|`` at the level p is the mixture's quantile at
        ``(1 + p) / 2``. None if Z is no mixture of normals.
        """
        if self._absolute is None:
            return None
        weights, loc, scale = (torch.as_tensor(values) for values in self._absolute)
        return NormalMixture(loc, torch.zeros_like(loc), scale.square(), weights.log())

    def _invert(
        self, values: Array, transformations: Sequence[TargetTransformation]
    ) -> list[Array]:
        """Return the values of the innermost target that are transformed to ``values``."""
        points = [values]
        for transformation in reversed(transformations):
            points = [branch.inward(v) for v in points for branch in transformation.branches]
        return points

    def _component_nodes(self, gaps: tuple[float, ...]) -> tuple[Array, Array] | None:
        """Return nodes and weights of each component, or None if panels are more accurate.

        Weights of rows are NaN if a component is near a singularity or there are several kinks.
        """
        components = self._components
        if len(components.weights) >= _MIN_LARGE_MIXTURE:
            return _hermite_nodes(components, _N_NODES_LARGE)
        if all(t.is_analytic for t in self._transformations):
            return _hermite_nodes(components, _N_NODES_SMALL)
        if not all(t.is_smooth for t in self._transformations):
            return None
        if len(self._smooth_kinks) > 1:
            return None
        has_pole = any((np.abs(d) < _HERMITE_REACH).any() for d in self._pole_distances())
        if self._smooth_kinks or has_pole:
            values, weights = self._split_nodes(gaps)
        else:
            values, weights = _hermite_nodes(components, _N_NODES_SMALL)
        return values, np.where(self._is_singular(self._panel_distance), np.nan, weights)

    @cached_property
    def _smooth_kinks(self) -> list[Array]:
        return self._invert_all([t.smooth_kinks for t in self._transformations])

    @cached_property
    def _poles(self) -> list[Array]:
        """Values of the innermost target at which the target is infinite, (N, T) each."""
        return self._invert_all([t.poles for t in self._transformations])

    @property
    def _panel_distance(self) -> float:
        """Distance of poles for which panels of usual width suffice, in standard deviations."""
        return _POLE_REACH + 0.5 + 0.2 * (self._pole_order - 1.0)

    @property
    def _table_distance(self) -> float:
        """Distance of poles for which functionals can be interpolated, in standard deviations."""
        return _POLE_REACH + 0.75 + 0.4 * (self._pole_order - 1.0)

    @cached_property
    def _pole_order(self) -> float:
        return max([1.0, *(t.pole_order for t in self._transformations)])

    def _pole_distances(self) -> list[Array]:
        """Return the positions of poles in standard deviations of the components, (S, N, T)."""
        scale = np.maximum(self._components.scale, _TINY)
        with np.errstate(over="ignore"):
            return [(pole - self._components.loc) / scale for pole in self._poles]

    def _is_singular(self, pole_distance: float) -> npt.NDArray[np.bool_]:
        """Whether a component reaches a point at which the transformation isn't analytic, (N, T).

        Smooth kinks don't count, and poles at least ``pole_distance`` standard deviations away.
        """
        is_singular = np.zeros(self._shape, dtype=bool)
        scale = self._components.scale
        for point in self._invert_all([t.singular_points or () for t in self._transformations]):
            is_pole = np.zeros(self._shape, dtype=bool)
            for pole in self._poles:
                is_pole |= point == pole
            reach = np.where(is_pole, pole_distance, _SIDE_REACH)
            is_near = np.abs(point - self._components.loc) < reach * scale
            is_singular |= is_near.any(axis=0)
        return is_singular

    def _reach(self) -> tuple[Array, Array]:
        """Return how far components count below and above, in standard deviations, (S, N, T).

        Next to a pole this leaves out the outermost 1e-6 of the probability, and less with a
        growing distance from the pole.
        """
        below = np.full(self._components.loc.shape, _SIDE_REACH)
        above = below.copy()
        for distance in self._pole_distances():
            reach = np.clip(np.abs(distance) - _POLE_MARGIN, _POLE_REACH, _SIDE_REACH)
            np.minimum(above, np.where(distance > 0.0, reach, _SIDE_REACH), out=above)
            np.minimum(below, np.where(distance > 0.0, _SIDE_REACH, reach), out=below)
        return below, above

    def _split_nodes(self, gaps: tuple[float, ...]) -> tuple[Array, Array]:
        """Return nodes and weights, (K, N, T), of panels per component that meet at a kink.

        Parameters
        ----------
        gaps : tuple of float
            Distances from the outer ends, in standard deviations, at which further panels begin.
        """
        mixture_weights, loc, scale = self._components
        below, above = self._reach()
        meeting = np.zeros_like(below)
        if self._smooth_kinks:
            # A kink in the tail has no effect, and the panels may meet before it.
            meeting = (self._smooth_kinks[0] - loc) / np.maximum(scale, _TINY)
            meeting = np.clip(meeting, -_KINK_REACH, _KINK_REACH)
        lower = [gap - below for gap in reversed(gaps)]
        upper = [above - gap for gap in gaps]
        if gaps == _POLE_GAPS:
            # Without a pole on a side, a single panel suffices.
            lower = lower if (below < _SIDE_REACH).any() else []
            upper = upper if (above < _SIDE_REACH).any() else []
        edges = [-below, *lower, meeting, *upper, above]
        nodes, node_weights = (rule[:, None, None, None] for rule in _legendre_rule(_N_NODES_SIDE))
        scores = []
        steps = []
        for start, stop in pairwise(edges):
            half = 0.5 * (stop - start)
            scores.append(start + half * (1.0 + nodes))
            steps.append(half * node_weights)
        u = np.concatenate(scores)
        density = np.concatenate(steps) * np.exp(-0.5 * u * u)
        density *= mixture_weights[:, None, None] / density.sum(axis=0)
        values = loc + scale * u
        return values.reshape(-1, *loc.shape[1:]), density.reshape(-1, *loc.shape[1:])

    def _invert_all(self, positions: Sequence[Sequence[Any]]) -> list[Array]:
        """Return the values of the innermost target at which each transformation has positions."""
        shape = self._shape
        inverted = []
        for k, values in enumerate(positions):
            for value in values:
                if np.isfinite(value).any():
                    inverted += self._invert(
                        np.broadcast_to(value, shape), self._transformations[:k]
                    )
        return inverted

    @property
    def _shape(self) -> tuple[int, int]:
        """Numbers of rows and targets, (N, T)."""
        if self._given_components is not None:
            shape = self._given_components.loc.shape[1:]
        else:
            shape = self._root.shape
        return shape[0], shape[1] if len(shape) == 2 else 1

    def _warn_infinite(self, rows: npt.NDArray[np.bool_]) -> None:
        """Warn of rows (N,) whose moments are infinite."""
        if rows.any():
            warn_user(
                f"the mean, standard deviation and CRPS of {rows.sum()} rows, the first is row "
                f"{int(rows.argmax())}, are infinite: {self._distribution!r} has a probability "
                f"above {_NEGLIGIBLE_PROBABILITY:g} of values for which the inverse of the "
                "transformation is infinite. Quantiles, cdf and log_prob hold; another "
                "transformation of y, such as a logarithm, has an inverse everywhere.",
                UserWarning,
            )


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


class _ClosedForm(NamedTuple):
    """Closed form of a transformation, and the components that it transforms.

    Attributes
    ----------
    form : ClosedForm
        Moments and score of the transformation.
    components : NormalComponents
        Components of its argument.
    """

    form: ClosedForm
    components: NormalComponents

    @property
    def table(self) -> TabulatedForm | None:
        """The form if it is a table, whose scores are integrals instead of formulas."""
        if isinstance(self.form, TabulatedForm):
            return self.form
        return None


class _Panels:
    """Composite Gauss-Legendre quadrature in the units of a distribution.

    For a mixture of normals, panels between the means are as wide as the narrowest component
    requires. Beyond the means the widths double for scores: only components that are as wide as the
    distance contribute there. If there would be too many panels, they end at order statistics of
    all components' means plus multiples of their standard deviations. For other
    densities, the width of panels grows with the distance from the median.

    Parameters
    ----------
    root : PredictiveDistribution
        Distribution with a density.
    components : NormalComponents or None
        Components of a mixture of normals.
    rule : PanelRule
        Edges and nodes.
    lowest : float, default=-inf
        End of the range of integration.
    """

    def __init__(
        self,
        root: Any,
        components: NormalComponents | None,
        rule: PanelRule,
        lowest: float = -np.inf,
    ) -> None:
        self._root = root
        self._rule = rule
        self._is_normal = components is not None
        if components is not None:
            self._weights = components.weights
            self._loc = components.loc
            self._scale = np.maximum(components.scale, _TINY)
            low = np.maximum((self._loc + rule.edges[0] * self._scale).min(axis=0), lowest)
            high = np.maximum((self._loc + rule.edges[-1] * self._scale).max(axis=0), lowest)
            width = np.diff(rule.edges).min() * self._scale.min(axis=0)
            if rule is _MOMENT_RULE:
                panel_edges = _divide(low, high, width)
            else:
                first = np.maximum(self._loc.min(axis=0), low)
                last = np.maximum(self._loc.max(axis=0), low)
                below = first - _halve(first - low, width)[::-1]
                above = last + _halve(high - last, width)
                panel_edges = np.concatenate([below, _divide(first, last, width), above])
            if len(panel_edges) <= _MAX_PANELS + 1:
                self.edges = panel_edges
            else:
                edges = self._loc + rule.edges[:, None, None, None] * self._scale
                edges = np.sort(edges.reshape(-1, *self._loc.shape[1:]), axis=0)
                n_edges = min(len(edges), _MAX_PANELS + 1)
                index = np.linspace(0, len(edges) - 1, n_edges).round().astype(int)
                self.edges = np.maximum(edges[index], lowest)
        else:
            quartiles = np.moveaxis(root.quantile_grid(np.array([0.25, 0.5, 0.75])), -1, 0)
            low, median, high = with_target_axis(quartiles)
            steps = np.sinh(np.linspace(-10.0, 10.0, 2 * _MAX_PANELS + 1))[:, None, None]
            self.edges = median + steps * np.maximum(high - low, _TINY)

    def nodes(self, kinks: Sequence[Array]) -> tuple[Array, Array, Array]:
        """Return nodes, weights and the distribution function, (K, N, T).

        Parameters
        ----------
        kinks : sequence of ndarray of shape (N, T)
            Values at which panels end in addition to the usual edges.
        """
        z, weights = self.weighted_nodes(kinks)
        return z, weights, self._evaluate(z, _normal_cdf, self._root.cdf_grid)

    def plain_nodes(self, kinks: Sequence[Array]) -> tuple[Array, Array]:
        """Return nodes and weights, (K, N, T), of the same panels as `nodes`, without a density."""
        inside = [
            np.clip(kink, self.edges[0], self.edges[-1])[None]
            for kink in kinks
            if ((kink > self.edges[0]) & (kink < self.edges[-1])).any()
        ]
        edges = np.sort(np.concatenate([self.edges, *inside]), axis=0)
        half = 0.5 * np.diff(edges, axis=0)
        z = edges[:-1, None] + half[:, None] * (1.0 + self._rule.nodes[:, None, None])
        z = z.reshape(-1, *edges.shape[1:])
        step = half[:, None] * self._rule.weights[:, None, None]
        return z, step.reshape(-1, *edges.shape[1:])

    def weighted_nodes(self, kinks: Sequence[Array]) -> tuple[Array, Array]:
        """Return nodes and weights by the density, (K, N, T)."""
        z, step = self.plain_nodes(kinks)
        weights = step * self._evaluate(z, _normal_density, self._root_density)
        total = weights.sum(axis=0)
        # All panels of a point mass have zero width, and its density is no number: its nodes, which
        # coincide, have equal weights.
        has_density = total > 0.25  # 1, or a half if the range ends in the middle
        weights = weights / np.where(has_density, total, 1.0)
        return z, np.where(has_density, weights, 1.0 / len(z))

    def cdf(self, z: Array, selected: Array) -> Array:
        """Return the distribution function at selected nodes, and 0.5 at the others, (K, N, T)."""
        if not self._is_normal:
            return np.where(selected, self._root.cdf_grid(z), 0.5)
        node, row, target = np.nonzero(selected)
        u = (z[node, row, target] - self._loc[:, row, target]) / self._scale[:, row, target]
        below = np.full(z.shape, 0.5)
        below[node, row, target] = np.einsum("s,sm->m", self._weights, ndtr(u))
        return below

    def _root_density(self, z: Array) -> Array:
        return np.asarray(np.exp(self._root.log_prob_grid(z))[..., None])

    def _evaluate(
        self,
        z: Array,
        component_function: Callable[[Array, Array], Array],
        function: Callable[[Array], Array],
    ) -> Array:
        """Average a function over the components, or evaluate it for other distributions.

        Parameters
        ----------
        z : ndarray of shape (K, N, T)
            Nodes.
        component_function : callable
            Function of standardised nodes and of the standard deviations of the components.
        function : callable
            Function of nodes, for distributions without normal components.

        Returns
        -------
        ndarray of shape (K, N, T)
        """
        if not self._is_normal:
            return function(z)
        if len(self._weights) == 1:
            return component_function((z - self._loc[0]) / self._scale[0], self._scale[0])
        average = np.empty(z.shape)
        block = max(1, (1 << 20) // max(1, self._loc.size))
        for start in range(0, len(z), block):
            rows = slice(start, start + block)
            u = (z[rows, None] - self._loc) / self._scale
            values = component_function(u, self._scale)
            average[rows] = np.einsum("s,ks...->k...", self._weights, values)
        return average


def _divide(low: Array, high: Array, width: Array) -> Array:
    """Return edges (K + 1, N, T) of equal panels that are at most as wide as a width (N, T)."""
    n_panels = _round_up(((high - low) / width).max(initial=0.0))
    return low + np.linspace(0.0, 1.0, n_panels + 1)[:, None, None] * (high - low)


def _halve(distance: Array, width: Array) -> Array:
    """Return ``distance`` and its halves until they are below a width, (K, N, T), rising."""
    n_panels = 1 + _round_up(np.log2(np.maximum(distance / width, 1.0)).max(initial=0.0))
    return distance * 0.5 ** np.arange(n_panels - 1, -1, -1)[:, None, None]


def _round_up(number: float) -> int:
    """Return the next integer, or one that is too large for a number of panels."""
    return int(np.ceil(min((1.0 - 1e-9) * number, 1e4)))


def _normal_cdf(u: Array, _: Array) -> Array:
    return np.asarray(torch.special.ndtr(torch.from_numpy(u)).numpy())  # faster than SciPy's


def _normal_density(u: Array, scale: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(-0.5 * u * u) / (scale * np.sqrt(2.0 * np.pi)))


def _transform(transformations: Sequence[TargetTransformation], values: Array) -> Array:
    for transformation in transformations:
        values = transformation.outward(values)
    return values


def _infinite_values(names: tuple[Functional, ...], infinite: Array) -> list[Array]:
    """Return functionals of rows and targets whose mean is infinite (N, T), and NaN for others."""
    limits = {"mean": infinite, "variance": np.abs(infinite), "difference": np.abs(infinite)}
    return [np.where(infinite != 0.0, limits[name], np.nan) for name in names]


def _node_moments(values: Array, weights: Array) -> tuple[Array, Array]:
    """Return mean and variance (N, T) of values and weights (K, N, T)."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.einsum("k...,k...->...", weights, values)
        deviation = np.where(weights > 0.0, values - mean, 0.0)
        variance = np.einsum("k...,k...,k...->...", weights, deviation, deviation)
    return mean, np.where(np.isfinite(mean), variance, np.inf)


def _drop_poles(values: Array, weights: Array, below: Array) -> tuple[Array, Array]:
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
        is_small = (weights * infinite).sum(axis=0) < _NEGLIGIBLE_PROBABILITY
        dropped = infinite.any(axis=0) & is_small & (outside < _NEGLIGIBLE_PROBABILITY)
        weights = np.where(dropped, 0.0, weights)
        weights = weights / weights.sum(axis=0)
    return np.where(weights > 0.0, values, 0.0), weights


def _hermite_nodes(components: NormalComponents, n_nodes: int) -> tuple[Array, Array]:
    """Return Gauss-Hermite nodes and weights of each normal component, (K, N, T)."""
    mixture_weights, loc, scale = components
    nodes, node_weights = _hermite_rule(n_nodes)
    values = (loc[None] + nodes[:, None, None, None] * scale[None]).reshape(-1, *loc.shape[1:])
    weights = node_weights[:, None] / node_weights.sum() * mixture_weights
    return values, np.broadcast_to(weights.reshape(-1, 1, 1), values.shape)


@cache
def _legendre_rule(n_nodes: int) -> tuple[Array, Array]:
    """Return nodes and weights of Gauss-Legendre quadrature from -1 to 1."""
    return np.polynomial.legendre.leggauss(n_nodes)  # type: ignore[no-any-return]


@cache
def _hermite_rule(n_nodes: int) -> tuple[Array, Array]:
    """Return nodes and weights for integrals over a standard normal density, up to its constant."""
    return np.polynomial.hermite_e.hermegauss(n_nodes)  # type: ignore[no-any-return]


def _count_nodes(root: Any) -> tuple[Array, Array, Array] | None:
    """Return all relevant counts, their probabilities and cdf, or None if there are too many."""
    ends = root.quantile_grid(np.array([1e-10, 1.0 - 1e-10]))
    low = with_target_axis(ends[None, ..., 0])[0]
    high = with_target_axis(ends[None, ..., 1])[0]
    n_values = int((high - low).max(initial=0.0)) + 1
    if n_values > _MAX_COUNTS:
        return None
    counts = low + np.arange(n_values)[:, None, None]
    cdf = root.cdf_grid(counts)
    mass = np.diff(cdf, axis=0, prepend=0.0)
    return counts, mass / mass.sum(axis=0), cdf - 0.5 * mass


def _quantile_nodes(root: Any) -> tuple[Array, Array, Array]:
    """Return quantiles whose levels have Gauss-Legendre nodes as normal scores."""
    edges = np.linspace(-8.0, 8.0, 17)
    scores = (edges[:-1, None] + 0.5 * (1.0 + _MOMENT_RULE.nodes)).ravel()
    weights = np.tile(0.5 * _MOMENT_RULE.weights, 16) * norm.pdf(scores)
    weights = weights / weights.sum()
    values = with_target_axis(np.moveaxis(root.quantile_grid(ndtr(scores)), -1, 0))
    weights = np.broadcast_to(weights[:, None, None], values.shape)
    return values, weights, np.broadcast_to(ndtr(scores)[:, None, None], values.shape)
