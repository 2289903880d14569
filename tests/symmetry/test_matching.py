import torch
from torch.testing import assert_close

from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.symmetry.matching import matched, path

DEEP = MLP(3, (5, 4), 2, TANH)


def test_a_copy_is_brought_back(generator):
    """One layer: exactly, whatever element moved it; the orbit's nearest point is itself."""
    network = MLP(3, (6,), 1, TANH)
    group = network.symmetry()
    theta = network.init(1, generator=generator)[0]
    for _ in range(5):
        copy = group.act(group.sample((), generator=generator), theta)
        assert_close(matched(copy, theta, group), theta, rtol=0, atol=0)


def test_it_never_goes_away_and_keeps_the_function(generator):
    group = DEEP.symmetry()
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    for theta, reference in DEEP.init(20, generator=generator).view(10, 2, -1):
        found = matched(theta, reference, group)
        assert float((found - reference).norm()) <= float((theta - reference).norm())
        assert_close(DEEP.forward(found, x), DEEP.forward(theta, x))
        assert torch.equal(matched(found, reference, group), found)  # nothing more to gain


def test_a_straight_line():
    found = path(torch.zeros(2).double(), torch.tensor([1.0, -2.0]).double(), 5)
    assert_close(found[:, 0], torch.linspace(0, 1, 5).double())
    assert_close(found[:, 1], -2 * torch.linspace(0, 1, 5).double())
