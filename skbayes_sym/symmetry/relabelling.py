"""One representative of every draw's orbit: Stephens' relabelling of hidden units.

Units of a hidden layer are exchangeable, behind an odd activation also up to sign. Each place of a
layer is a diagonal Gaussian over the entries of a unit (incoming weights, bias, outgoing weights);
draws are moved to where their units fit the places best, then the Gaussians are estimated again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.symmetry.base import Product
from skbayes_sym.symmetry.reference import (
    Places,
    estimate_places,
    improve_labels,
    kind_mean_square,
    margin_of_labels,
    positive_or_negative,
)
from skbayes_sym.symmetry.units import SignedPermutation, Units, units_of

_UNWEIGHTED = 3  # first steps from a start: variances under bad labels would mislead
_SETTLE = 50  # most steps of one layer in the first pass
_EXPLORE = 20  # sweeps of every start; only the best is swept to the end
_REMATCH = 3  # sweeps of draws labelled anew before they are compared with their old labels


class Relabelled(NamedTuple):
    """Draws on one representative of their orbits."""

    theta: Tensor  # (n, P): each draw acted on by its element
    elements: tuple[SignedPermutation, ...]  # one a layer, batch shape (n,)
    objective: float  # `label_objective`
    n_changing: int  # draws that the last sweep still moved; 0 is converged


def relabel(
    theta: Tensor,
    layers: Sequence[Tensor],
    *,
    signed: bool,
    n_starts: int,
    max_sweeps: int,
    generator: torch.Generator,
) -> Relabelled:
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
    layer first, until none moves a draw; draws stuck between layers are then labelled anew by a
    forward pass against the places found, which is kept where it fits better. The start with the
    smallest objective after a few sweeps is swept to the end.

    Parameters
    ----------
    theta : Tensor of shape (n, P), float64
        Finite.
    layers : sequence of int64 Tensors of shape (d_l, p_l)
        Positions in ``theta`` of the entries of each unit, first layer first: the ``index`` of
        each factor of a network's symmetry.
    signed : bool
        Whether the signs of units are a symmetry too.
    n_starts, max_sweeps : int
    generator : torch.Generator
        Chooses the starts.

    Returns
    -------
    Relabelled
        In canonical order (`canonical_element`), which depends on the orbits alone: acting on the
        draws with any group elements, one each, changes nothing (ties in rounding aside).

    Notes
    -----
    A step costs O(n d^2 p) and solves assignments only for draws that an exchange of two units
    improves; the last sweep solves all. The end is a local optimum of a problem that has many: for
    overlapping units, as of wide layers, different starts end in different labels that are about
    as good, and `label_margin` is small. Entries are compared in units of their kind, so scales of
    the inputs and outputs don't matter.

    References
    ----------
    Stephens (2000), "Dealing with label switching in mixture models", J. R. Stat. Soc. B 62.
    """
    # Squares must not overflow; nothing else depends on the unit.
    scaled = theta / theta.abs().max().clamp_min(torch.finfo(theta.dtype).tiny)
    runs = []
    for start in torch.randperm(len(theta), generator=generator)[:n_starts].tolist():
        run = _Run(scaled, layers, signed)
        run.first_pass(start)
        run.sweep(min(_EXPLORE, max_sweeps))
        runs.append(run)
    best = min(runs, key=lambda run: label_objective(run.theta, layers))
    best.sweep(max_sweeps - _EXPLORE)
    group = signed_group(layers)
    canonical = canonical_element(best.theta, layers, signed=signed)
    return labelled(theta, layers, group.compose(canonical, tuple(best.elements)), best.n_changing)


def labelled(
    draws: Tensor,
    layers: Sequence[Tensor],
    elements: tuple[SignedPermutation, ...],
    n_changing: int,
) -> Relabelled:
    """What the elements, one a layer and draw, make of the draws."""
    theta = signed_group(layers).act(elements, draws)
    return Relabelled(theta, elements, label_objective(theta, layers), n_changing)


