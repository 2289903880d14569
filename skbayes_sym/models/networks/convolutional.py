"""The convolutional network of Immer et al. 2022, appendix I.2."""

import torch
from torch import nn

from skbayes_sym.models.networks.modules import ModuleNetwork

CNN_CHANNELS, CNN_HIDDEN = (16, 32, 64), 256


def cnn(image_shape: tuple[int, int, int], n_outputs: int) -> ModuleNetwork:
    """Three 3 x 3 convolutions (16, 32, 64 channels), each halving the image, and 256 units.

    The paper's network with ReLUs; pooling is by averages, which keeps the averaged network smooth.
    """
    channels, height, width = image_shape
    layers: list[nn.Module] = []
    with torch.device("meta"):  # no storage, and no draw from the global random state
        for out in CNN_CHANNELS:
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            if min(height, width) >= 2:
                layers.append(nn.AvgPool2d(2))
                height, width = height // 2, width // 2
            channels = out
        layers += [nn.Flatten(), nn.Linear(channels * height * width, CNN_HIDDEN), nn.ReLU()]
        module = nn.Sequential(*layers, nn.Linear(CNN_HIDDEN, n_outputs))
    initial = {n: (0.0, s) for n, s in he_scales(module).items()}
    return ModuleNetwork(module, image_shape, initial, "cnn")


def he_scales(module: nn.Module) -> dict[str, float]:
    """Standard deviations sqrt(2 / fan-in) of weights (He et al. 2015), 0 of everything else."""
    return {
        n: (2.0 / p[0].numel()) ** 0.5 if p.ndim > 1 else 0.0 for n, p in module.named_parameters()
    }
