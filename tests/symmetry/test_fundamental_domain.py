"""Tables of whole groups hold every element once."""

import pytest
import torch
from cases import GROUPS, mixed
from symmetry.planted import Case
from torch.testing import assert_close

from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.symmetry.fundamental_domain import (
    FundamentalDomain,
    can_enumerate,
    enumerate_group,
    has_exact_domain,
)
from skbayes_sym.symmetry.group import Product, Trivial
from skbayes_sym.symmetry.relabelling import DiagonalReference
from skbayes_sym.symmetry.units import Units, unit_layers

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


NETWORKS = {
    "linear": MLP(2, (), 1, TANH),
    "one-unit": MLP(2, (1,), 1, TANH),
    "3-tanh": MLP(2, (3,), 1, TANH),
    "4-relu": MLP(2, (4,), 2, RELU),
    "5-relu": MLP(1, (5,), 1, RELU),  # wide enough for an assignment solver
    "2-2-tanh": MLP(2, (2, 2), 1, TANH),
    "3-1-2-relu": MLP(1, (3, 1, 2), 1, RELU),
}
_FLIPS = Units(NETWORKS["3-tanh"].symmetry().factors[0].index, permute=False, flip=True)
CASES = {name: Case(network, network.symmetry()) for name, network in NETWORKS.items()} | {
    "mixed": Case(NETWORKS["2-2-tanh"], mixed(NETWORKS["2-2-tanh"])),
    "flips-only": Case(NETWORKS["3-tanh"], _FLIPS),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def fit_fundamental_domain(case):
    n_params = case.network.layout.n_params
    variance = normal(n_params, seed=1).exp()
    return FundamentalDomain(case.group, DiagonalReference(normal(n_params, seed=2), variance))


def positions(case, n, seed=3):
    return normal(n, case.network.layout.n_params + N_EXTRA, seed=seed)


def log_density(domain, position):
    """log N of the weights under their references, less a constant."""
    mean, variance = domain.reference
    theta = position[..., : len(mean)]
    return -0.5 * ((theta - mean).square() / variance).sum(dim=-1)


def test_several_wide_layers_have_no_exact_domain():
    network = MLP(2, (5, 5), 1, TANH)
    n = network.layout.n_params
    reference = DiagonalReference(torch.zeros(n), torch.ones(n))
    assert not has_exact_domain(network.symmetry())
    with pytest.raises(ValueError, match="one hidden layer or narrower"):
        FundamentalDomain(network.symmetry(), reference)
    assert has_exact_domain(MLP(2, (50,), 1, TANH).symmetry())


@every_case
def test_one_member_of_every_orbit_is_inside_and_it_is_the_best(case):
    domain, x = fit_fundamental_domain(case), positions(case, 40)
    table = enumerate_group(case.group, x.shape[-1])
    orbit = table.orbit(x)
    inside = domain.contains(orbit.flatten(0, 1)).view(len(x), -1)
    assert_close(inside.sum(dim=1), torch.ones(len(x), dtype=torch.int64))
    best = log_density(domain, orbit).argmax(dim=1)
    assert_close(inside.int().argmax(dim=1), best)

    entered, g = domain.enter(x)
    assert_close(entered, orbit[torch.arange(len(x)), best], rtol=0, atol=0)
    assert_close(Product(case.group.factors).act(g, x), entered, rtol=0, atol=0)
    assert bool(domain.contains(entered).all())
    again, _ = domain.enter(entered)
    assert_close(again, entered, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["3-tanh", "4-relu", "5-relu", "flips-only"])
def test_assignment_agrees_with_enumeration(name):
    domain, x = fit_fundamental_domain(CASES[name]), positions(CASES[name], 300)
    theta = x[:, : len(domain.reference.mean)]
    for ours, theirs in zip(domain._best(theta), domain._best_element(theta), strict=True):
        assert_close(ours, theirs)


@every_case
def test_non_finite_positions_are_outside_and_stay(case):
    domain, x = fit_fundamental_domain(case), positions(case, 4)
    x, _ = domain.enter(x)
    x[0, 0], x[1, 0], x[2, 0] = torch.nan, torch.inf, 1e200
    assert domain.contains(x).tolist() == [False, False, False, True]
    assert_close(domain.enter(x)[0], x, equal_nan=True, rtol=0, atol=0)


def test_trivial_group_has_no_boundary():
    domain = FundamentalDomain(Trivial(), DiagonalReference(torch.zeros(3), torch.ones(3)))
    x = normal(5, 4, seed=0)
    assert bool(domain.contains(x).all())
    assert_close(domain.enter(x), (x, ()))
