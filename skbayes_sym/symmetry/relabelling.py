"""Draws moved onto one representative of their orbits: Stephens' relabelling of hidden units.

Units of a hidden layer are exchangeable, behind an odd activation also up to sign. The reference of
a layer has a diagonal Gaussian over the entries (incoming weights, bias, outgoing weights) of each
unit; draws are moved to where their units fit it best, then the Gaussians are estimated again.
`Labelling` is coordinate descent over the labels of the units: one layer at a time, the others
fixed."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.assignment import (
    best_assignment,
    has_improving_exchange,
    second_best_margin,
)
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.symmetry.group import Product, SymmetryGroup
from skbayes_sym.symmetry.units import (
    SignedPermutation,
    UnitGroup,
    anchored_entries,
    gather_units,
    nonzero_sign,
    unit_layers,
)

_TOLERANCE = 1e-9  # relative gain that counts as one: rounding must not move draws for ever


class DiagonalReference(NamedTuple):
    """Mean and variance of every entry of aligned draws, (P,), or of a layer's units, (d, p)."""

    mean: Tensor
    variance: Tensor

    def at(self, index: Tensor) -> "DiagonalReference":
        """Reference of the entries at ``index``."""
        return DiagonalReference(self.mean[index], self.variance[index])


def estimate_reference(theta: Tensor, mean_square: Tensor) -> DiagonalReference:
    """Mean and variance over draws (n, P); `orbit_mean_square` sets the least variance."""
    variance, mean = torch.var_mean(theta, dim=0, correction=0)
    return DiagonalReference(mean, torch.maximum(variance, 1e-4 * mean_square))


def orbit_mean(values: Tensor, group: SymmetryGroup) -> Tensor:
    """Mean of the values of all entries in the orbit of each entry, (P,) -> (P,)."""
    orbits = group.coordinate_orbits(len(values)).to(values.device)
    return values.scatter_reduce(0, orbits, values, "mean", include_self=False)[orbits]


def orbit_mean_square(theta: Tensor, group: SymmetryGroup) -> Tensor:
    """Mean square over draws (n, P) and coordinate orbits, (P,), never 0.

    No labelling of the draws changes it.
    """
    mean = orbit_mean(theta.square().mean(dim=0), group)
    return torch.where(mean > 0, mean, 1.0)


def improve_labelling(
    theta: Tensor, layer: UnitGroup, reference: DiagonalReference, *, thorough: bool
) -> tuple[SignedPermutation, Tensor]:
    """Best labels of the units of one layer, draw by draw, all else fixed.

    ``theta`` (n, P); ``layer``: only the entries it names are compared; ``thorough``: solve the
    assignment problem of every draw, not only of those in which exchanging some two units gains (a
    longer cycle may gain where no exchange does). Returns ``g``: the identity where nothing is
    gained, ``moved`` bool (n,).
    """
    match = _Match.to(layer, reference)
    parts = []
    for rows in theta.split(match.n_rows):
        similarity, odd = match(rows)
        tol = _tolerance(similarity)
        identity = torch.arange(layer.n_units).repeat(len(rows), 1)
        permutation = identity.clone()
        if layer.permutes:
            worth = has_improving_exchange(similarity, tol) | thorough
            permutation[worth] = best_assignment(similarity[worth])
        sign, gain = _signs_and_gain(similarity, odd, permutation, layer.flips)
        stay = SignedPermutation(identity, torch.ones_like(sign))
        moved = gain > tol
        parts.append((*SignedPermutation(permutation, sign).select(moved, stay), moved))
    permutation, sign, moved = (torch.cat(p) for p in zip(*parts, strict=True))
    return SignedPermutation(permutation, sign), moved


