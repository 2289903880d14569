"""One small module for each rule: the order of its group, counted by hand, and its function."""

from math import inf, lgamma, log

import pytest
import torch
import torch.nn.functional as F
from symmetry.modules.public_code import PUBLIC_CODE
from torch import nn

from skbayes_sym.symmetry import symmetry_of
from skbayes_sym.symmetry.modules.module_symmetry import derive_symmetry
from skbayes_sym.symmetry.modules.numerical_check import largest_output_change

ROUNDING = 1e-9  # of outputs, float64
PLACES = torch.tensor([0, 0, 2, 1, 3, 3])


def units(d, signs=0):
    """Log order of d units with that many signs each."""
    return lgamma(d + 1) + signs * d * log(2.0)


TANH = units(6, 1)
RELU = units(6)


class Hidden(nn.Module):
    """Six units that pass a function on their way to the output."""

    def __init__(self, function, n_out=6, layer=None, activation=torch.tanh):
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.function = function
        self.activation = activation
        self.layer = None if layer is None else layer()
        self.out = nn.Linear(n_out, 2)

    def forward(self, x):
        h = self.activation(self.first(x))
        return self.out(self.function(h) if self.layer is None else self.function(h, self.layer))


class Channels(nn.Module):
    """Six channels that pass a function on their way to the output."""

    def __init__(self, function, n_dims=2, n_in=6, n_out=6, layer=None, activation=F.relu):
        super().__init__()
        convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[n_dims]
        self.first = convolution(2, n_in, 3, padding=1)
        self.function = function
        self.activation = activation
        self.layer = None if layer is None else layer()
        self.out = convolution(n_out, 2, 1)

    def forward(self, x):
        h = self.activation(self.first(x))
        return self.out(self.function(h) if self.layer is None else self.function(h, self.layer))


def zeros(n, h):
    return h.new_zeros(n, 6)


def write(h, value):
    """Overwrite two rows, as users do it."""
    h = h.clone()
    h[:2] = value
    return h


def odd(activation):
    return Hidden(activation, activation=nn.Identity()), TANH


def neither(activation):
    return Hidden(activation, activation=nn.Identity()), RELU


