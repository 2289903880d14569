import pytest
import torch

from skbayes_sym.models.networks.activations import RELU, TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.symmetry.group import NotInvariantError, check_invariant


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
