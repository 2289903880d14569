"""Coordinate descent over the labels of hidden units: one layer at a time, the others fixed."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.reference import (
    DiagonalReference,
    estimate_reference,
    improve_labels,
    orbit_mean_square,
)
from skbayes_sym.symmetry.units import (
    SignedPermutation,
    UnitGroup,
    entries_shared_with_no_later_layer,
    unit_layers,
)


@dataclass(frozen=True, eq=False)
class Labelling:
    """Draws as labelled so far, and the elements that led there.

    Parameters
    ----------
    layers : tuple of UnitGroup
        First layer first.
    theta : Tensor of shape (n, P)
        Each draw acted on by its elements.
    elements : tuple of SignedPermutation, one a layer, batch shape (n,)
    mean_square : Tensor of shape (P,)
        `orbit_mean_square` of the draws.
    """

    layers: tuple[UnitGroup, ...]
    theta: Tensor
    elements: tuple[SignedPermutation, ...]
    mean_square: Tensor

    @classmethod
    def given(cls, theta: Tensor, group: SymmetryGroup) -> "Labelling":
        """Draws labelled as they are given."""
        layers, shape = unit_layers(group), (len(theta), -1)
        elements = (SignedPermutation(*(p.expand(shape) for p in f.identity())) for f in layers)
        return cls(layers, theta, tuple(elements), orbit_mean_square(theta, group))

    def reference(self) -> DiagonalReference:
        """Estimated from the draws as labelled."""
        return estimate_reference(self.theta, self.mean_square)

    def moved(self, i: int, g: SignedPermutation) -> "Labelling":
        """With each draw's units of layer ``i`` moved by its ``g``."""
        layer, elements = self.layers[i], list(self.elements)
        elements[i] = layer.compose(g, elements[i])
        return replace(self, theta=layer.act(g, self.theta), elements=tuple(elements))

    def anchored(self) -> tuple[UnitGroup, ...]:
        """Each layer's group on what is anchored once the layers before are aligned.

        Weights from the inputs or from earlier layers, biases, and weights to the outputs.
        """
        masks = entries_shared_with_no_later_layer(self.layers)
        return tuple(f.on(f.index[:, mask]) for f, mask in zip(self.layers, masks, strict=True))

    def forward(self, reference: DiagonalReference) -> "Labelling":
        """Labels from scratch, first layer first, each judged by its anchored entries."""
        labelling = self
        for i, layer in enumerate(self.anchored()):
            g, _ = improve_labels(labelling.theta, layer, reference, thorough=True)
            labelling = labelling.moved(i, g)
        return labelling

    def improved(
        self, reference: DiagonalReference, *, thorough: bool
    ) -> tuple["Labelling", Tensor]:
        """Every layer given the others, last first; and which draws moved, bool (n,).

        ``thorough`` as in `improve_labels`.
        """
        labelling, any_moved = self, torch.zeros(len(self.theta), dtype=torch.bool)
        for i in reversed(range(len(self.layers))):
            g, moved = improve_labels(labelling.theta, self.layers[i], reference, thorough=thorough)
            if bool(moved.any()):
                labelling, any_moved = labelling.moved(i, g), any_moved | moved
        return labelling, any_moved

    def descended(self, reference: DiagonalReference, max_sweeps: int) -> "Labelling":
        """Labels and reference in turn, from a given reference, until no draw moves."""
        labelling = self
        for sweep in range(max_sweeps):
            labelling, moved = labelling.improved(reference, thorough=sweep == 0)
            if not bool(moved.any()):
                break
            reference = labelling.reference()
        return labelling

    def log_prob(self, reference: DiagonalReference) -> Tensor:
        """Log density of each draw under the reference less a constant, (n,) nats."""
        mean, variance = reference
        return -0.5 * ((self.theta - mean).square() / variance).sum(dim=-1)

    def where(self, mask: Tensor, other: "Labelling") -> "Labelling":
        """These labels of the draws where ``mask`` (n,) holds, elsewhere the other's."""
        elements = (a.where(mask, b) for a, b in zip(self.elements, other.elements, strict=True))
        theta = torch.where(mask.unsqueeze(-1), self.theta, other.theta)
        return replace(self, theta=theta, elements=tuple(elements))
