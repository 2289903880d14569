"""Values of ``curvature``: the part of H that is kept, and how the likelihood's is taken."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from skbayes_sym.inference.laplace.curvature import Diagonal, Full, Kronecker, Structure
from skbayes_sym.inference.laplace.jacobian import Directions
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.inference.laplace.precision import (
    Precision,
    diagonal_precision,
    full_precision,
    kronecker_precision,
)
from skbayes_sym.models.networks.recording import WeightLayer
from skbayes_sym.numerics.layout import ParamLayout

_EXACT_OUTPUTS = 4  # "auto": all columns of the likelihood's root up to here

# Of a decomposed curvature and prior precisions (L,), the posterior's.
MakePrecision = Callable[[Any, Sequence[WeightLayer], ParamLayout, Tensor], Precision]


class Curvature(NamedTuple):
    """A structure, the directions it is built from, and the precision that comes of it."""

    structure: Structure
    directions: Directions
    make_precision: MakePrecision


def is_empirical(name: str) -> bool:
    """Whether the likelihood's curvature is taken from the labels: the empirical Fisher matrix."""
    return name.endswith("-ef")


def curvature_of(name: str, model: AveragedNetwork, learns_half_widths: bool) -> Curvature:
    """The curvature called ``name``."""
    layers, layout = model.layers, model.network.layout
    directions = _directions(name, model, learns_half_widths)
    if name.startswith("diag"):
        return Curvature(Diagonal(layers, layout), directions, diagonal_precision)
    if name == "full":
        return Curvature(Full(layers, layout), directions, full_precision)
    return Curvature(Kronecker(layers), directions, kronecker_precision)


def _directions(name: str, model: AveragedNetwork, learns_half_widths: bool) -> Directions:
    many = model.network.n_outputs > _EXACT_OUTPUTS
    if name == "kron-sketch" or (name == "auto" and many and learns_half_widths):
        return Directions("sketch")
    return Directions("fisher") if is_empirical(name) else Directions("exact")