def labelling_margin(theta: Tensor, layer: UnitGroup, reference: DiagonalReference) -> Tensor:
    """Log density of each draw's units as labelled less that of the best other labels, nats.

    The other labels are the second-best permutation with its best signs, or one sign flip: exactly
    the runner-up. Negative where other labels are better than the given ones.

    ``theta`` (n, P). Returns (n,), inf if there are no other labels. O(n d^3).
    """
    match = _Match.to(layer, reference)
    parts = []
    for rows in theta.split(match.n_rows):
        similarity, odd = match(rows)
        margin = torch.full_like(similarity[:, 0, 0], torch.inf)
        best = torch.arange(layer.n_units).repeat(len(rows), 1)
        if layer.permutes:
            margin = second_best_margin(similarity)
            best = best_assignment(similarity)
        if layer.flips:
            flip = 2.0 * odd.diagonal(dim1=-2, dim2=-1).abs().amin(dim=-1)
            margin = torch.minimum(margin, flip)
        _, gain = _signs_and_gain(similarity, odd, best, layer.flips)
        given_is_best = gain <= _tolerance(similarity)
        parts.append(torch.where(given_is_best, margin.clamp_min(0.0), -gain))
    return torch.cat(parts)


class _Match(NamedTuple):
    """How well units fit the reference of each unit, a chunk of draws at a time."""

    layer: UnitGroup
    linear: Tensor  # mean / variance, (d, p)
    precision: Tensor  # (d, p)

    @classmethod
    def to(cls, layer: UnitGroup, reference: DiagonalReference) -> "_Match":
        mean, variance = reference.at(layer.index)
        precision = variance.reciprocal()
        return cls(layer, mean * precision, precision)

    @property
    def n_rows(self) -> int:
        """Draws of a chunk, whose matches are half a megabyte and stay in the cache."""
        return n_rows_per_block(1 << 16, self.layer.n_units**2)

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Log density of unit ``i`` under reference ``j`` at its best sign, [j, i]; its odd part.

        ``odd = sum_e phi_e mu_e / v_e``. A constant of each reference is left out: it counts once
        in every labelling.
        """
        units = gather_units(theta, self.layer.index)
        odd = (units @ self.linear.mT).mT
        similarity = ((units * units) @ (-0.5 * self.precision).mT).mT
        similarity += odd.abs() if self.layer.flips else odd
        return similarity, odd


def _signs_and_gain(
    similarity: Tensor, odd: Tensor, permutation: Tensor, flips: bool
) -> tuple[Tensor, Tensor]:
    """Best signs of this permutation, and what both gain over the labels as they are, nats."""
    chosen = permutation.unsqueeze(-1)
    sign = nonzero_sign(odd.gather(-1, chosen).squeeze(-1), free=flips)
    current = similarity.diagonal(dim1=-2, dim2=-1)
    if flips:  # as they are, units keep their signs, good or bad
        current = current + 2.0 * odd.diagonal(dim1=-2, dim2=-1).clamp_max(0.0)
    return sign, (similarity.gather(-1, chosen).squeeze(-1) - current).sum(dim=-1)


def _tolerance(similarity: Tensor) -> Tensor:
    return _TOLERANCE * (1.0 + similarity.diagonal(dim1=-2, dim2=-1).abs().sum(dim=-1))


@dataclass(frozen=True, eq=False)
class Labelling:
    """Draws as labelled so far, and the elements that led there."""

    layers: tuple[UnitGroup, ...]  # first layer first
    theta: Tensor  # (n, P); each draw acted on by its elements
    elements: tuple[SignedPermutation, ...]
    mean_square: Tensor  # (P,); `orbit_mean_square` of the draws

    @classmethod
    def from_draws(cls, theta: Tensor, group: SymmetryGroup) -> "Labelling":
        """Draws labelled as they are given."""
        layers = unit_layers(group)
        shape = (len(theta), -1)
        elements = (SignedPermutation(*(p.expand(shape) for p in f.identity())) for f in layers)
        return cls(layers, theta, tuple(elements), orbit_mean_square(theta, group))

    def reference(self) -> DiagonalReference:
        """Estimated from the draws as labelled."""
        return estimate_reference(self.theta, self.mean_square)

    def apply(self, i: int, g: SignedPermutation) -> "Labelling":
        """Move each draw's units of layer ``i`` by its ``g``."""
        layer = self.layers[i]
        elements = list(self.elements)
        elements[i] = layer.compose(g, elements[i])
        return replace(self, theta=layer.act(g, self.theta), elements=tuple(elements))

    def anchored_groups(self) -> tuple[UnitGroup, ...]:
        """Each layer's group on what is anchored once the layers before are aligned.

        Weights from the inputs or from earlier layers, biases, and weights to the outputs.
        """
        masks = anchored_entries(self.layers)
        return tuple(
            f.with_index(f.index[:, mask]) for f, mask in zip(self.layers, masks, strict=True)
        )

    def label_forward(self, reference: DiagonalReference) -> "Labelling":
        """Labels from scratch, first layer first, each judged by its anchored entries."""
        labelling = self
        for i, layer in enumerate(self.anchored_groups()):
            g, _ = improve_labelling(labelling.theta, layer, reference, thorough=True)
            labelling = labelling.apply(i, g)
        return labelling

    def improve(
        self, reference: DiagonalReference, *, thorough: bool
    ) -> tuple["Labelling", Tensor]:
        """Every layer given the others, last first; and which draws moved, bool (n,).

        ``thorough`` as in `improve_labelling`.
        """
        labelling = self
        any_moved = torch.zeros(len(self.theta), dtype=torch.bool)
        for i in reversed(range(len(self.layers))):
            g, moved = improve_labelling(
                labelling.theta, self.layers[i], reference, thorough=thorough
            )
            if bool(moved.any()):
                labelling = labelling.apply(i, g)
                any_moved = any_moved | moved
        return labelling, any_moved

    def descend(self, reference: DiagonalReference, max_sweeps: int) -> "Labelling":
        """Labels and reference in turn, from a given reference, until no draw moves."""
        labelling = self
        for sweep in range(max_sweeps):
            labelling, moved = labelling.improve(reference, thorough=sweep == 0)
            if not bool(moved.any()):
                break
            reference = labelling.reference()
        return labelling

    def log_prob(self, reference: DiagonalReference) -> Tensor:
        """Log density of each draw under the reference less a constant, (n,) nats."""
        mean, variance = reference
        return -0.5 * ((self.theta - mean).square() / variance).sum(dim=-1)

    def select(self, mask: Tensor, other: "Labelling") -> "Labelling":
        """These labels of the draws where ``mask`` (n,) holds, elsewhere the other's."""
        elements = (a.select(mask, b) for a, b in zip(self.elements, other.elements, strict=True))
        theta = torch.where(mask.unsqueeze(-1), self.theta, other.theta)
        return replace(self, theta=theta, elements=tuple(elements))


