"""The symmetrisation gap of a normal posterior with any covariance, from its draws.

For draws :math:`\\theta` of q and a finite group of units, ``log q(theta) - log q_G(theta)`` is
``log |G| - log sum_g q(g theta) / q(theta)``. The sum over g is a sum over the leaves of a tree:
one step puts a unit, with a sign, into one place of one layer, and q of the entries that are known
so far is a product of conditional normal densities. Small trees are summed completely. In larger
ones a fixed number of partial assignments is kept, by the optimal resampling of Fearnhead &
Clifford (2003)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.permanent import balancing_scales
from skbayes_sym.numerics.random import Estimate, float64_normal, mean_and_error
from skbayes_sym.symmetry.fundamental_domain import can_enumerate
from skbayes_sym.symmetry.gaps.gap import Side
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import (
    SignedPermutation,
    UnitGroup,
    anchored_entries,
    unit_layers,
)

# Branches whose leaves add less than exp(-16) to a sum that is at least 1 are left out: the error
# of the logarithm is below 2e-7 nats.
_LOG_NEGLIGIBLE = 16.0

# Children of partial assignments that are scored for one draw, where the tree isn't summed
# completely, and in all: 1e7 take one to two seconds.
_CHILDREN_PER_DRAW = 100_000
_CHILDREN_IN_ALL = 10_000_000


class NormalPosterior(Protocol):
    """A normal distribution over P weights, as the only component of a `ModeMixture`."""

    @property
    def loc(self) -> np.ndarray:
        """Mean, (1, P)."""

    @property
    def factor(self) -> np.ndarray:
        """Lower Cholesky factor of the precision, (1, P, P)."""


@dataclass(frozen=True, eq=False)
class MonteCarloGap:
    r"""Gap under exchanges and sign flips of units, of a normal with any covariance.

    Parameters
    ----------
    group : SymmetryGroup
        Group of units, one factor per layer.
    n_params : int
        Number P of weights.
    max_order : int, default=50_000
        Largest number of group elements that are summed completely: six units with signs have
        46,080.
    n_draws : int, default=100
        Number of posterior draws that `estimate` averages.
    n_particles : int or None, default=None
        Number of partial assignments kept for each draw where the group is larger. None: 50 to
        1,000, fewer for wide layers so that the cost stays bounded.

    Notes
    -----
    The elements g are the leaves of a tree with one step for every place a of every layer. With
    the entries ordered by the step at which they become known,

    .. math:: \log q(g\theta) = \sum_a \log q\bigl((g\theta)_a \mid (g\theta)_{<a}\bigr).

    Squared distances only grow along a branch. A branch whose partial sum is too far from that of
    the identity for all of its leaves together to matter (relative :math:`e^{-16}`) is cut off.

    Beyond ``max_order`` the tree is searched by a particle filter on partial assignments, whose
    intermediate targets are the marginal densities of q. It contains the identity, which is a
    draw of the posterior of g given the orbit of :math:`\theta`, as a conditional filter does
    (Whiteley, Andrieu & Doucet 2010). Then :math:`E[1 / \hat Z] = 1 / Z`, so the expectation of
    :math:`\log \hat Z` is at least :math:`\log Z` and the gap has a lower bound.
    """

    group: SymmetryGroup
    n_params: int
    max_order: int = 50_000
    n_draws: int = 100
    n_particles: int | None = None

    @property
    def side(self) -> Side:
        """On which side of the gap `estimate` lies in expectation."""
        return "exact" if can_enumerate(self.group, max_order=self.max_order) else "lower"

    def estimate(
        self, posterior: NormalPosterior, n_draws: int | None = None, *,
        generator: torch.Generator,
    ) -> Estimate:  # fmt: skip
        """Estimate the gap in nats, within [0, log |G|], with its Monte Carlo standard error."""
        if not self.group.log_order:
            return Estimate(0.0, 0.0)
        values = self.values(posterior, n_draws or self.n_draws, generator=generator)
        mean, error = mean_and_error(values)
        return Estimate(min(max(mean, 0.0), self.group.log_order), error)

    def values(
        self, posterior: NormalPosterior, n_draws: int, *, generator: torch.Generator
    ) -> Tensor:
        """Values (n_draws,) that average to the gap or to its lower bound, nats."""
        log_order = self.group.log_order
        if not log_order:
            return torch.zeros(n_draws, dtype=torch.float64)
        tree = _Tree.build(self._layers, posterior)
        noise = float64_normal((n_draws, self.n_params), generator=generator)
        parts = [
            log_order - tree.log_sum(part, self._limit, log_order, generator=generator)
            for part in noise.split(self._chunk)
        ]
        return torch.cat(parts)

    @property
    def affordable_draws(self) -> int:
        """Number of draws that take one to two seconds."""
        per_draw = exp(min(self.group.log_order, log(self.max_order)))
        if self._limit is not None:
            per_draw = self._limit * self._children
        return int(_CHILDREN_IN_ALL / per_draw)

    @cached_property
    def _layers(self) -> tuple[UnitGroup, ...]:
        return unit_layers(self.group)

    @property
    def _children(self) -> int:
        """Children of one particle, summed over the steps."""
        return sum(layer.n_units**2 * (1 + layer.flips) for layer in self._layers)

    @property
    def _limit(self) -> int | None:
        """Particles, None where the tree is summed completely."""
        if self.side == "exact":
            return None
        return self.n_particles or min(1000, max(50, _CHILDREN_PER_DRAW // self._children))

    @property
    def _chunk(self) -> int:
        """Draws that are handled at once."""
        n_particles = self._limit or exp(self.group.log_order)
        widest = max(layer.n_units * (1 + layer.flips) for layer in self._layers)
        return n_rows_per_block(1 << 22, int(n_particles) * max(self.n_params, widest))


def evidence_over_copies(
    gap: MonteCarloGap, log_evidence: np.ndarray, modes: Sequence[NormalPosterior], *,
    generator: torch.Generator, target_error: float = 0.05,
) -> Estimate:  # fmt: skip
    r"""Sum the evidence of modes and of all their copies.

    Parameters
    ----------
    gap : MonteCarloGap
        Gap under the group that makes the copies.
    log_evidence : ndarray of shape (R,)
        Log evidence of every mode by itself, nats.
    modes : sequence of R normal distributions
    generator : torch.Generator
    target_error : float, default=0.05
        Standard error at which no more draws are made, nats; one to two seconds of work end
        them earlier.

    Returns
    -------
    Estimate
        :math:`\log \sum_r \exp(\log Z_r + \mathrm{gap}_r)` and its standard error, nats.

    Notes
    -----
    Modes that count more, and whose gap varies more from draw to draw, get more draws. In
    expectation the sum is on ``gap.side`` of the exact sum over copies, up to a bias of the order
    of the squared standard error from the logarithm of the sum over modes.
    """
    # Few draws compare the modes before more are given to those that count; where draws are cheap
    # there are enough of them to see overlaps that are rare.
    budget = gap.affordable_draws
    n_pilot = max(8, min(100, budget // 25))
    values = [gap.values(mode, n_pilot, generator=generator) for mode in modes]
    n_most = budget + n_pilot * len(modes)
    while True:
        means = torch.stack([part.mean() for part in values]).clamp(0.0, gap.group.log_order)
        spread = torch.stack([part.std() for part in values])
        n = torch.tensor([float(len(part)) for part in values], dtype=torch.float64)
        log_terms = torch.as_tensor(log_evidence, dtype=torch.float64) + means
        errors = log_terms.softmax(0) * spread / n.sqrt()
        error = float(errors.square().sum().sqrt())
        remaining = n_most - int(n.sum())
        if error <= target_error or remaining < 1:
            return Estimate(float(log_terms.logsumexp(0)), error)
        largest = int(errors.argmax())
        n_more = min(remaining, len(values[largest]) // 2)
        more = gap.values(modes[largest], n_more, generator=generator)
        values[largest] = torch.cat([values[largest], more])


class _Step(NamedTuple):
    """One place of one layer."""

    place: int
    candidates: Tensor  # int64 (d, p): the entries that each unit of the layer would bring
    own: Tensor  # (p, p), the conditional whitening of the place's entries
    earlier: Tensor  # (p, n), the dependence on the n entries known before
    mean: Tensor  # (p,)
    root: Tensor  # (p, p), inverse Cholesky factor of the entries' marginal covariance

    def marginal(self, theta: Tensor, *, flips: bool) -> Tensor:
        """Log marginal density of every unit's entries in the place, summed over signs; (*B, d)."""
        candidates = theta[..., self.candidates] @ self.root.mT
        mean = self.mean @ self.root.mT
        square = candidates.square().sum(-1) + mean @ mean
        product = candidates @ mean
        if flips:
            product = torch.logaddexp(product, -product)
        return product - 0.5 * square


