"""Frozen parameters and buffers of a module keep their values in every estimator that takes one."""

import copy
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

import skbayes_sym as sk
from skbayes_sym.models import ColumnShift, ModuleNetwork

_STEPS = {"max_iter": 6, "tol": None, "random_state": 0}
_CHAINS = {
    "n_chains": 2, "n_draws": 4, "random_state": 0, "remove_symmetries": False,
    "sampler": sk.Chains(sk.HMC(max_leapfrog=4), init="prior", n_warmup=4),
}  # fmt: skip
_ADAM = {**_STEPS, "optimizer": sk.EvidenceAdam(updates=sk.Updates(3))}
_SHIFTED = {**_ADAM, "invariances": [ColumnShift(columns=[0])]}
REGRESSORS = {
    "Laplace": lambda net: sk.LaplaceRegressor(network=net, **_ADAM),
    "DeepEnsemble": lambda net: sk.DeepEnsembleRegressor(network=net, n_members=2, **_STEPS),
    "SymmetrizedVI": lambda net: sk.SymmetrizedVIRegressor(network=net, **_STEPS),
    "MCMC": lambda net: sk.MCMCRegressor(network=net, **_CHAINS),
    "Laplace, last layer": lambda net: sk.LaplaceRegressor(
        network=net, **{**_ADAM, "optimizer": sk.EvidenceAdam(layers="last")}
    ),
    "LILA": lambda net: sk.LILARegressor(network=net, **_SHIFTED),
}
CLASSIFIERS = {
    "Laplace": lambda net: sk.LaplaceClassifier(network=net, **_ADAM),
    "DeepEnsemble": lambda net: sk.DeepEnsembleClassifier(network=net, n_members=2, **_STEPS),
    "SymmetrizedVI": lambda net: sk.SymmetrizedVIClassifier(network=net, **_STEPS),
    "MCMC": lambda net: sk.MCMCClassifier(network=net, **_CHAINS),
    "LILA": lambda net: sk.LILAClassifier(network=net, **_SHIFTED),
}
# The first layer is pretrained: it sees what no random layer of four units would.
FROZEN = {
    "first layer": ("0.weight", "0.bias"),
    "one bias": ("2.bias",),
    "weights of the first layer": ("0.weight",),
    "last layer": ("4.weight", "4.bias"),
}


class Shifted(nn.Sequential):
    """Has a buffer that its function uses."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.register_buffer("shift", torch.full((1,), 0.25))

    def forward(self, x):
        return super().forward(x) + self.shift


def module(n_outputs, frozen):
    torch.manual_seed(0)
    net = Shifted(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, n_outputs))
    for name in frozen:
        net.get_parameter(name).requires_grad_(False)
    return net


def weights(model):
    """Weight vectors of a fitted model, (n, P)."""
    if hasattr(model, "samples_"):
        return torch.as_tensor(np.asarray(model.samples_)).flatten(0, -2)
    return model.posterior_.sample(3, generator=torch.Generator().manual_seed(0))


def check(model, net, y, generator):
    X = torch.randn(len(y), 3, generator=generator, dtype=torch.float64)
    before = copy.deepcopy(net.state_dict())
    model.fit(X.numpy(), y)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    trained = {n: p.numel() for n, p in net.named_parameters() if p.requires_grad}
    network = model.network_
    assert list(network.layout.shapes) == list(trained)
    theta = weights(model)
    assert theta.shape[-1] == sum(trained.values())
    # The module with the trained values in place, and the frozen ones as they were.
    values = network.layout.unflatten(theta[-1].double())
    changed = copy.deepcopy(net).double()
    changed.load_state_dict({**changed.state_dict(), **values})
    torch.testing.assert_close(network.forward(theta[-1].double(), X), changed(X))
    assert np.isfinite(np.asarray(model.predict(X.numpy()), dtype=float)).all()
    group = network.symmetry()
    assert group.layout == network.layout
    g = group.sample((), generator=generator)
    moved = group.act(g, theta[-1].double())
    torch.testing.assert_close(network.forward(moved, X), changed(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name, frozen, generator):
    net = module(1, frozen)
    y = np.sin(np.arange(20.0))
    check(REGRESSORS[name](net), net, y, generator)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name, generator):
    net = module(3, FROZEN["first layer"])
    check(CLASSIFIERS[name](net), net, np.arange(21) % 3, generator)


def test_frozen_layers_may_be_of_any_kind(generator):
    """Only what is trained must be linear."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1))
    net[:2].requires_grad_(False)
    network = ModuleNetwork(net, (3,))
    assert list(network.layout.shapes) == ["3.weight", "3.bias"]
    x = torch.randn(5, 3, generator=generator)
    theta = nn.utils.parameters_to_vector(net[3].parameters()).detach()
    torch.testing.assert_close(network.forward(theta, x), net(x).detach())


def test_nothing_to_train_is_refused_in_words():
    with pytest.raises(ValueError, match="are frozen"):
        ModuleNetwork(nn.Linear(3, 1).requires_grad_(False), (3,))
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    for layer in (net[0], net[2]):
        layer.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="no Linear or Conv2d layer whose weights are trained"):
        sk.LaplaceRegressor(network=net).fit(np.zeros((4, 3)), np.arange(4.0))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_outputs_that_are_no_logits_are_warned_about(name):
    torch.manual_seed(0)
    layers = nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)
    X = np.random.default_rng(0).normal(size=(12, 3))
    y = np.arange(12) % 3
    for last in nn.Softmax(1), nn.Sigmoid():
        with pytest.warns(UserWarning, match="outputs of network lie between -1 and 1"):
            CLASSIFIERS[name](nn.Sequential(*layers, last)).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        CLASSIFIERS[name](nn.Sequential(*layers)).fit(X, y)