_UNWEIGHTED = 3  # first steps from a start: variances under bad labels would mislead
_EXPLORE = 20  # sweeps of every start; only the best is swept to the end


class Relabelled(NamedTuple):
    """Draws on one representative of their orbits."""

    theta: Tensor  # (n, P): each draw acted on by its element
    elements: tuple[Any, ...]  # one a factor, batch shape (n,); of `relabel`: signed permutations
    n_changing: int  # draws that the last sweep still moved; 0 is converged


def relabel(
    theta: Tensor, group: SymmetryGroup, *, n_starts: int, max_sweeps: int,
    generator: torch.Generator,
) -> Relabelled:  # fmt: skip
    """Move every draw to the orbit point that makes all draws alike.

    Minimises ``sum_e 0.5 log v_e`` over the labels of all draws by coordinate descent, ``v_e`` the
    variance of entry ``e`` across draws. Layer by layer and draw by draw, the labels become

        argmax over permutations pi and signs s of
            sum_j log N(s_j phi_pi(j); mu_j, diag v_j),

    an assignment problem solved exactly: a match has the sign of ``sum_e phi_e mu_e / v_e``.

    From each start (one draw as ``mu``, variances pooled over units) the first pass goes FORWARD
    through the layers and compares only what is anchored: weights from the inputs or from layers
    already aligned, and to the outputs. (Reverse-first, as in Algorithm 4 of Wiese et al. 2023,
    compares weights whose other ends are still scrambled.) Sweeps over all entries follow, last
    layer first, until none moves a draw; draws stuck between layers are labelled anew by a forward
    pass, which is kept where it fits better. The best start after a few sweeps is swept to the end.

    ``theta`` (n, P), float64; ``group``: one factor a hidden layer, first layer first. Returns: in
    canonical order (`canonical_element`), which depends on the orbits alone.

    O(n d^2 p) a step, and assignments for draws that an exchange of two units improves; the last
    sweep solves all. The end is a local optimum: for overlapping units, as of wide layers, starts
    end in different labels that are about as good, and `label_margin` is small.

    Stephens (2000), "Dealing with label switching in mixture models", J. R. Stat. Soc. B 62.
    """
    original = Labelling.from_draws(_scaled(theta), group)
    runs = []
    for start in torch.randperm(len(theta), generator=generator)[:n_starts].tolist():
        run = _first_pass(original, start), len(theta)
        runs.append(_sweep(*run, min(_EXPLORE, max_sweeps)))
    best = min(runs, key=lambda run: label_objective(run[0].theta, group))
    labelling, n_changing = _sweep(*best, max_sweeps - _EXPLORE)
    return in_canonical_order(theta, labelling.theta, labelling.elements, group, n_changing)


