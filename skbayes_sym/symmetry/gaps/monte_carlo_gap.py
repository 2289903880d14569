r"""The symmetrisation gap of a normal posterior with any covariance, from its draws.

For draws :math:`\theta` of q and a finite group of units, ``log q(theta) - log q_G(theta)`` is
``log |G| - log sum_g q(g theta) / q(theta)``. The sum over g is a sum over the leaves of a tree. A
step of the tree assigns a unit, with a sign, to one slot of one layer. The density q of the entries
that are assigned so far is a product of conditional normal densities. Small trees are summed
completely. In larger ones a fixed number of partial assignments is kept, by the optimal resampling
of Fearnhead & Clifford (2003).
"""

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

# Branches whose leaves add less than exp(-16) to a sum that is at least 1 are omitted. The error of
# the logarithm is below 2e-7 nats.
_LOG_NEGLIGIBLE = 16.0

# Largest number of scored children of partial assignments, for one draw if the tree isn't summed
# completely, and for all draws. 1e7 take one to two seconds.
_MAX_CHILDREN_PER_DRAW = 100_000
_MAX_CHILDREN = 10_000_000


class NormalPosterior(Protocol):
    """A normal distribution over P weights, with the axes of a `ModeMixture` of one component."""

    @property
    def loc(self) -> np.ndarray:
        """Mean, (1, P)."""

    @property
    def factor(self) -> np.ndarray:
        """Lower Cholesky factor of the precision, (1, P, P)."""


