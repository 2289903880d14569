"""Evidence, its gradients, posteriors and mixtures, against closed forms and dense matrices."""

import pickle
from dataclasses import dataclass, replace
from itertools import product
from math import pi

import numpy as np
import pytest
import torch
from laplace.test_curvature import (
    STRUCTURES,
    averaged_outputs,
    blocks_of,
    every_structure,
    factors_of,
    image_problem,
    kronecker_factors,
    network_problem,
    precision_of,
    prior_of,
    problem,
    structure_of,
)
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.laplace.curvature import Directions, parameter_positions
from skbayes_sym.laplace.evidence import AveragedNetwork, LaplaceEvidence
from skbayes_sym.laplace.online_training import OnlineEvidence, recorded_steps
from skbayes_sym.laplace.posterior import (
    LaplacePosterior,
    LinearisedModes,
    LinearisedNetwork,
    ModeMixture,
)
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.networks.convolutional import resnet
from skbayes_sym.models.networks.network import Convolution, Dense

DIRECTIONS = {
    "exact": Directions("exact"),
    "sketch": Directions("sketch", 1),
    "sketch-3": Directions("sketch", 3),
}
PROBLEMS = {
    "classes": problem("classes", n=8),
    "numbers": problem("numbers", n=8),
    "images": image_problem(n=4),
}


def evidence_of(p, kind="kronecker", directions="exact", batch_size=100):
    structure = structure_of(p, kind)
    return LaplaceEvidence(p.model, p.data, structure, DIRECTIONS[directions], batch_size)


def value(evidence, p, hyper, seed=3):
    sums = evidence.compute_data_sums(p.theta, hyper, seed)
    precision = evidence.precision(sums.factors, hyper)
    terms, _ = evidence.evidence(p.theta, hyper, sums.log_likelihood, precision)
    return terms.value


def make_gradient(evidence, p, hyper=None, seed=3):
    hyper = p.hyper if hyper is None else hyper
    sums = evidence.compute_data_sums(p.theta, hyper, seed)
    return evidence.gradient(p.theta, hyper, seed, evidence.precision(sums.factors, hyper))


def assert_slope_by_differences(slope, evidence, p, i):
    step = torch.zeros_like(p.hyper)
    step[i] = 1e-5
    difference = value(evidence, p, p.hyper + step) - value(evidence, p, p.hyper - step)
    # Central differences of a value of order 10: rounding of order 1e-9.
    assert_close(float(slope), difference / 2e-5, rtol=1e-5, atol=1e-6)


def learned(p):
    """Places of eta and the likelihood's parameters."""
    return range(p.model.hyper.slices["log_precision"].start)


RESIDUAL = {"residual": network_problem(resnet((2, 4, 4), 3, 2), n=3)}


@pytest.mark.parametrize("directions", DIRECTIONS)
@every_structure
@pytest.mark.parametrize("name", [*PROBLEMS, *RESIDUAL])
def test_surrogate_gradient_is_that_of_the_evidence_by_differences(name, kind, directions):
    p = (PROBLEMS | RESIDUAL)[name]
    evidence = evidence_of(p, kind, directions)
    gradient = make_gradient(evidence, p)
    for i in learned(p):
        assert_slope_by_differences(gradient[i], evidence, p, i)
    assert torch.count_nonzero(gradient[p.model.hyper.slices["log_precision"]]) == 0


@every_structure
def test_minibatches_change_nothing(kind):
    """Where no noise is drawn the split of the rows is only an order of summation."""
    p = problem("numbers", n=8, rotate=False)
    whole, parts = (evidence_of(p, kind, "exact", b) for b in (100, 3))
    assert_close(value(whole, p, p.hyper), value(parts, p, p.hyper))
    assert_close(make_gradient(whole, p), make_gradient(parts, p))


