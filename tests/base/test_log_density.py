"""Log densities, their gradients, the posterior of weights and noise, and searches for modes."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from cases import LIKELIHOODS, NETWORKS, OTHER_NETWORKS, PRIORS
from mcmc.known_densities import AutogradPosterior
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.base.log_density import (
    NetworkPosterior,
    SurrogateGradients,
    make_gradient,
)
from skbayes_sym.laplace.map import MapObjective
from skbayes_sym.mcmc.kernels import HMC, initial_state
from skbayes_sym.models import ARD, MLP, GaussianPrior, LayerScales
from skbayes_sym.models.model import Data
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner


@pytest.mark.parametrize("inference_mode", [False, True])
def test_value_and_gradient_of_a_normal(inference_mode, generator):
    """Prior N(0, 4), one datum y = 1 of N(position, 1), coordinate by coordinate."""
    prior, datum = (
        torch.distributions.Normal(*distribution) for distribution in ((0.0, 2.0), (1.0, 1.0))
    )
    density = AutogradPosterior(
        2, lambda q: prior.log_prob(q).sum(1), lambda q: datum.log_prob(q).sum(1)
    )
    with torch.inference_mode(inference_mode):
        position = torch.randn(5, 2, generator=generator, dtype=torch.float64)
        value, gradient = density.evaluate(position)
    assert_close(gradient, -position / 4.0 - (position - 1.0), rtol=1e-14, atol=1e-14)
    assert_close(value, density(position), rtol=0, atol=0)
    assert not value.requires_grad
    assert not gradient.requires_grad


def shifted(by):
    return AutogradPosterior(2, lambda q: -0.5 * ((q - by) ** 2).sum(1), lambda q: 0.0 * q.sum(1))


def test_where_only_a_gradient_is_asked_for(generator):
    density = SurrogateGradients(shifted(0.0), shifted(0.5), torch.float32)
    position = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    value, gradient = density.evaluate(position)
    assert_close(value, shifted(0.0)(position), rtol=0, atol=0)
    assert_close(gradient, (0.5 - position.float()).double(), rtol=0, atol=0)
    assert_close(make_gradient(density)(position), gradient, rtol=0, atol=0)
    assert_close(make_gradient(shifted(0.0))(position), -position, rtol=0, atol=0)


def test_trajectories_are_exact_under_wrong_gradients(generator):
    """Draws stay draws; where the values are wrong as well they don't, and the test sees it."""
    kernel = HMC(max_leapfrog=4)

    def moved(density, n=20_000):
        state = initial_state(torch.randn(n, 2, generator=generator).double(), density)
        for _ in range(4):
            state, info = kernel.step(
                state, density, step_size=torch.full((n,), 0.7).double(), generator=generator,
                preconditioner=DiagonalPreconditioner(torch.ones(2).double()),
            )  # fmt: skip
        features = torch.cat([state.position, state.position**2 - 1], 1)
        z = features.mean(0) / features.std(0) * n**0.5
        return float(z.abs().max()), float(info.acceptance.mean())

    z, acceptance = moved(SurrogateGradients(shifted(0.0), shifted(0.8), torch.float32))
    assert z < 4.5
    assert 0.3 < acceptance < 0.9
    assert moved(shifted(0.8))[0] > 20


def test_members_of_one_batch_dont_know_each_other():
    """Each search goes where it goes alone."""

    def cube(position):
        return -((position**2 - 1.0) ** 2).sum(-1)

    target = AutogradPosterior(3, lambda p: torch.zeros(len(p)).to(p), cube)
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    together = MapObjective(target, 2, start)
    together(0)
    assert torch.equal(together.position, start)
    alone = [MapObjective(target, 2, s[None]) for s in start]
    for objective in alone:
        objective(0)
    gradients = torch.stack([o.gradient for o in alone])
    assert torch.equal(together.gradient[:10].view(5, 2), gradients[:, :2])
    assert torch.equal(together.gradient[10:].view(5, 1), gradients[:, 2:])


