"""Modules as networks: the same function, recorded; and what is refused."""

import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from skbayes_sym.models.networks.convolutional import cnn, resnet, wide_resnet
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.networks.modules import ModuleNetwork, UnsupportedModuleError
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry import symmetry_of

NETWORKS = {
    "mlp": MLP(3, (4, 2), 2, TANH),
    "module": ModuleNetwork(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)), (3,)
    ),
    "cnn": cnn((2, 9, 8), 3),
    "resnet": resnet((1, 8, 8), 2),
    "wide-resnet": wide_resnet((2, 8, 8), 3, 10, 1),
}

every_network = pytest.mark.parametrize("name", NETWORKS)


def at_random(network, generator):
    """Weights of order one everywhere, also where training starts from zero."""
    theta = network.init(1, generator=generator)[0]
    return theta + 0.1 * torch.randn(theta.shape, generator=generator, dtype=torch.float64)


@every_network
def test_recording_is_the_forward_pass(name, generator):
    network = NETWORKS[name]
    theta = at_random(network, generator)
    x = torch.randn(5, *network.input_shape, generator=generator, dtype=torch.float64)
    recording = network.record(theta, x)
    assert_close(recording.outputs.detach(), network.forward(theta, x))
    params = network.layout.unflatten(theta)
    for layer, inputs, z in zip(
        network.weight_layers, recording.inputs, recording.preactivations, strict=True
    ):
        # z = W patches + b at every position: the two views of a layer belong together
        product = layer.patches(inputs) @ params[layer.weight].flatten(1).T
        if layer.bias is not None:
            product = product + params[layer.bias]
        assert_close(layer.positions(z).detach(), product.detach())
        assert z.requires_grad


@every_network
def test_batches_of_weights_and_float32(name, generator):
    network = NETWORKS[name]
    theta = torch.stack([at_random(network, generator) for _ in range(2)])
    x = torch.randn(3, *network.input_shape, generator=generator, dtype=torch.float64)
    both = network.forward(theta, x)
    assert both.shape[:2] == (2, 3)
    assert_close(both[1], network.forward(theta[1], x))
    assert network.forward(theta[0].float(), x.float()).dtype == torch.float32


