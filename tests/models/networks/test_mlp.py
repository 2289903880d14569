"""Values, slopes and factored Jacobians of networks, against autograd and sums by hand."""

import pickle
from itertools import combinations, pairwise

import pytest
import torch
from cases import NETWORKS
from torch.testing import assert_close

from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP, RELU, SIGMOID, TANH
from skbayes_sym.models.networks.mlp_passes import (
    outputs_and_factors,
    outputs_and_jacobian,
    pack,
    unpack,
)
from skbayes_sym.symmetry.group import Trivial


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
    homogeneous = torch.equal(activation.function(2.0 * z), 2.0 * h)
    assert homogeneous == activation.is_homogeneous
    assert_close(activation.apply_(z.clone()), h, rtol=0, atol=0)
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(activation.function(leaf).sum(), leaf)
    assert_close(activation.backward_(torch.ones_like(z), h), slope, rtol=1e-12, atol=1e-14)
    assert pickle.loads(pickle.dumps(activation)) is activation


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
    packed = jacobian.select_output(n_outputs - 1).packed(weight[:, :1, :1].unsqueeze(0))
    torch.testing.assert_close(jacobian.gauss_newton(packed), last)
    matrix = symmetric(2, theta.shape[1])
    expected = torch.einsum("rnkp,rpq,rnlq->rnkl", dense, matrix, dense)
    packed = pack(matrix, network.sizes)
    torch.testing.assert_close(jacobian.covariance(packed), expected)
    few = outputs_and_factors(network, theta, x[:3])[1].covariance(packed)
    torch.testing.assert_close(few, expected[:, :3])


@pytest.mark.parametrize("sizes", [(10, 20, 1), (3, 4, 5, 2), (4, 1), (1, 1, 1)])
def test_packing_keeps_every_entry_of_a_curvature_once(sizes):
    """Within a layer of 20 units and 11 inputs: 210 pairs of units, 66 of inputs."""
    n_pairs = [(n * (n + 1) // 2, (m + 1) * (m + 2) // 2) for m, n in pairwise(sizes)]
    between = [
        n * k * (m + 1) * (i + 1) for (m, n), (i, k) in combinations(list(pairwise(sizes)), 2)
    ]
    n_entries = sum(n * m for n, m in n_pairs) + sum(between)
    names = torch.arange(1.0, n_entries + 1, dtype=torch.float64).unsqueeze(0)
    matrix = unpack(names, sizes)
    assert torch.equal(matrix, matrix.mT)
    assert matrix.unique().numel() == n_entries
    counts = torch.bincount(matrix.long().flatten())[1:]
    torch.testing.assert_close(pack(matrix, sizes), names * counts)
