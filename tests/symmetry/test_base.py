from math import log

import pytest
import torch
from cases import GROUPS

from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.symmetry.group import NotInvariantError, check_invariant, invariant_subgroup


def scales(network, **changes):
    scale = torch.ones(network.layout.n_params, dtype=torch.float64)
    for name, value in changes.items():
        network.layout.unflatten(scale)[name].mul_(torch.as_tensor(value, dtype=torch.float64))
    return GaussianPrior(scale)


def test_exchangeable_priors_pass():
    network = MLP(2, (3, 4), 2, TANH)
    prior = scales(network, W1=[[0.5, 2.0]], b1=0.1, W2=3.0, b3=[1.0, 5.0])  # inputs may differ
    check_invariant(network.symmetry(), prior.log_prob, network.layout)


@pytest.mark.parametrize(
    ("change", "named", "layer"),
    [
        ({"W1": [[1.0], [1.0], [2.0]]}, "W1", "layer 1"),
        ({"b1": [1.0, 1.0, 2.0]}, "b1", "layer 1"),
        ({"W2": [[1.0, 2.0, 1.0]]}, "W2", "layer 1"),
        ({"b2": [1.0, 1.0, 1.0, 9.0]}, "b2", "layer 2"),
        ({"W3": [[1.0, 1.0, 1.1, 1.0]]}, "W3", "layer 2"),
    ],
)
def test_a_prior_that_tells_units_apart_is_named(change, named, layer):
    network = MLP(2, (3, 4), 2, RELU)
    prior = scales(network, **change)
    with pytest.raises(NotInvariantError, match=rf"{layer}.*apart in {named}\. do this"):
        check_invariant(network.symmetry(), prior.log_prob, network.layout, remedy="do this")


def test_a_prior_with_a_mean_breaks_flips_only():
    network = MLP(2, (3,), 1, TANH)

    def log_prob(theta):
        return -0.5 * ((theta - 0.3) ** 2).sum(-1)

    check_invariant(network.symmetry(signed=False), log_prob, network.layout)
    with pytest.raises(NotInvariantError, match="sign of unit 0 flipped"):
        check_invariant(network.symmetry(), log_prob, network.layout)


@pytest.mark.parametrize("case", GROUPS.values(), ids=GROUPS)
def test_a_prior_keeps_all_of_a_group_or_what_it_does_not_see(case):
    """With equal scales all; with means exchanges; with a scale for each entry flips."""
    layout, group = case.network.layout, case.group
    n = layout.n_params

    def kept(log_prob):
        return invariant_subgroup(group, log_prob, layout)

    everything = kept(lambda theta: -theta.square().sum(-1))
    assert everything.log_order == group.log_order
    exchanges = kept(lambda theta: -(theta - 0.3).square().sum(-1))
    check_invariant(exchanges, lambda theta: -(theta - 0.3).square().sum(-1), layout)
    flips = kept(lambda theta: -(torch.arange(1.0, n + 1) * theta.square()).sum(-1))
    assert torch.equal(flips.coordinate_orbits(n), torch.arange(n))
    assert kept(lambda theta: (torch.arange(1.0, n + 1) * theta).sum(-1)).log_order == 0.0


def test_orders_of_what_a_prior_keeps():
    group, network = GROUPS["wreath"]

    def shifted(theta):
        return -(theta - 0.3).square().sum(-1)

    kept = invariant_subgroup(group, shifted, network.layout)
    assert kept.log_order == pytest.approx(3 * log(2))  # two heads, and two units inside each
    gate, network = GROUPS["two-signs"]
    means = torch.zeros(network.layout.n_params).double()
    means[:6] = 0.3  # of a: the sign that negates a and c goes
    kept = invariant_subgroup(gate, lambda t: -(t - means).square().sum(-1), network.layout)
    assert kept.log_order == pytest.approx(log(6) + 3 * log(2))