class _Tree(NamedTuple):
    """A group as a tree of partial assignments, and a normal distribution along its branches."""

    layers: tuple[UnitGroup, ...]
    steps: tuple[tuple[_Step, ...], ...]  # of every layer
    fixed: Tensor  # int64 (n,): entries that no unit owns
    fixed_root: Tensor  # (n, n), their whitening
    loc: Tensor  # (P,)
    factor: Tensor  # (P, P), lower Cholesky factor of the precision

    @classmethod
    def build(cls, layers: tuple[UnitGroup, ...], posterior: NormalPosterior) -> "_Tree":
        """Order the places and factorise the precision in this order."""
        loc, factor = (
            torch.as_tensor(values, dtype=torch.float64)[0]
            for values in (posterior.loc, posterior.factor)
        )
        masks = anchored_entries(layers)
        tables = [layer.index.cpu()[:, mask] for layer, mask in zip(layers, masks, strict=True)]
        covariance = torch.cholesky_inverse(factor)
        orders = [
            _placement_order(table, loc, covariance, flips=layer.flips).tolist()
            for layer, table in zip(layers, tables, strict=True)
        ]
        moved = torch.cat([table.flatten() for table in tables])
        everything = torch.arange(len(loc))
        fixed = everything[~torch.isin(everything, moved)]
        # Upper triangular R with R'R the precision; its last rows are of what is known first.
        blocks = [
            table[place] for table, order in zip(tables, orders, strict=True) for place in order
        ]
        root = torch.linalg.qr(factor.mT[:, torch.cat([fixed, *blocks][::-1])], mode="r").R
        end = len(loc) - len(fixed)
        fixed_root = root[end:, end:]
        steps: list[list[_Step]] = []
        for table, order in zip(tables, orders, strict=True):
            steps.append([])
            for place in order:
                start = end - table.shape[1]
                own = root[start:end, start:end]
                earlier = root[start:end, end:]
                entries = table[place]
                block = torch.linalg.cholesky(covariance[entries.unsqueeze(1), entries])
                eye = torch.eye(len(entries), dtype=block.dtype)
                marginal = torch.linalg.solve_triangular(block, eye, upper=False)
                steps[-1].append(_Step(place, table, own, earlier, loc[entries], marginal))
                end = start
        return cls(layers, tuple(map(tuple, steps)), fixed, fixed_root, loc, factor)

    def log_sum(
        self, noise: Tensor, limit: int | None, log_order: float, *, generator: torch.Generator
    ) -> Tensor:
        """``log sum_g q(g theta) / q(theta)`` at draws with standard normal ``noise`` (S, P).

        ``limit``: number of particles; None sums all branches that aren't negligible.
        """
        shift = torch.linalg.solve_triangular(self.factor.mT, noise.mT, upper=True).mT
        theta = self.loc + shift
        known = shift[:, self.fixed]
        # Half the squared distance that the identity has yet to collect.
        remaining = 0.5 * (noise.square().sum(1) - (known @ self.fixed_root.mT).square().sum(1))
        particles = _Particles.start(theta, known)
        for layer, steps in zip(self.layers, self.steps, strict=True):
            particles = particles.enter(layer)
            if limit is not None:
                particles = particles.looking_ahead(steps, layer)
            for step in steps:
                increments = particles.increments(step, layer)
                n_choices = increments.shape[-1]
                identity = particles.identity * n_choices + step.place * (1 + layer.flips)
                # Densities are relative to the identity's: the sum is at least 1.
                lost = increments.flatten(1).gather(1, identity.unsqueeze(1))
                remaining = remaining + lost.squeeze(1)
                log_weight = (particles.log_weight.unsqueeze(-1) + increments).flatten(1) - lost
                bound = log_weight + remaining.unsqueeze(1)
                negligible = bound < -(log_order + _LOG_NEGLIGIBLE)
                log_weight = log_weight.masked_fill(negligible, -torch.inf)
                outlook = particles.outlooks(layer).flatten(1)
                selection = select_children(
                    log_weight, outlook, identity, limit, generator=generator
                )
                particles = particles.children(step, layer, selection)
            particles = particles.leave(layer)
        return particles.log_weight.logsumexp(1)