def test_minibatches_with_noise_follow_their_own_evidence():
    """The gradient belongs to the noise that the passes drew, batch by batch."""
    p = problem("classes", n=8)
    evidence = evidence_of(p, "kronecker", "sketch", batch_size=3)
    assert_slope_by_differences(make_gradient(evidence, p)[0], evidence, p, 0)


@every_structure
@pytest.mark.parametrize("name", PROBLEMS)
def test_prior_precision_slope_by_differences(name, kind):
    p = PROBLEMS[name]
    evidence = evidence_of(p, kind)
    sums = evidence.compute_data_sums(p.theta, p.hyper, 3)
    precision = evidence.precision(sums.factors, p.hyper)
    _, slope = evidence.evidence(p.theta, p.hyper, sums.log_likelihood, precision)
    for i, at in enumerate(range(len(learned(p)), len(p.hyper))):
        assert_slope_by_differences(slope[i], evidence, p, at)


def linear_gaussian(n=12, n_outputs=2):
    """A linear model at the posterior's mode, where the Laplace approximation is exact."""
    p = problem("numbers", hidden=(), n=n, rotate=False)
    x1 = torch.cat([p.data.x, torch.ones(n, 1, dtype=torch.float64)], 1)
    h = p.model.hyper.unflatten(p.hyper)
    delta, noise = h["log_precision"].exp(), p.model.likelihood.noise_scale**2
    layers = []
    for o in range(n_outputs):
        gram = (x1 * p.data.weight[:, None]).T @ x1 / noise[o] + delta * torch.eye(3).double()
        right = (x1 * p.data.weight[:, None]).T @ p.data.y[:, o] / noise[o]
        layers.append(torch.linalg.solve(gram, right))
    coefficients = torch.stack(layers)  # (O, 3), bias last
    theta = torch.cat([coefficients[:, :2].flatten(), coefficients[:, 2]])
    return p._replace(theta=theta), x1


def test_linear_gaussian_evidence_is_exact():
    p, x1 = linear_gaussian()
    h = p.model.hyper.unflatten(p.hyper)
    found = value(evidence_of(p, "full"), p, p.hyper)
    # y ~ N(0, x1 x1' / delta + noise / weight), and the normalisers of weighted likelihoods
    expected = torch.zeros((), dtype=torch.float64)
    for o in range(2):
        noise = p.model.likelihood.noise_scale[o] ** 2
        cov = x1 @ x1.T / h["log_precision"].exp() + (noise / p.data.weight).diag()
        y = p.data.y[:, o]
        expected -= 0.5 * (y @ torch.linalg.solve(cov, y) + torch.logdet(2 * pi * cov))
        w = p.data.weight
        expected -= (0.5 * (w - 1.0) * torch.log(2 * pi * noise) + 0.5 * w.log()).sum()
    assert_close(found, float(expected))


TRAINED = {
    "classes": problem("classes"),
    "numbers": problem("numbers", hidden=(3, 2)),
    "images": image_problem(hidden=True),
}


@dataclass(frozen=True, eq=False)
class FixedNoise(AveragedNetwork):
    """Transforms its rows by the same noise every time."""

    drawn: torch.Tensor = None

    def noise(self, n_rows, like, generator):
        return self.drawn


def fixed(p, kind, directions):
    m = p.model
    model = FixedNoise(m.network, m.augmentation, m.likelihood, m.n_samples, drawn=p.noise)
    return replace(evidence_of(p, kind, directions), model=model)


