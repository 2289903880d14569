"""The collapsed layer against dense Bayesian regression."""

from math import log

import numpy as np
import pytest
import torch
from inference.layerwise.layerwise_problems import (
    EMPTY,
    LOG_NOISE,
    SCALE,
    both_shapes,
    make_data,
    no_draws,
    some_features,
)
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.layerwise.base import (
    LayerInputs,
)
from skbayes_sym.inference.layerwise.collapsed import CollapsedLast
from skbayes_sym.models.data import Data


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
