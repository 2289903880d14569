"""Directions, Jacobians and the factors made of them, against independent derivatives."""

from itertools import product

import pytest
import torch
from inference.laplace.laplace_problems import (
    averaged_outputs,
    image_problem,
    network_problem,
    problem,
)
from torch.testing import assert_close

from skbayes_sym.inference.laplace.jacobian import (
    AveragedJacobian,
    Directions,
    dense_jacobian,
    parameter_layers,
    parameter_positions,
)
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.networks.convolutional import resnet, wide_resnet

PROBLEMS = {
    "classes": problem("classes"),
    "numbers": problem("numbers", hidden=(3, 2)),
    "plain": problem("classes", rotate=False),
    "images": image_problem(),
    "images-hidden": image_problem(hidden=True),
    "residual": network_problem(resnet((2, 4, 4), 3, 2)),
    "wide-residual": network_problem(wide_resnet((2, 4, 4), 3, 10, 1)),
}
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def jacobian_of(p, directions):
    h = p.model.hyper.unflatten(p.hyper)
    recording, averaged = p.model.record(p.theta, h["eta"], p.data.x, p.noise)
    return AveragedJacobian(recording, p.model.layers, p.model.n_samples, averaged, directions)


@every_problem
def test_jacobian_is_that_of_the_averaged_network(name, generator):
    p = PROBLEMS[name]
    n_outputs = averaged_outputs(p, p.theta).shape[-1]
    directions = torch.randn(4, len(p.data.x), n_outputs, generator=generator, dtype=torch.float64)
    expected = torch.func.jacrev(lambda t: averaged_outputs(p, t))(p.theta)
    expected = torch.einsum("kno,nop->knp", directions, expected)
    layout = p.model.network.layout
    at = parameter_positions(p.model.layers, layout)
    assert_close(dense_jacobian(jacobian_of(p, directions), layout), expected[..., at])


@pytest.mark.parametrize("n_last", [1, 2, 3])
@pytest.mark.parametrize("name", ["numbers", "plain", "images-hidden"])
def test_averages_without_backward_passes_are_those_with_them(name, n_last):
    """Values and second derivatives of the closed form at the end, against the general path."""
    p = PROBLEMS[name]
    layers = p.model.layers[-n_last:]

    def averages_and_slopes(with_head):
        leaf = p.hyper.clone().requires_grad_()
        eta = p.model.hyper.unflatten(leaf)["eta"]
        recording, averaged = p.model.record(p.theta, eta, p.data.x, p.noise)
        assert recording.head is not None
        recording = recording if with_head else recording._replace(head=None)
        directions = averaged.sin() * torch.arange(1, 5).double()[:, None, None]
        jacobian = AveragedJacobian(
            recording, layers, p.model.n_samples, averaged, directions, True
        )
        flat = torch.cat([t.flatten() for layer in jacobian.averages for t in layer[1:]])
        towards = torch.linspace(-1.0, 1.0, len(flat), dtype=torch.float64)
        slope = torch.autograd.grad(towards @ flat, leaf)[0] if p.noise.numel() else flat[:0]
        return flat.detach(), slope

    for found, expected in zip(*map(averages_and_slopes, (True, False)), strict=True):
        assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_last_layer_alone():
    p = problem("classes", hidden=(4, 3))
    model = p.model.__class__(p.model.network, p.model.augmentation, p.model.likelihood, 3, 1)
    layout = model.network.layout
    h = p.model.hyper.unflatten(p.hyper)
    recording, averaged = model.record(p.theta, h["eta"], p.data.x, p.noise)
    directions = Categorical().hessian_root(averaged.detach(), p.data.y)
    jacobian = AveragedJacobian(recording, model.layers, 3, averaged, directions)
    every = dense_jacobian(jacobian_of(p, directions), layout)
    assert_close(
        dense_jacobian(jacobian, layout), every[..., parameter_positions(model.layers, layout)]
    )
    assert torch.equal(
        parameter_positions(model.layers, layout), torch.arange(layout.slices["W3"].start, 39)
    )
    assert set(parameter_layers(model.layers, layout).tolist()) == {0}
    assert model.sizes.tolist() == [12]


def test_exact_directions_are_the_root(generator):
    outputs = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (6,), generator=generator)
    lik = Categorical()
    exact = Directions("exact").columns(lik, outputs, y, generator=generator)
    assert torch.equal(exact, lik.hessian_root(outputs, y))


def test_the_sketch_is_unbiased(generator):
    outputs = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    y = torch.zeros(2, dtype=torch.int64)
    lik = Categorical()
    root = lik.hessian_root(outputs, y)
    n_draws = 4000
    columns = Directions("sketch", n_draws).columns(lik, outputs, y, generator=generator)
    squares = n_draws * torch.einsum("kno,knp->knop", columns, columns)
    error = squares.mean(0) - torch.einsum("kno,knp->nop", root, root)
    standard_error = squares.std(0) / n_draws**0.5
    assert (error.abs() < 5.0 * standard_error + 1e-12).all()
    # and each direction is the root times signs over sqrt(n_draws), not only on average
    assert columns.shape == (n_draws, 2, 4)
    signs = torch.tensor(list(product((-1.0, 1.0), repeat=4)), dtype=torch.float64)
    for row in range(2):
        away = torch.cdist(n_draws**0.5 * columns[:, row], signs @ root[:, row])  # (n_draws, 16)
        assert float(away.min(1).values.max()) < 1e-7
        assert len(away.argmin(1).unique()) >= 8  # s and -s differ, others may tie
