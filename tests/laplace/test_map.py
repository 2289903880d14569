"""Scales, noise and variances of modes against linear models and dense matrices."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import Waves
from scipy import stats
from torch import nn
from torch.testing import assert_close

from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.laplace import map as module
from skbayes_sym.laplace.map import (
    ScaledModes,
    affordable_rows,
    compute_effective_parameters,
    compute_leverages,
    compute_noise_nodes,
    count_curvature_entries,
    effective_parameters_by_position,
    estimate_noise,
    scale_update_steps,
    update_noise,
    update_scales,
)
from skbayes_sym.models import ARD, MLP, TANH, LayerScales
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.numerics.optimise import lbfgs, with_gradient

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
    distribution = torch.distributions.MultivariateNormal(torch.zeros(len(root)).double(), scaled)
    value = distribution.log_prob(root * rows.y[:, 0]) - (rows.weight.sum() - len(root)) * log_noise
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
        found = effective_parameters_by_position(posterior, one, position, rows)
        one = update_scales(one, position[:, :-1], found.variance)
        if learns_noise:
            log_noise = update_noise(posterior, position, found.n_effective, rows)[0]

    def loss(free):
        own = free[-1:] if learns_noise else log_noise
        return -log_evidence(prior, free[: prior.n_groups], own, rows).squeeze()

    start = torch.cat([prior.hyper, log_noise])
    best = lbfgs(with_gradient(loss), start, max_iter=2000, ftol=1e-15, gtol=1e-9)
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
    kept = update_scales(one, theta, (1.0 / prior.precision)[None])
    torch.testing.assert_close(kept.hyper[0], prior.hyper)
    together = prior.update(theta[0], torch.zeros_like(theta[0]))
    growth = (together.hyper - prior.hyper).exp()  # (n + 2a) / 2a
    torch.testing.assert_close(growth, prior.sizes + 1.0)


def test_at_which_steps():
    assert (*scale_update_steps(2000),) == (*range(200, 2000, 100),)
    assert (*scale_update_steps(8),) == (*range(1, 8),)


@pytest.fixture
def modes(rows):
    network = MLP(D, (3,), 1, TANH)
    prior = ARD().bind(network.layout)
    likelihood = Gaussian(torch.zeros(1, dtype=torch.float64))
    posterior = NetworkPosterior(network, likelihood, prior, rows)
    theta = network.init(3, generator=torch.Generator().manual_seed(0))
    position = torch.cat([theta, torch.tensor([[-0.3], [0.0], [0.2]]).double()], 1)

    def make(log_noise_range=None):
        steps = scale_update_steps(40)
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


ONE = torch.ones(1, dtype=torch.float64)


def data_of(n, d, n_targets=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    y = x @ rng.standard_normal((d, n_targets)) + 0.5 * rng.standard_normal((n, n_targets))
    return Data(*(torch.as_tensor(a) for a in (x, y, np.ones(n))))


def started(n_inputs, width, n_targets):
    network = MLP(n_inputs, (width,), n_targets, TANH)
    return network, network.init(1, generator=torch.Generator().manual_seed(0))[0]


@pytest.mark.parametrize("n_targets", [1, 2])
def test_under_a_wide_prior_it_is_the_unbiased_estimate(n_targets):
    data, network = data_of(30, 8, n_targets), MLP(8, (), n_targets, TANH)
    design = torch.cat([data.x, ONE.expand(30, 1)], 1)
    coef, squares, *_ = torch.linalg.lstsq(design, data.y, driver="gelsd")
    theta = torch.cat([coef[:-1].T.flatten(), coef[-1]])
    noise = estimate_noise(network, theta, data, torch.full_like(theta, 1e4), ONE)
    assert_close(noise.std, (squares / (30 - 9)).sqrt(), rtol=1e-5, atol=0.0)
    assert_close(noise.n_effective, 9.0 * ONE.expand(n_targets), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_rows_and_weights_give_the_same(n_targets):
    """Eight rows of a network with more weights than that, and the same rows three times."""
    data, (network, theta) = data_of(8, 3, n_targets), started(3, 6, n_targets)
    scale = torch.ones_like(theta)
    weight = torch.full((8,), 10.0, dtype=torch.float64)
    few = estimate_noise(network, theta, data._replace(weight=weight), scale, ONE)
    repeated = Data(*(t.repeat_interleave(10, 0) for t in data))
    many = estimate_noise(network, theta, repeated, scale, ONE)
    assert_close(few.std, many.std)
    assert_close(few.n_effective, many.n_effective)


@pytest.mark.parametrize(("n", "n_targets"), [(60, 1), (8, 1), (60, 2), (8, 2)])
def test_leverages_are_the_diagonal_of_the_hat_matrix(n, n_targets):
    data, (network, theta) = data_of(n, 3, n_targets), started(3, 4, n_targets)
    scale = torch.linspace(0.3, 2.0, len(theta), dtype=torch.float64)
    jacobian = outputs_and_jacobian(network, theta[None], data.x)[1][0]  # (n, T, P)
    _, at = compute_leverages(network, theta, data, scale)
    for beta in (1e-6, 0.5, 1e4):
        precision = beta * torch.arange(1.0, n_targets + 1.0, dtype=torch.float64)
        curvature = torch.einsum("t,ntp,ntq->pq", precision, jacobian, jacobian)
        covariance = torch.linalg.inv(curvature + torch.diag(scale**-2))
        hat = torch.einsum("t,ntp,pq,ntq->tn", precision, jacobian, covariance, jacobian)
        assert_close(at(precision), hat, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("df", "varies"), [(None, True), (4.0, False), (4.0, True)])
def test_tails_and_noise_of_rows_solve_the_same_equation(df, varies):
    """Weighted squares in units of the noise are as many as the rows that weights have left."""
    data, network = data_of(40, 5), MLP(5, (), 1, TANH)
    data = data._replace(weight=1.0 + data.x[:, 0].square())
    row_noise = (0.5 * data.x[:, :1]).exp() if varies else torch.ones(40, 1).double()
    theta, scale = torch.linspace(-1.0, 1.0, 6).double(), torch.linspace(0.3, 2.0, 6).double()
    found = estimate_noise(
        network, theta, data, scale, ONE, df=df, row_noise=row_noise if varies else None
    )
    z = ((data.y - network.forward(theta, data.x)) / row_noise)[:, 0] / found.std
    design = torch.cat([data.x, ONE.expand(40, 1)], 1) * scale * data.weight.sqrt()[:, None]
    rows = design / row_noise / found.std
    taken = torch.trace(torch.linalg.solve(rows.T @ rows + torch.eye(6), rows.T @ rows))
    far = 1.0 if df is None else (df + 1.0) / (df + z.square())
    assert float(taken) > 3.0
    assert_close(data.weight @ (far * z.square()), data.weight.sum() - taken)


def test_under_a_narrow_prior_nothing_is_taken():
    data, (network, theta) = data_of(20, 2), started(2, 5, 1)
    found = estimate_noise(network, theta, data, torch.full_like(theta, 1e-6), ONE)
    residual = data.y - network.forward(theta, data.x)
    assert_close(found.std, residual.square().mean(0).sqrt())


def test_where_weights_have_taken_all_rows_the_noise_is_that_of_rows_left_out():
    """Kernel interpolation: the leave-one-out residual is [K^-1 y]_n / [K^-1]_nn, by refits."""
    data = data_of(10, 14)
    scale = torch.full((15,), 2.0, dtype=torch.float64)
    design = torch.cat([data.x, torch.ones(10, 1, dtype=torch.float64)], 1) * scale
    std = torch.tensor([0.05], dtype=torch.float64)
    kernel = design @ design.T + std**2 * torch.eye(10)
    theta = scale * (design.T @ torch.linalg.solve(kernel, data.y))[:, 0]
    found = estimate_noise(MLP(14, (), 1, TANH), theta, data, scale, std)
    leave_one_out = []
    for i in range(10):
        rest = torch.arange(10) != i
        weights = torch.linalg.solve(kernel[rest][:, rest], data.y[rest, 0])
        leave_one_out.append(data.y[i, 0] - design[i] @ design[rest].T @ weights)
    rms = torch.stack(leave_one_out).square().mean().sqrt()
    spread = data.y.std(correction=0)
    assert found.n_effective > 9.5
    assert_close(found.std, torch.minimum(rms, spread).reshape(1))


@pytest.mark.parametrize("degrees", [4.0, 12.0, 300.0])
def test_nodes_make_up_student_s_t(degrees):
    """To .4 nats as far as eight standard deviations, where normals would be 10 to 25 off."""
    nodes = compute_noise_nodes(np.array([[degrees]]))
    y = np.linspace(0.0, 8.0, 33)
    densities = stats.norm(scale=nodes.std[0].numpy()).pdf(y)
    expected = stats.t.logpdf(y, degrees)
    assert np.abs(np.log(nodes.weight.numpy() @ densities) - expected).max() < 0.4
    assert float(nodes.weight.sum()) == pytest.approx(1.0)


def test_few_rows_leave_at_least_four_degrees():
    assert torch.equal(
        compute_noise_nodes(np.array([[0.1]])).std, compute_noise_nodes(np.array([[4.0]])).std
    )


def make_network(kind, n_outputs):
    if kind == "mlp":
        return MLP(3, (4,), n_outputs, TANH)
    if kind == "own":
        return Waves(4, n_outputs)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, n_outputs))
    return ModuleNetwork(layers, (3,))


LIKELIHOODS = {
    "one number": (Gaussian(torch.tensor([-0.7], dtype=torch.float64)), 1),
    "two numbers": (Gaussian(torch.tensor([-0.7, 0.4], dtype=torch.float64)), 2),
    "counts": (Poisson(), 1),
    "classes": (Categorical(), 3),
}


def as_table(name, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    n_outputs = LIKELIHOODS[name][1]
    y = torch.randn(n, n_outputs, generator=generator, dtype=torch.float64)
    if name == "counts":
        y = y.exp().round()
    if name == "classes":
        y = y.argmax(1)
    return Data(x, y, torch.rand(n, generator=generator, dtype=torch.float64) + 0.5)


def at(network, seed=1):
    theta = network.init(1, generator=torch.Generator().manual_seed(seed))[0]
    return theta, torch.linspace(0.3, 2.0, len(theta), dtype=torch.float64)


@pytest.mark.parametrize("n", [5, 40], ids=["more weights", "more rows"])
@pytest.mark.parametrize("kind", ["mlp", "module", "own"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_against_the_dense_matrix(name, kind, n):
    likelihood, n_outputs = LIKELIHOODS[name]
    network, data = make_network(kind, n_outputs), as_table(name, n)
    theta, scale = at(network)
    found = compute_effective_parameters(network, likelihood, theta, data, scale)
    jacobian = torch.func.jacrev(lambda t: network.forward(t, data.x))(theta)
    outputs = network.forward(theta, data.x)

    def check_curvature(i):
        def log_prob(f):
            return likelihood.log_prob(f[None], data.y[i : i + 1]).sum()

        return -torch.func.jacrev(torch.func.jacrev(log_prob))(outputs[i])

    curvature = torch.stack([check_curvature(i) for i in range(n)]) * data.weight[:, None, None]
    system = torch.einsum("nkp,nkj,njq->pq", jacobian, curvature, jacobian)
    covariance = torch.linalg.inv(system + (scale**-2).diag())
    torch.testing.assert_close(found.variance, covariance.diagonal())
    spread = torch.einsum("nkp,pq,njq->nkj", jacobian, covariance, jacobian)
    taken = torch.einsum("nkj,njk->", spread, curvature)
    torch.testing.assert_close(found.n_effective.sum(), taken)
    torch.testing.assert_close(found.n_effective.sum(), (1.0 - found.variance / scale**2).sum())
    if "number" in name:  # of every target alone
        by_target = torch.einsum("nkk,nkk->k", spread, curvature)
        torch.testing.assert_close(found.n_effective, by_target)


@pytest.mark.parametrize("name", ["one number", "classes"])
def test_what_weighted_rows_determine_is_that_of_repetitions(name):
    likelihood, n_outputs = LIKELIHOODS[name]
    network, data = make_network("mlp", n_outputs), as_table(name, 6)
    theta, scale = at(network)
    times = torch.tensor([1, 3, 2, 1, 2, 5])
    rows = Data(*(t.repeat_interleave(times, 0) for t in data))
    weighted = compute_effective_parameters(
        network, likelihood, theta, data._replace(weight=times.double()), scale
    )
    repeated = compute_effective_parameters(
        network, likelihood, theta, rows._replace(weight=torch.ones(14).double()), scale
    )
    for one, other in zip(weighted, repeated, strict=True):
        torch.testing.assert_close(one, other)


def test_an_even_selection_stands_for_all(monkeypatch):
    """Rows next to each other that are equal: half of them say what all do."""
    likelihood, _ = LIKELIHOODS["one number"]
    network, data = make_network("mlp", 1), as_table("one number", 21)
    data = data._replace(weight=torch.ones(21).double())
    twice = Data(*(t.repeat_interleave(2, 0) for t in data))
    theta, scale = at(network)
    whole = compute_effective_parameters(network, likelihood, theta, twice, scale)
    p = len(theta)
    monkeypatch.setattr(module, "_MAX_WORK", 21.0 * p**2)
    assert len(affordable_rows(42, 1, p)) == 21
    assert count_curvature_entries(42, 1, p) == 21 * p + p**2
    half = compute_effective_parameters(network, likelihood, theta, twice, scale)
    torch.testing.assert_close(half.variance, whole.variance, rtol=0.05, atol=0.0)


def test_how_many_rows_are_within_the_work():
    """``n p min(n, p)`` multiplications, n rows times outputs; one row at least."""
    for n, k, p in [(1000, 1, 601), (500, 10, 3760), (10**6, 1, 300), (10**5, 3, 10**7)]:
        size = len(affordable_rows(n, k, p))
        assert 1 <= size <= n
        work = size * k * p * min(size * k, p)
        assert work <= module._MAX_WORK or size == 1
        if 1 < size < n:  # and not much fewer
            assert work > 0.75 * module._MAX_WORK
    assert len(affordable_rows(1000, 1, 601)) == 1000
