"""Layers conditional on sampled ones: exact parts against dense algebra, bounds by quadrature."""

from math import log

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.layerwise.base import (
    HiddenDraws,
    LayerInputs,
    Layerwise,
    LayerwiseElbo,
    with_ones,
)
from skbayes_sym.inference.layerwise.collapsed import CollapsedLast, MeanFieldHidden
from skbayes_sym.inference.layerwise.global_inducing import InducingHidden, InducingLast, draw_layer
from skbayes_sym.inference.layerwise.posterior import LayerwisePosterior
from skbayes_sym.inference.reference.averaged_kl import AveragedKlLast, single_datum_kl
from skbayes_sym.inference.reference.repeated_datum import MeanFieldLikelihood, RepeatedDatum
from skbayes_sym.models.data import Batches, Data
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.optimise import ParamGroup, minimise

SCALE, LOG_NOISE = 0.7, torch.tensor([log(0.4)], dtype=torch.float64)


def make_data(n=8, d=3, n_targets=1):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, d)), rng.normal(size=(n, n_targets))
    return Data(*(torch.as_tensor(a) for a in (x, y, np.ones(n))))


def some_features(data, width, generator, n=2):
    h = torch.randn(n, len(data.x), width, generator=generator, dtype=torch.float64)
    return with_ones(h)


def no_draws(n=2):
    return HiddenDraws([], torch.zeros(n).double(), torch.zeros(n, 0, 1).double())


EMPTY = torch.zeros(0, dtype=torch.float64)
both_shapes = pytest.mark.parametrize("width", [3, 12], ids=["D<=N", "D>N"])


@both_shapes
def test_collapsed_layer_is_the_evidence_of_a_linear_model(width, generator):
    data = make_data(n_targets=2)
    features = some_features(data, width, generator)
    noise = torch.tensor([log(0.4), log(0.9)], dtype=torch.float64)
    value, kl = CollapsedLast(SCALE).elbo(LayerInputs(EMPTY, features, no_draws(), data, noise))
    for phi, got in zip(features.numpy(), value, strict=True):
        expected = 0.0
        for y, s in zip(data.y.numpy().T, noise.exp().numpy(), strict=True):
            covariance = SCALE**2 * phi @ phi.T + s**2 * np.eye(8)
            expected += stats.multivariate_normal(np.zeros(8), covariance).logpdf(y)
        assert float(got) == pytest.approx(expected, rel=1e-12)
    assert torch.equal(kl, torch.zeros(2).double())


@both_shapes
def test_collapsed_layer_takes_weights_as_repetitions(width, generator):
    data = make_data()
    weight = torch.tensor([2.0, 1, 3, 1, 1, 2, 1, 1]).double()
    features = some_features(data, width, generator)
    weighted = data._replace(weight=weight)
    repeats = weight.long()
    repeated = Data(*(t.repeat_interleave(repeats, 0) for t in data))
    again = features.repeat_interleave(repeats, 1)
    last = CollapsedLast(SCALE)
    one = last.elbo(LayerInputs(EMPTY, features, no_draws(), weighted, LOG_NOISE))[0]
    other = last.elbo(LayerInputs(EMPTY, again, no_draws(), repeated, LOG_NOISE))[0]
    assert_close(one, other, rtol=1e-11, atol=0)
    new = some_features(make_data(5), width, generator)
    first = last.condition(LayerInputs(EMPTY, features, no_draws(), weighted, LOG_NOISE)).moments(
        new
    )
    second = last.condition(LayerInputs(EMPTY, again, no_draws(), repeated, LOG_NOISE)).moments(new)
    assert_close(first.mean, second.mean, rtol=1e-9, atol=1e-11)
    assert_close(first.variance, second.variance, rtol=1e-8, atol=1e-11)


