"""Permutations and sign flips of the hidden units of one layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma, log
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.numerics.assignment import best_assignment
from skbayes_sym.numerics.random import random_permutations
from skbayes_sym.symmetry.permutation import (
    gather_units,
    gaussian_even_part,
    permutation_generators,
    put_units,
    units_of,
)


class SignedPermutation(NamedTuple):
    """Unit ``i`` of ``g.theta`` is ``sign[i]`` times unit ``permutation[i]`` of ``theta``."""

    permutation: Tensor  # int64 (*B, d)
    sign: Tensor  # +-1, int8 (*B, d)


@dataclass(frozen=True, eq=False)
class SignedUnitPermutation:
    """Exchange and sign flip of units behind an odd activation: |G| = d! 2^d.

    Negating the incoming weights and the bias of a unit negates an odd activation (tanh,
    identity); negating the outgoing weights undoes it. Beyond Gelberg et al. 2024, who use
    permutations alone.

    Parameters
    ----------
    index : int64 Tensor of shape (d, p)
        Positions in the flat ``theta`` of the ``p`` entries of each of the ``d`` units.
    """

    index: Tensor

    @property
    def n_units(self) -> int:
        """Number d of exchangeable units."""
        return int(self.index.shape[0])

    @property
    def has_flips(self) -> bool:
        """Whether the sign of a unit is free."""
        return True

    @property
    def log_order(self) -> float:
        return lgamma(self.n_units + 1) + self.n_units * log(2.0)

    @property
    def is_compact(self) -> bool:
        return True

    @property
    def factors(self) -> tuple["SignedUnitPermutation", ...]:
        return (self,)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> SignedPermutation:
        permutation = random_permutations(shape, self.n_units, generator=generator)
        coin = torch.rand(permutation.shape, generator=generator, device=generator.device)
        return SignedPermutation(permutation, torch.where(coin < 0.5, -1, 1).to(torch.int8))

    def act(self, g: SignedPermutation, theta: Tensor) -> Tensor:
        moved = gather_units(units_of(theta, self.index), g.permutation)
        sign = g.sign.to(theta).unsqueeze(-1)
        return put_units(theta, self.index, moved * sign)

    def inverse(self, g: SignedPermutation) -> SignedPermutation:
        permutation = g.permutation.argsort(dim=-1)
        return SignedPermutation(permutation, g.sign.gather(-1, permutation))

    def compose(self, g: SignedPermutation, h: SignedPermutation) -> SignedPermutation:
        shape = np.broadcast_shapes(g.permutation.shape, h.permutation.shape)
        outer, inner = g.permutation.expand(shape), h.permutation.expand(shape)
        sign = g.sign * h.sign.expand(shape).gather(-1, outer)
        return SignedPermutation(inner.gather(-1, outer), sign)

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, SignedPermutation]:
        """Nearest orbit point in Euclidean distance, by one assignment problem a draw."""
        ours, theirs = units_of(theta, self.index), units_of(reference, self.index)
        inner = theirs @ ours.mT
        permutation = best_assignment(inner.abs())
        chosen = inner.gather(-1, permutation.unsqueeze(-1)).squeeze(-1)
        g = SignedPermutation(permutation, torch.where(chosen < 0, -1, 1).to(torch.int8))
        return self.act(g, theta), g

    def identity(self) -> SignedPermutation:
        plus = torch.ones(self.n_units, dtype=torch.int8)
        return SignedPermutation(torch.arange(self.n_units), plus)

    def generators(self) -> list[tuple[str, SignedPermutation]]:
        identity, plus = self.identity()
        named = [
            (name, SignedPermutation(g, plus)) for name, g in permutation_generators(self.n_units)
        ]
        flip = plus.clone()
        flip[0] = -1
        return [*named, ("sign of unit 0 flipped", SignedPermutation(identity, flip))]

    def log_orbit_density(self, theta: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Log density of unit ``i`` of ``theta``, either sign, under factor ``j``.

        ``L[i, j] = log[N(w_i; mu_j, sigma_j^2) + N(-w_i; mu_j, sigma_j^2)]`` in nats, shape
        (*B, d, d); the symmetrised density of the units is ``perm(exp L) / (d! 2^d)``.
        Three matrix products, O(d^2 p).
        """
        w, mu, precision = units_of(theta, self.index), loc[self.index], scale[self.index] ** -2
        odd = w @ (mu * precision).mT
        return gaussian_even_part(w, mu, precision) + odd.abs() + F.softplus(-2.0 * odd.abs())
