"""Reference labelling: a diagonal Gaussian for every unit, and the labels that fit it best."""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.assignment import best_assignment, can_exchange, runner_up_loss
from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import SignedPermutation, UnitGroup, positive_or_negative, units_of

_FLOOR = 1e-4  # least variance of an entry, relative to the mean square of its orbit
_TOLERANCE = 1e-9  # relative gain that counts as one: rounding must not move draws for ever
_CHUNK = 1 << 16  # numbers a matrix of matches may hold: half a megabyte stays in the cache


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
    return DiagonalReference(mean, torch.maximum(variance, _FLOOR * mean_square))


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


def improve_labels(
    theta: Tensor, layer: UnitGroup, reference: DiagonalReference, *, thorough: bool
) -> tuple[SignedPermutation, Tensor]:
    """Best labels of the units of one layer, draw by draw, all else fixed.

    ``theta`` (n, P); ``layer``: only the entries it names are compared; ``thorough``: solve the
    assignment problem of every draw, not only of those in which exchanging some two units gains (a
    longer cycle may gain where no exchange does). Returns ``g``: the identity where nothing is
    gained, ``moved`` bool (n,).
    """
    match, parts = _Match.to(layer, reference), []
    for rows in theta.split(match.n_rows):
        similarity, odd = match(rows)
        tol = _tolerance(similarity)
        identity = torch.arange(layer.n_units).repeat(len(rows), 1)
        permutation = identity.clone()
        if layer.permutes:
            worth = can_exchange(similarity, tol) | thorough
            permutation[worth] = best_assignment(similarity[worth])
        sign, gain = _signs_and_gain(similarity, odd, permutation, layer.flips)
        stay = SignedPermutation(identity, torch.ones_like(sign))
        moved = gain > tol
        parts.append((*SignedPermutation(permutation, sign).where(moved, stay), moved))
    permutation, sign, moved = (torch.cat(p) for p in zip(*parts, strict=True))
    return SignedPermutation(permutation, sign), moved


def margin_of_labels(theta: Tensor, layer: UnitGroup, reference: DiagonalReference) -> Tensor:
    """Log density of each draw's units as labelled less that of the best other labels, nats.

    The other labels are the second-best permutation with its best signs, or one sign flip: exactly
    the runner-up. Negative where other labels are better than the given ones.

    ``theta`` (n, P). Returns (n,), inf if there are no other labels. O(n d^3).
    """
    match, parts = _Match.to(layer, reference), []
    for rows in theta.split(match.n_rows):
        similarity, odd = match(rows)
        margin = torch.full_like(similarity[:, 0, 0], torch.inf)
        best = torch.arange(layer.n_units).repeat(len(rows), 1)
        if layer.permutes:
            margin, best = runner_up_loss(similarity), best_assignment(similarity)
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
        """Draws of a chunk."""
        return rows_within(_CHUNK, self.layer.n_units**2)

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Log density of unit ``i`` under reference ``j`` at its best sign, [j, i]; its odd part.

        ``odd = sum_e phi_e mu_e / v_e``. A constant of each reference is left out: it counts once
        in every labelling.
        """
        units = units_of(theta, self.layer.index)
        odd = (units @ self.linear.mT).mT
        similarity = ((units * units) @ (-0.5 * self.precision).mT).mT
        similarity += odd.abs() if self.layer.flips else odd
        return similarity, odd


def _signs_and_gain(
    similarity: Tensor, odd: Tensor, permutation: Tensor, flips: bool
) -> tuple[Tensor, Tensor]:
    """Best signs of this permutation, and what both gain over the labels as they are, nats."""
    chosen = permutation.unsqueeze(-1)
    sign = positive_or_negative(odd.gather(-1, chosen).squeeze(-1), free=flips)
    current = similarity.diagonal(dim1=-2, dim2=-1)
    if flips:  # as they are, units keep their signs, good or bad
        current = current + 2.0 * odd.diagonal(dim1=-2, dim2=-1).clamp_max(0.0)
    return sign, (similarity.gather(-1, chosen).squeeze(-1) - current).sum(dim=-1)


def _tolerance(similarity: Tensor) -> Tensor:
    return _TOLERANCE * (1.0 + similarity.diagonal(dim1=-2, dim2=-1).abs().sum(dim=-1))