@every_network
def test_initial_weights_follow_the_generator_and_nothing_global_moves(name):
    network = NETWORKS[name]
    before = torch.get_rng_state()
    a, b, c = (network.init(1, generator=generator_from(s)) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    cnn((1, 4, 4), 2)
    resnet((1, 4, 4), 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert a.dtype == torch.float64


@every_network
def test_networks_pickle_without_weights(name, generator):
    network = NETWORKS[name]
    payload = pickle.dumps(network)
    assert b"_rebuild_tensor" not in payload
    theta = at_random(network, generator)
    x = torch.randn(2, *network.input_shape, generator=generator, dtype=torch.float64)
    assert torch.equal(pickle.loads(payload).forward(theta, x), network.forward(theta, x))


def test_activations_in_place_leave_the_recording_alone(generator):
    def build(inplace):
        return nn.Sequential(
            nn.Linear(3, 4), nn.ReLU(inplace=inplace), nn.Linear(4, 4), nn.ReLU(inplace=inplace),
            nn.Linear(4, 2),
        )  # fmt: skip

    initial = {n: (0.0, 1.0) for n, _ in build(False).named_parameters()}
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    found = []
    for module in map(build, (False, True)):
        network = ModuleNetwork(module, (3,), initial)
        recording = network.record(network.init(1, generator=generator_from(0))[0], x)
        found.append(torch.autograd.grad(recording.outputs.sum(), recording.preactivations))
    assert_close(*found)


def test_the_given_module_is_left_alone():
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    before = {n: p.clone() for n, p in module.named_parameters()}
    network = ModuleNetwork(module, (2,))
    network.record(network.init(1, generator=generator_from(0))[0].float(), torch.ones(4, 2))
    assert module.training
    for n, p in module.named_parameters():
        assert torch.equal(p, before[n])
    size = float(before["0.weight"].detach().square().mean().sqrt())
    assert network.initial["0.weight"] == (0.0, pytest.approx(size))


class Scaled(nn.Module):
    """A residual layer with a multiplier that is fitted."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.multiplier = nn.Parameter(torch.tensor(0.7))
        self.slope = nn.PReLU()
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(x + self.multiplier * self.slope(self.layer(x)))


def test_an_interrupt_leaves_no_hook_on_the_module(monkeypatch, generator):
    """Also one that comes before all layers have theirs: the next fit would count calls twice."""
    layers = nn.Linear(3, 4), nn.Linear(4, 2)
    network = ModuleNetwork(nn.Sequential(layers[0], nn.Tanh(), layers[1]), (3,))
    theta, register = network.init(1, generator=generator)[0], nn.Linear.register_forward_hook
    x = torch.zeros(5, 3, dtype=torch.float64)

    def interrupted(layer, hook):
        if layer.out_features == 2:
            raise KeyboardInterrupt
        return register(layer, hook)

    monkeypatch.setattr(nn.Linear, "register_forward_hook", interrupted)
    with pytest.raises(KeyboardInterrupt):
        network.record(theta, x)
    assert not any(layer._forward_hooks for layer in network.module.modules())


def test_scalars_start_at_their_own_values():
    network = ModuleNetwork(Scaled(), (3,))
    starts = network.init(200, generator=generator_from(0))
    params = network.layout.unflatten(starts)
    assert_close(params["multiplier"], torch.full((200,), 0.7).double())
    assert_close(params["slope.weight"], torch.full((200, 1), 0.25, dtype=torch.float64))
    weights = params["layer.weight"]
    size = network.initial["layer.weight"][1]
    # 1800 normal draws: mean and variance at 5 standard errors.
    assert abs(float(weights.mean())) < 5 * size / 1800**0.5
    assert float(weights.var()) == pytest.approx(size**2, rel=5 * (2 / 1800) ** 0.5)
    assert [layer.weight for layer in network.weight_layers] == ["layer.weight", "head.weight"]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(self.layer(x))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "1 is BatchNorm1d.*couples the rows"),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), "1 is Dropout.*random"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)), "groups=2"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")), "reflect"),
        (nn.Sequential(nn.Linear(2, 2), nn.PReLU(2)), r"PReLU with parameters \['weight'\]"),
        (nn.GRUCell(2, 2), "GRUCell"),
        (nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(2, 1)), "1 is MultiheadAttention"),
    ],
    ids=["batchnorm", "dropout", "groups", "reflect", "prelu", "gru", "attention"],
)
def test_unsupported_layers_are_named_with_the_reason(module, message):
    with pytest.raises(UnsupportedModuleError, match=message):
        ModuleNetwork(module, (2,))


def test_shared_and_silent_layers_are_refused():
    twice = ModuleNetwork(Twice(), (2,))
    theta = twice.init(1, generator=generator_from(0))[0]
    with pytest.raises(UnsupportedModuleError, match="'layer' is called more than once"):
        twice.record(theta, torch.ones(1, 2).double())
    module = nn.Sequential(nn.Linear(2, 2))
    module.add_module("spare", nn.Linear(2, 2))
    module.forward = lambda x: x
    silent = ModuleNetwork(module, (2,))
    with pytest.raises(UnsupportedModuleError, match="never called"):
        silent.record(silent.init(1, generator=generator_from(0))[0], torch.ones(1, 2).double())


def test_initial_values_must_be_a_mapping():
    with pytest.raises(TypeError, match="initial must map names of parameters"):
        ModuleNetwork(nn.Linear(2, 1), (2,), torch.eye(2))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, is_frozen):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.first.weight.requires_grad_(not is_frozen)
        self.output = nn.Linear(3, 1)

    def forward(self, x):
        return self.output(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_tied_parameters_are_refused_unless_they_are_frozen():
    with pytest.raises(UnsupportedModuleError, match=r"second\.weight .* same tensor as first"):
        ModuleNetwork(Tied(is_frozen=False), (3,))
    module = Tied(is_frozen=True)
    network = ModuleNetwork(module, (3,))
    assert "second.weight" not in network.layout.shapes
    assert network.symmetry().log_order == symmetry_of(module, torch.zeros(2, 3)).log_order
    theta = network.layout.flatten({n: p for n, p in module.named_parameters() if p.requires_grad})
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(network.forward(theta.detach(), x), module(x))
