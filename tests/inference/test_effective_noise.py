"""Noise after the weights have taken their share, against linear regression."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.effective_noise import effective_noise, leverages_of, noise_nodes
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian

ONE = torch.ones(1, dtype=torch.float64)


def data_of(n, d, n_targets=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    y = x @ rng.standard_normal((d, n_targets)) + 0.5 * rng.standard_normal((n, n_targets))
    return Data(*(torch.as_tensor(a) for a in (x, y, np.ones(n))))


def started(n_inputs, width, n_targets):
    network = MLP(n_inputs, (width,), n_targets, TANH)
    return network, network.init(1, generator=torch.Generator().manual_seed(0))[0]


@pytest.mark.parametrize("n_targets", [1, 2])
def test_under_a_wide_prior_it_is_the_unbiased_estimate(n_targets):
    data, network = data_of(30, 8, n_targets), MLP(8, (), n_targets, TANH)
    design = torch.cat([data.x, ONE.expand(30, 1)], 1)
    coef, squares, *_ = torch.linalg.lstsq(design, data.y, driver="gelsd")
    theta = torch.cat([coef[:-1].T.flatten(), coef[-1]])
    noise = effective_noise(network, theta, data, torch.full_like(theta, 1e4), ONE)
    assert_close(noise.std, (squares / (30 - 9)).sqrt(), rtol=1e-5, atol=0.0)
    assert_close(noise.freedoms, 9.0 * ONE.expand(n_targets), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_rows_and_weights_give_the_same(n_targets):
    """Eight rows of a network with more weights than that, and the same rows three times."""
    data, (network, theta) = data_of(8, 3, n_targets), started(3, 6, n_targets)
    scale = torch.ones_like(theta)
    weight = torch.full((8,), 10.0, dtype=torch.float64)
    few = effective_noise(network, theta, data._replace(weight=weight), scale, ONE)
    repeated = Data(*(t.repeat_interleave(10, 0) for t in data))
    many = effective_noise(network, theta, repeated, scale, ONE)
    assert_close(few.std, many.std)
    assert_close(few.freedoms, many.freedoms)


@pytest.mark.parametrize(("n", "n_targets"), [(60, 1), (8, 1), (60, 2), (8, 2)])
def test_leverages_are_the_diagonal_of_the_hat_matrix(n, n_targets):
    data, (network, theta) = data_of(n, 3, n_targets), started(3, 4, n_targets)
    scale = torch.linspace(0.3, 2.0, len(theta), dtype=torch.float64)
    jacobian = outputs_and_jacobian(network, theta[None], data.x)[1][0]  # (n, T, P)
    _, at = leverages_of(network, theta, data, scale)
    for beta in (1e-6, 0.5, 1e4):
        precision = beta * torch.arange(1.0, n_targets + 1.0, dtype=torch.float64)
        curvature = torch.einsum("t,ntp,ntq->pq", precision, jacobian, jacobian)
        covariance = torch.linalg.inv(curvature + torch.diag(scale**-2))
        hat = torch.einsum("t,ntp,pq,ntq->tn", precision, jacobian, covariance, jacobian)
        assert_close(at(precision), hat, rtol=1e-8, atol=1e-10)


def test_under_a_narrow_prior_nothing_is_taken():
    data, (network, theta) = data_of(20, 2), started(2, 5, 1)
    found = effective_noise(network, theta, data, torch.full_like(theta, 1e-6), ONE)
    residual = data.y - network.forward(theta, data.x)
    assert_close(found.std, residual.square().mean(0).sqrt())


def test_where_weights_have_taken_all_rows_the_noise_is_that_of_rows_left_out():
    """Kernel interpolation: the leave-one-out residual is [K^-1 y]_n / [K^-1]_nn, by refits."""
    data = data_of(10, 14)
    scale = torch.full((15,), 2.0, dtype=torch.float64)
    design = torch.cat([data.x, torch.ones(10, 1, dtype=torch.float64)], 1) * scale
    std = torch.tensor([0.05], dtype=torch.float64)
    kernel = design @ design.T + std**2 * torch.eye(10)
    theta = scale * (design.T @ torch.linalg.solve(kernel, data.y))[:, 0]
    found = effective_noise(MLP(14, (), 1, TANH), theta, data, scale, std)
    left_out = []
    for i in range(10):
        rest = torch.arange(10) != i
        weights = torch.linalg.solve(kernel[rest][:, rest], data.y[rest, 0])
        left_out.append(data.y[i, 0] - design[i] @ design[rest].T @ weights)
    rms = torch.stack(left_out).square().mean().sqrt()
    spread = data.y.std(correction=0)
    assert found.freedoms > 9.5
    assert_close(found.std, torch.minimum(rms, spread).reshape(1))


@pytest.mark.parametrize("degrees", [4.0, 12.0, 300.0])
def test_nodes_make_up_student_s_t(degrees):
    """To .4 nats as far as eight standard deviations, where normals would be 10 to 25 off."""
    nodes = noise_nodes(np.array([[degrees]]))
    y = np.linspace(0.0, 8.0, 33)
    densities = stats.norm(scale=nodes.factor[0].numpy()).pdf(y)
    expected = stats.t.logpdf(y, degrees)
    assert np.abs(np.log(nodes.weight.numpy() @ densities) - expected).max() < 0.4
    assert float(nodes.weight.sum()) == pytest.approx(1.0)


def test_few_rows_leave_at_least_four_degrees():
    assert torch.equal(noise_nodes(np.array([[0.1]])).factor, noise_nodes(np.array([[4.0]])).factor)