def test_the_objectives_gradient_is_that_of_its_loss():
    target = AutogradPosterior(
        4, lambda p: torch.zeros(len(p)).to(p), lambda p: (p.cumsum(-1).sin()).sum(-1)
    )
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()
    objective = MapObjective(target, 3, start)
    objective(0)

    def loss(params):
        position = torch.cat([params[:9].view(3, 3), params[9:].view(3, 1)], 1)
        return -(target(position) - position[:, 3]).sum()

    expected = torch.autograd.functional.jacobian(loss, objective.params)
    torch.testing.assert_close(objective.gradient, expected)


NOISE_PRIOR_SCALE = torch.tensor([0.7, 1.5], dtype=torch.float64)
every_likelihood = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)
# Passes through the network have tests of their own (test_mlp_batched).
DEPTHS = ("linear", "one-layer-tanh", "three-layers-relu")
every_network = pytest.mark.parametrize("network", [NETWORKS[d] for d in DEPTHS], ids=DEPTHS)


def posterior(network, case, generator, n_rows=6, scale=None, dtype=torch.float64):
    network = MLP(network.n_inputs, network.hidden_layer_sizes, case.n_outputs, network.activation)
    n_params = network.layout.n_params
    if scale is None:
        scale = 0.5 + torch.rand(n_params, generator=generator, dtype=torch.float64)
    x = torch.randn(n_rows, network.n_inputs, generator=generator, dtype=torch.float64)
    y = case.targets(n_rows, generator)
    weight = 0.5 + torch.rand(n_rows, generator=generator, dtype=torch.float64)
    data = Data(*(t.to(dtype) if t.is_floating_point() else t for t in (x, y, weight)))
    noise_prior = NOISE_PRIOR_SCALE[: case.likelihood.n_params]
    return NetworkPosterior(network, case.likelihood, GaussianPrior(scale), data, noise_prior)


def positions(density, generator, n=5):
    return torch.randn(n, density.n_dims, generator=generator, dtype=torch.float64)


def textbook(density):
    """The same posterior from torch's distributions and autograd."""
    n = density.network.layout.n_params
    normal = torch.distributions.Normal(0.0, density.prior.scale)
    half_normal = torch.distributions.HalfNormal(NOISE_PRIOR_SCALE[: density.likelihood.n_params])

    def log_prior(position):
        value, own = normal.log_prob(position[:, :n]).sum(1), position[:, n:]
        if density.likelihood.n_params:  # a density of log sigma: times d sigma / d log sigma
            value = value + (half_normal.log_prob(own.exp()) + own).sum(1)
        return value

    def log_likelihood(position):
        x, y, weight = density.data
        outputs = density.network.forward(position[:, :n], x)
        log_p = [
            density.likelihood.at(own).log_prob(f, y)
            for own, f in zip(position[:, n:], outputs, strict=True)
        ]
        return (torch.stack(log_p) * weight).sum(1)

    return AutogradPosterior(density.n_dims, log_prior, log_likelihood)


