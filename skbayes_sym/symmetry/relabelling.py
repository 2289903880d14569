"""Stephens' relabelling of hidden units: move draws onto one representative of their orbits.

The units of a hidden layer are exchangeable, and with an odd activation have a free sign. The
reference of a layer has a diagonal Gaussian over the entries (incoming weights, bias, outgoing
weights) of each unit. Draws are moved to where their units fit the reference best, and the
Gaussians are estimated again. `Labelling` is coordinate descent over the labels of the units, one
layer at a time with the others fixed.
"""

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
from skbayes_sym.numerics.progress import report_progress
from skbayes_sym.symmetry.group import Product, SymmetryGroup
from skbayes_sym.symmetry.units import (
    SignedPermutation,
    UnitGroup,
    anchored_entries,
    gather_units,
    nonzero_sign,
    unit_layers,
)

# Smallest relative improvement that moves a draw. Rounding must not move draws endlessly.
_TOLERANCE = 1e-9


class DiagonalReference(NamedTuple):
    """Means and variances of aligned draws.

    Attributes
    ----------
    mean, variance : Tensor of shape (P,)
        Of every entry. For the units of a layer, the shape is (d, p).
    """

    mean: Tensor
    variance: Tensor

    def select(self, index: Tensor) -> "DiagonalReference":
        """Return the reference of the entries at ``index``."""
        return DiagonalReference(self.mean[index], self.variance[index])


def estimate_reference(theta: Tensor, mean_square: Tensor) -> DiagonalReference:
    """Estimate means and variances from draws.

    Parameters
    ----------
    theta : Tensor of shape (n, P)
        Draws.
    mean_square : Tensor of shape (P,)
        `orbit_mean_square` of the draws. Variances are at least 1e-4 times as large.
    """
    variance, mean = torch.var_mean(theta, dim=0, correction=0)
    return DiagonalReference(mean, torch.maximum(variance, 1e-4 * mean_square))


def orbit_mean(values: Tensor, group: SymmetryGroup) -> Tensor:
    """Average values over the orbit of each entry, (P,) -> (P,)."""
    orbits = group.coordinate_orbits(len(values)).to(values.device)
    return values.scatter_reduce(0, orbits, values, "mean", include_self=False)[orbits]


def orbit_mean_square(theta: Tensor, group: SymmetryGroup) -> Tensor:
    """Average squares over draws (n, P) and coordinate orbits; the result (P,) is never 0.

    It doesn't depend on the labelling of the draws.
    """
    mean = orbit_mean(theta.square().mean(dim=0), group)
    return torch.where(mean > 0, mean, 1.0)


def improve_labelling(
    theta: Tensor, layer: UnitGroup, reference: DiagonalReference, *, thorough: bool
) -> tuple[SignedPermutation, Tensor]:
    """Find the best labels of the units of one layer for each draw, with all else fixed.

    Parameters
    ----------
    theta : Tensor of shape (n, P)
        Draws.
    layer : UnitGroup
        Group of the layer. Only the entries in its index are compared.
    reference : DiagonalReference
        Reference of all entries.
    thorough : bool
        Whether to solve the assignment problem of every draw. Otherwise it is solved only for draws
        in which exchanging two units is an improvement. A longer cycle may be an improvement where
        no exchange is.

    Returns
    -------
    g : SignedPermutation
        Elements with batch shape (n,), the identity where nothing improves.
    moved : bool Tensor of shape (n,)
        Draws that improve.
    """
    scores = _UnitScores.build(layer, reference)
    parts = []
    for rows in theta.split(scores.n_rows):
        similarity, odd = scores(rows)
        tol = _tolerance(similarity)
        identity = torch.arange(layer.n_units).repeat(len(rows), 1)
        permutation = identity.clone()
        if layer.permutes:
            candidates = has_improving_exchange(similarity, tol) | thorough
            permutation[candidates] = best_assignment(similarity[candidates])
        sign, improvement = _best_signs(similarity, odd, permutation, layer.flips)
        stay = SignedPermutation(identity, torch.ones_like(sign))
        moved = improvement > tol
        parts.append((*SignedPermutation(permutation, sign).select(moved, stay), moved))
    permutation, sign, moved = (torch.cat(p) for p in zip(*parts, strict=True))
    return SignedPermutation(permutation, sign), moved


