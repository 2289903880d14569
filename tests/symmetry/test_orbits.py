"""Tables of whole groups hold every element once."""

import pytest
import torch
from cases import GROUPS
from torch.testing import assert_close

from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.symmetry.base import Product
from skbayes_sym.symmetry.orbits import can_enumerate, enumerate_group
from skbayes_sym.symmetry.units import unit_layers

N_EXTRA = 2  # columns of a position that are no weights
ENUMERABLE = [
    "trivial", "one-unit", "permutation", "signed", "product-signed", "mixed", "sign-flip",
]  # fmt: skip


@pytest.mark.parametrize("name", ENUMERABLE)
def test_enumeration_holds_every_element_once_and_the_identity_first(name, generator):
    group, network = GROUPS[name]
    n = network.layout.n_params + N_EXTRA
    table = enumerate_group(group, n)
    assert_close(torch.tensor(float(table.order)).log(), torch.tensor(group.log_order))
    assert torch.equal(table.gather[0], torch.arange(n))
    assert bool((table.sign[0] == 1).all())
    signed_index = (table.gather + 1) * table.sign
    assert len(signed_index.unique(dim=0)) == table.order

    x = torch.randn(3, n, generator=generator, dtype=torch.float64)
    orbit = table.orbit(x)
    assert orbit.shape == (3, table.order, n)
    for row, images in zip(x, orbit, strict=True):
        expected = Product(unit_layers(group)).act(table.elements, row.expand(table.order, n))
        assert_close(images, expected, rtol=0, atol=0)
    g = group.sample((1,), generator=generator)  # any element of the group is in the table
    distance = (orbit[0] - group.act(g, x[:1])).abs().sum(dim=-1)
    assert int((distance == 0).sum()) == 1


def test_pull_back_scores_all_images(generator):
    group, network = GROUPS["product-signed"]
    n = network.layout.n_params
    table = enumerate_group(group, n)
    x, w = (torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(2))
    orbit = table.orbit(x)
    assert_close(table.pull_back(w) @ x, orbit @ w)
    assert_close(table.pull_back(w, signed=False) @ x.square(), orbit.square() @ w)


def test_large_groups_are_not_enumerated():
    group = MLP(2, (7,), 1, TANH).symmetry()  # 645,120 elements
    assert not can_enumerate(group)
    with pytest.raises(ValueError, match=r"6\.45e\+05 elements, more than the 10000"):
        enumerate_group(group, 3)
    assert can_enumerate(GROUPS["permutation"].group, max_order=24)
    assert not can_enumerate(GROUPS["permutation"].group, max_order=23)
