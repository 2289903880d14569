"""Starts at modes: stationary there, with the damped curvature by autograd as the metric."""

import pytest
import torch
from torch.autograd.functional import hessian as hessian_of
from torch.autograd.functional import jacobian as jacobian_of
from torch.testing import assert_close

from skbayes_sym.laplace.starting_points import (
    StartingModes,
    find_classification_modes,
    find_distinct_modes,
    find_regression_modes,
)
from skbayes_sym.models import MLP, TANH, Categorical, Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import GroupScalePrior, LayerScales

SCALE = 0.75  # exact in any precision


def data(generator, y):
    x = torch.randn(len(y), 2, generator=generator, dtype=torch.float64)
    return Data(x, y, 0.5 + torch.rand(len(y), generator=generator, dtype=torch.float64))


@pytest.mark.long
@pytest.mark.parametrize("learn", [True, False])
def test_regression(learn, generator):
    network = MLP(2, (3,), 2, TANH)
    rows = data(generator, torch.randn(30, 2, generator=generator, dtype=torch.float64))
    likelihood = Gaussian(torch.tensor([-0.5, 0.1], dtype=torch.float64), learn=learn)
    prior = GroupScalePrior.fixed(torch.full((network.layout.n_params,), SCALE).double())
    starts = find_regression_modes(network, likelihood, rows, prior, n=3, seed=0)
    p = network.layout.n_params
    theta, noise = starts.position[:, :p], likelihood.noise_scale.log().expand(3, 2)
    if learn:
        noise = starts.position[:, p:]
        spread = (2.0 * rows.weight.sum()).rsqrt() * torch.eye(2).double()
        assert_close(starts.metric[:, p:, p:], spread.expand(3, 2, 2))
        assert bool((starts.metric[:, :p, p:] == 0).all())
        assert_close(starts.spread[:, p:], spread[0, 0].expand(3, 2))
    for k in range(3):
        jacobian = jacobian_of(lambda t: network.forward(t, rows.x), theta[k])
        precision = (-2.0 * noise[k]).exp()
        curvature = torch.einsum("n,o,nop,noq->pq", rows.weight, precision, jacobian, jacobian)
        curvature.diagonal().add_(1.0 / SCALE**2)
        assert_close(starts.spread[k, :p], curvature.diagonal().rsqrt())
        curvature.diagonal().add_(999.0 / SCALE**2)
        inverse = starts.metric[k, :p, :p] @ starts.metric[k, :p, :p].T
        assert_close(inverse @ curvature, torch.eye(p).double(), rtol=0, atol=1e-8)
        where = torch.stack([theta[k], torch.randn(p, generator=generator).double()])
        where.requires_grad_()
        square = (rows.y - network.forward(where, rows.x)).square()
        value = torch.einsum("n,o,bno->b", rows.weight, precision, square).sum()
        (slope,) = torch.autograd.grad(value + (where / SCALE).square().sum(), where)
        settled, elsewhere = slope.abs().amax(1)
        assert float(settled) < 0.02 * float(elsewhere)


def test_classes_and_chains_in_turn(generator):
    network = MLP(2, (2,), 3, TANH)
    rows = data(generator, torch.randint(3, (30,), generator=generator))
    prior = LayerScales(8.0, 64.0).bind(network.layout)
    starts = find_classification_modes(network, rows, prior, n=2, seed=0)
    position, metric = starts.chains(5, torch.zeros(0))
    assert position.dtype == metric.cholesky.dtype == torch.float32
    assert torch.equal(position[4], position[0])
    assert torch.equal(metric.cholesky[3], metric.cholesky[1])

    def misfit(theta):
        log_p = Categorical().log_prob(network.forward(theta, rows.x), rows.y)
        return -(log_p @ rows.weight)

    # The metric undoes the curvature where the damping doesn't count, and is never wider.
    for theta, root in zip(starts.position, starts.metric, strict=True):
        hessian = hessian_of(misfit, theta)
        within = torch.linalg.eigvalsh(root.T @ hessian @ root)
        assert float(within.max()) < 1.5


def test_searches_go_on_while_modes_are_met_once(generator):
    """Copies are one mode; the best, which the third search finds, is not missed."""
    group = MLP(1, (2,), 1, TANH).symmetry()
    place = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    score, calls = torch.tensor([0.0, 50.0, 60.0]).double(), []

    def search(n, seed):
        calls.append(n)
        which = torch.zeros(n, dtype=torch.int64)
        which[0] = len(calls) % 2  # met once in the first search, twice after the third
        which[1:3] = 2 if len(calls) == 3 else 0
        copies = group.act(group.sample((n,), generator=generator), place[which])
        return StartingModes(copies, copies, copies, score[which])

    found = find_distinct_modes(search, group, n=16, n_extra=640, seed=0)
    assert calls == [16, 64, 64]
    assert found.score.tolist() == [60.0, 50.0]
    assert_close(group.align(found.position, place[2])[0][0], place[2])
    calls.clear()
    assert find_distinct_modes(search, group, n=16, n_extra=100, seed=0).score.tolist() == [50.0]
    assert calls == [16, 64]