@both_shapes
def test_collapsed_layer_predicts_as_bayesian_regression(width, generator):
    data = make_data()
    features = some_features(data, width, generator)
    new = some_features(make_data(5), width, generator)
    last, noise = CollapsedLast(SCALE), float(LOG_NOISE.exp())
    moments = last.condition(LayerInputs(EMPTY, features, no_draws(), data, LOG_NOISE)).moments(new)
    draws = torch.stack([
        last.sample(LayerInputs(EMPTY, features, no_draws(), data, LOG_NOISE), generator=generator)
        for _ in range(4000)
    ])  # fmt: skip
    for s, phi in enumerate(features.numpy()):
        d = phi.shape[1]
        covariance = np.linalg.inv(np.eye(d) / SCALE**2 + phi.T @ phi / noise**2)
        mean = covariance @ phi.T @ data.y.numpy()[:, 0] / noise**2
        star = new[s].numpy()
        np.testing.assert_allclose(moments.mean[s, :, 0], star @ mean, rtol=1e-9, atol=1e-11)
        variance = np.einsum("nd,de,ne->n", star, covariance, star)
        np.testing.assert_allclose(moments.variance[s, :, 0], variance, rtol=1e-8)
        sd = np.sqrt(np.diag(covariance))
        error = np.abs(draws[:, s, :, 0].mean(0).numpy() - mean)
        assert (error < 5 * sd / 4000**0.5).all()
        spread = np.cov(draws[:, s, :, 0].numpy().T)
        assert (np.abs(spread - covariance) < 5 * (2 / 4000) ** 0.5 * np.outer(sd, sd)).all()


def layer_problem(d, generator, m=5, h=3):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(2, m, d), normal(m, h), normal(h), normal(m)


@pytest.mark.parametrize("d", [3, 9], ids=["D<=M", "D>M"])
def test_inducing_layer_equals_one_dense_gaussian_a_unit(d, generator):
    inducing, values, log_gain, log_precision = layer_problem(d, generator)
    repeated = inducing[:1].expand(20_000, -1, -1)
    drawn = draw_layer(repeated, values, log_gain, log_precision, SCALE, generator=generator)
    u, kl, prior = inducing[0], 0.0, torch.eye(d).double() * SCALE**2
    for h in range(3):
        site = (log_gain[h] + log_precision).exp()
        covariance = torch.linalg.inv(torch.linalg.inv(prior) + u.T @ (site[:, None] * u))
        mean = covariance @ u.T @ (site * values[:, h])
        normal = torch.distributions.MultivariateNormal
        q, p = normal(mean, covariance), normal(torch.zeros(d).double(), prior)
        kl += float(torch.distributions.kl_divergence(q, p))
        draws, sd = drawn.weights[:, :, h], covariance.diagonal().sqrt()
        assert bool(((draws.mean(0) - mean).abs() < 5 * sd / 20_000**0.5).all())
        error = (draws.T.cov() - covariance).abs()
        assert bool((error < 5 * (2 / 20_000) ** 0.5 * torch.outer(sd, sd)).all())
    assert_close(drawn.kl, torch.full((20_000,), kl, dtype=torch.float64), rtol=1e-11, atol=0)


@pytest.mark.parametrize("d", [3, 60], ids=["K<N", "K>N"])
def test_linear_model_with_sites_at_the_data_has_the_evidence(d, generator):
    """M = N, Z = X, v = y, precision 1 / noise^2: the posterior is exact, so is the ELBO."""
    data = make_data(n=20, d=d)
    network, noise = MLP(d, (), 1, TANH), 0.3
    hidden, last = InducingHidden(network, (), 20), InducingLast(SCALE, 20, 1)
    params = torch.cat([
        data.x.flatten(),
        last.layout.flatten({
            "values": data.y, "log_gain": torch.zeros(1).double(),
            "log_precision": torch.full((20,), -2 * log(noise), dtype=torch.float64),
        }),
        torch.tensor([log(noise)], dtype=torch.float64),
    ])  # fmt: skip
    phi = with_ones(data.x).numpy()
    covariance = SCALE**2 * phi @ phi.T + noise**2 * np.eye(20)
    evidence = stats.multivariate_normal(np.zeros(20), covariance).logpdf(data.y.numpy()[:, 0])
    for parts in (Layerwise(network, hidden, last),
                  Layerwise(network, hidden, CollapsedLast(SCALE))):  # fmt: skip
        at = params if parts.last is last else torch.cat([data.x.flatten(), params[-1:]])
        likelihood, kl = parts.terms(at, data, 2, generator=generator)
        assert_close(
            likelihood - kl, torch.full((2,), evidence, dtype=torch.float64), rtol=0, atol=1e-9
        )


