"""The closed-form Jacobian is autograd's."""

import pytest
import torch

from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP, RELU, TANH
from skbayes_sym.models.networks.mlp_passes import (
    outputs_and_factors,
    outputs_and_jacobian,
    pack,
    packing,
)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("widths", [(), (4,), (3, 5)], ids=str)
def test_the_jacobian_against_autograd(activation, widths):
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


def symmetric(*shape):
    root = torch.randn(*shape, shape[-1], generator=torch.Generator().manual_seed(1)).double()
    return root + root.mT


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("widths", [(), (4,), (3, 5), (2, 1, 3)], ids=str)
def test_products_are_those_of_the_dense_matrix(widths, n_outputs):
    network = MLP(3, widths, n_outputs, TANH if len(widths) < 2 else RELU)
    generator = torch.Generator().manual_seed(0)
    theta = network.init(2, generator=generator)
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    _, dense = outputs_and_jacobian(network, theta, x)
    outputs, jacobian = outputs_and_factors(network, theta, x)
    torch.testing.assert_close(outputs, network.forward(theta, x))
    values = torch.randn(2, 20, n_outputs, generator=generator, dtype=torch.float64)
    expected = torch.einsum("rnk,rnkp->rp", values, dense)
    torch.testing.assert_close(jacobian.transposed(values), expected)
    weight = symmetric(20, n_outputs)
    expected = torch.einsum("rnkp,nkl,rnlq->rpq", dense, weight, dense)
    packed = jacobian.packed(weight.unsqueeze(0))
    torch.testing.assert_close(jacobian.gauss_newton(packed), expected)
    last = torch.einsum("rnp,n,rnq->rpq", dense[:, :, -1], weight[:, 0, 0], dense[:, :, -1])
    packed = jacobian.of_output(n_outputs - 1).packed(weight[:, :1, :1].unsqueeze(0))
    torch.testing.assert_close(jacobian.gauss_newton(packed), last)
    matrix = symmetric(2, theta.shape[1])
    expected = torch.einsum("rnkp,rpq,rnlq->rnkl", dense, matrix, dense)
    packed = pack(matrix, jacobian.places)
    torch.testing.assert_close(jacobian.covariance(packed), expected)
    few = outputs_and_factors(network, theta, x[:3])[1].covariance(packed)
    torch.testing.assert_close(few, expected[:, :3])


def test_a_quarter_of_the_entries_differ():
    """Within a layer of 20 units and 11 inputs: 210 pairs of units, 66 of inputs."""
    places = packing((10, 20, 1), torch.device("cpu"))
    assert places[:220, :220].unique().numel() == 210 * 66
    assert int(places.max()) + 1 == places.unique().numel()
