"""The residual networks of Immer et al. 2022, appendix I.2, with Fixup in place of batch norm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skbayes_sym.models.networks.convolutional import cnn, he_scales
from skbayes_sym.models.networks.modules import FreeScalar, ModuleNetwork

RESNET_WIDTH, RESNET_STAGES = 8, 3


def resnet(image_shape: tuple[int, int, int], n_outputs: int) -> ModuleNetwork:
    """ResNet (8-8) with Fixup initialisation (Zhang et al. 2019) in place of batch norm.

    Three stages of one residual block, of 8, 16 and 32 channels. The scalar biases and multipliers
    of Fixup are fitted, not integrated out.
    """
    with torch.device("meta"):
        module = _FixupResNet(image_shape, n_outputs)
    scale = he_scales(module)
    for name in scale:  # Fixup's rules, for residual branches of two layers
        if name.endswith("conv1.weight"):
            scale[name] *= RESNET_STAGES**-0.5
        if name.endswith("conv2.weight") or name.startswith("head."):
            scale[name] = 0.0
    is_one = {n: n.endswith("multiplier.value") for n in scale}
    initial = {n: (float(is_one[n]), s) for n, s in scale.items()}
    return ModuleNetwork(module, image_shape, initial, "resnet")


class _Bias(FreeScalar):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.value


class _Multiplier(FreeScalar):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value


class _FixupBlock(nn.Module):
    """x + multiplier * conv(relu(conv(x))), with scalar biases; zero at the start."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.biases = nn.ModuleList([_Bias() for _ in range(4)])
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.multiplier = _Multiplier()
        self.stride, self.extra = stride, n_out - n_in

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.biases[1](self.conv1(self.biases[0](x))))
        out = self.biases[3](self.multiplier(self.conv2(self.biases[2](out))))
        if self.stride > 1:
            x = F.avg_pool2d(x, 1, self.stride)
        return F.relu(out + F.pad(x, (0, 0, 0, 0, 0, self.extra)))


class _FixupResNet(nn.Module):
    def __init__(self, image_shape: tuple[int, int, int], n_outputs: int) -> None:
        super().__init__()
        widths = [RESNET_WIDTH * 2**i for i in range(RESNET_STAGES)]
        self.conv = nn.Conv2d(image_shape[0], widths[0], 3, padding=1, bias=False)
        self.bias = _Bias()
        pairs = list(zip([widths[0], *widths], widths, strict=False))
        self.blocks = nn.ModuleList(
            [_FixupBlock(a, b, 1 + (i > 0)) for i, (a, b) in enumerate(pairs)]
        )
        self.head_bias = _Bias()
        self.head = nn.Linear(widths[-1], n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bias(self.conv(x)))
        for block in self.blocks:
            h = block(h)
        return self.head(self.head_bias(h.mean((2, 3))))


ARCHITECTURES = {"cnn": cnn, "resnet": resnet}
