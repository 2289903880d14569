"""Integrals over predictive distributions by Gaussian quadrature.

`Quadrature` returns nodes and weights for the mean, the standard deviation and the continuous
ranked probability score of a distribution, or of a transformation of a distribution.
"""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from scipy.stats import norm

from skbayes_sym.base.closed_forms import ClosedForm
from skbayes_sym.base.rows import Array
from skbayes_sym.base.target_transformation import TargetTransformation
from skbayes_sym.base.warnings import warn_user


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

    Notes
    -----
    Mixtures of normals are integrated by composite Gauss-Legendre quadrature in the units of the
    innermost distribution, counts by a sum over their values, and joint distributions of several
    targets over their quantiles. Moments of a mixture under transformations that are analytic
    everywhere are integrated by Gauss-Hermite quadrature instead, and those under a Yeo-Johnson
    transformation by two panels per component that meet at zero. Their error, and that of scores,
    is below 1e-4 standard deviations, unless a branch point, such as the end of the range of a
    Box-Cox transformation, lies within the distribution.
    """

    def __init__(self, distribution: Any) -> None:
        root, transformations = distribution.unwrap_transformations()
        if not root.has_normal_components:
            root = root.evaluated()  # otherwise every evaluation would run the model
        self._distribution = distribution
        self._root = root
        self._transformations = transformations
        n_falling = sum(transformation.falls for transformation in transformations)
        self._falls = n_falling % 2 == 1
        self._is_monotone = all(t.is_monotone for t in transformations)

        is_joint = len(root.shape) == 2 and root.shape[1] > 1
        self._fixed: tuple[Array, Array, Array] | None = None
        if root.is_discrete:
            self._fixed = _count_nodes(root) or _quantile_nodes(root)
        elif is_joint and not root.has_normal_components:
            self._fixed = _quantile_nodes(root)

    @cached_property
    def _components(self) -> "NormalComponents":
        """Components of the innermost distribution, which is a mixture of normals."""
        weights, loc, scale = self._root.components()
        return NormalComponents(np.asarray(weights), with_target_axis(loc), with_target_axis(scale))

    def _make_panels(self, rule: PanelRule, index: Array | None = None) -> "_Panels":
        """Return panels of all rows, or of those with an index if components are normal."""
        if not self._root.has_normal_components:
            return _Panels(self._root, None, rule)
        components = self._components
        if index is not None and len(index) < self._shape[0]:
            loc = components.loc[:, index]
            components = NormalComponents(components.weights, loc, components.scale[:, index])
        return _Panels(self._root, components, rule)

    @cached_property
    def _score_panels(self) -> "_Panels":
        return self._make_panels(_SCORE_RULE)

    @cached_property
    def _kinks(self) -> list[Array]:
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
        else:
            edges = [*self._kinks, *self._invert(targets, self._transformations)]
            z, weights, below = self._score_panels.nodes(edges)
        values = _transform(self._transformations, z)
        if self._falls:
            below = 1.0 - below
        if not self._is_monotone:
            below = self._distribution.cdf_grid(np.nan_to_num(values))
        values, weights = _drop_poles(values, weights, below)
        self._warn_infinite(np.asarray(np.isinf(values).any(axis=(0, 2))))
        return values, weights, below

    def mean(self) -> Array:
        """Return the mean of every row and target, (N, T)."""
        mean, _ = self._moments()
        return mean

    def std(self) -> Array:
        """Return the standard deviation of every row and target, (N, T)."""
        _, variance = self._moments()
        return np.sqrt(variance)

    def _moments(self) -> tuple[Array, Array]:
        """Return the mean and the variance of every row and target, (N, T)."""
        closed = self._closed_form()
        if closed is not None:
            mean, variance = closed.form.moments(*closed.components)
            if np.isfinite(variance).all():
                return mean, variance
        if not self._root.has_normal_components:
            return _node_moments(*self._moment_nodes(np.arange(self._shape[0])))

        # Nodes of each component are cheaper than panels, which only rows with a singularity or
        # heavy tails need. Rows with probability beyond a pole need neither.
        mean = np.full(self._shape, np.nan)
        variance = np.full(self._shape, np.nan)
        nodes = self._component_nodes()
        if nodes is not None:
            z, weights = nodes
            values = _transform(self._transformations, z)
            mean, variance = _node_moments(values, weights)
            if self._kinks:
                n_components = len(self._components.weights)
                is_reliable = ~_are_tails_heavy(values, weights, n_components)
                mean = np.where(is_reliable, mean, np.nan)
        infinite = self._infinite_means()
        mean = np.where(infinite == 0.0, mean, infinite)
        variance = np.where(infinite == 0.0, variance, np.inf)
        self._warn_infinite(np.asarray(np.isinf(mean).any(axis=1)))

        is_unknown = ~np.isfinite(mean + variance) & (infinite == 0.0)
        index = np.flatnonzero(is_unknown.any(axis=1))
        if len(index):
            panel_mean, panel_variance = _node_moments(*self._moment_nodes(index))
            mean[index] = np.where(is_unknown[index], panel_mean, mean[index])
            variance[index] = np.where(is_unknown[index], panel_variance, variance[index])
        return mean, variance

    def _moment_nodes(self, index: Array) -> tuple[Array, Array]:
        """Return values and weights, (K, n_index, T), whose sums are moments of rows."""
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
        is_infinite_row = np.zeros(self._shape[0], dtype=bool)
        is_infinite_row[index] = np.isinf(values).any(axis=(0, 2))
        self._warn_infinite(is_infinite_row)
        return values, weights

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
        if not is_affine or not self._root.has_normal_components:
            return None
        weights, loc, scale = self._components
        for transformation in before:
            location, slope = transformation.affine  # type: ignore[misc]
            loc = location + slope * loc
            scale = np.abs(slope) * scale
        return NormalComponents(weights, loc, scale)

    def _invert(
        self, values: Array, transformations: Sequence[TargetTransformation]
    ) -> list[Array]:
        """Return the values of the innermost target that are transformed to ``values``."""
        points = [values]
        for transformation in reversed(transformations):
            points = [branch.inward(v) for v in points for branch in transformation.branches]
        return points

    def _component_nodes(self) -> tuple[Array, Array] | None:
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
        kinks = self._invert_all([t.smooth_kinks for t in self._transformations])
        if len(kinks) > 1:
            return None
        if kinks:
            values, weights = _split_nodes(components, kinks[0])
        else:
            values, weights = _hermite_nodes(components, _N_NODES_SMALL)
        for point in self._invert_all([t.singular_points or () for t in self._transformations]):
            is_near = np.abs(point - components.loc) < _SIDE_REACH * components.scale
            weights = np.where(is_near.any(axis=0), np.nan, weights)
        return values, weights

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


class _Panels:
    """Composite Gauss-Legendre quadrature in the units of a distribution.

    For a mixture of normals, panels end at order statistics of all components' means plus multiples
    of their standard deviations. For other densities, the width of panels grows with the distance
    from the median.

    Parameters
    ----------
    root : PredictiveDistribution
        Distribution with a density.
    components : NormalComponents or None
        Components of a mixture of normals.
    rule : PanelRule
        Edges and nodes.
    """

    def __init__(self, root: Any, components: NormalComponents | None, rule: PanelRule) -> None:
        self._root = root
        self._rule = rule
        if components is not None:
            self._weights = components.weights
            self._loc = components.loc
            self._scale = np.maximum(components.scale, _TINY)
            edges = self._loc + rule.edges[:, None, None, None] * self._scale
            edges = np.sort(edges.reshape(-1, *self._loc.shape[1:]), axis=0)
            n_edges = min(len(edges), _MAX_PANELS + 1)
            index = np.linspace(0, len(edges) - 1, n_edges).round().astype(int)
            self.edges = edges[index]
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
        return z, weights, self._evaluate(z, lambda u, _: ndtr(u), self._root.cdf_grid)

    def weighted_nodes(self, kinks: Sequence[Array]) -> tuple[Array, Array]:
        """Return nodes and weights, (K, N, T), of the same panels as `nodes`."""
        inside = [np.clip(kink, self.edges[0], self.edges[-1])[None] for kink in kinks]
        edges = np.sort(np.concatenate([self.edges, *inside]), axis=0)
        half = 0.5 * np.diff(edges, axis=0)
        z = edges[:-1, None] + half[:, None] * (1.0 + self._rule.nodes[:, None, None])
        z = z.reshape(-1, *edges.shape[1:])
        step = half[:, None] * self._rule.weights[:, None, None]
        step = step.reshape(-1, *edges.shape[1:])
        weights = step * self._evaluate(z, _normal_density, self._root_density)
        total = weights.sum(axis=0)
        # All panels of a point mass have zero width, and its density is no number: its nodes, which
        # coincide, have equal weights.
        has_density = total > 0.5
        weights = weights / np.where(has_density, total, 1.0)
        return z, np.where(has_density, weights, 1.0 / len(z))

    def cdf(self, z: Array, selected: Array) -> Array:
        """Return the distribution function at selected nodes, and 0.5 at the others, (K, N, T)."""
        if not self._root.has_normal_components:
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
        if not self._root.has_normal_components:
            return function(z)
        average = np.empty(z.shape)
        block = max(1, (1 << 20) // max(1, self._loc.size))
        for start in range(0, len(z), block):
            rows = slice(start, start + block)
            u = (z[rows, None] - self._loc) / self._scale
            values = component_function(u, self._scale)
            average[rows] = np.einsum("s,ks...->k...", self._weights, values)
        return average


def _normal_density(u: Array, scale: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(-0.5 * u * u) / (scale * np.sqrt(2.0 * np.pi)))


def _transform(transformations: Sequence[TargetTransformation], values: Array) -> Array:
    for transformation in transformations:
        values = transformation.outward(values)
    return values


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


def _split_nodes(components: NormalComponents, kink: Array) -> tuple[Array, Array]:
    """Return nodes and weights, (K, N, T), of two panels per component that meet at a kink.

    Parameters
    ----------
    components : NormalComponents
        Mixture of S normal components.
    kink : ndarray of shape (N, T)
        Position at which the third derivative of the integrand jumps.
    """
    mixture_weights, loc, scale = components
    nodes, node_weights = (rule[:, None, None, None] for rule in _legendre_rule(_N_NODES_SIDE))
    # A kink in the tail has no effect, and the panels may meet before it.
    meeting = np.clip((kink - loc) / np.maximum(scale, _TINY), -_KINK_REACH, _KINK_REACH)
    half_below = 0.5 * (meeting + _SIDE_REACH)
    half_above = 0.5 * (_SIDE_REACH - meeting)
    scores = np.concatenate([half_below * nodes - half_above, half_above * nodes + half_below])
    density = np.exp(-0.5 * scores * scores)
    density[:_N_NODES_SIDE] *= half_below * node_weights
    density[_N_NODES_SIDE:] *= half_above * node_weights
    density *= mixture_weights[:, None, None] / density.sum(axis=0)
    values = loc + scale * scores
    return values.reshape(-1, *loc.shape[1:]), density.reshape(-1, *loc.shape[1:])


def _are_tails_heavy(values: Array, weights: Array, n_components: int) -> npt.NDArray[np.bool_]:
    """Whether the outermost nodes of a component matter for the variance, (N, T)."""
    mean, variance = _node_moments(values, weights)
    shape = (-1, n_components, *values.shape[1:])
    ends = values.reshape(shape)[[0, -1]]
    tail = weights.reshape(shape)[[0, -1]] * np.square(ends - mean)
    return np.asarray((tail > _MAX_TAIL * variance).any(axis=(0, 1)))


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