def align_to_mean(
    theta: Tensor, group: SymmetryGroup, *, n_starts: int, max_sweeps: int,
    generator: torch.Generator,
) -> Relabelled:  # fmt: skip
    """Move every draw to the orbit point nearest the mean of all, for any finite group.

    For groups that `relabel` can't take: units inside units, on two axes of one parameter, with
    several signs. From each start (one draw as the mean), `SymmetryGroup.align` and the mean follow
    one another until no draw moves; the sum of squared distances never rises (generalised
    Procrustes analysis, Gower 1975). Entries are compared in units of the root mean square of
    their coordinate orbit. The start with the smallest sum is kept. ``theta`` (n, P), float64.
    """
    scaled = theta / orbit_mean_square(theta, group).sqrt()
    runs = []
    for start in torch.randperm(len(theta), generator=generator)[:n_starts].tolist():
        moved, g = group.align(scaled, scaled[start])
        n_changing = len(theta)
        for _ in range(max_sweeps):
            before = moved
            moved, h = group.align(before, before.mean(dim=0))
            n_changing = int((moved != before).any(dim=-1).sum())
            if n_changing == 0:
                break
            g = group.compose(h, g)
        runs.append((float(moved.var(dim=0, correction=0).sum()), g, n_changing))
    _, g, n_changing = min(runs, key=lambda run: run[0])
    return Relabelled(group.act(g, theta), g, n_changing)


def in_canonical_order(
    draws: Tensor, aligned: Tensor, elements: tuple[SignedPermutation, ...], group: SymmetryGroup,
    n_changing: int,
) -> Relabelled:  # fmt: skip
    """The draws acted on by the elements that led to ``aligned`` and by `canonical_element`."""
    product = Product(unit_layers(group))
    both = product.compose(canonical_element(aligned, group), elements)
    theta = product.act(both, draws)
    return Relabelled(theta, both, n_changing)


def label_objective(theta: Tensor, group: SymmetryGroup) -> float:
    """``sum_e 0.5 log v_e`` over the entries of units, each once, in nats: smaller is better."""
    variance = estimate_reference(theta, orbit_mean_square(theta, group)).variance
    entries = [layer.index.flatten() for layer in unit_layers(group)]
    return 0.5 * float(variance[torch.cat(entries).unique()].log().sum()) if entries else 0.0