def labelling_margin(theta: Tensor, layer: UnitGroup, reference: DiagonalReference) -> Tensor:
    """Compute by how much the current labels are better than the best other labels.

    Parameters
    ----------
    theta : Tensor of shape (n, P)
        Draws.
    layer : UnitGroup
        Group of the layer.
    reference : DiagonalReference
        Reference of all entries.

    Returns
    -------
    Tensor of shape (n,)
        Difference of the log densities of each draw's units, nats. It is negative where other
        labels are better, and inf if there are no other labels.

    Notes
    -----
    The best other labels are the second-best permutation with its best signs, or one sign flip.
    This is exactly the second-best element of the group. The cost is O(n d^3).
    """
    scores = _UnitScores.build(layer, reference)
    parts = []
    for rows in theta.split(scores.n_rows):
        similarity, odd = scores(rows)
        margin = torch.full_like(similarity[:, 0, 0], torch.inf)
        best = torch.arange(layer.n_units).repeat(len(rows), 1)
        if layer.permutes:
            margin = second_best_margin(similarity)
            best = best_assignment(similarity)
        if layer.flips:
            flip = 2.0 * odd.diagonal(dim1=-2, dim2=-1).abs().amin(dim=-1)
            margin = torch.minimum(margin, flip)
        _, improvement = _best_signs(similarity, odd, best, layer.flips)
        is_best = improvement <= _tolerance(similarity)
        parts.append(torch.where(is_best, margin.clamp_min(0.0), -improvement))
    return torch.cat(parts)


