"""What a cloud of particles says about scales: labels first, then variances and covariances.

Raw particles sit in all |G| copies of a mode, so their spread is the distance between copies. One
representative of each orbit has the spread of the mode itself, from one draw a particle.
"""

from typing import Any

import torch
from torch import Tensor

from skbayes_sym.inference.kernels.base import DenseWhitening, DiagonalWhitening
from skbayes_sym.numerics.linalg import cholesky, shrink_to_diagonal
from skbayes_sym.symmetry.reference import Places, estimate_places, improve_labels, kind_mean_square
from skbayes_sym.symmetry.relabelling import (
    anchored_columns,
    label_objective,
    relabel,
    signed_group,
)
from skbayes_sym.symmetry.units import units_of

_SWEEPS = 20  # of relabelling; prior-like units never settle and needn't
_STARTERS = 256  # particles that a fresh reference is found from
_SHRINKAGE = 0.02  # of correlations towards 0
_FLOOR = 1e-12  # least variance, relative to the mean square of entries of its kind


def align_particles(
    position: Tensor,
    group: Any,
    places: Places | None,
    *,
    n_starts: int,
    generator: torch.Generator,
) -> tuple[Tensor, Places]:
    """One representative of every particle's orbit, by Stephens' relabelling.

    Parameters
    ----------
    position : Tensor of shape (N, D)
    group : symmetry group with ``factors``
    places : Places of shape (D,), optional
        Where the search begins: those of the last stage.
    n_starts : int
        Fresh starts besides; the labels with the smallest objective win.
    generator : torch.Generator

    Returns
    -------
    position : Tensor of shape (N, D)
    places : Places of shape (D,), float64 on the CPU
        Of the aligned particles.
    """
    theta, layers = position.detach().cpu().double(), [f.index for f in group.factors]
    if not layers:
        return position, estimate_places(theta, kind_mean_square(theta, layers))
    signed = [factor.flips for factor in group.factors]
    references = [] if places is None else [places]
    if n_starts or not references:
        some = theta[:: max(1, len(theta) // _STARTERS)]
        found = relabel(
            some,
            layers,
            signed=all(signed),
            n_starts=max(1, n_starts),
            max_sweeps=_SWEEPS,
            generator=_cpu_stream(generator),
        )
        references.append(estimate_places(found.theta, kind_mean_square(theta, layers)))
    starts = [(theta, reference) for reference in references]
    if len(layers) > 1:
        starts += [(_forward(theta, layers, signed, r), r) for r in references]
    runs = [_sweep(labelled, layers, signed, reference) for labelled, reference in starts]
    best = min(runs, key=lambda run: label_objective(run, layers))
    return best.to(position), estimate_places(best, kind_mean_square(theta, layers))


def _forward(theta: Tensor, layers: list[Tensor], signed: list[bool], places: Places) -> Tensor:
    """Labels layer by layer from what is anchored: inputs, layers before, outputs."""
    for i, columns in enumerate(anchored_columns(layers)):
        theta, _ = _best_labels(theta, layers[i], layers[i][:, columns], signed[i], places, True)
    return theta


def _sweep(theta: Tensor, layers: list[Tensor], signed: list[bool], places: Places) -> Tensor:
    """Labels and places in turn, from given places, until no particle moves."""
    kinds = kind_mean_square(theta, layers)
    for sweep in range(_SWEEPS):
        any_moved = False
        for i in reversed(range(len(layers))):
            index = layers[i]
            theta, moved = _best_labels(theta, index, index, signed[i], places, sweep == 0)
            any_moved |= moved
        if not any_moved:
            break
        places = estimate_places(theta, kinds)
    return theta


def _best_labels(
    theta: Tensor, index: Tensor, entries: Tensor, signed: bool, places: Places, thorough: bool
) -> tuple[Tensor, bool]:
    """Particles with the best labels of one layer, judged by ``entries``; whether any moved."""
    units = units_of(theta, entries)
    g, moved = improve_labels(units, places.at(entries), signed=signed, thorough=thorough)
    return signed_group([index]).act((g,), theta), bool(moved.any())


def pooled_whitening(aligned: Tensor, kinds: Tensor) -> DiagonalWhitening:
    """Standard deviations pooled over entries of one kind: no group element changes them.

    Parameters
    ----------
    aligned : Tensor of shape (N, D)
        One representative of each orbit.
    kinds : int64 Tensor of shape (D,)
        Entries with the same number share a scale; entries that the group exchanges must.
    """
    x = aligned.double()
    kinds = kinds.to(x.device)
    count = torch.bincount(kinds)
    total = x.new_zeros(len(count)).index_add(0, kinds, _variance(x))
    return DiagonalWhitening((total / count)[kinds].sqrt().to(aligned))


def full_whitening(aligned: Tensor) -> DenseWhitening:
    """Cholesky factor of ``0.98 S + 0.02 diag S``, ``S`` the covariance of aligned particles."""
    x = aligned.double()
    centred = x - x.mean(dim=0)
    covariance = shrink_to_diagonal(centred.mT @ centred, _SHRINKAGE) / len(x)
    covariance.diagonal().copy_(_variance(x))  # at least its floor
    factor = cholesky(
        covariance,
        what="The covariance of the particles",
        remedy="Standardize the data, or use more particles.",
    )
    return DenseWhitening(factor.to(aligned))


def _variance(x: Tensor) -> Tensor:
    mean_square = x.square().mean(dim=0)
    floor = _FLOOR * mean_square.clamp_min(torch.finfo(x.dtype).tiny / _FLOOR)
    return torch.maximum(x.var(dim=0, correction=0), floor)


def _cpu_stream(generator: torch.Generator) -> torch.Generator:
    """A stream on the CPU, where labels are found, led by ``generator``."""
    if generator.device.type == "cpu":
        return generator
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))


def check_kinds(group: Any, kinds: Tensor) -> None:
    """Raise unless entries that the group exchanges are of one kind.

    Raises
    ------
    ValueError
        With a layer and an entry that are told apart.
    """
    for layer, factor in enumerate(group.factors, start=1):
        of_units = kinds[factor.index]
        broken = (of_units != of_units[0]).any(dim=0).nonzero().flatten().tolist()
        if broken:
            raise ValueError(
                f"kinds tells the units of hidden layer {layer} apart (entry {broken[0]} of a "
                "unit): give the same number to entries that the symmetry exchanges."
            )
