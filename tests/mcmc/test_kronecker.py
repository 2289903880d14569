import pytest
import torch
from torch.func import jacrev
from torch.testing import assert_close

from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.mcmc.kronecker import (
    KroneckerAdaptation,
    compute_layer_curvature,
    likelihood_scales,
)
from skbayes_sym.mcmc.warmup import RunningMoments
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import IDENTITY, MLP, RELU, SOFTPLUS, TANH
from skbayes_sym.models.priors import Normal
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner

N_SE = 4.5  # P(|z| > 4.5) = 7e-6
NOISE = Gaussian(torch.tensor([-0.7, 0.4]).double(), learn=False)


def problem(network, likelihood, n_rows, generator, prior=None):
    x = torch.randn(n_rows, network.n_inputs, generator=generator, dtype=torch.float64)
    y = torch.randn(n_rows, network.n_outputs, generator=generator, dtype=torch.float64)
    if isinstance(likelihood, Categorical):
        y = torch.randint(0, network.n_outputs, (n_rows,), generator=generator)
    if isinstance(likelihood, Poisson):
        y = torch.randint(0, 4, y.shape, generator=generator).double()
    weight = torch.rand(n_rows, generator=generator, dtype=torch.float64) + 0.5
    prior = Normal(0.7).bind(network.layout) if prior is None else prior
    return NetworkPosterior(network, likelihood, prior, Data(x, y, weight))


def start(posterior, n, generator):
    theta = posterior.network.init(n, generator=generator)
    return torch.cat([theta, theta.new_zeros(n, posterior.likelihood.n_params)], 1)


def fitted(posterior, position):
    adaptation, before = KroneckerAdaptation(posterior), DiagonalPreconditioner(position)
    return adaptation.fit(before, RunningMoments.empty(position), position)


def matrix(preconditioner, n_chains, n_dims):
    """L of every chain (C, D, D)."""
    columns = torch.eye(n_dims, dtype=torch.float64)
    maps = [preconditioner.to_position(c.expand(n_chains, -1)) for c in columns]
    return torch.stack(maps, 2)


def gauss_newton(posterior, theta):
    """Gauss-Newton matrix and prior precision of one chain by automatic differentiation, (P, P)."""
    x, y, weight = posterior.data
    outputs = posterior.network.forward(theta, x)
    jacobian = jacrev(lambda t: posterior.network.forward(t, x))(theta)
    root = posterior.likelihood.hessian_root(outputs, y)
    rows = torch.einsum("kno,nop->knp", root, jacobian) * weight.sqrt()[:, None]
    rows = rows.flatten(0, 1)
    return rows.T @ rows + posterior.prior.gaussian().precision.diag()


