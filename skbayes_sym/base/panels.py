"""Composite Gauss-Legendre quadrature over predictive distributions.

Panels of a mixture of normals are as wide as its components require. Those of other densities widen
with the distance from the median. Counts and joint distributions have fixed nodes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from skbayes_sym.base.rows import Array
from skbayes_sym.base.transformed_normals import TINY, NormalComponents

_MAX_PANELS = 32
_MAX_COUNTS = 4096  # counts that are summed one by one


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


# The distribution function is smoother than the density, and its tails matter less. The error of
# scores is below 1e-4 standard deviations of the target (tests/base/test_closed_forms.py).
SCORE_RULE = PanelRule(np.array([-7.0, 0.0, 7.0]), *np.polynomial.legendre.leggauss(10))
# Scores by tables, whose slope jumps.
TABLE_RULE = PanelRule(np.array([-6.0, -3.0, 0.0, 3.0, 6.0]), *np.polynomial.legendre.leggauss(8))


def _node_integrals(rule: PanelRule) -> Array:
    """Return the part of each node's weight that lies below each node, (K, K).

    The integral of the polynomial through values at the nodes of a panel, from its lower end to
    node k, is the sum of the products of row k with the weighted values.
    """
    n_nodes = len(rule.nodes)
    coefficients = np.linalg.inv(np.polynomial.legendre.legvander(rule.nodes, n_nodes - 1))
    integrals = np.polynomial.legendre.legint(coefficients, lbnd=-1.0)
    return np.polynomial.legendre.legval(rule.nodes, integrals).T / rule.weights


_NODE_INTEGRALS = _node_integrals(TABLE_RULE)


def with_target_axis(values: Array) -> Array:
    """Return values (S, N) or (S, N, T) with an axis of targets."""
    return values if values.ndim == 3 else values[..., None]


class MixtureValues(NamedTuple):
    """Functions of a mixture of normals in units of its narrowest component, (K, N, T) each.

    Attributes
    ----------
    cdf, density : ndarray
        Distribution function and density.
    slope : ndarray
        Derivative of the density; empty if it isn't needed.
    """

    cdf: Array
    density: Array
    slope: Array


class MixturePanels:
    """Panels of a mixture of normals.

    Between the means, panels are as wide as the narrowest component requires. Beyond the means the
    widths double: only components that are as wide as the distance contribute there. If there would
    be too many panels, they end at order statistics of all components' means plus multiples of
    their standard deviations.

    Parameters
    ----------
    components : NormalComponents
        Components.
    rule : PanelRule
        Edges and nodes.
    lowest : float, default=-inf
        End of the range of integration.
    """

    def __init__(
        self, components: NormalComponents, rule: PanelRule, lowest: float = -np.inf
    ) -> None:
        self._rule = rule
        self._weights, self._loc, scale = components
        self._scale = np.maximum(scale, TINY)
        self.unit = self._scale.min(axis=0)
        low = np.maximum((self._loc + rule.edges[0] * self._scale).min(axis=0), lowest)
        high = np.maximum((self._loc + rule.edges[-1] * self._scale).max(axis=0), lowest)
        first = np.maximum(self._loc.min(axis=0), low)
        last = np.maximum(self._loc.max(axis=0), low)
        width = np.diff(rule.edges).min() * self.unit
        below = first - _halve(first - low, width)[::-1]
        above = last + _halve(high - last, width)
        self._edges = np.concatenate([below, _divide(first, last, width), above])
        if len(self._edges) > _MAX_PANELS + 1:
            edges = self._loc + rule.edges[:, None, None, None] * self._scale
            edges = np.sort(edges.reshape(-1, *self._loc.shape[1:]), axis=0)
            n_edges = min(len(edges), _MAX_PANELS + 1)
            index = np.linspace(0, len(edges) - 1, n_edges).round().astype(int)
            self._edges = np.maximum(edges[index], lowest)

    def plain_nodes(self, kinks: Sequence[Array]) -> tuple[Array, Array]:
        """Return nodes and weights, (K, N, T), for integrals over z.

        Parameters
        ----------
        kinks : sequence of ndarray of shape (N, T)
            Values at which panels end in addition to the usual edges.
        """
        return _plain_nodes(self._edges, kinks, self._rule)

    def nodes(self, kinks: Sequence[Array]) -> tuple[Array, Array, Array]:
        """Return nodes, their probabilities and the distribution function, (K, N, T)."""
        z, step = self.plain_nodes(kinks)
        values = self.evaluate(z)
        return z, _normalise(step / self.unit * values.density), values.cdf

    def evaluate(self, z: Array, *, with_slope: bool = False) -> MixtureValues:
        """Evaluate the mixture at z (K, N, T).

        Probabilities are accurate to 1e-7, which is enough for scores and takes half the time.
        """
        nodes = torch.from_numpy(z)
        cdf = torch.full(z.shape, 0.5, dtype=torch.float32)
        density = torch.zeros_like(cdf)
        slope = torch.zeros_like(cdf if with_slope else cdf[:0])
        parts = zip(self._weights.tolist(), self._loc, self._scale, strict=True)
        for weight, loc, scale in parts:
            with np.errstate(over="ignore"):
                inverse = torch.from_numpy(1.0 / scale)
                relative = torch.from_numpy(self.unit / scale).float()
            u = ((nodes - torch.from_numpy(loc)) * inverse).float()
            cdf += (u * 0.5**0.5).erf_().mul_(0.5 * weight)
            part = torch.exp(u.square().mul_(-0.5)).mul_(relative * (weight / (2.0 * np.pi) ** 0.5))
            density += part
            if with_slope:
                slope -= part.mul_(u).mul_(relative)
        return MixtureValues(*(_double(values) for values in (cdf, density, slope)))


def _double(values: Tensor) -> Array:
    return np.asarray(values.double().numpy())


class DensityPanels:
    """Panels of a distribution of one target that has a density.

    Parameters
    ----------
    root : PredictiveDistribution
        Distribution.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        quartiles = np.moveaxis(root.quantile_grid(np.array([0.25, 0.5, 0.75])), -1, 0)
        low, median, high = with_target_axis(quartiles)
        steps = np.sinh(np.linspace(-10.0, 10.0, 2 * _MAX_PANELS + 1))[:, None, None]
        self._edges = median + steps * np.maximum(high - low, TINY)

    def nodes(self, kinks: Sequence[Array]) -> tuple[Array, Array, Array]:
        """Return nodes, their probabilities and the distribution function, (K, N, T).

        Parameters
        ----------
        kinks : sequence of ndarray that broadcast to (N, T)
            Values at which panels end in addition to the usual edges and to jumps of the density.
        """
        kinks = [*kinks, *self._root.density_jumps]
        z, step = _plain_nodes(self._edges, kinks, TABLE_RULE)
        weights = _normalise(step * self._density(z))
        return z, weights, _accumulate(weights)

    def absolute_nodes(
        self, kinks: Sequence[Array], location: Any, slope: Any
    ) -> tuple[Array, Array, Array]:
        """Return nodes of ``abs(location + slope * z)``, see `nodes`.

        Parameters
        ----------
        kinks : sequence of ndarray that broadcast to (N, T)
            Absolute values at which panels end.
        location, slope : float or ndarray of shape (T,)
            Coefficients of z.
        """
        jumps = [np.abs(location + slope * jump) for jump in self._root.density_jumps]
        edges = np.abs(location + slope * self._edges)
        edges = np.sort(np.concatenate([np.zeros_like(edges[:1]), edges]), axis=0)
        values, step = _plain_nodes(edges, [*kinks, *jumps], TABLE_RULE)
        density = sum(self._density((sign * values - location) / slope) for sign in (-1.0, 1.0))
        weights = _normalise(step / np.abs(slope) * density)
        return values, weights, _accumulate(weights)

    def _density(self, z: Array) -> Array:
        return np.asarray(np.exp(self._root.log_prob_grid(z))[..., None])