class Selection(NamedTuple):
    """Children that become particles."""

    child: Tensor  # int64 (S, K)
    log_weight: Tensor  # (S, K)
    outlook: Tensor  # (S, K)
    identity: Tensor  # int64 (S,): which of the K is the identity


class _Particles(NamedTuple):
    """Partial assignments: K of each of S draws."""

    theta: Tensor  # (S, K or 1, P), moved by the layers that are complete
    known: Tensor  # (S, K, n): known entries less their means, the latest first
    log_weight: Tensor  # (S, K), of densities relative to the identity's
    identity: Tensor  # int64 (S,): which of the K is the identity
    free: Tensor  # bool (S, K, d): units of the current layer that have no place yet
    permutation: Tensor  # int64 (S, K, d), of the current layer
    sign: Tensor  # int8 (S, K, d)
    outlook: Tensor  # (S, K): by how much the units that are left raise the sum, less a constant
    unit_outlook: Tensor  # (S, K or 1, d): change of the outlook where a unit has got its place

    @classmethod
    def start(cls, theta: Tensor, known: Tensor) -> "_Particles":
        """The root of the tree."""
        n = len(theta)
        slot = torch.zeros(n, dtype=torch.int64)
        free = torch.ones(n, 1, 0, dtype=torch.bool)
        none = torch.zeros(n, 1, 0, dtype=torch.int64)
        zero = theta.new_zeros(n, 1)
        return cls(
            theta.unsqueeze(1), known.unsqueeze(1), zero, slot, free, none, none,
            zero, zero.unsqueeze(1),
        )  # fmt: skip

    def enter(self, layer: UnitGroup) -> "_Particles":
        """Begin a layer: all of its units are free."""
        shape = *self.log_weight.shape, layer.n_units
        permutation = torch.zeros(shape, dtype=torch.int64)
        return self._replace(
            free=torch.ones(shape, dtype=torch.bool),
            permutation=permutation,
            sign=torch.ones(shape, dtype=torch.int8),
            outlook=torch.zeros_like(self.log_weight),
            unit_outlook=self.theta.new_zeros(len(self.theta), 1, layer.n_units),
        )

    def looking_ahead(self, steps: Sequence[_Step], layer: UnitGroup) -> "_Particles":
        """Balance places and units, so that a place doesn't take the unit that another needs.

        The sum over assignments is close to a permanent, of the units' densities in the places.
        The column scales that make this matrix doubly stochastic say how much a unit is in demand.
        """
        if not layer.permutes:
            return self
        scores = torch.stack([step.marginal(self.theta, flips=layer.flips) for step in steps], -2)
        _, column = balancing_scales(scores)
        return self._replace(unit_outlook=column.squeeze(-2))

    def outlooks(self, layer: UnitGroup) -> Tensor:
        """Outlook of every child, (S, K, d * n_signs)."""
        outlook = self.outlook.unsqueeze(-1) + self.unit_outlook
        return outlook.repeat_interleave(1 + layer.flips, dim=-1)

    def leave(self, layer: UnitGroup) -> "_Particles":
        """End a layer: move the units of ``theta`` to their places."""
        if layer.n_units == 0:
            return self
        return self._replace(
            theta=layer.act(SignedPermutation(self.permutation, self.sign), self.theta)
        )

    def increments(self, step: _Step, layer: UnitGroup) -> Tensor:
        """Log density of a place's entries given the known ones, less a constant.

        Returns (S, K, d * n_signs), -inf where a unit has a place already.
        """
        whitened = self.theta[..., step.candidates] @ step.own.mT  # (S, K or 1, d, p)
        expected = step.mean @ step.own.mT - self.known @ step.earlier.mT  # (S, K, p)
        square = whitened.square().sum(-1) + expected.square().sum(-1, keepdim=True)
        product = (whitened @ expected.unsqueeze(-1)).squeeze(-1)
        if len(whitened[0]) == 1:
            product = expected @ whitened.squeeze(1).mT
        signs = product.new_tensor([1.0, -1.0] if layer.flips else [1.0])
        values = product.unsqueeze(-1) * signs - 0.5 * square.unsqueeze(-1)
        allowed = self.free
        if not layer.permutes:
            allowed = allowed & (torch.arange(layer.n_units) == step.place)
        return values.masked_fill(~allowed.unsqueeze(-1), -torch.inf).flatten(2)

    def children(self, step: _Step, layer: UnitGroup, selection: Selection) -> "_Particles":
        """The selected partial assignments, one place longer."""
        n_signs = 1 + layer.flips
        parent = selection.child // (layer.n_units * n_signs)
        unit = selection.child // n_signs % layer.n_units
        sign = 1 - 2 * (selection.child % n_signs)
        theta = self.theta if self.theta.shape[1] == 1 else _take(self.theta, parent)
        entries = step.candidates[unit]  # (S, K, p)
        moved = theta.expand(*unit.shape, -1).gather(-1, entries) * sign.unsqueeze(-1)
        permutation = _take(self.permutation, parent)
        signs = _take(self.sign, parent)
        permutation[..., step.place] = unit
        signs[..., step.place] = sign.to(torch.int8)
        return _Particles(
            theta,
            torch.cat([moved - step.mean, _take(self.known, parent)], -1),
            selection.log_weight,
            selection.identity,
            _take(self.free, parent).scatter(-1, unit.unsqueeze(-1), False),
            permutation,
            signs,
            selection.outlook,
            self.unit_outlook
            if self.unit_outlook.shape[1] == 1
            else _take(self.unit_outlook, parent),
        )


