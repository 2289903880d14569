"""Residual networks are the paper's, and start as Zhang et al. (2019) have it."""

import pytest
import torch

from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.numerics.random import generator_from

# Weights and biases of layers, counted by hand from the papers' tables: 3 x 3 convolutions of
# 3 to w, w to w (2), w to 2w, 2w to 2w, 2w to 4w, 4w to 4w channels, and the classifier.
RESNET = {w: 9 * (3 * w + 2 * w**2 + 2 * w**2 + 4 * w**2 + 8 * w**2 + 16 * w**2) for w in (8, 16)}
# 3 to 16, then two blocks a stage of 64, 128 and 256 channels, with shortcuts of 1 x 1.
WIDE = 9 * (3 * 16 + 16 * 64 + 3 * 64**2 + 64 * 128 + 3 * 128**2 + 128 * 256 + 3 * 256**2) + (
    16 * 64 + 64 * 128 + 128 * 256
)
# Blocks, layers on the way from image to class, weights and biases.
SIZES = {
    "resnet-8-8": (3, 8, RESNET[8] + 32 * 10 + 10),
    "resnet-8-16": (3, 8, RESNET[16] + 64 * 10 + 10),
    "wrn-16-4": (6, 14, WIDE + 256 * 10 + 10),  # 16 = 6 x 2 + 4 counts the 3 shortcuts too
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_papers(name):
    network = ARCHITECTURES[name]((3, 32, 32), 10)
    n_blocks, n_layers, total = SIZES[name]
    shapes = network.layout.shapes
    assert network.layout.n_params == total + 2 + 5 * n_blocks  # Fixup's scalars
    assert network.architecture == name
    assert sum(len(shape) == 0 for shape in shapes.values()) == 2 + 5 * n_blocks
    depth = sum(len(shape) > 1 and shape[2:] != (1, 1) for shape in shapes.values())
    assert depth == n_layers


@pytest.mark.parametrize("name", SIZES)
def test_fixup_starts_as_the_identity_of_its_stages(name):
    network = ARCHITECTURES[name]((3, 8, 8), 2)
    theta = network.init(1, generator=generator_from(0))[0]
    params = network.layout.unflatten(theta)
    n_blocks = SIZES[name][0]
    for i in range(n_blocks):
        assert torch.count_nonzero(params[f"blocks.{i}.conv2.weight"]) == 0
        assert float(params[f"blocks.{i}.multiplier.value"]) == 1.0
        assert float(params[f"blocks.{i}.biases.0.value"]) == 0.0
    first = params["blocks.0.conv1.weight"]
    expected = (2 / first[0].numel()) ** 0.5 / n_blocks**0.5
    # Of n normal draws the standard deviation is known to 1 / sqrt(2 n).
    assert float(first.std()) == pytest.approx(expected, rel=5 / (2 * first.numel()) ** 0.5)
    x = torch.randn(2, 3, 8, 8, generator=generator_from(1)).double()
    assert torch.count_nonzero(network.forward(theta, x)) == 0
    # A first step of the classifier makes it one of the features, which are there.
    params["head.weight"].copy_(torch.ones(()))
    assert torch.count_nonzero(network.forward(theta, x)) == 4
