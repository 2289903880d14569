"""The closed-form Jacobian is autograd's."""

import pytest
import torch

from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_jacobian import outputs_and_jacobian


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("widths", [(), (4,), (3, 5)], ids=str)
def test_against_autograd(activation, widths):
    network, generator = (
        MLP(3, widths, 2, ACTIVATIONS[activation]),
        torch.Generator().manual_seed(0),
    )
    theta = network.init(2, generator=generator)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    outputs, jacobian = outputs_and_jacobian(network, theta, x)
    torch.testing.assert_close(outputs, network.forward(theta, x))
    for t, found in zip(theta, jacobian, strict=True):
        expected = torch.autograd.functional.jacobian(lambda t: network.forward(t, x), t)
        torch.testing.assert_close(found, expected)