def one_unit_evidence(x, y, noise):
    """log p(y) of a one-unit tanh network with N(0, 1) priors, the outer layer integrated out."""
    grid = np.linspace(-5, 5, 81)
    w, b = (g.ravel() for g in np.meshgrid(grid, grid))
    total = []
    for i in range(len(w)):
        h = np.column_stack([np.tanh(w[i] * x + b[i]), np.ones_like(x)])
        covariance = h @ h.T + noise**2 * np.eye(len(x))
        log_lik = stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(y)
        total.append(log_lik + stats.norm.logpdf([w[i], b[i]]).sum())
    return np.logaddexp.reduce(total) + 2 * log(grid[1] - grid[0])


def parts_of(name, network, scale=1.0, m=6):
    scales = (scale,) * (network.n_layers - 1)
    hidden = {"m": MeanFieldHidden(network, scales), "g": InducingHidden(network, scales, m)}
    last = {
        "c": CollapsedLast(scale),
        "g": InducingLast(scale, m, network.n_outputs),
        "a": AveragedKlLast(scale, network.sizes[-2] + 1, network.n_outputs),
    }
    return Layerwise(network, hidden[name[0]], last[name[1]])


every_posterior = pytest.mark.parametrize("name", ["mc", "gc", "gg", "ma"])


def train(parts, data, log_noise, steps, *, warm_up=0, seed=0):
    def generator():
        return torch.Generator().manual_seed(seed)

    start = [
        parts.hidden.start(data, at_prior=False, generator=generator()),
        parts.last.start(data, generator=generator()),
        torch.tensor([log_noise], dtype=torch.float64),
    ]
    params = torch.cat(start)
    objective = LayerwiseElbo(
        parts, Batches(data, 10**6, generator()), params, n_draws=2, warm_up=warm_up,
        generator=generator(),
    )  # fmt: skip
    groups = [ParamGroup(slice(0, -1), 0.03, -30, 30)]  # the noise is given
    minimise(objective, groups=groups, max_iter=steps, block_size=steps,
             on_step=lambda step, info: False)  # fmt: skip
    return params


@every_posterior
def test_elbo_is_below_the_evidence_of_a_tiny_network(name, generator):
    rng = np.random.default_rng(0)
    x = np.linspace(-2, 2, 12)
    y = np.tanh(1.5 * x) + 0.2 * rng.standard_normal(12)
    data = Data(*(torch.as_tensor(a) for a in (x[:, None], y[:, None], np.ones(12))))
    evidence = one_unit_evidence(x, y, 0.2)
    parts = parts_of(name, MLP(1, (1,), 1, TANH), m=12)
    for steps in (1, 1000):  # a bound from the start, a close one in the end
        params = train(parts, data, log(0.2), steps)
        assert float(params[-1]) == log(0.2)
        likelihood, kl = parts.terms(params, data, 4000, generator=generator)
        elbo = likelihood - kl
        assert float(elbo.mean()) < evidence + 4 * float(elbo.std()) / 4000**0.5
    # What is left is log 2 of the unit's sign and a little, but for the heuristic's overfit.
    assert float(elbo.mean()) > evidence - {"ma": 8.0}.get(name, 1.2)


