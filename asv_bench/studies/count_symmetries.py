"""Order of the groups that `symmetry_of` finds for architectures in common use, and by hand.

    python asv_bench/studies/count_symmetries.py [--rst]

All architectures are written here, with small widths. For each one the script prints the log order
of the group (nats), the one counted by hand, the largest relative change of an output in float64
under five random elements at random weights, what was refused, and the reason for a difference.
``--rst`` prints the table of the documentation.
"""

import argparse
import time
from collections.abc import Callable
from math import lgamma, log
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skbayes_sym.symmetry import symmetry_of
from skbayes_sym.symmetry.modules.numerical_check import largest_output_change


def units(n: int, n_signs: int = 0) -> float:
    """Log order of the exchanges of n units, each with that many signs."""
    return lgamma(n + 1) + n * n_signs * log(2.0)


# One sign of all units before a norm that divides by their standard deviation.
OVERALL = log(2.0)


class Architecture(NamedTuple):
    """A module with the log order of its group.

    Attributes
    ----------
    make : callable
        Returns the module.
    inputs : Tensor or tuple of Tensor
        Arguments of one call.
    log_order : float
        Log order counted by hand, nats.
    reason : str
        Why less is found; empty if all is found.
    """

    make: Callable[[], nn.Module]
    inputs: Tensor | tuple[Tensor, ...]
    log_order: float
    reason: str = ""


def conv_norm(
    n_in: int, n_out: int, kernel: int = 1, groups: int = 1, stride: int = 1
) -> nn.Module:
    """Return a convolution with a batch norm."""
    padding = kernel // 2
    convolution = nn.Conv2d(n_in, n_out, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(n_out))


