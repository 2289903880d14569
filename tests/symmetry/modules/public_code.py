"""Modules that resemble public code, each with the order of its group counted by hand."""

from math import log

import torch
import torch.nn.functional as F
from symmetry.modules.architectures import units
from torch import nn


class GRUWithDecay(nn.Module):
    """State and inputs decay with the time since the last observation (three inputs)."""

    def __init__(self):
        super().__init__()
        self.gx = nn.Parameter(torch.rand(3))
        self.gh = nn.Linear(3, 5)
        self.z = nn.Linear(3 + 5 + 3, 5)
        self.r = nn.Linear(11, 5)
        self.h = nn.Linear(11, 5)
        self.o = nn.Linear(5, 1)

    def forward(self, x, m, d):
        h = x.new_zeros(x.shape[0], 5)
        xl = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            dx = torch.exp(-torch.relu(self.gx * d[:, t]))
            dh = torch.exp(-torch.relu(self.gh(d[:, t])))
            xt = m[:, t] * x[:, t] + (1 - m[:, t]) * (dx * xl)
            xl = torch.where(m[:, t] > 0, x[:, t], xl)
            h = dh * h
            c = torch.cat([xt, h, m[:, t]], 1)
            z = torch.sigmoid(self.z(c))
            r = torch.sigmoid(self.r(c))
            hh = torch.tanh(self.h(torch.cat([xt, r * h, m[:, t]], 1)))
            h = (1 - z) * h + z * hh
        return self.o(h)


