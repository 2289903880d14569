"""The closed-form Jacobian is autograd's."""

import pytest
import torch

from skbayes_sym.models.networks import mlp_factors
from skbayes_sym.models.networks.activations import ACTIVATIONS, RELU, TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_factors import outputs_and_factors, outputs_and_jacobian


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


@pytest.mark.parametrize("cache", [1, 1 << 18], ids=["blocks of one unit", "one block"])
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("widths", [(), (4,), (3, 5), (2, 1, 3)], ids=str)
def test_against_autograd(widths, n_outputs, cache, monkeypatch):
    monkeypatch.setattr(mlp_factors, "_CACHE_NUMBERS", cache)
    network = MLP(3, widths, n_outputs, TANH if len(widths) < 2 else RELU)
    generator = torch.Generator().manual_seed(0)
    theta = network.init(1, generator=generator)[0]
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    dense = torch.autograd.functional.jacobian(lambda t: network.forward(t, x), theta)
    outputs, jacobian = outputs_and_factors(network, theta, x)
    torch.testing.assert_close(outputs, network.forward(theta, x))
    values = torch.randn(6, n_outputs, generator=generator, dtype=torch.float64)
    expected = torch.einsum("nk,nkp->p", values, dense)
    torch.testing.assert_close(jacobian.transposed(values), expected)
    weight = symmetric(6, n_outputs)
    expected = torch.einsum("nkp,nkl,nlq->pq", dense, weight, dense)
    torch.testing.assert_close(jacobian.gauss_newton(weight), expected)
    matrix = symmetric(len(theta))
    expected = torch.einsum("nkp,pq,nlq->nkl", dense, matrix, dense)
    torch.testing.assert_close(jacobian.covariance(matrix), expected)
