"""All chains at once against autograd, one by one."""

import pickle
import threading

import pytest
import torch
from cases import LIKELIHOODS, NETWORKS
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.networks.mlp import MLP, TANH, MLPChainLikelihood

N_CHAINS = 5
every_likelihood = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)


def problem(network, case, generator, n_rows=6):
    """The network with the likelihood's outputs, data with weights, and positions."""
    network = MLP(network.n_inputs, network.hidden_layer_sizes, case.n_outputs, network.activation)
    x = torch.randn(n_rows, network.n_inputs, generator=generator, dtype=torch.float64)
    weight = 0.5 + torch.rand(n_rows, generator=generator, dtype=torch.float64)
    shape = N_CHAINS, network.layout.n_params + case.likelihood.n_params
    position = torch.randn(shape, generator=generator, dtype=torch.float64)
    return network, (x, case.targets(n_rows, generator), weight), position


def evaluate(kernel, position):
    gradient = torch.full_like(position, torch.nan)
    return kernel.gradient(position, gradient), gradient


def textbook(network, likelihood, data, position):
    x, y, weight = data
    theta, own = position.split([network.layout.n_params, likelihood.n_params], 1)
    outputs = network.forward(theta, x)
    log_p = [likelihood.at(o).log_prob(f, y) for o, f in zip(own, outputs, strict=True)]
    return (torch.stack(log_p) * weight).sum(1)


def check_against_autograd(network, likelihood, data, position, rtol):
    kernel = MLPChainLikelihood(network, likelihood, *data)
    kernel.block_size = 4  # two blocks, of 3 and 2 chains
    value, gradient = evaluate(kernel, position)
    leaf = position.double().requires_grad_()
    expected = textbook(network, likelihood, [t.double() for t in data[:1]] + data[1:], leaf)
    (d_expected,) = torch.autograd.grad(expected.sum(), leaf)
    for mine, theirs in [(value, expected), (kernel.value(position), expected)]:
        assert_close(mine.double(), theirs.detach(), rtol=rtol, atol=0)
    scale = d_expected.abs().amax(1, keepdim=True)
    assert_close(gradient / scale, d_expected / scale, rtol=0, atol=rtol, check_dtype=False)


@pytest.mark.kept("*-three-layers-relu", "gaussian-learned-*", "categorical-*")
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@every_likelihood
def test_value_and_gradient_equal_autograd(network, case, generator):
    network, (x, y, weight), position = problem(network, case, generator)
    check_against_autograd(network, case.likelihood, [x, y, weight], position, 1e-12)
    equal = torch.full_like(weight, 0.7)  # collapses to one number
    check_against_autograd(network, case.likelihood, [x, y, equal], position, 1e-12)


@pytest.mark.parametrize("n_rows", [10, 300])
@pytest.mark.parametrize("hidden", [(), (3,), (4, 1), (1, 3)])
def test_one_output_with_few_rows_and_many(hidden, n_rows, generator):
    """The output layer has one way of its own for each."""
    case = LIKELIHOODS["gaussian-learned"]._replace(
        likelihood=Gaussian(torch.zeros(1, dtype=torch.float64)), n_outputs=1
    )
    network, (x, y, weight), position = problem(
        MLP(2, hidden, 1, TANH), case, generator, n_rows=n_rows
    )
    data = [x, y[:, :1], weight]
    check_against_autograd(network, case.likelihood, data, position, 1e-12)


def test_scratch_serves_any_number_of_chains_in_any_mode(generator):
    case = LIKELIHOODS["categorical"]
    network, data, position = problem(NETWORKS["two-layers-tanh"], case, generator)
    kernel = MLPChainLikelihood(network, case.likelihood, *data)
    with torch.inference_mode():
        few = evaluate(kernel, position[:2])[1].clone()
        evaluate(kernel, position)
    for n in (5, 2, 4):
        assert_close(evaluate(kernel, position[:n])[1][:2], few, rtol=1e-14, atol=1e-14)
    leaf = position.clone().requires_grad_()
    assert not evaluate(kernel, leaf)[1].requires_grad


def test_threads_and_copies_have_their_own_scratch(generator):
    case = LIKELIHOODS["gaussian-learned"]
    network, data, position = problem(NETWORKS["one-layer-tanh"], case, generator, n_rows=500)
    kernel = MLPChainLikelihood(network, case.likelihood, *data)
    expected = [kernel.value(position + shift) for shift in range(2)]
    wrong = []

    def work(shift):
        for _ in range(50):
            if not torch.equal(kernel.value(position + shift), expected[shift]):
                wrong.append(shift)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.equal(pickle.loads(pickle.dumps(kernel)).value(position), expected[0])