@pytest.mark.kept("*-one-layer-tanh", "*-three-layers-relu", "gaussian-learned-*")
@every_network
@every_likelihood
def test_everything_equals_autograd(network, case, generator):
    density = posterior(network, case, generator)
    position, reference = positions(density, generator), textbook(density)
    value, gradient = density.evaluate(position)
    expected = reference.evaluate(position)
    assert_close(value, expected.value, rtol=1e-12, atol=0)
    size = expected.gradient.abs().amax(1, keepdim=True)
    assert_close(gradient / size, expected.gradient / size, rtol=0, atol=1e-12)
    assert_close(density(position), value, rtol=1e-13, atol=0)
    assert_close(density.log_prior(position), reference.prior(position), rtol=1e-12, atol=0)
    theirs = reference.likelihood(position)
    assert_close(density.log_likelihood(position), theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("prior", [LayerScales(), ARD(2.0)])
def test_learned_scales_collapsed(prior, generator):
    """Their own gradient equals autograd's, and the prior keeps the network's symmetry."""
    density = posterior(NETWORKS["one-layer-tanh"], LIKELIHOODS["gaussian-learned"], generator)
    likelihood = textbook(density).likelihood
    collapsed = prior.bind(density.network.layout).collapse()
    density, position = replace(density, prior=collapsed), positions(density, generator)
    leaf = position.clone().requires_grad_()
    own = leaf[:, density.n_dims - 2 :]
    noise = torch.distributions.HalfNormal(NOISE_PRIOR_SCALE).log_prob(own.exp()) + own
    log_prior = collapsed.log_prob(leaf[:, : density.n_dims - 2]) + noise.sum(1)
    both = log_prior + likelihood(leaf)
    (slope,) = torch.autograd.grad(both.sum(), leaf)
    value, gradient = density.evaluate(position)
    assert_close(value, both.detach(), rtol=1e-12, atol=0)
    assert_close(gradient, slope, rtol=1e-11, atol=1e-11)
    assert_close(density.log_prior(position), log_prior.detach(), rtol=1e-12, atol=0)
    group = density.network.symmetry()
    moved = group.act(group.sample((len(position),), generator=generator), position)
    assert_close(density(moved), density(position), rtol=1e-12, atol=0)


def test_a_half_t_prior_of_the_noise(generator):
    """Its density, slope and draws are those of Student's t distribution."""
    likelihood = LIKELIHOODS["gaussian-learned"]
    density = posterior(NETWORKS["one-layer-tanh"], likelihood, generator)
    half_t = replace(density, noise_prior_degrees=3.0)
    position = positions(density, generator)
    leaf = position.clone().requires_grad_()
    n = density.network.layout.n_params
    own = leaf[:, n:]
    log_noise = torch.distributions.StudentT(3.0, 0.0, NOISE_PRIOR_SCALE).log_prob(own.exp())
    noise = (log_noise + own + math.log(2.0)).sum(1)
    log_theta = torch.distributions.Normal(0.0, density.prior.scale).log_prob(leaf[:, :n]).sum(1)
    both = noise + log_theta + textbook(density).likelihood(leaf)
    (slope,) = torch.autograd.grad(both.sum(), leaf)
    value, gradient = half_t.evaluate(position)
    assert_close(value, both.detach(), rtol=1e-12, atol=0)
    assert_close(gradient, slope, rtol=1e-11, atol=1e-11)

    draws = half_t.sample_prior(20_000, generator=generator)[:, n:].exp() / NOISE_PRIOR_SCALE
    levels = torch.tensor([0.25, 0.5, 0.9], dtype=torch.float64)
    expected = torch.as_tensor(stats.t.ppf(0.5 + 0.5 * levels.numpy(), 3.0))
    below = (draws[:, :, None] <= expected).double().mean(0)
    assert_close(below, levels.expand_as(below), atol=0.015, rtol=0)


# Numbers that overflow as the last bias: of a log rate, a log noise and a log precision. An
# enormous noise is merely improbable; what a likelihood learns overflows either way.
OVERFLOWING = {
    "poisson": {1e6}, "heteroscedastic": {-1e6}, "natural-heteroscedastic": {-1e6, 1e6},
}  # fmt: skip


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1e6, 1e6])
def test_a_lost_chain_has_no_mass_and_leaves_the_others_alone(name, bad, generator):
    """Other weights are merely improbable, whatever their size."""
    case = LIKELIHOODS[name]
    density = posterior(NETWORKS["two-layers-tanh"], case, generator)
    position = positions(density, generator)
    value, gradient = density.evaluate(position)
    for column in (0, density.n_dims - 1):
        broken = position.clone()
        broken[1, column] = bad
        after = density.evaluate(broken)
        overflows = case.likelihood.n_params > 0 or bad in OVERFLOWING.get(name, ())
        lost = not math.isfinite(bad) or (column > 0 and overflows)
        assert bool(after.value[1] == -math.inf) == lost
        assert bool(density(broken)[1] == -math.inf) == lost
        assert bool(after.gradient.isfinite().all())
        others = torch.arange(5) != 1
        assert torch.equal(after.value[others], value[others])
        assert torch.equal(after.gradient[others], gradient[others])