class Head(nn.Module):
    """Average over space and a linear layer."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.out = nn.Linear(n_channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.mean((2, 3)))


class Branches(nn.Module):
    """Concatenates the outputs of branches."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Add(nn.Module):
    """Adds branches, and applies an activation."""

    def __init__(self, *branches: nn.Module, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.activation = activation or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(sum(branch(x) for branch in self.branches))


class SqueezeExcite(nn.Module):
    """Multiplies channels by gates that depend on their means."""

    def __init__(self, n: int, hidden: int, inner: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.gates = nn.Sequential(nn.Conv2d(n, hidden, 1), inner, nn.Conv2d(hidden, n, 1), gate)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gates(x.mean((2, 3), keepdim=True))


def basic_block(n_in: int, n_out: int, stride: int) -> nn.Module:
    """Return a block of ResNet-18."""
    branch = nn.Sequential(
        conv_norm(n_in, n_out, 3, stride=stride), nn.ReLU(), conv_norm(n_out, n_out, 3)
    )
    shortcut = conv_norm(n_in, n_out, stride=stride) if stride > 1 else nn.Identity()
    return Add(branch, shortcut, activation=nn.ReLU())


def resnet() -> nn.Module:
    """Return a residual network of two stages of two blocks."""
    return nn.Sequential(
        conv_norm(3, 4, 3), nn.ReLU(), basic_block(4, 4, 1), basic_block(4, 4, 1),
        basic_block(4, 8, 2), basic_block(8, 8, 1), Head(8),
    )  # fmt: skip


def bottleneck(groups: int = 1) -> nn.Module:
    """Return a network with one bottleneck block of ResNet-50, or of ResNeXt."""
    branch = nn.Sequential(
        conv_norm(4, 6), nn.ReLU(), conv_norm(6, 6, 3, groups), nn.ReLU(), conv_norm(6, 8)
    )
    return nn.Sequential(
        conv_norm(3, 4, 3), nn.ReLU(), Add(branch, conv_norm(4, 8), activation=nn.ReLU()), Head(8)
    )


class PreActivation(nn.Module):
    """Wide ResNet: a block whose norms precede its convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.branch = nn.Sequential(
            nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1, bias=False),
        )  # fmt: skip
        self.last = nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(), Head(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.last(x + self.branch(x))


def inverted_residual(activation: type[nn.Module], gates: nn.Module | None = None) -> nn.Module:
    """Return a network with one block of MobileNet or EfficientNet."""
    branch = nn.Sequential(
        conv_norm(4, 8), activation(), conv_norm(8, 8, 3, groups=8), activation(),
        gates or nn.Identity(), conv_norm(8, 4),
    )  # fmt: skip
    return nn.Sequential(
        conv_norm(3, 4, 3), activation(), Add(branch, nn.Identity()), conv_norm(4, 6), activation(),
        Head(6),
    )  # fmt: skip


class ShuffleNet(nn.Module):
    """One unit of version 2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.branch = nn.Sequential(
            conv_norm(4, 4), nn.ReLU(), conv_norm(4, 4, 3, groups=4), conv_norm(4, 4), nn.ReLU()
        )
        self.head = Head(8)

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = F.relu(self.stem(x)).chunk(2, 1)
        return self.head(F.channel_shuffle(torch.cat([kept, self.branch(changed)], 1), 2))


class DenseNet(nn.Module):
    """Two layers that see all channels before them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(6), nn.BatchNorm2d(10), nn.BatchNorm2d(14)])
        self.layers = nn.ModuleList([nn.Conv2d(n, 4, 3, padding=1, bias=False) for n in (6, 10)])
        self.head = Head(14)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = torch.cat([x, layer(F.relu(norm(x)))], 1)
        return self.head(F.relu(self.norms[-1](x)))


def vgg(*, norm: bool) -> nn.Module:
    """Return convolutions, pooling and two linear layers."""
    kernels = [(3, 6), (6, 8)]
    layers: list[nn.Module] = []
    for n_in, n_out in kernels:
        layers += [conv_norm(n_in, n_out, 3) if norm else nn.Conv2d(n_in, n_out, 3, padding=1)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, 3))


def squeezenet() -> nn.Module:
    """Return a fire module."""
    expand = Branches(
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()),
    )
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 1), nn.ReLU(), expand, nn.Conv2d(9, 3, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def inception() -> nn.Module:
    """Return the branches of a module of GoogLeNet."""
    return nn.Sequential(
        conv_norm(3, 4, 3), nn.ReLU(),
        Branches(
            nn.Sequential(conv_norm(4, 5), nn.ReLU()),
            nn.Sequential(conv_norm(4, 3), nn.ReLU(), conv_norm(3, 6, 3), nn.ReLU()),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(4, 2), nn.ReLU()),
        ),
        Head(13),
    )  # fmt: skip


class ConvNeXt(nn.Module):
    """One block, and the norm before the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, 2)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.LayerNorm(6)
        self.hidden = nn.Linear(6, 12)
        self.back = nn.Linear(12, 6)
        self.scale = nn.Parameter(torch.full((6,), 0.5))
        self.last = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.scale * self.back(F.gelu(self.hidden(h)))
        return self.head(self.last((x + h.permute(0, 3, 1, 2)).mean((2, 3))))


class ViT(nn.Module):
    """Patches, a class token, positions and one block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 5, 8))
        self.block = nn.TransformerEncoderLayer(
            8, 2, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.norm(self.block(x))[:, 0])


class WindowBlock(nn.Module):
    """Block of Swin: attention in windows of 2 x 2, with relative positions and a shift."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.first = nn.LayerNorm(8)
        self.second = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.project = nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(9, 2))
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        place = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij"))
        distance = place.flatten(1)[:, :, None] - place.flatten(1)[:, None] + 1
        self.register_buffer("relative", 3 * distance[0] + distance[1])

    def forward(self, x: Tensor) -> Tensor:
        n, height, width, d = x.shape
        h = torch.roll(self.first(x), (-self.shift, -self.shift), (1, 2))
        h = h.view(n, height // 2, 2, width // 2, 2, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, d)
        q, k, v = self.qkv(h).reshape(-1, 4, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        bias = self.table[self.relative.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        weights = torch.softmax(q @ k.mT * (d // 2) ** -0.5 + bias, -1)
        h = self.project((weights @ v).transpose(1, 2).reshape(-1, 4, d))
        h = h.view(n, height // 2, width // 2, 2, 2, d).permute(0, 1, 3, 2, 4, 5)
        x = x + torch.roll(h.reshape(n, height, width, d), (self.shift, self.shift), (1, 2))
        return x + self.mlp(self.second(x))


class Swin(nn.Module):
    """Two blocks, and the merging of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, 2)
        self.blocks = nn.Sequential(WindowBlock(0), WindowBlock(1))
        self.merged = nn.LayerNorm(32)
        self.reduce = nn.Linear(32, 16, bias=False)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patches(x).permute(0, 2, 3, 1))
        corners = [x[:, i::2, j::2] for i, j in ((0, 0), (1, 0), (0, 1), (1, 1))]
        x = self.reduce(self.merged(torch.cat(corners, -1)))
        return self.head(self.norm(x).mean((1, 2)))


class MLPMixer(nn.Module):
    """One block on four patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 4, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(6) for _ in range(3)])
        self.tokens = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4))
        self.channels = nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = x + self.tokens(self.norms[0](x).mT).mT
        x = x + self.channels(self.norms[1](x))
        return self.head(self.norms[2](x).mean(1))


class Translator(nn.Module):
    """GRU encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(9, 5)
        self.target = nn.Embedding(9, 5)
        self.encoder = nn.GRU(5, 6, batch_first=True)
        self.decoder = nn.GRU(5, 6, batch_first=True)
        self.out = nn.Linear(6, 9)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.encoder(self.source(source))
        return self.out(self.decoder(self.target(target), state)[0])


class Tagger(nn.Module):
    """LSTM on packed sequences, in one or both directions."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 5)
        self.layer = nn.LSTM(5, 6, batch_first=True, bidirectional=both)
        self.out = nn.Linear(12 if both else 6, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.table(tokens), lengths, batch_first=True)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.out(states)


class Bert(nn.Module):
    """One block of an encoder, with norms behind its branches."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.place = nn.Parameter(torch.randn(4, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 12, 0.0, F.gelu, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.block(self.table(tokens) + self.place)[:, 0])


class GPT(nn.Module):
    """One causal block; the table of tokens is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.place = nn.Parameter(torch.randn(4, 8))
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(3)])
        self.qkv = nn.Linear(8, 24)
        self.project = nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.place
        n, t, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).split(8, -1)
        q, k, v = (part.view(n, t, 2, 4).transpose(1, 2) for part in (q, k, v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(h.transpose(1, 2).reshape(n, t, d))
        x = x + self.mlp(self.norms[1](x))
        return F.linear(self.norms[2](x), self.table.weight)


class Llama(nn.Module):
    """RMS norms, rotary positions, four heads that share two keys and values, and gated units."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.norms = nn.ModuleList([nn.RMSNorm(8) for _ in range(3)])
        self.q = nn.Linear(8, 16, bias=False)
        self.k = nn.Linear(8, 8, bias=False)
        self.v = nn.Linear(8, 8, bias=False)
        self.o = nn.Linear(16, 8, bias=False)
        self.gate = nn.Linear(8, 12, bias=False)
        self.up = nn.Linear(8, 12, bias=False)
        self.down = nn.Linear(12, 8, bias=False)
        self.head = nn.Linear(8, 9, bias=False)
        angle = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1])
        angle = torch.cat([angle, angle], 1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs of dimensions by angles that depend on the position."""
        first, second = x[..., :2], x[..., 2:]
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        n, t, _ = x.shape
        h = self.norms[0](x)
        q = self.rotate(self.q(h).view(n, t, 4, 4).transpose(1, 2))
        k = self.rotate(self.k(h).view(n, t, 2, 4).transpose(1, 2)).repeat_interleave(2, 1)
        v = self.v(h).view(n, t, 2, 4).transpose(1, 2).repeat_interleave(2, 1)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).reshape(n, t, 16))
        h = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return self.head(self.norms[2](x))


