"""Residual networks start as Zhang et al. (2019) have it."""

import torch

from skbayes_sym.models.networks.residual import resnet
from skbayes_sym.numerics.random import generator_from


def test_fixup_starts_as_the_identity_of_its_stages():
    network = resnet((1, 8, 8), 2)
    theta = network.init(1, generator=generator_from(0))[0]
    params = network.layout.unflatten(theta)
    assert torch.count_nonzero(params["blocks.0.conv2.weight"]) == 0
    assert float(params["blocks.0.multiplier.value"]) == 1.0
    fan_in = 9 * 8
    sd = float(params["blocks.0.conv1.weight"].std())
    expected = (2 / fan_in) ** 0.5 / 3**0.5
    n = params["blocks.0.conv1.weight"].numel()
    assert abs(sd - expected) < 5 * expected / (2 * n) ** 0.5
    assert torch.count_nonzero(network.forward(theta, torch.ones(1, 1, 8, 8).double())) == 0