def test_prior_draws_have_the_priors_law(generator):
    density = posterior(NETWORKS["linear"], LIKELIHOODS["gaussian-learned"], generator)
    n = 40_000
    theta, noise_std = density.split(density.sample_prior(n, generator=generator))
    normal = theta / density.prior.scale
    half_normal = noise_std / NOISE_PRIOR_SCALE
    mean = (2 / math.pi) ** 0.5
    assert float(normal.mean(0).abs().max()) < 5 / n**0.5
    assert float((normal.square().mean(0) - 1).abs().max()) < 5 * (2 / n) ** 0.5
    assert float((half_normal.mean(0) - mean).abs().max()) < 5 * ((1 - mean**2) / n) ** 0.5
    assert float((half_normal.square().mean(0) - 1).abs().max()) < 5 * (2 / n) ** 0.5


def test_float32(generator):
    case, network = LIKELIHOODS["gaussian-learned"], NETWORKS["two-layers-tanh"]
    density = posterior(network, case, generator, dtype=torch.float32)
    position = positions(density, generator).float()
    exact = density.data._replace(**{k: t.double() for k, t in density.data._asdict().items()})
    double = NetworkPosterior(
        density.network, case.likelihood, density.prior, exact, density.noise_prior_scale
    )
    value, gradient = density.evaluate(position)
    expected = double.evaluate(position.double())
    assert value.dtype == gradient.dtype == torch.float32
    assert density.sample_prior(2, generator=generator).dtype == torch.float32
    assert_close(value.double(), expected.value, rtol=1e-5, atol=0)
    size = expected.gradient.abs().amax(1, keepdim=True)
    assert_close(gradient / size, expected.gradient / size, rtol=0, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("network", OTHER_NETWORKS.values(), ids=OTHER_NETWORKS)
def test_any_network_likelihood_and_prior(network, prior, generator):
    """By autograd where nobody brought anything faster: value, gradient, draws of the prior."""
    case, n = LIKELIHOODS["own-laplace"], network.layout.n_params
    scale = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
    prior = GaussianPrior(scale) if prior is PRIORS["gaussian"] else prior
    if prior is PRIORS["normal-by-layer"] and network is not OTHER_NETWORKS["module"]:
        prior = PRIORS["normal"]
    prior = prior.bind(network.layout)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    data = Data(x, case.targets(5, generator), torch.ones(5, dtype=torch.float64))
    density = NetworkPosterior(network, case.likelihood, prior, data)
    position = density.sample_prior(4, generator=generator)
    assert position.shape == (4, n + 1)

    def log_prior(q):
        own = q[:, n:]
        half_normal = torch.distributions.HalfNormal(torch.ones(1, dtype=torch.float64))
        return prior.log_prob(q[:, :n]) + (half_normal.log_prob(own.exp()) + own).sum(1)

    def log_likelihood(q):
        outputs = network.forward(q[:, :n], x)
        return case.likelihood.at(q[:, None, n:]).log_prob(outputs, data.y).sum(1)

    expected = AutogradPosterior(n + 1, log_prior, log_likelihood).evaluate(position)
    value, gradient = density.evaluate(position)
    assert_close(value, expected.value)
    assert_close(gradient, expected.gradient)
    assert_close(density(position), value)
    assert_close(density.log_prior(position), log_prior(position))
    again = pickle.loads(pickle.dumps(density)).evaluate(position)
    assert torch.equal(again.gradient, gradient)
