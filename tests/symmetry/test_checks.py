"""Groups check what they are given, in one place, and describe themselves in a few words."""

import pytest
import torch
from torch import nn

from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.symmetry import Orthogonal, Product, Translation, Trivial, Units, symmetry_of


def recurrent():
    return symmetry_of(nn.RNN(2, 3, batch_first=True), torch.zeros(2, 4, 2))


def attention():
    layer = nn.TransformerEncoderLayer(8, 2, 6, dropout=0.0, batch_first=True)
    return symmetry_of(layer, torch.zeros(2, 3, 8))


def dense():
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
    return symmetry_of(net, torch.zeros(3, 2))


GROUPS = {
    "module": dense,
    "recurrent": recurrent,
    "attention": attention,
    "mlp": lambda: MLP(2, (5,), 1, TANH).symmetry(),
    "units": lambda: Units(torch.arange(6).view(3, 2), flip=True),
    "orthogonal": lambda: Orthogonal(torch.arange(6).view(3, 2)),
    "translation": lambda: Translation(torch.ones(1, 4, dtype=torch.float64)),
}
every_group = pytest.mark.parametrize("make", GROUPS.values(), ids=GROUPS)


@every_group
def test_a_theta_that_is_too_short_is_refused(make):
    group = make()
    g, n = group.identity(), group.n_params
    short, whole = torch.zeros(n - 1), torch.zeros(n)
    calls = [
        lambda: group.act(g, short), lambda: group.align(short, whole),
        lambda: group.align(whole, short), lambda: group.act(g, torch.tensor(1.0)),
    ]  # fmt: skip
    if hasattr(group, "act_"):
        # A view: writing beyond its end would be possible, and would destroy what lies there.
        calls.append(lambda: group.act_(g, torch.zeros(2 * n)[: n - 1]))
    for call in calls:
        with pytest.raises(ValueError, match=rf"{n} weights"):
            call()
    with pytest.raises(TypeError, match="must be a tensor"):
        group.act(g, [0.0] * n)


@pytest.mark.parametrize("n", [20, 22, 28, 42])
def test_the_group_of_a_module_knows_its_number_of_weights(n, generator):
    group = dense()
    assert group.n_params == 21
    g, theta, whole = group.sample((), generator=generator), torch.zeros(n), torch.zeros(21)
    beside = torch.full((100,), 7.0)
    for call in (
        lambda: group.act(g, theta), lambda: group.act_(g, beside[:n]),
        lambda: group.align(theta, whole), lambda: group.align(whole, theta),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="acts on 21 weights"):
            call()
    assert bool((beside == 7.0).all())


def test_acting_in_place_writes_on_a_view_and_nothing_else(generator):
    group = dense()
    g = group.sample((2,), generator=generator)
    large = torch.randn(3, 50, generator=generator)
    before, expected = large.clone(), group.act(g, large[:2, 5:47:2])
    group.act_(g, large[:2, 5:47:2])
    assert torch.equal(large[:2, 5:47:2], expected)
    large[:2, 5:47:2] = before[:2, 5:47:2]
    assert torch.equal(large, before)
    with pytest.raises(ValueError, match="share memory"):
        group.act_(g, torch.zeros(21).expand(2, 21))
    with pytest.raises(ValueError, match="Use act, which makes a copy"):
        group.act_(g, torch.zeros(21))


def test_other_dtypes_and_elements_of_other_groups_are_refused(generator):
    group, other = dense(), attention()
    g, h = (one.sample((), generator=generator) for one in (group, other))
    with pytest.raises(TypeError, match=r"torch\.float32 and reference torch\.float64"):
        group.align(torch.zeros(21), torch.zeros(21).double())
    units = group.factors[0]
    wrong = Units(torch.arange(8).view(4, 2), flip=True).sample((), generator=generator)
    for call in (
        lambda: group.act(h, torch.zeros(21)), lambda: group.compose(g, h),
        lambda: group.inverse(None), lambda: units.compose(g[0], wrong),
        lambda: units.act(wrong, torch.zeros(21)), lambda: other.inverse(g),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"element"):
            call()
    with pytest.raises(TypeError, match="SignedPermutation, got int"):
        units.inverse(3)


@every_group
def test_a_group_is_described_in_a_few_lines(make):
    text = repr(make())
    assert len(text.splitlines()) <= 10
    assert "tensor(" not in text
    assert str(make()) == text


def test_many_factors_are_counted():
    group = symmetry_of(
        nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(4, 4), nn.Tanh())]),
        torch.zeros(2, 4),
    )
    text = repr(group)
    assert text.startswith("Symmetry group of 19 factors, log |G| = ")
    assert text.endswith("and 11 more: print(group.report()) shows all")
    assert len(text.splitlines()) == 10
    assert repr(Product(group.factors)).startswith("Product of 19 factors")
    assert repr(dense()) == dense().report()
    assert repr(Trivial()) == "Trivial group of one element"