def _take(values: Tensor, parent: Tensor) -> Tensor:
    """Rows of the parents: (S, K, n) and (S, K') -> (S, K', n)."""
    return values.gather(1, parent.unsqueeze(-1).expand(*parent.shape, values.shape[-1]))


def _placement_order(table: Tensor, loc: Tensor, covariance: Tensor, *, flips: bool) -> Tensor:
    """Places of a layer, those first into which few units other than their own fit.

    ``table`` int64 (d, p): entries of every place. It depends on the posterior alone, not on a
    draw, so that it can't tell the identity from other elements.
    """
    mean = loc[table]
    blocks = covariance[table.unsqueeze(-1), table.unsqueeze(-2)]
    precision = torch.cholesky_inverse(torch.linalg.cholesky(blocks))
    # Mean squared distance of every unit (second index) from every place (first index).
    spread = torch.einsum("apq,bqp->ab", precision, blocks)
    linear = torch.einsum("apq,aq,bp->ab", precision, mean, mean)
    square = torch.einsum("apq,bp,bq->ab", precision, mean, mean)
    own = linear.diagonal().unsqueeze(-1)
    fits = -0.5 * (square - 2.0 * (linear.abs() if flips else linear) + own + spread)
    fits = (fits - fits.diagonal().unsqueeze(-1)).clamp(max=0.0).exp()
    return fits.sum(1).argsort(stable=True)