@every_posterior
@pytest.mark.parametrize("widths", [(4,), (4, 3), (3, 2, 4)], ids=str)
def test_predictions_are_the_moments_of_draws(name, widths, generator):
    data = make_data()
    network = MLP(3, widths, 1, TANH)
    parts = parts_of(name, network)
    params = train(parts, data, log(0.3), 30)
    posterior = LayerwisePosterior(parts, params.numpy(), *(t.numpy() for t in data))
    n = 6000
    theta = posterior.sample(n, generator=generator)
    assert theta.shape == (n, network.layout.n_params)
    outputs = network.forward(theta, data.x)
    conditioned = posterior.conditioned(n, generator=generator, device=torch.device("cpu"))
    mean, variance = conditioned.moments(data.x)
    spread = (mean.var(0) + variance.mean(0)).sqrt()
    assert bool(((outputs.mean(0) - mean.mean(0)).abs() < 5 * spread * (2 / n) ** 0.5).all())
    # Tails are heavier than a normal's: 15 % on a standard deviation of 6000 draws.
    assert_close(outputs.std(0), spread, rtol=0.15, atol=0)


@every_posterior
def test_gradient_is_that_of_the_tempered_bound(name):
    """One step with all weight on the likelihood's side, by differences with the same draws."""
    data, parts = make_data(), parts_of(name, MLP(3, (2, 2), 1, TANH))
    params = train(parts, data, log(0.3), 5)

    def value(at):
        generator = torch.Generator().manual_seed(3)
        likelihood, kl = parts.terms(at, data, 2, generator=generator, training=True)
        return float((0.02 * kl - likelihood).mean())

    generator = torch.Generator().manual_seed(3)
    objective = LayerwiseElbo(
        parts, Batches(data, 10**6, generator), params.clone(), n_draws=2, warm_up=100,
        generator=generator,
    )  # fmt: skip
    objective(0)
    for i in range(0, len(params), 3):
        step = torch.zeros_like(params)
        step[i] = 1e-5
        slope = (value(params + step) - value(params - step)) / 2e-5
        assert float(objective.gradient[i]) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_minibatches_are_unbiased():
    data = make_data(n=6)
    parts = parts_of("gg", MLP(3, (2,), 1, TANH), m=4)
    params = train(parts, data, log(0.3), 5)

    def objective(batch_size, seed):
        generator = torch.Generator().manual_seed(seed)
        batches = Batches(data, batch_size, generator)
        return LayerwiseElbo(parts, batches, params, n_draws=8, warm_up=0, generator=generator)

    full = torch.stack([objective(6, s)(0) for s in range(300)])
    small = torch.stack([objective(2, s)(0) for s in range(1200)])
    error = (full.var() / 300 + small.var() / 1200) ** 0.5
    assert float((full.mean() - small.mean()).abs()) < 4 * float(error)


def test_single_datum_kl_is_that_of_the_closed_form_posterior():
    rng = np.random.default_rng(0)
    x, loc, variance = rng.normal(size=4), rng.normal(size=4), rng.gamma(2.0, size=4)
    model = RepeatedDatum(x, np.zeros(1), 1.0, np.full(4, SCALE**2))
    expected = model.q_mix(MeanFieldLikelihood(loc, variance)).kl(model.prior)
    tensors = (torch.as_tensor(a) for a in (loc[:, None], variance[:, None], x[None]))
    got = single_datum_kl(*tensors, SCALE)
    assert got.shape == (1, 1)
    assert float(got) == pytest.approx(expected, rel=1e-12)


@every_posterior
def test_a_last_layer_knows_whether_it_trains_on_the_elbo(name):
    data = make_data(n=6)
    parts = parts_of(name, MLP(3, (2,), 1, TANH), m=4)
    params = train(parts, data, log(0.3), 5)

    def bound(training):
        generator = torch.Generator().manual_seed(0)
        likelihood, kl = parts.terms(params, data, 3, generator=generator, training=training)
        return likelihood - kl

    assert parts.last.trains_on_elbo == torch.equal(bound(True), bound(False))


def test_the_heuristic_charges_less_than_a_bound():
    data = make_data(n=40)
    parts = parts_of("ma", MLP(3, (20,), 1, TANH), scale=0.3)
    params = train(parts, data, log(0.3), 100)
    values = []
    for training in (True, False):
        generator = torch.Generator().manual_seed(0)
        likelihood, kl = parts.terms(params, data, 8, generator=generator, training=training)
        values.append(float((likelihood - kl).mean()))
    assert values[0] > values[1] + 5