def label_objective(theta: Tensor, layers: Sequence[Tensor]) -> float:
    """``sum_e 0.5 log v_e`` over the entries of units, each once, in nats: smaller is better."""
    variance = estimate_places(theta, kind_mean_square(theta, layers)).variance
    entries = [index.flatten() for index in layers]
    return 0.5 * float(variance[torch.cat(entries).unique()].log().sum()) if entries else 0.0


def signed_group(layers: Sequence[Tensor]) -> Product:
    """The group that relabelling moves in; where signs aren't free, they stay +1."""
    return Product(tuple(Units(index, flip=True) for index in layers))


def label_margin(theta: Tensor, layers: Sequence[Tensor], *, signed: bool) -> Tensor:
    """How decided the labels of each aligned draw are, in nats.

    `margin_of_labels` under places estimated from all draws, every other layer held fixed; the
    minimum over layers. ``exp(-margin)`` is the odds of the runner-up.

    Parameters
    ----------
    theta : Tensor of shape (n, P), float64
    layers : sequence of int64 Tensors of shape (d_l, p_l)
    signed : bool

    Returns
    -------
    margin : Tensor of shape (n,)
        0 is undecided; negative where other labels fit better (labels not from `relabel`, or a
        sweep limit reached); inf if there are no other labels.
    """
    scaled = theta / theta.abs().max().clamp_min(torch.finfo(theta.dtype).tiny)
    places = estimate_places(scaled, kind_mean_square(scaled, layers))
    margin = torch.full((len(theta),), torch.inf, dtype=theta.dtype)
    for index in layers:
        found = margin_of_labels(units_of(scaled, index), places.at(index), signed=signed)
        margin = torch.minimum(margin, found)
    return margin


def anchored_columns(layers: Sequence[Tensor]) -> list[Tensor]:
    """Which entries of each layer's units no later layer shares, bool (p_l,).

    Weights from the inputs and from earlier layers, the bias, and in the last layer the weights to
    the outputs.
    """
    masks = []
    for i, index in enumerate(layers):
        later = torch.cat([other.flatten() for other in layers[i + 1 :]] or [index[:0, 0]])
        masks.append(~torch.isin(index[0], later))
    return masks


def canonical_element(
    theta: Tensor, layers: Sequence[Tensor], *, signed: bool
) -> tuple[SignedPermutation, ...]:
    """The one element that brings aligned draws into a fixed order, the same for all draws.

    Units in decreasing order of the norm of their mean anchored entries (`anchored_columns`), the
    largest of which is made positive where signs are free.

    Parameters
    ----------
    theta : Tensor of shape (n, P)
    layers : sequence of int64 Tensors of shape (d_l, p_l)
    signed : bool

    Returns
    -------
    tuple of SignedPermutation, batch shape ()
    """
    mean, elements = theta.mean(dim=0), []
    for index, columns in zip(layers, anchored_columns(layers), strict=True):
        units = mean[index[:, columns]]
        order = units.norm(dim=-1).argsort(descending=True, stable=True)
        largest = units.gather(-1, units.abs().argmax(dim=-1, keepdim=True)).squeeze(-1)
        g = SignedPermutation(order, positive_or_negative(largest[order], signed))
        mean = Units(index, flip=True).act(g, mean)
        elements.append(g)
    return tuple(elements)


