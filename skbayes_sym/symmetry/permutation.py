"""Permutations of the hidden units of one layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma, log, pi

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.assignment import best_assignment
from skbayes_sym.numerics.random import random_permutations


@dataclass(frozen=True, eq=False)
class UnitPermutation:
    """Exchange of interchangeable units (Gelberg et al. 2024, Definition 2.1, one layer).

    Unit ``i`` owns the entries ``theta[index[i]]``: its incoming weights, its bias and its
    outgoing weights, in the same order for every unit.

    Parameters
    ----------
    index : int64 Tensor of shape (d, p)
        Positions in the flat ``theta`` of the ``p`` entries of each of the ``d`` units.

    Notes
    -----
    An element is an int64 tensor ``g`` of shape (*B, d); unit ``i`` of ``g.theta`` is unit
    ``g[i]`` of ``theta``. |G| = d!.
    """

    index: Tensor

    @property
    def n_units(self) -> int:
        """Number d of exchangeable units."""
        return int(self.index.shape[0])

    @property
    def has_flips(self) -> bool:
        """Whether the sign of a unit is free."""
        return False

    @property
    def log_order(self) -> float:
        return lgamma(self.n_units + 1)

    @property
    def is_compact(self) -> bool:
        return True

    @property
    def factors(self) -> tuple["UnitPermutation", ...]:
        return (self,)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Tensor:
        return random_permutations(shape, self.n_units, generator=generator)

    def act(self, g: Tensor, theta: Tensor) -> Tensor:
        return put_units(theta, self.index, gather_units(units_of(theta, self.index), g))

    def inverse(self, g: Tensor) -> Tensor:
        return g.argsort(dim=-1)

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        shape = np.broadcast_shapes(g.shape, h.shape)
        return h.expand(shape).gather(-1, g.expand(shape))

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest orbit point in Euclidean distance, by one assignment problem a draw."""
        ours, theirs = units_of(theta, self.index), units_of(reference, self.index)
        g = best_assignment(theirs @ ours.mT)
        return self.act(g, theta), g

    def identity(self) -> Tensor:
        return torch.arange(self.n_units)

    def generators(self) -> list[tuple[str, Tensor]]:
        return permutation_generators(self.n_units)

    def log_orbit_density(self, theta: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Log density of unit ``i`` of ``theta`` under factor ``j`` of a mean-field Gaussian.

        Parameters
        ----------
        theta : Tensor of shape (*B, P)
        loc, scale : Tensor of shape (P,)
            Mean and standard deviation of every parameter.

        Returns
        -------
        L : Tensor of shape (*B, d, d), nats
            ``L[i, j] = log N(w_i; mu_j, diag sigma_j^2)``; the symmetrised density of the units is
            ``perm(exp L) / d!``. Three matrix products, O(d^2 p).
        """
        w, mu, precision = units_of(theta, self.index), loc[self.index], scale[self.index] ** -2
        centre = mu.mean(dim=0)  # differences of O(1) numbers cancel less than of large ones
        w, mu = w - centre, mu - centre
        return gaussian_even_part(w, mu, precision) + w @ (mu * precision).mT


def permutation_generators(d: int) -> list[tuple[str, Tensor]]:
    """One exchange and one rotation, which together generate all permutations of d items."""
    if d < 2:
        return []
    swap = torch.arange(d)
    swap[[0, 1]] = swap[[1, 0]]
    return [("units 0 and 1 exchanged", swap), ("units rotated", torch.arange(d).roll(1))]


def gaussian_even_part(w: Tensor, mu: Tensor, precision: Tensor) -> Tensor:
    """The part of log N(w_i; mu_j, 1/precision_j) that ignores the sign of ``w``, (*B, d, d)."""
    p = w.shape[-1]
    constant = (mu * mu * precision - precision.log()).sum(dim=-1) + p * log(2 * pi)
    return -0.5 * ((w * w) @ precision.mT + constant)


def units_of(theta: Tensor, index: Tensor) -> Tensor:
    """The entries of every unit: (*B, P) -> (*B, d, p)."""
    return theta[..., index]


def gather_units(units: Tensor, g: Tensor) -> Tensor:
    """Put unit ``g[i]`` in place ``i``; batch axes broadcast."""
    batch = np.broadcast_shapes(units.shape[:-2], g.shape[:-1])  # torch's own imports sympy
    units = units.expand(*batch, *units.shape[-2:])
    g = g.to(units.device).expand(*batch, g.shape[-1])
    return units.gather(-2, g.unsqueeze(-1).expand(*g.shape, units.shape[-1]))


def put_units(theta: Tensor, index: Tensor, units: Tensor) -> Tensor:
    """Copy of ``theta`` with the entries of the units replaced; batch axes broadcast."""
    moved = theta.expand(*units.shape[:-2], theta.shape[-1]).clone()
    moved[..., index.flatten()] = units.flatten(-2)
    return moved
