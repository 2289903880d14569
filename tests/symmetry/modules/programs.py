"""Random programs: chains of operations on (N, 12) tensors, some of them hostile to symmetry."""

import random

import torch
import torch.nn.functional as F
from torch import nn

OPERATIONS = (  # noqa: SIM905
    "linear linear linear act act add mul glu softmax swap gram attention norm roll scale bilinear "
    "pool slice cat view_linear gru conv"
).split()
# Operations that select, move and order entries, norms, distances, and numbers.
SELECTIONS = (  # noqa: SIM905
    "flip roll index index_put scatter gather repeat pad order reduce norm cumulate stack write "
    "distance number clamp mask group_norm shuffle instance_norm bag rotate regroup"
).split()
SHAPES = [(2, 6), (3, 4), (4, 3), (6, 2)]
ACTIVATIONS = [torch.tanh, F.relu, F.gelu, torch.sin, torch.abs, torch.square]
HOSTILE = [
    lambda t: t.roll(1, 1), lambda t: t.flip(1), lambda t: t.cumsum(1), lambda t: t.sort(1).values,
    lambda t: t[:, ::2].repeat_interleave(2, 1),
]  # fmt: skip


class Program(nn.Module):
    """A random program; half of the steps of a program with selections are selections."""

    def __init__(self, seed, selections=False):
        super().__init__()
        torch.manual_seed(seed)
        r = random.Random(seed)
        self.layers, self.plan = nn.ModuleList(), []
        self.first, self.last = nn.Linear(3, 12), nn.Linear(12, 2)
        for _ in range(r.randint(2, 7)):
            names = SELECTIONS if selections and r.random() < 0.5 else OPERATIONS
            step = r.choice(names), r.randrange(100), r.randrange(100), r.choice(SHAPES)
            self.plan.append(step)
            self.layers.append(layer_of(r, step[0], *step[3]))

    def forward(self, x):
        history = [torch.tanh(self.first(x))]
        for (operation, i, j, shape), layer in zip(self.plan, self.layers, strict=True):
            x, y = history[-1], history[i % len(history)]
            step = select if operation in SELECTIONS else apply
            history.append(step(operation, layer, x, y, x.unflatten(1, shape), j))
        return self.last(history[-1])