class MixtureOfExperts(nn.Module):
    """Three experts of one tensor, or of separate modules."""

    def __init__(self, *, separate: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.separate = separate
        if separate:
            self.experts = nn.ModuleList(
                [nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2)) for _ in range(3)]
            )
        else:
            self.first = nn.Parameter(torch.randn(3, 4, 5))
            self.second = nn.Parameter(torch.randn(3, 5, 2))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.gate(x), -1)
        if self.separate:
            outputs = torch.stack([expert(x) for expert in self.experts], 1)
        else:
            hidden = F.gelu(torch.einsum("nd,edh->neh", x, self.first))
            outputs = torch.einsum("neh,eho->neo", hidden, self.second)
        return (weights[..., None] * outputs).sum(1)


class GraphConvolution(nn.Module):
    """Two layers that add the messages of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.second = nn.Linear(8, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            message = layer(x)[source]
            total = torch.zeros(len(x), message.shape[1]).to(message)
            x = F.relu(total.index_add(0, target, message))
        return self.out(x)


class GraphAttention(nn.Module):
    """Two heads, whose weights are a softmax over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3, 8)
        self.source = nn.Parameter(torch.randn(2, 4))
        self.target = nn.Parameter(torch.randn(2, 4))
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.project(x).view(-1, 2, 4)
        score = (h * self.source).sum(-1)[source] + (h * self.target).sum(-1)[target]
        weight = F.leaky_relu(score, 0.2).exp()
        place = target[:, None].expand(-1, 2)
        total = torch.zeros(len(x), 2).to(x).scatter_add(0, place, weight)
        message = h[source] * (weight / total[target])[..., None]
        result = torch.zeros(len(x), 2, 4).to(x).index_add(0, target, message)
        return self.out(F.elu(result).flatten(1))