class _UnitScores(NamedTuple):
    """Log densities of units under the references of all units of the layer.

    Attributes
    ----------
    layer : UnitGroup
        Group of the layer.
    linear : Tensor of shape (d, p)
        Mean over variance of each entry.
    precision : Tensor of shape (d, p)
        Inverse variance.
    """

    layer: UnitGroup
    linear: Tensor
    precision: Tensor

    @classmethod
    def build(cls, layer: UnitGroup, reference: DiagonalReference) -> "_UnitScores":
        """Prepare the references of a layer's units."""
        mean, variance = reference.select(layer.index)
        precision = variance.reciprocal()
        return cls(layer, mean * precision, precision)

    @property
    def n_rows(self) -> int:
        """Number of draws in a chunk, whose scores take half a megabyte and stay in the cache."""
        return n_rows_per_block(1 << 16, self.layer.n_units**2)

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log density of unit ``i`` under reference ``j``, [j, i], and its odd part.

        The log density is that of the best sign. The odd part is ``sum_e phi_e mu_e / v_e``. A
        constant of each reference is omitted, because it occurs once in every labelling.
        """
        units = gather_units(theta, self.layer.index)
        odd = (units @ self.linear.mT).mT
        similarity = ((units * units) @ (-0.5 * self.precision).mT).mT
        similarity += odd.abs() if self.layer.flips else odd
        return similarity, odd


def _best_signs(
    similarity: Tensor, odd: Tensor, permutation: Tensor, flips: bool
) -> tuple[Tensor, Tensor]:
    """Find the best signs for a permutation, and the improvement over the current labels.

    Parameters
    ----------
    similarity, odd : Tensor of shape (n, d, d)
        Log densities and their odd parts, from `_UnitScores`.
    permutation : int64 Tensor of shape (n, d)
        Permutation of each draw.
    flips : bool
        Whether signs are free.

    Returns
    -------
    sign : int8 Tensor of shape (n, d)
        Signs.
    improvement : Tensor of shape (n,)
        Increase of the log density, nats.
    """
    matches = permutation.unsqueeze(-1)
    sign = nonzero_sign(odd.gather(-1, matches).squeeze(-1), free=flips)
    current = similarity.diagonal(dim1=-2, dim2=-1)
    if flips:  # the current labels include the current signs, even if these aren't the best
        current = current + 2.0 * odd.diagonal(dim1=-2, dim2=-1).clamp_max(0.0)
    return sign, (similarity.gather(-1, matches).squeeze(-1) - current).sum(dim=-1)


def _tolerance(similarity: Tensor) -> Tensor:
    """Return the smallest improvement that moves each draw, (n,) nats."""
    return _TOLERANCE * (1.0 + similarity.diagonal(dim1=-2, dim2=-1).abs().sum(dim=-1))


@dataclass(frozen=True, eq=False)
class Labelling:
    """Draws with their current labels.

    Attributes
    ----------
    layers : tuple of UnitGroup
        Groups of the layers, the first layer first.
    theta : Tensor of shape (n, P)
        Draws, each acted on by its elements.
    elements : tuple of SignedPermutation
        Elements of each layer's group, with batch shape (n,).
    mean_square : Tensor of shape (P,)
        `orbit_mean_square` of the draws.
    """

    layers: tuple[UnitGroup, ...]
    theta: Tensor
    elements: tuple[SignedPermutation, ...]
    mean_square: Tensor

    @classmethod
    def from_draws(cls, theta: Tensor, group: SymmetryGroup) -> "Labelling":
        """Start from the labels that the draws have."""
        layers = unit_layers(group)
        shape = (len(theta), -1)
        elements = (SignedPermutation(*(p.expand(shape) for p in f.identity())) for f in layers)
        return cls(layers, theta, tuple(elements), orbit_mean_square(theta, group))

    def reference(self) -> DiagonalReference:
        """Estimate a reference from the draws with their current labels."""
        return estimate_reference(self.theta, self.mean_square)

    def apply(self, i: int, g: SignedPermutation) -> "Labelling":
        """Act on each draw's units of layer ``i`` by its element of ``g``."""
        layer = self.layers[i]
        elements = list(self.elements)
        elements[i] = layer.compose(g, elements[i])
        return replace(self, theta=layer.act(g, self.theta), elements=tuple(elements))

    def anchored_groups(self) -> tuple[UnitGroup, ...]:
        """Return each layer's group on the entries that later layers don't move.

        Once the layers before are aligned, these entries are comparable: weights from the inputs or
        from earlier layers, biases, and weights to the outputs.
        """
        masks = anchored_entries(self.layers)
        return tuple(
            layer.with_index(layer.index[:, mask])
            for layer, mask in zip(self.layers, masks, strict=True)
        )

    def label_forward(self, reference: DiagonalReference) -> "Labelling":
        """Label all draws anew, first layer first, each layer by its anchored entries."""
        labelling = self
        for i, layer in enumerate(self.anchored_groups()):
            g, _ = improve_labelling(labelling.theta, layer, reference, thorough=True)
            labelling = labelling.apply(i, g)
        return labelling

    def improve(
        self, reference: DiagonalReference, *, thorough: bool
    ) -> tuple["Labelling", Tensor]:
        """Improve every layer with the others fixed, last layer first.

        Parameters
        ----------
        reference : DiagonalReference
            Reference of all entries.
        thorough : bool
            As in `improve_labelling`.

        Returns
        -------
        labelling : Labelling
            The improved labels.
        moved : bool Tensor of shape (n,)
            Draws whose labels changed.
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
        """Improve labels and reference in turn until no draw moves."""
        labelling = self
        for sweep in range(max_sweeps):
            labelling, moved = labelling.improve(reference, thorough=sweep == 0)
            if not bool(moved.any()):
                break
            reference = labelling.reference()
        return labelling

    def log_prob(self, reference: DiagonalReference) -> Tensor:
        """Return the log density of each draw under the reference less a constant, (n,) nats."""
        mean, variance = reference
        return -0.5 * ((self.theta - mean).square() / variance).sum(dim=-1)

    def select(self, mask: Tensor, other: "Labelling") -> "Labelling":
        """Return these labels for draws where ``mask`` (n,) holds, and the other's elsewhere."""
        elements = (a.select(mask, b) for a, b in zip(self.elements, other.elements, strict=True))
        theta = torch.where(mask.unsqueeze(-1), self.theta, other.theta)
        return replace(self, theta=theta, elements=tuple(elements))


# Number of first steps from a start with pooled variances. Variances under bad labels mislead.
_N_POOLED_STEPS = 3

# Number of sweeps of every start. Only the best start is swept until convergence.
_N_START_SWEEPS = 20


class Relabelled(NamedTuple):
    """Draws on one representative of their orbits.

    Attributes
    ----------
    theta : Tensor of shape (n, P)
        Draws, each acted on by its elements.
    elements : tuple
        Elements of each factor, with batch shape (n,). They are signed permutations for `relabel`.
    n_changing : int
        Number of draws that the last sweep still moved. 0 means convergence.
    """

    theta: Tensor
    elements: tuple[Any, ...]
    n_changing: int