@pytest.mark.parametrize("hidden", [(), (4,), (3, 5)])
def test_the_map_of_gradients_is_the_transpose(hidden, generator):
    posterior = problem(MLP(3, hidden, 2, TANH), Gaussian(torch.zeros(2)), 20, generator)
    position = start(posterior, 3, generator)
    preconditioner = fitted(posterior, position)
    z, g = torch.randn(2, *position.shape, generator=generator, dtype=torch.float64)
    left = (preconditioner.to_position(z) * g).sum(1)
    assert_close(left, (z * preconditioner.to_gradient(g)).sum(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("n_inputs", "n_rows"), [(3, 40), (6, 4)])
@pytest.mark.parametrize("prior_scale", [0.7, 30.0])
def test_a_linear_network_has_precision_one(prior_scale, n_inputs, n_rows, generator):
    """The curvature is exactly a Kronecker product, also with weights and several noise levels."""
    network = MLP(n_inputs, (), 2, IDENTITY)
    prior = Normal(prior_scale).bind(network.layout)
    posterior = problem(network, NOISE, n_rows, generator, prior)
    position = start(posterior, 2, generator)
    root = matrix(fitted(posterior, position), 2, posterior.n_dims)
    precision = root.mT @ gauss_newton(posterior, position[0]) @ root
    unit = torch.eye(network.layout.n_params).double().expand_as(precision)
    assert_close(precision, unit, rtol=0, atol=1e-10)


@pytest.mark.parametrize("activation", [TANH, RELU, SOFTPLUS], ids=lambda a: a.name)
@pytest.mark.parametrize(
    "likelihood", [NOISE, Categorical(), Poisson()], ids=["normal", "classes", "counts"]
)
def test_the_blocks_of_one_row_have_precision_one(activation, likelihood, generator):
    """One row is exact in every layer, at any depth, activation and likelihood."""
    posterior = problem(MLP(3, (4, 3), 2, activation), likelihood, 1, generator)
    position = start(posterior, 2, generator)
    roots = matrix(fitted(posterior, position), 2, posterior.n_dims)
    for theta, root in zip(position, roots, strict=True):
        precision = root.T @ gauss_newton(posterior, theta) @ root
        stop = 0
        for weight, bias in posterior.network.layers(theta):
            begin, stop = stop, stop + weight.numel() + bias.numel()
            block = precision[begin:stop, begin:stop]
            assert_close(block, torch.eye(len(block)).double(), rtol=0, atol=1e-9)


def test_chains_have_their_own_curvature_and_weights_are_repetitions(generator):
    posterior = problem(MLP(3, (4,), 2, TANH), NOISE, 6, generator)
    position = start(posterior, 3, generator)
    together = compute_layer_curvature(posterior, position)
    for c in range(3):
        alone = compute_layer_curvature(posterior, position[c : c + 1])
        for both, one in zip(together, alone, strict=True):
            assert_close(both.input_factor[c], one.input_factor[0], rtol=0, atol=0)
            assert_close(both.output_factor[c], one.output_factor[0], rtol=0, atol=0)
    x, y, _ = posterior.data
    count = torch.tensor([1, 2, 3, 1, 1, 2])
    rows = torch.arange(6).repeat_interleave(count)
    weighted = NetworkPosterior(*posterior_parts(posterior), Data(x, y, count.double()))
    repeated = NetworkPosterior(
        *posterior_parts(posterior), Data(x[rows], y[rows], torch.ones(10).double())
    )
    for a, b in zip(
        *(compute_layer_curvature(p, position) for p in (weighted, repeated)), strict=True
    ):
        assert_close(a.input_factor, b.input_factor, rtol=1e-12, atol=1e-12)
        assert_close(a.output_factor, b.output_factor, rtol=1e-12, atol=1e-12)


def posterior_parts(posterior):
    return posterior.network, posterior.likelihood, posterior.prior


def test_the_scale_of_a_learned_noise(generator):
    """At the maximum, ``d2 / d(log sigma)2 = -2 N`` plus a small term from the prior."""
    network = MLP(2, (), 1, IDENTITY)
    posterior = problem(network, Gaussian(torch.zeros(1).double()), 500, generator)
    theta = torch.zeros(1, 3).double()
    _, y, weight = posterior.data
    spread = float(((y.squeeze() ** 2 * weight).sum() / weight.sum()).sqrt().log())
    position = torch.cat([theta, torch.full((1, 1), spread).double()], 1)
    found = likelihood_scales(posterior, position, 1)
    assert float(found) == pytest.approx(float(2 * weight.sum()) ** -0.5, rel=0.01)


@pytest.mark.parametrize("n_rows", [3, 6])
def test_an_earlier_position_has_a_smaller_weight(n_rows, generator):
    posterior = problem(MLP(3, (4,), 2, TANH), NOISE, n_rows, generator)
    first, second = start(posterior, 2, generator)[:, None]
    adaptation = KroneckerAdaptation(posterior)
    before = fitted(posterior, first)
    after = adaptation.fit(before, RunningMoments.empty(second), second)
    new, old = compute_layer_curvature(posterior, second)[0], before.layers[0]
    for name in new._fields:
        expected = 0.6 * getattr(new, name) + 0.4 * getattr(old, name)
        assert_close(getattr(after.layers[0], name), expected)


@pytest.mark.parametrize("n_warmup", [0, 7, 60, 61, 1000])
def test_windows_sum_to_the_warm_up(n_warmup):
    windows = KroneckerAdaptation.windows(None, n_warmup)
    assert sum(w.n_moves for w in windows) == n_warmup
    if n_warmup >= 60:
        assert [w.learns_scale for w in windows] == [True, True, False]
        assert windows[-1].n_moves >= n_warmup // 2
