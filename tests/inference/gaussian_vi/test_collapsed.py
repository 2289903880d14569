"""The collapsed layer against dense Bayesian regression."""

from math import log

import numpy as np
import pytest
import torch
from inference.gaussian_vi.layerwise_problems import (
    EMPTY,
    LOG_NOISE,
    SCALE,
    SCALES,
    both_shapes,
    make_data,
    no_draws,
    some_features,
)
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.gaussian_vi.collapsed import CollapsedLast, MeanFieldHidden
from skbayes_sym.inference.gaussian_vi.global_inducing import (
    InducingHidden,
    InducingLast,
    draw_layer,
)
from skbayes_sym.inference.gaussian_vi.layers import LayerInputs, Layerwise, with_ones
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP, TANH


def inputs_of(features, data, noise=LOG_NOISE):
    return LayerInputs(EMPTY, features, no_draws(), data, noise)


both_scales = pytest.mark.parametrize("is_one", [True, False], ids=["one scale", "one an input"])


def prior_scale(width, is_one):
    """Of a last layer, as it is given, and as an array."""
    if is_one:
        return SCALE, np.full(width + 1, SCALE)
    given = SCALES.repeat(4)[: width + 1]
    return given, given.numpy()


@both_scales
@both_shapes
def test_collapsed_layer_is_the_evidence_of_a_linear_model(width, is_one, generator):
    data = make_data(n_targets=2)
    features = some_features(data, width, generator)
    noise = torch.tensor([log(0.4), log(0.9)], dtype=torch.float64)
    given, scale = prior_scale(width, is_one)
    value, kl = CollapsedLast(given).elbo(inputs_of(features, data, noise))
    for phi, got in zip(features.numpy(), value, strict=True):
        expected = 0.0
        for y, s in zip(data.y.numpy().T, noise.exp().numpy(), strict=True):
            covariance = phi * scale**2 @ phi.T + s**2 * np.eye(8)
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
    one = last.elbo(inputs_of(features, weighted))[0]
    other = last.elbo(inputs_of(again, repeated))[0]
    assert_close(one, other, rtol=1e-11, atol=0)
    new = some_features(make_data(5), width, generator)
    first = last.condition(inputs_of(features, weighted)).moments(new)
    second = last.condition(inputs_of(again, repeated)).moments(new)
    assert_close(first[0], second[0], rtol=1e-9, atol=1e-11)
    assert_close(first[1], second[1], rtol=1e-8, atol=1e-11)


@both_scales
@both_shapes
def test_collapsed_layer_predicts_as_bayesian_regression(width, is_one, generator):
    data = make_data()
    features = some_features(data, width, generator)
    new = some_features(make_data(5), width, generator)
    given, scale = prior_scale(width, is_one)
    last, noise = CollapsedLast(given), float(LOG_NOISE.exp())
    moments = last.condition(inputs_of(features, data)).moments(new)
    inputs = inputs_of(features, data)
    draws = torch.stack([last.sample(inputs, generator=generator) for _ in range(1000)])
    for s, phi in enumerate(features.numpy()):
        covariance = np.linalg.inv(np.diag(scale**-2) + phi.T @ phi / noise**2)
        mean = covariance @ phi.T @ data.y.numpy()[:, 0] / noise**2
        star = new[s].numpy()
        np.testing.assert_allclose(moments[0][s, :, 0], star @ mean, rtol=1e-9, atol=1e-11)
        variance = np.einsum("nd,de,ne->n", star, covariance, star)
        np.testing.assert_allclose(moments[1][s, :, 0], variance, rtol=1e-8)
        sd = np.sqrt(np.diag(covariance))
        error = np.abs(draws[:, s, :, 0].mean(0).numpy() - mean)
        assert (error < 5 * sd / 1000**0.5).all()
        spread = np.cov(draws[:, s, :, 0].numpy().T)
        assert (np.abs(spread - covariance) < 5 * (2 / 1000) ** 0.5 * np.outer(sd, sd)).all()


def test_hidden_weights_have_the_kl_of_their_normals_from_the_prior(generator):
    network, data = MLP(3, (5,), 1, TANH), make_data()
    hidden = MeanFieldHidden(network, (SCALES,))
    wide, narrow = (
        hidden.start(data, at_prior=at_prior, generator=generator) for at_prior in (True, False)
    )
    scale = SCALES.unsqueeze(-1).expand(4, 5)
    for params in (wide, narrow):
        values = hidden.layout.unflatten(params)
        loc, std = values["loc1"], (0.5 * values["log_variance1"]).exp()
        normal = torch.distributions.Normal
        kl = torch.distributions.kl_divergence(normal(loc, std), normal(0.0, scale)).sum()
        drawn = hidden.draw(params, 20_000, generator=generator)
        assert_close(drawn.kl, kl.expand(20_000), rtol=1e-12, atol=0)
        error = (drawn.weights[0].mean(0) - loc).abs()
        assert bool((error < 5 * std / 20_000**0.5).all())
        assert_close(drawn.weights[0].std(0), std, rtol=0.03, atol=0)
        if params is wide:
            assert_close(std, scale)
    kls = (hidden.draw(params, 1, generator=generator).kl for params in (wide, narrow))
    assert float(next(kls)) < 0.01 < float(next(kls))


def layer_problem(d, generator, m=5, h=3):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(2, m, d), normal(m, h), normal(h), normal(m)


@pytest.mark.parametrize("is_one", [True, False], ids=["one scale", "one an input"])
@pytest.mark.parametrize("d", [3, 9], ids=["D<=M", "D>M"])
def test_inducing_layer_equals_one_dense_gaussian_a_unit(d, is_one, generator):
    inducing, values, log_gain, log_precision = layer_problem(d, generator)
    repeated = inducing[:1].expand(20_000, -1, -1)
    scale = SCALE if is_one else SCALES.repeat(3)[:d]
    sites = values, log_gain, log_precision
    weights, own_kl = draw_layer(repeated, *sites, scale, generator=generator)
    u, kl, prior = inducing[0], 0.0, torch.eye(d).double() * scale**2
    for h in range(3):
        site = (log_gain[h] + log_precision).exp()
        covariance = torch.linalg.inv(torch.linalg.inv(prior) + u.T @ (site[:, None] * u))
        mean = covariance @ u.T @ (site * values[:, h])
        normal = torch.distributions.MultivariateNormal
        q, p = normal(mean, covariance), normal(torch.zeros(d).double(), prior)
        kl += float(torch.distributions.kl_divergence(q, p))
        draws, sd = weights[:, :, h], covariance.diagonal().sqrt()
        assert bool(((draws.mean(0) - mean).abs() < 5 * sd / 20_000**0.5).all())
        error = (draws.T.cov() - covariance).abs()
        assert bool((error < 5 * (2 / 20_000) ** 0.5 * torch.outer(sd, sd)).all())
    assert_close(own_kl, torch.full((20_000,), kl, dtype=torch.float64), rtol=1e-11, atol=0)


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