def select_children(
    log_weight: Tensor,
    outlook: Tensor,
    identity: Tensor,
    limit: int | None,
    *,
    generator: torch.Generator,
) -> Selection:
    """Keep all children, or ``limit`` of them with weights whose expectation is right.

    The heaviest children are kept as they are. Of the others systematic sampling draws some with
    probability in proportion to their weight, given that the identity is among those kept; each
    has the same weight afterwards. Children are ordered by weight, which doesn't depend on the
    order of the units.

    Parameters
    ----------
    log_weight, outlook : Tensor of shape (S, M)
        Children are drawn by the sum of both, and keep their outlook.
    identity : Tensor of shape (S,)
        Which child is the identity.
    limit : int or None
    generator : torch.Generator
    """
    n_children = log_weight.shape[1]
    n_kept = int((log_weight > -torch.inf).sum(1).max())
    if limit is None or n_kept <= limit:
        if n_kept == n_children:
            index = torch.arange(n_children).expand(log_weight.shape)
            return Selection(index, log_weight, outlook, identity)
        values, index = log_weight.topk(n_kept, dim=1)
        slot = (index == identity.unsqueeze(1)).int().argmax(1)
        return Selection(index, values, outlook.gather(1, index), slot)
    ordered, order = (log_weight + outlook).sort(dim=1, descending=True)
    rank = (order == identity.unsqueeze(1)).int().argmax(1, keepdim=True)
    peak = ordered[:, :1]
    weight = (ordered - peak).exp()
    # n_heavy is the smallest A with (limit - A) w_A <= the sum of w from A on.
    tail = weight.flip(1).cumsum(1).flip(1)[:, :limit]
    left = limit - torch.arange(limit)
    n_heavy = (left * weight[:, :limit] <= tail * (1.0 + 1e-12)).int().argmax(1, keepdim=True)
    rate = (limit - n_heavy) / tail.gather(1, n_heavy)  # infinite where all others weigh nothing
    is_light = torch.arange(n_children) >= n_heavy
    probability = torch.where(is_light, (rate * weight).nan_to_num(0.0, posinf=0.0), 0.0)
    ends = probability.cumsum(1)
    # Where the identity is light, its interval contains a point of the grid.
    coin = torch.rand(rank.shape, generator=generator, dtype=torch.float64)
    within = ends.gather(1, rank) - coin * probability.gather(1, rank)
    point = torch.where(rank < n_heavy, coin, within)
    slots = torch.arange(limit).expand(len(ends), -1)
    grid = (slots - n_heavy) + point.remainder(1.0)
    chosen = torch.searchsorted(ends, grid.clamp(min=0.0)).clamp(max=n_children - 1)
    chosen = torch.where(slots < n_heavy, slots, chosen)
    light_slot = (n_heavy + point.floor().long()).clamp(max=limit - 1)
    slot = torch.where(rank < n_heavy, rank, light_slot)
    chosen = chosen.scatter(1, slot, rank)
    values = torch.where(slots < n_heavy, ordered.gather(1, chosen), peak - rate.log())
    index = order.gather(1, chosen)
    outlook = outlook.gather(1, index)
    return Selection(index, values - outlook, outlook, slot.squeeze(1))