@dataclass(frozen=True, eq=False)
class MonteCarloGap:
    r"""Gap of a normal with any covariance under exchanges and sign flips of units.

    Parameters
    ----------
    group : SymmetryGroup
        Product of groups of units, one factor for each layer.
    n_params : int
        Number P of weights.
    max_order : int, default=50_000
        Largest number of group elements that are summed completely. Six units with signs have
        46,080.
    n_draws : int, default=100
        Number of posterior draws that `estimate` averages.
    n_particles : int or None, default=None
        Number of partial assignments kept for each draw where the group is larger. None: 50 to
        1,000, fewer for wide layers so that the cost stays bounded.

    Notes
    -----
    The elements g are the leaves of a tree with one step for every slot a of every layer. With the
    entries ordered by the step at which they are assigned,

    .. math:: \log q(g\theta) = \sum_a \log q\bigl((g\theta)_a \mid (g\theta)_{<a}\bigr).

    Squared distances only grow along a branch. A branch is pruned if its leaves together can't add
    more than a fraction :math:`e^{-16}`.

    For groups larger than ``max_order``, the tree is searched by a particle filter on partial
    assignments, whose intermediate targets are the marginal densities of q. It is a conditional
    filter (Whiteley, Andrieu & Doucet 2010), which always contains the identity. The identity is a
    draw from the posterior of g given the orbit of :math:`\theta`. Therefore
    :math:`E[1 / \hat Z] = 1 / Z`, the expectation of :math:`\log \hat Z` is at least
    :math:`\log Z`, and the estimate is a lower bound on the gap.
    """

    group: SymmetryGroup
    n_params: int
    max_order: int = 50_000
    n_draws: int = 100
    n_particles: int | None = None

    @property
    def side(self) -> Side:
        """Side of the gap on which `estimate` lies in expectation."""
        if can_enumerate(self.group, max_order=self.max_order):
            return "exact"
        return "lower"

    def estimate(
        self,
        posterior: NormalPosterior,
        n_draws: int | None = None,
        *,
        generator: torch.Generator,
    ) -> Estimate:
        """Estimate the gap with its Monte Carlo standard error.

        Parameters
        ----------
        posterior : NormalPosterior
            Posterior q.
        n_draws : int or None, default=None
            Number of draws; None: the attribute ``n_draws``.
        generator : torch.Generator
            Random number generator.

        Returns
        -------
        Estimate
            The gap in nats, clipped to [0, log |G|].
        """
        if not self.group.log_order:
            return Estimate(0.0, 0.0)
        values = self.values(posterior, n_draws or self.n_draws, generator=generator)
        mean, error = mean_and_error(values)
        return Estimate(min(max(mean, 0.0), self.group.log_order), error)

    def values(
        self, posterior: NormalPosterior, n_draws: int, *, generator: torch.Generator
    ) -> Tensor:
        """Compute values (n_draws,) that average to the gap or to its lower bound, nats.

        Parameters
        ----------
        posterior : NormalPosterior
            Normal distribution of the weights.
        n_draws : int
            Number of values.
        generator : torch.Generator
            Source of random numbers.
        """
        log_order = self.group.log_order
        if not log_order:
            return torch.zeros(n_draws, dtype=torch.float64)
        tree = _Tree.build(self._layers, posterior)
        noise = float64_normal((n_draws, self.n_params), generator=generator)

        # As many draws at once as there is memory for the particles of.
        n_particles = int(self._limit or exp(log_order))
        widest = max(layer.n_units * (1 + layer.flips) for layer in self._layers)
        size = n_rows_per_block(1 << 22, n_particles * max(self.n_params, widest))
        parts = [
            log_order - tree.log_sum(part, self._limit, log_order, generator=generator)
            for part in noise.split(size)
        ]
        return torch.cat(parts)

    @property
    def affordable_draws(self) -> int:
        """Number of draws that take one to two seconds."""
        n_children = exp(min(self.group.log_order, log(self.max_order)))
        if self._limit is not None:
            n_children = self._limit * self._n_children
        return int(_MAX_CHILDREN / n_children)

    @cached_property
    def _layers(self) -> tuple[UnitGroup, ...]:
        return unit_layers(self.group)

    @property
    def _n_children(self) -> int:
        """Number of children of one particle, summed over the steps."""
        return sum(layer.n_units**2 * (1 + layer.flips) for layer in self._layers)

    @property
    def _limit(self) -> int | None:
        """Number of particles, None if the tree is summed completely."""
        if self.side == "exact":
            return None
        return self.n_particles or min(1000, max(50, _MAX_CHILDREN_PER_DRAW // self._n_children))


def evidence_over_copies(
    gap: MonteCarloGap,
    log_evidence: np.ndarray,
    modes: Sequence[NormalPosterior],
    *,
    generator: torch.Generator,
    target_error: float = 0.05,
) -> Estimate:
    r"""Sum the evidence of modes and of all their copies.

    Parameters
    ----------
    gap : MonteCarloGap
        Gap under the group of the copies.
    log_evidence : ndarray of shape (R,)
        Log evidence of every mode without its copies, nats.
    modes : sequence of NormalPosterior
        R normal distributions.
    generator : torch.Generator
        Random number generator.
    target_error : float, default=0.05
        Standard error in nats at which drawing stops. It also stops after one to two seconds of
        work.

    Returns
    -------
    Estimate
        :math:`\log \sum_r \exp(\log Z_r + \mathrm{gap}_r)` and its standard error, nats.

    Notes
    -----
    Modes with a larger weight, and those whose gap varies more between draws, get more draws. In
    expectation the sum is on ``gap.side`` of the exact sum over copies, up to a bias of the order
    of the squared standard error from the logarithm of the sum over modes.
    """
    # A few pilot draws compare the modes. If draws are cheap there are enough of them to detect
    # rare overlaps.
    budget = gap.affordable_draws
    n_pilot = max(8, min(100, budget // 25))
    values = [gap.values(mode, n_pilot, generator=generator) for mode in modes]
    max_draws = budget + n_pilot * len(modes)
    while True:
        means = torch.stack([part.mean() for part in values]).clamp(0.0, gap.group.log_order)
        spread = torch.stack([part.std() for part in values])
        n = torch.tensor([float(len(part)) for part in values], dtype=torch.float64)
        log_terms = torch.as_tensor(log_evidence, dtype=torch.float64) + means
        errors = log_terms.softmax(0) * spread / n.sqrt()
        error = float(errors.square().sum().sqrt())
        remaining = max_draws - int(n.sum())
        if error <= target_error or remaining < 1:
            return Estimate(float(log_terms.logsumexp(0)), error)
        largest = int(errors.argmax())
        n_new = min(remaining, len(values[largest]) // 2)
        new_values = gap.values(modes[largest], n_new, generator=generator)
        values[largest] = torch.cat([values[largest], new_values])


class _Step(NamedTuple):
    """One slot of one layer.

    Attributes
    ----------
    slot : int
        Position of the unit in the layer.
    candidates : int64 Tensor of shape (d, p)
        Entries of each unit that may be assigned.
    whitening : Tensor of shape (p, p)
        Conditional whitening of the slot's entries.
    earlier : Tensor of shape (p, n)
        Dependence on the n entries that were assigned before.
    mean : Tensor of shape (p,)
        Mean of the slot's entries.
    root : Tensor of shape (p, p)
        Inverse Cholesky factor of the entries' marginal covariance.
    """

    slot: int
    candidates: Tensor
    whitening: Tensor
    earlier: Tensor
    mean: Tensor
    root: Tensor

    def marginal(self, theta: Tensor, *, flips: bool) -> Tensor:
        """Compute the log marginal density of each unit in the slot, over signs, (*B, d)."""
        candidates = theta[..., self.candidates] @ self.root.mT
        mean = self.mean @ self.root.mT
        square = candidates.square().sum(-1) + mean @ mean
        product = candidates @ mean
        if flips:
            product = torch.logaddexp(product, -product)
        return product - 0.5 * square


class _Tree(NamedTuple):
    """A group as a tree of partial assignments, with a normal distribution along its branches.

    Attributes
    ----------
    layers : tuple of UnitGroup
        Groups of the layers.
    steps : tuple of tuple of _Step
        Steps of every layer.
    fixed : int64 Tensor of shape (n,)
        Entries that no unit contains.
    fixed_root : Tensor of shape (n, n)
        Their whitening.
    loc : Tensor of shape (P,)
        Mean.
    factor : Tensor of shape (P, P)
        Lower Cholesky factor of the precision.
    """

    layers: tuple[UnitGroup, ...]
    steps: tuple[tuple[_Step, ...], ...]
    fixed: Tensor
    fixed_root: Tensor
    loc: Tensor
    factor: Tensor

    @classmethod
    def build(cls, layers: tuple[UnitGroup, ...], posterior: NormalPosterior) -> "_Tree":
        """Order the slots and factorise the precision in this order."""
        loc, factor = (
            torch.as_tensor(values, dtype=torch.float64)[0]
            for values in (posterior.loc, posterior.factor)
        )
        masks = anchored_entries(layers)
        tables = [layer.index.cpu()[:, mask] for layer, mask in zip(layers, masks, strict=True)]
        covariance = torch.cholesky_inverse(factor)
        orders = [
            _slot_order(table, loc, covariance, flips=layer.flips).tolist()
            for layer, table in zip(layers, tables, strict=True)
        ]
        moved = torch.cat([table.flatten() for table in tables])
        all_entries = torch.arange(len(loc))
        fixed = all_entries[~torch.isin(all_entries, moved)]
        # Upper triangular R with R'R the precision. Its last rows belong to the entries that are
        # assigned first.
        blocks = [
            table[slot] for table, order in zip(tables, orders, strict=True) for slot in order
        ]
        root = torch.linalg.qr(factor.mT[:, torch.cat([fixed, *blocks][::-1])], mode="r").R
        end = len(loc) - len(fixed)
        fixed_root = root[end:, end:]
        steps: list[list[_Step]] = []
        for table, order in zip(tables, orders, strict=True):
            steps.append([])
            for slot in order:
                start = end - table.shape[1]
                whitening = root[start:end, start:end]
                earlier = root[start:end, end:]
                entries = table[slot]
                block = torch.linalg.cholesky(covariance[entries.unsqueeze(1), entries])
                eye = torch.eye(len(entries), dtype=block.dtype)
                marginal = torch.linalg.solve_triangular(block, eye, upper=False)
                steps[-1].append(_Step(slot, table, whitening, earlier, loc[entries], marginal))
                end = start
        return cls(layers, tuple(map(tuple, steps)), fixed, fixed_root, loc, factor)

    def log_sum(
        self, noise: Tensor, limit: int | None, log_order: float, *, generator: torch.Generator
    ) -> Tensor:
        """Compute ``log sum_g q(g theta) / q(theta)`` at draws.

        Parameters
        ----------
        noise : Tensor of shape (S, P)
            Standard normal noise of the draws.
        limit : int or None
            Number of particles. None sums all branches that aren't negligible.
        log_order : float
            Log of the number of group elements.
        generator : torch.Generator
            Random number generator.

        Returns
        -------
        Tensor of shape (S,)
        """
        shift = torch.linalg.solve_triangular(self.factor.mT, noise.mT, upper=True).mT
        theta = self.loc + shift
        known = shift[:, self.fixed]
        # Half the squared distance that the identity will accumulate in the remaining steps.
        remaining = 0.5 * (noise.square().sum(1) - (known @ self.fixed_root.mT).square().sum(1))
        particles = _Particles.start(theta, known)
        for layer, steps in zip(self.layers, self.steps, strict=True):
            particles = particles.enter(layer)
            if limit is not None:
                particles = particles.update_lookahead(steps, layer)
            for step in steps:
                increments = particles.increments(step, layer)
                n_choices = increments.shape[-1]
                identity = particles.identity * n_choices + step.slot * (1 + layer.flips)
                # Densities are relative to that of the identity, so that the sum is at least 1.
                reference = increments.flatten(1).gather(1, identity.unsqueeze(1))
                remaining = remaining + reference.squeeze(1)
                log_weight = (particles.log_weight.unsqueeze(-1) + increments).flatten(1)
                log_weight = log_weight - reference
                bound = log_weight + remaining.unsqueeze(1)
                negligible = bound < -(log_order + _LOG_NEGLIGIBLE)
                log_weight = log_weight.masked_fill(negligible, -torch.inf)
                lookahead = particles.lookahead.unsqueeze(-1) + particles.unit_lookahead
                lookahead = lookahead.repeat_interleave(1 + layer.flips, dim=-1).flatten(1)
                selection = select_children(
                    log_weight, lookahead, identity, limit, generator=generator
                )
                particles = particles.children(step, layer, selection)
            # Move the units of the layer to their slots.
            if layer.n_units:
                g = SignedPermutation(particles.permutation, particles.sign)
                particles = particles._replace(theta=layer.act(g, particles.theta))
        return particles.log_weight.logsumexp(1)


class Selection(NamedTuple):
    """Children that become particles.

    Attributes
    ----------
    child : int64 Tensor of shape (S, K)
        Indices of the children.
    log_weight : Tensor of shape (S, K)
        Their log weights.
    lookahead : Tensor of shape (S, K)
        Log of their expected contributions, see `_Particles`.
    identity : int64 Tensor of shape (S,)
        Index of the identity among the K.
    """

    child: Tensor
    log_weight: Tensor
    lookahead: Tensor
    identity: Tensor


class _Particles(NamedTuple):
    """Partial assignments, K for each of S draws.

    Attributes
    ----------
    theta : Tensor of shape (S, K or 1, P)
        Draws, moved by the layers that are complete.
    known : Tensor of shape (S, K, n)
        Assigned entries less their means, the latest first.
    log_weight : Tensor of shape (S, K)
        Log densities relative to that of the identity.
    identity : int64 Tensor of shape (S,)
        Index of the identity among the K.
    free : bool Tensor of shape (S, K, d)
        Units of the current layer that aren't assigned yet.
    permutation : int64 Tensor of shape (S, K, d)
        Assignment in the current layer.
    sign : int8 Tensor of shape (S, K, d)
        Signs in the current layer.
    lookahead : Tensor of shape (S, K)
        Log of the expected contribution of the unassigned units, less a constant.
    unit_lookahead : Tensor of shape (S, K or 1, d)
        Change of the lookahead when a unit is assigned.
    """

    theta: Tensor
    known: Tensor
    log_weight: Tensor
    identity: Tensor
    free: Tensor
    permutation: Tensor
    sign: Tensor
    lookahead: Tensor
    unit_lookahead: Tensor

    @classmethod
    def start(cls, theta: Tensor, known: Tensor) -> "_Particles":
        """Return the root of the tree."""
        n = len(theta)
        no_units = torch.zeros(n, 1, 0, dtype=torch.int64)
        zero = theta.new_zeros(n, 1)
        return cls(
            theta=theta.unsqueeze(1),
            known=known.unsqueeze(1),
            log_weight=zero,
            identity=torch.zeros(n, dtype=torch.int64),
            free=torch.ones(n, 1, 0, dtype=torch.bool),
            permutation=no_units,
            sign=no_units,
            lookahead=zero,
            unit_lookahead=zero.unsqueeze(1),
        )

    def enter(self, layer: UnitGroup) -> "_Particles":
        """Begin a layer, all units of which are free."""
        shape = *self.log_weight.shape, layer.n_units
        permutation = torch.zeros(shape, dtype=torch.int64)
        return self._replace(
            free=torch.ones(shape, dtype=torch.bool),
            permutation=permutation,
            sign=torch.ones(shape, dtype=torch.int8),
            lookahead=torch.zeros_like(self.log_weight),
            unit_lookahead=self.theta.new_zeros(len(self.theta), 1, layer.n_units),
        )

    def update_lookahead(self, steps: Sequence[_Step], layer: UnitGroup) -> "_Particles":
        """Return particles with the lookahead of every unit.

        A slot then doesn't get a unit that fits another slot better. Lin, Chen & Liu (2013) review
        lookahead weights in sequential Monte Carlo.

        The sum over assignments is approximately a permanent of the units' densities in the slots.
        The column scales that make this matrix doubly stochastic measure how well each unit fits
        all slots.
        """
        if not layer.permutes:
            return self
        scores = torch.stack([step.marginal(self.theta, flips=layer.flips) for step in steps], -2)
        _, column = balancing_scales(scores)
        return self._replace(unit_lookahead=column.squeeze(-2))

    def increments(self, step: _Step, layer: UnitGroup) -> Tensor:
        """Compute the log density of a slot's entries given the assigned ones, less a constant.

        Returns
        -------
        Tensor of shape (S, K, d * n_signs)
            For each unit and sign; -inf if the unit is assigned already.
        """
        whitened = self.theta[..., step.candidates] @ step.whitening.mT  # (S, K or 1, d, p)
        expected = step.mean @ step.whitening.mT - self.known @ step.earlier.mT  # (S, K, p)
        square = whitened.square().sum(-1) + expected.square().sum(-1, keepdim=True)
        product = (whitened @ expected.unsqueeze(-1)).squeeze(-1)
        if len(whitened[0]) == 1:
            product = expected @ whitened.squeeze(1).mT
        signs = product.new_tensor([1.0, -1.0] if layer.flips else [1.0])
        values = product.unsqueeze(-1) * signs - 0.5 * square.unsqueeze(-1)
        allowed = self.free
        if not layer.permutes:
            allowed = allowed & (torch.arange(layer.n_units) == step.slot)
        return values.masked_fill(~allowed.unsqueeze(-1), -torch.inf).flatten(2)

    def children(self, step: _Step, layer: UnitGroup, selection: Selection) -> "_Particles":
        """Return the selected partial assignments, one slot longer."""
        n_signs = 1 + layer.flips
        parent = selection.child // (layer.n_units * n_signs)
        unit = selection.child // n_signs % layer.n_units
        sign = 1 - 2 * (selection.child % n_signs)
        theta = self.theta
        if theta.shape[1] > 1:
            theta = _gather_parents(theta, parent)
        entries = step.candidates[unit]  # (S, K, p)
        moved = theta.expand(*unit.shape, -1).gather(-1, entries) * sign.unsqueeze(-1)
        unit_lookahead = self.unit_lookahead
        if unit_lookahead.shape[1] > 1:
            unit_lookahead = _gather_parents(unit_lookahead, parent)
        permutation = _gather_parents(self.permutation, parent)
        signs = _gather_parents(self.sign, parent)
        permutation[..., step.slot] = unit
        signs[..., step.slot] = sign.to(torch.int8)
        return _Particles(
            theta=theta,
            known=torch.cat([moved - step.mean, _gather_parents(self.known, parent)], -1),
            log_weight=selection.log_weight,
            identity=selection.identity,
            free=_gather_parents(self.free, parent).scatter(-1, unit.unsqueeze(-1), False),
            permutation=permutation,
            sign=signs,
            lookahead=selection.lookahead,
            unit_lookahead=unit_lookahead,
        )


def _gather_parents(values: Tensor, parent: Tensor) -> Tensor:
    """Return the rows of the parents, (S, K, n) and (S, K') -> (S, K', n)."""
    return values.gather(1, parent.unsqueeze(-1).expand(*parent.shape, values.shape[-1]))


def _slot_order(table: Tensor, loc: Tensor, covariance: Tensor, *, flips: bool) -> Tensor:
    """Order the slots of a layer by how few other units fit into them.

    The order depends on the posterior alone, and not on a draw, so that it can't distinguish the
    identity from other elements.

    Parameters
    ----------
    table : int64 Tensor of shape (d, p)
        Entries of every slot.
    loc : Tensor of shape (P,)
        Mean.
    covariance : Tensor of shape (P, P)
        Covariance.
    flips : bool
        Whether signs are free.

    Returns
    -------
    int64 Tensor of shape (d,)
    """
    mean = loc[table]
    blocks = covariance[table.unsqueeze(-1), table.unsqueeze(-2)]
    precision = torch.cholesky_inverse(torch.linalg.cholesky(blocks))
    # Mean squared distance of every unit (second index) from every slot (first index).
    spread = torch.einsum("apq,bqp->ab", precision, blocks)
    linear = torch.einsum("apq,aq,bp->ab", precision, mean, mean)
    square = torch.einsum("apq,bp,bq->ab", precision, mean, mean)
    own_square = linear.diagonal().unsqueeze(-1)
    cross = linear.abs() if flips else linear
    fits = -0.5 * (square - 2.0 * cross + own_square + spread)
    fits = (fits - fits.diagonal().unsqueeze(-1)).clamp(max=0.0).exp()
    return fits.sum(1).argsort(stable=True)


def select_children(
    log_weight: Tensor,
    lookahead: Tensor,
    identity: Tensor,
    limit: int | None,
    *,
    generator: torch.Generator,
) -> Selection:
    """Select all children, or ``limit`` of them with unbiased weights.

    The heaviest children keep their weights. The others are selected by systematic sampling with
    probabilities proportional to their weights, given that the identity is selected. The selected
    light children have equal weights. Children are sorted by weight, which doesn't depend on the
    order of the units.

    Parameters
    ----------
    log_weight, lookahead : Tensor of shape (S, M)
        Children are selected by the sum of both, and keep their lookahead.
    identity : int64 Tensor of shape (S,)
        Index of the identity among the children.
    limit : int or None
        Number of children to select; None: all with a nonzero weight.
    generator : torch.Generator
        Random number generator.

    Returns
    -------
    Selection
    """
    n_children = log_weight.shape[1]
    n_positive = int((log_weight > -torch.inf).sum(1).max())
    if limit is None or n_positive <= limit:
        if n_positive == n_children:
            index = torch.arange(n_children).expand(log_weight.shape)
            return Selection(index, log_weight, lookahead, identity)
        values, index = log_weight.topk(n_positive, dim=1)
        slot = (index == identity.unsqueeze(1)).int().argmax(1)
        return Selection(index, values, lookahead.gather(1, index), slot)
    ordered, order = (log_weight + lookahead).sort(dim=1, descending=True)
    rank = (order == identity.unsqueeze(1)).int().argmax(1, keepdim=True)
    peak = ordered[:, :1]
    weight = (ordered - peak).exp()
    # n_heavy is the smallest A for which (limit - A) w_A is at most the sum of w_i over i >= A.
    tail = weight.flip(1).cumsum(1).flip(1)[:, :limit]
    n_remaining = limit - torch.arange(limit)
    n_heavy = (
        (n_remaining * weight[:, :limit] <= tail * (1.0 + 1e-12)).int().argmax(1, keepdim=True)
    )
    rate = (limit - n_heavy) / tail.gather(1, n_heavy)  # infinite if all others have weight 0
    is_light = torch.arange(n_children) >= n_heavy
    probability = torch.where(is_light, (rate * weight).nan_to_num(0.0, posinf=0.0), 0.0)
    ends = probability.cumsum(1)
    # Condition on the identity: if it is light, a point of the grid lies in its interval.
    coin = torch.rand(rank.shape, generator=generator, dtype=torch.float64)
    within = ends.gather(1, rank) - coin * probability.gather(1, rank)
    point = torch.where(rank < n_heavy, coin, within)
    slots = torch.arange(limit).expand(len(ends), -1)
    grid = (slots - n_heavy) + point.remainder(1.0)
    selected = torch.searchsorted(ends, grid.clamp(min=0.0)).clamp(max=n_children - 1)
    selected = torch.where(slots < n_heavy, slots, selected)
    light_slot = (n_heavy + point.floor().long()).clamp(max=limit - 1)
    slot = torch.where(rank < n_heavy, rank, light_slot)
    selected = selected.scatter(1, slot, rank)
    values = torch.where(slots < n_heavy, ordered.gather(1, selected), peak - rate.log())
    index = order.gather(1, selected)
    lookahead = lookahead.gather(1, index)
    return Selection(index, values - lookahead, lookahead, slot.squeeze(1))
