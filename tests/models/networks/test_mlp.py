import pickle

import pytest
import torch
from cases import NETWORKS
from torch.testing import assert_close

from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP, RELU, SIGMOID, TANH
from skbayes_sym.symmetry.group import Trivial


def test_flat_order_is_layer_by_layer_weights_then_bias():
    network = MLP(2, (3,), 1, TANH)
    theta = torch.arange(float(network.layout.n_params))
    (w1, b1), (w2, b2) = network.layers(theta)
    assert_close(w1, torch.arange(6.0).reshape(3, 2))
    assert_close(b1, torch.arange(6.0, 9.0))
    assert_close(w2, torch.arange(9.0, 12.0).reshape(1, 3))
    assert_close(b2, torch.tensor([12.0]))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_forward_equals_a_plain_loop(network, generator):
    theta = torch.randn(4, network.layout.n_params, generator=generator)
    x = torch.randn(5, network.n_inputs, generator=generator)
    outputs = network.forward(theta, x)
    assert outputs.shape == (4, 5, network.n_outputs)
    for t, out in zip(theta, outputs, strict=True):
        h, start = x, 0
        for i, (n_in, n_out) in enumerate(
            zip(network.sizes[:-1], network.sizes[1:], strict=True), start=1
        ):
            w = t[start : start + n_in * n_out].reshape(n_out, n_in)
            b = t[start + n_in * n_out : start + n_in * n_out + n_out]
            start += n_in * n_out + n_out
            h = h @ w.T + b
            h = network.activation.function(h) if i < network.n_layers else h
        assert_close(h, out)


def test_init_keeps_the_scale_of_the_signal(generator):
    network = MLP(50, (200, 200), 1, RELU)
    theta = network.init(20, generator=generator)
    x = torch.randn(100, 50, generator=generator, dtype=torch.float64)
    sd = float(network.forward(theta, x).std())
    assert 0.5 < sd < 2.0
    assert theta.dtype == torch.float64


def test_symmetry_is_declared():
    assert isinstance(MLP(2, (), 1, TANH).symmetry(), Trivial)
    assert len(MLP(2, (3, 4), 1, TANH).symmetry().factors) == 2
    with pytest.raises(ValueError, match=r"'sigmoid' units.*odd.*'permutation'"):
        MLP(2, (3,), 1, SIGMOID).symmetry(signed=True)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_activation_facts(activation, generator):
    z = torch.randn(1000, generator=generator, dtype=torch.float64)
    h = activation.function(z)
    odd = torch.equal(activation.function(-z), -h)
    assert odd == activation.is_odd
    assert_close(activation.apply_(z.clone()), h, rtol=0, atol=0)
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(activation.function(leaf).sum(), leaf)
    assert_close(activation.backward_(torch.ones_like(z), h), slope, rtol=1e-12, atol=1e-14)
    assert pickle.loads(pickle.dumps(activation)) is activation