class UNet(nn.Module):
    """One level, with concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, padding=1)
        self.inner = nn.Conv2d(6, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 5, 2, 2)
        self.join = nn.Conv2d(11, 7, 3, padding=1)
        self.out = nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down(x))
        b = self.up(F.relu(self.inner(F.max_pool2d(a, 2))))
        return self.out(F.relu(self.join(torch.cat([a, b], 1))))


class TiedAutoencoder(nn.Module):
    """The decoder has the transposed weights of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 8)
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encode(x)), self.encode.weight.T, self.bias)


class StyleNetwork(nn.Module):
    """Reflected padding, instance norms, a residual block and upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = self.layer(3, 6)
        self.first = self.layer(6, 6)
        self.second = self.layer(6, 6)
        self.up = self.layer(6, 4)
        self.out = nn.Conv2d(4, 3, 1)

    @staticmethod
    def layer(n_in: int, n_out: int) -> nn.Module:
        """Return a convolution with an instance norm."""
        convolution = nn.Conv2d(n_in, n_out, 3, padding=1, padding_mode="reflect", bias=False)
        return nn.Sequential(convolution, nn.InstanceNorm2d(n_out, affine=True))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.second(F.relu(self.first(x)))
        return self.out(F.relu(self.up(F.interpolate(x, scale_factor=2))))


class RadialBasis(nn.Module):
    """Distances to five centres."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(5, 3))
        self.out = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.exp(-torch.cdist(x, self.centres).square()))


class Recommender(nn.Module):
    """Bags of embeddings, whose inner products a small network takes."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(7, 5, mode="mean")
        self.items = nn.EmbeddingBag(7, 5, mode="mean")
        self.numbers = nn.Linear(3, 5)
        self.top = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, x: Tensor, users: Tensor, items: Tensor) -> Tensor:
        features = torch.stack([self.numbers(x), self.users(users), self.items(items)], 1)
        products = features @ features.mT
        row, column = torch.triu_indices(3, 3, 1)
        return self.top(products[:, row, column])


class WaveNet(nn.Module):
    """Gated causal convolutions with a residual and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 6, 1)
        self.filter = nn.Conv1d(6, 5, 2)
        self.gate = nn.Conv1d(6, 5, 2)
        self.residual = nn.Conv1d(5, 6, 1)
        self.out = nn.Conv1d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        padded = F.pad(x, (1, 0))
        h = torch.tanh(self.filter(padded)) * torch.sigmoid(self.gate(padded))
        return self.out(F.relu(x + self.residual(h)))


