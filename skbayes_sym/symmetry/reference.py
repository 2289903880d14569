"""Places for hidden units: a diagonal Gaussian each, and the best units to put there."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.assignment import best_assignment, can_exchange, runner_up_loss
from skbayes_sym.symmetry.units import SignedPermutation

_FLOOR = 1e-4  # least variance of an entry, relative to the mean square of entries of its kind
_TOLERANCE = 1e-9  # relative gain that counts as one: rounding must not move draws for ever
_CHUNK = 1 << 16  # numbers a matrix of matches may hold: half a megabyte stays in the cache


class Places(NamedTuple):
    """Mean and variance of every entry of aligned draws, (P,), or of a layer's units, (d, p)."""

    mean: Tensor
    variance: Tensor

    def at(self, index: Tensor) -> "Places":
        """Of the entries at ``index``."""
        return Places(self.mean[index], self.variance[index])


def estimate_places(theta: Tensor, kinds: Tensor) -> Places:
    """Mean and variance over draws (n, P); ``kinds`` of `kind_mean_square` sets the least one."""
    variance, mean = torch.var_mean(theta, dim=0, correction=0)
    return Places(mean, torch.maximum(variance, _FLOOR * kinds))


def kind_mean_square(theta: Tensor, layers: Sequence[Tensor]) -> Tensor:
    """Mean square of all entries of one kind, (P,), never 0: no labelling changes it.

    Entries that units of a layer have in common are of one kind: weights from one input, biases,
    weights between two hidden layers, weights to one output.

    Parameters
    ----------
    theta : Tensor of shape (n, P)
    layers : sequence of int64 Tensors of shape (d_l, p_l)
        Positions of the entries of each unit.
    """
    kinds = theta.square().mean(dim=0)
    for index in layers:
        kinds[index] = kinds[index].mean(dim=0).expand(index.shape)
    return torch.where(kinds > 0, kinds, 1.0)


def improve_labels(
    units: Tensor, places: Places, *, signed: bool, thorough: bool
) -> tuple[SignedPermutation, Tensor]:
    """Best labels of the units of one layer, draw by draw, all else fixed.

    Parameters
    ----------
    units : Tensor of shape (n, d, p)
    places : Places of shape (d, p)
    signed : bool
        Whether signs are free.
    thorough : bool
        Solve the assignment problem of every draw, not only of those in which exchanging some two
        units gains (a longer cycle may gain where no exchange does).

    Returns
    -------
    g : SignedPermutation of batch shape (n,)
        The identity where nothing is gained.
    moved : bool Tensor of shape (n,)
    """
    parts = []
    for rows in _chunks(units):
        similarity, odd = _match(units[rows], places, signed)
        tol = _tolerance(similarity)
        permutation = torch.arange(units.shape[1]).repeat(len(similarity), 1)
        identity = permutation.clone()
        worth = can_exchange(similarity, tol) | thorough
        permutation[worth] = best_assignment(similarity[worth])
        sign, gain = _signs_and_gain(similarity, odd, permutation, signed)
        moved = gain > tol
        stay = ~moved.unsqueeze(-1)
        parts.append((torch.where(stay, identity, permutation), sign.masked_fill(stay, 1), moved))
    permutation, sign, moved = (torch.cat(p) for p in zip(*parts, strict=True))
    return SignedPermutation(permutation, sign), moved


def margin_of_labels(units: Tensor, places: Places, *, signed: bool) -> Tensor:
    """Log density of each draw's units in their places less that of the best other labels, nats.

    The other labels are the second-best permutation with its best signs, or one sign flip: exactly
    the runner-up. Negative where other labels are better than the given ones.

    Parameters
    ----------
    units : Tensor of shape (n, d, p)
    places : Places of shape (d, p)
    signed : bool

    Returns
    -------
    Tensor of shape (n,)
        inf if there are no other labels. O(n d^3).
    """
    parts = []
    for rows in _chunks(units):
        similarity, odd = _match(units[rows], places, signed)
        margin = runner_up_loss(similarity)
        if signed:
            flip = 2.0 * odd.diagonal(dim1=-2, dim2=-1).abs().amin(dim=-1)
            margin = torch.minimum(margin, flip)
        _, gain = _signs_and_gain(similarity, odd, best_assignment(similarity), signed)
        given_is_best = gain <= _tolerance(similarity)
        parts.append(torch.where(given_is_best, margin.clamp_min(0.0), -gain))
    return torch.cat(parts)


def positive_or_negative(values: Tensor, signed: bool) -> Tensor:
    """Sign of each value, int8; 1 for zero, and for all where signs aren't free."""
    return torch.where((values < 0) & signed, -1, 1).to(torch.int8)


def _match(units: Tensor, places: Places, signed: bool) -> tuple[Tensor, Tensor]:
    """Log density of unit ``i`` in place ``j`` at its best sign, [j, i], and its odd part.

    ``odd = sum_e phi_e mu_e / v_e``. A constant of each place is left out: it counts once in every
    labelling.
    """
    precision = places.variance.reciprocal()
    odd = (units @ (places.mean * precision).mT).mT
    similarity = ((units * units) @ (-0.5 * precision).mT).mT
    similarity += odd.abs() if signed else odd
    return similarity, odd


def _signs_and_gain(
    similarity: Tensor, odd: Tensor, permutation: Tensor, signed: bool
) -> tuple[Tensor, Tensor]:
    """Best signs of this permutation, and what both gain over the labels as they are, nats."""
    chosen = permutation.unsqueeze(-1)
    sign = positive_or_negative(odd.gather(-1, chosen).squeeze(-1), signed)
    own = similarity.diagonal(dim1=-2, dim2=-1)
    if signed:  # as they are, units keep their signs, good or bad
        own = own + 2.0 * odd.diagonal(dim1=-2, dim2=-1).clamp_max(0.0)
    return sign, (similarity.gather(-1, chosen).squeeze(-1) - own).sum(dim=-1)


def _tolerance(similarity: Tensor) -> Tensor:
    return _TOLERANCE * (1.0 + similarity.diagonal(dim1=-2, dim2=-1).abs().sum(dim=-1))


def _chunks(units: Tensor) -> list[slice]:
    """Blocks of draws."""
    size = max(1, _CHUNK // units.shape[1] ** 2)
    return [slice(i, i + size) for i in range(0, len(units), size)]
