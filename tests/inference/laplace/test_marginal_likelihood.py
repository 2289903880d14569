"""The evidence against closed forms; its minibatch gradient against three others."""

from dataclasses import replace
from math import pi

import pytest
import torch
from inference.laplace.laplace_problems import (
    averaged_outputs,
    image_problem,
    network_problem,
    problem,
)
from inference.laplace.test_curvature import every_structure, structure_of
from torch.testing import assert_close

from skbayes_sym.inference.laplace.jacobian import Directions
from skbayes_sym.inference.laplace.marginal_likelihood import LaplaceEvidence
from skbayes_sym.models.networks.convolutional import resnet

DIRECTIONS = {
    "exact": Directions("exact"),
    "sketch": Directions("sketch", 1),
    "sketch-3": Directions("sketch", 3),
}
PROBLEMS = {
    "classes": problem("classes", n=8),
    "numbers": problem("numbers", n=8),
    "images": image_problem(n=4),
}


def evidence_of(p, kind="kronecker", directions="exact", batch_size=100):
    structure = structure_of(p, kind)
    return LaplaceEvidence(p.model, p.data, structure, DIRECTIONS[directions], batch_size)


def value(evidence, p, hyper, seed=3):
    sums = evidence.one_pass(p.theta, hyper, seed)
    precision = evidence.precision(sums.factors, hyper)
    terms, _ = evidence.evidence(p.theta, hyper, sums.log_likelihood, precision)
    return terms.value


def gradient_of(evidence, p, hyper=None, seed=3):
    hyper = p.hyper if hyper is None else hyper
    sums = evidence.one_pass(p.theta, hyper, seed)
    return evidence.gradient(p.theta, hyper, seed, evidence.precision(sums.factors, hyper))


def assert_slope_by_differences(slope, evidence, p, i):
    step = torch.zeros_like(p.hyper)
    step[i] = 1e-5
    difference = value(evidence, p, p.hyper + step) - value(evidence, p, p.hyper - step)
    # Central differences of a value of order 10: rounding of order 1e-9.
    assert_close(float(slope), difference / 2e-5, rtol=1e-5, atol=1e-6)


def learned(p):
    """Places of eta and the likelihood's parameters."""
    return range(p.model.hyper.slices["log_precision"].start)


RESIDUAL = {"residual": network_problem(resnet((2, 4, 4), 3, 2), n=3)}


@pytest.mark.parametrize("directions", DIRECTIONS)
@every_structure
@pytest.mark.parametrize("name", [*PROBLEMS, *RESIDUAL])
def test_surrogate_gradient_is_that_of_the_evidence_by_differences(name, kind, directions):
    p = (PROBLEMS | RESIDUAL)[name]
    evidence = evidence_of(p, kind, directions)
    gradient = gradient_of(evidence, p)
    for i in learned(p):
        assert_slope_by_differences(gradient[i], evidence, p, i)
    assert torch.count_nonzero(gradient[p.model.hyper.slices["log_precision"]]) == 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_surrogate_gradient_is_autograd_through_the_log_det(name):
    p = PROBLEMS[name]
    evidence = evidence_of(p, "full")
    gradient = gradient_of(evidence, p)
    leaf = p.hyper.clone().requires_grad_()
    generator = torch.Generator().manual_seed(3)
    seen = evidence.see(p.theta, leaf, p.data, generator, create_graph=True)
    log_precision = p.model.hyper.unflatten(p.hyper)["log_precision"]
    prior = log_precision.exp()[p.model.owner].diag()
    matrix = evidence.structure.factors(seen.jacobian, p.data.weight)[0] + prior
    objective = seen.log_likelihood - 0.5 * torch.logdet(matrix)
    assert_close(gradient, torch.autograd.grad(objective, leaf)[0])


@every_structure
def test_minibatches_change_nothing(kind):
    """Where no noise is drawn the split of the rows is only an order of summation."""
    p = problem("numbers", n=8, rotate=False)
    whole, parts = (evidence_of(p, kind, "exact", b) for b in (100, 3))
    assert_close(value(whole, p, p.hyper), value(parts, p, p.hyper))
    assert_close(gradient_of(whole, p), gradient_of(parts, p))


def test_minibatches_with_noise_follow_their_own_evidence():
    """The gradient belongs to the noise that the passes drew, batch by batch."""
    p = problem("classes", n=8)
    evidence = evidence_of(p, "kronecker", "sketch", batch_size=3)
    assert_slope_by_differences(gradient_of(evidence, p)[0], evidence, p, 0)


