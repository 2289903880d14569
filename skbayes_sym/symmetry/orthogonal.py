"""Rotations and reflections of rows: the symmetry of a matrix factorisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import cos, inf, sin

import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import check_tensor
from skbayes_sym.numerics.random import random_orthogonal
from skbayes_sym.symmetry.group import SimpleGroup, WeightValidationMixin
from skbayes_sym.symmetry.units import gather_units


@dataclass(frozen=True, eq=False, repr=False)
class Orthogonal(WeightValidationMixin, SimpleGroup):
    """Group O(k) of orthogonal matrices, each applied to many rows (Moore 2016, section 3.2).

    In ``R = U V'`` the rows of U and V can be rotated and reflected together without changing R.
    An element is a tensor ``g`` of shape (*B, k, k) with ``g g' = I``; row ``x`` becomes ``g x``.

    Parameters
    ----------
    index : int64 Tensor of shape (n_rows, k)
        Positions in the flat ``theta`` of the ``k`` entries of each row.

    Notes
    -----
    The group is continuous, so that ``log_order`` is inf. Elements are orthogonal up to rounding.
    """

    index: Tensor

    def __post_init__(self) -> None:
        check_tensor("Orthogonal", "index", self.index, 2, is_index=True)

    def __repr__(self) -> str:
        n, k = self.index.shape
        return f"Orthogonal group: {n} rows of {k} entries, rotated and reflected together"

    @cached_property
    def n_params(self) -> int:  # type: ignore[override]
        """Length of the shortest ``theta`` that has all entries that the group moves."""
        if self.index.numel():
            return 1 + int(self.index.max())
        return 0

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
        """Return the orbit point nearest in Euclidean distance, and the element used.

        Parameters
        ----------
        theta, reference : Tensor of shape (*B, P)
            Weights to move, and where to move them.

        Returns
        -------
        moved : Tensor of shape (*B, P)
            ``g.theta``.
        g : Tensor of shape (*B, k, k)
            The element of the group.

        Notes
        -----
        This is the orthogonal Procrustes problem. With ``Y' X = P diag(s) Q'`` for rows X of
        ``theta`` and Y of ``reference``, ``g = P Q'`` (Schonemann 1966). It takes one SVD of size k
        for each draw.
        """
        self.check_pair(theta, reference)
        rows = gather_units(theta, self.index)
        reference_rows = gather_units(reference, self.index)
        p, _, q_transposed = torch.linalg.svd(reference_rows.mT @ rows)
        g = p @ q_transposed
        return self.act(g, theta), g

    def identity(self) -> Tensor:
        """Return the identity element."""
        return torch.eye(self.n_components, dtype=torch.float64)

    def generators(self) -> list[tuple[str, Tensor]]:
        """Return a reflection, and a rotation in each plane of neighbouring components.

        They generate a dense subgroup.
        """
        k = self.n_components
        reflection = self.identity()
        reflection[0, 0] = -1.0
        generators = [("component 0 reflected", reflection)]
        for i in range(k - 1):
            rotation = self.identity()
            # One radian is an irrational part of a turn, so that its multiples fill the circle.
            rotation[i, i] = rotation[i + 1, i + 1] = cos(1.0)
            rotation[i, i + 1] = -sin(1.0)
            rotation[i + 1, i] = sin(1.0)
            generators.append((f"components {i} and {i + 1} rotated", rotation))
        return generators

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Return an orbit for each row, because rotations mix its entries."""
        orbits = torch.arange(n_params)
        index = self.index.cpu()
        orbits[index] = index.amin(dim=1, keepdim=True).expand(index.shape)
        return orbits