@pytest.mark.parametrize("directions", ["exact", "sketch"])
@every_structure
@pytest.mark.parametrize("name", TRAINED)
def test_a_batch_of_all_rows_gives_the_exact_update(name, kind, directions):
    p = TRAINED[name]
    evidence = fixed(p, kind, directions)
    exact = evidence.compute_data_sums(p.theta, p.hyper, 3)
    precision = evidence.precision(exact.factors, p.hyper)
    gradient = evidence.gradient(p.theta, p.hyper, 3, precision)

    online = OnlineEvidence(evidence)
    theta = p.theta.clone().requires_grad_()
    recorded = online.record(theta, p.hyper, p.data, p.noise)
    loss = -p.model.likelihood.log_prob(recorded.averaged, p.data.y).sum()
    torch.autograd.grad(loss, theta, retain_graph=True)
    with torch.no_grad():  # as estimators train
        online.gather(recorded, torch.Generator().manual_seed(3))
    sums, _, found = online.collect(p.hyper)

    assert_close(sums.log_likelihood, exact.log_likelihood.detach())
    for own, expected in zip(sums.factors, exact.factors, strict=True):
        assert_close(own, expected)
    assert_close(found, gradient)
    assert torch.count_nonzero(found) > 0


def test_later_batches_use_the_spectrum_of_the_update_before():
    """Without noise and with weights at rest, halves of the data sum to the whole."""
    p = problem("numbers", n=8, rotate=False)
    evidence = evidence_of(p)
    exact = evidence.compute_data_sums(p.theta, p.hyper, 3)
    gradient = evidence.gradient(p.theta, p.hyper, 3, evidence.precision(exact.factors, p.hyper))
    online = OnlineEvidence(evidence)
    for update in range(2):
        for rows in (slice(0, 3), slice(3, 8)):
            batch = type(p.data)(*(t[rows] for t in p.data))
            recorded = online.record(p.theta, p.hyper, batch, p.noise[rows])
            online.gather(recorded, torch.Generator())
        _, _, found = online.collect(p.hyper)
        assert (found is None) == (update == 0)
    assert_close(found, gradient)


DENSE = [Dense("W", "b")]
CONVOLUTION = Convolution("K", None, (3, 3), (1, 1), (1, 1), (1, 1))


def test_recorded_steps_see_the_data_once_at_most():
    assert recorded_steps(10, 1, DENSE) == 1  # all the data a step: one is enough
    assert recorded_steps(30, 7, DENSE) == 7
    assert recorded_steps(1, 50, DENSE) == 1  # an update has to rest on something


@pytest.mark.parametrize(
    ("layers", "eight"), [(DENSE, 6), ([CONVOLUTION, *DENSE], 2)], ids=["dense", "convolution"]
)
def test_recording_adds_less_than_half_to_training(layers, eight):
    assert recorded_steps(8, 8, layers) == eight
    cost = max(layer.recording_cost for layer in layers)
    for n_between in range(4, 100):
        assert recorded_steps(n_between, 1000, layers) * cost < 0.5 * n_between


def test_precisions_alone_take_no_gradient():
    """Theirs is in closed form: the sums are the same, and no graph is kept."""
    p = TRAINED["classes"]
    evidence = fixed(p, "kronecker", "exact")
    exact = evidence.compute_data_sums(p.theta, p.hyper, 3)
    online = OnlineEvidence(evidence, needs_gradient=False)
    for _ in range(2):
        recorded = online.record(p.theta, p.hyper, p.data, p.noise)
        assert not recorded.hyper.requires_grad
        with torch.no_grad():
            online.gather(recorded, torch.Generator().manual_seed(3))
        sums, _, gradient = online.collect(p.hyper)
        assert gradient is None
        for own, expected in zip(sums.factors, exact.factors, strict=True):
            assert_close(own, expected)


def posterior_of(p, kind):
    """As fitted: arrays, not tensors."""
    positions = parameter_positions(p.model.layers, p.model.network.layout).numpy()
    precision = precision_of(p, kind).map(np.asarray)
    return LaplacePosterior(p.theta.numpy(), precision, positions)


def dense_precision(p, kind):
    if kind == "kronecker":
        blocks = blocks_of(p, kronecker_factors(p))
        dense = torch.block_diag(*(blocks[n] for n in p.model.network.layout.shapes))
    else:
        dense = factors_of(p, "full")[0]
    return dense + prior_of(p)[p.model.owner].diag()