def relabel(
    theta: Tensor,
    group: SymmetryGroup,
    *,
    n_starts: int,
    max_sweeps: int,
    generator: torch.Generator,
) -> Relabelled:
    """Move every draw to the orbit point that makes the draws as similar as possible.

    Parameters
    ----------
    theta : Tensor of shape (n, P), float64
        Draws.
    group : SymmetryGroup
        Product of groups of units, one factor for each hidden layer, the first layer first.
    n_starts : int
        Number of starts, each from a different draw.
    max_sweeps : int
        Largest number of sweeps.
    generator : torch.Generator
        Selects the starts.

    Returns
    -------
    Relabelled
        Draws in canonical order (`canonical_element`), which depends on their orbits alone.

    Notes
    -----
    Minimises ``sum_e 0.5 log v_e`` over the labels of all draws by coordinate descent, where
    ``v_e`` is the variance of entry ``e`` across draws. For each layer and draw, the labels become

        argmax over permutations pi and signs s of
            sum_j log N(s_j phi_pi(j); mu_j, diag v_j),

    an assignment problem that is solved exactly. A match has the sign of
    ``sum_e phi_e mu_e / v_e``.

    From each start (one draw as ``mu``, variances pooled over units) the first pass goes FORWARD
    through the layers. It compares only what is anchored: weights from the inputs or from layers
    already aligned, and to the outputs. (Going in reverse first, as in Algorithm 4 of Wiese et al.
    2023, compares weights whose other ends are still scrambled.) Sweeps over all entries follow,
    last layer first, until none moves a draw. Draws that are stuck between layers are labelled anew
    by a forward pass, which is kept where it fits better. After a few sweeps of every start, only
    the best is swept until convergence.

    A step costs O(n d^2 p), and assignments for draws that an exchange of two units improves. The
    last sweep solves the assignments of all draws. The result is a local optimum. For overlapping
    units, such as those of wide layers, starts end in different labels that are about equally good,
    and `label_margin` is small.

    References
    ----------
    Stephens (2000), "Dealing with label switching in mixture models", J. R. Stat. Soc. B 62.
    """
    original = Labelling.from_draws(_scaled(theta), group)
    runs = []
    for start in torch.randperm(len(theta), generator=generator)[:n_starts].tolist():
        labelling = _first_pass(original, start)
        runs.append(_sweep(labelling, len(theta), min(_N_START_SWEEPS, max_sweeps)))
        report_progress(len(runs), n_starts + 1)
    best = min(runs, key=lambda run: label_objective(run[0].theta, group))
    labelling, n_changing = _sweep(*best, max_sweeps - _N_START_SWEEPS)
    return in_canonical_order(theta, labelling.theta, labelling.elements, group, n_changing)


