"""Fitted layerwise posteriors: predictions are the moments of draws."""

from math import log

import pytest
import torch
from inference.layerwise.layerwise_problems import (
    every_posterior,
    make_data,
    parts_of,
    train,
)
from torch.testing import assert_close

from skbayes_sym.inference.layerwise.posterior import LayerwisePosterior
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP


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
