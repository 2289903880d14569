"""Groups of units: draws, orders, orbits and layers; the laws are in test_groups.py."""

import pytest
import torch
from cases import GROUPS
from torch.testing import assert_close

from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.numerics.random import random_permutations
from skbayes_sym.symmetry.group import Product, Trivial
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import (
    SignedPermutation,
    UnitGroup,
    Units,
    anchored_entries,
    split_units,
    unit_layers,
)

INDEX = torch.arange(8).reshape(4, 2)


def test_what_is_not_free_is_not_drawn():
    """So a seed gives the same permutations with and without flips."""
    plain, both, flips = (
        group.sample((50,), generator=torch.Generator().manual_seed(0))
        for group in (Units(INDEX), Units(INDEX, flip=True), Units(INDEX, False, True))
    )
    expected = random_permutations((50,), 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain.permutation, expected)
    assert torch.equal(both.permutation, expected)
    assert torch.equal(flips.permutation, torch.arange(4).expand(50, 4))
    assert bool((plain.sign == 1).all())
    assert bool((both.sign == -1).any())
    assert bool((flips.sign == -1).any())


def test_acting_by_hand():
    g = SignedPermutation(torch.tensor([2, 0, 1, 3]), torch.tensor([1, -1, 1, -1]))
    theta = torch.tensor([10.0, 11, 20, 21, 30, 31, 40, 41, 5])
    moved = Units(INDEX, flip=True).act(g, theta)
    assert moved.tolist() == [30, 31, -10, -11, 20, 21, -40, -41, 5]


def test_an_empty_batch():
    theta = torch.zeros(0, 9)
    group = Units(INDEX, flip=True)
    aligned, g = group.align(theta, torch.zeros(9))
    assert aligned.shape == (0, 9)
    assert group.act(g, theta).shape == (0, 9)


def test_where_takes_elements_one_by_one():
    group = Units(INDEX, flip=True)
    g, h = (group.sample((6,), generator=torch.Generator().manual_seed(i)) for i in range(2))
    mask = torch.tensor([True, False] * 3)
    both = g.select(mask, h)
    for parts in zip(both, g, h, strict=True):
        assert_close(parts[0], torch.where(mask.unsqueeze(-1), parts[1], parts[2]))


def test_layers_of_a_group():
    network = MLP(3, (5, 4), 1, TANH)
    assert [layer.n_units for layer in unit_layers(network.symmetry())] == [5, 4]
    assert unit_layers(Trivial()) == ()
    (alone,) = unit_layers(Units(INDEX))
    assert isinstance(alone, UnitGroup)
    with pytest.raises(TypeError, match="got the factor Orthogonal"):
        unit_layers(Product((Units(INDEX), GROUPS["orthogonal"].group)))


def test_entries_shared_with_no_later_layer():
    layers = unit_layers(MLP(3, (5, 4), 1, TANH).symmetry())
    first, second = anchored_entries(layers)
    assert first.tolist() == [True] * 4 + [False] * 4  # 3 inputs and the bias; not 4 units
    assert second.all()
    assert len(second) == 5 + 1 + 1


def test_coordinate_orbits_of_a_network():
    """Weights of one input, of one pair of layers, of one output; a number each for the noise."""
    orbits = MLP(2, (2, 3), 2, TANH).symmetry().coordinate_orbits(25)
    first = [0, 1] * 2 + [4] * 2
    between = [6] * 6 + [12] * 3
    last = [15] * 3 + [18] * 3 + [21, 22]
    assert orbits.tolist() == [*first, *between, *last, 23, 24]
    linear = MLP(2, (), 2, TANH).symmetry().coordinate_orbits(6)
    assert linear.tolist() == list(range(6))
    assert Units(INDEX, False, True).coordinate_orbits(8).tolist() == list(range(8))


def test_units_and_other_factors():
    units = Units(torch.arange(6).view(3, 2))
    rotations = Orthogonal(torch.arange(6, 10).view(2, 2))
    assert split_units(units) == (units, ())
    assert split_units(Trivial()) == (Trivial(), ())
    assert split_units(rotations) == (Trivial(), (rotations,))
    mixed, others = split_units(Product((units, rotations)))
    assert (mixed.factors, others) == ((units,), (rotations,))