def align_to_mean(
    theta: Tensor,
    group: SymmetryGroup,
    *,
    n_starts: int,
    max_sweeps: int,
    generator: torch.Generator,
) -> Relabelled:
    """Move every draw to the orbit point nearest to the mean of all, for any finite group.

    This is for groups that `relabel` doesn't support: units inside units, units on two axes of one
    parameter, or units with several signs.

    Parameters
    ----------
    theta : Tensor of shape (n, P), float64
        Draws.
    group : SymmetryGroup
        A finite group.
    n_starts : int
        Number of starts, each with a different draw as the mean.
    max_sweeps : int
        Largest number of sweeps for each start.
    generator : torch.Generator
        Selects the starts.

    Returns
    -------
    Relabelled
        Draws from the start with the smallest sum of squared distances.

    Notes
    -----
    `SymmetryGroup.align` and the mean follow one another until no draw moves. The sum of squared
    distances never rises (generalised Procrustes analysis, Gower 1975). Entries are compared in
    units of the root mean square of their coordinate orbit.
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
    draws: Tensor,
    aligned: Tensor,
    elements: tuple[SignedPermutation, ...],
    group: SymmetryGroup,
    n_changing: int,
) -> Relabelled:
    """Bring aligned draws into canonical order, and apply both steps to the original draws.

    Parameters
    ----------
    draws : Tensor of shape (n, P)
        Original draws.
    aligned : Tensor of shape (n, P)
        Draws after alignment, possibly in other units.
    elements : tuple of SignedPermutation
        The elements that align the draws.
    group : SymmetryGroup
        Product of groups of units.
    n_changing : int
        Number of draws that the last sweep of the alignment moved.

    Returns
    -------
    Relabelled
        The draws acted on by the elements and by `canonical_element`.
    """
    product = Product(unit_layers(group))
    total = product.compose(canonical_element(aligned, group), elements)
    return Relabelled(product.act(total, draws), total, n_changing)


def label_objective(theta: Tensor, group: SymmetryGroup) -> float:
    """Compute ``sum_e 0.5 log v_e`` over the entries of units, in nats; smaller is better."""
    variance = estimate_reference(theta, orbit_mean_square(theta, group)).variance
    entries = [layer.index.flatten() for layer in unit_layers(group)]
    if not entries:
        return 0.0
    return 0.5 * float(variance[torch.cat(entries).unique()].log().sum())


def label_margin(theta: Tensor, group: SymmetryGroup) -> Tensor:
    """Compute how well the labels of each aligned draw are determined, in nats.

    Parameters
    ----------
    theta : Tensor of shape (n, P), float64
        Aligned draws.
    group : SymmetryGroup
        Product of groups of units.

    Returns
    -------
    Tensor of shape (n,)
        The smallest `labelling_margin` over layers, with the other layers fixed and a reference
        estimated from all draws. ``exp(-margin)`` is the odds of the second-best labels. 0 means
        that two labellings are equally good. The margin is negative where other labels fit better
        (labels that aren't from `relabel`, or a sweep limit that was reached), and inf if there are
        no other labels.
    """
    scaled = _scaled(theta)
    reference = estimate_reference(scaled, orbit_mean_square(scaled, group))
    margin = torch.full((len(theta),), torch.inf, dtype=theta.dtype)
    for layer in unit_layers(group):
        margin = torch.minimum(margin, labelling_margin(scaled, layer, reference))
    return margin


def canonical_element(theta: Tensor, group: SymmetryGroup) -> tuple[SignedPermutation, ...]:
    """Find the element, the same for all draws, that brings aligned draws into canonical order.

    Units that can be exchanged are sorted by decreasing norm of their mean anchored entries
    (`anchored_entries`). If signs are free, the largest of these entries is made positive.

    Parameters
    ----------
    theta : Tensor of shape (n, P)
        Aligned draws.
    group : SymmetryGroup
        Product of groups of units.

    Returns
    -------
    tuple of SignedPermutation
        One for each layer, without batch axes.
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
    """Scale draws so that squares don't overflow; nothing else depends on the scale."""
    return theta / theta.abs().max().clamp_min(torch.finfo(theta.dtype).tiny)


def _first_pass(labelling: Labelling, start: int) -> Labelling:
    """Label all layers forward, with the anchored entries of draw ``start`` as the mean."""
    for i, layer in enumerate(labelling.anchored_groups()):
        flat = layer.index.flatten()
        first = DiagonalReference(labelling.theta[start], labelling.mean_square).select(flat)
        layer_only = layer.with_index(torch.arange(len(flat)).reshape(layer.index.shape))
        labelling = labelling.apply(i, _label_layer(labelling.theta[:, flat], layer_only, first))
    return labelling


def _label_layer(
    theta: Tensor, layer: UnitGroup, reference: DiagonalReference
) -> SignedPermutation:
    """Label the units of one layer, starting from a reference that is only a first guess."""
    mean_square = reference.variance
    total = layer.identity()
    for step in range(50):
        # The first step is thorough, so that the result depends on the orbits of the draws and not
        # on their original labels.
        g, moved = improve_labelling(theta, layer, reference, thorough=step == 0)
        theta = layer.act(g, theta)
        total = layer.compose(g, total)
        if step >= _N_POOLED_STEPS and not bool(moved.any()):
            break
        reference = estimate_reference(theta, mean_square)
        if step + 1 < _N_POOLED_STEPS:
            reference = reference._replace(variance=mean_square)
    return total


def _sweep(labelling: Labelling, n_changing: int, n_sweeps: int) -> tuple[Labelling, int]:
    """Sweep until a thorough sweep moves no draw, at most ``n_sweeps`` times.

    Parameters
    ----------
    labelling : Labelling
        Current labels.
    n_changing : int
        Number of draws that the previous sweep moved.
    n_sweeps : int
        Largest number of sweeps.

    Returns
    -------
    labelling : Labelling
        New labels.
    n_changing : int
        Number of draws that the last sweep moved.
    """
    for _ in range(n_sweeps):
        if n_changing == 0:
            break
        reference = labelling.reference()
        labelling, moved = labelling.improve(reference, thorough=False)
        if not bool(moved.any()):
            labelling, moved = labelling.improve(reference, thorough=True)
            if len(labelling.layers) > 1:
                # Draws that are stuck between layers: a forward pass, where it fits better.
                forward = labelling.label_forward(reference)
                for _ in range(3):
                    forward, _ = forward.improve(reference, thorough=True)
                current = labelling.log_prob(reference)
                better = forward.log_prob(reference) > current + 1e-9 * (1.0 + current.abs())
                labelling = forward.select(better, labelling)
                moved = moved | better
        n_changing = int(moved.sum())
    return labelling, n_changing
