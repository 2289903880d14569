"""Laws of every network, modules and one's own included."""

import pytest
import torch
from cases import LIKELIHOODS, NETWORKS, OTHER_NETWORKS
from torch.testing import assert_close

from skbayes_sym.symmetry.group import Trivial

EVERY = {**NETWORKS, **OTHER_NETWORKS}
every_network = pytest.mark.parametrize("network", EVERY.values(), ids=EVERY)
every_other = pytest.mark.parametrize("network", OTHER_NETWORKS.values(), ids=OTHER_NETWORKS)


def problem(network, generator, n=4):
    n_inputs = getattr(network, "n_inputs", 3)
    x = torch.randn(n, n_inputs, generator=generator, dtype=torch.float64)
    return network.init(6, generator=generator), x


@every_network
def test_weights_lead_with_any_batch(network, generator):
    theta, x = problem(network, generator)
    assert theta.shape == (6, network.layout.n_params)
    assert theta.dtype == torch.float64
    outputs = network.forward(theta.unflatten(0, (2, 3)), x)
    assert outputs.shape == (2, 3, 4, network.n_outputs)
    for found, t in zip(outputs.flatten(0, 1), theta, strict=True):
        assert_close(found, network.forward(t, x))


@every_network
def test_the_symmetry_changes_no_output(network, generator):
    theta, x = problem(network, generator)
    group = network.symmetry()
    moved = group.act(group.sample((6,), generator=generator), theta)
    assert_close(network.forward(moved, x), network.forward(theta, x), rtol=1e-10, atol=1e-12)


@every_other
@pytest.mark.parametrize("name", ["gaussian-learned", "student-t", "own-laplace"])
def test_chain_likelihood_is_the_likelihood_of_each_chain(network, name, generator):
    likelihood = LIKELIHOODS[name].likelihood
    likelihood = likelihood.at(likelihood.params[:1])
    theta, x = problem(network, generator)
    y = torch.randn(4, 1, generator=generator, dtype=torch.float64)
    weight = torch.rand(4, generator=generator, dtype=torch.float64)
    own = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    position = torch.cat([theta, own], 1)
    chains = network.chain_likelihood(likelihood, x, y, weight)

    def alone(q):
        n = network.layout.n_params
        return likelihood.at(q[n:]).log_prob(network.forward(q[:n], x), y) @ weight

    out = torch.empty_like(position)
    value = chains.gradient(position, out)
    assert_close(value, torch.stack([alone(q) for q in position]))
    assert_close(chains.value(position), value)
    for q, gradient in zip(position, out, strict=True):
        leaf = q.clone().requires_grad_()
        assert_close(gradient, torch.autograd.grad(alone(leaf), leaf)[0])


def test_no_symmetry_is_claimed_for_what_is_not_known():
    assert OTHER_NETWORKS["own-line"].symmetry() == Trivial()
