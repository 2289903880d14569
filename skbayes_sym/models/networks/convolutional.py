"""Convolutional networks, and the residual networks of Immer et al. 2022.

The residual networks (appendix I.2) use Fixup instead of batch norm (Zhang, Dauphin & Ma 2019,
section 3). Weights are initialised as in He et al. (2015). In a residual branch of m = 2
convolutions, the first ones are scaled by :math:`L^{-1/(2m - 2)}`, where L is the number of
branches, and the last one starts at 0, as does the classifier. A scalar bias, initially 0, precedes
every convolution, activation and the classifier, and every branch has a scalar multiplier,
initially 1. The scalars are point estimates that aren't integrated out.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skbayes_sym.models.networks.modules import ModuleNetwork


def cnn(image_shape: tuple[int, int, int], n_outputs: int) -> ModuleNetwork:
    """Return a network of three 3 x 3 convolutions (16, 32, 64 channels) and 256 hidden units.

    Each convolution halves the image. This is the network of the paper with ReLUs. Average pooling
    keeps the averaged network smooth.

    Parameters
    ----------
    image_shape : (int, int, int)
        Channels, height and width.
    n_outputs : int
        Number of outputs.
    """
    channels, height, width = image_shape
    layers: list[nn.Module] = []
    with torch.device("meta"):  # no storage, and no draw from the global random state
        for out in (16, 32, 64):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            if min(height, width) >= 2:
                layers.append(nn.AvgPool2d(2))
                height = height // 2
                width = width // 2
            channels = out
        layers += [nn.Flatten(), nn.Linear(channels * height * width, 256), nn.ReLU()]
        module = nn.Sequential(*layers, nn.Linear(256, n_outputs))
    initial = {n: (0.0, s) for n, s in he_scales(module).items()}
    return ModuleNetwork(module, image_shape, initial, "cnn")


def he_scales(module: nn.Module) -> dict[str, float]:
    """Return standard deviations sqrt(2 / fan-in) of weights (He et al. 2015), and 0 otherwise."""
    return {
        n: (2.0 / p[0].numel()) ** 0.5 if p.ndim > 1 else 0.0 for n, p in module.named_parameters()
    }


def resnet(image_shape: tuple[int, int, int], n_outputs: int, width: int = 8) -> ModuleNetwork:
    """Return ResNet (8-width): eight layers in three stages of one block each.

    The stages have 1, 2 and 4 times the width. Between stages, the shortcut takes every second
    pixel and pads the channels with zeros.

    Parameters
    ----------
    image_shape : (int, int, int)
        Channels, height and width.
    n_outputs : int
        Number of outputs.
    width : int, default=8
        Channels of the first stage.
    """
    widths = [width, 2 * width, 4 * width]
    with torch.device("meta"):  # no storage, and no draw from the global random state
        stem = nn.Conv2d(image_shape[0], width, 3, padding=1, bias=False)
        pairs = pairwise([width, *widths])
        blocks = [_PlainBlock(a, b, 1 + (i > 0)) for i, (a, b) in enumerate(pairs)]
        module = _ResNet(stem, blocks, nn.Linear(widths[-1], n_outputs))
    return _with_fixup(module, image_shape, f"resnet-8-{width}")


def wide_resnet(
    image_shape: tuple[int, int, int], n_outputs: int, depth: int = 16, widening: int = 4
) -> ModuleNetwork:
    """Return a wide ResNet (Zagoruyko & Komodakis 2016), with activations before convolutions.

    The three stages have ``(depth - 4) / 6`` blocks of 16, 32 and 64 times ``widening`` channels.
    The shortcut is a 1 x 1 convolution if the number of channels changes. The default has 2.7
    million weights.

    Parameters
    ----------
    image_shape : (int, int, int)
        Channels, height and width.
    n_outputs : int
        Number of outputs.
    depth : int, default=16
        Number of layers.
    widening : int, default=4
        Factor of the number of channels.
    """
    n_blocks = (depth - 4) // 6
    widths = [16 * widening, 32 * widening, 64 * widening]
    with torch.device("meta"):
        stem = nn.Conv2d(image_shape[0], 16, 3, padding=1, bias=False)
        blocks = []
        n_in = 16
        for stage, width in enumerate(widths):
            for i in range(n_blocks):
                blocks.append(_WideBlock(n_in, width, 2 if stage and not i else 1))
                n_in = width
        module = _WideResNet(stem, blocks, nn.Linear(n_in, n_outputs))
    return _with_fixup(module, image_shape, f"wrn-{depth}-{widening}")


def _with_fixup(module: "_Stages", image_shape: tuple[int, int, int], name: str) -> ModuleNetwork:
    """Return the network with Fixup initialisation."""
    scale = he_scales(module)
    for parameter in scale:
        if parameter.endswith("conv1.weight"):
            scale[parameter] *= len(module.blocks) ** -0.5
        if parameter.endswith("conv2.weight") or parameter.startswith("head."):
            scale[parameter] = 0.0
    initial = {n: (float(n.endswith("multiplier.value")), s) for n, s in scale.items()}
    return ModuleNetwork(module, image_shape, initial, name)


class _Scalar(nn.Module):
    """Learned scalar that is added to the input, initially 0, or multiplies it, initially 1."""

    def __init__(self, *, multiplies: bool = False) -> None:
        super().__init__()
        self.multiplies = multiplies
        self.value = nn.Parameter(torch.full((), float(multiplies), dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        if self.multiplies:
            return x * self.value
        return x + self.value


class _Branch(nn.Module):
    """Residual branch: two convolutions, scalar biases and a multiplier."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.biases = nn.ModuleList([_Scalar() for _ in range(4)])
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.multiplier = _Scalar(multiplies=True)