class Chomp(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        return x[:, :, : -self.n].contiguous()


class TemporalBlock(nn.Module):
    """Causal convolutions with weight norm, and a residual sum."""

    def __init__(self, i, o, d):
        super().__init__()
        wn = nn.utils.parametrizations.weight_norm
        first = wn(nn.Conv1d(i, o, 2, padding=d, dilation=d))
        second = wn(nn.Conv1d(o, o, 2, padding=d, dilation=d))
        self.net = nn.Sequential(first, Chomp(d), nn.ReLU(), second, Chomp(d), nn.ReLU())
        self.down = nn.Conv1d(i, o, 1) if i != o else None

    def forward(self, x):
        r = x if self.down is None else self.down(x)
        return F.relu(self.net(x) + r)


class TemporalConvolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Sequential(TemporalBlock(2, 5, 1), TemporalBlock(5, 6, 2))
        self.o = nn.Linear(6, 1)

    def forward(self, x):
        return self.o(self.b(x)[:, :, -1])


class Hypernetwork(nn.Module):
    """Computes the weights of a small network from another input."""

    def __init__(self):
        super().__init__()
        self.h = nn.Sequential(nn.Linear(2, 6), nn.ReLU())
        self.w1 = nn.Linear(6, 12)
        self.b1 = nn.Linear(6, 4)
        self.w2 = nn.Linear(6, 4)

    def forward(self, z, x):
        h = self.h(z)
        W = self.w1(h).view(-1, 4, 3)
        a = torch.tanh(torch.bmm(W, x.unsqueeze(2)).squeeze(2) + self.b1(h))
        return (a * self.w2(h)).sum(1, keepdim=True)


def squash(x):
    n = (x**2).sum(-1, keepdim=True)
    return n / (1 + n) * x / torch.sqrt(n + 1e-08)


class Capsules(nn.Module):
    """Capsules with dynamic routing."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(1, 8, 3)
        self.p = nn.Conv2d(8, 4 * 3, 3)
        self.W = nn.Parameter(torch.randn(4 * 16, 5, 2, 3) * 0.1)
        self.d = nn.Linear(10, 3)

    def forward(self, x):
        u = self.p(F.relu(self.c(x)))
        u = u.view(x.shape[0], 4, 3, -1).permute(0, 1, 3, 2).reshape(x.shape[0], -1, 3)
        u = squash(u)
        uh = torch.einsum("ijdk,nik->nijd", self.W, u)
        b = x.new_zeros(x.shape[0], 64, 5)
        for _ in range(2):
            c = F.softmax(b, 2)
            v = squash((c[..., None] * uh).sum(1))
            b = b + (uh * v[:, None]).sum(-1)
        return self.d(v.flatten(1))


class LowRankLinear(nn.Module):
    """A linear layer with an update of low rank."""

    def __init__(self, i, o, r=2):
        super().__init__()
        self.l = nn.Linear(i, o)
        self.A = nn.Parameter(torch.randn(r, i))
        self.B = nn.Parameter(torch.randn(o, r))
        self.l.weight.requires_grad_(True)

    def forward(self, x):
        return self.l(x) + x @ self.A.T @ self.B.T * 0.5


class LowRankNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = LowRankLinear(3, 6)
        self.b = LowRankLinear(6, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class T5(nn.Module):
    """Relative positions in buckets, RMS norms, heads without a scale."""

    def __init__(self):
        super().__init__()
        d = 8
        self.e = nn.Embedding(9, d)
        self.n1 = nn.RMSNorm(d)
        self.q = nn.Linear(d, 6, bias=False)
        self.k = nn.Linear(d, 6, bias=False)
        self.v = nn.Linear(d, 6, bias=False)
        self.o = nn.Linear(6, d, bias=False)
        self.b = nn.Embedding(7, 2)
        self.n2 = nn.RMSNorm(d)
        self.wi = nn.Linear(d, 10, bias=False)
        self.wo = nn.Linear(10, d, bias=False)
        self.nf = nn.RMSNorm(d)
        self.h = nn.Linear(d, 9, bias=False)

    def forward(self, t):
        x = self.e(t)
        N, T, _ = x.shape
        h = self.n1(x)
        q, k, v = [layer(h).view(N, T, 2, 3).transpose(1, 2) for layer in (self.q, self.k, self.v)]
        p = torch.arange(T)
        rel = (p[None] - p[:, None]).clamp(-3, 3) + 3
        a = q @ k.transpose(-1, -2) + self.b(rel).permute(2, 0, 1)[None]
        x = x + self.o((a.softmax(-1) @ v).transpose(1, 2).reshape(N, T, 6))
        x = x + self.wo(F.relu(self.wi(self.n2(x))))
        return self.h(self.nf(x))


class FastKAN(nn.Module):
    """Radial basis functions of each input, as a linear layer."""

    def __init__(self, i, o, g=5):
        super().__init__()
        self.ln = nn.LayerNorm(i)
        self.register_buffer("grid", torch.linspace(-2, 2, g))
        self.w = nn.Linear(i * g, o, bias=False)
        self.base = nn.Linear(i, o)

    def forward(self, x):
        b = torch.exp(-(((self.ln(x)[..., None] - self.grid) * 1.5) ** 2))
        return self.w(b.view(*b.shape[:-2], -1)) + self.base(F.silu(x))


class Alignment(nn.Module):
    """The T-Net of PointNet: a matrix near the identity."""

    def __init__(self, k):
        super().__init__()
        self.k = k
        self.c1 = nn.Conv1d(k, 6, 1)
        self.c2 = nn.Conv1d(6, 7, 1)
        self.f = nn.Linear(7, 5)
        self.o = nn.Linear(5, k * k)
        self.b1 = nn.BatchNorm1d(6)
        self.b2 = nn.BatchNorm1d(7)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        x = F.relu(self.b2(self.c2(x)))
        x = torch.max(x, 2, keepdim=True)[0].view(-1, 7)
        x = self.o(F.relu(self.f(x)))
        return x.view(-1, self.k, self.k) + torch.eye(self.k, device=x.device).unsqueeze(0)


class PointNet(nn.Module):
    """Points and features are multiplied by matrices that depend on all points."""

    def __init__(self):
        super().__init__()
        self.t = Alignment(3)
        self.c1 = nn.Conv1d(3, 4, 1)
        self.ft = Alignment(4)
        self.c2 = nn.Conv1d(4, 8, 1)
        self.o = nn.Linear(8, 2)

    def forward(self, x):
        T = self.t(x)
        x = torch.bmm(x.transpose(2, 1), T).transpose(2, 1)
        x = F.relu(self.c1(x))
        T = self.ft(x)
        x = torch.bmm(x.transpose(2, 1), T).transpose(2, 1)
        x = torch.max(self.c2(x), 2)[0]
        return self.o(F.relu(x))


class MultiQueryAttention(nn.Module):
    """Four heads with one key and value, and ALiBi."""

    def __init__(self, qk=False):
        super().__init__()
        d = 8
        self.q = nn.Linear(d, 8, bias=False)
        self.kv = nn.Linear(d, 4, bias=False)
        self.o = nn.Linear(8, d, bias=False)
        self.e = nn.Linear(3, d)
        self.h = nn.Linear(d, 1)
        self.qk = qk
        if qk:
            self.qn = nn.RMSNorm(2)
            self.kn = nn.RMSNorm(2)
        self.register_buffer("slopes", torch.tensor([0.5, 0.25, 0.125, 0.0625]))

    def forward(self, x):
        x = self.e(x)
        N, T, _ = x.shape
        q = self.q(x).view(N, T, 4, 2).transpose(1, 2)
        k, v = self.kv(x).split([2, 2], -1)
        if self.qk:
            q, k = (self.qn(q), self.kn(k))
        a = torch.einsum("bhid,bjd->bhij", q, k) / 2**0.5
        p = torch.arange(T)
        a = a - self.slopes[None, :, None, None] * (p[None] - p[:, None]).abs()
        a = a.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        y = torch.einsum("bhij,bjd->bhid", a, v).transpose(1, 2).reshape(N, T, 8)
        return self.h(x + self.o(y))


class Mamba(nn.Module):
    """A gated scan with selected state matrices."""

    def __init__(self, d=4, n=3, e=6, r=2):
        super().__init__()
        self.i = nn.Linear(d, 2 * e, bias=False)
        self.c = nn.Conv1d(e, e, 3, groups=e, padding=2)
        self.xp = nn.Linear(e, r + 2 * n, bias=False)
        self.dt = nn.Linear(r, e)
        self.A = nn.Parameter(torch.rand(e, n))
        self.D = nn.Parameter(torch.ones(e))
        self.o = nn.Linear(e, d, bias=False)
        self.e, self.n, self.r = (e, n, r)

    def forward(self, u):
        N, T, _ = u.shape
        x, z = self.i(u).chunk(2, -1)
        x = F.silu(self.c(x.transpose(1, 2))[..., :T].transpose(1, 2))
        dt, B, C = self.xp(x).split([self.r, self.n, self.n], -1)
        dt = F.softplus(self.dt(dt))
        A = -torch.exp(self.A)
        dA = torch.exp(dt[..., None] * A)
        dB = dt[..., None] * B[:, :, None] * x[..., None]
        h = u.new_zeros(N, self.e, self.n)
        ys = []
        for t in range(T):
            h = dA[:, t] * h + dB[:, t]
            ys.append((h * C[:, t, None]).sum(-1))
        y = torch.stack(ys, 1) + x * self.D
        return self.o(y * F.silu(z))


class GatedMLP(nn.Module):
    """Gates that a convolution along the tokens mixes."""

    def __init__(self):
        super().__init__()
        self.e = nn.Linear(3, 6)
        self.n = nn.LayerNorm(6)
        self.u = nn.Linear(6, 10)
        self.sn = nn.LayerNorm(5)
        self.sp = nn.Conv1d(4, 4, 1)
        self.d = nn.Linear(5, 6)
        self.o = nn.Linear(6, 1)

    def forward(self, x):
        x = self.e(x)
        h = F.gelu(self.u(self.n(x)))
        u, v = h.chunk(2, -1)
        v = self.sp(self.sn(v))
        return self.o((x + self.d(u * v)).mean(1))


class EquivariantSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.ModuleList([nn.Linear(3, 6), nn.Linear(6, 7)])
        self.l = nn.ModuleList([nn.Linear(3, 6, bias=False), nn.Linear(6, 7, bias=False)])
        self.o = nn.Linear(7, 1)

    def forward(self, x):
        for g, pooled in zip(self.g, self.l, strict=True):
            x = torch.tanh(g(x) - pooled(x.max(1, keepdim=True)[0]))
        return self.o(x.mean(1))


class NetVLAD(nn.Module):
    """Distances from centres, weighted by a softmax."""

    def __init__(self):
        super().__init__()
        self.b = nn.Conv2d(3, 6, 3)
        self.c = nn.Conv2d(6, 4, 1)
        self.cent = nn.Parameter(torch.rand(4, 6))
        self.o = nn.Linear(24, 2)

    def forward(self, x):
        f = F.relu(self.b(x))
        N, C = f.shape[:2]
        f = F.normalize(f, p=2, dim=1)
        a = F.softmax(self.c(f).view(N, 4, -1), 1)
        ff = f.view(N, C, -1)
        r = ff.expand(4, -1, -1, -1).permute(1, 0, 2, 3) - self.cent.expand(
            ff.size(-1), -1, -1
        ).permute(1, 2, 0).unsqueeze(0)
        r = r * a.unsqueeze(2)
        v = r.sum(-1)
        v = F.normalize(v, p=2, dim=2).view(N, -1)
        return self.o(F.normalize(v, p=2, dim=1))


class NeuralODE(nn.Module):
    """Runge-Kutta steps of one network."""

    def __init__(self):
        super().__init__()
        self.i = nn.Linear(3, 5)
        self.f = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5))
        self.o = nn.Linear(5, 1)

    def forward(self, x):
        h = self.i(x)
        for _ in range(2):
            k1 = self.f(h)
            k2 = self.f(h + 0.5 * k1)
            k3 = self.f(h + 0.5 * k2)
            k4 = self.f(h + k3)
            h = h + (k1 + 2 * k2 + 2 * k3 + k4) / 6
        return self.o(h)


class DeepFM(nn.Module):
    """A factorization machine and a network on the same embeddings."""

    def __init__(self):
        super().__init__()
        self.e = nn.ModuleList([nn.Embedding(n, 4) for n in (3, 5)])
        self.l = nn.ModuleList([nn.Embedding(n, 1) for n in (3, 5)])
        self.d = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, c):
        e = torch.stack([m(c[:, i]) for i, m in enumerate(self.e)], 1)
        fm = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1, keepdim=True)
        return (
            torch.cat([m(c[:, i]) for i, m in enumerate(self.l)], 1).sum(1, keepdim=True)
            + fm
            + self.d(e.flatten(1))
        )


class PeepholeLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Linear(2, 20)
        self.h = nn.Linear(5, 20, bias=False)
        self.p = nn.Parameter(torch.randn(3, 5))
        self.n = nn.LayerNorm(5)
        self.o = nn.Linear(5, 1)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 5)
        for t in range(x.shape[1]):
            i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, 1)
            i = torch.sigmoid(i + self.p[0] * c)
            f = torch.sigmoid(f + self.p[1] * c)
            c = f * c + i * torch.tanh(g)
            o = torch.sigmoid(o + self.p[2] * c)
            h = o * torch.tanh(self.n(c))
        return self.o(h)


SIGN = log(2.0)  # of whole tensors
SERIES = torch.randn(4, 3, 3)

# Each entry has a function that makes the module, its inputs, and the log order.
PUBLIC_CODE = {
    "GRU-D": (GRUWithDecay, (SERIES, (SERIES > 0).float(), SERIES.abs()), units(5, 1)),
    # With weight norm, the sign of a direction or of a length: one sign for each channel.
    "TCN": (TemporalConvolutions, (torch.randn(3, 2, 8),), 2 * units(5, 1) + 2 * units(6, 1)),
    "hypernetwork": (
        Hypernetwork, (torch.randn(5, 2), torch.randn(5, 3)), units(6) + units(4, 1),
    ),
    # Channels, types of capsules with their dimensions, and output capsules with theirs.
    "capsules": (
        Capsules, (torch.randn(2, 1, 8, 8),),
        units(8) + units(4) + 4 * units(3, 1) + units(5) + 5 * units(2, 1),
    ),
    "LoRA": (LowRankNetwork, (torch.randn(5, 3),), units(6) + 2 * units(2, 1)),
    # The stream and the gains of three norms have signs; heads hold queries with keys, and values.
    "T5": (
        T5, (torch.arange(8).view(2, 4),),
        units(8, 4) + units(2) + 2 * 2 * units(3, 1) + units(10),
    ),
    "FastKAN": (
        lambda: nn.Sequential(FastKAN(3, 6), FastKAN(6, 1)), (torch.randn(5, 3),), units(6),
    ),
    # The matrix of features is the identity plus rows and columns of the same four channels.
    "PointNet": (
        PointNet, (torch.randn(4, 3, 9),),
        2 * (units(6, 1) + units(7, 1) + units(5)) + units(4) + units(8),
    ),
    "multi-query attention": (
        MultiQueryAttention, (torch.randn(2, 5, 3),), units(8, 1) + 2 * units(2, 1),
    ),
    # Channels, the rank of the step sizes, and the states.
    "Mamba": (Mamba, (torch.randn(2, 4, 4),), units(6, 1) + units(2, 1) + units(3, 1)),
    # Signs of the stream, of the gates before and behind the convolution along tokens.
    "gMLP": (GatedMLP, (torch.randn(2, 4, 3),), units(6, 1) + units(5) + 3 * SIGN),
    "equivariant sets": (EquivariantSets, (torch.randn(2, 4, 3),), units(6) + units(7, 1)),
    "NetVLAD": (NetVLAD, (torch.randn(2, 3, 6, 6),), units(6) + units(4)),
    "neural ODE": (NeuralODE, (torch.randn(4, 3),), units(5, 1) + units(6, 1)),
    "DeepFM": (DeepFM, (torch.tensor([[0, 1], [2, 4], [1, 3]]),), units(4, 1) + units(6)),
    "peephole LSTM": (PeepholeLSTM, (torch.randn(3, 4, 2),), units(5)),
}  # fmt: skip
