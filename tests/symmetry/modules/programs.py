"""Random programs: chains of operations on (N, 12) tensors, some of them hostile to symmetry."""

import random

import torch
import torch.nn.functional as F
from torch import nn

OPERATIONS = (  # noqa: SIM905
    "linear linear linear act act add mul glu softmax swap gram attention norm roll scale bilinear "
    "pool slice cat view_linear gru conv"
).split()
SHAPES = [(2, 6), (3, 4), (4, 3), (6, 2)]
ACTIVATIONS = [torch.tanh, F.relu, F.gelu, torch.sin, torch.abs, torch.square]
HOSTILE = [
    lambda t: t.roll(1, 1), lambda t: t.flip(1), lambda t: t.cumsum(1), lambda t: t.sort(1).values,
    lambda t: t[:, ::2].repeat_interleave(2, 1),
]  # fmt: skip


class Program(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        r = random.Random(seed)
        self.layers, self.plan = nn.ModuleList(), []
        self.first, self.last = nn.Linear(3, 12), nn.Linear(12, 2)
        for _ in range(r.randint(2, 7)):
            step = r.choice(OPERATIONS), r.randrange(100), r.randrange(100), r.choice(SHAPES)
            self.plan.append(step)
            self.layers.append(layer_of(r, step[0], *step[3]))

    def forward(self, x):
        history = [torch.tanh(self.first(x))]
        for (operation, i, j, shape), layer in zip(self.plan, self.layers, strict=True):
            x, y = history[-1], history[i % len(history)]
            history.append(apply(operation, layer, x, y, x.unflatten(1, shape), j))
        return self.last(history[-1])


def layer_of(r, operation, a, b):
    norms = [
        lambda: nn.LayerNorm(12), lambda: nn.GroupNorm(3, 12), lambda: nn.RMSNorm(12),
        lambda: nn.BatchNorm1d(12), lambda: nn.LayerNorm(12, elementwise_affine=False),
    ]  # fmt: skip
    makers = {
        "linear": lambda: nn.Linear(12, 12), "norm": lambda: r.choice(norms)(),
        "attention": lambda: nn.MultiheadAttention(4, r.choice([1, 2]), batch_first=True),
        "glu": lambda: nn.Linear(12, 24), "scale": lambda: nn.Bilinear(1, 1, 12),
        "bilinear": lambda: nn.Bilinear(12, 12, 12), "slice": lambda: nn.Linear(7, 12),
        "cat": lambda: nn.Linear(24, 12), "view_linear": lambda: nn.Linear(b, b, bias=False),
        "gru": lambda: nn.GRU(6, 6, batch_first=True),
        "conv": lambda: nn.Conv1d(a, a, 1, groups=r.choice([1, a])),
    }  # fmt: skip
    return makers.get(operation, nn.Identity)()


def apply(operation, layer, x, y, v, j):
    """One step: ``v`` is ``x`` as a matrix a row, ``j`` chooses a variant."""
    cases = {
        "act": lambda: ACTIVATIONS[j % 6](x),
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "glu": lambda: F.glu(layer(x)) if j % 2 else torch.mul(*layer(x).chunk(2, -1)),
        "softmax": lambda: torch.softmax(v, 1 + j % 2).flatten(1),
        "swap": lambda: v.transpose(1, 2).flatten(1),
        "gram": lambda: (
            (v @ v.mT @ v).flatten(1) if j % 2
            else torch.einsum("nab,nab,nac->nbc", v, v, v).flatten(1)[:, :4].repeat(1, 3)
        ),
        "attention": lambda: layer(*[x.unflatten(1, (3, 4))] * 3, need_weights=False)[0].flatten(1),
        "roll": lambda: HOSTILE[j % 5](x),
        "scale": lambda: x * layer.weight[:, 0, 0] + layer.bias,
        "bilinear": lambda: layer(x, y),
        "pool": lambda: (
            v + (v.mean(1 + j % 2, True) if j % 3 else v.amax(1 + j % 2, True))
        ).flatten(1),
        "slice": lambda: layer(x[:, j % 6 : j % 6 + 7]),
        "cat": lambda: layer(torch.cat([x, y], 1)),
        "view_linear": lambda: layer(v).flatten(1),
        "gru": lambda: layer(x.unflatten(1, (2, 6)))[0].flatten(1),
        "conv": lambda: layer(v).flatten(1),
    }  # fmt: skip
    return cases.get(operation, lambda: layer(x))()
