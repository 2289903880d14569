"""Draws whose labels are known: around one network, moved by a random group element each."""

from typing import NamedTuple

import torch
from cases import mixed

from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.symmetry.group import Product, SymmetryGroup
from skbayes_sym.symmetry.relabelling import canonical_element
from skbayes_sym.symmetry.units import Units, unit_layers


class Case(NamedTuple):
    network: MLP
    group: SymmetryGroup  # the network's symmetry or a subgroup of it


def _case(*network):
    return Case(MLP(*network), MLP(*network).symmetry())


_DEEP = MLP(3, (5, 4), 1, TANH)

CASES = {
    "3": _case(1, (3,), 1, TANH), "6": _case(2, (6,), 2, TANH), "5-4": _case(3, (5, 4), 1, TANH),
    "relu-6": _case(2, (6,), 1, RELU), "relu-3-5": _case(3, (3, 5), 1, RELU),
    "one-unit": _case(2, (1,), 1, TANH), "linear": _case(2, (), 1, TANH),
    "mixed": Case(_DEEP, mixed(_DEEP)),
    "flips-only": Case(_DEEP, Units(_DEEP.symmetry().factors[1].index, permute=False, flip=True)),
}  # fmt: skip


def planted(case, n, noise, generator):
    """Draws around one network, before and after a random group element each."""
    n_params = case.network.layout.n_params
    base = torch.randn(n_params, generator=generator, dtype=torch.float64)
    spread = torch.randn(n, n_params, generator=generator, dtype=torch.float64)
    theta = base + noise * spread
    return theta, case.group.act(case.group.sample((n,), generator=generator), theta)


def in_order(case, theta):
    """The planted draws in the order that relabelling gives them."""
    return product_of(case).act(canonical_element(theta, case.group), theta)


def product_of(case):
    """The group whose elements are tuples, one a layer."""
    return Product(unit_layers(case.group))