@every_structure
@pytest.mark.parametrize("name", PROBLEMS)
def test_prior_precision_slope_by_differences(name, kind):
    p = PROBLEMS[name]
    evidence = evidence_of(p, kind)
    sums = evidence.one_pass(p.theta, p.hyper, 3)
    precision = evidence.precision(sums.factors, p.hyper)
    _, slope = evidence.evidence(p.theta, p.hyper, sums.log_likelihood, precision)
    for i, at in enumerate(range(len(learned(p)), len(p.hyper))):
        assert_slope_by_differences(slope[i], evidence, p, at)


def linear_gaussian(n=12, n_outputs=2):
    """A linear model at the posterior's mode, where the Laplace approximation is exact."""
    p = problem("numbers", hidden=(), n=n, rotate=False)
    x1 = torch.cat([p.data.x, torch.ones(n, 1, dtype=torch.float64)], 1)
    h = p.model.hyper.unflatten(p.hyper)
    delta, noise = h["log_precision"].exp(), p.model.likelihood.noise_scale**2
    layers = []
    for o in range(n_outputs):
        gram = (x1 * p.data.weight[:, None]).T @ x1 / noise[o] + delta * torch.eye(3).double()
        right = (x1 * p.data.weight[:, None]).T @ p.data.y[:, o] / noise[o]
        layers.append(torch.linalg.solve(gram, right))
    coefficients = torch.stack(layers)  # (O, 3), bias last
    theta = torch.cat([coefficients[:, :2].flatten(), coefficients[:, 2]])
    return p._replace(theta=theta), x1


def test_linear_gaussian_evidence_is_exact():
    p, x1 = linear_gaussian()
    h = p.model.hyper.unflatten(p.hyper)
    found = value(evidence_of(p, "full"), p, p.hyper)
    # y ~ N(0, x1 x1' / delta + noise / weight), and the normalisers of weighted likelihoods
    expected = torch.zeros((), dtype=torch.float64)
    for o in range(2):
        noise = p.model.likelihood.noise_scale[o] ** 2
        cov = x1 @ x1.T / h["log_precision"].exp() + (noise / p.data.weight).diag()
        y = p.data.y[:, o]
        expected -= 0.5 * (y @ torch.linalg.solve(cov, y) + torch.logdet(2 * pi * cov))
        w = p.data.weight
        expected -= (0.5 * (w - 1.0) * torch.log(2 * pi * noise) + 0.5 * w.log()).sum()
    assert_close(found, float(expected))


def test_evidence_terms_of_a_known_case():
    """One weight, no data curvature: the prior's own evidence is 1."""
    p, _ = linear_gaussian()
    evidence = evidence_of(p, "full")
    nothing = [torch.zeros(6, 6, dtype=torch.float64)]
    theta = torch.zeros_like(p.theta)
    precision = evidence.precision(nothing, p.hyper)
    terms, slope = evidence.evidence(theta, p.hyper, torch.zeros(()), precision)
    assert_close(terms.value, 0.0, rtol=0.0, atol=1e-12)
    assert_close(slope, torch.zeros(1, dtype=torch.float64), rtol=0.0, atol=1e-12)


def test_gradient_vanishes_where_there_is_no_half_width():
    """The law of the transformations is even in eta: with noise of both signs it is flat at 0."""
    p = problem("classes", n=6, n_samples=2)
    hyper = p.hyper.clone()
    hyper[0] = 0.0

    class Antithetic(type(p.model)):
        def noise(self, n_rows, like, generator):
            half = torch.rand(n_rows, 1, 1, generator=generator, dtype=like.dtype)
            return torch.cat([half, -half], 1)

    m = p.model
    model = Antithetic(m.network, m.augmentation, m.likelihood, 2)
    evidence = replace(evidence_of(p), model=model)
    assert_close(float(gradient_of(evidence, p, hyper, 0)[0]), 0.0, rtol=0.0, atol=1e-12)


def test_averaged_network_forward_is_the_mean_of_its_transformations():
    p = problem("numbers")
    eta = p.model.hyper.unflatten(p.hyper)["eta"]
    expected = averaged_outputs(p, p.theta)
    assert_close(p.model.forward(p.theta, eta, p.data.x, p.noise), expected)
    assert_close(p.model.record(p.theta, eta, p.data.x, p.noise)[1].detach(), expected)
