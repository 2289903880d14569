"""The Laplace posterior against dense normals, and what it does to outputs."""

from itertools import product

import numpy as np
import pytest
import torch
from inference.laplace.laplace_problems import averaged_outputs, image_problem, problem
from inference.laplace.test_curvature import (
    STRUCTURES,
    blocks_of,
    every_structure,
    factors_of,
    kronecker_factors,
    precision_of,
    prior_of,
)
from torch.testing import assert_close

from skbayes_sym.inference.laplace.jacobian import parameter_positions
from skbayes_sym.inference.laplace.laplace_posterior import LaplacePosterior, LinearisedNetwork


def posterior_of(p, kind):
    """As fitted: arrays, not tensors."""
    positions = parameter_positions(p.model.layers, p.model.network.layout).numpy()
    precision = precision_of(p, kind).map(np.asarray)
    return LaplacePosterior(p.theta.numpy(), precision, positions)


def dense_precision(p, kind):
    if kind == "kronecker":
        blocks = blocks_of(p, kronecker_factors(p))
        dense = torch.block_diag(*(blocks[n] for n in p.model.network.layout.shapes))
    else:
        dense = factors_of(p, "full")[0]
    return dense + prior_of(p)[p.model.owner].diag()


@every_structure
@pytest.mark.parametrize("p", [problem("classes"), image_problem()], ids=["plane", "images"])
def test_density_is_that_of_the_dense_normal(p, kind, generator):
    posterior, dense = posterior_of(p, kind), dense_precision(p, kind)
    theta = p.theta + torch.randn(3, len(p.theta), generator=generator, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(p.theta, precision_matrix=dense)
    assert_close(posterior.log_prob(theta), normal.log_prob(theta))
    assert posterior.log_prob(p.theta).shape == ()


@every_structure
def test_draws_have_the_dense_covariance(kind, generator):
    p = problem("classes", hidden=(2,))
    n = 20_000
    draws = posterior_of(p, kind).sample(n, generator=generator) - p.theta
    covariance = torch.linalg.inv(dense_precision(p, kind))
    products = draws[:, :, None] * draws[:, None, :]
    error = (products.mean(0) - covariance).abs()
    # About a hundred entries at 5 standard errors.
    assert (error < 5.0 * products.std(0) / n**0.5).all()


AT_ONE_POINT = {"plane": problem("numbers", rotate=False), "images": image_problem(n_samples=1)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [*product(AT_ONE_POINT, STRUCTURES), ("averaged", "full")],
)
def test_outputs_of_the_linearised_network(name, kind):
    """Without averaging, J is exact in every structure."""
    p = problem("classes") if name == "averaged" else AT_ONE_POINT[name]
    posterior = posterior_of(p, kind).tensors(p.theta)
    eta, shared = p.model.hyper.unflatten(p.hyper)["eta"], p.noise[0]
    q = p._replace(noise=shared.expand(len(p.data.x), *shared.shape))
    jac = torch.func.jacrev(lambda t: averaged_outputs(q, t))(p.theta)
    covariance = torch.linalg.inv(dense_precision(p, kind))
    linearised = LinearisedNetwork(p.model, posterior, eta, shared)
    found = linearised.outputs(p.data.x)
    assert_close(found.mean, averaged_outputs(q, p.theta))
    assert_close(found.covariance, torch.einsum("noi,ij,nkj->nok", jac, covariance, jac))
    joint = torch.einsum("noi,ij,moj->nmo", jac, covariance, jac)
    assert_close(linearised.covariance(p.data.x), joint)


@pytest.mark.long
@every_structure
def test_functions_have_the_linearised_moments_and_share_their_weights(kind):
    p = problem("numbers", n=3)
    posterior = posterior_of(p, kind).tensors(p.theta)
    eta = p.model.hyper.unflatten(p.hyper)["eta"]
    linearised = LinearisedNetwork(p.model, posterior, eta, p.noise[0])
    law = linearised.outputs(p.data.x)

    def draw(x, n):
        generator = torch.Generator().manual_seed(5)
        return linearised.functions(x, n, generator=generator)

    n = 4000
    away = draw(p.data.x, n) - law.mean
    products = torch.einsum("sno,snp->snop", away, away)
    error = (products.mean(0) - law.covariance).abs()
    assert (error < 5.0 * products.std(0) / n**0.5).all()
    assert_close(draw(p.data.x[1:2], 6)[:, 0], draw(p.data.x, 6)[:, 1])


def test_the_last_layer_leaves_the_others_at_the_mode(generator):
    p = problem("classes", hidden=(4,))
    m = p.model
    model = type(m)(m.network, m.augmentation, m.likelihood, 3, 1)
    last = p._replace(model=model, hyper=p.hyper[:2])
    draws = posterior_of(last, "full").sample(5, generator=generator)
    where = m.network.layout.slices["W2"].start
    assert torch.equal(draws[:, :where], p.theta[:where].expand(5, -1))
    assert (draws[:, where:] != p.theta[where:]).all()
