"""Sign flips of whole units: the symmetry that is left where units keep their places."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from skbayes_sym.symmetry.permutation import put_units, units_of


@dataclass(frozen=True, eq=False)
class SignFlip:
    """Each unit times +1 or -1, independently: |G| = 2^d (Moore 2016, section 3.1).

    In ``R = U V'`` a unit is a component: a column of U together with the same column of V. An
    element is an int8 tensor of shape (*B, d).

    Parameters
    ----------
    index : int64 Tensor of shape (d, p)
        Positions in the flat ``theta`` of the ``p`` entries of each of the ``d`` units.
    """

    index: Tensor

    @property
    def n_units(self) -> int:
        """Number d of units."""
        return int(self.index.shape[0])

    @property
    def log_order(self) -> float:
        return self.n_units * log(2.0)

    @property
    def is_compact(self) -> bool:
        return True

    @property
    def factors(self) -> tuple["SignFlip", ...]:
        return (self,)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Tensor:
        coin = torch.rand((*shape, self.n_units), generator=generator, device=generator.device)
        return torch.where(coin < 0.5, -1, 1).to(torch.int8)

    def act(self, g: Tensor, theta: Tensor) -> Tensor:
        return put_units(theta, self.index, units_of(theta, self.index) * g.to(theta).unsqueeze(-1))

    def inverse(self, g: Tensor) -> Tensor:
        return g

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        return g * h

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest orbit point: each unit on the side of the reference's."""
        inner = (units_of(theta, self.index) * units_of(reference, self.index)).sum(-1)
        g = torch.where(inner < 0.0, -1, 1).to(torch.int8)
        return self.act(g, theta), g

    def identity(self) -> Tensor:
        return torch.ones(self.n_units, dtype=torch.int8)

    def generators(self) -> list[tuple[str, Tensor]]:
        named = []
        for i in range(self.n_units):
            flip = self.identity()
            flip[i] = -1
            named.append((f"sign of unit {i} flipped", flip))
        return named