class Sines(nn.Module):
    """SIREN."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(30.0 * layer(x))
        return self.layers[-1](x)


def mlp(activation: nn.Module) -> nn.Module:
    """Return a network of two hidden layers of eight units."""
    return nn.Sequential(nn.Linear(3, 8), activation, nn.Linear(8, 8), activation, nn.Linear(8, 2))


IMAGES = torch.randn(2, 3, 8, 8)
ROWS = torch.randn(5, 3)
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
LENGTHS = torch.tensor([4, 2])
EDGES = (torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 2, 3, 4, 0, 2]))
BAGS = (ROWS[:2], TOKENS[:, :2] % 7, TOKENS[:, 2:] % 7)

# Queries and keys of a head move together, and values and what takes them; both are linear.
HEADS = units(2) + 2 * 2 * units(4, 1)

ARCHITECTURES = {
    "MLP, tanh": Architecture(lambda: mlp(nn.Tanh()), ROWS, 2 * units(8, 1)),
    "MLP, ReLU": Architecture(lambda: mlp(nn.ReLU()), ROWS, 2 * units(8)),
    "SIREN": Architecture(Sines, ROWS, 2 * units(8, 1)),
    "radial basis functions": Architecture(RadialBasis, ROWS, units(5)),
    "tied autoencoder": Architecture(TiedAutoencoder, ROWS, units(8, 1)),
    "VGG": Architecture(lambda: vgg(norm=False), IMAGES, units(6) + units(8) + units(10)),
    "VGG, batch norm": Architecture(
        lambda: vgg(norm=True), IMAGES, units(6, 1) + units(8, 1) + units(10)
    ),
    # A sign for each norm that ends on the residual stream.
    "ResNet": Architecture(
        resnet, IMAGES, units(4, 3) + 2 * units(4, 1) + units(8, 3) + 2 * units(8, 1)
    ),
    "ResNet, bottleneck": Architecture(
        bottleneck, IMAGES, units(4, 1) + 2 * units(6, 1) + units(8, 2)
    ),
    "ResNeXt": Architecture(
        lambda: bottleneck(2), IMAGES, units(4, 1) + units(2) + 4 * units(3, 1) + units(8, 2)
    ),
    # Behind the stream, a sign of each channel that all its norms undo.
    "Wide ResNet": Architecture(PreActivation, IMAGES, units(6, 1) + units(6, 1)),
    "MobileNetV2": Architecture(
        lambda: inverted_residual(nn.ReLU6), IMAGES, units(4, 2) + units(8, 2) + units(6, 1)
    ),
    "MobileNetV3": Architecture(
        lambda: inverted_residual(
            nn.Hardswish, SqueezeExcite(8, 3, nn.ReLU(), nn.Hardsigmoid())
        ),
        IMAGES, units(4, 2) + units(8, 2) + units(3) + units(6, 1),
    ),
    "EfficientNet": Architecture(
        lambda: inverted_residual(nn.SiLU, SqueezeExcite(8, 3, nn.SiLU(), nn.Sigmoid())),
        IMAGES, units(4, 2) + units(8, 2) + units(3) + units(6, 1),
    ),
    "ShuffleNetV2": Architecture(ShuffleNet, IMAGES, 2 * units(4) + units(4, 3) + units(4, 1)),
    "DenseNet": Architecture(DenseNet, IMAGES, units(6, 1) + 2 * units(4, 1)),
    "SqueezeNet": Architecture(squeezenet, IMAGES, units(6) + units(3) + units(4) + units(5)),
    "GoogLeNet": Architecture(
        inception, IMAGES, units(4, 1) + units(5, 1) + units(3, 1) + units(6, 1) + units(2, 1)
    ),
    "U-Net": Architecture(UNet, IMAGES, units(6) + units(8) + units(5, 1) + units(7)),
    "style network": Architecture(
        StyleNetwork, IMAGES, units(6, 2) + units(6, 1) + units(4, 1)
    ),
    "ConvNeXt": Architecture(ConvNeXt, IMAGES, units(6, 3) + units(12) + 2 * OVERALL),
    "ViT": Architecture(ViT, IMAGES, units(8, 3) + HEADS + units(12) + OVERALL),
    "Swin": Architecture(
        Swin, IMAGES, units(8, 8) + 2 * (HEADS + units(12)) + units(16, 1) + 2 * OVERALL
    ),
    # A sign of the first norm, too, because the layer behind it is the same for all channels.
    "MLP-Mixer": Architecture(
        MLPMixer, IMAGES, units(6, 2) + units(5) + units(7) + 2 * OVERALL
    ),
    "GRU, encoder and decoder": Architecture(
        Translator, (TOKENS, TOKENS), 2 * units(5, 1) + units(6, 1)
    ),
    "LSTM, packed": Architecture(
        lambda: Tagger(both=False), (TOKENS, LENGTHS), units(5, 1) + units(6, 1)
    ),
    "LSTM, both directions": Architecture(
        lambda: Tagger(both=True), (TOKENS, LENGTHS), units(5, 1) + 2 * units(6, 1)
    ),
    "WaveNet": Architecture(WaveNet, torch.randn(2, 2, 6), units(6) + units(5, 1)),
    "BERT": Architecture(Bert, TOKENS, units(8, 1) + HEADS + units(12) + 2 * OVERALL),
    "GPT": Architecture(GPT, TOKENS, units(8, 2) + HEADS + units(12) + OVERALL),
    # Rotations leave a sign of each pair of dimensions of both keys, which two queries share.
    "Llama": Architecture(
        Llama, torch.tensor([[1, 2, 3, 4, 5]]),
        units(8, 4) + units(2) + 2 * (units(2) + 2 * log(2.0) + units(4, 1)) + units(12, 1),
    ),
    "experts in one tensor": Architecture(
        lambda: MixtureOfExperts(separate=False), torch.randn(5, 4), units(3) + 3 * units(5)
    ),
    "experts as modules": Architecture(
        lambda: MixtureOfExperts(separate=True), torch.randn(5, 4), units(3) + 3 * units(5)
    ),
    "graph convolution": Architecture(
        GraphConvolution, (ROWS, *EDGES), units(8) + units(6)
    ),
    "graph attention": Architecture(GraphAttention, (ROWS, *EDGES), units(2) + 2 * units(4)),
    "recommender": Architecture(Recommender, BAGS, units(5, 1) + units(6)),
}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rst", action="store_true")
    rst = parser.parse_args().rst
    for name, architecture in ARCHITECTURES.items():
        torch.manual_seed(0)
        module = architecture.make()
        inputs = architecture.inputs
        start = time.process_time()
        group = symmetry_of(module, inputs)
        seconds = time.process_time() - start
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        change = largest_output_change(module, group.layout, arguments, group, n=5)
        reason = architecture.reason
        if not reason and abs(group.log_order - architecture.log_order) > 1e-6:
            reason = "unexplained"
        if rst:
            rows = [name, f"{group.log_order:.1f}", f"{architecture.log_order:.1f}", reason or "\\"]
            print("   * - " + "\n     - ".join(rows))
            continue
        print(
            f"{name:26} found {group.log_order:7.2f}  by hand {architecture.log_order:7.2f}  "
            f"change {change:.0e}  {seconds:4.1f} s  {reason} {', '.join(group.refused)}"
        )


if __name__ == "__main__":
    main()