def _accumulate(weights: Array) -> Array:
    """Return the distribution function at nodes of panels with `TABLE_RULE`.

    Parameters
    ----------
    weights : ndarray of shape (K, N, T)
        Probabilities of the nodes.
    """
    by_panel = weights.reshape(-1, len(TABLE_RULE.nodes), *weights.shape[1:])
    total = by_panel.sum(axis=1)
    before = np.cumsum(total, axis=0) - total
    inside = np.einsum("kj,pj...->pk...", _NODE_INTEGRALS, by_panel)
    return (before[:, None] + inside).reshape(weights.shape)


def _plain_nodes(edges: Array, kinks: Sequence[Array], rule: PanelRule) -> tuple[Array, Array]:
    """Return nodes and weights (K, N, T) of panels that end at edges (E, N, T) and at kinks."""
    inside = [
        np.clip(kink, edges[0], edges[-1])[None]
        for kink in kinks
        if ((kink > edges[0]) & (kink < edges[-1])).any()
    ]
    edges = np.sort(np.concatenate([edges, *inside]), axis=0)
    half = 0.5 * np.diff(edges, axis=0)
    z = edges[:-1, None] + half[:, None] * (1.0 + rule.nodes[:, None, None])
    step = half[:, None] * rule.weights[:, None, None]
    shape = (-1, *edges.shape[1:])
    return z.reshape(shape), step.reshape(shape)


def _normalise(weights: Array) -> Array:
    """Divide probabilities of nodes (K, N, T) by their sum.

    All panels of a point mass have zero width, and its density is no number: its nodes, which
    coincide, have equal weights.
    """
    total = weights.sum(axis=0)
    has_density = total > 0.25  # 1, or a half if the range ends in the middle
    weights = weights / np.where(has_density, total, 1.0)
    return np.where(has_density, weights, 1.0 / len(weights))


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


def count_nodes(root: Any) -> tuple[Array, Array, Array] | None:
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


def quantile_nodes(root: Any) -> tuple[Array, Array, Array]:
    """Return quantiles whose levels have Gauss-Legendre nodes as normal scores."""
    edges = np.linspace(-8.0, 8.0, 17)
    scores = (edges[:-1, None] + 0.5 * (1.0 + TABLE_RULE.nodes)).ravel()
    weights = np.tile(0.5 * TABLE_RULE.weights, 16) * np.exp(-0.5 * np.square(scores))
    weights = weights / weights.sum()
    values = with_target_axis(np.moveaxis(root.quantile_grid(ndtr(scores)), -1, 0))
    weights = np.broadcast_to(weights[:, None, None], values.shape)
    return values, weights, np.broadcast_to(ndtr(scores)[:, None, None], values.shape)