@every_structure
@pytest.mark.parametrize("p", [problem("classes"), image_problem()], ids=["plane", "images"])
def test_density_is_that_of_the_dense_normal(p, kind, generator):
    posterior, dense = posterior_of(p, kind), dense_precision(p, kind)
    theta = p.theta + torch.randn(3, len(p.theta), generator=generator, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(p.theta, precision_matrix=dense)
    assert_close(posterior.log_prob(theta), normal.log_prob(theta))
    assert posterior.log_prob(p.theta).shape == ()


@every_structure
def test_draws_have_the_dense_covariance(kind, generator):
    p = problem("classes", hidden=(2,))
    n = 20_000
    draws = posterior_of(p, kind).sample(n, generator=generator) - p.theta
    covariance = torch.linalg.inv(dense_precision(p, kind))
    products = draws[:, :, None] * draws[:, None, :]
    error = (products.mean(0) - covariance).abs()
    # About a hundred entries at 5 standard errors.
    assert (error < 5.0 * products.std(0) / n**0.5).all()


AT_ONE_POINT = {"plane": problem("numbers", rotate=False), "images": image_problem(n_samples=1)}


@pytest.mark.parametrize(
    ("name", "kind"), [*product(AT_ONE_POINT, STRUCTURES), ("averaged", "full")]
)
def test_outputs_of_the_linearised_network(name, kind):
    """Without averaging, J is exact in every structure."""
    p = problem("classes") if name == "averaged" else AT_ONE_POINT[name]
    posterior = posterior_of(p, kind).tensors(p.theta)
    eta, shared = p.model.hyper.unflatten(p.hyper)["eta"], p.noise[0]
    q = p._replace(noise=shared.expand(len(p.data.x), *shared.shape))
    jac = torch.func.jacrev(lambda t: averaged_outputs(q, t))(p.theta)
    covariance = torch.linalg.inv(dense_precision(p, kind))
    linearised = LinearisedNetwork(p.model, posterior, eta, shared)
    found = linearised.outputs(p.data.x)
    assert_close(found.mean, averaged_outputs(q, p.theta))
    assert_close(found.covariance, torch.einsum("noi,ij,nkj->nok", jac, covariance, jac))
    joint = torch.einsum("noi,ij,moj->nmo", jac, covariance, jac)
    assert_close(linearised.covariance(p.data.x), joint)


@pytest.mark.long
@every_structure
def test_functions_have_the_linearised_moments_and_share_their_weights(kind):
    p = problem("numbers", n=3)
    posterior = posterior_of(p, kind).tensors(p.theta)
    eta = p.model.hyper.unflatten(p.hyper)["eta"]
    linearised = LinearisedNetwork(p.model, posterior, eta, p.noise[0])
    distribution = linearised.outputs(p.data.x)

    def draw(x, n):
        generator = torch.Generator().manual_seed(5)
        return linearised.sample_functions(x, n, generator=generator)

    n = 4000
    away = draw(p.data.x, n) - distribution.mean
    products = torch.einsum("sno,snp->snop", away, away)
    error = (products.mean(0) - distribution.covariance).abs()
    assert (error < 5.0 * products.std(0) / n**0.5).all()
    assert_close(draw(p.data.x[1:2], 6)[:, 0], draw(p.data.x, 6)[:, 1])


def test_the_last_layer_leaves_the_others_at_the_mode(generator):
    p = problem("classes", hidden=(4,))
    m = p.model
    model = type(m)(m.network, m.augmentation, m.likelihood, 3, 1)
    last = p._replace(model=model, hyper=p.hyper[:2])
    draws = posterior_of(last, "full").sample(5, generator=generator)
    where = m.network.layout.slices["W2"].start
    assert torch.equal(draws[:, :where], p.theta[:where].expand(5, -1))
    assert (draws[:, where:] != p.theta[where:]).all()


NETWORK = MLP(2, (2,), 1, TANH)
WEIGHT = np.array([0.5, 0.2, 0.3])


def mixture(scale=1.0):
    rng = np.random.default_rng(0)
    p = NETWORK.layout.n_params
    loc = rng.standard_normal((3, p))
    root = rng.standard_normal((3, p, 2 * p)) / scale
    factor = np.linalg.cholesky(root @ root.transpose(0, 2, 1))
    return ModeMixture(loc, factor, WEIGHT)


def test_pickles_hold_half_of_each_factor():
    q = mixture()
    restored = pickle.loads(pickle.dumps(q))
    np.testing.assert_array_equal(restored.factor, q.factor)
    np.testing.assert_array_equal(restored.weight, q.weight)
    n_weights = q.loc.shape[1]
    assert q.__getstate__()["factor"].shape == (3, n_weights * (n_weights + 1) // 2)


def test_the_density_is_that_of_the_mixture():
    q = mixture()
    theta = np.random.default_rng(1).standard_normal((4, q.loc.shape[1]))
    distributions = [
        stats.multivariate_normal(m, np.linalg.inv(f @ f.T))
        for m, f in zip(q.loc, q.factor, strict=True)
    ]
    expected = np.log(WEIGHT @ [distribution.pdf(theta) for distribution in distributions])
    np.testing.assert_allclose(q.log_prob(torch.as_tensor(theta)).numpy(), expected, rtol=1e-9)


def test_draws_have_the_moments_of_the_mixture():
    q = mixture()
    draws = q.sample(40_000, generator=torch.Generator().manual_seed(0)).numpy()
    within = WEIGHT @ [np.diag(np.linalg.inv(f @ f.T)) for f in q.factor]
    mean = WEIGHT @ q.loc
    variance = within + WEIGHT @ (q.loc - mean) ** 2
    z = (draws.mean(0) - mean) / np.sqrt(variance / len(draws))
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(draws.var(0), variance, rtol=0.05)


def test_functions_and_variances_are_those_of_the_linearised_network():
    q = mixture(scale=0.1)  # narrow: the network is linear over its draws
    loc, factor, weight = q.tensors
    modes = LinearisedModes(NETWORK, loc, factor, weight)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, covariance = modes.outputs(x)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(mean, NETWORK.forward(loc, x))
    n = 20_000
    which, seeded = torch.ones(n, dtype=torch.int64), torch.Generator().manual_seed
    drawn = modes.draw(x, which, generator=seeded(1))
    noise = torch.randn(n, loc.shape[1], generator=seeded(1), dtype=torch.float64)
    torch.testing.assert_close(drawn.var(0), variance[1], rtol=0.06, atol=0.0)
    theta = loc[1] + torch.linalg.solve_triangular(factor[1].mT, noise[:50].T, upper=True).T
    torch.testing.assert_close(drawn[:50], NETWORK.forward(theta, x), atol=0.02, rtol=0.0)


def test_the_covariance_adds_that_between_modes_to_that_within():
    loc, factor, weight = mixture().tensors
    modes = LinearisedModes(NETWORK, loc, factor, weight)
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, covariance = modes.outputs(x)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    found = modes.covariance(x)
    away = mean - torch.einsum("r,rno->no", weight, mean)
    spread = torch.einsum("r,rno->no", weight, variance + away.square())
    torch.testing.assert_close(found.diagonal(), spread.T)
    jacobian = torch.stack(
        [torch.autograd.functional.jacobian(lambda t: NETWORK.forward(t, x)[:, 0], m) for m in loc]
    )
    within = jacobian @ torch.cholesky_inverse(factor) @ jacobian.mT
    between = torch.einsum("r,rno,rmo->nm", weight, away, away)
    torch.testing.assert_close(found[..., 0], torch.einsum("r,rnm->nm", weight, within) + between)