class _PlainBlock(_Branch):
    """``relu(x + multiplier * conv(relu(conv(x))))`` with scalar biases; initially ``relu(x)``."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__(n_in, n_out, stride)
        self.stride = stride
        self.extra = n_out - n_in

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        out = F.relu(self.biases[1](self.conv1(self.biases[0](x))))
        out = self.biases[3](self.multiplier(self.conv2(self.biases[2](out))))
        if self.stride > 1:
            x = F.avg_pool2d(x, 1, self.stride)
        return F.relu(out + F.pad(x, (0, 0, 0, 0, 0, self.extra)))


class _WideBlock(_Branch):
    """``x + multiplier * conv(relu(conv(relu(x))))`` with scalar biases; initially ``x``."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__(n_in, n_out, stride)
        self.shortcut = (
            nn.Identity() if n_in == n_out else nn.Conv2d(n_in, n_out, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        active = F.relu(self.biases[0](x))
        out = self.biases[2](F.relu(self.biases[1](self.conv1(active))))
        out = self.biases[3](self.multiplier(self.conv2(out)))
        if isinstance(self.shortcut, nn.Identity):
            residual = x
        else:
            residual = self.shortcut(active)
        return residual + out


class _Stages(nn.Module):
    """A convolution, residual blocks, the mean over pixels, and a linear layer."""

    def __init__(self, stem: nn.Conv2d, blocks: Sequence[_Branch], head: nn.Linear) -> None:
        super().__init__()
        self.conv = stem
        self.bias = _Scalar()
        self.blocks = nn.ModuleList(blocks)
        self.head_bias = _Scalar()
        self.head = head


class _ResNet(_Stages):
    """Residual network with activations after the sums."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        h = F.relu(self.bias(self.conv(x)))
        for block in self.blocks:
            h = block(h)
        return self.head(self.head_bias(h.mean((2, 3))))


class _WideResNet(_Stages):
    """Residual network with activations before the convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        h = self.bias(self.conv(x))
        for block in self.blocks:
            h = block(h)
        return self.head(self.head_bias(F.relu(h).mean((2, 3))))


# Networks by the names of the paper.
ARCHITECTURES: dict[str, Callable[[tuple[int, int, int], int], ModuleNetwork]] = {
    "cnn": cnn,
    "resnet": resnet,
    "resnet-8-8": resnet,
    "resnet-8-16": partial(resnet, width=16),
    "wrn-16-4": wide_resnet,
}
