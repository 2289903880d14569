"""Variances and leverages against the dense Gauss-Newton matrix, by autograd."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from skbayes_sym.inference import map as module
from skbayes_sym.inference.map import chosen_rows, curvature_numbers, determined
from skbayes_sym.models import MLP, TANH, BaseNetwork, ParamLayout
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.modules import ModuleNetwork


@dataclass(frozen=True)
class Sines(BaseNetwork):
    """A network whose layers nobody sees."""

    n_outputs: int

    @property
    def layout(self):
        return ParamLayout({"w": (4, 2), "a": (self.n_outputs, 4)})

    def init(self, n, *, generator):
        return torch.randn(n, self.layout.n_params, generator=generator, dtype=torch.float64)

    def forward(self, theta, x):
        weights = self.layout.unflatten(theta)
        return torch.sin(x @ weights["w"].mT) @ weights["a"].mT


def network_of(kind, n_outputs):
    if kind == "mlp":
        return MLP(2, (4,), n_outputs, TANH)
    if kind == "own":
        return Sines(n_outputs)
    layers = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, n_outputs))
    return ModuleNetwork(layers, (2,))


LIKELIHOODS = {
    "one number": (Gaussian(torch.tensor([-0.7], dtype=torch.float64)), 1),
    "two numbers": (Gaussian(torch.tensor([-0.7, 0.4], dtype=torch.float64)), 2),
    "counts": (Poisson(), 1),
    "classes": (Categorical(), 3),
}


def data_of(name, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    n_outputs = LIKELIHOODS[name][1]
    y = torch.randn(n, n_outputs, generator=generator, dtype=torch.float64)
    if name == "counts":
        y = y.exp().round()
    if name == "classes":
        y = y.argmax(1)
    return Data(x, y, torch.rand(n, generator=generator, dtype=torch.float64) + 0.5)


def at(network, seed=1):
    theta = network.init(1, generator=torch.Generator().manual_seed(seed))[0]
    return theta, torch.linspace(0.3, 2.0, len(theta), dtype=torch.float64)


@pytest.mark.parametrize("n", [5, 40], ids=["more weights", "more rows"])
@pytest.mark.parametrize("kind", ["mlp", "module", "own"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_against_the_dense_matrix(name, kind, n):
    likelihood, n_outputs = LIKELIHOODS[name]
    network, data = network_of(kind, n_outputs), data_of(name, n)
    theta, scale = at(network)
    found = determined(network, likelihood, theta, data, scale)
    jacobian = torch.func.jacrev(lambda t: network.forward(t, data.x))(theta)
    outputs = network.forward(theta, data.x)

    def curvature_of(i):
        def log_prob(f):
            return likelihood.log_prob(f[None], data.y[i : i + 1]).sum()

        return -torch.func.jacrev(torch.func.jacrev(log_prob))(outputs[i])

    curvature = torch.stack([curvature_of(i) for i in range(n)]) * data.weight[:, None, None]
    system = torch.einsum("nkp,nkj,njq->pq", jacobian, curvature, jacobian)
    covariance = torch.linalg.inv(system + (scale**-2).diag())
    torch.testing.assert_close(found.variance, covariance.diagonal())
    spread = torch.einsum("nkp,pq,njq->nkj", jacobian, covariance, jacobian)
    taken = torch.einsum("nkj,njk->", spread, curvature)
    torch.testing.assert_close(found.taken.sum(), taken)
    torch.testing.assert_close(found.taken.sum(), (1.0 - found.variance / scale**2).sum())
    if "number" in name:  # of every target alone
        by_target = torch.einsum("nkk,nkk->k", spread, curvature)
        torch.testing.assert_close(found.taken, by_target)


@pytest.mark.parametrize("name", ["one number", "classes"])
def test_weights_are_repetitions(name):
    likelihood, n_outputs = LIKELIHOODS[name]
    network, data = network_of("mlp", n_outputs), data_of(name, 6)
    theta, scale = at(network)
    times = torch.tensor([1, 3, 2, 1, 2, 5])
    rows = Data(*(t.repeat_interleave(times, 0) for t in data))
    weighted = determined(network, likelihood, theta, data._replace(weight=times.double()), scale)
    repeated = determined(
        network, likelihood, theta, rows._replace(weight=torch.ones(14).double()), scale
    )
    for one, other in zip(weighted, repeated, strict=True):
        torch.testing.assert_close(one, other)


def test_an_even_selection_stands_for_all(monkeypatch):
    """Rows next to each other that are equal: half of them say what all do."""
    likelihood, _ = LIKELIHOODS["one number"]
    network, data = network_of("mlp", 1), data_of("one number", 21)
    data = data._replace(weight=torch.ones(21).double())
    twice = Data(*(t.repeat_interleave(2, 0) for t in data))
    theta, scale = at(network)
    whole = determined(network, likelihood, theta, twice, scale)
    p = len(theta)
    monkeypatch.setattr(module, "_MOST_WORK", 21.0 * p**2)
    assert len(chosen_rows(42, 1, p)) == 21
    assert curvature_numbers(42, 1, p) == 21 * p + p**2
    half = determined(network, likelihood, theta, twice, scale)
    torch.testing.assert_close(half.variance, whole.variance, rtol=0.05, atol=0.0)


def test_how_many_rows_are_within_the_work():
    """``n p min(n, p)`` multiplications, n rows times outputs; one row at least."""
    for n, k, p in [(1000, 1, 601), (500, 10, 3760), (10**6, 1, 300), (10**5, 3, 10**7)]:
        size = len(chosen_rows(n, k, p))
        assert 1 <= size <= n
        work = size * k * p * min(size * k, p)
        assert work <= module._MOST_WORK or size == 1
        if 1 < size < n:  # and not much fewer
            assert work > 0.75 * module._MOST_WORK
    assert len(chosen_rows(1000, 1, 601)) == 1000
