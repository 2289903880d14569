"""Fitted layerwise posteriors: predictions are the moments of draws."""

from math import log

import pytest
import torch
from inference.gaussian_vi.layerwise_problems import (
    SCALES,
    every_posterior,
    make_data,
    parts_of,
    train,
)
from thin import some
from torch.testing import assert_close

from skbayes_sym.inference.gaussian_vi.layers import HiddenDraws, LayerInputs, propagate
from skbayes_sym.inference.gaussian_vi.layerwise_posterior import LayerwisePosterior
from skbayes_sym.models import Gaussian
from skbayes_sym.models.networks.mlp import MLP, TANH


def one_per_input(parts):
    """The same posterior under a prior with a scale of its own for every input of every layer."""
    return parts.under([SCALES.repeat(2)[: n + 1] for n in parts.network.sizes[:-1]])


@pytest.mark.kept("(4, 3)-*")
@every_posterior
@some("widths", [(4,), (4, 3), (3, 2, 4)], keep={(4,), (4, 3)})
def test_predictions_are_the_moments_of_draws(name, widths, generator):
    data = make_data()
    network = MLP(3, widths, 1, TANH)
    parts = parts_of(name, network)
    params = train(parts, data, log(0.3), 30)
    if widths == (4, 3):
        parts = one_per_input(parts)
    posterior = LayerwisePosterior(parts, params.numpy(), *(t.numpy() for t in data))
    n = 6000
    theta = posterior.sample(n, generator=generator)
    assert theta.shape == (n, network.layout.n_params)
    outputs = network.forward(theta, data.x)
    noise = Gaussian(torch.zeros(1).double())
    predictor = posterior.predictor(n, noise, generator=generator)
    law = predictor.law(data.x)
    mean, variance = law.loc, law.variance
    assert_close(predictor.mean(data.x), mean.mean(0))
    spread = (mean.var(0) + variance.mean(0)).sqrt()
    assert bool(((outputs.mean(0) - mean.mean(0)).abs() < 5 * spread * (2 / n) ** 0.5).all())
    # Tails are heavier than a normal's: 15 % on a standard deviation of 6000 draws.
    assert_close(outputs.std(0), spread, rtol=0.15, atol=0)


@pytest.mark.kept("one an input-*")
@every_posterior
@pytest.mark.parametrize("under", [lambda parts: parts, one_per_input], ids=["one", "one an input"])
def test_draws_of_the_last_layer_have_the_covariance_of_its_law(name, under, generator):
    """Given one draw of the hidden layers: all moments of 40,000 draws, to 5 standard errors."""
    n, data = 40_000, make_data()
    parts = parts_of(name, MLP(3, (4,), 1, TANH))
    hidden, last, log_noise = parts.split(train(parts, data, log(0.3), 30))
    parts = under(parts)
    draw = parts.hidden.draw(hidden, 1, generator=generator)
    features = propagate(parts.network, draw.weights, data.x)
    law = parts.last.condition(LayerInputs(last, features, draw, data, log_noise))
    many = HiddenDraws(
        [w.expand(n, -1, -1) for w in draw.weights], draw.kl.expand(n),
        draw.inducing.expand(n, -1, -1),
    )  # fmt: skip
    inputs = LayerInputs(last, features.expand(n, -1, -1), many, data, log_noise)
    drawn = parts.last.sample(inputs, generator=generator)[..., 0]
    root = law.root[0, 0]
    scale = law.prior_scale.expand(5)
    cov = torch.outer(scale, scale) * (root.mT @ root)
    if law.complement:
        cov = (scale**2).diag() - cov
    sd = cov.diagonal().sqrt()
    assert bool(((drawn.mean(0) - law.mean[0, :, 0]).abs() < 5 * sd / n**0.5).all())
    # Of Gaussian draws: var of an entry of the sample covariance is (c_ij^2 + c_ii c_jj) / n.
    error = ((cov**2 + torch.outer(sd, sd) ** 2) / n).sqrt()
    assert bool(((drawn.T.cov() - cov).abs() < 5 * error).all())
    features = propagate(parts.network, draw.weights, data.x)
    _, variance = law.moments(features.expand(1, -1, -1))
    assert_close(variance[0, :, 0], (features[0] @ cov * features[0]).sum(-1))