class _Run:
    """One start: the draws as labelled so far, and the elements that led there."""

    def __init__(self, theta: Tensor, layers: Sequence[Tensor], signed: bool) -> None:
        self.theta, self.layers, self.signed = theta.clone(), layers, signed
        self.group, self.anchored = signed_group(layers), anchored_columns(layers)
        self.elements = [_identity(len(theta), len(index)) for index in layers]
        self.kinds = kind_mean_square(theta, layers)
        self.n_changing = len(theta)

    def first_pass(self, start: int) -> None:
        """Forward through the layers by anchored entries, from one draw as the reference."""
        for i, (index, columns) in enumerate(zip(self.layers, self.anchored, strict=True)):
            entries = index[:, columns]
            first = Places(self.theta[start], self.kinds).at(entries)
            g = _settle(units_of(self.theta, entries), first, self.signed)
            self._move(i, g, torch.ones(len(self.theta), dtype=torch.bool))

    def sweep(self, n_sweeps: int) -> None:
        """Until a thorough sweep moves no draw, at most ``n_sweeps`` more."""
        for _ in range(n_sweeps):
            if self.n_changing == 0:
                return
            places = estimate_places(self.theta, self.kinds)
            moved = self._improve(places, thorough=False)
            if not bool(moved.any()):
                moved = self._improve(places, thorough=True)
                if len(self.layers) > 1:
                    moved |= self._label_anew(places)
            self.n_changing = int(moved.sum())

    def _improve(self, places: Places, *, thorough: bool) -> Tensor:
        """Every layer given the others, last first, under fixed places; which draws moved."""
        moved = torch.zeros(len(self.theta), dtype=torch.bool)
        for i in reversed(range(len(self.layers))):
            moved |= self._improve_layer(i, places, self.layers[i], thorough)
        return moved

    def _improve_layer(self, i: int, places: Places, entries: Tensor, thorough: bool) -> Tensor:
        g, moved = improve_labels(
            units_of(self.theta, entries), places.at(entries), signed=self.signed, thorough=thorough
        )
        self._move(i, g, moved)
        return moved

    def _label_anew(self, places: Places) -> Tensor:
        """Labels by a forward pass under fixed places, kept where they fit better."""
        other = _Run(self.theta, self.layers, self.signed)
        for i, (index, columns) in enumerate(zip(self.layers, self.anchored, strict=True)):
            other._improve_layer(i, places, index[:, columns], True)
        for _ in range(_REMATCH):
            other._improve(places, thorough=True)
        ours, theirs = self._fit(places), other._fit(places)
        better = theirs > ours + 1e-9 * (1.0 + ours.abs())
        for i, g in enumerate(other.elements):
            self._move(i, g, better)
        return better

    def _fit(self, places: Places) -> Tensor:
        """Log density of each draw less a constant, (n,)."""
        return -0.5 * ((self.theta - places.mean).square() / places.variance).sum(dim=-1)

    def _move(self, i: int, g: SignedPermutation, moved: Tensor) -> None:
        factor, before = self.group.factors[i], self.elements[i]
        there = SignedPermutation(g.permutation[moved], g.sign[moved])
        was = SignedPermutation(before.permutation[moved], before.sign[moved])
        both = factor.compose(there, was)
        before.permutation[moved], before.sign[moved] = both.permutation, both.sign
        self.theta[moved] = factor.act(there, self.theta[moved])


def _settle(units: Tensor, places: Places, signed: bool) -> SignedPermutation:
    """Labels of the units of one layer (n, d, p) when ``places`` are only the first guess."""
    group = Units(torch.arange(units[0].numel()).reshape(units.shape[1:]), flip=True)
    flat, kinds = units.flatten(1), places.variance.flatten()
    total = _identity(len(units), units.shape[1])
    for step in range(_SETTLE):
        # All draws at first: what follows then depends on their orbits, not on the copies given.
        g, moved = improve_labels(flat.view(units.shape), places, signed=signed, thorough=step == 0)
        flat, total = group.act(g, flat), group.compose(g, total)
        if step >= _UNWEIGHTED and not bool(moved.any()):
            break
        estimated = estimate_places(flat, kinds)
        if step + 1 < _UNWEIGHTED:
            estimated = estimated._replace(variance=kinds)
        places = estimated.at(group.index)
    return total


def _identity(n: int, d: int) -> SignedPermutation:
    signs = torch.ones(n, d, dtype=torch.int8)
    return SignedPermutation(torch.arange(d).repeat(n, 1), signs)