def label_margin(theta: Tensor, group: SymmetryGroup) -> Tensor:
    """How decided the labels of each aligned draw are, in nats.

    `labelling_margin` under a reference estimated from all draws, every other layer held fixed;
    the minimum over layers. ``exp(-margin)`` is the odds of the runner-up.

    ``theta`` (n, P), float64. Returns ``margin`` (n,): 0 is undecided; negative where other labels
    fit better (labels not from `relabel`, or a sweep limit reached); inf if there are no other
    labels.
    """
    scaled = _scaled(theta)
    reference = estimate_reference(scaled, orbit_mean_square(scaled, group))
    margin = torch.full((len(theta),), torch.inf, dtype=theta.dtype)
    for layer in unit_layers(group):
        margin = torch.minimum(margin, labelling_margin(scaled, layer, reference))
    return margin


def canonical_element(theta: Tensor, group: SymmetryGroup) -> tuple[SignedPermutation, ...]:
    """The one element that brings aligned draws into a fixed order, the same for all draws.

    Units that can be exchanged stand in decreasing order of the norm of their mean anchored
    entries (`anchored_entries`), the largest of which is made positive where
    signs are free.

    ``theta`` (n, P).
    """
    mean = theta.mean(dim=0)
    elements = []
    layers = unit_layers(group)
    for layer, mask in zip(layers, anchored_entries(layers), strict=True):
        units = mean[layer.index[:, mask]]
        order = torch.arange(layer.n_units)
        if layer.permutes:
            order = units.norm(dim=-1).argsort(descending=True, stable=True)
        largest = units.gather(-1, units.abs().argmax(dim=-1, keepdim=True)).squeeze(-1)
        g = SignedPermutation(order, nonzero_sign(largest[order], free=layer.flips))
        mean = layer.act(g, mean)
        elements.append(g)
    return tuple(elements)


def _scaled(theta: Tensor) -> Tensor:
    """Squares must not overflow; nothing else depends on the unit."""
    return theta / theta.abs().max().clamp_min(torch.finfo(theta.dtype).tiny)


def _first_pass(labelling: Labelling, start: int) -> Labelling:
    """Forward through the layers, from draw ``start`` as the mean of what is anchored."""
    for i, layer in enumerate(labelling.anchored_groups()):
        flat = layer.index.flatten()
        first = DiagonalReference(labelling.theta[start], labelling.mean_square).at(flat)
        alone = layer.with_index(torch.arange(len(flat)).reshape(layer.index.shape))
        labelling = labelling.apply(i, _settle(labelling.theta[:, flat], alone, first))
    return labelling


def _settle(theta: Tensor, layer: UnitGroup, reference: DiagonalReference) -> SignedPermutation:
    """Labels of the units of one layer when ``reference`` is only the first guess."""
    mean_square = reference.variance
    total = layer.identity()
    for step in range(50):
        # All draws at first: what follows then depends on their orbits, not on the copies given.
        g, moved = improve_labelling(theta, layer, reference, thorough=step == 0)
        theta = layer.act(g, theta)
        total = layer.compose(g, total)
        if step >= _UNWEIGHTED and not bool(moved.any()):
            break
        reference = estimate_reference(theta, mean_square)
        if step + 1 < _UNWEIGHTED:
            reference = reference._replace(variance=mean_square)
    return total


def _sweep(labelling: Labelling, n_changing: int, n_sweeps: int) -> tuple[Labelling, int]:
    """Until a thorough sweep moves no draw, at most ``n_sweeps`` more; how many the last moved."""
    for _ in range(n_sweeps):
        if n_changing == 0:
            break
        reference = labelling.reference()
        labelling, moved = labelling.improve(reference, thorough=False)
        if not bool(moved.any()):
            labelling, moved = labelling.improve(reference, thorough=True)
            if len(labelling.layers) > 1:
                # Labels by a forward pass under a fixed reference, where they fit better.
                anew = labelling.label_forward(reference)
                for _ in range(3):
                    anew, _ = anew.improve(reference, thorough=True)
                ours = labelling.log_prob(reference)
                theirs = anew.log_prob(reference)
                better = theirs > ours + 1e-9 * (1.0 + ours.abs())
                labelling = anew.select(better, labelling)
                moved = moved | better
        n_changing = int(moved.sum())
    return labelling, n_changing
