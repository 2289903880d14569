"""Rotations and reflections of rows: the symmetry of a matrix factorisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import cos, inf, sin

import torch
from torch import Tensor

from skbayes_sym.numerics.random import random_orthogonal
from skbayes_sym.symmetry.group import SimpleGroup, WeightValidationMixin
from skbayes_sym.symmetry.units import gather_units


@dataclass(frozen=True, eq=False, repr=False)
class Orthogonal(WeightValidationMixin, SimpleGroup):
    """Orthogonal matrices, each applied to many rows at once: O(k), Moore 2016, section 3.2.

    In ``R = U V'`` the rows of U and V can be rotated and reflected together without changing R.
    An element is a tensor ``g`` of shape (*B, k, k) with ``g g' = I``; row ``x`` becomes ``g x``.

    Parameters
    ----------
    index : int64 Tensor of shape (n_rows, k)
        Positions in the flat ``theta`` of the ``k`` entries of each row.

    Notes
    -----
    The group is continuous: ``log_order`` is inf, and elements are exact up to rounding only.
    """

    index: Tensor

    def __repr__(self) -> str:
        n, k = self.index.shape
        return f"Orthogonal group: {n} rows of {k} entries, rotated and reflected together"

    @cached_property
    def n_params(self) -> int:  # type: ignore[override]
        """Length of the shortest ``theta`` that has all entries that the group moves."""
        return 1 + int(self.index.max()) if self.index.numel() else 0

    @property
    def n_components(self) -> int:
        """Length k of a row."""
        return int(self.index.shape[1])

    @property
    def log_order(self) -> float:
        """Log of the number of elements, in nats."""
        return inf

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Tensor:
        """Sample uniform elements with batch shape ``shape``."""
        return random_orthogonal(shape, self.n_components, generator=generator)

    def act(self, g: Tensor, theta: Tensor) -> Tensor:
        """Return ``g.theta``."""
        self.check_weights(theta)
        rows = gather_units(theta, self.index) @ g.to(theta).mT
        moved = theta.expand(*rows.shape[:-2], theta.shape[-1]).clone()
        moved[..., self.index.flatten()] = rows.flatten(-2)
        return moved

    def inverse(self, g: Tensor) -> Tensor:
        """Return the inverse of ``g``."""
        return g.mT

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        """Return the element that acts as ``h`` first, then as ``g``."""
        return g @ h

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest orbit point in Euclidean distance: the orthogonal Procrustes problem.

        With ``Y' X = P diag(s) Q'`` for rows X of ``theta`` and Y of ``reference``, ``g = P Q'``
        (Schonemann 1966). One SVD of size k a draw.
        """
        self.check_pair(theta, reference)
        ours = gather_units(theta, self.index)
        theirs = gather_units(reference, self.index)
        left_vectors, _, right_vectors = torch.linalg.svd(theirs.mT @ ours)
        g = left_vectors @ right_vectors
        return self.act(g, theta), g

    def identity(self) -> Tensor:
        """Return the identity element."""
        return torch.eye(self.n_components, dtype=torch.float64)

    def generators(self) -> list[tuple[str, Tensor]]:
        """A reflection, and a rotation in each plane of neighbours; they reach a dense subset."""
        k = self.n_components
        reflection = self.identity()
        reflection[0, 0] = -1.0
        named = [("component 0 reflected", reflection)]
        for i in range(k - 1):
            rotation = self.identity()
            # One radian is no rational part of a turn: its multiples fill the circle.
            rotation[i, i] = rotation[i + 1, i + 1] = cos(1.0)
            rotation[i, i + 1], rotation[i + 1, i] = -sin(1.0), sin(1.0)
            named.append((f"components {i} and {i + 1} rotated", rotation))
        return named

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Orbits, one a row: rotations mix its entries; see `SymmetryGroup`."""
        orbits = torch.arange(n_params)
        index = self.index.cpu()
        orbits[index] = index.amin(dim=1, keepdim=True).expand(index.shape)
        return orbits
