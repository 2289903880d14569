"""The hand-written passes against autograd, and local reparametrisation against weight draws."""

import pytest
import torch
from cases import LIKELIHOODS, NETWORKS
from torch.testing import assert_close

from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.models.networks.mlp_passes import ElboLikelihood, LayerViews, output_moments


def posterior(network, generator, *several):
    shape = 2, *several, network.layout.n_params
    base = torch.randn(shape, generator=generator, dtype=torch.float64)
    return base[0], (0.5 * base[1] - 1.0).exp()


def textbook(network, likelihood, loc, variance, x, y, weight, noise, n_draws):
    """Local reparametrisation as autograd sees it."""
    h = x.repeat(n_draws, 1)
    for i, ((m, b), (v, vb)) in enumerate(
        zip(network.layers(loc), network.layers(variance), strict=True)
    ):
        mean, var = h @ m.T + b, (h * h) @ v.T + vb
        if i == network.n_layers - 1:
            break
        h = network.activation.function(mean + var.sqrt() * noise[i])
    repeated = y.repeat(n_draws, *(1,) * (y.ndim - 1))
    value = likelihood.expected_log_prob(mean, var, repeated, noise[-1]).value
    return (value * weight.repeat(n_draws)).sum() / n_draws


@pytest.mark.kept(
    "1-*-one-layer-tanh", "3-*-three-layers-relu", "1-gaussian-learned-*", "3-categorical-*"
)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)
@pytest.mark.parametrize("n_draws", [1, 3])
def test_values_and_gradients_of_two_equal_autograd(network, case, n_draws, generator):
    n_rows = 6
    network = MLP(network.n_inputs, network.hidden_layer_sizes, case.n_outputs, network.activation)
    n_draws = n_draws if network.hidden_layer_sizes else 1
    loc, variance = posterior(network, generator, 2)
    x = torch.randn(n_rows, network.n_inputs, generator=generator, dtype=torch.float64)
    y = case.targets(n_rows, generator)
    weight = torch.rand(n_rows, generator=generator, dtype=torch.float64)
    noise = [
        torch.randn(n_draws * n_rows, w, generator=generator, dtype=torch.float64)
        for w in network.sizes[1:]
    ]
    own = case.likelihood.params.double()
    own = own + torch.tensor([[0.0], [0.3]], dtype=torch.float64)

    out = [torch.empty_like(loc), torch.empty_like(loc)]
    out_own = torch.empty_like(own)
    kernel = ElboLikelihood(network, n_rows, n_draws, loc)
    views = LayerViews(*map(network.layers, (loc, variance, *out)))
    likelihoods = [case.likelihood.at(row) for row in own]
    values = kernel(likelihoods, views, Data(x, y, weight), noise, out_own)

    for r, value in enumerate(values):
        leaves = [t[r].clone().requires_grad_() for t in (loc, variance, own)]
        expected = textbook(
            network, case.likelihood.at(leaves[2]), *leaves[:2], x, y, weight, noise, n_draws
        )
        wanted = leaves if case.likelihood.n_params else leaves[:2]
        gradients = list(torch.autograd.grad(expected, wanted))
        gradients[1] = 2.0 * gradients[1]
        assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
        for mine, theirs in zip([*out, out_own], gradients, strict=False):
            assert_close(-mine[r], theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n_draws", [1, 3])
def test_scratch_leaves_nothing_behind(n_draws, generator):
    """A second call with other data gives what a fresh kernel gives."""
    network, case = MLP(3, (4, 5), 2, TANH), LIKELIHOODS["categorical"]
    used, results = ElboLikelihood(network, 6, n_draws, torch.zeros(1, dtype=torch.float64)), []
    for kernel_of_call in (used, used, None):
        generator.manual_seed(len(results) and 1)
        loc, variance = posterior(network, generator, 1)
        x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
        y, weight = case.targets(6, generator), torch.ones(6, dtype=torch.float64)
        noise = [
            torch.randn(n_draws * 6, w, generator=generator, dtype=torch.float64)
            for w in network.sizes[1:]
        ]
        kernel = kernel_of_call or ElboLikelihood(network, 6, n_draws, loc)
        out = torch.empty(2, *loc.shape, dtype=torch.float64)
        views = LayerViews(*map(network.layers, (loc, variance, *out)))
        value = kernel([case.likelihood], views, Data(x, y, weight), noise, torch.zeros(1, 0))
        results.append((value, out))
    assert_close(results[1], results[2], rtol=0, atol=0)


@pytest.mark.parametrize("activation", [RELU, TANH], ids=["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(), (5,), (4, 3)])
def test_moments_have_the_law_of_weight_draws(activation, hidden, generator):
    """Row by row, mean and variance of the outputs agree with draws of all weights."""
    network, n = MLP(2, hidden, 1, activation), 40_000
    loc, variance = posterior(network, generator)
    x = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    theta = loc + variance.sqrt() * torch.randn(
        n, len(loc), generator=generator, dtype=torch.float64
    )
    outputs = network.forward(theta, x)[..., 0]
    noise = [torch.randn(n, 1, w, generator=generator, dtype=torch.float64) for w in hidden]
    mean, var = output_moments(network, network.layers(loc), network.layers(variance), x, noise)
    mean, var = mean[..., 0], var[..., 0]
    total = mean.var(0) + var.mean(0) if hidden else var[0]
    error = (total / n).sqrt() * (2 if hidden else 1)
    assert bool(((mean.mean(0) - outputs.mean(0)).abs() < 5 * error).all())
    kurtosis = ((outputs - outputs.mean(0)) ** 4).mean(0) / outputs.var(0) ** 2
    assert_close(total, outputs.var(0), rtol=float(6 * (kurtosis.max() / n) ** 0.5), atol=0)
