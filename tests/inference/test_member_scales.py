"""Scales and noise of modes, against the exact evidence of linear models."""

import math
from dataclasses import replace

import pytest
import torch

from skbayes_sym.inference.log_density import NetworkPosterior
from skbayes_sym.inference.map import (
    ScaledModes,
    determined_by_each,
    learned,
    learned_noise,
    update_steps,
)
from skbayes_sym.models import ARD, MLP, TANH, LayerScales
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.numerics.optimise import by_autograd, lbfgs

N, D = 40, 4
NETWORK = MLP(D, (), 1, TANH)


@pytest.fixture(scope="module")
def rows():
    """Only the first two columns matter."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    noise = torch.randn(N, generator=generator, dtype=torch.float64)
    y = 1.5 * x[:, :1] - 0.5 * x[:, 1:2] + 0.4 * noise[:, None]
    weight = torch.rand(N, generator=generator, dtype=torch.float64) + 0.5
    return Data(x, y, weight)


def log_evidence(prior, hyper, log_noise, rows):
    """Of a linear model: ``y ~ N(0, K)`` where a row's weight divides its noise's variance."""
    design = torch.cat([rows.x, rows.x.new_ones(len(rows.x), 1)], 1)
    kernel = design @ (design * (-hyper).exp()[prior.group]).T
    root = rows.weight.sqrt()
    # (sigma / sqrt(w))^-N of the rows' own density is sigma^-w: the difference is in log sigma.
    scaled = root[:, None] * kernel * root + (2.0 * log_noise).exp() * torch.eye(len(root))
    law = torch.distributions.MultivariateNormal(torch.zeros(len(root)).double(), scaled)
    value = law.log_prob(root * rows.y[:, 0]) - (rows.weight.sum() - len(root)) * log_noise
    return value + prior.log_hyperprior(hyper)


def ridge(prior, log_noise, rows):
    design = torch.cat([rows.x, rows.x.new_ones(len(rows.x), 1)], 1)
    weighed = design * (rows.weight * (-2.0 * log_noise).exp())[:, None]
    return torch.linalg.solve(design.T @ weighed + prior.precision.diag(), weighed.T @ rows.y)[:, 0]


@pytest.mark.kept("True-ARD(shape=4.0*", "False-LayerScales(*")
@pytest.mark.parametrize("unbound", [LayerScales(), ARD(), ARD(4.0, 0.1)], ids=str)
@pytest.mark.parametrize("learns_noise", [False, True])
def test_the_fixed_point_is_the_maximum_of_the_evidence(unbound, learns_noise, rows):
    prior = unbound.bind(NETWORK.layout)
    log_noise = torch.tensor([-0.5], dtype=torch.float64)
    likelihood = Gaussian(log_noise)
    posterior = NetworkPosterior(NETWORK, likelihood, prior, rows)
    one = replace(prior, hyper=prior.hyper[None])
    for _ in range(300):
        theta = ridge(replace(prior, hyper=one.hyper[0]), log_noise, rows)
        position = torch.cat([theta, log_noise])[None]
        found = determined_by_each(posterior, one, position, rows)
        one = learned(one, position[:, :-1], found.variance)
        if learns_noise:
            log_noise = learned_noise(posterior, position, found.taken, rows)[0]

    def loss(free):
        own = free[-1:] if learns_noise else log_noise
        return -log_evidence(prior, free[: prior.n_groups], own, rows).squeeze()

    start = torch.cat([prior.hyper, log_noise])
    best = lbfgs(by_autograd(loss), start, max_iter=2000, ftol=1e-15, gtol=1e-9)
    torch.testing.assert_close(one.hyper[0], best[:-1], rtol=0.0, atol=1e-5)
    if learns_noise:
        torch.testing.assert_close(log_noise, best[-1:], rtol=0.0, atol=1e-5)
    # What mean-field inference maximises has the same fixed point.
    updated = prior.update(theta, found.variance[0])
    torch.testing.assert_close(updated.hyper, best[:-1], rtol=0.0, atol=1e-4)


def test_a_group_that_no_row_speaks_for_keeps_its_hyperprior():
    """A mode of weights and scales together would shrink it by its number of weights."""
    network = MLP(3, (50,), 1, TANH)
    prior = LayerScales().bind(network.layout)
    theta = torch.zeros(1, network.layout.n_params).double()
    one = replace(prior, hyper=prior.hyper[None])
    kept = learned(one, theta, (1.0 / prior.precision)[None])
    torch.testing.assert_close(kept.hyper[0], prior.hyper)
    together = prior.update(theta[0], torch.zeros_like(theta[0]))
    growth = (together.hyper - prior.hyper).exp()  # (n + 2a) / 2a
    torch.testing.assert_close(growth, prior.sizes + 1.0)


def test_at_which_steps():
    assert (*update_steps(2000),) == (*range(200, 2000, 100),)
    assert (*update_steps(8),) == (*range(1, 8),)


@pytest.fixture
def modes(rows):
    network = MLP(D, (3,), 1, TANH)
    prior = ARD().bind(network.layout)
    likelihood = Gaussian(torch.zeros(1, dtype=torch.float64))
    posterior = NetworkPosterior(network, likelihood, prior, rows)
    theta = network.init(3, generator=torch.Generator().manual_seed(0))
    position = torch.cat([theta, torch.tensor([[-0.3], [0.0], [0.2]]).double()], 1)

    def make(log_noise_range=None):
        steps = update_steps(40)
        return ScaledModes(posterior, lambda p: p, position, rows, steps, log_noise_range)

    return make


def test_every_position_has_a_prior_of_its_own(modes, rows):
    objective = modes()
    assert float(objective(0)) == pytest.approx(float(objective(1)))
    objective(4)  # the first update
    posterior, position = objective._posterior, objective.position
    hyper = objective.prior.hyper
    assert (hyper - hyper.mean(0)).abs().max() > 0.01
    values = objective.log_posterior(position)
    assert float(objective(5)) == pytest.approx(-float(values.mean()))
    gradient = objective.gradient[: objective.n_theta].view(3, -1)
    for own, one, value, slope in zip(hyper, position, values, gradient, strict=True):
        alone = replace(posterior, prior=posterior.prior.at(own))
        torch.testing.assert_close(value, alone(one[None])[0] - one[-1])
        torch.testing.assert_close(slope, -alone.evaluate(one[None]).gradient[0, :-1])


def test_noise_that_the_evidence_sets_isn_t_trained(modes):
    free, held = modes(), modes((math.log(1e-3), math.log(1e2)))
    for objective in (free, held):
        objective(0)
        assert bool((objective.gradient[objective.n_theta :] != 0.0).all())
        objective(4)
    assert bool((free.gradient[free.n_theta :] != 0.0).all())
    assert bool((held.gradient[held.n_theta :] == 0.0).all())
    assert bool((held.position[:, -1] != free.position[:, -1]).all())
    floor = modes((5.0, 6.0))
    floor(4)
    assert bool((floor.position[:, -1] == 5.0).all())