def select(operation, layer, x, y, v, j):
    """One step that selects, moves or orders entries, along the rows, units or parts of units."""
    a, b = v.shape[1:]
    axis = 1 + j % 2  # of the matrix of each row
    n = v.shape[axis]
    index = torch.arange(n).mul(5).add(j).remainder(n)
    rows = torch.tensor([1, 0, 0, 2])
    along = index.view(-1, 1) if axis == 1 else index
    cases = {
        "flip": lambda: x.flip(0) if j % 3 else v.flip(axis),
        "roll": lambda: x.roll(1, 0) if j % 3 else v.roll(2, axis),
        "index": lambda: [
            x[rows], v[:, index] if axis == 1 else v[:, :, index], v.index_select(axis, index),
            v[rows, :, :], v.mT[rows, :][:, :, torch.arange(a).flip(0)],
        ][j % 5],
        "index_put": lambda: [
            x.index_put((rows[1:],), y[:3]), x.index_add(0, rows, y),
            v.index_put((torch.arange(4)[:, None], index[None] % a), v[:, index % a]),
        ][j % 3],
        "scatter": lambda: [
            torch.zeros_like(x).scatter_add(0, rows[:, None].expand(-1, 12), y),
            v.scatter_add(axis, along.expand(4, a, b), v),
            torch.ones_like(x).scatter_reduce(0, rows[:, None].expand(-1, 12), x, "amax"),
            x.scatter_reduce(0, rows[:, None].expand(-1, 12), y, "mean"),
        ][j % 4],
        "gather": lambda: [
            x.gather(0, rows[:, None].expand(-1, 12)), v.gather(axis, along.expand(4, a, b)),
        ][j % 2],
        "repeat": lambda: [
            v[:, :1].repeat(1, a, 1), v[:, :, :1].repeat(1, 1, b), x[:1].repeat(4, 1),
        ][j % 3],
        "pad": lambda: F.pad(
            v, (1, 1), mode=("reflect", "replicate", "circular", "constant")[j % 4]
        )[..., 1 : b + 1] if j % 2 else F.pad(v[:, :, :-1], (j % 2, 1 - j % 2)),
        "order": lambda: [
            x.sort(0).values, v.sort(axis).values, v + v.max(axis, keepdim=True).values,
            v + v.min(axis, keepdim=True).values, x.cummax(0).values, v * v.argsort(axis),
            v.topk(1, axis).values + v, v.median(axis, keepdim=True).values * v,
        ][j % 8],
        "reduce": lambda: [
            v * v.prod(axis, keepdim=True), v * v.var(axis, keepdim=True),
            v - v.std(axis, keepdim=True),
            v + v.logsumexp(axis, keepdim=True), x * x.var(0),
        ][j % 5],
        "norm": lambda: [
            F.normalize(x), F.normalize(v, dim=axis), x * x.norm(dim=1, keepdim=True),
            x / (1.0 + torch.linalg.vector_norm(x, 1, dim=0)),
        ][j % 4],
        "cumulate": lambda: [x.cumsum(0), v.cumsum(axis), x.cumprod(0)][j % 3],
        "stack": lambda: [
            torch.stack([x, y], 1).sum(1), torch.stack([v, v.square()], axis).amax(axis),
            torch.stack([x[:, :6], y[:, 6:]], 1).flatten(1), torch.stack([v, -v], 3).sum(3),
            torch.stack([x, y], 2).flatten(1)[:, j % 2 :: 2],
        ][j % 5],
        "write": lambda: write_on(x, y, j),
        "distance": lambda: [
            torch.cdist(v, v).sum(2, keepdim=True) * v,
            torch.cdist(x, y) @ x, torch.cdist(v.mT, v.mT).mean((1, 2))[:, None] + x,
        ][j % 3],
        "number": lambda: [1 - x, 2 / (3 + x), 2**x, x.abs() ** y, torch.lerp(x, y, 0.3)][j % 5],
        "clamp": lambda: [
            F.hardtanh(x), x.clamp(-0.3, 0.3), x.clamp(-0.3, 0.5), F.softshrink(x, 0.1),
            F.hardshrink(x, 0.1), x.round(), torch.sinc(x), x.clamp(min=0.0),
        ][j % 8],
        "mask": lambda: [
            x.masked_fill(torch.eye(4, 12) > 0, 0.0), torch.where(x.abs() > 0.4, x, y),
            x.masked_fill(torch.ones(4, 1) > 0, 1.0), torch.where(x > y, x, y),
        ][j % 4],
        "group_norm": lambda: layer(x), "instance_norm": lambda: layer(v),
        "shuffle": lambda: x.view(4, *v.shape[1:]).transpose(1, 2).reshape(4, 12),
        "bag": lambda: x + layer(rows.view(4, 1)),
        "rotate": lambda: rotate(v, axis, j % 3),
        "regroup": lambda: [
            v.mT.reshape(4, a, b).sum(axis, keepdim=True) + v, v.mT.reshape(4, a, b) @ v.mT @ v,
            torch.softmax(v.mT.reshape(4, a, b), axis),
        ][j % 3],
    }  # fmt: skip
    return cases[operation]().reshape(4, -1)


def rotate(v, axis, variant):
    """Rotate pairs of dimensions on one axis by angles that depend on the row."""
    v = v.transpose(axis, 2)
    if v.shape[2] % 2:
        return v.transpose(axis, 2)
    half = v.shape[2] // 2
    angle = (torch.arange(4.0)[:, None] * torch.linspace(0.3, 1.0, half))[:, None]
    if variant == 0:
        both = torch.cat([angle, angle], -1)
        turned = torch.cat([-v[..., half:], v[..., :half]], -1)
        return (v * both.cos() + turned * both.sin()).transpose(axis, 2)
    if variant == 1:
        first, second = v.chunk(2, -1)
    else:
        first, second = v.unflatten(2, (half, 2)).unbind(-1)
    rotated = [
        first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos(),
    ]  # fmt: skip
    if variant == 1:
        return torch.cat(rotated, -1).transpose(axis, 2)
    return torch.stack(rotated, -1).flatten(2).transpose(axis, 2)


def write_on(x, y, j):
    """Overwrite rows or units in place."""
    x = x.clone()
    if j % 3 == 0:
        x[1:3] = y[:2]
    elif j % 3 == 1:
        x[0] = y[1]
    else:
        x[:, 2:5] = y[:, 5:8]
    return x


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
        "group_norm": lambda: nn.GroupNorm(r.choice([1, 2, 4]), 12),
        "instance_norm": lambda: nn.InstanceNorm1d(a, affine=True),
        "bag": lambda: nn.EmbeddingBag(5, 12, mode=r.choice(["sum", "mean", "max"])),
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