OPERATIONS = {
    # Entries that change their places.
    "flip": lambda: (Hidden(lambda h: h.flip(0)), TANH),
    "roll": lambda: (Hidden(lambda h: h.roll(1, 0)), TANH),
    "roll of all": lambda: (Hidden(lambda h: h.T.roll(1, 1).T), TANH),
    "repeat rows": lambda: (Hidden(lambda h: h.repeat(2, 1)), TANH),
    "tile rows": lambda: (Hidden(lambda h: h.tile(2, 1)), TANH),
    # The two copies of a unit may be exchanged, together with the weights that take them.
    "repeat units": lambda: (Hidden(lambda h: h.repeat(1, 2), 12), TANH + 6 * log(2.0)),
    "repeat each unit": lambda: (
        Hidden(lambda h: h.repeat_interleave(2, 1), 12), TANH + 6 * log(2.0),
    ),
    "repeat each row": lambda: (Hidden(lambda h: h.repeat_interleave(2, 0)), TANH),
    "write": lambda: (Hidden(lambda h: write(h, h[2:4])), TANH),
    "write a constant": lambda: (Hidden(lambda h: write(h, 1.0)), RELU),
    "select_scatter": lambda: (Hidden(lambda h: h.select_scatter(h[1], 0, 0)), TANH),
    "windows": lambda: (Hidden(lambda h: h.unfold(0, 2, 1).sum(-1)), TANH),
    "diagonal": lambda: (Hidden(lambda h: (h @ h.T).diagonal()[:, None], 1), TANH),
    "stacked": lambda: (Hidden(lambda h: torch.stack([h, 2.0 * h], 1).sum(1)), TANH),
    "stacked and merged": lambda: (
        Hidden(lambda h: torch.stack([h, 2.0 * h], 1).flatten(1), 12), TANH,
    ),
    # Entries selected by indices.
    "index": lambda: (Hidden(lambda h: h[PLACES]), TANH),
    "index two axes": lambda: (Hidden(lambda h: h.reshape(2, 2, 6)[[0, 1, 1], [1, 1, 0]]), TANH),
    "index axes apart": lambda: (
        Hidden(lambda h: h.reshape(2, 2, 6).mT[[0, 1, 1], :, [1, 1, 0]]), TANH,
    ),
    "index columns": lambda: (Hidden(lambda h: h.T[:, PLACES].T), TANH),
    "index_select": lambda: (Hidden(lambda h: h.index_select(0, PLACES)), TANH),
    "gather": lambda: (Hidden(lambda h: h.gather(0, PLACES[:, None].expand(-1, 6))), TANH),
    "take_along_dim": lambda: (
        Hidden(lambda h: torch.take_along_dim(h, PLACES[:4, None], 0)), TANH,
    ),
    "index_put": lambda: (Hidden(lambda h: zeros(7, h).index_put((PLACES[2:5],), h[:3])), TANH),
    "index_put, added": lambda: (
        Hidden(lambda h: zeros(7, h).index_put((PLACES,), h[PLACES], accumulate=True)), TANH,
    ),
    "index_add": lambda: (Hidden(lambda h: zeros(5, h).index_add(0, PLACES[:4], h)), TANH),
    "scatter_add": lambda: (
        Hidden(lambda h: zeros(5, h).scatter_add(0, PLACES[:4, None].expand(-1, 6), h)), TANH,
    ),
    "scatter": lambda: (
        Hidden(lambda h: zeros(5, h).scatter(0, PLACES[2:, None].expand(-1, 6), h)), TANH,
    ),
    "scatter a value": lambda: (
        Hidden(lambda h: h.scatter(0, PLACES[:2, None].expand(-1, 6), 1.0)), RELU,
    ),
    "scatter_reduce, mean": lambda: (
        Hidden(
            lambda h: zeros(5, h).scatter_reduce(0, PLACES[:4, None].expand(-1, 6), h, "mean")
        ), TANH,
    ),
    "scatter_reduce, maximum": lambda: (
        Hidden(
            lambda h: zeros(5, h).scatter_reduce(0, PLACES[:4, None].expand(-1, 6), h, "amax")
        ), RELU,
    ),
    "scatter_reduce, product": lambda: (
        Hidden(
            lambda h: zeros(5, h).scatter_reduce(0, PLACES[:4, None].expand(-1, 6), h, "prod")
        ), RELU,
    ),
    # Order.
    "max of rows": lambda: (Hidden(lambda h: h.reshape(2, 2, 6).max(1).values), RELU),
    "min of rows": lambda: (Hidden(lambda h: h.reshape(2, 2, 6).min(1).values), RELU),
    "max of units": lambda: (Hidden(lambda h: h.max(1, keepdim=True).values, 1), RELU),
    "median of units": lambda: (Hidden(lambda h: h.median(1, keepdim=True).values, 1), RELU),
    "sort rows": lambda: (Hidden(lambda h: h.sort(0).values), RELU),
    "sort units": lambda: (Hidden(lambda h: h.sort(1).values), RELU),
    "sort units by their places": lambda: (Hidden(lambda h: h.sort(1).indices.to(h)), 0.0),
    "topk of rows": lambda: (Hidden(lambda h: h.topk(2, 0).values), RELU),
    "topk of units": lambda: (Hidden(lambda h: h.topk(3, 1).values, 3), RELU),
    "argmax of rows": lambda: (Hidden(lambda h: h.argmax(0, keepdim=True).to(h)), RELU),
    "argsort of rows": lambda: (Hidden(lambda h: h.argsort(0).to(h)), RELU),
    "cummax": lambda: (Hidden(lambda h: h.cummax(0).values), RELU),
    # Sums and products.
    "cumsum": lambda: (Hidden(lambda h: h.cumsum(0)), TANH),
    "cumprod": lambda: (Hidden(lambda h: h.cumprod(0)), RELU),
    "logcumsumexp": lambda: (Hidden(lambda h: h.logcumsumexp(0)), RELU),
    "prod of pairs of rows": lambda: (Hidden(lambda h: h.reshape(2, 2, 6).prod(1)), TANH),
    "prod of units": lambda: (Hidden(lambda h: h.prod(1, keepdim=True), 1), RELU),
    "prod of three": lambda: (
        Hidden(lambda h: torch.stack([h, h, h]).prod(0)), TANH,
    ),
    "var of rows": lambda: (Hidden(lambda h: h.var(0, keepdim=True)), TANH),
    "std of rows": lambda: (Hidden(lambda h: h.std(0, keepdim=True)), TANH),
    # All units change sign at once.
    "var of units": lambda: (Hidden(lambda h: h.var(1, keepdim=True), 1), RELU + log(2.0)),
    "norm": lambda: (Hidden(lambda h: h.norm(dim=1, keepdim=True), 1), TANH),
    "norm of order 1": lambda: (Hidden(lambda h: h.norm(p=1, dim=1, keepdim=True), 1), TANH),
    "largest": lambda: (Hidden(lambda h: h.norm(p=inf, dim=1, keepdim=True), 1), TANH),
    "normalize": lambda: (Hidden(F.normalize), TANH),
    "cosine": lambda: (
        Hidden(lambda h: F.cosine_similarity(h[:, None], h[None], dim=-1), 4), TANH,
    ),
    "cdist of rows": lambda: (Hidden(lambda h: torch.cdist(h, h), 4), TANH),
    "cdist from centres": lambda: (
        Hidden(lambda h, e: torch.cdist(h, e.weight), 5, lambda: nn.Linear(6, 5, bias=False)),
        TANH + units(5),
    ),
    "pdist": lambda: (Hidden(lambda h: F.pdist(h)[:, None], 1), TANH),
    # Its outputs are units, too, which are linear.
    "bilinear": lambda: (Hidden(lambda h, e: e(h, h), 6, lambda: nn.Bilinear(6, 6, 6)), 2 * TANH),
    # Numbers and masks.
    "1 - h": lambda: (Hidden(lambda h: 1 - h), RELU),
    "2 / h": lambda: (Hidden(lambda h: 2 / h), TANH),
    "2 ** h": lambda: (Hidden(lambda h: 2**h), RELU),
    "h ** h": lambda: (Hidden(lambda h: h.abs() ** h), RELU),
    "lerp": lambda: (Hidden(lambda h: torch.lerp(h, h**3, 0.3)), TANH),
    "masked by zeros": lambda: (
        Hidden(lambda h: h.masked_fill(torch.tensor([[True], [False]] * 2), 0.0)), TANH,
    ),
    "masked by ones": lambda: (
        Hidden(lambda h: h.masked_fill(torch.tensor([[True], [False]] * 2), 1.0)), RELU,
    ),
    "where": lambda: (Hidden(lambda h: torch.where(h.abs() > 0.5, h, 2.0 * h)), TANH),
    "where positive": lambda: (Hidden(lambda h: torch.where(h > 0.0, h, 2.0 * h)), RELU),
    # Activations.
    "hardtanh": lambda: odd(F.hardtanh),
    "hardtanh of (-1, 2)": lambda: neither(lambda h: F.hardtanh(h, -1.0, 2.0)),
    "clamp": lambda: odd(lambda h: h.clamp(-2.0, 2.0)),
    "clamp from below": lambda: neither(lambda h: h.clamp(min=-2.0)),
    "hardshrink": lambda: odd(F.hardshrink),
    "softshrink": lambda: odd(F.softshrink),
    "tanhshrink": lambda: odd(F.tanhshrink),
    "softsign": lambda: odd(F.softsign),
    "erf": lambda: odd(torch.erf),
    "sin": lambda: odd(torch.sin),
    "sinc": lambda: odd(torch.sinc),
    "round": lambda: odd(torch.round),
    "trunc": lambda: odd(torch.trunc),
    "floor": lambda: neither(torch.floor),
    "relu6": lambda: neither(F.relu6),
    "threshold": lambda: neither(lambda h: F.threshold(h, 0.1, 0.0)),
    "prelu": lambda: (
        Hidden(lambda h, e: e(h), 6, lambda: nn.PReLU(6), nn.Identity()), RELU,
    ),
    # The gain undoes a unit's sign behind the norm, and the sign of all units before it.
    "layer norm": lambda: (
        Hidden(lambda h, e: e(h), 6, lambda: nn.LayerNorm(6), nn.Identity()), TANH + log(2.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_order_and_function(name, generator):
    torch.manual_seed(0)
    module, log_order = OPERATIONS[name]()
    x = torch.randn(4, 3, generator=generator)
    group = derive_symmetry(module, (x,))
    assert group.log_order == pytest.approx(log_order, abs=1e-9)
    if group.factors:
        assert largest_output_change(module, group.layout, (x,), group, n=5) < ROUNDING
        assert not group.refused


INSTANCE_NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
SPATIAL = {
    "reflection": lambda h, d: F.pad(h, [1] * (2 * d), mode="reflect"),
    "replication": lambda h, d: F.pad(h, [1] * (2 * d), mode="replicate"),
    "circular": lambda h, d: F.pad(h, [1] * (2 * d), mode="circular"),
    "flip": lambda h, _d: h.flip(-1),
    "average": lambda h, d: (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[d - 1](h, 2),
    "maximum": lambda h, d: (F.max_pool1d, F.max_pool2d, F.max_pool3d)[d - 1](h, 2),
    "adaptive average": lambda h, d: (
        F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d,
    )[d - 1](h, 3),
    "adaptive maximum": lambda h, d: (
        F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d,
    )[d - 1](h, 3),
    "nearest": lambda h, _d: F.interpolate(h, scale_factor=2),
    "interpolated": lambda h, d: F.interpolate(
        h, scale_factor=2, mode=("linear", "bilinear", "trilinear")[d - 1]
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("n_dims", [1, 2, 3])
@pytest.mark.parametrize("name", SPATIAL)
def test_operations_over_space(name, n_dims, generator):
    torch.manual_seed(0)
    function = SPATIAL[name]
    module = Channels(lambda h: function(h, n_dims), n_dims)
    x = torch.randn(2, 2, *[4] * n_dims, generator=generator)
    group = symmetry_of(module, x)
    assert group.log_order == pytest.approx(RELU)
    assert not group.refused


@pytest.mark.parametrize("n_dims", [1, 2, 3])
def test_instance_norms_have_a_sign_for_each_channel(n_dims):
    def normalise(h, norm):
        return F.relu(norm(h))

    norm = INSTANCE_NORMS[n_dims]
    module = Channels(normalise, n_dims, 6, 6, lambda: norm(6, affine=True), nn.Identity())
    group = symmetry_of(module, torch.randn(2, 2, *[4] * n_dims))
    assert group.log_order == pytest.approx(TANH)
    assert not group.refused


IMAGES = {
    "bicubic": lambda: (Channels(lambda h: F.interpolate(h, scale_factor=2, mode="bicubic")), RELU),
    "roll": lambda: (Channels(lambda h: h.roll((1, 2), (2, 3))), RELU),
    "rotated": lambda: (Channels(lambda h: torch.rot90(h, 1, (2, 3))), RELU),
    "pixel shuffle": lambda: (
        Channels(lambda h: F.pixel_shuffle(h, 2), n_in=12, n_out=3), units(3),
    ),
    "pixel unshuffle": lambda: (Channels(lambda h: F.pixel_unshuffle(h, 2), n_out=24), RELU),
    "patches": lambda: (
        Channels(lambda h: F.unfold(h, 3, padding=1).view(2, 54, 4, 4), n_out=54), RELU,
    ),
    "folded patches": lambda: (
        Channels(lambda h: F.fold(F.unfold(h, 3, padding=1), 4, 3, padding=1)), RELU,
    ),
    "grid": lambda: (
        Channels(lambda h: F.grid_sample(h, torch.zeros(2, 3, 3, 2).to(h), align_corners=False)),
        RELU,
    ),
    "Fourier": lambda: (Channels(lambda h: torch.fft.rfft2(h).abs()), RELU),
    "Gram": lambda: (
        Channels(
            lambda h: torch.einsum("nchw,ndhw->ncd", h, h).flatten(1)[..., None, None], n_out=36
        ),
        RELU,
    ),
    "transposed, grouped": lambda: (
        Channels(
            lambda h, e: e(h), layer=lambda: nn.ConvTranspose2d(6, 6, 2, stride=2, groups=2)
        ),
        units(2) + 2 * units(3) + 2 * units(3, 1),
    ),
    # Each group of the second convolution takes two channels from each group of the first. The
    # groups of both may be exchanged, the two channels of each pair, and the linear outputs of
    # each group of the second.
    "channel shuffle": lambda: (
        Channels(
            lambda h, e: e[1](F.channel_shuffle(F.relu(e[0](h)), 2)),
            n_in=4,
            n_out=4,
            layer=lambda: nn.ModuleList(
                [nn.Conv2d(4, 8, 1, groups=2), nn.Conv2d(8, 4, 1, groups=2)]
            ),
        ),
        2 * units(2) + 2 * units(2) + 4 * units(2) + 2 * units(2, 1),
    ),
    # The sign of a unit may be that of its direction or that of its length.
    "weight norm": lambda: (
        Channels(
            lambda h, e: e(h),
            layer=lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 6, 1)),
        ),
        RELU + units(6, 2),
    ),
    "gates of channels": lambda: (
        Channels(
            lambda h, e: h * torch.sigmoid(e(h.mean((2, 3), keepdim=True))),
            layer=lambda: nn.Sequential(nn.Conv2d(6, 3, 1), nn.ReLU(), nn.Conv2d(3, 6, 1)),
        ),
        RELU + units(3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_operations_on_images(name, generator):
    torch.manual_seed(0)
    module, log_order = IMAGES[name]()
    x = torch.randn(2, 2, 4, 4, generator=generator)
    group = derive_symmetry(module, (x,))
    assert group.log_order == pytest.approx(log_order)
    assert largest_output_change(module, group.layout, (x,), group, n=5) < ROUNDING
    assert not group.refused


class Recurrent(nn.Module):
    """A recurrent layer on padded or packed sequences."""

    def __init__(self, kind, packed=False, enforce_sorted=True, **settings):
        super().__init__()
        self.layer = getattr(nn, kind)(3, 4, batch_first=True, **settings)
        self.packed = packed
        self.enforce_sorted = enforce_sorted
        width = self.layer(torch.zeros(1, 2, 3))[0].shape[-1]
        self.out = nn.Linear(width, 2)

    def forward(self, x, lengths=None):
        if not self.packed:
            return self.out(self.layer(x)[0])
        lengths = torch.tensor([4, 2]) if lengths is None else lengths
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=self.enforce_sorted
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.out(states)


LENGTHS = torch.tensor([4, 2])
SEQUENCES = {
    "both directions": lambda: (Recurrent("GRU", bidirectional=True), None, 2 * units(4, 1)),
    "both directions, twice": lambda: (
        Recurrent("LSTM", bidirectional=True, num_layers=2), None, 4 * units(4, 1),
    ),
    "packed": lambda: (Recurrent("GRU", packed=True), LENGTHS, units(4, 1)),
    "packed by a constant": lambda: (Recurrent("RNN", packed=True), None, units(4, 1)),
    "packed, both directions": lambda: (
        Recurrent("LSTM", packed=True, bidirectional=True), LENGTHS, 2 * units(4, 1),
    ),
    "packed, not sorted": lambda: (
        Recurrent("GRU", packed=True, enforce_sorted=False), LENGTHS.flip(0), units(4, 1),
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name, generator):
    torch.manual_seed(0)
    module, lengths, log_order = SEQUENCES[name]()
    x = torch.randn(2, 4, 3, generator=generator)
    inputs = (x,) if lengths is None else (x, lengths)
    group = symmetry_of(module, inputs)
    assert group.log_order == pytest.approx(log_order)
    assert not group.refused
    assert not group.unchecked
    assert largest_output_change(module, group.layout, inputs, group, n=3) < ROUNDING


def test_packing_works_as_before_afterwards():
    module = Recurrent("GRU", packed=True)
    x = torch.randn(2, 4, 3)
    before = module(x)
    symmetry_of(module, x)
    assert torch.equal(module(x), before)


class Bags(nn.Module):
    def __init__(self, mode, offsets):
        super().__init__()
        self.table = nn.EmbeddingBag(7, 5, mode=mode)
        self.offsets = offsets
        self.out = nn.Linear(5, 2)

    def forward(self, tokens):
        if self.offsets is None:
            return self.out(self.table(tokens))
        return self.out(self.table(tokens.flatten(), self.offsets))


@pytest.mark.parametrize(
    ("mode", "offsets", "signs"),
    [("sum", None, 1), ("mean", None, 1), ("max", None, 0), ("mean", torch.tensor([0, 4]), 1)],
)
def test_bags_of_embeddings(mode, offsets, signs):
    group = symmetry_of(Bags(mode, offsets), torch.tensor([[1, 2, 3], [0, 0, 4]]))
    assert group.log_order == pytest.approx(units(5, signs))
    assert not group.refused


class RelativePositions(nn.Module):
    """Attention of two heads with a table of biases that a buffer of integers looks up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 2))
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(4, 1)
        place = torch.arange(3)
        self.register_buffer("relative", place[:, None] - place[None] + 2)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(2, 3, 3, 2, 2).permute(2, 0, 3, 1, 4)
        bias = self.table[self.relative.view(-1)].view(3, 3, 2).permute(2, 0, 1)
        weights = torch.softmax(q @ k.mT + bias, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def test_a_table_looked_up_by_a_buffer():
    """The heads, and inside each of them the dimensions of queries and keys, and of values."""
    group = symmetry_of(RelativePositions(), torch.randn(2, 3, 4))
    assert group.log_order == pytest.approx(units(2) + 4 * units(2, 1))
    assert not group.refused


class Scaled(nn.Module):
    """A scalar multiplies a layer whose units pass a relu with a bias of their own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 1, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.second(F.relu(self.first(x))) * self.scale


def test_a_scalar_and_a_layer_change_sign_together():
    group = symmetry_of(Scaled(), torch.randn(5, 3))
    assert group.log_order == pytest.approx(units(4) + log(2.0))
    assert group.descriptions[-1] == "one sign of all entries of scale, second.weight"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda h: h.flip(1), "flip along an axis of units"),
        (lambda h: h.roll(1, 1), "index_select along an axis of units"),
        (lambda h: h[:, PLACES], "index of chosen places"),
        (lambda h: h.cumsum(1), "cumsum along an axis of units"),
        (lambda h: h.sort(1).indices.to(h), "sort with the places along an axis of units"),
    ],
)
def test_lost_units_are_named(function, reason):
    """Operations whose rule fixes all units."""
    group = symmetry_of(Hidden(function), torch.randn(6, 3))
    assert group.refused == (reason,)
    assert not any(getattr(factor, "permute", False) for factor in group.factors)


class StackedHeads(nn.Module):
    """Layers whose outputs are stacked along a new axis. They are exchanged as a whole, too."""

    def __init__(self, combine, n_out):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(3, 4) for _ in range(3)])
        self.experts = nn.Parameter(torch.randn(3, 4, 2))
        self.combine = combine
        self.out = nn.Linear(n_out, 1)

    def forward(self, x):
        return self.out(self.combine([torch.tanh(head(x)) for head in self.heads], self.experts))


@pytest.mark.parametrize(
    ("combine", "n_out", "log_order"),
    [
        (lambda heads, _: torch.stack(heads, 1).flatten(1), 12, units(3) + 3 * units(4, 1)),
        (lambda heads, _: torch.stack(heads, 2).flatten(1), 12, units(3) + 3 * units(4, 1)),
        (
            lambda heads, _: torch.cat(heads, 1).view(-1, 3, 4).mT.flatten(1),
            12, units(3) + 3 * units(4, 1),
        ),
        (lambda heads, _: torch.stack(heads, 1).sum(1), 4, units(3) + units(4, 1)),
        (
            lambda heads, experts: torch.einsum("neh,eho->no", torch.stack(heads, 1), experts),
            2, units(3) + 3 * units(4, 1) + units(2, 1),
        ),
        # Parts that are the same units stay the same.
        (lambda heads, _: torch.stack([heads[0], 2.0 * heads[0]], 1).flatten(1), 8, units(4, 1)),
    ],
)  # fmt: skip
def test_stacked_units_differ_along_the_new_axis(combine, n_out, log_order, generator):
    module = StackedHeads(combine, n_out)
    x = torch.randn(6, 3, generator=generator)
    group = derive_symmetry(module, (x,))
    assert group.log_order == pytest.approx(log_order)
    assert largest_output_change(module, group.layout, (x,), group, n=3) < ROUNDING


class RotaryAttention(nn.Module):
    """Attention of two heads whose queries and keys rotate with their position.

    Dimensions are paired with those of the other half or with their neighbours. With ``merged``
    the heads are merged and split again behind the rotation. Each key and value serves
    ``n_queries``.
    """

    def __init__(self, pairs, merged=False, n_queries=1):
        super().__init__()
        self.pairs = pairs
        self.merged = merged
        self.n_queries = n_queries
        sizes = (8 * n_queries, 8, 8)
        self.layers = nn.ModuleList([nn.Linear(5, size) for size in sizes])
        self.out = nn.Linear(8 * n_queries, 2)
        self.register_buffer("angle", torch.arange(3.0)[:, None] * torch.tensor([1.0, 0.1]))

    def rotate(self, x):
        cos, sin = self.angle.cos(), self.angle.sin()
        if self.pairs == "halves":
            cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
            return x * cos + torch.cat([-x[..., 2:], x[..., :2]], -1) * sin
        if self.pairs == "chunks":
            first, second = x.chunk(2, -1)
            return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
        if self.pairs == "neighbours":
            first, second = x.unflatten(-1, (2, 2)).unbind(-1)
        else:
            first, second = x[..., ::2], x[..., 1::2]
        pairs = [first * cos - second * sin, first * sin + second * cos]
        if self.pairs != "written":
            return torch.stack(pairs, -1).flatten(-2)
        rotated = torch.empty_like(x)
        rotated[..., ::2], rotated[..., 1::2] = pairs
        return rotated

    def forward(self, x):
        q, k, v = (layer(x).unflatten(2, (-1, 4)).transpose(1, 2) for layer in self.layers)
        q, k = self.rotate(q), self.rotate(k)
        if self.merged:
            q, k = (part.transpose(1, 2).flatten(2) for part in (q, k))
            q, k = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in (q, k))
        k, v = (part.repeat_interleave(self.n_queries, 1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("pairs", ["halves", "chunks", "neighbours", "strided", "written"])
def test_each_rotating_pair_has_a_sign(pairs, merged, generator):
    """Two heads, each with a sign of both pairs and with four dimensions of the values."""
    module = RotaryAttention(pairs, merged)
    x = torch.randn(2, 3, 5, generator=generator)
    group = symmetry_of(module, x)
    assert group.log_order == pytest.approx(units(2) + 2 * (2 * log(2.0) + units(4, 1)))
    assert group.refused == ()
    assert largest_output_change(module, group.layout, (x,), group, n=3) < ROUNDING


def test_queries_that_share_a_key_share_its_signs(generator):
    """Two keys for four queries, as in Llama: the angles unify pairs before heads are unified."""
    module = RotaryAttention("halves", n_queries=2)
    x = torch.randn(2, 3, 5, generator=generator)
    group = symmetry_of(module, x)
    within_head = units(2) + 2 * log(2.0) + units(4, 1)
    assert group.log_order == pytest.approx(units(2) + 2 * within_head)
    assert largest_output_change(module, group.layout, (x,), group, n=3) < ROUNDING


def rearrange(h):
    """Transpose the grid of units, as einops does it with "n (a b) -> n (b a)"."""
    return h.view(len(h), 2, -1).mT.reshape(len(h), -1)


@pytest.mark.parametrize(
    ("module", "log_order"),
    [
        (Hidden(rearrange), TANH),
        (Hidden(lambda h: F.relu(rearrange(h)), activation=nn.Identity()), RELU),
    ],
)
def test_all_units_of_a_rearranged_grid_are_exchanged(module, log_order, generator):
    x = torch.randn(5, 3, generator=generator)
    group = derive_symmetry(module, (x,))
    assert group.log_order == pytest.approx(log_order)
    assert group.refused == ()
    assert largest_output_change(module, group.layout, (x,), group, n=3) < ROUNDING


class UnitsOnAxes(nn.Module):
    """Units that fill several axes of each parameter; ``order`` permutes the axes of the last."""

    def __init__(self, shape, order):
        super().__init__()
        self.order = order
        self.weight, self.bias = (nn.Parameter(torch.randn(shape)) for _ in range(2))
        self.out = nn.Parameter(torch.randn(shape).permute(order).contiguous())

    def forward(self, x):
        h = torch.tanh(x.view(-1, *[1] * self.weight.dim()) * self.weight + self.bias)
        return (h.permute(0, *[k + 1 for k in self.order]) * self.out).flatten(1).sum(1)


@pytest.mark.parametrize(
    ("shape", "order"), [((3, 4), (0, 1)), ((3, 4), (1, 0)), ((2, 3, 2), (2, 0, 1))]
)
def test_units_on_several_axes_are_all_exchanged(shape, order, generator):
    module = UnitsOnAxes(shape, order)
    x = torch.randn(5, 1, generator=generator)
    group = symmetry_of(module, x)
    assert group.log_order == pytest.approx(units(12, 1))
    assert group.refused == ()
    assert largest_output_change(module, group.layout, (x,), group, n=3) < ROUNDING


def test_units_on_two_axes_that_share_a_parameter_of_one(generator):
    """Each row of units has one bias: rows are exchanged, and the units inside each of them."""
    module = UnitsOnAxes((3, 4), (0, 1))
    module.bias = nn.Parameter(torch.randn(3, 1))
    x = torch.randn(5, 1, generator=generator)
    group = symmetry_of(module, x)
    assert group.log_order == pytest.approx(units(3, 1) + 3 * units(4))
    assert largest_output_change(module, group.layout, (x,), group, n=3) < ROUNDING


def test_exchanges_of_columns_that_views_regroup(generator):
    """Eight units as two rows of four before a layer: its four columns are a grid of 2 x 2."""
    module = Hidden(
        lambda h, layer: layer(h.view(-1, 2, 4).mT.reshape(-1, 2, 4)).flatten(1),
        layer=lambda: nn.Linear(4, 3),
        activation=F.relu,
    )
    module.first = nn.Linear(3, 8)
    x = torch.randn(5, 3, generator=generator)
    group = symmetry_of(module, x)
    assert group.refused == ()
    assert group.log_order == pytest.approx(units(2) + units(4) + units(3, 1))
    assert largest_output_change(module, group.layout, (x,), group, n=3) < ROUNDING


class RegroupedRecurrence(nn.Module):
    """Six recurrent units, which a view regroups to 2 x 3 between the steps."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.recurrent = nn.Linear(6, 6)
        self.out = nn.Linear(6, 1)

    def forward(self, x):
        h = torch.tanh(self.first(x)).view(-1, 2, 3)
        for _ in range(2):
            h = torch.tanh(self.recurrent(h.flatten(1))).view(-1, 2, 3)
        return self.out(h.flatten(1))


class RecurrenceWithRows(RegroupedRecurrence):
    """The same units, of which each row has a scale, so that rows stay together."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2, 1))

    def forward(self, x):
        h = torch.tanh(self.first(x)).view(-1, 2, 3)
        for _ in range(2):
            h = torch.tanh(self.recurrent(h.flatten(1))).view(-1, 2, 3) * self.scale
        return self.out(h.flatten(1))


def test_exchanges_of_recurrent_units_that_views_regroup_are_named():
    (lost,) = symmetry_of(RegroupedRecurrence(), torch.zeros(5, 3)).refused
    assert lost.startswith("exchanges among all of 2 x 3 units that views regroup: ")
    assert symmetry_of(RecurrenceWithRows(), torch.zeros(5, 3)).refused == ()


def test_parameters_without_effect_have_no_symmetry():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(3, 4)
            self.unused = nn.Linear(3, 4)

        def forward(self, x):
            return torch.tanh(self.used(x)).sum(1)

    assert symmetry_of(Unused(), torch.zeros(5, 3)).log_order == pytest.approx(units(4))


def test_signs_that_are_lost_are_named():
    """Signs of fixed positions, which a view splits between parts of other lengths."""

    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 6)
            self.out = nn.Linear(6, 2)

        def forward(self, x):
            h = torch.tanh(self.first(x)) * torch.linspace(1.0, 2.0, 6)
            h = torch.cat([h[:, :2], h[:, 2:]], 1).view(-1, 2, 3)
            return self.out(h.flatten(1))

    group = symmetry_of(Split(), torch.zeros(5, 3))
    assert group.refused == ("view of axes whose parts differ",)


@pytest.mark.parametrize("name", PUBLIC_CODE)
def test_modules_that_resemble_public_code(name):
    torch.manual_seed(0)
    make, inputs, log_order = PUBLIC_CODE[name]
    module = make()
    group = derive_symmetry(module, inputs)
    assert group.log_order == pytest.approx(log_order)
    assert largest_output_change(module, group.layout, inputs, group, n=3) < ROUNDING
