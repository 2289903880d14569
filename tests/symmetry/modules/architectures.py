"""Modules of many kinds, each with the order of its group counted by hand."""

from collections.abc import Callable
from math import lgamma, log
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    x: Any
    log_order: float


class Residual(nn.Module):
    """A block with batch norms, or without and with scalars as Fixup has them."""

    def __init__(self, c, norm=True, depth=2):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, c, 3, padding=1), norm
        kernel = {"kernel_size": 3, "padding": 1, "bias": not norm}
        self.convs = nn.ModuleList([nn.Conv2d(c, c, **kernel) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(c) if norm else nn.Identity()] * depth)
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(c) if norm else nn.Identity() for _ in range(depth)]
        )
        if not norm:
            self.biases, self.scale = (
                nn.Parameter(torch.zeros(2 * depth)),
                nn.Parameter(torch.ones(())),
            )
        self.head = nn.Linear(c, 5)

    def forward(self, x):
        x = h = F.relu(self.stem(x))
        for k, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = norm(conv(h if self.norm else h + self.biases[2 * k]))
            h = h if self.norm else h + self.biases[2 * k + 1]
            h = F.relu(h) if k + 1 < len(self.convs) else h
        return self.head(F.relu(x + (h if self.norm else h * self.scale)).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.c = nn.ConvTranspose2d(8, 5, 2, stride=2), nn.Conv2d(11, 7, 3, padding=1)
        self.out = nn.Conv2d(7, 2, 1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = self.up(F.relu(self.b(F.max_pool2d(a, 2))))
        return self.out(F.relu(self.c(torch.cat([a, b], 1))))


class Encoder(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.embed, self.where = nn.Embedding(11, 16), nn.Parameter(torch.randn(6, 16))
        self.layer = nn.TransformerEncoderLayer(16, 4, 20, batch_first=True, **settings)
        self.head = nn.Linear(16, 3)

    def forward(self, i):
        return self.head(self.layer(self.embed(i) + self.where).mean(1))


class PackedAttention(nn.Module):
    """Queries, keys and values from one matrix, as vision transformers have them."""

    def __init__(self, c=12, h=3):
        super().__init__()
        self.h, self.first, self.qkv, self.out = (
            h,
            nn.Linear(4, c),
            nn.Linear(c, 3 * c),
            nn.Linear(c, c),
        )
        self.norm, self.head = nn.RMSNorm(c), nn.Linear(c, 2)

    def forward(self, x):
        x = self.first(x)
        b, t, c = x.shape
        packed = self.qkv(self.norm(x)).reshape(b, t, 3, self.h, c // self.h)
        y = F.scaled_dot_product_attention(*packed.permute(2, 0, 3, 1, 4), is_causal=True)
        return self.head(x + self.out(y.transpose(1, 2).reshape(b, t, c)))


class Recurrent(nn.Module):
    def __init__(self, kind, layers=1):
        super().__init__()
        self.rnn, self.head = getattr(nn, kind)(3, 6, layers, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 6))
        self.rho = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.rho(self.phi(x).sum(1))


class Mixer(nn.Module):
    """Mixes the rows of a matrix of units with symmetric weights that have them on both axes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 12), nn.Linear(12, 2)
        self.mix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        v = F.gelu(self.first(x)).unflatten(1, (4, 3))
        return self.last(F.gelu(v + (v.mT @ (self.mix + self.mix.T)).mT).flatten(1))


class Bucketed(nn.Module):
    """An operation without a rule, and fixed weights that tell units apart."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 5), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = torch.bucketize(torch.tanh(self.a(x)), torch.tensor([-0.5, 0.0, 0.5])).to(x)
        return self.c(torch.sigmoid(self.b(h)) * torch.arange(6.0, dtype=x.dtype))


class GateForm(nn.Module):
    """A bilinear form of the units of a gate."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(3, 6)
        self.w = nn.Parameter(torch.randn(4, 6, 6))

    def forward(self, x):
        h = torch.tanh(self.a(x)) * torch.tanh(self.b(x))
        return torch.einsum("ni,kij,nj->nk", h, self.w, h)


class Block(nn.Module):
    """Of ResNet-18."""

    def __init__(self, a, b, stride):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.c2, self.n2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        projection = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))
        self.short = projection if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.short(x) + self.n2(self.c2(F.relu(self.n1(self.c1(x))))))


def resnet18(w):
    steps = ((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1))
    return nn.Sequential(
        nn.Conv2d(3, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(),
        *(Block(w * p, w * q, stride) for p, q, stride in steps),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * w, 10),
    )  # fmt: skip


def encoder(d, heads, hidden, layers):
    layer = nn.TransformerEncoderLayer(d, heads, hidden, batch_first=True)
    return nn.Sequential(nn.Linear(9, d), nn.TransformerEncoder(layer, layers), nn.Linear(d, 3))


def pre_norm():
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, batch_first=True, norm_first=True, activation="gelu"
    )
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(3, 8), stack, nn.Linear(8, 2))


def conv_net():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 8, 1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(72, 7), nn.Dropout(), nn.ReLU(), nn.Linear(7, 3),
    )  # fmt: skip


def grouped(*layers):
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers)


def mlp(activation):
    return nn.Sequential(nn.Linear(3, 8), activation, nn.Linear(8, 8), activation, nn.Linear(8, 2))


def units(d, signs=0):
    """Log order of d units with that many signs each."""
    return lgamma(d + 1) + signs * d * log(2.0)


ROWS, IMAGES = torch.zeros(4, 3), torch.zeros(2, 3, 8, 8)
TOKENS = torch.arange(12).reshape(2, 6) % 11
# A layer before a norm over all units can be negated as a whole, together with the norm's gain.
ONE_SIGN = log(2.0)
# In a head queries and keys move together, and values and what takes them; both are linear.
HEADS_OF_4 = units(4) + 4 * 2 * units(4, 1)

CASES = {
    "tanh": Case(lambda: mlp(nn.Tanh()), ROWS, 2 * units(8, 1)),
    "relu": Case(lambda: mlp(nn.ReLU()), ROWS, 2 * units(8)),
    "layer norm": Case(
        lambda: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)),
        ROWS, units(8) + ONE_SIGN,
    ),
    # Signs: a filter and its gain, a depthwise filter and what takes it; behind tanh; none.
    "cnn": Case(conv_net, torch.zeros(4, 1, 16, 16), units(6, 2) + units(8, 1) + units(7)),
    # Two groups of four channels that share a mean: one sign for each group.
    "group norm": Case(
        lambda: grouped(nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(),
                        nn.Linear(64, 2)),
        IMAGES, units(2, 1) + 2 * units(4) + units(4, 1),
    ),
    "grouped convolution": Case(
        lambda: grouped(nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 1)),
        IMAGES, units(2) + 2 * units(4) + 2 * units(3),
    ),
    "residual": Case(lambda: Residual(8), IMAGES, 2 * units(8, 1)),
    "fixup": Case(lambda: Residual(8, norm=False), IMAGES, 2 * units(8)),
    "residual of one layer": Case(lambda: Residual(8, depth=1), IMAGES, units(8, 1)),
    "u-net": Case(
        UNet, torch.zeros(2, 1, 8, 8), units(6) + units(8) + units(5, 1) + units(7)
    ),
    "encoder": Case(
        Encoder, TOKENS, units(16, 1) + units(20) + HEADS_OF_4 + 2 * ONE_SIGN
    ),
    "encoder, norm first": Case(
        lambda: Encoder(norm_first=True), TOKENS,
        units(16, 2) + units(20) + HEADS_OF_4 + ONE_SIGN,
    ),
    "packed attention": Case(
        PackedAttention, torch.zeros(2, 5, 4), units(12, 2) + units(3) + 3 * 2 * units(4, 1)
    ),
    "rnn": Case(lambda: Recurrent("RNN"), torch.zeros(2, 4, 3), units(6, 1)),
    "gru": Case(lambda: Recurrent("GRU"), torch.zeros(2, 4, 3), units(6, 1)),
    "lstm": Case(lambda: Recurrent("LSTM"), torch.zeros(2, 4, 3), units(6, 1)),
    "two lstms": Case(lambda: Recurrent("LSTM", 2), torch.zeros(2, 4, 3), 2 * units(6, 1)),
    "sets": Case(DeepSets, torch.zeros(4, 5, 3), units(9, 1) + units(6, 1) + units(8)),
    "mixer": Case(Mixer, ROWS, units(4) + units(3)),
    "gate": Case(GateForm, ROWS, units(6, 2)),
    "two layers, norm first": Case(
        pre_norm, torch.zeros(2, 5, 3),
        units(8, 4) + 2 * (units(12) + units(2) + 4 * units(4, 1)) + ONE_SIGN,
    ),
    "linear": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)), ROWS,
        2 * units(4, 1),
    ),
    "buckets": Case(Bucketed, ROWS, 0.0),
}  # fmt: skip
